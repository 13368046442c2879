//! The memory of components that wait to be compiled: one is compiled at a time, and each may take minutes.
//! Fetched components and components in files share a budget; without room they wait on disk. Those in
//! ConfigMaps and in this binary are in memory anyway, and need no room.

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::COMPONENT_BYTES;

/// The unit of the budget.
const PIECE: u64 = 64 << 10;
/// Two of the largest components: a shadow is on disk again before its plugin is read.
const ROOM: u64 = 2 * COMPONENT_BYTES;

/// The budget that all components share.
pub static ALL: LazyLock<MemoryRoom> = LazyLock::new(|| MemoryRoom::of(ROOM));

#[derive(Clone)]
pub struct MemoryRoom(Arc<Semaphore>);

/// Room for one component, until its bytes are loaded.
pub struct MemoryPermit(OwnedSemaphorePermit);

/// Bytes that hold their room.
struct BudgetedBytes {
    bytes: Vec<u8>,
    _place: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for BudgetedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

fn budget_pieces(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(PIECE)).unwrap_or(u32::MAX)
}

impl MemoryRoom {
    pub fn of(bytes: u64) -> Self {
        Self(Arc::new(Semaphore::new(budget_pieces(bytes) as usize)))
    }

    /// Waits for so many bytes, or for the largest component's. The first to ask is the first to get them.
    pub async fn await_room(&self, most: u64) -> MemoryPermit {
        match self.0.clone().acquire_many_owned(budget_pieces(most.min(COMPONENT_BYTES))).await {
            Ok(place) => MemoryPermit(place),
            // Nobody closes the semaphore.
            Err(_) => std::future::pending().await,
        }
    }
}

impl MemoryPermit {
    /// The share of the budget is held as long as the bytes exist.
    pub fn fill_with(mut self, bytes: Vec<u8>) -> Bytes {
        let needed = budget_pieces(bytes.len() as u64) as usize;
        let unused = self.0.num_permits().saturating_sub(needed);
        drop(self.0.split(unused));
        Bytes::from_owner(BudgetedBytes { bytes, _place: self.0 })
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    #[tokio::test]
    async fn components_in_memory_share_a_room_and_who_finds_none_waits_until_one_is_gone() {
        let room = MemoryRoom::of(ROOM);
        let large = room.await_room(u64::MAX).await.fill_with(vec![0; COMPONENT_BYTES as usize]);
        let small = room.await_room(9 << 20).await.fill_with(vec![7; 3]);
        assert_eq!(&small[..], [7; 3]);
        let mut waiting = pin!(room.await_room(COMPONENT_BYTES));
        assert!(futures::poll!(waiting.as_mut()).is_pending(), "it may become as long as the largest");
        let part = large.slice(1..2);
        drop(large);
        assert!(futures::poll!(waiting.as_mut()).is_pending(), "a part of it is still held");
        drop(part);
        let next = waiting.await;
        drop((next, small));
        assert_eq!(room.0.available_permits(), budget_pieces(ROOM) as usize);
    }
}
