//! Limits how long a caller waits for a file system. A hanging network mount blocks its caller indefinitely,
//! and no signal ends that.
//!
//! So each request runs on its own thread, and the caller gives up after a limit. The runtime's blocking
//! threads were rejected: the journal needs them, and the process could not exit while one of them is
//! blocked. A path is not requested again until its blocked thread has returned.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::{OwnedMutexGuard, oneshot};

/// The limit for opening and reading a file of a few MiB. A disk takes milliseconds, a network mount that
/// works at most a second.
pub const ANSWER: Duration = Duration::from_secs(5);
/// The limit for longer work, such as a sync or reading a whole ledger. Work that takes longer continues, and
/// the next caller finds it done.
pub const WORK: Duration = Duration::from_secs(30);

/// The most threads that file systems may block, over all paths. Each costs half a page of memory and a
/// thread id. At this number no other file is requested until one thread returns.
const LEFT_BEHIND: usize = 64;
/// The number of paths that are remembered before unused ones are dropped.
const PATHS: usize = 256;

static PLACES: PathLocks =
    PathLocks { known: Mutex::new(BTreeMap::new()), silence: ANSWER, left_behind: LEFT_BEHIND };

struct PathLocks {
    known: Mutex<BTreeMap<PathBuf, Arc<PathLock>>>,
    /// A thread that has waited for this long counts as blocked.
    silence: Duration,
    left_behind: usize,
}

/// One path: the turn to access it, and the time since which the current caller works.
#[derive(Default)]
struct PathLock {
    turn: Arc<tokio::sync::Mutex<()>>,
    since: Mutex<Option<Instant>>,
}

/// The caller at work holds this, also while its work panics.
struct AskingGuard {
    place: Arc<PathLock>,
    _turn: OwnedMutexGuard<()>,
}

impl AskingGuard {
    fn hold_turn(place: Arc<PathLock>, turn: OwnedMutexGuard<()>) -> Self {
        *lock(&place.since) = Some(Instant::now());
        Self { place, _turn: turn }
    }
}

impl Drop for AskingGuard {
    fn drop(&mut self) {
        *lock(&self.place.since) = None;
    }
}

impl PathLock {
    fn has_been_silent(&self, limit: Duration) -> bool {
        lock(&self.since).is_some_and(|since| since.elapsed() >= limit)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The data in the mutex is consistent even after a panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `work`, which accesses `path`, and waits for it at most `limit`. Only one caller accesses a path at a
/// time. While a path has been silent for longer than the limit, other callers fail at once.
pub async fn run_within_limit<T: Send + 'static>(
    path: &Path,
    limit: Duration,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    PLACES.run_within_limit(path, limit, work).await
}

impl PathLocks {
    async fn run_within_limit<T: Send + 'static>(
        &self,
        path: &Path,
        limit: Duration,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let place = self.lock_of_path(path)?;
        if place.has_been_silent(limit) {
            return Err(silent_path_error(limit));
        }
        let asking = async {
            let turn = place.turn.clone().lock_owned().await;
            let asking = AskingGuard::hold_turn(place.clone(), turn);
            let (sender, answer) = oneshot::channel();
            spawn_file_thread(move || {
                // A caller that has given up takes no result. What the work made, such as a locked file, is
                // dropped before the next caller starts.
                let done = Some(work()).filter(|_| !sender.is_closed());
                // Released first, because the caller may try again as soon as it has the answer.
                drop(asking);
                drop(done.map(|done| sender.send(done)));
            })?;
            answer.await.unwrap_or_else(|_| Err(broken_off()))
        };
        tokio::time::timeout(limit, asking).await.unwrap_or_else(|_| Err(silent_path_error(limit)))
    }

    fn lock_of_path(&self, path: &Path) -> io::Result<Arc<PathLock>> {
        let mut known = lock(&self.known);
        if let Some(place) = known.get(path) {
            return Ok(place.clone());
        }
        if known.len() >= PATHS {
            known.retain(|_, place| Arc::strong_count(place) > 1);
        }
        let silent = known.values().filter(|place| place.has_been_silent(self.silence)).count();
        if silent >= self.left_behind {
            let message =
                format!("{silent} other files do not answer: repair the network mount that holds them");
            return Err(io::Error::new(io::ErrorKind::TimedOut, message));
        }
        Ok(known.entry(path.to_path_buf()).or_default().clone())
    }
}

/// Runs `work` with a limit and blocks the calling thread, for a command that has nothing else to do.
pub fn within_blocking<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (sender, answer) = mpsc::sync_channel(1);
    spawn_file_thread(move || drop(sender.send(work())))?;
    answer.recv_timeout(limit).unwrap_or_else(|error| match error {
        mpsc::RecvTimeoutError::Timeout => Err(silent_path_error(limit)),
        mpsc::RecvTimeoutError::Disconnected => Err(broken_off()),
    })
}

