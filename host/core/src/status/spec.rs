//! The written form of a rule: the files of `rules`, and `statusRules` of the host's settings.

use std::fmt;

use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

/// How the status of one kind, or of several kinds of one shape, is derived from the object. A number is the
/// first of its list whose `when` holds. A text is the first of its list that is not empty; a text that
/// begins with `@` is a path.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RuleSpec {
    /// A note for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub about: String,
    /// The API group. Empty for the core group; `*` together with the kind `*` for every kind without a rule
    /// of its own.
    pub group: String,
    /// The kind, or a list of kinds.
    pub kind: OneOrMany,
    /// How often the object was started.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attempt: Vec<NumberSpec>,
    /// How many parts of the object are ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ready: Vec<NumberSpec>,
    /// How many parts the object should have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub total: Vec<NumberSpec>,
    /// Paths of the exit code.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exit: Vec<String>,
    /// The cases, tried in order. The first case whose tests all hold decides the phase.
    pub cases: Vec<CaseSpec>,
}

/// One case of a rule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CaseSpec {
    /// A note for people, which `kubewitness check --object` shows.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub about: String,
    /// The tests. All of them must hold; an empty list always holds.
    pub when: Vec<TestSpec>,
    /// The phase of an object that this case fits.
    #[cfg_attr(test, schemars(extend("enum" = super::PHASES)))]
    pub phase: String,
    /// Whether nothing more happens to the object by itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub terminal: bool,
    /// A word for programs: the first of these texts and paths that is not empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reason: Vec<String>,
    /// A sentence for people: the first of these texts and paths that is not empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub message: Vec<String>,
}

/// A number: the sum of `sum`, the greatest of `max`, and the count of `count`, added up; then `less` is subtracted,
/// and `plus` is added. It is at most `most`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NumberSpec {
    /// The tests that must hold for this number to be taken.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub when: Vec<TestSpec>,
    /// Paths whose values are added.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sum: Vec<String>,
    /// Paths of which the greatest value is taken.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub max: Vec<String>,
    /// Paths whose values are counted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub count: Vec<String>,
    /// Paths whose values are subtracted, down to 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub less: Vec<String>,
    /// A constant that is added at the end, so that the number is never below it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub plus: u32,
    /// The greatest value that the number may have: the first of these limits whose `when` holds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub most: Vec<LimitSpec>,
}

/// A limit of a number: the sum of `sum`, and `plus`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LimitSpec {
    /// The tests that must hold for this limit to be taken.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub when: Vec<TestSpec>,
    /// Paths whose values are added.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sum: Vec<String>,
    /// A constant that is added.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub plus: u32,
}

/// A test of the values at a path. It holds if any value passes. Exactly one of the comparisons is given.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TestSpec {
    /// The path, or a list of paths.
    pub at: OneOrMany,
    /// Reverses the result.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub not: bool,
    /// Whether there is a value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exists: Option<bool>,
    /// The value equals this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is: Option<Value>,
    /// The value is one of these texts.
    #[serde(default, rename = "in", skip_serializing_if = "Option::is_none")]
    pub one_of: Option<Vec<String>>,
    /// The value is one of these texts, in upper or lower case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub like: Option<Vec<String>>,
    /// The number is greater than this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub above: Option<i64>,
    /// The number is less than this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub below: Option<i64>,
    /// The number is less than the number at this path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behind: Option<String>,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Writes the test in words, for people.
impl fmt::Display for TestSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let paths = &self.at.0;
        match paths.as_slice() {
            [path] => f.write_str(path)?,
            _ if self.is_negative() => write!(f, "none of {}", paths.join(", "))?,
            _ => write!(f, "any of {}", paths.join(", "))?,
        }
        // "None of" already contains the "not".
        let (is, has) =
            if self.is_negative() && paths.len() == 1 { ("is not", "is not") } else { ("is", "is") };
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
    fn is_negative(&self) -> bool {
        self.not != (self.exists == Some(false))
    }
}

/// One text, or a list of texts.
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
        struct TextList;
        impl<'de> Visitor<'de> for TextList {
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
        deserializer.deserialize_any(TextList)
    }
}
