//! Capability → dispatch: what a committed call has written to `kv`, on its way to the plugin's next save.

use std::ops::Deref;

use tokio::sync::OwnedMutexGuard;

use super::KvWrite;

/// The turn of a call among those of its plugin that write to `kv`. `None`: it has written nothing.
pub type KvTurn = Option<OwnedMutexGuard<()>>;

/// The writes of one call. It holds the call's turn: the next call commits its own writes once the dispatcher has taken
/// these. So what is saved last is what was committed last, also where calls end on several threads at once.
#[derive(Debug, Default)]
pub struct KvWrites {
    writes: Vec<KvWrite>,
    _turn: KvTurn,
}

impl KvWrites {
    pub fn new(writes: Vec<KvWrite>, turn: KvTurn) -> Self {
        Self { writes, _turn: turn }
    }

    /// More of the same call.
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
