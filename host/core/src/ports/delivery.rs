//! Dispatch → sandbox: batches of states, and their verdicts.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use thiserror::Error;

use super::{KvWrite, KvWrites};
use crate::state::{Seq, State};

#[derive(Clone, Debug)]
pub struct StateDelivery {
    pub state: Arc<State>,
    /// 1 for the first try.
    pub attempt: u32,
    /// Whether the state is delivered again by a resync of its source.
    pub resync: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Done,
    Retry {
        after_ms: Option<u64>,
        reason: String,
    },
    /// The state can never succeed: it becomes a dead letter.
    Reject(String),
}

impl Verdict {
    pub fn is_done(&self) -> bool {
        matches!(self, Self::Done)
    }

    pub fn is_retry(&self) -> bool {
        matches!(self, Self::Retry { .. })
    }
}

/// The result of a call: one verdict for each state, in order, and the call's writes to `kv`.
#[derive(Debug, Default)]
pub struct CallOutcome {
    pub verdicts: Vec<Verdict>,
    pub kv: KvWrites,
    /// [`WritesFate::Apart`]: the verdicts do not count, and only determine how the states are split.
    pub is_apart: bool,
}

/// The fate of a call's writes. A call has one transaction, so its writes can't be assigned to single states.
/// They are committed only if all of its states are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WritesFate {
    Commit,
    /// Nothing is committed, and the verdicts count: no other state loses anything.
    RollBack,
    /// Nothing is committed, and the states are delivered again in smaller calls ([`split_by_verdict`]).
    Apart,
}

impl WritesFate {
    /// A state that is rejected together with others may have been rejected because of what another one
    /// wrote.
    pub fn of(verdicts: &[Verdict]) -> Self {
        if verdicts.iter().all(Verdict::is_done) {
            Self::Commit
        } else if verdicts.len() == 1 || verdicts.iter().all(Verdict::is_retry) {
            Self::RollBack
        } else {
            Self::Apart
        }
    }
}

/// The calls into which a mixed batch is split: the states that were done together, those to retry together,
/// and each rejected state alone. They settle most batches, and each is smaller than the batch.
pub fn split_by_verdict<T>(batch: Vec<T>, verdicts: &[Verdict]) -> Vec<Vec<T>> {
    let (mut done, mut later, mut alone) = (Vec::new(), Vec::new(), Vec::new());
    for (delivery, verdict) in batch.into_iter().zip(verdicts) {
        match verdict {
            Verdict::Done => done.push(delivery),
            Verdict::Retry { .. } => later.push(delivery),
            Verdict::Reject(_) => alone.push(vec![delivery]),
        }
    }
    [done, later].into_iter().chain(alone).filter(|part| !part.is_empty()).collect()
}

/// Why a whole call failed. Everything that it wrote was rolled back.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CallError {
    #[error("the plugin trapped: {0}")]
    Trap(String),
    #[error("the plugin ran longer than its limit of {limit_ms} ms")]
    Timeout { limit_ms: u64 },
    #[error("the plugin wanted more memory than its limit of {limit_bytes} bytes")]
    Memory { limit_bytes: u64 },
    #[error("the plugin's answer is invalid: {0}")]
    Protocol(String),
    /// The store refused the call's writes because of their content.
    #[error("{0}")]
    Refused(String),
    /// The plugin reports that its tick failed.
    #[error("the plugin says: {0}")]
    Failed(String),
    /// The plugin is not at fault: a database, a ledger or the controller itself failed.
    #[error("{0}")]
    Unavailable(String),
}

crate::words! {
    /// How a call ended.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum CallEnd {
        /// The plugin answered. If all states of the call are done, what it wrote is committed.
        Answered = "answered",
        /// The plugin trapped, or ended its process.
        Trapped = "trapped",
        /// The plugin ran longer than `limits.call`.
        TimedOut = "timed-out",
        /// The plugin wanted more memory than `limits.memory`.
        OutOfMemory = "out-of-memory",
        /// The plugin's answer was not one verdict a state, each of a kind that the controller knows.
        Invalid = "invalid",
        /// A database refused what the plugin wrote.
        Refused = "refused",
        /// A database, a ledger or the controller failed. The plugin is not to blame.
        Unavailable = "unavailable",
    }
}

