//! One object's story: its phases and those of what it owns as lanes, and each state as a row.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::{StatusCode, Uri};
use kubewitness_core::views::TimelineQuery;
use kubewitness_core::{Change, Gap, Seq, State as Witnessed};
use maud::{Markup, html};

use super::gaps::bound;
use super::lanes::{self, Lane};
use super::{at, badge, encode, figure, object_link, plural, why};
use crate::access::Viewer;
use crate::answer::frame::Page;
use crate::answer::params::Params;
use crate::answer::time;
use crate::answer::{Problem, Shown};
use crate::api::MOST_ROWS;
use crate::app::App;
use crate::scope::Sight;

/// States of one object, and of all that it owns, on one page: a long-lived job with its pods.
const STATES: usize = 2000;
/// Gaps of one page that are told with their bounds and reasons; each is read on its own.
const GAPS: usize = 200;

/// What is known of the gaps of a story, by their positions.
pub(super) type Holes = BTreeMap<Seq, Gap>;

pub(super) async fn page(
    State(app): State<App>,
    viewer: Viewer,
    Path(uid): Path<String>,
    uri: Uri,
) -> Result<Page, Shown> {
    let params = Params::read(&uri, &["limit"])?;
    let limit = params.limit(STATES, MOST_ROWS)?;
    let after = *app.views.newest().borrow();
    let query = TimelineQuery { uid: Some(uid.clone()), limit: Some(limit), ..TimelineQuery::default() };
    let whole = app.views.timeline(&query).await?;
    let view = Sight::new(&app, &viewer).of_story(whole).await?;
    let (Some(first), Some(last)) = (view.states.first(), view.states.last()) else {
        return Err(Shown(Problem::new(
            StatusCode::NOT_FOUND,
            format!("Nothing was witnessed of an object with the uid {uid}."),
            "Objects keep their page after their deletion, as long as the journal keeps their states.",
        )));
    };
    let object = &last.object;
    let holes = holes(&app, view.states.iter().chain(&view.related)).await?;
    let missing = view.states.iter().filter(|state| state.change == Change::Gap).count();
    let shown = story(&view.states, &view.related);
    let content = html! {
        p.crumbs {
            a href={ "/?kind=" (object.kind) } { (object.kind) }
            @if !object.namespace.is_empty() { " in " a href={ "/?kind=" (object.kind) "&namespace=" (object.namespace) } { (object.namespace) } }
        }
        div.head { h1 { (object.name) } (badge(&last.status.phase)) }
        p.lead { (why(&last.status)) }
        div.over { a #newer.fresh data-after=(after) data-uid=(uid) href="" hidden {} }
        (facts(first, last, view.states.len(), missing))
        section aria-labelledby="lanes" {
            h2 #lanes { "Phases over time" }
            (lanes::svg(&shown, &holes))
        }
        section aria-labelledby="states" {
            h2 #states { "Every state" }
            (states(&view.states, &format!("{}/{}", object.kind, object.name), false, &holes))
        }
        @if !view.related.is_empty() {
            section aria-labelledby="related" {
                h2 #related { "What it owns" }
                (states(&view.related, "Objects that it owns", true, &holes))
            }
        }
    };
    Ok(Page::new(format!("{}/{}", object.kind, object.name), "/", content))
}

/// What each gap of the story says of itself: that is its document.
async fn holes(app: &App, states: impl Iterator<Item = &Arc<Witnessed>>) -> Result<Holes, Shown> {
    let mut holes = Holes::new();
    for state in states.filter(|state| state.change == Change::Gap).take(GAPS) {
        let document = app.views.document(state.seq).await?;
        if let Ok(gap) = serde_json::from_slice::<Gap>(&document) {
            holes.insert(state.seq, gap);
        }
    }
    Ok(holes)
}

/// The object's own lane, then one for each object that it owns, in order of appearance.
fn story(states: &[Arc<Witnessed>], related: &[Arc<Witnessed>]) -> Vec<Lane> {
    let mut lanes: Vec<(String, Lane)> = Vec::new();
    for state in states.iter().chain(related) {
        let index = lanes.iter().position(|(uid, _)| *uid == state.object.uid).unwrap_or_else(|| {
            let label = format!("{}/{}", state.object.kind, state.object.name);
            lanes.push((state.object.uid.clone(), Lane { label, states: Vec::new() }));
            lanes.len() - 1
        });
        lanes[index].1.states.push(state.clone());
    }
    lanes.into_iter().map(|(_, lane)| lane).collect()
}

fn facts(first: &Witnessed, last: &Witnessed, count: usize, missing: usize) -> Markup {
    let status = &last.status;
    let lasted = last.observed_ms.saturating_sub(first.observed_ms);
    html! {
        dl.facts {
            @if status.total > 0 { div { dt { "Ready" } dd { (status.ready) " of " (status.total) } } }
            @if status.attempt > 0 { div { dt { "Attempt" } dd { (status.attempt) } } }
            @if let Some(code) = status.exit_code { div { dt { "Exit code" } dd { (code) } } }
            @if let Some(owner) = &last.owner { div { dt { "Owner" } dd { (object_link(owner)) } } }
            div { dt { "First seen" } dd { (at(first.observed_ms)) } }
            div { dt { "Last change" } dd { (at(last.observed_ms)) } }
            div { dt { "Between" } dd { (time::span(lasted)) } }
            div { dt { "States" } dd { (figure(count as u64)) } }
            @if missing > 0 {
                div { dt { "Gaps" } dd { a href={ "/gaps?uid=" (encode(&last.object.uid)) } { (figure(missing as u64)) } } }
            }
            div { dt { "Source" } dd { (last.source) } }
            div { dt { "UID" } dd { code { (last.object.uid) } } }
        }
    }
}

fn states(states: &[Arc<Witnessed>], caption: &str, named: bool, holes: &Holes) -> Markup {
    let count = states.len() as u64;
    html! {
        div.scroll {
            table.dense {
                caption { (caption) ": " (figure(count)) " " (plural(count, "state", "states")) ", oldest first" }
                thead { tr {
                    th.num scope="col" { "Position" }
                    th scope="col" { "Observed" }
                    @if named { th scope="col" { "Object" } }
                    th scope="col" { "Phase" }
                    th.num scope="col" { "Ready" }
                    th.num scope="col" { "Attempt" }
                    th.wide scope="col" { "Reason" }
                    th.num scope="col" { "Version" }
                    th scope="col" { "Document" }
                } }
                tbody {
                    @for (index, state) in states.iter().enumerate() {
                        @let before = states[..index].iter().rev().find(|other| other.object.uid == state.object.uid);
                        (state_row(state, before.map(|state| &**state), named, holes.get(&state.seq)))
                    }
                }
            }
        }
    }
}

fn state_row(state: &Witnessed, before: Option<&Witnessed>, named: bool, hole: Option<&Gap>) -> Markup {
    let status = &state.status;
    let same =
        before.is_some_and(|before| before.status.phase == status.phase) && state.change == Change::Present;
    html! {
        tr.gap[state.change == Change::Gap] {
            td.num { (state.seq) }
            td.when { (at(state.observed_ms)) }
            @if named { td.object { (object_link(&state.object)) } }
            td.keep {
                span.same[same] { (badge(&status.phase)) }
                @match state.change {
                    Change::Present => {}
                    change => { " " span.mark { (change.as_str()) } }
                }
                @if state.late { " " span.mark title="It arrived after a newer version." { "late" } }
            }
            td.num { @if status.total > 0 { (status.ready) "/" (status.total) } }
            td.num { @if status.attempt > 0 { (status.attempt) } }
            @match hole {
                Some(gap) => {
                    td.wide.whole { span.reason { (gap.reason) } " " span.message { (gap.message) } }
                    td.num { span.unseen { "between " } (bound(&gap.after)) span aria-hidden="true" { " … " } span.unseen { " and " } (bound(&gap.before)) }
                }
                None => {
                    td.wide { (why(status)) }
                    td.num { (state.resource_version) }
                }
            }
            td.keep {
                a href={ "/states/" (state.seq) } { "show" }
                @if let Some(before) = before { " · " a href={ "/states/" (state.seq) "?from=" (before.seq) } { "changes" } }
            }
        }
    }
}
