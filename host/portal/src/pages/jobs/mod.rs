//! Jobs, or any other kind: present objects with live updates, ended ones, and those of a past moment. The
//! page shows no document. Its form submits a Job, and nothing else here has an effect.

mod form;
mod query;
pub(super) mod submitting;
mod table;

use std::collections::BTreeSet;

use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use kubewitness_core::clock::{Clock, SystemClock};
use kubewitness_core::kinds;
use kubewitness_core::ports::WatchedResource;
use kubewitness_core::views::{ForeignFilter, GoneFilter, ObjectCounts, ObjectQuery};
use maud::{Markup, html};

use self::form::{counts_bar, past_chip, render_filters};
use self::query::JobsQuery;
use self::table::JobList;
use super::parts::{encode, render_empty};
use super::plugins::{render_holds, render_notices};
use crate::access::PortalViewer;
use crate::answer::frame::{NewsFilter, PageContent};
use crate::answer::{Problem, ProblemPage, time};
use crate::app::PortalApp;
use crate::scope::{self, AccessVerb, JournalCursor, ViewerVisibility};

pub(super) async fn page(
    State(app): State<PortalApp>,
    viewer: PortalViewer,
    uri: Uri,
) -> Result<Response, ProblemPage> {
    let asked = JobsQuery::read(&uri)?;
    // Read before the objects: changes in between are repeated, and recognized by their position.
    let after = JournalCursor::at_newest(&*app.views).await?.to_string();
    let visible = ViewerVisibility::new(&app, &viewer);
    let now_ms = SystemClock::default().now_ms();
    let mut query = asked.object_query(now_ms);
    if let Err(refused) = scope::check_filters(&app, &query) {
        return Ok(refuse_filter(&asked, &refused).into_response());
    }
    query.within = match visible.visible_objects(&query).await {
        Err(problem) if problem.status == StatusCode::FORBIDDEN => {
            return Ok(ask_for_namespace(&asked, &problem).into_response());
        }
        within => within?,
    };
    let page = visible.object_page(query.clone()).await?;
    let counts = count_present(&app, &visible, &query).await?;
    // The cached objects are shown even if the journal can't be read.
    let status = match visible.recent_status().await {
        Err(problem) if page.objects.is_empty() => return Err(problem.into()),
        status => status.unwrap_or_default(),
    };
    let not_ready = visible.not_ready().await?;
    let is_operators = visible.is_operators().await?;
    // The notices have those of the status.
    let now_held = match is_operators && status.held.is_empty() {
        true => app.views.retention_holds(),
        false => Vec::new(),
    };
    let forbidden = match page.objects.is_empty() {
        true => visible.missing_right(AccessVerb::List, &query).await?,
        false => None,
    };
    let any = !page.objects.is_empty() || !counts.phases.is_empty();
    let watched = app.views.watched_resources();
    let kind = page.objects.first().map(|view| view.object.kind.clone());
    let kind = kind.or_else(|| scope::kind_of(&watched, &asked.kind));
    let title = page_title(&asked, kind.as_deref());
    // A search reads documents, so its matches are not counted.
    let is_counted = asked.has_order() && asked.cursor.is_none() && asked.search.is_none() && !counts.more;
    let total = match (asked.gone, asked.phase) {
        _ if asked.cause.is_some() => None,
        _ if asked.was.is_some() => counts.was.filter(|_| asked.phase.is_none() && asked.search.is_none()),
        (GoneFilter::No, None) if is_counted => Some(counts.phases.values().sum()),
        (GoneFilter::No, Some(phase)) if is_counted => {
            Some(counts.phases.get(phase).copied().unwrap_or_default())
        }
        _ => None,
    };
    let list = JobList {
        asked: &asked,
        kind: kind.as_deref(),
        objects: &page.objects,
        next: page.next.as_deref(),
        total,
        now_ms: query.at.as_deref().and_then(kubewitness_core::calendar::parse_rfc3339_ms).unwrap_or(now_ms),
    };
    let content = html! {
        div.head { h1 { (title) @if let Some(at) = &asked.at { " at " (render_moment(at)) } } (render_filters(&asked, &counts.namespaces)) }
        (past_chip(&asked))
        @if is_offered(&app) { p { a.button href="/submit" { "Submit a Job" } } }
        (render_notices(&status, not_ready.as_deref()))
        @for notice in &page.notices { p.notice role="status" { (notice) } }
        @if asked.has_order() && asked.gone != GoneFilter::Only && asked.search.is_none() && !counts.more && !asked.is_of_events() { (counts_bar(&asked, &counts)) }
        (render_holds(&now_held))
        p #summary.quiet-live aria-live="polite" data-own {}
        @if page.objects.is_empty() { (render_nothing(any, &asked, &watched, forbidden.as_deref(), page.next.is_some())) }
        (list.render_list())
    };
    let page = PageContent::new(title, "/", content);
    if let Some(why) = asked.stillness() {
        return Ok(page.with_stillness(why).into_response());
    }
    let news = NewsFilter {
        after,
        kind: Some(list.shown_kind().to_owned()),
        namespace: asked.namespace.clone(),
        shows_causes: asked.shows_causes(),
        ..NewsFilter::default()
    };
    Ok(page.with_live_news(news).into_response())
}

