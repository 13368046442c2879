//! Compares a source with a model: random lives of objects, random faults, kills at any append, lists paged
//! and streamed, audits. Every version that the server had is witnessed once and in order, or lies in a gap.
//! The objects of a name are told in the order in which they had it. Without compaction there is no gap.

use std::collections::{BTreeMap, HashSet};

use kubewitness_chance::{Dice, ReplayHint, SeedPlan};
use kubewitness_core::state::Change;

use super::world::CannedReply;
use super::*;

fn live(world: &WatchWorld, dice: &mut Dice) {
    let names = world.names();
    let spare = |dice: &mut Dice| names[dice.below(names.len() as u64) as usize].clone();
    match dice.below(10) {
        0..=2 if names.len() < 12 => {
            let name = format!("job-{}", dice.below(16));
            if !names.contains(&name) {
                world.create(&name, json!({}));
            }
        }
        3 if !names.is_empty() => world.delete(&spare(dice)),
        _ if !names.is_empty() => world.update(&spare(dice)),
        _ => {}
    }
}

/// Causes a random fault. Returns whether it can't have lost anything.
fn fault(world: &WatchWorld, dice: &mut Dice) -> bool {
    let fault = dice.below(12);
    match fault {
        0 => world.close(),
        1 => world.cut(),
        2 => world.bookmark(),
        3 => {
            world.forget();
            world.cut();
        }
        4 => {
            world.compact();
            world.cut();
        }
        5 => world.spoil_once("watch=true", CannedReply::status(410, "Expired")),
        6 => world.spoil_once("limit=1", CannedReply::status(503, "ServiceUnavailable")),
        7 => world.spoil_once("continue=", CannedReply::status(410, "Expired")),
        8 => {
            let log = world.log();
            if !log.is_empty() {
                world.send(&log[dice.below(log.len() as u64) as usize].line());
            }
        }
        9 => world.send("{\"type\":\"ADDED\",\"object\":{}}\n"),
        _ => {}
    }
    // A page that expires shows the sweep that the server has compacted.
    !matches!(fault, 4 | 7)
}

