//! How few messages people get: of old jobs none, of many fresh ones a digest, and of Pods whose owner nobody hears of one for
//! each owner.

use anyhow::{Context, Result, ensure};
use kubewitness_core::views::StatusView;
use kubewitness_harness::{Simulator, in_scratch, until, until_ok};
use reqwest::Method;
use serde_json::json;

use crate::effects::notifying::{HOOK, NotifyLab, WITHIN, becomes, fails, says, url_of};
use crate::support::{create_job, simulator};

/// A Pod of an object whose kind is no source.
async fn a_worker_fails(simulator: &Simulator, name: &str) -> Result<()> {
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "ownerReferences": [{
            "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "train", "uid": "uid-train", "controller": true,
        }]},
        "spec": {"containers": [{"name": "a", "image": "a"}]},
    });
    let (status, mut pod) = simulator.request(Method::POST, pods, Some(&pod)).await?;
    ensure!(status == 201, "{name} is refused with {status}: {pod}");
    pod["status"] = json!({"phase": "Failed", "reason": "Error"});
    let (status, answer) =
        simulator.request(Method::PUT, &format!("{pods}/{name}/status"), Some(&pod)).await?;
    ensure!(status == 200, "the status of {name} is refused with {status}: {answer}");
    Ok(())
}

#[tokio::test]
async fn failed_pods_of_an_owner_whose_kind_is_no_source_are_one_message_that_names_the_owner() {
    in_scratch("notifying-workers", async |scratch| {
        let pods = HOOK.replace("{source: jobs,", "{source: pods,");
        let simulator = simulator(scratch).await?;
        for name in ["train-0", "train-1"] {
            a_worker_fails(&simulator, name).await?;
        }
        let NotifyLab { chats, simulator: _simulator, mut run, .. } =
            NotifyLab::start_on(scratch, &pods, simulator).await?;
        until(WITHIN, "the message", async || Ok((!chats.of("hook").taken.is_empty()).then_some(())))
            .await
            .with_context(|| run.process().say())?;
        // The receiver has it before the journal notes that it was sent.
        until_ok(WITHIN, "the timeline to tell of it", async || {
            let told = says(&url_of(&run), &["timeline", "pod/train-1", "-n", "default"]).await?;
            ensure!(told.contains("PyTorchJob default/train: 2 × Pod Failed"), "{told}");
            Ok(())
        })
        .await?;
        run.stop().await?;
        let taken = chats.of("hook").taken;
        ensure!(taken.len() == 1, "{taken:?}");
        ensure!(taken[0]["title"] == "PyTorchJob default/train: 2 × Pod Failed", "{}", taken[0]);
        Ok(())
    })
    .await;
}

const OLD: usize = 200;
const FRESH: usize = 30;

/// People alone, who get a digest where there is much. A tick may find one job before the others are handed over: its
/// message is all that they get until the window ends.
const SLACK: &str = "module: {file: notification.wasm}
subscribe: [{source: jobs, mode: transitions, start: beginning}]
grants: {http: [{name: slack, destination: slack}], kv: true}
tick: {every: 2s}
delivery: {batch: 64, backoff: 100ms}
config: {channels: [{name: slack, kind: slack}], settle: 1s, digest: {above: 1}}";

#[tokio::test]
async fn a_start_at_the_beginning_tells_nothing_of_old_jobs_and_one_digest_of_many_fresh_ones() {
    in_scratch("notifying-beginning", async |scratch| {
        let simulator = simulator(scratch).await?;
        let long_ago = json!({"succeeded": 1, "completionTime": "2026-01-01T00:00:00Z", "conditions": [{
            "type": "Complete", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]});
        for number in 0..OLD {
            let name = format!("old-{number:03}");
            create_job(&simulator, &name).await?;
            becomes(&simulator, &name, long_ago.clone()).await?;
        }
        for number in 0..FRESH {
            let name = format!("fresh-{number:02}");
            create_job(&simulator, &name).await?;
            fails(&simulator, &name).await?;
        }
        let NotifyLab { chats, simulator, mut run, .. } =
            NotifyLab::start_on(scratch, SLACK, simulator).await?;
        until(WITHIN, "the digest", async || Ok((!chats.of("slack").taken.is_empty()).then_some(())))
            .await
            .with_context(|| run.process().say())?;
        let all = |status: &StatusView| {
            let plugin = status.plugins.iter().find(|plugin| plugin.name == "notification");
            plugin.is_some_and(|it| it.delivered >= (OLD + FRESH) as u64 && it.waiting == 0 && it.dead == 0)
        };
        run.status_when(WITHIN, "all jobs to be handed over", all).await?;
        // What happens afterwards waits for the next digest: the ticks that count it have come and gone.
        create_job(&simulator, "afterwards").await?;
        fails(&simulator, "afterwards").await?;
        until_ok(WITHIN, "a later job to wait", async || {
            let told = says(&url_of(&run), &["timeline", "job/afterwards"]).await?;
            ensure!(told.contains(" waiting "), "{told}");
            Ok(())
        })
        .await?;
        let told = says(&url_of(&run), &["timeline", "job/old-000"]).await?;
        ensure!(!told.contains("TOLD AT"), "people were told of an old job: {told}");
        let mut told = 0;
        for number in 0..FRESH {
            let story = says(&url_of(&run), &["timeline", &format!("job/fresh-{number:02}")]).await?;
            ensure!(story.contains("TOLD AT") || story.contains(" waiting "), "{story}");
            told += usize::from(!story.contains(" waiting "));
        }
        run.stop().await?;
        let (taken, log) = (chats.of("slack").taken, run.process().stderr());
        ensure!(taken.len() == 1, "{taken:?}");
        let text = taken[0]["text"].as_str().unwrap_or_default();
        // A tick comes at any moment of the handing over: what is handed over behind it waits.
        let digest = match told {
            1 => "Job default/fresh-".into(),
            _ => format!("{told} outcomes: {told} Failed"),
        };
        ensure!(told > 0 && text.contains(&digest), "{told}: {}", taken[0]);
        ensure!(log.contains("states that happened long ago were counted and not told"), "{log}");
        Ok(())
    })
    .await;
}
