//! Properties of datasets: what there is, what a dataset's values are, and where they come from.
//!
//! [`table`] is the one description of every property; [`index`] the words of those that are a choice;
//! [`value`] how values are printed, [`parse`] how they are typed. [`PropertySet`] puts together what was set, what is computed and the
//! defaults, exactly as `zfs get all` shows them; [`PoolProperties`] does the same for
//! `zpool get all`.
//! Facts: docs/format/mos.md §6, docs/format/zvol.md §2.

mod computed;
pub mod index;
pub mod parse;
mod pool;
mod set;
mod stored;
pub mod table;
pub mod value;

pub use pool::PoolProperties;
pub use set::{Property, PropertySet, UserProperty};
pub use table::{Access, Definition, Kind, Types};
pub use value::{Source, Style, Value};
