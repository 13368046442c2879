//! Bytes on disk per version of a real Job, all included.

use std::sync::Arc;

use bytes::Bytes;
use kubewitness_core::ports::{AppendBatch, StateWitness, WitnessedState};
use kubewitness_core::{Change, ObjectRef, StateId, Status, Version};
use serde_json::Value;
use sqlx::{ConnectOptions, Connection};

use crate::support::{SOURCE, TestJournal, of};

const JOBS: usize = 2000;

/// Versions of Jobs from a real API server, with other names, uids, versions and times.
fn histories() -> Vec<Value> {
    let text = include_str!("../../data/job-lifecycle.json");
    let all: Value = serde_json::from_str(text).unwrap();
    let frames = all["jobs"].as_array().unwrap();
    frames.iter().map(|frame| frame["object"].clone()).collect()
}

fn version_of(template: &Value, job: usize, version: u64) -> (Arc<ObjectRef>, Bytes, Arc<Status>) {
    let uid = format!("{:08x}-87c8-4ba7-883d-{:012x}", job.wrapping_mul(2_654_435_761) as u32, job * 7919);
    let name = format!("train-{job}");
    let second =
        format!("2026-11-20T{:02}:{:02}:{:02}Z", version / 3600 % 24, version / 60 % 60, version % 60);
    let text = template.to_string();
    let text = text
        .replace("ad7a6354-87c8-4ba7-883d-615aca0e7f8c", &uid)
        .replace("\"train\"", &format!("\"{name}\""));
    let mut value: Value = serde_json::from_str(&text).unwrap();
    value["metadata"]["resourceVersion"] = version.to_string().into();
    let text = value.to_string().replace("2026-11-20T10:49:01Z", &second);
    let object = ObjectRef {
        group: "batch".into(),
        version: "v1".into(),
        kind: "Job".into(),
        namespace: "rec4".into(),
        name,
        uid,
    };
    let phase = if value["status"]["succeeded"].is_null() { "Running" } else { "Succeeded" };
    (Arc::new(object), text.into(), Arc::new(Status { phase: phase.into(), total: 1, ..Status::default() }))
}

/// Many interleaved Jobs, each with its real states and its deletion.
#[tokio::test]
async fn a_version_of_a_real_job_takes_at_most_200_bytes_all_included() {
    let desk = TestJournal::new().await;
    let templates = histories();
    let steps = templates.len();
    let mut version = 1_000_000;
    let mut batch: Vec<WitnessedState> = Vec::new();
    let mut raw = 0;
    // Forty Jobs are alive at a time.
    for wave in 0..JOBS / 40 {
        let mut last: Vec<Option<(Bytes, Arc<Status>)>> = vec![None; 40];
        for step in 0..=steps {
            for (index, last) in last.iter_mut().enumerate() {
                let job = wave * 40 + index;
                version += 3;
                let gone = step == steps;
                let (object, document, status) = version_of(&templates[step.min(steps - 1)], job, version);
                raw += document.len();
                let change = if gone { Change::Gone } else { Change::Present };
                let resource_version = Version::new(&version.to_string());
                let before = last.replace((document.clone(), status.clone()));
                batch.push(WitnessedState {
                    id: StateId::of(SOURCE, 0, &object, change, &resource_version, None),
                    change,
                    object,
                    owner: None,
                    controller: None,
                    resource_version,
                    status,
                    previous: before.as_ref().map(|(_, status)| status.clone()),
                    observed_ms: 1_700_000_000_000 + version,
                    document,
                    base: before.map(|(document, _)| document),
                    quotes_none_under: None,
                });
            }
            let checkpoint = Some(Version::new(&version.to_string()));
            let append = AppendBatch { checkpoint, ..of(SOURCE, 0, std::mem::take(&mut batch)) };
            desk.journal.append_batch(append).await.unwrap();
        }
    }
    desk.assert_sound().await;
    let path = desk.path();
    desk.journal.close().await.unwrap();
    let bytes = std::fs::metadata(&path).unwrap().len();
    let versions = JOBS * (steps + 1);
    let mut connection = sqlx::sqlite::SqliteConnectOptions::new().filename(&path).connect().await.unwrap();
    let documents: i64 = sqlx::query_scalar("SELECT sum(length(document)) FROM states")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    let tables: Vec<(String, i64, i64)> = sqlx::query_as(
        "SELECT name, sum(pgsize), sum(unused) FROM dbstat GROUP BY name ORDER BY 2 DESC LIMIT 6",
    )
    .fetch_all(&mut connection)
    .await
    .unwrap();
    connection.close().await.unwrap();
    let per_version = bytes as f64 / versions as f64;
    println!(
        "{versions} versions of {} bytes: {per_version:.0} bytes on disk each, of which {} are the delta",
        raw / versions,
        documents as usize / versions,
    );
    for (name, bytes, unused) in tables {
        println!(
            "  {name}: {} bytes, {} of them unused",
            bytes as usize / versions,
            unused as usize / versions
        );
    }
    assert!(per_version <= 200.0, "{per_version:.0} bytes per version");
}
