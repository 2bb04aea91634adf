//! `zfs destroy` and `zfs rollback`: first the whole plan, then the deed.
//!
//! ```text
//!   -r  a dataset: its snapshots, what is below it          a snapshot: those of its name below
//!   -R  all of that, and every clone of it, with what is below those, and so on
//! ```
//!
//! A plan lists what goes before what it is needed by: clones before the snapshots they stand on, children and
//! snapshots before their dataset. Where two need each other, as a clone and an origin that was moved below it, there is none.
//! What is held, has clients connected or cannot be done stops it before anything is gone, and until it is done no client comes
//! in. For room alone nobody looks beforehand, nor for what one transaction group can free where it has to be one
//! (`engine::dsl`): as in OpenZFS, a rollback may be refused for it whose later snapshots are gone already.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use engine::dsl;
use pool::{
    Pool,
    dsl::{Dataset, HeadKind, LookupError},
    props::PropertySet,
};

use super::{
    Answer, Destroy, ENDING, Failure,
    cx::Cx,
    failure::{may_yet_be_made, refused},
    held::Held,
    pool_of,
    properties::lookup,
};
use crate::{host::chain, serving::Aside};

/// Snapshots destroyed in one transaction group at most: each costs a walk over deadlists.
const SNAPSHOTS_PER_TXG: usize = 64;

/// What an interrupted `zfs receive` leaves below a dataset. No list has it.
const RECEIVING: &str = "/%recv";

/// Why nothing is done to a dataset whose content is ciphertext, as the engine says it too.
const ENCRYPTED: &str = "encrypted datasets can only be read";

/// `zfs destroy`
pub(crate) async fn destroy(cx: &Cx<'_>, asked: Destroy) -> Result<Answer, Failure> {
    let name = asked.name.clone();
    let what = format!("cannot destroy '{name}'");
    let held = match asked.dry_run {
        true => cx.host.readable(pool_of(&name)).await,
        false => cx.host.writable(pool_of(&name)).await,
    };
    let held = held.map_err(|error| error.of_dataset(&what, &name))?;
    let view = held.view();
    if name.contains('#') {
        return bookmark(cx, &held, &asked).await;
    }
    let mut plan = Plan::new(&view, asked.clones);
    match name.split_once('@') {
        Some((head, spec)) => plan.snapshots(head, spec, &asked).await?,
        None => plan.head(&name, &asked).await?,
    }
    let steps = plan.steps;
    possible(&steps)?;
    let used = cx.used(steps.iter().map(Step::name));
    let head = |step: &Step| matches!(step, Step::Head(_)).then(|| step.dataset().object());
    let heads: BTreeSet<u64> = steps.iter().filter_map(head).collect();
    for step in &steps {
        if !asked.dry_run && used.contains(step.name()) {
            cx.spare_clients_of(step.name(), &format!("cannot destroy '{}'", step.name()))?;
        }
        if let Step::Snapshot(snapshot) = step {
            let holds = snapshot.holds().await.map_err(|error| Failure::because(&what, chain(&error)))?;
            // Those of a clone that goes cannot stay behind.
            let may_stay = asked.defer && !heads.contains(&snapshot.live().object());
            if !holds.is_empty() && !may_stay {
                let name = snapshot.name();
                return Err(Failure::new(format!(
                    "cannot destroy snapshot {name}: it's being held. Run 'zfs holds -r {name}' to see holders."
                )));
            }
        }
    }
    let reclaimed = match asked.dry_run || asked.measure {
        true => Some(reclaimed(&steps).await.map_err(|why| Failure::because(&what, why))?),
        false => None,
    };
    let mut answer = Answer {
        destroyed: steps.iter().map(|step| step.name().to_owned()).collect(),
        reclaimed,
        ..Answer::default()
    };
    if !asked.dry_run {
        carry_out(cx, &held, steps, asked.defer).await?;
        answer.warnings = cx.served(&held).await;
    }
    Ok(answer)
}

