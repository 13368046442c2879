//! The API server is away, and comes back as it was, as another one, or with another history.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use kubewitness_core::Gap;
use kubewitness_faults::JournalRecord;

use crate::killed_journal::ProcessDeath;
use crate::seeds::{Marks, RowOptions};
use crate::workload::{KEPT, OURS, THEIRS};
use crate::world::{FaultWorld, WorldOptions};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_22_an_api_server_that_is_killed_and_comes_back_costs_nothing() {
    let row =
        RowOptions { seeds: 5, sometimes: &["versions were read back"], ..RowOptions::new("row_22_an_api") };
    row.run(async |world, marks| {
        world.herd.create_some(5).await?;
        world.start_synced().await?;
        for _ in 0..3 {
            let steps = world.dice.between(1, 10);
            world.herd.live_on(steps).await?;
            world.server_dies().await;
            let steps = world.dice.between(1, 10);
            world.herd.live_on(steps).await?;
            world.server_comes_back().await;
        }
        world.level().await?;
        marks.when(world.view().counts.walked_back > 0, "versions were read back");
        let told = world.finish().await?;
        ensure!(told.gaps.is_empty(), "nothing was compacted: {:?}", told.gaps);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_22_another_server_of_the_cluster_with_another_cache_costs_nothing() {
    let sometimes = &["its cache lagged behind", "it had forgotten"];
    let row = RowOptions { seeds: 6, sometimes, ..RowOptions::new("row_22_another") };
    row.run(async |world, marks| {
        world.herd.create_some(5).await?;
        world.start_synced().await?;
        for round in 0..4 {
            let next = if round % 2 == 0 { world.second.clone() } else { world.server.clone() };
            let lags = world.dice.one_in(2);
            if lags {
                marks.when(true, "its cache lagged behind");
                next.hold_cache(None);
            } else if world.dice.one_in(2) {
                marks.when(true, "it had forgotten");
                next.forget_watch_window();
            }
            let steps = world.dice.between(1, 12);
            world.herd.live_on(steps).await?;
            world.wire.leads_to(next.address());
            world.wire.break_all();
            let steps = world.dice.below(6);
            world.herd.live_on(steps).await?;
            next.release_cache();
        }
        world.level().await?;
        ensure!(world.view().epoch == 0, "a server that lags is no other history");
        let told = world.finish().await?;
        ensure!(told.gaps.is_empty(), "nothing was compacted: {:?}", told.gaps);
        Ok(())
    })
    .await;
}

/// Lives on behind a backup, of which some is witnessed and some is not.
async fn beyond_the_backup(world: &mut FaultWorld, marks: &Marks) -> Result<()> {
    world.herd.create_some(5).await?;
    world.herd.create(KEPT).await?;
    world.start_synced().await?;
    let steps = world.dice.between(1, 10);
    world.herd.live_on(steps).await?;
    world.back_up();
    let steps = world.dice.between(8, 20);
    world.herd.live_on(steps).await?;
    // What shows that it is another history, where compaction has taken everything else.
    world.herd.touch(KEPT).await?;
    world.level().await?;
    if world.dice.one_in(2) {
        marks.when(true, "the old history had more to say");
        world.away().await?;
        let steps = world.dice.between(1, 8);
        world.herd.live_on(steps).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_09_a_history_that_was_replaced_is_a_new_epoch_with_a_gap() {
    let row =
        RowOptions { seeds: 8, sometimes: &["the old history had more to say"], ..RowOptions::new("row_09") };
    row.run(async |world, marks| {
        beyond_the_backup(world, marks).await?;
        world.restore(0)?;
        // Fewer than lie between the backup and what was witnessed.
        let steps = world.dice.below(4);
        world.herd.live_on(steps).await?;
        world.wire.down(false);
        world.until("a new epoch", |world| world.view().epoch == 1 && world.view().synced).await?;
        let steps = world.dice.below(20);
        world.herd.live_on(steps).await?;
        only_the_old_one_has_a_gap(&world.finish().await?)
    })
    .await;
}

/// Nothing of the new one was compacted, so that all of it could be read.
fn only_the_old_one_has_a_gap(told: &JournalRecord) -> Result<()> {
    let is_end =
        |gap: &Gap| (gap.epoch, gap.reason.as_str(), gap.before.as_str()) == (0, "HistoryReplaced", "");
    ensure!(!told.gaps.is_empty() && told.gaps.iter().all(is_end), "{:?}", told.gaps);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_09_a_history_that_outgrew_the_checkpoint_is_found_by_what_was_witnessed() {
    let row = RowOptions { seeds: 8, ..RowOptions::new("row_09_a_history_that_outgrew") };
    row.run(async |world, marks| {
        beyond_the_backup(world, marks).await?;
        world.restore(0)?;
        // More than lie between the backup and what was witnessed: numbers alone don't tell.
        let steps = 60 + world.dice.below(20);
        world.herd.live_on(steps).await?;
        world.wire.down(false);
        world.until("a new epoch", |world| world.view().epoch == 1 && world.view().synced).await?;
        only_the_old_one_has_a_gap(&world.finish().await?)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_09_a_history_whose_version_was_bumped_is_found_by_what_it_shows() {
    let row = RowOptions { seeds: 6, ..RowOptions::new("row_09_a_history_whose") };
    row.run(async |world, marks| {
        beyond_the_backup(world, marks).await?;
        world.restore(1000)?;
        let steps = world.dice.below(4);
        world.herd.live_on(steps).await?;
        world.wire.down(false);
        world.until("a new epoch", |world| world.view().epoch == 1 && world.view().synced).await?;
        let told = world.finish().await?;
        // It can be read from the bump on: what was before is not known.
        let bumped = told.gaps.iter().filter(|gap| gap.epoch == 1 && gap.object.is_none());
        ensure!(bumped.map(|gap| gap.reason.as_str()).eq(["Compacted"]), "{:?}", told.gaps);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_09_a_history_that_ends_right_below_what_was_witnessed_is_a_new_epoch() {
    let sometimes = &["killed", "an end was lost"];
    let row = RowOptions { seeds: 8, sometimes, ..RowOptions::new("row_09_a_history_that_ends") };
    row.run(async |world, marks| {
        world.herd.create_some(4).await?;
        world.herd.create(KEPT).await?;
        world.start_synced().await?;
        world.level().await?;
        world.back_up();
        let (killed, there) = (world.dice.one_in(2), world.view().objects);
        if killed || world.dice.one_in(2) {
            world.herd.create("job-9").await?;
        } else {
            marks.when(true, "an end was lost");
            world.herd.delete(KEPT).await?;
        }
        world.until("it was witnessed", |world| world.view().objects != there).await?;
        if killed {
            marks.when(true, "killed");
            world.kill().await?;
        }
        world.wire.down(true);
        world.restore(0)?;
        world.wire.down(false);
        if killed {
            world.start().await?;
        }
        world.until("a new epoch", |world| world.view().epoch == 1 && world.view().synced).await?;
        only_the_old_one_has_a_gap(&world.finish().await?)
    })
    .await;
}

/// Those who ended beyond the backup are there again, and nothing else says that it is another history.
async fn the_ended_are_there_again(world: &mut FaultWorld, marks: &Marks) -> Result<()> {
    world.herd.create_some(3).await?;
    world.herd.create(KEPT).await?;
    world.start_synced().await?;
    world.level().await?;
    world.back_up();
    let there = world.view().objects;
    world.herd.delete(KEPT).await?;
    world.herd.delete("job-0").await?;
    world.until("it was witnessed", |world| world.view().objects + 2 == there).await?;
    let killed = world.dice.one_in(2);
    if killed {
        marks.when(true, "killed");
        world.kill().await?;
    }
    world.wire.down(true);
    let compacted = world.dice.one_in(2);
    marks.when(compacted, "compacted");
    marks.when(!compacted, "bumped");
    world.restore(if compacted { 0 } else { 1000 })?;
    let steps = world.dice.below(4);
    for _ in 0..2 + steps {
        world.herd.touch("job-1").await?;
    }
    if compacted {
        world.compact(None);
    }
    world.wire.down(false);
    if killed { world.start().await } else { Ok(()) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_09_somebody_whose_end_was_witnessed_and_who_is_listed_again_is_another_history() {
    let row = RowOptions {
        seeds: 8,
        sometimes: &["killed", "compacted", "bumped"],
        ..RowOptions::new("row_09_somebody_whose_end_was_witnessed_and_who_is_listed")
    };
    row.run(async |world, marks| {
        the_ended_are_there_again(world, marks).await?;
        world.until("a new epoch", |world| world.view().epoch == 1 && world.view().synced).await?;
        let steps = world.dice.below(10);
        world.herd.live_on(steps).await?;
        world.finish().await?;
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_09_an_end_that_the_new_history_never_had_is_found_by_the_audit() {
    let options = WorldOptions { audit: Duration::from_millis(300), ..WorldOptions::default() };
    let row = RowOptions { seeds: 4, options, ..RowOptions::new("row_09_an_end_that_the_new") };
    row.run(async |world, _| {
        world.herd.create_some(4).await?;
        world.start_synced().await?;
        world.level().await?;
        world.back_up();
        let there = world.view().objects;
        world.herd.delete("job-0").await?;
        world.until("it was witnessed", |world| world.view().objects != there).await?;
        // The end was the last that was witnessed: what is known after a start lies below it.
        world.kill().await?;
        world.restore(0)?;
        world.start().await?;
        world.until("a new epoch", |world| world.view().epoch == 1 && world.view().synced).await?;
        only_the_old_one_has_a_gap(&world.finish().await?)
    })
    .await;
}

/// In the time that both histories have in common; compaction kept its making from being seen.
async fn a_name_has_a_new_bearer_unseen(world: &mut FaultWorld) -> Result<()> {
    world.herd.create_some(4).await?;
    world.start_synced().await?;
    world.level().await?;
    world.away().await?;
    let between = world.dice.below(3);
    for _ in 0..between {
        world.herd.delete("job-0").await?;
        world.herd.create("job-0").await?;
    }
    world.herd.delete("job-0").await?;
    let steps = world.dice.below(2);
    for _ in 0..steps {
        world.herd.touch("job-1").await?;
    }
    world.herd.create("job-0").await?;
    world.back_up();
    world.herd.touch("job-0").await?;
    world.herd.touch("job-1").await?;
    world.compact(None);
    world.wire.down(false);
    world.level().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_09_a_name_that_changed_hands_unseen_is_told_in_the_order_of_its_bearers() {
    let sometimes = &["it was gone again", "it stayed"];
    let row = RowOptions { seeds: 8, sometimes, ..RowOptions::new("row_09_a_name") };
    row.run(async |world, marks| {
        a_name_has_a_new_bearer_unseen(world).await?;
        world.restore(0)?;
        let is_gone = world.dice.one_in(2);
        marks.when(is_gone, "it was gone again");
        marks.when(!is_gone, "it stayed");
        if is_gone {
            world.herd.delete("job-0").await?;
        }
        let steps = world.dice.below(20);
        world.herd.live_on(steps).await?;
        world.wire.down(false);
        world.until("a new epoch", |world| world.view().epoch == 1 && world.view().synced).await?;
        let told = world.finish().await?;
        let anew: Vec<&Gap> = told.gaps.iter().filter(|gap| gap.epoch == 1).collect();
        ensure!(anew.is_empty(), "all of the new history can be read: {anew:?}");
        Ok(())
    })
    .await;
}

/// Whatever dies while the new history is read, and wherever compaction is by then.
async fn read_over_kills(world: &mut FaultWorld, marks: &Marks) -> Result<()> {
    beyond_the_backup(world, marks).await?;
    let restored = world.restore(0)?;
    for _ in 0..world.dice.below(60) {
        match world.herd.any().filter(|_| world.options.scoped && world.dice.one_in(3)) {
            Some(name) => {
                let team = if world.dice.one_in(2) { OURS } else { THEIRS };
                world.herd.relabel(&name, team).await?;
            }
            None => world.herd.live().await?,
        }
    }
    let compacted = world.dice.one_in(2);
    if compacted {
        let version = world.dice.between(restored.saturating_sub(10), world.server.version());
        world.compact(Some(version));
    }
    marks.when(compacted, "compacted");
    marks.when(!compacted, "nothing was compacted");
    world.wire.down(false);
    for _ in 0..world.dice.below(4) {
        let death = ProcessDeath { writes: world.dice.below(6) as u32, written: world.dice.one_in(2) };
        marks.when(true, "killed");
        world.kill_at(death, async |_| Ok(())).await?;
        world.start().await?;
    }
    world.until("a new epoch", |world| world.view().epoch == 1 && world.view().synced).await?;
    let told = world.finish().await?;
    if compacted { Ok(()) } else { only_the_old_one_has_a_gap(&told) }
}

const OVER_KILLS: &[&str] = &["killed", "compacted", "nothing was compacted"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_09_a_new_history_is_read_over_kills_and_compaction() {
    let row = RowOptions { seeds: 8, sometimes: OVER_KILLS, ..RowOptions::new("row_09_a_new_history") };
    row.run(read_over_kills).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_09_with_a_selector_a_new_history_is_read_over_kills_and_compaction() {
    let options = WorldOptions { scoped: true, ..WorldOptions::default() };
    let row =
        RowOptions { seeds: 8, options, sometimes: OVER_KILLS, ..RowOptions::new("row_09_with_a_selector") };
    row.run(read_over_kills).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_10_a_watch_from_the_future_is_not_waited_on() {
    /// A few probes with their pauses; a watch would be silent for ever.
    const WITHIN: Duration = Duration::from_secs(120);
    let row = RowOptions { seeds: 4, ..RowOptions::new("row_10") };
    row.run(async |world, marks| {
        beyond_the_backup(world, marks).await?;
        if world.dice.one_in(2) {
            world.kill().await?;
        } else {
            world.stop().await?;
        }
        world.restore(0)?;
        world.wire.down(false);
        let since = Instant::now();
        world.start().await?;
        world.until("a new epoch", |world| world.view().epoch == 1 && world.view().synced).await?;
        ensure!(since.elapsed() < WITHIN, "it took {:?}", since.elapsed());
        let steps = world.dice.below(30);
        world.herd.live_on(steps).await?;
        world.finish().await?;
        Ok(())
    })
    .await;
}