/// The thread ends with its work or with the process; nothing waits for it.
fn spawn_file_thread(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name("file".into()).spawn(work).map(drop)
}

fn silent_path_error(limit: Duration) -> io::Error {
    let message =
        format!("it has not answered for {} s: check the network mount that holds it", limit.as_secs());
    io::Error::new(io::ErrorKind::TimedOut, message)
}

fn broken_off() -> io::Error {
    io::Error::other("its reading was interrupted")
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::process::Command;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const SHORT: Duration = Duration::from_millis(50);

    fn fifo(name: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        (folder, path)
    }

    /// Opens a pipe that has no writer. It blocks in the kernel as a lost mount does, and no signal from us
    /// ends it.
    fn hangs(path: &Path, tries: &Arc<AtomicUsize>) -> impl FnOnce() -> io::Result<()> + Send + use<> {
        let (path, tries) = (path.to_owned(), tries.clone());
        move || {
            tries.fetch_add(1, Ordering::SeqCst);
            File::open(path).map(drop)
        }
    }

    #[tokio::test]
    async fn a_path_that_hangs_is_given_up_keeps_one_thread_and_holds_up_no_other() {
        let (_folder, path) = fifo("mount");
        let tries = Arc::new(AtomicUsize::new(0));
        for _ in 0..20 {
            let error = run_within_limit(&path, SHORT, hangs(&path, &tries)).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert!(error.to_string().contains("network mount"), "{error}");
        }
        assert_eq!(tries.load(Ordering::SeqCst), 1, "nobody asks again while the first hangs");
        assert_eq!(run_within_limit(Path::new("other"), ANSWER, || Ok(7)).await.unwrap(), 7);

        // The mount is back.
        drop(OpenOptions::new().write(true).open(&path).unwrap());
        let deadline = Instant::now() + Duration::from_secs(20);
        while run_within_limit(&path, ANSWER, || Ok(())).await.is_err() {
            assert!(Instant::now() < deadline, "it is asked again once it has answered");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    #[tokio::test]
    async fn where_many_paths_hang_no_further_thread_is_left_behind() {
        let (_folder, path) = fifo("mount");
        let places = PathLocks { known: Mutex::default(), silence: SHORT / 2, left_behind: 2 };
        let tries = Arc::new(AtomicUsize::new(0));
        for name in ["a", "b", "c"] {
            places.run_within_limit(Path::new(name), SHORT, hangs(&path, &tries)).await.unwrap_err();
        }
        // A thread of a busy machine may begin after its caller has given up.
        let deadline = Instant::now() + Duration::from_secs(20);
        while tries.load(Ordering::SeqCst) < 2 && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(tries.load(Ordering::SeqCst), 2);
        let error = places.run_within_limit(Path::new("c"), SHORT, || Ok(())).await.unwrap_err().to_string();
        assert!(error.contains("2 other files do not answer"), "{error}");
    }

    #[tokio::test]
    async fn paths_that_nobody_asks_for_are_not_remembered() {
        let places = PathLocks { known: Mutex::default(), silence: ANSWER, left_behind: 2 };
        for n in 0..3 * PATHS {
            places.run_within_limit(Path::new(&n.to_string()), ANSWER, || Ok(())).await.unwrap();
        }
        assert!(lock(&places.known).len() <= PATHS);
    }

    #[tokio::test]
    async fn who_asks_at_the_same_time_waits_for_his_turn() {
        let busy = Arc::new(AtomicUsize::new(0));
        let ask = || {
            let busy = busy.clone();
            run_within_limit(Path::new("shared"), WORK, move || {
                assert_eq!(busy.fetch_add(1, Ordering::SeqCst), 0, "one at a time");
                thread::sleep(Duration::from_millis(1));
                busy.fetch_sub(1, Ordering::SeqCst);
                Ok(())
            })
        };
        let (a, b, c) = tokio::join!(ask(), ask(), ask());
        assert!(a.is_ok() && b.is_ok() && c.is_ok());
    }

    #[tokio::test]
    async fn work_that_panics_is_an_error_and_frees_its_path() {
        let broken: io::Result<()> =
            run_within_limit(Path::new("panics"), WORK, || panic!("a test's own")).await;
        assert!(broken.unwrap_err().to_string().contains("interrupted"));
        run_within_limit(Path::new("panics"), WORK, || Ok(())).await.unwrap();
    }

    #[test]
    fn a_command_gives_up_too() {
        let (_folder, path) = fifo("pipe");
        let tries = Arc::default();
        let error = within_blocking(SHORT, hangs(&path, &tries)).unwrap_err();
        assert!(error.to_string().contains("has not answered"), "{error}");
        assert_eq!(within_blocking(WORK, || Ok(7)).unwrap(), 7);
    }
}
