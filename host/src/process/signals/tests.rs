//! Tests that start their own binary again as a process that can be ended.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use super::*;

/// The variable with the role of that process.
const ROLE: &str = "KUBEWITNESS_TEST_ROLE";
const READY: &str = "it listens";
/// Much longer than a child's patience.
const LONGEST: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_millis(300);
const NEVER: Duration = Duration::from_secs(600);

/// Runs `test` of this file in a child with this role. Returns once the child handles signals.
fn child(test: &str, role: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([&format!("process::signals::tests::{test}"), "--exact", "--nocapture"]).env(ROLE, role);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains(READY)), "it never listened");
    child
}

fn terminate(child: &Child) {
    let kill = format!("kill -TERM {}", child.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
}

/// The exit code of a child to which signals are sent repeatedly.
fn code(child: &mut Child, signals: impl Fn(&Child)) -> Option<i32> {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        if began.elapsed() > LONGEST {
            child.kill().unwrap();
            panic!("it has not ended within {LONGEST:?}");
        }
        signals(child);
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Every worker waits for something that never comes, and so does the task that awaits the end.
fn block(patience: StopPatience) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let ends = EndRequests::new();
    runtime.block_on(listen_within(&ends, patience)).unwrap();
    for _ in 0..4 {
        #[allow(clippy::disallowed_methods)]
        runtime.spawn(async { std::thread::sleep(NEVER) });
    }
    println!("{READY}");
    std::thread::sleep(NEVER);
}

fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

#[test]
fn a_second_signal_ends_a_process_whose_workers_are_all_blocked() {
    if role().is_some() {
        return block(StopPatience { end: NEVER, last_resort: SOON });
    }
    let mut child = child("a_second_signal_ends_a_process_whose_workers_are_all_blocked", "blocked");
    // Two pending signals of one kind are merged, so they are sent until both were handled.
    assert_eq!(code(&mut child, terminate), Some(1));
}

#[test]
fn one_signal_ends_a_process_whose_workers_are_all_blocked_when_its_patience_is_over() {
    if role().is_some() {
        return block(StopPatience { end: SOON, last_resort: SOON });
    }
    let test = "one_signal_ends_a_process_whose_workers_are_all_blocked_when_its_patience_is_over";
    let mut child = child(test, "blocked");
    terminate(&child);
    assert_eq!(code(&mut child, |_| {}), Some(1));
}

#[test]
fn a_failure_ends_a_process_that_hangs_without_any_signal() {
    if role().is_some() {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let ends = EndRequests::new();
        runtime.block_on(listen_within(&ends, StopPatience { end: SOON, last_resort: SOON })).unwrap();
        println!("{READY}");
        ends.begun.cancel();
        std::thread::sleep(NEVER);
    }
    let mut child = child("a_failure_ends_a_process_that_hangs_without_any_signal", "failed");
    assert_eq!(code(&mut child, |_| {}), Some(1));
}

#[test]
fn the_first_signal_asks_for_an_end_and_the_second_for_one_at_once() {
    if let Some(role) = role() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let ends = EndRequests::new();
            listen_within(&ends, StopPatience { end: NEVER, last_resort: NEVER }).await.unwrap();
            println!("{READY}");
            ends.begun.cancelled().await;
            assert!(ends.asked.is_cancelled());
            // Where more signals are sent, the second may come before this is looked at.
            if role == "twice" {
                ends.abort.cancelled().await;
            } else {
                assert!(!ends.abort.is_cancelled());
            }
        });
        std::process::exit(7);
    }
    let test = "the_first_signal_asks_for_an_end_and_the_second_for_one_at_once";
    let mut once = child(test, "once");
    terminate(&once);
    assert_eq!(code(&mut once, |_| {}), Some(7));
    let mut twice = child(test, "twice");
    assert_eq!(code(&mut twice, terminate), Some(7));
}
