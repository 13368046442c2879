//! Shares equal statuses between objects. The table has recent statuses, each at one fixed place. A miss
//! costs memory but never a search.

use std::hash::BuildHasher;
use std::sync::Arc;

use hashbrown::DefaultHashBuilder;
use kubewitness_core::state::Status;

/// The number of statuses in the table. Most objects of a cluster have one of a few statuses.
const SHARED_STATUSES: usize = 256;

pub(crate) struct StatusTable {
    recent: Vec<Option<Arc<Status>>>,
    hasher: DefaultHashBuilder,
}
impl Default for StatusTable {
    fn default() -> Self {
        Self { recent: vec![None; SHARED_STATUSES], hasher: DefaultHashBuilder::default() }
    }
}

impl StatusTable {
    pub fn share_status(&mut self, status: Status, previous: Option<&Arc<Status>>) -> Arc<Status> {
        if let Some(previous) = previous.filter(|previous| ***previous == status) {
            return Arc::clone(previous);
        }
        let place = self.hasher.hash_one((&status.phase, &status.reason, status.attempt, status.ready));
        let place = &mut self.recent[place as usize % SHARED_STATUSES];
        match place {
            Some(shared) if **shared == status => Arc::clone(shared),
            _ => Arc::clone(place.insert(Arc::new(status))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_statuses_are_one() {
        let mut statuses = StatusTable::default();
        let running = || Status { phase: "Running".into(), ..Status::default() };
        let first = statuses.share_status(running(), None);
        assert!(Arc::ptr_eq(&first, &statuses.share_status(running(), None)));
        let other = Arc::new(running());
        assert!(Arc::ptr_eq(&other, &statuses.share_status(running(), Some(&other))));
    }
}
