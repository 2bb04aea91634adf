//! What is not for everybody stays so by another name: a clone, the snapshots that a clone takes over, a volume that is renamed;
//! and so does what loses its LUN by `zfs inherit`.
//!
//! The first two have not the LUN of the volume that they come from, a renamed one may inherit another `offer` where it comes: they
//! would be offered as if nobody had ever said who may have them. So `offer` is set with that, in the same transaction group,
//! wherever more could get to it than to what it comes from.
//!
//! And it stays the kind of disk that its content was written for: with `block` another, a host finds no partition table on it; with
//! a write cache, one that relies on there being none sends no flushes and loses what it was told is stable. These are set with it
//! as well, where it would have others.

use std::collections::BTreeMap;

use pool::{
    Pool,
    dmu::ReadError,
    dsl::{Dataset, DatasetKind},
    props::{PropertySet, Source},
};

use super::cut_off::is_within;
use crate::shares::{Offering, Plan, PoolShares, VolumeShare, property};

/// By what everybody who reaches the server gets to a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Open {
    iscsi: bool,
    nbd: bool,
}

impl Open {
    /// What there is of a volume, or of a snapshot of `head`.
    fn of(shares: &PoolShares, share: &VolumeShare, head: &VolumeShare) -> Self {
        let plan = share.plan();
        match share.place.as_ref().or(head.place.as_ref()) {
            _ if share.problem.is_some() => Self { iscsi: false, nbd: false },
            // A target that lets everybody in keeps nothing from anybody.
            Some(place) if !shares.is_guarded(&place.target) => Self { iscsi: true, nbd: true },
            _ => Self { iscsi: plan.own, nbd: plan.nbd },
        }
    }

    /// What to set as `offer` on what comes of it and is planned like `after`, so that nobody gets to it who could not before;
    /// none if it is so as planned.
    fn keep(self, after: &Plan) -> Option<Offering> {
        match (after.own && self.iscsi, after.nbd && self.nbd) {
            kept if kept == (after.own, after.nbd) => None,
            (true, _) => Some(Offering::Iscsi),
            (false, true) => Some(Offering::Nbd),
            (false, false) => Some(Offering::None),
        }
    }
}

/// What is to be set on what comes of a volume, so that it is no more open than that, and the same kind of disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Kept {
    offer: Option<Offering>,
    /// Bytes of a logical block.
    block: Option<u32>,
    /// No write cache. Never the other way round: without one nothing is lost.
    uncached: bool,
}

impl Kept {
    /// What kind of disk `before` is, as far as one that is set up like `after` is another.
    fn kind(before: &VolumeShare, after: &VolumeShare) -> Self {
        // Nobody has what cannot be understood, or knows what disk it is.
        if before.problem.is_some() || after.problem.is_some() {
            return Self::default();
        }
        Self {
            offer: None,
            block: Some(before.block).filter(|block| *block != after.block),
            uncached: !before.write_cache && after.write_cache,
        }
    }

    fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// Without what somebody says by himself.
    fn unless(self, is_said: impl Fn(&str) -> bool) -> Self {
        Self {
            offer: self.offer.filter(|_| !is_said(property::OFFER)),
            block: self.block.filter(|_| !is_said(property::BLOCK)),
            uncached: self.uncached && !is_said(property::WRITE_CACHE),
        }
    }

    /// The properties that it comes to, with their texts.
    pub(super) fn properties(&self) -> impl Iterator<Item = (&'static str, String)> {
        let offer = self.offer.map(|offer| (property::OFFER, offer.word().to_owned()));
        let block = self.block.map(|block| (property::BLOCK, block.to_string()));
        let cache = self.uncached.then(|| (property::WRITE_CACHE, "off".to_owned()));
        [offer, block, cache].into_iter().flatten()
    }
}

/// What is to be set on a clone of a volume's snapshot that comes below `parent`, with this `volmode` if it is given one. Nothing
/// of that is set which is `given`, and what is needed for nothing else is not read. Of `offer`, what somebody said for where the
/// clone is, and not for where the volume is, holds.
pub(super) async fn of_clone(
    view: &Pool,
    snapshot: &Dataset,
    parent: &Dataset,
    volmode: Option<u64>,
    given: &[&str],
) -> Result<Kept, ReadError> {
    let is_given = |property: &str| given.contains(&property);
    if [property::OFFER, property::BLOCK, property::WRITE_CACHE].into_iter().all(is_given) {
        return Ok(Kept::default());
    }
    // What blocks it has it may say itself, if its volume has others by now.
    let share = VolumeShare::read(snapshot).await?;
    let after = VolumeShare::below(parent, volmode).await?;
    let mut kept = Kept::kind(&share, &after);
    if !is_given(property::OFFER) {
        let shares = PoolShares::read(view).await?;
        let head = VolumeShare::read(snapshot.live()).await?;
        let before = Open::of(&shares, &share, &head);
        let is_decided = after.offer_at.as_deref().is_some_and(|at| !is_within(snapshot.live().name(), at));
        kept.offer = before.keep(&after.plan()).filter(|_| !is_decided);
    }
    Ok(kept.unless(is_given))
}

