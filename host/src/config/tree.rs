//! YAML with a line for every value, so that an error can name the line.

use kubewitness_core::shorten_text;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_saphyr::Spanned;

/// A YAML document. Lines count from 1 within the text that was parsed.
#[derive(Clone, Debug)]
pub struct YamlTree {
    pub line: usize,
    column: usize,
    node: YamlNode,
}

#[derive(Clone, Debug)]
enum YamlNode {
    Map(Vec<(String, YamlTree)>),
    List(Vec<YamlTree>),
    Scalar(Value),
}

/// How many bytes of a field's name a message shows.
const KEY: usize = 120;

const TOO_LARGE: &str =
    "is nested too deeply or too large, with all that its anchors repeat: write it shorter, or divide it";

/// Why a text is not YAML.
#[derive(Debug)]
pub struct NotYaml {
    pub line: usize,
    pub message: String,
}

/// The library's messages are for programmers. Its own line number is left out, because an error has one
/// line.
fn in_words(error: &serde_saphyr::Error) -> String {
    use serde_saphyr::Error;
    match error.without_snippet() {
        Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("the field `{}` is there twice: remove one", shorten_text(key, KEY))
        }
        Error::DuplicateMappingKey { .. } => "a field is there twice: remove one".into(),
        Error::RecursiveReferencesRequireWeakTypes { .. } => {
            "an anchor holds itself: write out what is meant".into()
        }
        Error::Budget { .. }
        | Error::AliasReplayLimitExceeded { .. }
        | Error::AliasExpansionLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. } => TOO_LARGE.into(),
        other => {
            let text = other.to_string();
            match text.rsplit_once(" at line ").map_or(text.as_str(), |(what, _)| what) {
                // They have no type of their own.
                what if ["recursion limit", "budget breached"].iter().any(|it| what.contains(it)) => {
                    TOO_LARGE.into()
                }
                what => what.to_owned(),
            }
        }
    }
}

impl YamlTree {
    /// All documents of a text, without empty ones.
    pub fn parse(text: &str) -> Result<Vec<Self>, NotYaml> {
        let documents: Vec<Spanned<YamlNode>> = serde_saphyr::from_multiple(text).map_err(|error| {
            NotYaml { line: error.location().map_or(1, |at| at.line() as usize), message: in_words(&error) }
        })?;
        let trees = documents.into_iter().map(Self::from_spanned);
        Ok(trees.filter(|tree| !matches!(tree.node, YamlNode::Scalar(Value::Null))).collect())
    }

    fn from_spanned(spanned: Spanned<YamlNode>) -> Self {
        let at = spanned.referenced;
        Self { line: at.line() as usize, column: at.column() as usize, node: spanned.value }
    }

    pub fn get(&self, key: &str) -> Option<&Self> {
        match &self.node {
            YamlNode::Map(entries) => entries.iter().find(|(name, _)| name == key).map(|(_, tree)| tree),
            _ => None,
        }
    }

    pub fn entries(&self) -> impl Iterator<Item = (&str, &Self)> {
        let entries = match &self.node {
            YamlNode::Map(entries) => entries.as_slice(),
            _ => &[],
        };
        entries.iter().map(|(name, tree)| (name.as_str(), tree))
    }

    pub fn items(&self) -> impl Iterator<Item = &Self> {
        let items = match &self.node {
            YamlNode::List(items) => items.as_slice(),
            _ => &[],
        };
        items.iter()
    }

    pub fn text(&self) -> Option<&str> {
        match &self.node {
            YamlNode::Scalar(Value::String(text)) => Some(text),
            _ => None,
        }
    }

    /// Describes a value that is not a text, as written in the source: YAML reads `n`, `1e3` and `~` as
    /// something other than their letters.
    pub fn other_than_text(&self, source: &str) -> Option<String> {
        let kind = match &self.node {
            YamlNode::Map(_) => return Some("is a map".into()),
            YamlNode::List(_) => return Some("is a list".into()),
            YamlNode::Scalar(Value::String(_)) => return None,
            YamlNode::Scalar(Value::Null) => "nothing",
            YamlNode::Scalar(Value::Bool(_)) => "a boolean",
            YamlNode::Scalar(_) => "a number",
        };
        let line = source.lines().nth(self.line.saturating_sub(1)).unwrap_or_default();
        let rest = line.chars().skip(self.column.saturating_sub(1));
        let word: String = rest.take_while(|c| !c.is_whitespace() && !",]}#".contains(*c)).collect();
        let is_nothing = matches!(&self.node, YamlNode::Scalar(Value::Null));
        Some(match word.as_str() {
            // A missing value has no text.
            word if is_nothing && !matches!(word, "~" | "null" | "Null" | "NULL") => "is empty".into(),
            word if word.parse::<u64>().is_ok() => format!(
                "YAML reads `{word}` as a number, and this field is text: write it in quotes, or with a unit, such as \
                 64Mi or 2s"
            ),
            word => format!("YAML reads `{word}` as {kind}, and this field is text: write it in quotes"),
        })
    }

