//! The journal's reports for people and scripts: errors, figures, findings and records. Their JSON and their
//! codes are public. It uses no other module of this crate.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use kubewitness_core::Seq;
use kubewitness_core::config::RetentionSpec;
use kubewitness_core::ports::PluginPause;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The damage and the remedy after somebody removed or replaced a journal in use.
pub(crate) const LOST: &str = "states that no copy of the journal holds are lost. Put a copy back and start again: \
    the controller reads from the cluster what the copy lacks, as far as the cluster still has it. Without a copy, \
    start with an empty place: a new journal begins there with the objects that exist then";

/// The remedy for rows that differ from what the journal wrote. `journal verify` uses the same text.
pub(crate) const RESTORE: &str = "stop, keep the damaged journal, and restore the newest copy that `journal verify` \
    finds whole: the controller reads from the cluster what the copy lacks, as far as the cluster still has it";

/// The remedy after an unknown error of a store.
pub(crate) const DOUBTFUL: &str = "the journal is damaged, or its last write is in doubt: run `journal verify` \
    before you start again";

/// Why a journal could not be opened, and what to do about it.
#[derive(Debug, Error)]
pub enum OpenError {
    #[error("{0} is in use: another process writes to this journal; stop it, or name another data folder")]
    InUse(PathBuf),
    #[error("{place} is in use: {holder} writes to this journal; stop it{how}")]
    Held { place: String, holder: String, how: String },
    #[error("{place} is in use: it is shared by {replicas}; stop them, or {remedy}")]
    Shared { place: String, replicas: String, remedy: &'static str },
    #[error("{path} is not a journal ({reason}); name another file, or move this one away")]
    NotAJournal { path: PathBuf, reason: String },
    #[error(
        "{place} holds an import that has not come to its end, so its last states are missing: go on with \
         `kubewitness journal import FILE --continue` and the same file, or throw the import away with `kubewitness \
         journal import --discard`; give both the --data or --journal of this journal"
    )]
    Unfinished { place: String },
    #[error("{place} holds no unfinished import: there is nothing to throw away")]
    NothingToDiscard { place: String },
    #[error(
        "{path} has format {found}, this program knows formats up to {known}: run the newer program that wrote it"
    )]
    Newer { path: PathBuf, found: i64, known: i64 },
    #[error(
        "{path} has the older format {found}: `kubewitness run` on its data folder brings it to format {known}; then \
         verify it"
    )]
    Older { path: PathBuf, found: i64, known: i64 },
    #[error("{path} is damaged: {}", add_advice(.reason))]
    Damaged { path: PathBuf, reason: String },
    #[error(
        "{path} has a trigger or view `{name}` that is no part of a journal, and it may have changed what was written: \
         remove it with `DROP TRIGGER` or `DROP VIEW`, then run `kubewitness journal verify`"
    )]
    Foreign { path: PathBuf, name: String },
    #[error(
        "{path} is missing or empty, but {path}-wal of an earlier journal lies there: put the file back that \
         {path}-wal belongs to; to put back an older copy, or to begin anew, remove {path}-wal and {path}-shm first"
    )]
    Orphan { path: PathBuf },
    #[error("{path}: {reason}")]
    Unavailable { path: PathBuf, reason: String },
    /// The only error that may pass by itself: the caller can retry.
    #[error("{place} does not answer: {reason}; start the server, or correct the address")]
    Away { place: String, reason: String },
    #[error("{place}: {reason}; {remedy}")]
    Refused { place: String, reason: String, remedy: String },
}

/// Adds advice to a reason that has none.
fn add_advice(reason: &str) -> String {
    match [RESTORE, DOUBTFUL].iter().any(|advice| reason.contains(advice)) {
        true => reason.to_owned(),
        false => format!("{reason}: {RESTORE}"),
    }
}

/// A process that shares a journal with others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalReplica {
    pub name: String,
    /// When it joined, by its own clock.
    pub since_ms: u64,
    /// Whether it delivers states to plugins.
    pub dispatches: bool,
}