async fn bookmark(cx: &Cx<'_>, held: &Held, asked: &Destroy) -> Result<Answer, Failure> {
    let (name, what) = (asked.name.clone(), format!("cannot destroy '{}'", asked.name));
    let found = lookup(&held.view(), &name).await;
    found.map_err(|failure| match failure.not_found {
        true => Failure { not_found: true, ..Failure::new(format!("bookmark '{name}' does not exist.")) },
        false => failure,
    })?;
    let destroyed = vec![name.clone()];
    if !asked.dry_run {
        cx.change(held, &what, move |cx| Box::pin(async move { dsl::destroy_bookmark(cx, &name).await }))
            .await?;
    }
    Ok(Answer { destroyed, reclaimed: Some(0), ..Answer::default() })
}

/// Something that goes.
#[derive(Clone, Debug)]
enum Step {
    Snapshot(Dataset),
    Head(Dataset),
}

impl Step {
    fn dataset(&self) -> &Dataset {
        match self {
            Self::Snapshot(dataset) | Self::Head(dataset) => dataset,
        }
    }

    fn name(&self) -> &str {
        self.dataset().name()
    }
}

/// Refuses what the engine would refuse at one of these steps, when those before it are gone for nothing.
fn possible(steps: &[Step]) -> Result<(), Failure> {
    let is_encrypted = |step: &&Step| matches!(step, Step::Head(head) if head.is_encrypted());
    match steps.iter().find(is_encrypted) {
        Some(step) => Err(Failure::because(&format!("cannot destroy '{}'", step.name()), ENCRYPTED)),
        None => Ok(()),
    }
}

/// What goes, in order.
struct Plan<'a> {
    view: &'a Pool,
    /// `-R`
    clones: bool,
    steps: Vec<Step>,
    /// Names of these.
    planned: BTreeSet<String>,
}

/// What has to be done about a step of a [`Plan`].
enum Visit {
    /// First comes what needs it.
    Enter(Step),
    /// All that needs it is planned.
    Leave(Step),
}

impl<'a> Plan<'a> {
    fn new(view: &'a Pool, clones: bool) -> Self {
        Self { view, clones, steps: Vec::new(), planned: BTreeSet::new() }
    }

    fn push(&mut self, step: Step) {
        if self.planned.insert(step.name().to_owned()) {
            self.steps.push(step);
        }
    }

    /// Snapshots by their names behind the `@`: `x`, `x%y`, `%y`, `x,z`.
    async fn snapshots(&mut self, head: &str, spec: &str, asked: &Destroy) -> Result<(), Failure> {
        let what = format!("cannot destroy '{}'", asked.name);
        let recursive = asked.recursive || asked.clones;
        let heads = match recursive {
            true => super::snapshots::heads_below(self.view, head).await?,
            false => vec![lookup(self.view, head).await?.name().to_owned()],
        };
        let mut found = Vec::new();
        for head in heads {
            let dataset = lookup(self.view, &head).await?;
            let mut snapshots =
                dataset.snapshots().await.map_err(|error| Failure::because(&what, chain(&error)))?;
            snapshots.sort_by_key(Dataset::create_txg);
            for part in spec.split(',') {
                found.extend(select(&snapshots, part));
            }
        }
        if found.is_empty() {
            let message = "could not find any snapshots to destroy; check snapshot names.";
            return Err(Failure { not_found: true, ..Failure::new(message) });
        }
        for snapshot in found {
            let step = Step::Snapshot(snapshot);
            match asked.defer && !asked.clones {
                // Its clones may stay.
                true => self.push(step),
                false => self.add(step).await?,
            }
        }
        Ok(())
    }