/// Whether people can submit Jobs here.
fn is_offered(app: &PortalApp) -> bool {
    app.submitter.as_ref().is_some_and(|submitter| submitter.template_offer().is_some())
}

fn page_title(asked: &JobsQuery, kind: Option<&str>) -> String {
    match (asked.every_kind(), kind.unwrap_or(&asked.kind)) {
        (true, _) => "Everything".to_owned(),
        (false, kind) if kind.ends_with('s') => kind.to_owned(),
        (false, kind) => kinds::plural_of_kind(kind),
    }
}

/// A typed time, to the second.
fn render_moment(typed: &str) -> Markup {
    let text = time::normalize_typed_time(typed);
    html! {
        @match kubewitness_core::calendar::parse_rfc3339_ms(&text) {
            Some(ms) => time datetime=(time::rfc3339_seconds(ms)) { (time::readable_time(ms)) " UTC" },
            None => (text),
        }
    }
}

/// Counts present objects, whatever phase is selected. The namespaces to choose from are those of all
/// matches.
async fn count_present(
    app: &PortalApp,
    visible: &ViewerVisibility,
    query: &ObjectQuery,
) -> Result<ObjectCounts, Problem> {
    let all = ObjectQuery {
        phase: None,
        search: None,
        limit: None,
        details: false,
        cursor: None,
        sort: None,
        cause: None,
        ..query.clone()
    };
    let mut counts = app.views.object_counts(&all).await?;
    if query.namespace.is_some() {
        let mut everywhere = ObjectQuery { namespace: None, was: None, ..all };
        // A person who may not look everywhere has named one: they have no others to choose from.
        if let Ok(within) = visible.visible_objects(&everywhere).await {
            everywhere.within = within;
            counts.namespaces = app.views.object_counts(&everywhere).await?.namespaces;
        }
    }
    Ok(counts)
}

/// Says what can't be asked of the kind, with the list that can be meant.
fn refuse_filter(asked: &JobsQuery, refused: &ForeignFilter) -> (StatusCode, PageContent) {
    let ForeignFilter { message, parameters, command } = refused;
    let content = html! {
        div.head { h1 { (asked.kind) } (render_filters(asked, &BTreeSet::new())) }
        (render_empty(&message.replace('`', ""), &html! {
            a href={ "/?" (parameters) } { "Show what can be asked for" } ", or "
            a href={ "/?kind=" (encode(&asked.kind)) } { "all of this kind" } ". On the command line: " code { (command) } "."
        }))
    };
    (StatusCode::BAD_REQUEST, PageContent::new(asked.kind.clone(), "/", content))
}

/// For a person who may not see all namespaces, if there are too many: they have to name one.
fn ask_for_namespace(asked: &JobsQuery, problem: &Problem) -> PageContent {
    let content = html! {
        div.head { h1 { (asked.kind) } }
        div.empty {
            h2 { "Which namespace?" }
            p.hint { (problem.message) }
            form.narrow method="get" action="/" {
                input type="hidden" name="kind" value=(asked.kind);
                label { span { "Namespace" } input name="namespace" required autofocus autocomplete="off" spellcheck="false"; }
                button.strong { "Show" }
            }
        }
    };
    PageContent::new(asked.kind.clone(), "/", content)
}

fn render_nothing(
    any: bool,
    asked: &JobsQuery,
    sources: &[WatchedResource],
    forbidden: Option<&str>,
    goes_on: bool,
) -> Markup {
    let watched = asked.every_kind() || scope::kind_of(sources, &asked.kind).is_some();
    if let Some(right) = forbidden {
        let in_one = |name: &String| format!(" in the namespace {name}");
        let place = asked.namespace.as_ref().map_or(" in any namespace that has some now".to_owned(), in_one);
        return render_empty(
            "You may not see that",
            &html! { "You may not " (right) (place) ". So this page can't tell whether there is anything that fits." },
        );
    }
    if goes_on {
        return render_empty(
            "Nothing on this page",
            &html! { "One page searches a part of the journal, and nothing in this part fits. The next page continues." },
        );
    }
    match any || (watched && asked.is_narrowed()) {
        true => render_empty(
            "Nothing matches",
            &html! {
                @if any { "There are objects of this kind, but none fits the filter. " }
                @else { "No object of this kind fits the filter. " }
                @if !asked.is_of_time() { a href=(asked.address_with("gone", Some("true"))) { "Look among those that are gone, too" } ", or " }
                a href={ "/?kind=" (encode(&asked.kind)) } { (if asked.is_of_time() { "Show" } else { "show" }) " all that are there" } "."
            },
        ),
        false if !watched && !sources.is_empty() => render_empty(
            "Nobody watches that",
            &html! { "No source witnesses " b { (asked.kind) } ". " (scope::describe_witnessed(sources)) },
        ),
        false => render_empty(
            "Nothing yet",
            &html! {
                "No " (asked.kind) " has been witnessed that is still there. It appears here by itself once a source sees one; "
                a href="/sources" { "the sources" } " tell what is watched."
            },
        ),
    }
}
