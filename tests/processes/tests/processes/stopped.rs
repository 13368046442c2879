//! Stopped in the middle of its work, and continued.

use anyhow::{Result, ensure};
use kubewitness_harness::{ProcessEnd, in_scratch};

use crate::lab::{ProcessLab, WITHIN};

/// Stops and continues; each is a few states after the other.
const ROUNDS: u32 = 6;

#[tokio::test]
async fn row_28_stopped_under_load_and_continued_it_has_everything_once_and_nobody_else_wrote() {
    in_scratch("stopped", async |scratch| {
        let mut lab = ProcessLab::new(scratch, scratch.folder("data")?).await?;
        lab.make(3).await?;
        let mut run = lab.start("run")?;
        run.answers().await?;
        lab.levels(&mut run).await?;
        for round in 0..ROUNDS {
            lab.make(5 + round).await?;
            run.process().signal("STOP").await?;
            lab.make(20).await?;
            if round == ROUNDS / 2 {
                another_is_refused(&lab).await?;
            }
            run.process().signal("CONT").await?;
        }
        lab.levels(&mut run).await?;
        run.stop().await?;
        lab.proves().await
    })
    .await;
}

/// One that stands still still holds its journal.
async fn another_is_refused(lab: &ProcessLab<'_>) -> Result<()> {
    let mut second = lab.start("second")?;
    let ended = second.process().wait(WITHIN).await?;
    let said = second.process().stderr();
    ensure!(ended == ProcessEnd::Code(1), "the second ended with {ended:?}: {said}");
    ensure!(said.contains("in use"), "it says why: {said}");
    Ok(())
}
