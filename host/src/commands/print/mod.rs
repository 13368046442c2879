//! Tables, lines and JSON on standard output. Texts of objects, plugins and servers come from outside: control
//! characters that a terminal would obey are removed here and nowhere else. JSON escapes by itself.

pub mod line_diff;
pub mod progress;

use std::borrow::Cow;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::Result;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use super::{End, Ended};
use crate::cli::Output;

/// A command that waits holds a connection of the controller: it lets go of it this soon after its reader left.
const LOOK_FOR_READER: Duration = Duration::from_secs(1);

/// Cells are not made narrower than this: a shorter one tells nothing.
const NARROWEST: usize = 12;
/// Columns that are never shortened: half of a time is none. Where a line is too long they go without the part of UTC.
const TIMES: [&str; 14] = [
    "AT",
    "CHANGED",
    "DELETED",
    "FIRST SEEN",
    "LAST",
    "LAST EVENT",
    "LAST SEEN",
    "NEWEST",
    "OBSERVED",
    "OLDEST",
    "RECORDED",
    "SINCE",
    "UNTIL",
    "TOLD AT",
];
/// What is typed again: it gives way after all others.
const NAME: &str = "NAME";
/// Spaces between two columns.
const BETWEEN: usize = 3;

/// Columns as wide as their widest cell. On a terminal that is narrower, the middle of long cells is left out, then spare
/// columns, then the middle of names, and at last the columns at the right. What is left has the whole width.
pub struct Table {
    rows: Vec<Vec<String>>,
    /// Columns of characters; `None` where nothing bounds them.
    within: Option<usize>,
    /// Names of columns that a narrow terminal goes without, the first of these first.
    spare: &'static [&'static str],
    /// A column whose cells stand on lines of their own, above the rows that they are about, where it has no room.
    above: Option<&'static str>,
}

impl Table {
    pub fn new(header: &[&str]) -> Self {
        let rows = vec![header.iter().map(ToString::to_string).collect()];
        Self { rows, within: screen(), spare: &[], above: None }
    }

    /// With every cell as it is, however narrow the terminal.
    pub fn whole(self, whole: bool) -> Self {
        Self { within: self.within.filter(|_| !whole), ..self }
    }

    pub fn spare(self, spare: &'static [&'static str]) -> Self {
        Self { spare, ..self }
    }

    pub fn above(self, column: &'static str) -> Self {
        Self { above: Some(column), ..self }
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|cell| clean(&cell).into_owned()).collect());
    }

    pub fn is_empty(&self) -> bool {
        self.rows.len() == 1
    }

    pub fn render(&self) -> String {
        self.render_from(0)
    }

    /// The rows from this one on (0 is the header), in the columns of the whole.
    pub fn render_from(&self, first: usize) -> String {
        let Layout { widths, utc } = self.layout();
        let mut text = String::new();
        for (index, row) in self.rows.iter().enumerate().skip(first) {
            if let Some(heading) = self.heading(index, &widths) {
                text.push_str(&format!("{}\n", shortened(heading, self.within.unwrap_or(usize::MAX))));
            }
            let mut line = String::new();
            let cells = row.iter().zip(&self.rows[0]).zip(&widths);
            for ((cell, name), width) in cells.filter(|(_, width)| **width > 0) {
                let cell = shortened(told(name, cell, utc), *width);
                line.push_str(&cell);
                line.extend(std::iter::repeat_n(' ', width + BETWEEN - cell.chars().count()));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    /// What stands above a row, if it is not what the row before is about.
    fn heading(&self, row: usize, widths: &[usize]) -> Option<&str> {
        let column = self.rows[0].iter().position(|name| Some(name.as_str()) == self.above)?;
        let is_told = row == 0 || widths[column] > 0 || self.rows[row][column] == self.rows[row - 1][column];
        (!is_told).then(|| self.rows[row][column].as_str())
    }

    /// The first of the layouts that fits.
    fn layout(&self) -> Layout {
        let whole = self.widest(true);
        let Some(within) = self.within else { return Layout { widths: whole, utc: true } };
        let local = self.widest(false);
        let names = &self.rows[0];
        let spare = self.spare.iter().filter_map(|spare| names.iter().position(|name| name == spare));
        let mut given_up: Vec<_> = spare.collect();
        let spares = given_up.len();
        // The first column and the name say what a line is about.
        let at_the_right = (1..names.len()).rev().filter(|column| names[*column] != NAME);
        given_up.extend(at_the_right.filter(|column| !self.spare.contains(&names[*column].as_str())));
        let with_names = (0..=spares).map(|left_out| (left_out, false));
        let tries = with_names.chain((spares..=given_up.len()).map(|left_out| (left_out, true)));
        let with_utc = std::iter::once((whole, true, (0, false)));
        let mut last = Layout::default();
        for (mut widths, utc, (left_out, may_names)) in
            with_utc.chain(tries.map(|it| (local.clone(), false, it)))
        {
            given_up[..left_out].iter().for_each(|column| widths[*column] = 0);
            shrink(names, &mut widths, within, |name| name != NAME);
            shrink(names, &mut widths, within, |_| may_names);
            last = Layout { widths, utc };
            if taken(&last.widths) <= within {
                return last;
            }
        }
        last
    }

    /// How wide the widest cell of each column is.
    fn widest(&self, utc: bool) -> Vec<usize> {
        let names = self.rows[0].iter().enumerate();
        let widest = names.map(|(column, name)| {
            self.rows.iter().map(|row| told(name, &row[column], utc).chars().count()).max()
        });
        widest.map(Option::unwrap_or_default).collect()
    }

    /// Rows, the header included.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Leaves the header and the newest rows, whose widths the next ones are laid out by.
    pub fn keep_newest(&mut self, rows: usize) {
        let old = self.rows.len().saturating_sub(rows + 1);
        self.rows.drain(1..=old);
    }
}

#[derive(Default)]
struct Layout {
    /// A column of width 0 is left out.
    widths: Vec<usize>,
    /// Whether times have that of UTC beside them.
    utc: bool,
}

/// A cell, without the part of UTC of a time where there is no space for it.
fn told<'a>(column: &str, cell: &'a str, utc: bool) -> &'a str {
    match cell.split_once(" (") {
        Some((local, beside)) if !utc && TIMES.contains(&column) && beside.ends_with("Z)") => local,
        _ => cell,
    }
}

