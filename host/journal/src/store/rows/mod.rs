//! The rows of one transaction, and the small encodings in them. No SQL.

pub(crate) mod check;
pub(crate) mod discrepancies;
pub(crate) mod removal;
pub(crate) mod seal;
pub(crate) mod uid;

use std::fmt;

use kubewitness_core::document::{Packed, checksum};
use kubewitness_core::{Change, Seq, Status, Version};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};

/// What makes a state unique within its object, and the leading column of the one unique index:
/// versions arrive ascending, so new entries go to the end of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    /// A decimal version that fits, or [`Key::GONE`].
    Number(i64),
    /// `=` and any other version, or `~` and the bounds of a gap.
    Text(Box<str>),
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl Visitor<'_> for Either {
            type Value = Key;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number or a text")
            }
            fn visit_i64<E>(self, number: i64) -> Result<Key, E> {
                Ok(Key::Number(number))
            }
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Key, E> {
                i64::try_from(number).map(Key::Number).map_err(E::custom)
            }
            fn visit_str<E>(self, text: &str) -> Result<Key, E> {
                Ok(Key::Text(text.into()))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl Key {
    /// A uid dies once. Below every version, so that these stay out of the way of the newest.
    pub const GONE: Self = Self::Number(-1);

    pub fn of_version(version: &Version) -> Self {
        // 18 digits always fit.
        if version.is_comparable()
            && version.as_str().len() <= 18
            && let Ok(number) = version.as_str().parse()
        {
            return Self::Number(number);
        }
        Self::Text(format!("={version}").into())
    }

    pub fn of_gap(bounds: &str) -> Self {
        Self::Text(format!("~{bounds}").into())
    }

    /// The version that [`of_version`](Self::of_version) was given.
    pub fn version(&self) -> Option<Version> {
        match self {
            Self::Number(number) if *number > 0 => Some(Version::new(&number.to_string())),
            Self::Number(_) => None,
            Self::Text(text) => text.strip_prefix('=').map(Version::new),
        }
    }

    pub fn gap_bounds(&self) -> Option<&str> {
        match self {
            Self::Text(text) => text.strip_prefix('~'),
            Self::Number(_) => None,
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Number(number) => {
                out.push(0);
                out.extend_from_slice(&number.to_le_bytes());
            }
            Self::Text(text) => {
                out.push(1);
                out.extend_from_slice(&(text.len() as u64).to_le_bytes());
                out.extend_from_slice(text.as_bytes());
            }
        }
    }
}

/// How a row's document is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    /// There is none.
    Empty,
    /// On its own.
    Full,
    /// Against the state before of the same object.
    Delta,
    /// Against an anchor: a full document of the same source that many objects begin from.
    Anchored,
}

/// Change, lateness, encoding and steps of a document, in one small number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flags {
    pub change: Change,
    pub late: bool,
    pub encoding: Encoding,
    /// Deltas to be applied to get from a full document to this one.
    pub depth: u32,
}

impl Flags {
    pub fn pack(self) -> i64 {
        let change = match self.change {
            Change::Present => 0,
            Change::Gone => 1,
            Change::Left => 2,
            Change::Gap => 3,
        };
        let encoding = match self.encoding {
            Encoding::Empty => 0,
            Encoding::Full => 1,
            Encoding::Delta => 2,
            Encoding::Anchored => 3,
        };
        change | i64::from(self.late) << 2 | encoding << 3 | i64::from(self.depth) << 5
    }

    pub fn unpack(bits: i64) -> Option<Self> {
        let change = match bits & 3 {
            0 => Change::Present,
            1 => Change::Gone,
            2 => Change::Left,
            _ => Change::Gap,
        };
        let encoding = match bits >> 3 & 3 {
            0 => Encoding::Empty,
            1 => Encoding::Full,
            2 => Encoding::Delta,
            _ => Encoding::Anchored,
        };
        let depth = u32::try_from(bits >> 5).ok()?;
        Some(Self { change, late: bits & 4 != 0, encoding, depth })
    }
}

/// One state without its document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Envelope {
    pub seq: Seq,
    pub object: i64,
    pub key: Key,
    pub flags: Flags,
    /// How many positions back the state before of this object is; 0 where there is none.
    pub back: u64,
    pub status: i64,
    pub previous: Option<i64>,
    /// `None`: the object's own owner; 0: none although the object has one.
    pub owner: Option<i64>,
    pub observed_ms: i64,
    /// The version, where the key isn't it.
    pub version: Option<Key>,
    pub anchor: Option<i64>,
    /// Of the document.
    pub checksum: u32,
}

