//! Current objects and the ends of chains, against what the states tell.

use std::collections::HashMap;

use kubewitness_core::Seq;
use kubewitness_core::document::{checksum, unpack};
use kubewitness_core::ports::JournalError;
use sqlx::SqliteConnection;

use super::Findings;
use super::chains::Chains;
use crate::memory::Identity;
use crate::report::code;
use crate::rows::Key;
use crate::sqlite::fault::classify;
use crate::sqlite::read::key;

/// Objects of one query.
const PAGE: i64 = 512;

struct Row {
    object: i64,
    tail: Seq,
    newest: Seq,
    packed: Option<Vec<u8>>,
    /// Of the state that `newest` points to.
    version: Option<Key>,
    checksum: Option<u32>,
    newest_object: Option<i64>,
}

pub(super) async fn check(
    connection: &mut SqliteConnection,
    chains: &Chains,
    findings: &mut Findings,
) -> Result<(), JournalError> {
    let mut live: HashMap<&Identity, i64> = HashMap::new();
    let mut after = 0;
    loop {
        let rows = page(connection, after).await.map_err(classify)?;
        for row in &rows {
            after = row.object;
            if let Some(problem) = wrong(chains, row) {
                findings.add(
                    code::CURRENT,
                    Some(row.newest),
                    format!("current object {}: {problem}", row.object),
                );
            }
            if let Some(seen) = chains.seen.get(&row.object)
                && live.insert(&seen.identity, row.object).is_some()
            {
                let uid = &seen.identity.object.uid;
                findings.add(code::CURRENT, Some(row.newest), format!("{uid} is kept as current twice"));
            }
        }
        if (rows.len() as i64) < PAGE {
            break;
        }
    }
    ends(connection, chains, &live, findings).await.map_err(classify)
}

async fn page(connection: &mut SqliteConnection, after: i64) -> Result<Vec<Row>, sqlx::Error> {
    use sqlx::Row as _;
    let text = "SELECT c.object, c.tail, c.newest, c.packed, s.version, s.sums, s.object FROM current c \
                LEFT JOIN states s ON s.seq = c.newest WHERE c.object > ? ORDER BY c.object LIMIT ?";
    let rows = sqlx::query(text).bind(after).bind(PAGE).fetch_all(connection).await?;
    let read = |row: &sqlx::sqlite::SqliteRow| {
        Ok(Row {
            object: row.try_get(0)?,
            tail: row.try_get::<i64, _>(1)? as u64,
            newest: row.try_get::<i64, _>(2)? as u64,
            packed: row.try_get(3)?,
            version: key(row, 4)?,
            checksum: row.try_get::<Option<i64>, _>(5)?.map(|sums| sums as u32),
            newest_object: row.try_get(6)?,
        })
    };
    rows.iter().map(read).collect()
}

fn wrong(chains: &Chains, row: &Row) -> Option<String> {
    let Some(seen) = chains.seen.get(&row.object) else { return Some("it has no state".into()) };
    if row.newest_object != Some(row.object) {
        return Some(format!("state {} is not one of its own", row.newest));
    }
    // An object that moved on to a new epoch without a certain state there keeps its old end.
    let (tail, number) = chains.tails.get(&seen.identity).copied().unwrap_or_default();
    if number == row.object && tail != row.tail {
        return Some(format!("its chain ends at {tail}, and {} is kept", row.tail));
    }
    let version = row.version.as_ref().and_then(Key::version);
    if version != seen.newest {
        let newest = seen.newest.as_ref().map_or("none", |version| version.as_str());
        return Some(format!("its newest version is {newest}, and state {} is kept", row.newest));
    }
    let document = row.packed.as_deref().map(unpack);
    match document {
        Some(Ok(document)) if Some(checksum(&document)) == row.checksum => None,
        Some(Ok(_)) => Some(format!("its document is not that of state {}", row.newest)),
        Some(Err(error)) => Some(error.to_string()),
        None => Some("it has no document".into()),
    }
}

/// Objects that are not kept as current must have been ended by the writer, at their last state.
/// (Not always by a state: an object can leave its selector at a version that is there already.)
async fn ends(
    connection: &mut SqliteConnection,
    chains: &Chains,
    live: &HashMap<&Identity, i64>,
    findings: &mut Findings,
) -> Result<(), sqlx::Error> {
    let text = "SELECT id, tail FROM objects WHERE id > ? AND stream > 0 ORDER BY id LIMIT ?";
    let mut after = 0;
    loop {
        let rows: Vec<(i64, Option<i64>)> =
            sqlx::query_as(text).bind(after).bind(PAGE).fetch_all(&mut *connection).await?;
        for (object, tail) in &rows {
            after = *object;
            let Some(seen) = chains.seen.get(object) else {
                findings.add(code::CHAIN, None, format!("object {object} has no state"));
                continue;
            };
            let (end, number) = chains.tails.get(&seen.identity).copied().unwrap_or_default();
            let is_kept = live.get(&seen.identity) == Some(object);
            if number == *object && !is_kept && tail.map(|tail| tail as u64) != Some(end) {
                let uid = &seen.identity.object.uid;
                let (code, text) = match tail {
                    None => (code::CURRENT, format!("{uid} has not ended and is not kept as current")),
                    Some(tail) => (code::CHAIN, format!("the chain of {uid} ends here, and {tail} is kept")),
                };
                findings.add(code, Some(end), text);
            }
        }
        if (rows.len() as i64) < PAGE {
            return Ok(());
        }
    }
}
