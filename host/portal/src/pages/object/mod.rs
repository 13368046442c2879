//! One object's story: in a sentence, its phases and those of its owned objects as lanes, and each state as a
//! row.
//!
//! A person asks first why an object failed, then when, and only then for details. So the page has them in
//! this order, and folds versions without news. The picture has a table with the same content, for people who
//! can't see it. The page shows no whole document. Its form mutes, and nothing else here has an effect.

mod event;
mod events;
mod evidence;
mod lanes;
mod moment;
pub(super) mod mutes;
mod not_witnessed;
mod older;
mod reports;
mod states;
mod unchanged;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::Uri;
use axum::response::{IntoResponse, Redirect, Response};
use kubewitness_core::clock::{Clock, SystemClock};
use kubewitness_core::search::DocumentFacts;
use kubewitness_core::views::{DeliveryMap, TimelineQuery, TimelineView};
use kubewitness_core::{Change, Gap, ObjectRef, Seq, State as Witnessed, story};
use maud::{Markup, html};

use self::event::EventVersions;
use self::lanes::TimelineLane;
use self::not_witnessed::SUBMITTED;
use self::states::StateTable;
use self::unchanged::QuietStates;
use super::parts::{
    encode, grouped_figure, object_link, render_phase_badge, render_status_reason, render_time,
};
use crate::access::PortalViewer;
use crate::answer::ProblemPage;
use crate::answer::frame::{NewsFilter, PageContent};
use crate::answer::params::QueryParams;
use crate::answer::time;
use crate::api::MOST_ROWS;
use crate::app::PortalApp;
use crate::scope::{JournalCursor, ViewerVisibility};

/// The most states on one page, of one object and of all that it owns: those of a long-lived job with its
/// pods.
const STATES: usize = 2000;
/// How many gaps one page shows with their bounds and reasons; each is read separately.
const GAPS: usize = 200;
/// The page refreshes after this many seconds, even without a new state.
const REFRESH_SECONDS: u32 = 10;
/// The same while it goes on and its durations are in seconds: those of a state that is younger than this.
const REFRESH_SECONDS_OF_YOUNG: u32 = 1;
const YOUNG_MS: u64 = 60_000;

/// The query of an object's page.
#[derive(Clone, Copy)]
struct ObjectQuery<'a> {
    uid: &'a str,
    limit: usize,
    /// Whether versions without news are shown as well.
    all: bool,
    /// The position in the address.
    chosen: Option<Seq>,
}

impl ObjectQuery<'_> {
    /// The page of the object, with every version or with some folded.
    fn page_address(&self, all: bool) -> String {
        let limit = (self.limit != STATES).then(|| format!("limit={}", self.limit));
        let query: Vec<_> = limit.into_iter().chain(all.then(|| "all=true".to_owned())).collect();
        let mark = if query.is_empty() { "" } else { "?" };
        format!("/objects/{}{mark}{}", encode(self.uid), query.join("&"))
    }
}

/// The gaps of a story, by their positions.
type StoryGaps = BTreeMap<Seq, Gap>;

/// Notes about a page's rows that the states do not contain.
struct RowNotes {
    holes: StoryGaps,
    quiet: QuietStates,
    /// The versions of an Event, which have no phase.
    versions: Option<EventVersions>,
}

impl RowNotes {
    async fn read(
        app: &PortalApp,
        visible: &ViewerVisibility,
        view: &TimelineView,
        all: bool,
    ) -> Result<Self, ProblemPage> {
        Ok(Self {
            holes: gaps_of_story(app, view.states.iter().chain(&view.related)).await?,
            quiet: unchanged::find_quiet_states(app, view, all).await,
            versions: event::event_versions(visible, &view.states).await?,
        })
    }
}

