//! `log`: writes a plugin's messages into the controller's log as records, cut, cleaned and limited in
//! number. The plugin, the level, the message and the message's own fields are separate, so that no text can
//! pass for another.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use kubewitness_core::bucket::TokenBucket;
use kubewitness_core::config::RateSpec;
use kubewitness_core::ports::LogLevel;
use tokio::time::Instant;

/// The limit of one message, and of one field's name or value.
const MESSAGE_BYTES: usize = 4096;
const FIELD_BYTES: usize = 256;
const FIELDS: usize = 16;
/// A plugin that logs each state at full speed must not keep the controller busy.
const PER_SECOND: u32 = 100;
const BURST: u32 = 500;

/// The log of one plugin.
#[derive(Debug)]
pub struct PluginLog {
    plugin: String,
    begun: Instant,
    limit: Mutex<LogLimit>,
}

#[derive(Debug)]
struct LogLimit {
    bucket: TokenBucket,
    suppressed: u64,
}

impl PluginLog {
    pub fn new(plugin: &str) -> Self {
        let bucket = TokenBucket::new(RateSpec { per_second: PER_SECOND, burst: Some(BURST) });
        let limit = Mutex::new(LogLimit { bucket, suppressed: 0 });
        Self { plugin: plugin.to_owned(), begun: Instant::now(), limit }
    }

    pub fn write(&self, level: LogLevel, message: &str, fields: &[(String, String)]) {
        let Some(suppressed) = self.allow_message(self.begun.elapsed()) else { return };
        if suppressed > 0 {
            tracing::warn!(
                plugin = self.plugin,
                suppressed,
                "the plugin logs too much; messages were left out"
            );
        }
        let plugin = self.plugin.as_str();
        let (message, data) = (clean_text(message, MESSAGE_BYTES), fields_as_json(fields));
        match level {
            LogLevel::Trace => tracing::trace!(target: "plugin", plugin, data, "{message}"),
            LogLevel::Debug => tracing::debug!(target: "plugin", plugin, data, "{message}"),
            LogLevel::Info => tracing::info!(target: "plugin", plugin, data, "{message}"),
            LogLevel::Warn => tracing::warn!(target: "plugin", plugin, data, "{message}"),
            LogLevel::Error => tracing::error!(target: "plugin", plugin, data, "{message}"),
        }
    }

    /// The number of messages that were dropped since the last one; `None` if this one is dropped, too.
    fn allow_message(&self, now: Duration) -> Option<u64> {
        let mut limit = self.limit.lock().unwrap_or_else(PoisonError::into_inner);
        if limit.bucket.take(now).is_err() {
            limit.suppressed += 1;
            return None;
        }
        Some(std::mem::take(&mut limit.suppressed))
    }
}

/// The fields of a message as the text of one JSON object, because the log's own fields have fixed names.
/// `None` without fields. If the log is JSON, the process writes the object itself.
fn fields_as_json(fields: &[(String, String)]) -> Option<String> {
    let cleaned = |(name, value): &(String, String)| {
        (clean_text(name, FIELD_BYTES), serde_json::Value::from(clean_text(value, FIELD_BYTES)))
    };
    let object: serde_json::Map<_, _> = fields.iter().take(FIELDS).map(cleaned).collect();
    (!object.is_empty()).then(|| serde_json::Value::Object(object).to_string())
}

/// Line ends and control characters could forge lines or drive a terminal.
fn clean_text(text: &str, limit: usize) -> String {
    let end = text.floor_char_boundary(limit);
    let cut = if end < text.len() { "…" } else { "" };
    let clean: String = text[..end].chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    clean + cut
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_stays_one_bounded_line() {
        assert_eq!(clean_text("a\nb\u{1b}[31m", MESSAGE_BYTES), "a b [31m");
        assert_eq!(clean_text(&"é".repeat(MESSAGE_BYTES), 5), "éé…");
    }

    #[test]
    fn fields_stand_apart_from_the_message_and_are_bounded_in_number_and_length() {
        let field = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(fields_as_json(&[]), None);
        let text = fields_as_json(&[field("k", "v\r\nw\" level=ERROR")]).unwrap();
        assert_eq!(text, r#"{"k":"v  w\" level=ERROR"}"#);
        let many: Vec<_> =
            (0..1000).map(|number| field(&format!("{number:x<400}"), &"v".repeat(4000))).collect();
        let text = fields_as_json(&many).unwrap();
        assert!(
            text.len() <= FIELDS * (2 * (FIELD_BYTES + "…".len()) + "\"\":\"\",".len()) + 2,
            "{}",
            text.len()
        );
    }

    #[test]
    fn what_is_over_the_rate_is_left_out_and_counted() {
        let log = PluginLog::new("p");
        let passed = (0..BURST + 40).filter(|_| log.allow_message(Duration::ZERO).is_some()).count();
        assert_eq!(passed, BURST as usize);
        assert_eq!(log.allow_message(Duration::from_secs(1)), Some(40));
    }
}