/// Counts of the states stored for one source, over all of its epochs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceCounters {
    pub source: String,
    /// The current epoch.
    pub epoch: u32,
    /// The version from which a watch would resume; empty before the first list.
    pub checkpoint: String,
    pub states: u64,
    /// How many states retention has removed so far.
    #[serde(default)]
    pub taken: u64,
    pub gaps: u64,
    pub poison: u64,
    /// When the last state or poison message was observed, in milliseconds since 1970.
    pub last_event_ms: Option<u64>,
}

/// Bytes that did not decode, as received.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoisonRecord {
    /// Ascends in the order of arrival.
    pub number: u64,
    pub source: String,
    pub epoch: u32,
    pub error: String,
    pub observed_ms: u64,
    pub raw: Vec<u8>,
}

/// Who replayed or dropped dead letters, or paused or resumed a plugin, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplayRecord {
    pub number: u64,
    pub plugin: String,
    /// `replay`, `drop`, `pause` or `resume`.
    #[serde(default)]
    pub what: String,
    pub who: String,
    pub why: String,
    pub seqs: Vec<Seq>,
    pub at_ms: u64,
}

impl ReplayRecord {
    /// The pause that this record ordered.
    pub(crate) fn into_pause(self) -> PluginPause {
        PluginPause { who: self.who, why: self.why, at_ms: self.at_ms }
    }
}

/// The result of one pass of retention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetentionReport {
    pub states: u64,
    pub bytes: u64,
    /// How many of these states were never delivered to a plugin.
    pub untold: u64,
}

/// The output of `journal stats`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JournalStats {
    pub states: u64,
    /// The size of the file, or of the tables on a server.
    pub bytes: u64,
    /// Bytes that were written but are not in the file yet.
    pub wal_bytes: u64,
    /// The part of the file that is free for new states.
    pub free_bytes: u64,
    pub oldest_seq: Seq,
    pub newest_seq: Seq,
    /// Whether it holds an unfinished import.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unfinished: bool,
    pub sources: Vec<SourceStats>,
    /// Plugins that lost states to retention.
    pub plugins: Vec<TakenStats>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SourceStats {
    pub source: String,
    pub states: u64,
    /// Objects with a state in the journal, and how many of them exist now.
    pub objects: u64,
    pub live_objects: u64,
    /// The stored size of documents, plus 100 bytes for each state's row. The setting `size` limits it.
    pub bytes: u64,
    pub document_bytes: u64,
    pub bytes_per_state: f64,
    /// Full documents on which many others are based.
    pub anchor_bytes: u64,
    pub oldest_seq: Seq,
    pub newest_seq: Seq,
    pub oldest_at: Option<String>,
    pub newest_at: Option<String>,
    /// How many states retention has removed so far.
    pub taken: u64,
    /// Absent if everything is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<RetentionStats>,
}

/// A source compared with the limits in its settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RetentionStats {
    pub spec: RetentionSpec,
    /// States beyond the limits: how many may be removed, and how many are held, by holder.
    pub beyond: u64,
    pub may_go: u64,
    pub may_go_bytes: u64,
    pub held: BTreeMap<String, u64>,
    /// More states exist than were examined.
    #[serde(default)]
    pub more: bool,
}

/// The holder of a state that is beyond its source's limits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RetentionHolder {
    /// A plugin has not finished it yet. A stream to other hosts appears as `stream/NAME`.
    Plugin(String),
    DeadLetter,
    /// The watch would resume before it.
    Checkpoint,
    /// It is the journal's last state.
    Last,
    /// Its object exists, or an older state of the object is kept. The state is removed together with them.
    Live,
    Older,
}

impl RetentionHolder {
    /// Whether the hold is intended, so that nobody needs to act.
    pub fn is_meant(&self) -> bool {
        matches!(self, Self::Last | Self::Live | Self::Older)
    }
}

impl fmt::Display for RetentionHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plugin(name) => return write!(f, "plugin {name}"),
            Self::DeadLetter => "a dead letter",
            Self::Checkpoint => "the watch's checkpoint",
            Self::Last => "it is the journal's last",
            Self::Live => "objects that are there",
            Self::Older => "an older state of its object",
        })
    }
}

