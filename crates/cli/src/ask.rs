//! Who answers: a running daemon, or the pools opened here and now.
//!
//! A daemon is asked if its socket answers and no `-d` names another place. A pool it does not have is looked for
//! here all the same, so that one daemon does not hide the other pools of a host. One that does not answer, and has the state
//! directory, is missed in every answer: of a pool that it has suspended the devices say that all is well.

use std::{
    collections::BTreeSet,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
};

use server::{
    answers::Pools,
    api::{
        self, DatasetQuery,
        memory::Memory,
        share::{ShareList, SilentPool},
    },
    client::Client,
    engine::open::refusal,
    host::{self, Foreign, HostError, Opened, Places, RECOVERED, Settings, chain},
    hostid,
    ops::Held,
    pool::import::{Candidate, examine},
    state::Remembered,
    view,
};

use crate::{
    context::{Context, Daemon},
    zpool::finish,
};

/// Answers questions about pools and datasets.
pub(crate) struct Ask {
    daemon: Option<Client>,
    /// What is said of one that should answer and does not.
    missed: Option<String>,
    places: Places,
    /// What was said of pools that were opened.
    said: Mutex<BTreeSet<String>>,
}

/// Answers, and a sentence for each that there is none to.
#[derive(Debug)]
pub(crate) struct Answer<T> {
    pub(crate) found: T,
    /// Of imported pools that are not open. That one of them is away keeps nobody from what is asked of all, as with OpenZFS,
    /// whose scripts give up where a list of all fails.
    pub(crate) away: Vec<String>,
    pub(crate) failures: Vec<String>,
}

impl<T> Answer<T> {
    /// Whether nothing is missing from it.
    pub(crate) fn is_whole(&self) -> bool {
        self.away.is_empty() && self.failures.is_empty()
    }

    /// All sentences.
    pub(crate) fn problems(&self) -> Vec<String> {
        self.away.iter().chain(&self.failures).cloned().collect()
    }

    /// Prints them. Only what failed is told by the exit code.
    pub(crate) fn finish(&self) -> ExitCode {
        self.away.iter().for_each(|sentence| say!("{sentence}"));
        finish(&self.failures)
    }
}

impl Answer<Vec<api::Pool>> {
    /// With what could not be found out of the pools, for whoever shows how they are. Of one that is not open that is the answer,
    /// also if it was named.
    fn with_problems(mut self) -> Self {
        for pool in &self.found {
            let sentences = if pool.is_open() { &mut self.failures } else { &mut self.away };
            sentences.extend(pool.problems.iter().cloned());
        }
        self
    }
}

impl Ask {
    pub(crate) async fn new(context: &Context) -> anyhow::Result<Self> {
        let (daemon, missed) = match context.daemon().await? {
            Daemon::Answers(daemon) => (Some(daemon), None),
            Daemon::Missed(sentence, remedy) => {
                (None, Some(format!("{sentence}: what is shown is what is on the devices\n{remedy}")))
            }
            Daemon::Absent => (None, None),
        };
        Ok(Self { daemon, missed, places: context.places(&[]), said: Mutex::default() })
    }

    /// Whether a daemon knows better than what is answered.
    pub(crate) fn misses_a_daemon(&self) -> bool {
        self.missed.is_some()
    }

    /// Nothing yet.
    fn answer<T: Default>(&self) -> Answer<T> {
        Answer { found: T::default(), away: Vec::new(), failures: self.missed.iter().cloned().collect() }
    }

    /// The pools of these names or guids, all if there are none, and what could not be found out of them.
    pub(crate) async fn health(&self, names: &[String]) -> anyhow::Result<Answer<Vec<api::Pool>>> {
        Ok(self.pools(names).await?.with_problems())
    }

