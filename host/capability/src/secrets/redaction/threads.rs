//! Redacts long documents on threads that may block, a few at a time. A short one is redacted at once.
//!
//! The time grows with the document, and a tenant may write long ones. Neither other people's requests nor
//! the watch wait for them, because those run on the runtime's own threads. Parties take turns, so the one
//! with the most requests does not delay the others.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::available_parallelism;

use kubewitness_core::redact::WithheldDocument;
use tokio::sync::oneshot;

/// Shorter documents are redacted at once. A usual Job of 5 KiB takes less time than a switch between
/// threads.
const SHORT_BYTES: usize = 8 << 10;
/// After this many bytes of short documents, the task yields to the runtime's other tasks.
const YIELD_BYTES: usize = 64 << 10;
/// At least two threads, so that no party has all of them.
const LEAST: usize = 2;
/// Longer documents leave one thread free for shorter ones, which take some milliseconds.
const MEDIUM_BYTES: usize = 64 << 10;
/// The most waiting work of one party. Beyond it, a list adds none.
const WAITING: usize = 64;

/// The party for which a document is redacted. Each has a share of the threads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ThreadParty {
    Person(Arc<str>),
    Plugin(Arc<str>),
    /// The namespace of the shown objects.
    Namespace(Arc<str>),
    /// People are not distinguished.
    Anybody,
}

impl ThreadParty {
    /// The share for searching the objects of a namespace. A search serves all people, so it is in nobody's
    /// own share.
    pub(super) fn for_objects_of(&self, namespace: &str) -> Self {
        match self {
            Self::Plugin(_) => self.clone(),
            _ => Self::Namespace(namespace.into()),
        }
    }
}

#[derive(Clone)]
pub(super) struct RedactionThreads {
    queue: Arc<Mutex<WorkQueue>>,
    /// The bytes of all short documents so far.
    short_bytes: Arc<AtomicUsize>,
}

type ThreadWork = Box<dyn FnOnce() + Send>;

#[derive(Clone, Copy)]
enum DocumentSize {
    Medium,
    Long,
}

struct WorkQueue {
    /// The number of free threads.
    long: usize,
    medium: usize,
    /// The most threads of one party.
    share: usize,
    /// The parties with running or waiting work, in the order of their turns.
    lines: VecDeque<PartyLine>,
}

struct PartyLine {
    party: ThreadParty,
    running: usize,
    waiting: VecDeque<(DocumentSize, ThreadWork)>,
}

impl Default for RedactionThreads {
    /// One processor is left for everything else.
    fn default() -> Self {
        let processors = available_parallelism().map_or(1, usize::from);
        Self::with_places(processors.saturating_sub(1).max(LEAST))
    }
}

impl RedactionThreads {
    pub(super) fn with_places(places: usize) -> Self {
        let queue = WorkQueue { long: places, medium: 1, share: places / 2, lines: VecDeque::new() };
        Self { queue: Arc::new(Mutex::new(queue)), short_bytes: Arc::default() }
    }

