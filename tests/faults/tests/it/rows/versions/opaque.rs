//! Servers whose versions are words without an order: equality and arrival are all there is.

use anyhow::ensure;

use crate::seeds::RowOptions;
use crate::world::WorldOptions;

fn opaque() -> WorldOptions {
    WorldOptions { opaque: true, ..WorldOptions::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_an_order_of_versions_what_is_watched_is_whole_over_breaks_and_kills() {
    let sometimes = &["it was killed"];
    let row = RowOptions {
        seeds: 6,
        options: opaque(),
        sometimes,
        ..RowOptions::new("without_an_order_of_versions_what_is_watched")
    };
    row.run(async |world, marks| {
        world.herd.create_some(4).await?;
        world.start_synced().await?;
        for _ in 0..4 {
            let steps = world.dice.between(1, 10);
            world.herd.live_on(steps).await?;
            if world.dice.one_in(2) {
                world.wire.break_watches();
            } else {
                marks.when(true, "it was killed");
                world.level().await?;
                world.kill().await?;
                world.start_synced().await?;
            }
            let steps = world.dice.between(1, 10);
            world.herd.live_on(steps).await?;
            world.level().await?;
        }
        ensure!(world.view().epoch == 0, "a new epoch was made");
        let told = world.finish().await?;
        ensure!(told.gaps.is_empty(), "{:?}", told.gaps);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_an_order_of_versions_what_was_missed_lies_in_gaps_and_that_is_said() {
    let row = RowOptions {
        seeds: 6,
        options: opaque(),
        ..RowOptions::new("without_an_order_of_versions_what_was_missed")
    };
    row.run(async |world, _| {
        world.herd.create_some(4).await?;
        world.start_synced().await?;
        for _ in 0..2 {
            world.away().await?;
            let steps = world.dice.between(3, 20);
            world.herd.live_on(steps).await?;
            world.back_expired();
            world.level().await?;
        }
        let limitation = world.view().limitation.unwrap_or_default();
        ensure!(limitation.contains("no order"), "{limitation}");
        ensure!(world.view().epoch == 0, "a new epoch was made");
        world.unread_allowed = true;
        let told = world.finish().await?;
        ensure!(told.gaps.iter().all(|gap| gap.reason == "ExactListRefused"), "{:?}", told.gaps);
        ensure!(told.gaps.iter().any(|gap| gap.object.is_none()), "who came and went is not known");
        Ok(())
    })
    .await;
}
