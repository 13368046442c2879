//! Reads a document without making values of it: the members of an object as texts, and the text at a pointer.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::value::RawValue;

/// The members of an object. Of equal keys the last one counts, as for a parsed object.
pub type RawMembers<'d> = BTreeMap<Cow<'d, str>, &'d RawValue>;

/// A key with a meaning of its own for the parser, and for a scan none.
const PARSERS_OWN: &str = "$serde_json::private";

/// The text of a document that can be scanned. Half of a pair of escapes is no text, and a scan would not notice it.
pub fn scannable_text(document: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(document).ok()?;
    let has_pairs = || ["\\ud", "\\uD"].iter().any(|escape| text.contains(escape));
    // Most documents have no escape.
    let is_scannable = !text.contains(PARSERS_OWN) && (!text.contains('\\') || !has_pairs());
    is_scannable.then_some(text)
}

/// The members of a text that is an object and nothing more.
pub fn members_of(text: &str) -> serde_json::Result<RawMembers<'_>> {
    let ObjectMembers(members) = serde_json::from_str(text)?;
    Ok(members)
}

/// The value at a pointer of at least one token.
pub fn find_value<'d>(text: &'d str, pointer: &str) -> serde_json::Result<Option<&'d RawValue>> {
    let tokens: Vec<String> =
        pointer.split('/').skip(1).map(|token| token.replace("~1", "/").replace("~0", "~")).collect();
    let mut parser = serde_json::Deserializer::from_str(text);
    let found = TokenSearch(&tokens).deserialize(&mut parser)?;
    parser.end()?;
    Ok(found)
}

struct ObjectMembers<'d>(RawMembers<'d>);

impl<'de> Deserialize<'de> for ObjectMembers<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MemberVisitor;
        impl<'de> Visitor<'de> for MemberVisitor {
            type Value = ObjectMembers<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = BTreeMap::new();
                while let Some((MemberKey(key), value)) = map.next_entry()? {
                    members.insert(key, value);
                }
                Ok(ObjectMembers(members))
            }
        }
        deserializer.deserialize_map(MemberVisitor)
    }
}

/// A key, borrowed if it has no escapes.
struct MemberKey<'d>(Cow<'d, str>);

impl<'de> Deserialize<'de> for MemberKey<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeyVisitor;
        impl<'de> Visitor<'de> for KeyVisitor {
            type Value = MemberKey<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }

            fn visit_borrowed_str<E: Error>(self, key: &'de str) -> Result<Self::Value, E> {
                Ok(MemberKey(Cow::Borrowed(key)))
            }

            fn visit_str<E: Error>(self, key: &str) -> Result<Self::Value, E> {
                Ok(MemberKey(Cow::Owned(key.to_owned())))
            }
        }
        deserializer.deserialize_str(KeyVisitor)
    }
}

/// Looks for the value below these tokens, and skips all others.
#[derive(Clone, Copy)]
struct TokenSearch<'t>(&'t [String]);

impl<'de> DeserializeSeed<'de> for TokenSearch<'_> {
    type Value = Option<&'de RawValue>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        match self.0 {
            [] => Deserialize::deserialize(deserializer).map(Some),
            _ => deserializer.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for TokenSearch<'_> {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(MemberKey(key)) = map.next_key()? {
            match self.0 {
                [token, below @ ..] if key == *token => found = map.next_value_seed(TokenSearch(below))?,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let (mut found, mut place) = (None, 0);
        let index = self.0.first().and_then(|token| index_of(token));
        loop {
            if index == Some(place) {
                let Some(value) = list.next_element_seed(TokenSearch(&self.0[1..]))? else { break };
                found = value;
            } else if list.next_element::<IgnoredAny>()?.is_none() {
                break;
            }
            place += 1;
        }
        Ok(found)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
}

/// An index as a pointer writes it: without a sign and without leading zeros.
fn index_of(token: &str) -> Option<usize> {
    let is_plain = !token.starts_with('+') && (token == "0" || !token.starts_with('0'));
    token.parse().ok().filter(|_| is_plain)
}
