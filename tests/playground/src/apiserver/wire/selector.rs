//! Label and field selectors: parsing with the real server's errors, and matching.

use crate::apiserver::wire::error::{ApiError, quoted};

/// Requirements on labels, which must all hold.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LabelSelector(Vec<SelectorRequirement>);

#[derive(Debug, Clone, PartialEq)]
struct SelectorRequirement {
    key: String,
    test: SelectorTest,
}

#[derive(Debug, Clone, PartialEq)]
enum SelectorTest {
    Exists,
    Absent,
    In(Vec<String>),
    NotIn(Vec<String>),
    Greater(i64),
    Less(i64),
}

impl LabelSelector {
    pub fn parse(text: &str) -> Result<Self, ApiError> {
        let mut parser = SelectorParser { tokens: lex(text), at: 0 };
        parser.selector().map(LabelSelector).map_err(ApiError::bad_request)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `labels` returns the value of a label.
    pub fn matches<'a>(&self, labels: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.0.iter().all(|r| {
            let value = labels(&r.key);
            match &r.test {
                SelectorTest::Exists => value.is_some(),
                SelectorTest::Absent => value.is_none(),
                SelectorTest::In(values) => value.is_some_and(|v| values.iter().any(|x| x == v)),
                SelectorTest::NotIn(values) => value.is_none_or(|v| values.iter().all(|x| x != v)),
                SelectorTest::Greater(n) => number(value).is_some_and(|v| v > *n),
                SelectorTest::Less(n) => number(value).is_some_and(|v| v < *n),
            }
        })
    }
}

fn number(value: Option<&str>) -> Option<i64> {
    value.and_then(|v| v.parse().ok())
}

#[derive(Debug, Clone, PartialEq)]
enum SelectorToken {
    Word(String),
    Symbol(&'static str),
    End,
}

/// Longer symbols come before their own prefixes.
const SYMBOLS: &[&str] = &["==", "!=", "=", "!", ",", "(", ")", ">", "<"];

fn lex(text: &str) -> Vec<SelectorToken> {
    let mut tokens = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start();
        if rest.is_empty() {
            tokens.push(SelectorToken::End);
            return tokens;
        }
        if let Some(symbol) = SYMBOLS.iter().find(|s| rest.starts_with(**s)) {
            tokens.push(SelectorToken::Symbol(symbol));
            rest = &rest[symbol.len()..];
            continue;
        }
        let end = rest.find(|c: char| c.is_whitespace() || "=!,()<>".contains(c)).unwrap_or(rest.len());
        tokens.push(SelectorToken::Word(rest[..end].to_owned()));
        rest = &rest[end..];
    }
}

struct SelectorParser {
    tokens: Vec<SelectorToken>,
    at: usize,
}

impl SelectorParser {
    fn peek(&self) -> SelectorToken {
        self.tokens.get(self.at).cloned().unwrap_or(SelectorToken::End)
    }

    fn next(&mut self) -> SelectorToken {
        let token = self.peek();
        self.at += 1;
        token
    }

    fn selector(&mut self) -> Result<Vec<SelectorRequirement>, String> {
        let mut found = Vec::new();
        if self.peek() == SelectorToken::End {
            return Ok(found);
        }
        loop {
            match self.peek() {
                SelectorToken::Word(_) | SelectorToken::Symbol("!") => {
                    let read = self.requirement();
                    found.push(read.map_err(|why| format!("unable to parse requirement: {why}"))?);
                }
                other => return Err(unexpected(&other, "!, identifier, or 'end of string'")),
            }
            match self.next() {
                SelectorToken::End => return Ok(found),
                SelectorToken::Symbol(",") => match self.peek() {
                    SelectorToken::Word(_) | SelectorToken::Symbol("!") => {}
                    other => return Err(unexpected(&other, "identifier after ','")),
                },
                other => return Err(unexpected(&other, "',' or 'end of string'")),
            }
        }
    }

