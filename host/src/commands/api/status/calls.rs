//! How the calls of plugins ended and what they cost, for `kubewitness plugins -o wide`.

use kubewitness_core::views::{CallsView, PluginView};

use crate::cli::ZoneArg;
use crate::commands::print::{TextTable, remarks_text};

const HEADER: [&str; 17] = [
    "PLUGIN",
    "CALLS",
    "STATES",
    "DONE",
    "RETRY",
    "REJECT",
    "TRAPS",
    "TIMEOUTS",
    "OTHER ERRORS",
    "GUEST TIME",
    "HOST TIME",
    "WAIT TIME",
    "IN / OUT",
    "INSTANCES",
    "PEAK MEMORY",
    "COMPILED",
    "LAST GOOD",
];

/// Empty if no plugin was called yet.
pub fn calls_text(plugins: &[PluginView]) -> String {
    let called = || plugins.iter().filter(|plugin| plugin.calls.ended.count_all() > 0);
    if called().next().is_none() {
        return String::new();
    }
    let mut table = TextTable::new(&HEADER).with_whole_cells(true);
    for plugin in called() {
        table.push_row(plugin_row(plugin));
    }
    let remarks = called().flat_map(|plugin| {
        let texts = [last_failure(&plugin.calls), host_calls(&plugin.calls)];
        texts.into_iter().flatten().map(|text| (&plugin.name, text))
    });
    format!("\n{}{}", table.render(), remarks_text(remarks))
}

fn plugin_row(plugin: &PluginView) -> Vec<String> {
    let calls = &plugin.calls;
    let (ended, verdicts) = (&calls.ended, &calls.verdicts);
    let limit =
        plugin.manifest.as_ref().map(|manifest| format!(" of {}", byte_size_text(manifest.memory_limit)));
    vec![
        plugin.name.clone(),
        ended.count_all().to_string(),
        calls.states.to_string(),
        verdicts.done.to_string(),
        verdicts.retry.to_string(),
        verdicts.reject.to_string(),
        ended.trapped.to_string(),
        ended.timed_out.to_string(),
        (ended.out_of_memory + ended.invalid + ended.refused + ended.unavailable).to_string(),
        seconds_text(calls.guest_seconds),
        seconds_text(calls.host_seconds),
        seconds_text(calls.wait_seconds),
        format!("{} / {}", byte_size_text(calls.bytes_in), byte_size_text(calls.bytes_out)),
        calls.instances.to_string(),
        format!("{}{}", byte_size_text(calls.peak_memory), limit.unwrap_or_default()),
        if calls.compile_seconds > 0.0 { seconds_text(calls.compile_seconds) } else { "cached".into() },
        ZoneArg::local_zone().show_text(calls.last_answered_at.as_deref().unwrap_or("never")),
    ]
}

fn last_failure(calls: &CallsView) -> Option<String> {
    let failure = calls.last_failure.as_ref()?;
    Some(format!("the last error, at {} ({}): {}", failure.at, failure.end, failure.message))
}

fn host_calls(calls: &CallsView) -> Option<String> {
    let entry = |(capability, calls): (&String, &u64)| format!("{capability} {calls}");
    let all: Vec<_> = calls.host_calls.iter().map(entry).collect();
    (!all.is_empty()).then(|| format!("calls to the controller: {}", all.join(", ")))
}

fn seconds_text(seconds: f64) -> String {
    if seconds < 10.0 { format!("{:.1} ms", seconds * 1000.0) } else { format!("{seconds:.1} s") }
}

fn byte_size_text(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{} KiB", bytes >> 10),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kubewitness_core::views::{CallEndsView, CallFailureView, ManifestView, VerdictsView};

    use super::*;

    #[test]
    fn each_plugin_that_was_called_has_a_row_and_its_last_error() {
        let calls = CallsView {
            ended: CallEndsView {
                answered: 40,
                trapped: 3,
                timed_out: 2,
                invalid: 1,
                ..CallEndsView::default()
            },
            states: 2560,
            verdicts: VerdictsView { done: 2557, retry: 2, reject: 1 },
            guest_seconds: 0.25,
            host_seconds: 12.0,
            wait_seconds: 0.5,
            bytes_in: 3 << 20,
            bytes_out: 2048,
            peak_memory: 3 << 19,
            host_calls: [("kv".to_owned(), 7), ("sql".to_owned(), 40)].into(),
            last_failure: Some(CallFailureView {
                at: "2026-11-25T10:00:00.000Z".into(),
                end: "timed-out".into(),
                message: "the plugin ran\nlonger".into(),
            }),
            ..CallsView::default()
        };
        let manifest = Arc::new(ManifestView { memory_limit: 64 << 20, ..ManifestView::default() });
        let of = |name: &str| PluginView { name: name.into(), ..PluginView::default() };
        let plugin = PluginView { calls, manifest: Some(manifest), ..of("sql") };
        assert_eq!(calls_text(&[of("idle")]), "");
        let text = calls_text(&[plugin, of("idle")]);
        let row: Vec<_> = text.lines().nth(2).unwrap().split("   ").map(str::trim).collect();
        let row: Vec<_> = row.into_iter().filter(|cell| !cell.is_empty()).collect();
        let expected = [
            "sql",
            "46",
            "2560",
            "2557",
            "2",
            "1",
            "3",
            "2",
            "1",
            "250.0 ms",
            "12.0 s",
            "500.0 ms",
            "3.0 MiB / 2 KiB",
            "0",
            "1.5 MiB of 64.0 MiB",
            "cached",
            "never",
        ];
        assert_eq!(row, expected);
        assert!(
            text.contains("sql: the last error, at 2026-11-25T10:00:00.000Z (timed-out): the plugin ran\n"),
            "{text}"
        );
        assert!(
            text.contains("sql: calls to the controller: kv 7, sql 40\n") && !text.contains("idle"),
            "{text}"
        );
    }
}
