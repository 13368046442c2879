//! Checks the rows beside the states: those with their own checksums, records of gaps, poison messages, and
//! lookup keys of objects.

use std::collections::HashMap;

use kubewitness_core::document::checksum;
use kubewitness_core::{Gap, Seq};

use super::findings::{ProblemList, text_of};
use crate::report::code;
use crate::store::StoreReader;
use crate::store::rows::checksum::{self, SumCell, SummedTable};
use crate::store::rows::{ObjectChoice, StoreResult, uid};

/// Rows of one query.
const PAGE: i64 = 512;

/// `gaps` are the states that are gaps, with the checksums of their content.
pub(super) async fn check(
    rows: &mut dyn StoreReader,
    gaps: HashMap<Seq, u32>,
    findings: &mut ProblemList,
) -> StoreResult<()> {
    let mut records = RowRecords { gaps, last_replay: 0, missing_replays: 0 };
    for table in &checksum::TABLES {
        // Numbers begin at 1, but a damaged one may be smaller.
        let mut after = if table.is_numbered() { i64::MIN } else { 0 };
        loop {
            let page = rows.sealed_rows(table, after, PAGE).await?;
            for cells in &page {
                if !table.is_sound(cells) {
                    let text = format!("{} differs from what was written", table.describe_row(cells));
                    findings.add(table.code, None, text);
                }
                records.check_row(rows, table, cells, findings).await?;
            }
            after = match page.last().and_then(|cells| cells[0].as_int()) {
                Some(number) if table.is_numbered() => number,
                _ => after + page.len() as i64,
            };
            if (page.len() as i64) < PAGE {
                break;
            }
        }
    }
    let removed = rows.retention_reader().removed_counts().await?.records;
    if records.missing_replays != removed {
        let (missing, last) = (records.missing_replays, records.last_replay);
        let text = format!("{missing} records up to {last} are missing, and retention removed {removed}");
        findings.add(code::RECORD, None, text);
    }
    for seq in records.gaps.into_keys() {
        findings.add(code::GAP, Some(seq), "the record of its gap is missing");
    }
    check_indexes(rows, findings).await?;
    check_owners(rows, findings).await
}

/// The records with which some of these rows must agree, in addition to their checksums.
struct RowRecords {
    /// States whose record was not found yet.
    gaps: HashMap<Seq, u32>,
    last_replay: i64,
    /// Numbers of records that were not found. Retention must have removed as many.
    missing_replays: u64,
}

impl RowRecords {
    async fn check_row(
        &mut self,
        rows: &mut dyn StoreReader,
        table: &SummedTable,
        cells: &[SumCell],
        findings: &mut ProblemList,
    ) -> StoreResult<()> {
        match table.name {
            "gaps" => self.check_gap(cells, findings),
            "replays" => self.check_replay(cells, findings),
            "poison" => check_poison(rows, cells, findings).await?,
            _ => {}
        }
        Ok(())
    }

    /// The record of an object's gap repeats the document of its state.
    fn check_gap(&mut self, cells: &[SumCell], findings: &mut ProblemList) {
        let (id, seq, body) = (cells[0].as_int().unwrap_or_default(), cells[2].as_int(), cells[4].text());
        let gap = body.and_then(|body| serde_json::from_str::<Gap>(body).ok());
        if gap.is_none() {
            findings.add(code::GAP, None, format!("gap {id} does not decode"));
        }
        // Its content is checked with its state.
        let Some(seq) = seq.filter(|seq| *seq != 0).map(|seq| seq as Seq) else { return };
        let expected = self.gaps.remove(&seq);
        if expected.is_none() || expected != body.map(|body| checksum(body.as_bytes())) {
            findings.add(code::GAP, Some(seq), format!("gap {id} differs from what its state says"));
        }
    }

    /// Their numbers are 1, 2, 3, …, and only retention removes some. Numbers of a damaged row may be
    /// anything.
    fn check_replay(&mut self, cells: &[SumCell], findings: &mut ProblemList) {
        let id = cells[0].as_int().unwrap_or_default();
        let last = std::mem::replace(&mut self.last_replay, id);
        let skipped = id.checked_sub(last).and_then(|step| step.checked_sub(1));
        match skipped.and_then(|skipped| u64::try_from(skipped).ok()) {
            Some(skipped) => self.missing_replays = self.missing_replays.saturating_add(skipped),
            None => findings.add(code::RECORD, None, format!("record {id} comes after record {last}")),
        }
    }
}

/// One at a time, because each may be as large as a frame.
async fn check_poison(
    rows: &mut dyn StoreReader,
    cells: &[SumCell],
    findings: &mut ProblemList,
) -> StoreResult<()> {
    let id = cells[0].as_int().unwrap_or_default();
    let raw = rows.poison_raw(id as u64).await?;
    if raw.map(|raw| i64::from(checksum(&raw))) != cells[3].as_int() {
        findings.add(
            code::POISON,
            None,
            format!("the bytes of poison {id} differ from those that the API server sent"),
        );
    }
    Ok(())
}

/// Checks that the lookup keys of an object match its uid and its name.
async fn check_indexes(rows: &mut dyn StoreReader, findings: &mut ProblemList) -> StoreResult<()> {
    let mut after = 0;
    loop {
        let page = rows.object_keys(after, PAGE).await?;
        let numbers: Vec<i64> = page.iter().map(|(id, ..)| *id).collect();
        let known = match rows.find_objects(ObjectChoice::Numbers(&numbers)).await {
            Ok(known) => known,
            Err(error) => {
                findings.add(code::ENVELOPE, None, text_of(error));
                Vec::new()
            }
        };
        let known: HashMap<i64, _> = known.into_iter().map(|(id, named)| (id, named.object)).collect();
        for (id, uid_key, name_key) in &page {
            after = *id;
            let keys = known.get(id).map(|object| (uid::key(&object.uid), uid::key(&object.name)));
            let keys = keys.map(|(uid, name)| (i64::from(uid), i64::from(name)));
            if keys.is_some_and(|keys| keys != (*uid_key, *name_key)) {
                let text = format!("a lookup by uid or name does not find object {id}");
                findings.add(code::INDEX, None, text);
            } else if keys.is_none() && !known.is_empty() {
                findings.add(code::ENVELOPE, None, format!("the kind of object {id} is missing"));
            }
        }
        if (page.len() as i64) < PAGE {
            return Ok(());
        }
    }
}

async fn check_owners(rows: &mut dyn StoreReader, findings: &mut ProblemList) -> StoreResult<()> {
    for (owner, object) in rows.wrong_owner_links().await? {
        let text = format!(
            "the row by which {owner} owns {object} differs from what was written, or {owner} is missing"
        );
        findings.add(code::INDEX, None, text);
    }
    for object in rows.missing_owner_links().await? {
        findings.add(code::INDEX, None, format!("a lookup by owner does not find object {object}"));
    }
    Ok(())
}
