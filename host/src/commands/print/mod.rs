//! Tables, lines and JSON on standard output, and notes on standard error.
//!
//! Texts of objects come from strangers, and a terminal interprets control characters in them. `println!`
//! would also panic once the reader of a pipe leaves (`| head`). So nothing else in the program writes to
//! these streams, and a lint enforces it. Everything passes the filters of `terminal`. A reader that leaves
//! ends a command without an error.

pub mod line_diff;
pub mod progress;
mod table;
mod terminal;

use std::borrow::Cow;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::LazyLock;
use std::time::Duration;

use anyhow::Result;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

pub use self::table::TextTable;
pub use self::terminal::{JsonEscaper, clean_line, escaped_json};
use super::{CommandEnd, CommandResult};
use crate::cli::Output;

/// A command that waits holds a connection to the controller. It releases it this soon after its reader has
/// left.
const LOOK_FOR_READER: Duration = Duration::from_secs(1);

/// The width of a terminal: `COLUMNS` takes precedence.
pub fn width_of(terminal: &impl AsFd) -> Option<usize> {
    let named = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let asked = || rustix::termios::tcgetwinsize(terminal).ok().map(|size| usize::from(size.ws_col));
    named.or_else(asked).filter(|columns| *columns > 0)
}

/// A line for a person: progress, warnings, errors. `note!` calls it.
pub fn note_line(line: fmt::Arguments<'_>) {
    // Nobody reads it: that is no reason to stop, and it can't be reported anywhere else.
    write(&mut io::stderr().lock(), &format!("{}\n", terminal::clean_lines(&line.to_string()))).ok();
}

/// Writes a line on standard error, as `eprintln!` does, but without panics and without control characters
/// for the terminal.
macro_rules! note {
    ($($part:tt)*) => {
        $crate::commands::print::note_line(format_args!($($part)*))
    };
}
pub(crate) use note;

/// Data goes to standard output. A reader that has left (`| head`) is not an error.
pub fn text(text: &str) -> Result<()> {
    Ok(write(&mut io::stdout().lock(), &shown_text(text))?)
}

/// The same without filtering, for text that moves the cursor on purpose.
#[cfg(feature = "playground")]
pub fn print_unfiltered(text: &str) -> Result<()> {
    Ok(write(&mut io::stdout().lock(), text)?)
}

/// A file or another program gets every character.
fn shown_text(text: &str) -> Cow<'_, str> {
    if is_on_terminal() { terminal::clean_lines(text) } else { Cow::Borrowed(text) }
}

/// Whether standard output is a terminal.
pub fn is_on_terminal() -> bool {
    static IS: LazyLock<bool> = LazyLock::new(|| io::stdout().is_terminal());
    *IS
}

/// A line of a command that runs until somebody ends it. It also ends when its reader leaves.
pub fn line_of_many(line: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(shown_text(line).as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(ReaderLeft.into()),
        other => Ok(other?),
    }
}

/// Nobody reads standard output any more.
#[derive(Debug)]
struct ReaderLeft;

impl fmt::Display for ReaderLeft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nobody reads the output any more")
    }
}

impl std::error::Error for ReaderLeft {}

/// Returns once the reader of standard output has left, even if nothing is written.
async fn reader_left() {
    loop {
        tokio::time::sleep(LOOK_FOR_READER).await;
        let stdout = io::stdout();
        let mut asked = [PollFd::new(&stdout, PollFlags::empty())];
        // A pipe without a reader reports an error; if polling fails, the reader counts as present.
        let answer = poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        if answer.is_ok() && asked[0].revents().contains(PollFlags::ERR) {
            return;
        }
    }
}

/// Runs a command that has no end of its own. It ends well once its reader has left.
pub async fn until_reader_leaves(going_on: impl Future<Output = CommandResult>) -> CommandResult {
    let ended = tokio::select! {
        ended = going_on => ended,
        () = reader_left() => Ok(CommandEnd::Fine),
    };
    match ended {
        Err(error) if error.is::<ReaderLeft>() => Ok(CommandEnd::Fine),
        ended => ended,
    }
}

fn write(out: &mut impl Write, text: &str) -> io::Result<()> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// For output without more columns than its table.
pub fn print_value<T: Serialize>(output: Output, value: &T, table: impl FnOnce(&T) -> String) -> Result<()> {
    print_wide(output, value, |value, _| table(value))
}

/// `table` gets whether every column is wanted.
pub fn print_wide<T: Serialize>(
    output: Output,
    value: &T,
    table: impl FnOnce(&T, bool) -> String,
) -> Result<()> {
    text(&render_output(output, value, table)?)
}

