//! What is encoded decodes to itself, in both byte orders, for anything a writer may write.

use std::collections::BTreeMap;

use ondisk::{
    Order, Writer,
    blkptr::BlkPtr,
    sa, spacemap,
    zap::{HashRule, Key, OwnedKey, Value, fat, micro},
    zil,
};
use proptest::{collection::vec, prelude::*};

fn order() -> impl Strategy<Value = Order> {
    prop_oneof![Just(Order::Little), Just(Order::Big)]
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u64>().prop_map(Value::from_u64),
        vec(any::<u64>(), 0..20).prop_map(|words| Value::from_u64s(&words)),
        vec(any::<u16>(), 0..50).prop_map(|words| Value::from_u16s(&words)),
        "[ -~]{0,120}".prop_map(|text| Value::from_text(&text)),
    ]
}

/// A log block with these records. Nothing writes the old form any more.
fn log_block(records: &[u8], next: &BlkPtr, format: zil::Format, order: Order) -> Vec<u8> {
    const BYTES: usize = 8192;
    match format {
        zil::Format::Old => {
            let mut writer = Writer::with_capacity(BYTES, order);
            writer.bytes(records);
            writer.pad_to(BYTES - zil::CHAIN_BYTES + 8);
            writer.bytes(&next.encode(order));
            writer.words(&[records.len() as u64, zil::CHECKSUM_MAGIC]);
            writer.pad_to(BYTES);
            writer.finish()
        }
        zil::Format::Slim => {
            let used = zil::CHAIN_BYTES + records.len();
            let mut block = vec![0xa5; BYTES];
            block[zil::CHAIN_BYTES..used].copy_from_slice(records);
            let hashed = zil::write_chain(&mut block, next, used, order).unwrap();
            assert_eq!(hashed, used.next_multiple_of(zil::BLOCK_UNIT));
            assert!(block[used..hashed].iter().all(|byte| *byte == 0), "what is hashed is told");
            block
        }
    }
}

#[test]
fn a_log_block_that_uses_more_or_less_than_it_can_is_refused() {
    for used in [0, zil::CHAIN_BYTES - 1, 4097, usize::MAX] {
        let mut block = [0xa5; zil::BLOCK_UNIT];
        assert!(zil::write_chain(&mut block, &BlkPtr::EMPTY, used, Order::Little).is_err(), "{used}");
        assert_eq!(block, [0xa5; zil::BLOCK_UNIT], "{used}");
    }
}

fn timestamp() -> impl Strategy<Value = zil::Timestamp> {
    any::<(u64, u64)>().prop_map(|(seconds, nanoseconds)| zil::Timestamp { seconds, nanoseconds })
}

