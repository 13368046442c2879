//! Fits tables to the terminal: which columns shrink first, and which values are printed below the table.

use std::borrow::Cow;
use std::io::{self, IsTerminal};

use super::{clean_line, width_of};

/// Cells are not made narrower than this: a shorter one says nothing.
const NARROWEST: usize = 12;
/// Columns that are never shortened, because half a time is useless. If a line is too long, they lose the
/// part in UTC.
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
/// Columns that people type again: they are shortened after all others.
const NAMES: [&str; 2] = ["NAME", "OBJECT"];
/// A text for people gets at least this width, or lines of its own.
const READABLE: usize = 48;
/// The indentation of a text below its row.
const SET_IN: &str = "  ";
/// Spaces between two columns.
const BETWEEN: usize = 3;

/// Each column is as wide as its widest cell. On a narrower terminal, several steps follow until the table
/// fits. First texts move below their rows, then the middle of long cells is cut. Then spare columns are
/// dropped, then the middle of names is cut, and finally the columns at the right are dropped. The remaining
/// ones use the whole width.
pub struct TextTable {
    rows: Vec<Vec<String>>,
    /// The width in characters; `None` if unlimited.
    within: Option<usize>,
    /// Names of columns that are dropped on a narrow terminal, in this order.
    spare: &'static [&'static str],
    /// A column whose cells move to their own lines above their rows if the table is too wide.
    above: Option<&'static str>,
    /// A column of texts for people: they move to their own lines below their rows if the table is too wide.
    below: Option<&'static str>,
}

impl TextTable {
    pub fn new(header: &[&str]) -> Self {
        let rows = vec![header.iter().map(ToString::to_string).collect()];
        Self { rows, within: terminal_width(), spare: &[], above: None, below: None }
    }

    /// Keeps every cell unchanged, however narrow the terminal is.
    pub fn with_whole_cells(self, whole: bool) -> Self {
        Self { within: self.within.filter(|_| !whole), ..self }
    }