    /// Runs `work`, whose cost is so many bytes. It is skipped if nobody waits for it when its turn comes.
    /// Work that has begun keeps its thread to its end.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        party: &ThreadParty,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, WithheldDocument> {
        self.run_work(party, bytes, false, work).await
    }

    /// Runs work with a lasting result: it runs even if its caller has stopped waiting.
    pub(super) async fn run_to_end<T: Send + 'static>(
        &self,
        party: &ThreadParty,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, WithheldDocument> {
        self.run_work(party, bytes, true, work).await
    }

    async fn run_work<T: Send + 'static>(
        &self,
        party: &ThreadParty,
        bytes: usize,
        also_for_nobody: bool,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, WithheldDocument> {
        let (result_sender, result) = oneshot::channel();
        let work = move || {
            if also_for_nobody || !result_sender.is_closed() {
                result_sender.send(work()).ok();
            }
        };
        if bytes <= SHORT_BYTES {
            work();
            // Many short documents cost as much as a long one. Yielding after each would make a page of many
            // rows wait for everything else in the process.
            let before = self.short_bytes.fetch_add(bytes, Ordering::Relaxed);
            if before / YIELD_BYTES != before.wrapping_add(bytes) / YIELD_BYTES {
                tokio::task::yield_now().await;
            }
        } else {
            let size = if bytes <= MEDIUM_BYTES { DocumentSize::Medium } else { DocumentSize::Long };
            self.lock_queue().line_of_party(party).waiting.push_back((size, Box::new(work)));
            self.start_next_work();
        }
        result.await.map_err(WithheldDocument::from_error)
    }

    /// Whether so much of the party's work waits that no more should be added.
    pub(super) fn is_full(&self, party: &ThreadParty) -> bool {
        let queue = self.lock_queue();
        queue.lines.iter().any(|line| line.party == *party && line.waiting.len() >= WAITING)
    }

    fn start_next_work(&self) {
        let mut queue = self.lock_queue();
        while let Some((party, size, work)) = queue.next() {
            let threads = self.clone();
            tokio::task::spawn_blocking(move || {
                let _place = WorkPlace { threads, party, size };
                // If the work panics, its caller gets no result.
                work();
            });
        }
    }

    fn lock_queue(&self) -> MutexGuard<'_, WorkQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WorkQueue {
    fn line_of_party(&mut self, party: &ThreadParty) -> &mut PartyLine {
        let known = self.lines.iter().position(|line| line.party == *party);
        let index = known.unwrap_or_else(|| {
            self.lines.push_back(PartyLine { party: party.clone(), running: 0, waiting: VecDeque::new() });
            self.lines.len() - 1
        });
        &mut self.lines[index]
    }

    fn free_places(&mut self, size: DocumentSize) -> &mut usize {
        match size {
            DocumentSize::Medium => &mut self.medium,
            DocumentSize::Long => &mut self.long,
        }
    }

    /// The next work: from the first party that may run. That party then becomes the last.
    fn next(&mut self) -> Option<(ThreadParty, DocumentSize, ThreadWork)> {
        let (long, medium, share) = (self.long, self.medium, self.share);
        let has_place = |size: &DocumentSize| match size {
            DocumentSize::Medium => medium > 0,
            DocumentSize::Long => long > 0,
        };
        let is_next = |line: &PartyLine| {
            line.running < share && line.waiting.front().is_some_and(|(size, _)| has_place(size))
        };
        let mut line = self.lines.iter().position(is_next).and_then(|index| self.lines.remove(index))?;
        let next = line.waiting.pop_front();
        line.running += usize::from(next.is_some());
        let party = line.party.clone();
        self.lines.push_back(line);
        let (size, work) = next?;
        *self.free_places(size) -= 1;
        Some((party, size, work))
    }

    fn end_work(&mut self, party: &ThreadParty, size: DocumentSize) {
        *self.free_places(size) += 1;
        self.line_of_party(party).running -= 1;
        self.lines.retain(|line| line.running > 0 || !line.waiting.is_empty());
    }
}

/// The place of work on a thread.
struct WorkPlace {
    threads: RedactionThreads,
    party: ThreadParty,
    size: DocumentSize,
}

