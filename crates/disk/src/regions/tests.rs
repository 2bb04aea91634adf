//! What is lent, kept and given back, and in which pages it lies.

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

use super::{arena::GROUP, *};
use crate::shelves::ALIGN;

const SIZES: [usize; 3] = [4 << 10, 12 << 10, 256 << 10];

/// Regions of a test of its own. Address space that a test reserved stays reserved until the program ends.
fn regions(limit: usize) -> Regions<3> {
    let regions = Regions::new(limit);
    assert!(regions.turn_on(GROUP * REGION));
    regions
}

fn lend(regions: &Regions<3>, class: usize, count: usize) -> Vec<(NonNull<u8>, Origin)> {
    let mut lent = Vec::new();
    regions.lend(class, SIZES[class], count, |start, origin| lent.push((start, origin)));
    lent
}

fn content<'a>(start: NonNull<u8>, class: usize) -> &'a mut [u8] {
    // SAFETY: what was lent is ours until it is taken back, and as large as that.
    unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), SIZES[class]) }
}

/// What is idle, added up.
fn counted(regions: &Regions<3>) -> usize {
    let arena = regions.arena.get().unwrap().as_ref().unwrap();
    let ready = |class: &Mutex<Class>| -> usize {
        let stock = class.lock();
        stock.ready.union(&stock.leaving).map(|number| arena.region(*number).lock().ready_bytes()).sum()
    };
    regions.classes.iter().map(ready).sum::<usize>() + regions.spare.lock().regions.len() * REGION
}

/// Pages that have memory, of all that were ever used.
fn resident(regions: &Regions<3>) -> usize {
    let arena = regions.arena.get().unwrap().as_ref().unwrap();
    let used = regions.bare.lock().next;
    let mut pages = vec![0u8; used * REGION / ALIGN];
    // SAFETY: asks about addresses of ours; the answer has room for each page.
    let asked = unsafe { libc::mincore(arena.start(0).as_ptr().cast(), used * REGION, pages.as_mut_ptr()) };
    assert_eq!(asked, 0);
    pages.iter().filter(|page| **page & 1 != 0).count() * ALIGN
}

/// Everything that can be done, in any order: nobody is given what another has, what is said to be zero is, what is in
/// use keeps its content, and what is said to be idle is.
#[test]
fn slots_are_nobody_elses_and_keep_what_is_in_them() {
    let seed = 0x4_c0ffee;
    let mut random = StdRng::seed_from_u64(seed);
    let regions = regions(12 << 20);
    let mut lent: Vec<(usize, NonNull<u8>, u8)> = Vec::new();
    let mut begun = 0u32;
    for step in 0..8_000 {
        match random.random_range(0..100) {
            0..48 => {
                let class = random.random_range(0..3);
                let room = (48usize << 20).saturating_sub(lent.iter().map(|(class, ..)| SIZES[*class]).sum());
                let count = random.random_range(1..12).min(room / SIZES[class]);
                for (start, origin) in lend(&regions, class, count) {
                    let content = content(start, class);
                    if origin == Origin::Zeroed {
                        assert!(content.iter().all(|byte| *byte == 0), "seed {seed:#x}, step {step}");
                        begun += 1;
                    }
                    let stamp = random.random_range(1..=255);
                    content.fill(stamp);
                    lent.push((class, start, stamp));
                }
            }
            48..97 => {
                for _ in 0..random.random_range(1..14).min(lent.len()) {
                    let (class, start, stamp) = lent.swap_remove(random.random_range(0..lent.len()));
                    assert!(
                        content(start, class).iter().all(|byte| *byte == stamp),
                        "seed {seed:#x}, step {step}"
                    );
                    regions.take_back(class, start);
                }
            }
            97 => drop(regions.collapse()),
            98 => {
                if regions.age() {
                    // Whoever has something there moves it, if he wants to.
                    for (class, start, stamp) in &mut lent {
                        if regions.is_leaving(start.as_ptr()) && random.random_range(0..3) > 0 {
                            let (other, _) = lend(&regions, *class, 1)[0];
                            assert!(!regions.is_leaving(other.as_ptr()), "seed {seed:#x}, step {step}");
                            content(other, *class).fill(*stamp);
                            regions.take_back(*class, *start);
                            *start = other;
                        }
                    }
                }
            }
            _ => {
                regions.set_limit(0);
                assert_eq!(regions.idle(), 0, "seed {seed:#x}, step {step}");
                regions.set_limit(12 << 20);
            }
        }
        assert!(regions.idle() <= 12 << 20);
        if step % 512 == 0 {
            assert_eq!(regions.idle(), counted(&regions), "seed {seed:#x}, step {step}");
            let in_use: usize = lent.iter().map(|(class, ..)| SIZES[*class]).sum();
            // What is left at the end of a region by slots of 12 KiB is nobody's.
            let left = (REGION % SIZES[1]) * regions.bare.lock().next;
            assert!(resident(&regions) <= in_use + regions.idle() + left, "seed {seed:#x}, step {step}");
        }
    }
    assert!(begun > 40, "memory was given back and asked for again");
}

