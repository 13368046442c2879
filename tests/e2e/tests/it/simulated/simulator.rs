//! The simulated API server as a process: what it keeps over its own violent end, and real clients over TLS.

use std::path::Path;
use std::process::Command;

use kubewitness_harness::{Kubectl, Scratch, Simulator, SimulatorOptions, skip};
use serde_json::json;

use crate::support::{create_job, job};

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

#[tokio::test]
async fn kubectl_and_the_simulator_speak_tls() {
    let scratch = Scratch::new("tls").unwrap();
    let (certificate, key) = (scratch.path().join("tls.crt"), scratch.path().join("tls.key"));
    if let Err(why) = make_certificate(&certificate, &key) {
        return skip("kubectl_and_the_simulator_speak_tls", &why);
    }
    let flag = |name: &str, path: &Path| [name.to_owned(), path.display().to_string()];
    let args = [flag("--tls-cert", &certificate), flag("--tls-key", &key)].concat();
    let options = SimulatorOptions { args, ..SimulatorOptions::default() };
    let simulator = Simulator::start(scratch.path(), &options).await.unwrap();
    assert!(simulator.url().starts_with("https://"));
    let Some(kubectl) = Kubectl::find(simulator.kubeconfig(), scratch.path()) else {
        return skip("kubectl_and_the_simulator_speak_tls", "kubectl is not installed");
    };
    let created = kubectl.ok_with(&["create", "-f", "-"], &job("train").to_string()).await.unwrap();
    assert!(created.contains("job.batch/train created"), "{created}");
    let shown = kubectl.ok(&["get", "jobs", "-o", "name"]).await.unwrap();
    assert_eq!(shown.trim(), "job.batch/train");
}

fn make_certificate(certificate: &Path, key: &Path) -> Result<(), String> {
    let config = certificate.with_extension("conf");
    let text = "[req]\ndistinguished_name = n\nx509_extensions = x\nprompt = no\n[n]\nCN = simulator\n[x]\n\
                basicConstraints = critical, CA:TRUE\nsubjectAltName = IP:127.0.0.1\n";
    std::fs::write(&config, text).map_err(|e| e.to_string())?;
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-nodes",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-days",
            "2",
        ])
        .arg("-config")
        .arg(&config)
        .arg("-out")
        .arg(certificate)
        .arg("-keyout")
        .arg(key)
        .output()
        .map_err(|e| format!("openssl: {e}"))?;
    if made.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&made.stderr).into_owned()) }
}