impl Drop for WorkPlace {
    fn drop(&mut self) {
        self.threads.lock_queue().end_work(&self.party, self.size);
        self.threads.start_next_work();
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::sync::mpsc;
    use std::task::Poll;

    use super::*;

    const LONG: usize = MEDIUM_BYTES + 1;

    fn person(name: &str) -> ThreadParty {
        ThreadParty::Person(name.into())
    }

    /// Until whatever is spawned has had its turn.
    async fn is_waiting(mut work: std::pin::Pin<&mut impl Future>) -> bool {
        for _ in 0..100 {
            let polled = std::future::poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await;
            if polled.is_ready() {
                return false;
            }
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        true
    }

    /// Work ends, and is forgotten, a moment after its answer.
    async fn until(is_so: impl Fn() -> bool) {
        let waiting = async {
            while !is_so() {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(30), waiting).await.expect("it comes true");
    }

    #[tokio::test]
    async fn the_long_documents_of_one_party_leave_threads_to_another() {
        let threads = RedactionThreads::with_places(4);
        let (end, ended) = mpsc::channel::<()>();
        let ended = Arc::new(Mutex::new(ended));
        let held = || {
            let ended = ended.clone();
            threads.run(&ThreadParty::Anybody, LONG, move || ended.lock().unwrap().recv().is_ok())
        };
        let calls: Vec<_> = (0..8).map(|_| Box::pin(held())).collect();
        let mut calls = futures::future::join_all(calls);
        assert!(is_waiting(std::pin::Pin::new(&mut calls)).await);
        assert_eq!(threads.lock_queue().long, 2, "a party has its share and no more");
        for name in ["ann", "bob"] {
            let done = threads.run(&person(name), LONG, move || name).await;
            assert_eq!(done, Ok(name));
        }
        let medium = threads.run(&person("dan"), MEDIUM_BYTES, || 1).await;
        assert_eq!(medium, Ok(1), "it has a place of its own");
        let short = threads.run(&ThreadParty::Anybody, SHORT_BYTES, || 1).await;
        assert_eq!(short, Ok(1), "a short one waits for nothing");
        drop(calls);
        until(|| threads.lock_queue().long >= 2).await;
        assert_eq!(threads.lock_queue().long, 2, "what began keeps its places");
        (0..2).for_each(|_| end.send(()).unwrap());
        assert_eq!(
            threads.run(&ThreadParty::Anybody, LONG, || 2).await,
            Ok(2),
            "what nobody waits for is left out"
        );
        until(|| threads.lock_queue().lines.is_empty()).await;
    }

    #[tokio::test]
    async fn parties_have_their_turns_one_after_the_other_and_what_is_kept_is_done_for_nobody() {
        let threads = RedactionThreads::with_places(2);
        let (end, ended) = mpsc::channel::<()>();
        let done = Arc::new(Mutex::new(Vec::new()));
        let note = |name: &'static str| {
            let done = done.clone();
            move || done.lock().unwrap().push(name)
        };
        let (ann, bob) = (person("ann"), person("bob"));
        // It has the only thread for work of this size.
        let first = threads.run(&ann, MEDIUM_BYTES, move || ended.recv().is_ok());
        let others = async {
            let mut given_up = Vec::new();
            for _ in 0..3 {
                given_up.push(Box::pin(threads.run_to_end(&ann, MEDIUM_BYTES, note("ann"))));
            }
            given_up.iter_mut().for_each(|call| assert!(futures::FutureExt::now_or_never(call).is_none()));
            drop(given_up);
            let mut bobs = Box::pin(threads.run(&bob, MEDIUM_BYTES, note("bob")));
            assert!(is_waiting(bobs.as_mut()).await);
            end.send(()).unwrap();
            bobs.await.unwrap();
        };
        let (first, ()) = tokio::join!(first, others);
        assert_eq!(first, Ok(true));
        until(|| done.lock().unwrap().len() == 4).await;
        assert!(done.lock().unwrap()[..2].contains(&"bob"), "{done:?}");
    }

    #[tokio::test]
    async fn while_a_long_document_is_redacted_the_thread_of_the_requests_is_free() {
        let threads = RedactionThreads::with_places(2);
        let (end, ended) = mpsc::channel();
        // On the thread of this test the work would wait forever.
        let (done, ()) = tokio::join!(
            threads.run(&ThreadParty::Anybody, LONG, move || ended
                .recv_timeout(std::time::Duration::from_secs(30))
                .is_ok()),
            async move { end.send(()).unwrap() },
        );
        assert_eq!(done, Ok(true));
    }

    #[tokio::test]
    async fn a_document_whose_redaction_fails_is_withheld() {
        let threads = RedactionThreads::with_places(2);
        for _ in 0..3 {
            let result: Result<(), _> =
                threads.run(&ThreadParty::Anybody, LONG, || panic!("out of luck")).await;
            assert!(result.unwrap_err().to_string().contains("withheld"));
        }
    }
}
