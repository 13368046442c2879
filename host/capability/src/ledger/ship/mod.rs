//! Ships closed files of a ledger into a bucket, and removes local copies that were kept long enough.
//!
//! A file is looked up in the bucket, sent if it is missing, looked up again, and noted. So it is stored at
//! least once, wherever a kill happens. An object with other bytes is never overwritten, because those may be
//! the true ones. The exception is a prefix of the file, which a storage kept from an interrupted upload.
//! Before a local file is removed, it is read again and compared with its note, and with the bytes that the
//! bucket returns. Trusting the storage's digest was rejected: it may simply repeat the digest that was sent.

mod aws_signature;
mod bucket;
mod closed;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kubewitness_core::BoxedError;
use kubewitness_core::clock::Clock;
use kubewitness_core::config::ShipSpec;
use kubewitness_core::files;
use kubewitness_core::ledger::closed_file;
use kubewitness_core::ports::GrantError;
use thiserror::Error;
use tokio::sync::OnceCell;

use self::bucket::{FileContent, PutMode, PutOutcome, ShipBucket, StoredFile};
use self::closed::{ClosedFiles, ShippedNote};
use crate::http;

/// How many files one turn handles. A stop and changed settings wait for a whole turn.
const AT_ONCE: usize = 16;

/// How long shipping pauses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShipPauses {
    /// The pause between two checks of the folder while nothing waits.
    pub look: Duration,
    /// The pause after a failure. It doubles with each further failure.
    pub first: Duration,
    pub longest: Duration,
}

impl Default for ShipPauses {
    fn default() -> Self {
        Self {
            look: Duration::from_secs(10),
            first: Duration::from_secs(5),
            longest: Duration::from_secs(600),
        }
    }
}

impl ShipPauses {
    fn after_failure(&self, before: Option<Duration>) -> Duration {
        before.map_or(self.first, |before| self.longest.min(2 * before))
    }

    /// Whether a check is due. A clock that was set back delays it at most by the longest pause.
    fn is_due(&self, due_ms: u64, now_ms: u64) -> bool {
        now_ms >= due_ms || due_ms - now_ms > as_millis_u64(self.longest)
    }
}

/// Why a file is not shipped or not removed. The next round tries again.
#[derive(Debug, Error)]
pub enum ShipTrouble {
    #[error("{0}: change `ship` of the ledger")]
    Settings(#[source] BoxedError),
    #[error("the bucket's storage: {0}")]
    Away(GrantError),
    #[error(
        "the storage answers {status}{code} when {doing} `{name}`: look at the bucket, the region, and the access key \
         and its rights (get, put and list)"
    )]
    Refused { doing: &'static str, name: String, status: u16, code: String },
    #[error(
        "the bucket has other bytes under `{0}` than the file has, and nothing there is overwritten: find out who wrote \
         them, and move them away or choose another `prefix`"
    )]
    Other(String),
    #[error(
        "the storage keeps {stored} of the {bytes} bytes of `{name}`: look at its room and its limits; the file is sent again"
    )]
    Shorter { name: String, stored: u64, bytes: u64 },
    #[error("`{0}` has changed since it was shipped, and stays here: compare it with the one in the bucket")]
    Changed(String),
    #[error("{0} can't be read or written: {1}")]
    File(String, io::Error),
}

impl ShipTrouble {
    fn server_away(error: &reqwest::Error) -> Self {
        Self::Away(http::refusal_of(error))
    }

    /// Whether it concerns only this file.
    fn is_of_one_file(&self) -> bool {
        matches!(self, Self::Other(_) | Self::Shorter { .. } | Self::Changed(_) | Self::File(..))
    }
}

/// The progress of shipping, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShippingStatus {
    /// Closed files that the bucket does not have yet, and when the oldest was closed.
    pub waiting: u64,
    pub waiting_since_ms: Option<u64>,
    /// Since the controller has started or its settings have changed.
    pub shipped: u64,
    pub removed: u64,
    pub failed: u64,
    pub trouble: Option<String>,
}

#[derive(Default)]
struct ShipperState {
    /// When each local file was shipped.
    known: BTreeMap<u64, u64>,
    due_ms: u64,
    wait: Option<Duration>,
    /// Files with a problem. Each has its own pause.
    held: BTreeMap<u64, HeldFiles>,
    shipping: ShippingStatus,
}

struct HeldFiles {
    wait: Duration,
    due_ms: u64,
    why: String,
}

pub struct FileShipper {
    ledger: String,
    /// The open file of the ledger.
    path: PathBuf,
    spec: ShipSpec,
    clock: Arc<dyn Clock>,
    pauses: ShipPauses,
    bucket: OnceCell<ShipBucket>,
    state: Mutex<ShipperState>,
}