/// Takes from the widest of these columns until all fit, or none has more to give.
fn shrink(names: &[String], widths: &mut [usize], within: usize, may: impl Fn(&str) -> bool) {
    while taken(widths) > within {
        let may_give = |(name, width): &(&String, &mut usize)| {
            **width > NARROWEST && !TIMES.contains(&name.as_str()) && may(name)
        };
        let columns = names.iter().zip(&mut *widths).filter(may_give);
        let Some((_, widest)) = columns.max_by_key(|(_, width)| **width) else { return };
        *widest -= 1;
    }
}

/// How wide a line is.
fn taken(widths: &[usize]) -> usize {
    let shown = widths.iter().filter(|width| **width > 0).count();
    widths.iter().sum::<usize>() + BETWEEN * shown.saturating_sub(1)
}

/// Both ends of a text: names differ at their ends, and messages begin with what they are about.
fn shortened(cell: &str, width: usize) -> Cow<'_, str> {
    let count = cell.chars().count();
    if count <= width {
        return Cow::Borrowed(cell);
    }
    let kept = width.saturating_sub(1);
    let (head, tail) = (kept.div_ceil(2), kept / 2);
    let ends = cell.chars().take(head).chain(['…']).chain(cell.chars().skip(count - tail));
    Cow::Owned(ends.collect())
}

/// How wide the terminal of standard output is. A file or another program gets every character.
fn screen() -> Option<usize> {
    let stdout = io::stdout();
    if cfg!(test) || !stdout.is_terminal() {
        return None;
    }
    width_of(&stdout)
}

