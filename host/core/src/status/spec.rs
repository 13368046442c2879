//! A rule as it is written: the files of `rules`, and `statusRules` of the host's settings.

use std::fmt;

use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

/// How the status of one kind, or of several of one shape, is read.
///
/// `cases` are tried in order, and the first whose tests all hold gives the phase; a text is the
/// first of a list that is not empty, where `@` marks a path. A number is the first of a list whose
/// `when` holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleSpec {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub about: String,
    /// Empty for the core group; `*`, with the kind `*`, for every kind without a rule of its own.
    pub group: String,
    pub kind: OneOrMany,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attempt: Vec<NumberSpec>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ready: Vec<NumberSpec>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub total: Vec<NumberSpec>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exit: Vec<String>,
    pub cases: Vec<CaseSpec>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaseSpec {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub about: String,
    pub when: Vec<TestSpec>,
    pub phase: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub terminal: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reason: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub message: Vec<String>,
}

/// The sum of paths, the greatest value of paths, the count of paths' values, and a constant,
/// added up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NumberSpec {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub when: Vec<TestSpec>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sum: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub max: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub count: Vec<String>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub plus: u32,
}

/// Holds if any value of its path, or of its paths, passes; `not` turns it round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TestSpec {
    pub at: OneOrMany,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub not: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exists: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is: Option<Value>,
    #[serde(default, rename = "in", skip_serializing_if = "Option::is_none")]
    pub one_of: Option<Vec<String>>,
    /// As `in`, whatever the case of the letters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub like: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub above: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub below: Option<i64>,
    /// Less than the number at another path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behind: Option<String>,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// What is said in words, for people who ask why.
impl fmt::Display for TestSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let paths = &self.at.0;
        match paths.as_slice() {
            [path] => f.write_str(path)?,
            _ if self.negative() => write!(f, "none of {}", paths.join(", "))?,
            _ => write!(f, "any of {}", paths.join(", "))?,
        }
        // "None of" says the "not" already.
        let (is, has) = if self.negative() && paths.len() == 1 { ("is not", "is not") } else { ("is", "is") };
        if self.exists.is_some() {
            return write!(f, " {has} there");
        }
        match self {
            Self { is: Some(Value::String(text)), .. } => write!(f, " {is} {text}"),
            Self { is: Some(value), .. } => write!(f, " {is} {value}"),
            Self { one_of: Some(list), .. } => write!(f, " {is} {}", list.join(" or ")),
            Self { like: Some(list), .. } => write!(f, " {is} (in any case) {}", list.join(" or ")),
            Self { above: Some(limit), .. } => write!(f, " {is} above {limit}"),
            Self { below: Some(limit), .. } => write!(f, " {is} below {limit}"),
            Self { behind: Some(path), .. } => write!(f, " {is} less than {path}"),
            _ => Ok(()),
        }
    }
}

impl TestSpec {
    fn negative(&self) -> bool {
        self.not != (self.exists == Some(false))
    }
}

/// One text, or a list of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OneOrMany(pub Vec<String>);

impl Serialize for OneOrMany {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [one] => serializer.serialize_str(one),
            many => many.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for OneOrMany {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Texts;
        impl<'de> Visitor<'de> for Texts {
            type Value = OneOrMany;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or a list of texts")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<OneOrMany, E> {
                Ok(OneOrMany(vec![text.to_owned()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<OneOrMany, A::Error> {
                let mut texts = Vec::new();
                while let Some(text) = access.next_element()? {
                    texts.push(text);
                }
                Ok(OneOrMany(texts))
            }
        }
        deserializer.deserialize_any(Texts)
    }
}
