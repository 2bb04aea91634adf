//! Commands and their parameter lists, byte by byte as hosts send them.

use scsi::LogicalUnit;

pub(crate) const ZEROES: [u8; 512] = [0; 512];
pub(crate) const PATTERN: [u8; 512] = [0x5a; 512];

/// WRITE(10) of the first block with FUA.
pub(crate) const STABLE_WRITE: [u8; 10] = [0x2a, 0x08, 0, 0, 0, 0, 0, 0, 1, 0];

/// WRITE(10) of this block.
pub(crate) fn write(lba: u8) -> [u8; 10] {
    [0x2a, 0, 0, 0, 0, lba, 0, 0, 1, 0]
}

/// UNMAP(10) of these: (first block, blocks).
pub(crate) fn unmap(ranges: &[(u64, u32)]) -> ([u8; 10], Vec<u8>) {
    let len = ranges.len() * 16;
    let mut list = vec![0, len as u8 + 6, 0, len as u8, 0, 0, 0, 0];
    for (lba, blocks) in ranges {
        list.extend(lba.to_be_bytes());
        list.extend(blocks.to_be_bytes());
        list.extend([0; 4]);
    }
    ([0x42, 0, 0, 0, 0, 0, 0, 0, list.len() as u8, 0], list)
}

pub(crate) fn by_naa(unit: &LogicalUnit) -> [u8; 32] {
    let mut d = [0; 32];
    (d[0], d[4], d[5], d[7]) = (0xe4, 1, 3, 16);
    d[8..24].copy_from_slice(&unit.naa());
    d[30] = 2;
    d
}

/// (from, to, blocks, source LBA, destination LBA)
pub(crate) fn xcopy(
    list_id: u8,
    targets: &[[u8; 32]],
    segments: &[(u16, u16, u16, u64, u64)],
) -> (Vec<u8>, Vec<u8>) {
    let mut list = vec![list_id, 0];
    list.extend((targets.len() as u16 * 32).to_be_bytes());
    list.extend([0; 4]);
    list.extend((segments.len() as u32 * 28).to_be_bytes());
    list.extend([0; 4]);
    list.extend(targets.concat());
    for (from, to, blocks, source, destination) in segments {
        list.extend([2, 0, 0, 24]);
        list.extend(from.to_be_bytes());
        list.extend(to.to_be_bytes());
        list.extend([0, 0]);
        list.extend(blocks.to_be_bytes());
        list.extend(source.to_be_bytes());
        list.extend(destination.to_be_bytes());
    }
    let mut cdb = vec![0x83, 0];
    cdb.resize(10, 0);
    cdb.extend((list.len() as u32).to_be_bytes());
    (cdb, list)
}

/// EXTENDED COPY within the disk: a block to the one behind.
pub(crate) fn copy(unit: &LogicalUnit, id: Option<u8>) -> (Vec<u8>, Vec<u8>) {
    let (cdb, mut list) = xcopy(id.unwrap_or(0), &[by_naa(unit)], &[(0, 0, 1, 0, 1)]);
    if id.is_none() {
        list[1] = 0x18; // 11b: the list identifier means nothing
    }
    (cdb, list)
}

pub(crate) fn populate(list_id: u32, ranges: &[(u64, u32)]) -> (Vec<u8>, Vec<u8>) {
    token_command(0x10, list_id, vec![0; 14], ranges)
}

pub(crate) fn use_token(
    list_id: u32,
    offset: u64,
    token: &[u8],
    ranges: &[(u64, u32)],
) -> (Vec<u8>, Vec<u8>) {
    let mut list = vec![0; 8];
    list.extend(offset.to_be_bytes());
    list.extend(token);
    list.extend([0; 6]);
    token_command(0x11, list_id, list, ranges)
}

fn token_command(action: u8, list_id: u32, mut list: Vec<u8>, ranges: &[(u64, u32)]) -> (Vec<u8>, Vec<u8>) {
    list.extend((ranges.len() as u16 * 16).to_be_bytes());
    for (lba, blocks) in ranges {
        list.extend(lba.to_be_bytes());
        list.extend(blocks.to_be_bytes());
        list.extend([0; 4]);
    }
    let mut cdb = vec![0x83, action, 0, 0, 0, 0];
    cdb.extend(list_id.to_be_bytes());
    cdb.extend((list.len() as u32).to_be_bytes());
    (cdb, list)
}

pub(crate) fn receive(action: u8, list_id: u32) -> Vec<u8> {
    let mut cdb = vec![0x84, action];
    cdb.extend(list_id.to_be_bytes());
    cdb.extend([0; 4]);
    cdb.extend(4096_u32.to_be_bytes());
    cdb
}

pub(crate) fn register(action: u8, key: u64, service_key: u64, flags: u8) -> (Vec<u8>, Vec<u8>) {
    let mut list = key.to_be_bytes().to_vec();
    list.extend(service_key.to_be_bytes());
    list.extend([0, 0, 0, 0, flags, 0, 0, 0]);
    (vec![0x5f, action, 5, 0, 0, 0, 0, 0, 24], list)
}
