//! Finding out what is warm: nothing is written down when a block comes in or is hit. Now and then the pointers that are
//! in memory anyway are looked through, and cache and cache devices are asked whether they have what they lead to.
//!
//! So hits cost nothing, blocks need no room for their names, and a block that was overwritten is remembered as the place
//! it is. What cannot be seen is data whose indirect block left memory before it did; metadata weighs four times as much
//! there, so this is rare.

use std::{sync::Arc, time::Duration};

use l2arc::L2;
use pool::{PoolIo, dmu::Cursor};
use tokio::time::Instant;

use super::heat::Heat;
use crate::{second, volume::LiveVolume};

/// How hard it is worked.
#[derive(Clone, Copy, Debug)]
pub(super) enum Effort {
    /// At most one two-hundredth of a core: after each indirect block that is in memory, or many that are not, a pause.
    Gentle,
    /// Until then, however far that is.
    Until(Instant),
}

/// Pause for each unit of time worked.
const REST: u32 = 200;
/// The least pause.
const PAUSE: Duration = Duration::from_millis(1);

/// Looks at these volumes.
///
/// # Errors
/// It took too long: what was seen until then.
pub(super) async fn sample(
    volumes: Vec<Arc<LiveVolume>>,
    io: &PoolIo,
    l2: &L2,
    mut heat: Heat,
    effort: Effort,
) -> Result<Heat, Heat> {
    let has_devices = l2.is_used();
    for volume in volumes {
        let data = volume.data();
        let (mut cursor, mut from) = (Cursor::default(), 0);
        while from <= data.max_block_id() {
            let begin = Instant::now();
            let at_hand = |pointer: &_| io.glance(pointer);
            let next = data.known(&mut cursor, from, at_hand, |blkid, pointer| {
                let device = has_devices && second::key(pointer).is_some_and(|key| l2.holds(&key));
                heat.note(volume.dataset(), blkid, io.warmth(pointer), device);
            });
            // A tree that makes no sense is its readers' business.
            let Ok(next) = next else { break };
            from = next;
            match effort {
                Effort::Gentle => tokio::time::sleep((begin.elapsed() * REST).max(PAUSE)).await,
                Effort::Until(deadline) if Instant::now() >= deadline => return Err(heat),
                Effort::Until(_) => tokio::task::consume_budget().await,
            }
        }
    }
    Ok(heat)
}
