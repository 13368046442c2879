//! Writes what plugins save (progress, dead letters, keys) and the records of replays and drops.

use std::collections::BTreeMap;

use kubewitness_core::Seq;
use kubewitness_core::ports::{DeadLetter, KvWrite};

use crate::store::PluginWrites;
use crate::store::rows::checksum::{self, LetterColumns};
use crate::store::rows::{LetterMarking, OWED_STATE, OperatorAct};
use crate::store::server::engine::link::{ServerLink, SqlParam, WriteResult, next};
use crate::store::server::engine::table::{
    ColumnMerge, DeleteStatement, InsertStatement, KeyConflict, RowsBatch, bytes_column, int_column,
};

const PLUGINS: InsertStatement = InsertStatement {
    table: "kw_plugins",
    columns: &[bytes_column("name"), bytes_column("progress"), int_column("sum")],
    key: &["name"],
    conflict: KeyConflict::Merge(&[("progress", ColumnMerge::New), ("sum", ColumnMerge::New)]),
};
const LETTERS: InsertStatement = InsertStatement {
    table: "kw_letters",
    columns: &[
        bytes_column("plugin"),
        int_column("seq"),
        bytes_column("id"),
        int_column("attempts"),
        bytes_column("error"),
        int_column("first_ms"),
        int_column("last_ms"),
        int_column("replaying"),
        bytes_column("tries"),
        int_column("sum"),
    ],
    key: &["plugin", "seq"],
    conflict: KeyConflict::Merge(&[
        ("id", ColumnMerge::New),
        ("attempts", ColumnMerge::New),
        ("error", ColumnMerge::New),
        ("first_ms", ColumnMerge::New),
        ("last_ms", ColumnMerge::New),
        ("replaying", ColumnMerge::New),
        ("tries", ColumnMerge::New),
        ("sum", ColumnMerge::New),
    ]),
};
pub(super) const REVIVED: DeleteStatement =
    DeleteStatement { table: "kw_letters", key: &[bytes_column("plugin"), int_column("seq")] };
const KV: InsertStatement = InsertStatement {
    table: "kw_kv",
    columns: &[bytes_column("plugin"), bytes_column("name"), bytes_column("value"), int_column("sum")],
    key: &["plugin", "name"],
    conflict: KeyConflict::Merge(&[("value", ColumnMerge::New), ("sum", ColumnMerge::New)]),
};
pub(super) const KV_DELETE: DeleteStatement =
    DeleteStatement { table: "kw_kv", key: &[bytes_column("plugin"), bytes_column("name")] };
const REPLAYS: InsertStatement = InsertStatement {
    table: "kw_replays",
    columns: &[
        int_column("id"),
        bytes_column("plugin"),
        bytes_column("who"),
        bytes_column("why"),
        bytes_column("seqs"),
        int_column("at_ms"),
        bytes_column("what"),
        int_column("sum"),
    ],
    key: &["id"],
    conflict: KeyConflict::Refuse,
};

/// Progress, dead letters, keys and notes of several plugins. If a plugin has two saves, the last counts.
pub(super) async fn write_saves(link: &mut dyn ServerLink, left: &PluginWrites<'_>) -> WriteResult {
    let mut progress = BTreeMap::new();
    // By key: `None` for a state that is owed.
    let mut letters: BTreeMap<(&str, Seq), Option<&DeadLetter>> = BTreeMap::new();
    let mut revived = Vec::new();
    let mut kv: BTreeMap<(&str, &str), Option<&Vec<u8>>> = BTreeMap::new();
    for (plugin, save) in &left.saves {
        progress.insert(*plugin, &save.progress);
        revived.extend(save.revived.iter().map(|seq| (*plugin, *seq)));
        letters.extend(save.owed.iter().map(|seq| ((*plugin, *seq), None)));
        letters.extend(save.parked.iter().map(|letter| ((*plugin, letter.seq), Some(letter))));
    }
    for (plugin, KvWrite { key, value }) in left.kv_writes() {
        kv.insert((plugin, key), value.as_ref());
    }
    let progress = RowsBatch::of(progress, |(plugin, progress)| {
        let body = serde_json::to_string(progress).expect("strings and numbers always serialize");
        let sum = checksum::sum_of_plugin(plugin, &body);
        [plugin.into(), body.into(), sum.into()]
    });
    link.insert(&PLUGINS, progress).await?;
    link.run_delete(&REVIVED, RowsBatch::of(revived, |(plugin, seq)| [plugin.into(), (seq as i64).into()]))
        .await?;
    let letters = RowsBatch::of(letters, |((plugin, seq), letter)| {
        let tries = letter.map(|letter| serde_json::to_string(&letter.tries));
        let tries = tries.transpose().expect("strings and numbers always serialize").unwrap_or_default();
        let (mark, columns) = match letter {
            Some(letter) => (OperatorAct::mark_of(letter), LetterColumns::of(plugin, letter, &tries)),
            None => (OWED_STATE, LetterColumns::owed_row(plugin, seq)),
        };
        [
            plugin.into(),
            columns.seq.into(),
            columns.id.into(),
            columns.attempts.into(),
            columns.error.into(),
            columns.first_ms.into(),
            columns.last_ms.into(),
            mark.into(),
            columns.tries.into(),
            columns.row_checksum(mark).into(),
        ]
    });
    link.insert(&LETTERS, letters).await?;
    let sets = kv.iter().filter_map(|(place, value)| Some((place, (*value)?)));
    let sets = RowsBatch::of(sets, |((plugin, key), value)| {
        let sum = checksum::key_value(plugin, key, value);
        [(*plugin).into(), (*key).into(), value.clone().into(), sum.into()]
    });
    link.insert(&KV, sets).await?;
    let deletes = kv.iter().filter(|(_, value)| value.is_none());
    let deletes = RowsBatch::of(deletes, |((plugin, key), _)| [(*plugin).into(), (*key).into()]);
    link.run_delete(&KV_DELETE, deletes).await
}

/// Marks dead letters as being replayed or dropped, and records who did it and why. A pause has only the
/// record.
pub(super) async fn write_replays(link: &mut dyn ServerLink, replays: &[LetterMarking]) -> WriteResult {
    if replays.is_empty() {
        return Ok(());
    }
    let text = "UPDATE kw_letters SET replaying = ?, \
                sum = mod(sum, 4294967296) + CAST(? AS @BIGINT) * 4294967296 \
                WHERE plugin = ? AND seq IN (SELECT q.v FROM @numbers)";
    for LetterMarking { act, plugin, seqs, .. } in replays {
        let seqs: Vec<i64> = seqs.iter().map(|seq| *seq as i64).collect();
        let Some(mark) = act.letter_mark() else { continue };
        let params = vec![mark.into(), mark.into(), plugin.as_str().into(), SqlParam::Numbers(seqs)];
        link.fetch_rows(text, params).await?;
    }
    let first = next(link, "SELECT coalesce(max(id), 0) + 1 FROM kw_replays").await?;
    let records = RowsBatch::of((first..).zip(replays), |(id, replay)| {
        let LetterMarking { act, plugin, seqs, who, why, at_ms } = replay;
        let seqs = serde_json::to_string(seqs).expect("numbers always serialize");
        let sum = checksum::sum_of_replay(plugin, act.as_str(), who, why, &seqs, *at_ms as i64);
        [
            id.into(),
            plugin.as_str().into(),
            who.as_str().into(),
            why.as_str().into(),
            seqs.into(),
            (*at_ms as i64).into(),
            act.as_str().into(),
            sum.into(),
        ]
    });
    link.insert(&REPLAYS, records).await
}
