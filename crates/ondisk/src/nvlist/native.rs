//! The native encoding: OpenZFS's memory layout as it was, in the writer's byte order.
//!
//! A pair is a 16-byte header, the name with its NUL, the value; each part padded to 8. Arrays of
//! strings begin with room for pointers. A nested list leaves its 24-byte struct in the pair (version,
//! flags, and a pointer that means nothing on disk); its pairs follow *behind* that pair and end with a
//! zero of their own. Only the history uses this.
//!
//! Facts: docs/format/labels.md §6.

use super::{DEPTH_MAX, NvList, NvStr, Value, too_deep, too_large, unsupported};
use crate::{Error, Order, Reader, Reason, Result, Writer};

const STRUCTURE: &str = super::STRUCTURE;

/// Bytes of a pair before its name.
const HEADER_BYTES: usize = 16;
/// Bytes of the in-memory list struct that stands for a nested list.
const LIST_BYTES: usize = 24;

pub(super) fn decode(data: &[u8], order: Order) -> Result<(NvList, usize)> {
    let mut reader = Reader::new(STRUCTURE, data, order);
    reader.skip(4)?;
    let head = reader.array()?;
    let list = read_list(&mut reader, head, 0)?;
    Ok((list, reader.position()))
}

/// Reads pairs up to the zero behind them; `head` is the list's version and flags.
fn read_list(reader: &mut Reader<'_>, head: [u8; 8], depth: usize) -> Result<NvList> {
    if depth > DEPTH_MAX {
        return Err(too_deep(reader.position()));
    }
    let [version, flags] = [0, 4].map(|at| reader.order().u32_at(STRUCTURE, &head, at).unwrap_or(0));
    if version != 0 {
        return Err(unsupported(reader.position(), "version", u64::from(version)));
    }
    let mut list = NvList { flags, pairs: Vec::new() };
    loop {
        let start = reader.position();
        let size = reader.u32()? as usize;
        if size == 0 {
            return Ok(list);
        }
        let Some(body) = size.checked_sub(4) else {
            return Err(reader.error(Reason::OutOfRange { field: "pair size", value: size as u64 }));
        };
        let pair = Pair { start, order: reader.order(), body: reader.bytes(body)? };
        list.pairs.push(pair.decode(reader, depth)?);
    }
}

/// The bytes of one pair after its size field; values must lie within.
struct Pair<'a> {
    start: usize,
    order: Order,
    body: &'a [u8],
}

impl<'a> Pair<'a> {
    fn error(&self, reason: Reason) -> Error {
        Error::new(STRUCTURE, self.start, reason)
    }

    /// `outer` stands behind the pair, where nested lists follow.
    fn decode(&self, outer: &mut Reader<'_>, depth: usize) -> Result<(String, Value)> {
        let short = |error: Error| Error { offset: error.offset.saturating_add(self.start), ..error };
        let mut reader = Reader::new(STRUCTURE, self.body, self.order);
        let name_len = usize::from(reader.u16().map_err(short)?);
        reader.skip(2).map_err(short)?;
        let (elements, type_id) = (reader.u32().map_err(short)?, reader.u32().map_err(short)?);
        let name = reader.bytes(name_len).map_err(short)?;
        let Some((0, name)) = name.split_last() else {
            return Err(self.error(Reason::Inconsistent("name without a final NUL")));
        };
        let Ok(name) = std::str::from_utf8(name) else {
            return Err(self.error(Reason::NotText { field: "name" }));
        };
        let value_at =
            HEADER_BYTES.saturating_add(name_len).checked_next_multiple_of(8).unwrap_or(usize::MAX);
        // `body` lacks the size field, 4 bytes.
        let bytes = self.body.get(value_at.saturating_sub(4)..).unwrap_or_default();
        let value = self.value(type_id, elements, bytes, outer, depth)?;
        if u32::try_from(value.elements()) != Ok(elements) {
            return Err(self.error(Reason::Inconsistent("number of elements does not fit the type")));
        }
        Ok((name.to_owned(), value))
    }

