//! The calls of a plugin: their results, their duration, and their memory.

use kubewitness_core::views::{CallsView, PluginView, QueueView};
use maud::{Markup, html};

use crate::answer::time::span;
use crate::pages::parts::{at_text, figure, plural};

const MIB: f64 = 1_048_576.0;

pub(super) fn render_calls(plugin: &PluginView) -> Markup {
    let calls = &plugin.calls;
    html! {
        p.lag { (work(&plugin.queue)) }
        @if calls.ended.all() > 0 {
            dl.facts.below {
                div { dt { "Last good call" } dd { (last_good(calls)) } }
                @if let Some(failure) = &calls.last_failure {
                    div { dt { "Last error" } dd { (at_text(&failure.at)) ", " (words(&failure.end)) } }
                }
                @for (name, count) in failures(calls) {
                    div { dt { (name) } dd { (figure(count)) } }
                }
                div { dt { "Time in the plugin" } dd { (share(calls)) } }
                div { dt { "Peak memory" } dd { (memory(plugin)) } }
                div { dt { "Instances" } dd { (figure(calls.instances)) } }
            }
            @if let Some(failure) = calls.last_failure.as_ref().filter(|it| Some(&it.message) != plugin.message.as_ref()) {
                p.lag { "The last error: " (failure.message) }
            }
        }
    }
}

fn work(queue: &QueueView) -> Markup {
    let work = &queue.work_duration;
    let mean = if work.count == 0 { 0.0 } else { 1000.0 * work.sum_seconds / work.count as f64 };
    html! {
        @if work.count == 0 { "No call has ended since it started." }
        @else {
            "Since it started, " (figure(work.count)) " " (plural(work.count, "state was in a call", "states were in calls"))
            " that ended. The call of a state took " (span(mean as u64)) " on average."
        }
        @if queue.longest_running_seconds > 0.0 {
            " The longest call in progress takes " (span((queue.longest_running_seconds * 1000.0) as u64)) " so far."
        }
    }
}

fn last_good(calls: &CallsView) -> Markup {
    html! {
        @match &calls.last_answered_at { Some(at) => (at_text(at)), None => "none yet" }
    }
}

/// Traps and timeouts are always shown, because a 0 is informative as well. The others are shown if they
/// occurred.
fn failures(calls: &CallsView) -> impl Iterator<Item = (&'static str, u64)> {
    let ended = &calls.ended;
    let always = [("Traps", ended.trapped), ("Timeouts", ended.timed_out)];
    let others = [
        ("Out of memory", ended.out_of_memory),
        ("Invalid answers", ended.invalid),
        ("Refused writes", ended.refused),
        ("Unavailable", ended.unavailable),
    ];
    always.into_iter().chain(others.into_iter().filter(|(_, count)| *count > 0))
}

/// The result of a call, in words for a reader.
fn words(end: &str) -> String {
    match end {
        "trapped" => "a trap".into(),
        "timed-out" => "a timeout".into(),
        other => other.replace('-', " "),
    }
}

fn share(calls: &CallsView) -> String {
    let milliseconds = |seconds: f64| span((seconds.max(0.0) * 1000.0) as u64);
    format!(
        "{}, and {} in the controller for it",
        milliseconds(calls.guest_seconds),
        milliseconds(calls.host_seconds)
    )
}

fn memory(plugin: &PluginView) -> String {
    let peak = plugin.calls.peak_memory as f64 / MIB;
    match &plugin.manifest {
        Some(manifest) => format!("{peak:.1} of {} MiB", figure(manifest.memory_limit >> 20)),
        None => format!("{peak:.1} MiB"),
    }
}
