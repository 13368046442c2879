//! The checksums of rows. The writer makes them, and `journal verify` makes them again: a row that somebody
//! or something changed no longer matches its checksum.
//!
//! Each checksum covers every column of its row, including the number by which others refer to it, but not
//! numbers that the store itself assigns. Counters that a store adds up have checksums that add up with them.

use kubewitness_core::Seq;
use kubewitness_core::document::checksum;
use kubewitness_core::ports::DeadLetter;

use crate::report::code;

/// The parts of a checksum. Each text is preceded by its length, so that two parts can't run into each other.
#[derive(Default)]
struct ChecksumParts(Vec<u8>);

impl ChecksumParts {
    fn push_int(mut self, number: i64) -> Self {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    fn text(mut self, text: impl AsRef<[u8]>) -> Self {
        let text = text.as_ref();
        self = self.push_int(text.len() as i64);
        self.0.extend_from_slice(text);
        self
    }

    /// A missing value counts as neither a number nor a text.
    fn push_optional<T>(self, value: Option<T>, part: impl FnOnce(Self, T) -> Self) -> Self {
        match value {
            None => self.push_int(-1),
            Some(value) => part(self.push_int(1), value),
        }
    }

    fn finish_sum(self) -> i64 {
        i64::from(checksum(&self.0))
    }
}

pub(crate) fn sum_of_kind(id: i64, group: &str, version: &str, kind: &str) -> i64 {
    ChecksumParts::default().push_int(id).text(group).text(version).text(kind).finish_sum()
}

pub(crate) fn sum_of_status(id: i64, body: &str) -> i64 {
    ChecksumParts::default().push_int(id).text(body).finish_sum()
}

/// For formats up to 4 of the file and 1 of a server, in which it did not cover the number.
fn status_before(body: &str) -> i64 {
    i64::from(checksum(body.as_bytes()))
}

/// `checksum` is that of the document.
pub(crate) fn sum_of_anchor(id: i64, stream: i64, checksum: i64) -> i64 {
    ChecksumParts::default().push_int(id).push_int(stream).push_int(checksum).finish_sum()
}

/// Without the columns that are counted again: states, and those that retention removed.
pub(crate) fn sum_of_stream(
    id: i64,
    source: &str,
    epoch: i64,
    checkpoint: Option<&str>,
    last_event_ms: Option<i64>,
) -> i64 {
    let parts = ChecksumParts::default().push_int(id).text(source).push_int(epoch);
    parts
        .push_optional(checkpoint, ChecksumParts::text)
        .push_optional(last_event_ms, ChecksumParts::push_int)
        .finish_sum()
}

/// The multiplier is small enough for every store: 31 times an object's number fits.
pub(crate) fn sum_of_owned(owner: i64, object: i64) -> i64 {
    31i64.wrapping_mul(owner).wrapping_add(17i64.wrapping_mul(object))
}

pub(crate) fn sum_of_gap(stream: i64, seq: i64, key: &str, body: &str) -> i64 {
    ChecksumParts::default().push_int(stream).push_int(seq).text(key).text(body).finish_sum()
}

/// The checksum of a finding of an audit.
pub(crate) fn sum_of_discrepancy(stream: i64, number: i64, body: &str) -> i64 {
    ChecksumParts::default().push_int(stream).push_int(number).text(body).finish_sum()
}

/// `checksum` is that of the bytes as received.
pub(crate) fn sum_of_poison(stream: i64, digest: i64, checksum: i64, observed_ms: i64, error: &str) -> i64 {
    ChecksumParts::default()
        .push_int(stream)
        .push_int(digest)
        .push_int(checksum)
        .push_int(observed_ms)
        .text(error)
        .finish_sum()
}

pub(crate) fn sum_of_plugin(name: &str, progress: &str) -> i64 {
    ChecksumParts::default().text(name).text(progress).finish_sum()
}

/// The columns of a dead letter, except what was done with it.
#[derive(Clone, Copy)]
pub(crate) struct LetterColumns<'a> {
    pub plugin: &'a str,
    pub seq: i64,
    pub id: &'a str,
    pub attempts: i64,
    pub error: &'a str,
    pub first_ms: i64,
    pub last_ms: i64,
    pub tries: &'a str,
}

impl<'a> LetterColumns<'a> {
    pub fn of(plugin: &'a str, letter: &'a DeadLetter, tries: &'a str) -> Self {
        Self {
            plugin,
            seq: letter.seq as i64,
            id: letter.id.as_str(),
            attempts: i64::from(letter.attempts),
            error: &letter.error,
            first_ms: letter.first_ms as i64,
            last_ms: letter.last_ms as i64,
            tries,
        }
    }
}

