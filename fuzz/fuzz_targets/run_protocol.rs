//! Finds the body of a protocol's target by its name, once.

#[path = "../protocols.rs"]
mod protocols;

use std::sync::OnceLock;

/// Runs the body called `name`.
pub(crate) fn target(name: &str, input: &[u8]) {
    static BODY: OnceLock<fn(&[u8])> = OnceLock::new();
    let find =
        || protocols::TARGETS.iter().find(|(known, _)| *known == name).expect("a target in protocols.rs").1;
    BODY.get_or_init(find)(input);
}
