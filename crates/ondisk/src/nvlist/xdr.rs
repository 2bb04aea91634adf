//! The XDR encoding: big-endian, 4-byte units, every pair with its own length.
//!
//! Facts: docs/format/labels.md §6.

use super::{DEPTH_MAX, NvList, NvStr, Value, decoded_bytes, too_deep, too_large, unsupported};
use crate::{Order, Reader, Reason, Result, Writer};

const STRUCTURE: &str = super::STRUCTURE;

pub(super) fn decode(data: &[u8]) -> Result<(NvList, usize)> {
    let mut reader = Reader::new(STRUCTURE, data, Order::Big);
    reader.skip(4)?;
    let list = read_list(&mut reader, 0)?;
    Ok((list, reader.position()))
}

fn read_list(reader: &mut Reader<'_>, depth: usize) -> Result<NvList> {
    if depth > DEPTH_MAX {
        return Err(too_deep(reader.position()));
    }
    let version = reader.u32()?;
    if version != 0 {
        return Err(unsupported(reader.position(), "version", u64::from(version)));
    }
    let mut list = NvList { flags: reader.u32()?, pairs: Vec::new() };
    loop {
        let start = reader.position();
        let encoded = reader.u32()?;
        let decoded = reader.u32()?; // only a promise about OpenZFS's memory: not trusted, not used
        if encoded == 0 && decoded == 0 {
            return Ok(list);
        }
        list.pairs.push(read_pair(reader, depth)?);
        let taken = reader.position().saturating_sub(start);
        if u32::try_from(taken) != Ok(encoded) {
            return Err(reader.error(Reason::Inconsistent("the pair is not as long as it says")));
        }
    }
}

fn read_pair(reader: &mut Reader<'_>, depth: usize) -> Result<(String, Value)> {
    let name = read_string(reader)?;
    let Ok(name) = String::from_utf8(name.0) else {
        return Err(reader.error(Reason::NotText { field: "name" }));
    };
    let type_id = reader.u32()?;
    let elements = reader.u32()?;
    let value = match type_id {
        1 => Value::Boolean,
        2 => Value::Byte(reader.u32()? as u8),
        3 => Value::Int16(reader.u32()? as i16),
        4 => Value::Uint16(reader.u32()? as u16),
        5 => Value::Int32(reader.u32()?.cast_signed()),
        6 => Value::Uint32(reader.u32()?),
        7 => Value::Int64(reader.u64()?.cast_signed()),
        8 => Value::Uint64(reader.u64()?),
        9 => Value::String(read_string(reader)?),
        10 => Value::ByteArray(read_opaque(reader, elements)?.to_vec()),
        11 => Value::Int16Array(read_array(reader, elements, 4, |r| Ok(r.u32()? as i16))?),
        12 => Value::Uint16Array(read_array(reader, elements, 4, |r| Ok(r.u32()? as u16))?),
        13 => Value::Int32Array(read_array(reader, elements, 4, |r| Ok(r.u32()?.cast_signed()))?),
        14 => Value::Uint32Array(read_array(reader, elements, 4, |r| r.u32())?),
        15 => Value::Int64Array(read_array(reader, elements, 8, |r| Ok(r.u64()?.cast_signed()))?),
        16 => Value::Uint64Array(read_array(reader, elements, 8, |r| r.u64())?),
        17 => Value::StringArray(read_elements(reader, elements, 4, read_string)?),
        18 => Value::HrTime(reader.u64()?.cast_signed()),
        19 => Value::NvList(read_list(reader, depth.saturating_add(1))?),
        20 => {
            let deeper = depth.saturating_add(1);
            Value::NvListArray(read_elements(reader, elements, 16, |r| read_list(r, deeper))?)
        }
        21 => Value::BooleanValue(reader.u32()? != 0),
        22 => Value::Int8(reader.u32()? as i8),
        23 => Value::Uint8(reader.u32()? as u8),
        24 => Value::BooleanArray(read_array(reader, elements, 4, |r| Ok(r.u32()? != 0))?),
        25 => Value::Int8Array(read_array(reader, elements, 4, |r| Ok(r.u32()? as i8))?),
        26 => Value::Uint8Array(read_array(reader, elements, 4, |r| Ok(r.u32()? as u8))?),
        _ => return Err(unsupported(reader.position(), "type", u64::from(type_id))),
    };
    if u32::try_from(value.elements()) != Ok(elements) {
        return Err(reader.error(Reason::Inconsistent("number of elements does not fit the type")));
    }
    Ok((name, value))
}

/// A length and that many bytes, padded to 4.
fn read_string(reader: &mut Reader<'_>) -> Result<NvStr> {
    let len = reader.u32()?;
    Ok(NvStr::from_bytes(read_opaque(reader, len)?))
}

fn read_opaque<'a>(reader: &mut Reader<'a>, len: u32) -> Result<&'a [u8]> {
    let bytes = reader.bytes(len as usize)?;
    reader.skip(pad4(bytes.len()))?;
    Ok(bytes)
}

const fn pad4(len: usize) -> usize {
    len.wrapping_neg() & 3
}

