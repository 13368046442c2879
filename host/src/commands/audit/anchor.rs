//! A root that somebody recorded elsewhere: `LEDGER:FILE:LINES:ROOT`. The journal has one of each signed
//! ledger, too.

use std::fmt;
use std::str::FromStr;

use kubewitness_core::ledger::LedgerProgress;
use thiserror::Error;

use super::statements::SignedStatement;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootAnchor {
    pub ledger: String,
    pub file: u64,
    /// How many lines of that file the root covers.
    pub lines: u64,
    pub root: String,
}

impl RootAnchor {
    pub fn of(statement: &SignedStatement) -> Self {
        let SignedStatement { ledger, file, lines, root, .. } = statement;
        Self { ledger: ledger.clone(), file: *file, lines: *lines, root: root.clone() }
    }
}

impl From<LedgerProgress> for RootAnchor {
    fn from(LedgerProgress { ledger, file, lines, root }: LedgerProgress) -> Self {
        Self { ledger, file, lines, root }
    }
}

/// An anchor, and where it was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotedAnchor {
    pub anchor: RootAnchor,
    pub by_journal: bool,
}

impl From<RootAnchor> for NotedAnchor {
    fn from(anchor: RootAnchor) -> Self {
        Self { anchor, by_journal: false }
    }
}

impl fmt::Display for NotedAnchor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { anchor, by_journal } = self;
        match by_journal {
            true => write!(f, "the root that the journal keeps, {anchor},"),
            false => write!(f, "the noted root {anchor}"),
        }
    }
}

impl fmt::Display for RootAnchor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}:{}", self.ledger, self.file, self.lines, self.root)
    }
}

/// Why a text is no root.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RootFormError {
    #[error("`{0}` is no number")]
    NoNumber(String),
    #[error("is no root: give what `kubewitness audit root` prints, LEDGER:FILE:LINES:ROOT")]
    OtherForm,
}

impl FromStr for RootAnchor {
    type Err = RootFormError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts: Vec<_> = text.trim().split(':').collect();
        let is_hex = |text: &str, digits| {
            text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        match parts.as_slice() {
            [ledger, file, lines, root] if is_hex(ledger, 32) && is_hex(root, 64) => {
                let number = |text: &str| text.parse().map_err(|_| RootFormError::NoNumber(text.to_owned()));
                let (file, lines) = (number(file)?, number(lines)?);
                Ok(Self { ledger: (*ledger).to_owned(), file, lines, root: (*root).to_owned() })
            }
            _ => Err(RootFormError::OtherForm),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_is_read_back_and_anything_else_is_refused_with_what_to_give() {
        let text = format!("{}:3:41:{}", "ab".repeat(16), "0f".repeat(32));
        assert_eq!(text.parse::<RootAnchor>().unwrap().to_string(), text);
        for wrong in [
            "",
            "a:b:c:d",
            &text.to_uppercase(),
            &text[1..],
            &format!("{text}:1"),
            &text.replace(":3:", ":x:"),
        ] {
            assert!(wrong.parse::<RootAnchor>().is_err(), "{wrong}");
        }
    }
}