    fn value(
        &self,
        type_id: u32,
        elements: u32,
        bytes: &'a [u8],
        outer: &mut Reader<'_>,
        depth: usize,
    ) -> Result<Value> {
        let order = self.order;
        let deeper = depth.saturating_add(1);
        let u16s = || self.elements::<2, _>(bytes, elements, |b| order.u16(b));
        let u32s = || self.elements::<4, _>(bytes, elements, |b| order.u32(b));
        let u64s = || self.elements::<8, _>(bytes, elements, |b| order.u64(b));
        Ok(match type_id {
            1 => Value::Boolean,
            2 => Value::Byte(self.first::<1>(bytes)?[0]),
            3 => Value::Int16(order.u16(self.first(bytes)?).cast_signed()),
            4 => Value::Uint16(order.u16(self.first(bytes)?)),
            5 => Value::Int32(order.u32(self.first(bytes)?).cast_signed()),
            6 => Value::Uint32(order.u32(self.first(bytes)?)),
            7 => Value::Int64(order.u64(self.first(bytes)?).cast_signed()),
            8 => Value::Uint64(order.u64(self.first(bytes)?)),
            9 => Value::String(self.text(bytes)?.0),
            10 => Value::ByteArray(self.elements::<1, _>(bytes, elements, |[b]| b)?),
            11 => Value::Int16Array(u16s()?.into_iter().map(u16::cast_signed).collect()),
            12 => Value::Uint16Array(u16s()?),
            13 => Value::Int32Array(u32s()?.into_iter().map(u32::cast_signed).collect()),
            14 => Value::Uint32Array(u32s()?),
            15 => Value::Int64Array(u64s()?.into_iter().map(u64::cast_signed).collect()),
            16 => Value::Uint64Array(u64s()?),
            17 => Value::StringArray(self.texts(bytes, elements)?),
            18 => Value::HrTime(order.u64(self.first(bytes)?).cast_signed()),
            19 => Value::NvList(read_list(outer, list_head(self.first(bytes)?), deeper)?),
            20 => {
                let pointers = (elements as usize).saturating_mul(8);
                let structs = bytes.get(pointers..).unwrap_or_default();
                let heads = self.elements(structs, elements, list_head)?;
                let lists = heads.into_iter().map(|head| read_list(outer, head, deeper));
                Value::NvListArray(lists.collect::<Result<_>>()?)
            }
            21 => Value::BooleanValue(order.u32(self.first(bytes)?) != 0),
            22 => Value::Int8(self.first::<1>(bytes)?[0].cast_signed()),
            23 => Value::Uint8(self.first::<1>(bytes)?[0]),
            24 => Value::BooleanArray(u32s()?.into_iter().map(|v| v != 0).collect()),
            25 => Value::Int8Array(self.elements::<1, _>(bytes, elements, |[b]| b.cast_signed())?),
            26 => Value::Uint8Array(self.elements::<1, _>(bytes, elements, |[b]| b)?),
            _ => return Err(unsupported(self.start, "type", u64::from(type_id))),
        })
    }

    fn truncated(&self, need: usize, have: usize) -> Error {
        self.error(Reason::Truncated { need, have })
    }

    fn first<const N: usize>(&self, bytes: &[u8]) -> Result<[u8; N]> {
        bytes.first_chunk::<N>().copied().ok_or_else(|| self.truncated(N, bytes.len()))
    }

    fn elements<const N: usize, T>(
        &self,
        bytes: &[u8],
        elements: u32,
        read: impl Fn([u8; N]) -> T,
    ) -> Result<Vec<T>> {
        let Some(chunks) = bytes.as_chunks::<N>().0.get(..elements as usize) else {
            return Err(self.truncated((elements as usize).saturating_mul(N), bytes.len()));
        };
        Ok(chunks.iter().map(|chunk| read(*chunk)).collect())
    }

    /// A string up to its NUL, and what follows.
    fn text<'b>(&self, bytes: &'b [u8]) -> Result<(NvStr, &'b [u8])> {
        let mut parts = bytes.splitn(2, |byte| *byte == 0);
        match (parts.next(), parts.next()) {
            (Some(text), Some(rest)) => Ok((NvStr::from_bytes(text), rest)),
            _ => Err(self.error(Reason::Inconsistent("string without a final NUL"))),
        }
    }

    fn texts(&self, bytes: &[u8], elements: u32) -> Result<Vec<NvStr>> {
        let pointers = (elements as usize).saturating_mul(8);
        let Some(mut rest) = bytes.get(pointers..) else {
            return Err(self.truncated(pointers, bytes.len()));
        };
        let mut texts = Vec::new();
        for _ in 0..elements {
            let (text, after) = self.text(rest)?;
            texts.push(text);
            rest = after;
        }
        Ok(texts)
    }
}

/// Version and flags out of a nested list's struct.
fn list_head(list: [u8; LIST_BYTES]) -> [u8; 8] {
    let [head @ .., _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _] = list;
    head
}

