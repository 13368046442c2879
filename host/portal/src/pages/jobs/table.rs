//! The list itself.

use kubewitness_core::status::PHASES;
use kubewitness_core::views::{Gone, ObjectView};
use maud::{Markup, html};

use super::asked::Asked;
use crate::answer::time::span;
use crate::pages::parts::{at_text, badge, figure, plural, why};

pub(super) struct List<'a> {
    pub asked: &'a Asked,
    pub kind: Option<&'a str>,
    pub objects: &'a [ObjectView],
    pub next: Option<&'a str>,
    /// How many there are, where that is known.
    pub total: Option<u64>,
    /// From where on the script follows.
    pub after: u64,
}

/// What the rows can be ordered by, as the address and the caption say it.
const ORDERS: [(&str, &str); 6] = [
    ("changed", "newest change first"),
    ("name", "by name"),
    ("phase", "by phase"),
    ("queued", "by the time that they waited, longest first"),
    ("running", "by the time that they ran, longest first"),
    ("restarts", "by restarts, most first"),
];

impl List<'_> {
    pub fn draw(&self) -> Markup {
        let Self { asked, kind, objects, .. } = self;
        let is_live = asked.is_now();
        let kind = if asked.every_kind() { "" } else { kind.unwrap_or(&asked.kind) };
        html! {
            div.over { button #fresh.fresh type="button" hidden {} }
            div.scroll {
                table.dense.stacked id=[is_live.then_some("objects")] hidden[objects.is_empty()] data-after=[is_live.then_some(self.after)] data-kind=(kind)
                    data-labels=[asked.labels.as_deref().or(asked.search.as_deref())] data-namespace=[asked.namespace.as_deref()]
                    data-phase=[asked.phase] data-gone=[(asked.gone != Gone::No).then_some("")] {
                    caption { (self.caption()) }
                    thead { tr {
                        (self.head("phase", "Phase", ""))
                        (self.head("name", "Name", ""))
                        @if asked.every_kind() { th scope="col" { "Kind" } }
                        th scope="col" { "Namespace" }
                        (self.head("queued", "Waited", "num"))
                        (self.head("running", "Ran", "num"))
                        (self.head("restarts", "Restarts", "num"))
                        th.num scope="col" { "Ready" }
                        th scope="col" { "Submitter" }
                        th scope="col" { "Plugins" }
                        th.wide scope="col" { "Reason" }
                        (self.head("changed", "Last change", ""))
                    } }
                    tbody { @for view in *objects { (row(view, asked)) } }
                }
            }
            template #row { (row(&ObjectView::default(), asked)) }
            (self.pages())
        }
    }

    fn caption(&self) -> Markup {
        let sort = self.asked.sort.as_deref().unwrap_or("changed");
        let order = ORDERS.into_iter().find(|(known, _)| *known == sort).map_or("", |(_, told)| told);
        let order = if self.asked.at.is_some() && sort == "changed" {
            "those that have ended since first"
        } else {
            order
        };
        let count = self.objects.len() as u64;
        html! {
            @match self.total {
                Some(total) if total > count => { (figure(count)) " of " (figure(total)) " objects, " }
                _ => { (figure(count)) " " (plural(count, "object", "objects")) ", " }
            }
            @if self.sorts_a_part() { "this page " } (order)
        }
    }

    /// Pages follow each other by the newest change. Another order holds within one page.
    fn sorts_a_part(&self) -> bool {
        self.asked.sort.as_deref().is_some_and(|sort| sort != "changed")
            && (self.next.is_some() || self.asked.cursor.is_some())
    }

    fn head(&self, sort: &str, name: &str, class: &str) -> Markup {
        let is_sorted = self.asked.sort.as_deref().unwrap_or("changed") == sort;
        let value = Some(sort).filter(|sort| *sort != "changed");
        html! {
            th scope="col" class=[Some(class).filter(|class| !class.is_empty())] aria-sort=[is_sorted.then_some(if matches!(sort, "name" | "phase") { "ascending" } else { "descending" })] {
                a href=(self.asked.address("sort", value)) { (name) @if is_sorted { span aria-hidden="true" { " ↓" } } }
            }
        }
    }

    fn pages(&self) -> Markup {
        html! {
            @if self.sorts_a_part() {
                p.hint.part {
                    "Only this page is sorted. The pages themselves follow each other by the newest change. "
                    "Filter the list until it fits one page, and all of it is sorted."
                }
            }
            @if self.next.is_some() || self.asked.cursor.is_some() {
                nav.pages aria-label="Pages" {
                    @if self.asked.cursor.is_some() { a.button href=(self.asked.address("cursor", None)) { "First page" } }
                    @if let Some(next) = self.next { a.button rel="next" href=(self.asked.address("cursor", Some(next))) { "Next page" } }
                }
            }
        }
    }
}

