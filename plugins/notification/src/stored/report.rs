//! Reports the result of each message, by object and recipient. The host finds reports by their keys in `kv`:
//! it shows them with the object, and removes them with it. They do not count towards the limit of `kv`.

use kubewitness_sdk::{Error, kv, log};
use serde::Serialize;
use serde_json::Value;

use crate::answer::SendAnswer;
use crate::config::Config;
use crate::facts::{self, Facts, clip_text, outcomes, text};
use crate::template;

/// The prefix of the keys. The object's uid, the position of the state and the recipient follow.
const REPORTS: &str = "report/";
/// How many reports one call keeps: each is a call to the host. The last ones are the most informative.
const A_CALL: usize = 600;
const RECIPIENT_BYTES: usize = 100;
const WHY_BYTES: usize = 256;
const TITLE_BYTES: usize = 256;
/// The size of a key and its report. If a name has many characters that JSON escapes with six bytes, the
/// reason is dropped.
const BYTES: usize = 1024;
pub const UNLISTED: &str = "what was told can't be listed";

/// The title of a message, if the configuration has none.
pub fn title(facts: &Facts) -> String {
    template::fill_text("{{kind}} {{namespace}}/{{name}}: {{phase}}", facts) + &outcomes::in_brackets(facts)
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    #[serde(skip)]
    key: String,
    at_ms: u64,
    pub to: String,
    via: String,
    pub result: &'static str,
    pub title: String,
    pub why: String,
}

impl Report {
    /// The report of a message about the state that has these facts. It replaces an earlier report about the
    /// same state.
    pub fn of(
        config: &Config,
        facts: &Facts,
        to: &str,
        (result, why): (&'static str, &str),
        title: String,
        at_ms: u64,
    ) -> Self {
        let to = shown_recipient(to);
        let channel = config.find_recipient(&to).map(|(channel, _)| format!("{:?}", channel.kind));
        Self {
            key: key(facts, &to),
            at_ms,
            via: channel.unwrap_or_default().to_ascii_lowercase(),
            to,
            result,
            title: if title.len() <= TITLE_BYTES { title } else { clip_text(&title, TITLE_BYTES) },
            why: clip_text(why, WHY_BYTES),
        }
    }

    fn bytes(&self) -> Result<Vec<u8>, Error> {
        let of =
            |report: &Self| serde_json::to_vec(report).map_err(|error| Error::Invalid(error.to_string()));
        let bytes = of(self)?;
        if self.key.len() + bytes.len() <= BYTES {
            return Ok(bytes);
        }
        let title = clip_text(&facts::one_line(&self.title), TITLE_BYTES / 2);
        of(&Self { title, why: String::new(), ..self.clone() })
    }

    /// The result that an answer means for the recipient.
    pub fn result(answer: &SendAnswer) -> (&'static str, &str) {
        match answer {
            SendAnswer::Taken => ("sent", ""),
            SendAnswer::Refused(why) => ("refused", why),
            SendAnswer::Later { why, .. } | SendAnswer::AddressLater(why) => ("waiting", why),
        }
    }
}

fn shown_recipient(to: &str) -> String {
    let to: String = to.chars().filter(|c| !c.is_control()).collect();
    clip_text(&to, RECIPIENT_BYTES)
}

fn key(facts: &Facts, to: &str) -> String {
    let seq = facts.get("seq").and_then(Value::as_u64).unwrap_or_default();
    format!("{REPORTS}{}/{seq:020}/{to}", text(facts, "uid"))
}

/// Keeps the reports of a call. The host keeps them as long as it has the object.
pub fn keep_reports(reports: &[Report]) -> Result<(), Error> {
    for report in &reports[reports.len().saturating_sub(A_CALL)..] {
        match kv::set(&report.key, &report.bytes()?) {
            // The messages are sent all the same.
            Err(error) if is_full(&error) => {
                log::warn("there is no room for reports", &[("first", &report.to)]);
                return Ok(());
            }
            done => done?,
        }
    }
    Ok(())
}

/// Whether a retry is useless because `kv` is too full. Other errors may pass.
pub fn is_full(error: &Error) -> bool {
    matches!(error, Error::TooLarge(_))
}
