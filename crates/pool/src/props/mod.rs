//! Properties of datasets and pools: what there is, what a dataset's values are, and where they come from.
//!
//! [`table`] is the one description of every property; [`index`] the words of those that are a choice;
//! [`value`] how values are printed.
//! Facts: docs/format/mos.md §6, docs/format/zvol.md §2.

pub mod index;
pub mod table;
pub mod value;

pub use table::{Access, Definition, Kind, Types};
pub use value::{Source, Style, Value};
