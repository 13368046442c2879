//! Queries about dead letters, about replaying and dropping them, and the answers.

use serde::{Deserialize, Serialize};

use super::ViewError;
use crate::calendar;
use crate::cursor::LetterCursor;
use crate::ports::DeadLetter;
use crate::state::{ObjectRef, Seq};

/// Dead letters by their status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LetterChoice {
    #[default]
    All,
    /// Letters that can be replayed, or are being replayed.
    NotDropped,
    Dropped,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LetterQuery {
    /// Only letters of this plugin.
    pub plugin: Option<String>,
    /// The start of the part, from the link to it in the header `Link`.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub cursor: Option<LetterCursor>,
    pub limit: Option<usize>,
    #[serde(skip)]
    pub which: LetterChoice,
}

impl From<&DeadLetter> for LetterCursor {
    fn from(letter: &DeadLetter) -> Self {
        Self { plugin: letter.plugin.clone(), seq: letter.seq }
    }
}

impl LetterQuery {
    /// All letters of a plugin.
    pub fn of(plugin: &str) -> Self {
        Self { plugin: Some(plugin.to_owned()), ..Self::default() }
    }
}

/// Records of actions on dead letters and plugins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordQuery {
    /// Only this plugin.
    pub plugin: Option<String>,
    /// Records before this number.
    pub before: Option<u64>,
    pub limit: usize,
}

/// Selects the dead letters to replay or drop. A letter must match every given field; without any, all of the
/// plugin's letters match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ReplayRequest {
    pub plugin: String,
    /// The positions of the states; empty: all of the plugin.
    #[serde(default)]
    pub seqs: Vec<Seq>,
    /// Only dead letters of objects in this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Only dead letters whose last error contains this text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Only dead letters that were parked at least this long ago.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub older_than_seconds: Option<u64>,
    /// Only dead letters that were parked at this time or later. RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("format" = "date-time")))]
    pub since: Option<String>,
    /// Only dead letters that were parked before this time. RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("format" = "date-time")))]
    pub until: Option<String>,
    /// The number of dead letters that the request selects, as counted by a request with `dry_run`. If the
    /// number has changed, nothing is done. Required if `seqs` is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exactly: Option<u64>,
    /// The reason, which is recorded with the action.
    pub reason: String,
    /// The author by their own account, which is recorded unchecked. By default `api`. If people sign in, the
    /// name of the signed-in person is recorded instead.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub who: String,
    #[serde(default)]
    pub dry_run: bool,
}

impl ReplayRequest {
    /// Whether it changes letters without naming or counting them.
    pub fn is_unconfirmed(&self) -> bool {
        self.seqs.is_empty() && self.exactly.is_none() && !self.dry_run
    }

    /// Refuses a request if the number of letters is not the one that its author saw.
    pub fn check_count(&self, meant: u64) -> Result<(), ViewError> {
        match self.exactly {
            Some(counted) if counted != meant => Err(ViewError::Changed {
                message: format!(
                    "nothing was changed: the request is for exactly {counted} dead letters, and by now it means {meant}"
                ),
                hint: format!(
                    "Look at the {meant} dead letters, and confirm that number if you mean them all."
                ),
            }),
            _ => Ok(()),
        }
    }

    /// Refuses a request for a number of letters if none was changed, because somebody else had changed some of
    /// them in the meantime.
    pub fn check_done(&self, done: u64) -> Result<(), ViewError> {
        match self.exactly {
            Some(counted) if counted != done => Err(ViewError::Changed {
                message: format!(
                    "nothing was changed: somebody has just replayed or dropped some of the {counted} dead letters"
                ),
                hint: "Look at the dead letters that are left, and choose again.".into(),
            }),
            _ => Ok(()),
        }
    }

    /// The actor, as the record has it.
    pub fn actor_name(&self) -> &str {
        match self.who.trim() {
            "" => "api",
            who => who,
        }
    }

    /// A predicate from the conditions for letters about an object in a namespace, without the positions. An
    /// unreadable time is an error, and so is a text that every error contains.
    pub fn letter_filter(&self, now_ms: u64) -> Result<impl Fn(&DeadLetter, &str) -> bool, ViewError> {
        let (since, until) =
            (parse_moment("since", self.since.as_deref())?, parse_moment("until", self.until.as_deref())?);
        if self.error.as_ref().is_some_and(String::is_empty) {
            let hint = "`error` is empty, and would mean every dead letter: name a part of the error, or leave it out";
            return Err(ViewError::Invalid(hint.into()));
        }
        let age = self.older_than_seconds.map(|seconds| seconds.saturating_mul(1000));
        Ok(move |letter: &DeadLetter, namespace: &str| {
            self.namespace.as_ref().is_none_or(|asked| namespace == asked)
                && self.error.as_ref().is_none_or(|text| letter.error.contains(text))
                && age.is_none_or(|age| now_ms.saturating_sub(letter.last_ms) >= age)
                && since.is_none_or(|since| letter.last_ms >= since)
                && until.is_none_or(|until| letter.last_ms < until)
        })
    }
}

fn parse_moment(name: &str, text: Option<&str>) -> Result<Option<u64>, ViewError> {
    let read = |text: &str| {
        calendar::parse_rfc3339_ms(text).ok_or_else(|| {
            ViewError::Invalid(format!(
                "`{name}` is no time: write it like 2026-11-24T03:00:00Z, and `{text}` is not"
            ))
        })
    };
    text.map(read).transpose()
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "ReplayResult"))]
pub struct ReplayView {
    pub replayed: u64,
    /// Who the record says it was.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub who: String,
    pub dry_run: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "DropResult"))]
pub struct DropView {
    pub dropped: u64,
    /// Who the record says it was.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub who: String,
    pub dry_run: bool,
}

/// The act of a person on dead letters, or on the plugin itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "LetterRecord"))]
pub struct LetterRecordView {
    pub number: u64,
    pub plugin: String,
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["replay", "drop", "pause", "resume"])))]
    pub what: String,
    pub who: String,
    pub why: String,
    pub seqs: Vec<Seq>,
    pub at: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "DeadLetter"))]
pub struct DeadLetterView {
    #[serde(flatten)]
    pub letter: DeadLetter,
    pub object: ObjectRef,
    pub phase: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_for_another_number_than_there_is_says_both() {
        let of = |exactly| ReplayRequest { exactly, ..ReplayRequest::default() };
        assert!(of(None).is_unconfirmed() && !of(Some(3)).is_unconfirmed());
        assert!(!ReplayRequest { seqs: vec![7], ..of(None) }.is_unconfirmed());
        assert!(of(None).check_count(4).is_ok() && of(Some(4)).check_count(4).is_ok());
        let Err(ViewError::Changed { message, .. }) = of(Some(3)).check_count(4) else {
            panic!("it is refused")
        };
        assert!(message.contains("exactly 3") && message.contains("means 4"), "{message}");
    }
}
