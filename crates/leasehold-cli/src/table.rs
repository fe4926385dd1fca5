//! Columns for people.

use std::{fmt::Write as _, io::IsTerminal};

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

    /// The table as text; column names in bold if colours are wanted, lines cut where the terminal ends.
    pub(crate) fn render(&self, colors: bool, most: Option<usize>) -> String {
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
            let line = cut(line.trim_end(), most);
            let bold = if colors && at == 0 && header.is_some() { Style::new().bold() } else { Style::new() };
            let _infallible = writeln!(text, "{bold}{line}{bold:#}");
        }
        text
    }
}

/// The line as far as it fits.
fn cut(line: &str, most: Option<usize>) -> String {
    match most {
        Some(most) if line.chars().count() > most => line.chars().take(most.saturating_sub(1)).chain(['…']).collect(),
        _ => line.to_owned(),
    }
}

/// How many columns standard output has, if it is a terminal.
pub(crate) fn terminal_width() -> Option<usize> {
    let stdout = std::io::stdout();
    let size = stdout.is_terminal().then(|| rustix::termios::tcgetwinsize(&stdout).ok()).flatten()?;
    (size.ws_col > 0).then(|| size.ws_col.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align_and_lines_stay_lines() {
        let mut table = Table::new(Some(&["NAME", "N"]));
        table.row(vec!["a".into(), "10".into()]);
        table.row(vec!["ünï\ncode".into(), String::new()]);
        assert_eq!(table.render(false, None), "NAME      N\na         10\nünï code\n");
        assert_eq!(table.render(false, Some(6)), "NAME …\na    …\nünï c…\n");
        assert_eq!(Table::new(None).render(true, None), "");
    }
}
