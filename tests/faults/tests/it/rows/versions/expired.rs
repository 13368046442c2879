//! The server no longer has the version asked for.

use anyhow::ensure;

use crate::seeds::RowOptions;
use crate::wire::RequestFate;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_04_an_expired_watch_is_walked_back_without_a_gap() {
    let row = RowOptions { seeds: 6, sometimes: &["versions were read back"], ..RowOptions::new("row_04") };
    row.run(async |world, marks| {
        world.herd.create_some(5).await?;
        world.start_synced().await?;
        for _ in 0..2 {
            world.away().await?;
            let steps = world.dice.between(1, 25);
            world.herd.live_on(steps).await?;
            world.back_expired();
            world.level().await?;
        }
        let counts = world.view().counts;
        ensure!(counts.expired >= 2, "{counts:?}");
        marks.when(counts.walked_back > 0, "versions were read back");
        let told = world.finish().await?;
        ensure!(told.gaps.is_empty(), "nothing was compacted: {:?}", told.gaps);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_05_an_expired_watch_as_an_http_status_is_the_same_and_no_endless_loop() {
    let row = RowOptions { sometimes: &["versions were read back"], ..RowOptions::new("row_05") };
    row.run(async |world, marks| {
        world.herd.create_some(4).await?;
        world.start_synced().await?;
        // A list that comes as a stream goes on as a watch, so that nothing is refused again.
        let mut times = 1;
        if world.dice.one_in(2) {
            world.wire.refuse_streamed_lists();
            times = world.dice.between(1, 4) as u32;
        }
        let reason = if world.dice.one_in(2) { "Expired" } else { "Gone" };
        world.away().await?;
        let steps = world.dice.between(1, 12);
        world.herd.live_on(steps).await?;
        let asked = world.wire.asked(|asked| asked.is_watch()).len();
        world.wire.spoil(times, |asked| asked.is_watch(), move || RequestFate::status(410, reason));
        world.wire.down(false);
        world.level().await?;
        world.until("it was refused", |world| world.view().counts.expired >= u64::from(times)).await?;
        world.until("it watches", |world| world.wire.open_watches() > 0).await?;
        let counts = world.view().counts;
        ensure!(counts.lists_expired >= 1, "{counts:?}");
        // Never the same version again: each refusal is followed by a list, and then a new watch.
        let asked = world.wire.asked(|asked| asked.is_watch()).len() - asked;
        ensure!(asked <= times as usize + 3, "{asked} watches for {times} refusals");
        marks.when(counts.walked_back > 0, "versions were read back");
        let told = world.finish().await?;
        ensure!(told.gaps.is_empty(), "nothing was compacted: {:?}", told.gaps);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_16_a_name_that_is_used_again_ends_its_old_bearer_first() {
    let row = RowOptions {
        seeds: 6,
        sometimes: &["a bearer in between was never seen"],
        ..RowOptions::new("row_16")
    };
    row.run(async |world, marks| {
        world.herd.create_some(4).await?;
        world.start_synced().await?;
        world.away().await?;
        for number in 0..world.dice.between(1, 3) {
            let name = format!("job-{number}");
            let lives = world.dice.between(1, 3);
            for _ in 0..lives {
                for _ in 0..world.dice.below(3) {
                    world.herd.touch(&name).await?;
                }
                world.herd.delete(&name).await?;
                for _ in 0..world.dice.below(2) {
                    world.herd.touch("job-3").await?;
                }
                world.herd.create(&name).await?;
            }
            marks.when(lives > 1, "a bearer in between was never seen");
            for _ in 0..world.dice.below(3) {
                world.herd.touch(&name).await?;
            }
        }
        // Seen by the watch, or by a list alone.
        if world.dice.one_in(2) {
            world.wire.down(false);
        } else {
            world.back_expired();
        }
        let told = world.finish().await?;
        ensure!(told.gaps.is_empty(), "nothing was compacted: {:?}", told.gaps);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_17_what_came_and_went_meanwhile_is_found_or_lies_in_a_gap_that_says_so() {
    let sometimes = &["a life lies in a gap", "a life was found"];
    let row = RowOptions { seeds: 8, sometimes, ..RowOptions::new("row_17") };
    row.run(async |world, marks| {
        world.herd.create_some(4).await?;
        world.start_synced().await?;
        world.away().await?;
        let mut brief = Vec::new();
        for number in 0..world.dice.between(1, 4) {
            let name = format!("brief-{number}");
            world.herd.create(&name).await?;
            for _ in 0..world.dice.below(3) {
                world.herd.touch(&name).await?;
                world.herd.live().await?;
            }
            world.herd.delete(&name).await?;
            world.herd.live().await?;
            brief.push(name);
        }
        let compacted = world.dice.one_in(2);
        if compacted {
            let version = world.server.version() - world.dice.below(6);
            world.compact(Some(version));
        }
        world.back_expired();
        let told = world.finish().await?;
        let seen = |name: &String| told.states.iter().any(|state| state.object.name == *name);
        marks.when(brief.iter().any(seen), "a life was found");
        marks.when(!brief.iter().all(seen), "a life lies in a gap");
        ensure!(compacted || told.gaps.is_empty(), "nothing was compacted: {:?}", told.gaps);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_23_compaction_during_an_outage_leaves_an_exact_gap_for_each_object() {
    let sometimes = &["an object's gap", "the source's gap", "versions were read back"];
    let row = RowOptions { seeds: 10, sometimes, ..RowOptions::new("row_23") };
    row.run(async |world, marks| {
        world.herd.create_some(5).await?;
        world.start_synced().await?;
        for _ in 0..2 {
            world.away().await?;
            let before = world.server.version();
            let steps = world.dice.between(4, 30);
            world.herd.live_on(steps).await?;
            let version = world.dice.between(before, world.server.version());
            world.compact(Some(version));
            let steps = world.dice.below(10);
            world.herd.live_on(steps).await?;
            world.back_expired();
            world.level().await?;
        }
        marks.when(world.view().counts.walked_back > 0, "versions were read back");
        let told = world.finish().await?;
        marks.when(told.gaps.iter().any(|gap| gap.object.is_some()), "an object's gap");
        marks.when(told.gaps.iter().any(|gap| gap.object.is_none()), "the source's gap");
        Ok(())
    })
    .await;
}
