//! Writes one transaction of appends, with one statement for each table.

use std::collections::BTreeMap;

use kubewitness_core::ports::JournalError;
use tokio::time::timeout;

use super::save::{write_replays, write_saves};
use crate::store::PluginWrites;
use crate::store::rows::discrepancies::{FoundDifferences, StreamRowChange};
use crate::store::rows::{ObjectOutcome, RowBatch, StateRow, StoreResult, StreamRow, checksum, uid};
use crate::store::server::connect::session::{ServerSession, WRITING};
use crate::store::server::engine::link::{ServerLink, Value, WriteResult, next};
use crate::store::server::engine::table::{
    ColumnMerge, DeleteStatement, InsertStatement, KeyConflict, RowsBatch, UpdateStatement, bytes_column,
    int_column,
};

const STREAMS: InsertStatement = InsertStatement {
    table: "kw_streams",
    columns: &[
        int_column("id"),
        bytes_column("source"),
        int_column("epoch"),
        bytes_column("checkpoint"),
        int_column("states"),
        int_column("last_event_ms"),
        int_column("sum"),
    ],
    key: &["id"],
    conflict: KeyConflict::Merge(&[
        ("checkpoint", ColumnMerge::New),
        ("states", ColumnMerge::Sum),
        ("last_event_ms", ColumnMerge::New),
        ("sum", ColumnMerge::New),
    ]),
};
const KINDS: InsertStatement = InsertStatement {
    table: "kw_kinds",
    columns: &[
        int_column("id"),
        bytes_column("api_group"),
        bytes_column("version"),
        bytes_column("kind"),
        int_column("sum"),
    ],
    key: &["id"],
    conflict: KeyConflict::Refuse,
};
const OBJECTS: InsertStatement = InsertStatement {
    table: "kw_objects",
    columns: &[
        int_column("id"),
        int_column("stream"),
        int_column("kind"),
        bytes_column("namespace"),
        bytes_column("name"),
        bytes_column("uid"),
        int_column("owner"),
        int_column("uid_key"),
        int_column("name_key"),
        int_column("sum"),
    ],
    key: &["id"],
    conflict: KeyConflict::Refuse,
};
const OWNED: InsertStatement = InsertStatement {
    table: "kw_owned",
    columns: &[int_column("owner"), int_column("object"), int_column("sum")],
    key: &["owner", "object"],
    conflict: KeyConflict::Keep,
};
const STATUSES: InsertStatement = InsertStatement {
    table: "kw_statuses",
    columns: &[int_column("id"), bytes_column("body"), int_column("sum")],
    key: &["id"],
    conflict: KeyConflict::Refuse,
};
const ANCHORS: InsertStatement = InsertStatement {
    table: "kw_anchors",
    columns: &[
        int_column("id"),
        int_column("stream"),
        int_column("checksum"),
        bytes_column("document"),
        int_column("sum"),
    ],
    key: &["id"],
    conflict: KeyConflict::Refuse,
};
pub(super) const STATES: InsertStatement = InsertStatement {
    table: "kw_states",
    columns: &[
        int_column("seq"),
        int_column("object"),
        bytes_column("version"),
        int_column("flags"),
        int_column("back"),
        int_column("status"),
        int_column("previous"),
        int_column("owner"),
        int_column("observed_ms"),
        bytes_column("at"),
        int_column("anchor"),
        int_column("sums"),
        bytes_column("document"),
    ],
    key: &["seq"],
    conflict: KeyConflict::Refuse,
};
const LIVE: InsertStatement = InsertStatement {
    table: "kw_current",
    columns: &[int_column("object"), int_column("newest"), int_column("tail")],
    key: &["object"],
    conflict: KeyConflict::Merge(&[("newest", ColumnMerge::New), ("tail", ColumnMerge::New)]),
};
const SNAPSHOTS: InsertStatement = InsertStatement {
    table: "kw_snapshots",
    columns: &[int_column("object"), int_column("seq"), bytes_column("packed")],
    key: &["object"],
    conflict: KeyConflict::Merge(&[("seq", ColumnMerge::New), ("packed", ColumnMerge::New)]),
};
const NOT_CURRENT: DeleteStatement = DeleteStatement { table: "kw_current", key: &[int_column("object")] };
const NO_SNAPSHOT: DeleteStatement = DeleteStatement { table: "kw_snapshots", key: &[int_column("object")] };
const ENDED: UpdateStatement = UpdateStatement {
    table: "kw_objects",
    key: &[int_column("id")],
    set: &[int_column("tail"), int_column("newest")],
};
const TALLIES: InsertStatement = InsertStatement {
    table: "kw_tallies",
    columns: &[int_column("segment"), int_column("stream"), int_column("states"), int_column("bytes")],
    key: &["segment", "stream"],
    conflict: KeyConflict::Merge(&[("states", ColumnMerge::Sum), ("bytes", ColumnMerge::Sum)]),
};
pub(super) const GAPS: InsertStatement = InsertStatement {
    table: "kw_gaps",
    columns: &[
        int_column("id"),
        int_column("stream"),
        int_column("seq"),
        bytes_column("bounds"),
        bytes_column("body"),
        int_column("sum"),
    ],
    key: &["id"],
    conflict: KeyConflict::Keep,
};
const POISON: InsertStatement = InsertStatement {
    table: "kw_poison",
    columns: &[
        int_column("id"),
        int_column("stream"),
        int_column("digest"),
        int_column("checksum"),
        int_column("observed_ms"),
        bytes_column("error"),
        bytes_column("raw"),
        int_column("sum"),
    ],
    key: &["id"],
    conflict: KeyConflict::Keep,
};