/// Giving back a part of a huge page is its end. So what is left in half-empty ones is moved together.
#[test]
fn only_whole_regions_go_back_as_long_as_there_is_room_for_what_is_idle() {
    const SLOTS: usize = REGION / SIZES[0];
    let regions = regions(8 << 20);
    let mut lent = lend(&regions, 0, 4 * SLOTS);
    // Usual pages come as they are written to.
    lent.iter().for_each(|(start, _)| content(*start, 0).fill(1));
    assert_eq!(resident(&regions), 4 * REGION);
    let give_back = |lent: &mut Vec<(NonNull<u8>, Origin)>, goes: &dyn Fn(usize) -> bool| {
        let (gone, stay) = lent.drain(..).enumerate().partition::<Vec<_>, _>(|(number, _)| goes(*number));
        gone.into_iter().for_each(|(_, (start, _))| regions.take_back(0, start));
        lent.extend(stay.into_iter().map(|(_, slot)| slot));
    };
    give_back(&mut lent, &|number| !(number % SLOTS).is_multiple_of(4));
    assert!(!regions.age(), "it was asked for lately");
    assert_eq!(resident(&regions), 4 * REGION);
    assert!(regions.age());
    let leaving = |(start, _): &(NonNull<u8>, Origin)| regions.is_leaving(start.as_ptr());
    let stay = lent.iter().filter(|slot| !leaving(slot)).count();
    assert_eq!((stay, lent.len()), (SLOTS / 2, SLOTS), "two of them have room for what is in the others");
    for slot in &mut lent {
        if leaving(slot) {
            let moved = lend(&regions, 0, 1)[0];
            regions.take_back(0, std::mem::replace(slot, moved).0);
        }
    }
    assert_eq!(resident(&regions), 2 * REGION);
    assert!(regions.is_slot(content(lent[0].0, 0)) && !regions.is_slot(&content(lent[0].0, 0)[1..]));
}

