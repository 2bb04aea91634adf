//! Finds the body of a target by its name, once.

#[path = "../bodies.rs"]
mod bodies;

use std::sync::OnceLock;

/// Runs the body called `name`.
pub(crate) fn target(name: &str, input: &[u8]) {
    static BODY: OnceLock<fn(&[u8])> = OnceLock::new();
    let find = || bodies::TARGETS.iter().find(|(known, _)| *known == name).expect("a target in bodies.rs").1;
    BODY.get_or_init(find)(input);
}