impl FileShipper {
    pub fn new(ledger: &str, path: &Path, spec: &ShipSpec, clock: Arc<dyn Clock>) -> Self {
        Self {
            ledger: ledger.to_owned(),
            path: path.to_owned(),
            spec: spec.clone(),
            clock,
            pauses: ShipPauses::default(),
            bucket: OnceCell::new(),
            state: Mutex::default(),
        }
    }

    pub fn with_pauses(self, pauses: ShipPauses) -> Self {
        Self { pauses, ..self }
    }

    fn lock_state(&self) -> MutexGuard<'_, ShipperState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn shipping_status(&self) -> ShippingStatus {
        self.lock_state().shipping.clone()
    }

    /// One round, if it is due. It may be abandoned at any point.
    pub async fn run_if_due(&self) {
        let now_ms = self.clock.now_ms();
        if !self.pauses.is_due(self.lock_state().due_ms, now_ms) {
            return;
        }
        let (pause, trouble) = match self.ship_some(now_ms).await {
            Ok(true) => (self.pauses.look, None),
            Ok(false) => (Duration::ZERO, None),
            Err(trouble) => {
                tracing::warn!(ledger = self.ledger, "closed files are not shipped: {trouble}");
                (self.pauses.after_failure(self.lock_state().wait), Some(trouble.to_string()))
            }
        };
        let mut state = self.lock_state();
        state.wait = trouble.as_ref().map(|_| pause);
        state.due_ms = self.clock.now_ms() + as_millis_u64(pause);
        state.shipping.failed += u64::from(trouble.is_some());
        let of_a_file = state.held.values().next().map(|held| held.why.clone());
        state.shipping.trouble = trouble.or(of_a_file);
    }

    /// Returns whether nothing is left to do now.
    async fn ship_some(&self, now_ms: u64) -> Result<bool, ShipTrouble> {
        let ClosedFiles { shipped, waiting } = self.find_closed_files().await?;
        let keep_ms = self.spec.keep.map_or(u64::MAX, |keep| as_millis_u64(keep.0));
        let is_over = |shipped_ms: u64| now_ms.saturating_sub(shipped_ms) >= keep_ms;
        let over = shipped.iter().filter(|(_, shipped_ms)| is_over(**shipped_ms)).map(|(number, _)| *number);
        let (waiting, over): (Vec<_>, Vec<_>) = {
            let mut state = self.lock_state();
            // Somebody may have removed the obstacle.
            state.held.retain(|number, _| waiting.contains_key(number) || shipped.contains_key(number));
            let is_free = |number: &u64| {
                state.held.get(number).is_none_or(|held| self.pauses.is_due(held.due_ms, now_ms))
            };
            (waiting.keys().copied().filter(is_free).collect(), over.filter(is_free).collect())
        };
        for number in waiting.iter().take(AT_ONCE) {
            self.keep_going(*number, self.ship_file(*number).await)?;
        }
        for number in over.iter().take(AT_ONCE) {
            self.keep_going(*number, self.remove(*number).await)?;
        }
        Ok(waiting.len() <= AT_ONCE && over.len() <= AT_ONCE)
    }

    /// Notes the result of one file. A fault of one file does not delay the others.
    fn keep_going(&self, number: u64, done: Result<(), ShipTrouble>) -> Result<(), ShipTrouble> {
        let mut state = self.lock_state();
        match done {
            Ok(()) => drop(state.held.remove(&number)),
            Err(trouble) if trouble.is_of_one_file() => {
                tracing::warn!(
                    ledger = self.ledger,
                    "a closed file is not shipped or not removed: {trouble}"
                );
                let wait = self.pauses.after_failure(state.held.get(&number).map(|held| held.wait));
                let due_ms = self.clock.now_ms() + as_millis_u64(wait);
                state.held.insert(number, HeldFiles { wait, due_ms, why: trouble.to_string() });
                state.shipping.failed += 1;
            }
            Err(trouble) => return Err(trouble),
        }
        Ok(())
    }

    async fn find_closed_files(&self) -> Result<ClosedFiles, ShipTrouble> {
        let (open, known) = (self.path.clone(), self.lock_state().known.clone());
        let spec = self.spec.clone();
        let place_of = move |number| place_of_file(&spec, &name_of(&closed_file(&open, number)));
        let open = self.path.clone();
        let found =
            self.run_in_time(&self.path, move || closed::find_closed_files(&open, place_of, &known)).await?;
        let mut state = self.lock_state();
        state.known.clone_from(&found.shipped);
        state.shipping.waiting = found.waiting.len() as u64;
        state.shipping.waiting_since_ms = found.waiting.values().min().copied();
        Ok(found)
    }

    async fn open_bucket(&self) -> Result<&ShipBucket, ShipTrouble> {
        let open = async || ShipBucket::open(&self.ledger, &self.spec, self.clock.clone());
        self.bucket.get_or_try_init(open).await
    }

    async fn ship_file(&self, number: u64) -> Result<(), ShipTrouble> {
        let closed = closed_file(&self.path, number);
        let name = name_of(&closed);
        let bucket = self.open_bucket().await?;
        let content = self.file_content(&closed, u64::MAX).await?;
        let mut stored = bucket.look_up_file(&name, &content).await?;
        let mut put = PutMode::New;
        if let StoredFile::Shorter(bytes) = stored
            && bucket.read_back(&name, bytes).await? == Some(self.file_content(&closed, bytes).await?.sha256)
        {
            // An interrupted upload. Nothing is lost, because the file contains the same bytes.
            (stored, put) = (StoredFile::Nothing, PutMode::Any);
        }
        if stored == StoredFile::Nothing {
            self.put_file(bucket, &closed, &content, put).await?;
            stored = bucket.look_up_file(&name, &content).await?;
            if let StoredFile::Shorter(stored) = stored {
                return Err(ShipTrouble::Shorter { name: bucket.key(&name), stored, bytes: content.bytes });
            }
        }
        if stored != StoredFile::Same {
            return Err(ShipTrouble::Other(bucket.key(&name)));
        }
        let shipped_ms = self.clock.now_ms();
        let place = place_of_file(&self.spec, &name);
        let note =
            ShippedNote { place, bytes: content.bytes, sha256: hex::encode(content.sha256), shipped_ms };
        let open = self.path.clone();
        self.run_in_time(&closed, move || note.write(&open, number)).await?;
        tracing::info!(ledger = self.ledger, file = name, "a closed file is in the bucket");
        let mut state = self.lock_state();
        state.known.insert(number, shipped_ms);
        state.shipping.shipped += 1;
        state.shipping.waiting = state.shipping.waiting.saturating_sub(1);
        Ok(())
    }

    /// A storage without conditional writes gets the file without a condition.
    async fn put_file(
        &self,
        bucket: &ShipBucket,
        closed: &Path,
        content: &FileContent,
        put: PutMode,
    ) -> Result<(), ShipTrouble> {
        let name = name_of(closed);
        for put in [put, PutMode::Any] {
            let path = closed.to_owned();
            let file = self.run_in_time(closed, move || closed::open(&path)).await?;
            if bucket.put_file(&name, file, content, put).await? == PutOutcome::Done {
                break;
            }
        }
        Ok(())
    }

    /// Removes a file only if the bucket has it byte for byte.
    async fn remove(&self, number: u64) -> Result<(), ShipTrouble> {
        let closed = closed_file(&self.path, number);
        let name = name_of(&closed);
        let open = self.path.clone();
        let Some(note) = self.run_in_time(&closed, move || ShippedNote::read(&open, number)).await? else {
            self.lock_state().known.remove(&number);
            return Ok(());
        };
        let content = self.file_content(&closed, u64::MAX).await?;
        if !note.is_of(&content) {
            return Err(ShipTrouble::Changed(name));
        }
        let bucket = self.open_bucket().await?;
        let is_there = bucket.look_up_file(&name, &content).await? == StoredFile::Same;
        if !is_there || bucket.read_back(&name, content.bytes).await? != Some(content.sha256) {
            // Without a note it is shipped again, or reported as different.
            let path = ShippedNote::path(&self.path, number);
            self.lock_state().known.remove(&number);
            self.run_in_time(&closed, move || std::fs::remove_file(path)).await?;
            return if is_there { Err(ShipTrouble::Other(bucket.key(&name))) } else { Ok(()) };
        }
        let open = self.path.clone();
        self.run_in_time(&closed, move || closed::remove(&open, number)).await?;
        tracing::info!(
            ledger = self.ledger,
            file = name,
            "a closed file is removed here: it was kept long enough, and the bucket has it"
        );
        let mut state = self.lock_state();
        state.known.remove(&number);
        state.shipping.removed += 1;
        Ok(())
    }

    async fn file_content(&self, closed: &Path, most: u64) -> Result<FileContent, ShipTrouble> {
        let path = closed.to_owned();
        self.run_in_time(closed, move || closed::file_content(&path, most)).await
    }

    async fn run_in_time<T: Send + 'static>(
        &self,
        path: &Path,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Result<T, ShipTrouble> {
        let done = files::run_within_limit(path, files::WORK, work).await;
        done.map_err(|error| ShipTrouble::File(path.display().to_string(), error))
    }
}

fn place_of_file(spec: &ShipSpec, name: &str) -> String {
    let ShipSpec { endpoint, bucket, prefix, .. } = spec;
    format!("{}/{bucket}/{prefix}{name}", endpoint.trim_end_matches('/'))
}

fn name_of(closed: &Path) -> String {
    closed.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn as_millis_u64(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
