//! Label selectors as `kubectl -l` takes them: `a=b,c==d,e!=f,g in (x, y),h notin (z),i,!j`.
//!
//! A pure predicate over labels. As in Kubernetes, `!=` and `notin` also match an object without the label,
//! and an empty selector matches everything.
//!
//! kube's `LabelSelector` does not parse text, so it could not point at the wrong character. This parser can.

#[cfg(test)]
mod tests;

use std::fmt;

use thiserror::Error;

/// Kubernetes' limits for a label's name and value, and for the prefix of a key.
const NAME: usize = 63;
const PREFIX: usize = 253;

/// A selector: requirements that must all hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector {
    requirements: Vec<LabelRequirement>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct LabelRequirement {
    key: String,
    test: RequirementTest,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum RequirementTest {
    Exists,
    Missing,
    In(Vec<String>),
    NotIn(Vec<String>),
}

/// The position of the wrong character, and what was expected there.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("at character {}: {message}", at + 1)]
pub struct SelectorError {
    /// The position in the text, in characters, from 0.
    pub at: usize,
    pub message: String,
}

impl LabelSelector {
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut parser = SelectorParser { text, at: 0 };
        let mut requirements = Vec::new();
        if parser.peek_char().is_none() {
            return Ok(Self { requirements });
        }
        loop {
            requirements.push(parser.parse_requirement()?);
            match parser.peek_char() {
                None => return Ok(Self { requirements }),
                Some(',') => parser.at += 1,
                Some(_) => return Err(parser.error_here("expected a comma or the end")),
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// `label` returns the value of a label, if the object has it.
    pub fn matches<'l>(&self, label: impl Fn(&str) -> Option<&'l str>) -> bool {
        self.requirements.iter().all(|LabelRequirement { key, test }| match (test, label(key)) {
            (RequirementTest::Exists, value) => value.is_some(),
            (RequirementTest::Missing, value) => value.is_none(),
            (RequirementTest::In(values), value) => {
                value.is_some_and(|value| values.iter().any(|v| v == value))
            }
            (RequirementTest::NotIn(values), value) => {
                value.is_none_or(|value| values.iter().all(|v| v != value))
            }
        })
    }

    /// The labels that a match depends on.
    pub fn required_keys(&self) -> impl Iterator<Item = &str> {
        self.requirements.iter().map(|requirement| requirement.key.as_str())
    }

    /// Labels and values that every match must have. An index can look them up.
    pub fn required_equalities(&self) -> impl Iterator<Item = (&str, &str)> {
        self.requirements.iter().filter_map(|LabelRequirement { key, test }| match test {
            RequirementTest::In(values) if values.len() == 1 => Some((key.as_str(), values[0].as_str())),
            _ => None,
        })
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, LabelRequirement { key, test }) in self.requirements.iter().enumerate() {
            if place > 0 {
                f.write_str(",")?;
            }
            match test {
                RequirementTest::Exists => write!(f, "{key}")?,
                RequirementTest::Missing => write!(f, "!{key}")?,
                RequirementTest::In(values) => match &values[..] {
                    [value] => write!(f, "{key}={value}")?,
                    values => write!(f, "{key} in ({})", values.join(","))?,
                },
                RequirementTest::NotIn(values) => match &values[..] {
                    [value] => write!(f, "{key}!={value}")?,
                    values => write!(f, "{key} notin ({})", values.join(","))?,
                },
            }
        }
        Ok(())
    }
}

struct SelectorParser<'a> {
    text: &'a str,
    /// A position in bytes.
    at: usize,
}

impl<'a> SelectorParser<'a> {
    fn error_here(&self, message: impl Into<String>) -> SelectorError {
        self.wrong_at(self.at, message)
    }

    fn wrong_at(&self, at: usize, message: impl Into<String>) -> SelectorError {
        SelectorError { at: self.text[..at].chars().count(), message: message.into() }
    }

