//! The memory of components that were fetched, or lay on disk, and wait to be compiled: one is compiled at a time, and each
//! may take minutes. All of them share one room. What finds none waits on disk.

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::COMPONENT_BYTES;

/// In these the room is counted.
const PIECE: u64 = 1 << 20;
/// Two of the largest components: a shadow is on disk again before its plugin is read.
const ROOM: u64 = 2 * COMPONENT_BYTES;

static ALL: LazyLock<Room> = LazyLock::new(|| Room::of(ROOM));

#[derive(Clone)]
pub struct Room(Arc<Semaphore>);

/// Room for one component of any length, until it is known how long it is.
pub struct Place(OwnedSemaphorePermit);

/// Bytes that hold their place.
struct Placed {
    bytes: Vec<u8>,
    _place: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Placed {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

fn pieces(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(PIECE)).unwrap_or(u32::MAX)
}

impl Room {
    fn of(bytes: u64) -> Self {
        Self(Arc::new(Semaphore::new(pieces(bytes) as usize)))
    }

    /// Waits for it. Who asks first is first.
    async fn place(&self) -> Result<Place, String> {
        let place = self.0.clone().acquire_many_owned(pieces(COMPONENT_BYTES)).await;
        place.map(Place).map_err(|error| error.to_string())
    }
}

impl Place {
    /// Of the room that all share.
    pub async fn wait() -> Result<Self, String> {
        ALL.place().await
    }

    /// As long as the bytes are there, so is their share of the room.
    pub fn filled(mut self, bytes: Vec<u8>) -> Bytes {
        let needed = pieces(bytes.len() as u64) as usize;
        let unused = self.0.num_permits().saturating_sub(needed);
        drop(self.0.split(unused));
        Bytes::from_owner(Placed { bytes, _place: self.0 })
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    #[tokio::test]
    async fn components_in_memory_share_a_room_and_who_finds_none_waits_until_one_is_gone() {
        let room = Room::of(ROOM);
        let large = room.place().await.unwrap().filled(vec![0; COMPONENT_BYTES as usize]);
        let small = room.place().await.unwrap().filled(vec![7; 3]);
        assert_eq!(&small[..], [7; 3]);
        let mut waiting = pin!(room.place());
        assert!(futures::poll!(waiting.as_mut()).is_pending(), "it may become as long as the largest");
        let part = large.slice(1..2);
        drop(large);
        assert!(futures::poll!(waiting.as_mut()).is_pending(), "a part of it is still held");
        drop(part);
        let next = waiting.await.unwrap();
        drop((next, small));
        assert_eq!(room.0.available_permits(), pieces(ROOM) as usize);
    }
}