/// Whether a snapshot says itself what blocks it has, and not its volume or what is above that.
async fn has_own_block(snapshot: &Dataset) -> Result<bool, ReadError> {
    let users = PropertySet::users(snapshot).await?;
    let is_own = |source: &Source| !matches!(source, Source::Inherited(_));
    Ok(users.iter().any(|(name, _, source)| name == property::BLOCK && is_own(source)))
}

/// What is to be set on those of a volume's snapshots that `clone` takes over and that need it, by the names they get.
pub(super) async fn of_promoted(
    view: &Pool,
    clone: &Dataset,
    volume: &Dataset,
    snapshots: &[Dataset],
) -> Result<BTreeMap<String, Kept>, ReadError> {
    let shares = PoolShares::read(view).await?;
    let (from, to) = (VolumeShare::read(volume).await?, VolumeShare::read(clone).await?);
    let mut kept = BTreeMap::new();
    for snapshot in snapshots {
        let share = VolumeShare::read(snapshot).await?;
        let before = Open::of(&shares, &share, &from);
        // Nobody writes to a snapshot: it matters not whether its cache is on.
        let mut block = Kept::kind(&share, &to).block;
        if block.is_some() && has_own_block(snapshot).await? {
            block = None;
        }
        let managed = to.managed || share.place.is_some() || share.name.is_some();
        let offer = if share.offer_is_own { share.offer } else { to.offer };
        let after = VolumeShare { managed, offer, ..share }.plan();
        let keep = Kept { offer: before.keep(&after), block, uncached: false };
        if !keep.is_nothing() {
            kept.insert(format!("{}@{}", clone.name(), snapshot.last_name()), keep);
        }
    }
    Ok(kept)
}

/// What is to be set on the volumes at and below `from` that need it when that becomes `to`, below `parent`, by the names they
/// get. Of `offer`, what somebody said for where they are then, and not for where they were, holds.
pub(super) async fn of_renamed(
    view: &Pool,
    from: &Dataset,
    to: &str,
    parent: &Dataset,
) -> Result<BTreeMap<String, Kept>, ReadError> {
    let mut kept = BTreeMap::new();
    if from.name().rsplit_once('/').is_some_and(|(above, _)| above == parent.name()) {
        // They inherit what they did.
        return Ok(kept);
    }
    let shares = PoolShares::read(view).await?;
    let (all, _unlisted) = view.dsl().await?.tree(from.clone()).await;
    let is_meant = |dataset: &&Dataset| dataset.kind() == DatasetKind::Head && dataset.may_be_volume();
    for volume in all.iter().filter(is_meant) {
        let share = VolumeShare::read(volume).await?;
        let before = Open::of(&shares, &share, &share);
        let after = VolumeShare::moved(volume, from.name(), parent).await?;
        if after.problem.is_some() {
            continue;
        }
        let is_decided = after.offer_at.as_deref().is_some_and(|at| !is_within(volume.name(), at));
        let offer = before.keep(&after.plan()).filter(|_| !is_decided);
        let keep = Kept { offer, ..Kept::kind(&share, &after) };
        if !keep.is_nothing() {
            let below = volume.name().strip_prefix(from.name()).unwrap_or_default();
            kept.insert(format!("{to}{below}"), keep);
        }
    }
    Ok(kept)
}

/// What is to be set as `offer` on those volumes and snapshots among `datasets` that need it when what they have of `lost`, their
/// LUN or their name, is cleared. What somebody said for one of them holds.
pub(super) async fn of_unplaced(
    view: &Pool,
    datasets: &[Dataset],
    lost: &str,
) -> Result<BTreeMap<String, Kept>, ReadError> {
    let shares = PoolShares::read(view).await?;
    let mut kept = BTreeMap::new();
    for dataset in datasets.iter().filter(|dataset| dataset.may_be_volume()) {
        let mut share = VolumeShare::read(dataset).await?;
        // What cannot be understood was nobody's so far: that is what is put right.
        if share.problem.is_some() || share.offer_is_own {
            continue;
        }
        let head = VolumeShare::read(dataset.live()).await?;
        let before = Open::of(&shares, &share, &head);
        match lost {
            property::LUN => share.place = None,
            _ => share.name = None,
        }
        let of_volume = dataset.kind() == DatasetKind::Snapshot && head.managed;
        share.managed = share.place.is_some() || share.name.is_some() || of_volume;
        if let Some(offer) = before.keep(&share.plan()) {
            kept.insert(dataset.name().to_owned(), Kept { offer: Some(offer), ..Kept::default() });
        }
    }
    Ok(kept)
}

