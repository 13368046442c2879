//! Parts of objects, such as the Pods of a Job, and the messages that they are told with.

use super::*;

#[test]
fn a_job_of_64_pods_is_one_message() {
    let world = world(json!({}));
    let mut states: Vec<_> = (0..64).map(|n| pod(n, &format!("train-{n}"), "Failed")).collect();
    states.push(moved(99, "train", "Failed"));
    world.hear(&states);
    world.host.now.set(NOON + 10_000);
    testing::with_host(world.host.clone(), || tick(&world.config)).unwrap();
    let sent = world.host.sent.take();
    assert_eq!(sent.len(), 2, "one to each channel: {sent:?}");
    assert!(sent[0].1["text"].as_str().unwrap().contains("Pod: 64 Failed (OOMKilled)"), "{sent:?}");
}

/// As the host shows a Pod of a Job of a CronJob: the CronJob is the outermost owner.
fn pod_of_a_cron_job(world: &OutboxWorld, seq: u64, namespace: &str) -> State {
    let mut pod = pod(seq, &format!("train-{seq}"), "Failed");
    pod.object.namespace = namespace.into();
    pod.owner = pod.owner.map(|owner| ObjectRef {
        kind: "CronJob".into(),
        namespace: namespace.into(),
        name: "nightly".into(),
        uid: "uid-nightly".into(),
        ..owner
    });
    let labels = json!({"metadata": {"labels": {"batch.kubernetes.io/controller-uid": "uid-train"}}});
    world.host.documents.borrow_mut().insert(seq, labels);
    pod
}

#[test]
fn a_job_of_a_cron_job_is_one_message_with_its_64_pods() {
    let world = world(json!({}));
    let mut job = moved(99, "train", "Failed");
    job.owner = pod_of_a_cron_job(&world, 0, "default").owner;
    let mut states: Vec<_> = (0..64).map(|n| pod_of_a_cron_job(&world, n, "default")).collect();
    states.push(job);
    // The label of a Pod that somebody made elsewhere.
    states.push(pod_of_a_cron_job(&world, 100, "other"));
    world.hear(&states);
    world.host.now.set(NOON + 10_000);
    testing::with_host(world.host.clone(), || tick(&world.config)).unwrap();
    let sent = world.host.sent.take();
    assert_eq!(sent.len(), 2, "one to each channel: {sent:?}");
    assert!(sent[0].1["text"].as_str().unwrap().contains("Pod: 64 Failed (OOMKilled)\nTo hear"), "{sent:?}");
    assert_eq!(world.after(61_000), []);
}

#[test]
fn who_mutes_a_job_mutes_its_pods_and_a_message_of_pods_says_how() {
    let world = world(json!({"routes": [{"to": ["hook"], "kinds": ["Pod"]}]}));
    world.hear(&[pod_of_a_cron_job(&world, 1, "default")]);
    world.host.now.set(NOON + 10_000);
    testing::with_host(world.host.clone(), || tick(&world.config)).unwrap();
    let sent = world.host.sent.take();
    assert_eq!(sent[0].1["title"], "CronJob default/nightly: 1 × Pod Failed");
    let text = sent[0].1["text"].as_str().unwrap();
    assert!(text.ends_with("To hear no more of it: kubewitness mute cronjob/nightly -n default"), "{text}");
    let mutes = json!([{"uid": "uid-train", "who": "ada", "at": "noon"}]).to_string().into_bytes();
    world.host.kv.borrow_mut().insert("kubewitness.dev/mutes".into(), mutes);
    let mut again = pod_of_a_cron_job(&world, 2, "default");
    again.status.attempt = 1;
    world.hear(&[again]);
    assert_eq!(world.after(60_000), []);
    assert_eq!(world.reports("uid-train-2"), ["hook|muted|ada muted it at noon"]);
}

