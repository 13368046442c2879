//! Decides whose turn it is to fetch a component. Each server has one place, so that a slow one delays only
//! its own components. Waiting fetches get their turn in order of arrival.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// Each has a connection, and a file with its download. One cluster's plugins don't use more servers than
/// these. Even if all are slow, they hold no memory and are given up in time.
const AT_ONCE: usize = 16;
const OF_ONE_SERVER: usize = 1;

static ALL: Semaphore = Semaphore::const_new(AT_ONCE);
static TURNS: Mutex<FetchTurns> = Mutex::new(FetchTurns { servers: BTreeMap::new(), fetching: Vec::new() });

struct FetchTurns {
    /// The servers with waiting or running fetches.
    servers: BTreeMap<String, Weak<Semaphore>>,
    /// By the names of their manifests.
    fetching: Vec<String>,
}

/// Held while a component is fetched.
pub struct FetchTurn {
    name: String,
    _of_all: SemaphorePermit<'static>,
    _of_server: OwnedSemaphorePermit,
}

impl FetchTurn {
    /// Waits for the turn. Earlier fetches are limited in time.
    pub async fn await_turn(server: &str, name: String) -> Self {
        // The lock is never held across a wait.
        let places = turns().server(server);
        let (Ok(of_server), Ok(of_all)) = (places.acquire_owned().await, ALL.acquire().await) else {
            // Nobody closes the semaphores.
            return std::future::pending().await;
        };
        turns().fetching.push(name.clone());
        Self { name, _of_all: of_all, _of_server: of_server }
    }
}

impl Drop for FetchTurn {
    fn drop(&mut self) {
        let mut turns = turns();
        if let Some(index) = turns.fetching.iter().position(|name| *name == self.name) {
            turns.fetching.swap_remove(index);
        }
    }
}

impl FetchTurns {
    fn server(&mut self, name: &str) -> Arc<Semaphore> {
        self.servers.retain(|_, places| places.strong_count() > 0);
        let known = self.servers.get(name).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let places = Arc::new(Semaphore::new(OF_ONE_SERVER));
            self.servers.insert(name.to_owned(), Arc::downgrade(&places));
            places
        })
    }
}

fn turns() -> MutexGuard<'static, FetchTurns> {
    TURNS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the component of this manifest is being fetched. Otherwise it waits for its turn.
pub fn is_fetching(name: &str) -> bool {
    turns().fetching.iter().any(|fetching| fetching == name)
}
