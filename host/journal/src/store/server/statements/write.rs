//! Writes one transaction of appends, with one statement for each table.

use std::collections::BTreeMap;

use kubewitness_core::ports::JournalError;
use tokio::time::timeout;

use super::save::{replays, saves};
use crate::store::PluginWrites;
use crate::store::rows::discrepancies::{FoundDifferences, StreamRowChange};
use crate::store::rows::{ObjectOutcome, RowBatch, StateRow, StoreResult, StreamRow, checksum, uid};
use crate::store::server::connect::session::{ServerSession, WRITING};
use crate::store::server::engine::link::{ServerLink, Value, WriteResult, next};
use crate::store::server::engine::table::{
    ColumnMerge, DeleteStatement, InsertStatement, KeyConflict, RowsBatch, UpdateStatement, bytes, int,
};

const STREAMS: InsertStatement = InsertStatement {
    table: "kw_streams",
    columns: &[
        int("id"),
        bytes("source"),
        int("epoch"),
        bytes("checkpoint"),
        int("states"),
        int("last_event_ms"),
        int("sum"),
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
    columns: &[int("id"), bytes("api_group"), bytes("version"), bytes("kind"), int("sum")],
    key: &["id"],
    conflict: KeyConflict::Refuse,
};
const OBJECTS: InsertStatement = InsertStatement {
    table: "kw_objects",
    columns: &[
        int("id"),
        int("stream"),
        int("kind"),
        bytes("namespace"),
        bytes("name"),
        bytes("uid"),
        int("owner"),
        int("uid_key"),
        int("name_key"),
        int("sum"),
    ],
    key: &["id"],
    conflict: KeyConflict::Refuse,
};
const OWNED: InsertStatement = InsertStatement {
    table: "kw_owned",
    columns: &[int("owner"), int("object"), int("sum")],
    key: &["owner", "object"],
    conflict: KeyConflict::Keep,
};
const STATUSES: InsertStatement = InsertStatement {
    table: "kw_statuses",
    columns: &[int("id"), bytes("body"), int("sum")],
    key: &["id"],
    conflict: KeyConflict::Refuse,
};
const ANCHORS: InsertStatement = InsertStatement {
    table: "kw_anchors",
    columns: &[int("id"), int("stream"), int("checksum"), bytes("document"), int("sum")],
    key: &["id"],
    conflict: KeyConflict::Refuse,
};
pub(super) const STATES: InsertStatement = InsertStatement {
    table: "kw_states",
    columns: &[
        int("seq"),
        int("object"),
        bytes("version"),
        int("flags"),
        int("back"),
        int("status"),
        int("previous"),
        int("owner"),
        int("observed_ms"),
        bytes("at"),
        int("anchor"),
        int("sums"),
        bytes("document"),
    ],
    key: &["seq"],
    conflict: KeyConflict::Refuse,
};
const LIVE: InsertStatement = InsertStatement {
    table: "kw_current",
    columns: &[int("object"), int("newest"), int("tail")],
    key: &["object"],
    conflict: KeyConflict::Merge(&[("newest", ColumnMerge::New), ("tail", ColumnMerge::New)]),
};
const SNAPSHOTS: InsertStatement = InsertStatement {
    table: "kw_snapshots",
    columns: &[int("object"), int("seq"), bytes("packed")],
    key: &["object"],
    conflict: KeyConflict::Merge(&[("seq", ColumnMerge::New), ("packed", ColumnMerge::New)]),
};
const NOT_CURRENT: DeleteStatement = DeleteStatement { table: "kw_current", key: &[int("object")] };
const NO_SNAPSHOT: DeleteStatement = DeleteStatement { table: "kw_snapshots", key: &[int("object")] };
const ENDED: UpdateStatement =
    UpdateStatement { table: "kw_objects", key: &[int("id")], set: &[int("tail"), int("newest")] };
const TALLIES: InsertStatement = InsertStatement {
    table: "kw_tallies",
    columns: &[int("segment"), int("stream"), int("states"), int("bytes")],
    key: &["segment", "stream"],
    conflict: KeyConflict::Merge(&[("states", ColumnMerge::Sum), ("bytes", ColumnMerge::Sum)]),
};
pub(super) const GAPS: InsertStatement = InsertStatement {
    table: "kw_gaps",
    columns: &[int("id"), int("stream"), int("seq"), bytes("bounds"), bytes("body"), int("sum")],
    key: &["id"],
    conflict: KeyConflict::Keep,
};
const POISON: InsertStatement = InsertStatement {
    table: "kw_poison",
    columns: &[
        int("id"),
        int("stream"),
        int("digest"),
        int("checksum"),
        int("observed_ms"),
        bytes("error"),
        bytes("raw"),
        int("sum"),
    ],
    key: &["id"],
    conflict: KeyConflict::Keep,
};

const DISCREPANCIES: InsertStatement = InsertStatement {
    table: "kw_discrepancies",
    columns: &[int("stream"), int("number"), bytes("body"), int("sum")],
    key: &["stream", "number"],
    conflict: KeyConflict::Refuse,
};
const OUTDATED: DeleteStatement =
    DeleteStatement { table: "kw_discrepancies", key: &[int("stream"), int("number")] };

impl ServerSession {
    /// Writes everything of one transaction of appends and saves.
    pub(crate) async fn write(&mut self, rows: Option<RowBatch>, left: &PluginWrites<'_>) -> StoreResult<()> {
        let done = timeout(WRITING, all(self.ask()?, rows, left)).await;
        self.answered(done)
    }
}

async fn all(link: &mut dyn ServerLink, written: Option<RowBatch>, left: &PluginWrites<'_>) -> WriteResult {
    if let Some(written) = written {
        rows(link, written).await?;
    }
    saves(link, left).await?;
    replays(link, &left.replays).await
}

async fn rows(link: &mut dyn ServerLink, rows: RowBatch) -> WriteResult {
    shared(link, &rows).await?;
    let streams = merged(rows.streams);
    let streams = RowsBatch::of(streams, |r| {
        let sum = r.sum();
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
        let (uid_key, name_key, sum) = (uid::key(&r.uid), uid::key(&r.name), r.sum());
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
            [owner.into(), object.into(), checksum::owned(owner, object).into()]
        }),
    )
    .await?;
    link.insert(&STATES, RowsBatch::of(rows.states, state_values)).await?;
    outcomes(link, rows.outcomes.into_iter().collect()).await?;
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
            let sum = r.sum();
            [id.into(), r.stream.into(), (r.seq as i64).into(), r.key.into(), r.body.into(), sum.into()]
        });
        link.insert(&GAPS, gaps).await?;
    }
    if !rows.poison.is_empty() {
        let first = next(link, "SELECT coalesce(max(id), 0) + 1 FROM kw_poison").await?;
        let poison = RowsBatch::of((first..).zip(rows.poison), |(id, r)| {
            let sum = r.sum();
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
        differences(link, found).await?;
    }
    Ok(())
}

async fn differences(link: &mut dyn ServerLink, found: FoundDifferences) -> WriteResult {
    let stream = found.stream;
    let malformed = |error: JournalError| sqlx::Error::Decode(error.to_string().into());
    let text = "SELECT number, body FROM kw_discrepancies WHERE stream = ?";
    let mut kept = Vec::new();
    for mut row in link.fetch(text, vec![stream.into()]).await? {
        kept.push((row.int(0).map_err(malformed)?, row.text(1).map_err(malformed)?));
    }
    let StreamRowChange { insert, remove } = found.change(&kept);
    link.delete(&OUTDATED, RowsBatch::of(remove, |number| [stream.into(), number.into()])).await?;
    let fresh = RowsBatch::of(insert, |(number, body)| {
        let sum = checksum::discrepancy(stream, number, &body);
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
        e.flags.pack().into(),
        (e.back as i64).into(),
        e.status.into(),
        e.previous.into(),
        e.owner.into(),
        e.observed_ms.into(),
        e.version.as_ref().into(),
        e.anchor.into(),
        e.sums().into(),
        row.document.into(),
    ]
}

/// Merges several rows of one stream. Appends of one batch may go to the same stream, and the last row
/// counts.
fn merged(rows: Vec<StreamRow>) -> Vec<StreamRow> {
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
async fn shared(link: &mut dyn ServerLink, rows: &RowBatch) -> WriteResult {
    let kinds = RowsBatch::of(rows.kinds.iter().cloned(), |(id, group, version, kind)| {
        let sum = checksum::kind(id, &group, &version, &kind);
        [id.into(), group.into(), version.into(), kind.into(), sum.into()]
    });
    link.insert(&KINDS, kinds).await?;
    let statuses = RowsBatch::of(&rows.statuses, |(id, body)| {
        [(*id).into(), body.as_str().into(), checksum::status(*id, body).into()]
    });
    link.insert(&STATUSES, statuses).await?;
    let anchors = RowsBatch::of(&rows.anchors, |r| {
        let (checksum, sum) = (i64::from(r.checksum), r.sum());
        [r.id.into(), r.stream.into(), checksum.into(), r.packed.to_vec().into(), sum.into()]
    });
    link.insert(&ANCHORS, anchors).await
}

async fn outcomes(link: &mut dyn ServerLink, outcomes: Vec<(i64, ObjectOutcome)>) -> WriteResult {
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
        link.delete(table, RowsBatch::of(&ended, |(object, ..)| [(*object).into()])).await?;
    }
    let ended = RowsBatch::of(ended, |(object, newest, tail)| {
        [object.into(), (tail as i64).into(), (newest != 0).then_some(newest as i64).into()]
    });
    link.update(&ENDED, ended).await
}