/// A counter of the kernel's, of the whole machine.
fn counted_by_the_kernel(name: &str) -> Option<u64> {
    let counters = std::fs::read_to_string("/proc/vmstat").ok()?;
    counters.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

#[test]
fn a_full_region_in_usual_pages_becomes_a_huge_one_and_keeps_what_is_in_it() {
    let regions = regions(64 << 20);
    regions.untried.store(3, Relaxed);
    let lent = lend(&regions, 2, 3 * REGION / SIZES[2]);
    for (number, (start, _)) in lent.iter().enumerate() {
        content(*start, 2).fill(number as u8);
    }
    let (last, full) = lent.split_last().unwrap();
    regions.take_back(2, last.0);
    regions.set_limit(0);
    let Some(before) = counted_by_the_kernel("thp_collapse_alloc ") else {
        eprintln!("not run: the kernel does not count huge pages");
        return;
    };
    if regions.collapse().is_none() {
        eprintln!("not run: the kernel does not make huge pages of usual ones (Linux before 6.1)");
        return;
    }
    assert!(regions.collapse().is_some());
    assert_eq!(regions.collapse(), None, "what is given back in part of the third stays so");
    for (number, (start, _)) in full.iter().enumerate() {
        assert!(content(*start, 2).iter().all(|byte| *byte == number as u8));
    }
    let arena = regions.arena.get().unwrap().as_ref().unwrap();
    let huge = (0..3).filter(|number| arena.region(*number).lock().is_huge).count();
    let made = counted_by_the_kernel("thp_collapse_alloc ").unwrap() - before;
    assert!(made >= huge as u64, "{huge} are taken for huge, {made} were made");
    assert_eq!(resident(&regions), 3 * REGION - SIZES[2]);
    assert_eq!(regions.collapse().is_some(), huge < 2, "nothing is made twice");
}

/// Nobody was told, and what the kernel would not do was tried for ever.
#[test]
fn whoever_makes_huge_pages_is_told_which_of_them_the_kernel_made() {
    let regions = regions(64 << 20);
    regions.untried.store(usize::MAX, Relaxed);
    lend(&regions, 2, 2 * REGION / SIZES[2]);
    let arena = regions.arena.get().unwrap().as_ref().unwrap();
    let answer = |is_made| regions.collapse_with(arena, |_| is_made);
    assert_eq!([false, true, true].map(answer), [Some(false), Some(true), None]);
    assert_eq!([true, true].map(answer), [Some(true), None], "the one that is left");
    assert_eq!(answer(true), None);
}

/// Pages are exchanged below what others write and read, lend and give back.
#[test]
fn what_is_in_use_while_pages_are_made_huge_and_given_back_stays_as_it_is() {
    let regions = regions(8 << 20);
    regions.untried.store(usize::MAX, Relaxed);
    let are_working = AtomicUsize::new(2);
    std::thread::scope(|threads| {
        for seed in [1, 2] {
            let (regions, are_working) = (&regions, &are_working);
            threads.spawn(move || {
                let mut random = StdRng::seed_from_u64(seed);
                let mut lent: Vec<(usize, NonNull<u8>, u8)> = Vec::new();
                for step in 0..6_000 {
                    let stamp = random.random_range(1..=255);
                    if random.random_range(0..64) < 64 - lent.len() {
                        let class = random.random_range(0..3);
                        for (start, origin) in lend(regions, class, 1) {
                            let content = content(start, class);
                            let is_zero = content.iter().all(|byte| *byte == 0);
                            assert!(origin == Origin::Recycled || is_zero, "seed {seed}, step {step}");
                            content.fill(stamp);
                            lent.push((class, start, stamp));
                        }
                    } else {
                        let (class, start, stamp) = lent.swap_remove(random.random_range(0..lent.len()));
                        let is_same = content(start, class).iter().all(|byte| *byte == stamp);
                        assert!(is_same, "seed {seed}, step {step}");
                        regions.take_back(class, start);
                    }
                }
                are_working.fetch_sub(1, Relaxed);
            });
        }
        let (mut turns, mut made) = (0u32, 0);
        while are_working.load(Relaxed) > 0 {
            made += u32::from(regions.collapse().is_some());
            turns += 1;
            if turns.is_multiple_of(16) {
                regions.age();
            }
            if turns.is_multiple_of(64) {
                regions.set_limit(0);
                regions.set_limit(8 << 20);
            }
        }
        eprintln!("{made} regions were tried");
    });
}

/// Memory in pieces: each huge page was compacted for, and whoever wanted a block of that size waited.
#[test]
fn after_a_dear_huge_page_regions_begin_in_usual_ones() {
    let regions = regions(64 << 20);
    let left = |huge| {
        regions.heed(huge);
        regions.untried.load(Relaxed)
    };
    assert_eq!([Huge::IsSlow, Huge::Not].map(left), [UNTRIED.0, 2 * UNTRIED.0], "longer each time");
    assert_eq!([Huge::IsSlow; 10].map(left)[9], UNTRIED.1);
    regions.untried.store(3, Relaxed);
    let lent = lend(&regions, 2, 2 * REGION / SIZES[2]);
    assert_eq!((lent.len(), resident(&regions)), (2 * REGION / SIZES[2], 0));
    assert_eq!(regions.untried.load(Relaxed), 1);
    regions.heed(Huge::Is);
    assert_eq!(regions.untried_next.load(Relaxed), UNTRIED.0, "one that was at hand ends it");
}

/// The kernel kept all of a huge page of which a part was given back, and charged it to the cgroup.
#[test]
fn a_huge_page_is_split_before_a_part_of_it_goes_back() {
    let split = || counted_by_the_kernel("thp_split_page ");
    let regions = regions(64 << 20);
    regions.untried.store(usize::MAX, Relaxed);
    let lent = lend(&regions, 2, 8 * REGION / SIZES[2]);
    lent.iter().for_each(|(start, _)| content(*start, 2).fill(1));
    while regions.collapse().is_some() {}
    let arena = regions.arena.get().unwrap().as_ref().unwrap();
    let are_huge = (0..8).all(|number| arena.region(number).lock().is_huge);
    let (Some(before), true) = (split(), are_huge) else {
        eprintln!("not run: no huge page, or no counter of those that are split");
        return;
    };
    lent.iter().step_by(2).for_each(|(start, _)| regions.take_back(2, *start));
    regions.set_limit(0);
    assert!(split().is_some_and(|after| after >= before + 8), "of eight, half is free");
}

#[test]
fn another_size_has_what_is_empty() {
    let regions = regions(64 << 20);
    let lent = lend(&regions, 0, 8 * REGION / SIZES[0]);
    lent.into_iter().for_each(|(start, _)| regions.take_back(0, start));
    let others = lend(&regions, 2, 7 * REGION / SIZES[2]);
    assert!(others.iter().all(|(_, origin)| *origin == Origin::Recycled), "no new memory");
    assert_eq!(regions.bare.lock().next, 8);
}

#[test]
fn without_address_space_nothing_is_lent() {
    assert_eq!(lend(&Regions::new(0), 0, 1).len(), 0);
    let regions = regions(0);
    let all = lend(&regions, 2, GROUP * REGION / SIZES[2] + 5);
    assert_eq!(all.len(), GROUP * REGION / SIZES[2]);
}
