//! The record of an operator's action on a plugin: a replay or drop of dead letters, a pause, a resume.

use kubewitness_core::Seq;
use kubewitness_core::ports::DeadLetter;
use kubewitness_core::views::LetterChoice;

/// A record, with the dead letters that the action marks.
#[derive(Clone, Debug)]
pub(crate) struct LetterMarking {
    pub act: OperatorAct,
    pub plugin: String,
    pub seqs: Vec<Seq>,
    pub who: String,
    pub why: String,
    pub at_ms: u64,
}

/// A row of the letters: a dead letter or an owed state, with the mark that tells which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MarkedLetter {
    pub plugin: String,
    pub seq: Seq,
    pub mark: i64,
}

/// An action of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperatorAct {
    Replay,
    Drop,
    /// Without letters. The newest pause or resume record of a plugin says whether it is paused.
    Pause,
    Resume,
}

/// The mark in a letter; 0 means parked.
const REPLAYING: i64 = 1;
pub(crate) const DROPPED: i64 = 2;
/// The mark of an owed state. It is not a dead letter: its lane had not delivered the state when the cursor
/// passed it.
pub(crate) const OWED_STATE: i64 = 3;

impl OperatorAct {
    /// The word in records and for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Replay => "replay",
            Self::Drop => "drop",
            Self::Pause => "pause",
            Self::Resume => "resume",
        }
    }

    /// The mark that the action leaves on letters; `None` for an action without letters.
    pub fn letter_mark(self) -> Option<i64> {
        match self {
            Self::Replay => Some(REPLAYING),
            Self::Drop => Some(DROPPED),
            Self::Pause | Self::Resume => None,
        }
    }

    pub fn mark_of(letter: &DeadLetter) -> i64 {
        match (letter.dropped, letter.replaying) {
            (true, _) => DROPPED,
            (false, true) => REPLAYING,
            (false, false) => 0,
        }
    }

    /// The lowest and the highest mark of these letters.
    pub fn marks_of(which: LetterChoice) -> (i64, i64) {
        match which {
            LetterChoice::All => (0, DROPPED),
            LetterChoice::NotDropped => (0, REPLAYING),
            LetterChoice::Dropped => (DROPPED, DROPPED),
        }
    }

    /// Whether a state with this mark is still to be delivered.
    pub fn is_waiting(mark: i64) -> bool {
        matches!(mark, REPLAYING | OWED_STATE)
    }

    /// Whether a letter with this mark is being replayed, and whether it was dropped.
    pub fn of_mark(mark: i64) -> (bool, bool) {
        (mark == REPLAYING, mark == DROPPED)
    }
}
