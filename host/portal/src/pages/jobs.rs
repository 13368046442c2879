//! What is there now: jobs, or any other kind, newest change first, kept up to date live.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::{StatusCode, Uri};
use kubewitness_core::status::PHASES;
use kubewitness_core::views::{ObjectQuery, ObjectView, SourceView};
use maud::{Markup, html};

use super::plugins::{held, notices};
use super::{ROWS, at_text, badge, empty, encode, figure, plural, why};
use crate::access::Viewer;
use crate::answer::frame::Page;
use crate::answer::params::Params;
use crate::answer::{Problem, Shown};
use crate::api::MOST_ROWS;
use crate::app::App;
use crate::scope::{self, Sight};

struct Asked {
    /// As it was typed; `all` for every kind.
    kind: String,
    namespace: Option<String>,
    labels: Option<String>,
    phase: Option<&'static str>,
}

impl Asked {
    fn every_kind(&self) -> bool {
        self.kind.eq_ignore_ascii_case("all")
    }

    fn address(&self, phase: Option<&str>) -> String {
        let mut address = format!("/?kind={}", encode(&self.kind));
        if let Some(namespace) = &self.namespace {
            address.push_str(&format!("&namespace={}", encode(namespace)));
        }
        if let Some(labels) = &self.labels {
            address.push_str(&format!("&labelSelector={}", encode(labels)));
        }
        if let Some(phase) = phase {
            address.push_str(&format!("&phase={phase}"));
        }
        address
    }

    fn is_narrowed(&self) -> bool {
        self.namespace.is_some() || self.labels.is_some() || self.phase.is_some()
    }
}

pub(super) async fn page(State(app): State<App>, viewer: Viewer, uri: Uri) -> Result<Page, Shown> {
    let params = Params::read(&uri, &["kind", "namespace", "labelSelector", "phase"])?;
    let asked = Asked {
        kind: params.owned("kind").unwrap_or_else(|| "Job".into()),
        namespace: params.owned("namespace"),
        labels: params.owned("labelSelector"),
        phase: params.phase()?,
    };
    // Before the objects are read: what changes in between comes again, and is known by its position.
    let after = *app.views.newest().borrow();
    let sight = Sight::new(&app, &viewer);
    let mut query = ObjectQuery {
        kind: Some(asked.kind.clone()).filter(|_| !asked.every_kind()),
        label_selector: asked.labels.clone(),
        limit: Some(MOST_ROWS),
        ..ObjectQuery::default()
    };
    // The namespaces to choose from are those of all that is found; one that was asked for needs no others.
    let of_asked = ObjectQuery { namespace: asked.namespace.clone(), ..query.clone() };
    query.within = match sight.within(&of_asked).await {
        Err(problem) if problem.status == StatusCode::FORBIDDEN => return Ok(narrow(&asked, &problem)),
        within => within?,
    };
    let mut objects = app.views.objects(&query).await?;
    let any = !objects.is_empty();
    let all = objects.len() >= MOST_ROWS;
    let namespaces: std::collections::BTreeSet<String> =
        objects.iter().map(|view| view.object.namespace.clone()).filter(|name| !name.is_empty()).collect();
    objects.retain(|view| asked.namespace.as_deref().is_none_or(|name| view.object.namespace == name));
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for view in &objects {
        *counts.entry(known(&view.status.phase)).or_default() += 1;
    }
    let counts = counts_bar(&asked, &counts);
    objects.retain(|view| asked.phase.is_none_or(|phase| view.status.phase == phase));
    objects.sort_by_key(|view| std::cmp::Reverse(view.seq));
    // What is in the cache is shown also where the journal can't be asked.
    let status = match sight.status().await {
        Err(problem) if !any => return Err(problem.into()),
        status => status.unwrap_or_default(),
    };
    let not_ready = sight.not_ready().await?;
    let is_operators = sight.is_operators().await?;
    let now_held = if is_operators { app.views.held() } else { Vec::new() };
    let sources = if any { &[][..] } else { &status.sources };
    let kind = objects.first().map(|view| view.object.kind.clone());
    let kind = kind.or_else(|| scope::kind_of(sources, &asked.kind));
    let title = match (asked.every_kind(), kind.as_deref().unwrap_or(&asked.kind)) {
        (true, _) => "Everything".to_owned(),
        (false, kind) if kind.ends_with('s') => kind.to_owned(),
        (false, kind) => format!("{kind}s"),
    };
    let content = html! {
        div.head { h1 { (title) } (filters(&asked, &namespaces)) }
        (notices(&status, not_ready.as_deref()))
        (counts)
        (held(&now_held))
        p #summary.quiet-live aria-live="polite" {}
        @if all { p.note { "These are the first " (figure(MOST_ROWS as u64)) " objects; there are more." } }
        @if objects.is_empty() { (nothing(any, &asked, sources, status.restricted)) }
        (table(&objects, &asked, kind.as_deref(), after))
    };
    Ok(Page::new(title, "/", content))
}

/// For whoever may not look into all namespaces, where there are too many: they name one.
fn narrow(asked: &Asked, problem: &Problem) -> Page {
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
    Page::new(asked.kind.clone(), "/", content)
}

fn known(phase: &str) -> &'static str {
    PHASES.into_iter().find(|known| *known == phase).unwrap_or("Unknown")
}

