//! JSON pointers (RFC 6901). They are parsed here and not by a crate: their depth is bounded, and an error
//! shows an operator the correct form.

use std::fmt;

use thiserror::Error;

/// The most levels of a pointer. No object is deeper, and it bounds the recursion.
const TOKENS: usize = 64;

/// A pointer such as `/spec/containers/0/image`. It has at least one level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonPointer(Vec<String>);

/// Why a text is no pointer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PointerError {
    #[error("is empty: name a place in the object, such as `/spec/schedulerName`")]
    Empty,
    #[error("`{0}` is not a JSON pointer: it begins with `/`, such as `/spec/schedulerName`")]
    NoSlash(String),
    #[error("`{0}` is not a JSON pointer: after `~` comes 0 (for `~`) or 1 (for `/`)")]
    BadEscape(String),
    #[error("has {0} levels; at most {TOKENS} are allowed")]
    TooDeep(usize),
}

impl JsonPointer {
    pub fn parse(text: &str) -> Result<Self, PointerError> {
        let Some(tokens) = text.strip_prefix('/') else {
            return Err(match text.is_empty() {
                true => PointerError::Empty,
                false => PointerError::NoSlash(text.to_owned()),
            });
        };
        let tokens = tokens.split('/').map(unescape).collect::<Option<Vec<_>>>();
        let tokens = tokens.ok_or_else(|| PointerError::BadEscape(text.to_owned()))?;
        match tokens.len() <= TOKENS {
            true => Ok(Self(tokens)),
            false => Err(PointerError::TooDeep(tokens.len())),
        }
    }

    /// Makes a pointer from tokens that are known to be valid.
    pub(crate) fn of(tokens: &[&str]) -> Self {
        Self(tokens.iter().map(|token| (*token).to_owned()).collect())
    }

    pub(crate) fn tokens(&self) -> &[String] {
        &self.0
    }
}

fn unescape(token: &str) -> Option<String> {
    let mut out = String::with_capacity(token.len());
    let mut rest = token.chars();
    while let Some(next) = rest.next() {
        out.push(match next {
            '~' => match rest.next()? {
                '0' => '~',
                '1' => '/',
                _ => return None,
            },
            plain => plain,
        });
    }
    Some(out)
}

impl fmt::Display for JsonPointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|token| write!(f, "/{}", token.replace('~', "~0").replace('/', "~1")))
    }
}
