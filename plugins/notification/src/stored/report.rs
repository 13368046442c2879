//! Reports the result of each message, by object and recipient. The host finds reports by their keys in `kv`:
//! it shows them with the object, and removes them with it. They use none of the room of `kv`.

use kubewitness_sdk::{Error, kv, log};
use serde::Serialize;
use serde_json::Value;

use crate::answer::SendAnswer;
use crate::config::Config;
use crate::facts::{self, Facts, clip_text, outcomes, text};
use crate::template;

/// Keys begin with it. The object's uid, the position of the state and the recipient follow.
const REPORTS: &str = "report/";
/// Reports that one call keeps: each is a call to the host. The last ones say most.
const A_CALL: usize = 600;
const RECIPIENT_BYTES: usize = 100;
const WHY_BYTES: usize = 256;
const TITLE_BYTES: usize = 256;
/// A key with its report. Whoever names objects may choose characters of which JSON makes six, and loses the reason.
const BYTES: usize = 1024;
pub const UNLISTED: &str = "what was told can't be listed";

/// The title of a message where the configuration has none.
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
    /// Makes the report of a message about the state that has these facts. A later report of the same takes
    /// the place of this one.
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

    /// Returns the result that an answer means for whoever waits for the message.
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

/// Keeps the reports of a call. The host has them as long as it has the object.
pub fn keep_reports(reports: &[Report]) -> Result<(), Error> {
    for report in &reports[reports.len().saturating_sub(A_CALL)..] {
        match kv::set(&report.key, &report.bytes()?) {
            // People are told all the same.
            Err(error) if is_full(&error) => {
                log::warn("there is no room for reports", &[("first", &report.to)]);
                return Ok(());
            }
            done => done?,
        }
    }
    Ok(())
}

/// Nothing mends what `kv` is too full for; everything else may be mended.
pub fn is_full(error: &Error) -> bool {
    matches!(error, Error::TooLarge(_))
}
