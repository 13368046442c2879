//! What was found out of states, and whose long documents take long.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kubewitness_core::Seq;
use tokio::time::Instant;

/// States whose statuses are kept as they are shown. Each takes some tens of bytes where it quotes no secret.
const KEPT: usize = 8192;
/// Nobody waits for a document of the namespace again for so long.
const PAUSE: Duration = Duration::from_secs(2);
/// Namespaces that are slow at a time. Where there are more, all are waited for once more.
const NAMESPACES: usize = 1024;

/// A state never changes, so neither does what is shown of it.
pub(super) struct Kept<T>(Arc<Mutex<HashMap<Seq, T>>>);

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> Clone for Kept<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Clone> Kept<T> {
    pub(super) fn get(&self, seq: Seq) -> Option<T> {
        lock(&self.0).get(&seq).cloned()
    }

    pub(super) fn keep(&self, seq: Seq, found: T) {
        let mut kept = lock(&self.0);
        if kept.len() >= KEPT {
            kept.clear();
        }
        kept.insert(seq, found);
    }
}

/// Namespaces with a document that took too long a moment ago.
#[derive(Default)]
pub(super) struct Slow(Mutex<HashMap<Arc<str>, Instant>>);

impl Slow {
    pub(super) fn has(&self, namespace: &str) -> bool {
        lock(&self.0).get(namespace).is_some_and(|at| at.elapsed() < PAUSE)
    }

    pub(super) fn note(&self, namespace: Arc<str>) {
        let mut slow = lock(&self.0);
        if slow.len() >= NAMESPACES {
            slow.clear();
        }
        slow.insert(namespace, Instant::now());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
