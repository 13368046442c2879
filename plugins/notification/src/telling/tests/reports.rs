//! The reports that are listed of each message, and mutes.

use super::*;

#[test]
fn reports_that_can_t_be_kept_repeat_no_message() {
    let world = world(json!({"settle": "0s", "routes": [{"to": ["hook"]}]}));
    world.hear(&[moved(1, "a", "Failed")]);
    world.host.keeps_no_reports.set(true);
    assert_eq!((world.titles(0, "hook").len(), world.titles(1_000, "hook").len()), (1, 0));
    assert!(world.host.logged.borrow().iter().any(|line| line.contains("can't be listed")));
}

#[test]
fn what_became_of_each_message_is_reported_by_recipient() {
    let world = world(json!({"digest": {"above": 1, "every": "1h"}}));
    world.host.status.borrow_mut().insert("ops".into(), Ok(404));
    world.host.status.borrow_mut().insert("hook".into(), Err(Error::Unavailable("away".into())));
    world.hear(&[moved(1, "a", "Cancelled"), moved(2, "a", "Failed")]);
    assert_eq!(world.reports("uid-a")[0], format!("hook|{}", settles("12:00:10")));
    world.after(10_000);
    let merged = "merged|the message on `Job default/a: Failed` tells it";
    let refused = "ops|refused|the destination answered 404: ";
    let expected = [
        &format!("hook|{merged}"),
        &format!("ops|{merged}"),
        "hook|waiting|until 2026-12-31T12:00:15.000Z: unavailable: away",
        refused,
    ];
    assert_eq!(world.reports("uid-a"), expected);
    world.host.status.borrow_mut().clear();
    world.after(10_000);
    assert_eq!(world.reports("uid-a")[2..], ["hook|sent|", refused]);
    // The same again, and then more than one in the window.
    world.hear(&[moved(3, "a", "Failed"), moved(4, "b", "Failed")]);
    world.after(10_000);
    assert!(
        world.reports("uid-a")[4].starts_with("hook|suppressed|the same was told at 2026-12-31T12:00:10")
    );
    assert_eq!(
        world.reports("uid-b"),
        [
            "hook|sent|",
            "ops|waiting|until 2026-12-31T13:00:10.000Z: its recipient has had as many messages as `digest` allows"
        ]
    );
    world.hear(&[moved(5, "c", "Failed")]);
    world.host.status.borrow_mut().insert("ops".into(), Ok(503));
    world.after(3_600_000);
    assert_eq!(
        world.reports("uid-b")[1],
        "ops|waiting|until 2026-12-31T13:00:35.000Z: the digest was not taken, and the log says why"
    );
    world.host.status.borrow_mut().clear();
    world.after(10_000);
    assert_eq!(world.reports("uid-b")[1], "ops|sent|within a digest");
    let entry = world.host.kv.borrow()["report/uid-b/00000000000000000004/ops"].clone();
    let entry: Value = serde_json::from_slice(&entry).unwrap();
    assert_eq!((&entry["via"], &entry["title"]), (&json!("slack"), &json!("Job default/b: Failed")));
}

fn settles(at: &str) -> String {
    format!(
        "waiting|until it has settled, at 2026-12-31T{at}.000Z or later, and its recipient's turn has come"
    )
}

#[test]
fn what_waits_for_a_digest_says_until_when_also_once_quiet_hours_are_over() {
    let quiet = json!({"hours": {"from": "12:30", "to": "13:00"}, "except": ["Failed"]});
    let digest = json!({"above": 1, "every": "90m"});
    let world = world(json!({"settle": "0s", "routes": [{"to": ["ops"]}], "digest": digest, "quiet": quiet}));
    world.hear(&[moved(1, "a", "Failed")]);
    assert_eq!(world.titles(0, "ops").len(), 1);
    world.after(1_800_000);
    world.hear(&[moved(2, "b", "Succeeded"), moved(3, "c", "Failed")]);
    world.after(0);
    let held = "ops|waiting|until quiet hours end, at 2026-12-31T13:00:00.000Z";
    let digested = "ops|waiting|until 2026-12-31T13:30:00.000Z: its recipient has had as many messages as `digest` allows";
    assert_eq!((&*world.reports("uid-b")[0], &*world.reports("uid-c")[0]), (held, digested));
    world.after(1_800_000);
    assert_eq!(world.reports("uid-b")[0], digested);
    let kept = world.host.kv.borrow().clone();
    world.after(1_000);
    assert_eq!(*world.host.kv.borrow(), kept, "it is said once");
}

