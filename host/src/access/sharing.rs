//! Replicas share through the journal which sessions people have ended.

use std::time::Duration;

use anyhow::{Result, bail};
use kubewitness_core::clock::{Clock, SystemClock};
use kubewitness_journal::Journal;
use kubewitness_portal::EndedSessions;
use tokio_util::sync::CancellationToken;
use tracing::warn;

/// The name of the text that the replicas share.
const NAME: &str = "ended sessions";
/// An attempt fails only if another replica was faster.
const ATTEMPTS: usize = 8;

/// Looks for sign-outs at other replicas this often.
pub async fn share_ended_sessions(
    ended: EndedSessions,
    journal: Journal,
    every: Duration,
    stop: CancellationToken,
) -> Result<()> {
    let mut is_told = false;
    while let Some(exchanged) = stop.run_until_cancelled(exchange_ended(&ended, &journal)).await {
        match exchanged {
            Ok(()) => is_told = false,
            Err(error) if !is_told => {
                is_told = true;
                warn!("log-outs do not hold on other replicas now, it is tried again: {error:#}");
            }
            Err(_) => {}
        }
        if stop.run_until_cancelled(tokio::time::sleep(every)).await.is_none() {
            break;
        }
    }
    Ok(())
}

async fn exchange_ended(ended: &EndedSessions, journal: &Journal) -> Result<()> {
    for _ in 0..ATTEMPTS {
        let theirs = journal.shared_text(NAME).await?;
        let Some(all) = ended.merge_with_others(&theirs, SystemClock::default().now_ms()).await? else {
            return Ok(());
        };
        if journal.change_shared_text(NAME, &theirs, &all).await? {
            return Ok(());
        }
    }
    bail!("other replicas change the ended sessions all the time")
}
