//! Writes the log to standard error. Standard output is for data.

use std::fmt;
use std::io::IsTerminal;

use anyhow::{Context, Result};
use kubewitness_portal::AUDIT;
use serde_json::Value;
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{Format, Json, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, fmt as to_subscriber};
use tracing_subscriber::registry::LookupSpan;

use crate::cli::LogArgs;

/// The target of plugins' log records. Their fields are the text of a JSON object, because a record's own
/// fields have fixed names.
const PLUGIN: &str = "plugin";

pub fn to_stderr(args: &LogArgs, tells_reads: bool) -> Result<()> {
    let builder = to_subscriber().with_env_filter(filter(args, tells_reads)?).with_writer(std::io::stderr);
    // It would be written to the same standard error, whose reader may have left, and that would panic.
    let builder = builder.log_internal_errors(false);
    let ansi = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let result = match args.log_json {
        true => builder.json().map_event_format(JsonRecords).try_init(),
        false => builder.with_ansi(ansi).try_init(),
    };
    result.map_err(|error| anyhow::anyhow!("setting up the log: {error}"))
}

/// Decides what is logged. An operator who wants a record of each read gets it, however quiet the log is
/// otherwise.
pub fn filter(args: &LogArgs, tells_reads: bool) -> Result<EnvFilter> {
    // Clients log each failed connection as an error of their own; the watch and the streams log it once,
    // with its subject and their reaction.
    let mut all = format!("kube_client=off,async_nats=off,{}", args.log);
    if tells_reads {
        // If a target has two directives, the last one counts.
        all.push_str(&format!(",{AUDIT}=info"));
    }
    EnvFilter::try_new(all)
        .with_context(|| format!("`{}` is not a log filter: write such as `info`", args.log))
}

/// Records as JSON, in which the fields of a plugin's message are an object.
struct JsonRecords(Format<Json>);

impl<S, N> FormatEvent<S, N> for JsonRecords
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    N: for<'writer> FormatFields<'writer> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        if event.metadata().target() != PLUGIN {
            return self.0.format_event(context, writer, event);
        }
        let mut line = String::new();
        self.0.format_event(context, Writer::new(&mut line), event)?;
        match with_object(&line) {
            Some(record) => writeln!(writer, "{record}"),
            None => writer.write_str(&line),
        }
    }
}

/// `None` if the record has no such fields.
fn with_object(line: &str) -> Option<Value> {
    let mut record: Value = serde_json::from_str(line).ok()?;
    let data = record.pointer_mut("/fields/data")?;
    *data = serde_json::from_str(data.as_str()?).ok()?;
    Some(record)
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use serde_json::json;

    use super::*;

    #[derive(Clone, Default)]
    struct LogLines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for LogLines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn reads_are_told_where_they_are_wanted_whatever_the_filter_says_of_them() {
        for (filter, wanted, expected) in [
            ("warn", true, "a document was read"),
            ("kubewitness_watch=debug", true, "a document was read"),
            ("off,kubewitness::audit=off", true, "a document was read"),
            ("", true, "a document was read"),
            ("warn", false, ""),
        ] {
            let lines = LogLines::default();
            let writer = lines.clone();
            let args = LogArgs { log: filter.into(), log_json: false };
            let builder = to_subscriber().with_env_filter(super::filter(&args, wanted).unwrap());
            let subscriber = builder.with_writer(move || writer.clone()).with_ansi(false).finish();
            tracing::subscriber::with_default(subscriber, || {
                tracing::info!(target: AUDIT, "a document was read");
                tracing::info!("of the host itself");
            });
            let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
            assert_eq!(text.lines().count(), usize::from(wanted), "{filter}: {text}");
            assert!(text.contains(expected), "{filter}: {text}");
        }
    }

    #[test]
    fn the_fields_of_a_plugins_message_are_an_object_and_no_other_record_changes() {
        let lines = LogLines::default();
        let writer = lines.clone();
        let subscriber =
            to_subscriber().with_writer(move || writer.clone()).json().map_event_format(JsonRecords).finish();
        tracing::subscriber::with_default(subscriber, || {
            let data = r#"{"job":"a \"b\"","phase":"Failed"}"#;
            tracing::info!(target: "plugin", plugin = "p", data, "it failed: \"data\":\"x\"");
            tracing::info!(target: "plugin", plugin = "p", "without fields");
            tracing::info!(data, "of the controller itself");
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let records: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let [first, second, third] = records.as_slice() else { panic!("{text}") };
        assert_eq!(first["fields"]["data"], json!({"job": "a \"b\"", "phase": "Failed"}));
        assert_eq!(first["fields"]["message"], r#"it failed: "data":"x""#);
        assert_eq!((&first["target"], &first["level"]), (&json!("plugin"), &json!("INFO")));
        assert!(first["timestamp"].is_string(), "{first}");
        assert_eq!(second["fields"], json!({"message": "without fields", "plugin": "p"}));
        assert!(third["fields"]["data"].is_string(), "{third}");
    }
}