    pub fn with_spare_columns(self, spare: &'static [&'static str]) -> Self {
        Self { spare, ..self }
    }

    pub fn with_above(self, column: &'static str) -> Self {
        Self { above: Some(column), ..self }
    }

    pub fn with_below(self, column: &'static str) -> Self {
        Self { below: Some(column), ..self }
    }

    pub fn push_row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|cell| clean_line(&cell).into_owned()).collect());
    }

    pub fn is_empty(&self) -> bool {
        self.rows.len() == 1
    }

    pub fn render(&self) -> String {
        self.render_from(0)
    }

    /// The rows from this one on (0 is the header), in the layout of the whole table.
    pub fn render_from(&self, first: usize) -> String {
        let TableLayout { widths, utc } = self.first_fitting_layout();
        let mut text = String::new();
        for (index, row) in self.rows.iter().enumerate().skip(first) {
            if let Some(heading) = self.heading_of_row(index, &widths) {
                text.push_str(&format!("{}\n", shorten_middle(heading, self.within.unwrap_or(usize::MAX))));
            }
            let mut line = String::new();
            let cells = row.iter().zip(&self.rows[0]).zip(&widths);
            for ((cell, name), width) in cells.filter(|(_, width)| **width > 0) {
                let cell = shorten_middle(short_cell(name, cell, utc), *width);
                line.push_str(&cell);
                line.extend(std::iter::repeat_n(' ', width + BETWEEN - cell.chars().count()));
            }
            text.push_str(line.trim_end());
            text.push('\n');
            self.text_below(index, &widths).for_each(|line| text.push_str(&line));
        }
        text
    }

    /// The lines of a row's text without a column.
    fn text_below(&self, row: usize, widths: &[usize]) -> impl Iterator<Item = String> {
        let column = self.find_column(self.below).filter(|column| row > 0 && widths[*column] == 0);
        let within = self.within.unwrap_or(usize::MAX).saturating_sub(SET_IN.len());
        let lines = column.map(|column| wrap_text(&self.rows[row][column], within)).unwrap_or_default();
        lines.into_iter().map(|line| format!("{SET_IN}{line}\n"))
    }

    fn find_column(&self, named: Option<&str>) -> Option<usize> {
        named.and_then(|named| self.rows[0].iter().position(|name| name == named))
    }

    /// The line above a row, if it differs from that of the previous row.
    fn heading_of_row(&self, row: usize, widths: &[usize]) -> Option<&str> {
        let column = self.find_column(self.above)?;
        let is_told = row == 0 || widths[column] > 0 || self.rows[row][column] == self.rows[row - 1][column];
        (!is_told).then(|| self.rows[row][column].as_str())
    }

    /// The first of the layouts that fits.
    fn first_fitting_layout(&self) -> TableLayout {
        let whole = self.widest_cells(true);
        let Some(within) = self.within else { return TableLayout { widths: whole, utc: true } };
        let local = self.widest_cells(false);
        let names = &self.rows[0];
        let below = self.find_column(self.below);
        let spare = self.spare.iter().filter_map(|spare| names.iter().position(|name| name == spare));
        let mut given_up: Vec<_> = spare.collect();
        let spares = given_up.len();
        // The first column and the name identify a row.
        let at_the_right = (1..names.len()).rev().filter(|column| !is_name(&names[*column]));
        given_up.extend(at_the_right.filter(|column| !self.spare.contains(&names[*column].as_str())));
        let with_names = (0..=spares).map(|left_out| (left_out, false));
        let tries = with_names.chain((spares..=given_up.len()).map(|left_out| (left_out, true)));
        let with_utc = std::iter::once((whole, true, (0, false)));
        let mut last = TableLayout::default();
        for (mut widths, utc, (left_out, may_names)) in
            with_utc.chain(tries.map(|it| (local.clone(), false, it)))
        {
            given_up[..left_out].iter().for_each(|column| widths[*column] = 0);
            if let Some(below) = below {
                let least = widths[below].min(READABLE);
                let others = line_width(&widths) - widths[below];
                widths[below] = within
                    .checked_sub(others)
                    .filter(|room| *room >= least)
                    .map_or(0, |room| room.min(widths[below]));
            }
            shrink_widths(names, &mut widths, within, |name| !is_name(name));
            shrink_widths(names, &mut widths, within, |_| may_names);
            last = TableLayout { widths, utc };
            if line_width(&last.widths) <= within {
                return last;
            }
        }
        last
    }

    /// The width of the widest cell of each column.
    fn widest_cells(&self, utc: bool) -> Vec<usize> {
        let names = self.rows[0].iter().enumerate();
        let widest = names.map(|(column, name)| {
            self.rows.iter().map(|row| short_cell(name, &row[column], utc).chars().count()).max()
        });
        widest.map(Option::unwrap_or_default).collect()
    }

    /// Rows, the header included.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Keeps the header and the newest rows, whose widths determine the layout of the next ones.
    pub fn keep_newest(&mut self, rows: usize) {
        let old = self.rows.len().saturating_sub(rows + 1);
        self.rows.drain(1..=old);
    }
}

#[derive(Default)]
struct TableLayout {
    /// A column of width 0 is left out.
    widths: Vec<usize>,
    /// Whether times also have their UTC form.
    utc: bool,
}

fn is_name(column: &str) -> bool {
    NAMES.contains(&column)
}

/// A cell; a time loses its part in UTC if no space is left for it.
fn short_cell<'a>(column: &str, cell: &'a str, utc: bool) -> &'a str {
    match cell.split_once(" (") {
        Some((local, beside)) if !utc && TIMES.contains(&column) && beside.ends_with("Z)") => local,
        _ => cell,
    }
}

/// Narrows the widest of these columns until all fit, or until no column can become narrower.
fn shrink_widths(names: &[String], widths: &mut [usize], within: usize, may: impl Fn(&str) -> bool) {
    while line_width(widths) > within {
        let may_give = |(name, width): &(&String, &mut usize)| {
            **width > NARROWEST && !TIMES.contains(&name.as_str()) && may(name)
        };
        let columns = names.iter().zip(&mut *widths).filter(may_give);
        let Some((_, widest)) = columns.max_by_key(|(_, width)| **width) else { return };
        *widest -= 1;
    }
}

