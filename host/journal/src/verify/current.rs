//! Checks current objects, their snapshots and the ends of chains against the states.

use std::collections::HashMap;

use kubewitness_core::document::{checksum, unpack_document};

use super::chains::ChainCheck;
use super::findings::ProblemList;
use crate::report::code;
use crate::store::StoreReader;
use crate::store::memory::ObjectIdentity;
use crate::store::rows::{EndRow, LiveRow, SnapshotRow, StateKey, StoreResult};

/// Objects of one query.
const PAGE: i64 = 512;

pub(super) async fn check(
    rows: &mut dyn StoreReader,
    chains: &ChainCheck,
    findings: &mut ProblemList,
) -> StoreResult<()> {
    let mut live: HashMap<&ObjectIdentity, i64> = HashMap::new();
    let mut after = 0;
    loop {
        let page = rows.live_rows(after, PAGE).await?;
        for row in &page {
            after = row.object;
            if let Some(problem) = find_contradiction(chains, row) {
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
                findings.add(
                    code::CURRENT,
                    Some(row.newest),
                    format!("{uid} is among the current objects twice"),
                );
            }
        }
        if (page.len() as i64) < PAGE {
            break;
        }
    }
    check_snapshots(rows, findings).await?;
    check_ends(rows, chains, &live, findings).await
}

fn find_contradiction(chains: &ChainCheck, row: &LiveRow) -> Option<String> {
    let Some(seen) = chains.seen.get(&row.object) else { return Some("it has no state".into()) };
    if row.newest_object != Some(row.object) {
        return Some(format!("state {} is of another object", row.newest));
    }
    // An object that continued in a new epoch without a certain state there keeps its old end.
    let (tail, number) = chains.tails.get(&seen.identity).copied().unwrap_or_default();
    if number == row.object && tail != row.tail {
        return Some(format!("its chain ends at {tail}, and the row says {}", row.tail));
    }
    let version = row.version.as_ref().and_then(StateKey::version);
    let newest = seen.life.newest_version();
    if version.as_ref() != newest {
        let newest = newest.map_or("none", |version| version.as_str());
        return Some(format!("its newest version is {newest}, and the row points to state {}", row.newest));
    }
    None
}

/// A snapshot is the whole document of a state of a current object.
async fn check_snapshots(rows: &mut dyn StoreReader, findings: &mut ProblemList) -> StoreResult<()> {
    let mut after = 0;
    loop {
        let page = rows.snapshot_rows(after, PAGE).await?;
        for row in &page {
            let SnapshotRow { object, seq, .. } = row.snapshot;
            after = object;
            let problem = match unpack_document(&row.snapshot.packed) {
                _ if row.state_object != Some(object) => format!("state {seq} is of another object"),
                _ if !row.is_current => "its object is not current".to_owned(),
                Err(error) => error.to_string(),
                Ok(document) if row.checksum != Some(checksum(&document)) => {
                    format!("it is not the document of state {seq}")
                }
                Ok(_) => continue,
            };
            findings.add(code::CURRENT, Some(seq), format!("the snapshot of object {object}: {problem}"));
        }
        if (page.len() as i64) < PAGE {
            return Ok(());
        }
    }
}

/// Objects that are not stored as current must have been ended by the writer, at their last state. (Not
/// always by a state of its own: an object can leave its selector at a version that is already stored.)
async fn check_ends(
    rows: &mut dyn StoreReader,
    chains: &ChainCheck,
    live: &HashMap<&ObjectIdentity, i64>,
    findings: &mut ProblemList,
) -> StoreResult<()> {
    let mut after = 0;
    loop {
        let page = rows.end_rows(after, PAGE).await?;
        for EndRow { object, tail, newest, newest_object, version } in &page {
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
                    None => (
                        code::CURRENT,
                        format!("{uid} has not ended and is missing among the current objects"),
                    ),
                    Some(tail) => {
                        (code::CHAIN, format!("the chain of {uid} ends here, and the row says {tail}"))
                    }
                };
                findings.add(code, Some(end), text);
            }
            let is_own = newest.is_none() || *newest_object == Some(*object);
            if number == *object && !is_kept && (!is_own || version.as_ref() != seen.life.newest_version()) {
                let uid = &seen.identity.object.uid;
                let text = format!(
                    "the state that is stored as the newest of {uid} does not have its newest version"
                );
                findings.add(code::CURRENT, newest.map(|newest| newest as u64), text);
            }
        }
        if (page.len() as i64) < PAGE {
            return Ok(());
        }
    }
}
