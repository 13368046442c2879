//! Everything at once.

use anyhow::Result;

use crate::killed_journal::ProcessDeath;
use crate::seeds::{Dice, Marks, RowOptions};
use crate::wire::{PassedLine, RequestFate};
use crate::world::FaultWorld;

/// One fault, and what goes on meanwhile.
async fn fault(world: &mut FaultWorld, marks: &Marks) -> Result<()> {
    match world.dice.below(14) {
        0 => world.wire.end_watches(),
        1 => world.wire.break_all(),
        2 => drop(world.server.drop_watches(kubewitness_playground::apiserver::WatchDrop::Cut)),
        3 => {
            world.server.forget_watch_window();
            world.wire.break_watches();
        }
        4 => {
            world.away().await?;
            let steps = world.dice.between(5, 20);
            world.herd.live_on(steps).await?;
            let version = world.server.version() - world.dice.below(10);
            world.compact(Some(version));
            world.back_expired();
        }
        5 => world.wire.spoil(1, |asked| asked.is_watch(), || RequestFate::status(410, "Expired")),
        6 => world.wire.spoil(2, |asked| asked.is_probe(), || RequestFate::status(503, "ServiceUnavailable")),
        7 => world.wire.spoil(1, |asked| asked.is_later_page(), || RequestFate::status(410, "Expired")),
        8 => world.wire.spoil(2, |asked| asked.is_exact(), || RequestFate::Close),
        9 => world.wire.spoil(1, |asked| asked.is_list(), || RequestFate::status(504, "Timeout")),
        10 => {
            world.away().await?;
            let steps = world.dice.below(20);
            world.herd.live_on(steps).await?;
            world.wire.down(false);
        }
        11 => {
            let mut dice = Dice::new(world.dice.throw());
            world.wire.tap(move |line| PassedLine::As(vec![line; dice.between(1, 2) as usize]));
        }
        12 => {
            marks.when(world.view().walking > 0, "killed while it reads back");
            world.kill().await?;
            let steps = world.dice.below(10);
            world.herd.live_on(steps).await?;
            world.start().await?;
        }
        _ => {
            let death = ProcessDeath { writes: world.dice.below(4) as u32, written: world.dice.one_in(2) };
            // With every connection good, so that something is there to be written.
            world.wire.no_rules();
            world.kill_at(death, async |world| world.herd.live_on(8).await).await?;
            world.start().await?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_fault_at_random_and_still_every_version_once_or_in_one_gap() {
    let sometimes = &["an object's gap", "versions were read back"];
    let row = RowOptions { seeds: 12, sometimes, ..RowOptions::new("every_fault") };
    row.run(async |world, marks| {
        let some = world.dice.below(8);
        world.herd.create_some(some).await?;
        world.start_synced().await?;
        for _ in 0..world.dice.between(5, 14) {
            let steps = world.dice.below(20);
            world.herd.live_on(steps).await?;
            fault(world, marks).await?;
            marks.when(world.view().counts.walked_back > 0, "versions were read back");
        }
        world.wire.no_rules();
        let told = world.finish().await?;
        marks.when(told.gaps.iter().any(|gap| gap.object.is_some()), "an object's gap");
        Ok(())
    })
    .await;
}
