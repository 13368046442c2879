//! Restores documents byte for byte: starts with a full document, applies the deltas, and compares each
//! result with the checksum of the original.

use bytes::Bytes;
use kubewitness_core::document::{checksum, restore, unpack};
use kubewitness_core::limits::DELTA_CHAIN;
use kubewitness_core::{Change, Seq};

use super::shared_rows::SharedNames;
use crate::store::StoreReader;
use crate::store::rows::{DocumentEncoding, DocumentStorage, StoreResult, both, damaged};

/// How many steps [`before`] goes back over states without a document of their own.
const STEPS_BACK: u32 = 4096;

pub(super) async fn anchor(
    rows: &mut dyn StoreReader,
    names: &SharedNames,
    seq: Seq,
    id: i64,
) -> StoreResult<Bytes> {
    let anchor = names.anchor(rows, id).await?;
    anchor.ok_or_else(|| damaged(seq, "the anchor of its document is missing or damaged"))
}

/// Decodes one document from its stored form.
pub(crate) async fn decode(
    rows: &mut dyn StoreReader,
    names: &SharedNames,
    kept: DocumentStorage,
    stored: &[u8],
    base: Option<&Bytes>,
) -> StoreResult<Bytes> {
    let anchor = match kept.anchor {
        Some(id) => Some(anchor(rows, names, kept.seq, id).await?),
        None => None,
    };
    put_together(kept, stored, base, anchor.as_ref())
}

/// [`decode`] for a caller that has the anchor already.
pub(crate) fn put_together(
    kept: DocumentStorage,
    stored: &[u8],
    base: Option<&Bytes>,
    anchor: Option<&Bytes>,
) -> StoreResult<Bytes> {
    let seq = kept.seq;
    let anchor = || anchor.ok_or_else(|| damaged(seq, "it has no anchor"));
    let decoded = match kept.encoding {
        DocumentEncoding::Empty => Bytes::new(),
        DocumentEncoding::Full => unpack(stored).map_err(|error| damaged(seq, error))?,
        DocumentEncoding::Delta => {
            let missing = || damaged(seq, "the state that its document is a delta on is missing");
            let base = base.ok_or_else(missing)?;
            let restored = match kept.anchor {
                None => restore(base, stored),
                Some(_) => restore(&both(anchor()?, base), stored),
            };
            restored.map_err(|error| damaged(seq, error))?.into()
        }
        DocumentEncoding::Anchored => restore(anchor()?, stored).map_err(|error| damaged(seq, error))?.into(),
    };
    match checksum(&decoded) == kept.checksum {
        true => Ok(decoded),
        false => Err(damaged(seq, "its document differs from what was journaled")),
    }
}

pub(crate) async fn document(
    rows: &mut dyn StoreReader,
    names: &SharedNames,
    seq: Seq,
) -> StoreResult<Option<Bytes>> {
    let Ok(start) = i64::try_from(seq) else { return Ok(None) };
    let mut base = None;
    for (envelope, stored) in rows.chain(start, DELTA_CHAIN + 1).await?.iter().rev() {
        base = Some(decode(rows, names, envelope.into(), stored, base.as_ref()).await?);
    }
    Ok(base)
}

/// The previous version of the same object. Holes, and deletions whose content nobody saw, don't count.
pub(super) async fn before(
    rows: &mut dyn StoreReader,
    names: &SharedNames,
    seq: Seq,
) -> StoreResult<Option<Bytes>> {
    let mut at = seq;
    for _ in 0..STEPS_BACK {
        let Ok(position) = i64::try_from(at) else { return Ok(None) };
        let Some(found) = rows.at(&[position]).await?.pop() else { return Ok(None) };
        let is_version = found.flags.change != Change::Gap && found.flags.encoding != DocumentEncoding::Empty;
        if at != seq && is_version {
            return document(rows, names, at).await;
        }
        if found.back == 0 {
            return Ok(None);
        }
        at = at.checked_sub(found.back).ok_or_else(|| damaged(at, "it points before the beginning"))?;
    }
    Ok(None)
}
