//! Signs and closes the files of one ledger while somebody holds it.

use std::io;
use std::path::Path;
use std::sync::Arc;

use kubewitness_core::clock::{Clock, SystemClock};
use kubewitness_core::ledger::{Kind, Schedule};

use super::{Slot, asked};
use crate::secrets::signing_keys::Key;

#[derive(Clone)]
pub struct Sealing {
    schedule: Schedule,
    key: Option<Arc<Key>>,
    clock: Arc<dyn Clock>,
}

impl Sealing {
    pub fn new(schedule: Schedule, key: Option<Arc<Key>>) -> Self {
        Self { schedule, key, clock: Arc::new(SystemClock::default()) }
    }

    pub fn is_signed_with(&self, key: Option<&Arc<Key>>) -> bool {
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
    pub async fn tend(&self, path: &Path, slot: &mut Slot) -> io::Result<()> {
        let now_ms = self.now_ms();
        let is_open =
            |book: &mut super::Book| self.schedule.is_any() && !book.is_quiet(&self.schedule, now_ms);
        let Some(mut book) = slot.book.take_if(is_open) else { return Ok(()) };
        book.now_ms = now_ms;
        // Until the statement is known to be on disk, the next call cuts it off.
        slot.cut = Some(book.cut_at(book.bytes));
        let (schedule, key) = (self.schedule, self.key.clone());
        let attested = asked(path, move || {
            if let Err(error) = book.expect_in_place() {
                return Ok(Err(error));
            }
            let written = book.attest(&schedule, key.as_deref())?;
            Ok(Ok((book, written)))
        });
        // What was put in the place of the file is not for the next call to cut.
        let attested = attested.await?.inspect_err(|_| slot.cut = None)?;
        slot.cut = None;
        let (mut book, written) = attested;
        slot.book = Some(match written.filter(|written| written.statement.kind == Kind::Seal) {
            None => book,
            Some(seal) => asked(path, move || book.close(&seal.statement, &seal.line).map(|()| book)).await?,
        });
        Ok(())
    }
}
