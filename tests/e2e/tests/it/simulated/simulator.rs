//! The data that the simulated API server keeps when its process is killed.

use kubewitness_harness::{Scratch, Simulator, SimulatorOptions};
use serde_json::json;

use crate::support::create_job;

const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";

#[tokio::test]
async fn a_durable_simulator_survives_kill_9_with_its_history_and_addresses() {
    let scratch = Scratch::new("durable").unwrap();
    let options = SimulatorOptions { durable: true, more_servers: 1, ..SimulatorOptions::default() };
    let mut simulator = Simulator::start(scratch.path(), &options).await.unwrap();
    let urls = simulator.urls().to_vec();
    assert_eq!(urls.len(), 2);
    for name in ["a", "b"] {
        create_job(&simulator, name).await.unwrap();
    }
    let (_, before) = simulator.request(reqwest::Method::GET, JOBS, None).await.unwrap();
    let truth = simulator.truth("batch", "jobs").await.unwrap().entries;
    simulator.make("backup", &json!({"name": "early"})).await.unwrap();
    simulator.kill().await.unwrap();
    simulator.start_again().await.unwrap();
    assert_eq!(simulator.urls(), urls);
    let (_, after) = simulator.request(reqwest::Method::GET, JOBS, None).await.unwrap();
    assert_eq!(after, before);
    assert_eq!(simulator.truth("batch", "jobs").await.unwrap().entries, truth);

    create_job(&simulator, "c").await.unwrap();
    simulator.make("restore", &json!({"name": "early"})).await.unwrap();
    simulator.kill().await.unwrap();
    simulator.start_again().await.unwrap();
    let (_, restored) = simulator.request(reqwest::Method::GET, JOBS, None).await.unwrap();
    assert_eq!(restored, before);
    let truth = simulator.ask("truth?group=batch&resource=jobs").await.unwrap();
    assert_eq!((&truth["epoch"], truth["entries"].as_array().map(Vec::len)), (&json!(1), Some(3)));
}
