//! Columns as OpenZFS prints them: two spaces between, padded to the widest cell, or tabs for scripts.

use std::fmt::Write as _;

use server::pool::text::{PAD_MAX, clean};

/// Which side a column's cells lean to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// A column's head.
#[derive(Clone, Debug)]
pub(crate) struct Column {
    /// Upper-case header.
    pub(crate) header: String,
    /// Numbers lean right.
    pub(crate) align: Align,
    /// At least this wide, whatever is in it.
    pub(crate) width_min: usize,
}

impl Column {
    pub(crate) fn left(header: &str) -> Self {
        Self { header: header.to_owned(), align: Align::Left, width_min: 0 }
    }

    pub(crate) fn right(header: &str, width_min: usize) -> Self {
        Self { header: header.to_owned(), align: Align::Right, width_min }
    }
}

/// `-H`: no header, one tab between cells. Otherwise aligned, the last column not padded.
pub(crate) fn render(columns: &[Column], rows: &[Vec<String>], scripted: bool) -> String {
    let mut out = String::new();
    if scripted {
        for row in rows {
            out.push_str(&row.join("\t"));
            out.push('\n');
        }
        return out;
    }
    render_between(columns, rows, "  ")
}

/// Aligned, with this between columns: for people, on a terminal.
pub(crate) fn render_between(columns: &[Column], rows: &[Vec<String>], separator: &str) -> String {
    let mut out = String::new();
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| clean(cell)).collect()).collect();
    let widths: Vec<usize> = columns
        .iter()
        .enumerate()
        .map(|(i, column)| {
            let widest = rows.iter().filter_map(|row| row.get(i)).map(|cell| cell.chars().count()).max();
            column.header.chars().count().max(column.width_min).max(widest.unwrap_or(0)).min(PAD_MAX)
        })
        .collect();
    let headers: Vec<String> = columns.iter().map(|column| column.header.clone()).collect();
    for row in std::iter::once(&headers).chain(&rows) {
        let mut line = String::new();
        for (i, (column, cell)) in columns.iter().zip(row).enumerate() {
            if i > 0 {
                line.push_str(separator);
            }
            let width = widths.get(i).copied().unwrap_or(0);
            match column.align {
                Align::Left if i + 1 == columns.len() => line.push_str(cell),
                Align::Left => write!(line, "{cell:<width$}").expect("a String takes any text"),
                Align::Right => write!(line, "{cell:>width$}").expect("a String takes any text"),
            }
        }
        out.push_str(&line);
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_looks_as_openzfs_prints_it() {
        let columns = [Column::left("NAME"), Column::right("SIZE", 5), Column::left("ALTROOT")];
        let rows = [vec!["tank".into(), "112M".into(), "-".into()]];
        assert_eq!(render(&columns, &rows, false), "NAME   SIZE  ALTROOT\ntank   112M  -\n");
        assert_eq!(render(&columns, &rows, true), "tank\t112M\t-\n");
    }

    /// What is wider than `format!` can pad to made the command panic: the name of a pool, say, from a strange disk.
    #[test]
    fn a_long_cell_is_shown_like_any_other() {
        let long = "x".repeat(70_000);
        let rows = [vec![long.clone(), "ONLINE".into()]];
        let text = render(&[Column::left("NAME"), Column::left("HEALTH")], &rows, false);
        assert!(text.ends_with(&format!("\n{long}  ONLINE\n")));
    }

    /// The value of a property went to the terminal as it was, whoever had set it. Scripts get what is there.
    #[test]
    fn no_cell_is_a_command_to_a_terminal_or_a_line() {
        let rows = [vec!["tank".into(), "a\u{1b}[2J\nlake".into()]];
        let columns = [Column::left("NAME"), Column::left("VALUE")];
        assert_eq!(render(&columns, &rows, false), "NAME  VALUE\ntank  a\u{fffd}[2J\u{fffd}lake\n");
        assert_eq!(render(&columns, &rows, true), "tank\ta\u{1b}[2J\nlake\n");
    }
}
