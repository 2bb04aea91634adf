//! Generated histories of a pool, chosen pairwise over everything a pool and a volume can be, and judged by others:
//! OpenZFS's zdb and the reference checker see the images at a sampled step and at the end, our own full checker
//! sees the media after every step, and a twin in memory knows what everything must hold.
//!
//! At the end all is destroyed, and the pool must be as empty as it was when it was new. A failing seed prints itself
//! and what it did: `MILLPOND_SEED=n MILLPOND_HISTORIES=1 cargo test -p millpond-engine --test engine histories`.
//! `MILLPOND_HISTORIES=n` plays more of them (`make sim`).

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "what was played, for the person who runs it")]
#![allow(clippy::unwrap_used, clippy::large_futures, reason = "a test that fails here says why by its panic")]

mod judge;
mod pairwise;
mod player;
mod twin;
mod whole;

use std::panic::{AssertUnwindSafe, resume_unwind};

use futures_util::FutureExt;
use player::Player;
use rand::Rng;

use crate::support::{number, seeds};

/// Steps of a history before everything is destroyed again.
const STEPS: u32 = 30;

/// All of one history, on media that are saved at `dir`.
async fn history(player: &mut Player) {
    let steps = number("MILLPOND_STEPS").map_or(STEPS, |steps| steps as u32).max(3);
    let fill = player.random.random_range(steps / 3..steps);
    let add = player.random.random_range(steps / 3..steps);
    let judged = player.random.random_range(steps / 3..steps);
    let judged_full = player.random.random_range(0..4) == 0;
    player.begin().await;
    for step in 0..steps {
        player.step().await;
        if step == add {
            player.add_devices().await;
        }
        if step == fill {
            player.fill(judged_full).await;
        }
        player.check("after a step").await;
        if step == judged && !judged_full {
            player.save("sampled").await;
        }
    }
    player.compare().await;
    player.destroy_everything().await;
    player.export_and_save().await;
}

/// Plays one history, and lets others judge what it left.
fn play(seed: u64) {
    let images = tempfile::tempdir().unwrap();
    // Its clock is its own: it stands still while there is something to do.
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let plan = pairwise::plan(seed);
    let mut player = runtime.block_on(Player::new(seed, plan, images.path().to_owned()));
    let outcome = runtime.block_on(AssertUnwindSafe(history(&mut player)).catch_unwind());
    if let Err(panic) = outcome {
        eprintln!("MILLPOND_SEED={seed} MILLPOND_HISTORIES=1:\n  {}", player.log.join("\n  "));
        resume_unwind(panic);
    }
    drop(runtime);
    let steps = player.log.len();
    for (what, dir) in &player.saved {
        if let Err(complaint) = judge::judge(dir) {
            if let Some(keep) = std::env::var_os("MILLPOND_KEEP") {
                std::fs::rename(images.keep(), keep).unwrap();
            }
            panic!(
                "MILLPOND_SEED={seed} MILLPOND_HISTORIES=1:\n  {}\nimages {what}: {complaint}",
                player.log.join("\n  ")
            );
        }
    }
    let (layout, judged) = (player.layout(), player.saved.len());
    println!("history {seed}: {layout}: {steps} lines, {judged} times images judged");
}

#[test]
fn generated_histories_leave_pools_that_zdb_finds_clean() {
    let first = number("MILLPOND_SEED").unwrap_or(0);
    let count = number("MILLPOND_HISTORIES").unwrap_or(pairwise::ALL as u64);
    seeds::play_all(first, count, play);
}
