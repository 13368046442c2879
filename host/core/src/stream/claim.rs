//! Decides who may carry to a stream and who may read one of its partitions, from the claim that the server
//! stores.
//!
//! A copy of a data folder has the same journal under the same name, so a name can't distinguish two copies.
//! Therefore each process draws a random instance id, which is never stored in a data folder, and renews its
//! claim. While it does so, every other process is refused. An instance also records in its claim that it may
//! send, before it sends. If it does not stop cleanly, nobody knows how far it came, and the next process
//! begins a new line.

use std::sync::Arc;

use super::JournalLineage;
use crate::state::Seq;

/// The claim of a carrier.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CarrierClaim {
    pub line: Arc<str>,
    /// The earlier lines. A journal that was put back to one of them is the same journal.
    pub former: Vec<Arc<str>>,
    pub sources: Vec<String>,
    /// The position above which the carrier had sent nothing in this line when it stopped.
    pub position: Seq,
    /// The process that may send; `None` after a clean stop.
    pub instance: Option<Arc<str>>,
}

/// A carrier that finds a claim.
#[derive(Clone, Copy, Debug)]
pub struct CarrierCandidate<'a> {
    pub lineage: &'a JournalLineage,
    /// Whether the line was drawn just now.
    pub is_new: bool,
    pub cursor: Seq,
    pub instance: &'a str,
    /// The line that it may replace, by the settings.
    pub take_over: Option<&'a str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CarrierStart {
    /// Continue the current line: everything that was sent is known.
    Continue,
    /// Begin a new line: positions above the cursor may have been sent for states that the journal no longer
    /// has.
    BeginLine,
    /// Another process carries this journal, or a copy of it.
    HeldByInstance,
    /// Another journal is carried.
    HeldByJournal,
}

impl CarrierCandidate<'_> {
    /// `has_lapsed` is set if the claim was not renewed for so long that its instance counts as dead.
    pub fn start(&self, found: Option<&CarrierClaim>, has_lapsed: bool) -> CarrierStart {
        let Some(found) = found else {
            // A server that lost the claim can't say how far anybody had come.
            return if self.is_new { CarrierStart::Continue } else { CarrierStart::BeginLine };
        };
        let is_told = self.take_over == Some(&*found.line);
        let is_former = found.former.contains(self.lineage.current_line());
        if !self.lineage.has_line(&found.line) && !is_former {
            return if is_told { CarrierStart::BeginLine } else { CarrierStart::HeldByJournal };
        }
        let is_own = found.instance.as_deref() == Some(self.instance);
        let is_free = found.instance.is_none() || has_lapsed || is_told;
        let is_same_line = found.line == *self.lineage.current_line();
        let is_known = is_own || (found.instance.is_none() && self.cursor >= found.position);
        match () {
            () if !is_own && !is_free => CarrierStart::HeldByInstance,
            () if is_same_line && is_known => CarrierStart::Continue,
            () => CarrierStart::BeginLine,
        }
    }
}

/// The claim of a reader on a partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReaderClaim {
    pub reader: String,
    /// The process that reads; `None` after a clean stop.
    pub instance: Option<Arc<str>>,
}

/// A reader that finds a claim.
#[derive(Clone, Copy, Debug)]
pub struct ReaderCandidate<'a> {
    pub reader: &'a str,
    pub instance: &'a str,
    /// The reader that it may replace, by the settings.
    pub take_over: Option<&'a str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReaderStart {
    Read,
    /// Another process reads with this journal, or a copy of it.
    HeldByInstance,
    /// A reader with another journal has the partition.
    HeldByReader,
}

