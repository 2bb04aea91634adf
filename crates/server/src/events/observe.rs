//! Carries what the engines of open pools tell into the journal: a task for each pool, that ends with it.
//!
//! The last events of a pool are told while it is being closed, so closing takes over what the task has not yet
//! carried, before the word that the pool is gone.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Weak},
};

use engine::{
    engine::{Ending, Engine},
    events::{Event, Events},
};
use parking_lot::Mutex;
use pool::vdev::State;
use serde_json::{Map, json};
use tokio::task::JoinHandle;

use super::{About, Journal, names};
use crate::{
    hostid,
    newest::{self, Notes},
    ops::Held,
};

/// Follows the pools that are open.
pub struct Observer {
    journal: Arc<Journal>,
    pools: Mutex<BTreeMap<u64, Followed>>,
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Observer({} pools)", self.pools.lock().len())
    }
}

/// What follows a pool, and the task it does so in.
type Followed = (Arc<Follower>, JoinHandle<()>);

/// What one pool's task does.
struct Follower {
    about: About,
    journal: Arc<Journal>,
    events: Arc<Events>,
    /// Only to look at its devices; a pool that is being closed is not kept open for that.
    engine: Weak<Engine>,
    /// Called with what concerns whoever serves the pool.
    tell: Box<dyn Fn(News) + Send + Sync>,
    /// Told when devices go away.
    notes: Option<Arc<Notes>>,
    /// Number of the last event that is in the journal.
    carried: Mutex<u64>,
}

impl Follower {
    fn carry(&self) {
        let mut carried = self.carried.lock();
        let tree = self.engine.upgrade().map(|engine| engine.view().tree());
        for record in self.events.since(*carried) {
            let lost = record.number - *carried - 1;
            if lost > 0 && *carried > 0 {
                let mut pairs = Map::new();
                pairs.insert("io_millpond_count".to_owned(), json!(lost));
                let (class, pairs) = names::millpond("sysevent", "events_lost", pairs);
                self.journal.add(&self.about, &class, record.time, pairs, None);
                (self.tell)(News::Changed);
            }
            *carried = record.number;
            if let Some(news) = news_of(&record.event) {
                (self.tell)(news);
            }
            if newest::matters(&record.event)
                && let Some(notes) = &self.notes
            {
                notes.soon();
            }
            let named = names::name(&record.event, self.about.guid, tree.as_deref());
            for (class, pairs) in named {
                self.journal.add(&self.about, &class, record.time, pairs, Some(Arc::clone(&record)));
            }
        }
    }
}

/// What concerns whoever serves a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// Something can be read or written now that could not.
    Back,
    /// It is not as it was, and whoever changed it does not see to what follows from that.
    Changed,
}

fn news_of(event: &Event) -> Option<News> {
    let works = |state: &State| matches!(state, State::Healthy | State::Degraded);
    match event {
        Event::Resumed => Some(News::Back),
        Event::DeviceState { from, to, .. } if !works(from) && works(to) => Some(News::Back),
        Event::CommandDone => Some(News::Changed),
        _ => None,
    }
}

impl Observer {
    /// Follows none yet; writes into `journal`. Its methods want a tokio runtime.
    #[must_use]
    pub fn new(journal: Arc<Journal>) -> Self {
        Self { journal, pools: Mutex::default() }
    }

    /// Where it writes.
    #[must_use]
    pub fn journal(&self) -> &Arc<Journal> {
        &self.journal
    }

    /// A pool was opened here. `tell` is called when it goes on after a suspension, a device of it works again, or a command was
    /// carried out that nobody waits for; `notes` are told when devices are away.
    pub(crate) fn opened(
        &self,
        held: &Held,
        notes: Option<Arc<Notes>>,
        tell: impl Fn(News) + Send + Sync + 'static,
    ) {
        let about = About { pool: held.name().to_owned(), guid: held.guid() };
        // What its engine told while it was opened is carried behind this line.
        let told = held.engine().and_then(|engine| engine.events().since(0).first().map(|first| first.time));
        let now = hostid::moment();
        self.say(&about, "pool_import", told.map_or(now, |told| told.min(now)));
        let Some(engine) = held.engine() else { return };
        let follower = Arc::new(Follower {
            about,
            journal: Arc::clone(&self.journal),
            events: Arc::clone(engine.events()),
            engine: Arc::downgrade(engine),
            tell: Box::new(tell),
            notes,
            carried: Mutex::new(0),
        });
        let mut newest = follower.events.newest();
        let task = tokio::spawn({
            let follower = Arc::clone(&follower);
            async move {
                loop {
                    follower.carry();
                    if newest.changed().await.is_err() {
                        return;
                    }
                }
            }
        });
        if let Some((_, before)) = self.pools.lock().insert(held.guid(), (follower, task)) {
            before.abort();
        }
    }

    /// A pool is closed; it stays imported, or not, as `ending` says.
    pub(crate) fn closed(&self, held: &Held, ending: Ending) {
        let followed = self.pools.lock().remove(&held.guid());
        if let Some((follower, task)) = followed {
            task.abort();
            follower.carry();
        }
        let about = About { pool: held.name().to_owned(), guid: held.guid() };
        match ending {
            // Imported as before: the daemon only ends.
            Ending::Close => {}
            Ending::Export => self.say(&about, "pool_export", hostid::moment()),
            Ending::Destroy => self.say(&about, names::DESTROYED, hostid::moment()),
        }
    }

    fn say(&self, about: &About, name: &str, time: (u64, u32)) {
        let (class, pairs) = names::sysevent(name, Map::new());
        self.journal.add(about, &class, time, pairs, None);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use engine::events::DeviceName;
    use pool::vdev::Aux;

    use super::*;

    #[test]
    fn whoever_serves_a_pool_hears_that_it_or_a_device_of_it_is_back_or_changed() {
        let (events, heard) = (Events::new(|| Duration::ZERO), Arc::new(Mutex::new(Vec::new())));
        let follower = Follower {
            about: About { pool: "tank".to_owned(), guid: 7 },
            journal: Arc::default(),
            events: Arc::clone(&events),
            engine: Weak::new(),
            tell: Box::new({
                let heard = Arc::clone(&heard);
                move |news| heard.lock().push(news)
            }),
            notes: None,
            carried: Mutex::new(0),
        };
        let state = |from, to| Event::DeviceState {
            device: DeviceName { guid: 1, path: None, name: "a".to_owned(), parent: None },
            from,
            to,
            aux: Aux::None,
            why: String::new(),
        };
        let told = [
            (Event::Suspended { why: "it is away".to_owned() }, None),
            (state(State::Healthy, State::Removed), None),
            (state(State::Removed, State::Healthy), Some(News::Back)),
            (state(State::Healthy, State::Degraded), None),
            (Event::Resumed, Some(News::Back)),
            (Event::CommandDone, Some(News::Changed)),
        ];
        for (event, news) in told {
            events.tell(event);
            follower.carry();
            assert_eq!(std::mem::take(&mut *heard.lock()), news.into_iter().collect::<Vec<_>>());
        }
    }
}