async fn run(seed: u64) {
    let (world, memory) = (WatchWorld::start().await, Arc::new(MemoryWitness::default()));
    let mut dice = Dice::new(seed);
    world.stream_lists(dice.below(2) == 0);
    let audit = if dice.below(2) == 0 { "0s" } else { "40ms" };
    let (spec, mut lossless) = (spec(json!({"audit": audit})), true);
    let tuning = WatchTuning {
        stream_lists: true,
        audit_grace: Duration::from_secs(1),
        seed: Some(seed.max(1)),
        ..tuning()
    };
    let mut running = RunningSource::start_with(&world, &memory, spec.clone(), tuning.clone()).await;
    running.watching(&world).await;
    for _ in 0..12 {
        for _ in 0..dice.below(30) {
            live(&world, &mut dice);
            if dice.below(4) == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        lossless &= fault(&world, &mut dice);
        if dice.below(3) == 0 {
            memory.die_after(Some(dice.below(4) as u32));
            live(&world, &mut dice);
            tokio::time::sleep(Duration::from_millis(dice.below(20))).await;
            running.task.abort();
            memory.die_after(None);
            running = RunningSource::start_with(&world, &memory, spec.clone(), tuning.clone()).await;
        }
    }
    world.create("end", json!({}));
    let mut left = 3_000;
    until(&format!("seed {seed}: level"), || {
        world.bookmark();
        left -= 1;
        if left == 0 {
            eprintln!("{:#?} {:#?}", running.handle.snapshot_view(), world.requests(""));
            eprintln!("{:?} {:?} {} {:?}", memory.current(), world.live(), world.version(), memory.story());
        }
        let settled = memory.checkpoint().is_some_and(|at| at == world.version().to_string());
        settled && memory.current() == world.live()
    })
    .await;
    running.stop().await;
    check(seed, &world, &memory);
    let gaps = (memory.source_gaps(), memory.object_gaps());
    assert!(!lossless || gaps == (vec![], vec![]), "seed {seed}: nothing was compacted: {gaps:?}");
}

fn check(seed: u64, world: &WatchWorld, memory: &MemoryWitness) {
    let states = memory.states();
    assert!(memory.poison().len() <= 12, "seed {seed}");
    let (mut order, mut witnessed) = (BTreeMap::new(), HashSet::new());
    for state in states.iter().filter(|state| state.change == Change::Present) {
        let version: u64 = state.resource_version.as_str().parse().unwrap();
        let before = order.insert(state.object.uid.clone(), version);
        assert!(before.is_none_or(|before| before < version), "seed {seed}: {state:?} came after {before:?}");
        assert!(witnessed.insert((state.object.uid.clone(), version)), "seed {seed}: twice");
    }
    let mut bearers: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for entry in world.log().iter().filter(|entry| entry.kind == "ADDED") {
        let name = entry.object["metadata"]["name"].as_str().unwrap().to_string();
        bearers.entry(name).or_default().push(entry.uid().to_string());
    }
    let mut newest: BTreeMap<String, usize> = BTreeMap::new();
    for state in states.iter().filter(|state| state.change != Change::Gap) {
        let place = bearers[&state.object.name].iter().position(|uid| *uid == state.object.uid).unwrap();
        let before = newest.insert(state.object.name.clone(), place).unwrap_or_default();
        assert!(
            before <= place,
            "seed {seed}: {} {} {} came after its name's next bearer",
            state.change.as_str(),
            state.object.uid,
            state.resource_version
        );
    }
    let gone: HashSet<_> =
        states.iter().filter(|s| s.change == Change::Gone).map(|s| s.object.uid.clone()).collect();
    let bounds =
        |after: &str, before: &str| (after.parse::<u64>().unwrap_or(0), before.parse().unwrap_or(u64::MAX));
    let holes: Vec<_> = states
        .iter()
        .filter(|state| state.change == Change::Gap)
        .map(|state| {
            let gap: kubewitness_core::Gap = serde_json::from_slice(&state.document).unwrap();
            (state.object.uid.clone(), bounds(&gap.after, &gap.before))
        })
        .collect();
    let wide: Vec<_> = memory.source_gaps().iter().map(|gap| bounds(&gap.after, &gap.before)).collect();
    let within = |version: u64, (after, before): (u64, u64)| version > after && version < before;
    for entry in world.log() {
        let in_hole = holes.iter().any(|(uid, hole)| uid == entry.uid() && within(entry.version, *hole));
        if entry.kind == "DELETED" {
            let known = states.iter().any(|state| state.object.uid == entry.uid());
            assert!(!known || gone.contains(entry.uid()), "seed {seed}: {entry:?} has no end");
        } else if witnessed.contains(&(entry.uid().to_string(), entry.version)) {
            assert!(!in_hole, "seed {seed}: {entry:?} lies in a gap and was witnessed");
        } else {
            let in_wide = wide.iter().any(|hole| within(entry.version, *hole));
            if !in_hole && !in_wide {
                let of_uid = |line: &&super::world::HistoryEntry| line.uid() == entry.uid();
                let log: Vec<_> = world.log().iter().filter(of_uid).map(|e| (e.kind, e.version)).collect();
                let story: Vec<_> = states
                    .iter()
                    .filter(|s| s.object.name == entry.object["metadata"]["name"])
                    .map(|s| format!("{} {} {}", s.change.as_str(), s.object.uid, s.resource_version))
                    .collect();
                panic!(
                    "seed {seed}: {} at {} is neither witnessed nor in a gap\nits life: {log:?}\n\
                     of its name: {story:#?}\nholes: {holes:?}\nof the source: {wide:?}",
                    entry.uid(),
                    entry.version,
                );
            }
        }
    }
}

#[tokio::test]
async fn every_version_is_witnessed_once_and_in_order_or_lies_in_a_gap() {
    // A seed replays the choices. The moments at which they meet the source depend on the machine.
    let test = "every_version_is_witnessed_once_and_in_order_or_lies_in_a_gap";
    for seed in (SeedPlan { test, fixed: 0, fresh: 10 }).list() {
        let _replay = ReplayHint { package: "kubewitness-watch", test, seed };
        run(seed).await;
    }
}
