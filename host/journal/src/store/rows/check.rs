//! Makes rows from columns, and compares each row with the checksum that was written with it.

use std::sync::Arc;

use kubewitness_core::ObjectRef;
use kubewitness_core::ports::{JournalError, PluginProgress};

use crate::store::rows::{
    NamedObject, ObjectRow, RowFlags, StateEnvelope, StateKey, StoreResult, checksum, damaged_state,
    decode_column,
};

/// seq, object, key, flags, back, status, previous, owner, observed_ms, version, anchor, sums.
pub(crate) type EnvelopeColumns =
    (i64, i64, StateKey, i64, i64, i64, Option<i64>, Option<i64>, i64, Option<StateKey>, Option<i64>, i64);

pub(crate) fn check_envelope(columns: EnvelopeColumns) -> StoreResult<StateEnvelope> {
    let (seq, object, key, flags, back, status, previous, owner, observed_ms, version, anchor, sums) =
        columns;
    let seq = seq as u64;
    let flags =
        RowFlags::unpack_bits(flags).ok_or_else(|| damaged_state(seq, "its flags are not of this format"))?;
    let (back, checksum) = (back as u64, sums as u32);
    let envelope = StateEnvelope {
        seq,
        object,
        key,
        flags,
        back,
        status,
        previous,
        owner,
        observed_ms,
        version,
        anchor,
        checksum,
    };
    match envelope.both_checksums() == sums {
        true => Ok(envelope),
        false => Err(damaged_state(seq, "its envelope differs from what was written")),
    }
}

/// `kind`: group, version, name.
pub(crate) fn check_object(
    row: ObjectRow,
    sum: i64,
    kind: (String, String, String),
) -> StoreResult<(i64, NamedObject)> {
    if i64::from(row.row_checksum()) != sum {
        return Err(JournalError::Fatal(format!("object {}: its row differs from what was written", row.id)));
    }
    let ObjectRow { id, stream, namespace, name, uid, owner, .. } = row;
    let (group, version, kind) = kind;
    let object = Arc::new(ObjectRef { group, version, kind, namespace, name, uid });
    Ok((id, NamedObject { object, stream, owner }))
}

/// Checks the saved progress of a plugin.
pub(crate) fn check_progress(plugin: &str, body: &str, sum: i64) -> StoreResult<PluginProgress> {
    if checksum::sum_of_plugin(plugin, body) != sum {
        return Err(JournalError::Fatal(format!("the progress of {plugin} differs from what was written")));
    }
    decode_column(body, || format!("the progress of {plugin}"))
}
