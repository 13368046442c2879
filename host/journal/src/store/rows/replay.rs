//! Dead letters that an operator replays or drops.

use kubewitness_core::Seq;
use kubewitness_core::ports::DeadLetter;

/// Dead letters that are marked as taken back or as dropped.
#[derive(Clone, Debug)]
pub(crate) struct Replay {
    pub act: Act,
    pub plugin: String,
    pub seqs: Vec<Seq>,
    pub who: String,
    pub why: String,
    pub at_ms: u64,
}

/// What an operator did with dead letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Replay,
    Drop,
}

impl Act {
    /// As records and people call it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Replay => "replay",
            Self::Drop => "drop",
        }
    }

    /// As a letter has it: 0 where it is parked.
    pub fn mark(self) -> i64 {
        match self {
            Self::Replay => 1,
            Self::Drop => 2,
        }
    }

    pub fn mark_of(letter: &DeadLetter) -> i64 {
        match (letter.dropped, letter.replaying) {
            (true, _) => Self::Drop.mark(),
            (false, true) => Self::Replay.mark(),
            (false, false) => 0,
        }
    }
}