#[test]
fn a_failed_job_whose_owner_has_no_subscription_is_told_by_itself_with_its_pods() {
    let of_a_set = |mut state: State| {
        let set = ObjectRef { kind: "JobSet".into(), name: "set".into(), ..state.object.clone() };
        state.owner = Some(ObjectRef { uid: "uid-set".into(), ..set });
        state.extra.push(("ownerSubscribed".into(), "false".into()));
        state
    };
    let world = world(json!({}));
    let pod = of_a_set(pod_of_a_cron_job(&world, 1, "default"));
    world.hear(&[pod, of_a_set(moved(2, "train", "Failed"))]);
    world.host.now.set(NOON + 10_000);
    testing::with_host(world.host.clone(), || tick(&world.config)).unwrap();
    let sent = world.host.sent.take();
    assert_eq!((sent.len(), &sent[0].1["title"]), (2, &json!("Job default/train: Failed")));
    assert!(sent[0].1["text"].to_string().contains("Pod: 1 Failed"), "{sent:?}");
    // With a subscription it is told with its set.
    let mut other = of_a_set(moved(3, "other", "Failed"));
    other.extra.clear();
    world.hear(&[other]);
    assert_eq!(world.after(60_000), []);
}

#[test]
fn failed_pods_of_an_owner_of_which_nobody_hears_are_one_message_that_names_it() {
    let world = world(json!({"portal": "https://kw.example.com"}));
    let pods = |from: u64| {
        (from..from + 64).map(|n| {
            let mut pod = pod(n, &format!("train-{n}"), "Failed");
            pod.extra.push(("ownerSubscribed".into(), "false".into()));
            let owner = pod.owner.as_mut().unwrap();
            (owner.group, owner.kind) = ("kubeflow.org".into(), "PyTorchJob".into());
            pod
        })
    };
    world.hear(&pods(0).collect::<Vec<_>>());
    world.host.now.set(NOON + 10_000);
    testing::with_host(world.host.clone(), || tick(&world.config)).unwrap();
    let sent = world.host.sent.take();
    assert_eq!((sent.len(), &sent[0].1["title"]), (2, &json!("PyTorchJob default/train: 64 × Pod Failed")));
    let text = sent[0].1["text"].as_str().unwrap();
    let how = "To hear no more of it: annotate its Pods with kubewitness.dev/mute=true, or kubewitness mute -n default";
    assert!(text.ends_with(how), "{text}");
    // The same outcome is told once.
    world.hear(&pods(100).collect::<Vec<_>>());
    assert_eq!(world.after(60_000), []);
}

#[test]
fn the_exit_code_of_a_part_is_told_with_its_owner_and_a_kind_of_another_group_by_its_whole_name() {
    let world = world(json!({"routes": [{"to": ["hook"]}]}));
    let mut pod = pod(1, "train-0", "Failed");
    pod.status.exit_code = Some(137);
    let mut job = moved(2, "train", "Failed");
    job.object.group = "batch.volcano.sh".into();
    world.hear(&[pod, job]);
    world.host.now.set(NOON + 10_000);
    testing::with_host(world.host.clone(), || tick(&world.config)).unwrap();
    let sent = world.host.sent.take();
    let text = sent[0].1["text"].as_str().unwrap();
    let expected = "Pod: 1 Failed (OOMKilled), exit code 137\nTo hear no more of it: kubectl annotate \
                job.batch.volcano.sh train -n default kubewitness.dev/mute=true";
    assert!(text.ends_with(expected), "{text}");
}

#[test]
fn parts_without_number_take_the_room_of_no_outcome() {
    let world = world(json!({}));
    for batch in 0..4 {
        let pods = (batch * 100..batch * 100 + 100).map(|n| pod(n, &format!("train-{n}"), "Failed"));
        world.hear(&pods.collect::<Vec<_>>());
    }
    world.hear(&[moved(900, "train", "Failed"), moved(901, "other", "Failed")]);
    world.host.now.set(NOON + 10_000);
    testing::with_host(world.host.clone(), || tick(&world.config)).unwrap();
    let sent = world.host.sent.take();
    let titles: Vec<_> = sent.iter().filter_map(|(_, body)| body["title"].as_str()).collect();
    assert_eq!(titles, ["Job default/other: Failed", "Job default/train: Failed"]);
    assert!(
        sent.iter().any(|(_, body)| body["text"].to_string().contains("Pod: 400 Failed (OOMKilled)")),
        "{sent:?}"
    );
}

