//! Documents back to their exact bytes: from a full one over its deltas, each result compared
//! with the checksum that was taken of the original.

use bytes::Bytes;
use kubewitness_core::document::{checksum, restore, unpack};
use kubewitness_core::limits::DELTA_CHAIN;
use kubewitness_core::ports::JournalError;
use kubewitness_core::{Change, Seq};
use sqlx::SqliteConnection;

use super::fault::{classify, damaged};
use super::read::{Names, envelope, envelope_column};
use crate::plan;
use crate::rows::{Encoding, Envelope};

/// Steps that [`before`] goes back over states without a document of their own.
const STEPS_BACK: u32 = 4096;

/// The newest first; the last needs no state before it.
async fn chain(
    connection: &mut SqliteConnection,
    seq: Seq,
) -> Result<Vec<(Envelope, Vec<u8>)>, JournalError> {
    // 2 is a delta on the state before.
    let text = concat!(
        "WITH RECURSIVE chain (seq, back, flags) AS (SELECT seq, back, flags FROM states WHERE seq = ? \
         UNION ALL SELECT n.seq, n.back, n.flags FROM chain c JOIN states n ON n.seq = c.seq - c.back \
         WHERE (c.flags >> 3) & 3 = 2 AND c.back > 0 LIMIT ?) SELECT ",
        envelope_column!(),
        ", s.document FROM chain c CROSS JOIN states s ON s.seq = c.seq ORDER BY s.seq DESC"
    );
    let Ok(start) = i64::try_from(seq) else { return Ok(Vec::new()) };
    let query = sqlx::query_as(text).bind(start).bind(DELTA_CHAIN + 1);
    let rows: Vec<(String, Vec<u8>)> = query.fetch_all(connection).await.map_err(classify)?;
    rows.into_iter().map(|(text, stored)| Ok((envelope(&text)?, stored))).collect()
}

async fn anchor(
    connection: &mut SqliteConnection,
    names: &Names,
    seq: Seq,
    id: i64,
) -> Result<Bytes, JournalError> {
    let anchor = names.anchor(connection, id).await?;
    anchor.ok_or_else(|| damaged(seq, "the anchor of its document is missing or damaged"))
}

/// One document from what it is stored against.
pub(super) async fn decode(
    connection: &mut SqliteConnection,
    names: &Names,
    envelope: &Envelope,
    stored: &[u8],
    base: Option<&Bytes>,
) -> Result<Bytes, JournalError> {
    let seq = envelope.seq;
    let decoded = match envelope.flags.encoding {
        Encoding::Empty => Bytes::new(),
        Encoding::Full => unpack(stored).map_err(|error| damaged(seq, error))?,
        Encoding::Delta => {
            let missing = || damaged(seq, "the state that its document is a delta of is not there");
            let base = base.ok_or_else(missing)?;
            let restored = match envelope.anchor {
                None => restore(base, stored),
                Some(id) => restore(&plan::both(&anchor(connection, names, seq, id).await?, base), stored),
            };
            restored.map_err(|error| damaged(seq, error))?.into()
        }
        Encoding::Anchored => {
            let anchor = anchor(connection, names, seq, envelope.anchor.unwrap_or_default()).await?;
            restore(&anchor, stored).map_err(|error| damaged(seq, error))?.into()
        }
    };
    match checksum(&decoded) == envelope.checksum {
        true => Ok(decoded),
        false => Err(damaged(seq, "its document is not what was journaled")),
    }
}

pub(super) async fn document(
    connection: &mut SqliteConnection,
    names: &Names,
    seq: Seq,
) -> Result<Option<Bytes>, JournalError> {
    let mut base = None;
    for (envelope, stored) in chain(connection, seq).await?.iter().rev() {
        base = Some(decode(connection, names, envelope, stored, base.as_ref()).await?);
    }
    Ok(base)
}

/// The version of the same object that was journaled before. Holes, and deletions whose content
/// nobody saw, are no versions.
pub(super) async fn before(
    connection: &mut SqliteConnection,
    names: &Names,
    seq: Seq,
) -> Result<Option<Bytes>, JournalError> {
    let text = concat!("SELECT ", envelope_column!(), " FROM states s WHERE s.seq = ?");
    let mut at = seq;
    for _ in 0..STEPS_BACK {
        let Ok(position) = i64::try_from(at) else { return Ok(None) };
        let query = sqlx::query_scalar(text).bind(position);
        let row: Option<String> = query.fetch_optional(&mut *connection).await.map_err(classify)?;
        let Some(found) = row.as_deref().map(envelope).transpose()? else { return Ok(None) };
        let is_version = found.flags.change != Change::Gap && found.flags.encoding != Encoding::Empty;
        if at != seq && is_version {
            return document(connection, names, at).await;
        }
        if found.back == 0 {
            return Ok(None);
        }
        at = at.checked_sub(found.back).ok_or_else(|| damaged(at, "it points before the beginning"))?;
    }
    Ok(None)
}
