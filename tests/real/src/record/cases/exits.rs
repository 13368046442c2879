//! Containers that end by themselves, and Jobs that try again.

use std::time::Duration;

use anyhow::Result;
use kubewitness_causes::{Cause, Expected, Outcome};
use serde_json::{Value, json};

use super::super::kubelet::{ContainerExit, PodScript};
use super::super::lab::{MAIN, RecordLab};
use super::{Case, case};

const WORKERS: usize = 4;

pub(super) fn cases() -> Vec<Case> {
    vec![
        case("success-one-pod", "One pod ends with 0.", |lab| Box::pin(success(lab, 1))),
        case("success-four-workers", "Four workers end with 0.", |lab| Box::pin(success(lab, WORKERS))),
        case("exit-1-no-retry", "One pod ends with 1; no retry is allowed.", |lab| {
            Box::pin(one_pod(lab, ContainerExit::code(1), Cause::ExitCode))
        }),
        case("exit-2-with-message", "One pod ends with 2 and leaves a termination message.", |lab| {
            Box::pin(one_pod(
                lab,
                ContainerExit::code(2).saying("ValueError: loss is NaN at step 1200\n"),
                Cause::ExitCode,
            ))
        }),
        case("out-of-memory-no-retry", "The kernel kills the only pod's process for memory.", |lab| {
            Box::pin(one_pod(lab, ContainerExit::out_of_memory(), Cause::OutOfMemory))
        }),
        case(
            "exit-137-not-memory",
            "Somebody sends SIGKILL to the process; memory has no part in it.",
            |lab| Box::pin(one_pod(lab, ContainerExit::code(137), Cause::Signal)),
        ),
        case("exit-143-by-itself", "The process ends by a SIGTERM that no controller asked for.", |lab| {
            Box::pin(one_pod(lab, ContainerExit::code(143), Cause::Signal))
        }),
        case("segmentation-fault-one-pod", "The process ends by SIGSEGV.", |lab| {
            Box::pin(one_pod(lab, ContainerExit::code(139), Cause::Signal))
        }),
        case("abort-one-pod", "The process aborts itself (SIGABRT).", |lab| {
            Box::pin(one_pod(lab, ContainerExit::code(134), Cause::Signal))
        }),
        case("exit-1-first-of-four", "Worker 2 ends with 1; the controller deletes the others.", |lab| {
            Box::pin(first_of_four(lab, 2, ContainerExit::code(1), ContainerExit::code(137), Cause::ExitCode))
        }),
        case(
            "exit-255-siblings-heed-sigterm",
            "Worker 1 ends with 255; the others end by SIGTERM (143).",
            |lab| {
                Box::pin(first_of_four(
                    lab,
                    1,
                    ContainerExit::code(255),
                    ContainerExit::code(143),
                    Cause::ExitCode,
                ))
            },
        ),
        case(
            "out-of-memory-first-of-four",
            "Worker 3 is killed for memory; the controller deletes the others.",
            |lab| {
                Box::pin(first_of_four(
                    lab,
                    3,
                    ContainerExit::out_of_memory(),
                    ContainerExit::code(137),
                    Cause::OutOfMemory,
                ))
            },
        ),
        case(
            "segmentation-fault-first-of-four",
            "Worker 0 ends by SIGSEGV; the controller deletes the others.",
            |lab| {
                Box::pin(first_of_four(
                    lab,
                    0,
                    ContainerExit::code(139),
                    ContainerExit::code(137),
                    Cause::Signal,
                ))
            },
        ),
        case(
            "exit-1-siblings-end-with-0",
            "Worker 2 ends with 1; the others catch SIGTERM and end with 0.",
            |lab| {
                Box::pin(first_of_four(
                    lab,
                    2,
                    ContainerExit::code(1),
                    ContainerExit::code(0),
                    Cause::ExitCode,
                ))
            },
        ),
        case(
            "first-failure-reported-late",
            "Worker 1 is killed for memory and its node reports it seconds later. Worker 3 misses its peer, aborts, and is reported first.",
            |lab| Box::pin(reported_late(lab)),
        ),
        case(
            "peers-fail-after-the-first",
            "Worker 0 ends with 3; a second later all others end with 1.",
            |lab| Box::pin(peers_follow(lab)),
        ),
        case("three-attempts-same-code", "Each of three attempts ends with 17.", |lab| {
            Box::pin(three_attempts(
                lab,
                [ContainerExit::code(17), ContainerExit::code(17), ContainerExit::code(17)],
                Cause::ExitCode,
                &[],
            ))
        }),
        case("three-attempts-three-causes", "The attempts end by memory, with 3, and with 1.", |lab| {
            let exits = [ContainerExit::out_of_memory(), ContainerExit::code(3), ContainerExit::code(1)];
            Box::pin(three_attempts(lab, exits, Cause::OutOfMemory, &[Cause::ExitCode]))
        }),
        case("three-attempts-out-of-memory", "Each of three attempts is killed for memory.", |lab| {
            let exits = [
                ContainerExit::out_of_memory(),
                ContainerExit::out_of_memory(),
                ContainerExit::out_of_memory(),
            ];
            Box::pin(three_attempts(lab, exits, Cause::OutOfMemory, &[]))
        }),
        case("four-workers-with-retries", "Worker 1 fails again and again, until no retry is left.", |lab| {
            Box::pin(workers_with_retries(lab))
        }),
        case("retry-succeeds", "The first attempt ends with 1, the second with 0.", |lab| {
            Box::pin(retry_succeeds(lab, ContainerExit::code(1), Cause::ExitCode))
        }),
        case(
            "retry-succeeds-after-memory",
            "The first attempt is killed for memory, the second ends with 0.",
            |lab| Box::pin(retry_succeeds(lab, ContainerExit::out_of_memory(), Cause::OutOfMemory)),
        ),
        case(
            "crash-loop-until-limit",
            "The kubelet restarts a container that ends with 1, until the Job's limit.",
            |lab| Box::pin(crash_loop(lab, ContainerExit::code(1), Cause::ExitCode)),
        ),
        case(
            "crash-loop-out-of-memory",
            "The kubelet restarts a container that is killed for memory, until the Job's limit.",
            |lab| Box::pin(crash_loop(lab, ContainerExit::out_of_memory(), Cause::OutOfMemory)),
        ),
        case("crash-loop-goes-on", "A container ends with 1 again and again, and retries are left.", |lab| {
            Box::pin(crash_loop_goes_on(lab))
        }),
        case(
            "restart-in-place-succeeds",
            "The kubelet restarts a container that ended with 5; then it ends with 0.",
            |lab| Box::pin(restart_succeeds(lab)),
        ),
        case("still-running", "One pod runs.", |lab| Box::pin(still_running(lab))),
        case("running-after-one-failure", "The first attempt ended with 9; the second runs.", |lab| {
            Box::pin(running_after_failure(lab))
        }),
    ]
}

