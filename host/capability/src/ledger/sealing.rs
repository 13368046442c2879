//! Signs and closes the files of one ledger while it is locked.

use std::io;
use std::path::Path;
use std::sync::Arc;

use kubewitness_core::clock::{Clock, SystemClock};
use kubewitness_core::ledger::{LedgerSchedule, StatementKind};
use kubewitness_core::ports::Ledgers;

use super::{LedgerSlot, WAIT, run_in_time};
use crate::secrets::signing_keys::SigningKey;

#[derive(Clone)]
pub struct SealingTask {
    schedule: LedgerSchedule,
    key: Option<Arc<SigningKey>>,
    clock: Arc<dyn Clock>,
    /// Stores the progress of a signed ledger.
    journal: Option<Arc<dyn Ledgers>>,
}

impl SealingTask {
    pub fn new(
        schedule: LedgerSchedule,
        key: Option<Arc<SigningKey>>,
        journal: Option<Arc<dyn Ledgers>>,
    ) -> Self {
        Self { schedule, key, clock: Arc::new(SystemClock::default()), journal }
    }

    pub fn journal(&self) -> Option<&Arc<dyn Ledgers>> {
        self.journal.as_ref()
    }

    pub fn is_signed_with(&self, key: Option<&Arc<SigningKey>>) -> bool {
        match (&self.key, key) {
            (Some(own), Some(key)) => Arc::ptr_eq(own, key),
            (own, key) => own.is_none() && key.is_none(),
        }
    }

    pub fn at_the_end(&self) -> Self {
        Self { schedule: self.schedule.at_the_end(), ..self.clone() }
    }

    pub fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    /// Writes the statement that is due, and begins the next file after a seal. After an error the ledger is closed.
    pub async fn write_due_statement(
        &self,
        name: &str,
        path: &Path,
        slot: &mut LedgerSlot,
    ) -> io::Result<()> {
        let now_ms = self.now_ms();
        let is_open =
            |book: &mut super::LedgerBook| self.schedule.is_any() && !book.is_quiet(&self.schedule, now_ms);
        let Some(mut book) = slot.book.take_if(is_open) else { return Ok(()) };
        book.now_ms = now_ms;
        // Until the statement is known to be on disk, the next call cuts it off.
        slot.cut = Some(book.cut_at(book.bytes));
        let (schedule, key) = (self.schedule, self.key.clone());
        let attested = run_in_time(path, move || {
            if let Err(error) = book.expect_in_place() {
                return Ok(Err(error));
            }
            let written = book.write_due_statement(&schedule, key.as_deref())?;
            Ok(Ok((book, written)))
        });
        // The next call must not cut a file that somebody put in its place.
        let (mut book, written) = attested.await?.inspect_err(|_| slot.cut = None)?;
        slot.cut = None;
        let Some(written) = written else {
            slot.book = Some(book);
            return Ok(());
        };
        // A separate step: cutting off a settled statement would look as if somebody had removed records.
        let settled = run_in_time(path, move || {
            let (statement, line) = book.settle_statement(written)?;
            if statement.kind == StatementKind::Seal {
                book.close(&statement, &line)?;
            }
            Ok(book)
        });
        slot.book = Some(settled.await?);
        if self.key.is_some() || slot.reached.is_some() {
            self.save_progress(name, slot).await;
        }
        Ok(())
    }

    /// If the journal does not store a root, the next one covers it.
    async fn save_progress(&self, name: &str, slot: &mut LedgerSlot) {
        let reached = slot.book.as_ref().and_then(super::LedgerBook::reached_progress);
        let (Some(journal), Some(reached)) = (&self.journal, reached) else { return };
        let why = match tokio::time::timeout(WAIT, journal.save_ledger_progress(name, &reached)).await {
            Ok(Ok(())) => {
                slot.reached = Some(reached);
                return;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the journal does not answer".to_owned(),
        };
        tracing::warn!(ledger = name, "the newest root of the ledger is not kept in the journal: {why}");
    }
}