pub(super) async fn page(
    State(app): State<PortalApp>,
    viewer: PortalViewer,
    Path(uid): Path<String>,
    uri: Uri,
) -> Result<Response, ProblemPage> {
    let params = QueryParams::read(&uri, &["limit", "at", "state", "all", "cursor", SUBMITTED])?;
    let (all, chosen, submitted) =
        (params.is_true("all")?, params.optional_number("state")?, params.optional_number(SUBMITTED)?);
    let limit = params.row_limit(STATES, MOST_ROWS)?;
    let asked = ObjectQuery { uid: &uid, limit, all, chosen };
    if let Some(cursor) = params.parse_cursor("cursor")? {
        return older::page(&app, &viewer, asked, cursor).await;
    }
    let after = JournalCursor::at_newest(&*app.views).await?.to_string();
    let query = TimelineQuery {
        uid: Some(uid.clone()),
        limit: Some(limit),
        events: true,
        ..TimelineQuery::default()
    };
    let visible = ViewerVisibility::new(&app, &viewer);
    let (view, turn) = visible.story_in_turn(&query).await?;
    let (Some(first), Some(last)) = (view.states.first(), view.states.last()) else {
        return not_witnessed::page(&uid, submitted).map_err(ProblemPage);
    };
    if let Some(seq) = chosen.filter(|seq| view.cut && *seq < first.seq) {
        // The older part takes a turn of its own.
        drop(turn);
        return older::page(&app, &viewer, asked, older::cursor_with(seq)).await;
    }
    if submitted.is_some() {
        return Ok(Redirect::to(&format!("/objects/{}", encode(&uid))).into_response());
    }
    let object = &last.object;
    let missing = view.states.iter().filter(|state| state.change == Change::Gap).count();
    let shown = lanes_of(&view.states, &view.related);
    let name = format!("{}/{}", object.kind, object.name);
    let notes = RowNotes::read(&app, &visible, &view, all).await?;
    let table =
        StateTable { caption: &name, named: false, asked, other: &asked.page_address(!all), notes: &notes };
    let moment = moment::render_moment_field(&view.states, params.text("at"), &uid)?;
    let news = NewsFilter {
        after,
        uid: Some(uid.clone()),
        owner: last.owner.as_ref().map(|owner| owner.uid.clone()),
        refresh_seconds: Some(refresh_seconds(&view, SystemClock::default().now_ms())),
        ..NewsFilter::default()
    };
    if let Some(versions) = &notes.versions {
        let content = html! {
            (render_crumbs(object))
            div.head { h1 { (object.name) } (event::render_event_type(versions)) (render_if_gone(last)) }
            (event::event_text(versions)) (moment) (render_cut_link(&view, asked))
            (event::render_event_facts(&view, versions)) (render_commands(last)) (render_tables(&view, table))
        };
        return Ok(PageContent::new(name.clone(), "/", content).with_live_news(news).into_response());
    }
    let deliveries = match visible.is_operators().await? {
        true => app.views.delivery_stages(&view.states).await?,
        false => DeliveryMap::new(),
    };
    let told = newest_document(&visible, last, &view.states).await;
    let why = view.why.as_ref().filter(|why| !why.sentence.is_empty());
    let content = html! {
        (render_crumbs(object))
        div.head { h1 { (object.name) } (render_how_it_ended(last)) }
        @if let Some(why) = why { p.story #why { (evidence::render_sentence(why)) } }
        p.lead { (render_status_reason(&story::last_work_status(last))) }
        (moment) (render_cut_link(&view, asked))
        (render_facts(first, last, view.states.len(), missing, &told, view.next.is_some_and(|next| next.states > 0)))
        (render_commands(last))
        section aria-labelledby="lanes" {
            h2 #lanes { "Phases over time" @if !deliveries.is_empty() { ", and which plugin is done with each state" } }
            (lanes::render_timeline(&shown, &deliveries, &notes.holes, Some(SystemClock::default().now_ms())))
        }
        @if !view.events.is_empty() {
            section aria-labelledby="events" {
                h2 #events { "Events" }
                (events::render_events(&view.events))
            }
        }
        @if !view.reports.is_empty() {
            section aria-labelledby="told" {
                h2 #told { "Who was told" }
                (reports::render_reports(&view.reports))
            }
        }
        (mutes::of_object(&app, &viewer, object, &view.reports).await?)
        (render_tables(&view, table))
    };
    Ok(PageContent::new(name.clone(), "/", content).with_live_news(news).into_response())
}

/// Reports of plugins arrive without a state, and durations grow without one.
fn refresh_seconds(view: &TimelineView, now_ms: u64) -> u32 {
    let goes_on = view.states.last().is_some_and(|last| last.change != Change::Gone && !last.status.terminal);
    let mut states = view.states.iter().chain(&view.related);
    match goes_on && states.any(|state| state.observed_ms.saturating_add(YOUNG_MS) > now_ms) {
        true => REFRESH_SECONDS_OF_YOUNG,
        false => REFRESH_SECONDS,
    }
}

/// Links to the lists that contain it.
fn render_crumbs(object: &ObjectRef) -> Markup {
    let ObjectRef { kind, namespace, .. } = object;
    html! {
        p.crumbs {
            a href={ "/?kind=" (kind) } { (kind) }
            @if !namespace.is_empty() { " in " a href={ "/?kind=" (kind) "&namespace=" (namespace) } { (namespace) } }
        }
    }
}

/// The link to the older states, which this page omits.
fn render_cut_link(view: &TimelineView, asked: ObjectQuery<'_>) -> Markup {
    let has_older = view.next.is_some_and(|next| next.states > 0 || next.related < Seq::MAX);
    let link = if has_older { "Show older states" } else { "Show what else it owns" };
    html! {
        @if view.cut || view.owns_more {
            p.notice role="status" {
                @if has_older {
                    "This page has the newest " (grouped_figure(asked.limit as u64)) " states of the object, and as many of what it owns. "
                }
                (owns_more(view))
                @if let Some(next) = view.next { a rel="next" href=(older::part_address(asked, next)) { (link) } }
            }
        }
    }
}

/// Says that it owns more objects than the page shows, and where the others are.
fn owns_more(view: &TimelineView) -> Markup {
    html! {
        @if view.owns_more {
            "This page shows the newest of the objects that it owns. "
            @if view.next.is_some() { "The next pages show the others. " }
            @else { "Open one of them to see what it owns. " }
        }
    }
}

/// Each state as a row, for the object and for the objects that it owns.
fn render_tables(view: &TimelineView, table: StateTable<'_>) -> Markup {
    let owned = StateTable { caption: "Objects that it owns", named: true, ..table };
    html! {
        @if !view.states.is_empty() {
            section aria-labelledby="states" {
                h2 #states { "Every state" }
                (table.render_with_choice(&view.states))
            }
        }
        @if !view.related.is_empty() {
            section aria-labelledby="related" {
                h2 #related { "What it owns" }
                (owned.render_states(&view.related))
            }
        }
    }
}

/// The bounds and reason of each gap in the story, from its document.
async fn gaps_of_story(
    app: &PortalApp,
    states: impl Iterator<Item = &Arc<Witnessed>>,
) -> Result<StoryGaps, ProblemPage> {
    let mut holes = StoryGaps::new();
    for state in states.filter(|state| state.change == Change::Gap).take(GAPS) {
        let document = app.views.document_at(state.seq).await?;
        if let Ok(gap) = serde_json::from_slice::<Gap>(&document) {
            holes.insert(state.seq, gap);
        }
    }
    Ok(holes)
}

/// The object's own lane, then one for each object that it owns, in order of appearance.
fn lanes_of(states: &[Arc<Witnessed>], related: &[Arc<Witnessed>]) -> Vec<TimelineLane> {
    let mut lanes: Vec<(String, TimelineLane)> = Vec::new();
    for state in states.iter().chain(related) {
        let index = lanes.iter().position(|(uid, _)| *uid == state.object.uid).unwrap_or_else(|| {
            let label = format!("{}/{}", state.object.kind, state.object.name);
            lanes.push((state.object.uid.clone(), TimelineLane { label, states: Vec::new() }));
            lanes.len() - 1
        });
        lanes[index].1.states.push(state.clone());
    }
    lanes.into_iter().map(|(_, lane)| lane).collect()
}

/// For a deleted object, how it ended, and that it is gone.
fn render_how_it_ended(last: &Witnessed) -> Markup {
    let before = last.previous.as_ref().filter(|_| last.change == Change::Gone);
    let phase = before.map_or(&last.status.phase, |before| &before.phase);
    html! { (render_phase_badge(phase)) (render_if_gone(last)) }
}

/// Whether it is gone, or left the selector.
fn render_if_gone(last: &Witnessed) -> Markup {
    html! { @if last.change != Change::Present { " " span.mark { (last.change.as_str()) } } }
}

/// The facts about the object in the newest document, if it can be read.
#[derive(Default)]
struct NewestDocument {
    submitter: Option<String>,
}

async fn newest_document(
    visible: &ViewerVisibility,
    last: &Witnessed,
    states: &[Arc<Witnessed>],
) -> NewestDocument {
    // The document of a deletion that a relist found is empty, and that of a gap is not the object's.
    let seq =
        states.iter().rfind(|state| state.change == Change::Present).map_or(last.seq, |state| state.seq);
    // A page without a document is better than no page: the table shows the object's state.
    let Ok(document) = visible.visible_document(seq).await else { return NewestDocument::default() };
    NewestDocument { submitter: DocumentFacts::read(&document).submitter }
}

/// The same queries on the command line.
fn render_commands(last: &Witnessed) -> Markup {
    let object = &last.object;
    let kind = object.kind.to_lowercase();
    let group = if object.group.is_empty() { String::new() } else { format!(".{}", object.group) };
    let place = if object.namespace.is_empty() { String::new() } else { format!(" -n {}", object.namespace) };
    let (name, uid) = (&object.name, &object.uid);
    // A name that a shell would interpret is not offered for copying.
    let is_plain =
        |text: &str| text.chars().all(|one| one.is_ascii_alphanumeric() || matches!(one, '.' | '-'));
    if ![&kind, &object.group, &object.namespace, name, uid].into_iter().all(|text| is_plain(text)) {
        return html! {};
    }
    // Only the journal has an object that is gone.
    let get = format!("kubewitness get {kind}/{name}{place} -o yaml");
    let lines = match last.change {
        Change::Gone => vec![format!("{get} --gone")],
        _ => vec![format!("kubectl get {kind}{group} {name}{place} -o yaml"), get],
    };
    html! {
        details.commands {
            summary { "On the command line" }
            @for line in lines.into_iter().chain([format!("kubewitness timeline {uid}")]) {
                p { code { (line) } " " button type="button" data-copy=(line) hidden { "Copy" } }
            }
        }
    }
}

fn render_facts(
    first: &Witnessed,
    last: &Witnessed,
    count: usize,
    missing: usize,
    told: &NewestDocument,
    cut: bool,
) -> Markup {
    let status = &last.status;
    let lasted = last.observed_ms.saturating_sub(first.observed_ms);
    html! {
        dl.facts {
            @if status.total > 0 { div { dt { "Ready" } dd { (status.ready) " of " (status.total) } } }
            @if status.attempt > 0 { div { dt { "Attempt" } dd { (status.attempt) } } }
            @if let Some(code) = status.exit_code { div { dt { "Exit code" } dd { (code) } } }
            @if let Some(owner) = &last.owner { div { dt { "Owner" } dd { (object_link(owner)) } } }
            @if let Some(name) = &told.submitter { div { dt { "Submitter" } dd { (name) } } }
            div { dt { "First seen" } dd { @if cut { "before " } (render_time(first.observed_ms)) } }
            div { dt { "Last change" } dd { (render_time(last.observed_ms)) } }
            div { dt { "Between" } dd { @if cut { "more than " } (time::duration_text(lasted)) } }
            div { dt { "States" } dd { @if cut { "more than " } (grouped_figure(count as u64)) } }
            @if missing > 0 {
                div { dt { "Gaps" } dd { a href={ "/gaps?uid=" (encode(&last.object.uid)) } { (grouped_figure(missing as u64)) } } }
            }
            div { dt { "Source" } dd { (last.source) } }
            div { dt { "UID" } dd { code { (last.object.uid) } } }
        }
    }
}
