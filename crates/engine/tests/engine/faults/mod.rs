//! Random faults: a pool under load whose disks fail, vanish, return with old data or empty, lose, misdirect and
//! corrupt what is written, are slow, and are offlined, replaced, scrubbed and resilvered meanwhile; with power cuts.
//!
//! * **Within redundancy** ([`budget`]): no client is refused or gets a wrong byte, nothing acknowledged is lost, and
//!   when everything is put right a second scrub repairs nothing, our full check finds nothing, nor does zdb.
//! * **Beyond it**: right bytes or an error, never wrong bytes; nothing panics or hangs; when the disks are back and
//!   the pool is cleared it goes on where possible.
//!
//! Everything runs on one thread with a clock that stands still while there is something to do, so a seed repeats
//! itself: `MILLPOND_SEED=n MILLPOND_FAULTS=1 cargo test -p millpond-engine --test engine faults`. Mistakes put into the
//! simulator on purpose ([`player::Bug`]) show that what should be found is found. `make sim` plays thousands.

mod beyond;
mod budget;
mod family;
mod harm;
mod ledger;
mod load;
mod player;
mod shape;
mod world;

use std::{panic::AssertUnwindSafe, time::Instant};

use futures_util::FutureExt;

use self::player::{Bug, Limit, Player};
use crate::support::{POOL, number, seeds};

/// Campaigns of the ordinary run.
const SEEDS: u64 = 6;
/// Steps of a campaign.
const STEPS: u64 = 60;
/// One in so many pools is shown to zdb.
const JUDGED: u64 = 6;

async fn campaign(player: &mut Player) {
    for _ in 0..number("MILLPOND_STEPS").unwrap_or(STEPS) {
        player.step().await;
    }
    player.finish().await;
}

/// Plays one seed; what went wrong, with everything that was done before.
#[expect(clippy::disallowed_methods, reason = "the real time a seed takes, beside the simulated one")]
fn play(seed: u64, limit: Limit, bug: Option<Bug>) -> Result<String, String> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let start = Instant::now();
    let mut player = runtime.block_on(Player::new(seed, limit, bug));
    let play = AssertUnwindSafe(async {
        match limit {
            Limit::Redundancy => Box::pin(campaign(&mut player)).await,
            Limit::None => Box::pin(beyond::campaign(&mut player)).await,
        }
    });
    let outcome = runtime.block_on(play.catch_unwind());
    let replay = format!("MILLPOND_SEED={seed} MILLPOND_FAULTS=1");
    if let Err(panic) = outcome {
        let said = panic.downcast_ref::<String>().cloned();
        let said = said.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        let events = player.engine.as_ref().map(|engine| engine.events().since(0)).unwrap_or_default();
        let last: Vec<String> =
            events.iter().rev().take(12).rev().map(|r| format!("{:?}", r.event)).collect();
        return Err(format!(
            "{replay} ({limit:?}):\n  {}\nthe last events:\n  {}\n{}",
            player.log.join("\n  "),
            last.join("\n  "),
            said.unwrap_or_default()
        ));
    }
    if !player.left.is_empty() && seed.is_multiple_of(JUDGED) && fixtures::tool("zdb").is_some() {
        let images = tempfile::tempdir().unwrap();
        player.bays.save(&player.left, images.path());
        fixtures::zdb_check(&[], images.path(), POOL)
            .map_err(|complaint| format!("{replay}:\n  {}\nzdb:\n{complaint}", player.log.join("\n  ")))?;
    }
    if number("MILLPOND_FAULTS") == Some(1) {
        println!("{replay}:\n  {}", player.log.join("\n  "));
    }
    let layout = player.layout;
    Ok(format!("{limit:?} {seed}: {layout}: {} lines, {:?}", player.log.len(), start.elapsed()))
}

/// Plays many, on all cores.
fn play_all(first: u64, count: u64, limit: Limit) {
    seeds::play_all(first, count, move |seed| match play(seed, limit, None) {
        Ok(line) => println!("{line}"),
        Err(complaint) => panic!("{complaint}"),
    });
}

#[test]
fn faults_within_redundancy_are_noticed_by_no_client() {
    let (first, count) = (number("MILLPOND_SEED").unwrap_or(0), number("MILLPOND_FAULTS").unwrap_or(SEEDS));
    play_all(first, count, Limit::Redundancy);
}

#[test]
fn faults_beyond_redundancy_give_errors_and_never_wrong_bytes() {
    let (first, count) = (number("MILLPOND_SEED").unwrap_or(0), number("MILLPOND_FAULTS").unwrap_or(SEEDS));
    play_all(first, count, Limit::None);
}

/// Seeds in which a mistake of the simulator may hide before it is found.
const HIDES: u64 = 12;

fn is_found(bug: Bug, says: &[&str]) {
    for seed in 0..HIDES {
        if let Err(complaint) = play(seed, Limit::Redundancy, Some(bug)) {
            let last = complaint.lines().last().unwrap_or_default().to_owned();
            assert!(says.iter().any(|word| complaint.contains(word)), "{bug:?} was found as: {complaint}");
            println!("{bug:?} found with seed {seed}: {last}");
            return;
        }
    }
    panic!("{bug:?} went unnoticed in {HIDES} campaigns");
}

#[test]
fn a_simulator_that_answers_from_the_past_is_found_out() {
    is_found(Bug::AnswersFromThePast, &["a read got wrong bytes"]);
}

#[test]
fn disks_that_ignore_every_flush_are_found_out() {
    // What was lost shows when it is read by a client, too: the block is not what its pointer says.
    is_found(
        Bug::IgnoresFlushes,
        &["lost or wrong", "cannot be opened", "cannot be read", "unreadable block"],
    );
}

#[test]
fn corruption_beyond_parity_is_found_out() {
    is_found(Bug::RotsBeyondParity, &["refused", "cannot be read", "cannot be opened", "suspended"]);
}