/// An array with its own count, which must agree with the pair's.
fn read_array<T>(
    reader: &mut Reader<'_>,
    elements: u32,
    bytes_each: usize,
    read: impl FnMut(&mut Reader<'_>) -> Result<T>,
) -> Result<Vec<T>> {
    if reader.u32()? != elements {
        return Err(reader.error(Reason::Inconsistent("array count differs from the pair's")));
    }
    read_elements(reader, elements, bytes_each, read)
}

/// `elements` values, each of which takes at least `bytes_min` bytes of input: the memory asked for
/// is bounded by the input that is there.
fn read_elements<T>(
    reader: &mut Reader<'_>,
    elements: u32,
    bytes_min: usize,
    mut read: impl FnMut(&mut Reader<'_>) -> Result<T>,
) -> Result<Vec<T>> {
    let need = (elements as usize).saturating_mul(bytes_min);
    if need > reader.remaining() {
        return Err(reader.error(Reason::Truncated { need, have: reader.remaining() }));
    }
    (0..elements).map(|_| read(reader)).collect()
}

pub(super) fn encode(list: &NvList, host: Order) -> Result<Vec<u8>> {
    let mut writer = Writer::new(Order::Big);
    writer.bytes(&[1, u8::from(host == Order::Little), 0, 0]);
    write_list(&mut writer, list, 0)?;
    Ok(writer.finish())
}

fn length(len: usize) -> Result<u32> {
    i32::try_from(len).map(i32::cast_unsigned).map_err(|_| too_large())
}

fn write_list(writer: &mut Writer, list: &NvList, depth: usize) -> Result<()> {
    if depth > DEPTH_MAX {
        return Err(too_deep(writer.position()));
    }
    writer.u32(0);
    writer.u32(list.flags);
    for (name, value) in &list.pairs {
        let start = writer.position();
        writer.u32(0); // patched below
        writer.u32(length(decoded_bytes(name, value))?);
        write_opaque(writer, name.as_bytes(), Counted::Yes)?;
        writer.u32(value.type_id());
        writer.u32(length(value.elements())?);
        write_value(writer, value, depth)?;
        let taken = length(writer.position().saturating_sub(start))?;
        writer.patch(start, &taken.to_be_bytes());
    }
    writer.zeros(8);
    Ok(())
}

fn write_value(writer: &mut Writer, value: &Value, depth: usize) -> Result<()> {
    match value {
        Value::Boolean => {}
        Value::Byte(v) | Value::Uint8(v) => writer.u32(u32::from(*v)),
        Value::Int8(v) => writer.u32(i32::from(*v).cast_unsigned()),
        Value::Int16(v) => writer.u32(i32::from(*v).cast_unsigned()),
        Value::Uint16(v) => writer.u32(u32::from(*v)),
        Value::Int32(v) => writer.u32(v.cast_unsigned()),
        Value::Uint32(v) => writer.u32(*v),
        Value::Int64(v) | Value::HrTime(v) => writer.u64(v.cast_unsigned()),
        Value::Uint64(v) => writer.u64(*v),
        Value::BooleanValue(v) => writer.u32(u32::from(*v)),
        Value::String(text) => write_opaque(writer, &text.0, Counted::Yes)?,
        Value::ByteArray(bytes) => write_opaque(writer, bytes, Counted::No)?,
        Value::Int16Array(v) => write_words(writer, v, |v| i32::from(*v).cast_unsigned())?,
        Value::Uint16Array(v) => write_words(writer, v, |v| u32::from(*v))?,
        Value::Int32Array(v) => write_words(writer, v, |v| v.cast_unsigned())?,
        Value::Uint32Array(v) => write_words(writer, v, |v| *v)?,
        Value::BooleanArray(v) => write_words(writer, v, |v| u32::from(*v))?,
        Value::Int8Array(v) => write_words(writer, v, |v| i32::from(*v).cast_unsigned())?,
        Value::Uint8Array(v) => write_words(writer, v, |v| u32::from(*v))?,
        Value::Int64Array(values) => {
            writer.u32(length(values.len())?);
            values.iter().for_each(|value| writer.u64(value.cast_unsigned()));
        }
        Value::Uint64Array(values) => {
            writer.u32(length(values.len())?);
            writer.words(values);
        }
        Value::StringArray(texts) => {
            for text in texts {
                write_opaque(writer, &text.0, Counted::Yes)?;
            }
        }
        Value::NvList(list) => write_list(writer, list, depth.saturating_add(1))?,
        Value::NvListArray(lists) => {
            for list in lists {
                write_list(writer, list, depth.saturating_add(1))?;
            }
        }
    }
    Ok(())
}

/// Whether opaque bytes carry their length.
#[derive(PartialEq)]
enum Counted {
    Yes,
    No,
}

fn write_opaque(writer: &mut Writer, bytes: &[u8], counted: Counted) -> Result<()> {
    let len = length(bytes.len())?;
    if counted == Counted::Yes {
        writer.u32(len);
    }
    writer.bytes(bytes);
    writer.zeros(pad4(bytes.len()));
    Ok(())
}

/// A count and 4 bytes for each value.
fn write_words<T>(writer: &mut Writer, values: &[T], word: impl Fn(&T) -> u32) -> Result<()> {
    writer.u32(length(values.len())?);
    values.iter().for_each(|value| writer.u32(word(value)));
    Ok(())
}
