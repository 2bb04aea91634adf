//! The kernels against vectors that nothing in this crate produced: blocks, columns and log blocks read
//! from pools that OpenZFS wrote (`real_blocks`, `raidz_real`, `zil_chain`), and inputs worked out by an
//! independent reference (`checksums`, `compression`, `raidz`).

use codec::Order;
use codec::checksum::embedded::{self, Kind};
use codec::checksum::{self, Checksum, Form, Salt};
use codec::compress::{self, Level};
use codec::parity::{self, Column};
use serde_json::Value;
use sha2::{Digest, Sha256};

fn load(name: &str) -> Value {
    let path = format!("{}/../../docs/format/vectors/{name}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

fn number(value: &Value) -> usize {
    usize::try_from(value.as_u64().unwrap()).unwrap()
}

fn hex(value: &Value) -> Vec<u8> {
    unhex(text(value))
}

fn unhex(digits: &str) -> Vec<u8> {
    (0..digits.len()).step_by(2).map(|i| u8::from_str_radix(&digits[i..i + 2], 16).unwrap()).collect()
}

fn words(value: &Value) -> Checksum {
    let mut words = text(value).split(':').map(|word| u64::from_str_radix(word, 16).unwrap());
    Checksum(std::array::from_fn(|_| words.next().unwrap()))
}

fn salt(value: &Value) -> Option<Salt> {
    value.as_str().map(|digits| unhex(digits).try_into().unwrap())
}

#[test]
fn checksums_equal_the_reference_in_both_byte_orders() {
    let vectors = load("checksums");
    let salt = salt(&vectors["salt"]);
    let input = |name: &str| {
        let input = &vectors["inputs"][name];
        match input["hex"].as_str() {
            Some(digits) => unhex(digits),
            // `ramp4096`, as the file's note defines it.
            None => (0..number(&input["len"])).map(|i| (7 * i + (i >> 8)) as u8).collect(),
        }
    };
    let cases = list(&vectors["cases"]);
    assert_eq!(cases.len(), 40);
    for case in cases {
        let algorithm = checksum::Algorithm::from_id(number(&case["id"]) as u8).unwrap();
        let order = if text(&case["writer"]) == "little" { Order::Little } else { Order::Big };
        let data = input(text(&case["input"]));
        let got = checksum::compute(algorithm, order, salt.as_ref(), &data).unwrap();
        assert_eq!(got, words(&case["cksum"]), "{case}");
    }
}

#[test]
fn streams_of_other_encoders_decode_padding_or_not() {
    let vectors = load("compression");
    let mut decoded = 0;
    for case in list(&vectors["cases"]) {
        let plain = hex(&case["plain"]);
        for (key, name) in [
            ("lzjb_one_possible", "lzjb"),
            ("zle", "zle"),
            ("gzip6_zlib_stream", "gzip-6"),
            ("lz4_block_one_possible", "lz4"),
            ("zstd3_block_one_possible", "zstd"),
        ] {
            let Some(digits) = case[key].as_str() else { continue };
            let algorithm = compress::Algorithm::from_name(name).unwrap();
            for padding in [0, 7, 512] {
                let mut stored = unhex(digits);
                stored.resize(stored.len() + padding, 0);
                let mut out = vec![0x55; plain.len()];
                compress::decompress(algorithm, &stored, &mut out).unwrap();
                assert_eq!(out, plain, "{} {name}", case["name"]);
            }
            // A stream of another length than promised is corrupt. lzjb and zle have no end mark, so they
            // can only come out short.
            let longer = plain.len() + 1;
            assert!(compress::decompress(algorithm, &unhex(digits), &mut vec![0; longer]).is_err(), "{name}");
            if !matches!(name, "lzjb" | "zle") {
                let mut shorter = vec![0; plain.len() - 1];
                assert!(compress::decompress(algorithm, &unhex(digits), &mut shorter).is_err(), "{name}");
            }
            decoded += 1;
        }
        if let Some(digits) = case["zle"].as_str() {
            let mut out = vec![0; plain.len()];
            let len = compress::compress(compress::Algorithm::Zle, Level::DEFAULT, &plain, &mut out).unwrap();
            assert_eq!(out[..len], unhex(digits), "zle has one encoding");
        }
    }
    assert_eq!(decoded, 23);
}

#[test]
fn the_limit_of_worthwhile_compression_is_the_writers() {
    let vectors = load("compression");
    for case in list(&vectors["max_compressed"]) {
        let [lsize, min, gcd, max] = ["lsize", "min_alloc", "gcd_alloc", "max"].map(|key| number(&case[key]));
        assert_eq!(compress::limit(compress::Algorithm::Lz4, lsize, min, gcd), max, "{case}");
    }
    assert_eq!(compress::limit(compress::Algorithm::Zle, 4096, 4096, 4096), 3584);
}

#[test]
fn zstd_levels_have_openzfs_codes() {
    let vectors = load("compression");
    let codes = vectors["zstd_level_codes"].as_object().unwrap();
    assert_eq!(codes.len(), 40);
    for (level, code) in codes {
        let level = Level::from_zstd(level.parse().unwrap()).unwrap();
        assert_eq!(usize::from(level.code()), number(code));
    }
}

#[test]
fn blocks_of_real_pools_verify_and_decompress() {
    let vectors = load("real_blocks");
    let blocks = list(&vectors["blocks"]);
    assert_eq!(blocks.len(), 36);
    for block in blocks {
        let raw = hex(&block["raw"]);
        // A block embedded in its pointer has no checksum.
        if let Some(name) = block["checksum"].as_str() {
            let algorithm = checksum::Algorithm::from_name(name).unwrap();
            let (salt, expected) = (salt(&block["salt"]), words(&block["cksum"]));
            let verify = |data: &[u8]| {
                checksum::verify(algorithm, Order::Little, salt.as_ref(), Form::Whole, data, expected)
            };
            verify(&raw).unwrap();
            let mut damaged = raw.clone();
            damaged[raw.len() / 3] ^= 0x10;
            assert!(matches!(verify(&damaged), Err(checksum::Error::Mismatch { .. })), "{name}");
        }
        let algorithm = compress::Algorithm::from_name(text(&block["compress"])).unwrap();
        let mut plain = vec![0; number(&block["lsize"])];
        compress::decompress(algorithm, &raw, &mut plain).unwrap();
        let digest: [u8; 32] = Sha256::digest(&plain).into();
        assert_eq!(digest.as_slice(), hex(&block["plain_sha256"]), "{}", block["compress"]);
    }
}

#[test]
fn log_blocks_of_a_real_pool_verify_by_their_chain() {
    let vectors = load("zil_chain");
    let mut valid = 0;
    for block in list(&vectors["blocks"]) {
        let pointer = hex(&block["bp"]);
        let word = |at: usize| u64::from_le_bytes(pointer[at..at + 8].try_into().unwrap());
        let verifier = Checksum(std::array::from_fn(|i| word(96 + 8 * i)));
        let Some(content) = block["content"].as_str() else { continue };
        let mut content = unhex(content);
        let verdict = embedded::verify(Kind::Zilog2, &content, verifier, Form::Whole);
        assert_eq!(verdict.is_ok(), block["valid"].as_bool().unwrap());
        if verdict.is_ok() {
            assert_eq!(verdict, Ok(Order::Little));
            valid += 1;
            // Sealing the same bytes again gives the same trailer.
            let original = content.clone();
            content[144..184].fill(0);
            embedded::seal(Kind::Zilog2, &mut content, verifier, Order::Little).unwrap();
            assert_eq!(content, original);
            let next = Checksum([verifier.0[0], verifier.0[1], verifier.0[2], verifier.0[3] + 1]);
            assert!(embedded::verify(Kind::Zilog2, &content, next, Form::Whole).is_err());
        }
    }
    assert!(valid > 0);
}

fn generated(data: &[Vec<u8>], nparity: usize, size: usize) -> Vec<Vec<u8>> {
    let columns: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let mut parity = vec![vec![0; size]; nparity];
    let mut views: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
    parity::generate(&columns, &mut views).unwrap();
    parity
}

#[test]
fn parity_equals_the_reference() {
    let vectors = load("raidz");
    for case in list(&vectors["parity"]) {
        let data: Vec<Vec<u8>> = list(&case["data"]).iter().map(hex).collect();
        let expected = ["P", "Q", "R"].map(|key| hex(&case[key]));
        assert_eq!(generated(&data, 3, number(&case["size"])), expected);
    }
}

#[test]
fn stripes_of_real_pools_have_their_parity_and_survive_every_erasure() {
    let vectors = load("raidz_real");
    let (mut plain, mut expanded) = (0, 0);
    for block in list(&vectors["blocks"]) {
        let nparity = number(&block["nparity"]);
        if text(&block["kind"]) == "plain" {
            plain += 1;
            let columns: Vec<Vec<u8>> =
                list(&block["cols"]).iter().map(|column| hex(&column["bytes"])).collect();
            let (parity, data) = columns.split_at(nparity);
            assert_eq!(generated(data, nparity, parity[0].len()), parity);
            assert_fletcher4(&data.concat(), block);
            for lost in 1u32..1 << columns.len() {
                if lost.count_ones() as usize <= nparity {
                    survive(&columns, nparity, lost, block);
                }
            }
        } else {
            expanded += 1;
            for row in list(&block["rows"]) {
                let cells: Vec<Vec<u8>> = list(row).iter().map(|cell| hex(&cell["bytes"])).collect();
                let (parity, data) = cells.split_at(nparity);
                assert_eq!(generated(data, nparity, parity[0].len()), parity);
            }
        }
    }
    assert!(plain >= 3 && expanded >= 1);
}

fn survive(columns: &[Vec<u8>], nparity: usize, lost: u32, block: &Value) {
    let mut buffers: Vec<Vec<u8>> = columns.iter().map(|column| vec![0xCC; column.len()]).collect();
    let mut views: Vec<Column<'_>> = columns
        .iter()
        .zip(&mut buffers)
        .enumerate()
        .map(|(i, (column, buffer))| match lost >> i & 1 {
            1 => Column::Missing(buffer),
            _ => Column::Present(column),
        })
        .collect();
    let (parity, data) = views.split_at_mut(nparity);
    parity::reconstruct(data, parity).unwrap();
    let whole: Vec<u8> = views
        .iter()
        .skip(nparity)
        .flat_map(|column| match column {
            Column::Present(bytes) => bytes.to_vec(),
            Column::Missing(bytes) => bytes.to_vec(),
            Column::Ignored => unreachable!("none is ignored here"),
        })
        .collect();
    assert_fletcher4(&whole, block);
    for (i, (buffer, column)) in buffers.iter().zip(columns).enumerate() {
        assert!(lost >> i & 1 == 0 || buffer == column, "column {i} of lost {lost:b}");
    }
}

fn assert_fletcher4(data: &[u8], block: &Value) {
    let algorithm = checksum::Algorithm::Fletcher4;
    let expected = words(&block["fletcher4"]);
    checksum::verify(algorithm, Order::Little, None, Form::Whole, data, expected).unwrap();
}