#[test]
fn what_is_muted_refused_quiet_or_given_up_is_reported_too() {
    let quiet = json!({"hours": {"from": "11:00", "to": "13:00"}, "except": ["Failed"]});
    let world = world(
        json!({"routes": [{"to": ["ops"]}], "namespaces": {"default": {"mute": true}}, "quiet": quiet}),
    );
    let notify = json!({"metadata": {"annotations": {
        "kubewitness.dev/notify": "nobody\nBcc:x@example.com", "kubewitness.dev/mute": "false",
    }}});
    world.host.documents.borrow_mut().insert(1, notify.clone());
    world.host.documents.borrow_mut().insert(3, notify);
    world.hear(&[moved(1, "a", "Succeeded"), moved(2, "b", "Failed"), moved(3, "c", "Failed")]);
    let [bcc, nobody, ops] = &world.reports("uid-a")[..] else { panic!("{:?}", world.reports("uid-a")) };
    assert!(bcc.starts_with("Bcc:x@example.com|refused|`Bcc` is no channel"), "{bcc}");
    assert!(
        nobody.starts_with("nobody|refused|")
            && ops == "ops|waiting|until quiet hours end, at 2026-12-31T13:00:00.000Z",
        "{nobody} {ops}"
    );
    assert_eq!(world.reports("uid-b"), ["ops|muted|the configuration mutes the namespace"]);
    world.host.status.borrow_mut().insert("ops".into(), Err(Error::Unavailable("away".into())));
    world.after(10_000);
    world.pass_hours(24);
    assert_eq!(world.reports("uid-c")[2], "ops|given up|nobody took it for a day");
}

#[test]
fn what_a_person_mutes_is_not_told_also_where_it_waits_already() {
    let world = world(json!({"routes": [{"to": ["ops", "hook"]}]}));
    let mute = |mutes: Value| {
        world.host.kv.borrow_mut().insert("kubewitness.dev/mutes".into(), mutes.to_string().into_bytes());
    };
    mute(json!([{"uid": "uid-a", "to": "ops", "who": "ada", "at": "noon"}]));
    world.hear(&[moved(1, "a", "Failed"), moved(2, "b", "Failed")]);
    assert_eq!(
        world.reports("uid-a"),
        [format!("hook|{}", settles("12:00:10")), "ops|muted|ada muted it at noon".to_string()]
    );
    world.host.status.borrow_mut().insert("ops".into(), Err(Error::Unavailable("away".into())));
    assert_eq!(world.titles(10_000, "hook"), ["Job default/a: Failed", "Job default/b: Failed"]);
    world.host.status.borrow_mut().clear();
    mute(json!([{"namespace": "default", "who": "bob", "at": "one"}]));
    world.hear(&[moved(3, "c", "Failed")]);
    assert_eq!(world.after(600_000), []);
    assert_eq!(world.reports("uid-b")[1], "ops|muted|bob muted it at one");
    assert_eq!(world.reports("uid-c")[0], "hook|muted|bob muted it at one");
    mute(json!([{"uid": "uid-train", "who": "eve", "at": "two"}]));
    world.hear(&[moved(4, "d", "Failed"), pod(5, "p", "Failed"), moved(6, "train", "Failed")]);
    assert_eq!(world.titles(60_000, "ops"), ["❌ Job default/d: Failed"]);
    mute(json!({"no": "list"}));
    let verdicts =
        testing::with_host(world.host.clone(), || handle(&world.config, &[moved(7, "e", "Failed")]));
    assert!(
        matches!(&verdicts[..], [Verdict::Retry(later)] if later.reason.contains("mutes")),
        "{verdicts:?}"
    );
}

#[test]
fn a_report_outlives_any_number_of_later_ones() {
    let world = world(json!({"mute": true, "routes": [{"to": ["ops"]}]}));
    for batch in 0..8u64 {
        let of = |n| moved(batch * 500 + n, &format!("j{}", batch * 500 + n), "Failed");
        world.hear(&(0..500).map(of).collect::<Vec<_>>());
    }
    let kv = world.host.kv.borrow();
    assert_eq!(kv.keys().filter(|key| key.starts_with("report/")).count(), 4000);
    assert!(kv.contains_key("report/uid-j0/00000000000000000000/ops"));
}
