//! The lines of a journal: the names under which its states are carried, one after another.
//!
//! A position names a state only as long as the journal keeps what it committed. A standby that takes over
//! without the newest commits, or a restored copy, gives the same positions to other states. So the carrier
//! begins a new line unless it can rule that out. Each earlier line agrees with the journal through a known
//! position. So a reader knows that a new line continues what it has read, and reports no gap.

use std::fmt;
use std::sync::Arc;

use super::{GarbledMessage, JournalPosition};
use crate::state::Seq;

/// Earlier lines that are remembered. A reader that stopped before all of them reports a gap. A message names no more of
/// them.
pub const FORMER_LINES: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
struct FormerLine {
    line: Arc<str>,
    /// Up to this position, the line agrees with the present journal.
    through: Seq,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalLineage {
    line: Arc<str>,
    /// The oldest first.
    former: Vec<FormerLine>,
}

impl JournalLineage {
    pub fn new(line: Arc<str>) -> Self {
        Self { line, former: Vec::new() }
    }

    pub fn current_line(&self) -> &Arc<str> {
        &self.line
    }

    pub fn former_lines(&self) -> impl Iterator<Item = &Arc<str>> {
        self.former.iter().map(|former| &former.line)
    }

    /// Whether this journal was carried under that name, now or before.
    pub fn has_line(&self, line: &str) -> bool {
        *self.line == *line || self.former_lines().any(|former| **former == *line)
    }

    /// Begins a line. Positions that were sent under the current line are certain only up to the carrier's
    /// cursor.
    #[must_use]
    pub fn begin_line(&self, line: Arc<str>, cursor: Seq) -> Self {
        let present = FormerLine { line: self.line.clone(), through: cursor };
        let mut former: Vec<_> = self.former.iter().cloned().chain([present]).collect();
        for earlier in &mut former {
            earlier.through = earlier.through.min(cursor);
        }
        former.drain(..former.len().saturating_sub(FORMER_LINES));
        Self { line, former }
    }

    /// The journal position of a state, from its position and the previous one in its partition.
    pub fn journal_position(&self, position: Seq, before: Seq) -> JournalPosition {
        let agree = self.former.iter().filter(|former| before <= former.through);
        let before_lines = agree.map(|former| former.line.clone()).collect();
        JournalPosition { line: self.line.clone(), position, before, before_lines }
    }

    pub fn parse(text: &str) -> Result<Self, GarbledMessage> {
        let garbled = || GarbledMessage::NoLines(text.to_owned());
        let mut words: Vec<_> = text.split(' ').collect();
        let line = words.pop().filter(|line| !line.is_empty() && !line.contains(':')).ok_or_else(garbled)?;
        let former = |word: &str| {
            let (line, through) = word.split_once(':')?;
            Some(FormerLine { line: line.into(), through: through.parse().ok()? })
        };
        let former = words.into_iter().map(former).collect::<Option<_>>().ok_or_else(garbled)?;
        Ok(Self { line: line.into(), former })
    }
}

impl fmt::Display for JournalLineage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for FormerLine { line, through } in &self.former {
            write!(f, "{line}:{through} ")?;
        }
        f.write_str(&self.line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn before_lines(lineage: &JournalLineage, before: Seq) -> String {
        lineage.journal_position(100, before).before_lines.concat()
    }

    #[test]
    fn a_state_names_the_lines_that_agree_up_to_the_state_before_it() {
        let lineage = JournalLineage::new("a".into()).begin_line("b".into(), 40).begin_line("c".into(), 80);
        for (before, lines) in [(0, "ab"), (40, "ab"), (41, "b"), (80, "b"), (81, "")] {
            assert_eq!(before_lines(&lineage, before), lines, "{before}");
        }
        assert!(lineage.has_line("a") && lineage.has_line("c") && !lineage.has_line("d"));
    }

    #[test]
    fn earlier_lines_agree_with_a_journal_only_as_far_as_it_was_put_back() {
        let lineage = JournalLineage::new("a".into()).begin_line("b".into(), 80).begin_line("c".into(), 60);
        assert_eq!(before_lines(&lineage, 60), "ab");
        assert_eq!(before_lines(&lineage, 61), "", "nobody knows whether it is the state that was sent");
    }

    #[test]
    fn lines_are_few_and_are_read_as_they_were_written() {
        let mut lineage = JournalLineage::new("0".into());
        assert_eq!(lineage.to_string(), "0");
        for number in 1..200 {
            lineage = lineage.begin_line(number.to_string().into(), number);
            assert_eq!(JournalLineage::parse(&lineage.to_string()).unwrap(), lineage);
        }
        assert_eq!(lineage.former.len(), FORMER_LINES);
        for wrong in ["", "a:1", "a b", "a:x b", "a:1  b"] {
            assert!(JournalLineage::parse(wrong).is_err(), "{wrong}");
        }
    }
}