    fn remaining_text(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// Returns the next character that is not white space, without taking it.
    fn peek_char(&mut self) -> Option<char> {
        self.at = self.text.len() - self.remaining_text().trim_start().len();
        self.remaining_text().chars().next()
    }

    fn take(&mut self, token: &str) -> bool {
        self.peek_char();
        let taken = self.remaining_text().starts_with(token);
        if taken {
            self.at += token.len();
        }
        taken
    }

    fn take_word(&mut self) -> (usize, &'a str) {
        self.peek_char();
        let start = self.at;
        let rest = self.remaining_text();
        let length = rest.find(|c: char| c.is_whitespace() || ",()=!<>".contains(c)).unwrap_or(rest.len());
        self.at += length;
        (start, &rest[..length])
    }

    fn parse_requirement(&mut self) -> Result<LabelRequirement, SelectorError> {
        if self.take("!") {
            let key = self.key()?;
            return Ok(LabelRequirement { key, test: RequirementTest::Missing });
        }
        let key = self.key()?;
        let test = match self.peek_char() {
            None | Some(',') => RequirementTest::Exists,
            Some('=') => {
                self.at += 1;
                if self.remaining_text().starts_with('=') {
                    self.at += 1;
                }
                RequirementTest::In(vec![self.parse_label_value()?])
            }
            Some('!') if self.take("!=") => RequirementTest::NotIn(vec![self.parse_label_value()?]),
            Some('<' | '>') => {
                return Err(
                    self.error_here("`<` and `>` are not supported: compare with `=`, `!=`, `in` or `notin`")
                );
            }
            Some(_) => self.parse_value_set()?,
        };
        Ok(LabelRequirement { key, test })
    }

    fn parse_value_set(&mut self) -> Result<RequirementTest, SelectorError> {
        let (start, word) = self.take_word();
        let is_in = match word {
            "in" => true,
            "notin" => false,
            _ => {
                return Err(
                    self.wrong_at(start, "expected `=`, `==`, `!=`, `in`, `notin`, a comma or the end")
                );
            }
        };
        if !self.take("(") {
            return Err(self.error_here(format!("expected `(` with the values after `{word}`")));
        }
        let mut values = vec![self.parse_label_value()?];
        while self.take(",") {
            values.push(self.parse_label_value()?);
        }
        if !self.take(")") {
            return Err(self.error_here("expected a comma or `)`"));
        }
        Ok(if is_in { RequirementTest::In(values) } else { RequirementTest::NotIn(values) })
    }

    fn key(&mut self) -> Result<String, SelectorError> {
        let (start, word) = self.take_word();
        match check_key(word) {
            Ok(()) => Ok(word.to_owned()),
            Err(error) => Err(self.wrong_at(start, error.to_string())),
        }
    }

    /// Reads a value, which may be empty as the value of a label may.
    fn parse_label_value(&mut self) -> Result<String, SelectorError> {
        let (start, word) = self.take_word();
        match check_value(word) {
            Ok(()) => Ok(word.to_owned()),
            Err(error) => Err(self.wrong_at(start, error.to_string())),
        }
    }
}

const RULE: &str = "up to 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends";

/// Why Kubernetes does not accept a label.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LabelError {
    #[error("expected the key of a label")]
    NoKey,
    #[error("`{0}` can't be before the slash of a key: write a DNS name in lower case")]
    Prefix(String),
    #[error("`{0}` can't be the name of a label: {RULE}")]
    Name(String),
    #[error("`{0}` can't be the value of a label: {RULE}")]
    Value(String),
}

/// Checks that Kubernetes accepts this key as that of a label.
pub fn check_key(key: &str) -> Result<(), LabelError> {
    if key.is_empty() {
        return Err(LabelError::NoKey);
    }
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    if let Some(prefix) = prefix.filter(|prefix| !is_prefix(prefix)) {
        return Err(LabelError::Prefix(prefix.to_owned()));
    }
    if name.is_empty() || !is_label(name) {
        return Err(LabelError::Name(name.to_owned()));
    }
    Ok(())
}

/// Checks that Kubernetes accepts this value for a label. Empty values are valid.
pub fn check_value(value: &str) -> Result<(), LabelError> {
    if is_label(value) { Ok(()) } else { Err(LabelError::Value(value.to_owned())) }
}

fn is_label(text: &str) -> bool {
    let is_end = |byte: Option<&u8>| byte.is_none_or(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= NAME
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
        && is_end(bytes.first())
        && is_end(bytes.last())
}

fn is_prefix(text: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
            && !part.starts_with('-')
            && !part.ends_with('-')
    };
    text.len() <= PREFIX && text.split('.').all(is_part)
}
