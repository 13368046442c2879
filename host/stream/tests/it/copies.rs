//! Tests of journals that have lost states, and of copies of a data folder.

use std::time::Duration;

use anyhow::Result;
use kubewitness_core::ports::StateWitness;
use kubewitness_core::stream::StateFeed;
use kubewitness_harness::until;
use kubewitness_journal::Journal;
use kubewitness_stream::StreamReader;

use crate::support::{RunningCarrier, StreamWorld, WITHIN, all, from, sent, stories};

pub async fn carried(carrier: &RunningCarrier, states: u64) -> Result<()> {
    until(WITHIN, &format!("{states} states to be carried"), async || {
        Ok((carrier.handle.current_snapshot().carried == states).then_some(()))
    })
    .await
}

/// A journal with 20 carried states, and a copy of it. A standby that lacks the newest commits is such a copy.
pub async fn journal_and_copy(world: &StreamWorld) -> Result<(Journal, Journal)> {
    let journal = world.journal("carrier").await?;
    let carrier = world.carry(&journal, &["jobs"]);
    sent(&journal, 0, 0..20, 100).await?;
    carried(&carrier, 20).await?;
    carrier.stop().await?;
    journal.close().await?;
    world.copy("carrier", "copy")?;
    Ok((world.journal("carrier").await?, world.journal("copy").await?))
}

/// Checks that the second journal has each object's states of the first one, in the same order.
pub async fn check_has_all(other: &Journal, journal: &Journal) -> Result<()> {
    let other = stories(other).await?;
    for (name, story) in stories(journal).await? {
        let mut there = other[&name].iter();
        let missing: Vec<_> = story.iter().filter(|state| !there.any(|there| there == *state)).collect();
        assert!(missing.is_empty(), "of {name} is missing {missing:?}");
    }
    Ok(())
}

#[tokio::test]
async fn no_state_vanishes_where_a_journal_lost_its_newest_commits_and_gave_their_positions_to_others()
-> Result<()> {
    for is_killed in [true, false] {
        let Some(world) = StreamWorld::new("stream::lost_commits")? else { return Ok(()) };
        let (journal, copy) = journal_and_copy(&world).await?;
        let other = world.journal("reader").await?;
        let reader = world.read(&other, &from(&[]));
        let carrier = world.carry(&journal, &["jobs"]);
        sent(&journal, 0, 20..40, 100).await?;
        all(&other, 40).await?;
        if is_killed {
            carrier.kill().await;
        } else {
            carrier.stop().await?;
        }
        journal.close().await?;

        // They get the positions of the 20 states that the copy lacks.
        sent(&copy, 0, 50..90, 100).await?;
        let carrier = world.carry(&copy, &["jobs"]);
        all(&other, 80).await?;
        check_has_all(&other, &copy).await?;
        let gaps = other.gaps_of(&Default::default()).await?;
        assert!(gaps.is_empty(), "the reader has more than the journal: {gaps:?}");
        carrier.stop().await?;
        reader.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_carrier_that_was_killed_goes_on_without_a_gap() -> Result<()> {
    let Some(world) = StreamWorld::new("stream::killed_carrier")? else { return Ok(()) };
    let (journal, _) = journal_and_copy(&world).await?;
    let other = world.journal("reader").await?;
    let reader = world.read(&other, &from(&[]));
    for number in 1..3 {
        let carrier = world.carry(&journal, &["jobs"]);
        sent(&journal, 0, number * 20..number * 20 + 20, 100).await?;
        all(&other, number * 20 + 10).await?;
        carrier.kill().await;
    }
    let carrier = world.carry(&journal, &["jobs"]);
    all(&other, 60).await?;
    carried(&carrier, 60).await?;
    assert_eq!(stories(&journal).await?, stories(&other).await?);
    assert!(other.gaps_of(&Default::default()).await?.is_empty(), "nothing was missing");
    carrier.stop().await?;
    reader.stop().await
}

async fn reader_of(world: &StreamWorld, journal: &Journal) -> Result<StreamReader> {
    let mut reader = world.reader(&from(&[]));
    let warm = journal.load_warm_start("jobs").await?;
    reader.resume_from(Some(warm.epoch), warm.checkpoint.as_ref());
    Ok(reader)
}

#[tokio::test]
async fn a_copy_neither_carries_nor_reads_while_the_other_process_does_and_follows_it_at_once() -> Result<()>
{
    let Some(world) = StreamWorld::new("stream::copies")? else { return Ok(()) };
    let (journal, copy) = journal_and_copy(&world).await?;
    let other = world.journal("reader").await?;
    let reader = world.read(&other, &from(&[]));
    all(&other, 20).await?;
    reader.stop().await?;
    other.close().await?;
    world.copy("reader", "reader-copy")?;
    let (other, other_copy) = (world.journal("reader").await?, world.journal("reader-copy").await?);

    let (carrier, reader) = (world.carry(&journal, &["jobs"]), world.read(&other, &from(&[])));
    sent(&journal, 0, 20..30, 100).await?;
    all(&other, 30).await?;
    let second = world.carry(&copy, &["jobs"]);
    let mut second_reader = reader_of(&world, &other_copy).await?;
    // Longer than a claim is valid without renewal.
    for _ in 0..15 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let error = second_reader.next().await.unwrap_err().to_string();
        assert!(error.contains("another process reads partition 0 of `jobs`"), "{error}");
    }
    let condition = second.handle.current_snapshot().condition.unwrap_or_default();
    assert!(condition.contains("another process carries this journal to it, or a copy of it"), "{condition}");
    sent(&journal, 0, 30..40, 100).await?;
    all(&other, 40).await?;
    assert_eq!(
        (carrier.handle.current_snapshot().condition, second.handle.current_snapshot().carried),
        (None, 20)
    );

    carrier.stop().await?;
    reader.stop().await?;
    sent(&copy, 0, 50..60, 100).await?;
    carried(&second, 30).await?;
    let second_reader = world.read(&other_copy, &from(&[]));
    all(&other_copy, 30).await?;
    second_reader.stop().await?;
    second.stop().await
}
