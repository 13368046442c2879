//! Old versions that are gone, or are said to be, or don't come: what is believed, and what it costs.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use anyhow::ensure;
use kubewitness_watch::WalkBudget;

use crate::seeds::RowOptions;
use crate::wire::{RequestFate, WireRequest};
use crate::world::WorldOptions;

/// The version that a request is for.
fn version(asked: &WireRequest) -> Option<String> {
    let value = asked.target.split("resourceVersion=").nth(1)?;
    Some(value.split('&').next().unwrap_or(value).to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_23_one_answer_alone_takes_no_version_that_can_be_read() {
    let row = RowOptions {
        seeds: 8,
        sometimes: &["versions were read back"],
        ..RowOptions::new("row_23_one_answer")
    };
    row.run(async |world, marks| {
        world.herd.create_some(5).await?;
        world.start_synced().await?;
        world.away().await?;
        let steps = world.dice.between(4, 25);
        world.herd.live_on(steps).await?;
        // As one of two servers, or a gateway, may: each version is refused the first time.
        let mut refused = HashSet::new();
        world.wire.rule(move |asked| {
            let version = version(asked).filter(|_| asked.is_exact())?;
            refused.insert(version).then(|| RequestFate::status(410, "Expired"))
        });
        world.back_expired();
        world.level().await?;
        marks.when(world.view().counts.walked_back > 0, "versions were read back");
        let told = world.finish().await?;
        ensure!(told.gaps.is_empty(), "nothing was compacted: {:?}", told.gaps);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_23_how_far_compaction_has_been_takes_a_few_questions_however_many_are_new() {
    const MOST: usize = 80;
    // Each object alone would have to be asked for, which the budget does not allow.
    let walk = WalkBudget { requests: 20, ..WalkBudget::default() };
    let row = RowOptions {
        options: WorldOptions { walk, ..WorldOptions::default() },
        ..RowOptions::new("row_23_how_far")
    };
    row.run(async |world, _| {
        world.herd.create_some(3).await?;
        world.start_synced().await?;
        world.away().await?;
        for number in 0..100 {
            world.herd.create(&format!("new-{number:03}")).await?;
        }
        world.compact(None);
        world.back_expired();
        world.level().await?;
        let asked = world.wire.asked(WireRequest::is_exact).len();
        ensure!(asked < MOST, "{asked} questions");
        let told = world.finish().await?;
        ensure!(told.gaps.iter().all(|gap| gap.reason == "Compacted"), "{:?}", told.gaps);
        ensure!(told.gaps.iter().filter(|gap| gap.object.is_some()).count() >= 99, "{:?}", told.gaps);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_version_that_never_comes_is_asked_for_again_and_is_no_gap() {
    const WITHIN: Duration = Duration::from_secs(120);
    let options = WorldOptions { one_answer: Duration::from_millis(200), ..WorldOptions::default() };
    let row = RowOptions { seeds: 4, options, ..RowOptions::new("an_old_version_that_never_comes") };
    row.run(async |world, _| {
        world.herd.create_some(4).await?;
        world.start_synced().await?;
        world.away().await?;
        for name in ["job-0", "job-1", "job-2"] {
            world.herd.touch(name).await?;
            world.herd.touch(name).await?;
        }
        let times = world.dice.between(1, 6) as u32;
        // The server accepts the question, and never answers.
        let of_one: fn(&WireRequest) -> bool =
            |asked| asked.is_exact() && asked.target.contains("fieldSelector");
        world.wire.spoil(times, of_one, || RequestFate::Silence);
        let since = Instant::now();
        world.back_expired();
        world.level().await?;
        ensure!(since.elapsed() < WITHIN, "it took {:?}", since.elapsed());
        let told = world.finish().await?;
        ensure!(told.gaps.is_empty(), "nothing was compacted: {:?}", told.gaps);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_17_a_search_whose_budget_runs_out_leaves_a_gap_and_takes_nothing_back() {
    let sometimes = &["a life was found", "a life lies in a gap"];
    let walk = WalkBudget { sweep_requests: 12, ..WalkBudget::default() };
    let options = WorldOptions { walk, ..WorldOptions::default() };
    let row = RowOptions { seeds: 8, options, sometimes, ..RowOptions::new("row_17_a_search") };
    row.run(async |world, marks| {
        world.herd.create_some(3).await?;
        world.start_synced().await?;
        world.away().await?;
        let mut brief = Vec::new();
        for number in 0..world.dice.between(3, 8) {
            let name = format!("brief-{number}");
            world.herd.create(&name).await?;
            world.herd.touch("job-1").await?;
            world.herd.delete(&name).await?;
            brief.push(name);
        }
        world.back_expired();
        world.level().await?;
        world.unread_allowed = true;
        let told = world.finish().await?;
        let seen = |name: &String| told.states.iter().any(|state| state.object.name == *name);
        marks.when(brief.iter().any(seen), "a life was found");
        marks.when(!brief.iter().all(seen), "a life lies in a gap");
        ensure!(told.gaps.iter().all(|gap| gap.reason == "BudgetSpent"), "{:?}", told.gaps);
        ensure!(told.gaps.is_empty() == brief.iter().all(seen), "{:?}", told.gaps);
        Ok(())
    })
    .await;
}
