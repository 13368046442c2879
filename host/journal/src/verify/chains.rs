//! Checks the order, the chain and the documents of each object, from its states alone.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use kubewitness_core::{Change, Seq, State};

use super::findings::{ProblemList, text_of};
use super::story::{self, NameHolders, ObjectLife};
use crate::read::{SharedNames, documents};
use crate::report::code;
use crate::store::StoreReader;
use crate::store::memory::ObjectIdentity;
use crate::store::rows::{DocumentEncoding, StateEnvelope, StateKey, StoreResult};

/// The size limit of cached documents at the ends of chains, so that most deltas need no other row. Beyond
/// it, they are dropped and read again.
const DOCUMENTS: usize = 64 << 20;

/// One object in one epoch.
#[derive(Clone, Debug)]
pub(super) struct SeenObject {
    pub identity: ObjectIdentity,
    pub life: ObjectLife,
}

#[derive(Default)]
pub(super) struct ChainCheck {
    /// By the object's number.
    pub seen: HashMap<i64, SeenObject>,
    /// The newest epoch of each source.
    epochs: HashMap<Arc<str>, u32>,
    /// Whether retention removed anything from this journal.
    retained: bool,
    /// The last state of an object over all epochs, and the object's number there.
    pub tails: HashMap<ObjectIdentity, (Seq, i64)>,
    holders: NameHolders,
    documents: HashMap<ObjectIdentity, (Seq, Bytes)>,
    /// States that are gaps, with the checksums of their content.
    pub gaps: HashMap<Seq, u32>,
    bytes: usize,
}

impl ChainCheck {
    pub fn of(retained: bool) -> Self {
        Self { retained, ..Self::default() }
    }

    pub fn count_objects(&self) -> usize {
        self.seen.len()
    }

    pub async fn check_state(
        &mut self,
        rows: &mut dyn StoreReader,
        names: &SharedNames,
        envelope: &StateEnvelope,
        state: &Arc<State>,
        stored: &[u8],
        findings: &mut ProblemList,
    ) -> StoreResult<()> {
        let identity = ObjectIdentity { source: state.source.clone(), object: state.object.clone() };
        if state.change == Change::Gap {
            self.gaps.insert(envelope.seq, envelope.checksum);
        }
        self.check_chain(&identity, envelope, findings);
        self.check_order(&identity, envelope, state, findings);
        match self.restore_document(rows, names, identity, envelope, stored).await {
            Ok(document) => {
                findings.report.documents_checked += 1;
                self.check_document(envelope, state, &document, findings);
            }
            Err(error) => findings.add(code::DOCUMENT, Some(envelope.seq), text_of(error)),
        }
        Ok(())
    }

    /// Checks that a state and its document match, and that a gap contains no known version.
    fn check_document(
        &self,
        envelope: &StateEnvelope,
        state: &State,
        document: &[u8],
        findings: &mut ProblemList,
    ) {
        let result = match state.change {
            Change::Gap => story::check_gap(state, document).and_then(|gap| {
                self.seen.get(&envelope.object).map_or(Ok(()), |seen| seen.life.note_gap(&gap))
            }),
            _ => story::check_document(state, document),
        };
        if let Err(contradiction) = result {
            findings.add(contradiction.code, Some(envelope.seq), contradiction.text);
        }
    }

    fn check_chain(
        &mut self,
        identity: &ObjectIdentity,
        envelope: &StateEnvelope,
        findings: &mut ProblemList,
    ) {
        let seq = envelope.seq;
        let tail = self.tails.insert(identity.clone(), (seq, envelope.object)).map_or(0, |(tail, _)| tail);
        // In a damaged file, a row may come after one of a later position.
        let expected = if tail == 0 { Some(0) } else { seq.checked_sub(tail) };
        if expected != Some(envelope.back) {
            let (back, uid) = (envelope.back, &identity.object.uid);
            let text = match expected {
                Some(expected) => format!(
                    "the state before of {uid} lies {expected} positions back, and the row says {back}"
                ),
                None => format!("it comes after the state of {uid} at the later position {tail}"),
            };
            findings.add(code::CHAIN, Some(seq), text);
        }
    }

