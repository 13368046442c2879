//! The pages for people: rendered here, readable without script. The script only keeps the
//! list of jobs and the figures up to date.

mod dead_letters;
mod diff;
mod document;
mod gaps;
mod jobs;
mod lanes;
mod object;
mod plugins;
mod sources;

use std::sync::LazyLock;

use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use kubewitness_core::document::checksum;
use kubewitness_core::{ObjectRef, Status};
use maud::{DOCTYPE, Markup, html};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};

use crate::app::Route;
use crate::problem::Problem;
use crate::time;

/// Rows that a person gets at once; filters find the others.
const ROWS: usize = 500;

const CSS: &str = include_str!("../../assets/portal.css");
const SCRIPT: &str = include_str!("../../assets/portal.js");
const ICON: &str = include_str!("../../assets/icon.svg");

/// The addresses of the assets hold their checksum, so that browsers may keep them for ever.
static ADDRESSES: LazyLock<[String; 3]> = LazyLock::new(|| {
    [("portal.css", CSS), ("portal.js", SCRIPT), ("icon.svg", ICON)]
        .map(|(name, text)| format!("/assets/{name}?v={:08x}", checksum(text.as_bytes())))
});

pub(crate) fn routes() -> Vec<Route> {
    vec![
        ("/", get(jobs::page)),
        ("/objects/{uid}", get(object::page)),
        ("/states/{seq}", get(document::page)),
        ("/plugins", get(plugins::page)),
        ("/sources", get(sources::page)),
        ("/deadletters", get(dead_letters::page)),
        ("/deadletters/replay", axum::routing::post(dead_letters::replay)),
        ("/gaps", get(gaps::page)),
        ("/assets/portal.css", get(|| asset("text/css; charset=utf-8", CSS))),
        ("/assets/portal.js", get(|| asset("text/javascript; charset=utf-8", SCRIPT))),
        ("/assets/icon.svg", get(|| asset("image/svg+xml", ICON))),
    ]
}

async fn asset(kind: &'static str, text: &'static str) -> Response {
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

const TABS: [(&str, &str); 5] = [
    ("/", "Jobs"),
    ("/plugins", "Plugins"),
    ("/deadletters", "Dead letters"),
    ("/sources", "Sources"),
    ("/gaps", "Gaps"),
];

/// A whole page. `tab` is the address of the tab that it belongs to, or empty.
fn layout(title: &str, tab: &str, content: &Markup) -> Html<String> {
    let [css, script, icon] = &*ADDRESSES;
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " · Kubewitness" }
                link rel="stylesheet" href=(css);
                link rel="icon" href=(icon) type="image/svg+xml";
                script src=(script) defer {}
            }
            body {
                a.skip href="#content" { "Skip to content" }
                header.top {
                    a.brand href="/" { img src=(icon) alt="" width="20" height="20"; "Kubewitness" }
                    nav aria-label="Main" {
                        @for (address, name) in TABS {
                            a href=(address) aria-current=[(address == tab).then_some("page")] { (name) }
                        }
                    }
                    span #live.live hidden { "Live" }
                }
                main #content tabindex="-1" { (content) }
                footer {
                    "Times are UTC. "
                    a href="/api/v1/openapi.json" { "API" } " · " a href="/metrics" { "Metrics" }
                }
            }
        }
    };
    Html(page.into_string())
}

pub(crate) fn problem(problem: &Problem) -> Html<String> {
    let title = match problem.status {
        StatusCode::NOT_FOUND => "Not found",
        StatusCode::SERVICE_UNAVAILABLE => "Not now",
        status if status.is_server_error() => "Something failed",
        _ => "That did not work",
    };
    layout(
        title,
        "",
        &html! {
            div.empty {
                p.code { (problem.status.as_u16()) }
                h1 { (title) }
                p { (problem.message) }
                p.hint { (problem.hint) }
                p { a.button href="/" { "To the jobs" } }
            }
        },
    )
}

/// Percent-encodes everything that is not plainly a part of a name.
fn encode(text: &str) -> PercentEncode<'_> {
    const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_');
    utf8_percent_encode(text, ESCAPED)
}

/// A page, or the part of one, that has nothing to show, and why.
fn empty(what: &str, why: &Markup) -> Markup {
    html! { div.empty { h2 { (what) } p.hint { (why) } } }
}

fn badge(phase: &str) -> Markup {
    html! { span.phase data-phase=(phase) { (phase) } }
}

fn at(ms: u64) -> Markup {
    html! { time datetime=(time::rfc3339(ms)) { (time::readable(ms)) } }
}

/// A time that is RFC 3339 text already, down to the second.
fn at_text(text: &str) -> Markup {
    let short = text.get(..19).unwrap_or(text).replace('T', " ");
    html! { time datetime=(text) { (short) } }
}

fn object_link(object: &ObjectRef) -> Markup {
    html! { a href={ "/objects/" (object.uid) } { (object.kind) "/" (object.name) } }
}

/// Reason, exit code and message of a status, in one cell.
fn why(status: &Status) -> Markup {
    html! {
        @if !status.reason.is_empty() { span.reason { (status.reason) } }
        @if let Some(code) = status.exit_code { " " span.exit { "exit " (code) } }
        @if !status.message.is_empty() { " " span.message title=(status.message) { (status.message) } }
    }
}

/// Figures of four digits and more are read in groups.
fn figure(number: u64) -> String {
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

fn plural<'a>(count: u64, one: &'a str, many: &'a str) -> &'a str {
    if count == 1 { one } else { many }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_grouped_by_thousands() {
        assert_eq!(
            [0, 999, 1000, 1_234_567].map(figure),
            ["0", "999", "1\u{202f}000", "1\u{202f}234\u{202f}567"]
        );
    }
}
