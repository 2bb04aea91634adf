//! One operation at work: the pools it runs on, what it leaves in their history, and clients it must not take by surprise.

use std::{collections::BTreeSet, sync::Arc};

use engine::{
    dsl::OpError,
    engine::{Engine, OpFuture},
    sync::Syncer,
};
use pool::ondisk::nvlist::NvList;

use super::{
    Failure, Held, Host,
    failure::{may_yet_be_made, refused},
};
use crate::{hostid, serving::Aside};

/// Clients that are named when a dataset is busy.
const CLIENTS_NAMED: usize = 4;

/// What goes into a pool's history.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) command: String,
    pub(crate) user: u64,
}

impl Record {
    pub(crate) fn to_nvlist(&self) -> NvList {
        let mut list = NvList::default();
        list.set("history command", self.command.as_str());
        list.set("history zone", "linux");
        list.set("history who", self.user);
        list.set("history time", hostid::now());
        list.set("history hostname", hostid::hostname().as_str());
        list
    }
}

/// Who changes the pool.
fn writable(held: &Held) -> Result<&Arc<Engine>, OpError> {
    held.engine().ok_or_else(|| OpError::Refused("pool is read-only".to_owned()))
}

/// A change, and behind it the command in the pool's history.
fn recorded<F>(
    record: Option<NvList>,
    op: F,
) -> impl for<'c> FnOnce(&'c mut Syncer) -> OpFuture<'c, ()> + Clone + Send + 'static
where
    F: for<'c> FnOnce(&'c mut Syncer) -> OpFuture<'c, ()> + Clone + Send + 'static,
{
    move |cx| {
        Box::pin(async move {
            op(cx).await?;
            if let Some(record) = record {
                engine::mos::history::append(&mut cx.mos, &record).await?;
            }
            Ok(())
        })
    }
}

/// One operation at work.
pub(crate) struct Cx<'a> {
    pub(crate) host: &'a Host,
    pub(crate) record: Option<Record>,
}

impl Cx<'_> {
    /// Runs a change in the engine and notes the command in the pool's history with it. `what` is what cannot be
    /// done if it is refused: `cannot create 'tank/x'`.
    pub(crate) async fn change<F>(&self, held: &Held, what: &str, op: F) -> Result<(), Failure>
    where
        F: for<'c> FnOnce(&'c mut Syncer) -> OpFuture<'c, ()> + Clone + Send + 'static,
    {
        self.try_change(held, op).await.map_err(|error| refused(what, &error))
    }

    /// The same, for callers who have their own words for some refusals.
    pub(crate) async fn try_change<F>(&self, held: &Held, op: F) -> Result<(), OpError>
    where
        F: for<'c> FnOnce(&'c mut Syncer) -> OpFuture<'c, ()> + Clone + Send + 'static,
    {
        writable(held)?.run(recorded(self.record.as_ref().map(Record::to_nvlist), op)).await
    }

    /// The same for a change that takes snapshots.
    pub(crate) async fn try_snapshot<F>(&self, held: &Held, op: F) -> Result<(), OpError>
    where
        F: for<'c> FnOnce(&'c mut Syncer) -> OpFuture<'c, ()> + Clone + Send + 'static,
    {
        writable(held)?.run_snapshot(recorded(self.record.as_ref().map(Record::to_nvlist), op)).await
    }

    /// From here on nobody begins to use these volumes and snapshots, which are to go, or to get other names. An error is the name
    /// of one that somebody uses.
    pub(crate) async fn set_aside(&self, held: &Held, names: &[String]) -> Result<Vec<Arc<Aside>>, String> {
        let Some(serving) = &self.host.serving else { return Ok(Vec::new()) };
        let asides = serving.set_aside_all(held, names);
        if asides.is_err() {
            // Again: what was read meanwhile may have taken a while.
            self.served(held).await;
        }
        asides
    }

    /// Runs a change of what is set aside. What is not changed after all is as it was, and what is served has to follow.
    pub(crate) async fn try_change_aside<F>(
        &self,
        held: &Held,
        asides: &[Arc<Aside>],
        op: F,
    ) -> Result<(), OpError>
    where
        F: for<'c> FnOnce(&'c mut Syncer) -> OpFuture<'c, ()> + Clone + Send + 'static,
    {
        let shut = asides.to_vec();
        let done = self.try_change(held, move |cx| {
            Box::pin(async move {
                // As long as this may still be done.
                let _shut = shut;
                op(cx).await
            })
        });
        let done = done.await;
        if done.as_ref().is_err_and(|error| !may_yet_be_made(error)) {
            asides.iter().for_each(|aside| aside.spare());
        }
        done
    }

    /// After a change: what is served follows.
    pub(crate) async fn served(&self, held: &Held) -> Vec<String> {
        let Some(serving) = &self.host.serving else { return Vec::new() };
        let problems = serving.follow(held).await;
        serving.names_are_free();
        problems
    }

    /// Those of these datasets that clients are connected to.
    pub(crate) fn used<'a>(&self, names: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
        let Some(serving) = &self.host.serving else { return BTreeSet::new() };
        let names: BTreeSet<&str> = names.collect();
        serving.used(|name| names.contains(name))
    }

    /// A dataset with clients stays as it is. `what` is what is refused then: `cannot destroy 'tank/x'`.
    pub(crate) fn spare_clients_of(&self, name: &str, what: &str) -> Result<(), Failure> {
        let clients = self.host.serving.as_ref().map(|serving| serving.clients(name));
        free_of(&clients.unwrap_or_default(), what)
    }

    /// The same for those of its snapshots and of what is below it. With `everywhere` a snapshot means those of its name of
    /// everything below its dataset.
    pub(crate) fn spare_clients_below(
        &self,
        name: &str,
        everywhere: bool,
        what: &str,
    ) -> Result<(), Failure> {
        let serving = self.host.serving.as_ref();
        let clients = serving.map(|serving| serving.clients_below(name, everywhere));
        free_of(&clients.unwrap_or_default(), what)
    }
}

/// Refuses `what` if there are clients, in one line: of several, scripts read the last.
fn free_of(clients: &[String], what: &str) -> Result<(), Failure> {
    match clients {
        [] => Ok(()),
        clients => Err(Failure::because(what, format_args!("dataset is busy: {}", used_by(clients)))),
    }
}

/// Who has to be disconnected: some of them, if there are many.
fn used_by(clients: &[String]) -> String {
    let (named, others) = clients.split_at(clients.len().min(CLIENTS_NAMED));
    let others = match others.len() {
        0 => String::new(),
        count => format!(", and {count} more"),
    };
    format!("used by {}{others} ('millpond initiators')", named.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// That it is busy was all that was said, and who looked for the reason looked for a mount.
    #[test]
    fn a_busy_dataset_says_by_whom_it_is_used() {
        let clients: Vec<String> = (1..=6).map(|i| format!("iqn.a:{i} from 10.0.0.{i}:4000")).collect();
        let one = "used by iqn.a:1 from 10.0.0.1:4000 ('millpond initiators')";
        assert_eq!(used_by(&clients[..1]), one);
        let said = used_by(&clients);
        assert!(
            said.contains("iqn.a:4") && !said.contains("iqn.a:5") && said.contains(", and 2 more"),
            "{said}"
        );
    }
}
