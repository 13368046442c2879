//! Changes single bytes of a journal. Each change is found, or changes no answer.

use kubewitness_chance::{Dice, ReplayHint, SeedPlan};
use kubewitness_core::ports::{Backlog, StateWitness};
use kubewitness_journal::{ExportQuery, JournalLocation, export_journal, verify_file};

use crate::proof::damage::sound;
use crate::support::{SOURCE, StoreKind, TestJournal, on_every_store, open};

/// Each table with the columns of its key. A missing table fails the test.
const TABLES: [(&str, &str); 18] = [
    ("streams", "id"),
    ("kinds", "id"),
    ("objects", "id"),
    ("owned", "owner, object"),
    ("statuses", "id"),
    ("anchors", "id"),
    ("states", "seq"),
    ("current", "object"),
    ("snapshots", "object"),
    ("tallies", "segment, stream"),
    ("gaps", "id"),
    ("poison", "id"),
    ("discrepancies", "stream, number"),
    ("plugins", "name"),
    ("letters", "plugin, seq"),
    ("taken", "plugin"),
    ("kv", "plugin"),
    ("replays", "id"),
];

/// How often a change is tried: a change of one of sixteen bits rarely gives the value of another row.
const TRIES: u32 = 32;
/// Columns with numbers that people use, which mean nothing to the journal.
const HARMLESS: [(&str, &str); 2] = [("gaps", "id"), ("poison", "id")];

/// This column has content only for an object that has ended, which is the fifth.
const ENDED: (&str, [&str; 2], u64) = ("objects", ["tail", "newest"], 4);

/// A value as a literal of its store, with one bit changed. `found` is `i` and a number, or `b` or `t` and
/// hexadecimal digits, or `n` or `m` for NULL or no bytes.
fn changed(found: &str, dice: &mut Dice) -> String {
    let (kind, value) = found.split_at(1);
    let literal = |hex: &str| match (StoreKind::here(), kind) {
        (StoreKind::Postgres, _) => format!("decode('{hex}', 'hex')"),
        (_, "t") => format!("CAST(x'{hex}' AS TEXT)"),
        _ => format!("x'{hex}'"),
    };
    match kind {
        "n" => "7".into(),
        "m" => literal("31"),
        "i" => (value.parse::<i64>().unwrap() ^ 1 << dice.below(16)).to_string(),
        _ if value.is_empty() => literal("31"),
        _ => {
            let mut digits: Vec<char> = value.chars().collect();
            // A bit in the lower half of a byte, so that a text stays valid.
            let place = dice.below(digits.len() as u64 / 2) as usize * 2 + 1;
            let digit = digits[place].to_digit(16).unwrap() ^ 1 << dice.below(3);
            digits[place] = char::from_digit(digit, 16).unwrap();
            literal(&digits.into_iter().collect::<String>())
        }
    }
}

async fn columns(desk: &TestJournal, table: &str) -> Vec<String> {
    let of = |schema| {
        format!("information_schema.columns WHERE table_schema = {schema} AND table_name = 'kw_{table}'")
    };
    let list = match StoreKind::here() {
        StoreKind::Sqlite => format!("SELECT group_concat(name, ',') FROM pragma_table_info('{table}')"),
        StoreKind::Postgres => format!(
            "SELECT string_agg(column_name, ',' ORDER BY ordinal_position) FROM {}",
            of("current_schema()")
        ),
        StoreKind::MariaDb | StoreKind::Mysql => {
            format!("SELECT group_concat(column_name ORDER BY ordinal_position) FROM {}", of("database()"))
        }
    };
    desk.ask(&list).await.split(',').map(str::to_owned).collect()
}

/// The number of the journal's tables.
async fn tables(desk: &TestJournal) -> i64 {
    let text = match StoreKind::here() {
        StoreKind::Sqlite => "SELECT count(*) FROM sqlite_schema WHERE type = 'table'",
        StoreKind::Postgres => {
            "SELECT count(*) FROM information_schema.tables WHERE table_schema = current_schema() \
             AND table_name LIKE 'kw\\_%'"
        }
        StoreKind::MariaDb | StoreKind::Mysql => {
            "SELECT count(*) FROM information_schema.tables WHERE table_schema = database() \
             AND table_name LIKE 'kw\\_%'"
        }
    };
    // A journal on a server has four more, for writers and watchers.
    desk.ask(text).await.parse::<i64>().unwrap() - if StoreKind::here() == StoreKind::Sqlite { 0 } else { 4 }
}

