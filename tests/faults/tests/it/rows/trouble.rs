//! Servers that are busy.

use std::time::Duration;

use anyhow::ensure;

use crate::seeds::RowOptions;
use crate::wire::{RequestFate, WireRequest};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_08_a_passing_504_is_tried_again_and_makes_no_epoch() {
    let row = RowOptions::new("row_08");
    row.run(async |world, _| {
        let too_large = || RequestFate::status(504, "Timeout");
        world.herd.create_some(4).await?;
        let times = world.dice.below(3) as u32;
        world.wire.spoil(times, |asked| asked.is_list(), too_large);
        world.start_synced().await?;
        for _ in 0..3 {
            let times = world.dice.between(1, 4) as u32;
            let of: fn(&WireRequest) -> bool =
                if world.dice.one_in(2) { |asked| asked.is_probe() } else { |asked| asked.is_watch() };
            world.wire.spoil(times, of, too_large);
            world.wire.break_watches();
            let steps = world.dice.between(1, 8);
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
async fn row_20_the_pause_that_a_busy_server_asks_for_is_kept() {
    const PAUSE: Duration = Duration::from_secs(1);
    let row = RowOptions { seeds: 3, ..RowOptions::new("row_20") };
    row.run(async |world, _| {
        world.herd.create_some(3).await?;
        world.start_synced().await?;
        let busy = || {
            let RequestFate::Answer { status, body, .. } = RequestFate::status(429, "TooManyRequests") else {
                unreachable!("a status is an answer")
            };
            RequestFate::Answer { status, headers: vec![("Retry-After", PAUSE.as_secs().to_string())], body }
        };
        let of: fn(&WireRequest) -> bool = match world.dice.below(3) {
            0 => |asked| asked.is_probe(),
            1 => |asked| asked.is_watch(),
            _ => |_| true,
        };
        let before = world.wire.asked(|_| true).len();
        world.wire.spoil(1, of, busy);
        world.wire.end_watches();
        world.herd.live_on(4).await?;
        world.level().await?;
        let asked = world.wire.asked(|_| true);
        let refused = asked[before..].iter().position(of).map(|place| before + place).unwrap_or(before);
        let next = asked.get(refused + 1).map(|next| next.at - asked[refused].at);
        ensure!(next >= Some(PAUSE), "asked again after {next:?}");
        let told = world.finish().await?;
        ensure!(told.gaps.is_empty(), "{:?}", told.gaps);
        Ok(())
    })
    .await;
}
