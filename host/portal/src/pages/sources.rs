//! The page of sources: the progress of each, its figures, and what its API server lacks.

use axum::extract::State;
use axum::http::Uri;
use kubewitness_core::views::{JournalView, LedgerView, ReplicaView, SourceView, StreamView};
use maud::{Markup, html};

use super::parts::{at_text, encode, grouped_figure, plural_word, render_empty};
use super::plugins::render_notices;
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
    let status = visible.recent_status().await?;
    let not_ready = visible.not_ready().await?;
    let content = html! {
        div.head { h1 { "Sources" } }
        (render_notices(&status, not_ready.as_deref()))
        @if status.restricted { (render_restricted(&status.sources)) }
        @else { section aria-label="Sources" { (render_sources(&status.sources)) } }
        @if !status.streams.is_empty() {
            section aria-labelledby="streams" { h2 #streams { "Streams to other hosts" } (render_streams(&status.streams)) }
        }
        @if !status.ledgers.is_empty() {
            section aria-labelledby="ledgers" { h2 #ledgers { "Ledgers in buckets" } (render_ledgers(&status.ledgers)) }
        }
        @if !status.restricted {
            section aria-labelledby="journal" { h2 #journal { "Journal" } (render_journal(&status.journal)) }
        }
        @if let Some(replica) = &status.replica {
            section aria-labelledby="replicas" { h2 #replicas { "Replicas" } (render_replicas(replica)) }
        }
    };
    Ok(PageContent::new("Sources", "/sources", content).with_live_figures())
}

fn render_sources(sources: &[SourceView]) -> Markup {
    if sources.is_empty() {
        return render_empty("No source yet", &html! { "The host's settings name what is watched." });
    }
    html! { div.cards { @for source in sources { (render_card(source)) } } }
}

/// Only what is watched, without any results.
fn render_restricted(sources: &[SourceView]) -> Markup {
    html! {
        section aria-label="Sources" { div.cards { @for source in sources {
            article.card data-key=(source.name) aria-labelledby={ "source-" (source.name) } {
                header {
                    h2 id={ "source-" (source.name) } { (source.name) }
                    @if source.synced { span.state data-state="active" { "synced" } }
                    @else { span.state data-state="starting" { "not up to date" } }
                    span.digest { (source.api_version) " " (source.kind) }
                }
            }
        } } }
        section { (super::parts::render_restricted("How the sources do their work")) }
    }
}

fn render_card(source: &SourceView) -> Markup {
    let counts = &source.counts;
    let of = encode(&source.name);
    html! {
        article.card data-key=(source.name) aria-labelledby={ "source-" (source.name) } {
            header {
                h2 id={ "source-" (source.name) } { (source.name) }
                (render_source_state(source))
                span.digest { (source.api_version) " " (source.kind) }
            }
            @if let Some(text) = &source.limitation { p.notice { (text) } }
            dl.sum {
                div { dt { "objects" } dd { (grouped_figure(source.objects)) } }
                div { dt { "gaps" } dd { (render_linked_count(source.gaps, &format!("/gaps?source={of}"))) } }
                div { dt { "poison" } dd { (render_linked_count(source.poison, &format!("/gaps?source={of}#poison"))) } }
                div { dt { "replaced histories" } dd { (render_linked_count(u64::from(source.epoch), &format!("/gaps?source={of}#histories"))) } }
            }
            dl.facts.below {
                div { dt { "Last event" } dd { (last_event(source)) } }
                div { dt { "Checkpoint" } dd { @if source.checkpoint.is_empty() { "none yet" } @else { (source.checkpoint) } } }
                div { dt { "Last audit" } dd { @match &source.last_audit_at { Some(text) => (at_text(text)), None => { "none yet" } } } }
            }
            h3 { "Since the start of the process" }
            dl.facts {
                div { dt { "Events" } dd {
                    (grouped_figure(counts.present)) " present, " (grouped_figure(counts.gone)) " gone, " (grouped_figure(counts.left)) " left, "
                    (grouped_figure(counts.bookmarks)) " " (plural_word(counts.bookmarks, "bookmark", "bookmarks"))
                } }
                div { dt { "Events without a new state" } dd {
                    (grouped_figure(counts.duplicates)) " repeated, " (grouped_figure(counts.stale)) " stale, " (grouped_figure(counts.poison)) " poison"
                } }
                div { dt { "Watches" } dd { (grouped_figure(counts.watches)) ", of them ended by an expired version: " (grouped_figure(counts.expired)) } }
                div { dt { "Lists" } dd {
                    (grouped_figure(counts.lists_first)) " first, " (grouped_figure(counts.lists_expired)) " expired, "
                    (grouped_figure(counts.lists_replaced)) " replaced, " (grouped_figure(counts.lists_audit)) " "
                    (plural_word(counts.lists_audit, "audit", "audits"))
                } }
                div { dt { "Read back" } dd {
                    (grouped_figure(counts.walked_back)) " " (plural_word(counts.walked_back, "version", "versions")) " in "
                    (grouped_figure(counts.walk_back_requests)) " " (plural_word(counts.walk_back_requests, "request", "requests"))
                    @if source.walking > 0 {
                        ", " (grouped_figure(source.walking)) " " (plural_word(source.walking, "object waits", "objects wait"))
                    }
                } }
                div { dt { "Audits" } dd {
                    (grouped_figure(counts.discrepancies)) " " (plural_word(counts.discrepancies, "object", "objects")) " differed"
                } }
                div { dt { "Received" } dd { (byte_size_text(counts.bytes)) ", read in " (time::duration_text(counts.decode_ns / 1_000_000)) } }
            }
        }
    }
}

fn render_streams(streams: &[StreamView]) -> Markup {
    html! {
        div.cards { @for stream in streams {
            article.card data-key=(stream.name) aria-labelledby={ "stream-" (stream.name) } {
                header {
                    h3 id={ "stream-" (stream.name) } { (stream.name) }
                    @if stream.condition.is_some() { span.state data-state="degraded" { "held up" } }
                    @else { span.state data-state="active" { "carrying" } }
                    span.digest { (stream.carries.join(", ")) }
                }
                @if let Some(text) = &stream.limitation { p.notice { (text) } }
                dl.sum {
                    div { dt { "carried" } dd { (grouped_figure(stream.carried)) } }
                    div { dt { "waiting" } dd { (grouped_figure(stream.waiting)) } }
                }
            }
        } }
    }
}

fn render_ledgers(ledgers: &[LedgerView]) -> Markup {
    html! {
        div.cards { @for ledger in ledgers {
            article.card data-key=(ledger.name) aria-labelledby={ "ledger-" (ledger.name) } {
                header {
                    h3 id={ "ledger-" (ledger.name) } { (ledger.name) }
                    @if ledger.condition.is_some() { span.state data-state="degraded" { "held up" } }
                    @else { span.state data-state="active" { "shipping" } }
                }
                @if let Some(condition) = &ledger.condition { p.alert { (condition) } }
                dl.sum {
                    div { dt { "shipped" } dd { (grouped_figure(ledger.shipped)) } }
                    div { dt { "waiting" } dd { (grouped_figure(ledger.waiting)) } }
                    div { dt { "removed here" } dd { (grouped_figure(ledger.removed)) } }
                }
            }
        } }
    }
}

fn render_replicas(this: &ReplicaView) -> Markup {
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
                li data-key=(name) { code { (name) } @if *name == this.name { " (this one)" } }
            }
        }
    }
}