    pub fn to_json(&self) -> Value {
        match &self.node {
            YamlNode::Map(entries) => {
                Value::Object(entries.iter().map(|(name, tree)| (name.clone(), tree.to_json())).collect())
            }
            YamlNode::List(items) => Value::Array(items.iter().map(Self::to_json).collect()),
            YamlNode::Scalar(value) => value.clone(),
        }
    }

    /// The line of a field such as `spec.subscribe[0].source`, or of its nearest existing parent.
    pub fn line_of(&self, field: &str) -> usize {
        self.nearest(field).line
    }

    /// A field, or its nearest existing parent.
    pub fn nearest(&self, field: &str) -> &Self {
        let mut tree = self;
        for step in field.split(['.', '[']).filter(|step| !step.is_empty()) {
            let next = match (&tree.node, step.strip_suffix(']').map(str::parse::<usize>)) {
                (YamlNode::List(items), Some(Ok(index))) => items.get(index),
                _ => tree.get(step),
            };
            match next {
                Some(next) => tree = next,
                None => break,
            }
        }
        tree
    }
}

impl<'de> Deserialize<'de> for YamlNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = YamlNode;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("YAML")
    }

    fn visit_bool<E>(self, value: bool) -> Result<YamlNode, E> {
        Ok(YamlNode::Scalar(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<YamlNode, E> {
        Ok(YamlNode::Scalar(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<YamlNode, E> {
        Ok(YamlNode::Scalar(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<YamlNode, E> {
        Ok(YamlNode::Scalar(value.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<YamlNode, E> {
        Ok(YamlNode::Scalar(value.into()))
    }

    fn visit_unit<E>(self) -> Result<YamlNode, E> {
        Ok(YamlNode::Scalar(Value::Null))
    }

    fn visit_none<E>(self) -> Result<YamlNode, E> {
        Ok(YamlNode::Scalar(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<YamlNode, D::Error> {
        YamlNode::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<YamlNode, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element::<Spanned<YamlNode>>()? {
            items.push(YamlTree::from_spanned(item));
        }
        Ok(YamlNode::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<YamlNode, A::Error> {
        let mut entries = Vec::new();
        while let Some((key, value)) = access.next_entry::<String, Spanned<YamlNode>>()? {
            entries.push((key, YamlTree::from_spanned(value)));
        }
        Ok(YamlNode::Map(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "apiVersion: v1\nspec:\n  subscribe:\n    - source: jobs\n      mode: every\n    - source: pods\n  on: true\n";

    #[test]
    fn every_field_has_its_line() {
        let tree = &YamlTree::parse(TEXT).unwrap()[0];
        assert_eq!(tree.line_of("spec.subscribe[1].source"), 6);
        assert_eq!(tree.line_of("spec.on"), 7);
        assert_eq!(tree.line_of("spec.subscribe[0].nowhere"), 4);
        assert_eq!(tree.to_json()["spec"]["subscribe"][1]["source"], "pods");
        assert_eq!(tree.to_json()["spec"]["on"], true);
    }

    #[test]
    fn a_text_of_several_documents_keeps_the_lines_of_each() {
        let trees = YamlTree::parse("a: 1\n---\n# nothing\n---\nb: 2\n").unwrap();
        assert_eq!(trees.len(), 2);
        assert_eq!(trees[1].line_of("b"), 5);
    }

    #[test]
    fn what_yaml_reads_as_something_else_is_told_as_it_was_written() {
        let message_about = |value: &str| {
            let text = format!("# first\nname: {value}\n");
            YamlTree::parse(&text).unwrap()[0].get("name").unwrap().other_than_text(&text)
        };
        for (value, kind) in
            [("n", "a boolean"), ("Yes  # is it?", "a boolean"), ("1e3", "a number"), ("~", "nothing")]
        {
            let word = value.split(' ').next().unwrap();
            let wanted = format!("YAML reads `{word}` as {kind}, and this field is text: write it in quotes");
            assert_eq!(message_about(value).unwrap(), wanted);
        }
        assert_eq!(message_about("").unwrap(), "is empty");
        assert_eq!(message_about("[a]").unwrap(), "is a list");
        assert_eq!(message_about("\"n\""), None);
        assert_eq!(message_about("train-1"), None);
    }

    #[test]
    fn what_is_not_yaml_is_told_in_words_that_say_what_to_do() {
        let error_of = |text: &str| YamlTree::parse(text).unwrap_err().message;
        assert_eq!(error_of("a: 1\nb: 2\na: 3\n"), "the field `a` is there twice: remove one");
        let (deep, large) = ("[".repeat(2000), "- a\n".repeat(300_000));
        for text in [deep.as_str(), large.as_str()] {
            assert!(error_of(text).starts_with("is nested too deeply or too large"), "{}", error_of(text));
        }
        assert_eq!(error_of("a: &x [*x]\n"), "an anchor holds itself: write out what is meant");
        assert!(!error_of("a: 1\nb: [1\n").contains("at line"), "{}", error_of("a: 1\nb: [1\n"));
    }

    #[test]
    fn what_is_not_yaml_is_refused_with_its_line() {
        assert_eq!(YamlTree::parse("a: 1\nb: [1\n").unwrap_err().line, 2);
    }
}
