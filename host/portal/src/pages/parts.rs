//! The parts of pages: links, badges, times, figures, and the texts of empty pages.

use std::fmt::Display;

use axum::http::{HeaderMap, header};
use kubewitness_core::events::EventView;
use kubewitness_core::{ObjectRef, Status};
use maud::{Markup, html};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};

use crate::answer::params::QueryParams;
use crate::answer::{Problem, codes, time};

/// How many rows a person gets at once; filters find the others.
pub(super) const ROWS: usize = 500;

/// A text in which names are between backquotes.
pub(super) fn with_code(text: &str) -> Markup {
    html! {
        @for (index, part) in text.split('`').enumerate() {
            @if index % 2 == 1 { code { (part) } } @else { (part) }
        }
    }
}

/// Scripts use the API instead. A form comes from a browser, which sends its origin; an earlier check has
/// refused the pages of other sites.
pub(super) fn expect_own_page(headers: &HeaderMap) -> Result<(), Problem> {
    if headers.contains_key("sec-fetch-site") || headers.contains_key(header::ORIGIN) {
        return Ok(());
    }
    Err(Problem::with_code(
        codes::FOREIGN_PAGE,
        "It is not known which page this form was sent from.",
        "Send it from the portal, or use the API, which /api/v1/openapi.json describes.",
    ))
}

/// Percent-encodes everything except ordinary characters of names.
pub(super) fn encode(text: &str) -> PercentEncode<'_> {
    const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_');
    utf8_percent_encode(text, ESCAPED)
}

/// A page without content, or an empty part of one, and the reason.
pub(super) fn render_empty(what: &str, why: &Markup) -> Markup {
    html! { div.empty { h2 { (what) } p.hint { (why) } } }
}

/// Links to the first and the next page of a list. Each page has its own address.
pub(super) fn render_page_links(label: &str, first: Option<String>, next: Option<String>) -> Markup {
    html! {
        @if first.is_some() || next.is_some() {
            nav.pages aria-label=(label) {
                @if let Some(first) = first { a.button href=(first) { "First page" } }
                @if let Some(next) = next { a.button rel="next" href=(next) { "Next page" } }
            }
        }
    }
}

/// The same for a list in the section `place`, whose cursor is the parameter `name`.
pub(super) fn pages_of(
    params: &QueryParams,
    name: &str,
    next: Option<impl Display>,
    label: &str,
    place: &str,
) -> Markup {
    let address = |cursor: &str| format!("?{}#{place}", params.link_with(name, cursor));
    let first = params.text(name).map(|_| address(""));
    render_page_links(label, first, next.map(|next| address(&next.to_string())))
}

/// Shown instead of figures for which the reader has no right.
pub(super) fn render_restricted(what: &str) -> Markup {
    render_empty(
        "For operators",
        &html! {
            (what) " is for people who may " code { "get" } " " code { "status" } " in " code { "kubewitness.dev" }
            ". What you see of objects is all that Kubernetes lets you list."
        },
    )
}

pub(super) fn render_phase_badge(phase: &str) -> Markup {
    html! { span.phase data-phase=(phase) { (phase) } }
}

/// The word also distinguishes a warning from a normal Event.
pub(super) fn event_type(event: &EventView) -> Markup {
    html! { span.mark.doubt[event.kind == "Warning"] { (event.kind) } }
}

/// The message of an Event, and how often it occurred.
pub(super) fn event_words(event: &EventView, about: &Markup) -> Markup {
    let repeated = event.repetition_text();
    html! {
        span.reason { (event.reason) } " "
        @if !repeated.is_empty() { span.note { "(" (repeated) ")" } " " }
        (about) " " span.message title=(event.message) { (event.message) }
    }
}

pub(super) fn render_time(ms: u64) -> Markup {
    html! { time datetime=(time::rfc3339_seconds(ms)) { (time::readable_time(ms)) } }
}

/// A time that is already RFC 3339 text, down to the second.
pub(super) fn at_text(text: &str) -> Markup {
    let short = text.get(..19).unwrap_or(text).replace('T', " ");
    html! { time datetime=(text) { (short) } }
}

pub(super) fn object_link(object: &ObjectRef) -> Markup {
    html! { a href={ "/objects/" (object.uid) } title=(object.name) { (object.kind) "/" (object.name) } }
}

/// Reason, exit code and message of a status, in one cell.
pub(super) fn render_status_reason(status: &Status) -> Markup {
    html! {
        @if !status.reason.is_empty() { span.reason { (status.reason) } }
        @if let Some(code) = status.exit_code { " " span.exit.fault[code != 0] { "exit " (code) } }
        @if !status.message.is_empty() { " " span.message title=(status.message) { (status.message) } }
    }
}

/// Digits of large figures are grouped.
pub(super) fn grouped_figure(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push('\u{202f}');
        }
        grouped.push(digit);
    }
    grouped
}

pub(super) fn plural_word<'a>(count: u64, one: &'a str, many: &'a str) -> &'a str {
    if count == 1 { one } else { many }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_grouped_by_thousands() {
        assert_eq!(
            [0, 999, 1000, 1_234_567].map(grouped_figure),
            ["0", "999", "1\u{202f}000", "1\u{202f}234\u{202f}567"]
        );
    }
}
