//! JSON as `serde_json` reads it, with its keys as they came: those that are there twice, too.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

#[derive(Clone, Debug, PartialEq)]
pub enum JsonTree {
    Null,
    Bool(bool),
    Number(f64),
    Text(String),
    List(Vec<JsonTree>),
    Object(Vec<(String, JsonTree)>),
}

impl JsonTree {
    /// Nothing where `serde_json` refuses the bytes or what their strings and numbers mean.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }

    pub fn members(&self) -> Option<&[(String, JsonTree)]> {
        match self {
            Self::Object(members) => Some(members),
            _ => None,
        }
    }

    /// Each value that an object has for a key.
    pub fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a Self> {
        self.members().unwrap_or_default().iter().filter(move |(name, _)| name == key).map(|(_, value)| value)
    }
}

impl<'de> Deserialize<'de> for JsonTree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TreeReader)
    }
}

struct TreeReader;

impl<'de> Visitor<'de> for TreeReader {
    type Value = JsonTree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }
    fn visit_unit<E>(self) -> Result<JsonTree, E> {
        Ok(JsonTree::Null)
    }
    fn visit_bool<E>(self, truth: bool) -> Result<JsonTree, E> {
        Ok(JsonTree::Bool(truth))
    }
    fn visit_i64<E>(self, number: i64) -> Result<JsonTree, E> {
        Ok(JsonTree::Number(number as f64))
    }
    fn visit_u64<E>(self, number: u64) -> Result<JsonTree, E> {
        Ok(JsonTree::Number(number as f64))
    }
    fn visit_f64<E>(self, number: f64) -> Result<JsonTree, E> {
        Ok(JsonTree::Number(number))
    }
    fn visit_str<E>(self, text: &str) -> Result<JsonTree, E> {
        Ok(JsonTree::Text(text.to_owned()))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<JsonTree, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element()? {
            values.push(value);
        }
        Ok(JsonTree::List(values))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<JsonTree, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(JsonTree::Object(members))
    }
}
