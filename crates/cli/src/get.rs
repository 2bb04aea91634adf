//! What `zpool get` and `zfs get` have in common: which properties are asked for, and how they are shown, as rows or as JSON.
//!
//! Not here: which things are asked about, and which names there are. These are the programs' own.

use serde_json::{Map, Value};
use server::api::{Property, SourceKind};

use crate::{
    context::{Context, Usage},
    json,
    table::{Column, render},
};

/// Properties of one thing by name, those that it does not have among them.
pub(crate) type Chosen = Vec<(String, Option<Property>)>;

/// The names in a list of them, as `full_name` makes them whole; none if `all` is among them.
pub(crate) fn asked(
    list: &str,
    full_name: impl Fn(&str) -> Result<String, Usage>,
) -> Result<Vec<String>, Usage> {
    let (all, named): (Vec<&str>, Vec<&str>) = list.split(',').partition(|name| *name == "all");
    let named = named.into_iter().map(full_name).collect::<Result<_, _>>()?;
    Ok(if all.is_empty() { named } else { Vec::new() })
}

/// Those of a thing with this name that were asked for; `property` is how it finds its own.
pub(crate) fn choose<'a>(
    asked: &[String],
    name: &str,
    property: impl Fn(&str) -> Option<&'a Property>,
) -> Chosen {
    let find = |wanted: &String| match wanted.as_str() {
        "name" => Some(own_name(name)),
        wanted => property(wanted).cloned(),
    };
    asked.iter().map(|wanted| (wanted.clone(), find(wanted))).collect()
}

/// All of these.
pub(crate) fn choose_all<'a>(properties: impl Iterator<Item = &'a Property>) -> Chosen {
    properties.map(|property| (property.name.clone(), Some(property.clone()))).collect()
}

/// The name of a thing, as if it were a property.
fn own_name(name: &str) -> Property {
    Property {
        name: "name".to_owned(),
        value: name.to_owned(),
        exact: name.to_owned(),
        source: SourceKind::None,
        inherited_from: None,
        received: None,
    }
}

/// A thing in JSON, with these properties.
pub(crate) fn with_properties(mut thing: Map<String, Value>, chosen: Chosen, exact: bool) -> Value {
    let shown = |(name, property): (String, Option<Property>)| {
        (name, property.map_or_else(json::absent, |property| json::property(&property, exact)))
    };
    let properties: Map<String, Value> = chosen.into_iter().map(shown).collect();
    thing.insert("properties".to_owned(), Value::Object(properties));
    Value::Object(thing)
}

/// A column of `get`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    Name,
    Property,
    Value,
    Received,
    Source,
}

impl Field {
    /// What `-o` says; `all` is everything.
    pub(crate) fn parse(
        asked: &[String],
        context: &Context,
        program: &'static str,
    ) -> Result<Vec<Self>, Usage> {
        if asked.is_empty() {
            return Ok(vec![Self::Name, Self::Property, Self::Value, Self::Source]);
        }
        let mut fields = Vec::new();
        for word in asked {
            match word.as_str() {
                "name" => fields.push(Self::Name),
                "property" => fields.push(Self::Property),
                "value" => fields.push(Self::Value),
                // Nothing of a pool is received.
                "received" if program == "zfs" => fields.push(Self::Received),
                "source" => fields.push(Self::Source),
                "all" => {
                    fields.extend([Self::Name, Self::Property, Self::Value]);
                    fields.extend((program == "zfs").then_some(Self::Received));
                    fields.push(Self::Source);
                }
                other => {
                    return Err(context.usage(&[program, "get"], &format!("invalid column name '{other}'")));
                }
            }
        }
        Ok(fields)
    }

    /// Its column. `width_value` is the least width for values.
    fn column(self, width_value: usize) -> Column {
        match self {
            Self::Name => Column::left("NAME"),
            Self::Property => Column::left("PROPERTY"),
            Self::Value => Column { width_min: width_value, ..Column::left("VALUE") },
            Self::Received => Column { width_min: width_value, ..Column::left("RECEIVED") },
            Self::Source => Column::left("SOURCE"),
        }
    }

    /// Its cell for a property, or for one that is not there.
    fn cell(self, of: &str, name: &str, property: Option<&Property>, exact: bool) -> String {
        match self {
            Self::Name => of.to_owned(),
            Self::Property => name.to_owned(),
            Self::Value => property.map_or("-", |property| property.shown(exact)).to_owned(),
            Self::Received => property.and_then(|p| p.received.as_deref()).unwrap_or("-").to_owned(),
            Self::Source => property.map_or("-".to_owned(), Property::source_text),
        }
    }
}

/// The lines of `get`, one for each property of each thing.
pub(crate) struct Lines<'a> {
    fields: &'a [Field],
    exact: bool,
    width_value: usize,
    rows: Vec<Vec<String>>,
}

impl<'a> Lines<'a> {
    pub(crate) fn new(fields: &'a [Field], exact: bool) -> Self {
        Self { fields, exact, width_value: 0, rows: Vec::new() }
    }

    /// Those of the thing called `of`. `width` is how wide the values of a property are at least.
    pub(crate) fn add(&mut self, of: &str, chosen: &Chosen, width: impl Fn(&str) -> usize) {
        for (name, property) in chosen {
            self.width_value = self.width_value.max(width(name));
            let cells = self.fields.iter().map(|field| field.cell(of, name, property.as_ref(), self.exact));
            self.rows.push(cells.collect());
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub(crate) fn text(&self, scripted: bool) -> String {
        let columns: Vec<Column> = self.fields.iter().map(|field| field.column(self.width_value)).collect();
        render(&columns, &self.rows, scripted)
    }
}
