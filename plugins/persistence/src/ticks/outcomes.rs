//! Writes why objects ended badly: with `causes`, a tick asks the host for the outcomes that changed since
//! the last tick, and object_outcomes has a row for each object that ended badly. States cost nothing for it.
//!
//! The place up to which outcomes are written is a row of the same database, in the same transaction. So a
//! tick that is undone is repeated from the same place, and the last answer about an object stays. If the
//! host begins its order anew, as another replica does, all outcomes come once more. Then only rows that
//! differ are written.
//!
//! Rows are removed only if an outcome changes. The host proves the rows of earlier receipts by their
//! existence, and after a DELETE it would not know which of them should still exist.

use std::cell::Cell;
use std::collections::BTreeMap;

use kubewitness_sdk::outcomes::{self, ChangePage, ChangedOutcome, Explanation, Finding};
use kubewitness_sdk::sql::{self, OnConflict, TableWrite, Value};
use kubewitness_sdk::{Error, clock, time};

use crate::config::Config;
use crate::schema::{CURSORS, DATABASE, OUTCOME, OUTCOMES, PrefixedNames};
use crate::{rows, tables};

/// How many outcomes are read at once. The host may read hundreds of states for each, and a tick checks its
/// time only between pages.
const PAGE: u32 = 8;
/// How many pages a tick reads, and for how long: states wait meanwhile.
const PAGES: usize = 200;
const TICKING_MS: u64 = 2000;
const MESSAGE_BYTES: usize = 4096;
/// The row of [`CURSORS`].
const CURSOR: &str = "outcomes";
/// The prefix of the place while outcomes come that were written before.
const CATCHING_UP: char = '+';

thread_local! {
    /// Whether this instance has found or created the tables.
    pub static READY: Cell<bool> = const { Cell::new(false) };
}

/// The place up to which outcomes are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct OutcomeCursor {
    place: String,
    is_catching_up: bool,
    /// How often the place has changed. Its row is replaced by one with a higher number.
    moves: u64,
}

pub fn tick(config: &Config) -> Result<(), Error> {
    let ticked = write_changes(config);
    ticked.inspect_err(|_| READY.set(false))
}

fn write_changes(config: &Config) -> Result<(), Error> {
    let names = PrefixedNames(&config.prefix);
    if !READY.get() {
        tables::prepare_outcomes(config)?;
        READY.set(true);
    }
    let begun_ms = clock::now_ms();
    let before = cursor(names)?;
    let mut at = before.clone();
    for _ in 0..PAGES {
        let page = outcomes::changes(&at.place, PAGE)?;
        let is_catching_up = page.restarted || at.is_catching_up;
        write_page(config, &page, is_catching_up)?;
        at = OutcomeCursor { is_catching_up: is_catching_up && page.more, place: page.next, ..at };
        if !page.more || clock::now_ms().saturating_sub(begun_ms) > TICKING_MS {
            break;
        }
    }
    if at == before { Ok(()) } else { keep(names, &at) }
}

fn cursor(names: PrefixedNames<'_>) -> Result<OutcomeCursor, Error> {
    let asked = format!("SELECT place, moves FROM {} WHERE name = ?", names.of(CURSORS));
    let found = sql::query(DATABASE, &asked, &[CURSOR.into()])?;
    let Some([Value::Text(text), Value::Integer(moves)]) = found.first().map(Vec::as_slice) else {
        return Ok(OutcomeCursor::default());
    };
    let place = text.strip_prefix(CATCHING_UP);
    Ok(OutcomeCursor {
        is_catching_up: place.is_some(),
        place: place.unwrap_or(text).to_string(),
        moves: u64::try_from(*moves).unwrap_or_default(),
    })
}

fn keep(names: PrefixedNames<'_>, at: &OutcomeCursor) -> Result<(), Error> {
    let mark = if at.is_catching_up { String::from(CATCHING_UP) } else { String::new() };
    let moves = i64::try_from(at.moves).unwrap_or_default().saturating_add(1);
    let row = TableWrite {
        table: names.of(CURSORS),
        columns: ["name", "place", "moves"].map(str::to_string).to_vec(),
        key: vec!["name".to_string()],
        on_conflict: OnConflict::ReplaceOlder("moves".to_string()),
        rows: vec![vec![CURSOR.into(), (mark + &at.place).into(), moves.into()]],
    };
    sql::write(DATABASE, &row).map(drop)
}

