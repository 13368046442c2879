//! The policies of a Job's own spec about failure, success and time; and what makes or removes Jobs by the
//! clock.

use anyhow::Result;
use kubewitness_causes::{Cause, Expected, Outcome};
use serde_json::{Value, json};

use super::super::kubelet::{ContainerExit, PodScript};
use super::super::lab::{JOB, MAIN, RecordLab, job};
use super::{Case, case};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case("deadline-while-running", "The Job's deadline passes while its pod runs.", |lab| {
            Box::pin(deadline(lab))
        }),
        case("deadline-four-workers", "The Job's deadline passes while four workers run.", |lab| {
            Box::pin(deadline_of_workers(lab))
        }),
        case(
            "deadline-after-a-failure",
            "The first attempt ends with 6; the deadline passes in the second.",
            |lab| Box::pin(deadline_after_failure(lab)),
        ),
        case("deadline-while-unschedulable", "No node fits, and the Job's deadline passes.", |lab| {
            Box::pin(deadline_unschedulable(lab))
        }),
        case(
            "policy-fails-the-job",
            "A pod ends with 42, for which the pod failure policy has FailJob.",
            |lab| Box::pin(fail_job(lab)),
        ),
        case(
            "policy-ignores-a-disruption",
            "A drained pod is ignored by the pod failure policy; the next succeeds.",
            |lab| Box::pin(ignore_disruption(lab)),
        ),
        case(
            "policy-fails-an-index",
            "Index 1 ends with 42, for which the pod failure policy has FailIndex.",
            |lab| Box::pin(fail_index(lab)),
        ),
        case("one-index-of-four-fails", "Index 2 ends with 3 and has no retry; the others succeed.", |lab| {
            Box::pin(one_index_fails(lab, ContainerExit::code(3), Cause::ExitCode))
        }),
        case(
            "one-index-out-of-memory",
            "Index 2 is killed for memory and has no retry; the others succeed.",
            |lab| Box::pin(one_index_fails(lab, ContainerExit::out_of_memory(), Cause::OutOfMemory)),
        ),
        case(
            "too-many-indexes-fail",
            "Index 1 ends with 8; no index may fail, so the others are ended.",
            |lab| Box::pin(too_many_indexes(lab)),
        ),
        case(
            "success-policy-ends-the-others",
            "Index 0 succeeds, which the success policy calls enough.",
            |lab| Box::pin(success_policy(lab, false)),
        ),
        case(
            "success-policy-beside-a-failure",
            "Index 2 ends with 1; index 0 succeeds, which is enough.",
            |lab| Box::pin(success_policy(lab, true)),
        ),
        case(
            "removed-by-ttl-after-failure",
            "A pod ends with 1, and the Job is removed after its time to live.",
            |lab| Box::pin(removed_by_ttl(lab)),
        ),
        case("cron-job-fails", "A CronJob's Job ends with 11.", |lab| Box::pin(cron_job(lab))),
    ]
}

fn indexed(more: &Value) -> Value {
    let mut spec = json!({"completions": 4, "parallelism": 4, "completionMode": "Indexed"});
    kubewitness_causes::apply_merge_patch(&mut spec, more);
    spec
}

async fn deadline(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|_| PodScript::endless());
    lab.job(json!({"activeDeadlineSeconds": 4}), json!({})).await?;
    lab.finished().await?;
    Ok(Expected::new(Cause::Deadline, Outcome::Failed))
}

async fn deadline_of_workers(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|_| PodScript::endless().stopped_with(MAIN, ContainerExit::code(143)));
    lab.job(indexed(&json!({"activeDeadlineSeconds": 5})), json!({})).await?;
    lab.finished().await?;
    Ok(Expected::new(Cause::Deadline, Outcome::Failed))
}

async fn deadline_after_failure(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|place| match place.ordinal {
        0 => PodScript::exits(MAIN, 1_500, ContainerExit::code(6)),
        _ => PodScript::endless(),
    });
    lab.job(json!({"activeDeadlineSeconds": 18}), json!({})).await?;
    lab.finished().await?;
    let pod = lab.pod(0).await?;
    let expected = Expected::new(Cause::Deadline, Outcome::Failed).also(&[Cause::ExitCode]);
    Ok(expected.ended(&pod.name, MAIN, 6).node(&pod.node))
}

async fn deadline_unschedulable(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.job(json!({"activeDeadlineSeconds": 6}), json!({"nodeSelector": {"gpu": "h200"}})).await?;
    lab.finished().await?;
    Ok(Expected::new(Cause::Deadline, Outcome::Failed).also(&[Cause::Unschedulable]))
}