/// The width of a line.
fn line_width(widths: &[usize]) -> usize {
    let shown = widths.iter().filter(|width| **width > 0).count();
    widths.iter().sum::<usize>() + BETWEEN * shown.saturating_sub(1)
}

/// Keeps both ends of a text: names differ at their ends, and messages begin with their subject.
fn shorten_middle(cell: &str, width: usize) -> Cow<'_, str> {
    let count = cell.chars().count();
    if count <= width {
        return Cow::Borrowed(cell);
    }
    let kept = width.saturating_sub(1);
    let (head, tail) = (kept.div_ceil(2), kept / 2);
    let ends = cell.chars().take(head).chain(['…']).chain(cell.chars().skip(count - tail));
    Cow::Owned(ends.collect())
}

/// Wraps a text into lines of at most this width, broken between words if possible.
fn wrap_text(text: &str, within: usize) -> Vec<String> {
    let within = within.max(1);
    let mut lines = Vec::<String>::new();
    let mut room = 0;
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let signs: Vec<char> = word.chars().collect();
        for (index, part) in signs.chunks(within).enumerate() {
            let takes = part.len() + 1;
            match lines.last_mut().filter(|_| index == 0 && takes <= room) {
                Some(line) => {
                    line.push(' ');
                    line.extend(part);
                    room -= takes;
                }
                None => {
                    lines.push(part.iter().collect());
                    room = within - part.len();
                }
            }
        }
    }
    lines
}

