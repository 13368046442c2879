//! A fault of a manifest or a status rule.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// A fault of a manifest: the field and the message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestFault {
    /// The path of the field, such as `spec.subscribe[0].source`.
    pub field: String,
    pub message: String,
}

pub(crate) fn fault(field: impl Into<String>, message: impl Into<String>) -> ManifestFault {
    ManifestFault { field: field.into(), message: message.into() }
}

/// Cuts a text to at most this many bytes, at the end of a character. An ellipsis marks the cut.
pub fn shorten_text(text: &str, bytes: usize) -> Cow<'_, str> {
    match text.len() > bytes {
        true => format!("{}…", &text[..text.floor_char_boundary(bytes)]).into(),
        false => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_at_the_end_of_a_character_and_says_so() {
        assert_eq!(shorten_text("äöü", 6), "äöü");
        assert_eq!(shorten_text("äöü", 5), "äö…");
    }
}
