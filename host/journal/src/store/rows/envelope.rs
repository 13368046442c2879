//! The row of one state: its columns, and how its document is stored.

use kubewitness_core::document::checksum;
use kubewitness_core::state::RulesPrint;
use kubewitness_core::{Change, Seq, Version};

use super::key::StateKey;

/// How a row's document is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DocumentEncoding {
    /// The state has no document.
    Empty,
    /// A full document.
    Full,
    /// A delta on the previous state of the same object.
    Delta,
    /// A delta on an anchor: a full document of the same source, on which many objects are based.
    Anchored,
}

/// Bits of [`RowFlags::depth`].
const DEPTH_BITS: u32 = 8;
const DEPTH_SHIFT: u32 = 5;
const RULES_SHIFT: u32 = DEPTH_SHIFT + DEPTH_BITS;

/// Change, lateness, encoding and steps of a document, and the result of the search for secrets, in one
/// number. For most states it is small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowFlags {
    pub change: Change,
    pub late: bool,
    pub encoding: DocumentEncoding,
    /// The number of deltas between a full document and this one.
    pub depth: u32,
    /// The rules under which its texts quote no secret.
    pub quotes_none_under: Option<RulesPrint>,
}

impl RowFlags {
    pub fn pack_bits(self) -> i64 {
        let change = match self.change {
            Change::Present => 0,
            Change::Gone => 1,
            Change::Left => 2,
            Change::Gap => 3,
        };
        let encoding = match self.encoding {
            DocumentEncoding::Empty => 0,
            DocumentEncoding::Full => 1,
            DocumentEncoding::Delta => 2,
            DocumentEncoding::Anchored => 3,
        };
        let rules = self.quotes_none_under.map_or(0, RulesPrint::bits);
        change
            | i64::from(self.late) << 2
            | encoding << 3
            | i64::from(self.depth) << DEPTH_SHIFT
            | i64::from(rules) << RULES_SHIFT
    }

    pub fn unpack_bits(bits: i64) -> Option<Self> {
        let change = match bits & 3 {
            0 => Change::Present,
            1 => Change::Gone,
            2 => Change::Left,
            _ => Change::Gap,
        };
        let encoding = match bits >> 3 & 3 {
            0 => DocumentEncoding::Empty,
            1 => DocumentEncoding::Full,
            2 => DocumentEncoding::Delta,
            _ => DocumentEncoding::Anchored,
        };
        let depth = (bits >> DEPTH_SHIFT & ((1 << DEPTH_BITS) - 1)) as u32;
        let quotes_none_under = RulesPrint::from_bits(u32::try_from(bits >> RULES_SHIFT).ok()?);
        Some(Self { change, late: bits & 4 != 0, encoding, depth, quotes_none_under })
    }
}

/// One state without its document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StateEnvelope {
    pub seq: Seq,
    pub object: i64,
    pub key: StateKey,
    pub flags: RowFlags,
    /// How many positions back the object's previous state is; 0 if it has none.
    pub back: u64,
    pub status: i64,
    pub previous: Option<i64>,
    /// `None`: the owner of the object; 0: none, although the object has one.
    pub owner: Option<i64>,
    pub observed_ms: i64,
    /// The version, if the key is not one.
    pub version: Option<StateKey>,
    pub anchor: Option<i64>,
    /// The checksum of the document.
    pub checksum: u32,
}

impl StateEnvelope {
    /// Covers every column, so that a changed byte is detected in the envelope as well as in the document.
    pub fn seal_checksum(&self) -> u32 {
        let mut bytes = Vec::with_capacity(112);
        for number in [
            self.seq as i64,
            self.object,
            self.flags.pack_bits(),
            self.back as i64,
            self.status,
            self.previous.unwrap_or(-1),
            self.owner.unwrap_or(-1),
            self.observed_ms,
            self.anchor.unwrap_or(-1),
            i64::from(self.checksum),
        ] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        self.key.write(&mut bytes);
        if let Some(version) = &self.version {
            version.write(&mut bytes);
        }
        checksum(&bytes)
    }

    /// Seal and checksum in one column.
    pub fn both_checksums(&self) -> i64 {
        (u64::from(self.seal_checksum()) << 32 | u64::from(self.checksum)) as i64
    }

    pub fn version(&self) -> Option<Version> {
        match self.flags.change {
            Change::Present | Change::Left => self.key.version(),
            Change::Gone | Change::Gap => self.version.as_ref()?.version(),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct StateRow {
    pub envelope: StateEnvelope,
    pub document: Vec<u8>,
}

/// Joins both documents. A delta on both is based on the result.
pub(crate) fn join_documents(anchor: &[u8], before: &[u8]) -> Vec<u8> {
    [anchor, before].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_no_format_are_refused() {
        assert_eq!(RowFlags::unpack_bits(1 << (RULES_SHIFT + 32)), None);
        assert_eq!(RowFlags::unpack_bits(-1), None);
    }

    #[test]
    fn flags_come_back() {
        for (depth, rules) in [(0, 0), (1, 1), (32, u32::MAX), (255, 0)] {
            for change in [Change::Present, Change::Gone, Change::Left, Change::Gap] {
                for encoding in [
                    DocumentEncoding::Empty,
                    DocumentEncoding::Full,
                    DocumentEncoding::Delta,
                    DocumentEncoding::Anchored,
                ] {
                    let quotes_none_under = RulesPrint::from_bits(rules);
                    let flags = RowFlags { change, late: depth == 1, encoding, depth, quotes_none_under };
                    assert_eq!(RowFlags::unpack_bits(flags.pack_bits()), Some(flags));
                }
            }
        }
    }
}
