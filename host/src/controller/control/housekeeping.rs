//! What is done every few seconds, whether or not anything changes.

use std::time::Duration;

use anyhow::{Context, Result};
use kubewitness_core::ports::{Backlog, JournalError};
use tracing::warn;

use super::{Control, unreadable};

/// Removing old receipts of one plugin may take this long.
const PRUNE: Duration = Duration::from_secs(2);
/// Looking at the journal may take this long: changes of the configuration wait for it.
const LOOK: Duration = Duration::from_secs(2);

impl Control {
    /// One that is gone while nothing comes would be noticed with the next change, and until then
    /// nobody would put its copy back.
    pub(super) async fn look_at_journal(&self) -> Result<()> {
        let has_states = *self.plugins.journal.newest().borrow() > 0;
        if let Err(error) = self.last_good.witnessed(has_states) {
            warn!("{}", unreadable(&error));
        }
        match tokio::time::timeout(LOOK, self.plugins.journal.settle()).await {
            Ok(Err(error @ JournalError::Fatal(_))) => {
                Err(error).context("reading the figures of the journal")
            }
            Ok(Err(error)) => {
                warn!("the figures of the journal can't be read: {error}");
                Ok(())
            }
            Ok(Ok(())) => Ok(()),
            Err(_) => {
                warn!("the journal has not answered for {LOOK:?}");
                Ok(())
            }
        }
    }

    pub(super) async fn prune(&self) {
        let Some(capabilities) = &self.capabilities else { return };
        for (name, cursor) in self.plugins.cursors() {
            // A database that is slow or away is asked again the next time: changes don't wait for it.
            match tokio::time::timeout(PRUNE, capabilities.prune(&name, cursor)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    warn!(plugin = name, "receipts behind its cursor can't be removed yet: {error}");
                }
                Err(_) => warn!(plugin = name, "receipts behind its cursor could not be removed in time"),
            }
        }
    }
}
