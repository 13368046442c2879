//! Capability → dispatch: the committed `kv` writes of a call, on their way to the plugin's next save.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use tokio::sync::OwnedMutexGuard;

use super::KvWrite;

/// A call's turn among the calls of its plugin that write to `kv`. `None` if it wrote nothing.
pub type KvTurn = Option<OwnedMutexGuard<()>>;

/// A write whose value is determined only when the dispatcher takes it.
pub trait LateWrite: Send + Sync {
    fn current_write(&self) -> Option<KvWrite>;
}

/// The `kv` writes of one call. It holds the call's turn, so the next call commits its own writes only after
/// the dispatcher has taken these. So saves happen in the order of commits, even if calls end on several
/// threads at once.
#[derive(Default)]
pub struct KvWrites {
    writes: Vec<KvWrite>,
    late: Option<Arc<dyn LateWrite>>,
    _turn: KvTurn,
}

impl fmt::Debug for KvWrites {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.writes.fmt(f)
    }
}

impl KvWrites {
    pub fn new(writes: Vec<KvWrite>, turn: KvTurn) -> Self {
        Self { writes, late: None, _turn: turn }
    }

    /// Adds more writes of the same call.
    pub fn extend(&mut self, writes: Vec<KvWrite>) {
        self.writes.extend(writes);
    }

    /// Adds a write that is made after all others, with its value at that time. Calls end side by side, so a
    /// value from the end of one call could overwrite a newer value of another.
    pub fn end_with_late(&mut self, late: Arc<dyn LateWrite>) {
        self.late = Some(late);
    }

    /// Whether there is nothing to save.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.late.is_none()
    }

    /// Ends the turn.
    pub fn take(self) -> Vec<KvWrite> {
        let late = self.late.and_then(|late| late.current_write());
        self.writes.into_iter().chain(late).collect()
    }
}

impl PartialEq for KvWrites {
    fn eq(&self, other: &Self) -> bool {
        self.writes == other.writes
    }
}

impl Deref for KvWrites {
    type Target = [KvWrite];

    fn deref(&self) -> &[KvWrite] {
        &self.writes
    }
}

impl From<Vec<KvWrite>> for KvWrites {
    fn from(writes: Vec<KvWrite>) -> Self {
        Self::new(writes, None)
    }
}