    /// The pools of these names or guids; all if there are none. One that is there and cannot be opened is
    /// answered with what its labels tell.
    pub(crate) async fn pools(&self, names: &[String]) -> anyhow::Result<Answer<Vec<api::Pool>>> {
        let mut answer = self.answer::<Vec<api::Pool>>();
        if names.is_empty() {
            if let Some(daemon) = &self.daemon {
                answer.found = daemon.pools().await?;
                answer.found.iter_mut().for_each(view::in_local_time);
                return Ok(answer);
            }
            let known = self.places.all().await?;
            answer.failures.extend(known.problems);
            for (candidate, remembered) in &known.pools {
                answer.found.push(self.look(candidate, remembered.as_ref()).await);
            }
            for pool in &known.absent {
                answer.found.push(view::not_open(&pool.name, pool.guid, None, &host::absent(pool)));
            }
            answer.found.sort_by(|a, b| a.name.cmp(&b.name));
            return Ok(answer);
        }
        for name in names {
            if let Some(daemon) = &self.daemon {
                match daemon.pool(name).await {
                    Ok(mut pool) => {
                        view::in_local_time(&mut pool);
                        answer.found.push(pool);
                        continue;
                    }
                    Err(error) if error.is_not_found() => {}
                    Err(error) => return Err(error.into()),
                }
                // Of one that it waits for it knows why. Whoever looked for himself might find it in order.
                let all = daemon.pools().await?;
                if let Some(mut pool) = all.into_iter().find(|pool| [&pool.name, &pool.guid].contains(&name))
                {
                    view::in_local_time(&mut pool);
                    answer.found.push(pool);
                    continue;
                }
            }
            match self.places.find(name).await {
                Ok((candidate, remembered)) => {
                    answer.found.push(self.look(&candidate, remembered.as_ref()).await);
                }
                Err(error) => {
                    let why = chain(&error);
                    match error {
                        HostError::Absent { pool, .. } => {
                            answer.found.push(view::not_open(&pool.name, pool.guid, None, &why));
                        }
                        _ => answer.failures.push(why),
                    }
                }
            }
        }
        Ok(answer)
    }

    /// The memory of the daemon, if there is one.
    pub(crate) async fn memory(&self) -> anyhow::Result<Option<Memory>> {
        match &self.daemon {
            Some(daemon) => Ok(Some(daemon.memory().await?)),
            None => Ok(None),
        }
    }

