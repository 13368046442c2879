//! Decides how a document is stored. Versions of one object are similar, and so are objects of one source. So
//! a delta may use the previous version and also the source's anchor: the document that was recently hardest
//! to compress.

use bytes::Bytes;
use kubewitness_core::Change;
use kubewitness_core::document;
use kubewitness_core::limits::DELTA_CHAIN;
use kubewitness_core::ports::WitnessedState;

use crate::store::rows::{DocumentEncoding, join_documents};

/// If a delta on the previous version is this short, a second try is not worthwhile.
const SHORT: usize = 112;

/// Each source has one anchor in memory, and a delta on it takes time in proportion to its length.
const ANCHOR_BYTES: usize = 16 * 1024;

/// How many documents are between two anchors of one source, at first and at most. An anchor takes a few
/// hundred bytes: the first ones are soon replaced by better ones, and should not accumulate after that.
const FIRST_WINDOW: u32 = 256;
const LAST_WINDOW: u32 = 16 * 1024;

#[derive(Debug)]
pub(crate) struct EncodedDocument {
    pub encoding: DocumentEncoding,
    pub depth: u32,
    pub anchor: Option<i64>,
    pub bytes: Vec<u8>,
}

#[derive(Clone, Debug)]
struct SourceAnchor {
    id: i64,
    document: Bytes,
}

/// The anchor of a source, and the search for a better one.
#[derive(Clone, Debug, Default)]
pub(crate) struct AnchorSearch {
    anchor: Option<SourceAnchor>,
    window: u32,
    /// The documents in this window, their total size, and the document that took the most bytes.
    documents: u32,
    bytes: usize,
    hardest: Option<(usize, Bytes)>,
}

impl AnchorSearch {
    pub fn set_anchor(&mut self, id: i64, document: Bytes) {
        self.window = (self.window * 2).clamp(FIRST_WINDOW, LAST_WINDOW);
        self.anchor = Some(SourceAnchor { id, document });
    }

    /// Loads a row. A delta must not depend on a damaged one, so a new anchor is made.
    pub fn resume_from_row(&mut self, id: i64, sum: i64, packed: &[u8]) {
        let document = document::unpack_document(packed).ok();
        if let Some(document) = document.filter(|document| i64::from(document::checksum(document)) == sum) {
            self.set_anchor(id, document);
        }
    }

    /// `before` is the previous version, with its number of deltas since the last full one. Also returns a
    /// document that becomes the new anchor.
    pub fn encode(
        &mut self,
        before: Option<(&Bytes, u32)>,
        state: &WitnessedState,
    ) -> (EncodedDocument, Option<Bytes>) {
        let document = &state.document;
        if document.is_empty() {
            return (
                EncodedDocument {
                    encoding: DocumentEncoding::Empty,
                    depth: 0,
                    anchor: None,
                    bytes: Vec::new(),
                },
                None,
            );
        }
        let on_before = before.filter(|(_, depth)| *depth < DELTA_CHAIN);
        let encoded = on_before.and_then(|(before, depth)| self.on_before(before, depth, document));
        let encoded = encoded.unwrap_or_else(|| self.encode_alone(document));
        // The description of a gap, or the last content of an object, is a poor base for others.
        let anchor = match state.change {
            Change::Present => self.learn_document(encoded.bytes.len(), document),
            _ => None,
        };
        (encoded, anchor)
    }

    fn on_before(&self, before: &Bytes, depth: u32, document: &Bytes) -> Option<EncodedDocument> {
        let depth = depth + 1;
        let bytes = document::encode_delta(before, document);
        if bytes.len() > SHORT
            && let Some(anchor) = &self.anchor
            && before.len() <= 4 * ANCHOR_BYTES
        {
            let shorter = document::encode_delta(&join_documents(&anchor.document, before), document);
            // The number of the anchor takes two bytes.
            if shorter.len() + 2 < bytes.len() {
                return Some(EncodedDocument {
                    encoding: DocumentEncoding::Delta,
                    depth,
                    anchor: Some(anchor.id),
                    bytes: shorter,
                });
            }
        }
        // If an object has changed completely, its chain starts over.
        let alike = bytes.len() * 2 <= document.len();
        alike.then_some(EncodedDocument { encoding: DocumentEncoding::Delta, depth, anchor: None, bytes })
    }

