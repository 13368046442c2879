//! Writes one transaction of retention.

use tokio::time::timeout;

use super::save::{KV_DELETE, REVIVED};
use super::write::{GAPS, STATES, state_values};
use crate::store::rows::removal::{RemovalPlan, RemovedCounts, UnusedRows};
use crate::store::rows::{GapRow, StoreResult, checksum};
use crate::store::server::connect::session::{ServerSession, WRITING};
use crate::store::server::engine::link::{ServerLink, SqlParam, WriteResult, next};
use crate::store::server::engine::table::{
    ColumnMerge, DeleteStatement, InsertStatement, KeyConflict, RowsBatch, bytes_column, int_column,
};

const TAKE: DeleteStatement = DeleteStatement { table: "kw_states", key: &[int_column("seq")] };
const TAKE_GAPS: DeleteStatement =
    DeleteStatement { table: "kw_gaps", key: &[int_column("stream"), int_column("seq")] };
const TAKE_SNAPSHOTS: DeleteStatement =
    DeleteStatement { table: "kw_snapshots", key: &[int_column("object"), int_column("seq")] };
const TAKE_OBJECTS: DeleteStatement = DeleteStatement { table: "kw_objects", key: &[int_column("id")] };
/// The new stored form of a state; its other columns stay.
const REBASE: InsertStatement = InsertStatement {
    conflict: KeyConflict::Merge(&[
        ("flags", ColumnMerge::New),
        ("back", ColumnMerge::New),
        ("anchor", ColumnMerge::New),
        ("sums", ColumnMerge::New),
        ("document", ColumnMerge::New),
    ]),
    ..STATES
};
const TAKEN: InsertStatement = InsertStatement {
    table: "kw_taken",
    columns: &[bytes_column("plugin"), int_column("finished"), int_column("untold"), int_column("sum")],
    key: &["plugin"],
    conflict: KeyConflict::Merge(&[
        ("finished", ColumnMerge::Sum),
        ("untold", ColumnMerge::Sum),
        ("sum", ColumnMerge::Sum),
    ]),
};

impl ServerSession {
    /// Removes the rows of one transaction of retention.
    pub(crate) async fn remove(&mut self, removal: &RemovalPlan) -> StoreResult<()> {
        let done = timeout(WRITING, remove(self.link_for_query()?, removal)).await;
        self.note_answer(done)
    }

    /// Removes rows that nothing refers to.
    pub(crate) async fn sweep_unused_rows(&mut self, unused: &UnusedRows) -> StoreResult<()> {
        let done = timeout(WRITING, delete_unused_rows(self.link_for_query()?, unused)).await;
        self.note_answer(done)
    }
}

async fn remove(link: &mut dyn ServerLink, removal: &RemovalPlan) -> WriteResult {
    let taken = || removal.taken.iter();
    link.run_delete(&TAKE, RowsBatch::of(taken(), |state| [(state.seq as i64).into()])).await?;
    link.run_delete(
        &TAKE_GAPS,
        RowsBatch::of(taken(), |state| [state.stream.into(), (state.seq as i64).into()]),
    )
    .await?;
    let snapshots = RowsBatch::of(taken(), |state| [state.object.into(), (state.seq as i64).into()]);
    link.run_delete(&TAKE_SNAPSHOTS, snapshots).await?;
    link.insert(&REBASE, RowsBatch::of(removal.rebased.iter().cloned(), state_values)).await?;
    link.run_delete(&TAKE_OBJECTS, RowsBatch::of(&removal.objects, |object| [(*object).into()])).await?;
    let letters =
        RowsBatch::of(removal.letters(), |(plugin, seq)| [plugin.as_str().into(), (*seq as i64).into()]);
    link.run_delete(&REVIVED, letters).await?;
    shrink_figures(link, removal).await?;
    for gap in &removal.gaps {
        record_gap(link, gap).await?;
    }
    Ok(())
}