fn filters(asked: &Asked, namespaces: &std::collections::BTreeSet<String>) -> Markup {
    html! {
        form.filters role="search" aria-label="Filter" method="get" action="/" {
            label { span { "Kind" } input name="kind" value=(asked.kind) list="kinds" autocomplete="off" spellcheck="false"; }
            datalist #kinds { @for kind in ["Job", "Pod", "all"] { option value=(kind) {} } }
            label { span { "Namespace" }
                select name="namespace" {
                    option value="" { "All" }
                    @if let Some(name) = asked.namespace.as_ref().filter(|name| !namespaces.contains(*name)) {
                        option value=(name) selected { (name) }
                    }
                    @for name in namespaces {
                        option value=(name) selected[asked.namespace.as_ref() == Some(name)] { (name) }
                    }
                }
            }
            label { span { "Labels" }
                input name="labelSelector" value=[asked.labels.as_deref()] placeholder="team=a,!old" autocomplete="off" spellcheck="false";
            }
            label { span { "Phase" }
                select name="phase" {
                    option value="" { "Any" }
                    @for phase in PHASES { option value=(phase) selected[asked.phase == Some(phase)] { (phase) } }
                }
            }
            button { "Filter" }
            @if asked.is_narrowed() { a href={ "/?kind=" (encode(&asked.kind)) } { "Clear" } }
        }
    }
}

/// One link a phase, those without objects as well: what comes and goes would move the rows.
fn counts_bar(asked: &Asked, counts: &BTreeMap<&str, u64>) -> Markup {
    html! {
        nav.counts aria-label="By phase" {
            @for phase in PHASES {
                @let count = counts.get(phase).copied().unwrap_or(0);
                a.none[count == 0] href=(asked.address(Some(phase))) data-phase=(phase)
                    aria-current=[(asked.phase == Some(phase)).then_some("true")] {
                    b { (figure(count)) } " " (phase)
                }
            }
        }
    }
}

fn nothing(any: bool, asked: &Asked, sources: &[SourceView], restricted: bool) -> Markup {
    let watched = asked.every_kind() || scope::kind_of(sources, &asked.kind).is_some();
    match any || (watched && asked.labels.is_some()) {
        true => empty(
            "Nothing matches",
            &html! {
                @if any { "There are objects of this kind, but none fits the filter. " }
                @else { "No object of this kind fits the filter. " }
                a href={ "/?kind=" (encode(&asked.kind)) } { "Show all of them" } "."
            },
        ),
        false if !watched && !sources.is_empty() => empty(
            "Nobody watches that",
            &html! { "No source witnesses " b { (asked.kind) } ". " (scope::witnessed(sources)) },
        ),
        false => empty(
            "Nothing yet",
            &html! {
                @if restricted { "Nothing that you may see: others may have objects of this kind. " }
                "No " (asked.kind) " has been witnessed that is still there. It appears here by itself once a source sees one; "
                a href="/sources" { "the sources" } " tell what is watched."
            },
        ),
    }
}

fn table(objects: &[ObjectView], asked: &Asked, kind: Option<&str>, after: u64) -> Markup {
    let count = objects.len() as u64;
    let cut = objects.len() > ROWS;
    html! {
        div.over { button #fresh.fresh type="button" hidden {} }
        div.scroll {
            table #objects.dense hidden[objects.is_empty()] data-after=(after) data-kind=(if asked.every_kind() { "" } else { kind.unwrap_or(&asked.kind) })
                data-labels=[asked.labels.as_deref()] data-namespace=[asked.namespace.as_deref()] data-phase=[asked.phase] {
                caption {
                    @if cut { "The " (figure(ROWS as u64)) " that changed last, of " (figure(count)) }
                    @else { (figure(count)) " " (plural(count, "object", "objects")) ", newest change first" }
                }
                thead { tr {
                    th scope="col" { "Phase" }
                    th scope="col" { "Name" }
                    @if asked.every_kind() { th scope="col" { "Kind" } }
                    th scope="col" { "Namespace" }
                    th.num scope="col" { "Ready" }
                    th.num scope="col" { "Attempt" }
                    th.wide scope="col" { "Reason" }
                    th scope="col" { "Last change" }
                } }
                tbody { @for view in objects.iter().take(ROWS) { (row(Some(view), asked)) } }
            }
        }
        template #row { (row(None, asked)) }
    }
}

/// A row, or the empty one that the script fills for an object that it has not seen before.
fn row(view: Option<&ObjectView>, asked: &Asked) -> Markup {
    let blank = ObjectView {
        source: String::new(),
        object: Default::default(),
        owner: None,
        resource_version: String::new(),
        status: Default::default(),
        seq: 0,
        observed_at: String::new(),
    };
    let view = view.unwrap_or(&blank);
    let status = &view.status;
    html! {
        tr data-uid=(view.object.uid) data-seq=(view.seq) {
            td data-f="phase" { (badge(&status.phase)) }
            th scope="row" { a data-f="name" href={ "/objects/" (view.object.uid) } { (view.object.name) } }
            @if asked.every_kind() { td data-f="kind" { (view.object.kind) } }
            td data-f="namespace" { (view.object.namespace) }
            td.num data-f="ready" { @if status.total > 0 { (status.ready) "/" (status.total) } }
            td.num data-f="attempt" { @if status.attempt > 0 { (status.attempt) } }
            td.wide data-f="why" { (why(status)) }
            td.when data-f="when" { (at_text(&view.observed_at)) }
        }
    }
}