const DISCREPANCIES: InsertStatement = InsertStatement {
    table: "kw_discrepancies",
    columns: &[int_column("stream"), int_column("number"), bytes_column("body"), int_column("sum")],
    key: &["stream", "number"],
    conflict: KeyConflict::Refuse,
};
const OUTDATED: DeleteStatement =
    DeleteStatement { table: "kw_discrepancies", key: &[int_column("stream"), int_column("number")] };

impl ServerSession {
    /// Writes everything of one transaction of appends and saves.
    pub(crate) async fn write(&mut self, rows: Option<RowBatch>, left: &PluginWrites<'_>) -> StoreResult<()> {
        let done = timeout(WRITING, write_all(self.link_for_query()?, rows, left)).await;
        self.note_answer(done)
    }
}

async fn write_all(
    link: &mut dyn ServerLink,
    written: Option<RowBatch>,
    left: &PluginWrites<'_>,
) -> WriteResult {
    if let Some(written) = written {
        write_rows(link, written).await?;
    }
    write_saves(link, left).await?;
    write_replays(link, &left.replays).await
}

async fn write_rows(link: &mut dyn ServerLink, rows: RowBatch) -> WriteResult {
    write_shared_rows(link, &rows).await?;
    let streams = merge_stream_rows(rows.streams);
    let streams = RowsBatch::of(streams, |r| {
        let sum = r.row_checksum();
        let checkpoint = r.checkpoint.map_or(Value::Null, Value::from);
        [
            r.id.into(),
            r.source.into(),
            i64::from(r.epoch).into(),
            checkpoint,
            (r.states as i64).into(),
            r.last_event_ms.into(),
            sum.into(),
        ]
    });
    link.insert(&STREAMS, streams).await?;
    let objects = RowsBatch::of(rows.objects, |r| {
        let (uid_key, name_key, sum) = (uid::key(&r.uid), uid::key(&r.name), r.row_checksum());
        [
            r.id.into(),
            r.stream.into(),
            r.kind.into(),
            r.namespace.into(),
            r.name.into(),
            r.uid.into(),
            r.owner.into(),
            i64::from(uid_key).into(),
            i64::from(name_key).into(),
            i64::from(sum).into(),
        ]
    });
    link.insert(&OBJECTS, objects).await?;
    // The same pair can come from several objects' states.
    let owned: std::collections::BTreeSet<_> = rows.owned.into_iter().collect();
    link.insert(
        &OWNED,
        RowsBatch::of(owned, |(owner, object)| {
            [owner.into(), object.into(), checksum::sum_of_owned(owner, object).into()]
        }),
    )
    .await?;
    link.insert(&STATES, RowsBatch::of(rows.states, state_values)).await?;
    write_outcomes(link, rows.outcomes.into_iter().collect()).await?;
    let mut snapshots: Vec<_> = rows.snapshots.into_values().collect();
    snapshots.sort_unstable_by_key(|row| row.object);
    let snapshots =
        RowsBatch::of(snapshots, |r| [r.object.into(), (r.seq as i64).into(), r.packed.to_vec().into()]);
    link.insert(&SNAPSHOTS, snapshots).await?;
    let tallies = RowsBatch::of(rows.tallies, |((segment, stream), states)| {
        let bytes = rows.sizes.get(&(segment, stream)).copied().unwrap_or_default();
        [(segment as i64).into(), stream.into(), (states as i64).into(), (bytes as i64).into()]
    });
    link.insert(&TALLIES, tallies).await?;
    if !rows.gaps.is_empty() {
        let first = next(link, "SELECT coalesce(max(id), 0) + 1 FROM kw_gaps").await?;
        let gaps = RowsBatch::of((first..).zip(rows.gaps), |(id, r)| {
            let sum = r.row_checksum();
            [id.into(), r.stream.into(), (r.seq as i64).into(), r.key.into(), r.body.into(), sum.into()]
        });
        link.insert(&GAPS, gaps).await?;
    }
    if !rows.poison.is_empty() {
        let first = next(link, "SELECT coalesce(max(id), 0) + 1 FROM kw_poison").await?;
        let poison = RowsBatch::of((first..).zip(rows.poison), |(id, r)| {
            let sum = r.row_checksum();
            [
                id.into(),
                r.stream.into(),
                r.digest.into(),
                i64::from(r.checksum).into(),
                r.observed_ms.into(),
                r.error.into(),
                r.raw.into(),
                sum.into(),
            ]
        });
        link.insert(&POISON, poison).await?;
    }
    for found in rows.differences {
        write_differences(link, found).await?;
    }
    Ok(())
}