impl<'a> LetterColumns<'a> {
    /// The row of an owed state. All other columns are empty, because the state itself is at this position.
    pub fn owed_row(plugin: &'a str, seq: Seq) -> Self {
        let (id, error, tries) = ("", "", "[]");
        Self { plugin, seq: seq as i64, id, attempts: 0, error, first_ms: 0, last_ms: 0, tries }
    }

    /// The operator's action is added to the checksum of the rest, so that it can change separately.
    pub fn row_checksum(&self, mark: i64) -> i64 {
        let Self { plugin, seq, id, attempts, error, first_ms, last_ms, tries } = self;
        let parts =
            ChecksumParts::default().text(plugin).push_int(*seq).text(id).push_int(*attempts).text(error);
        parts.push_int(*first_ms).push_int(*last_ms).text(tries).finish_sum() | mark << 32
    }
}

pub(crate) fn key_value(plugin: &str, key: &str, value: &[u8]) -> i64 {
    ChecksumParts::default().text(plugin).text(key).text(value).finish_sum()
}

pub(crate) fn sum_of_replay(plugin: &str, what: &str, who: &str, why: &str, seqs: &str, at_ms: i64) -> i64 {
    ChecksumParts::default()
        .text(plugin)
        .text(what)
        .text(who)
        .text(why)
        .text(seqs)
        .push_int(at_ms)
        .finish_sum()
}

/// A linear sum, so that the checksums of two rows add up to that of both.
pub(crate) fn taken_sum(finished: i64, untold: i64) -> i64 {
    3i64.wrapping_mul(finished).wrapping_add(5i64.wrapping_mul(untold))
}

/// A column of a row in any store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SumCell {
    Null,
    Int(i64),
    Bytes(Vec<u8>),
}

impl SumCell {
    pub fn as_int(&self) -> Option<i64> {
        match self {
            Self::Int(number) => Some(*number),
            _ => None,
        }
    }

    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Bytes(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    fn as_optional<T>(&self, value: Option<T>) -> Option<Option<T>> {
        match self {
            Self::Null => Some(None),
            _ => value.map(Some),
        }
    }
}

/// A table whose rows have a column `sum`.
pub(crate) struct SummedTable {
    pub name: &'static str,
    /// The finding for a row that has changed.
    pub code: &'static str,
    /// The columns; the first one or two are the key.
    pub columns: &'static [&'static str],
    pub keys: usize,
    /// The checksum of the columns in order; `None` if a column has another type.
    sum: fn(&[SumCell]) -> Option<i64>,
}

impl SummedTable {
    /// Whether its key is an ascending number.
    pub fn is_numbered(&self) -> bool {
        self.keys == 1 && self.columns[0] == "id"
    }

    /// The checksum that the row must have.
    pub fn row_checksum(&self, cells: &[SumCell]) -> Option<i64> {
        if cells.len() < self.columns.len() { None } else { (self.sum)(&cells[..self.columns.len()]) }
    }

    /// Whether it is the row that was written. Its checksum follows its columns.
    pub fn is_sound(&self, cells: &[SumCell]) -> bool {
        let stored = cells.get(self.columns.len()).and_then(SumCell::as_int);
        stored.is_some() && stored == self.row_checksum(cells)
    }

    /// The checksum for a row of an older format. `None` if it already has it, or if its old checksum shows
    /// that the row was changed.
    pub fn refilled_checksum(&self, cells: &[SumCell]) -> Option<i64> {
        let stored = cells.get(self.columns.len()).and_then(SumCell::as_int);
        let is_damaged = self.name == STATUSES.name && stored != cells[1].text().map(status_before);
        self.row_checksum(cells).filter(|sum| !is_damaged && stored != Some(*sum))
    }

    /// Describes the row for a message.
    pub fn describe_row(&self, cells: &[SumCell]) -> String {
        let part = |cell: &SumCell| match cell {
            SumCell::Null => "-".to_owned(),
            SumCell::Int(number) => number.to_string(),
            SumCell::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        };
        let key: Vec<_> = cells.iter().take(self.keys).map(part).collect();
        format!("{} of `{}`", key.join(" "), self.name)
    }
}

pub(crate) const STATUSES: SummedTable = SummedTable {
    name: "statuses",
    code: code::ENVELOPE,
    columns: &["id", "body"],
    keys: 1,
    sum: |c| Some(sum_of_status(c[0].as_int()?, c[1].text()?)),
};

pub(crate) const GAPS: SummedTable = SummedTable {
    name: "gaps",
    code: code::GAP,
    columns: &["id", "stream", "seq", "key", "body"],
    keys: 1,
    sum: |c| Some(sum_of_gap(c[1].as_int()?, c[2].as_int()?, c[3].text()?, c[4].text()?)),
};

