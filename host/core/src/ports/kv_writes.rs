//! Capability → dispatch: the committed `kv` writes of a call, on their way to the plugin's next save.

use std::ops::Deref;

use tokio::sync::OwnedMutexGuard;

use super::KvWrite;

/// A call's turn among the calls of its plugin that write to `kv`. `None` if it wrote nothing.
pub type KvTurn = Option<OwnedMutexGuard<()>>;

/// The `kv` writes of one call. It holds the call's turn, so the next call commits its own writes only after
/// the dispatcher has taken these. So saves happen in the order of commits, even if calls end on several
/// threads at once.
#[derive(Debug, Default)]
pub struct KvWrites {
    writes: Vec<KvWrite>,
    _turn: KvTurn,
}

impl KvWrites {
    pub fn new(writes: Vec<KvWrite>, turn: KvTurn) -> Self {
        Self { writes, _turn: turn }
    }

    /// Adds more writes of the same call.
    pub fn extend(&mut self, more: Vec<KvWrite>) {
        self.writes.extend(more);
    }

    /// Ends the turn.
    pub fn take(self) -> Vec<KvWrite> {
        self.writes
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