async fn shrink_figures(link: &mut dyn ServerLink, removal: &RemovalPlan) -> WriteResult {
    let text =
        "UPDATE kw_tallies SET states = states - ?, bytes = bytes - ? WHERE segment = ? AND stream = ?";
    let empty = "DELETE FROM kw_tallies WHERE states = 0 AND segment = ? AND stream = ?";
    // One or two segments.
    for ((segment, stream), (states, bytes)) in removal.tallies_taken() {
        let place = [SqlParam::Int(segment as i64), SqlParam::Int(stream)];
        let figures = [SqlParam::Int(states as i64), SqlParam::Int(bytes)];
        link.fetch_rows(text, figures.into_iter().chain(place.clone()).collect()).await?;
        link.fetch_rows(empty, place.to_vec()).await?;
    }
    for (stream, states) in removal.by_stream() {
        let text = "UPDATE kw_streams SET taken = taken + ? WHERE id = ?";
        link.fetch_rows(text, vec![(states as i64).into(), stream.into()]).await?;
    }
    add_counts(link, removal.counts_taken()).await
}

/// Adds numbers of removed rows.
async fn add_counts(
    link: &mut dyn ServerLink,
    counts: impl IntoIterator<Item = (String, i64, i64)>,
) -> WriteResult {
    let counts = RowsBatch::of(counts, |(key, finished, untold)| {
        [key.into(), finished.into(), untold.into(), checksum::taken_sum(finished, untold).into()]
    });
    link.insert(&TAKEN, counts).await
}

/// One for each stream; it grows with each transaction of a pass.
async fn record_gap(link: &mut dyn ServerLink, gap: &GapRow) -> WriteResult {
    let GapRow { stream, seq, key, body } = gap;
    let place = || vec![(*stream).into(), (*seq as i64).into(), key.as_str().into()];
    let find = "SELECT id FROM kw_gaps WHERE stream = ? AND seq = ? AND bounds = ?";
    if link.fetch_rows(find, place()).await?.is_empty() {
        let id = next(link, "SELECT coalesce(max(id), 0) + 1 FROM kw_gaps").await?;
        let row = RowsBatch::of([gap], |gap| {
            let (key, body) = (gap.key.as_str(), gap.body.as_str());
            [
                id.into(),
                gap.stream.into(),
                (gap.seq as i64).into(),
                key.into(),
                body.into(),
                gap.row_checksum().into(),
            ]
        });
        return link.insert(&GAPS, row).await;
    }
    let text = "UPDATE kw_gaps SET body = ?, sum = ? WHERE stream = ? AND seq = ? AND bounds = ?";
    let body = [body.as_str().into(), gap.row_checksum().into()];
    link.fetch_rows(text, body.into_iter().chain(place()).collect()).await.map(drop)
}

const OWNED: DeleteStatement =
    DeleteStatement { table: "kw_owned", key: &[int_column("owner"), int_column("object")] };
const BY_NUMBER: [DeleteStatement; 5] = [
    DeleteStatement { table: "kw_statuses", key: &[int_column("id")] },
    DeleteStatement { table: "kw_anchors", key: &[int_column("id")] },
    DeleteStatement { table: "kw_poison", key: &[int_column("id")] },
    DeleteStatement { table: "kw_gaps", key: &[int_column("id")] },
    DeleteStatement { table: "kw_replays", key: &[int_column("id")] },
];

async fn delete_unused_rows(link: &mut dyn ServerLink, sweep: &UnusedRows) -> WriteResult {
    let owned = RowsBatch::of(&sweep.owned, |(owner, object)| [(*owner).into(), (*object).into()]);
    link.run_delete(&OWNED, owned).await?;
    let reports =
        RowsBatch::of(&sweep.reports, |(plugin, key)| [plugin.as_str().into(), key.as_str().into()]);
    link.run_delete(&KV_DELETE, reports).await?;
    let numbered = [&sweep.statuses, &sweep.anchors, &sweep.poison, &sweep.gaps, &sweep.records];
    for (table, numbers) in BY_NUMBER.iter().zip(numbered) {
        link.run_delete(table, RowsBatch::of(numbers, |number| [(*number).into()])).await?;
    }
    add_counts(link, RemovedCounts::records_row(&sweep.records)).await?;
    if sweep.owners.is_empty() {
        return Ok(());
    }
    let text = "DELETE FROM kw_objects WHERE stream = 0 AND id IN (SELECT q.v FROM @numbers) \
                AND NOT EXISTS (SELECT 1 FROM kw_owned d WHERE d.owner = kw_objects.id)";
    link.fetch_rows(text, vec![sweep.owners[..].into()]).await.map(drop)
}
