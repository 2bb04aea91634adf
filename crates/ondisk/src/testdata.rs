//! Bytes taken from pools that OpenZFS made, as hexadecimal text in `testdata/`.
//!
//! Trailing zeros are left out there; [`padded`] puts them back.

/// The bytes of a hexadecimal dump; white space is ignored.
pub(crate) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let digit = |byte: u8| (byte as char).to_digit(16).expect("a hexadecimal digit") as u8;
    digits.chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

/// The same, with zeros up to `len` bytes.
pub(crate) fn padded(text: &str, len: usize) -> Vec<u8> {
    let mut bytes = hex(text);
    assert!(bytes.len() <= len);
    bytes.resize(len, 0);
    bytes
}