    fn check_order(
        &mut self,
        identity: &ObjectIdentity,
        envelope: &StateEnvelope,
        state: &State,
        findings: &mut ProblemList,
    ) {
        let seq = Some(envelope.seq);
        let key_fits = match envelope.flags.change {
            Change::Present | Change::Left => envelope.key == StateKey::of_version(&state.resource_version),
            Change::Gone => envelope.key == StateKey::GONE,
            Change::Gap => envelope.key.gap_bounds().is_some(),
        };
        if !key_fits {
            findings.add(
                code::ID,
                seq,
                format!("its key {:?} does not make the id {}", envelope.key, state.id),
            );
        }
        let newest = self.epochs.entry(state.source.clone()).or_insert(state.epoch);
        if state.epoch < *newest {
            let text = format!("epoch {} of {} follows epoch {newest}", state.epoch, state.source);
            findings.add(code::ORDER, seq, text);
        }
        *newest = state.epoch.max(*newest);
        let fresh = || SeenObject { identity: identity.clone(), life: ObjectLife::default() };
        let life = &mut self.seen.entry(envelope.object).or_insert_with(fresh).life;
        let named = self.holders.next(state, life);
        for result in [named, life.next(state, !self.retained)] {
            if let Err(contradiction) = result {
                findings.add(contradiction.code, seq, contradiction.text);
            }
        }
    }

    async fn restore_document(
        &mut self,
        rows: &mut dyn StoreReader,
        names: &SharedNames,
        identity: ObjectIdentity,
        envelope: &StateEnvelope,
        stored: &[u8],
    ) -> StoreResult<Bytes> {
        let before = envelope.seq.saturating_sub(envelope.back);
        let kept = self.documents.remove(&identity);
        self.bytes -= kept.as_ref().map_or(0, |(_, document)| document.len());
        let mut base = kept.filter(|(seq, _)| *seq == before).map(|(_, document)| document);
        if base.is_none() && envelope.flags.encoding == DocumentEncoding::Delta && envelope.back > 0 {
            // Its own damage was reported at its position.
            base = documents::document_at(rows, names, before).await.unwrap_or_default();
        }
        let document = documents::decode(rows, names, envelope.into(), stored, base.as_ref()).await?;
        if self.bytes + document.len() > DOCUMENTS {
            self.documents.clear();
            self.bytes = 0;
        }
        self.bytes += document.len();
        self.documents.insert(identity, (envelope.seq, document.clone()));
        Ok(document)
    }
}

#[cfg(test)]
mod tests {
    use kubewitness_core::ObjectRef;

    use super::*;
    use crate::store::rows::RowFlags;

    fn envelope(seq: Seq, back: u64) -> StateEnvelope {
        let flags = RowFlags {
            change: Change::Present,
            late: false,
            encoding: DocumentEncoding::Full,
            depth: 0,
            quotes_none_under: None,
        };
        StateEnvelope {
            seq,
            object: 1,
            key: StateKey::Number(seq as i64),
            flags,
            back,
            status: 1,
            previous: None,
            owner: None,
            observed_ms: 0,
            version: None,
            anchor: None,
            checksum: 0,
        }
    }

    #[test]
    fn a_row_after_one_of_a_later_position_is_a_finding() {
        let mut chains = ChainCheck::of(false);
        let identity = ObjectIdentity { source: "jobs".into(), object: Arc::new(ObjectRef::default()) };
        let mut findings = ProblemList::default();
        for (seq, back) in [(3, 0), (7, 4), (5, 2)] {
            chains.check_chain(&identity, &envelope(seq, back), &mut findings);
        }
        let texts: Vec<_> = findings.report.problems.iter().map(|problem| &*problem.message).collect();
        assert_eq!(texts, ["it comes after the state of  at the later position 7"]);
    }
}
