//! Finds the body of an NBD target by its name, once.

#[path = "../nbd.rs"]
mod nbd_bodies;

use std::sync::OnceLock;

/// Runs the body called `name`.
pub(crate) fn target(name: &str, input: &[u8]) {
    static BODY: OnceLock<fn(&[u8])> = OnceLock::new();
    let find =
        || nbd_bodies::TARGETS.iter().find(|(known, _)| *known == name).expect("a target in nbd.rs").1;
    BODY.get_or_init(find)(input);
}