async fn value(desk: &TestJournal, table: &str, column: &str, place: &str) -> String {
    let read = match StoreKind::here() {
        StoreKind::Sqlite => format!(
            "CASE typeof({column}) WHEN 'null' THEN 'n' WHEN 'integer' THEN 'i' || {column} \
             WHEN 'text' THEN 't' || hex({column}) ELSE 'b' || hex({column}) END"
        ),
        StoreKind::Postgres => format!(
            "CASE WHEN {column} IS NULL AND pg_typeof({column}) = 'bigint'::regtype THEN 'n' \
             WHEN {column} IS NULL THEN 'm' WHEN pg_typeof({column}) = 'bigint'::regtype \
             THEN 'i' || {column}::text ELSE 'b' || substr({column}::text, 3) END"
        ),
        StoreKind::MariaDb | StoreKind::Mysql => {
            let name = format!("kw_{table}");
            let kind = format!(
                "SELECT data_type FROM information_schema.columns WHERE table_schema = database() \
                 AND table_name = '{name}' AND column_name = '{column}'"
            );
            match desk.ask(&kind).await.as_str() {
                "bigint" => format!("coalesce(concat('i', {column}), 'n')"),
                _ => format!("coalesce(concat('b', hex({column})), 'm')"),
            }
        }
    };
    let prefix = StoreKind::here().prefix();
    desk.ask(&format!("SELECT {read} FROM {prefix}{table} {place}")).await
}

/// A changed value that no other row has: the store itself refuses two rows with the same key.
async fn changed_to_unused(
    desk: &TestJournal,
    table: &str,
    column: &str,
    found: &str,
    dice: &mut Dice,
) -> String {
    let prefix = StoreKind::here().prefix();
    for _ in 0..TRIES {
        let new = changed(found, dice);
        if desk.ask(&format!("SELECT count(*) FROM {prefix}{table} WHERE {column} = {new}")).await == "0" {
            return new;
        }
    }
    panic!("{TRIES} changes of {found} in {column} of {table} are values of other rows");
}

/// Changes each column of each table in a random row. `KUBEWITNESS_SEEDS=20` tries more rows.
async fn a_changed_value_of_any_column_is_found() {
    for seed in (SeedPlan { test: "a_changed_value", fixed: 1, fresh: 0 }).list() {
        let _replay = ReplayHint { package: "kubewitness-journal", test: "a_changed_value", seed };
        changed_values_are_found(seed).await;
    }
}

async fn changed_values_are_found(seed: u64) {
    let desk = sound().await;
    desk.run("INSERT INTO @taken (plugin, finished, untold, sum) VALUES ('audit', 0, 0, 0)").await;
    desk.assert_sound().await;
    let mut dice = Dice::new(seed);
    assert_eq!(tables(&desk).await, TABLES.len() as i64, "a table is not covered here");
    let (mut missed, mut tried) = (Vec::new(), 0);
    for (table, key) in TABLES {
        let name = format!("{}{table}", StoreKind::here().prefix());
        let rows: u64 = desk.ask(&format!("SELECT count(*) FROM {name}")).await.parse().unwrap();
        assert!(rows > 0, "{table} is empty: its columns were not tried");
        desk.keep(&name).await;
        for column in columns(&desk, table).await {
            let row = match ENDED {
                (of, columns, row) if of == table && columns.contains(&column.as_str()) => row,
                _ => dice.below(rows),
            };
            let place = format!("ORDER BY {key} LIMIT 1 OFFSET {row}");
            let found = value(&desk, table, &column, &place).await;
            let new = changed_to_unused(&desk, table, &column, &found, &mut dice).await;
            // The subquery has a name, because MySQL can't read a table that it changes.
            let chosen = format!("SELECT {key} FROM (SELECT {key} FROM {name} {place}) AS chosen");
            let update = format!("UPDATE {name} SET {column} = {new} WHERE ({key}) = ({chosen})");
            tried += 1;
            // The two stores differ little, so each takes every other column.
            if matches!((StoreKind::here(), tried % 2), (StoreKind::MariaDb, 0) | (StoreKind::Mysql, 1)) {
                continue;
            }
            desk.run(&update).await;
            if desk.verify().await.ok && !HARMLESS.contains(&(table, column.as_str())) {
                missed.push(update);
            }
            desk.put_back(&name).await;
        }
        desk.let_go().await;
    }
    assert!(missed.is_empty(), "these were not found:\n{}", missed.join("\n"));
    desk.assert_sound().await;
}

