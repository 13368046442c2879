//! The reports of plugins about an object, such as who was notified and whether the message arrived.
//!
//! A plugin writes reports through its `kv`: the key is `report/UID/` and any suffix, the value is a JSON
//! object. The controller shows them with the object. Reports stay as long as the journal has a state of the
//! object. So they are stored in the journal only: they are not held in memory, and don't count towards the
//! size limit of `kv`.

use serde::{Deserialize, Serialize};

use crate::model::fault::shorten_text;

/// The prefix of the keys of reports.
pub const PREFIX: &str = "report/";
/// The first key after all reports.
pub const BEYOND: &str = "report0";
/// The most reports that a story shows, and that are kept for one object of a plugin: the newest ones.
pub const SHOWN: usize = 500;
/// The most bytes of one plugin's reports, keys and values together. That is about 700,000 reports of the
/// plugin `notification`.
pub const PLUGIN_BYTES: u64 = 256 << 20;
/// The most bytes of a report. A longer value is not a report.
const VALUE_BYTES: usize = 4096;
/// The most bytes of each text in a report.
const TEXT_BYTES: usize = 512;

/// A plugin's report of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Report"))]
#[serde(default)]
pub struct ReportView {
    /// Whose report it is.
    pub plugin: String,
    /// The object that it is about.
    pub uid: String,
    /// Milliseconds since 1970.
    pub at_ms: u64,
    /// The recipient, by the name that the plugin's configuration or the object's annotation gives.
    pub to: String,
    /// The service, such as `slack`.
    pub via: String,
    /// `sent`, `waiting`, `muted`, `suppressed`, `merged`, `refused` or `given up`; another plugin may have other words.
    /// `unreadable`: the plugin wrote what is no report.
    pub result: String,
    /// The title of the message, or what it would have been of.
    pub title: String,
    /// Why it was not sent, or is not yet.
    pub why: String,
}

pub fn is_report(key: &str) -> bool {
    uid_of(key).is_some()
}

/// The first key of an object's reports, and the first key after them.
pub fn keys_of(uid: &str) -> (String, String) {
    (format!("{PREFIX}{uid}/"), format!("{PREFIX}{uid}0"))
}

/// The uid of the object in a report's key.
pub fn uid_of(key: &str) -> Option<&str> {
    let (uid, _) = key.strip_prefix(PREFIX)?.split_once('/')?;
    Some(uid)
}

pub fn read(plugin: &str, uid: &str, value: &[u8]) -> ReportView {
    let read = Some(value).filter(|value| value.len() <= VALUE_BYTES);
    let mut report: ReportView = read
        .and_then(|value| serde_json::from_slice(value).ok())
        .unwrap_or_else(|| ReportView { result: "unreadable".to_owned(), ..ReportView::default() });
    (report.plugin, report.uid) = (plugin.to_owned(), uid.to_owned());
    for text in [&mut report.to, &mut report.via, &mut report.result, &mut report.title, &mut report.why] {
        *text =
            shorten_text(text, TEXT_BYTES).chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    }
    report
}

/// The newest reports, ordered by time. Beyond [`SHOWN`] the oldest are left out.
pub fn newest_reports(mut reports: Vec<ReportView>) -> Vec<ReportView> {
    reports.sort_by(|first, second| {
        (first.at_ms, &first.plugin, &first.to).cmp(&(second.at_ms, &second.plugin, &second.to))
    });
    reports.drain(..reports.len().saturating_sub(SHOWN));
    reports
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_one_line_a_field_and_names_its_plugin_whatever_it_says() {
        let value = br#"{"plugin": "audit", "uid": "x", "at_ms": 7, "to": "ops", "result": "sent", "title": "a\nb", "new": 1}"#;
        let report = read("notification", "u", value);
        assert_eq!((report.plugin.as_str(), report.uid.as_str(), report.at_ms), ("notification", "u", 7));
        assert_eq!((report.title.as_str(), report.why.as_str()), ("a b", ""));
        assert_eq!((uid_of("report/u/1"), uid_of("report/u"), uid_of("note/u/1")), (Some("u"), None, None));
    }

    #[test]
    fn the_keys_of_an_object_are_its_own() {
        let (from, below) = keys_of("u");
        let is_within = |key: &str| (&*from..&*below).contains(&key);
        assert_eq!(
            ["report/u/1", "report/u/~", "report/u1/1", "report/t/1"].map(is_within),
            [true, true, false, false]
        );
    }

    #[test]
    fn what_is_no_report_is_shown_as_such_and_a_long_one_is_cut() {
        for value in [&b"7"[..], b"\xff", &[b' '; VALUE_BYTES + 1]] {
            assert_eq!(read("p", "u", value).result, "unreadable");
        }
        let long = format!(r#"{{"why": "{}"}}"#, "ä".repeat(1000));
        assert!(read("p", "u", long.as_bytes()).why.ends_with("ä…"));
    }

    #[test]
    fn the_newest_reports_of_a_story_are_shown_by_their_times() {
        let report = |at_ms| ReportView { at_ms, ..ReportView::default() };
        let shown = newest_reports((0..SHOWN as u64 + 2).rev().map(report).collect());
        assert_eq!((shown.len(), shown[0].at_ms), (SHOWN, 2));
    }
}
