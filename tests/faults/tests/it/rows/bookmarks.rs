//! Bookmarks that don't come, and such that promise too much.

use std::time::Duration;

use anyhow::ensure;

use crate::seeds::Row;
use crate::wire::Passed;
use crate::world::Options;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_12_without_bookmarks_nothing_is_lost() {
    let options = Options { bookmark_every: None, ..Options::default() };
    let row = Row { options, ..Row::new("row_12") };
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
    let options = Options { audit: Duration::from_millis(300), ..Options::default() };
    let row = Row { options, sometimes: &["an end was passed over"], ..Row::new("row_13") };
    row.run(async |world, marks| {
        world.herd.create_some(4).await?;
        world.start_synced().await?;
        world.herd.live_on(5).await?;
        world.herd.create("victim").await?;
        world.level().await?;
        // The server never sends what becomes of this one, and its bookmarks say that it did.
        let needle = b"\"name\":\"victim\"";
        world.wire.tap(move |line| {
            let hit = line.windows(needle.len()).any(|window| window == needle);
            Passed::As(if hit { Vec::new() } else { vec![line] })
        });
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