impl CallError {
    pub fn as_call_end(&self) -> CallEnd {
        match self {
            Self::Trap(_) => CallEnd::Trapped,
            Self::Timeout { .. } => CallEnd::TimedOut,
            Self::Memory { .. } => CallEnd::OutOfMemory,
            Self::Protocol(_) => CallEnd::Invalid,
            // A tick that the plugin reports as failed is counted with the ticks.
            Self::Refused(_) | Self::Failed(_) => CallEnd::Refused,
            Self::Unavailable(_) => CallEnd::Unavailable,
        }
    }

    /// Whether splitting the batch can isolate the state that causes it.
    pub fn is_plugins_fault(&self) -> bool {
        !matches!(self, Self::Unavailable(_))
    }
}

/// One call that the schedule of a plugin's manifest demands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduledCall {
    /// When it was due, in milliseconds since 1970. The call may begin later.
    pub due_ms: u64,
    /// Its deadline, including the controller's work but not the time spent waiting for a CPU ticket.
    pub timeout: Duration,
}

/// How long no call may begin, because the plugin has exceeded its share in advance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallPause {
    pub wait: Duration,
    /// The reason, for people.
    pub why: Arc<str>,
}

/// The states that are applied, by the receipts of a plugin.
#[derive(Debug, Default)]
pub struct AppliedStates {
    pub seqs: HashSet<Seq>,
    /// The writes to `kv` that are saved with their ends.
    pub kv: KvWrites,
}

/// A plugin that is ready to be called.
#[async_trait]
pub trait PluginHandler: Send + Sync {
    async fn handle_batch(&self, batch: &[StateDelivery]) -> Result<CallOutcome, CallError>;

    /// Looks for the receipts of states that were handed over and never answered. The plugin is not called. A plugin that
    /// keeps no receipts has applied none of them, as far as anybody knows.
    async fn find_applied(&self, batch: &[StateDelivery]) -> Result<AppliedStates, CallError>;

    /// Calls the plugin without a state. Returns its writes to `kv`. A plugin without a schedule refuses.
    async fn handle_tick(&self, _tick: ScheduledCall) -> Result<Vec<KvWrite>, CallError> {
        Err(CallError::Protocol("it exports no `ticker`".into()))
    }

    /// Asked before each call. The states wait meanwhile, and use up no tries.
    fn pause_before_call(&self) -> Option<CallPause> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdicts(word: &str) -> Vec<Verdict> {
        let verdict = |letter| match letter {
            'd' => Verdict::Done,
            'r' => Verdict::Retry { after_ms: None, reason: "later".into() },
            _ => Verdict::Reject("never".into()),
        };
        word.chars().map(verdict).collect()
    }

    #[test]
    fn writes_are_kept_only_if_all_states_are_done() {
        for (word, keeping) in [
            ("", WritesFate::Commit),
            ("ddd", WritesFate::Commit),
            ("r", WritesFate::RollBack),
            ("x", WritesFate::RollBack),
            ("rrr", WritesFate::RollBack),
            ("dr", WritesFate::Apart),
            ("dx", WritesFate::Apart),
            ("xx", WritesFate::Apart),
            ("rx", WritesFate::Apart),
        ] {
            assert_eq!(WritesFate::of(&verdicts(word)), keeping, "{word}");
        }
    }

    #[test]
    fn a_batch_that_is_taken_apart_comes_again_in_smaller_calls_with_each_state_once() {
        let word = "drxddxr";
        let parts = split_by_verdict((0..word.len()).collect(), &verdicts(word));
        assert_eq!(parts, [vec![0, 3, 4], vec![1, 6], vec![2], vec![5]]);
        assert_eq!(split_by_verdict(vec![0, 1], &verdicts("xx")), [[0], [1]]);
    }
}
