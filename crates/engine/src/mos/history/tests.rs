use ondisk::history::records;

use super::*;
use crate::mos::testing::{World, fresh};

async fn phys(mos: &mut MutSet) -> (u64, HistoryPhys) {
    let object = zap::get_u64(mos, DIRECTORY, ENTRY).await.unwrap().unwrap();
    (object, HistoryPhys::decode(&mos.bonus(object).await.unwrap(), Order::Little).unwrap())
}

/// All records, as a reader puts them together: what stays for ever, then the ring.
async fn read(mos: &mut MutSet) -> Vec<NvList> {
    let (object, ring) = phys(mos).await;
    let mut data = mos.read(object, 0, ring.create_len as usize).await.unwrap();
    for (offset, len) in ring.extents(ring.bof, ring.eof - ring.bof).unwrap() {
        data.extend(mos.read(object, offset, len as usize).await.unwrap());
    }
    records(&data).map(Result::unwrap).collect()
}

fn record(number: u64) -> NvList {
    let mut list = NvList::new();
    let command = format!("zpool set comment={} lake", "x".repeat((number * 37 % 900) as usize));
    list.set("history command", command.as_str());
    list.set("history time", number);
    list
}

#[tokio::test]
async fn the_ring_wraps_and_keeps_the_first_record_and_the_newest() {
    let mut world = World::new().await;
    create(&mut world.mos, 1 << 20).await.unwrap();
    assert_eq!(phys(&mut world.mos).await.1.phys_max_off, 128 << 10, "the smallest there is");
    assert_eq!(read(&mut world.mos).await, []);
    let mut wrapped = 0;
    for number in 0..1500 {
        append(&mut world.mos, &record(number)).await.unwrap();
        let before = wrapped;
        let (_, ring) = phys(&mut world.mos).await;
        wrapped = ring.eof / ring.phys_max_off;
        if number % 100 == 0 || wrapped > before {
            world.commit().await;
            let all = read(&mut world.mos).await;
            let kept = all.len() as u64 - 1;
            assert_eq!(all[0], record(0));
            let newest = (number + 1 - kept..=number).map(record).collect::<Vec<_>>();
            assert_eq!(all[1..], newest);
            let (_, ring) = phys(&mut world.mos).await;
            assert_eq!(ring.records_lost + kept, number);
            assert!(number < 50 || ring.eof - ring.bof > 20_000, "the ring is used");
        }
    }
    assert!(wrapped >= 5);
}

#[tokio::test]
async fn sizes_follow_the_pool_between_bounds() {
    for (pool, ring) in [(0, 128 << 10), (10 << 30, 10_737_418), (u64::MAX, 1 << 30)] {
        let mut mos = fresh().await;
        create(&mut mos, pool).await.unwrap();
        assert_eq!(phys(&mut mos).await.1.phys_max_off, ring);
    }
}

#[tokio::test]
async fn a_pool_without_history_and_a_record_too_long_are_no_reason_to_fail() {
    let mut mos = fresh().await;
    append(&mut mos, &record(1)).await.unwrap();
    create(&mut mos, 0).await.unwrap();
    append(&mut mos, &record(1)).await.unwrap();
    let mut long = NvList::new();
    long.set("history command", "y".repeat(200 << 10).as_str());
    append(&mut mos, &long).await.unwrap();
    append(&mut mos, &record(2)).await.unwrap();
    assert_eq!(read(&mut mos).await, [record(1), record(2)]);
}

/// Each command was refused because its record could not be entered, whatever it was for.
#[tokio::test]
async fn a_history_that_cannot_be_read_refuses_nothing() {
    let mut world = World::new().await;
    create(&mut world.mos, 0).await.unwrap();
    for number in 0..400 {
        append(&mut world.mos, &record(number)).await.unwrap();
    }
    world.commit().await;
    world.lose(ObjectType::HISTORY).await;
    let (object, ring) = phys(&mut world.mos).await;
    assert!(world.mos.read(object, 0, 8).await.is_err());
    append(&mut world.mos, &record(400)).await.unwrap();
    assert_eq!(phys(&mut world.mos).await.1, ring, "the record was dropped");
}

#[tokio::test]
async fn a_damaged_ring_starts_again() {
    let mut mos = fresh().await;
    create(&mut mos, 0).await.unwrap();
    for number in 0..400 {
        append(&mut mos, &record(number)).await.unwrap();
    }
    let (object, ring) = phys(&mut mos).await;
    mos.write(object, ring.physical(ring.bof).unwrap(), &[0xff; 8]).await.unwrap();
    for number in 400..420 {
        append(&mut mos, &record(number)).await.unwrap();
    }
    let all = read(&mut mos).await;
    assert_eq!((&all[0], all.last().unwrap()), (&record(0), &record(419)));
}