    fn requirement(&mut self) -> Result<SelectorRequirement, String> {
        let negated = self.peek() == SelectorToken::Symbol("!");
        if negated {
            self.at += 1;
        }
        let key = match self.next() {
            SelectorToken::Word(key) => key,
            other => return Err(unexpected(&other, "identifier")),
        };
        if negated {
            return Ok(SelectorRequirement { key, test: SelectorTest::Absent });
        }
        let test = match self.peek() {
            SelectorToken::End | SelectorToken::Symbol(",") => SelectorTest::Exists,
            _ => self.test()?,
        };
        Ok(SelectorRequirement { key, test })
    }

    fn test(&mut self) -> Result<SelectorTest, String> {
        let operator = self.next();
        match &operator {
            SelectorToken::Symbol("=" | "==") => Ok(SelectorTest::In(vec![self.exact()?])),
            SelectorToken::Symbol("!=") => Ok(SelectorTest::NotIn(vec![self.exact()?])),
            SelectorToken::Symbol(">") => Ok(SelectorTest::Greater(self.integer()?)),
            SelectorToken::Symbol("<") => Ok(SelectorTest::Less(self.integer()?)),
            SelectorToken::Word(word) if word == "in" => Ok(SelectorTest::In(self.values()?)),
            SelectorToken::Word(word) if word == "notin" => Ok(SelectorTest::NotIn(self.values()?)),
            other => Err(unexpected(other, "in, notin, =, ==, !=, gt, lt")),
        }
    }

    fn exact(&mut self) -> Result<String, String> {
        match self.peek() {
            SelectorToken::End | SelectorToken::Symbol(",") => Ok(String::new()),
            SelectorToken::Word(word) => {
                self.at += 1;
                Ok(word)
            }
            other => Err(unexpected(&other, "identifier")),
        }
    }

    fn integer(&mut self) -> Result<i64, String> {
        let text = self.exact()?;
        text.parse().map_err(|_| format!("for 'Gt', 'Lt' operators, the value must be an integer: {text}"))
    }

    fn values(&mut self) -> Result<Vec<String>, String> {
        let open = self.next();
        if open != SelectorToken::Symbol("(") {
            return Err(unexpected(&open, "'('"));
        }
        let mut values = Vec::new();
        loop {
            values.push(match self.peek() {
                SelectorToken::Symbol("," | ")") => String::new(),
                _ => self.exact()?,
            });
            match self.next() {
                SelectorToken::Symbol(",") => {}
                SelectorToken::Symbol(")") => return Ok(values),
                other => return Err(unexpected(&other, "',' or ')'")),
            }
        }
    }
}

fn unexpected(token: &SelectorToken, expected: &str) -> String {
    let found = match token {
        SelectorToken::Word(word) => word.as_str(),
        SelectorToken::Symbol(symbol) => symbol,
        SelectorToken::End => "",
    };
    format!("found '{found}', expected: {expected}")
}

/// Equalities and inequalities on fields, which must all hold.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FieldSelector(Vec<(String, bool, String)>);

impl FieldSelector {
    /// `known` are the fields of the kind, beside its name and namespace.
    pub fn parse(text: &str, known: &[String], kind: &str) -> Result<Self, ApiError> {
        let mut terms = Vec::new();
        for part in terms_of(text).into_iter().filter(|p| !p.is_empty()) {
            let (field, equal, value) = part
                .split_once("!=")
                .map(|(f, v)| (f, false, v))
                .or_else(|| part.split_once("==").map(|(f, v)| (f, true, v)))
                .or_else(|| part.split_once('=').map(|(f, v)| (f, true, v)))
                .ok_or_else(|| {
                    ApiError::bad_request(format!("invalid selector: '{text}'; can't understand '{part}'"))
                })?;
            if !matches!(field, "metadata.name" | "metadata.namespace") && !known.iter().any(|k| k == field) {
                return Err(unknown_field(field, known, kind));
            }
            terms.push((field.to_owned(), equal, unescaped(value)?));
        }
        Ok(FieldSelector(terms))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn matches<'a>(&self, field: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.0.iter().all(|(name, equal, value)| (field(name).unwrap_or("") == value) == *equal)
    }

    /// The value that a field must have, if any.
    pub fn required(&self, field: &str) -> Option<&str> {
        self.0.iter().find(|(name, equal, _)| name == field && *equal).map(|(_, _, value)| value.as_str())
    }
}

