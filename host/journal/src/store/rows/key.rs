//! The key of a state, which is unique within its object.

use std::fmt;

use kubewitness_core::Version;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};

/// The key that makes a state unique within its object. It is the first column of the only unique index:
/// versions ascend, so new entries go to the end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum StateKey {
    /// A decimal version that fits, or [`StateKey::GONE`].
    Number(i64),
    /// `=` and any other version, or `~` and the bounds of a gap.
    Text(Box<str>),
}

impl<'de> Deserialize<'de> for StateKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeyColumn;
        impl Visitor<'_> for KeyColumn {
            type Value = StateKey;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number or a text")
            }
            fn visit_i64<E>(self, number: i64) -> Result<StateKey, E> {
                Ok(StateKey::Number(number))
            }
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<StateKey, E> {
                i64::try_from(number).map(StateKey::Number).map_err(E::custom)
            }
            fn visit_str<E>(self, text: &str) -> Result<StateKey, E> {
                Ok(StateKey::Text(text.into()))
            }
        }
        deserializer.deserialize_any(KeyColumn)
    }
}

impl StateKey {
    /// A uid ends once. The number is below every version, so that ends don't come between the newest
    /// versions in the index.
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

    /// The version that was passed to [`of_version`](Self::of_version).
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

    pub(super) fn write(&self, out: &mut Vec<u8>) {
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
            assert_eq!(StateKey::of_version(&version).version(), Some(version), "{text}");
        }
    }

    #[test]
    fn a_gap_a_deletion_and_a_version_never_share_a_key() {
        let version = StateKey::of_version(&Version::new("~5-7"));
        assert_ne!(version, StateKey::of_gap("5-7"));
        assert_eq!(version.gap_bounds(), None);
        assert_eq!(StateKey::GONE.version(), None);
    }
}
