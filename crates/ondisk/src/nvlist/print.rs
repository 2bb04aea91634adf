//! A list as text, indented the way `zdb` shows labels and configurations.

use std::fmt;

use super::{NvList, Value};

/// Spaces per level.
const INDENT: usize = 4;

impl NvList {
    /// Text with `indent` spaces before each line.
    #[must_use]
    pub fn display(&self, indent: usize) -> impl fmt::Display + '_ {
        Indented { list: self, indent }
    }
}

struct Indented<'a> {
    list: &'a NvList,
    indent: usize,
}

impl fmt::Display for Indented<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print(f, self.list, self.indent)
    }
}

impl fmt::Display for NvList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print(f, self, 0)
    }
}

fn print(f: &mut fmt::Formatter<'_>, list: &NvList, indent: usize) -> fmt::Result {
    for (name, value) in list.iter() {
        print_pair(f, name, value, indent)?;
    }
    Ok(())
}

fn print_pair(f: &mut fmt::Formatter<'_>, name: &str, value: &Value, indent: usize) -> fmt::Result {
    let deeper = indent.saturating_add(INDENT);
    let line =
        |f: &mut fmt::Formatter<'_>, value: &dyn fmt::Display| writeln!(f, "{:indent$}{name}: {value}", "");
    match value {
        Value::Boolean => writeln!(f, "{:indent$}{name}", ""),
        Value::Byte(v) | Value::Uint8(v) => line(f, v),
        Value::Int8(v) => line(f, v),
        Value::Int16(v) => line(f, v),
        Value::Uint16(v) => line(f, v),
        Value::Int32(v) => line(f, v),
        Value::Uint32(v) => line(f, v),
        Value::Int64(v) | Value::HrTime(v) => line(f, v),
        Value::Uint64(v) => line(f, v),
        Value::BooleanValue(v) => line(f, v),
        Value::String(text) => line(f, &format_args!("'{text}'")),
        Value::NvList(list) => {
            writeln!(f, "{:indent$}{name}:", "")?;
            print(f, list, deeper)
        }
        Value::NvListArray(lists) => {
            for (index, list) in lists.iter().enumerate() {
                writeln!(f, "{:indent$}{name}[{index}]:", "")?;
                print(f, list, deeper)?;
            }
            Ok(())
        }
        Value::StringArray(texts) => {
            for (index, text) in texts.iter().enumerate() {
                writeln!(f, "{:indent$}{name}[{index}]: '{text}'", "")?;
            }
            Ok(())
        }
        Value::ByteArray(values) | Value::Uint8Array(values) => elements(f, name, values, indent),
        Value::Int8Array(values) => elements(f, name, values, indent),
        Value::Int16Array(values) => elements(f, name, values, indent),
        Value::Uint16Array(values) => elements(f, name, values, indent),
        Value::Int32Array(values) => elements(f, name, values, indent),
        Value::Uint32Array(values) => elements(f, name, values, indent),
        Value::Int64Array(values) => elements(f, name, values, indent),
        Value::Uint64Array(values) => elements(f, name, values, indent),
        Value::BooleanArray(values) => elements(f, name, values, indent),
    }
}

/// One line for each element.
fn elements<T: fmt::Display>(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    values: &[T],
    indent: usize,
) -> fmt::Result {
    for (index, value) in values.iter().enumerate() {
        writeln!(f, "{:indent$}{name}[{index}]: {value}", "")?;
    }
    Ok(())
}