on_every_store!(a_changed_value_of_any_column_is_found);

/// The whole content of a journal.
async fn exported_text(path: &std::path::Path) -> Result<String, String> {
    let mut out = Vec::new();
    let query = ExportQuery { documents: true, ..ExportQuery::default() };
    export_journal(&JournalLocation::file(path), &query, &mut out)
        .await
        .map_err(|error| error.to_string())?;
    let journal = open(path.to_path_buf()).await;
    let beside = format!(
        "{:?}\n{:?}\n{:?}\n{:?}\n{:?}\n{:?}\n{:?}\n{:?}\n{:?}",
        journal.plugin_progress("audit").await,
        journal.dead_letters("audit").await,
        journal.plugin_kv("audit").await,
        journal.replay_records(None, u64::MAX, 100).await,
        journal.all_gaps().await,
        journal
            .poison_records(None, 10)
            .await
            .map(|poison| poison.into_iter().map(|one| (one.error, one.raw)).collect::<Vec<_>>()),
        journal.source_epochs().await,
        journal.removed_before_delivery().await,
        journal.load_warm_start(SOURCE).await.map(|warm| warm
            .objects
            .into_iter()
            .map(|one| (one.object, one.seq))
            .collect::<Vec<_>>()),
    );
    journal.close().await.map_err(|error| error.to_string())?;
    Ok(format!("{}{beside}", String::from_utf8_lossy(&out)))
}

#[tokio::test]
async fn a_bit_of_the_file_that_turns_round_is_found_or_changes_nothing() {
    let seeds = SeedPlan { test: "a_bit_of_the_file", fixed: 0, fresh: 150 };
    let flips = seeds.list();
    let desk = sound().await;
    let bytes = std::fs::read(desk.path()).unwrap();
    let expected = exported_text(&desk.path()).await.unwrap();
    let path = desk.path().with_file_name("flipped.db");
    let (mut found, mut harmless) = (0, 0);
    for &seed in &flips {
        let _replay = ReplayHint { package: "kubewitness-journal", test: seeds.test, seed };
        let mut dice = Dice::new(seed);
        // Most bytes of so small a file are unused zeros; written bytes are rarely zero.
        let mut place = dice.below(bytes.len() as u64) as usize;
        while bytes[place] == 0 && dice.below(8) > 0 {
            place = dice.below(bytes.len() as u64) as usize;
        }
        let bit = dice.below(8);
        let mut flipped = bytes.clone();
        flipped[place] ^= 1 << bit;
        std::fs::write(&path, &flipped).unwrap();
        if verify_file(&path).await.is_ok_and(|report| report.ok) {
            let exported = exported_text(&path).await;
            assert!(
                exported.as_ref() == Ok(&expected),
                "bit {bit} of byte {place} was not found and changes what is told"
            );
            harmless += 1;
        } else {
            found += 1;
        }
        for beside in ["-wal", "-shm", ".lock"] {
            // These files do not exist each time.
            drop(std::fs::remove_file(format!("{}{beside}", path.display())));
        }
    }
    println!("{found} were found, {harmless} changed nothing, of {} bytes", bytes.len());
    assert!(!seeds.include_fixed() || found > flips.len() / 4, "{found} of {} were found", flips.len());
}
