//! Edon-R with a 512-bit pipe, truncated to 256 bits: the `edonr` checksum.
//!
//! A SHA-3 candidate kept for its speed. Its one idea is a quasigroup operation on two vectors of eight
//! 64-bit words; each 128-byte block runs eight of them in a ladder over message and state:
//!
//! ```text
//! lo, hi = halves of the block        rev = words in reverse       p = state, q its first, r its second half
//! A = rev(hi)∗lo   B = A∗hi   C = r∗A   D = C∗B   E = C∗q   F = D∗E   G = rev(lo)∗E   H = G∗F
//! q ^= hi ^ G      r ^= lo ^ H
//! ```
//! The pool's salt becomes a prefix of exactly one block: H(salt) ‖ H(H(salt)), with H the plain hash.
//! No crate exists for it; written from the tables in docs/format/checksums.md, section 3.8.

use super::Salt;

const BLOCK: usize = 128;
const C: u64 = 0xAAAA_AAAA_AAAA_AAAA;

type Half = [u64; 8];

/// The 32-byte digest of `data` under the pool's salt.
pub(super) fn edonr_keyed(salt: &Salt, data: &[u8]) -> [u8; 32] {
    let inner = edonr_512(&[], salt);
    let outer = edonr_512(&[], &inner);
    let mut key = [0u8; BLOCK];
    key[..64].copy_from_slice(&inner);
    key[64..].copy_from_slice(&outer);
    let mut digest = [0u8; 32];
    digest.copy_from_slice(&edonr_512(&[key], data)[..32]);
    digest
}

/// Plain Edon-R-512 of `prefix ‖ data`.
fn edonr_512(prefix: &[[u8; BLOCK]], data: &[u8]) -> [u8; 64] {
    let mut state = State::new();
    let (blocks, rest) = data.as_chunks::<BLOCK>();
    prefix.iter().chain(blocks).for_each(|block| state.absorb(block));

    // A one bit, zeros, and the length in bits at the end of the last block; when those nine bytes do not
    // fit behind the rest, one more block.
    let bits = ((prefix.len() * BLOCK + data.len()) as u64).wrapping_mul(8);
    let mut last = [0u8; BLOCK];
    last[..rest.len()].copy_from_slice(rest);
    last[rest.len()] = 0x80;
    if rest.len() + 9 > BLOCK {
        state.absorb(&last);
        last = [0; BLOCK];
    }
    last[BLOCK - 8..].copy_from_slice(&bits.to_le_bytes());
    state.absorb(&last);

    let mut digest = [0u8; 64];
    for (bytes, word) in digest.as_chunks_mut::<8>().0.iter_mut().zip(state.second) {
        *bytes = word.to_le_bytes();
    }
    digest
}

struct State {
    first: Half,
    second: Half,
}

impl State {
    /// The bytes 0x80, 0x81, … 0xff as sixteen big-endian words.
    fn new() -> Self {
        let word = |i: usize| 0x8081_8283_8485_8687 + (i as u64) * 0x0808_0808_0808_0808;
        Self { first: std::array::from_fn(word), second: std::array::from_fn(|i| word(i + 8)) }
    }

    fn absorb(&mut self, block: &[u8; BLOCK]) {
        let (words, _) = block.as_chunks::<8>();
        let lo: Half = std::array::from_fn(|i| u64::from_le_bytes(words[i]));
        let hi: Half = std::array::from_fn(|i| u64::from_le_bytes(words[i + 8]));

        let a = quasigroup(&reversed(&hi), &lo);
        let b = quasigroup(&a, &hi);
        let c = quasigroup(&self.second, &a);
        let d = quasigroup(&c, &b);
        let e = quasigroup(&c, &self.first);
        let f = quasigroup(&d, &e);
        let g = quasigroup(&reversed(&lo), &e);
        let h = quasigroup(&g, &f);
        for i in 0..8 {
            self.first[i] ^= hi[i] ^ g[i];
            self.second[i] ^= lo[i] ^ h[i];
        }
    }
}

