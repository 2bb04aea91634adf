//! Bytes of real pools against what OpenZFS's own tools and our reference reader say of them.

use ondisk::{
    Order, ddt, indirect, l2arc, sa, spacemap, stream,
    zap::{self, Key, fat},
    zil, zpl,
};
use serde_json::Value;

fn structures(name: &str) -> Vec<Vec<u8>> {
    let all = crate::seeds::real_structures();
    let found: Vec<_> = all.into_iter().filter(|(known, _)| known == name).map(|(_, bytes)| bytes).collect();
    assert!(!found.is_empty(), "no {name} among the seeds");
    found
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn hex(value: &Value) -> Vec<u8> {
    let text = value.as_str().unwrap();
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

const LITTLE: Order = Order::Little;

#[test]
fn every_entry_of_a_real_fat_zap_is_found_by_its_hash() {
    let (headers, leaves) = (structures("zap_fat_header"), structures("zap_fat_leaf"));
    let mut found = 0;
    for block in &leaves {
        // Which header this leaf belongs to shows in its hashes: exactly one salt fits.
        let fits = headers.iter().map(|header| fat::Header::decode(header, LITTLE).unwrap()).any(|header| {
            let leaf = fat::Leaf::decode(block, header.key_shape(), LITTLE).unwrap();
            let Ok(entries) = leaf.entries().collect::<Result<Vec<_>, _>>() else { return false };
            let rule = header.hash_rule();
            let right = entries.iter().all(|entry| rule.hash(entry.key.as_key()) == Some(entry.hash));
            if right {
                for entry in &entries {
                    let value = leaf.lookup(entry.hash, entry.key.as_key()).unwrap();
                    assert_eq!(value.as_ref(), Some(&entry.value), "{:?}", entry.key);
                }
                assert_eq!(leaf.lookup(entries[0].hash, Key::Name(b"no such name")), Ok(None));
                let used: usize = entries.iter().map(fat::Entry::chunks).sum();
                let edit = fat::LeafEdit::from_leaf(&leaf).unwrap();
                assert_eq!(edit.chunks_free(), usize::from(leaf.free_count()), "{used} chunks in use");
                found += entries.len();
            }
            right
        });
        assert!(fits, "no header hashes this leaf's entries to where they are");
    }
    assert!(found > 100, "{found} entries");
}

#[test]
fn microzaps_of_real_pools_encode_to_their_entries() {
    for block in structures("zap_micro") {
        let micro = zap::micro::Micro::decode(&block, LITTLE).unwrap();
        let entries: Vec<_> = micro.entries().map(Result::unwrap).collect();
        let pairs: Vec<_> = entries.iter().map(|entry| (entry.name, entry.value)).collect();
        for order in [Order::Little, Order::Big] {
            let bytes = zap::micro::encode(micro.hash_rule(), &pairs, block.len(), order).unwrap();
            let again = zap::micro::Micro::decode(&bytes, order).unwrap();
            assert!(again.entries().map(Result::unwrap).eq(entries.iter().copied()));
        }
    }
}

#[test]
fn a_dedup_entry_of_a_real_table_names_a_block() {
    let leaf = structures("zap_fat_leaf")
        .into_iter()
        .find_map(|block| {
            let leaf = fat::Leaf::decode(&block, fat::KeyShape::Words, LITTLE).ok()?;
            let entry = leaf.entries().next()?.ok()?;
            matches!(&entry.key, zap::OwnedKey::Words(words) if words.len() == 5).then_some(entry)
        })
        .expect("the leaf of a dedup table");
    let zap::OwnedKey::Words(words) = &leaf.key else { unreachable!() };
    let key = ddt::Key::from_words(words).unwrap();
    assert_eq!((key.lsize, key.psize, key.compression_id, key.encrypted), (16384, 4096, 15, false));
    let stored = ddt::Stored::decode(leaf.value.be_bytes()).unwrap();
    assert_eq!((stored.order, stored.compression_id), (LITTLE, 2));
    let ddt::Phys::Flat { copies, class_start } = ddt::Phys::decode(stored.payload, LITTLE).unwrap() else {
        panic!("not the form of fast_dedup")
    };
    assert_eq!(copies.refcount, 2);
    assert_eq!(copies.dvas[0].asize, 4096);
    assert!(copies.dvas[0].offset.is_multiple_of(4096) && copies.physical_birth < 100);
    assert_eq!(class_start >> 24, 0x6b, "seconds of late 2026");
}

#[test]
fn a_real_removal_maps_all_it_says() {
    let header = indirect::Header::decode(&structures("indirect_header")[0], LITTLE).unwrap();
    let data = &structures("indirect_mapping")[0];
    let mapping = indirect::Mapping::new(data, LITTLE);
    assert_eq!(mapping.len() as u64, header.entries);
    let entries: Vec<_> = mapping.entries().map(Result::unwrap).collect();
    let mapped: u64 = entries.iter().map(|entry| entry.destination.asize).sum();
    assert_eq!(mapped, header.bytes_mapped);
    assert_eq!(entries.last().unwrap().source_range().end, header.max_offset);
    for entry in &entries {
        let pieces = mapping.split(entry.source_range()).unwrap();
        assert_eq!(pieces.iter().map(|piece| piece.length).sum::<u64>(), entry.destination.asize);
        assert_eq!(pieces[0].offset, entry.destination.offset);
    }
    let births: Vec<_> = indirect::births(&structures("indirect_births")[0], LITTLE).collect();
    assert_eq!(births.last().unwrap().offset, header.max_offset);
}

#[test]
fn replaying_real_space_maps_gives_their_alloc() {
    for (header, words) in structures("spacemap_header").iter().zip(structures("spacemap")) {
        let header = spacemap::Header::decode(header, LITTLE).unwrap();
        assert_eq!(header.length, words.len() as u64);
        let mut units = 0i64;
        for entry in spacemap::entries(&words, LITTLE) {
            if let spacemap::MapEntry::Segment(segment) = entry.unwrap() {
                let run = i64::try_from(segment.run).unwrap();
                units += if segment.kind == spacemap::Kind::Alloc { run } else { -run };
            }
        }
        // Units of the ashift; of single bytes in the obsolete map of a removed vdev.
        assert!(
            [0, 9, 12].iter().any(|shift| units << shift == header.alloc),
            "{units} units, {}",
            header.alloc
        );
    }
}

#[test]
fn a_real_log_chain_reads_as_zdb_lists_it() {
    let chain = json(include_str!("../../../../docs/format/vectors/zil_chain.json"));
    let header = zil::Header::decode(&hex(&chain["header"]), LITTLE).unwrap();
    assert_eq!(
        (header.claim_txg, header.claim_block_seq, header.claim_record_seq, header.flags),
        (10, 4, 22, 3)
    );
    assert_eq!(header.encode(LITTLE), hex(&chain["header"]));
    let mut pointer = header.log;
    for vector in chain["blocks"].as_array().unwrap() {
        assert_eq!(pointer.encode(LITTLE)[..], hex(&vector["bp"])[..], "the chain leads elsewhere");
        if vector["valid"] == Value::Bool(false) {
            break;
        }
        let bytes = hex(&vector["content"]);
        let format = zil::Format::from_checksum_id(pointer.checksum_id()).unwrap();
        let block = zil::Block::decode(&bytes, format, LITTLE).unwrap();
        let words = zil::ChainWords::from_words(pointer.checksum());
        assert!(block.continues(words) && header.admits_block(words.sequence));
        let records: Vec<_> = block.records().map(Result::unwrap).collect();
        let expected = vector["records"].as_array().unwrap();
        assert_eq!(records.len(), expected.len());
        let mut encoded = Vec::new();
        for (record, expected) in records.iter().zip(expected) {
            assert_eq!(record.sequence, expected["seq"].as_u64().unwrap());
            assert_eq!(record.txg, expected["txg"].as_u64().unwrap());
            assert_eq!(format!("{:?}", record.body.tx()).to_uppercase(), expected["type"].as_str().unwrap());
            let text = expected["text"].as_str().unwrap();
            match record.body {
                zil::Body::Write { offset, length, data, .. } => {
                    assert!(text.contains(&format!("offset {offset:#x} length {length:#x}")), "{text}");
                    assert_eq!(matches!(data, zil::WriteData::Indirect(_)), text.contains("INDIRECT"));
                }
                zil::Body::Create { node, .. } => {
                    let (name, target) = record.body.created_name(LITTLE).unwrap();
                    assert!(
                        text.ends_with(&format!("{:?}", String::from_utf8_lossy(name)).replace('"', "'")),
                        "{text}"
                    );
                    assert!(
                        text.contains(&format!("obj {} mode {:o}", node.object, node.mode))
                            && target.is_none()
                    );
                }
                zil::Body::Truncate { object, offset, length } => {
                    assert_eq!(text, format!("foid {object} offset {offset:#x} length {length:#x}"));
                }
                _ => panic!("not in the vector: {text}"),
            }
            encoded.extend(record.encode(LITTLE).unwrap());
        }
        assert_eq!(encoded, block.record_bytes(), "records encode to their bytes");
        let used = zil::CHAIN_BYTES + encoded.len();
        let mut again = vec![0; bytes.len()];
        again[zil::CHAIN_BYTES..used].copy_from_slice(&encoded);
        zil::write_chain(&mut again, &block.next, used, LITTLE).unwrap();
        assert_eq!((&again[..152], &again[184..]), (&bytes[..152], &bytes[184..]), "all but the checksum");
        pointer = block.next;
    }
}

#[test]
fn a_real_cache_device_lists_what_it_holds() {
    let vector = json(include_str!("../../../../docs/format/vectors/l2arc.json"));
    let bytes = &structures("l2arc_header")[0];
    let (header, order) = l2arc::Header::decode(bytes).unwrap();
    assert_eq!(order, LITTLE);
    let log_entries = l2arc::log_entries_of(header.start, header.end, l2arc::PERSISTENT_BYTES_MIN);
    assert_eq!(header.log_entries, log_entries);
    assert_eq!(header.encode(512, order)[..472], bytes[..472], "all but the checksum");
    let chain = vector["chain"].as_array().unwrap();
    assert_eq!(header.log_blocks, chain.len() as u64);
    for (pointer, expected) in header.newest.iter().zip(chain) {
        assert!(pointer.is_intact(&header));
        assert_eq!((pointer.compression_id(), pointer.checksum_id()), (15, 7));
        let fields = [pointer.daddr, pointer.aligned_size(), pointer.payload_start, pointer.payload_bytes];
        let names = ["daddr", "asize", "payload_start", "payload_asize"];
        assert_eq!(fields, names.map(|name| expected[name].as_u64().unwrap()));
        assert_eq!(l2arc::LogPointer::prop_of(pointer.aligned_size(), 15, 7), Some(pointer.prop));
    }
    let block = &structures("l2arc_log_block")[0];
    let log = l2arc::LogBlock::decode(block).unwrap();
    let entries: Vec<_> = log.entries(header.log_entries).map(Result::unwrap).collect();
    let newest_first = vector["entries"].as_array().unwrap();
    assert_eq!(entries.len(), newest_first.len());
    for (entry, expected) in entries.iter().rev().zip(newest_first) {
        let number = |name: &str| expected[name].as_u64().unwrap();
        assert_eq!((u64::from(entry.dva.vdev), entry.dva.offset), (number("vdev"), number("offset")));
        assert_eq!((entry.birth, entry.daddr), (number("birth"), number("daddr")));
        assert_eq!((entry.lsize, entry.psize), (number("lsize"), number("psize")));
        assert_eq!(u64::from(entry.arc_state), number("state"));
        assert_eq!(entry.content == l2arc::Content::Data, expected["type"] == "data");
        assert_eq!(u64::from(entry.protected), number("protected"));
    }
    let again = l2arc::encode_log_block(&log.previous, &entries, order).unwrap();
    assert_eq!(again[..block.len()], block[..], "a log block encodes to its bytes");
}

#[test]
fn stream_records_encode_to_their_bytes() {
    let records = structures("stream");
    assert_eq!(stream::order_of(&records[0]), Ok(LITTLE));
    for bytes in &records {
        let frame: &[u8; stream::RECORD_BYTES] = bytes.as_slice().try_into().unwrap();
        let record = stream::Record::decode(frame, LITTLE).unwrap();
        let checksum = stream::stored_checksum(frame, LITTLE).unwrap_or([0; 4]);
        assert_eq!(stream::with_checksum(record.encode(LITTLE), checksum, LITTLE), *frame, "{record:?}");
        assert_eq!(stream::Record::decode(&record.encode(Order::Big), Order::Big), Ok(record));
    }
    let stream::Record::Begin(begin) =
        stream::Record::decode(records[0][..].try_into().unwrap(), LITTLE).unwrap()
    else {
        panic!("a stream begins with BEGIN")
    };
    assert_eq!((&begin.name[..], begin.to_guid), (&b"src/vol@one"[..], 0x1122_3344_5566_7788));
    assert_eq!((begin.objset_type, begin.flags, begin.creation_time), (3, 0xc, 1_700_000_000));
}

#[test]
fn a_real_directory_has_the_attributes_of_one() {
    let mut registry = sa::Registry::default();
    let word = |number, class, length| sa::Attribute { number, class, length }.to_u64();
    let fixed =
        [(5, "MODE"), (6, "SIZE"), (4, "GEN"), (12, "UID"), (13, "GID"), (7, "PARENT"), (11, "FLAGS")];
    for (number, name) in fixed.into_iter().chain([(8, "LINKS"), (16, "DACL_COUNT")]) {
        registry.insert(format!("ZPL_{name}").as_bytes(), word(number, sa::Class::U64, Some(8))).unwrap();
    }
    for (number, name) in [(0, "ATIME"), (1, "MTIME"), (2, "CTIME"), (3, "CRTIME")] {
        registry.insert(format!("ZPL_{name}").as_bytes(), word(number, sa::Class::U64, Some(16))).unwrap();
    }
    registry.insert(b"ZPL_DACL_ACES", word(19, sa::Class::Acl, None)).unwrap();
    let mut layouts = sa::Layouts::default();
    let list = vec![5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 16, 19];
    layouts.insert(b"2", list.clone()).unwrap();

    let images = structures("sa");
    let bytes = images.iter().find(|bytes| bytes[4] == 2).expect("an image of layout 2");
    let image = sa::Image::decode(bytes, LITTLE).unwrap();
    let file = zpl::Attributes::from_sa(&[image], &layouts, &registry).unwrap();
    assert_eq!((file.mode, file.kind()), (0o40_755, zpl::FileKind::Directory));
    assert_eq!((file.size, file.uid, file.parent), (11, 0, 34));
    assert!(file.mtime.nanoseconds < 1_000_000_000 && file.links >= 2);
    let acl: Vec<_> = zpl::aces(file.acl.unwrap(), LITTLE).map(Result::unwrap).collect();
    assert_eq!(acl.iter().map(|ace| ace.mask).collect::<Vec<_>>(), [0x1E_01FF, 0x12_00A9, 0x12_00A9]);

    let values: Vec<_> = image.attributes(&list, &registry).map(Result::unwrap).collect();
    assert_eq!(
        sa::encode(2, &values, &registry, LITTLE).unwrap()[..],
        bytes[..],
        "an image encodes to its bytes"
    );
}
