//! What people are told while memory is short: that something is shed, each further stage once, and the end. Stages come
//! and go by the second, and clients are slowed down step by step: none of that is news.

use ::memory::plan::Stage;

/// From the first stage that is shed to nothing being shed any more.
#[derive(Debug, Default)]
pub(super) struct Episode {
    /// The furthest stage that was told.
    told: Stage,
}

/// Worth a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// More is shed than ever in this episode.
    Worse,
    /// Nothing is shed any more.
    Over,
}

impl Episode {
    /// This is what is shed now.
    pub(super) fn goes_on(&mut self, stage: Stage) -> Option<News> {
        if stage == Stage::Nothing {
            return (std::mem::take(&mut self.told) != Stage::Nothing).then_some(News::Over);
        }
        let is_further = stage > self.told;
        self.told = self.told.max(stage);
        is_further.then_some(News::Worse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_is_told_once_for_each_further_stage_and_when_it_is_over() {
        use Stage::{Cache, Clients, Nothing, Scans, Statistics};
        let mut episode = Episode::default();
        let stages =
            [Nothing, Cache, Clients, Clients, Cache, Clients, Scans, Cache, Statistics, Nothing, Nothing];
        let told: Vec<_> = stages.into_iter().map(|stage| episode.goes_on(stage)).collect();
        let mut expected = [None; 11];
        (expected[1], expected[2], expected[9]) = (Some(News::Worse), Some(News::Worse), Some(News::Over));
        assert_eq!(told, expected);
        assert_eq!(episode.goes_on(Statistics), Some(News::Worse), "another one");
    }
}
