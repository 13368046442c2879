//! A cluster and a controller that have something of everything that goes wrong: dead letters, a plugin that is behind, a
//! hole, an Event, and mutes.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_harness::{Scratch, Simulator, http, until_ok};
use reqwest::Method;
use serde_json::{Value, json};

use crate::plugins::letters::{config, fails_with};
use crate::support::{create_job, write};
use crate::watching::gaps::{GapLab, a_hole};

const WITHIN: Duration = Duration::from_secs(120);
/// The job that has a hole in its story, and an Event.
pub const JOB: &str = "train-1";
const PODS: &str = "        - {name: pods, apiVersion: v1, kind: Pod}\n";
const EVENTS: &str = "        - {name: events, apiVersion: v1, kind: Event}\n";

pub struct Troubles<'a> {
    pub lab: GapLab<'a>,
    /// The uid of the job.
    pub uid: String,
}

impl<'a> Troubles<'a> {
    pub async fn start(scratch: &'a Scratch) -> Result<Self> {
        let config = config(scratch)?;
        let host = std::fs::read_to_string(config.join("host.yaml"))?;
        ensure!(host.contains(PODS), "the example has another source of pods: {host}");
        write(&config, "host.yaml", &host.replace(PODS, &format!("{PODS}{EVENTS}")))?;
        let mut lab = GapLab::with(scratch, config).await?;
        for (name, message) in [("traps", "trap"), ("skips", "missing"), ("loops", "loop")] {
            fails_with(&lab.simulator, name, message).await?;
        }
        a_hole(&mut lab, JOB).await?;
        let (_, job) = lab
            .simulator
            .request(Method::GET, &format!("/apis/batch/v1/namespaces/default/jobs/{JOB}"), None)
            .await?;
        let uid = job["metadata"]["uid"].as_str().context("a uid")?.to_owned();
        event(&lab.simulator, &uid).await?;
        let troubles = Self { lab, uid };
        troubles.order("mute", &json!({"all": true, "to": "night-shift"})).await?;
        troubles.order("mute", &json!({"uid": troubles.uid})).await?;
        let paused = json!({"reason": "the database moves"});
        // A controller that has just started may not run its plugins yet.
        until_ok(WITHIN, "the plugin to be paused", async || {
            troubles.order("plugins/persistence/pause", &paused).await
        })
        .await?;
        create_job(&troubles.lab.simulator, "waits").await?;
        until_ok(WITHIN, "all that goes wrong", async || troubles.check_shown().await).await?;
        Ok(troubles)
    }

    /// The pages that tell of them, each with words that it then has.
    pub fn pages(&self) -> [(String, &'static str); 9] {
        let story = format!("/objects/{}", self.uid);
        let older = format!("{story}?limit=2&cursor=9999%2F9999");
        [
            ("/deadletters".into(), "Choose position"),
            ("/deadletters?plugin=probe&error=trapped".into(), "1 dead letter that fits the filter"),
            ("/gaps".into(), "Compacted"),
            (story, "Created pod: train-1-x7k2p"),
            (older, "This part of the story has"),
            ("/mutes".into(), "night-shift"),
            ("/?kind=Event".into(), "SuccessfulCreate"),
            ("/plugins".into(), "the database moves"),
            ("/health".into(), "Held beyond retention"),
        ]
    }

    async fn check_shown(&self) -> Result<()> {
        let letters = self.get("deadletters?plugin=probe").await?;
        ensure!(letters.as_array().is_some_and(|all| all.len() == 3), "{letters}");
        let story = self.get(&format!("timeline?uid={}", self.uid)).await?;
        ensure!(story["events"][0].is_object(), "no Event: {story}");
        let told = self.get("timeline?kind=Event&namespace=default&name=train-1.1").await?;
        ensure!(told["events"][0]["about"]["uid"] == self.uid, "an Event says nothing itself: {told}");
        let gaps = self.get("gaps").await?;
        ensure!(gaps.as_array().is_some_and(|all| all.len() >= 2), "{gaps}");
        let plugins = self.get("plugins").await?;
        let behind = plugins.as_array().into_iter().flatten().find(|it| it["name"] == "persistence");
        ensure!(behind.is_some_and(|it| it["waiting"].as_u64() > Some(0)), "{plugins}");
        Ok(())
    }

    pub async fn get(&self, path: &str) -> Result<Value> {
        let answer = http().get(format!("{}/api/v1/{path}", self.lab.url())).send().await?;
        Ok(answer.error_for_status()?.json().await?)
    }

    async fn order(&self, path: &str, body: &Value) -> Result<()> {
        let sent = http().post(format!("{}/api/v1/{path}", self.lab.url())).json(body).send().await?;
        let (status, told) = (sent.status(), sent.text().await?);
        ensure!(status.is_success(), "{path} answered {status}: {told}");
        Ok(())
    }
}

async fn event(simulator: &Simulator, uid: &str) -> Result<()> {
    let at = "2026-11-21T12:00:00Z";
    let event = json!({
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"name": "train-1.1", "namespace": "default"},
        "involvedObject": {"apiVersion": "batch/v1", "kind": "Job", "name": JOB, "namespace": "default", "uid": uid},
        "reason": "SuccessfulCreate", "message": "Created pod: train-1-x7k2p", "type": "Normal",
        "source": {"component": "job-controller"}, "count": 3, "firstTimestamp": at, "lastTimestamp": at,
    });
    let path = "/api/v1/namespaces/default/events";
    let (status, answer) = simulator.request(Method::POST, path, Some(&event)).await?;
    ensure!(status == 201, "the Event answered {status}: {answer}");
    Ok(())
}
