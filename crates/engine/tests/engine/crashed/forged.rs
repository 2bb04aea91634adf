//! Logs of any bytes: each ends, and gives out no record that is not in it; what makes no sense under a right checksum is
//! refused with a reason, and whatever happens the pool is consistent.

use std::collections::BTreeSet;

use ondisk::zil::{Body, CHAIN_BYTES, Record, TxType};
use pool::zil::Chain;

use super::*;

/// Everything that is done with a record, for its panics.
fn look(record: &zil::LogRecord) -> usize {
    let is_write = record.tx() == Some(TxType::Write);
    assert!(is_write || (record.indirect().is_none() && zil::written(record) == 0));
    assert!(!record.is_empty() && record.len().is_multiple_of(8));
    record.len()
}

fn mutate(bytes: &mut [u8], random: &mut StdRng) {
    // Where it hurts: the chain, and the beginnings of records.
    let at = match random.random_range(0..3) {
        0 => random.random_range(0..CHAIN_BYTES),
        1 => CHAIN_BYTES + random.random_range(0..64),
        _ => random.random_range(0..bytes.len()),
    };
    match random.random_range(0..4) {
        0 => bytes[at] ^= 1 << random.random_range(0..8),
        1 => bytes[at] = random.random(),
        _ => {
            let at = at / 8 * 8;
            let end = (at + 8).min(bytes.len());
            let value = [0, 1, 31, 192, 1 << 20, u64::MAX, u64::MAX - 7, 1 << 63][random.random_range(0..8)];
            bytes[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
        }
    }
}

/// A real log and what becomes of it when bytes in it change: it ends, earlier or later, and every record that is
/// given out lies in its block.
#[tokio::test]
async fn a_log_of_any_bytes_ends() {
    let fixture = fixtures::pool("crash-main");
    let pool = pool_on(as_disks(&in_memory(&fixture))).await.unwrap();
    let (head, blocks) = chain_of(&pool, "pcrashmain/v1").await;
    assert!(blocks.len() > 3, "{} blocks", blocks.len());
    let mut random = StdRng::seed_from_u64(12);
    let mut lengths = BTreeSet::new();
    for _ in 0..4000 {
        let mut mutated = blocks.clone();
        for _ in 0..random.random_range(1..4) {
            let number = random.random_range(0..mutated.len());
            let mut bytes = mutated[number].1.to_vec();
            mutate(&mut bytes, &mut random);
            mutated[number].1 = bytes.into();
        }
        if random.random_ratio(1, 8) {
            // Back to an earlier block, which has its own identity still.
            let (to, pointer) = (random.random_range(1..mutated.len()), mutated[0].0);
            let mut bytes = mutated[to].1.to_vec();
            bytes[8..136].copy_from_slice(&pointer.encode(pointer.order()));
            mutated[to].1 = bytes.into();
        }
        let mut header = head.header.clone();
        if random.random_ratio(1, 4) {
            header.claim_txg = random.random_range(0..50);
            header.claim_block_seq = random.random_range(0..20);
        }
        let mut chain = Chain::new(head.objset, &header);
        let mut length = 0;
        while let Some((pointer, _)) = chain.next() {
            let found = mutated.iter().find(|(known, _)| known.dvas().eq(pointer.dvas()));
            length += 1;
            assert!(length <= blocks.len() + 1, "it goes on and on");
            let Some(block) = chain.follow(found.map(|(_, raw)| raw.clone())) else { continue };
            let total: usize = block.records().map(|record| look(&record)).sum();
            assert!(total <= block.record_bytes());
        }
        assert!(chain.end().is_some());
        lengths.insert(length);
    }
    assert!(lengths.len() > 3, "changes end it at different places: {lengths:?}");
}

/// Records that make no sense, in blocks whose checksums are right: the pool is opened or refused, with a reason, and
/// whatever happens it is consistent.
#[tokio::test(start_paused = true)]
async fn forged_logs_are_refused_or_end() {
    let (world, _) = cut_off("d0", 13).await;
    let pool = pool_on(as_disks(&world.media)).await.unwrap();
    let (_, blocks) = chain_of(&pool, "tank/a").await;
    drop(pool);
    let mut random = StdRng::seed_from_u64(14);
    let (mut opened, mut closed, mut refused) = (0, 0, 0);
    for round in 0..80 {
        let forged = world.fork();
        for _ in 0..random.random_range(1..4) {
            let (pointer, raw) = &blocks[random.random_range(0..blocks.len())];
            let mut bytes = raw.to_vec();
            mutate(&mut bytes, &mut random);
            if round % 2 == 0 {
                // Any record type there is.
                bytes[CHAIN_BYTES..CHAIN_BYTES + 8]
                    .copy_from_slice(&random.random_range(0_u64..26).to_le_bytes());
            }
            let verifier = Checksum(pointer.checksum());
            if embedded::seal(embedded::Kind::Zilog2, &mut bytes, verifier, codec::Order::Little).is_err() {
                // Nothing that could be sealed is left of it: a torn block.
                bytes.truncate(bytes.len() / 2);
            }
            let offset = pointer.dvas().next().unwrap().offset + DATA_OFFSET;
            forged.media[0].write(offset, bytes.into()).await.unwrap();
        }
        match start(pool_on(as_disks(&forged.media)).await.unwrap()).await {
            Ok(engine) => {
                let replayed = engine.replayed();
                match replayed.failed.is_empty() {
                    true => opened += 1,
                    false => {
                        closed += 1;
                        let error = engine.volume("tank/a").await.unwrap_err().to_string();
                        assert!(error.contains("tank/a"), "{error}");
                    }
                }
                engine.end(Ending::Export).await.unwrap();
                forged.verify("forged").await;
            }
            Err(error) => {
                assert!(error.contains("tank/a"), "{error}");
                refused += 1;
            }
        }
    }
    println!(
        "forged logs: {opened} replayed as far as they go, {closed} volumes closed, {refused} pools refused"
    );
    assert!(opened > 0 && closed > 0, "{opened} {closed} {refused}");
}

/// Nobody had counted the references that OpenZFS gives up with a claimed log, also where records are in the pool already: what
/// a file had of cloned blocks was free as soon as OpenZFS mounted its file system.
#[tokio::test(start_paused = true)]
async fn a_log_with_cloned_blocks_is_not_claimed_even_if_they_are_in_the_pool() {
    let (world, _) = cut_off("d0", 19).await;
    let pool = pool_on(as_disks(&world.media)).await.unwrap();
    let synced = pool.uberblock().txg;
    let (_, blocks) = chain_of(&pool, "tank/a").await;
    let shared = pool.dsl().await.unwrap().lookup("tank/b").await.unwrap().phys().unwrap().bp;
    drop(pool);
    let (pointer, raw) = blocks.last().unwrap();
    let sequence = u64::from_le_bytes(raw[CHAIN_BYTES + 24..][..8].try_into().unwrap());
    let pointers = shared.encode(Order::Little);
    let body =
        Body::CloneRange { object: 1, offset: 0, length: 8192, block_bytes: 8192, pointers: &pointers };
    let record = Record { case_insensitive: false, txg: synced, sequence, body };
    let mut bytes = raw[..CHAIN_BYTES].to_vec();
    bytes.extend(record.encode(Order::Little).unwrap());
    let used = bytes.len() as u64;
    bytes[136..144].copy_from_slice(&used.to_le_bytes());
    bytes.resize(raw.len(), 0);
    put_sealed(&world, pointer, bytes).await;

    let error = start(pool_on(as_disks(&world.media)).await.unwrap()).await.map(drop).unwrap_err();
    assert!(error.contains("tank/a") && error.contains("cloned blocks"), "{error}");
    assert!(error.contains("block_cloning"), "and what comes of the remedy: {error}");
    assert_eq!(world.look().await.unwrap().uberblock().txg, synced, "nothing was claimed");
}