/// Workers that know their number.
fn workers(count: usize, backoff_limit: u64) -> Value {
    json!({
        "completions": count, "parallelism": count, "completionMode": "Indexed", "backoffLimit": backoff_limit,
    })
}

async fn success(lab: &RecordLab<'_>, count: usize) -> Result<Expected> {
    lab.direct(|_| PodScript::exits(MAIN, 1_500, ContainerExit::code(0)));
    lab.job(if count == 1 { json!({}) } else { workers(count, 6) }, json!({})).await?;
    lab.finished().await?;
    Ok(Expected::new(Cause::None, Outcome::Succeeded))
}

async fn one_pod(lab: &RecordLab<'_>, exit: ContainerExit, cause: Cause) -> Result<Expected> {
    let code = exit.code;
    lab.direct(move |_| PodScript::exits(MAIN, 1_500, exit.clone()));
    lab.job(json!({"backoffLimit": 0}), json!({})).await?;
    lab.finished().await?;
    let pod = lab.pod(0).await?;
    Ok(Expected::new(cause, Outcome::Failed).ended(&pod.name, MAIN, code).node(&pod.node))
}

async fn first_of_four(
    lab: &RecordLab<'_>,
    first: usize,
    exit: ContainerExit,
    siblings: ContainerExit,
    cause: Cause,
) -> Result<Expected> {
    let code = exit.code;
    lab.direct(move |place| {
        if place.index == Some(first) {
            PodScript::exits(MAIN, 2_500, exit.clone())
        } else {
            PodScript::endless().stopped_with(MAIN, siblings.clone())
        }
    });
    lab.job(workers(WORKERS, 0), json!({})).await?;
    lab.finished().await?;
    let pod = lab.pod_of(first).await?;
    Ok(Expected::new(cause, Outcome::Failed).ended(&pod.name, MAIN, code).node(&pod.node))
}

async fn reported_late(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|place| match place.index {
        Some(1) => PodScript::exits(MAIN, 2_500, ContainerExit::out_of_memory())
            .reported_late(Duration::from_secs(5)),
        Some(3) => PodScript::exits(MAIN, 4_500, ContainerExit::code(134)),
        _ => PodScript::endless(),
    });
    lab.job(workers(WORKERS, 0), json!({})).await?;
    lab.finished().await?;
    let pod = lab.pod_of(1).await?;
    let expected = Expected::new(Cause::OutOfMemory, Outcome::Failed).also(&[Cause::Signal]);
    Ok(expected.ended(&pod.name, MAIN, 137).node(&pod.node))
}

