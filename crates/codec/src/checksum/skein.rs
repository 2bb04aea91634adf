//! Skein-512 with a 256-bit digest, keyed: the `skein` checksum.
//!
//! Skein chains one block cipher (Threefish-512) by "unique block iteration": each 64-byte block is
//! enciphered under the chaining value, tweaked with its position and purpose, and XORed with itself.
//!
//! ```text
//! 0 ─ key ─▶ G ─ configuration ─▶ G ─ message ─▶ G ─ output counter 0 ─▶ first 32 bytes
//! ```
//! Written from the public Skein 1.3 specification, because no maintained crate offers the keyed mode.
//! The first two steps depend only on the salt; they cost two blocks, a quarter of a 512-byte block's
//! hash and nothing beside a 128 KiB one, so they are not cached.
//!
//! Facts: docs/format/checksums.md, section 3.6.

use super::Salt;

const BLOCK: usize = 64;
/// Key schedule constant of Threefish, version 1.3.
const C240: u64 = 0x1BD1_1BDA_A9FC_1A22;

/// What a chain of blocks means: the type field of the tweak.
#[derive(Clone, Copy)]
#[repr(u8)]
enum Purpose {
    Key = 0,
    Config = 4,
    Message = 48,
    Output = 63,
}

/// The 32-byte digest of `data` under the pool's salt.
pub(super) fn skein_512_256(salt: &Salt, data: &[u8]) -> [u8; 32] {
    let mut config = [0u8; 32];
    config[0..4].copy_from_slice(b"SHA3");
    config[4..6].copy_from_slice(&1u16.to_le_bytes()); // version
    config[8..16].copy_from_slice(&256u64.to_le_bytes()); // digest bits

    let mut chain = [0u64; 8];
    iterate(&mut chain, Purpose::Key, salt);
    iterate(&mut chain, Purpose::Config, &config);
    iterate(&mut chain, Purpose::Message, data);
    iterate(&mut chain, Purpose::Output, &[0; 8]);

    let mut digest = [0u8; 32];
    for (bytes, word) in digest.as_chunks_mut::<8>().0.iter_mut().zip(chain) {
        *bytes = word.to_le_bytes();
    }
    digest
}

/// Runs one input through the chain. An empty one is still one (zero) block.
fn iterate(chain: &mut [u64; 8], purpose: Purpose, input: &[u8]) {
    let (mut blocks, mut rest) = input.as_chunks::<BLOCK>();
    // The last block carries a flag even when it is full, so hold one back.
    let mut last = [0u8; BLOCK];
    if rest.is_empty()
        && let Some((full, before)) = blocks.split_last()
    {
        (blocks, rest) = (before, full);
    }
    last[..rest.len()].copy_from_slice(rest);

    let kind = u64::from(purpose as u8) << 56;
    let mut first = 1u64 << 62;
    let mut position = 0u64;
    for block in blocks {
        position += BLOCK as u64;
        step(chain, position, kind | first, block);
        first = 0;
    }
    step(chain, position + rest.len() as u64, kind | first | 1 << 63, &last);
}

fn step(chain: &mut [u64; 8], position: u64, flags: u64, block: &[u8; BLOCK]) {
    let mut plain = [0u64; 8];
    for (word, bytes) in plain.iter_mut().zip(block.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    let cipher = threefish(chain, [position, flags], &plain);
    for (out, (c, p)) in chain.iter_mut().zip(cipher.iter().zip(plain)) {
        *out = c ^ p;
    }
}

/// One MIX of two words.
macro_rules! mix {
    ($v:ident, $a:literal, $b:literal, $r:literal) => {
        $v[$a] = $v[$a].wrapping_add($v[$b]);
        $v[$b] = $v[$b].rotate_left($r) ^ $v[$a];
    };
}

/// Four rounds. The word permutation after each round has period four, so the words stay where they are
/// and the pairs move instead.
macro_rules! four_rounds {
    ($v:ident, $([$r0:literal, $r1:literal, $r2:literal, $r3:literal]),*) => {
        four_rounds!(@pairs $v, $([$r0, $r1, $r2, $r3])*)
    };
    (@pairs $v:ident, [$a0:literal, $a1:literal, $a2:literal, $a3:literal]
                      [$b0:literal, $b1:literal, $b2:literal, $b3:literal]
                      [$c0:literal, $c1:literal, $c2:literal, $c3:literal]
                      [$d0:literal, $d1:literal, $d2:literal, $d3:literal]) => {
        mix!($v, 0, 1, $a0); mix!($v, 2, 3, $a1); mix!($v, 4, 5, $a2); mix!($v, 6, 7, $a3);
        mix!($v, 2, 1, $b0); mix!($v, 4, 7, $b1); mix!($v, 6, 5, $b2); mix!($v, 0, 3, $b3);
        mix!($v, 4, 1, $c0); mix!($v, 6, 3, $c1); mix!($v, 0, 5, $c2); mix!($v, 2, 7, $c3);
        mix!($v, 6, 1, $d0); mix!($v, 0, 7, $d1); mix!($v, 2, 5, $d2); mix!($v, 4, 3, $d3);
    };
}

/// Eight rounds with their subkeys. The numbers of the subkeys are constants, so that their indices modulo 9
/// and 3 are too: computing them in the loop would cost as much as the rounds.
macro_rules! eight_rounds {
    ($v:ident, $k:ident, $t:ident, $($s:literal)*) => {$(
        add_subkey::<$s>(&mut $v, &$k, &$t);
        four_rounds!($v, [46, 36, 19, 37], [33, 27, 14, 42], [17, 49, 36, 39], [44, 9, 54, 56]);
        add_subkey::<{ $s + 1 }>(&mut $v, &$k, &$t);
        four_rounds!($v, [39, 30, 34, 24], [13, 50, 10, 17], [25, 29, 39, 43], [8, 35, 56, 22]);
    )*};
}

/// Threefish-512: 72 rounds, a subkey before every four and after the last.
fn threefish(key: &[u64; 8], tweak: [u64; 2], plain: &[u64; 8]) -> [u64; 8] {
    let mut k = [C240; 9];
    for (slot, word) in k.iter_mut().zip(key) {
        *slot = *word;
    }
    k[8] = key.iter().fold(C240, |acc, word| acc ^ word);
    let t = [tweak[0], tweak[1], tweak[0] ^ tweak[1]];
    let mut v = *plain;
    eight_rounds!(v, k, t, 0 2 4 6 8 10 12 14 16);
    add_subkey::<18>(&mut v, &k, &t);
    v
}

#[inline(always)]
fn add_subkey<const S: usize>(v: &mut [u64; 8], k: &[u64; 9], t: &[u64; 3]) {
    for (i, word) in v.iter_mut().enumerate() {
        *word = word.wrapping_add(k[(S + i) % 9]);
    }
    v[5] = v[5].wrapping_add(t[S % 3]);
    v[6] = v[6].wrapping_add(t[(S + 1) % 3]);
    v[7] = v[7].wrapping_add(S as u64);
}
