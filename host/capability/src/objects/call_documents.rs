//! The documents of one call's states, read ahead of the plugin's questions.
//!
//! A plugin mostly asks the same of each state of its batch, in order. Each question alone is a read of the journal, and
//! the journal restores the document from a chain of deltas. So a question is answered together with the next ones:
//! a few at first, and twice as many each time, because a plugin may be interested in one state of many. The documents
//! are raw here; redaction follows, for each answer, as if it had been read alone.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use kubewitness_core::ports::{DocumentReader, JournalError, ReadDocument, StateDocuments};
use kubewitness_core::{ObjectRef, Seq};

/// How many states the first question covers, and how many each later one covers at most.
const FIRST: usize = 4;
const MOST: usize = 64;
/// Documents beyond so many bytes are dropped before more are read. One answer of the journal comes on top, some 8 MiB
/// and a document.
const HELD_BYTES: usize = 4 << 20;

/// Remembers from call to call whether a plugin reads earlier versions.
#[derive(Debug, Default)]
pub struct ReadingHabit {
    has_before: AtomicBool,
}

pub struct CallDocuments {
    journal: Arc<dyn DocumentReader>,
    habit: Arc<ReadingHabit>,
    ahead: Mutex<DocumentsAhead>,
}

struct DocumentsAhead {
    /// The states of the call that were not read yet, the next one last.
    unread: Vec<Seq>,
    held: HashMap<Seq, StateDocuments>,
    held_bytes: usize,
    next: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum DocumentChoice {
    Own,
    Before,
}

impl CallDocuments {
    /// `seqs` are the states of the call in order. With `reads_all` a question about each of them is certain.
    pub fn new(
        journal: Arc<dyn DocumentReader>,
        habit: Arc<ReadingHabit>,
        mut seqs: Vec<Seq>,
        reads_all: bool,
    ) -> Self {
        seqs.reverse();
        let next = if reads_all { MOST } else { FIRST };
        let ahead = DocumentsAhead { unread: seqs, held: HashMap::new(), held_bytes: 0, next };
        Self { journal, habit, ahead: Mutex::new(ahead) }
    }

    fn lock_ahead(&self) -> MutexGuard<'_, DocumentsAhead> {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `Unread` if the journal must be asked for it alone.
    async fn find(&self, seq: Seq, choice: DocumentChoice) -> ReadDocument {
        if choice == DocumentChoice::Before {
            self.habit.has_before.store(true, Ordering::Relaxed);
        }
        let has_before = self.habit.has_before.load(Ordering::Relaxed);
        let wanted = {
            let mut ahead = self.lock_ahead();
            match ahead.document(seq, choice) {
                ReadDocument::Unread => ahead.take_next(seq),
                found => return found,
            }
        };
        if wanted.is_empty() {
            return ReadDocument::Unread;
        }
        match self.journal.read_ahead(&wanted, has_before).await {
            Ok(found) => {
                let mut ahead = self.lock_ahead();
                ahead.hold(found);
                ahead.document(seq, choice)
            }
            // The single read has the same error, if it concerns this state.
            Err(error) => {
                tracing::debug!(%error, "documents could not be read ahead");
                ReadDocument::Unread
            }
        }
    }
}

impl DocumentsAhead {
    fn document(&self, seq: Seq, choice: DocumentChoice) -> ReadDocument {
        let Some(held) = self.held.get(&seq) else { return ReadDocument::Unread };
        match choice {
            DocumentChoice::Own => held.own.clone(),
            DocumentChoice::Before => held.before.clone(),
        }
    }

    /// Takes this state and the next ones. States that the plugin has passed over stay unread.
    fn take_next(&mut self, seq: Seq) -> Vec<Seq> {
        let Some(place) = self.unread.iter().rposition(|unread| *unread == seq) else { return Vec::new() };
        let from = (place + 1).saturating_sub(self.next);
        self.next = (self.next * 2).min(MOST);
        if self.held_bytes > HELD_BYTES {
            self.held.clear();
            self.held_bytes = 0;
        }
        self.unread.drain(from..=place).rev().collect()
    }

    fn hold(&mut self, found: Vec<StateDocuments>) {
        for documents in found {
            self.held_bytes += bytes_of(&documents.own) + bytes_of(&documents.before);
            self.held.insert(documents.seq, documents);
        }
    }
}

fn bytes_of(document: &ReadDocument) -> usize {
    match document {
        ReadDocument::Found(bytes) => bytes.len(),
        ReadDocument::Unread | ReadDocument::Absent => 0,
    }
}

#[async_trait]
impl DocumentReader for CallDocuments {
    async fn document_at(&self, seq: Seq) -> Result<Option<Bytes>, JournalError> {
        match self.find(seq, DocumentChoice::Own).await {
            ReadDocument::Unread => self.journal.document_at(seq).await,
            ReadDocument::Absent => Ok(None),
            ReadDocument::Found(document) => Ok(Some(document)),
        }
    }

    async fn document_before(&self, seq: Seq) -> Result<Option<Bytes>, JournalError> {
        match self.find(seq, DocumentChoice::Before).await {
            ReadDocument::Unread => self.journal.document_before(seq).await,
            ReadDocument::Absent => Ok(None),
            ReadDocument::Found(document) => Ok(Some(document)),
        }
    }

    async fn newest_of(&self, object: &ObjectRef) -> Result<Vec<Seq>, JournalError> {
        self.journal.newest_of(object).await
    }
}
