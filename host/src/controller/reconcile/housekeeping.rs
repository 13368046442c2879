//! Work that is repeated every few seconds, whether or not anything changes.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result};
use kubewitness_core::ports::{Backlog, JournalError};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{ReconcileLoop, unreadable_text};
use crate::config::ConfigSnapshot;
use crate::tasks::TaskFate;

/// The limit for removing old receipts of one plugin.
const PRUNE: Duration = Duration::from_secs(2);
/// The limit for checking the journal, because changes of the configuration wait for it.
const LOOK: Duration = Duration::from_secs(2);

impl ReconcileLoop {
    /// Logs unused documents, each once as long as it stays unused.
    pub(super) fn log_unused_documents(&mut self, snapshot: &ConfigSnapshot) {
        let untaken: BTreeSet<_> =
            snapshot.slips.iter().map(ToString::to_string).chain(snapshot.unused_documents()).collect();
        for told in untaken.difference(&self.untaken) {
            warn!("a part of the configuration is not used: {told}");
        }
        self.untaken = untaken;
    }

    /// Detects a lost journal even while no state arrives, so that an operator can restore a copy soon.
    pub(super) async fn check_journal(&mut self) -> Result<()> {
        let has_states = *self.plugins.journal.newest_position().borrow() > 0;
        if let Err(error) = self.last_good.run_on_thread(move |kept| kept.note_witnessed(has_states)).await {
            warn!("{}", unreadable_text(&error));
        }
        let trouble = match tokio::time::timeout(LOOK, self.plugins.journal.await_earlier_writes()).await {
            Ok(Err(error @ JournalError::Fatal(_))) => {
                return Err(error).context("reading the figures of the journal");
            }
            Ok(Err(error)) => Some(format!("it can't be looked at: {error}")),
            Ok(Ok(())) => None,
            Err(_) => Some(format!("it has not answered for {LOOK:?}")),
        };
        if let Some(trouble) = &trouble {
            warn!("the journal: {trouble}");
        }
        // A journal that is merely busy answers the next time.
        let lasts = self.journal_was_in_trouble && trouble.is_some();
        self.journal_was_in_trouble = trouble.is_some();
        self.shared.set_journal_trouble(trouble.filter(|_| lasts));
        Ok(())
    }

    /// Writes due statements of ledgers. It runs beside the loop, one run at a time: a ledger's disk that
    /// does not answer delays no change.
    pub(super) fn tend_ledgers(&mut self) {
        let is_tended = self.tending.as_ref().is_some_and(|task| !task.is_finished());
        let Some(capabilities) = self.capabilities.clone().filter(|own| own.seals_any_ledger() && !is_tended)
        else {
            return;
        };
        let tend = async move {
            capabilities.write_due_statements().await;
            Ok(())
        };
        self.tending = Some(self.plugins.tasks.spawn_task("signing of ledgers", TaskFate::Finite, tend));
    }

    /// Ships closed files, also beside the loop. Nothing waits for a bucket, and a round that a stop
    /// interrupts is repeated.
    pub(super) fn ship_ledgers(&mut self, stop: &CancellationToken) {
        let Some(capabilities) = self.capabilities.clone() else { return };
        let shipping = capabilities.shipping_status();
        let is_under_way = self.shipping.as_ref().is_some_and(|task| !task.is_finished());
        if !shipping.is_empty() && !is_under_way {
            let stop = stop.clone();
            let ship = async move {
                stop.run_until_cancelled(capabilities.ship_closed_files()).await;
                Ok(())
            };
            self.shipping =
                Some(self.plugins.tasks.spawn_task("shipping of ledgers", TaskFate::Finite, ship));
        }
        self.shared.set_shipping(shipping);
    }

    pub(super) async fn prune_receipts(&self) {
        let Some(capabilities) = &self.capabilities else { return };
        let now = self.plugins.clock.elapsed();
        for name in self.plugins.names() {
            // Read just before it is used, because a lower state may be delivered at any moment.
            let Some(cursor) = self.plugins.durable_cursor(&name) else { continue };
            // A slow or unreachable database is tried again the next time: changes don't wait for it.
            match tokio::time::timeout(PRUNE, capabilities.prune_receipts(&name, cursor, now)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    warn!(plugin = name, "receipts before its cursor can't be removed yet: {error}");
                }
                Err(_) => warn!(plugin = name, "receipts before its cursor could not be removed in time"),
            }
        }
    }
}