    /// A step, before it all that needs it. What waits for that is on a list, because chains of clones may be long.
    async fn add(&mut self, step: Step) -> Result<(), Failure> {
        let mut entered = BTreeSet::new();
        let mut todo = vec![Visit::Enter(step)];
        while let Some(visit) = todo.pop() {
            let step = match visit {
                Visit::Enter(step) => step,
                Visit::Leave(step) => {
                    self.push(step);
                    continue;
                }
            };
            if self.planned.contains(step.name()) {
                continue;
            }
            let first = match &step {
                Step::Snapshot(snapshot) => self.clones_of(snapshot).await?,
                Step::Head(head) => {
                    // It would have to wait for itself.
                    if !entered.insert(head.object()) {
                        return Err(endless(&todo, &step));
                    }
                    parts_of(head).await?
                }
            };
            todo.push(Visit::Leave(step));
            // Last first, because the list is a stack.
            todo.extend(first.into_iter().rev().map(Visit::Enter));
        }
        Ok(())
    }

    /// The clones of a snapshot that are not planned yet.
    async fn clones_of(&self, snapshot: &Dataset) -> Result<Vec<Step>, Failure> {
        let what = format!("cannot destroy '{}'", snapshot.name());
        let mut clones = snapshot.clones().await.map_err(|error| Failure::because(&what, chain(&error)))?;
        clones.retain(|clone| !self.planned.contains(clone));
        if !clones.is_empty() && !self.clones {
            return Err(Failure::new(format!(
                "{what}: snapshot has dependent clones\nuse '-R' to destroy the following datasets:\n{}",
                clones.join("\n")
            )));
        }
        let mut heads = Vec::with_capacity(clones.len());
        for clone in clones {
            heads.push(Step::Head(lookup(self.view, &clone).await?));
        }
        Ok(heads)
    }

    /// `zfs destroy` of a file system or volume.
    async fn head(&mut self, name: &str, asked: &Destroy) -> Result<(), Failure> {
        let what = format!("cannot destroy '{name}'");
        let head = lookup(self.view, name).await?;
        let recursive = asked.recursive || asked.clones;
        let is_root = !name.contains('/');
        if is_root && !recursive {
            return Err(Failure::new(format!(
                "{what}: operation does not apply to pools\nuse 'zfs destroy -r {name}' to destroy all datasets in the pool\n\
                 use 'zpool destroy {name}' to destroy the pool itself"
            )));
        }
        let unreadable = |why: String| Failure::because(&what, why);
        let (children, problems) = head.children().await.map_err(|error| unreadable(chain(&error)))?;
        if let Some(problem) = problems.first() {
            return Err(unreadable(chain(problem)));
        }
        if !recursive {
            // All below it, as it would have to go.
            let mut all = Plan::new(self.view, true);
            all.add(Step::Head(head.clone())).await?;
            let kind = if head.head_kind() == HeadKind::Volume { "volume" } else { "filesystem" };
            let is_below = |step: &&Step| {
                step.name() != name
                    && !step.name().ends_with(RECEIVING)
                    && step.name().strip_prefix(name).is_some_and(|rest| rest.starts_with(['/', '@']))
            };
            let below: Vec<&str> = all.steps.iter().filter(is_below).map(Step::name).collect();
            if !below.is_empty() {
                return Err(Failure::new(format!(
                    "{what}: {kind} has children\nuse '-r' to destroy the following datasets:\n{}",
                    below.join("\n")
                )));
            }
        } else if !asked.clones {
            // Clones that are not below it would be left without what they stand on.
            let mut all = Plan::new(self.view, true);
            all.add(Step::Head(head.clone())).await?;
            let outside = |step: &&Step| {
                !(step.name() == name
                    || step.name().strip_prefix(name).is_some_and(|rest| rest.starts_with(['/', '@'])))
            };
            let outside: Vec<&str> = all.steps.iter().filter(outside).map(Step::name).collect();
            if !outside.is_empty() {
                let kind = if head.head_kind() == HeadKind::Volume { "volume" } else { "filesystem" };
                return Err(Failure::new(format!(
                    "{what}: {kind} has dependent clones\nuse '-R' to destroy the following datasets:\n{}",
                    outside.join("\n")
                )));
            }
            // Clones of its own snapshots below it go with the rest.
            self.clones = true;
        }
        if !is_root {
            return self.add(Step::Head(head)).await;
        }
        for child in children {
            self.add(Step::Head(child)).await?;
        }
        let snapshots = head.snapshots().await.map_err(|error| unreadable(chain(&error)))?;
        for snapshot in snapshots {
            self.add(Step::Snapshot(snapshot)).await?;
        }
        Ok(())
    }
}