async fn write_differences(link: &mut dyn ServerLink, found: FoundDifferences) -> WriteResult {
    let stream = found.stream;
    let malformed = |error: JournalError| sqlx::Error::Decode(error.to_string().into());
    let text = "SELECT number, body FROM kw_discrepancies WHERE stream = ?";
    let mut kept = Vec::new();
    for mut row in link.fetch_rows(text, vec![stream.into()]).await? {
        kept.push((row.int_at(0).map_err(malformed)?, row.text(1).map_err(malformed)?));
    }
    let StreamRowChange { insert, remove } = found.row_change(&kept);
    link.run_delete(&OUTDATED, RowsBatch::of(remove, |number| [stream.into(), number.into()])).await?;
    let fresh = RowsBatch::of(insert, |(number, body)| {
        let sum = checksum::sum_of_discrepancy(stream, number, &body);
        [stream.into(), number.into(), body.into(), sum.into()]
    });
    link.insert(&DISCREPANCIES, fresh).await
}

pub(super) fn state_values(row: StateRow) -> [Value; 13] {
    let e = row.envelope;
    [
        (e.seq as i64).into(),
        e.object.into(),
        (&e.key).into(),
        e.flags.pack_bits().into(),
        (e.back as i64).into(),
        e.status.into(),
        e.previous.into(),
        e.owner.into(),
        e.observed_ms.into(),
        e.version.as_ref().into(),
        e.anchor.into(),
        e.both_checksums().into(),
        row.document.into(),
    ]
}

/// Merges several rows of one stream. Appends of one batch may go to the same stream, and the last row
/// counts.
fn merge_stream_rows(rows: Vec<StreamRow>) -> Vec<StreamRow> {
    let mut streams: BTreeMap<i64, StreamRow> = BTreeMap::new();
    for row in rows {
        match streams.get_mut(&row.id) {
            None => {
                streams.insert(row.id, row);
            }
            Some(before) => {
                before.states += row.states;
                (before.checkpoint, before.last_event_ms) = (row.checkpoint, row.last_event_ms);
            }
        }
    }
    streams.into_values().collect()
}

/// Writes the rows that other rows point to. They are rare once the journal has run for a while.
async fn write_shared_rows(link: &mut dyn ServerLink, rows: &RowBatch) -> WriteResult {
    let kinds = RowsBatch::of(rows.kinds.iter().cloned(), |(id, group, version, kind)| {
        let sum = checksum::sum_of_kind(id, &group, &version, &kind);
        [id.into(), group.into(), version.into(), kind.into(), sum.into()]
    });
    link.insert(&KINDS, kinds).await?;
    let statuses = RowsBatch::of(&rows.statuses, |(id, body)| {
        [(*id).into(), body.as_str().into(), checksum::sum_of_status(*id, body).into()]
    });
    link.insert(&STATUSES, statuses).await?;
    let anchors = RowsBatch::of(&rows.anchors, |r| {
        let (checksum, sum) = (i64::from(r.checksum), r.row_checksum());
        [r.id.into(), r.stream.into(), checksum.into(), r.packed.to_vec().into(), sum.into()]
    });
    link.insert(&ANCHORS, anchors).await
}

async fn write_outcomes(link: &mut dyn ServerLink, outcomes: Vec<(i64, ObjectOutcome)>) -> WriteResult {
    let mut live = Vec::new();
    let mut ended = Vec::new();
    for (object, outcome) in outcomes {
        match outcome {
            ObjectOutcome::Live { newest, tail } => live.push((object, newest, tail)),
            ObjectOutcome::Ended { newest, tail } => ended.push((object, newest, tail)),
        }
    }
    // In the order of the table, which touches fewer pages.
    live.sort_unstable();
    ended.sort_unstable();
    let live = RowsBatch::of(live, |(object, newest, tail)| {
        [object.into(), (newest as i64).into(), (tail as i64).into()]
    });
    link.insert(&LIVE, live).await?;
    for table in [&NOT_CURRENT, &NO_SNAPSHOT] {
        link.run_delete(table, RowsBatch::of(&ended, |(object, ..)| [(*object).into()])).await?;
    }
    let ended = RowsBatch::of(ended, |(object, newest, tail)| {
        [object.into(), (tail as i64).into(), (newest != 0).then_some(newest as i64).into()]
    });
    link.run_update(&ENDED, ended).await
}