    /// The datasets that `query` asks for below each of `names`; below every pool if there are none. Datasets
    /// that two names lead to are answered once.
    pub(crate) async fn datasets(
        &self,
        names: &[String],
        query: &DatasetQuery,
    ) -> anyhow::Result<Answer<Vec<api::Dataset>>> {
        let mut answer = self.answer::<Vec<api::Dataset>>();
        if names.is_empty() {
            let all = match &self.daemon {
                Some(daemon) => {
                    let mut all = daemon.datasets(query).await?;
                    all.datasets.iter_mut().for_each(view::dates_in_local_time);
                    // They are among the problems, too.
                    all.problems.retain(|problem| all.away.iter().all(|pool| pool.problem != *problem));
                    all
                }
                None => {
                    let (pools, away) = self.open_all(&mut answer.failures).await?;
                    api::Datasets { away, ..pools.datasets(query).await? }
                }
            };
            answer.away.extend(all.away.into_iter().map(|pool| pool.problem));
            answer.failures.extend(all.problems);
            answer.found = all.datasets;
            return Ok(answer);
        }
        let mut here = Pools::default();
        for name in names {
            let query = DatasetQuery { name: Some(name.clone()), ..query.clone() };
            if let Some(daemon) = &self.daemon {
                match daemon.datasets(&query).await {
                    Ok(mut found) => {
                        found.datasets.iter_mut().for_each(view::dates_in_local_time);
                        answer.failures.extend(found.problems);
                        answer.found.extend(found.datasets);
                        continue;
                    }
                    Err(error) if error.is_not_found() => {
                        let pool = name.split(['/', '@', '#']).next().unwrap_or_default();
                        if daemon.pool(pool).await.is_ok() {
                            answer.failures.push(error.to_string());
                            continue;
                        }
                    }
                    Err(server::client::ClientError::Refused { error, .. }) => {
                        answer.failures.push(error);
                        continue;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            let pool = name.split(['/', '@', '#']).next().unwrap_or_default();
            if here.all().iter().all(|known| known.name() != pool) {
                match self.places.open(pool, &Settings::default()).await {
                    Ok(opened) => {
                        self.warn(&opened);
                        here = Pools::new(here.all().iter().cloned().chain([looked_at(opened)]).collect());
                    }
                    Err(HostError::NoSuchPool { hint, .. }) => {
                        answer.failures.push(format!("cannot open '{name}': dataset does not exist{hint}"));
                        continue;
                    }
                    Err(error) => {
                        answer.failures.push(chain(&error));
                        continue;
                    }
                }
            }
            match here.datasets(&query).await {
                Ok(found) => {
                    answer.failures.extend(found.problems);
                    answer.found.extend(found.datasets);
                }
                Err(error) => answer.failures.push(chain(&error)),
            }
        }
        view::sort(&mut answer.found);
        answer.found.dedup_by(|a, b| a.name == b.name);
        Ok(answer)
    }

    /// What all pools keep about offering.
    pub(crate) async fn shares(&self) -> anyhow::Result<Answer<ShareList>> {
        let mut answer = self.answer::<ShareList>();
        answer.found = match &self.daemon {
            Some(daemon) => daemon.share().await?,
            None => {
                let (pools, missing) = self.open_all(&mut answer.failures).await?;
                let mut list = pools.shares().await;
                list.silent.extend(missing);
                list.silent.sort_by(|a, b| a.pool.cmp(&b.pool));
                list
            }
        };
        Ok(answer)
    }

    /// All pools, opened, and those that are not there or cannot be.
    async fn open_all(&self, failures: &mut Vec<String>) -> anyhow::Result<(Pools, Vec<SilentPool>)> {
        let known = self.places.all().await?;
        failures.extend(known.problems);
        let absent = |pool: &Remembered| SilentPool { pool: pool.name.clone(), problem: host::absent(pool) };
        let mut missing: Vec<SilentPool> = known.absent.iter().map(absent).collect();
        let mut pools = Vec::new();
        for (candidate, remembered) in &known.pools {
            match host::open(candidate, remembered.as_ref(), &Settings::default()).await {
                Ok(opened) => {
                    self.warn(&opened);
                    pools.push(looked_at(opened));
                }
                Err(error) => {
                    missing.push(SilentPool { pool: candidate.name.clone(), problem: chain(&error) });
                }
            }
        }
        Ok((Pools::new(pools), missing))
    }

    /// Opens a pool, looks, and lets it go.
    async fn look(&self, candidate: &Candidate, remembered: Option<&Remembered>) -> api::Pool {
        let settings = Settings { foreign: Foreign::Warn, ..Settings::default() };
        match host::open(candidate, remembered, &settings).await {
            Ok(opened) => {
                self.warn(&opened);
                // What is imported to be written to is not read-only because somebody looks at it, but if nobody could.
                let to_be_written = remembered.filter(|pool| !pool.read_only);
                let read_only = match to_be_written {
                    Some(pool) if pool.is_recovered() => Some(RECOVERED.to_owned()),
                    Some(_) => refusal(&opened.pool).await,
                    None => None,
                };
                let shown = view::pool(&opened.pool, to_be_written.is_none() || read_only.is_some()).await;
                let mut shown = api::Pool { read_only, ..shown };
                if remembered.is_some_and(|pool| pool.boot.is_some()) {
                    view::unlist(&mut shown);
                }
                shown
            }
            Err(error) => {
                let report = examine(candidate, hostid::hostid(), &hostid::hostname()).await;
                view::not_open(&candidate.name, candidate.guid, Some(&report), &chain(&error))
            }
        }
    }

    /// Says what the user should know of a pool that was opened. One question may open it twice.
    fn warn(&self, opened: &Opened) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        for note in &opened.notes {
            if said.insert(note.clone()) {
                say!("warning: {note}");
            }
        }
    }
}

/// A pool that was opened to answer.
fn looked_at(opened: Opened) -> Arc<Held> {
    Arc::new(Held::reading(opened.pool, "it was opened to be looked at"))
}