pub(crate) const POISON: SummedTable = SummedTable {
    name: "poison",
    code: code::POISON,
    columns: &["id", "stream", "digest", "checksum", "observed_ms", "error"],
    keys: 1,
    sum: |c| {
        Some(sum_of_poison(c[1].as_int()?, c[2].as_int()?, c[3].as_int()?, c[4].as_int()?, c[5].text()?))
    },
};

pub(crate) const REPLAYS: SummedTable = SummedTable {
    name: "replays",
    code: code::RECORD,
    columns: &["id", "plugin", "what", "who", "why", "seqs", "at_ms"],
    keys: 1,
    sum: |c| {
        Some(sum_of_replay(
            c[1].text()?,
            c[2].text()?,
            c[3].text()?,
            c[4].text()?,
            c[5].text()?,
            c[6].as_int()?,
        ))
    },
};

/// All of them. The checksums of states, objects and documents are compared when these are read, and counters
/// are counted again.
pub(crate) const TABLES: [SummedTable; 12] = [
    SummedTable {
        name: "streams",
        code: code::CHECKPOINT,
        columns: &["id", "source", "epoch", "checkpoint", "last_event_ms"],
        keys: 1,
        sum: |c| {
            let (checkpoint, last) = (c[3].as_optional(c[3].text())?, c[4].as_optional(c[4].as_int())?);
            Some(sum_of_stream(c[0].as_int()?, c[1].text()?, c[2].as_int()?, checkpoint, last))
        },
    },
    SummedTable {
        name: "kinds",
        code: code::ENVELOPE,
        columns: &["id", "api_group", "version", "kind"],
        keys: 1,
        sum: |c| Some(sum_of_kind(c[0].as_int()?, c[1].text()?, c[2].text()?, c[3].text()?)),
    },
    STATUSES,
    SummedTable {
        name: "anchors",
        code: code::DOCUMENT,
        columns: &["id", "stream", "checksum"],
        keys: 1,
        sum: |c| Some(sum_of_anchor(c[0].as_int()?, c[1].as_int()?, c[2].as_int()?)),
    },
    GAPS,
    POISON,
    SummedTable {
        name: "discrepancies",
        code: code::RECORD,
        columns: &["stream", "number", "body"],
        keys: 2,
        sum: |c| Some(sum_of_discrepancy(c[0].as_int()?, c[1].as_int()?, c[2].text()?)),
    },
    SummedTable {
        name: "plugins",
        code: code::CURSOR,
        columns: &["name", "progress"],
        keys: 1,
        sum: |c| Some(sum_of_plugin(c[0].text()?, c[1].text()?)),
    },
    SummedTable {
        name: "letters",
        code: code::LETTER,
        columns: &["plugin", "seq", "id", "attempts", "error", "first_ms", "last_ms", "tries", "replaying"],
        keys: 2,
        sum: |c| {
            let letter = LetterColumns {
                plugin: c[0].text()?,
                seq: c[1].as_int()?,
                id: c[2].text()?,
                attempts: c[3].as_int()?,
                error: c[4].text()?,
                first_ms: c[5].as_int()?,
                last_ms: c[6].as_int()?,
                tries: c[7].text()?,
            };
            Some(letter.row_checksum(c[8].as_int()?))
        },
    },
    SummedTable {
        name: "kv",
        code: code::KEY,
        columns: &["plugin", "key", "value"],
        keys: 2,
        sum: |c| Some(key_value(c[0].text()?, c[1].text()?, c[2].as_bytes()?)),
    },
    REPLAYS,
    SummedTable {
        name: "taken",
        code: code::COMPLETENESS,
        columns: &["plugin", "finished", "untold"],
        keys: 1,
        sum: |c| Some(taken_sum(c[1].as_int()?, c[2].as_int()?)),
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_do_not_run_into_each_other_and_nothing_is_not_empty() {
        assert_ne!(sum_of_kind(1, "ab", "c", "d"), sum_of_kind(1, "a", "bc", "d"));
        assert_ne!(sum_of_stream(1, "jobs", 0, None, None), sum_of_stream(1, "jobs", 0, Some(""), None));
        assert_ne!(sum_of_stream(1, "jobs", 0, None, Some(-1)), sum_of_stream(1, "jobs", 0, None, None));
    }

    #[test]
    fn what_was_done_with_a_letter_is_changed_without_knowing_the_rest() {
        let letter = LetterColumns {
            plugin: "p",
            seq: 1,
            id: "x",
            attempts: 2,
            error: "no",
            first_ms: 3,
            last_ms: 4,
            tries: "[]",
        };
        assert_eq!(letter.row_checksum(0) & 0xFFFF_FFFF | 2 << 32, letter.row_checksum(2));
    }

    #[test]
    fn figures_that_are_added_up_have_sums_that_are() {
        assert_eq!(taken_sum(3, 4) + taken_sum(10, 20), taken_sum(13, 24));
    }
}
