//! Faults of a watch that is open.

use std::time::{Duration, Instant};

use anyhow::ensure;

use crate::seeds::{Dice, RowOptions};
use crate::wire::{PassedLine, RequestFate};
use crate::world::WorldOptions;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_01_a_watch_that_closes_is_resumed_without_a_list() {
    let row = RowOptions { sometimes: &["closed while more was to come"], ..RowOptions::new("row_01") };
    row.run(async |world, marks| {
        world.herd.create_some(4).await?;
        world.start_synced().await?;
        let lists = world.wire.asked(|asked| asked.is_list()).len();
        for _ in 0..world.dice.between(3, 8) {
            world.wire.end_watches();
            let steps = world.dice.below(6);
            world.herd.live_on(steps).await?;
            marks.when(steps > 0 && world.wire.open_watches() == 0, "closed while more was to come");
        }
        let told = world.finish().await?;
        ensure!(told.gaps.is_empty(), "{:?}", told.gaps);
        ensure!(world.wire.asked(|asked| asked.is_list()).len() == lists, "it listed again");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_02_a_frame_that_is_cut_is_thrown_away_and_comes_again() {
    let row = RowOptions { sometimes: &["part of a frame was thrown away"], ..RowOptions::new("row_02") };
    row.run(async |world, marks| {
        world.herd.create_some(4).await?;
        world.start_synced().await?;
        let (mut dice, mut cuts) = (Dice::new(world.dice.throw()), 8);
        world.wire.tap(move |line| {
            if cuts == 0 || !dice.one_in(3) {
                return PassedLine::As(vec![line]);
            }
            cuts -= 1;
            let length = dice.below(line.len() as u64) as usize;
            PassedLine::Break(line.slice(..length))
        });
        world.herd.live_on(30).await?;
        world.level().await?;
        marks.when(world.view().counts.discarded_bytes > 0, "part of a frame was thrown away");
        let told = world.finish().await?;
        ensure!(told.gaps.is_empty(), "{:?}", told.gaps);
        ensure!(world.poison().await?.is_empty(), "a cut frame is no poison");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_03_an_object_of_three_megabytes_in_many_chunks_is_one_state() {
    let row = RowOptions { seeds: 2, ..RowOptions::new("row_03") };
    row.run(async |world, _| {
        world.herd.create_some(3).await?;
        world.start_synced().await?;
        world.wire.shred(Dice::new(world.dice.throw()));
        let bytes = world.dice.between(2_900_000, 3_100_000) as usize;
        world.herd.touch("job-1").await?;
        world.herd.grow("job-1", bytes).await?;
        world.herd.live_on(8).await?;
        let told = world.finish().await?;
        ensure!(told.gaps.is_empty() && world.poison().await?.is_empty(), "{:?}", told.gaps);
        let documents = told.documents.values().flatten();
        let largest = documents.map(|document| document.to_string().len()).max();
        ensure!(largest >= Some(bytes), "the largest document has {largest:?} bytes");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_21_a_half_open_connection_is_found_by_the_idle_deadline() {
    /// Far beyond the idle deadline, far below what anybody would wait.
    const WITHIN: Duration = Duration::from_secs(120);
    let options = WorldOptions { idle: Duration::from_millis(400), ..WorldOptions::default() };
    let row = RowOptions { seeds: 3, options, ..RowOptions::new("row_21") };
    row.run(async |world, _| {
        world.herd.create_some(3).await?;
        world.start_synced().await?;
        let lists = world.wire.asked(|asked| asked.is_list()).len();
        for _ in 0..2 {
            // A connection that is there, and one that is accepted and never answered.
            world.wire.stall_watches();
            world.wire.spoil(1, |asked| asked.is_watch(), || RequestFate::Silence);
            let since = Instant::now();
            let steps = world.dice.between(1, 8);
            world.herd.live_on(steps).await?;
            world.level().await?;
            ensure!(since.elapsed() < WITHIN, "it took {:?}", since.elapsed());
        }
        let told = world.finish().await?;
        ensure!(told.gaps.is_empty(), "{:?}", told.gaps);
        ensure!(world.wire.asked(|asked| asked.is_list()).len() == lists, "it listed again");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_that_bring_nothing_are_no_sign_of_life_and_lose_nothing() {
    let row = RowOptions { seeds: 6, ..RowOptions::new("watches_that_bring_nothing") };
    row.run(async |world, _| {
        world.herd.create_some(3).await?;
        world.start_synced().await?;
        let body = ["", "<html>no", "<html>\n", "{}\n"][world.dice.below(4) as usize];
        world.wire.rule(move |asked| {
            let answer = RequestFate::Answer { status: 200, headers: Vec::new(), body: body.to_owned() };
            asked.is_watch().then_some(answer)
        });
        world.wire.end_watches();
        let steps = world.dice.between(1, 8);
        world.herd.live_on(steps).await?;
        world
            .until("people are told", |world| {
                let view = world.view();
                !view.synced && view.condition.is_some_and(|told| told.contains("watching brings nothing"))
            })
            .await?;
        world.wire.no_rules();
        world.level().await?;
        world.until("all is well", |world| world.view().synced && world.view().condition.is_none()).await?;
        let told = world.finish().await?;
        ensure!(told.gaps.is_empty(), "nothing was compacted: {:?}", told.gaps);
        Ok(())
    })
    .await;
}
