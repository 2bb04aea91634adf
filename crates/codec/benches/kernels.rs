//! How fast the kernels are, as ratios to `memcpy` and to the C libraries: `cargo bench -p millpond-codec`,
//! `-- -j` for JSON.
//!
//! A number of bytes per second says as much about the machine and its neighbours as about the code. So
//! every kernel is run next to its yardstick, in turns, and what is reported is the median of the ratios
//! of neighbouring runs, with the quartiles as the spread. Time is the processor time of this thread, so that
//! other processes cost it cache and bandwidth but not the wait for a turn.
//!
//! * Checksums and parity walk an arena several times larger than the caches, in blocks of 128 KiB or
//!   1 MiB, and are compared with copying the same arena. Bytes counted are the data of the blocks: not
//!   the parity written, and not twice for a copy.
//! * Decompression works block by block on a sample of text, records and code, and is compared with
//!   calling the C library directly on the same streams.

#![expect(clippy::print_stdout, reason = "a benchmark prints")]

use codec::Order;
use codec::checksum::{self, Checksum};
use codec::compress::{self, Level};
use codec::parity::{self, Column};
use std::hint::black_box;
use std::time::Duration;

/// Bytes walked by each run of a memory-bound kernel, and copied by its yardstick (so twice that is
/// touched): beyond a 32 MiB L3.
const ARENA: usize = 64 << 20;
const ROUNDS: usize = 11;
/// Times a decompression run goes over its sample: a run of milliseconds is at the mercy of a timer tick.
const PASSES: usize = 4;

/// One thing to time: its name, the data bytes of one run, and the run.
struct Runner<'a> {
    name: String,
    bytes: usize,
    run: Box<dyn FnMut() + 'a>,
}

impl<'a> Runner<'a> {
    fn new(name: impl Into<String>, bytes: usize, run: impl FnMut() + 'a) -> Self {
        Self { name: name.into(), bytes, run: Box::new(run) }
    }
}

/// A kernel's speed, and its ratio to the yardstick that ran just before it.
struct Row {
    name: String,
    yardstick: String,
    gib_per_s: f64,
    ratio: [f64; 3],
}

fn main() {
    let json = std::env::args().any(|arg| arg == "-j");
    let mut rows = Vec::new();
    memory_bound(&mut rows);
    decompression(&mut rows);
    if json {
        let rows: Vec<_> = rows.iter().map(as_json).collect();
        println!("{}", serde_json::json!({ "rounds": ROUNDS, "arena_bytes": ARENA, "kernels": rows }));
        return;
    }
    println!("{:<44} {:>9}  {:>7}  {:<15} to", "kernel", "GiB/s", "ratio", "quartiles");
    for Row { name, yardstick, gib_per_s, ratio: [low, median, high] } in &rows {
        println!("{name:<44} {gib_per_s:>9.2}  {median:>7.2}  {low:>6.2} … {high:<6.2} {yardstick}");
    }
}

fn as_json(row: &Row) -> serde_json::Value {
    let [low, median, high] = row.ratio;
    serde_json::json!({
        "name": row.name, "yardstick": row.yardstick, "gib_per_s": row.gib_per_s,
        "ratio": median, "ratio_q1": low, "ratio_q3": high,
    })
}

/// Processor time this thread has had.
fn cpu_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(now).expect("processor time is not negative")
}

/// Times the yardstick before each kernel, in every round.
fn compare(rows: &mut Vec<Row>, yardstick: &mut Runner<'_>, kernels: &mut [Runner<'_>]) {
    let speed = |runner: &mut Runner<'_>| {
        let start = cpu_time();
        (runner.run)();
        runner.bytes as f64 / (cpu_time() - start).as_secs_f64() / f64::from(1 << 30)
    };
    let mut own = Vec::new();
    let mut samples: Vec<(Vec<f64>, Vec<f64>)> = kernels.iter().map(|_| Default::default()).collect();
    speed(yardstick);
    kernels.iter_mut().for_each(|kernel| {
        speed(kernel);
    });
    for _ in 0..ROUNDS {
        for (kernel, (speeds, ratios)) in kernels.iter_mut().zip(&mut samples) {
            let base = speed(yardstick);
            let this = speed(kernel);
            own.push(base);
            speeds.push(this);
            ratios.push(this / base);
        }
    }
    rows.push(Row {
        name: yardstick.name.clone(),
        yardstick: "itself".into(),
        gib_per_s: quartiles(&mut own)[1],
        ratio: [1.0; 3],
    });
    for (kernel, (mut speeds, mut ratios)) in kernels.iter().zip(samples) {
        rows.push(Row {
            name: kernel.name.clone(),
            yardstick: yardstick.name.clone(),
            gib_per_s: quartiles(&mut speeds)[1],
            ratio: quartiles(&mut ratios),
        });
    }
}

