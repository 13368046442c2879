//! The rows that a batch writes to object_status and object_history.

use super::*;

const CONTRACT: &str = "id, seq, source, api_group, kind, namespace, name, uid, resource_version, change, phase, reason, \
                        message, attempt, ready, total, exit_code, terminal, owner_kind, owner_name, observed_at, owner_uid";

#[test]
fn a_batch_is_one_write_a_table_with_the_columns_of_the_contract() {
    let database = Database::ready();
    let states = [testing::state(1, "a", "Pending"), testing::state(2, "b", "Running")];
    assert_eq!(database.handle(&Config::default(), &states), [Verdict::Done, Verdict::Done]);
    let writes = database.writes.borrow();
    let [history, status, transitions] = &writes[..] else { panic!("{} writes", writes.len()) };
    assert_eq!(status.columns.join(", "), CONTRACT);
    assert_eq!(history.columns.join(", "), format!("{CONTRACT}, previous_phase, document"));
    assert_eq!(
        (&status.key, &status.on_conflict),
        (&vec!["uid".into()], &OnConflict::ReplaceOlder("seq".into()))
    );
    assert_eq!((history.table.as_str(), &history.on_conflict), ("object_history", &OnConflict::Ignore));
    assert_eq!((transitions.table.as_str(), &transitions.on_conflict), (TRANSITIONS, &OnConflict::Ignore));
    assert_eq!(column(status, 1, "phase"), text("Running"));
}

#[test]
fn values_of_the_document_are_columns_of_both_tables() {
    let database = Database::ready();
    let document = r#"{"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "gold", "gpus": "8"}}}"#;
    *database.document.borrow_mut() = Some(document.into());
    let columns = vec![
        added("queue", "/metadata/labels/kueue.x-k8s.io~1queue-name", Type::Text),
        added("gpus", "/metadata/labels/gpus", Type::Integer),
        added("missing", "/spec/none", Type::Time),
    ];
    let config = Config { columns, ..Config::default() };
    assert_eq!(database.handle(&config, &[testing::state(1, "a", "Running")]), [Verdict::Done]);
    for table in [schema::STATUS, schema::HISTORY] {
        let written = database.written(table);
        let values = ["queue", "gpus", "missing"].map(|name| column(&written[0], 0, name));
        assert_eq!(values, [text("gold"), Value::Integer(8), Value::Null], "{table}");
    }
    assert_eq!(*database.reads.borrow(), ["/metadata/labels", "/spec/none"], "once for both tables");
}

