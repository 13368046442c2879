//! The form above the list, and the counts by phase.

use std::collections::BTreeSet;

use kubewitness_core::status::PHASES;
use kubewitness_core::views::{CauseKind, GoneFilter, ObjectCounts};
use maud::{Markup, html};

use super::query::{JobsQuery, RANGES};
use crate::pages::parts::{encode, grouped_figure};

pub(super) fn render_filters(asked: &JobsQuery, namespaces: &BTreeSet<String>) -> Markup {
    html! {
        form.filters role="search" aria-label="Filter" method="get" action="/" {
            @if let Some(sort) = asked.sort_word() { input type="hidden" name="sort" value=(sort); }
            label { span { "Search" }
                input #search type="search" name="search" value=[asked.search.as_deref()] placeholder="name, uid, submitter, label" autocomplete="off" spellcheck="false";
            }
            label { span { "Kind" } input.short name="kind" value=(asked.kind) list="kinds" autocomplete="off" spellcheck="false"; }
            datalist #kinds { @for kind in ["Job", "Pod", "Event", "all"] { option value=(kind) {} } }
            label { span { "Namespace" }
                select name="namespace" {
                    option value="" { "All" }
                    @if let Some(name) = asked.namespace.as_ref().filter(|name| !namespaces.contains(*name)) {
                        option value=(name) selected { (name) }
                    }
                    @for name in namespaces.iter().filter(|name| !name.is_empty()) {
                        option value=(name) selected[asked.namespace.as_ref() == Some(name)] { (name) }
                    }
                }
            }
            label { span { "Labels" }
                input name="labelSelector" value=[asked.labels.as_deref()] placeholder="team=a,!old" autocomplete="off" spellcheck="false";
            }
            @if !asked.is_of_events() || asked.phase.is_some() {
                label { span { "Phase" }
                    select name="phase" {
                        option value="" { "Any" }
                        @for phase in PHASES { option value=(phase) selected[asked.phase == Some(phase)] { (phase) } }
                    }
                }
            }
            @if asked.may_have_causes() || asked.cause.is_some() {
                label { span { "Cause" }
                    select name="cause" {
                        option value="" { "Any" }
                        @for kind in CauseKind::ALL { option value=(kind.as_str()) selected[asked.cause == Some(kind)] { (kind.words()) } }
                    }
                }
            }
            label { span { "Gone" }
                select name="gone" {
                    option value="" { "No" }
                    option value="true" selected[asked.gone == GoneFilter::Too] { "Gone too" }
                    option value="only" selected[asked.gone == GoneFilter::Only] { "Only gone" }
                }
            }
            button.strong { "Show" }
            @if asked.is_narrowed() { a href={ "/?kind=" (encode(&asked.kind)) } { "Clear" } }
            (render_times(asked))
        }
    }
}

/// Says that a list contains objects that were in a phase or ended badly for a cause, with a link back.
pub(super) fn past_chip(asked: &JobsQuery) -> Markup {
    let range = RANGES.into_iter().find(|(range, _)| !range.is_empty() && *range == asked.range);
    let was = asked.was.map(|phase| ("was", format!("Was {phase}")));
    let cause = asked.cause.map(|kind| ("cause", format!("Ended by {}", kind.words())));
    html! {
        @for (name, words) in was.into_iter().chain(cause) {
            p { a.chip href=(asked.address_with(name, None)) title="Without this condition" {
                (words)
                @match range {
                    Some(("custom", _)) => " between these times",
                    Some((_, name)) => { " in " (name) },
                    None => {}
                }
                span aria-hidden="true" { " ✕" }
            } }
        }
    }
}

/// Rarely used fields are collapsed, and open if they are in use.
fn render_times(asked: &JobsQuery) -> Markup {
    let is_of_times = !asked.range.is_empty() || asked.since.is_some() || asked.until.is_some();
    let is_used = is_of_times || !asked.has_order();
    html! {
        details.times open[is_used] {
            summary { "Time" }
            div.filters {
                label { span { "Was" }
                    select name="was" {
                        option value="" { "any phase" }
                        @for phase in PHASES { option value=(phase) selected[asked.was == Some(phase)] { (phase) } }
                    }
                }
                label { span { @if asked.was.is_some() { "Was so in" } @else if asked.cause.is_some() { "Ended in" } @else { "Deleted in" } }
                    select name="range" {
                        @for (value, name) in RANGES { option value=(value) selected[asked.range == value] { (name) } }
                    }
                }
                label { span { "From (UTC)" } input name="since" data-utc value=[asked.since.as_deref()] placeholder="2026-11-24 03:00" autocomplete="off"; }
                label { span { "To (UTC)" } input name="until" data-utc value=[asked.until.as_deref()] placeholder="2026-11-24 09:00" autocomplete="off"; }
                label { span { "As it was at (UTC)" } input name="at" data-utc value=[asked.at.as_deref()] placeholder="2026-11-24 03:00" autocomplete="off"; }
            }
        }
    }
}

/// One link for each phase that has objects.
pub(super) fn counts_bar(asked: &JobsQuery, counts: &ObjectCounts) -> Markup {
    html! {
        nav.counts aria-label="By phase" {
            @for phase in PHASES {
                @let count = counts.phases.get(phase).copied().unwrap_or(0);
                @let is_chosen = asked.phase == Some(phase);
                @if count > 0 || is_chosen {
                    a href=(asked.address_with("phase", Some(phase))) data-phase=(phase) data-key=(phase)
                        aria-current=[is_chosen.then_some("true")] {
                        b { (grouped_figure(count)) } " " (phase)
                    }
                }
            }
        }
    }
}
