//! Writes one batch after the other to the journal, so that the next one can be made meanwhile. What
//! can't be written now is tried again; nothing else is taken until it is.

use std::sync::Arc;

use kubewitness_core::ports::{Append, Appended, JournalError};
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::connect::backoff::{Backoff, Dice};
use crate::source::parts::Parts;

/// What became of a batch. An error is final.
pub(crate) type Settled = Result<Appended, JournalError>;

pub(crate) struct Appender {
    pub parts: Arc<Parts>,
    pub appends: mpsc::Receiver<Append>,
    pub appended: mpsc::Sender<Settled>,
}

impl Appender {
    /// Ends with the one who gives it batches, or on a stop while the journal can't be written.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut dice = Dice::new(self.parts.tuning.seed);
        while let Some(append) = self.appends.recv().await {
            let Some(settled) = write(&self.parts, &append, &mut dice, &stop).await else { return };
            // What comes after one that is refused must not be there without it.
            let is_last = settled.is_err();
            if self.appended.send(settled).await.is_err() || is_last {
                return;
            }
        }
    }
}

/// Tries until it is durable. `None`: stopped before it was.
pub(crate) async fn write(
    parts: &Parts,
    append: &Append,
    dice: &mut Dice,
    stop: &CancellationToken,
) -> Option<Settled> {
    let Parts { tuning, witness, shared, .. } = parts;
    let mut backoff = Backoff::new(tuning.first_pause, tuning.journal_pause);
    // In an outage of hours each reason is in the log once.
    let mut told = None;
    loop {
        let why = match witness.append(append.clone()).await {
            Err(JournalError::Unavailable(why)) => why,
            settled => {
                if told.is_some() {
                    tracing::info!(source = %append.source, "reading again: the journal can be written");
                }
                shared.live().stalled = None;
                return Some(settled);
            }
        };
        let pause = backoff.next(dice, None);
        if told.as_ref() != Some(&why) {
            tracing::warn!(source = %append.source, "not reading: the journal can't be written: {why}");
            told = Some(why.clone());
        }
        shared.live().stalled = Some(format!("the journal can't be written: {why}"));
        tokio::select! {
            () = sleep(pause) => {}
            () = stop.cancelled() => return None,
        }
    }
}
