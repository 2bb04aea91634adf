//! System attributes: how a file system packs a file's metadata into a bonus.
//!
//! Three things make one value: the *registry* (attribute number → name, length, byte order class), the
//! *layouts* (layout number → list of attribute numbers) and the *image* in the bonus or spill block, which names
//! its layout and carries the lengths the registry leaves open.
//!
//! ```text
//!   magic 4 │ layout 10 bits, header size 6 bits │ length of the 1st variable attribute │ further lengths …
//!   attribute values in layout order, each at a multiple of 8
//! ```
//!
//! Numbers above 15 differ from file system to file system, so callers ask by name ([`Registry::number`]).
//! Facts: docs/format/zpl.md §3.

use std::collections::BTreeMap;

use crate::{Error, Order, Reader, Reason, Result, Writer};

const STRUCTURE: &str = "system attributes";
const MAGIC: u32 = 0x2F_505A;
const LAYOUT_MASK: u16 = 0x3ff;
/// Largest layout: no file system registers more attributes.
const LAYOUT_ATTRIBUTES_MAX: usize = 1024;

/// How an attribute's bytes are made of integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// `u64` array.
    U64,
    /// `u32` array.
    U32,
    /// `u16` array.
    U16,
    /// Bytes.
    Bytes,
    /// Access control entries.
    Acl,
}

/// What the registry says of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute {
    /// Its number in this file system.
    pub number: u16,
    /// What its bytes are.
    pub class: Class,
    /// Bytes; `None`: each image says.
    pub length: Option<u16>,
}

impl Attribute {
    /// From the value of a registry entry.
    ///
    /// # Errors
    /// A class that does not exist.
    pub fn from_u64(word: u64) -> Result<Self> {
        let [_, _, _, high, low, class, number_high, number_low] = word.to_be_bytes();
        let class = match class {
            0 => Class::U64,
            1 => Class::U32,
            2 => Class::U16,
            3 => Class::Bytes,
            4 => Class::Acl,
            other => {
                let reason = Reason::Unsupported { field: "attribute class", value: other.into() };
                return Err(Error::new("attribute registry", 0, reason));
            }
        };
        let length = Some(u16::from_be_bytes([high, low])).filter(|length| *length != 0);
        Ok(Self { number: u16::from_be_bytes([number_high, number_low]), class, length })
    }

    /// The value of the registry entry.
    #[must_use]
    pub fn to_u64(self) -> u64 {
        let class: u64 = match self.class {
            Class::U64 => 0,
            Class::U32 => 1,
            Class::U16 => 2,
            Class::Bytes => 3,
            Class::Acl => 4,
        };
        u64::from(self.number) | class << 16 | u64::from(self.length.unwrap_or(0)) << 24
    }
}

/// The attributes a file system knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registry {
    by_number: BTreeMap<u16, Attribute>,
    by_name: BTreeMap<Vec<u8>, u16>,
}

impl Registry {
    /// Adds an entry of the registry ZAP.
    ///
    /// # Errors
    /// A class that does not exist, or a number that another name has.
    pub fn insert(&mut self, name: &[u8], value: u64) -> Result<()> {
        let attribute = Attribute::from_u64(value)?;
        if self.by_number.insert(attribute.number, attribute).is_some() {
            let reason = Reason::Inconsistent("two attributes have one number");
            return Err(Error::new("attribute registry", 0, reason));
        }
        self.by_name.insert(name.to_vec(), attribute.number);
        Ok(())
    }

    /// An attribute by number.
    #[must_use]
    pub fn get(&self, number: u16) -> Option<Attribute> {
        self.by_number.get(&number).copied()
    }

    /// The number of a name, such as `ZPL_MODE`.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<u16> {
        self.by_name.get(name.as_bytes()).copied()
    }
}

/// The layouts of a file system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layouts {
    by_number: BTreeMap<u16, Vec<u16>>,
}

impl Layouts {
    /// Adds an entry of the layouts ZAP: a decimal number and the attributes in storage order.
    ///
    /// # Errors
    /// A name that is no layout number, or more attributes than can exist.
    pub fn insert(&mut self, name: &[u8], attributes: Vec<u16>) -> Result<()> {
        let structure = "attribute layouts";
        let number = std::str::from_utf8(name).ok().and_then(|name| name.parse::<u16>().ok());
        let Some(number) = number.filter(|number| *number <= LAYOUT_MASK) else {
            return Err(Error::new(structure, 0, Reason::Inconsistent("a name is no layout number")));
        };
        if attributes.len() > LAYOUT_ATTRIBUTES_MAX {
            let reason = Reason::TooLarge { limit: LAYOUT_ATTRIBUTES_MAX, unit: "attributes" };
            return Err(Error::new(structure, 0, reason));
        }
        self.by_number.insert(number, attributes);
        Ok(())
    }

