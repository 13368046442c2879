//! Restores documents byte for byte: starts with a full document, applies the deltas, and compares each
//! result with the checksum of the original.

use bytes::Bytes;
use kubewitness_core::document::{checksum, restore_from_delta, unpack_document};
use kubewitness_core::limits::DELTA_CHAIN;
use kubewitness_core::{Change, Seq};

use super::shared_rows::SharedNames;
use crate::store::StoreReader;
use crate::store::rows::{DocumentEncoding, DocumentStorage, StoreResult, damaged_state, join_documents};

/// How many steps [`document_before`] goes back over states without a document of their own.
const STEPS_BACK: u32 = 4096;

pub(super) async fn anchor_document(
    rows: &mut dyn StoreReader,
    names: &SharedNames,
    seq: Seq,
    id: i64,
) -> StoreResult<Bytes> {
    let anchor = names.anchor_document(rows, id).await?;
    anchor.ok_or_else(|| damaged_state(seq, "the anchor of its document is missing or damaged"))
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
        Some(id) => Some(anchor_document(rows, names, kept.seq, id).await?),
        None => None,
    };
    restore_document(kept, stored, base, anchor.as_ref())
}

/// [`decode`] for a caller that has the anchor already.
pub(crate) fn restore_document(
    kept: DocumentStorage,
    stored: &[u8],
    base: Option<&Bytes>,
    anchor: Option<&Bytes>,
) -> StoreResult<Bytes> {
    let seq = kept.seq;
    let anchor = || anchor.ok_or_else(|| damaged_state(seq, "it has no anchor"));
    let decoded = match kept.encoding {
        DocumentEncoding::Empty => Bytes::new(),
        DocumentEncoding::Full => unpack_document(stored).map_err(|error| damaged_state(seq, error))?,
        DocumentEncoding::Delta => {
            let missing = || damaged_state(seq, "the state that its document is a delta on is missing");
            let base = base.ok_or_else(missing)?;
            let restored = match kept.anchor {
                None => restore_from_delta(base, stored),
                Some(_) => restore_from_delta(&join_documents(anchor()?, base), stored),
            };
            restored.map_err(|error| damaged_state(seq, error))?.into()
        }
        DocumentEncoding::Anchored => {
            restore_from_delta(anchor()?, stored).map_err(|error| damaged_state(seq, error))?.into()
        }
    };
    match checksum(&decoded) == kept.checksum {
        true => Ok(decoded),
        false => Err(damaged_state(seq, "its document differs from what was journaled")),
    }
}

pub(crate) async fn document_at(
    rows: &mut dyn StoreReader,
    names: &SharedNames,
    seq: Seq,
) -> StoreResult<Option<Bytes>> {
    let Ok(start) = i64::try_from(seq) else { return Ok(None) };
    let mut base = None;
    for (envelope, stored) in rows.document_chain(start, DELTA_CHAIN + 1).await?.iter().rev() {
        base = Some(decode(rows, names, envelope.into(), stored, base.as_ref()).await?);
    }
    Ok(base)
}

/// The document of the previous version of the same object. Gaps, and deletions whose content nobody saw, are
/// skipped.
pub(super) async fn document_before(
    rows: &mut dyn StoreReader,
    names: &SharedNames,
    seq: Seq,
) -> StoreResult<Option<Bytes>> {
    let mut at = seq;
    for _ in 0..STEPS_BACK {
        let Ok(position) = i64::try_from(at) else { return Ok(None) };
        let Some(found) = rows.states_at(&[position]).await?.pop() else { return Ok(None) };
        let is_version = found.flags.change != Change::Gap && found.flags.encoding != DocumentEncoding::Empty;
        if at != seq && is_version {
            return document_at(rows, names, at).await;
        }
        if found.back == 0 {
            return Ok(None);
        }
        at = at.checked_sub(found.back).ok_or_else(|| damaged_state(at, "it points before the beginning"))?;
    }
    Ok(None)
}
