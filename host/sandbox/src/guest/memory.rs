//! Limits the memory of one instance, and of all instances together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use wasmtime::ResourceLimiter;

use crate::tally::PluginTally;

/// The size of a table slot on this machine, for the sum of memory.
const TABLE_SLOT: usize = 16;

/// The most core instances, memories and tables in one component: compilers make fewer than ten.
const PARTS: usize = 64;

/// The memory of all instances of an engine together. Granted memory is returned when the instance ends.
#[derive(Debug)]
pub struct MemoryBudget {
    most: AtomicUsize,
    used: AtomicUsize,
}

impl Default for MemoryBudget {
    fn default() -> Self {
        Self { most: AtomicUsize::new(usize::MAX), used: AtomicUsize::new(0) }
    }
}

impl MemoryBudget {
    /// Sets the limit of future grants. Instances keep what they have.
    pub fn set_most(&self, most: u64) {
        self.most.store(usize::try_from(most).unwrap_or(usize::MAX), Ordering::Relaxed);
    }

    pub fn used_bytes(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Takes this much memory. If that exceeds the limit, the error is the limit.
    fn take(&self, by: usize) -> Result<(), usize> {
        let most = self.most.load(Ordering::Relaxed);
        let more = |used: usize| used.checked_add(by).filter(|sum| *sum <= most);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).map(drop).map_err(|_| most)
    }

    fn return_bytes(&self, by: usize) {
        self.used.fetch_sub(by, Ordering::Relaxed);
    }
}

/// Why a growth was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrowthRefusal {
    /// It exceeds the limit of the instance.
    Instance,
    /// It exceeds this limit of all instances together.
    All(usize),
}

/// The sum over all memories and tables of one instance, for as long as the instance exists.
pub struct MemoryLimit {
    limit: usize,
    used: usize,
    budget: Arc<MemoryBudget>,
    tally: Arc<PluginTally>,
    /// The growth that was refused during this call. If the call then traps, this is the reason.
    pub refused: Option<GrowthRefusal>,
}

impl MemoryLimit {
    pub fn new(limit: u64, budget: Arc<MemoryBudget>, tally: Arc<PluginTally>) -> Self {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        tally.instance_began();
        Self { limit, used: 0, budget, tally, refused: None }
    }

    /// A growth beyond the guest's own declaration does not happen, so it is not counted.
    fn grow_within(&mut self, current: usize, desired: usize, most: Option<usize>, bytes: usize) -> bool {
        most.is_none_or(|most| desired <= most)
            && self.try_grow(desired.saturating_sub(current).saturating_mul(bytes))
    }

    fn try_grow(&mut self, by: usize) -> bool {
        let Some(sum) = self.used.checked_add(by).filter(|sum| *sum <= self.limit) else {
            self.refused = Some(GrowthRefusal::Instance);
            return false;
        };
        if let Err(most) = self.budget.take(by) {
            self.refused = Some(GrowthRefusal::All(most));
            return false;
        }
        self.used = sum;
        self.tally.note_growth(by, sum);
        true
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        self.budget.return_bytes(self.used);
        self.tally.instance_ended(self.used);
    }
}

impl ResourceLimiter for MemoryLimit {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        most: Option<usize>,
    ) -> wasmtime::Result<bool> {
        Ok(self.grow_within(current, desired, most, 1))
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        most: Option<usize>,
    ) -> wasmtime::Result<bool> {
        Ok(self.grow_within(current, desired, most, TABLE_SLOT))
    }

    fn instances(&self) -> usize {
        PARTS
    }

    fn tables(&self) -> usize {
        PARTS
    }

    fn memories(&self) -> usize {
        PARTS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_summed_over_everything_that_grows() {
        let mut limit = MemoryLimit::new(1000, Arc::default(), Arc::default());
        assert!(limit.memory_growing(0, 600, None).unwrap());
        assert!(limit.memory_growing(600, 700, None).unwrap());
        assert!(limit.table_growing(0, 10, None).unwrap());
        assert!(!limit.memory_growing(0, 200, None).unwrap());
        assert_eq!(limit.refused, Some(GrowthRefusal::Instance));
    }

    #[test]
    fn what_a_memory_refuses_itself_is_not_counted() {
        let mut limit = MemoryLimit::new(1000, Arc::default(), Arc::default());
        assert!(!limit.memory_growing(0, 900, Some(800)).unwrap());
        assert_eq!(limit.refused, None);
        assert!(limit.memory_growing(0, 800, Some(800)).unwrap());
    }

    #[test]
    fn all_instances_together_have_no_more_than_their_budget_and_an_end_gives_it_back() {
        let budget = Arc::new(MemoryBudget::default());
        budget.set_most(1000);
        let mut one = MemoryLimit::new(800, budget.clone(), Arc::default());
        let mut other = MemoryLimit::new(800, budget.clone(), Arc::default());
        assert!(one.memory_growing(0, 700, None).unwrap());
        assert!(!other.memory_growing(0, 400, None).unwrap());
        assert_eq!((other.refused, budget.used_bytes()), (Some(GrowthRefusal::All(1000)), 700));
        // A lower budget takes nothing from existing instances.
        budget.set_most(500);
        assert!(!one.memory_growing(700, 701, None).unwrap());
        drop(one);
        assert!(other.memory_growing(0, 400, None).unwrap());
        assert_eq!(budget.used_bytes(), 400);
    }
}