/// Splits at commas, except after a backslash.
fn terms_of(text: &str) -> Vec<&str> {
    let (mut terms, mut begin, mut is_escaped) = (Vec::new(), 0, false);
    for (at, character) in text.char_indices() {
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            ',' => {
                terms.push(&text[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    terms.push(&text[begin..]);
    terms
}

/// Removes escapes. A backslash may only precede a backslash, a comma or an equals sign; the last two must be
/// escaped.
fn unescaped(value: &str) -> Result<String, ApiError> {
    let invalid = |sequence: &str| {
        ApiError::bad_request(format!("invalid field selector: invalid escape sequence: {sequence}"))
    };
    let (mut plain, mut characters) = (String::with_capacity(value.len()), value.chars());
    while let Some(character) = characters.next() {
        match character {
            '\\' => match characters.next() {
                Some(meant @ ('\\' | ',' | '=')) => plain.push(meant),
                Some(other) => return Err(invalid(&format!("\\{other}"))),
                None => return Err(invalid("\\")),
            },
            '=' => {
                return Err(ApiError::bad_request(format!(
                    "invalid field selector: unescaped character in value: {character}"
                )));
            }
            other => plain.push(other),
        }
    }
    Ok(plain)
}

fn unknown_field(field: &str, known: &[String], kind: &str) -> ApiError {
    ApiError::bad_request(if known.is_empty() {
        format!(
            "{} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"",
            quoted(field)
        )
    } else {
        format!("field label {} not supported for {kind}", quoted(field))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(selector: &str, labels: &[(&str, &str)]) -> bool {
        let selector = LabelSelector::parse(selector).unwrap();
        selector.matches(|key| labels.iter().find(|(k, _)| *k == key).map(|(_, v)| *v))
    }

    #[test]
    fn every_operator_selects() {
        let labels = [("app", "x"), ("tier", "a"), ("n", "7")];
        for yes in [
            "",
            "app=x",
            "app==x,tier",
            "!gone",
            "app in (x, y)",
            "tier notin (b,c)",
            "gone notin (b)",
            "app!=y",
            "gone!=y",
            "n>3",
            "n<9",
        ] {
            assert!(matches(yes, &labels), "{yes}");
        }
        for no in ["app=y", "!app", "gone", "app in (y)", "tier notin (a)", "app!=x", "n>7", "app="] {
            assert!(!matches(no, &labels), "{no}");
        }
    }

    #[test]
    fn a_broken_label_selector_says_what_was_expected() {
        let error = LabelSelector::parse("===").unwrap_err();
        assert_eq!(error.message, "found '==', expected: !, identifier, or 'end of string'");
        let error = LabelSelector::parse("a in x").unwrap_err();
        assert_eq!(error.message, "unable to parse requirement: found 'x', expected: '('");
        for broken in ["a in x", "a in (x", "a,", "a b", "(a)"] {
            assert_eq!(LabelSelector::parse(broken).unwrap_err().code, 400, "{broken}");
        }
    }

    #[test]
    fn values_of_fields_may_have_any_character_behind_a_backslash() {
        let parse = |text: &str| FieldSelector::parse(text, &[], "ConfigMap");
        let named = |text: &str| parse(text).unwrap().required("metadata.name").map(str::to_owned);
        assert_eq!(named(r"metadata.name=a\,b\=c\\d,metadata.namespace=n").as_deref(), Some(r"a,b=c\d"));
        for broken in [r"metadata.name=a\b", r"metadata.name=a\", "metadata.name=a=b"] {
            assert_eq!(parse(broken).unwrap_err().code, 400, "{broken}");
        }
    }

    #[test]
    fn field_selectors_know_their_fields() {
        let known = ["status.phase".to_owned()];
        let selector = FieldSelector::parse("status.phase!=Failed,metadata.name=a", &known, "Pod").unwrap();
        let field = |phase: &'static str| {
            move |name: &str| if name == "status.phase" { Some(phase) } else { Some("a") }
        };
        assert!(selector.matches(field("Running")));
        assert!(!selector.matches(field("Failed")));
        assert_eq!(selector.required("metadata.name"), Some("a"));
        let error = FieldSelector::parse("data.i=3", &[], "ConfigMap").unwrap_err();
        assert_eq!(
            error.message,
            "\"data.i\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
        );
    }
}