fn reversed(words: &Half) -> Half {
    std::array::from_fn(|i| words[7 - i])
}

/// Sum of the words with these indices, rotated.
macro_rules! rotated_sum {
    ($x:ident [$($i:literal),+] + $constant:expr, $r:literal) => {
        $constant$(.wrapping_add($x[$i]))+.rotate_left($r)
    };
}

/// X ∗ Y. Rows in the order of the table in docs/format/checksums.md.
#[inline(always)]
fn quasigroup(x: &Half, y: &Half) -> Half {
    let s = [
        rotated_sum!(x[0, 1, 2, 4, 7] + C, 0),
        rotated_sum!(x[0, 1, 3, 4, 7] + 0u64, 5),
        rotated_sum!(x[0, 1, 4, 6, 7] + 0u64, 15),
        rotated_sum!(x[2, 3, 5, 6, 7] + 0u64, 22),
        rotated_sum!(x[1, 2, 3, 5, 6] + 0u64, 31),
        rotated_sum!(x[0, 2, 3, 4, 5] + 0u64, 40),
        rotated_sum!(x[0, 1, 5, 6, 7] + 0u64, 50),
        rotated_sum!(x[2, 3, 4, 5, 6] + 0u64, 59),
    ];
    let t = [
        rotated_sum!(y[0, 1, 2, 5, 7] + (!C), 0),
        rotated_sum!(y[0, 1, 3, 4, 6] + 0u64, 10),
        rotated_sum!(y[0, 1, 2, 3, 5] + 0u64, 19),
        rotated_sum!(y[2, 3, 4, 6, 7] + 0u64, 29),
        rotated_sum!(y[0, 1, 3, 4, 5] + 0u64, 36),
        rotated_sum!(y[2, 4, 5, 6, 7] + 0u64, 44),
        rotated_sum!(y[1, 2, 5, 6, 7] + 0u64, 48),
        rotated_sum!(y[0, 3, 4, 6, 7] + 0u64, 55),
    ];
    [
        (s[0] ^ s[1] ^ s[4]).wrapping_add(t[0] ^ t[1] ^ t[5]),
        (s[0] ^ s[4] ^ s[7]).wrapping_add(t[2] ^ t[6] ^ t[7]),
        (s[1] ^ s[6] ^ s[7]).wrapping_add(t[0] ^ t[1] ^ t[3]),
        (s[2] ^ s[3] ^ s[4]).wrapping_add(t[0] ^ t[3] ^ t[4]),
        (s[0] ^ s[1] ^ s[7]).wrapping_add(t[1] ^ t[2] ^ t[5]),
        (s[3] ^ s[5] ^ s[6]).wrapping_add(t[3] ^ t[4] ^ t[6]),
        (s[2] ^ s[5] ^ s[6]).wrapping_add(t[2] ^ t[5] ^ t[7]),
        (s[2] ^ s[3] ^ s[5]).wrapping_add(t[4] ^ t[6] ^ t[7]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn abc_hashes_to_the_published_digest() {
        let hex: String = edonr_512(&[], b"abc").iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            "1b14db155f1d406594b8cef70a4362ec6b5de6a5daf50ec999e987c19d3049e2\
             de5977bb05b1bb220050a1ea5b46a9f1740acafbf6b45032adc90c628372c22b"
        );
    }

    /// 119 bytes leave room for the padding and the length, 120 do not, 128 start a block of their own.
    #[test]
    fn a_prefix_is_the_same_as_longer_data_at_every_padding_edge() {
        for len in [0, 1, 118, 119, 120, 121, 127, 128, 129, 247, 248, 256] {
            let whole: Vec<u8> = (0..BLOCK + len).map(|i| (i * 13) as u8).collect();
            let (prefix, rest) = whole.as_chunks::<BLOCK>();
            let _ = rest;
            assert_eq!(edonr_512(&prefix[..1], &whole[BLOCK..]), edonr_512(&[], &whole), "{len}");
        }
    }
}