async fn fail_job(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|_| PodScript::exits(MAIN, 1_500, ContainerExit::code(42)));
    let rule = json!({"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42], "containerName": MAIN}});
    lab.job(json!({"podFailurePolicy": {"rules": [rule]}}), json!({})).await?;
    lab.finished().await?;
    let pod = lab.pod(0).await?;
    Ok(Expected::new(Cause::ExitCode, Outcome::Failed).ended(&pod.name, MAIN, 42).node(&pod.node))
}

async fn ignore_disruption(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|place| match place.ordinal {
        0 => PodScript::endless(),
        _ => PodScript::exits(MAIN, 1_500, ContainerExit::code(0)),
    });
    let rule =
        json!({"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]});
    lab.job(json!({"backoffLimit": 0, "podFailurePolicy": {"rules": [rule]}}), json!({})).await?;
    let pod = lab.running_pod(0).await?;
    lab.drain_pod(&pod.name).await?;
    lab.finished().await?;
    let expected = Expected::new(Cause::None, Outcome::Succeeded).also(&[Cause::Evicted]);
    Ok(expected.pod(&pod.name).node(&pod.node))
}

async fn fail_index(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|place| match place.index {
        Some(1) => PodScript::exits(MAIN, 1_500, ContainerExit::code(42)),
        _ => PodScript::exits(MAIN, 3_500, ContainerExit::code(0)),
    });
    let rule = json!({"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [42]}});
    let spec = indexed(&json!({"backoffLimitPerIndex": 2, "podFailurePolicy": {"rules": [rule]}}));
    lab.job(spec, json!({})).await?;
    lab.finished().await?;
    let pod = lab.pod_of(1).await?;
    Ok(Expected::new(Cause::ExitCode, Outcome::Failed).ended(&pod.name, MAIN, 42).node(&pod.node))
}

async fn one_index_fails(lab: &RecordLab<'_>, exit: ContainerExit, cause: Cause) -> Result<Expected> {
    let code = exit.code;
    lab.direct(move |place| match place.index {
        Some(2) => PodScript::exits(MAIN, 1_500, exit.clone()),
        _ => PodScript::exits(MAIN, 3_500, ContainerExit::code(0)),
    });
    lab.job(indexed(&json!({"backoffLimitPerIndex": 0})), json!({})).await?;
    lab.finished().await?;
    let pod = lab.pod_of(2).await?;
    Ok(Expected::new(cause, Outcome::Failed).ended(&pod.name, MAIN, code).node(&pod.node))
}

async fn too_many_indexes(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|place| match place.index {
        Some(1) => PodScript::exits(MAIN, 2_500, ContainerExit::code(8)),
        _ => PodScript::endless(),
    });
    lab.job(indexed(&json!({"backoffLimitPerIndex": 0, "maxFailedIndexes": 0})), json!({})).await?;
    lab.finished().await?;
    let pod = lab.pod_of(1).await?;
    Ok(Expected::new(Cause::ExitCode, Outcome::Failed).ended(&pod.name, MAIN, 8).node(&pod.node))
}

async fn success_policy(lab: &RecordLab<'_>, has_failure: bool) -> Result<Expected> {
    lab.direct(move |place| match place.index {
        Some(0) => PodScript::exits(MAIN, 4_500, ContainerExit::code(0)),
        Some(2) if has_failure && place.retry == 0 => PodScript::exits(MAIN, 2_000, ContainerExit::code(1)),
        _ => PodScript::endless(),
    });
    lab.job(indexed(&json!({"successPolicy": {"rules": [{"succeededIndexes": "0"}]}})), json!({})).await?;
    lab.finished().await?;
    let expected = Expected::new(Cause::None, Outcome::Succeeded);
    if !has_failure {
        return Ok(expected);
    }
    let pod = lab.pod_of(2).await?;
    Ok(expected.also(&[Cause::ExitCode]).ended(&pod.name, MAIN, 1).node(&pod.node))
}

async fn removed_by_ttl(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|_| PodScript::exits(MAIN, 1_500, ContainerExit::code(1)));
    lab.job(json!({"backoffLimit": 0, "ttlSecondsAfterFinished": 2}), json!({})).await?;
    let pod = lab.pod(0).await?;
    lab.finished().await?;
    lab.await_end(&lab.job_key()).await?;
    lab.await_end(&format!("pods/{}/{}", lab.namespace, pod.name)).await?;
    Ok(Expected::new(Cause::ExitCode, Outcome::Failed).ended(&pod.name, MAIN, 1).node(&pod.node))
}

async fn cron_job(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|_| PodScript::exits(MAIN, 1_500, ContainerExit::code(11)));
    let template = job(JOB, &json!({"backoffLimit": 0}), &json!({}));
    let cron = json!({
        "apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "nightly"},
        "spec": {"schedule": "* * * * *", "concurrencyPolicy": "Forbid", "jobTemplate": {"spec": template["spec"]}},
    });
    lab.create("batch", "cronjobs", cron).await?;
    lab.first_job().await?;
    lab.finished().await?;
    let pod = lab.pod(0).await?;
    Ok(Expected::new(Cause::ExitCode, Outcome::Failed).ended(&pod.name, MAIN, 11).node(&pod.node))
}