#[test]
fn a_document_is_read_once_for_its_column_and_all_others() {
    let database = Database::ready();
    *database.document.borrow_mut() =
        Some(r#"{"metadata": {"managedFields": [], "labels": {"a": "b"}}}"#.into());
    let columns = vec![added("a", "/metadata/labels/a", Type::Text)];
    let config = Config { columns, documents: Documents::Pruned, ..Config::default() };
    database.handle(&config, &[testing::state(1, "a", "Running")]);
    let history = &database.written(schema::HISTORY)[0];
    let row = [column(history, 0, "document"), column(history, 0, "a")];
    assert_eq!(row, [text(r#"{"metadata":{"labels":{"a":"b"}}}"#), text("b")]);
    assert_eq!(*database.reads.borrow(), [""]);
    assert!(!database.written(schema::STATUS)[0].columns.contains(&"document".to_string()));
}

#[test]
fn a_state_without_a_document_has_null_and_no_columns_read_no_document() {
    let database = Database::ready();
    let config = Config { columns: vec![added("a", "/a", Type::Text)], ..Config::default() };
    database.handle(&config, &[testing::state(1, "a", "Running")]);
    assert_eq!(column(&database.written(schema::STATUS)[0], 0, "a"), Value::Null);
    assert_eq!(database.reads.take().len(), 1);
    database.handle(&Config::default(), &[testing::state(2, "a", "Running")]);
    assert_eq!(*database.reads.borrow(), [] as [String; 0]);
}

#[test]
fn a_value_of_a_wrong_type_is_null_and_is_logged_once_with_its_number() {
    let database = Database::ready();
    *database.document.borrow_mut() = Some(r#"{"spec": {"size": {}}}"#.into());
    let config = Config { columns: vec![added("size", "/spec/size", Type::Integer)], ..Config::default() };
    let states = [testing::state(1, "a", "Running"), testing::state(2, "b", "Running")];
    assert_eq!(database.handle(&config, &states), [Verdict::Done, Verdict::Done]);
    database.handle(&config, &states);
    let logged = database.logged.borrow();
    assert_eq!(logged.len(), 1, "{logged:?}");
    for word in ["size", "/spec/size", "integer", "\"2\"", "default/a"] {
        assert!(logged[0].contains(word), "{word}: {}", logged[0]);
    }
    assert_eq!(column(&database.written(schema::HISTORY)[0], 1, "size"), Value::Null);
}

#[test]
fn a_number_that_no_float_can_hold_is_null_and_the_rest_of_the_document_is_read() {
    for documents in [Documents::Whole, Documents::Pruned] {
        let database = Database::ready();
        let document = r#"{"spec": {"big": 1e400, "a/b": [7, {"c": "text"}], "null": null}}"#;
        *database.document.borrow_mut() = Some(document.into());
        let columns = vec![
            added("big", "/spec/big", Type::Number),
            added("item", "/spec/a~1b/0", Type::Integer),
            added("deep", "/spec/a~1b/1/c", Type::Text),
            added("missing", "/spec/a~1b/2", Type::Text),
            added("nothing", "/spec/null", Type::Text),
        ];
        let config = Config { columns, documents, ..Config::default() };
        assert_eq!(database.handle(&config, &[testing::state(1, "a", "Running")]), [Verdict::Done]);
        let written = &database.written(schema::HISTORY)[0];
        let of = |name: &str| column(written, 0, name);
        assert_eq!((of("big"), of("item"), of("deep")), (Value::Null, Value::Integer(7), text("text")));
        assert_eq!((of("missing"), of("nothing")), (Value::Null, Value::Null));
        let logged = database.logged.borrow();
        assert!(logged.iter().all(|line| line.contains("/spec/big")), "{logged:?}");
    }
}

/// MySQL and MariaDB compare texts without the blanks at their end.
#[test]
fn uids_that_differ_in_blanks_at_their_end_have_rows_of_their_own() {
    let database = Database::ready();
    let state = |(seq, uid): (u64, &str)| {
        let mut state = testing::state(seq, "a", "Running");
        state.object.uid = uid.into();
        state
    };
    let states: Vec<_> = (1..).zip(["u", "u ", "u  "]).map(state).collect();
    database.handle(&Config::default(), &states);
    let written = &database.written(schema::HISTORY)[0];
    let uids = [0, 1, 2].map(|row| column(written, row, "uid"));
    assert_eq!(uids, [text("u"), text("u\u{2420}"), text("u\u{2420}\u{2420}")]);
}

#[test]
fn a_column_that_is_no_longer_configured_gets_null() {
    let database = Database::ready();
    database.columns.borrow_mut().extend([("old".into(), "text".into()), ("lost".into(), "text".into())]);
    database.lacks.borrow_mut().push("lost".into());
    database.handle(&Config::default(), &[testing::state(1, "a", "Running")]);
    let status = &database.written(schema::STATUS)[0];
    assert_eq!(column(status, 0, "old"), Value::Null);
    assert!(!status.columns.contains(&"lost".to_string()), "somebody removed it from the tables");
}

#[test]
fn late_states_and_gaps_are_history_and_not_the_status() {
    let mut late = testing::state(3, "a", "Pending");
    late.extra.push(("late".into(), "true".into()));
    let mut gap = testing::state(4, "a", "Running");
    gap.change = Change::Gap;
    let database = Database::ready();
    database.handle(&Config::default(), &[late, gap]);
    let writes = database.writes.borrow();
    assert_eq!((writes.len(), writes[0].table.as_str(), writes[0].rows.len()), (1, "object_history", 2));
    assert_eq!(column(&writes[0], 1, "change"), text("gap"));
}

#[test]
fn an_object_that_leaves_a_source_stays_if_another_source_shows_it() {
    let state = |seq, source: &str, change| {
        let mut state = testing::state(seq, "a", "Running");
        (state.source, state.change) = (source.into(), change);
        state
    };
    let statuses = |shown: &[(u64, &str, &str)], states: &[State]| {
        let database = Database::ready();
        let row = |(seq, source, change): &(u64, &str, &str)| {
            vec![text("uid-a"), (*seq).into(), text(source), text(change)]
        };
        *database.shown.borrow_mut() = shown.iter().map(row).collect();
        assert_eq!(database.handle(&Config::default(), states), vec![Verdict::Done; states.len()]);
        let written = database.written("object_status");
        let rows = |write: &TableWrite| {
            (0..write.rows.len()).map(|row| column(write, row, "change")).collect::<Vec<_>>()
        };
        written.iter().flat_map(rows).collect::<Vec<_>>()
    };
    let left = state(5, "narrow", Change::Left);
    assert_eq!(statuses(&[(4, "wide", "present")], std::slice::from_ref(&left)), [] as [Value; 0]);
    assert_eq!(statuses(&[(4, "narrow", "present")], std::slice::from_ref(&left)), [text("left")]);
    assert_eq!(statuses(&[(4, "wide", "left")], std::slice::from_ref(&left)), [text("left")]);
    assert_eq!(statuses(&[], std::slice::from_ref(&left)), [text("left")]);
    let wide = state(4, "wide", Change::Present);
    assert_eq!(statuses(&[(3, "narrow", "present")], &[wide, left]), [text("present")]);
}

/// The row of object_history that this state gets.
fn history_of(state: &State) -> Vec<Value> {
    let database = Database::ready();
    database.handle(&Config::default(), std::slice::from_ref(state));
    database.written(schema::HISTORY).remove(0).rows.remove(0)
}

#[test]
fn what_is_gone_is_deleted_whatever_its_last_status_was() {
    let mut state = testing::state(5, "a", "Running");
    state.change = Change::Gone;
    state.previous = Some(testing::status("Starting"));
    let row = history_of(&state);
    assert_eq!(
        (row[9].clone(), row[10].clone(), row[17].clone()),
        (text("gone"), text("Deleted"), Value::Integer(1))
    );
    assert_eq!((row[19].clone(), row[20].clone()), (Value::Null, text("1970-01-01T00:00:00.000Z")));
    assert_eq!(row[22], text("Starting"));
}

#[test]
fn a_pod_has_the_uid_of_its_job() {
    let mut state = testing::state(5, "a", "Running");
    state.owner = Some(testing::state(1, "job", "Running").object);
    let row = history_of(&state);
    assert_eq!(row[18..22], [text("Job"), text("job"), text("1970-01-01T00:00:00.000Z"), text("uid-job")]);
}

#[test]
fn texts_have_no_nul_and_a_bound_and_say_where_they_are_cut() {
    let mut state = testing::state(6, "a", "Failed");
    state.status.message = format!("a\0{}", "é".repeat(10_000));
    let Value::Text(message) = &history_of(&state)[12] else { panic!("not a text") };
    assert_eq!(*message, format!("a\u{fffd}{}…", "é".repeat((4096 - "a\0…".len()) / 2)));
    // The host's own cut stands as it is.
    state.status.message = format!("{}…", "m".repeat(1021));
    state.object.name = "n".repeat(1025);
    let row = history_of(&state);
    assert_eq!(row[12], text(&state.status.message));
    assert_eq!(row[6], text(&format!("{}…", "n".repeat(1021))));
}

#[test]
fn a_row_that_is_refused_is_rejected_alone() {
    let database = Database::ready();
    let bad = |write: &TableWrite| {
        let bad = write.table == schema::HISTORY && write.rows.iter().any(|row| row[6] == text("bad"));
        bad.then(|| Error::Invalid("NOT NULL constraint failed".into()))
    };
    *database.refuse.borrow_mut() = Some(Box::new(bad));
    let names = ["good", "bad", "fine"];
    let states: Vec<_> = (1..).zip(names).map(|(seq, name)| testing::state(seq, name, "Running")).collect();
    let verdicts = database.handle(&Config::default(), &states);
    assert!(
        matches!(verdicts.as_slice(), [Verdict::Done, Verdict::Reject(_), Verdict::Done]),
        "{verdicts:?}"
    );
}
