//! How tables come to be what the plugin writes.

use super::*;

fn one() -> [State; 1] {
    [testing::state(1, "a", "Pending")]
}

/// Why the plugin waits. No state may be parked for it.
fn waits(verdicts: &[Verdict]) -> &str {
    match verdicts {
        [Verdict::Retry(retry)] => &retry.reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn tables_are_made_with_a_version_and_looked_for_once() {
    let database = Rc::new(Database::default());
    database.handle(&Config::default(), &one());
    let made = database.statements.borrow().clone();
    assert!(
        made[0].starts_with("CREATE TABLE IF NOT EXISTS object_status (\"id\" TEXT NOT NULL, \"seq"),
        "{}",
        made[0]
    );
    assert!(made[1].ends_with("PRIMARY KEY (resource_version, id))"), "{}", made[1]);
    let noted = &database.written(schema::SCHEMA)[0].rows;
    assert_eq!(*noted, [vec![1_i64.into()], vec![2_i64.into()]]);
    let again = || Persistence::handle(&Config::default(), &[testing::state(2, "a", "Pending")]);
    testing::with_host(database.clone(), again);
    assert_eq!(database.statements.borrow().len(), made.len());
}

#[test]
fn tables_that_are_there_are_not_made_again() {
    let database = Database::ready();
    database.handle(&Config::default(), &one());
    assert_eq!(*database.statements.borrow(), [] as [String; 0]);
    assert_eq!(database.writes.borrow().len(), 3);
}

#[test]
fn the_tables_of_version_1_get_what_version_2_has_and_keep_the_rest() {
    let database = Rc::new(Database { version: RefCell::new(Some(1)), ..Database::default() });
    database.handle(&Config::default(), &one());
    let made = database.statements.borrow();
    let adds = |statement: &String| {
        statement.starts_with("ALTER TABLE ") && statement.contains(" ADD COLUMN ")
            || statement.starts_with("CREATE TABLE IF NOT EXISTS ")
    };
    assert!(made.len() == 5 && made.iter().all(adds), "{made:?}");
    assert_eq!(database.written(schema::SCHEMA)[0].rows, [vec![2_i64.into()]]);
}

#[test]
fn a_step_that_another_instance_did_meanwhile_is_no_fault() {
    for words in ["duplicate column name: owner_uid", "Duplicate column name 'owner_uid'"] {
        let database = Rc::new(Database { version: RefCell::new(Some(1)), ..Database::default() });
        *database.refuse_statements.borrow_mut() = Some(Error::Invalid(words.into()));
        assert_eq!(database.handle(&Config::default(), &one()), [Verdict::Done]);
    }
}

#[test]
fn each_database_gets_the_tables_in_its_own_types() {
    for (dialect, id, count) in [
        (Dialect::Postgres, "\"id\" TEXT NOT NULL", "\"ready\" BIGINT NOT NULL"),
        (Dialect::Mysql, "\"id\" VARCHAR(600) COLLATE utf8mb4_bin NOT NULL", "\"ready\" BIGINT NOT NULL"),
    ] {
        let database = Rc::new(Database { dialect: Cell::new(Some(dialect)), ..Database::default() });
        database.handle(&Config::default(), &one());
        let made = database.statements.borrow();
        assert!(made[0].contains(id) && made[1].contains(count), "{made:?}");
    }
}

#[test]
fn indexes_are_made_where_they_are_asked_for() {
    let database = Database::ready();
    database.handle(&Config { index: true, ..Config::default() }, &one());
    let made = database.statements.borrow();
    assert!(made.len() == 2 && made.iter().all(|made| made.starts_with("CREATE INDEX IF NOT EXISTS ")));
}

#[test]
fn what_finds_old_rows_is_made_where_they_are_deleted() {
    let database = Database::ready();
    let config: Config = serde_json::from_str(r#"{"keep": "90d"}"#).unwrap();
    database.handle(&config, &one());
    let made = database.statements.borrow();
    let history = "CREATE INDEX IF NOT EXISTS object_history_by_time ON object_history (observed_at)";
    assert!(made.len() == 2 && made[0] == history && made[1].contains("(changed_ms)"), "{made:?}");
}

#[test]
fn views_are_made_where_they_are_asked_for() {
    let database = Database::ready();
    database.handle(&Config { views: true, ..Config::default() }, &one());
    let made = database.statements.take();
    let views = made.iter().filter(|made| made.starts_with("CREATE VIEW IF NOT EXISTS object_")).count();
    assert!(made.len() == 6 && views == 5 && made[4] == "DROP VIEW IF EXISTS object_gpu_hours", "{made:?}");
    database.handle(&Config { views: true, create: false, ..Config::default() }, &one());
    assert!(database.statements.borrow().is_empty());
}

#[test]
fn tables_of_a_newer_version_are_left_alone() {
    let database = Rc::new(Database { version: RefCell::new(Some(3)), ..Database::default() });
    let verdicts = database.handle(&Config::default(), &one());
    assert!(waits(&verdicts).contains("version 3"), "{verdicts:?}");
    assert!(database.writes.borrow().is_empty());
}

#[test]
fn tables_that_vanished_are_made_again_at_the_next_try() {
    let database = Rc::new(Database::default());
    let gone = |_: &TableWrite| Some(Error::Invalid("no such table: object_history".into()));
    let states = one();
    database.handle(&Config::default(), &states);
    let made = database.statements.take();
    *database.version.borrow_mut() = Some(schema::VERSION);
    *database.refuse.borrow_mut() = Some(Box::new(gone));
    let verdicts = database.handle(&Config::default(), &states);
    assert!(waits(&verdicts).contains("no such table"), "{verdicts:?}");
    assert!(FOUND_TABLES.take().is_none() && MISSES_TABLE.get());
    *database.refuse.borrow_mut() = None;
    database.handle(&Config::default(), &states);
    assert_eq!(*database.statements.borrow(), made, "whatever the version says");
    assert!(!MISSES_TABLE.get());
}

#[test]
fn a_new_column_is_added_to_both_tables_and_noted_with_its_type() {
    let database = Database::ready();
    database.lacks.borrow_mut().extend(["queue".into(), "speed".into()]);
    let columns = vec![added("queue", "/a", Type::Text), added("speed", "/b", Type::Number)];
    let config = Config { columns, ..Config::default() };
    assert_eq!(database.handle(&config, &one()), [Verdict::Done]);
    let added = ["status", "history"].map(|table| {
        [r#""queue" TEXT"#, r#""speed" REAL"#]
            .map(|column| format!("ALTER TABLE object_{table} ADD COLUMN {column}"))
    });
    assert_eq!(*database.statements.borrow(), added.concat());
    let noted = &database.written(schema::COLUMNS_TABLE)[0];
    assert_eq!(noted.rows, [["queue", "text"], ["speed", "number"]].map(|row| row.map(text).to_vec()));
}

#[test]
fn where_a_column_is_not_known_yet_or_was_dropped_the_tables_are_looked_at_again() {
    for why in [
        "the table `object_status` has no column `queue`",
        "table object_status has no column named queue",
        "the table has no column: Unknown column 'queue' in 'INSERT INTO'",
    ] {
        let database = Database::ready();
        let stale =
            move |write: &TableWrite| (write.table == schema::STATUS).then(|| Error::Invalid(why.into()));
        *database.refuse.borrow_mut() = Some(Box::new(stale));
        let config = Config { columns: vec![added("queue", "/a", Type::Text)], ..Config::default() };
        let verdicts = database.handle(&config, &one());
        assert!(waits(&verdicts).contains("has no column"), "{verdicts:?}");
        assert!(FOUND_TABLES.take().is_none() && !MISSES_TABLE.get());
    }
}

#[test]
fn a_column_keeps_its_type_and_there_are_no_more_than_the_bound() {
    let database = Database::ready();
    database.columns.borrow_mut().insert("queue".into(), "text".into());
    let config = Config { columns: vec![added("queue", "/a", Type::Integer)], ..Config::default() };
    let verdicts = database.handle(&config, &one());
    assert!(waits(&verdicts).contains("another name"), "{verdicts:?}");
    let old = (0..127).map(|number| (format!("old_{number}"), "text".to_string()));
    database.columns.borrow_mut().extend(old);
    let config = |name: &str| Config { columns: vec![added(name, "/a", Type::Text)], ..Config::default() };
    assert_eq!(database.handle(&config("queue"), &one()), [Verdict::Done]);
    let verdicts = database.handle(&config("one_more"), &one());
    assert!(waits(&verdicts).contains("more than 128 columns"), "{verdicts:?}");
}

#[test]
fn without_the_right_to_make_tables_the_error_names_the_files() {
    let refused = Error::Unavailable("the database refuses it: permission denied for schema public".into());
    for (config, version, says) in [
        (Config::default(), None, "refuses it: permission denied"),
        (Config { create: false, ..Config::default() }, None, "tables are missing, and `create` is false"),
        (Config { create: false, prefix: "a_".into(), ..Config::default() }, Some(1), "have version 1"),
    ] {
        let dialect = Cell::new(Some(Dialect::Postgres));
        let database = Rc::new(Database { dialect, version: RefCell::new(version), ..Database::default() });
        *database.refuse_statements.borrow_mut() = Some(refused.clone());
        let verdicts = database.handle(&config, &one());
        let why = waits(&verdicts);
        assert!(why.contains(says) && why.contains("the files of deploy/schema/postgres"), "{why}");
        assert!(database.logged.borrow()[0].contains("the files of deploy/schema/postgres"));
        assert_eq!(why.contains("with a_ before"), !config.prefix.is_empty(), "{why}");
        assert_eq!(database.statements.borrow().is_empty(), !config.create);
    }
}

#[test]
fn a_column_for_an_administrator_is_told_as_statements() {
    let database = Database::ready();
    database.lacks.borrow_mut().push("queue".into());
    let columns = vec![added("queue", "/a", Type::Text)];
    let verdicts = database.handle(&Config { columns, create: false, ..Config::default() }, &one());
    let why = waits(&verdicts);
    for table in ["object_status", "object_history"] {
        assert!(why.contains(&format!("ALTER TABLE {table} ADD COLUMN \"queue\" TEXT")), "{why}");
    }
    assert!(database.statements.borrow().is_empty());
}

#[test]
fn statements_for_an_administrator_of_mysql_have_its_quotes() {
    for create in [false, true] {
        let database = Database::ready();
        database.dialect.set(Some(Dialect::Mysql));
        database.lacks.borrow_mut().push("order".into());
        let refused = Error::Unavailable("the database refuses it to its user".into());
        *database.refuse_statements.borrow_mut() = Some(refused);
        let columns = vec![added("order", "/a", Type::Text)];
        let verdicts = database.handle(&Config { columns, create, ..Config::default() }, &one());
        let why = waits(&verdicts);
        assert!(why.contains("ALTER TABLE object_status ADD COLUMN `order` "), "{why}");
        assert!(!why.contains('"') && !why.contains("the files of"), "{why}");
        assert_eq!(create, database.logged.borrow().iter().any(|line| line.contains("ADD COLUMN `order` ")));
    }
}

#[test]
fn every_name_has_the_prefix() {
    let database = Rc::new(Database::default());
    let config = Config { prefix: "batch_".into(), index: true, views: true, ..Config::default() };
    assert_eq!(database.handle(&config, &one()), [Verdict::Done]);
    let names = |text: &str| text.matches("object_").count() == text.matches("batch_object_").count();
    assert!(database.statements.borrow().iter().all(|statement| names(statement)));
    assert!(database.writes.borrow().iter().all(|write| write.table.starts_with("batch_object_")));
}
