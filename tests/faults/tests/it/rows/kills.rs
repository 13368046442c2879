//! The process dies.

use anyhow::ensure;
use kubewitness_core::Change;

use crate::killed_journal::ProcessDeath;
use crate::seeds::RowOptions;
use crate::wire::PassedLine;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_11_twelve_deletions_that_share_a_version_come_once_each_over_a_kill() {
    const TOGETHER: usize = 12;
    let row = RowOptions { seeds: 5, sometimes: &["killed among them"], ..RowOptions::new("row_11") };
    row.run(async |world, marks| {
        let names: Vec<String> = (0..TOGETHER).map(|number| format!("lease-{number:02}")).collect();
        for name in &names {
            world.herd.create(name).await?;
        }
        world.start_synced().await?;
        let pass = world.dice.below(TOGETHER as u64) + u64::from(world.dice.one_in(2));
        let mut passed = 0;
        world.wire.tap(move |line| {
            if line.starts_with(b"{\"type\":\"DELETED\"") {
                passed += 1;
                if passed > pass {
                    return PassedLine::Stall;
                }
            }
            PassedLine::As(vec![line])
        });
        world.herd.delete_together(&names).await?;
        let some = pass.min(TOGETHER as u64);
        world.until("some have come", |world| world.view().counts.gone == some).await?;
        marks.when((1..TOGETHER as u64).contains(&some), "killed among them");
        world.kill().await?;
        world.wire.no_tap();
        world.start().await?;
        let told = world.finish().await?;
        ensure!(told.gaps.is_empty(), "{:?}", told.gaps);
        let gone = told.states.iter().filter(|state| state.change == Change::Gone).count();
        ensure!(gone == TOGETHER, "{gone} are gone");
        Ok(())
    })
    .await;
}

/// Rows 24, 25 and 27 as far as the source goes: at each of its writes, before and after.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_any_of_its_writes_it_has_everything_once() {
    let sometimes = &["before the commit", "after the commit", "while it reads back"];
    let row = RowOptions { seeds: 5, sometimes, ..RowOptions::new("killed_at_any") };
    row.run(async |world, marks| {
        world.herd.create_some(5).await?;
        // What is before the first checkpoint nobody promises.
        world.start_synced().await?;
        world.kill().await?;
        let mut relisting = false;
        for _ in 0..6 {
            world.start().await?;
            let death = ProcessDeath { writes: world.dice.below(6) as u32, written: world.dice.one_in(2) };
            marks.when(!death.written, "before the commit");
            marks.when(death.written, "after the commit");
            marks.when(relisting, "while it reads back");
            world.kill_at(death, async |world| world.herd.live_on(12).await).await?;
            relisting = world.dice.one_in(2);
            if relisting {
                world.herd.live_on(6).await?;
                world.server.forget_watch_window();
            }
        }
        world.start().await?;
        let told = world.finish().await?;
        ensure!(told.gaps.is_empty(), "nothing was compacted: {:?}", told.gaps);
        Ok(())
    })
    .await;
}
