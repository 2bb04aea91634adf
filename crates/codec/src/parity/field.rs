//! GF(2^8) with the polynomial x^8 + x^4 + x^3 + x^2 + 1 (0x11D) and generator 2.
//!
//! Addition is XOR. Multiplication goes through logarithms; the kernels, which multiply many bytes by one
//! constant, use per-constant tables instead: two of 16 entries (one for each half of a byte, because
//! multiplication distributes over XOR), or an 8×8 matrix of bits (because it is linear over GF(2)).
//! All tables are computed by the compiler from the polynomial.

const POLYNOMIAL: u16 = 0x11D;
/// Order of the generator: 2^255 = 1.
const ORDER: usize = 255;

const EXP: [u8; ORDER] = {
    let mut table = [0u8; ORDER];
    let mut value = 1u16;
    let mut i = 0;
    while i < ORDER {
        table[i] = value as u8;
        value <<= 1;
        if value & 0x100 != 0 {
            value ^= POLYNOMIAL;
        }
        i += 1;
    }
    table
};

/// `LOG[0]` is meaningless, and not read.
const LOG: [u8; 256] = {
    let mut table = [0u8; 256];
    let mut i = 0;
    while i < ORDER {
        table[EXP[i] as usize] = i as u8;
        i += 1;
    }
    table
};

/// a · b
pub(super) const fn mul(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    EXP[(LOG[a as usize] as usize + LOG[b as usize] as usize) % ORDER]
}

/// 1 / a; `None` for zero.
pub(super) fn inverse(a: u8) -> Option<u8> {
    (a != 0).then(|| EXP[(ORDER - usize::from(LOG[usize::from(a)])) % ORDER])
}

/// Coefficient of a data column in parity `row` (0 is P, 1 is Q, 2 is R), `after` data columns before the
/// last: 1, 2 or 4 to that power.
pub(super) fn coefficient(row: usize, after: usize) -> u8 {
    EXP[row * after % ORDER]
}

/// For each constant, its products with 0..16 and with 0, 16, …, 240.
pub(super) static NIBBLES: [[[u8; 16]; 2]; 256] = {
    let mut table = [[[0u8; 16]; 2]; 256];
    let mut constant = 0;
    while constant < 256 {
        let mut i = 0;
        while i < 16 {
            table[constant][0][i] = mul(constant as u8, i as u8);
            table[constant][1][i] = mul(constant as u8, (i as u8) << 4);
            i += 1;
        }
        constant += 1;
    }
    table
};

/// For each constant, multiplication by it as a bit matrix in the form the GFNI affine instruction takes: byte
/// `7 − i` holds the mask of input bits whose parity is output bit `i`.
#[cfg(any(target_arch = "x86_64", test))]
pub(super) static MATRICES: [u64; 256] = {
    let mut table = [0u64; 256];
    let mut constant = 0;
    while constant < 256 {
        let mut input = 0;
        while input < 8 {
            let column = mul(constant as u8, 1 << input) as u64;
            let mut output = 0;
            while output < 8 {
                table[constant] |= (column >> output & 1) << (input + 8 * (7 - output));
                output += 1;
            }
            input += 1;
        }
        constant += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_product_equals_schoolbook_multiplication() {
        for a in 0..=255u8 {
            for b in 0..=255u8 {
                let mut product = 0u16;
                for bit in 0..8 {
                    if b >> bit & 1 == 1 {
                        product ^= u16::from(a) << bit;
                    }
                }
                for bit in (8..16).rev() {
                    if product >> bit & 1 == 1 {
                        product ^= POLYNOMIAL << (bit - 8);
                    }
                }
                assert_eq!(u16::from(mul(a, b)), product, "{a} {b}");
                let [low, high] = &NIBBLES[usize::from(a)];
                assert_eq!(low[usize::from(b & 15)] ^ high[usize::from(b >> 4)], mul(a, b));
                let bits = (0..8).map(|i| {
                    let row = (MATRICES[usize::from(a)] >> (8 * (7 - i))) as u8;
                    ((row & b).count_ones() as u8 & 1) << i
                });
                assert_eq!(bits.fold(0, |acc, bit| acc | bit), mul(a, b));
            }
            assert_eq!(inverse(a).map(|inverse| mul(a, inverse)), (a != 0).then_some(1));
        }
    }

    #[test]
    fn coefficients_are_powers() {
        for (row, base) in [(0, 1), (1, 2), (2, 4)] {
            let mut power = 1;
            for after in 0..300 {
                assert_eq!(coefficient(row, after), power);
                power = mul(power, base);
            }
        }
    }
}
