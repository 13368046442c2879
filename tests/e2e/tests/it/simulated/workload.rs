//! The playground's workload against the simulated API server, without the controller.

use std::collections::BTreeMap;
use std::time::Duration;

use kubewitness_harness::{Scratch, Simulator, SimulatorOptions};
use kubewitness_playground::workload::{WorkloadOptions, run};
use reqwest::Method;
use tokio_util::sync::CancellationToken;

async fn lives(simulator: &Simulator, seed: u64, jobs: u64) {
    let options = WorkloadOptions {
        url: simulator.url().to_owned(),
        token: Some(simulator.token().to_owned()),
        jobs,
        seed,
        rate: f64::INFINITY,
        active: Some(20),
        keep_finished: Duration::from_millis(100),
        ..WorkloadOptions::default()
    };
    let report =
        run(options, std::sync::Arc::default(), CancellationToken::new()).await.expect("every job ends");
    assert!(report.complete, "{report:?}");
    assert_eq!((report.submitted, report.deleted, report.errors), (jobs, jobs, 0), "{report:?}");
}

#[tokio::test]
async fn jobs_live_and_are_cleaned_up_without_one_refused_write() {
    let scratch = Scratch::new("workload").expect("a folder");
    let simulator = Simulator::start(scratch.path(), &SimulatorOptions::default()).await.expect("it starts");
    lives(&simulator, 1, 60).await;
    for path in ["/apis/batch/v1/jobs", "/api/v1/pods"] {
        let (status, list) = simulator.request(Method::GET, path, None).await.expect("an answer");
        assert_eq!((status, list["items"].as_array().map(Vec::len)), (200, Some(0)), "{list}");
    }
    let truth = simulator.truth("batch", "jobs").await.expect("the history");
    let mut ends: BTreeMap<&str, usize> = BTreeMap::new();
    for entry in &truth.entries {
        *ends.entry(entry.event.as_str()).or_default() += 1;
    }
    assert_eq!((ends["ADDED"], ends["DELETED"]), (60, 60));
    assert!(ends["MODIFIED"] > 300, "{ends:?}");
}

#[tokio::test]
async fn the_same_seed_gives_the_same_lives() {
    let mut stories = Vec::new();
    for _ in 0..2 {
        let scratch = Scratch::new("workload").expect("a folder");
        let simulator =
            Simulator::start(scratch.path(), &SimulatorOptions::default()).await.expect("it starts");
        lives(&simulator, 7, 10).await;
        let truth = simulator.truth("batch", "jobs").await.expect("the history");
        let mut story: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for entry in truth.entries {
            story
                .entry(format!("{}/{}", entry.object.namespace, entry.object.name))
                .or_default()
                .push(entry.event);
        }
        stories.push(story);
    }
    assert_eq!(stories[0], stories[1]);
}