fn quartiles(values: &mut [f64]) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| values[values.len() * quarter / 4])
}

fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut bytes = vec![0; len];
    for word in bytes.as_chunks_mut::<8>().0 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *word = state.to_le_bytes();
    }
    bytes
}

fn memory_bound(rows: &mut Vec<Row>) {
    let data = noise(ARENA);
    let mut copy = vec![1u8; ARENA];
    let mut copy_whole = Runner::new("memcpy, out of cache", ARENA, || {
        copy.copy_from_slice(black_box(&data));
        black_box(&copy);
    });
    let mut kernels = Vec::new();
    for (algorithm, order) in [
        (checksum::Algorithm::Fletcher4, Order::Little),
        (checksum::Algorithm::Fletcher4, Order::Big),
        (checksum::Algorithm::Fletcher2, Order::Little),
        (checksum::Algorithm::Sha256, Order::Little),
        (checksum::Algorithm::Sha512, Order::Little),
        (checksum::Algorithm::Skein, Order::Little),
        (checksum::Algorithm::EdonR, Order::Little),
        (checksum::Algorithm::Blake3, Order::Little),
    ] {
        let swapped = if order == Order::Big { " byteswapped" } else { "" };
        // The slow ones see an eighth of the arena, so that the rounds stay short.
        let fast = matches!(algorithm, checksum::Algorithm::Fletcher4 | checksum::Algorithm::Fletcher2);
        let part = if fast { &data[..] } else { &data[..ARENA / 8] };
        kernels.push(Runner::new(format!("{}{swapped}, 128 KiB", algorithm.name()), part.len(), move || {
            let mut total = 0;
            for block in part.chunks(128 << 10) {
                let sum = checksum::compute(algorithm, order, Some(&[7; 32]), block);
                let Checksum([a, ..]) = sum.expect("the salt is given");
                total ^= a;
            }
            black_box(total);
        }));
    }
    for nparity in 1..=3 {
        for block in [128 << 10, 1 << 20] {
            kernels.push(generate(&data, nparity, block));
        }
    }
    for (nparity, lost) in [(1, 1), (2, 1), (2, 2), (3, 3)] {
        for block in [128 << 10, 1 << 20] {
            kernels.push(reconstruct(&data, nparity, lost, block));
        }
    }
    compare(rows, &mut copy_whole, &mut kernels);
}

/// Data columns of the stripes below.
const COLUMNS: usize = 8;

fn generate(data: &[u8], nparity: usize, block: usize) -> Runner<'_> {
    let column = block / COLUMNS;
    let mut out = vec![0u8; data.len() / COLUMNS * nparity];
    Runner::new(format!("raidz{nparity} generate 8+{nparity}, {} KiB", block >> 10), data.len(), move || {
        for (block, parity) in data.chunks_exact(block).zip(out.chunks_exact_mut(column * nparity)) {
            let columns: [&[u8]; COLUMNS] = std::array::from_fn(|i| &block[i * column..][..column]);
            let mut parity: Vec<&mut [u8]> = parity.chunks_exact_mut(column).collect();
            parity::generate(&columns, &mut parity).expect("a stripe");
        }
        black_box(&out);
    })
}

/// Loses the first data columns; the contents of the parity are irrelevant to the speed.
fn reconstruct(data: &[u8], nparity: usize, lost: usize, block: usize) -> Runner<'_> {
    let column = block / COLUMNS;
    let parity = noise(data.len() / COLUMNS * nparity);
    let mut out = vec![0u8; data.len() / COLUMNS * lost];
    let name = format!("raidz{nparity} reconstruct {lost} of 8, {} KiB", block >> 10);
    Runner::new(name, data.len(), move || {
        let stripes = data.chunks_exact(block).zip(parity.chunks_exact(column * nparity));
        for ((block, parity), out) in stripes.zip(out.chunks_exact_mut(column * lost)) {
            let mut outputs = out.chunks_exact_mut(column);
            let mut columns: Vec<Column<'_>> = block
                .chunks_exact(column)
                .map(|bytes| outputs.next().map_or(Column::Present(bytes), Column::Missing))
                .collect();
            let mut parity: Vec<Column<'_>> = parity.chunks_exact(column).map(Column::Present).collect();
            parity::reconstruct(&mut columns, &mut parity).expect("a stripe");
        }
        black_box(&out);
    })
}

