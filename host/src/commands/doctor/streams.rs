//! Checks that each stream has a key, by which a reader tells a forged state.

use kubewitness_core::config::{HostSpec, ManifestFault};
use kubewitness_core::views::StatusView;

use super::codes;
use super::findings::{DoctorFindings, FindingOutcome};
use super::signing::read_settings;
use crate::cli::DoctorArgs;

pub fn examine_streams(args: &DoctorArgs, status: Option<&StatusView>, found: &mut DoctorFindings) {
    match (read_settings(args), status.filter(|status| !status.restricted)) {
        (Some((host, _)), _) => report_settings(&host, found),
        (None, Some(status)) => report_status(status, found),
        (None, None) => {
            let why = "no settings were read: name them with --config, or the data folder with --data";
            found.add(&codes::STREAMS, FindingOutcome::NotChecked, why);
        }
    }
}

fn report_settings(host: &HostSpec, found: &mut DoctorFindings) {
    let warnings = host.stream_warnings();
    let texts = warnings.into_iter().map(|ManifestFault { field, message }| format!("{field}: {message}"));
    report(host.streams.len(), texts.collect(), found);
}

/// A source that another controller witnesses has its warning among those of the sources.
fn report_status(status: &StatusView, found: &mut DoctorFindings) {
    let texts = status.streams.iter().filter_map(|stream| stream.limitation.clone());
    report(status.streams.len(), texts.collect(), found);
}

fn report(streams: usize, warnings: Vec<String>, found: &mut DoctorFindings) {
    if warnings.is_empty() {
        found.add(&codes::STREAMS, FindingOutcome::Fine, format!("{streams} streams"));
    }
    for warning in warnings {
        found.add(&codes::STREAMS, FindingOutcome::Warning, warning);
    }
}

#[cfg(test)]
mod tests {
    use kubewitness_core::views::StreamView;
    use serde_json::json;

    use super::*;

    fn one(report: impl FnOnce(&mut DoctorFindings)) -> (FindingOutcome, String) {
        let mut found = DoctorFindings::default();
        report(&mut found);
        let finding = found.0.remove(0);
        (finding.outcome, finding.detail)
    }

    #[test]
    fn a_stream_without_a_key_is_told_from_the_settings_or_by_the_controller() {
        let host = |key: serde_json::Value| -> HostSpec {
            let stream =
                json!({"name": "platform", "urlFrom": {"env": "N"}, "keyFrom": key, "carry": ["jobs"]});
            let sources = json!([{"name": "jobs", "apiVersion": "batch/v1", "kind": "Job"}]);
            serde_json::from_value(json!({"sources": sources, "streams": [stream]})).unwrap()
        };
        let (outcome, detail) = one(|found| report_settings(&host(serde_json::Value::Null), found));
        assert_eq!(outcome, FindingOutcome::Warning);
        assert!(detail.starts_with("spec.streams[0].keyFrom: the stream `platform` has no key"), "{detail}");
        let fine = one(|found| report_settings(&host(json!({"env": "K"})), found));
        assert_eq!(fine, (FindingOutcome::Fine, "1 streams".to_owned()));
        let stream = StreamView { limitation: Some("it has no key".into()), ..StreamView::default() };
        let status = StatusView { streams: vec![stream], ..StatusView::default() };
        assert_eq!(
            one(|found| report_status(&status, found)),
            (FindingOutcome::Warning, "it has no key".to_owned())
        );
    }
}
