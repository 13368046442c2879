//! Reads a past moment: ends by their index, and chains from their ends backwards.

use kubewitness_core::Seq;

use crate::store::rows::{ChainStep, ObjectEnds, PlacedObject, StoreResult};
use crate::store::server::connect::session::ServerSession;
use crate::store::server::engine::link::{SqlParam, SqlRow};

fn decode_placed(mut row: SqlRow) -> StoreResult<PlacedObject> {
    Ok(PlacedObject {
        object: row.int_at(0)?,
        stream: row.int_at(1)?,
        tail: row.int_at(2)? as Seq,
        namespace: row.text(3)?,
        name: row.text(4)?,
    })
}

fn numbers_param(seqs: &[Seq]) -> SqlParam {
    SqlParam::Numbers(seqs.iter().map(|seq| *seq as i64).collect())
}

impl ServerSession {
    pub(super) async fn read_moments(&mut self, from: i64, limit: i64) -> StoreResult<Vec<(i64, i64)>> {
        let text = "SELECT s.seq, s.observed_ms FROM kw_states s WHERE s.seq >= ? ORDER BY s.seq LIMIT ?";
        let rows = self.fetch_rows(text, vec![from.into(), limit.into()]).await?;
        rows.into_iter().map(|row| Ok((row.int_at(0)?, row.int_at(1)?))).collect()
    }

    pub(super) async fn read_ended(&mut self, ends: ObjectEnds) -> StoreResult<Vec<PlacedObject>> {
        macro_rules! by {
            ($order:literal) => {
                concat!(
                    "SELECT o.id, o.stream, o.tail, o.namespace, o.name FROM kw_objects o \
                     WHERE o.stream = ? AND o.tail > ? AND o.tail < ? \
                     AND NOT EXISTS (SELECT 1 FROM kw_current c WHERE c.object = o.id) ORDER BY o.tail ",
                    $order,
                    " LIMIT ?"
                )
            };
        }
        let text = if ends.newest_first { by!("DESC") } else { by!("ASC") };
        let params = [ends.stream, ends.after, ends.before, ends.limit].map(SqlParam::from).into();
        self.fetch_rows(text, params).await?.into_iter().map(decode_placed).collect()
    }

    pub(super) async fn read_living(
        &mut self,
        streams: &[i64],
        after: i64,
        limit: i64,
    ) -> StoreResult<Vec<PlacedObject>> {
        let text = "SELECT o.id, o.stream, c.tail, o.namespace, o.name FROM kw_current c \
                    @JOIN kw_objects o ON o.id = c.object \
                    WHERE c.object > ? AND o.stream IN (SELECT q.v FROM @numbers) ORDER BY c.object LIMIT ?";
        let rows = self.fetch_rows(text, vec![after.into(), streams.into(), limit.into()]).await?;
        rows.into_iter().map(decode_placed).collect()
    }

    pub(super) async fn read_walk(
        &mut self,
        heads: &[Seq],
        through: Seq,
        steps: i64,
    ) -> StoreResult<Vec<ChainStep>> {
        // The lowest three bits of the flags are change and lateness: 0, 1 and 2 are regular states.
        let text = "WITH RECURSIVE chain (head, seq, back, flags, step) AS ( \
               SELECT s.seq, s.seq, s.back, s.flags, 1 FROM @numbers @JOIN kw_states s ON s.seq = q.v \
               UNION ALL \
               SELECT c.head, s.seq, s.back, s.flags, c.step + 1 FROM chain c \
                 @JOIN kw_states s ON s.seq = c.seq - c.back \
                 WHERE c.back > 0 AND c.step < ? AND (c.seq > ? OR (c.flags & 7) > 2)) \
             SELECT head, seq, back, flags FROM chain";
        let rows =
            self.fetch_rows(text, vec![numbers_param(heads), steps.into(), (through as i64).into()]).await?;
        let step = |row: SqlRow| {
            Ok(ChainStep {
                head: row.int_at(0)? as Seq,
                seq: row.int_at(1)? as Seq,
                back: row.int_at(2)? as u64,
                flags: row.int_at(3)?,
            })
        };
        rows.into_iter().map(step).collect()
    }

    pub(super) async fn read_letters_at(
        &mut self,
        plugin: &str,
        seqs: &[Seq],
    ) -> StoreResult<Vec<(Seq, i64)>> {
        let text =
            "SELECT l.seq, l.replaying FROM @numbers @JOIN kw_letters l ON l.seq = q.v WHERE l.plugin = ?";
        let rows = self.fetch_rows(text, vec![numbers_param(seqs), plugin.into()]).await?;
        rows.into_iter().map(|row| Ok((row.int_at(0)? as Seq, row.int_at(1)?))).collect()
    }
}