proptest! {
    /// A writer that copies the data of a write itself gets the bytes that a record with the data would.
    #[test]
    fn the_head_of_a_logged_write_is_that_of_its_record(
        (txg, sequence, offset) in any::<(u64, u64, u64)>(),
        data in vec(any::<u8>(), 1..100),
    ) {
        let length = data.len() as u64;
        let body = zil::Body::Write { object: 1, offset, length, data: zil::WriteData::Inline(&data) };
        let record = zil::Record { case_insensitive: false, txg, sequence, body };
        let expected = record.encode(Order::Little).unwrap();
        let mut built = zil::write_head(expected.len() as u64, txg, sequence, 1, offset, length).to_vec();
        built.extend(&data);
        built.resize(expected.len(), 0);
        prop_assert_eq!(built, expected);
    }

    /// A whole fat ZAP kept the way the writer will keep it: every entry is found through table and leaf, however
    /// many splits and doublings it took.
    #[test]
    fn a_growing_fat_zap_keeps_every_entry(
        entries in proptest::collection::btree_map("[a-zA-Z0-9._@-]{1,60}", value(), 1..300),
        salt in any::<u64>(),
        order in order(),
    ) {
        let shift = 12;
        let mut header = fat::Header::new(shift, salt | 1, 0, 0).unwrap();
        let mut table = fat::Table::new(header.table_shift, 1).unwrap();
        let mut leaves = BTreeMap::from([(1u64, fat::LeafEdit::new(shift, fat::KeyShape::Names, 0).unwrap())]);
        let rule = header.hash_rule();
        for (name, value) in &entries {
            let hash = rule.hash(name.as_str().into()).unwrap();
            loop {
                let block = table.leaf_of(hash).unwrap();
                let leaf = leaves.get_mut(&block).unwrap();
                match leaf.insert(OwnedKey::Name(name.clone().into_bytes()), hash, value.clone()) {
                    Ok(_) => break,
                    Err(fat::InsertError::Full) => {}
                    Err(other) => return Err(TestCaseError::fail(format!("{name}: {other}"))),
                }
                if u32::from(leaf.prefix_len()) == table.shift() {
                    table = table.double().unwrap();
                }
                let sibling = leaf.split().unwrap();
                prop_assert!(table.redirect(&sibling, header.free_block));
                leaves.insert(header.free_block, sibling);
                header.free_block += 1;
                header.leaves += 1;
            }
            header.entries += 1;
        }
        header.table_shift = table.shift();
        if header.table_shift > shift - 4 {
            header.table_block = header.free_block;
            header.table_blocks = 1 << (header.table_shift + 3 - shift);
        }

        // Encode, then read it the way a pool is read.
        let first = header.encode(&table, order).unwrap();
        let external = table.encode_external(shift, order);
        let blocks: BTreeMap<u64, Vec<u8>> =
            leaves.iter().map(|(block, leaf)| (*block, leaf.encode(order))).collect();
        let read = fat::Header::decode(&first, order).unwrap();
        prop_assert_eq!(read, header);
        let mut counted = 0;
        for block in blocks.values() {
            let leaf = fat::Leaf::decode(block, read.key_shape(), order).unwrap();
            prop_assert!(leaf.table_span(read.table_shift).is_some());
            counted += leaf.entries().map(Result::unwrap).count();
        }
        prop_assert_eq!(counted, entries.len());
        for (name, value) in &entries {
            let hash = read.hash_rule().hash(name.as_str().into()).unwrap();
            let block = match read.locate(hash).unwrap() {
                fat::Slot::Embedded { byte } => fat::read_slot(&first, byte, order),
                fat::Slot::External { block, byte } => {
                    fat::read_slot(&external[(block - read.table_block) as usize], byte, order)
                }
            };
            let leaf = fat::Leaf::decode(&blocks[&block.unwrap()], read.key_shape(), order).unwrap();
            prop_assert!(leaf.covers(hash));
            let found = leaf.lookup(hash, name.as_str().into()).unwrap();
            prop_assert_eq!(found.as_ref(), Some(value));
        }
    }

    #[test]
    fn a_leaf_gives_back_what_was_not_removed(
        words in proptest::collection::btree_set(any::<[u64; 2]>(), 1..40),
        order in order(),
    ) {
        let rule = HashRule { wide: true, ..HashRule::plain(7, 0) };
        let mut leaf = fat::LeafEdit::new(14, fat::KeyShape::Words, 0).unwrap();
        let free = leaf.chunks_free();
        for (index, key) in words.iter().enumerate() {
            let hash = rule.hash(Key::Words(key)).unwrap();
            leaf.insert(OwnedKey::Words(key.to_vec()), hash, Value::from_u64(index as u64)).unwrap();
            let again = leaf.insert(OwnedKey::Words(key.to_vec()), hash, Value::from_u64(0));
            prop_assert_eq!(again, Err(fat::InsertError::Exists));
        }
        for key in words.iter().step_by(2) {
            prop_assert!(leaf.remove(rule.hash(Key::Words(key)).unwrap(), Key::Words(key)).is_some());
        }
        let block = leaf.encode(order);
        let read = fat::Leaf::decode(&block, fat::KeyShape::Words, order).unwrap();
        for (index, key) in words.iter().enumerate() {
            let found = read.lookup(rule.hash(Key::Words(key)).unwrap(), Key::Words(key)).unwrap();
            prop_assert_eq!(found.and_then(|value| value.as_u64()), (index % 2 == 1).then_some(index as u64));
        }
        for key in words.iter().skip(1).step_by(2) {
            leaf.remove(rule.hash(Key::Words(key)).unwrap(), Key::Words(key));
        }
        prop_assert_eq!(leaf.chunks_free(), free);
    }

    #[test]
    fn a_microzap_gives_back_its_entries(
        entries in proptest::collection::btree_map("[!-~]{1,49}", any::<u64>(), 0..30),
        order in order(),
    ) {
        let pairs: Vec<_> = entries.iter().map(|(name, value)| (name.as_bytes(), *value)).collect();
        let block = micro::encode(HashRule::plain(3, 2), &pairs, 2048, order).unwrap();
        let read = micro::Micro::decode(&block, order).unwrap();
        let back: Vec<_> = read.entries().map(Result::unwrap).map(|entry| (entry.name, entry.value)).collect();
        prop_assert_eq!(&back, &pairs);
        for (name, value) in &pairs {
            prop_assert_eq!(read.lookup(name), Some(*value));
        }
    }

    #[test]
    fn a_space_map_covers_the_ranges_it_was_given(
        ranges in vec((0u64..1 << 62, 1u64..1 << 40, any::<bool>(), 0u8..3), 1..30),
        start in 0u64..512,
        order in order(),
    ) {
        let block_bytes = 512;
        let mut encoder = spacemap::Encoder::new(start * 8, block_bytes, order).unwrap();
        let mut expected = Vec::new();
        for (offset, run, free, how) in ranges {
            let kind = if free { spacemap::Kind::Free } else { spacemap::Kind::Alloc };
            let (offset, run, encoding) = match how {
                0 => (offset >> 15, run >> 20, spacemap::Encoding::OneWord),
                1 => (offset, run, spacemap::Encoding::Shortest),
                _ => (offset, run, spacemap::Encoding::Log { vdev: 5 }),
            };
            encoder.debug(kind, 3, 99);
            encoder.segment(kind, offset..offset + run, encoding).unwrap();
            expected.extend((run > 0).then_some((kind, offset, offset + run)));
        }
        // Decoded block by block, as a reader takes it; neighbouring pieces of one range are put together again.
        let mut object = vec![0u8; start as usize * 8];
        object.extend(encoder.finish());
        let mut found: Vec<(spacemap::Kind, u64, u64)> = Vec::new();
        let mut fresh = true;
        for (index, block) in object.chunks(block_bytes as usize).enumerate() {
            let skip = (start as usize * 8).saturating_sub(index * block_bytes as usize).min(block.len());
            for entry in spacemap::entries(&block[skip..], order) {
                match entry.unwrap() {
                    spacemap::MapEntry::Segment(segment) => {
                        let end = segment.offset + segment.run;
                        match found.last_mut() {
                            Some(last) if !fresh && last.2 == segment.offset => last.2 = end,
                            _ => found.push((segment.kind, segment.offset, end)),
                        }
                        fresh = false;
                    }
                    spacemap::MapEntry::Debug { pass, txg, .. } => {
                        prop_assert_eq!((pass, txg), (3, 99));
                        fresh = true;
                    }
                    spacemap::MapEntry::Padding => {}
                }
            }
        }
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn log_records_survive_a_block(
        writes in vec((any::<[u64; 2]>(), vec(any::<u8>(), 1..200)), 0..8),
        names in ("[a-z]{1,30}", "[a-z]{1,30}"),
        times in (timestamp(), timestamp()),
        old in any::<bool>(),
        order in order(),
    ) {
        let hole = BlkPtr::EMPTY;
        let (from, to) = (names.0.as_bytes(), names.1.as_bytes());
        let set = zil::SetAttr {
            object: 5, mask: 1, mode: 0o644, uid: 0, gid: 0, size: 7, atime: times.0, mtime: times.1, rest: &[],
        };
        let mut bodies = vec![
            zil::Body::Write { object: 1, offset: 4096, length: 512, data: zil::WriteData::Indirect(hole) },
            zil::Body::Truncate { object: 1, offset: 0, length: 1 << 20 },
            zil::Body::Rename { exchange: false, from_dir: 3, to_dir: 4, from, to },
            zil::Body::Rename { exchange: true, from_dir: 3, to_dir: 4, from, to },
            zil::Body::Remove { rmdir: true, dir: 3, name: from },
            zil::Body::Link { dir: 3, object: 9, name: to },
            zil::Body::Write2 { object: 1, offset: 0, length: 3 },
            zil::Body::SetAttr(set),
        ];
        for ([object, offset], data) in &writes {
            let (length, data) = (data.len() as u64, zil::WriteData::Inline(data));
            bodies.push(zil::Body::Write { object: *object, offset: *offset, length, data });
        }
        let records: Vec<_> = (1u64..)
            .zip(bodies)
            .map(|(sequence, body)| zil::Record { case_insensitive: sequence % 2 == 0, txg: 77, sequence, body })
            .collect();
        let bytes: Vec<u8> = records.iter().flat_map(|record| record.encode(order).unwrap()).collect();
        let format = if old { zil::Format::Old } else { zil::Format::Slim };
        let block = log_block(&bytes, &hole, format, order);
        let read = zil::Block::decode(&block, format, order).unwrap();
        let back: Vec<_> = read.records().map(Result::unwrap).collect();
        prop_assert_eq!(back, records);
    }

    #[test]
    fn attributes_survive_an_image(
        mode in any::<u64>(),
        target in vec(any::<u8>(), 0..200),
        xattrs in vec(any::<u8>(), 0..200),
        order in order(),
    ) {
        let mut registry = sa::Registry::default();
        for (number, length) in [(5, Some(8)), (17, None), (20, None)] {
            let attribute = sa::Attribute { number, class: sa::Class::Bytes, length };
            registry.insert(format!("A{number}").as_bytes(), attribute.to_u64()).unwrap();
        }
        let mode = order.put_u64(mode);
        let values: [(u16, &[u8]); 3] = [(17, &target), (5, &mode), (20, &xattrs)];
        let bytes = sa::encode(9, &values, &registry, order).unwrap();
        let image = sa::Image::decode(&bytes, order).unwrap();
        let back: Vec<_> = image.attributes(&[17, 5, 20], &registry).map(Result::unwrap).collect();
        prop_assert_eq!(back, values);
    }
}
