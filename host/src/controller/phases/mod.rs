//! Keeps the index of phases up to date with the journal, and has outcomes explained for it.
//!
//! The index only serves queries, so its faults must not stop witnessing or delivery. So a follower of its
//! own reads the journal, at its own pace, beside everything else. If the index can't be kept, queries to it
//! return the reason, and nothing else stops. Explaining an outcome when a list asks for it was rejected: a
//! list would read the documents of thousands of objects.

mod causes;
mod finder;

use std::time::Duration;

use anyhow::Result;
use kubewitness_core::clock::{Clock, SystemClock};
use kubewitness_core::ports::{Backlog, JournalError};
use kubewitness_journal::{Journal, PhaseIndex};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub use finder::JournalOutcomes;

/// In the data folder. It can be deleted at any time.
pub const FILE: &str = "index/phases.db";

/// Changes within this time are stored together, unless a query comes first.
const BETWEEN: Duration = Duration::from_millis(200);
/// The pause between two checks of parts of the index for states that retention removed, and between two
/// rounds of them.
const SWEEP: Duration = Duration::from_secs(5);
const ROUND: Duration = Duration::from_secs(600);
/// The pause before a retry if a disk is full or a server unreachable.
const AGAIN: Duration = Duration::from_secs(5);

pub async fn follow_journal(index: PhaseIndex, journal: Journal, stop: CancellationToken) -> Result<()> {
    let mut newest = journal.newest_position();
    let mut sweep = PhaseSweep { next: Instant::now() + SWEEP, after: None };
    loop {
        let went = stop.run_until_cancelled(index_and_explain(&index, &journal, &mut sweep)).await;
        let Some(went) = went else { return Ok(()) };
        let is_more_due = matches!(went, Ok(true));
        let pause = async {
            match log_outcome(&index, went.map(drop)) {
                true if is_more_due => {}
                true => {
                    tokio::time::timeout(BETWEEN, index.await_demand()).await.ok();
                    let news = async {
                        tokio::select! {
                            _ = newest.changed() => {}
                            () = index.await_demand() => {}
                        }
                    };
                    // Removed states are searched for while nothing arrives, too, and outcomes are explained.
                    tokio::time::timeout(longest_pause(&index).await, news).await.ok();
                }
                false => tokio::time::sleep(AGAIN).await,
            }
        };
        if stop.run_until_cancelled(pause).await.is_none() {
            return Ok(());
        }
    }
}

/// The next part to check for removed states, and when to check it.
struct PhaseSweep {
    next: Instant,
    after: Option<(i64, u64)>,
}

/// The time until the next outcome is due, or a part must be checked for removed states.
async fn longest_pause(index: &PhaseIndex) -> Duration {
    let due_ms = index.next_due_ms().await.unwrap_or_default();
    let now_ms = SystemClock::default().now_ms();
    due_ms.map_or(SWEEP, |due_ms| Duration::from_millis(due_ms.saturating_sub(now_ms)).min(SWEEP))
}

/// Reads everything new in the journal, checks for removed states, and explains a part of the due outcomes.
/// Returns `false` if no more are due.
async fn index_and_explain(
    index: &PhaseIndex,
    journal: &Journal,
    sweep: &mut PhaseSweep,
) -> Result<bool, JournalError> {
    let clock = SystemClock::default();
    while index.index_next_part(journal, clock.now_ms()).await? {
        tokio::task::yield_now().await;
    }
    if sweep.next <= Instant::now() {
        sweep.after = index.sweep_next_part(journal, sweep.after).await?;
        sweep.next = Instant::now() + if sweep.after.is_some() { SWEEP } else { ROUND };
    }
    causes::explain_some(index, journal, clock.now_ms()).await
}

/// Whether to continue without a pause. A problem is logged once.
fn log_outcome(index: &PhaseIndex, went: Result<(), JournalError>) -> bool {
    let before = index.why_unusable();
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kubewitness_core::ports::{AppendBatch, StateWitness, WitnessedState};
    use kubewitness_core::{Change, ObjectRef, StateId, Status, Version};
    use kubewitness_journal::JournalOptions;

    use super::*;

    fn failed_job(number: u64) -> WitnessedState {
        let object = Arc::new(ObjectRef {
            group: "batch".into(),
            version: "v1".into(),
            kind: "Job".into(),
            namespace: "team".into(),
            name: format!("train-{number}"),
            uid: format!("uid-{number}"),
        });
        let version = Version::new(&number.to_string());
        WitnessedState {
            id: StateId::of("all", 0, &object, Change::Present, &version, None),
            change: Change::Present,
            status: Arc::new(Status { phase: "Failed".into(), terminal: true, ..Status::default() }),
            object,
            owner: None,
            controller: None,
            resource_version: version,
            previous: None,
            observed_ms: 1,
            document: "{}".into(),
            base: None,
            quotes_none_under: None,
        }
    }

    #[tokio::test]
    async fn what_retention_took_is_looked_for_while_outcomes_are_due_and_the_pause_ends_with_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let options = JournalOptions::default();
        let journal = Journal::open(&folder.path().join("journal.db"), options).await.unwrap();
        let index = PhaseIndex::new(folder.path().join("phases.db"));
        let states = (1..=40).map(failed_job).collect();
        let append = AppendBatch { source: "all".into(), states, ..AppendBatch::default() };
        journal.append_batch(append).await.unwrap();
        // As of an hour ago, so that all of them are due.
        let now_ms = SystemClock::default().now_ms();
        while index.index_next_part(&journal, now_ms - 3_600_000).await.unwrap() {}
        let mut sweep = PhaseSweep { next: Instant::now(), after: None };
        assert!(index_and_explain(&index, &journal, &mut sweep).await.unwrap(), "more are due");
        assert!(sweep.next > Instant::now(), "and parts of the index were looked at");
        assert_eq!(longest_pause(&index).await, Duration::ZERO);
        while index_and_explain(&index, &journal, &mut sweep).await.unwrap() {}
        assert_eq!(longest_pause(&index).await, SWEEP);
        let states = vec![failed_job(41)];
        let append = AppendBatch { source: "all".into(), states, ..AppendBatch::default() };
        journal.append_batch(append).await.unwrap();
        while index.index_next_part(&journal, now_ms - 1_000).await.unwrap() {}
        assert!(
            longest_pause(&index).await <= Duration::from_secs(1),
            "not for two seconds from the last look"
        );
    }
}
