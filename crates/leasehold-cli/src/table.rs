//! Columns for people.

use std::fmt::Write as _;

use clap::builder::styling::Style;

/// Rows of text in aligned columns.
#[derive(Debug, Default)]
pub(crate) struct Table {
    header: Option<Vec<&'static str>>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// With a line of column names, or without.
    pub(crate) fn new(header: Option<&[&'static str]>) -> Self {
        Self { header: header.map(<[_]>::to_vec), rows: Vec::new() }
    }

    /// One more row.
    pub(crate) fn row(&mut self, row: Vec<String>) {
        self.rows.push(row.into_iter().map(|cell| cell.replace(char::is_control, " ")).collect());
    }

    /// The table as text; column names in bold if colours are wanted.
    pub(crate) fn render(&self, colors: bool) -> String {
        let header: Option<Vec<String>> =
            self.header.as_ref().map(|names| names.iter().copied().map(String::from).collect());
        let lines: Vec<&Vec<String>> = header.iter().chain(&self.rows).collect();
        let columns = lines.iter().map(|line| line.len()).max().unwrap_or(0);
        let width = |column: usize| {
            lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for (at, line) in lines.iter().enumerate() {
            let cells: Vec<String> =
                line.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}", width = *width)).collect();
            let line = cells.join("  ");
            let line = line.trim_end();
            let bold = if colors && at == 0 && header.is_some() { Style::new().bold() } else { Style::new() };
            let _infallible = writeln!(text, "{bold}{line}{bold:#}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align_and_lines_stay_lines() {
        let mut table = Table::new(Some(&["NAME", "N"]));
        table.row(vec!["a".into(), "10".into()]);
        table.row(vec!["ünï\ncode".into(), String::new()]);
        assert_eq!(table.render(false), "NAME      N\na         10\nünï code\n");
        assert_eq!(Table::new(None).render(true), "");
    }
}
