//! Reads what was there at a moment: ends by their index, and chains from their ends backwards.

use kubewitness_core::Seq;
use sqlx::SqliteConnection;

use super::read::json;
use crate::store::rows::{Answer, Ends, Placed, Step};
use crate::store::sqlite::fault::classify;

pub(super) async fn moments(
    connection: &mut SqliteConnection,
    from: i64,
    limit: i64,
) -> Answer<Vec<(i64, i64)>> {
    let text = "SELECT seq, observed_ms FROM states WHERE seq >= ? ORDER BY seq LIMIT ?";
    sqlx::query_as(text).bind(from).bind(limit).fetch_all(connection).await.map_err(classify)
}

type Columns = (i64, i64, i64, String, String);

fn placed((object, stream, tail, namespace, name): Columns) -> Placed {
    Placed { object, stream, tail: tail as Seq, namespace, name }
}

pub(super) async fn ended(connection: &mut SqliteConnection, ends: Ends) -> Answer<Vec<Placed>> {
    macro_rules! by {
        ($order:literal) => {
            concat!(
                "SELECT o.id, o.stream, o.tail, o.namespace, o.name FROM objects o \
                 WHERE o.stream = ? AND o.tail > ? AND o.tail < ? \
                 AND NOT EXISTS (SELECT 1 FROM current c WHERE c.object = o.id) ORDER BY o.tail ",
                $order,
                " LIMIT ?"
            )
        };
    }
    let text = if ends.newest_first { by!("DESC") } else { by!("ASC") };
    let query = sqlx::query_as(text).bind(ends.stream).bind(ends.after).bind(ends.before).bind(ends.limit);
    let rows: Vec<Columns> = query.fetch_all(connection).await.map_err(classify)?;
    Ok(rows.into_iter().map(placed).collect())
}

pub(super) async fn living(
    connection: &mut SqliteConnection,
    streams: &[i64],
    after: i64,
    limit: i64,
) -> Answer<Vec<Placed>> {
    let text = "SELECT o.id, o.stream, c.tail, o.namespace, o.name FROM current c \
                CROSS JOIN objects o ON o.id = c.object \
                WHERE c.object > ? AND o.stream IN (SELECT value FROM json_each(?)) ORDER BY c.object LIMIT ?";
    let query = sqlx::query_as(text).bind(after).bind(json(streams)).bind(limit);
    let rows: Vec<Columns> = query.fetch_all(connection).await.map_err(classify)?;
    Ok(rows.into_iter().map(placed).collect())
}

fn seqs_json(seqs: &[Seq]) -> String {
    serde_json::to_string(seqs).expect("numbers always serialize")
}

pub(super) async fn walk(
    connection: &mut SqliteConnection,
    heads: &[Seq],
    through: Seq,
    steps: i64,
) -> Answer<Vec<Step>> {
    // The lowest three bits of the flags are change and lateness: 0, 1 and 2 are states in their turn.
    let text = "WITH RECURSIVE chain (head, seq, back, flags, step) AS ( \
           SELECT s.seq, s.seq, s.back, s.flags, 1 FROM json_each(?1) q CROSS JOIN states s ON s.seq = q.value \
           UNION ALL \
           SELECT c.head, s.seq, s.back, s.flags, c.step + 1 FROM chain c CROSS JOIN states s \
             ON s.seq = c.seq - c.back \
             WHERE c.back > 0 AND c.step < ?3 AND (c.seq > ?2 OR (c.flags & 7) > 2)) \
         SELECT head, seq, back, flags FROM chain";
    let query = sqlx::query_as(text).bind(seqs_json(heads)).bind(through as i64).bind(steps);
    let rows: Vec<(i64, i64, i64, i64)> = query.fetch_all(connection).await.map_err(classify)?;
    let step = |(head, seq, back, flags): (i64, i64, i64, i64)| Step {
        head: head as Seq,
        seq: seq as Seq,
        back: back as u64,
        flags,
    };
    Ok(rows.into_iter().map(step).collect())
}

pub(super) async fn letters_at(
    connection: &mut SqliteConnection,
    plugin: &str,
    seqs: &[Seq],
) -> Answer<Vec<(Seq, i64)>> {
    let text = "SELECT l.seq, l.replaying FROM json_each(?2) q CROSS JOIN letters l \
                ON l.plugin = ?1 AND l.seq = q.value";
    let query = sqlx::query_as(text).bind(plugin).bind(seqs_json(seqs));
    let rows: Vec<(i64, i64)> = query.fetch_all(connection).await.map_err(classify)?;
    Ok(rows.into_iter().map(|(seq, mark)| (seq as Seq, mark)).collect())
}
