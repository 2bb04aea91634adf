//! What the writing half promises, from outside. One program, because each would have to be linked with everything.

mod commits;
mod datasets;
mod families;
mod files;
mod foreign;
mod histories;
mod interleavings;
mod logged;
mod model;
mod pools;
mod support;