/// What is below a head: its children, with what an interrupted receive left, then its snapshots, oldest first.
async fn parts_of(head: &Dataset) -> Result<Vec<Step>, Failure> {
    let what = format!("cannot destroy '{}'", head.name());
    let (children, problems) =
        head.children().await.map_err(|error| Failure::because(&what, chain(&error)))?;
    if let Some(problem) = problems.first() {
        return Err(Failure::because(&what, chain(problem)));
    }
    let left = match head.dsl().lookup(&format!("{}{RECEIVING}", head.name())).await {
        Ok(left) => Some(left),
        // What would be too long a name is nobody's.
        Err(LookupError::NotFound { .. } | LookupError::BadName { .. }) => None,
        Err(error) => return Err(Failure::because(&what, chain(&error))),
    };
    let snapshots = head.snapshots().await.map_err(|error| Failure::because(&what, chain(&error)))?;
    let heads = children.into_iter().chain(left).map(Step::Head);
    Ok(heads.chain(snapshots.into_iter().map(Step::Snapshot)).collect())
}

/// Why there is no plan: this step waits for what is left in the list, and that for this step. With a clone on the way
/// promoted there is one, because the clone stands on nothing of that any more.
fn endless(todo: &[Visit], step: &Step) -> Failure {
    let waiting = todo.iter().filter_map(|visit| match visit {
        Visit::Enter(_) => None,
        Visit::Leave(step) => Some(step),
    });
    let (mut before, mut clone) = (None::<&Step>, None);
    for step in waiting.chain([step]) {
        if matches!((before, step), (Some(Step::Snapshot(_)), Step::Head(_))) {
            clone = Some(step.name());
        }
        before = Some(step);
    }
    let remedy = clone.map(|clone| format!("\nuse 'zfs promote {clone}' first")).unwrap_or_default();
    let name = step.name();
    Failure::new(format!("cannot determine dependent datasets: recursive dependency at '{name}'{remedy}"))
}

/// The snapshots, oldest first, that `x`, `x%y`, `%y` or `x%` names. A bound that is not there selects nothing.
fn select(snapshots: &[Dataset], part: &str) -> Vec<Dataset> {
    // The engine would find them by these names as well.
    let is_same = |snapshot: &Dataset, name: &str| {
        snapshot.live().phys().is_some_and(|phys| phys.is_same_name(snapshot.last_name(), name))
    };
    let at = |name: &str| {
        let exactly = snapshots.iter().position(|snapshot| snapshot.last_name() == name);
        exactly.or_else(|| snapshots.iter().position(|snapshot| is_same(snapshot, name)))
    };
    let Some((first, last)) = part.split_once('%') else {
        return at(part).map(|i| snapshots[i].clone()).into_iter().collect();
    };
    let first = if first.is_empty() { Some(0) } else { at(first) };
    let last = if last.is_empty() { snapshots.len().checked_sub(1) } else { at(last) };
    match (first, last) {
        (Some(first), Some(last)) if first <= last => snapshots[first..=last].to_vec(),
        _ => Vec::new(),
    }
}