    /// The attributes of a layout, in storage order.
    #[must_use]
    pub fn get(&self, number: u16) -> Option<&[u16]> {
        self.by_number.get(&number).map(Vec::as_slice)
    }

    /// The number of the layout with exactly these attributes.
    #[must_use]
    pub fn number(&self, attributes: &[u16]) -> Option<u16> {
        self.by_number.iter().find(|(_, layout)| *layout == attributes).map(|(number, _)| *number)
    }
}

/// The attributes in a bonus or spill block.
#[derive(Clone, Copy, Debug)]
pub struct Image<'a> {
    order: Order,
    layout: u16,
    /// From the first variable length up to the end of the header.
    lengths: &'a [[u8; 2]],
    header_bytes: usize,
    data: &'a [u8],
}

impl<'a> Image<'a> {
    /// Reads the header; `data` is the whole bonus (or spill block), trailing bytes are ignored.
    ///
    /// # Errors
    /// Another magic, or a header longer than the data.
    pub fn decode(data: &'a [u8], order: Order) -> Result<Self> {
        let mut reader = Reader::new(STRUCTURE, data, order);
        let magic = reader.u32()?;
        if magic != MAGIC {
            return Err(Error::new(STRUCTURE, 0, Reason::BadMagic { found: magic.into() }));
        }
        let info = reader.u16()?;
        let header_bytes = usize::from(info >> 10).saturating_mul(8);
        let Some(lengths) = data.get(6..header_bytes) else {
            let reason = Reason::OutOfRange { field: "header size", value: header_bytes as u64 };
            return Err(Error::new(STRUCTURE, 4, reason));
        };
        Ok(Self { order, layout: info & LAYOUT_MASK, lengths: lengths.as_chunks().0, header_bytes, data })
    }

    /// Number of the layout.
    #[must_use]
    pub fn layout(&self) -> u16 {
        self.layout
    }

    /// The byte order of the values.
    #[must_use]
    pub fn order(&self) -> Order {
        self.order
    }

    /// All attributes with their bytes, in storage order, under `layout` (that of [`layout`](Self::layout)).
    /// After the first error there are no more.
    ///
    /// # Errors
    /// (Per item) an attribute the registry does not know, a missing length, or a value beyond the end.
    #[must_use]
    pub fn attributes<'l>(&self, layout: &'l [u16], registry: &'l Registry) -> Attributes<'a, 'l> {
        Attributes { image: *self, layout, registry, position: self.header_bytes, variable: 0 }
    }

    /// The bytes of one attribute; `None` if the layout has not got it.
    ///
    /// # Errors
    /// As [`attributes`](Self::attributes).
    pub fn find(&self, number: u16, layout: &[u16], registry: &Registry) -> Result<Option<&'a [u8]>> {
        for attribute in self.attributes(layout, registry) {
            let (found, bytes) = attribute?;
            if found == number {
                return Ok(Some(bytes));
            }
        }
        Ok(None)
    }
}

/// Iterator over the attributes of an [`Image`].
#[derive(Clone, Debug)]
pub struct Attributes<'a, 'l> {
    image: Image<'a>,
    layout: &'l [u16],
    registry: &'l Registry,
    position: usize,
    variable: usize,
}

impl<'a> Attributes<'a, '_> {
    fn step(&mut self, number: u16) -> Result<(u16, &'a [u8])> {
        let error = |reason| Error::new(STRUCTURE, self.position, reason);
        let unknown = Reason::Unsupported { field: "attribute", value: number.into() };
        let attribute = self.registry.get(number).ok_or(error(unknown))?;
        let length = match attribute.length {
            Some(length) => length,
            None => {
                let length = self.image.lengths.get(self.variable);
                let length =
                    length.ok_or(error(Reason::Inconsistent("a variable attribute has no length")))?;
                self.variable = self.variable.saturating_add(1);
                self.image.order.u16(*length)
            }
        };
        let rest = self.image.data.get(self.position..).unwrap_or_default();
        let length = usize::from(length);
        let truncated =
            Error::new(STRUCTURE, self.position, Reason::Truncated { need: length, have: rest.len() });
        let bytes = rest.get(..length).ok_or(truncated)?;
        self.position = self.position.saturating_add(length.next_multiple_of(8));
        Ok((number, bytes))
    }
}

