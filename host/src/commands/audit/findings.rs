//! The faults of a line of a ledger, and the report of a whole verification.

use std::fmt;

use serde::Serialize;

/// The findings. Lines after the first bad one are not examined, because they depend on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditReport {
    pub ok: bool,
    /// The number of valid lines from the beginning.
    pub lines: u64,
    pub signed: u64,
    pub first_bad_line: Option<u64>,
    /// The fault.
    pub what: Option<String>,
    /// The file of that line, or the file that is itself at fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bad_file: Option<String>,
    pub files: u64,
    /// The number of the first file in the ledger.
    #[serde(skip)]
    pub first_file: u64,
    /// The ledger's id; `None` if the controller has written no statement into it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ledger: Option<String>,
    /// Valid roots, including seals, and how many of them have a valid signature.
    pub roots: u64,
    pub signed_roots: u64,
    pub seals: u64,
    /// Records after the newest root.
    pub open: u64,
    /// Lines that the controller found when it first signed the ledger, or when its receipts were missing.
    pub adopted: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub newest_root: Option<NewestRoot>,
    /// Roots recorded elsewhere that the files still match.
    pub anchors: u64,
    /// States that were compared with the journal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compared: Option<u64>,
    /// Gaps of the journal between records of the trail, up to a limit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gaps: Vec<TrailGap>,
    /// The claims that could not be proved, and why.
    pub not_shown: Vec<String>,
    /// The hash of the last valid line.
    pub head: String,
}

/// The newest root in the files, in a form that can be recorded elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NewestRoot {
    pub anchor: String,
    pub at: String,
    /// The signer; `None` if it is unsigned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// A gap of the journal: its id ends with its bounds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TrailGap {
    pub id: String,
    pub seq: u64,
}

impl AuditReport {
    /// Lines after the first fault are not examined.
    pub fn note_break(&mut self, file: &str, line: Option<u64>, what: String) {
        self.ok = false;
        self.bad_file = Some(file.to_owned());
        self.first_bad_line = line;
        self.what = Some(what);
    }

    /// Which files of the ledger were not given, as far as the given ones show.
    pub fn files_not_given(&self) -> Option<String> {
        let before = match self.first_file {
            0 | 1 => None,
            2 => Some("file 1 of the ledger was not given".to_owned()),
            first => Some(format!("files 1 to {} of the ledger were not given", first - 1)),
        };
        let next = self.first_file.saturating_add(self.files);
        let is_closed = self.files > 0 && self.seals == self.files;
        let after =
            is_closed.then(|| format!("file {next} of the ledger, and those after it, were not given"));
        let all: Vec<_> = before.into_iter().chain(after).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// The lines after the first one, for people.
    pub fn detail_lines(&self) -> String {
        let mut text = String::new();
        if let (Some(ledger), Some(newest)) = (&self.ledger, &self.newest_root) {
            let by = newest.key.as_ref().map(|key| format!(" by key {key}")).unwrap_or_default();
            let signatures = match self.signed_roots {
                0 => "no signature was checked".to_owned(),
                signed => format!("{signed} of them with a valid signature"),
            };
            text.push_str(&format!(
                "  ledger {ledger}: files {}, of them closed {}; signed roots {}, {signatures}; the newest root is of {}{by}\n",
                self.files, self.seals, self.roots, newest.at
            ));
        }
        if self.anchors > 0 {
            text.push_str(&format!("  {} roots that were noted elsewhere are still there\n", self.anchors));
        }
        if let Some(compared) = self.compared {
            text.push_str(&format!("  {compared} states of the journal are there, none twice\n"));
        }
        for reason in &self.not_shown {
            text.push_str(&format!("  not shown: {reason}\n"));
        }
        text
    }
}

impl fmt::Display for AuditReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.first_bad_line, &self.what) {
            (Some(line), Some(what)) => write!(f, "line {line}: {what}; the {} before it hold", self.lines),
            (None, Some(what)) => write!(f, "{what}; {} lines before it hold", self.lines),
            _ if self.lines == 0 => f.write_str("no lines yet"),
            // If the controller signs, the plugin's signatures don't matter.
            _ if self.roots > 0 || self.signed == 0 => {
                write!(f, "{} lines, unbroken; the newest is {}", self.lines, self.head)
            }
            _ => write!(
                f,
                "{} lines, unbroken, {} of them signed by the plugin, which is not checked; the newest is {}",
                self.lines, self.signed, self.head
            ),
        }
    }
}

/// Why a line is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BrokenLine {
    Cut,
    NotText,
    Unreadable(String),
    NoTrail(String),
    NoHash,
    Number(u64),
    Unlinked,
    Changed,
    Twice(String),
    OtherLedger(String),
    OtherFile(u64),
    OtherPrevious,
    NoHead,
    Miscounted,
    OtherRoot,
    BehindSeal,
    Unsigned,
    UnknownKey(String),
    Forged,
    NoSeal,
    OtherAnchor(String),
}

impl fmt::Display for BrokenLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cut => f.write_str("it has no end: it was cut, or is too long"),
            Self::NotText => f.write_str("it is not text"),
            Self::Unreadable(error) => write!(f, "it can't be read: {error}"),
            Self::NoTrail(error) => write!(
                f,
                "it is no record of the plugin `audit` ({error}), and only ledgers of that plugin can be proved"
            ),
            Self::NoHash => f.write_str("it does not end with its hash"),
            Self::Number(n) => write!(f, "it has number {n}: a line before it was removed, added or moved"),
            Self::Unlinked => f.write_str(
                "it does not follow from the line before it: one of the two was changed or replaced",
            ),
            Self::Changed => f.write_str("its text does not match its hash: it was changed"),
            Self::Twice(id) => write!(
                f,
                "the state {id} is there a second time: two plugins write to this ledger, one wrote to it under two \
                 names, or the line was added"
            ),
            Self::OtherLedger(id) => write!(f, "it is of another ledger, {id}: the file was put in the place of another"),
            Self::OtherFile(number) => write!(f, "it is of file {number} of the ledger: lines were moved between files"),
            Self::OtherPrevious => f.write_str(
                "it does not follow from the end of the file before it: one of the two was changed or replaced",
            ),
            Self::NoHead => f.write_str("a file begins with one head, and the first file with none: lines were removed, added or moved"),
            Self::Miscounted => f.write_str("it counts other records than there are: a line was removed or added"),
            Self::OtherRoot => f.write_str("its root does not cover the lines before it: one of them was changed, removed, added or moved"),
            Self::BehindSeal => f.write_str("it stands after the seal: somebody added it"),
            Self::Unsigned => f.write_str("it has no signature, and statements before it are signed"),
            Self::UnknownKey(key) => write!(f, "it is signed with key {key}: give its public part with `--key` if it is yours"),
            Self::Forged => f.write_str("its signature does not hold: somebody without the key wrote it"),
            Self::NoSeal => f.write_str("the file ends without a seal, and another file follows it: its end was cut, or the two are of different ledgers"),
            Self::OtherAnchor(anchor) => write!(f, "up to it the file has another root than {anchor}: somebody rewrote it"),
        }
    }
}