/// A row; one without a uid is filled by the script for an object that it has not seen before.
fn row(view: &ObjectView, asked: &Asked) -> Markup {
    let status = &view.status;
    let details = view.details.clone().unwrap_or_default();
    // Of what was deleted, how it went: that it is gone is told beside it.
    let before = PHASES.into_iter().find(|phase| view.ended_at.is_some() && *phase == status.reason);
    html! {
        tr.gone[view.ended_at.is_some()] data-uid=(view.object.uid) data-seq=(view.seq) {
            td data-label="Phase" data-f="phase" { (badge(before.unwrap_or(&status.phase))) (known(view)) }
            th.name scope="row" { a data-f="name" href=(address(view, asked)) title=(view.object.name) { (view.object.name) } }
            @if asked.every_kind() { td data-label="Kind" data-f="kind" { (view.object.kind) } }
            td.keep data-label="Namespace" data-f="namespace" { (view.object.namespace) }
            td.num data-label="Waited" data-f="queued" { @if details.queued_ms > 0 { (span(details.queued_ms)) } }
            td.num data-label="Ran" data-f="running" { @if details.running_ms > 0 { (span(details.running_ms)) } }
            td.num data-label="Restarts" data-f="attempt" { @if details.restarts > 0 { (details.restarts) } }
            td.num data-label="Ready" data-f="ready" { @if status.total > 0 { (status.ready) "/" (status.total) } }
            td.submitter data-label="Submitter" data-f="submitter" { @if let Some(name) = &details.submitter { span title=(name) { (name) } } }
            td.keep data-label="Plugins" data-f="plugins" { @for (plugin, state) in &details.plugins { (dot(plugin, state)) } }
            td.wide data-label="Reason" data-f="why" { (why(status)) @if details.cut { " " span.mark title="Retention took its first states, or it has more than a list reads." { "cut" } } }
            td.when data-label=(if view.ended_at.is_some() { "Ended" } else { "Last change" }) data-f="when" { (at_text(&view.observed_at)) }
        }
    }
}

/// An object's page, at the moment that the list is of.
fn address(view: &ObjectView, asked: &Asked) -> String {
    match &asked.at {
        Some(_) => format!("/objects/{}?state={}", view.object.uid, view.seq),
        None => format!("/objects/{}", view.object.uid),
    }
}

/// That it is gone, or how well its state at the moment is known. Not by colour alone.
fn known(view: &ObjectView) -> Markup {
    let message = view.then.as_ref().and_then(|then| Some((then.known.as_str(), then.message.as_deref()?)));
    html! {
        @if view.ended_at.is_some() { " " span.mark { "gone" } }
        @if let Some((known, message)) = message { " " span.mark.doubt title=(message) { (known) span.unseen { ": " (message) } } }
    }
}

/// A plugin's dot: its shape says what its colour says, and so does its name.
fn dot(plugin: &str, state: &str) -> Markup {
    let sign = match state {
        "delivered" => "●",
        "dead" => "✕",
        _ => "○",
    };
    html! {
        span.dot data-state=(state) title={ (plugin) ": " (state) } {
            span aria-hidden="true" { (sign) } span.unseen { (plugin) ": " (state) " " }
        }
    }
}