impl<'a> Iterator for Attributes<'a, '_> {
    type Item = Result<(u16, &'a [u8])>;

    fn next(&mut self) -> Option<Self::Item> {
        let (number, rest) = self.layout.split_first()?;
        self.layout = rest;
        let item = self.step(*number);
        if item.is_err() {
            self.layout = &[];
        }
        Some(item)
    }
}

/// The image of these attributes, in this order, under layout number `layout`.
///
/// # Errors
/// An attribute the registry does not know, a value of another length than registered, or one longer than 64 KiB.
pub fn encode(layout: u16, values: &[(u16, &[u8])], registry: &Registry, order: Order) -> Result<Vec<u8>> {
    let mut lengths = Vec::new();
    for (number, bytes) in values {
        let unknown = Reason::Unsupported { field: "attribute", value: (*number).into() };
        let attribute = registry.get(*number).ok_or(Error::new(STRUCTURE, 0, unknown))?;
        let reason = Reason::OutOfRange { field: "attribute length", value: bytes.len() as u64 };
        let length = u16::try_from(bytes.len()).map_err(|_| Error::new(STRUCTURE, 0, reason.clone()))?;
        match attribute.length {
            None => lengths.push(length),
            Some(registered) if registered == length => {}
            Some(_) => return Err(Error::new(STRUCTURE, 0, reason)),
        }
    }
    if lengths.is_empty() {
        lengths.push(0); // the field of the first length exists always
    }
    let header_bytes = lengths.len().saturating_mul(2).saturating_add(6).next_multiple_of(8);
    let size_field = u16::try_from(header_bytes / 8).ok().filter(|size| *size < 64);
    let too_many = Reason::TooLarge { limit: 249, unit: "variable attributes" };
    let size_field = size_field.ok_or(Error::new(STRUCTURE, 0, too_many))?;
    let mut writer = Writer::new(order);
    writer.u32(MAGIC);
    writer.u16((layout & LAYOUT_MASK) | size_field << 10);
    for length in lengths {
        writer.u16(length);
    }
    writer.pad_to(header_bytes);
    for (_, bytes) in values {
        writer.bytes(bytes);
        writer.align(8);
    }
    Ok(writer.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registry() -> Registry {
        let mut registry = Registry::default();
        let attributes = [
            ("ZPL_MODE", 5, Class::U64, Some(8)),
            ("ZPL_SYMLINK", 17, Class::Bytes, None),
            ("ZPL_DACL_ACES", 19, Class::Acl, None),
        ];
        for (name, number, class, length) in attributes {
            registry.insert(name.as_bytes(), Attribute { number, class, length }.to_u64()).unwrap();
        }
        registry
    }

    #[test]
    fn a_registry_word_keeps_its_three_fields() {
        let attribute = Attribute { number: 15, class: Class::Bytes, length: Some(88) };
        assert_eq!(attribute.to_u64(), 88 << 24 | 3 << 16 | 15);
        assert_eq!(Attribute::from_u64(attribute.to_u64()), Ok(attribute));
        assert!(Attribute::from_u64(9 << 16).is_err());
    }

    #[test]
    fn variable_lengths_are_taken_in_layout_order() {
        let registry = registry();
        let aces = [7u8; 24];
        let values: [(u16, &[u8]); 3] = [(5, &0o755u64.to_be_bytes()), (19, &aces), (17, b"target")];
        let image = encode(6, &values, &registry, Order::Big).unwrap();
        assert_eq!(image.len(), 16 + 8 + 24 + 8, "two variable attributes make a header of 16 bytes");
        let decoded = Image::decode(&image, Order::Big).unwrap();
        assert_eq!(decoded.layout(), 6);
        let layout = [5, 19, 17];
        let back: Vec<_> = decoded.attributes(&layout, &registry).map(Result::unwrap).collect();
        assert_eq!(back, values);
        assert_eq!(decoded.find(17, &layout, &registry), Ok(Some(&b"target"[..])));
        assert_eq!(decoded.find(99, &layout, &registry), Ok(None));
    }

    #[test]
    fn a_layout_that_does_not_fit_the_image_is_an_error() {
        let registry = registry();
        let image = encode(2, &[(5, &[0; 8])], &registry, Order::Little).unwrap();
        let decoded = Image::decode(&image, Order::Little).unwrap();
        assert!(decoded.find(99, &[5, 5], &registry).is_err(), "beyond the end");
        assert!(decoded.find(99, &[4], &registry).is_err(), "not registered");
        assert!(decoded.find(99, &[17, 17], &registry).is_err(), "one length for two");
        assert!(encode(2, &[(5, &[0; 9])], &registry, Order::Little).is_err());
        assert!(Image::decode(&[0x5a, 0x50, 0x2f, 0, 2, 0, 0, 0], Order::Little).is_err(), "no header size");
    }
}
