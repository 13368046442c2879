//! The short form of a state's id in receipts and notes: 128 bits of its digest. The position is not part of
//! it. A journal on a database server can lose its newest commits, and then the same state gets another
//! position.

use std::fmt;

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};

const BYTES: usize = 16;

/// It is stored, so it may never change. Older receipts have 32 bits, followed by zeros here. Those identify
/// a state only together with its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IdPrint([u8; BYTES]);

impl IdPrint {
    pub fn of(id: &str) -> Self {
        let mut bytes = [0; BYTES];
        bytes.copy_from_slice(&Sha256::digest(id)[..BYTES]);
        Self(bytes)
    }

    /// The print of older versions: FNV-1a, folded to 32 bits.
    pub fn short_of(id: &str) -> Self {
        let hash = id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self::from_short_print((hash >> 32) as u32 ^ hash as u32)
    }

    pub fn from_short_print(print: u32) -> Self {
        let mut bytes = [0; BYTES];
        bytes[..4].copy_from_slice(&print.to_le_bytes());
        Self(bytes)
    }

    pub fn from_bytes(bytes: [u8; BYTES]) -> Self {
        Self(bytes)
    }

    pub fn bytes(&self) -> &[u8; BYTES] {
        &self.0
    }

    /// Whether it identifies a state only together with the position.
    pub fn is_short(&self) -> bool {
        self.0[4..].iter().all(|byte| *byte == 0)
    }

    /// Whether this is the print of the id. For a short print, the caller also compares positions.
    pub fn is_of(&self, id: &str) -> bool {
        *self == if self.is_short() { Self::short_of(id) } else { Self::of(id) }
    }
}

/// A short print is serialized as a number, as in older versions.
impl Serialize for IdPrint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let [a, b, c, d, ..] = self.0;
        match self.is_short() {
            true => serializer.serialize_u32(u32::from_le_bytes([a, b, c, d])),
            false => serializer.serialize_str(&hex::encode(self.0)),
        }
    }
}

impl<'de> Deserialize<'de> for IdPrint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PrintVisitor)
    }
}

struct PrintVisitor;

impl Visitor<'_> for PrintVisitor {
    type Value = IdPrint;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("32 hexadecimal digits, or a number of 32 bits")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<IdPrint, E> {
        let print = u32::try_from(number);
        print
            .map(IdPrint::from_short_print)
            .map_err(|_| E::invalid_value(Unexpected::Unsigned(number), &self))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<IdPrint, E> {
        let mut bytes = [0; BYTES];
        let read = hex::decode_to_slice(text, &mut bytes);
        read.map(|()| IdPrint(bytes)).map_err(|_| E::invalid_value(Unexpected::Str(text), &self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_never_change_because_they_are_stored() {
        let whole = serde_json::to_string(&IdPrint::of("jobs/0/batch/Job/u1/7")).unwrap();
        assert_eq!(whole, "\"25053d9c4f368a143fb9520ca07edf2d\"");
        assert_eq!(
            serde_json::to_string(&IdPrint::short_of("")).unwrap(),
            (0xcbf2_9ce4_u32 ^ 0x8422_2325).to_string()
        );
        for print in [IdPrint::of("a"), IdPrint::short_of("a"), IdPrint::from_short_print(0)] {
            let text = serde_json::to_string(&print).unwrap();
            assert_eq!(serde_json::from_str::<IdPrint>(&text).unwrap(), print);
        }
        for other in ["-1", "4294967296", "\"00\"", "\"g\"", "null"] {
            assert!(serde_json::from_str::<IdPrint>(other).is_err(), "{other}");
        }
    }

    #[test]
    fn a_print_of_either_length_stands_for_its_id_alone() {
        for print in [IdPrint::of("a"), IdPrint::short_of("a")] {
            assert!(print.is_of("a") && !print.is_of("b"));
        }
        assert!(IdPrint::short_of("a").is_short() && !IdPrint::of("a").is_short());
    }
}
