//! Compressors as a stranger would use them: any bytes as input to any decoder, valid streams with
//! damage, limits of any length; and every encoder's output read back.

use codec::compress::{Algorithm, Level, compress, decompress};
use proptest::prelude::*;

fn algorithms() -> impl Strategy<Value = Algorithm> {
    (2u8..=16).prop_map(|id| Algorithm::from_id(id).unwrap())
}

fn levels() -> impl Strategy<Value = Level> {
    prop_oneof![1u8..=6, 103u8..=123].prop_map(|code| Level::from_code(code).unwrap())
}

/// Blocks that compress in different ways: random bytes of a small alphabet, in runs.
fn blocks() -> impl Strategy<Value = Vec<u8>> {
    (1u8..=255, proptest::collection::vec((any::<u8>(), 1usize..90), 1..200)).prop_map(|(modulus, runs)| {
        let mut block = Vec::new();
        for (i, (byte, len)) in runs.into_iter().enumerate() {
            if i % 3 == 0 && block.len() > 40 {
                let from = usize::from(byte) % (block.len() - 30);
                block.extend_from_within(from..from + 30);
            } else {
                block.resize(block.len() + len, byte % modulus);
            }
        }
        block
    })
}

proptest! {
    #[test]
    fn any_bytes_decode_or_fail(
        algorithm in algorithms(),
        src in proptest::collection::vec(any::<u8>(), 0..600),
        len in 0usize..5000,
    ) {
        let mut dst = vec![0; len];
        let _verdict = decompress(algorithm, &src, &mut dst);
    }

    #[test]
    fn a_round_trip_is_exact_and_stays_within_its_limit(
        algorithm in algorithms(),
        level in levels(),
        block in blocks(),
        room in 0usize..8000,
        padding in 0usize..600,
    ) {
        let mut stored = vec![0xF7; room + 8];
        if let Some(len) = compress(algorithm, level, &block, &mut stored[..room]) {
            prop_assert!(len <= room);
            prop_assert_eq!(&stored[room..], &[0xF7; 8]);
            stored.truncate(len);
            stored.resize(len + padding, 0);
            let mut back = vec![0x3C; block.len()];
            prop_assert_eq!(decompress(algorithm, &stored, &mut back), Ok(()));
            prop_assert_eq!(back, block);
        } else if !matches!(algorithm, Algorithm::Off | Algorithm::Empty) {
            // Whatever the data, three bytes in two and some frame always suffice.
            prop_assert!(room < block.len() + block.len() / 2 + 64, "{} refused {room}", algorithm.name());
        }
    }

    #[test]
    fn damage_is_an_error_or_other_bytes_but_never_worse(
        algorithm in algorithms(),
        level in levels(),
        block in blocks(),
        hits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
        lsize in 0usize..20000,
    ) {
        let mut stored = vec![0; block.len() * 2 + 64];
        if let Some(len) = compress(algorithm, level, &block, &mut stored) {
            stored.truncate(len);
            for (at, byte) in hits {
                let at = at.index(len);
                stored[at] ^= byte;
            }
            let mut dst = vec![0; block.len()];
            let _verdict = decompress(algorithm, &stored, &mut dst);
            let _verdict = decompress(algorithm, &stored[..cut.index(len)], &mut dst);
            let mut dst = vec![0; lsize];
            let _verdict = decompress(algorithm, &stored, &mut dst);
        }
    }
}

/// A decoder's or encoder's per-thread context must not remember the block before: the same input gives the same result
/// after failures and after other levels.
#[test]
fn contexts_do_not_leak_between_blocks() {
    let block: Vec<u8> = (0..40_000u32).map(|i| (i / 7 % 50) as u8).collect();
    for id in 3..=16 {
        let Some(algorithm) = Algorithm::from_id(id).filter(|a| *a != Algorithm::Empty) else { continue };
        let mut first = vec![0; 60_000];
        let len = compress(algorithm, Level::DEFAULT, &block, &mut first).unwrap();
        for code in [19, 1, 123, 3] {
            let level = Level::from_code(code).unwrap();
            let mut other = vec![0; 60_000];
            assert_eq!(compress(algorithm, level, &block, &mut [0; 3]), None);
            assert!(compress(algorithm, level, &block, &mut other).is_some());
            assert!(decompress(algorithm, &first[..len / 2], &mut vec![0; block.len()]).is_err());
        }
        let mut again = vec![0; 60_000];
        assert_eq!(compress(algorithm, Level::DEFAULT, &block, &mut again), Some(len));
        assert_eq!(first, again);
        let mut back = vec![0; block.len()];
        decompress(algorithm, &again, &mut back).unwrap();
        assert_eq!(back, block);
    }
}

/// Large blocks that do not shrink are given up; those that do survive the early abort.
#[test]
fn the_early_abort_of_zstd_spares_what_compresses() {
    let len = 1 << 20;
    let mut state = 1u64;
    let noise: Vec<u8> = (0..len)
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        })
        .collect();
    // Six bits of entropy in each byte, and no repetition: lz4 finds nothing, zstd's entropy coder does.
    let dense: Vec<u8> = noise.iter().map(|byte| byte & 63).collect();
    let limit = len - len / 8;
    let mut dst = vec![0; limit];
    assert_eq!(compress(Algorithm::Zstd, Level::DEFAULT, &noise, &mut dst), None);
    let used = compress(Algorithm::Zstd, Level::DEFAULT, &dense, &mut dst).unwrap();
    let mut back = vec![0; len];
    decompress(Algorithm::Zstd, &dst[..used], &mut back).unwrap();
    assert_eq!(back, dense);
}

/// Frames from a big-endian host carry the version first; levels that do not exist are corruption.
#[test]
fn zstd_headers_of_either_kind_of_host_are_read() {
    let block = vec![9u8; 4096];
    let mut stored = vec![0; 4096];
    let len = compress(Algorithm::Zstd, Level::DEFAULT, &block, &mut stored).unwrap();
    let mut back = vec![0; block.len()];
    let mut read = |header: [u8; 4]| {
        let mut stored = stored[..len].to_vec();
        stored[4..8].copy_from_slice(&header);
        decompress(Algorithm::Zstd, &stored, &mut back).is_ok()
    };
    assert!(read([3, 0, 0x28, 0xa5]));
    assert!(read([0, 0x28, 0xa5, 3]));
    assert!(read([123, 0, 0x28, 0xa5]));
    for bad in [[20, 0, 0x28, 0xa5], [124, 0, 0x28, 0xa5], [0, 0, 0, 0], [3, 1, 0x28, 0xa5], [255, 0, 0, 0]] {
        assert!(!read(bad), "{bad:?}");
    }
}
