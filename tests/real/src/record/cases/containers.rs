//! Pods of several containers: init containers, sidecars, neighbours.

use anyhow::Result;
use kubewitness_causes::{Cause, Expected, Outcome};
use serde_json::{Value, json};

use super::super::kubelet::{ContainerExit, PodScript};
use super::super::lab::{MAIN, RecordLab, container, waits_for};
use super::{Case, case};

const FETCH: &str = "fetch";
const PREPARE: &str = "prepare";
const LOGS: &str = "log-shipper";
const EXPORTER: &str = "exporter";

pub(super) fn cases() -> Vec<Case> {
    vec![
        case("init-exits-1", "The init container ends with 1.", |lab| {
            Box::pin(init_ends(lab, ContainerExit::code(1), Cause::ExitCode))
        }),
        case("init-out-of-memory", "The init container is killed for memory.", |lab| {
            Box::pin(init_ends(lab, ContainerExit::out_of_memory(), Cause::OutOfMemory))
        }),
        case("second-init-exits-3", "The first init container ends with 0, the second with 3.", |lab| {
            Box::pin(second_init_ends(lab))
        }),
        case(
            "init-crash-loop",
            "The kubelet restarts an init container that ends with 1 again and again.",
            |lab| Box::pin(init_crash_loop(lab)),
        ),
        case(
            "sidecar-fails-main-succeeds",
            "A sidecar ends with 1 and is restarted; the main container ends with 0.",
            |lab| Box::pin(sidecar_fails(lab, ContainerExit::code(1), Cause::ExitCode)),
        ),
        case(
            "sidecar-out-of-memory-main-succeeds",
            "A sidecar is killed for memory; the main container ends with 0.",
            |lab| Box::pin(sidecar_fails(lab, ContainerExit::out_of_memory(), Cause::OutOfMemory)),
        ),
        case(
            "main-fails-beside-sidecar",
            "The main container ends with 1; then the kubelet ends the sidecar.",
            |lab| Box::pin(main_fails_beside_sidecar(lab)),
        ),
        case(
            "sidecar-fails-before-main",
            "A sidecar ends with 2 and is restarted; later the main container ends with 1.",
            |lab| Box::pin(both_fail(lab)),
        ),
        case("second-container-fails", "The first container ends with 0, the second with 4.", |lab| {
            Box::pin(two_containers(
                lab,
                [(1_500, ContainerExit::code(0)), (2_800, ContainerExit::code(4))],
                EXPORTER,
                Cause::ExitCode,
            ))
        }),
        case(
            "neighbour-out-of-memory-first",
            "The second container is killed for memory; then the first ends with 1.",
            |lab| {
                let ends = [(4_000, ContainerExit::code(1)), (2_000, ContainerExit::out_of_memory())];
                Box::pin(two_containers(lab, ends, EXPORTER, Cause::OutOfMemory))
            },
        ),
        case(
            "neighbour-keeps-failed-pod-alive",
            "The first container ends with 1; the second runs on, so the pod does.",
            |lab| Box::pin(neighbour_runs_on(lab)),
        ),
    ]
}

fn with_init(names: &[&str]) -> Value {
    let inits: Vec<Value> = names.iter().map(|name| container(name, "100m")).collect();
    json!({"initContainers": inits})
}

fn with_sidecar() -> Value {
    let mut sidecar = container(LOGS, "100m");
    sidecar["restartPolicy"] = "Always".into();
    json!({"initContainers": [sidecar]})
}

fn with_neighbour() -> Value {
    json!({"containers": [container(MAIN, "100m"), container(EXPORTER, "100m")]})
}

async fn init_ends(lab: &RecordLab<'_>, exit: ContainerExit, cause: Cause) -> Result<Expected> {
    let code = exit.code;
    lab.direct(move |_| PodScript::exits(FETCH, 1_500, exit.clone()));
    lab.job(json!({"backoffLimit": 0}), with_init(&[FETCH])).await?;
    lab.finished().await?;
    let pod = lab.pod(0).await?;
    Ok(Expected::new(cause, Outcome::Failed).ended(&pod.name, FETCH, code).init().node(&pod.node))
}