impl ReaderCandidate<'_> {
    pub fn start(&self, found: Option<&ReaderClaim>, has_lapsed: bool) -> ReaderStart {
        let Some(found) = found else { return ReaderStart::Read };
        if self.take_over == Some(found.reader.as_str()) {
            return ReaderStart::Read;
        }
        let is_free =
            found.instance.as_deref().is_none_or(|instance| instance == self.instance) || has_lapsed;
        match found.reader == self.reader {
            true if is_free => ReaderStart::Read,
            true => ReaderStart::HeldByInstance,
            false => ReaderStart::HeldByReader,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(line: &str, position: Seq, instance: Option<&str>) -> CarrierClaim {
        CarrierClaim {
            line: line.into(),
            position,
            instance: instance.map(Arc::from),
            ..CarrierClaim::default()
        }
    }

    #[test]
    fn a_carrier_goes_on_in_its_line_only_where_it_is_known_what_was_sent() {
        use CarrierStart::{BeginLine, Continue, HeldByInstance, HeldByJournal};
        let lineage = JournalLineage::new("a".into()).begin_line("b".into(), 10);
        let candidate =
            CarrierCandidate { lineage: &lineage, is_new: false, cursor: 20, instance: "i", take_over: None };
        for (line, position, instance, has_lapsed, start) in [
            ("b", 20, None, false, Continue),
            ("b", 21, None, false, BeginLine),
            ("b", 0, Some("i"), false, Continue),
            ("b", 0, Some("j"), false, HeldByInstance),
            ("b", 0, Some("j"), true, BeginLine),
            ("a", 0, None, false, BeginLine),
            ("a", 0, Some("j"), false, HeldByInstance),
            ("c", 0, None, true, HeldByJournal),
        ] {
            let found = claim(line, position, instance);
            assert_eq!(candidate.start(Some(&found), has_lapsed), start, "{found:?}");
        }
        assert_eq!(candidate.start(None, false), BeginLine);
        assert_eq!(CarrierCandidate { is_new: true, ..candidate }.start(None, false), Continue);
        let ordered = |line| CarrierCandidate { take_over: Some(line), ..candidate };
        assert_eq!(ordered("c").start(Some(&claim("c", 0, Some("j"))), false), BeginLine);
        assert_eq!(ordered("b").start(Some(&claim("b", 0, Some("j"))), false), BeginLine);
    }

    #[test]
    fn a_kill_between_the_claim_of_a_line_and_its_save_leaves_the_carrier_its_stream() {
        let lineage = JournalLineage::new("a".into());
        let candidate =
            CarrierCandidate { lineage: &lineage, is_new: false, cursor: 20, instance: "i", take_over: None };
        let begun = CarrierClaim { former: vec!["0".into(), "a".into()], ..claim("b", 0, Some("j")) };
        assert_eq!(candidate.start(Some(&begun), false), CarrierStart::HeldByInstance);
        assert_eq!(candidate.start(Some(&begun), true), CarrierStart::BeginLine);
        let timed_out = CarrierClaim { instance: Some("i".into()), ..begun };
        assert_eq!(candidate.start(Some(&timed_out), false), CarrierStart::BeginLine);
    }

    #[test]
    fn a_partition_has_one_reader_and_one_copy_of_it() {
        let candidate = ReaderCandidate { reader: "r", instance: "i", take_over: None };
        let found = |reader: &str, instance: Option<&str>| ReaderClaim {
            reader: reader.into(),
            instance: instance.map(Arc::from),
        };
        for (claim, has_lapsed, start) in [
            (found("r", None), false, ReaderStart::Read),
            (found("r", Some("i")), false, ReaderStart::Read),
            (found("r", Some("j")), false, ReaderStart::HeldByInstance),
            (found("r", Some("j")), true, ReaderStart::Read),
            (found("s", None), true, ReaderStart::HeldByReader),
        ] {
            assert_eq!(candidate.start(Some(&claim), has_lapsed), start, "{claim:?}");
        }
        let ordered = ReaderCandidate { take_over: Some("s"), ..candidate };
        assert_eq!(ordered.start(Some(&found("s", Some("j"))), false), ReaderStart::Read);
        assert_eq!(candidate.start(None, false), ReaderStart::Read);
    }
}
