//! Which features a pool uses, and whether it can be read by us.
//!
//! A pool counts, per feature, how many things in it need the feature. Features for *read* with a count
//! above zero must be understood by whoever opens the pool; the others only matter to writers.
//! Facts: docs/format/features.md, docs/format/mos.md §3.

pub use ondisk::features::{FEATURES, Feature};

/// Features of the table that change where data lies and that are not implemented.
const NOT_READABLE: [&str; 1] = ["org.openzfs:draid"];

/// One feature of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeatureState {
    /// `com.delphix:hole_birth`
    pub guid: String,
    /// Must be understood by readers too.
    pub for_read: bool,
    /// How many things need it; 0: enabled only.
    pub count: u64,
    /// What the pool itself says about it.
    pub description: Option<String>,
}

impl FeatureState {
    /// What is known of it; `None` for a feature from the future.
    #[must_use]
    pub fn known(&self) -> Option<&'static Feature> {
        find(&self.guid)
    }

    /// `active` or `enabled`, as the pool property `feature@…` shows it.
    #[must_use]
    pub fn word(&self) -> &'static str {
        if self.count > 0 { "active" } else { "enabled" }
    }
}

/// The feature with this guid, if it is of a version of OpenZFS that is known.
#[must_use]
pub fn find(guid: &str) -> Option<&'static Feature> {
    Feature::by_guid(guid)
}

/// Whether a pool in which this feature is active can be read.
#[must_use]
pub fn is_readable(guid: &str) -> bool {
    find(guid).is_some() && !NOT_READABLE.contains(&guid)
}
