//! Recipients that fail, are slow, or take no more.

use super::*;

#[test]
fn a_recipient_that_fails_repeats_nothing_for_the_others() {
    let world = world(json!({"settle": "0s"}));
    world.host.status.borrow_mut().insert("ops".into(), Ok(503));
    world.hear(&[moved(1, "a", "Failed")]);
    assert_eq!(world.after(0), [("hook".to_string(), "Job default/a: Failed".to_string())]);
    assert_eq!(world.after(5_000), [], "it is asked again and does not take it");
    world.host.status.borrow_mut().clear();
    assert_eq!(world.after(5_000), [], "the pause has doubled");
    assert_eq!(world.after(5_000), [("ops".to_string(), "❌ Job default/a: Failed".to_string())]);
}

#[test]
fn a_refused_message_is_not_sent_again_and_the_next_one_is() {
    let world = world(json!({"settle": "0s"}));
    world.host.status.borrow_mut().insert("ops".into(), Ok(404));
    world.hear(&[moved(1, "a", "Failed")]);
    assert_eq!(world.after(0).len(), 1);
    world.host.status.borrow_mut().clear();
    world.hear(&[moved(2, "b", "Failed")]);
    assert_eq!(world.titles(60_000, "ops"), ["❌ Job default/b: Failed"]);
}

#[test]
fn over_the_rate_of_a_destination_the_rest_waits_for_the_time_that_the_host_says() {
    let world = world(json!({"settle": "0s", "routes": [{"to": ["ops"]}]}));
    world.host.status.borrow_mut().insert("ops".into(), Err(Error::RateLimited(700)));
    world.hear(&[moved(1, "a", "Failed"), moved(2, "b", "Failed")]);
    assert_eq!(world.after(0), []);
    world.host.status.borrow_mut().clear();
    assert_eq!(world.after(699), []);
    assert_eq!(world.after(1).len(), 2);
}

#[test]
fn a_tick_stops_sending_before_its_time_is_up_and_the_next_one_goes_on() {
    let world = world(json!({"settle": "0s", "routes": [{"to": ["hook"]}]}));
    let states: Vec<_> = (0..9).map(|n| moved(n, &format!("j{n}"), "Failed")).collect();
    world.hear(&states);
    world.host.takes_ms.set(1_000);
    assert_eq!((world.after(0).len(), world.after(0).len(), world.after(0).len()), (4, 4, 1));
}

#[test]
fn a_program_gets_each_message_however_many_there_are_and_people_hear_of_each_once() {
    for is_down in [false, true] {
        let world = world(json!({"settle": "0s", "repeat": "0s", "digest": {"above": 1000, "every": "1m"}}));
        let states = (0..300).map(|n| moved(n, &format!("j{n}"), "Failed")).collect();
        let (mut states, mut told) = match is_down {
            true => {
                world.host.status.borrow_mut().insert("hook".into(), Ok(503));
                let (states, told) = world.delivered(states, 20);
                assert!(states.len() < 300 && !states.is_empty(), "{} wait for the program", states.len());
                world.host.status.borrow_mut().clear();
                (states, told)
            }
            false => (states, Vec::new()),
        };
        world.host.now.set(world.host.now.get() + 600_000);
        let rest = world.delivered(std::mem::take(&mut states), 30);
        told.extend(rest.1);
        told.extend(world.after(600_000));
        assert_eq!((rest.0.len(), outcomes(&told, "ops")), (0, 300), "{is_down}");
        let of_hook = || told.iter().filter(|(to, _)| to == "hook").map(|(_, title)| title.clone());
        let expected: HashSet<_> = (0..300).map(|n| format!("Job default/j{n}: Failed")).collect();
        assert!(of_hook().count() == 300 && of_hook().collect::<HashSet<_>>() == expected, "{is_down}");
    }
}