/// States of a plugin that retention removed: those that it had finished, and those that it never received.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakenStats {
    pub plugin: String,
    pub finished: u64,
    pub untold: u64,
}

/// The findings of `journal verify`. Scripts read `ok` and the codes, people the messages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifyReport {
    pub ok: bool,
    pub states_checked: u64,
    pub documents_checked: u64,
    pub objects_checked: u64,
    pub plugins_checked: u64,
    /// Receipts in granted databases, and rows that were written with them; filled in by a caller that
    /// reaches those databases.
    #[serde(default)]
    pub receipts_checked: u64,
    #[serde(default)]
    pub rows_checked: u64,
    /// The times that a granted database was found without commits that it had answered.
    #[serde(default)]
    pub losses: Vec<String>,
    /// The things that could not be checked, and why.
    #[serde(default)]
    pub not_checked: Vec<String>,
    /// At most [`VerifyReport::PROBLEMS`]; `problems_left_out` counts the rest.
    pub problems: Vec<JournalProblem>,
    pub problems_left_out: u64,
}

impl VerifyReport {
    /// One damaged page causes thousands of findings that say the same.
    pub const PROBLEMS: usize = 1000;

    pub fn add(&mut self, code: &str, seq: Option<Seq>, message: impl Into<String>) {
        self.ok = false;
        if self.problems.len() < Self::PROBLEMS {
            self.problems.push(JournalProblem { code: code.to_owned(), seq, message: message.into() });
        } else {
            self.problems_left_out += 1;
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalProblem {
    /// One of the words in [`code`].
    pub code: String,
    /// The position, if the finding has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<Seq>,
    pub message: String,
}

/// The codes of [`JournalProblem`]s. They are stable.
pub mod code {
    kubewitness_core::words! {
        /// The store itself is damaged, or refuses to be read: the check of a file's structure fails, or a
        /// query does. The check ends there.
        STORE = "store";
        /// An import has not come to its end: continue it or discard it.
        UNFINISHED = "unfinished";
        /// A position is missing or occurs twice.
        SEQUENCE = "sequence";
        /// A row's bytes differ from the bytes that were written.
        ENVELOPE = "envelope";
        /// An id occurs twice, or does not match its state.
        ID = "id";
        /// States of an object contradict each other: versions do not ascend and the later state is not marked
        /// late, a state follows the object's end, its end lies below a version of it, two objects have one name
        /// by turns, or a history follows the history that replaced it.
        ORDER = "order";
        /// A state does not point to the state before it of the same object.
        CHAIN = "chain";
        /// A document can't be restored, differs from the document that was journaled, or is of another object
        /// or version than its state.
        DOCUMENT = "document";
        /// The state that is stored as an object's newest is not its newest.
        CURRENT = "current";
        /// A checkpoint is malformed, or further ahead of the states of its source than any server gets.
        CHECKPOINT = "checkpoint";
        /// The counters of a source differ from the states that the journal holds.
        COUNT = "count";
        /// The cursor or the finished ranges of a plugin are impossible.
        CURSOR = "cursor";
        /// The figures of a plugin do not add up: observed = delivered + filtered + dead + waiting + taken.
        COMPLETENESS = "completeness";
        /// A dead letter belongs to no state, or differs from what was parked.
        LETTER = "letter";
        /// A receipt in a granted database belongs to no state, or the rows that it vouches for are missing.
        RECEIPT = "receipt";
        /// The record of a gap is missing or differs from what its state says, or the gap contradicts its state
        /// or the versions that were told.
        GAP = "gap";
        /// The bytes of a poison message differ from the bytes that the API server sent.
        POISON = "poison";
        /// A lookup by name, uid or owner does not lead to the object.
        INDEX = "index";
        /// A key of a plugin's `kv` differs from what the plugin stored.
        KEY = "key";
        /// The record of who replayed or dropped dead letters differs from what was written.
        RECORD = "record";
    }
}
