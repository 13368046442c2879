//! Servers that say a thing twice, say old things, or say what nobody understands.

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use anyhow::ensure;
use bytes::Bytes;
use serde_json::Value;

use crate::seeds::{Dice, RowOptions};
use crate::wire::PassedLine;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_14_an_event_that_comes_twice_is_one_state() {
    let row = RowOptions { sometimes: &["a duplicate was counted"], ..RowOptions::new("row_14") };
    row.run(async |world, marks| {
        world.herd.create_some(4).await?;
        world.start_synced().await?;
        let mut dice = Dice::new(world.dice.throw());
        world.wire.tap(move |line| PassedLine::As(vec![line; dice.between(1, 3) as usize]));
        world.herd.live_on(30).await?;
        world.level().await?;
        marks.when(world.view().counts.duplicates > 0, "a duplicate was counted");
        let told = world.finish().await?;
        ensure!(told.gaps.is_empty(), "{:?}", told.gaps);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_15_what_a_stale_server_repeats_is_refused_and_counted() {
    let row = RowOptions { seeds: 6, sometimes: &["a stale event was counted"], ..RowOptions::new("row_15") };
    row.run(async |world, marks| {
        world.herd.create_some(4).await?;
        world.start_synced().await?;
        // Each line may be followed by one that came long ago, also of an object that has ended.
        let (mut dice, mut past) = (Dice::new(world.dice.throw()), Vec::<Bytes>::new());
        world.wire.tap(move |line| {
            let mut lines = vec![line.clone()];
            let is_bookmark = line.starts_with(b"{\"type\":\"BOOKMARK\"");
            if dice.one_in(2) && !is_bookmark {
                lines.extend(dice.pick(&past).cloned());
            }
            if !is_bookmark {
                past.push(line);
            }
            PassedLine::As(lines)
        });
        world.herd.live_on(40).await?;
        world.level().await?;
        marks.when(world.view().counts.stale > 0, "a stale event was counted");
        let told = world.finish().await?;
        ensure!(told.gaps.is_empty(), "{:?}", told.gaps);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_15_events_in_the_wrong_order_are_all_witnessed() {
    let row =
        RowOptions { seeds: 8, sometimes: &["an event was overtaken"], ..RowOptions::new("row_15_events") };
    row.run(async |world, marks| {
        world.herd.create_some(4).await?;
        world.start_synced().await?;
        world.unordered = true;
        // Every now and then one event is overtaken by the next.
        let (mut dice, mut waiting) = (Dice::new(world.dice.throw()), None::<Bytes>);
        let overtaken = Arc::new(AtomicBool::new(false));
        let overtakes = Arc::clone(&overtaken);
        world.wire.tap(move |line| {
            let is_bookmark = line.starts_with(b"{\"type\":\"BOOKMARK\"");
            PassedLine::As(match waiting.take() {
                Some(overtaken) if is_bookmark => vec![overtaken, line],
                Some(overtaken) => {
                    overtakes.store(true, Ordering::Relaxed);
                    vec![line, overtaken]
                }
                None if !is_bookmark && dice.one_in(3) => {
                    waiting = Some(line);
                    Vec::new()
                }
                None => vec![line],
            })
        });
        world.herd.live_on(40).await?;
        world.level().await?;
        world.wire.no_tap();
        marks.when(overtaken.load(Ordering::Relaxed), "an event was overtaken");
        let told = world.finish().await?;
        ensure!(told.gaps.is_empty(), "{:?}", told.gaps);
        Ok(())
    })
    .await;
}

/// uid and version of the object of a line.
fn identity(line: &[u8]) -> Option<(String, u64)> {
    let event: Value = serde_json::from_slice(line).ok()?;
    let metadata = &event["object"]["metadata"];
    Some((metadata["uid"].as_str()?.to_string(), metadata["resourceVersion"].as_str()?.parse().ok()?))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_19_what_does_not_decode_is_kept_raw_and_the_rest_goes_on() {
    const GARBAGE: [&str; 4] = [
        "<html>502 Bad Gateway</html>",
        "{\"type\":\"SURPRISE\",\"object\":{}}",
        "{\"type\":\"ADDED\",\"object\":{\"kind\":\"Job\",\"metadata\":{\"name\":\"nobody\"}}}",
        "{\"type\":\"MODIFIED\",\"object\":{\"metadata\":",
    ];
    let row = RowOptions { sometimes: &["an event was spoiled"], ..RowOptions::new("row_19") };
    row.run(async |world, marks| {
        world.herd.create_some(4).await?;
        world.start_synced().await?;
        let (mut dice, spoiled) = (Dice::new(world.dice.throw()), Arc::new(Mutex::new(Vec::<Bytes>::new())));
        let (of, kept) = (Arc::new(Mutex::new(HashSet::new())), Arc::clone(&spoiled));
        let identities = Arc::clone(&of);
        world.wire.tap(move |line| {
            let mut lines = Vec::new();
            if dice.one_in(4) {
                let garbage = Bytes::from(*dice.pick(&GARBAGE).unwrap());
                kept.lock().unwrap().push(garbage.clone());
                lines.push(garbage);
            }
            // What spoils an end is found by an audit alone, which is another row.
            let end = line.starts_with(b"{\"type\":\"DELETED\"");
            match identity(&line).filter(|_| !end && dice.one_in(4)) {
                Some(identity) => {
                    let cut = line.slice(..line.len() - dice.between(1, 100) as usize);
                    identities.lock().unwrap().insert(identity);
                    kept.lock().unwrap().push(cut.clone());
                    lines.push(cut);
                }
                None => lines.push(line),
            }
            PassedLine::As(lines)
        });
        world.herd.live_on(40).await?;
        world.until("something is spoiled", |_| !spoiled.lock().unwrap().is_empty()).await?;
        world.wire.no_tap();
        // What was spoiled last is only seen by what comes after it.
        for name in world.herd.live.keys().cloned().collect::<Vec<_>>() {
            world.herd.touch(&name).await?;
        }
        world.poisoned.clone_from(&of.lock().unwrap());
        marks.when(!world.poisoned.is_empty(), "an event was spoiled");
        let told = world.finish().await?;
        ensure!(told.gaps.is_empty(), "{:?}", told.gaps);
        // The same bytes are kept once.
        let found: BTreeSet<_> = world.poison().await?.into_iter().map(Bytes::from).collect();
        let sent: BTreeSet<_> = spoiled.lock().unwrap().iter().cloned().collect();
        ensure!(found == sent, "{} were spoiled, {} are kept", sent.len(), found.len());
        Ok(())
    })
    .await;
}
