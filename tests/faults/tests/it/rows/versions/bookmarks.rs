//! Bookmarks that don't come, and such that promise too much.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::seeds::RowOptions;
use crate::wire::PassedLine;
use crate::workload::ROLES;
use crate::world::{FaultWorld, WorldOptions};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_12_without_bookmarks_nothing_is_lost() {
    let options = WorldOptions { bookmark_every: None, ..WorldOptions::default() };
    let row = RowOptions { options, ..RowOptions::new("row_12") };
    row.run(async |world, _| {
        world.herd.create_some(5).await?;
        world.start_synced().await?;
        for _ in 0..4 {
            let steps = world.dice.between(1, 10);
            world.herd.live_on(steps).await?;
            match world.dice.below(4) {
                0 => world.wire.end_watches(),
                1 => world.wire.break_watches(),
                2 => {
                    world.kill().await?;
                    world.herd.live_on(3).await?;
                    world.start().await?;
                }
                _ => {
                    world.away().await?;
                    world.herd.live_on(3).await?;
                    world.back_expired();
                }
            }
        }
        let told = world.finish().await?;
        ensure!(told.gaps.is_empty(), "nothing was compacted: {:?}", told.gaps);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_13_what_a_bookmark_passed_over_is_found_by_the_audit() {
    let options = WorldOptions { audit: Duration::from_millis(300), ..WorldOptions::default() };
    let row = RowOptions { options, sometimes: &["an end was passed over"], ..RowOptions::new("row_13") };
    row.run(async |world, marks| {
        world.herd.create_some(4).await?;
        world.start_synced().await?;
        world.herd.live_on(5).await?;
        world.herd.create("victim").await?;
        world.level().await?;
        // The server never sends what becomes of this one, and its bookmarks say that it did.
        swallow(world, |_| true);
        world.herd.touch("victim").await?;
        world.herd.touch("victim").await?;
        let ends = world.dice.one_in(2);
        marks.when(ends, "an end was passed over");
        if ends {
            world.herd.delete("victim").await?;
        }
        world.herd.touch("job-0").await.or(world.herd.create("job-0").await)?;
        let passed = world.server.version();
        world
            .until("a bookmark passes over it", |world| {
                world.view().checkpoint.parse::<u64>().is_ok_and(|checkpoint| checkpoint >= passed)
                    || world.view().counts.discrepancies > 0
            })
            .await?;
        world.until("an audit finds it", |world| world.view().counts.discrepancies > 0).await?;
        world.wire.no_tap();
        let told = world.finish().await?;
        ensure!(told.gaps.is_empty(), "what was passed over can still be read: {:?}", told.gaps);
        Ok(())
    })
    .await;
}

/// Nobody is sent these events of the victim.
fn swallow(world: &FaultWorld, of: fn(&[u8]) -> bool) {
    let needle = b"\"name\":\"victim\"";
    world.wire.tap(move |line| {
        let hit = line.windows(needle.len()).any(|window| window == needle) && of(&line);
        PassedLine::As(if hit { Vec::new() } else { vec![line] })
    });
}

/// A victim that was witnessed lives on, and its name is given to another one in the end.
async fn begins_anew(world: &mut FaultWorld, is_met: bool) -> Result<()> {
    for _ in 0..world.dice.below(3) {
        world.herd.touch("victim").await?;
    }
    world.herd.delete("victim").await?;
    // Of whom no event ever comes is found where the whole time is swept.
    if is_met && world.dice.one_in(3) {
        world.herd.create("victim").await?;
        world.herd.delete("victim").await?;
    }
    world.herd.create("victim").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_13_a_name_that_was_given_anew_unseen_is_found_by_the_audit_and_told_in_order() {
    let options = WorldOptions { audit: Duration::from_millis(300), ..WorldOptions::default() };
    let row =
        RowOptions { options, seeds: 8, sometimes: &["it ends, too"], ..RowOptions::new("row_13_a_name") };
    row.run(async |world, marks| {
        world.herd.create_some(4).await?;
        world.herd.create("victim").await?;
        world.start_synced().await?;
        world.level().await?;
        swallow(world, |_| true);
        begins_anew(world, false).await?;
        let steps = world.dice.between(1, 20);
        world.herd.live_on(steps).await?;
        world.until("an audit finds it", |world| world.view().counts.discrepancies > 0).await?;
        world.wire.no_tap();
        world.level().await?;
        let ends = world.dice.one_in(2);
        marks.when(ends, "it ends, too");
        if ends {
            world.herd.delete("victim").await?;
        }
        let told = world.finish().await?;
        ensure!(told.gaps.is_empty(), "what was passed over can still be read: {:?}", told.gaps);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_13_a_new_bearer_of_a_name_whose_old_one_never_ended_is_read_back_without_an_audit() {
    let row =
        RowOptions { seeds: 8, sometimes: &["killed meanwhile"], ..RowOptions::new("row_13_a_new_bearer") };
    row.run(async |world, marks| {
        world.herd.create_some(4).await?;
        world.herd.create("victim").await?;
        world.start_synced().await?;
        world.level().await?;
        swallow(world, |line| !line.starts_with(b"{\"type\":\"ADDED\""));
        begins_anew(world, true).await?;
        let killed = world.dice.one_in(3);
        marks.when(killed, "killed meanwhile");
        if killed {
            world.kill_beside_a_lie().await?;
            world.start().await?;
        }
        world.until("it is read back", |world| world.view().counts.discrepancies > 0).await?;
        world.wire.no_tap();
        let steps = world.dice.between(1, 10);
        world.herd.live_on(steps).await?;
        world.level().await?;
        world.herd.touch("victim").await?;
        let told = world.finish().await?;
        ensure!(told.gaps.is_empty(), "what was passed over can still be read: {:?}", told.gaps);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_13_a_lost_event_before_a_broken_connection_is_read_back_and_no_other_history() {
    let row = RowOptions {
        seeds: 8,
        sometimes: &["it ended", "it began anew"],
        ..RowOptions::new("row_13_a_lost_event")
    };
    row.run(async |world, marks| {
        // What is streamed would be swallowed, too.
        world.wire.refuse_streamed_lists();
        // No more than one page holds: behind it, changes alone are left to the audit.
        world.herd.create_some(1).await?;
        world.herd.create("victim").await?;
        world.start_synced().await?;
        world.level().await?;
        swallow(world, |_| true);
        match world.dice.below(3) {
            0 => world.herd.touch("victim").await?,
            1 => {
                marks.when(true, "it ended");
                world.herd.touch("victim").await?;
                world.herd.delete("victim").await?;
            }
            _ => {
                marks.when(true, "it began anew");
                begins_anew(world, true).await?;
            }
        }
        let passed = world.server.version();
        let is_passed = |world: &FaultWorld| {
            world.view().checkpoint.parse::<u64>().is_ok_and(|checkpoint| checkpoint >= passed)
        };
        world.until("a bookmark passes over it", is_passed).await?;
        world.wire.break_watches();
        world.until("it is read back", |world| world.view().counts.discrepancies > 0).await?;
        world.wire.no_tap();
        world.herd.live_on(10).await?;
        let told = world.finish().await?;
        ensure!(world.view().counts.epochs == 0 && told.gaps.is_empty(), "{:?}", told.gaps);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_13_names_of_any_characters_are_read_back_and_found_by_audits() {
    const NAMES: [&str; 6] = ["system:node", "a,b", "a=b\\c", "sp ace", "q?z", "ümlaut+&#"];
    let options = WorldOptions { kind: ROLES, audit: Duration::from_millis(300), ..WorldOptions::default() };
    let row = RowOptions { options, seeds: 4, ..RowOptions::new("row_13_names") };
    row.run(async |world, _| {
        for name in NAMES {
            world.herd.create(name).await?;
        }
        world.herd.create("victim").await?;
        world.start_synced().await?;
        world.away().await?;
        for name in NAMES {
            world.herd.touch(name).await?;
            world.herd.touch(name).await?;
        }
        world.back_expired();
        world.level().await?;
        let needles = NAMES.map(|name| serde_json::to_vec(name).unwrap());
        world.wire.tap(move |line| {
            let has = |needle: &Vec<u8>| line.windows(needle.len()).any(|window| window == needle);
            PassedLine::As(if needles.iter().any(has) { Vec::new() } else { vec![line] })
        });
        for (number, name) in NAMES.into_iter().enumerate() {
            match number % 2 {
                0 => world.herd.touch(name).await?,
                _ => world.herd.delete(name).await?,
            }
        }
        let found = NAMES.len() as u64;
        world.until("audits find all", |world| world.view().counts.discrepancies >= found).await?;
        world.wire.no_tap();
        let told = world.finish().await?;
        ensure!(told.gaps.is_empty(), "{:?}", told.gaps);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_13_more_beginnings_that_never_came_than_may_wait_are_all_read_back() {
    /// More than wait at a time.
    const MANY: u64 = 300;
    let row = RowOptions { seeds: 1, ..RowOptions::new("row_13_more_beginnings") };
    row.run(async |world, _| {
        world.start_synced().await?;
        world.wire.tap(|line| {
            let is_added = line.starts_with(b"{\"type\":\"ADDED\"");
            PassedLine::As(if is_added { Vec::new() } else { vec![line] })
        });
        for number in 0..MANY {
            world.herd.create(&format!("job-{number}")).await?;
        }
        for number in 0..MANY {
            world.herd.touch(&format!("job-{number}")).await?;
        }
        world.until("all are read back", |world| world.view().counts.discrepancies >= MANY).await?;
        world.wire.no_tap();
        let told = world.finish().await?;
        ensure!(told.gaps.is_empty(), "{:?}", told.gaps);
        Ok(())
    })
    .await;
}