pub(super) fn encode(list: &NvList, order: Order) -> Result<Vec<u8>> {
    let mut writer = Writer::new(order);
    writer.bytes(&[0, u8::from(order == Order::Little), 0, 0]);
    writer.u32(0);
    writer.u32(list.flags);
    write_pairs(&mut writer, list, 0)?;
    Ok(writer.finish())
}

fn write_pairs(writer: &mut Writer, list: &NvList, depth: usize) -> Result<()> {
    if depth > DEPTH_MAX {
        return Err(too_deep(writer.position()));
    }
    for (name, value) in &list.pairs {
        let pair = encode_pair(name, value, writer.order())?;
        writer.bytes(&pair);
        let deeper = depth.saturating_add(1);
        match value {
            Value::NvList(list) => write_pairs(writer, list, deeper)?,
            Value::NvListArray(lists) => {
                for list in lists {
                    write_pairs(writer, list, deeper)?;
                }
            }
            _ => {}
        }
    }
    writer.u32(0);
    Ok(())
}

/// One pair on its own, since padding counts from its start.
fn encode_pair(name: &str, value: &Value, order: Order) -> Result<Vec<u8>> {
    let mut writer = Writer::new(order);
    let name_len = i16::try_from(name.len().saturating_add(1)).map_err(|_| too_large())?;
    let elements = i32::try_from(value.elements()).map_err(|_| too_large())?;
    writer.u32(0); // patched below
    writer.u16(name_len.cast_unsigned());
    writer.u16(0);
    writer.u32(elements.cast_unsigned());
    writer.u32(value.type_id());
    writer.bytes(name.as_bytes());
    writer.u8(0);
    writer.align(8);
    write_value(&mut writer, value);
    writer.align(8);
    let size = i32::try_from(writer.position()).map_err(|_| too_large())?;
    writer.patch(0, &order.put_u32(size.cast_unsigned()));
    Ok(writer.finish())
}

fn write_value(writer: &mut Writer, value: &Value) {
    match value {
        Value::Boolean => {}
        Value::Byte(v) | Value::Uint8(v) => writer.u8(*v),
        Value::Int8(v) => writer.u8(v.cast_unsigned()),
        Value::Int16(v) => writer.u16(v.cast_unsigned()),
        Value::Uint16(v) => writer.u16(*v),
        Value::Int32(v) => writer.u32(v.cast_unsigned()),
        Value::Uint32(v) => writer.u32(*v),
        Value::Int64(v) | Value::HrTime(v) => writer.u64(v.cast_unsigned()),
        Value::Uint64(v) => writer.u64(*v),
        Value::BooleanValue(v) => writer.u32(u32::from(*v)),
        Value::String(text) => write_text(writer, text),
        Value::ByteArray(bytes) | Value::Uint8Array(bytes) => writer.bytes(bytes),
        Value::Int8Array(values) => values.iter().for_each(|v| writer.u8(v.cast_unsigned())),
        Value::Int16Array(values) => values.iter().for_each(|v| writer.u16(v.cast_unsigned())),
        Value::Uint16Array(values) => values.iter().for_each(|v| writer.u16(*v)),
        Value::Int32Array(values) => values.iter().for_each(|v| writer.u32(v.cast_unsigned())),
        Value::Uint32Array(values) => values.iter().for_each(|v| writer.u32(*v)),
        Value::BooleanArray(values) => values.iter().for_each(|v| writer.u32(u32::from(*v))),
        Value::Int64Array(values) => values.iter().for_each(|v| writer.u64(v.cast_unsigned())),
        Value::Uint64Array(values) => writer.words(values),
        Value::StringArray(texts) => {
            writer.zeros(texts.len().saturating_mul(8));
            texts.iter().for_each(|text| write_text(writer, text));
        }
        Value::NvList(list) => write_struct(writer, list),
        Value::NvListArray(lists) => {
            writer.zeros(lists.len().saturating_mul(8));
            lists.iter().for_each(|list| write_struct(writer, list));
        }
    }
}

fn write_text(writer: &mut Writer, text: &NvStr) {
    writer.bytes(&text.0);
    writer.u8(0);
}

/// The in-memory struct of a nested list: version, flags, a pointer, flags of the process, padding.
fn write_struct(writer: &mut Writer, list: &NvList) {
    writer.u32(0);
    writer.u32(list.flags);
    writer.zeros(LIST_BYTES.saturating_sub(8));
}