/// How wide a terminal is: COLUMNS goes first.
pub fn width_of(terminal: &impl AsFd) -> Option<usize> {
    let named = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let asked = || rustix::termios::tcgetwinsize(terminal).ok().map(|size| usize::from(size.ws_col));
    named.or_else(asked).filter(|columns| *columns > 0)
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

/// For what goes on until somebody ends it: a reader that has left ends it as well.
pub fn line_of_many(line: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(line.as_bytes()).and_then(|()| out.flush()) {
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

/// Returns once the reader of standard output has left, also while nothing is written.
async fn reader_left() {
    loop {
        tokio::time::sleep(LOOK_FOR_READER).await;
        let stdout = io::stdout();
        let mut asked = [PollFd::new(&stdout, PollFlags::empty())];
        // A pipe without a reader is in error; what can't be asked has not left.
        let answer = poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        if answer.is_ok() && asked[0].revents().contains(PollFlags::ERR) {
            return;
        }
    }
}

/// Runs what goes on until somebody ends it. It ends well once its reader has left.
pub async fn until_reader_leaves(going_on: impl Future<Output = Ended>) -> Ended {
    let ended = tokio::select! {
        ended = going_on => ended,
        () = reader_left() => Ok(End::Fine),
    };
    match ended {
        Err(error) if error.is::<ReaderLeft>() => Ok(End::Fine),
        ended => ended,
    }
}

fn write(out: &mut impl Write, text: &str) -> io::Result<()> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// For what has no more to show than its table.
pub fn value<T: Serialize>(output: Output, value: &T, table: impl FnOnce(&T) -> String) -> Result<()> {
    wide(output, value, |value, _| table(value))
}

/// `table` is told whether every column is wanted.
pub fn wide<T: Serialize>(output: Output, value: &T, table: impl FnOnce(&T, bool) -> String) -> Result<()> {
    text(&shown(output, value, table)?)
}

/// What [`wide`] prints.
pub fn shown<T: Serialize>(
    output: Output,
    value: &T,
    table: impl FnOnce(&T, bool) -> String,
) -> Result<String> {
    Ok(match output {
        Output::Json => format!("{}\n", serde_json::to_string_pretty(value)?),
        Output::Yaml => yaml(value)?,
        Output::Table => table(value, false),
        Output::Wide => table(value, true),
    })
}

pub fn yaml<T: Serialize>(value: &T) -> Result<String> {
    // By way of JSON's own types, so that a field has one form in both.
    let value = serde_json::to_value(value)?;
    let mut text = serde_saphyr::to_string(&value)?;
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}

/// `850 ms`, `12 s`, `3 m`, `2 h`, `4 d`: for a column, so with one unit.
pub fn age(seconds: f64) -> String {
    match seconds.max(0.0) {
        s if s < 1.0 => format!("{:.0} ms", s * 1000.0),
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{:.0} m", (s / 60.0).floor()),
        s if s < 172_800.0 => format!("{:.0} h", (s / 3600.0).floor()),
        s => format!("{:.0} d", (s / 86_400.0).floor()),
    }
}

/// What does not fit into a column, below the table. Several faults come as several lines; those
/// after the first are set in, so that none can pass for a remark about something else.
pub fn remarks<A: AsRef<str>, B: AsRef<str>>(remarks: impl IntoIterator<Item = (A, B)>) -> String {
    let mut text = String::new();
    for (name, remark) in remarks {
        let mut lines = remark.as_ref().lines();
        text.push_str(&format!("{}: {}\n", clean(name.as_ref()), clean(lines.next().unwrap_or_default())));
        lines.for_each(|line| text.push_str(&format!("    {}\n", clean(line))));
    }
    text
}

/// A sign that reads without colour, for the cells of a table.
pub fn sign(fine: bool) -> &'static str {
    if fine { "✓" } else { "✗" }
}

/// Whether standard output shows colours: a terminal does, unless NO_COLOR or TERM says otherwise.
pub fn is_coloured() -> bool {
    let is = |name: &str, value: &str| std::env::var_os(name).is_some_and(|found| found == value);
    let is_set = std::env::var_os("NO_COLOR").is_some() && !is("NO_COLOR", "");
    io::stdout().is_terminal() && !is_set && !is("TERM", "dumb")
}

/// The sign for the beginning of a line, coloured where a terminal shows colours.
pub fn mark(fine: bool) -> &'static str {
    match (fine, is_coloured()) {
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
    fn rows_that_come_later_stand_in_the_same_columns() {
        let mut table = Table::new(&["NAME", "PHASE"]);
        table.row(["a-long-name".into(), "Running".into()]);
        let shown = table.len();
        table.row(["b".into(), "Failed".into()]);
        assert_eq!(table.render_from(shown), "b             Failed\n");
        table.keep_newest(1);
        assert_eq!(table.render(), "NAME   PHASE\nb      Failed\n");
        table.keep_newest(5);
        assert_eq!(table.len(), 2);
    }

    #[test]
    fn a_narrow_terminal_keeps_names_whole_and_goes_without_spare_columns() {
        let header = ["PHASE", "NAMESPACE", "NAME", "ATTEMPT", "READY", "REASON", "DELETED"];
        let mut table = Table::new(&header).spare(&["READY", "ATTEMPT"]);
        let name = "llama-70b-464h-ab";
        let reason = "BackoffLimitExceeded";
        table
            .row(["Running", "team-vision", name, "1", "1/1", reason, "2026-11-25 11:04"].map(str::to_owned));
        for (within, has_attempt) in [(85, true), (80, false)] {
            table.within = Some(within);
            let text = table.render();
            assert!(text.contains(name) && text.contains("DELETED") && !text.contains("READY"), "{text}");
            assert!(text.lines().all(|line| line.chars().count() <= within), "{text}");
            assert_eq!(text.contains("ATTEMPT"), has_attempt, "{text}");
        }
    }

    #[test]
    fn a_narrow_terminal_gets_both_ends_of_long_cells() {
        let mut table = Table::new(&["NAMESPACE", "NAME", "PHASE", "REASON", "DELETED"]);
        let name = "llama-70b-finetune-with-a-long-name-r7k2x";
        table.row([
            "team-vision".into(),
            name.into(),
            "Failed".into(),
            "BackoffLimitExceeded".into(),
            "2026-11-25 11:04:21 (10:04:21Z)".into(),
        ]);
        table.row(["a".into(), "größe-完了".into(), "Running".into(), String::new(), String::new()]);
        let mut golden = String::new();
        for within in [Some(130), Some(120), Some(80), Some(60), Some(40), None] {
            table.within = within;
            golden.push_str(&format!("within {within:?}\n{}\n", table.render()));
            let widest = table.render().lines().map(|line| line.chars().count()).max();
            assert!(within.is_none_or(|within| widest <= Some(within)), "{golden}");
        }
        golden.push_str(&table.whole(true).render());
        assert_eq!(golden, include_str!("../golden/narrow.txt"));
    }

    #[test]
    fn no_name_is_cut_for_more_than_the_terminal_lacks_and_what_has_no_column_stands_above_its_rows() {
        let mut table = Table::new(&["SEQ", "OBSERVED", "OBJECT", "PHASE", "REASON"]).spare(&["OBJECT"]);
        for (seq, object) in [("7", "Job/llama-70b"), ("8", "Job/llama-70b"), ("9", "Pod/llama-70b-0")] {
            let [time, reason] = ["2026-11-20 13:45:11Z", "BackoffLimitExceeded"];
            table.row([seq, time, object, "Running", reason].map(str::to_owned));
        }
        table.within = Some(40);
        let table = table.above("OBJECT");
        let text = "SEQ   OBSERVED               PHASE\n\
            Job/llama-70b\n7     2026-11-20 13:45:11Z   Running\n8     2026-11-20 13:45:11Z   Running\n\
            Pod/llama-70b-0\n9     2026-11-20 13:45:11Z   Running\n";
        assert_eq!(table.render(), text);
        assert!(table.render_from(2).starts_with("8  "), "a row that comes later repeats no heading");

        let mut table = Table::new(&["NAMESPACE", "NAME", "PHASE", "REASON"]);
        let name = "llama-70b-finetune-with-a-long-name-r7k2x";
        table.row(["team-vision", name, "Running", "BackoffLimitExceeded"].map(str::to_owned));
        for within in [40, 50, 60, 65] {
            table.within = Some(within);
            let widest = table.render().lines().map(|line| line.chars().count()).max();
            assert_eq!(widest, Some(within), "{}", table.render());
        }
    }

    #[test]
    fn a_time_is_shown_whole_or_not_at_all() {
        for name in TIMES {
            let mut table = Table::new(&["PLUGIN", name, "MESSAGE"]);
            let (local, utc) = ("2026-11-25 00:04:21", "(2026-11-24 23:04:21Z)");
            table.row(["sql".into(), format!("{local} {utc}"), "a message of some length".into()]);
            for within in 10..100 {
                table.within = Some(within);
                let text = table.render();
                assert!(text.lines().all(|line| line.chars().count() <= within), "{within}\n{text}");
                assert_eq!(text.contains("2026"), text.contains(local), "{within}\n{text}");
                assert_eq!(text.contains('('), text.contains(utc), "{within}\n{text}");
            }
        }
    }

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
        let told: Vec<_> = [0.25, 12.0, 119.4, 200.0, 7500.0, 356_400.0].map(age).into();
        assert_eq!(told, ["250 ms", "12 s", "119 s", "3 m", "2 h", "4 d"]);
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