/// 8 MiB that compress about as files do: this crate's code, made-up prose, and table rows with counters.
fn sample() -> Vec<u8> {
    let code = concat!(
        include_str!("kernels.rs"),
        include_str!("../src/parity/mod.rs"),
        include_str!("../src/checksum/mod.rs"),
        include_str!("../src/checksum/embedded.rs"),
        include_str!("../src/compress/mod.rs"),
    );
    let words: Vec<&str> = code.split_whitespace().collect();
    let mut out = Vec::with_capacity(9 << 20);
    let mut state = 88_172_645_463_325_252u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    while out.len() < 8 << 20 {
        for _ in 0..4000 {
            // Skewed towards the front of the list, as words in a language are.
            let pick = (next() % words.len() as u64).min(next() % words.len() as u64);
            out.extend_from_slice(words[pick as usize].as_bytes());
            out.push(b' ');
        }
        for row in 0..800u32 {
            out.extend_from_slice(&row.to_le_bytes());
            out.extend_from_slice(&(next() as u16).to_le_bytes());
            out.extend_from_slice(&[0, 0, 1, 0, 0, 0, (next() % 7) as u8, 0, 0, 0]);
        }
        let from = (next() % (code.len() as u64 / 2)) as usize;
        out.extend_from_slice(&code.as_bytes()[from..from + code.len() / 4]);
    }
    out.truncate(8 << 20);
    out
}

fn decompression(rows: &mut Vec<Row>) {
    const BLOCK: usize = 128 << 10;
    let sample = sample();
    let packed = |algorithm, level| -> Vec<Vec<u8>> {
        let pack = |block: &[u8]| {
            let mut stored = vec![0; BLOCK * 2];
            let len =
                compress::compress(algorithm, level, block, &mut stored).expect("room for twice as much");
            stored.truncate(len);
            stored
        };
        sample.chunks_exact(BLOCK).map(pack).collect()
    };
    let ours = |algorithm: compress::Algorithm, name: String, blocks: Vec<Vec<u8>>| {
        let mut out = vec![0; BLOCK];
        Runner::new(name, blocks.len() * BLOCK * PASSES, move || {
            for block in blocks.iter().cycle().take(blocks.len() * PASSES) {
                compress::decompress(algorithm, block, &mut out).expect("a valid stream");
                black_box(&out);
            }
        })
    };

    let lz4 = packed(compress::Algorithm::Lz4, Level::DEFAULT);
    let mut out = vec![0; BLOCK];
    let streams = lz4.clone();
    let mut reference =
        Runner::new("liblz4 decompress, 128 KiB", streams.len() * BLOCK * PASSES, move || {
            for block in streams.iter().cycle().take(streams.len() * PASSES) {
                let len = lz4::block::decompress_to_buffer(&block[4..], Some(BLOCK as i32), &mut out);
                assert_eq!(len.ok(), Some(BLOCK));
                black_box(&out);
            }
        });
    let mut others = vec![ours(compress::Algorithm::Lz4, "lz4 decompress, 128 KiB".into(), lz4)];
    for name in ["lzjb", "zle", "gzip-6"] {
        let algorithm = compress::Algorithm::from_name(name).expect("a name of the field");
        let blocks = packed(algorithm, Level::DEFAULT);
        others.push(ours(algorithm, format!("{name} decompress, 128 KiB"), blocks));
    }
    compare(rows, &mut reference, &mut others);

    for zstd in [3, 19, -1] {
        let level = Level::from_zstd(zstd).expect("an offered level");
        let blocks = packed(compress::Algorithm::Zstd, level);
        let streams = blocks.clone();
        let mut context = zstd_safe::DCtx::create();
        context
            .set_parameter(zstd_safe::DParameter::Format(zstd_safe::FrameFormat::Magicless))
            .expect("a parameter of the library");
        let mut out = vec![0; BLOCK];
        let mut reference =
            Runner::new(format!("libzstd decompress {level}"), blocks.len() * BLOCK * PASSES, move || {
                for block in streams.iter().cycle().take(streams.len() * PASSES) {
                    assert_eq!(context.decompress(&mut out[..], &block[8..]).ok(), Some(BLOCK));
                    black_box(&out);
                }
            });
        let mut kernels = [ours(compress::Algorithm::Zstd, format!("{level} decompress, 128 KiB"), blocks)];
        compare(rows, &mut reference, &mut kernels);
    }
}
