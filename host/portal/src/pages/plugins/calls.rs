//! The calls of a plugin: their results, their duration, and their memory.

use kubewitness_core::views::{CallsView, PluginView, QueueView};
use maud::{Markup, html};

use crate::answer::time::duration_text;
use crate::pages::parts::{at_text, grouped_figure, plural_word};

const MIB: f64 = 1_048_576.0;

pub(super) fn render_calls(plugin: &PluginView) -> Markup {
    let calls = &plugin.calls;
    html! {
        p.lag { (render_work(&plugin.queue)) }
        @if calls.ended.count_all() > 0 {
            dl.facts.below {
                div { dt { "Last good call" } dd { (last_good(calls)) } }
                @if let Some(failure) = &calls.last_failure {
                    div { dt { "Last error" } dd { (at_text(&failure.at)) ", " (end_in_words(&failure.end)) } }
                }
                @for (name, count) in failure_counts(calls) {
                    div { dt { (name) } dd { (grouped_figure(count)) } }
                }
                div { dt { "Time in the plugin" } dd { (time_text(calls)) } }
                div { dt { "Peak memory" } dd { (memory_text(plugin)) } }
                div { dt { "Instances" } dd { (grouped_figure(calls.instances)) } }
            }
            @if let Some(failure) = calls.last_failure.as_ref().filter(|it| Some(&it.message) != plugin.message.as_ref()) {
                p.lag { "The last error: " (failure.message) }
            }
        }
    }
}

fn render_work(queue: &QueueView) -> Markup {
    let work = &queue.work_duration;
    let mean = if work.count == 0 { 0.0 } else { 1000.0 * work.sum_seconds / work.count as f64 };
    html! {
        @if work.count == 0 { "No call has ended since it started." }
        @else {
            "Since it started, " (grouped_figure(work.count)) " " (plural_word(work.count, "state was in a call", "states were in calls"))
            " that ended. The call of a state took " (duration_text(mean as u64)) " on average."
        }
        @if queue.longest_running_seconds > 0.0 {
            " The longest call in progress takes " (duration_text((queue.longest_running_seconds * 1000.0) as u64)) " so far."
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
fn failure_counts(calls: &CallsView) -> impl Iterator<Item = (&'static str, u64)> {
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
fn end_in_words(end: &str) -> String {
    match end {
        "trapped" => "a trap".into(),
        "timed-out" => "a timeout".into(),
        other => other.replace('-', " "),
    }
}

fn time_text(calls: &CallsView) -> String {
    let milliseconds = |seconds: f64| duration_text((seconds.max(0.0) * 1000.0) as u64);
    format!(
        "{}, and {} in the controller for it",
        milliseconds(calls.guest_seconds),
        milliseconds(calls.host_seconds)
    )
}

fn memory_text(plugin: &PluginView) -> String {
    let peak = plugin.calls.peak_memory as f64 / MIB;
    match &plugin.manifest {
        Some(manifest) => format!("{peak:.1} of {} MiB", grouped_figure(manifest.memory_limit >> 20)),
        None => format!("{peak:.1} MiB"),
    }
}
