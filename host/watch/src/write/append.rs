//! Writes one batch after another to the journal while the next batch is made. A failed batch is retried, and
//! nothing else is accepted until it is written.

use std::sync::Arc;

use kubewitness_core::ports::{AppendBatch, AppendResult, JournalError};
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::connect::backoff::{Backoff, JitterDice};
use crate::source::parts::SourceParts;

/// The result of a batch. An error is final.
pub(crate) type BatchResult = Result<AppendResult, JournalError>;

pub(crate) struct BatchAppender {
    pub parts: Arc<SourceParts>,
    pub appends: mpsc::Receiver<AppendBatch>,
    pub appended: mpsc::Sender<BatchResult>,
}

impl BatchAppender {
    /// Runs until its sender ends, or until a stop while the journal can't be written.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut dice = JitterDice::new(self.parts.tuning.seed);
        while let Some(append) = self.appends.recv().await {
            let Some(settled) = write(&self.parts, &append, &mut dice, &stop).await else { return };
            // A batch after a refused one must not be stored without it.
            let is_last = settled.is_err();
            if self.appended.send(settled).await.is_err() || is_last {
                return;
            }
        }
    }
}

/// Tries until the batch is durable. Returns `None` if it was stopped before.
pub(crate) async fn write(
    parts: &SourceParts,
    append: &AppendBatch,
    dice: &mut JitterDice,
    stop: &CancellationToken,
) -> Option<BatchResult> {
    let SourceParts { tuning, witness, shared, .. } = parts;
    let mut backoff = Backoff::new(tuning.first_pause, tuning.journal_pause);
    // An outage of hours logs each reason once.
    let mut logged = None;
    loop {
        let why = match witness.append_batch(append.clone()).await {
            Err(JournalError::Unavailable(why)) => why,
            settled => {
                if logged.is_some() {
                    tracing::info!(source = %append.source, "reading again: the journal can be written");
                }
                shared.lock_live().stalled = None;
                return Some(settled);
            }
        };
        let pause = backoff.next(dice, None);
        if logged.as_ref() != Some(&why) {
            tracing::warn!(source = %append.source, "not reading: the journal can't be written: {why}");
            logged = Some(why.clone());
        }
        shared.lock_live().stalled = Some(format!("the journal can't be written: {why}"));
        tokio::select! {
            () = sleep(pause) => {}
            () = stop.cancelled() => return None,
        }
    }
}
