//! Events that never come, and that something later disproves.

use anyhow::{Result, ensure};

use crate::seeds::RowOptions;
use crate::wire::PassedLine;
use crate::world::FaultWorld;

const NAMES: [&str; 6] = ["lost-0", "lost-1", "lost-2", "lost-3", "lost-4", "lost-5"];

/// The first half of them is known.
fn known(name: &str) -> bool {
    NAMES[..3].contains(&name)
}

/// Nobody is sent what becomes of them.
fn swallow(world: &FaultWorld) {
    let needle = b"\"name\":\"lost-";
    world.wire.tap(move |line| {
        let hit = line.windows(needle.len()).any(|window| window == needle);
        PassedLine::As(if hit { Vec::new() } else { vec![line] })
    });
}

/// Loses something of each object. A whole life of which nothing ever came can't be known of, so that none
/// is.
async fn lose(world: &mut FaultWorld) -> Result<()> {
    for name in NAMES {
        if !known(name) {
            world.herd.create(name).await?;
        }
        for _ in 0..world.dice.below(3) {
            world.herd.touch(name).await?;
        }
        if known(name) && world.dice.one_in(2) {
            world.herd.delete(name).await?;
            if world.dice.one_in(2) {
                world.herd.create(name).await?;
            }
        }
        world.herd.live_on(1).await?;
    }
    // Something comes after it.
    world.herd.touch("first").await
}

async fn pass(world: &mut FaultWorld) -> Result<()> {
    let passed = world.server.version();
    let is_passed = |world: &FaultWorld| {
        world.view().checkpoint.parse::<u64>().is_ok_and(|checkpoint| checkpoint >= passed)
    };
    world.until("a bookmark passes over it", is_passed).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_13_what_was_lost_before_a_version_expired_is_read_back_with_what_was_missed_since() {
    let row = RowOptions {
        seeds: 8,
        sometimes: &["restarted meanwhile", "it changed since"],
        ..RowOptions::new("row_13_lost")
    };
    row.run(async |world, marks| {
        for name in ["first", NAMES[0], NAMES[1], NAMES[2]] {
            world.herd.create(name).await?;
        }
        world.start_synced().await?;
        world.level().await?;
        swallow(world);
        lose(world).await?;
        pass(world).await?;
        let restarted = world.dice.one_in(3);
        marks.when(restarted, "restarted meanwhile");
        if restarted {
            world.stop().await?;
            world.start().await?;
        }
        world.away().await?;
        world.wire.no_tap();
        for name in NAMES {
            if world.dice.one_in(2) && world.herd.touch(name).await.is_ok() {
                marks.when(true, "it changed since");
            }
        }
        world.herd.live_on(5).await?;
        world.back_expired();
        world.level().await?;
        let told = world.finish().await?;
        ensure!(told.gaps.is_empty(), "what was lost can still be read: {:?}", told.gaps);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_13_what_was_lost_is_read_back_when_its_object_changes_or_ends() {
    let row = RowOptions { seeds: 6, sometimes: &["on another watch"], ..RowOptions::new("row_13_changes") };
    row.run(async |world, marks| {
        // No more than one page holds: a census finds all of it.
        world.herd.create("first").await?;
        world.start_synced().await?;
        world.level().await?;
        swallow(world);
        for name in &NAMES[3..] {
            world.herd.create(name).await?;
            for _ in 0..world.dice.below(3) {
                world.herd.touch(name).await?;
            }
        }
        world.herd.touch("first").await?;
        pass(world).await?;
        let reopened = world.dice.one_in(2);
        marks.when(reopened, "on another watch");
        if reopened {
            world.wire.end_watches();
        }
        world.wire.no_tap();
        for name in &NAMES[3..] {
            let ends = world.dice.one_in(2);
            if ends { world.herd.delete(name).await? } else { world.herd.touch(name).await? }
        }
        world.until("all are read back", |world| world.view().counts.discrepancies >= 3).await?;
        let told = world.finish().await?;
        ensure!(told.gaps.is_empty(), "what was lost can still be read: {:?}", told.gaps);
        Ok(())
    })
    .await;
}