/// Bytes that become free: what the snapshots alone hold, and what volumes and file systems refer to alone.
async fn reclaimed(steps: &[Step]) -> Result<u64, String> {
    let mut total = 0_u64;
    let mut by_head: BTreeMap<u64, (Dataset, Vec<Dataset>)> = BTreeMap::new();
    for step in steps {
        if let Step::Snapshot(snapshot) = step {
            let head = snapshot.live();
            let (_, list) = by_head.entry(head.object()).or_insert_with(|| (head.clone(), Vec::new()));
            list.push(snapshot.clone());
        }
    }
    for step in steps {
        let Step::Head(head) = step else { continue };
        // With its head gone, all that was written for it or any of its snapshots goes.
        by_head.remove(&head.object());
        // It may go because nothing else of it can be read.
        let properties = PropertySet::read_some(head, Some(&["usedbydataset", "usedbysnapshots"])).await;
        let properties = properties.map_err(|error| chain(&error))?;
        let number = |name: &str| properties.number(name).unwrap_or(0);
        total = total.saturating_add(number("usedbydataset")).saturating_add(number("usedbysnapshots"));
    }
    for (head, snapshots) in by_head.into_values() {
        total = total.saturating_add(head.reclaimed(&snapshots).await.map_err(|error| chain(&error))?);
    }
    Ok(total)
}

/// Snapshots that go with the last of their clones because they are to (`-d`), where these steps destroy all of those: by the
/// name of the clone that goes last.
async fn going_along(view: &Pool, steps: &[Step]) -> Result<BTreeMap<String, Vec<Dataset>>, String> {
    let mut clones: BTreeMap<u64, (u64, &str)> = BTreeMap::new();
    for step in steps {
        if let Step::Head(head) = step {
            let (count, last) = clones.entry(head.dir().phys().origin).or_insert((0, head.name()));
            (*count, *last) = (*count + 1, head.name());
        }
    }
    let planned: BTreeSet<u64> = steps.iter().map(|step| step.dataset().object()).collect();
    let is_left = |origin: &u64| *origin != 0 && !planned.contains(origin);
    let origins: Vec<u64> = clones.keys().copied().filter(is_left).collect();
    let mut along: BTreeMap<String, Vec<Dataset>> = BTreeMap::new();
    if origins.is_empty() {
        return Ok(along);
    }
    let dsl = view.dsl().await.map_err(|error| chain(&error))?;
    for (object, origin) in dsl.by_objects(&origins).await {
        let Some((count, last)) = clones.get(&object) else { continue };
        if origin.goes_after(*count) && origin.holds().await.map_err(|error| chain(&error))?.is_empty() {
            along.entry((*last).to_owned()).or_default().push(origin);
        }
    }
    Ok(along)
}

/// Destroys step by step, snapshots that follow each other together. From before the first is gone, nobody begins to use what
/// will go.
async fn carry_out(cx: &Cx<'_>, held: &Held, steps: Vec<Step>, defer: bool) -> Result<(), Failure> {
    let along = going_along(&held.view(), &steps).await;
    let along = along
        .map_err(|why| Failure::because(&format!("cannot destroy datasets of '{}'", held.name()), why))?;
    for name in cx.used(along.values().flatten().map(Dataset::name)) {
        cx.spare_clients_of(&name, &format!("cannot destroy '{name}'"))?;
    }
    let names: Vec<String> = steps.iter().flat_map(|step| leaving(step, &along)).collect();
    let asides = cx.set_aside(held, &names).await;
    let busy = |name: String| Failure::because(&format!("cannot destroy '{name}'"), "dataset is busy");
    let mut asides = asides.map_err(busy)?;
    let spare = |asides: &[Arc<Aside>]| asides.iter().for_each(|aside| aside.spare());
    let mut record = cx.record.clone();
    let count = steps.len();
    let mut is_behind_head = false;
    let mut steps = steps.into_iter().peekable();
    while let Some(step) = steps.next() {
        if cx.host.is_ending() {
            // What stays is offered again.
            spare(&asides);
            cx.served(held).await;
            return Err(left_at(step.name(), count - 1 - steps.len(), count));
        }
        // Recorded once, with what goes first.
        let cx = Cx { host: cx.host, record: record.take() };
        let what = format!("cannot destroy '{}'", step.name());
        let mut names = leaving(&step, &along);
        let is_head = matches!(step, Step::Head(_));
        while !is_head
            && names.len() < SNAPSHOTS_PER_TXG
            && let Some(Step::Snapshot(next)) = steps.next_if(|step| matches!(step, Step::Snapshot(_)))
        {
            names.push(next.name().to_owned());
        }
        let going: Vec<Arc<Aside>> = asides.drain(..names.len().min(asides.len())).collect();
        let gone = names.clone();
        if is_behind_head && !is_head {
            names = still_there(&held.view(), names).await;
        }
        is_behind_head |= is_head;
        let done = match names.is_empty() {
            true => Ok(()),
            false => {
                let done = cx.try_change_aside(held, &going, move |cx| {
                    Box::pin(async move {
                        match is_head {
                            true => dsl::destroy_head(cx, &names[0]).await,
                            false => dsl::destroy_snapshots(cx, &names, defer).await,
                        }
                    })
                });
                done.await
            }
        };
        if let Err(error) = done {
            spare(&asides);
            drop((going, asides));
            cx.served(held).await;
            return Err(refused(&what, &error));
        }
        if let Some(serving) = &cx.host.serving {
            gone.iter().for_each(|name| serving.withdraw(held, name));
        }
        spare(&going);
    }
    Ok(())
}

