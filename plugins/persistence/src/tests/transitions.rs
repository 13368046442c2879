//! Rows of object_transitions.

use super::*;

/// A state of the job `a`, observed at the second `at`.
fn state(seq: u64, phase: &str, before: Option<&str>, at: u64) -> State {
    let mut state = testing::state(seq, "a", phase);
    state.previous = before.map(testing::status);
    state.observed_ms = at * 1000;
    state
}

/// From, to and how long the former lasted, of all rows that were written.
fn rows_of(database: &Database) -> Vec<(Value, Value, Value)> {
    let writes = database.written(TRANSITIONS);
    let row = |write: &TableWrite, row: usize| {
        (column(write, row, "from_phase"), column(write, row, "to_phase"), column(write, row, "lasted_ms"))
    };
    writes.iter().flat_map(|write| (0..write.rows.len()).map(move |at| row(write, at))).collect()
}

#[test]
fn a_change_of_phase_is_a_row_with_how_long_the_phase_before_lasted() {
    let database = Database::ready();
    let first = [state(1, "Queued", None, 10), state(2, "Queued", Some("Queued"), 15)];
    database.handle(&Config::default(), &first);
    let mut failed = state(7, "Failed", Some("Running"), 100);
    (failed.status.exit_code, failed.status.attempt, failed.status.reason) =
        (Some(137), 2, "OOMKilled".into());
    database.handle(&Config::default(), &[state(5, "Running", Some("Queued"), 40), failed]);
    let expected = [
        (Value::Null, text("Queued"), Value::Null),
        (text("Queued"), text("Running"), Value::Integer(30_000)),
        (text("Running"), text("Failed"), Value::Integer(60_000)),
    ];
    assert_eq!(rows_of(&database), expected);
    let last = &database.written(TRANSITIONS)[1];
    let of = |name| column(last, 1, name);
    assert_eq!(
        (of("exit_code"), of("attempt"), of("reason")),
        (Value::Integer(137), Value::Integer(2), text("OOMKilled"))
    );
    assert_eq!((of("changed_at"), of("seq")), (text("1970-01-01T00:01:40.000Z"), Value::Integer(7)));
}

#[test]
fn a_repeat_makes_no_row_and_another_duration_neither() {
    let database = Database::ready();
    let states = [state(1, "Queued", None, 10), state(2, "Running", Some("Queued"), 40)];
    database.handle(&Config::default(), &states);
    database.handle(&Config::default(), &states);
    database.handle(&Config::default(), &states[..1]);
    assert_eq!(rows_of(&database).len(), 2);
}

#[test]
fn late_states_gaps_and_resyncs_are_no_transition() {
    let database = Database::ready();
    database.handle(&Config::default(), &[state(1, "Running", None, 10)]);
    let mut late = state(2, "Pending", None, 20);
    late.extra.push(("late".into(), "true".into()));
    let mut gap = state(3, "Unknown", Some("Running"), 25);
    gap.change = Change::Gap;
    let mut resync = state(1, "Succeeded", None, 28);
    resync.extra.push(("resync".into(), "true".into()));
    let after = state(4, "Succeeded", Some("Running"), 30);
    database.handle(&Config::default(), &[late, gap, resync, after]);
    assert_eq!(rows_of(&database)[1..], [(text("Running"), text("Succeeded"), Value::Integer(20_000))]);
}

#[test]
fn the_end_of_an_object_is_a_transition() {
    let database = Database::ready();
    database.handle(&Config::default(), &[state(1, "Running", None, 10)]);
    let mut gone = state(2, "Running", Some("Running"), 30);
    gone.change = Change::Gone;
    database.handle(&Config::default(), &[gone]);
    assert_eq!(rows_of(&database)[1..], [(text("Running"), text("Deleted"), Value::Integer(20_000))]);
}

#[test]
fn what_an_older_version_wrote_has_a_phase_and_no_duration() {
    let database = Database::ready();
    database.handle(&Config::default(), &[state(9, "Running", Some("Queued"), 50)]);
    assert_eq!(rows_of(&database), [(text("Queued"), text("Running"), Value::Null)]);
}

#[test]
fn a_clock_that_steps_back_makes_no_negative_duration() {
    let database = Database::ready();
    let states = [state(1, "Queued", None, 50), state(2, "Running", Some("Queued"), 40)];
    database.handle(&Config::default(), &states);
    assert_eq!(rows_of(&database)[1].2, Value::Integer(0));
}

#[test]
fn a_batch_of_any_size_asks_with_few_different_statements() {
    let database = Database::ready();
    let states: Vec<_> = (0..300).map(|seq| testing::state(seq, &format!("job-{seq}"), "Queued")).collect();
    assert!(database.handle(&Config::default(), &states).iter().all(|verdict| *verdict == Verdict::Done));
    assert_eq!(rows_of(&database).len(), 300);
}

#[test]
fn gpus_are_the_limits_of_the_containers_times_the_pods_at_once() {
    let config = Config { gpus: "nvidia.com/gpu".into(), ..Config::default() };
    let containers = r#"[{"resources": {"limits": {"nvidia.com/gpu": "2"}}}, {}, {"resources": {"limits": {"nvidia.com/gpu": 1, "cpu": "4"}}}]"#;
    let of_job = |parallelism: i64| {
        let template = format!(r#"{{"spec": {{"containers": {containers}}}}}"#);
        format!(r#"{{"spec": {{"parallelism": {parallelism}, "template": {template}}}}}"#)
    };
    for (document, kind, gpus) in [
        (of_job(4), "Job", 12),
        (format!(r#"{{"spec": {{"template": {{"spec": {{"containers": {containers}}}}}}}}}"#), "Job", 3),
        (format!(r#"{{"spec": {{"containers": {containers}}}}}"#), "Pod", 3),
        (of_job(i64::MAX), "Job", crate::gpus::MOST_GPUS),
        (of_job(-4), "Job", 0),
    ] {
        let database = Database::ready();
        *database.document.borrow_mut() = Some(document);
        let mut running = state(1, "Running", None, 10);
        running.object.kind = kind.into();
        database.handle(&config, &[running]);
        *database.document.borrow_mut() = None;
        database.handle(&config, &[state(2, "Succeeded", Some("Running"), 20)]);
        let writes = database.written(TRANSITIONS);
        let counted = [&writes[0], &writes[1]].map(|write| column(write, 0, "gpus"));
        assert_eq!(counted, [Value::Integer(gpus), Value::Integer(gpus)], "{kind}: also without a document");
    }
}

#[test]
fn gpus_of_a_number_that_no_float_can_hold_are_not_known() {
    let config = Config { gpus: "nvidia.com/gpu".into(), ..Config::default() };
    let database = Database::ready();
    *database.document.borrow_mut() = Some(r#"{"spec": {"parallelism": 1e400}}"#.into());
    assert_eq!(database.handle(&config, &[state(1, "Running", None, 10)]), [Verdict::Done]);
    assert_eq!(column(&database.written(TRANSITIONS)[0], 0, "gpus"), Value::Null);
}

#[test]
fn gpus_that_nobody_asks_for_cost_no_document() {
    let database = Database::ready();
    database.handle(&Config::default(), &[state(1, "Running", None, 10)]);
    assert_eq!(column(&database.written(TRANSITIONS)[0], 0, "gpus"), Value::Null);
    assert!(database.reads.borrow().is_empty());
}
