//! Which properties there are: what `zfs get` and `zpool get` say to whoever names none. Programs read it, too, to know what
//! kind of value each has: after the line that begins with `PROPERTY` a line for each.

use server::pool::props::{
    Access, Definition,
    table::{DATASET, POOL},
};

use crate::{
    context::{Context, Usage},
    table::{Column, render},
};

/// What `program`, `zfs` or `zpool`, says of a `get` without a property.
pub(crate) fn none_named(program: &str, context: &Context) -> Usage {
    let (list, besides) = match program {
        // They have nobody to inherit from.
        "zpool" => (list(POOL, false), "feature@FEATURE"),
        _ => (list(DATASET, true), "written@SNAPSHOT"),
    };
    let Usage(usage) = context.usage(&[program, "get"], "missing property argument");
    Usage(format!(
        "{usage}\n\nThe properties are:\n\n{list}\nBesides: {besides}, and users' own, which have a colon \
         (org.example:note)."
    ))
}

/// What is chosen when a dataset is created is not edited.
fn list(table: &[Definition], with_inherit: bool) -> String {
    let yes_no = |is_so: bool| if is_so { "YES" } else { "NO" }.to_owned();
    let cells = |row: &Definition| -> Vec<String> {
        let is_inherited = row.access == Access::Inherit;
        let edit = yes_no(is_inherited || row.access == Access::Settable);
        let inherit = with_inherit.then(|| yes_no(is_inherited));
        [row.name.to_owned(), edit].into_iter().chain(inherit).chain([row.values.to_owned()]).collect()
    };
    let rows: Vec<Vec<String>> = table.iter().map(cells).collect();
    let inherit = with_inherit.then(|| Column::right("INHERIT", 0));
    let columns: Vec<Column> = [Column::left("PROPERTY"), Column::right("EDIT", 0)]
        .into_iter()
        .chain(inherit)
        .chain([Column::left("VALUES")])
        .collect();
    render(&columns, &rows, false).lines().map(|line| format!("\t{line}\n")).collect()
}