/// Those of these snapshots that have not gone with the last of their clones already, as they were to (`-d`).
async fn still_there(view: &Pool, names: Vec<String>) -> Vec<String> {
    let mut left = Vec::with_capacity(names.len());
    for name in names {
        if !lookup(view, &name).await.is_err_and(|failure| failure.not_found) {
            left.push(name);
        }
    }
    left
}

/// Names of what goes with a step, its own first.
fn leaving(step: &Step, along: &BTreeMap<String, Vec<Dataset>>) -> Vec<String> {
    let along = along.get(step.name()).into_iter().flatten().map(|snapshot| snapshot.name().to_owned());
    std::iter::once(step.name().to_owned()).chain(along).collect()
}

/// What has to go before a rollback, bookmarks last.
async fn clear_the_way(cx: &Cx<'_>, held: &Held, steps: Vec<Step>, marks: &[Dataset]) -> Result<(), Failure> {
    carry_out(cx, held, steps, false).await?;
    for mark in marks {
        let (name, what) = (mark.name().to_owned(), format!("cannot destroy '{}'", mark.name()));
        let done =
            cx.change(held, &what, move |cx| Box::pin(async move { dsl::destroy_bookmark(cx, &name).await }));
        done.await?;
    }
    Ok(())
}

/// The daemon ended before this step of so many: its hosts wait for the next daemon, and must not wait for all of them.
fn left_at(step: &str, done: usize, count: usize) -> Failure {
    match done {
        0 => Failure::ending(),
        done => Failure::because(
            &format!("cannot destroy '{step}'"),
            format_args!("{ENDING}\n{done} of {count} are destroyed; the same command goes on with the rest"),
        ),
    }
}