/// A figure with a link to what it counts.
fn render_linked_count(count: u64, address: &str) -> Markup {
    html! { @if count > 0 { a href=(address) { (grouped_figure(count)) } } @else { "0" } }
}

fn last_event(source: &SourceView) -> Markup {
    html! {
        @match (&source.last_event_at, source.last_event_age_seconds) {
            (Some(text), Some(age)) => { (at_text(text)) " (" (time::duration_text((age.max(0.0) * 1000.0) as u64)) " ago)" }
            (Some(text), None) => (at_text(text)),
            (None, _) => { "none yet" }
        }
    }
}

fn render_source_state(source: &SourceView) -> Markup {
    let (state, text) = match (source.condition.is_some(), source.synced, source.walking) {
        (true, _, _) => ("degraded", "held up"),
        (false, false, _) => ("starting", "listing"),
        (false, true, 0) => ("active", "synced"),
        (false, true, _) => ("starting", "reading back"),
    };
    html! { span.state data-state=(state) { (text) } }
}

fn render_journal(journal: &JournalView) -> Markup {
    html! {
        dl.facts {
            @if !journal.place.is_empty() { div { dt { "Store" } dd { (journal.place) } } }
            div { dt { "States" } dd { (grouped_figure(journal.states)) } }
            div { dt { "Size" } dd { (byte_size_text(journal.bytes)) } }
            @if let Some(each) = journal.bytes.checked_div(journal.states) { div { dt { "Per state" } dd { (grouped_figure(each)) " bytes" } } }
            div { dt { "Positions" } dd { (grouped_figure(journal.oldest_seq)) " to " (grouped_figure(journal.newest_seq)) } }
            @if let Some(text) = &journal.oldest_at { div { dt { "Begins" } dd { (at_text(text)) } } }
        }
    }
}

pub(super) fn byte_size_text(bytes: u64) -> String {
    match bytes {
        0..10_240 => format!("{bytes} bytes"),
        10_240..10_485_760 => format!("{} KiB", grouped_figure(bytes >> 10)),
        10_485_760..10_737_418_240 => format!("{} MiB", grouped_figure(bytes >> 20)),
        _ => format!("{} GiB", bytes >> 30),
    }
}