#[test]
fn a_program_that_was_down_for_some_minutes_is_asked_within_one_and_loses_no_state_meanwhile() {
    let world = world(json!({"settle": "0s", "routes": [{"to": ["hook"]}]}));
    world.host.status.borrow_mut().insert("hook".into(), Ok(503));
    for from in [0, 32] {
        world.hear(&(from..from + 32).map(|n| moved(n, &format!("j{n}"), "Failed")).collect::<Vec<_>>());
        world.after(0);
    }
    let more = [moved(100, "more", "Failed")];
    let verdicts = testing::with_host(world.host.clone(), || handle(&world.config, &more));
    let why = "as many messages as there is room for wait for `hook`";
    assert_eq!(verdicts, [Verdict::retry_after(60_000, why)]);
    for _ in 0..33 {
        assert_eq!(world.after(10_000), []);
    }
    world.host.status.borrow_mut().clear();
    let told: usize = (0..6).map(|_| world.titles(10_000, "hook").len()).sum();
    assert_eq!(told, 64);
}

#[test]
fn a_message_that_nobody_takes_is_given_up_after_a_day() {
    let world = world(json!({"settle": "0s", "routes": [{"to": ["ops"]}]}));
    world.host.status.borrow_mut().insert("ops".into(), Err(Error::Unavailable("away".into())));
    world.hear(&[moved(1, "a", "Failed")]);
    world.after(0);
    world.pass_hours(24);
    world.host.status.borrow_mut().clear();
    assert_eq!(world.after(600_000), []);
}

#[test]
fn days_without_a_tick_give_up_no_message_that_was_never_tried_or_tried_once() {
    let world = world(json!({"routes": [{"to": ["ops"]}], "oldest": "30d"}));
    world.hear(&[moved(1, "a", "Failed")]);
    assert_eq!(world.titles(3 * 24 * 3_600_000, "ops"), ["❌ Job default/a: Failed"]);
    world.host.status.borrow_mut().insert("ops".into(), Err(Error::Unavailable("away".into())));
    world.hear(&[moved(2, "b", "Failed")]);
    world.after(10_000);
    world.after(365 * 24 * 3_600_000);
    world.host.status.borrow_mut().clear();
    assert_eq!(world.titles(600_000, "ops"), ["❌ Job default/b: Failed"]);
}

#[test]
fn a_recipient_that_takes_nothing_keeps_nobody_from_being_told() {
    let world = world(json!({"settle": "0s", "routes": [
        {"to": ["ops"], "namespaces": ["loud"]}, {"to": ["hook"], "namespaces": ["default"]},
    ]}));
    world.host.status.borrow_mut().insert("ops".into(), Err(Error::Unavailable("away".into())));
    for batch in 0..4u64 {
        let of = |n| {
            let mut state = moved(batch * 100 + n, &format!("l{}", batch * 100 + n), "Failed");
            state.object.namespace = "loud".into();
            state
        };
        world.hear(&(0..100).map(of).collect::<Vec<_>>());
        world.after(1_000);
    }
    world.hear(&[moved(900, "a", "Failed")]);
    assert_eq!(world.titles(1_000, "hook"), ["Job default/a: Failed"]);
    assert!(world.reports("uid-l0")[0].starts_with("ops|given up|"), "{:?}", world.reports("uid-l0"));
    world.host.status.borrow_mut().clear();
    let told = world.titles(600_000, "ops");
    assert!(told.len() == 1 && told[0].starts_with("❌ 400 outcomes"), "{told:?}");
}

#[test]
fn a_channel_at_its_rate_and_addresses_of_annotations_keep_nobody_from_being_told() {
    let channels = json!([
        {"name": "mail", "kind": "email"}, {"name": "ops", "kind": "slack"}, {"name": "hook", "kind": "webhook"},
    ]);
    for error in
        [Error::RateLimited(3_600_000), Error::Unavailable("away".into()), Error::Denied("not yours".into())]
    {
        let world =
            world(json!({"settle": "0s", "channels": channels, "namespaces": {"default": {"to": ["hook"]}},
            "routes": []}));
        for name in ["ops", "mail"] {
            world.host.status.borrow_mut().insert(name.into(), Err(error.clone()));
        }
        for seq in 0..400u64 {
            let to = format!("ops mail:x{seq}@example.org");
            let notify = json!({"metadata": {"annotations": {"kubewitness.dev/notify": to}}});
            world.host.documents.borrow_mut().insert(seq, notify);
            world.hear(&[moved(seq, &format!("l{seq}"), "Failed")]);
            if seq % 50 == 49 {
                world.after(1_000);
            }
        }
        world.hear(&[moved(900, "a", "Failed")]);
        assert_eq!(world.titles(1_000, "hook"), ["Job default/a: Failed"], "{error:?}");
        assert_eq!(world.reports("uid-a"), ["hook|sent|"]);
        let is_told = world.host.logged.borrow().iter().any(|line| line.contains("the outbox is full"));
        assert!(is_told || matches!(error, Error::Denied(_)));
    }
}