    fn encode_alone(&self, document: &Bytes) -> EncodedDocument {
        let anchored = self.anchor.as_ref().map(|anchor| EncodedDocument {
            encoding: DocumentEncoding::Anchored,
            depth: 1,
            anchor: Some(anchor.id),
            bytes: document::encode_delta(&anchor.document, document),
        });
        // Packing is expensive, and can't be shorter than this.
        match anchored {
            Some(anchored) if anchored.bytes.len() * 4 <= document.len() => anchored,
            anchored => {
                let bytes = document::pack_document(document).to_vec();
                let full =
                    EncodedDocument { encoding: DocumentEncoding::Full, depth: 0, anchor: None, bytes };
                // A dependency on another document must save at least a quarter.
                let worth = |anchored: &EncodedDocument| anchored.bytes.len() * 4 < full.bytes.len() * 3;
                anchored.filter(worth).unwrap_or(full)
            }
        }
    }

    fn learn_document(&mut self, taken: usize, document: &Bytes) -> Option<Bytes> {
        if document.len() > ANCHOR_BYTES {
            return None;
        }
        if self.anchor.is_none() {
            return Some(document.clone());
        }
        self.documents += 1;
        self.bytes += taken;
        if self.hardest.as_ref().is_none_or(|(most, _)| *most < taken) {
            self.hardest = Some((taken, document.clone()));
        }
        if self.documents < self.window {
            return None;
        }
        let average = self.bytes / self.documents as usize;
        (self.documents, self.bytes) = (0, 0);
        let (most, hardest) = self.hardest.take()?;
        (most > average + average / 2).then_some(hardest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::sync::Arc;

    use kubewitness_core::{StateId, Version};

    fn state(change: Change, document: &str) -> WitnessedState {
        WitnessedState {
            id: StateId::parse("id"),
            change,
            object: Arc::default(),
            owner: None,
            controller: None,
            resource_version: Version::new("1"),
            status: Arc::default(),
            previous: None,
            observed_ms: 0,
            document: document.to_owned().into(),
            base: None,
            quotes_none_under: None,
        }
    }

    /// A text of random letters, so that only a base shortens it.
    fn text(seed: u64, words: u64) -> String {
        let mut number = seed;
        let letter = |_| {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            char::from(b'!' + (number >> 40) as u8 % 90)
        };
        (0..8 * words).map(letter).collect()
    }

    fn encode(anchors: &mut AnchorSearch, before: Option<(&Bytes, u32)>, document: &str) -> EncodedDocument {
        let (encoded, anchor) = anchors.encode(before, &state(Change::Present, document));
        if let Some(document) = anchor {
            anchors.set_anchor(anchors.anchor.as_ref().map_or(1, |anchor| anchor.id + 1), document);
        }
        encoded
    }

    #[test]
    fn a_chain_ends_at_its_limit_and_starts_over() {
        let mut anchors = AnchorSearch::default();
        let document: Bytes = text(1, 100).into();
        encode(&mut anchors, None, &text(1, 100));
        let last = encode(&mut anchors, Some((&document, DELTA_CHAIN - 1)), &text(1, 100));
        assert_eq!((last.encoding, last.depth), (DocumentEncoding::Delta, DELTA_CHAIN));
        let over = encode(&mut anchors, Some((&document, DELTA_CHAIN)), &text(1, 100));
        assert_eq!((over.encoding, over.depth), (DocumentEncoding::Anchored, 1));
    }

    #[test]
    fn what_resembles_nothing_is_kept_on_its_own() {
        let mut anchors = AnchorSearch::default();
        encode(&mut anchors, None, &text(1, 100));
        let before: Bytes = text(2_000, 100).into();
        let other = encode(&mut anchors, Some((&before, 3)), &text(9_000, 100));
        assert_eq!((other.encoding, other.depth), (DocumentEncoding::Full, 0));
        assert_eq!(document::unpack_document(&other.bytes).unwrap(), text(9_000, 100));
    }

    #[test]
    fn a_change_that_many_objects_go_through_is_soon_stored_against_one_of_them() {
        let mut anchors = AnchorSearch::default();
        let mut taken = Vec::new();
        for object in 0..2 * u64::from(FIRST_WINDOW) {
            let young = format!("{{\"uid\":\"{object}\",{}}}", text(1, 80));
            encode(&mut anchors, None, &young);
            let grown = format!("{young}{}", text(5_000, 60));
            let encoded = encode(&mut anchors, Some((&young.clone().into(), 1)), &grown);
            taken.push(encoded.bytes.len());
        }
        let (first, last) = (taken[0], taken[taken.len() - 1]);
        assert!(last * 4 < first, "{first} bytes at first, {last} in the end");
    }
}
