//! Whose a pool is that was found here, and what is said of one that is not opened for that.
//!
//! Its labels name the host that had it last; the list of imported pools says what this host knows of it. A pool that another
//! host has, or that was given away, is opened for those only who ask for it; one that was forced past its labels when it was
//! imported is this host's, whichever host they name; not if they say that it was given away.

use pool::{import::Candidate, ondisk::label::PoolState};

use crate::{hostid, state::Remembered};

/// Whether this host had a pool last, by what its labels say.
pub(super) fn is_ours(candidate: &Candidate, remembered: Option<&Remembered>) -> bool {
    candidate.is_of(hostid::hostid(), &hostid::hostname()) || had(candidate, remembered).is_some()
}

/// The id that a pool's labels give, if it is the one that this host had when it was imported here: they say that one until it
/// is opened again. A copy of the host that has the pool remembers the same, but is not called the same.
pub(super) fn had(candidate: &Candidate, remembered: Option<&Remembered>) -> Option<u64> {
    let id = remembered?.hostid.filter(|id| *id == candidate.hostid)?;
    (candidate.hostname.as_deref() == Some(hostid::hostname().as_str())).then_some(id)
}

/// Whether a pool was imported here past a host that still is in its labels, or has labels without an id: it was when this
/// host had none, and may have had another name, too.
pub(super) fn is_forced(candidate: &Candidate, remembered: &Remembered) -> bool {
    remembered.forced || candidate.hostid == 0
}

/// Whether a pool is exported: nobody has it, and whoever wants it says so. One that was imported here was exported, or
/// destroyed, by another host since, unless nothing was written to it.
pub(crate) fn is_given_away(candidate: &Candidate, remembered: Option<&Remembered>) -> bool {
    let by_another = remembered.is_some_and(|pool| !pool.untouched);
    match candidate.state {
        PoolState::Exported => by_another || remembered.is_none(),
        PoolState::Destroyed => by_another,
        _ => false,
    }
}

/// Whether another host has had a pool since it was imported here: it gave it away, or has it. What was forced past its
/// labels was imported all the same.
#[must_use]
pub fn has_gone(candidate: &Candidate, remembered: &Remembered) -> bool {
    let is_anothers = candidate.state == PoolState::Active && !is_ours(candidate, Some(remembered));
    is_given_away(candidate, Some(remembered)) || (is_anothers && !is_forced(candidate, remembered))
}

/// What is said of an imported pool of which nothing is there.
#[must_use]
pub fn absent(pool: &Remembered) -> String {
    let name = &pool.name;
    let given_up = match pool.apart.is_empty() {
        true => String::new(),
        false => format!(
            "\nwhat was given up of it is not looked at: 'zpool export {name}' forgets that, and 'zpool import {name}' takes \
             what is there"
        ),
    };
    format!(
        "cannot open '{name}': none of its devices is there\nit was imported from {}{given_up}",
        pool.places()
    )
}

/// What is said of an imported pool whose devices this user may not read: nobody knows that anything is wrong with it.
pub(super) fn denied(pool: &Remembered) -> String {
    let name = &pool.name;
    format!(
        "cannot open '{name}': this user may not read its devices (run as one who may)\nit was imported from {}",
        pool.places()
    )
}

/// What is said of a pool that is there, and whose devices do not answer while it is being opened.
pub(crate) fn mute(name: &str) -> String {
    format!("cannot open '{name}': its devices do not answer; it is opened when they do")
}

/// What is said of a pool that was given away.
pub(crate) fn given_away(candidate: &Candidate) -> String {
    let name = &candidate.name;
    match candidate.state {
        PoolState::Destroyed => format!(
            "pool '{name}' was destroyed elsewhere and was not opened; to have it here: 'zpool import -D {name}'"
        ),
        _ => format!(
            "pool '{name}' is exported and was not opened; to have it here: 'zpool import {name}', or name it: \
             'millpond serve {name}'"
        ),
    }
}

/// What is said of a pool that nobody exported, and that is none of this host's.
pub(crate) fn never_imported(name: &str) -> String {
    format!(
        "pool '{name}' is there and was not opened, as it was not imported here; to have it here: 'zpool import {name}', or \
         name it: 'millpond serve {name}'"
    )
}

/// What is said of a pool that was imported for a while, when that is over.
pub(crate) fn lapsed(name: &str) -> String {
    format!(
        "pool '{name}' was imported with cachefile=none and was not opened; to have it here: 'zpool import {name}', or \
         name it: 'millpond serve {name}'"
    )
}
