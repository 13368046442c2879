//! States that arrive late, and outcomes that do not last.

use super::*;

fn late(seq: u64, version: &str, phase: &str) -> State {
    let mut state = of_version(seq, version, phase);
    state.extra.push(("late".into(), "true".into()));
    state
}

fn of_version(seq: u64, version: &str, phase: &str) -> State {
    let mut state = moved(seq, "a", phase);
    (state.resource_version, state.status.terminal) = (version.into(), phase != "Preempted");
    state
}

#[test]
fn a_state_that_comes_late_overrules_no_newer_one_before_and_after_it_is_told() {
    let world = world(json!({}));
    world.hear(&[of_version(1, "10", "Succeeded"), late(2, "9", "Failed")]);
    assert_eq!(world.titles(20_000, "hook"), ["Job default/a: Succeeded"]);
    world.hear(&[late(3, "8", "Failed"), late(4, "7", "Preempted")]);
    assert_eq!(world.titles(20_000, "hook"), [] as [&str; 0]);
    let told = world.reports("uid-a");
    assert!(told.last().unwrap().contains("suppressed|`Succeeded` came later, and was told at"), "{told:?}");
}

#[test]
fn an_outcome_that_comes_late_after_the_deletion_is_told() {
    let world = world(json!({}));
    let mut gone = of_version(1, "10", "Running");
    gone.change = kubewitness_sdk::Change::Gone;
    world.hear(&[gone, late(2, "9", "Failed")]);
    assert_eq!(world.titles(20_000, "hook"), ["Job default/a: Failed"]);
}

#[test]
fn an_outcome_is_told_to_nobody_if_the_object_goes_on_within_the_settle_time() {
    let world = world(json!({}));
    let mut running = of_version(2, "11", "Running");
    running.previous = Some(testing::status("Preempted"));
    world.hear(&[of_version(1, "10", "Preempted"), running.clone()]);
    assert_eq!(world.after(60_000), []);
    assert_eq!(
        world.reports("uid-a"),
        ["hook|suppressed|it is Running since", "ops|suppressed|it is Running since"]
    );
    world.hear(&[of_version(3, "12", "Preempted")]);
    assert_eq!(world.titles(20_000, "hook"), ["Job default/a: Preempted"]);
    world.hear(&[State { seq: 4, resource_version: "13".into(), ..running }, of_version(5, "14", "Failed")]);
    assert_eq!(world.titles(20_000, "hook"), ["Job default/a: Failed"]);
    assert_eq!(world.host.kv_keys_left(), 0);
}

/// A job that is preempted twelve times, and fails in the end.
fn preempted_and_failed(config: Value) -> Vec<String> {
    let world = world(config);
    let mut told = Vec::new();
    for turn in 0..12u64 {
        let mut preempted = of_version(2 * turn, &(10 + 2 * turn).to_string(), "Preempted");
        preempted.status.attempt = turn as u32;
        let mut running = of_version(2 * turn + 1, &(11 + 2 * turn).to_string(), "Running");
        running.previous = Some(testing::status("Preempted"));
        world.hear(&[preempted]);
        told.extend(world.titles(20_000, "hook"));
        world.hear(&[running]);
        told.extend(world.titles(20_000, "hook"));
    }
    world.hear(&[of_version(90, "90", "Failed")]);
    told.extend(world.titles(20_000, "hook"));
    told
}

#[test]
fn an_object_that_is_preempted_again_and_again_is_two_messages_unless_each_attempt_is_asked_for() {
    let two = ["Job default/a: Preempted", "Job default/a: Failed"];
    assert_eq!(preempted_and_failed(json!({})), two);
    assert_eq!(preempted_and_failed(json!({"phases": ["Running", "Preempted", "Failed"]})).len(), 3);
    assert_eq!(preempted_and_failed(json!({"eachAttempt": true})).len(), 13);
}
