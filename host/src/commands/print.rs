//! Tables and JSON on standard output.

use std::io::{self, IsTerminal, Write};

use anyhow::Result;
use serde::Serialize;

use crate::cli::Output;

/// Columns as wide as their widest cell, two spaces between, like kubectl's.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(header: &[&str]) -> Self {
        Self { rows: vec![header.iter().map(ToString::to_string).collect()] }
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    pub fn is_empty(&self) -> bool {
        self.rows.len() == 1
    }

    pub fn render(&self) -> String {
        let columns = self.rows[0].len();
        let width =
            |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<_> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                line.push_str(cell);
                line.extend(std::iter::repeat_n(' ', width + 3 - cell.chars().count()));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// Data goes to stdout; a reader that has left (`| head`) is not an error.
pub fn text(text: &str) -> Result<()> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

pub fn value<T: Serialize>(output: Output, value: &T, table: impl FnOnce(&T) -> String) -> Result<()> {
    match output {
        Output::Json => text(&format!("{}\n", serde_json::to_string_pretty(value)?)),
        Output::Table => text(&table(value)),
    }
}

/// A mark that also reads without colour.
pub fn mark(fine: bool) -> &'static str {
    match (fine, io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none()) {
        (true, true) => "\x1b[32m✓\x1b[0m",
        (false, true) => "\x1b[31m✗\x1b[0m",
        (true, false) => "✓",
        (false, false) => "✗",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_lines_do_not_end_in_spaces() {
        let mut table = Table::new(&["NAME", "PHASE"]);
        table.row(["a-long-name".into(), "Running".into()]);
        table.row(["b".into(), String::new()]);
        assert_eq!(table.render(), "NAME          PHASE\na-long-name   Running\nb\n");
    }
}