impl Envelope {
    /// Covers every column, so that a changed byte is found in the envelope as in the document.
    pub fn seal(&self) -> u32 {
        let mut bytes = Vec::with_capacity(112);
        for number in [
            self.seq as i64,
            self.object,
            self.flags.pack(),
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
    pub fn sums(&self) -> i64 {
        (u64::from(self.seal()) << 32 | u64::from(self.checksum)) as i64
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
    pub envelope: Envelope,
    pub document: Vec<u8>,
}

/// An object, or one that is only referred to as an owner (`stream` is 0).
#[derive(Clone, Debug)]
pub(crate) struct ObjectRow {
    pub id: i64,
    pub stream: i64,
    pub kind: i64,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub owner: i64,
}

impl ObjectRow {
    /// Covers every column.
    pub fn sum(&self) -> u32 {
        let Self { id, stream, kind, namespace, name, uid, owner } = self;
        checksum(format!("{id}/{stream}/{kind}/{namespace}/{name}/{uid}/{owner}").as_bytes())
    }
}

/// What becomes of an object's row at the end of a batch.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    Live {
        newest: Seq,
        tail: Seq,
    },
    /// 0 where there is none.
    Ended {
        newest: Seq,
        tail: Seq,
    },
}

/// The whole document of a live object's state.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotRow {
    pub object: i64,
    pub seq: Seq,
    pub packed: Packed,
}

/// A stream as it is from now on.
#[derive(Clone, Debug)]
pub(crate) struct StreamRow {
    pub id: i64,
    pub source: String,
    pub epoch: u32,
    pub checkpoint: Option<String>,
    /// What this batch adds.
    pub states: u64,
    pub last_event_ms: Option<i64>,
}

impl StreamRow {
    pub fn sum(&self) -> i64 {
        let Self { id, source, epoch, checkpoint, last_event_ms, .. } = self;
        seal::stream(*id, source, i64::from(*epoch), checkpoint.as_deref(), *last_event_ms)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct GapRow {
    pub stream: i64,
    /// 0: of the whole source.
    pub seq: Seq,
    pub key: String,
    pub body: String,
}

impl GapRow {
    pub fn sum(&self) -> i64 {
        seal::gap(self.stream, self.seq as i64, &self.key, &self.body)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct PoisonRow {
    pub stream: i64,
    pub digest: i64,
    pub checksum: u32,
    pub raw: Vec<u8>,
    pub error: String,
    pub observed_ms: i64,
}

impl PoisonRow {
    pub fn sum(&self) -> i64 {
        let Self { stream, digest, checksum, observed_ms, error, .. } = self;
        seal::poison(*stream, *digest, i64::from(*checksum), *observed_ms, error)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct AnchorRow {
    pub id: i64,
    pub stream: i64,
    pub checksum: u32,
    pub packed: Packed,
}

impl AnchorRow {
    pub fn sum(&self) -> i64 {
        seal::anchor(self.id, self.stream, i64::from(self.checksum))
    }
}

/// A status as it is stored: positions instead of names, since it is there for each phase.
pub(crate) fn status_text(status: &Status) -> String {
    let Status { phase, reason, message, attempt, ready, total, exit_code, terminal } = status;
    let parts = (phase, reason, message, attempt, ready, total, exit_code, u8::from(*terminal));
    serde_json::to_string(&parts).expect("strings and numbers always serialize")
}

pub(crate) fn parse_status(text: &str) -> Result<Status, serde_json::Error> {
    type Parts = (String, String, String, u32, u32, u32, Option<i32>, u8);
    let (phase, reason, message, attempt, ready, total, exit_code, terminal): Parts =
        serde_json::from_str(text)?;
    Ok(Status { phase, reason, message, attempt, ready, total, exit_code, terminal: terminal != 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_any_kind_come_back_exactly() {
        for text in [
            "1",
            "1070",
            "999999999999999999",
            "1000000000000000000",
            "18446744073709551616",
            "",
            "0",
            "007",
            "x",
        ] {
            let version = Version::new(text);
            assert_eq!(Key::of_version(&version).version(), Some(version), "{text}");
        }
    }

    #[test]
    fn a_gap_a_deletion_and_a_version_never_share_a_key() {
        let version = Key::of_version(&Version::new("~5-7"));
        assert_ne!(version, Key::of_gap("5-7"));
        assert_eq!(version.gap_bounds(), None);
        assert_eq!(Key::GONE.version(), None);
    }

    #[test]
    fn flags_come_back() {
        for depth in [0, 1, 32] {
            for change in [Change::Present, Change::Gone, Change::Left, Change::Gap] {
                for encoding in [Encoding::Empty, Encoding::Full, Encoding::Delta, Encoding::Anchored] {
                    let flags = Flags { change, late: depth == 1, encoding, depth };
                    assert_eq!(Flags::unpack(flags.pack()), Some(flags));
                }
            }
        }
    }

    #[test]
    fn a_status_comes_back_whole() {
        let status = Status {
            phase: "Failed".into(),
            reason: "BackoffLimitExceeded".into(),
            message: "a \"quoted\" word".into(),
            attempt: 3,
            ready: 1,
            total: 2,
            exit_code: Some(-9),
            terminal: true,
        };
        assert_eq!(parse_status(&status_text(&status)).unwrap(), status);
    }
}
