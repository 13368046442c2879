//! The versions and bytes that were not witnessed as intended: gaps, poison messages, replaced histories, and
//! differences that audits found.

use axum::extract::State;
use axum::http::Uri;
use kubewitness_core::Gap;
use kubewitness_core::views::{GapQuery, PoisonQuery, PoisonView, SourceView};
use maud::{Markup, html};

use super::parts::{
    ROWS, at_text, encode, grouped_figure, object_link, pages_of, plural_word, render_empty, render_time,
};
use crate::access::PortalViewer;
use crate::answer::ProblemPage;
use crate::answer::frame::PageContent;
use crate::answer::params::QueryParams;
use crate::app::PortalApp;
use crate::scope::{AccessVerb, ViewerVisibility, VisiblePart};

pub(super) async fn page(
    State(app): State<PortalApp>,
    viewer: PortalViewer,
    uri: Uri,
) -> Result<PageContent, ProblemPage> {
    let params = QueryParams::read(&uri, &["source", "uid", "cursor", "poison"])?;
    let visible = ViewerVisibility::new(&app, &viewer);
    let query = GapQuery {
        source: params.owned_text("source"),
        uid: params.owned_text("uid"),
        cursor: params.parse_cursor("cursor")?,
        ..GapQuery::default()
    };
    let status = visible.recent_status().await?;
    let (mut sources, restricted) = (status.sources, status.restricted);
    let mut gaps = visible.visible_gaps(query.clone(), ROWS).await?;
    // The next list takes a turn of its own, and may not wait for this one.
    gaps.turn = None;
    let poison =
        PoisonQuery { source: query.source.clone(), cursor: params.parse_cursor("poison")?, limit: None };
    // Bytes that are not an object belong to no object.
    let poison = match query.uid.is_some() || restricted {
        true => VisiblePart::default(),
        false => visible.visible_poison(poison, ROWS).await?,
    };
    let (none_at_all, is_first) = (sources.is_empty(), query.cursor.is_none());
    sources.retain(|source| query.source.as_ref().is_none_or(|name| *name == source.name));
    let mut hidden = Vec::new();
    for source in &sources {
        if !visible.sees_source(AccessVerb::List, &source.name).await? {
            hidden.push(source);
        }
    }
    let unseen = |count: fn(&SourceView) -> u64| hidden.iter().map(|source| count(source)).sum::<u64>();
    let (unseen_gaps, unseen_poison) = (unseen(|source| source.gaps), unseen(|source| source.poison));
    let content = html! {
        div.head { h1 { "Gaps" } (render_narrowed(&query)) }
        p.lead {
            "This page lists the parts of the history that are known to be missing. "
            "Versions strictly between the two bounds of a gap were not witnessed. Its reason says why they can't be read any more."
        }
        @if none_at_all && gaps.rows.is_empty() {
            (render_empty("Nothing is watched yet", &html! { "No source is configured, so nothing can be missing either. The host's settings name what is watched." }))
        } @else {
            section aria-labelledby="holes" {
                h2 #holes { "Missing versions" }
                @if is_first && gaps.rows.is_empty() && (restricted || unseen_gaps > 0) { (none_to_see(&query, unseen_gaps)) }
                @else { (render_gaps(&gaps.rows, &query, &sources)) }
                (pages_of(&params, "cursor", gaps.next, "Pages of gaps", "holes"))
            }
            @if restricted { section { (super::parts::render_restricted("The list of poison messages and audit findings")) } }
            @else if query.uid.is_none() {
                section aria-labelledby="poison" {
                    h2 #poison { "Poison" }
                    (render_poison(&poison.rows, params.text("poison").is_none(), unseen_poison))
                    (pages_of(&params, "poison", poison.next, "Pages of poison messages", "poison"))
                }
                section aria-labelledby="histories" { h2 #histories { "Replaced histories" } (render_histories(&sources)) }
                section aria-labelledby="audits" { h2 #audits { "Audits" } (render_audits(&sources)) }
            }
        }
    };
    Ok(PageContent::new("Gaps", "/gaps", content).with_live_figures())
}

fn render_narrowed(query: &GapQuery) -> Markup {
    html! {
        @if let Some(name) = &query.source { p { "of the source " b { (name) } " · " a href="/gaps" { "Show all" } } }
        @if let Some(uid) = &query.uid {
            p { "of " a href={ "/objects/" (encode(uid)) } { "one object" } " · " a href="/gaps" { "Show all" } }
        }
    }
}

// ---- missing versions --------------------------------------------------------------------

/// Their number for one object is unknown.
fn none_to_see(query: &GapQuery, unseen: u64) -> Markup {
    let title = match unseen {
        1.. if query.uid.is_none() => {
            format!("{} {} that you may not see", grouped_figure(unseen), plural_word(unseen, "gap", "gaps"))
        }
        _ => "No gaps that you may see".into(),
    };
    render_empty(
        &title,
        &html! { "Gaps of objects are for people who may list these. A gap of a whole source is for people who may list its objects in the whole cluster." },
    )
}

fn render_gaps(gaps: &[Gap], query: &GapQuery, sources: &[SourceView]) -> Markup {
    if !gaps.is_empty() {
        return render_table(gaps);
    }
    let is_blind = |source: &&SourceView| !source.synced || source.condition.is_some() || source.walking > 0;
    let blind: Vec<_> = sources.iter().filter(is_blind).map(|source| source.name.as_str()).collect();
    if let Some(name) = query.source.as_ref().filter(|_| sources.is_empty()) {
        return render_empty(
            "No such source",
            &html! { "No source is called " b { (name) } ", and no gap of one that was is kept. " a href="/gaps" { "Show all gaps" } "." },
        );
    }
    if query.cursor.is_some() {
        return render_empty(
            "No more gaps",
            &html! { "This page of the list has none. " a href="/gaps" { "Show the newest" } "." },
        );
    }
    if query.uid.is_some() {
        return render_empty(
            "Nothing matches",
            &html! { "No version of what was asked for is known to be missing. " a href="/gaps" { "Show all gaps" } "." },
        );
    }
    if !blind.is_empty() {
        return render_empty(
            "No gaps so far",
            &html! { "Some sources are not up to date: the page " a href="/sources" { "Sources" } " tells what holds up " b { (blind.join(", ")) } "." },
        );
    }
    render_empty(
        "No gaps",
        &html! { "No version since the first list is known to be missing. A missing version would be listed here as a gap, with its exact bounds." },
    )
}

fn render_table(gaps: &[Gap]) -> Markup {
    let count = gaps.len() as u64;
    html! {
        div.scroll tabindex="0" role="group" aria-label="Gaps" { table.dense.folds {
            caption { (grouped_figure(count)) " " (plural_word(count, "gap", "gaps")) ", newest first" }
            thead { tr {
                th scope="col" { "Source" } th scope="col" { "Scope" } th.num scope="col" { "After version" }
                th.num scope="col" { "Before version" } th.num scope="col" { "Epoch" } th.wide scope="col" { "Reason" }
                th scope="col" { "Recorded" }
            } }
            tbody { @for gap in gaps { tr data-key=(gap_key(gap)) {
                td.keep data-label="Source" { a href={ "/gaps?source=" (encode(&gap.source)) } { (gap.source) } }
                td.object data-label="Scope" { @match &gap.object { Some(object) => (object_link(object)), None => { "the whole source" } } }
                td.num data-label="After version" { (bound_or_open(&gap.after)) }
                td.num data-label="Before version" { (bound_or_open(&gap.before)) }
                td.num data-label="Epoch" { (gap.epoch) }
                td.wide.whole data-label="Reason" { span.reason { (gap.reason) } " " span.message { (gap.message) } }
                td.when data-label="Recorded" { (render_time(gap.recorded_ms)) }
            } } }
        } }
    }
}

/// Identifies a row by what it shows. The number of the gap in the journal would tell how many others were
/// recorded.
fn gap_key(Gap { source, object, epoch, after, before, recorded_ms, .. }: &Gap) -> String {
    let uid = object.as_ref().map_or("", |object| &object.uid);
    format!("gap-{source}-{epoch}-{uid}-{after}-{before}-{recorded_ms}")
}

/// An empty bound is unknown: before the first list, or until now.
pub(super) fn bound_or_open(version: &str) -> &str {
    if version.is_empty() { "open" } else { version }
}

// ---- poison ------------------------------------------------------------------------------

fn render_poison(poison: &[PoisonView], is_first: bool, unseen: u64) -> Markup {
    if poison.is_empty() && is_first && unseen > 0 {
        return html! { p.note {
            (grouped_figure(unseen)) " that you may not see: poison is for people who may list the objects of its source in the whole cluster."
        } };
    }
    if poison.is_empty() && !is_first {
        return html! { p.note { "This page of the list has none." } };
    }
    if poison.is_empty() {
        return html! { p.note { "None: every event was an object of its source's kind." } };
    }
    let count = poison.len() as u64;
    html! {
        div.scroll tabindex="0" role="group" aria-label="Poison" { table.dense.folds {
            caption { (grouped_figure(count)) " " (plural_word(count, "frame that was no object of its kind", "frames that were no objects of their kind")) ", newest first, kept as they came" }
            thead { tr {
                th.num scope="col" { "Number" } th scope="col" { "Source" } th.num scope="col" { "Epoch" }
                th.wide scope="col" { "Error" } th.wide scope="col" { "It begins" } th.num scope="col" { "Bytes" }
                th scope="col" { "Observed" } th scope="col" { "Raw" }
            } }
            tbody { @for view in poison { tr data-key={ "poison-" (view.number) } {
                td.num data-label="Number" { (view.number) }
                td.keep data-label="Source" { (view.source) }
                td.num data-label="Epoch" { (view.epoch) }
                td.wide.whole data-label="Error" { (view.error) }
                td.wide data-label="It begins" { code title=(view.excerpt) { (visible_characters(&view.excerpt)) } }
                td.num data-label="Bytes" { (grouped_figure(view.bytes)) }
                td.when data-label="Observed" { (render_time(view.observed_ms)) }
                td.keep data-label="Raw" {
                    a href={ "/api/v1/poison/" (view.number) "/raw" } download={ "poison-" (view.number) ".txt" }
                        aria-label={ "Download poison " (view.number) " as it came" } { "download" }
                }
            } } }
        } }
    }
}

/// Control characters are invisible, and some change the direction of writing.
fn visible_characters(text: &str) -> String {
    let unseen = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|c| if unseen(c) { '·' } else { c }).collect()
}

// ---- histories and audits ----------------------------------------------------------------

fn render_histories(sources: &[SourceView]) -> Markup {
    let replaced: Vec<_> = sources.iter().filter(|source| source.epoch > 0).collect();
    if replaced.is_empty() {
        return html! { p.note { "None: each API server still has the history that it had at first." } };
    }
    html! {
        div.scroll tabindex="0" role="group" aria-label="Epochs" { table.dense.folds {
            caption { "Each restore from a backup begins an epoch; versions are compared within one" }
            thead { tr {
                th scope="col" { "Source" } th.num scope="col" { "Epoch" } th scope="col" { "Began" }
                th.num scope="col" { "States" } th.num scope="col" { "Watched up to" } th scope="col" { "Last event" }
            } }
            tbody { @for source in replaced { @for epoch in &source.epochs { tr data-key={ "epoch-" (source.name) "-" (epoch.epoch) } {
                td.keep data-label="Source" { (source.name) }
                td.num data-label="Epoch" { (epoch.epoch) }
                td.when data-label="Began" { @match &epoch.replaced_at { Some(text) => (at_text(text)), None => { "with the journal" } } }
                td.num data-label="States" { (grouped_figure(epoch.states)) }
                td.num data-label="Watched up to" { (bound_or_open(&epoch.checkpoint)) }
                td.when data-label="Last event" { @match &epoch.last_event_at { Some(text) => (at_text(text)), None => { "none yet" } } }
            } } } }
        } }
    }
}

fn render_audits(sources: &[SourceView]) -> Markup {
    if sources.is_empty() {
        return html! { p.note { "There is no source to be audited." } };
    }
    html! {
        div.scroll tabindex="0" role="group" aria-label="Audits" { table.dense.folds {
            caption { "An audit compares a full list with what was witnessed. Audits are counted since the start of the process." }
            thead { tr {
                th scope="col" { "Source" } th scope="col" { "Last audit" } th.num scope="col" { "Audits" }
                th.num scope="col" { "Objects that differed" }
            } }
            tbody { @for source in sources { tr data-key={ "audit-" (source.name) } {
                td.keep data-label="Source" { (source.name) }
                td.when data-label="Last audit" { @match &source.last_audit_at { Some(text) => (at_text(text)), None => { "none yet" } } }
                td.num data-label="Audits" { (grouped_figure(source.counts.lists_audit)) }
                td.num data-label="Objects that differed" { (grouped_figure(source.differed)) }
            } } }
        } }
        @if sources.iter().any(|source| !source.discrepancies.is_empty()) { (render_differences(sources)) }
    }
}

fn render_differences(sources: &[SourceView]) -> Markup {
    html! {
        div.scroll tabindex="0" role="group" aria-label="Discrepancies" { table.dense.folds {
            caption { "Objects that differed, newest first for each source. Missed versions were then read back" }
            thead { tr {
                th scope="col" { "Source" } th scope="col" { "Object" } th.num scope="col" { "Witnessed" }
                th.num scope="col" { "Listed" } th scope="col" { "Found" }
            } }
            tbody { @for source in sources { @for found in &source.discrepancies { tr data-key={ "difference-" (source.name) "-" (found.object.uid) "-" (found.found_ms) } {
                td.keep data-label="Source" { (source.name) }
                td.object data-label="Object" { (object_link(&found.object)) }
                td.num data-label="Witnessed" { @if found.witnessed.is_empty() { "not at all" } @else { (found.witnessed) } }
                td.num data-label="Listed" { @if found.listed.is_empty() { "no longer" } @else { (found.listed) } }
                td.when data-label="Found" { (render_time(found.found_ms)) }
            } } } }
        } }
    }
}
