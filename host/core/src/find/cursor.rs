//! The cursor of a list: a text that a client takes from one answer and sends with its next request. A list
//! with a single position uses that number as the text.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::state::Seq;

/// A cursor of a story: states before one position, and states of owned objects before another. 0 stands for
/// the beginning of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct StoryCursor {
    pub states: Seq,
    pub related: Seq,
    /// The next page has the owned objects whose journal position is less than this; the newest come first.
    pub owned: u64,
}

impl StoryCursor {
    /// The beginning of the list.
    pub const NEWEST: Self = Self { states: Seq::MAX, related: Seq::MAX, owned: u64::MAX };
}

/// A cursor of dead letters: those after the letter of this plugin at this position.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct LetterCursor {
    pub plugin: String,
    pub seq: Seq,
}

/// The text is not a cursor of this list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongCursor;

impl fmt::Display for WrongCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it is no cursor of this list: take it from the header `Link` of the part before")
    }
}

impl fmt::Display for StoryCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.states, self.related)?;
        if self.owned < u64::MAX { write!(f, "/{}", self.owned) } else { Ok(()) }
    }
}

impl FromStr for StoryCursor {
    type Err = WrongCursor;

    fn from_str(text: &str) -> Result<Self, WrongCursor> {
        let (states, rest) = text.split_once('/').ok_or(WrongCursor)?;
        let (related, owned) =
            rest.split_once('/').map_or((rest, None), |(first, second)| (first, Some(second)));
        let number = |text: &str| text.parse().map_err(|_| WrongCursor);
        let owned = owned.map_or(Ok(u64::MAX), number)?;
        Ok(Self { states: number(states)?, related: number(related)?, owned })
    }
}

impl fmt::Display for LetterCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.seq, self.plugin)
    }
}

impl FromStr for LetterCursor {
    type Err = WrongCursor;

    fn from_str(text: &str) -> Result<Self, WrongCursor> {
        let (seq, plugin) = text.split_once('/').ok_or(WrongCursor)?;
        Ok(Self { plugin: plugin.to_owned(), seq: seq.parse().map_err(|_| WrongCursor)? })
    }
}

macro_rules! as_text {
    ($($cursor:ty),+) => {$(
        impl From<$cursor> for String {
            fn from(cursor: $cursor) -> Self {
                cursor.to_string()
            }
        }

        impl TryFrom<String> for $cursor {
            type Error = WrongCursor;

            fn try_from(text: String) -> Result<Self, WrongCursor> {
                text.parse()
            }
        }
    )+};
}

as_text!(StoryCursor, LetterCursor);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_comes_back_from_its_text_and_no_other_text_is_one() {
        let story = StoryCursor { states: 7, related: 0, owned: u64::MAX };
        assert_eq!((story.to_string(), story.to_string().parse()), ("7/0".into(), Ok(story)));
        let further = StoryCursor { owned: 9, ..story };
        assert_eq!((further.to_string(), further.to_string().parse()), ("7/0/9".into(), Ok(further)));
        let letter = LetterCursor { plugin: "a/b.c".into(), seq: 9 };
        assert_eq!(letter.to_string().parse(), Ok(letter));
        for text in ["", "7", "7/", "/7", "a/7", "-1/7", "7/8/", "7/8/9/10"] {
            assert_eq!(text.parse::<StoryCursor>(), Err(WrongCursor), "{text}");
        }
        assert_eq!("audit/7".parse::<LetterCursor>(), Err(WrongCursor));
    }
}