/// `zfs rollback`
pub(crate) async fn rollback(
    cx: &Cx<'_>,
    snapshot: &str,
    recursive: bool,
    clones: bool,
) -> Result<Answer, Failure> {
    let what = format!("cannot rollback to '{snapshot}'");
    let Some((head, _)) = snapshot.split_once('@') else {
        return Err(Failure::because(
            &format!("cannot open '{snapshot}'"),
            "missing '@' delimiter in snapshot name",
        ));
    };
    let held =
        cx.host.writable(pool_of(snapshot)).await.map_err(|error| error.of_dataset(&what, snapshot))?;
    let view = held.view();
    let target = lookup(&view, snapshot).await?;
    let dataset = lookup(&view, head).await?;
    let unreadable = |error: pool::dmu::ReadError| Failure::because(&what, chain(&error));
    cx.spare_clients_of(head, &format!("cannot rollback '{head}'"))?;
    let refused_because = |why: &str| Err(Failure::because(&format!("cannot rollback '{head}'"), why));
    // Before what is later goes: the engine would say so when that is gone.
    if target.is_encrypted() {
        return refused_because(ENCRYPTED);
    }
    let refquota = PropertySet::number_of_head(&dataset, "refquota").await.map_err(unreadable)?.unwrap_or(0);
    if refquota != 0 && target.phys().is_some_and(|phys| phys.referenced_bytes > refquota) {
        return refused_because("dataset is over quota");
    }
    let mut later = dataset.snapshots().await.map_err(unreadable)?;
    later.retain(|snapshot| snapshot.create_txg() > target.create_txg());
    later.sort_by_key(Dataset::create_txg);
    let mut marks = dataset.bookmarks().await.map_err(unreadable)?;
    marks.retain(|mark| mark.create_txg() > target.create_txg());
    let has_later = !later.is_empty() || !marks.is_empty();
    if has_later && !recursive && !clones {
        let names: Vec<&str> = later.iter().chain(&marks).map(Dataset::name).collect();
        return Err(Failure::new(format!(
            "{what}: more recent snapshots or bookmarks exist\nuse '-r' to force deletion of the following snapshots and \
             bookmarks:\n{}",
            names.join("\n")
        )));
    }
    let mut plan = Plan::new(&view, true);
    for snapshot in &later {
        plan.add(Step::Snapshot(snapshot.clone())).await?;
    }
    let steps = plan.steps;
    let own: BTreeSet<&str> = later.iter().map(Dataset::name).collect();
    let dependents: Vec<&str> = steps.iter().map(Step::name).filter(|name| !own.contains(name)).collect();
    if !clones && !dependents.is_empty() {
        return Err(Failure::new(format!(
            "{what}: clones of previous snapshots exist\nuse '-R' to force deletion of the following clones and \
             dependents:\n{}",
            dependents.join("\n")
        )));
    }
    possible(&steps)?;
    let is_redacted =
        |mark: &&Dataset| mark.bookmark_phys().is_some_and(|phys| phys.redaction_object().is_some());
    if let Some(mark) = marks.iter().find(is_redacted) {
        let what = format!("cannot destroy '{}'", mark.name());
        return Err(Failure::because(&what, "redaction bookmarks can only be read"));
    }
    let used = cx.used(steps.iter().map(Step::name));
    for step in &steps {
        if used.contains(step.name()) {
            cx.spare_clients_of(step.name(), &format!("cannot destroy '{}'", step.name()))?;
        }
        if let Step::Snapshot(snapshot) = step
            && !snapshot.holds().await.map_err(unreadable)?.is_empty()
        {
            let name = snapshot.name();
            return Err(Failure::new(format!(
                "cannot destroy snapshot {name}: it's being held. Run 'zfs holds -r {name}' to see holders."
            )));
        }
    }
    let what = format!("cannot rollback '{head}'");
    // Until the snapshot's content is what everybody reads: whoever came in before would find other blocks under what it has
    // read. And before anything goes: a client that came in later would stop it when the snapshots in its way are gone.
    let aside = match &cx.host.serving {
        Some(serving) => match serving.set_aside(&held, head).await {
            Ok(aside) => Some(aside),
            Err(why) => {
                // Again: what was read meanwhile may have taken a while.
                cx.served(&held).await;
                return Err(Failure::because(&what, why));
            }
        },
        None => None,
    };
    let quiet = Cx { host: cx.host, record: None };
    if let Err(failure) = clear_the_way(&quiet, &held, steps, &marks).await {
        aside.iter().for_each(|aside| aside.spare());
        cx.served(&held).await;
        return Err(failure);
    }
    let (snapshot, kept) = (snapshot.to_owned(), aside.clone());
    let done = cx.try_change(&held, move |cx| {
        Box::pin(async move {
            // As long as this may still be done.
            let _kept = kept;
            dsl::rollback(cx, &snapshot).await
        })
    });
    let done = done.await;
    // A suspended pool may yet do it.
    if let Some(aside) = aside.filter(|_| !done.as_ref().is_err_and(may_yet_be_made)) {
        aside.over();
    }
    let warnings = cx.served(&held).await;
    match done {
        Ok(()) => Ok(Answer { warnings, ..Answer::default() }),
        Err(error) => Err(refused(&what, &error)),
    }
}