/// What is said of a volume, or snapshot, that has that set because of what it comes from.
pub(super) fn said(name: &str, kept: &Kept, from: &str) -> Vec<String> {
    let offer = kept.offer.map(|offer| {
        let left = match offer {
            Offering::Nbd => "over NBD only",
            Offering::Iscsi => "over iSCSI only",
            _ => "to nobody",
        };
        format!(
            "{name} is offered {left}, because not everybody may have {from}; 'millpond share set offer= {name}' offers it to \
             everybody"
        )
    });
    let block = kept.block.map(|block| {
        format!("{name} is given logical blocks of {block} bytes, by which the content of {from} was written")
    });
    let cache = kept.uncached.then(|| {
        format!(
            "{name} is given no write cache, as {from} had none; 'millpond share set write-cache= {name}' lets it have one"
        )
    });
    [offer, block, cache].into_iter().flatten().collect()
}

/// The first of those that are meant, and what a sentence about all of them begins with.
fn those<'a>(
    kept: &'a BTreeMap<String, Kept>,
    kind: &str,
    is_meant: fn(&Kept) -> bool,
) -> Option<(&'a str, String)> {
    let mut names = kept.iter().filter(|(_, kept)| is_meant(kept)).map(|(name, _)| name.as_str());
    let first = names.next()?;
    Some(match names.count() {
        0 => (first, format!("{first} is")),
        others => (first, format!("{} {kind}, {first} among them, are", others + 1)),
    })
}

/// The same of all the `kind` that a clone takes over, or that are renamed.
pub(super) fn said_of_all(kept: &BTreeMap<String, Kept>, kind: &str, from: &str) -> Vec<String> {
    if let (1, Some((name, kept))) = (kept.len(), kept.first_key_value()) {
        return said(name, kept, from);
    }
    let offer = those(kept, kind, |kept| kept.offer.is_some()).map(|(first, those_are)| {
        format!(
            "{those_are} offered to nobody else than before, because not everybody may have {from}; 'millpond share set offer= \
             {first}' offers that one to everybody"
        )
    });
    let block = those(kept, kind, |kept| kept.block.is_some()).map(|(_, those_are)| {
        format!("{those_are} given the logical blocks by which the content of {from} was written")
    });
    let cache = those(kept, kind, |kept| kept.uncached).map(|(first, those_are)| {
        format!(
            "{those_are} given no write cache, as {from} had none; 'millpond share set write-cache= {first}' lets that one have \
             one"
        )
    });
    [offer, block, cache].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shares::{Place, TargetConfig, TargetShare};

    #[test]
    fn nothing_is_more_open_than_what_it_comes_from() {
        let mut shares = PoolShares::default();
        let guarded = TargetConfig { groups: Some(vec![1]), ..TargetConfig::default() };
        for (iqn, config) in [("iqn.a:open", TargetConfig::default()), ("iqn.a:some", guarded)] {
            shares.targets.insert(iqn.to_owned(), TargetShare { config, ..TargetShare::default() });
        }
        let plain = VolumeShare::default();
        let offered = |offer| VolumeShare { offer, ..VolumeShare::default() };
        let managed = |iqn: Option<&str>, offer| {
            let place = iqn.map(|iqn| Place { target: iqn.to_owned(), lun: 0 });
            VolumeShare { place, managed: true, ..offered(offer) }
        };
        let broken = VolumeShare { problem: Some("it makes no sense".to_owned()), ..plain.clone() };
        for (head, expected) in [
            (plain.clone(), None),
            (offered(Offering::None), Some(Offering::None)),
            (offered(Offering::Iscsi), Some(Offering::Iscsi)),
            (offered(Offering::Nbd), Some(Offering::Nbd)),
            (managed(Some("iqn.a:open"), Offering::Auto), None),
            (managed(Some("iqn.a:some"), Offering::Auto), Some(Offering::None)),
            (managed(Some("iqn.a:some"), Offering::All), Some(Offering::Nbd)),
            // One that is not there lets nobody in, and neither does a name without a view.
            (managed(Some("iqn.a:gone"), Offering::Auto), Some(Offering::None)),
            (managed(None, Offering::Auto), Some(Offering::None)),
            (broken, Some(Offering::None)),
        ] {
            // Of a snapshot, its volume's place is the one that counts.
            let snapshot = VolumeShare { place: None, ..head.clone() };
            let open = Open::of(&shares, &snapshot, &head);
            assert_eq!(open.keep(&plain.plan()), expected, "{head:?}");
            assert_eq!(open.keep(&offered(Offering::None).plan()), None, "{head:?}");
        }
    }
}