#[test]
fn parts_that_are_asked_for_are_one_message_and_others_without_their_owner_none() {
    let pods: Vec<_> = (0..64).map(|n| pod(n, &format!("train-{n}"), "Failed")).collect();
    let asked = world(json!({"routes": [{"to": ["hook"], "kinds": ["Pod"]}]}));
    asked.hear(&pods);
    assert_eq!(asked.titles(10_000, "hook"), ["Job default/train: 64 × Pod Failed"]);
    let plain = world(json!({}));
    plain.hear(&pods);
    assert_eq!((plain.after(10_000), plain.after(61_000)), (vec![], vec![]));
    assert_eq!(plain.host.kv_keys_left(), 0);
}

#[test]
fn a_part_whose_maker_names_an_object_of_another_namespace_joins_no_message_of_it() {
    let forged = |seq, name: &str| {
        let mut pod = pod(seq, name, "Failed");
        pod.status.reason = "Forged".into();
        pod.object.namespace = "other".into();
        if let Some(owner) = &mut pod.owner {
            // As the host says it.
            owner.namespace = "other".into();
        }
        pod
    };
    let routes = json!([{"to": ["hook"]}, {"to": ["hook"], "kinds": ["Pod"], "namespaces": ["other"]}]);
    for config in [json!({}), json!({"routes": routes})] {
        let world = world(config.clone());
        world.hear(&[forged(1, "p"), moved(2, "train", "Failed"), forged(3, "q")]);
        world.host.now.set(NOON + 10_000);
        testing::with_host(world.host.clone(), || tick(&world.config)).unwrap();
        let sent = world.host.sent.take();
        let of_train: Vec<_> =
            sent.iter().filter(|(_, body)| body.to_string().contains("default/train: Failed")).collect();
        assert!(!of_train.is_empty() && !format!("{of_train:?}").contains("Forged"), "{config}: {sent:?}");
        let expected = format!("{:?} {:?}", world.reports("uid-p"), world.reports("uid-q"));
        assert!(!expected.contains("default/train"), "{expected}");
    }
}

#[test]
fn people_of_a_part_and_of_its_owner_are_told_by_one_message() {
    let routes = json!([{"to": ["ops"], "kinds": ["Pod"]}, {"to": ["hook"]}]);
    let world = world(json!({"routes": routes}));
    world.hear(&[pod(1, "train-0", "Failed"), moved(2, "train", "Failed")]);
    let told = world.after(10_000);
    let expected = [("hook", "Job default/train: Failed"), ("ops", "❌ Job default/train: Failed")];
    assert_eq!(told, expected.map(|(to, title)| (to.to_string(), title.to_string())));
    let merged = "ops|merged|the message on `Job default/train: Failed` tells it";
    assert_eq!(world.reports("uid-train-0"), [merged]);
    assert_eq!(world.reports("uid-train"), ["hook|sent|", "ops|sent|"]);
    assert_eq!(world.after(60_000), []);
}

#[test]
fn what_was_told_of_an_object_keeps_nobody_from_hearing_of_its_parts() {
    let routes = json!([{"to": ["ops"], "kinds": ["Pod"]}, {"to": ["hook"]}]);
    let world = world(json!({"routes": routes}));
    world.hear(&[moved(1, "train", "Failed")]);
    assert_eq!(world.titles(10_000, "hook"), ["Job default/train: Failed"]);
    world.hear(&[pod(2, "train-0", "Failed"), moved(3, "train", "Failed")]);
    let told = world.after(10_000);
    assert_eq!(told, [("ops".to_string(), "❌ Job default/train: 1 × Pod Failed".to_string())]);
    assert!(world.reports("uid-train")[1].starts_with("hook|suppressed|the same was told at"));
    assert_eq!(world.reports("uid-train-0"), ["ops|sent|"]);
}
