//! The API server is away, and comes back as it was or as another.

use anyhow::ensure;

use crate::seeds::Row;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the hole of a source is wider than what compaction took"]
async fn row_22_an_api_server_that_is_killed_and_comes_back_costs_nothing() {
    let row = Row { seeds: 5, sometimes: &["versions were read back"], ..Row::new("row_22") };
    row.run(async |world, marks| {
        world.herd.create_some(5).await?;
        world.start_synced().await?;
        for _ in 0..3 {
            let steps = world.dice.between(1, 10);
            world.herd.live_on(steps).await?;
            world.away().await?;
            let steps = world.dice.between(1, 10);
            world.herd.live_on(steps).await?;
            world.back_expired();
        }
        world.level().await?;
        marks.when(world.view().counts.walked_back > 0, "versions were read back");
        let told = world.finish().await?;
        ensure!(told.gaps.is_empty(), "nothing was compacted: {:?}", told.gaps);
        Ok(())
    })
    .await;
}