/// Writes a page. If an object occurs twice, its last outcome counts.
fn write_page(config: &Config, page: &ChangePage, is_catching_up: bool) -> Result<(), Error> {
    let names = PrefixedNames(&config.prefix);
    let mut last: BTreeMap<&str, &ChangedOutcome> = BTreeMap::new();
    last.extend(page.outcomes.iter().map(|outcome| (outcome.uid.as_str(), outcome)));
    if last.is_empty() {
        return Ok(());
    }
    let written = written_rows(names, &last)?;
    if is_catching_up {
        last.retain(|uid, outcome| {
            let row = (outcome.seq, outcome.kind.clone().unwrap_or_default());
            written.get(*uid).map_or(outcome.kind.is_some(), |known| *known != row)
        });
    }
    if last.is_empty() {
        return Ok(());
    }
    let mut made = Vec::new();
    for outcome in last.values() {
        made.extend(row(config, outcome)?);
    }
    let changed = last.keys().map(|uid| sql::uid_text(uid)).filter(|uid| written.contains_key(uid.as_str()));
    let changed: Vec<_> = changed.map(|uid| vec![Value::from(uid)]).collect();
    if !changed.is_empty() {
        sql::execute(DATABASE, &format!("DELETE FROM {} WHERE uid = ?", names.of(OUTCOMES)), &changed)?;
    }
    if made.is_empty() {
        return Ok(());
    }
    let write = TableWrite {
        table: names.of(OUTCOMES),
        columns: OUTCOME.map(|(name, _)| name.to_string()).to_vec(),
        key: vec!["uid".to_string()],
        on_conflict: OnConflict::Ignore,
        rows: made,
    };
    sql::write(DATABASE, &write).map(drop)
}

/// The rows of these objects: the end, and the word for its cause.
fn written_rows(
    names: PrefixedNames<'_>,
    asked: &BTreeMap<&str, &ChangedOutcome>,
) -> Result<BTreeMap<String, (u64, String)>, Error> {
    let mut found = BTreeMap::new();
    let mut uids: Vec<Value> = asked.keys().map(|uid| sql::uid_text(uid).into()).collect();
    let Some(first) = uids.first().cloned() else { return Ok(found) };
    // The number of parameters is a power of two, so that the database prepares few statements.
    uids.resize(uids.len().next_power_of_two(), first);
    let places = vec!["?"; uids.len()].join(",");
    let question = format!("SELECT uid, seq, cause FROM {} WHERE uid IN ({places})", names.of(OUTCOMES));
    for row in sql::query(DATABASE, &question, &uids)? {
        if let Ok([Value::Text(uid), Value::Integer(seq), Value::Text(cause)]) = <[Value; 3]>::try_from(row) {
            found.insert(uid, (u64::try_from(seq).unwrap_or_default(), cause));
        }
    }
    Ok(found)
}

/// The row of an outcome. `None` if the object continues, or if its end is older than the kept rows.
fn row(config: &Config, outcome: &ChangedOutcome) -> Result<Option<Vec<Value>>, Error> {
    let Some(kind) = &outcome.kind else { return Ok(None) };
    let explained = match outcomes::explain(&outcome.source, &outcome.uid)? {
        Finding::Found(explained) => Some(explained),
        // The journal has no state of the object any more, or explains it anew and reports it again.
        Finding::Nothing | Finding::Pending | Finding::Other(_) => None,
    };
    let oldest_ms = config.keep.map(|keep| clock::now_ms().saturating_sub(keep.ms));
    if explained
        .as_ref()
        .is_some_and(|explained| oldest_ms.is_some_and(|oldest_ms| explained.ended_ms < oldest_ms))
    {
        return Ok(None);
    }
    Ok(Some(values(outcome, kind, explained.as_ref())))
}

fn word_of(text: &str) -> Value {
    rows::text(text).into()
}

fn values(outcome: &ChangedOutcome, kind: &str, explained: Option<&Explanation>) -> Vec<Value> {
    let word = |of: fn(&Explanation) -> &str| word_of(explained.map(of).unwrap_or_default());
    let long = |of: fn(&Explanation) -> &str| -> Value {
        sql::column_text(explained.map(of).unwrap_or_default(), MESSAGE_BYTES).into()
    };
    let maybe = |of: fn(&Explanation) -> &str| -> Value {
        explained.map(of).filter(|text| !text.is_empty()).map(rows::text).into()
    };
    let at = |ms: Option<u64>| -> Value { ms.map(time::rfc3339).unwrap_or_default().into() };
    let ended_ms = explained.map(|explained| explained.ended_ms);
    vec![
        sql::uid_text(&outcome.uid).into(),
        outcome.seq.into(),
        word_of(&outcome.source),
        word(|explained| &explained.object.kind),
        word_of(&outcome.namespace),
        word_of(&outcome.name),
        word_of(kind),
        long(|explained| &explained.headline),
        long(|explained| &explained.sentence),
        long(|explained| &explained.doubt),
        explained
            .and_then(|explained| explained.failed.as_ref())
            .map(|failed| rows::text(&failed.name))
            .into(),
        maybe(|explained| &explained.container),
        maybe(|explained| &explained.container_role),
        maybe(|explained| &explained.node),
        explained.and_then(|explained| explained.exit_code).into(),
        explained.and_then(|explained| explained.signal).into(),
        word(|explained| &explained.reason),
        long(|explained| &explained.message),
        maybe(|explained| &explained.by),
        at(explained.map(|explained| explained.cause_ms)),
        at(ended_ms),
        ended_ms.unwrap_or_default().into(),
    ]
}
