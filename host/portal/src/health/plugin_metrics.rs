//! The metrics of plugins' calls. Labels are the name of a plugin and words of this file: nothing that was
//! witnessed, and nothing that a plugin chooses.

use kubewitness_core::views::{CallsView, PluginView};

use super::page::MetricKind::{self, Counter, Gauge};
use super::page::{MetricsPage, seconds_of_time};

type OfCalls = (&'static str, &'static str, MetricKind, fn(&CallsView) -> f64);
/// The value of an additional label, and its count.
type PluginCount = (&'static str, fn(&CallsView) -> u64);

const FIGURES: [OfCalls; 10] = [
    ("handed_total", "States that the plugin was handed, each try included.", Counter, |c| c.states as f64),
    ("guest_seconds_total", "Time that the plugin itself took in calls.", Counter, |c| c.guest_seconds),
    ("host_seconds_total", "Time in functions of the controller that the plugin called.", Counter, |c| {
        c.host_seconds
    }),
    (
        "wait_seconds_total",
        "Time in which calls of the plugin waited for their turn of the processor.",
        Counter,
        |c| c.wait_seconds,
    ),
    (
        "received_bytes_total",
        "Bytes of states, and of answers to the plugin's calls to the controller.",
        Counter,
        |c| c.bytes_in as f64,
    ),
    ("sent_bytes_total", "Bytes of arguments of the plugin's calls to the controller.", Counter, |c| {
        c.bytes_out as f64
    }),
    ("instances", "Instances of the plugin.", Gauge, |c| c.instances as f64),
    ("memory_bytes", "Memory that the instances of the plugin hold together.", Gauge, |c| c.memory as f64),
    (
        "memory_peak_bytes",
        "The most memory that one instance of the plugin's version has held.",
        Gauge,
        |c| c.peak_memory as f64,
    ),
    (
        "compile_seconds",
        "How long the plugin's version was compiled; 0 where its code came from the cache.",
        Gauge,
        |c| c.compile_seconds,
    ),
];

const ENDS: [PluginCount; 7] = [
    ("answered", |c| c.ended.answered),
    ("trapped", |c| c.ended.trapped),
    ("timed-out", |c| c.ended.timed_out),
    ("out-of-memory", |c| c.ended.out_of_memory),
    ("invalid", |c| c.ended.invalid),
    ("refused", |c| c.ended.refused),
    ("unavailable", |c| c.ended.unavailable),
];

const VERDICTS: [PluginCount; 3] =
    [("done", |c| c.verdicts.done), ("retry", |c| c.verdicts.retry), ("reject", |c| c.verdicts.reject)];

pub fn write(page: &mut MetricsPage, plugins: &[PluginView]) {
    for (name, help, kind, value) in FIGURES {
        let name = format!("plugin_{name}");
        page.write_family(&name, help, kind);
        for plugin in plugins {
            page.write_sample(&name, &[("plugin", &plugin.name)], value(&plugin.calls));
        }
    }
    let by = [
        ("plugin_calls_total", "end", "Calls of the plugin that ended, by how they ended.", &ENDS[..]),
        ("plugin_verdicts_total", "verdict", "Verdicts of the plugin, by kind.", &VERDICTS[..]),
    ];
    for (name, label, help, parts) in by {
        page.write_family(name, help, Counter);
        for plugin in plugins {
            for (part, count) in parts {
                page.write_sample(
                    name,
                    &[("plugin", &plugin.name), (label, part)],
                    count(&plugin.calls) as f64,
                );
            }
        }
    }
    let name = "plugin_host_calls_total";
    page.write_family(
        name,
        "Calls of the plugin to the controller, by capability; refused ones count, too.",
        Counter,
    );
    for plugin in plugins {
        for (capability, calls) in &plugin.calls.host_calls {
            page.write_sample(name, &[("plugin", &plugin.name), ("capability", capability)], *calls as f64);
        }
    }
    write_limits(page, plugins);
    write_moments(page, plugins);
    write_shadows(page, plugins);
}

fn write_shadows(page: &mut MetricsPage, plugins: &[PluginView]) {
    let name = "plugin_shadow_states_total";
    page.write_family(
        name,
        "States that the plugin and the version in its shadow were handed, by what came of it.",
        Counter,
    );
    for (plugin, shadow) in plugins.iter().filter_map(|it| Some((&it.name, it.shadow.as_ref()?))) {
        let results = [("same", shadow.same), ("different", shadow.different), ("missed", shadow.missed)];
        for (result, states) in results {
            page.write_sample(name, &[("plugin", plugin), ("result", result)], states as f64);
        }
    }
}

fn write_limits(page: &mut MetricsPage, plugins: &[PluginView]) {
    let name = "plugin_memory_limit_bytes";
    page.write_family(name, "Memory that one instance of the plugin may hold.", Gauge);
    for plugin in plugins {
        if let Some(manifest) = &plugin.manifest {
            page.write_sample(name, &[("plugin", &plugin.name)], manifest.memory_limit as f64);
        }
    }
}

fn write_moments(page: &mut MetricsPage, plugins: &[PluginView]) {
    type PluginMoment = (&'static str, &'static str, fn(&CallsView) -> Option<&str>);
    let moments: [PluginMoment; 2] = [
        (
            "plugin_last_answered_timestamp_seconds",
            "When a call of the plugin last ended well, in seconds since 1970.",
            |c| c.last_answered_at.as_deref(),
        ),
        (
            "plugin_last_failure_timestamp_seconds",
            "When a call of the plugin last failed, in seconds since 1970.",
            |c| c.last_failure.as_ref().map(|failure| failure.at.as_str()),
        ),
    ];
    for (name, help, at) in moments {
        page.write_family(name, help, Gauge);
        for plugin in plugins {
            if let Some(at) = at(&plugin.calls).and_then(seconds_of_time) {
                page.write_sample(name, &[("plugin", &plugin.name)], at);
            }
        }
    }
}
