//! The page of sources: the progress of each, its figures, and what its API server lacks.

use axum::extract::State;
use axum::http::Uri;
use kubewitness_core::views::{JournalView, LedgerView, ReplicaView, SourceView, StreamView};
use maud::{Markup, html};

use super::parts::{at_text, empty, encode, figure, plural};
use super::plugins::notices;
use crate::access::PortalViewer;
use crate::answer::ProblemPage;
use crate::answer::frame::PageContent;
use crate::answer::params::QueryParams;
use crate::answer::time;
use crate::app::PortalApp;
use crate::scope::ViewerVisibility;

pub(super) async fn page(
    State(app): State<PortalApp>,
    viewer: PortalViewer,
    uri: Uri,
) -> Result<PageContent, ProblemPage> {
    QueryParams::read(&uri, &[])?;
    let visible = ViewerVisibility::new(&app, &viewer);
    let status = visible.status().await?;
    let not_ready = visible.not_ready().await?;
    let content = html! {
        div.head { h1 { "Sources" } }
        div #figures data-live data-refresh="5" {
            (notices(&status, not_ready.as_deref()))
            @if status.restricted { (restricted(&status.sources)) }
            @else { section aria-label="Sources" { (sources(&status.sources)) } }
            @if !status.streams.is_empty() {
                section aria-labelledby="streams" { h2 #streams { "Streams to other hosts" } (streams(&status.streams)) }
            }
            @if !status.ledgers.is_empty() {
                section aria-labelledby="ledgers" { h2 #ledgers { "Ledgers in buckets" } (ledgers(&status.ledgers)) }
            }
            @if !status.restricted {
                section aria-labelledby="journal" { h2 #journal { "Journal" } (journal(&status.journal)) }
            }
            @if let Some(replica) = &status.replica {
                section aria-labelledby="replicas" { h2 #replicas { "Replicas" } (replicas(replica)) }
            }
        }
    };
    Ok(PageContent::new("Sources", "/sources", content))
}

fn sources(sources: &[SourceView]) -> Markup {
    if sources.is_empty() {
        return empty("No source yet", &html! { "The host's settings name what is watched." });
    }
    html! { div.cards { @for source in sources { (card(source)) } } }
}

/// Only what is watched, without any results.
fn restricted(sources: &[SourceView]) -> Markup {
    html! {
        section aria-label="Sources" { div.cards { @for source in sources {
            article.card aria-labelledby={ "source-" (source.name) } {
                header {
                    h2 id={ "source-" (source.name) } { (source.name) }
                    @if source.synced { span.state data-state="active" { "synced" } }
                    @else { span.state data-state="starting" { "not up to date" } }
                    span.digest { (source.api_version) " " (source.kind) }
                }
            }
        } } }
        section { (super::parts::restricted("How the sources do their work")) }
    }
}

fn card(source: &SourceView) -> Markup {
    let counts = &source.counts;
    let of = encode(&source.name);
    html! {
        article.card aria-labelledby={ "source-" (source.name) } {
            header {
                h2 id={ "source-" (source.name) } { (source.name) }
                (state(source))
                span.digest { (source.api_version) " " (source.kind) }
            }
            @if let Some(text) = &source.limitation { p.notice { (text) } }
            dl.sum {
                div { dt { "objects" } dd { (figure(source.objects)) } }
                div { dt { "gaps" } dd { (found(source.gaps, &format!("/gaps?source={of}"))) } }
                div { dt { "poison" } dd { (found(source.poison, &format!("/gaps?source={of}#poison"))) } }
                div { dt { "replaced histories" } dd { (found(u64::from(source.epoch), &format!("/gaps?source={of}#histories"))) } }
            }
            dl.facts.below {
                div { dt { "Last event" } dd { (last_event(source)) } }
                div { dt { "Checkpoint" } dd { @if source.checkpoint.is_empty() { "none yet" } @else { (source.checkpoint) } } }
                div { dt { "Last audit" } dd { @match &source.last_audit_at { Some(text) => (at_text(text)), None => { "none yet" } } } }
            }
            h3 { "Since the start of the process" }
            dl.facts {
                div { dt { "Events" } dd {
                    (figure(counts.present)) " present, " (figure(counts.gone)) " gone, " (figure(counts.left)) " left, "
                    (figure(counts.bookmarks)) " " (plural(counts.bookmarks, "bookmark", "bookmarks"))
                } }
                div { dt { "Events without a new state" } dd {
                    (figure(counts.duplicates)) " repeated, " (figure(counts.stale)) " stale, " (figure(counts.poison)) " poison"
                } }
                div { dt { "Watches" } dd { (figure(counts.watches)) ", of them ended by an expired version: " (figure(counts.expired)) } }
                div { dt { "Lists" } dd {
                    (figure(counts.lists_first)) " first, " (figure(counts.lists_expired)) " expired, "
                    (figure(counts.lists_replaced)) " replaced, " (figure(counts.lists_audit)) " "
                    (plural(counts.lists_audit, "audit", "audits"))
                } }
                div { dt { "Read back" } dd {
                    (figure(counts.walked_back)) " " (plural(counts.walked_back, "version", "versions")) " in "
                    (figure(counts.walk_back_requests)) " " (plural(counts.walk_back_requests, "request", "requests"))
                    @if source.walking > 0 {
                        ", " (figure(source.walking)) " " (plural(source.walking, "object waits", "objects wait"))
                    }
                } }
                div { dt { "Audits" } dd {
                    (figure(counts.discrepancies)) " " (plural(counts.discrepancies, "object", "objects")) " differed"
                } }
                div { dt { "Received" } dd { (size(counts.bytes)) ", read in " (time::span(counts.decode_ns / 1_000_000)) } }
            }
        }
    }
}

fn streams(streams: &[StreamView]) -> Markup {
    html! {
        div.cards { @for stream in streams {
            article.card aria-labelledby={ "stream-" (stream.name) } {
                header {
                    h3 id={ "stream-" (stream.name) } { (stream.name) }
                    @if stream.condition.is_some() { span.state data-state="degraded" { "held up" } }
                    @else { span.state data-state="active" { "carrying" } }
                    span.digest { (stream.carries.join(", ")) }
                }
                dl.sum {
                    div { dt { "carried" } dd { (figure(stream.carried)) } }
                    div { dt { "waiting" } dd { (figure(stream.waiting)) } }
                }
            }
        } }
    }
}

fn ledgers(ledgers: &[LedgerView]) -> Markup {
    html! {
        div.cards { @for ledger in ledgers {
            article.card aria-labelledby={ "ledger-" (ledger.name) } {
                header {
                    h3 id={ "ledger-" (ledger.name) } { (ledger.name) }
                    @if ledger.condition.is_some() { span.state data-state="degraded" { "held up" } }
                    @else { span.state data-state="active" { "shipping" } }
                }
                @if let Some(condition) = &ledger.condition { p.alert { (condition) } }
                dl.sum {
                    div { dt { "shipped" } dd { (figure(ledger.shipped)) } }
                    div { dt { "waiting" } dd { (figure(ledger.waiting)) } }
                    div { dt { "removed here" } dd { (figure(ledger.removed)) } }
                }
            }
        } }
    }
}

fn replicas(this: &ReplicaView) -> Markup {
    html! {
        @if let Some(condition) = &this.condition { p.alert { (condition) } }
        p {
            "All of them witness. The holder of the Lease " code { (this.lease) } " hands states to plugins: "
            @match &this.dispatcher {
                Some(name) => { b { (name) } "." }
                None => "no replica now; one takes over soon.",
            }
        }
        ul {
            @for name in &this.replicas {
                li { code { (name) } @if *name == this.name { " (this one)" } }
            }
        }
    }
}

/// A figure with a link to what it counts.
fn found(count: u64, address: &str) -> Markup {
    html! { @if count > 0 { a href=(address) { (figure(count)) } } @else { "0" } }
}

fn last_event(source: &SourceView) -> Markup {
    html! {
        @match (&source.last_event_at, source.last_event_age_seconds) {
            (Some(text), Some(age)) => { (at_text(text)) " (" (time::span((age.max(0.0) * 1000.0) as u64)) " ago)" }
            (Some(text), None) => (at_text(text)),
            (None, _) => { "none yet" }
        }
    }
}

fn state(source: &SourceView) -> Markup {
    let (state, text) = match (source.condition.is_some(), source.synced, source.walking) {
        (true, _, _) => ("degraded", "held up"),
        (false, false, _) => ("starting", "listing"),
        (false, true, 0) => ("active", "synced"),
        (false, true, _) => ("starting", "reading back"),
    };
    html! { span.state data-state=(state) { (text) } }
}

fn journal(journal: &JournalView) -> Markup {
    html! {
        dl.facts {
            @if !journal.place.is_empty() { div { dt { "Store" } dd { (journal.place) } } }
            div { dt { "States" } dd { (figure(journal.states)) } }
            div { dt { "Size" } dd { (size(journal.bytes)) } }
            @if let Some(each) = journal.bytes.checked_div(journal.states) { div { dt { "Per state" } dd { (figure(each)) " bytes" } } }
            div { dt { "Positions" } dd { (figure(journal.oldest_seq)) " to " (figure(journal.newest_seq)) } }
            @if let Some(text) = &journal.oldest_at { div { dt { "Begins" } dd { (at_text(text)) } } }
        }
    }
}

pub(super) fn size(bytes: u64) -> String {
    match bytes {
        0..10_240 => format!("{bytes} bytes"),
        10_240..10_485_760 => format!("{} KiB", figure(bytes >> 10)),
        10_485_760..10_737_418_240 => format!("{} MiB", figure(bytes >> 20)),
        _ => format!("{} GiB", bytes >> 30),
    }
}
