//! Reports what became of each message, by object and recipient. They lie in `kv` under keys by which the host finds
//! them: it shows them with the object, and removes them with it.

use std::collections::BTreeSet;

use kubewitness_sdk::{Error, kv, log};
use serde::Serialize;
use serde_json::Value;

use crate::answer::Answer;
use crate::config::Config;
use crate::facts::{self, Facts, clip, text};
use crate::template;

/// Keys begin with it. The object's uid, the position of the state and the recipient follow.
const REPORTS: &str = "report/";
/// Reports that are kept, each of up to 1 KiB of the 4 MiB of `kv` ([`BYTES`]); and how many stay once there are too many.
const MOST: usize = 3000;
const KEPT: usize = MOST / 4 * 3;
/// Reports that one call keeps, and old ones that it lets go of: each is a call to the host. The last ones say most.
const A_CALL: usize = 600;
const RECIPIENT_BYTES: usize = 100;
const WHY_BYTES: usize = 256;
const TITLE_BYTES: usize = 256;
/// A key with its report. Whoever names objects may choose characters of which JSON makes six, and loses the reason.
const BYTES: usize = 1024;
pub const UNLISTED: &str = "what was told can't be listed";

/// The title of a message where the configuration has none.
pub fn title(facts: &Facts) -> String {
    template::fill_text("{{kind}} {{namespace}}/{{name}}: {{phase}}", facts)
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
    /// Of a message about the state that has these facts. A later report of the same takes the place of this one.
    pub fn of(
        config: &Config,
        facts: &Facts,
        to: &str,
        (result, why): (&'static str, &str),
        title: String,
        at_ms: u64,
    ) -> Self {
        let to = shown(to);
        let channel = config.recipient(&to).map(|(channel, _)| format!("{:?}", channel.kind));
        Self {
            key: key(facts, &to),
            at_ms,
            via: channel.unwrap_or_default().to_ascii_lowercase(),
            to,
            result,
            title: if title.len() <= TITLE_BYTES { title } else { clip(&title, TITLE_BYTES) },
            why: clip(why, WHY_BYTES),
        }
    }

    fn bytes(&self) -> Result<Vec<u8>, Error> {
        let of =
            |report: &Self| serde_json::to_vec(report).map_err(|error| Error::Invalid(error.to_string()));
        let bytes = of(self)?;
        if self.key.len() + bytes.len() <= BYTES {
            return Ok(bytes);
        }
        let title = clip(&facts::line(&self.title), TITLE_BYTES / 2);
        of(&Self { title, why: String::new(), ..self.clone() })
    }

    /// What an answer means for whoever waits for the message.
    pub fn result(answer: &Answer) -> (&'static str, &str) {
        match answer {
            Answer::Taken => ("sent", ""),
            Answer::Refused(why) => ("refused", why),
            Answer::Later { why, .. } | Answer::AddressLater(why) => ("waiting", why),
        }
    }
}

fn shown(to: &str) -> String {
    let to: String = to.chars().filter(|c| !c.is_control()).collect();
    clip(&to, RECIPIENT_BYTES)
}

fn key(facts: &Facts, to: &str) -> String {
    let seq = facts.get("seq").and_then(Value::as_u64).unwrap_or_default();
    format!("{REPORTS}{}/{seq:020}/{to}", text(facts, "uid"))
}

/// Whether there is a report of the message about this state to the recipient.
pub fn is_kept(facts: &Facts, to: &str) -> Result<bool, Error> {
    Ok(kv::get(&key(facts, &shown(to)))?.is_some())
}

/// Keeps the reports of a call, as many as there is room for. Lets go of the oldest where there are too many.
pub fn keep(reports: &[Report]) -> Result<(), Error> {
    if reports.is_empty() {
        return Ok(());
    }
    let reports = &reports[reports.len().saturating_sub(A_CALL)..];
    let keys = kv::keys(REPORTS, 2 * MOST as u32)?;
    if keys.len() + reports.len() > MOST {
        remove_oldest(&keys, keys.len().saturating_sub(KEPT).min(A_CALL))?;
    }
    for report in reports {
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

/// Stores what people are still to be told. Where `kv` is full, the oldest reports of what they were told go.
pub fn set_first(key: &str, bytes: &[u8]) -> Result<(), Error> {
    match kv::set(key, bytes) {
        Err(error) if is_full(&error) => {
            remove_oldest(&kv::keys(REPORTS, 2 * MOST as u32)?, A_CALL)?;
            kv::set(key, bytes)
        }
        stored => stored,
    }
}

fn remove_oldest(keys: &[String], most: usize) -> Result<(), Error> {
    let mut oldest = BTreeSet::new();
    oldest.extend(keys.iter().map(|key| format!("{} {key}", position(key))));
    let keys = oldest.iter().filter_map(|entry| entry.split_once(' ')).map(|(_, key)| key);
    keys.take(most).try_for_each(kv::delete)
}

fn position(key: &str) -> &str {
    key.split('/').nth(2).unwrap_or_default()
}

/// Nothing mends what `kv` is too full for; everything else may be mended.
pub fn is_full(error: &Error) -> bool {
    matches!(error, Error::TooLarge(_))
}