/// The width of the terminal of standard output. A file or another program gets every character.
fn terminal_width() -> Option<usize> {
    let stdout = io::stdout();
    if cfg!(test) || !stdout.is_terminal() {
        return None;
    }
    width_of(&stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_lines_do_not_end_in_spaces() {
        let mut table = TextTable::new(&["NAME", "PHASE"]);
        table.push_row(["a-long-name".into(), "Running".into()]);
        table.push_row(["b".into(), String::new()]);
        assert_eq!(table.render(), "NAME          PHASE\na-long-name   Running\nb\n");
    }

    #[test]
    fn rows_that_come_later_stand_in_the_same_columns() {
        let mut table = TextTable::new(&["NAME", "PHASE"]);
        table.push_row(["a-long-name".into(), "Running".into()]);
        let shown = table.len();
        table.push_row(["b".into(), "Failed".into()]);
        assert_eq!(table.render_from(shown), "b             Failed\n");
        table.keep_newest(1);
        assert_eq!(table.render(), "NAME   PHASE\nb      Failed\n");
        table.keep_newest(5);
        assert_eq!(table.len(), 2);
    }

    #[test]
    fn a_narrow_terminal_keeps_names_whole_and_goes_without_spare_columns() {
        let header = ["PHASE", "NAMESPACE", "NAME", "ATTEMPT", "READY", "REASON", "DELETED"];
        let mut table = TextTable::new(&header).with_spare_columns(&["READY", "ATTEMPT"]);
        let name = "llama-70b-464h-ab";
        let reason = "BackoffLimitExceeded";
        table.push_row(
            ["Running", "team-vision", name, "1", "1/1", reason, "2026-11-25 11:04"].map(str::to_owned),
        );
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
        let mut table = TextTable::new(&["NAMESPACE", "NAME", "PHASE", "REASON", "DELETED"]);
        let name = "llama-70b-finetune-with-a-long-name-r7k2x";
        table.push_row([
            "team-vision".into(),
            name.into(),
            "Failed".into(),
            "BackoffLimitExceeded".into(),
            "2026-11-25 11:04:21 (10:04:21Z)".into(),
        ]);
        table.push_row(["a".into(), "größe-完了".into(), "Running".into(), String::new(), String::new()]);
        let mut golden = String::new();
        for within in [Some(130), Some(120), Some(80), Some(60), Some(40), None] {
            table.within = within;
            golden.push_str(&format!("within {within:?}\n{}\n", table.render()));
            let widest = table.render().lines().map(|line| line.chars().count()).max();
            assert!(within.is_none_or(|within| widest <= Some(within)), "{golden}");
        }
        golden.push_str(&table.with_whole_cells(true).render());
        assert_eq!(golden, include_str!("../golden/narrow.txt"));
    }

    #[test]
    fn no_name_is_cut_for_more_than_the_terminal_lacks_and_what_has_no_column_stands_above_its_rows() {
        let mut table =
            TextTable::new(&["SEQ", "OBSERVED", "OBJECT", "PHASE", "REASON"]).with_spare_columns(&["OBJECT"]);
        for (seq, object) in [("7", "Job/llama-70b"), ("8", "Job/llama-70b"), ("9", "Pod/llama-70b-0")] {
            let [time, reason] = ["2026-11-20 13:45:11Z", "BackoffLimitExceeded"];
            table.push_row([seq, time, object, "Running", reason].map(str::to_owned));
        }
        table.within = Some(40);
        let table = table.with_above("OBJECT");
        let text = "SEQ   OBSERVED               PHASE\n\
            Job/llama-70b\n7     2026-11-20 13:45:11Z   Running\n8     2026-11-20 13:45:11Z   Running\n\
            Pod/llama-70b-0\n9     2026-11-20 13:45:11Z   Running\n";
        assert_eq!(table.render(), text);
        assert!(table.render_from(2).starts_with("8  "), "a row that comes later repeats no heading");

        let mut table = TextTable::new(&["NAMESPACE", "NAME", "PHASE", "REASON"]);
        let name = "llama-70b-finetune-with-a-long-name-r7k2x";
        table.push_row(["team-vision", name, "Running", "BackoffLimitExceeded"].map(str::to_owned));
        for within in [40, 50, 60, 65] {
            table.within = Some(within);
            let widest = table.render().lines().map(|line| line.chars().count()).max();
            assert_eq!(widest, Some(within), "{}", table.render());
        }
    }

    #[test]
    fn a_time_is_shown_whole_or_not_at_all() {
        for name in TIMES {
            let mut table = TextTable::new(&["PLUGIN", name, "MESSAGE"]);
            let (local, utc) = ("2026-11-25 00:04:21", "(2026-11-24 23:04:21Z)");
            table.push_row(["sql".into(), format!("{local} {utc}"), "a message of some length".into()]);
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
    fn a_text_that_people_read_stands_below_its_row_where_it_has_no_room() {
        let mut table =
            TextTable::new(&["LAST SEEN", "TYPE", "OBJECT", "MESSAGE"]).with_spare_columns(&["TYPE"]);
        let pod = "pod/llama-70b-r7k2x-0";
        let words = "Back-off restarting failed container trainer in pod llama-70b-r7k2x-0";
        table.push_row(["2 m", "Warning", pod, words].map(str::to_owned));
        table.push_row(["3 m", "Normal", "job/llama-70b", ""].map(str::to_owned));
        let mut table = table.with_below("MESSAGE");
        let text_within = |table: &mut TextTable, within| {
            table.within = Some(within);
            table.render()
        };
        assert_eq!(
            text_within(&mut table, 50),
            "LAST SEEN   TYPE      OBJECT\n2 m         Warning   pod/llama-70b-r7k2x-0\n\
             \u{20} Back-off restarting failed container trainer in\n\u{20} pod llama-70b-r7k2x-0\n\
             3 m         Normal    job/llama-70b\n"
        );
        let text = text_within(&mut table, 100);
        assert!(text.contains(pod) && text.contains("   Back-off restarting failed …"), "{text}");
        for within in [1, 2, 3, 11, 40, 80, 95, 120] {
            let text = text_within(&mut table, within);
            let widest = text.lines().map(|line| line.chars().count()).max();
            assert!(within < 12 || widest <= Some(within), "{within}\n{text}");
            let gone: String = text.split_whitespace().collect();
            assert!(within > 93 || gone.contains("container") || within < 12, "{within}\n{text}");
        }
        table.within = None;
        assert!(table.render().contains(words));
    }
}