#[test]
fn many_messages_for_a_channel_that_is_down_or_slow_starve_no_recipient_of_another_name() {
    let channels = json!([{"name": "aaa", "kind": "webhook"}, {"name": "hook", "kind": "webhook"}]);
    let world = world(json!({"settle": "0s", "channels": channels, "routes": [
        {"to": ["aaa"], "namespaces": ["loud"]}, {"to": ["hook"], "namespaces": ["default"]},
    ]}));
    let loud = |seq: u64| {
        let mut state = moved(seq, &format!("l{seq}"), "Failed");
        state.object.namespace = "loud".into();
        state
    };
    world.hear(&(0..60).map(loud).collect::<Vec<_>>());
    world.hear(&[moved(900, "a", "Failed")]);
    assert_eq!(world.titles(0, "hook"), ["Job default/a: Failed"], "each recipient has its turn");
    world.host.status.borrow_mut().insert("aaa".into(), Ok(503));
    world.hear(&(100..160).map(loud).collect::<Vec<_>>());
    world.hear(&[moved(901, "b", "Failed")]);
    assert_eq!(world.titles(0, "hook"), ["Job default/b: Failed"]);
    // Each request takes as long as a tick may send.
    world.host.takes_ms.set(3_001);
    world.hear(&[moved(902, "c", "Failed")]);
    assert_eq!(world.titles(600_000, "hook"), ["Job default/c: Failed"]);
}

#[test]
fn an_address_that_is_to_wait_holds_up_no_other_of_its_channel() {
    let world = world(json!({"settle": "0s", "channels": [{"name": "mail", "kind": "email"}],
        "routes": [{"to": ["mail:ada@example.com", "mail:grey@example.com", "mail:zoe@example.com"]}]}));
    world.hear(&[moved(1, "a", "Failed")]);
    world.after(0);
    let told: Vec<_> = world.host.letters.take().into_iter().flat_map(|letter| letter.to).collect();
    assert_eq!(told, ["ada@example.com", "zoe@example.com"]);
    assert_eq!(
        world.reports("uid-a")[1],
        "mail:grey@example.com|waiting|until 2026-12-31T12:00:05.000Z: later"
    );
}

#[test]
fn one_webhook_at_its_rate_holds_up_no_other_within_a_tick() {
    let channels: Vec<_> = (0..5).map(|n| json!({"name": format!("team-{n}"), "kind": "slack"})).collect();
    let world = world(json!({"settle": "0s", "channels": channels}));
    world.host.status.borrow_mut().insert("team-1".into(), Err(Error::RateLimited(900)));
    world.hear(&[moved(1, "a", "Failed"), moved(2, "b", "Failed")]);
    let told = world.after(0);
    for n in [0, 2, 3, 4] {
        let of = told.iter().filter(|(to, _)| *to == format!("team-{n}")).count();
        assert_eq!(of, 2, "{told:?}");
    }
    world.host.status.borrow_mut().clear();
    assert_eq!(world.titles(900, "team-1").len(), 2, "its own messages wait for its rate alone");
}

#[test]
fn a_service_that_asks_for_a_long_pause_is_told_with_the_end_of_it_and_a_short_one_by_its_end_alone() {
    let world = world(json!({"settle": "0s", "routes": [{"to": ["ops"]}]}));
    for (pause, until, lines) in [(900, "12:00:00.900", 0), (7_200_000, "13:00:01.000", 1)] {
        world.host.status.borrow_mut().insert("ops".into(), Err(Error::RateLimited(pause)));
        world.hear(&[moved(pause, &format!("after-{pause}"), "Failed")]);
        world.after(if lines == 0 { 0 } else { 1_000 });
        let waiting = format!("ops|waiting|until 2026-12-31T{until}Z: rate limited");
        assert_eq!(world.reports("uid-after-900"), [waiting]);
        assert_eq!(world.host.logged.borrow().len(), lines, "{:?}", world.host.logged.borrow());
    }
}
