//! Messages open with why an object ended badly, and wait for that no longer than a moment.

use kubewitness_sdk::outcomes::Explanation;

use super::*;

fn failed(seq: u64, name: &str) -> State {
    let mut state = moved(seq, name, "Failed");
    (state.status.terminal, state.status.reason) = (true, "BackoffLimitExceeded".into());
    state
}

fn knowing(world: &OutboxWorld, uid: &str, finding: Finding) {
    world.host.findings.borrow_mut().get_or_insert_default().insert(uid.into(), finding);
}

fn found(state: &State) -> Finding {
    let headline = "Failed: container main of pod a-0 ran out of memory (exit 137)".to_string();
    Finding::Found(Explanation { headline, ..testing::explanation(state, "out-of-memory") })
}

/// The body that the webhook was sent.
fn hook(world: &OutboxWorld) -> Value {
    testing::with_host(world.host.clone(), || tick(&world.config)).unwrap();
    let sent = world.host.sent.take();
    sent.into_iter().find(|(to, _)| to == "hook").map(|(_, body)| body).unwrap_or_default()
}

#[test]
fn a_message_opens_with_the_cause_and_its_title_has_the_word() {
    let world = world(json!({}));
    knowing(&world, "uid-a", found(&failed(1, "a")));
    world.hear(&[failed(1, "a")]);
    world.host.now.set(NOON + 10_000);
    let sent = hook(&world);
    assert_eq!(sent["title"], "Job default/a: Failed (out of memory)");
    let lines: Vec<_> = sent["text"].as_str().unwrap().lines().take(2).collect();
    assert_eq!(
        lines,
        ["Failed: container main of pod a-0 ran out of memory (exit 137)", "BackoffLimitExceeded"]
    );
    assert_eq!((&sent["cause"], &sent["why"]), (&json!("out-of-memory"), &json!(lines[0])));
    let reports = world.reports("uid-a");
    assert_eq!(reports, ["hook|sent|", "ops|sent|"]);
}

#[test]
fn a_message_waits_for_its_cause_and_not_for_long_and_holds_up_no_other() {
    let world = world(json!({"settle": "1s"}));
    knowing(&world, "uid-a", Finding::Pending);
    world.hear(&[failed(1, "a"), failed(2, "b")]);
    assert_eq!(world.titles(1_000, "hook"), ["Job default/b: Failed"], "of another nothing is known");
    assert_eq!(world.after(2_000), []);
    knowing(&world, "uid-a", found(&failed(1, "a")));
    assert_eq!(world.titles(1_000, "hook"), ["Job default/a: Failed (out of memory)"]);
    knowing(&world, "uid-c", Finding::Pending);
    world.hear(&[failed(3, "c")]);
    assert_eq!(world.after(15_999), []);
    assert_eq!(
        world.titles(1, "hook"),
        ["Job default/c: Failed"],
        "a message without a cause is better than none"
    );
}

#[test]
fn a_good_end_a_pod_and_a_plugin_without_the_grant_cost_no_question() {
    let world = world(json!({"routes": [{"to": ["hook"], "kinds": ["Pod", "Job"]}]}));
    knowing(&world, "uid-train", Finding::Pending);
    let mut good = moved(1, "a", "Succeeded");
    good.status.terminal = true;
    let mut pod = pod(2, "p", "Failed");
    pod.status.terminal = true;
    world.hear(&[good, pod]);
    assert_eq!(world.titles(10_000, "hook").len(), 2);
    *world.host.findings.borrow_mut() = None;
    world.hear(&[failed(3, "b")]);
    assert_eq!(world.titles(10_000, "hook"), ["Job default/b: Failed"]);
}
