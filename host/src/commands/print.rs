//! Tables, lines and JSON on standard output. Texts of objects, plugins and servers come from
//! strangers: what a terminal would obey is taken out here and nowhere else. JSON escapes by itself.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

use anyhow::Result;
use serde::Serialize;

use crate::cli::Output;

/// Columns as wide as their widest cell, three spaces between.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(header: &[&str]) -> Self {
        Self { rows: vec![header.iter().map(ToString::to_string).collect()] }
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|cell| clean(&cell).into_owned()).collect());
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

/// A text for one line of a terminal: what would move the cursor, begin an escape sequence or turn
/// the direction of writing becomes a dot.
pub fn clean(text: &str) -> Cow<'_, str> {
    if text.chars().any(is_obeyed) {
        Cow::Owned(text.chars().map(|c| if is_obeyed(c) { '·' } else { c }).collect())
    } else {
        Cow::Borrowed(text)
    }
}

fn is_obeyed(c: char) -> bool {
    // The controls are C0, DEL and C1; the rest are direction marks and separators of lines.
    let unseen =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || unseen
}

/// Data goes to stdout; a reader that has left (`| head`) is not an error.
pub fn text(text: &str) -> Result<()> {
    Ok(write(&mut io::stdout().lock(), text)?)
}

fn write(out: &mut impl Write, text: &str) -> io::Result<()> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

pub fn value<T: Serialize>(output: Output, value: &T, table: impl FnOnce(&T) -> String) -> Result<()> {
    match output {
        Output::Json => text(&format!("{}\n", serde_json::to_string_pretty(value)?)),
        Output::Table => text(&table(value)),
    }
}

/// A sign that reads without colour, for the cells of a table.
pub fn sign(fine: bool) -> &'static str {
    if fine { "✓" } else { "✗" }
}

/// The sign for the beginning of a line, coloured where a terminal shows colours.
pub fn mark(fine: bool) -> &'static str {
    match (fine, io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none()) {
        (true, true) => "\x1b[32m✓\x1b[0m",
        (false, true) => "\x1b[31m✗\x1b[0m",
        (fine, false) => sign(fine),
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

    #[test]
    fn nothing_that_a_terminal_obeys_leaves_a_table() {
        let mut table = Table::new(&["NAME", "MESSAGE"]);
        table.row(["a\x1b[2Jb".into(), "one\ntwo\tthree\r\u{9b}31m\u{7f}".into()]);
        table.row(["\u{202e}gpj.exe".into(), "\u{2066}x\u{2069}\u{200f}\u{61c}\u{2028}".into()]);
        assert_eq!(table.render(), "NAME       MESSAGE\na·[2Jb     one·two·three··31m·\n·gpj.exe   ·x····\n");
    }

    #[test]
    fn texts_of_every_language_stay_as_they_are() {
        for text in ["größer – 完了 ✓", "שלום", "emoji 👩‍💻"] {
            assert!(matches!(clean(text), Cow::Borrowed(same) if same == text), "{text}");
        }
    }

    struct Failing(io::ErrorKind);

    impl Write for Failing {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(self.0.into())
        }
    }

    #[test]
    fn a_reader_that_has_left_is_fine_and_a_full_disk_is_not() {
        assert!(write(&mut Failing(io::ErrorKind::BrokenPipe), "x").is_ok());
        assert!(write(&mut Failing(io::ErrorKind::StorageFull), "x").is_err());
    }
}