/// Renders the text that [`print_wide`] prints.
pub fn render_output<T: Serialize>(
    output: Output,
    value: &T,
    table: impl FnOnce(&T, bool) -> String,
) -> Result<String> {
    Ok(match output {
        Output::Json => json(value)?,
        Output::Yaml => yaml(value)?,
        Output::Table => table(value, false),
        Output::Wide => table(value, true),
    })
}

/// Escaped for every reader: a program gets the same value, and a `| grep` may lead to a terminal.
pub fn json<T: Serialize>(value: &T) -> Result<String> {
    Ok(format!("{}\n", escaped_json(&serde_json::to_string_pretty(value)?)))
}

pub fn yaml<T: Serialize>(value: &T) -> Result<String> {
    // By way of JSON's own types, so that a field has the same form in both.
    let value = serde_json::to_value(value)?;
    let mut text = serde_saphyr::to_string(&value)?;
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}

/// `850 ms`, `12 s`, `3 m`, `2 h`, `4 d`: one unit only, for a column.
pub fn age_text(seconds: f64) -> String {
    match seconds.max(0.0) {
        s if s < 1.0 => format!("{:.0} ms", s * 1000.0),
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{:.0} m", (s / 60.0).floor()),
        s if s < 172_800.0 => format!("{:.0} h", (s / 3600.0).floor()),
        s => format!("{:.0} d", (s / 86_400.0).floor()),
    }
}

/// Prints remarks that don't fit into a column below the table. A remark with several lines has the later
/// ones indented, so that none looks like a remark about something else.
pub fn remarks_text<A: AsRef<str>, B: AsRef<str>>(remarks: impl IntoIterator<Item = (A, B)>) -> String {
    let mut text = String::new();
    for (name, remark) in remarks {
        let mut lines = remark.as_ref().lines();
        text.push_str(&format!(
            "{}: {}\n",
            clean_line(name.as_ref()),
            clean_line(lines.next().unwrap_or_default())
        ));
        lines.for_each(|line| text.push_str(&format!("    {}\n", clean_line(line))));
    }
    text
}

/// A sign for the cells of a table that is clear without colour.
pub fn sign_of(fine: bool) -> &'static str {
    if fine { "✓" } else { "✗" }
}

/// Whether standard output shows colours: on a terminal, unless NO_COLOR or TERM disables them.
pub fn is_coloured() -> bool {
    let is = |name: &str, value: &str| std::env::var_os(name).is_some_and(|found| found == value);
    let is_set = std::env::var_os("NO_COLOR").is_some() && !is("NO_COLOR", "");
    is_on_terminal() && !is_set && !is("TERM", "dumb")
}

/// The sign at the beginning of a line, coloured if the terminal shows colours.
pub fn coloured_mark(fine: bool) -> &'static str {
    match (fine, is_coloured()) {
        (true, true) => "\x1b[32m✓\x1b[0m",
        (false, true) => "\x1b[31m✗\x1b[0m",
        (fine, false) => sign_of(fine),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_yaml_would_take_for_something_else_stays_a_text() {
        let value = serde_json::json!({
            "a": "true", "b": "1.0", "c": null, "d": [1, -2.5, "no", "~", "", " x", "a: b", "#c", "- d"],
            "e": {"multi": "one\ntwo\n", "escape": "\u{1b}[2J", "empty": {}, "none": []}, "012": "0x1f",
        });
        let text = yaml(&value).unwrap();
        assert_eq!(serde_saphyr::from_str::<serde_json::Value>(&text).unwrap(), value, "{text}");
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }

    #[test]
    fn ages_have_one_unit() {
        let ages: Vec<_> = [0.25, 12.0, 119.4, 200.0, 7500.0, 356_400.0].map(age_text).into();
        assert_eq!(ages, ["250 ms", "12 s", "119 s", "3 m", "2 h", "4 d"]);
    }

    #[test]
    fn nothing_that_a_terminal_obeys_leaves_a_table() {
        let mut table = TextTable::new(&["NAME", "MESSAGE"]);
        table.push_row(["a\x1b[2Jb".into(), "one\ntwo\tthree\r\u{9b}31m\u{7f}".into()]);
        table.push_row(["\u{202e}gpj.exe".into(), "\u{2066}x\u{2069}\u{200f}\u{61c}\u{2028}".into()]);
        assert_eq!(table.render(), "NAME       MESSAGE\na·[2Jb     one·two·three··31m·\n·gpj.exe   ·x····\n");
    }

    struct FailingWriter(io::ErrorKind);

    impl Write for FailingWriter {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(self.0.into())
        }
    }

    #[test]
    fn a_reader_that_has_left_is_fine_and_a_full_disk_is_not() {
        assert!(write(&mut FailingWriter(io::ErrorKind::BrokenPipe), "x").is_ok());
        assert!(write(&mut FailingWriter(io::ErrorKind::StorageFull), "x").is_err());
    }
}
