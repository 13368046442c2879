//! A new version that fails its first calls is taken back: the version before goes on, and no state is lost or parked.

use std::time::Duration;

use anyhow::ensure;
use kubewitness_core::views::StatusView;
use kubewitness_harness::{Kubewitness, in_scratch, until};

use crate::plugins::probing::{ProbeLab, message, probe};
use crate::support::create_job;

const WITHIN: Duration = Duration::from_secs(60);

fn has(status: &StatusView, state: &str, delivered: u64) -> bool {
    probe(status).is_some_and(|it| it.state == state && it.delivered == delivered && it.dead == 0)
}

/// Waits until a version with this command is kept: it is active a moment before.
async fn await_kept(lab: &ProbeLab, command: &str) -> anyhow::Result<()> {
    let kept = lab.last_good_path();
    until(WITHIN, "the version to be taken", async || {
        Ok(std::fs::read_to_string(&kept).is_ok_and(|text| text.contains(command)).then_some(()))
    })
    .await
}

#[tokio::test]
async fn a_version_that_fails_its_first_calls_is_taken_back_and_no_state_is_parked() {
    in_scratch("rollback", async |scratch| {
        let lab = ProbeLab::new(scratch, "").await?;
        lab.version("{command: done}")?;
        let mut run = Kubewitness::start("run", &lab.options, scratch.path())?;
        create_job(&lab.simulator, "one").await?;
        run.status_when(WITHIN, "the first job", |status| has(status, "active", 1)).await?;

        lab.version("{command: trap}")?;
        await_kept(&lab, "trap").await?;
        for name in ["two", "three", "four", "five"] {
            create_job(&lab.simulator, name).await?;
        }
        let taken_back = |status: &StatusView| {
            let message = message(status);
            has(status, "degraded", 5) && message.contains("was taken back") && message.contains("trapped")
        };
        run.status_when(WITHIN, "the version before to go on", taken_back).await?;
        // It stays so, also after a restart: the bad version is tried once more and taken back again.
        run.kill().await?;
        let mut run = Kubewitness::start("again", &lab.options, scratch.path())?;
        for name in ["six", "seven", "eight", "nine"] {
            create_job(&lab.simulator, name).await?;
        }
        let still = |status: &StatusView| {
            let message = message(status);
            has(status, "degraded", 9) && message.contains("was taken back")
        };
        run.status_when(WITHIN, "the version before after a restart", still).await?;
        // Another document is tried.
        lab.version("{command: done again}")?;
        run.status_when(WITHIN, "the mended version", |status| has(status, "active", 9)).await?;
        create_job(&lab.simulator, "ten").await?;
        run.status_when(WITHIN, "the last job", |status| has(status, "active", 10)).await?;
        let states = run.status().await?;
        ensure!(probe(&states).is_some_and(|it| it.observed == 10), "{states:?}");
        run.stop().await
    })
    .await;
}

#[tokio::test]
async fn a_kill_before_the_first_call_does_not_end_the_probation() {
    in_scratch("rollback-kill", async |scratch| {
        let lab = ProbeLab::new(scratch, "").await?;
        let before = lab.before();
        lab.version("{command: done}")?;
        let mut run = Kubewitness::start("run", &lab.options, scratch.path())?;
        create_job(&lab.simulator, "one").await?;
        run.status_when(WITHIN, "the first job", |status| has(status, "active", 1)).await?;

        lab.version("{command: trap}")?;
        await_kept(&lab, "trap").await?;
        ensure!(std::fs::read_to_string(&before)?.contains("done"), "the version before is not kept");
        // It has been called for nothing yet.
        for round in ["killed", "killed-again"] {
            run.kill().await?;
            run = Kubewitness::start(round, &lab.options, scratch.path())?;
            run.status_when(WITHIN, "the new version", |status| has(status, "active", 1)).await?;
        }
        for name in ["two", "three", "four", "five", "six"] {
            create_job(&lab.simulator, name).await?;
        }
        let taken_back =
            |status: &StatusView| has(status, "degraded", 6) && message(status).contains("was taken back");
        run.status_when(WITHIN, "the version before to go on", taken_back).await?;
        ensure!(std::fs::read_to_string(lab.last_good_path())?.contains("done"), "the bad version is kept");

        // One that works ends it, and nothing is kept beside it.
        lab.version("{command: done again}")?;
        run.status_when(WITHIN, "the mended version", |status| has(status, "active", 6)).await?;
        create_job(&lab.simulator, "seven").await?;
        run.status_when(WITHIN, "the last job", |status| has(status, "active", 7)).await?;
        until(WITHIN, "the probation to end", async || Ok((!before.exists()).then_some(()))).await?;
        run.stop().await
    })
    .await;
}
