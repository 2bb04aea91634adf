//! Tells when a pool gets full, once for each step, and not again before it was clearly below.
//!
//! Whoever writes too much hears of it when it is too late, and the person who could do something is somebody else. The
//! steps are those at which the server's alerts begin; those look at the state, and so say the same once, whether or not
//! anybody read the event.

use crate::{
    alloc::Totals,
    events::{Event, Events},
};

/// Percent allocated at which it is told.
const STEPS: [u64; 3] = [80, 90, 95];
/// Percent below a step at which it is no longer reached: a pool at the step must not come and go.
const SLACK: u64 = 2;

/// How many steps are reached.
#[derive(Debug, Default)]
pub(crate) struct Fill(usize);

impl Fill {
    /// To be called when a transaction group is durable.
    pub(crate) fn note(&mut self, totals: &Totals, events: &Events) {
        let Some(percent) = totals.allocated.saturating_mul(100).checked_div(totals.capacity) else { return };
        let steps = |percent: u64| STEPS.iter().filter(|step| percent >= **step).count();
        let reached = steps(percent);
        if reached > self.0 {
            tracing::warn!(percent, "little space is left");
            events.tell(Event::SpaceLow { percent: u8::try_from(percent).unwrap_or(100) });
        }
        self.0 = reached.max(self.0.min(steps(percent + SLACK)));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_step_is_told_once() {
        let events = Events::new(|| Duration::ZERO);
        let mut fill = Fill::default();
        let told = |fill: &mut Fill, percent: u64| {
            let totals = Totals { capacity: 1000, allocated: percent * 10 + 3, ..Totals::default() };
            fill.note(&totals, &events);
            events.since(0).len()
        };
        let steps =
            [(79, 0), (80, 1), (81, 1), (79, 1), (80, 1), (77, 1), (80, 2), (96, 3), (90, 3), (95, 4)];
        for (percent, times) in steps {
            assert_eq!(told(&mut fill, percent), times, "{percent}");
        }
        Fill::default().note(&Totals::default(), &events);
        assert_eq!(events.since(0).last().unwrap().event, Event::SpaceLow { percent: 95 });
    }
}
