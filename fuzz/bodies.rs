//! What every fuzz target does with its input: one function per structure of the on-disk format.
//!
//! The same source serves two runners: the libFuzzer targets beside it, which need a nightly toolchain, and
//! `crates/ondisk/tests/mutate.rs`, which mutates real structures on a stable one. A body must return on every
//! input; it may panic only to say that two things we promise to agree do not: what was decoded and encoded
//! decodes to the same value.
//!
//! The first byte of an input chooses byte order (bit 0) and, for some structures, a variant (bits 1 to 7).

use std::hint::black_box;

use ondisk::{
    Order,
    blkptr::BlkPtr,
    bpobj, brt, ddt,
    dnode::Dnode,
    dsl,
    gang::GangHeader,
    history, indirect, l2arc, label,
    nvlist::{Encoding, NvList},
    objset::ObjsetPhys,
    sa, scan, spacemap, stream,
    uberblock::Uberblock,
    zap, zil, zpl,
};

/// A structure's name and what to do with bytes that claim to be one.
pub(crate) type Target = (&'static str, fn(&[u8]));

/// All targets. The names are those of the libFuzzer binaries and of the seeds in `tests/vectors/seeds.txt`.
pub(crate) const TARGETS: &[Target] = &[
    ("nvlist_xdr", nvlist),
    ("nvlist_native", nvlist),
    ("label", label_config),
    ("uberblock", uberblock),
    ("blkptr", blkptr),
    ("gang", gang),
    ("dnode_block", dnode_block),
    ("objset", objset),
    ("zap_micro", zap_micro),
    ("zap_fat_header", zap_fat_header),
    ("zap_fat_leaf", zap_fat_leaf),
    ("dsl_dir", dsl_dir),
    ("dsl_dataset", dsl_dataset),
    ("bpobj", bpobj_header),
    ("bpobj_entries", bpobj_entries),
    ("deadlist", deadlist),
    ("spacemap_header", spacemap_header),
    ("spacemap", spacemap_entries),
    ("zil_header", zil_header),
    ("zil_block", zil_block),
    ("zil_record", zil_record),
    ("l2arc_header", l2arc_header),
    ("l2arc_log_block", l2arc_log_block),
    ("sa", system_attributes),
    ("zpl", zpl_structures),
    ("stream", stream_record),
    ("history", history_header),
    ("history_records", history_records),
    ("scan", scan_state),
    ("indirect_header", indirect_headers),
    ("indirect_mapping", indirect_mapping),
    ("indirect_births", indirect_births),
    ("ddt", dedup_table),
    ("decompress", decompress),
    ("embedded_checksum", embedded_checksum),
];

/// Byte order, variant and the structure's bytes.
fn split(input: &[u8]) -> (Order, u8, &[u8]) {
    match input.split_first() {
        Some((first, rest)) if first & 1 == 0 => (Order::Little, first >> 1, rest),
        Some((first, rest)) => (Order::Big, first >> 1, rest),
        None => (Order::Little, 0, input),
    }
}

fn nvlist(input: &[u8]) {
    let (order, _, data) = split(input);
    let Ok((list, encoding, _)) = NvList::decode_stream(data) else { return };
    black_box((list.iter().count(), list.display(0).to_string().len()));
    if let Ok(bytes) = list.encode(encoding) {
        let again = NvList::decode(&bytes).expect("what we encode we decode");
        assert_eq!(again, list, "an nvlist changed");
    }
    // A name with a NUL inside exists in XDR only, so across encodings the list need not stay the same.
    for other in [Encoding::Xdr(order), Encoding::Native(order)] {
        black_box(list.encode(other).map(|bytes| NvList::decode(&bytes).is_ok()).ok());
    }
}

fn label_config(input: &[u8]) {
    let (_, _, data) = split(input);
    if let Ok(config) = label::LabelConfig::decode(data) {
        black_box(config.to_nvlist());
    }
    black_box(label::Trailer::read(data).ok());
}

fn uberblock(input: &[u8]) {
    let (_, _, data) = split(input);
    if let Ok(uberblock) = Uberblock::decode(data) {
        black_box(uberblock.rank());
        assert_eq!(Uberblock::decode(&uberblock.encode()), Ok(uberblock));
    }
}

fn blkptr(input: &[u8]) {
    let (order, _, data) = split(input);
    let Ok(pointer) = BlkPtr::decode(data, order) else { return };
    black_box((pointer.lsize(), pointer.psize(), pointer.asize(), pointer.fill(), pointer.crypt_params()));
    black_box(pointer.dvas().count());
    black_box(pointer.embedded().map(|embedded| embedded.payload().len()));
    assert_eq!(BlkPtr::decode(&pointer.encode(order.swapped()), order.swapped()), Ok(pointer));
}

fn gang(input: &[u8]) {
    let (_, _, data) = split(input);
    if let Ok(header) = GangHeader::decode(data) {
        black_box(header.encode(data.len()).ok());
    }
}

fn dnode_block(input: &[u8]) {
    let (order, _, data) = split(input);
    let mut at = 0;
    while let Some(rest) = data.get(at..).filter(|rest| !rest.is_empty()) {
        if let Ok(Some(dnode)) = Dnode::decode(rest, order) {
            black_box((dnode.data_block_bytes(), dnode.used_bytes(), dnode.fanout().ancestor(u64::MAX, 5)));
            if let Ok(bytes) = dnode.encode(order) {
                assert_eq!(Dnode::decode(&bytes, order), Ok(Some(dnode)));
            }
        }
        at += Dnode::slots_at(rest).max(1) * 512;
    }
}

fn objset(input: &[u8]) {
    let (order, variant, data) = split(input);
    if let Ok(objset) = ObjsetPhys::decode(data, order) {
        black_box(objset.locate(u64::from(variant) << 41));
        black_box(zil::Header::decode(&objset.zil_header, order).ok());
        if let Ok(bytes) = objset.encode(order) {
            assert_eq!(ObjsetPhys::decode(&bytes, order), Ok(objset));
        }
    }
}

fn zap_micro(input: &[u8]) {
    let (order, _, data) = split(input);
    let Ok(micro) = zap::micro::Micro::decode(data, order) else { return };
    let Ok(entries) = micro.entries().collect::<Result<Vec<_>, _>>() else { return };
    let pairs: Vec<_> = entries.iter().map(|entry| (entry.name, entry.value)).collect();
    for entry in &entries {
        assert!(micro.lookup(entry.name).is_some());
    }
    if let Ok(bytes) = zap::micro::encode(micro.hash_rule(), &pairs, data.len(), order) {
        let again = zap::micro::Micro::decode(&bytes, order).expect("what we encode we decode");
        let same = again.entries().map(|entry| entry.map(|entry| (entry.name, entry.value)).ok());
        assert!(same.eq(pairs.iter().copied().map(Some)), "a microzap changed");
    }
}

fn zap_fat_header(input: &[u8]) {
    let (order, _, data) = split(input);
    let Ok(header) = zap::fat::Header::decode(data, order) else { return };
    for hash in [0, u64::MAX, header.salt] {
        if let Some(zap::fat::Slot::Embedded { byte }) = header.locate(hash) {
            black_box(zap::fat::read_slot(data, byte, order).ok());
        }
    }
    black_box(header.slot(u64::MAX));
    if header.table_shift <= 16 {
        let mut table = zap::fat::Table::new(header.table_shift, 1).expect("a small table");
        let block = header.encode(&table, order).expect("a header that decoded has an encoding");
        assert_eq!(zap::fat::Header::decode(&block, order), Ok(header));
        table = table.double().expect("a small table doubles");
        black_box(table.encode_external(header.block_shift, order));
    }
}

fn zap_fat_leaf(input: &[u8]) {
    let (order, variant, data) = split(input);
    let shape = if variant & 1 == 0 { zap::fat::KeyShape::Names } else { zap::fat::KeyShape::Words };
    let Ok(leaf) = zap::fat::Leaf::decode(data, shape, order) else { return };
    black_box(leaf.lookup(u64::MAX, "name".into()).ok());
    black_box(leaf.table_span(14));
    let mut total = 0;
    for entry in leaf.entries().map_while(Result::ok) {
        black_box(leaf.lookup(entry.hash, entry.key.as_key()).ok());
        total += entry.value.be_bytes().len();
    }
    assert!(total <= data.len(), "values are larger than the leaf");
    let Ok(mut edit) = zap::fat::LeafEdit::from_leaf(&leaf) else { return };
    let block = edit.encode(order.swapped());
    let again = zap::fat::Leaf::decode(&block, shape, order.swapped()).expect("what we encode we decode");
    let (mut before, mut after): (Vec<_>, Vec<_>) =
        (edit.entries().to_vec(), again.entries().map(|entry| entry.expect("a fresh layout")).collect());
    before.sort_by(|a, b| (a.hash, a.cd, &a.key).cmp(&(b.hash, b.cd, &b.key)));
    after.sort_by(|a, b| (a.hash, a.cd, &a.key).cmp(&(b.hash, b.cd, &b.key)));
    assert_eq!(before, after, "a leaf changed");
    if let Some(sibling) = edit.split() {
        assert_eq!(edit.entries().len() + sibling.entries().len(), before.len(), "a split lost entries");
        black_box((edit.encode(order), sibling.encode(order)));
    }
}

fn dsl_dir(input: &[u8]) {
    let (order, _, data) = split(input);
    if let Ok(dir) = dsl::DirPhys::decode(data, order) {
        assert_eq!(dsl::DirPhys::decode(&dir.encode(order), order), Ok(dir));
    }
}

fn dsl_dataset(input: &[u8]) {
    let (order, _, data) = split(input);
    if let Ok(dataset) = dsl::DatasetPhys::decode(data, order) {
        assert_eq!(dsl::DatasetPhys::decode(&dataset.encode(order), order), Ok(dataset));
    }
    let words: Vec<u64> = order.words(data).collect();
    black_box(dsl::BookmarkPhys::from_words(&words).ok());
}

fn bpobj_header(input: &[u8]) {
    let (order, _, data) = split(input);
    if let Ok(header) = bpobj::BpobjPhys::decode(data, order) {
        black_box(header.encode(data.len(), order).ok());
    }
    black_box(bpobj::BptreePhys::decode(data, order).ok());
}

fn bpobj_entries(input: &[u8]) {
    let (order, _, data) = split(input);
    for index in 0..=data.len() / BlkPtr::BYTES {
        black_box(bpobj::BpobjEntry::decode_at(data, index, order).ok());
    }
    black_box(bpobj::BptreeEntry::decode(data, order).ok());
}

fn deadlist(input: &[u8]) {
    let (order, _, data) = split(input);
    if let Ok(deadlist) = bpobj::DeadlistPhys::decode(data, order) {
        black_box(deadlist.encode(order));
    }
}

fn spacemap_header(input: &[u8]) {
    let (order, _, data) = split(input);
    if let Ok(header) = spacemap::Header::decode(data, order) {
        assert_eq!(spacemap::Header::decode(&header.encode(order), order), Ok(header));
    }
}

fn spacemap_entries(input: &[u8]) {
    let (order, variant, data) = split(input);
    let mut encoder = spacemap::Encoder::new(0, 64, order).expect("a legal block");
    let mut units = 0u64;
    let mut encoded = 0u64;
    for entry in spacemap::entries(data, order).map_while(Result::ok) {
        let spacemap::MapEntry::Segment(segment) = entry else { continue };
        black_box(segment.range(variant.into()));
        let Some(end) = segment.offset.checked_add(segment.run) else { continue };
        let encoding = match segment.vdev {
            Some(vdev) => spacemap::Encoding::Log { vdev },
            None => spacemap::Encoding::Shortest,
        };
        if encoder.segment(segment.kind, segment.offset..end, encoding).is_ok() {
            units = units.wrapping_add(segment.run);
        }
    }
    for entry in spacemap::entries(&encoder.finish(), order) {
        if let spacemap::MapEntry::Segment(segment) = entry.expect("what we encode we decode") {
            encoded = encoded.wrapping_add(segment.run);
        }
    }
    assert_eq!(units, encoded, "a space map changed");
}

fn zil_header(input: &[u8]) {
    let (order, variant, data) = split(input);
    if let Ok(header) = zil::Header::decode(data, order) {
        black_box((header.admits_block(variant.into()), header.admits_record(variant.into())));
        assert_eq!(zil::Header::decode(&header.encode(order), order), Ok(header));
    }
}

fn zil_block(input: &[u8]) {
    let (order, variant, data) = split(input);
    let format = if variant & 1 == 0 { zil::Format::Slim } else { zil::Format::Old };
    let Ok(block) = zil::Block::decode(data, format, order) else { return };
    black_box(block.continues(zil::ChainWords::from_words([u64::MAX; 4])));
    records(block.records(), order);
}

fn zil_record(input: &[u8]) {
    let (order, _, data) = split(input);
    records(zil::Records::new(data, order), order);
}

fn records(records: zil::Records<'_>, order: Order) {
    for record in records.map_while(Result::ok) {
        black_box(record.body.created_name(order));
        black_box(record.body.cloned_blocks(order).filter(Result::is_ok).count());
        if let Ok(bytes) = record.encode(order.swapped()) {
            // What follows a fixed part is bytes to us, so only order-free records compare across orders.
            black_box(zil::Record::decode(&bytes, order.swapped()).ok());
        }
        if let Ok(bytes) = record.encode(order) {
            let again = zil::Record::decode(&bytes, order).expect("what we encode we decode");
            assert_eq!(again.body.tx(), record.body.tx());
            assert_eq!((again.txg, again.sequence), (record.txg, record.sequence));
            assert_eq!(again.encode(order), Ok(bytes), "a record changed");
        }
    }
}

fn l2arc_header(input: &[u8]) {
    let (_, _, data) = split(input);
    let Ok((header, order)) = l2arc::Header::decode(data) else { return };
    for pointer in &header.newest {
        black_box((pointer.is_intact(&header), pointer.compression_id(), pointer.checksum_id()));
    }
    assert_eq!(l2arc::Header::decode(&header.encode(512, order)), Ok((header, order)));
}

fn l2arc_log_block(input: &[u8]) {
    let (order, _, data) = split(input);
    let Ok(block) = l2arc::LogBlock::decode(data) else { return };
    let entries: Vec<_> = block.entries(u64::MAX).map_while(Result::ok).collect();
    let bytes = l2arc::encode_log_block(&block.previous, &entries, order).expect("entries that decoded");
    let again = l2arc::LogBlock::decode(&bytes).expect("what we encode we decode");
    assert!(again.entries(entries.len() as u64).eq(entries.iter().copied().map(Ok)), "a log block changed");
}

fn system_attributes(input: &[u8]) {
    let (order, variant, data) = split(input);
    let Ok(image) = sa::Image::decode(data, order) else { return };
    let (registry, layouts) = attribute_tables(image.layout());
    if let Ok(file) = zpl::Attributes::from_sa(&[image, image], &layouts, &registry) {
        black_box(file.kind());
        if let Some(xattrs) = file.dxattr {
            black_box(NvList::decode(xattrs).ok());
        }
        if let Some(acl) = file.acl {
            black_box(zpl::aces(acl, order).filter(Result::is_ok).count());
        }
    }
    let layout = layouts.get(image.layout()).unwrap_or_default();
    black_box(image.find(variant.into(), layout, &registry).ok());
    if let Ok(values) = image.attributes(layout, &registry).collect::<Result<Vec<_>, _>>()
        && let Ok(bytes) = sa::encode(image.layout(), &values, &registry, order)
    {
        let again = sa::Image::decode(&bytes, order).expect("what we encode we decode");
        assert!(again.attributes(layout, &registry).eq(values.iter().copied().map(Ok)), "attributes changed");
    }
}

/// The registry of a new file system, and layouts as one has them; `layout` always exists.
fn attribute_tables(layout: u16) -> (sa::Registry, sa::Layouts) {
    use sa::Class::{Acl, Bytes, U64};
    let attributes = [
        ("ZPL_ATIME", 16, U64),
        ("ZPL_MTIME", 16, U64),
        ("ZPL_CTIME", 16, U64),
        ("ZPL_CRTIME", 16, U64),
        ("ZPL_GEN", 8, U64),
        ("ZPL_MODE", 8, U64),
        ("ZPL_SIZE", 8, U64),
        ("ZPL_PARENT", 8, U64),
        ("ZPL_LINKS", 8, U64),
        ("ZPL_XATTR", 8, U64),
        ("ZPL_RDEV", 8, U64),
        ("ZPL_FLAGS", 8, U64),
        ("ZPL_UID", 8, U64),
        ("ZPL_GID", 8, U64),
        ("ZPL_PAD", 32, U64),
        ("ZPL_ZNODE_ACL", 88, Bytes),
        ("ZPL_DACL_COUNT", 8, U64),
        ("ZPL_SYMLINK", 0, Bytes),
        ("ZPL_SCANSTAMP", 32, Bytes),
        ("ZPL_DACL_ACES", 0, Acl),
        ("ZPL_DXATTR", 0, Bytes),
        ("ZPL_PROJID", 8, U64),
    ];
    let mut registry = sa::Registry::default();
    for (number, (name, length, class)) in (0u16..).zip(attributes) {
        let length = Some(length).filter(|length| *length != 0);
        let word = sa::Attribute { number, class, length }.to_u64();
        registry.insert(name.as_bytes(), word).expect("numbers differ");
    }
    let mut list = vec![5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8];
    match layout {
        3 => list.extend([21, 16, 19]),
        6 => list.extend([16, 19, 17]),
        7 => list.extend([21, 16, 19, 20]),
        8 => list = vec![20],
        _ => list.extend([16, 19]),
    }
    let mut layouts = sa::Layouts::default();
    layouts.insert(layout.to_string().as_bytes(), list).expect("a layout number");
    (registry, layouts)
}

fn zpl_structures(input: &[u8]) {
    let (order, _, data) = split(input);
    black_box(zpl::Attributes::from_znode(data, order).ok());
    black_box(zpl::aces(data, order).filter(Result::is_ok).count());
    for word in order.words(data) {
        let entry = zpl::DirEntry::from_u64(word);
        assert_eq!(zpl::DirEntry::from_u64(entry.to_u64()), entry);
        black_box(sa::Attribute::from_u64(word).ok());
    }
}

fn stream_record(input: &[u8]) {
    let (order, _, data) = split(input);
    black_box(stream::order_of(data).ok());
    let Some(frame) = data.first_chunk() else { return };
    black_box(stream::stored_checksum(frame, order));
    if let Ok(record) = stream::Record::decode(frame, order) {
        black_box(record.payload_bytes());
        assert_eq!(stream::Record::decode(&record.encode(order), order), Ok(record));
    }
}

fn history_header(input: &[u8]) {
    let (order, variant, data) = split(input);
    if let Ok(header) = history::HistoryPhys::decode(data, order) {
        black_box(header.physical(u64::from(variant) << 10));
        black_box(header.extents(header.bof, header.eof.wrapping_sub(header.bof)));
        black_box(header.encode(order));
    }
}

fn history_records(input: &[u8]) {
    let (_, _, data) = split(input);
    black_box(history::records(data).filter(Result::is_ok).count());
}

fn scan_state(input: &[u8]) {
    let (order, _, data) = split(input);
    let words: Vec<u64> = order.words(data).collect();
    if let Ok(state) = scan::ScanPhys::from_words(&words) {
        black_box((state.func(), state.state(), state.bytes(), state.bookmark()));
    }
}

fn indirect_headers(input: &[u8]) {
    let (order, _, data) = split(input);
    black_box(indirect::Header::decode(data, order).ok());
    black_box(indirect::birth_count(data, order).ok());
    black_box(brt::VdevTable::decode(data, order).ok());
}

fn indirect_mapping(input: &[u8]) {
    let (order, variant, data) = split(input);
    let mapping = indirect::Mapping::new(data, order);
    let start = u64::from(variant) << 17;
    let pieces = mapping.split(start..start + (1 << 20));
    let mapped: u64 = pieces.iter().flatten().map(|piece| piece.length).sum();
    assert!(pieces.is_err() || mapped == 1 << 20, "pieces do not cover the read");
    for entry in mapping.entries().map_while(Result::ok) {
        black_box(mapping.split(entry.source_range()).ok());
        black_box(entry.encode(order));
    }
}

fn indirect_births(input: &[u8]) {
    let (order, _, data) = split(input);
    black_box(indirect::births(data, order).count());
    black_box(indirect::obsolete_counts(data, order).map(u64::from).sum::<u64>());
}

fn dedup_table(input: &[u8]) {
    let (order, _, data) = split(input);
    let words: Vec<u64> = order.words(data).collect();
    black_box(ddt::Key::from_words(&words).ok());
    if let Ok(stored) = ddt::Stored::decode(data)
        && let Ok(phys) = ddt::Phys::decode(stored.payload, stored.order)
    {
        black_box(phys.variants().len());
    }
}

/// Most bytes a decompressor is asked for here: the lsize comes from a block pointer, which bounds it.
const LSIZE_MAX: usize = 128 << 10;

fn decompress(input: &[u8]) {
    let (_, _, data) = split(input);
    let Some(([id, lsize @ ..], stored)) = data.split_first_chunk::<5>() else { return };
    let Some(algorithm) = codec::compress::Algorithm::from_id(*id) else { return };
    let mut plain = vec![0; (u32::from_le_bytes(*lsize) as usize).min(LSIZE_MAX)];
    black_box(codec::compress::decompress(algorithm, stored, &mut plain).ok());
}

fn embedded_checksum(input: &[u8]) {
    use codec::checksum::{Checksum, Form, embedded};
    let (order, variant, data) = split(input);
    let order = if order == Order::Little { codec::Order::Little } else { codec::Order::Big };
    let kinds =
        [embedded::Kind::Label, embedded::Kind::GangHeader, embedded::Kind::Zilog, embedded::Kind::Zilog2];
    let kind = kinds[usize::from(variant) % kinds.len()];
    let verifier = Checksum([1, 2, 3, 4]);
    black_box(embedded::verify(kind, data, verifier, Form::Whole).ok());
    let mut region = data.to_vec();
    if embedded::seal(kind, &mut region, verifier, order).is_ok() {
        assert_eq!(
            embedded::verify(kind, &region, verifier, Form::Whole).ok(),
            Some(order),
            "a seal does not verify"
        );
    }
}