async fn second_init_ends(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|_| {
        PodScript::exits(FETCH, 1_200, ContainerExit::code(0)).add_run(PREPARE, 1_500, ContainerExit::code(3))
    });
    lab.job(json!({"backoffLimit": 0}), with_init(&[FETCH, PREPARE])).await?;
    lab.finished().await?;
    let pod = lab.pod(0).await?;
    let expected = Expected::new(Cause::ExitCode, Outcome::Failed);
    Ok(expected.ended(&pod.name, PREPARE, 3).init().node(&pod.node))
}

async fn init_crash_loop(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|_| PodScript::exits(FETCH, 1_500, ContainerExit::code(1)));
    let mut pod = with_init(&[FETCH]);
    pod["restartPolicy"] = "OnFailure".into();
    lab.job(json!({}), pod).await?;
    let pod = lab.pod(0).await?;
    lab.pod_until(&pod.name, "to back off", |pod| waits_for(pod, "CrashLoopBackOff")).await?;
    let expected = Expected::new(Cause::ExitCode, Outcome::Waiting);
    Ok(expected.ended(&pod.name, FETCH, 1).init().node(&pod.node))
}

async fn sidecar_fails(lab: &RecordLab<'_>, exit: ContainerExit, cause: Cause) -> Result<Expected> {
    let code = exit.code;
    lab.direct(move |_| {
        let sidecar = PodScript::exits(LOGS, 1_500, exit.clone()).then_endless(LOGS);
        sidecar.stopped_with(LOGS, ContainerExit::code(0)).add_run(MAIN, 5_000, ContainerExit::code(0))
    });
    lab.job(json!({"backoffLimit": 0}), with_sidecar()).await?;
    lab.finished().await?;
    let pod = lab.pod(0).await?;
    let expected = Expected::new(Cause::None, Outcome::Succeeded).also(&[cause]);
    Ok(expected.ended(&pod.name, LOGS, code).sidecar().node(&pod.node))
}

async fn main_fails_beside_sidecar(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|_| {
        PodScript::exits(MAIN, 2_500, ContainerExit::code(1)).stopped_with(LOGS, ContainerExit::code(137))
    });
    lab.job(json!({"backoffLimit": 0}), with_sidecar()).await?;
    lab.finished().await?;
    let pod = lab.pod(0).await?;
    Ok(Expected::new(Cause::ExitCode, Outcome::Failed).ended(&pod.name, MAIN, 1).node(&pod.node))
}

async fn both_fail(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|_| {
        let sidecar = PodScript::exits(LOGS, 1_500, ContainerExit::code(2)).then_endless(LOGS);
        sidecar.add_run(MAIN, 5_000, ContainerExit::code(1))
    });
    lab.job(json!({"backoffLimit": 0}), with_sidecar()).await?;
    lab.finished().await?;
    let pod = lab.pod(0).await?;
    Ok(Expected::new(Cause::ExitCode, Outcome::Failed).ended(&pod.name, MAIN, 1).node(&pod.node))
}

/// The main container and its neighbour end so after so many milliseconds; the cause is the end of `failing`.
async fn two_containers(
    lab: &RecordLab<'_>,
    ends: [(u64, ContainerExit); 2],
    failing: &'static str,
    cause: Cause,
) -> Result<Expected> {
    let code = ends[1].1.code;
    lab.direct(move |_| {
        let [(main_after, main), (neighbour_after, neighbour)] = ends.clone();
        PodScript::exits(MAIN, main_after, main).add_run(EXPORTER, neighbour_after, neighbour)
    });
    lab.job(json!({"backoffLimit": 0}), with_neighbour()).await?;
    lab.finished().await?;
    let pod = lab.pod(0).await?;
    Ok(Expected::new(cause, Outcome::Failed).ended(&pod.name, failing, code).node(&pod.node))
}

async fn neighbour_runs_on(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|_| PodScript::exits(MAIN, 1_500, ContainerExit::code(1)));
    lab.job(json!({"backoffLimit": 0}), with_neighbour()).await?;
    let pod = lab.pod(0).await?;
    lab.pod_until(&pod.name, "to have one end", |pod| {
        let mut statuses = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
        statuses.any(|it| it["state"]["terminated"].is_object())
    })
    .await?;
    Ok(Expected::new(Cause::ExitCode, Outcome::Waiting).ended(&pod.name, MAIN, 1).node(&pod.node))
}
