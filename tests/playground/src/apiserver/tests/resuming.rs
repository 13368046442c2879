//! Tests what the servers promise to a client that resumes: whatever breaks, on any of them, no event is
//! missing.

use std::net::{Ipv4Addr, SocketAddr};

use super::*;
use crate::apiserver::faults::{FaultKind, FaultPoint, InjectedFault};

const SEEDS: u64 = 4;
const WRITES: u64 = 60;

/// One write of a random life. Numbers from the seed choose the object and the change.
async fn write(cluster: &TestCluster, number: u64, choice: u64) {
    let name = format!("o{}", choice % 5);
    let path = format!("{MAPS}/{name}");
    match (choice / 5) % 4 {
        0 => drop(cluster.delete(&path).await),
        1 => drop(cluster.post(MAPS, json!({"metadata": {"name": name}})).await),
        _ => drop(cluster.merge(&path, json!({"data": {"n": number.to_string()}})).await),
    }
}

/// Reads a watch until it ends, or has shown the last version.
async fn read(frames: &mut TestFrames, position: &mut u64, seen: &mut Vec<(String, u64)>, last: u64) {
    while *position < last {
        let Ok(Some(frame)) = frames.frame().await else { return };
        let version = frame["object"]["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
        assert!(version > *position, "never back, never twice: {frame}");
        *position = version;
        let name = frame["object"]["metadata"]["name"].as_str().unwrap_or_default();
        seen.push((format!("{} {name}", frame["type"].as_str().unwrap()), version));
    }
}

#[tokio::test]
async fn a_client_that_resumes_at_any_server_after_any_break_misses_nothing() {
    for seed in 0..SEEDS {
        let broken = [
            FaultKind::Cut(FaultPoint::Within(2000)),
            FaultKind::End(FaultPoint::Within(2000)),
            FaultKind::EndBefore(FaultPoint::Within(9)),
        ];
        let one = TestCluster::start(|options| {
            options.seed = Some(seed);
            options.faults = broken.into_iter().map(|what| InjectedFault::always(what).one_in(2)).collect();
        })
        .await;
        let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let (server, serving) = one.server.beside(anywhere).await.unwrap();
        let two = one.over(server, serving);
        let begin = one.server.version();
        let random = crate::apiserver::values::ident::RandomSource::new(Some(seed));
        for number in 0..WRITES {
            write(if number % 2 == 0 { &one } else { &two }, number, random.next()).await;
        }
        let (mut position, mut seen) = (begin, Vec::new());
        let last = one.server.truth("", "configmaps").entries.last().unwrap().version;
        let mut turns = 0;
        while position < last {
            let cluster = if random.next().is_multiple_of(2) { &one } else { &two };
            // A server that lags shows less, but nothing wrong.
            cluster.server.hold_cache(Some(position + random.next() % 20));
            let mut frames = cluster.watch(&format!("resourceVersion={position}&timeoutSeconds=1")).await;
            let upto = cluster.server.cached_version().min(last);
            read(&mut frames, &mut position, &mut seen, upto).await;
            cluster.server.release_cache();
            turns += 1;
            assert!(turns < 1000, "seed {seed}: stuck at {position} of {last}");
        }
        let truth = one.server.truth("", "configmaps");
        let told: Vec<(String, u64)> =
            truth.entries.iter().map(|e| (format!("{} {}", e.event, e.name), e.version)).collect();
        assert_eq!(seen, told, "seed {seed}");
    }
}