async fn peers_follow(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|place| match place.index {
        Some(0) => PodScript::exits(MAIN, 2_000, ContainerExit::code(3)),
        _ => PodScript::exits(MAIN, 3_400, ContainerExit::code(1)).stopped_with(MAIN, ContainerExit::code(1)),
    });
    lab.job(workers(WORKERS, 0), json!({})).await?;
    lab.finished().await?;
    let pod = lab.pod_of(0).await?;
    Ok(Expected::new(Cause::ExitCode, Outcome::Failed).ended(&pod.name, MAIN, 3).node(&pod.node))
}

async fn three_attempts(
    lab: &RecordLab<'_>,
    exits: [ContainerExit; 3],
    cause: Cause,
    also: &[Cause],
) -> Result<Expected> {
    let code = exits[0].code;
    lab.direct(move |place| PodScript::exits(MAIN, 1_200, exits[place.ordinal.min(2)].clone()));
    lab.job(json!({"backoffLimit": 2}), json!({})).await?;
    lab.finished().await?;
    let pod = lab.pod(0).await?;
    Ok(Expected::new(cause, Outcome::Failed).ended(&pod.name, MAIN, code).node(&pod.node).also(also))
}

async fn workers_with_retries(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|place| match place.index {
        Some(1) => PodScript::exits(MAIN, 2_000, ContainerExit::code(7)),
        _ => PodScript::endless(),
    });
    lab.job(workers(WORKERS, 3), json!({})).await?;
    lab.finished().await?;
    let pod = lab.pod_of(1).await?;
    Ok(Expected::new(Cause::ExitCode, Outcome::Failed).ended(&pod.name, MAIN, 7).node(&pod.node))
}

async fn retry_succeeds(lab: &RecordLab<'_>, exit: ContainerExit, cause: Cause) -> Result<Expected> {
    let code = exit.code;
    lab.direct(move |place| {
        let exit = if place.ordinal == 0 { exit.clone() } else { ContainerExit::code(0) };
        PodScript::exits(MAIN, 1_500, exit)
    });
    lab.job(json!({"backoffLimit": 4}), json!({})).await?;
    lab.finished().await?;
    let pod = lab.pod(0).await?;
    let expected = Expected::new(Cause::None, Outcome::Succeeded).also(&[cause]);
    Ok(expected.ended(&pod.name, MAIN, code).node(&pod.node))
}

async fn crash_loop(lab: &RecordLab<'_>, exit: ContainerExit, cause: Cause) -> Result<Expected> {
    let code = exit.code;
    lab.direct(move |_| PodScript::exits(MAIN, 1_500, exit.clone()));
    lab.job(json!({"backoffLimit": 2}), json!({"restartPolicy": "OnFailure"})).await?;
    lab.finished().await?;
    let pod = lab.pod(0).await?;
    Ok(Expected::new(cause, Outcome::Failed).ended(&pod.name, MAIN, code).node(&pod.node))
}

async fn crash_loop_goes_on(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|_| PodScript::exits(MAIN, 1_500, ContainerExit::code(1)));
    lab.job(json!({"backoffLimit": 6}), json!({"restartPolicy": "OnFailure"})).await?;
    let pod = lab.pod(0).await?;
    // The second back-off lasts for 20 seconds, so the recording ends in it.
    lab.pod_until(&pod.name, "to wait after two restarts", |pod| {
        let status = &pod["status"]["containerStatuses"][0];
        status["restartCount"] == 2 && status["state"]["waiting"].is_object()
    })
    .await?;
    Ok(Expected::new(Cause::ExitCode, Outcome::Waiting).ended(&pod.name, MAIN, 1).node(&pod.node))
}

async fn restart_succeeds(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|_| {
        PodScript::exits(MAIN, 1_500, ContainerExit::code(5)).add_run(MAIN, 2_000, ContainerExit::code(0))
    });
    lab.job(json!({}), json!({"restartPolicy": "OnFailure"})).await?;
    lab.finished().await?;
    let pod = lab.pod(0).await?;
    let expected = Expected::new(Cause::None, Outcome::Succeeded).also(&[Cause::ExitCode]);
    Ok(expected.ended(&pod.name, MAIN, 5).node(&pod.node))
}

async fn still_running(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|_| PodScript::endless());
    lab.job(json!({}), json!({})).await?;
    lab.running_pod(0).await?;
    Ok(Expected::new(Cause::None, Outcome::Running))
}

async fn running_after_failure(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|place| match place.ordinal {
        0 => PodScript::exits(MAIN, 1_500, ContainerExit::code(9)),
        _ => PodScript::endless(),
    });
    lab.job(json!({"backoffLimit": 4}), json!({})).await?;
    let pod = lab.pod(0).await?;
    lab.running_pod(1).await?;
    let expected = Expected::new(Cause::None, Outcome::Running).also(&[Cause::ExitCode]);
    Ok(expected.ended(&pod.name, MAIN, 9).node(&pod.node))
}
