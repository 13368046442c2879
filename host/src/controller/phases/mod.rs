//! Keeps the index of phases up to date with the journal, and has outcomes explained for it. Where the index can't be
//! kept, questions to it say why, and nothing else stops.

mod causes;

use std::time::Duration;

use anyhow::Result;
use kubewitness_core::clock::{Clock, SystemClock};
use kubewitness_core::ports::{Backlog, JournalError};
use kubewitness_core::story::outcomes::SETTLE_MS;
use kubewitness_journal::{Journal, PhaseIndex};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// In the data folder. It can be deleted at any time.
pub const FILE: &str = "index/phases.db";

/// What comes meanwhile is written down together, unless somebody asks before.
const BETWEEN: Duration = Duration::from_millis(200);
/// Between two looks at parts of the index, for what retention took, and between two rounds of them.
const SWEEP: Duration = Duration::from_secs(5);
const ROUND: Duration = Duration::from_secs(600);
/// The next attempt, where a disk is full or a server away.
const AGAIN: Duration = Duration::from_secs(5);

pub async fn follow(index: PhaseIndex, journal: Journal, stop: CancellationToken) -> Result<()> {
    let mut newest = journal.newest();
    let mut sweep = PhaseSweep { next: Instant::now() + SWEEP, after: None };
    loop {
        let went = stop.run_until_cancelled(go_on(&index, &journal, &mut sweep)).await;
        let Some(went) = went else { return Ok(()) };
        let pause = async {
            match log_outcome(&index, went) {
                true => {
                    tokio::time::timeout(BETWEEN, index.wanted()).await.ok();
                    // What retention took is looked for while nothing comes, too, and outcomes are explained.
                    let is_any_open = index.has_open_outcomes().await.unwrap_or_default();
                    let most = if is_any_open { Duration::from_millis(SETTLE_MS) } else { SWEEP };
                    tokio::time::timeout(most, newest.changed()).await.ok();
                }
                false => tokio::time::sleep(AGAIN).await,
            }
        };
        if stop.run_until_cancelled(pause).await.is_none() {
            return Ok(());
        }
    }
}

/// Where the next part of what retention took is looked for, and when.
struct PhaseSweep {
    next: Instant,
    after: Option<(i64, u64)>,
}

/// Reads all that the journal has more, and explains what is due.
async fn go_on(index: &PhaseIndex, journal: &Journal, sweep: &mut PhaseSweep) -> Result<(), JournalError> {
    let clock = SystemClock::default();
    loop {
        while index.advance(journal, clock.now_ms()).await? {
            tokio::task::yield_now().await;
        }
        if !causes::explain_some(index, journal, clock.now_ms()).await? {
            break;
        }
    }
    if sweep.next <= Instant::now() {
        sweep.after = index.sweep(journal, sweep.after).await?;
        sweep.next = Instant::now() + if sweep.after.is_some() { SWEEP } else { ROUND };
    }
    Ok(())
}

/// Whether it goes on without a pause. Trouble is logged once.
fn log_outcome(index: &PhaseIndex, went: Result<(), JournalError>) -> bool {
    let before = index.trouble();
    let now = went.err().map(|error| error.to_string());
    match (&before, &now) {
        (None, Some(error)) => warn!("the index of phases can't be used: {error}"),
        (Some(_), None) => info!("the index of phases is usable again"),
        _ => {}
    }
    let goes_on = now.is_none();
    if before != now {
        index.set_trouble(now);
    }
    goes_on
}
