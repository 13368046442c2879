//! Objects that come into the source's selector and leave it.

use anyhow::ensure;
use kubewitness_core::Change;

use crate::seeds::RowOptions;
use crate::workload::{OURS, THEIRS};
use crate::world::WorldOptions;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_18_an_object_that_is_relabelled_out_of_scope_has_left_and_is_not_gone() {
    let options = WorldOptions { scoped: true, ..WorldOptions::default() };
    let sometimes = &["left", "left unseen", "came back"];
    let row = RowOptions { seeds: 8, options, sometimes, ..RowOptions::new("row_18") };
    row.run(async |world, marks| {
        world.herd.create_some(4).await?;
        world.herd.create_in("theirs", THEIRS).await?;
        world.start_synced().await?;
        for _ in 0..4 {
            let away = world.dice.one_in(2);
            if away {
                world.away().await?;
            }
            for _ in 0..world.dice.between(1, 10) {
                let Some(name) = world.herd.any() else { continue };
                match world.dice.below(5) {
                    0 | 1 => world.herd.relabel(&name, THEIRS).await?,
                    2 | 3 => world.herd.relabel(&name, OURS).await?,
                    _ => world.herd.live().await?,
                }
            }
            match (away, world.dice.one_in(2)) {
                (true, true) => world.back_expired(),
                (true, false) => world.wire.down(false),
                (false, true) => world.wire.end_watches(),
                (false, false) => {}
            }
            world.level().await?;
            marks.when(away && world.view().counts.left > 0, "left unseen");
        }
        let told = world.finish().await?;
        ensure!(told.gaps.is_empty(), "nothing was compacted: {:?}", told.gaps);
        let left = told.states.iter().filter(|state| state.change == Change::Left);
        for left in left {
            marks.when(true, "left");
            let again = told.states.iter().any(|state| {
                state.object.uid == left.object.uid && state.seq > left.seq && state.change == Change::Present
            });
            marks.when(again, "came back");
        }
        Ok(())
    })
    .await;
}
