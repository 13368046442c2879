//! The table of objects on the page of jobs.

use kubewitness_core::Status;
use kubewitness_core::calendar::parse_rfc3339_ms;
use kubewitness_core::kinds::{is_event, says_when_it_runs};
use kubewitness_core::order::{ObjectOrder, OrderKey};
use kubewitness_core::status::{PHASES, phase};
use kubewitness_core::views::{GoneFilter, ObjectView};
use maud::{Markup, html};

use super::query::JobsQuery;
use crate::answer::time::{age_text, duration_text, readable_time};
use crate::pages::parts::{
    at_text, event_type, event_words, grouped_figure, object_link, plural_word, render_page_links,
    render_phase_badge, render_status_reason,
};

pub(super) struct JobList<'a> {
    pub asked: &'a JobsQuery,
    pub kind: Option<&'a str>,
    pub objects: &'a [ObjectView],
    pub next: Option<&'a str>,
    /// The total number, if known.
    pub total: Option<u64>,
    /// The time that the rows show.
    pub now_ms: u64,
}

/// The text for an order.
fn order_text(order: ObjectOrder) -> &'static str {
    match (order.by, order.turned) {
        (OrderKey::Changed, false) => "newest change first",
        (OrderKey::Changed, true) => "oldest change first",
        (OrderKey::Created, false) => "newest first",
        (OrderKey::Created, true) => "oldest first",
        (OrderKey::Name, false) => "by name",
        (OrderKey::Name, true) => "by name, from the end",
        (OrderKey::Namespace, false) => "by namespace",
        (OrderKey::Namespace, true) => "by namespace, from the end",
        (OrderKey::Phase, false) => "by phase",
        (OrderKey::Phase, true) => "by phase, from the end",
        (OrderKey::Restarts, false) => "most restarts first",
        (OrderKey::Restarts, true) => "fewest restarts first",
    }
}

impl JobList<'_> {
    /// The kind of its objects, as states name it, or `all`.
    pub fn shown_kind(&self) -> &str {
        if self.asked.every_kind() { "all" } else { self.kind.unwrap_or(&self.asked.kind) }
    }

    pub fn render_list(&self) -> Markup {
        let Self { asked, objects, .. } = self;
        html! {
            div.scroll {
                table.dense.stacked.folds id=[asked.stillness().is_none().then_some("objects")] hidden[objects.is_empty()] {
                    caption { (self.render_caption()) }
                    thead { tr {
                        (self.render_column_head(OrderKey::Phase, if asked.is_of_events() { "Type" } else { "Phase" }, ""))
                        (self.render_column_head(OrderKey::Name, "Name", ""))
                        @if asked.every_kind() { th scope="col" { "Kind" } }
                        (self.render_column_head(OrderKey::Namespace, "Namespace", ""))
                        @if !asked.is_of_events() {
                            th.num scope="col" { (self.no_order("Waited")) }
                            th.num scope="col" { (self.no_order("Ran")) }
                            (self.render_column_head(OrderKey::Restarts, "Restarts", "num"))
                            @if asked.was.is_none() { th.num scope="col" { "Ready" } }
                            th scope="col" { "Submitter" }
                            th scope="col" { "Plugins" }
                        }
                        @if asked.shows_causes() { th scope="col" { "Cause" } }
                        th.wide scope="col" { (if asked.is_of_events() { "Message" } else { "Reason" }) }
                        // There is no room for both the present state and the former one.
                        @match asked.was {
                            Some(phase) => th scope="col" { "Was " (phase) },
                            None => { (self.render_column_head(OrderKey::Created, "Age", "num")) (self.render_column_head(OrderKey::Changed, "Last change", "")) },
                        }
                    } }
                    tbody { @for view in *objects { (render_row(view, asked, self.now_ms)) } }
                }
            }
            (self.render_pages())
        }
    }

    fn render_caption(&self) -> Markup {
        let order = match self.asked.at {
            Some(_) => "first those that have ended since then",
            None if self.asked.was.is_some() => {
                "first those that are in the phase still, then those that left it last"
            }
            None if self.asked.cause.is_some() => "first those that ended last",
            None => order_text(self.asked.order),
        };
        let count = self.objects.len() as u64;
        html! {
            @match self.total {
                // If all rows are on the page, a count of a moment later is not compared with them.
                Some(total) if total > count && self.next.is_some() => { (grouped_figure(count)) " of " (grouped_figure(total)) " objects, " }
                None if self.next.is_some() => { (grouped_figure(count)) " " (plural_word(count, "object", "objects")) " on this page, " }
                _ => { (grouped_figure(count)) " " (plural_word(count, "object", "objects")) ", " }
            }
            (order) ". "
            @if self.asked.has_order() && self.asked.gone != GoneFilter::No && self.asked.order.by == OrderKey::Changed {
                "Objects that are gone are ordered by the time of their deletion. "
            }
            span.hint #no-order { (self.why_no_order()) }
        }
    }

    fn why_no_order(&self) -> &'static str {
        match self.asked.at {
            Some(_) => "A list of a moment can't be sorted.",
            None if self.asked.was.is_some() => "A list by phase can't be sorted.",
            None if self.asked.cause.is_some() => "A list by cause can't be sorted.",
            None if self.asked.is_of_events() => "",
            None => "The columns Waited and Ran can't be sorted, because their values grow with time.",
        }
    }

    /// The header of a column without an order.
    fn no_order(&self, name: &str) -> Markup {
        html! {
            span role="link" aria-disabled="true" aria-describedby="no-order" title=(self.why_no_order()) { (name) }
        }
    }

    /// A click orders by this column, and another click reverses the order.
    fn render_column_head(&self, by: OrderKey, name: &str, class: &str) -> Markup {
        let asked = self.asked;
        let is_sorted = asked.has_order() && asked.order.by == by;
        let order = ObjectOrder { by, turned: is_sorted && !asked.order.turned };
        let value = Some(order.word()).filter(|_| order != ObjectOrder::default());
        // The newest object has the lowest age.
        let (sign, way) = match asked.order.is_descending() != (by == OrderKey::Created) {
            true => (" ↓", "descending"),
            false => (" ↑", "ascending"),
        };
        html! {
            th scope="col" class=[Some(class).filter(|class| !class.is_empty())] aria-sort=[is_sorted.then_some(way)] {
                @if asked.has_order() {
                    a href=(asked.address_with("sort", value)) { (name) @if is_sorted { span aria-hidden="true" { (sign) } } }
                } @else { (self.no_order(name)) }
            }
        }
    }

    fn render_pages(&self) -> Markup {
        let first = self.asked.cursor.as_ref().map(|_| self.asked.address_with("cursor", None));
        render_page_links("Pages", first, self.next.map(|next| self.asked.address_with("cursor", Some(next))))
    }
}

fn render_row(view: &ObjectView, asked: &JobsQuery, now_ms: u64) -> Markup {
    let status = &view.status;
    let details = view.details.clone().unwrap_or_default();
    // For a deleted object, the phase in which it ended: the deletion is shown beside it.
    let before = PHASES.into_iter().find(|phase| view.ended_at.is_some() && *phase == status.reason);
    // The reason of a deletion is the previous phase.
    let own = before.map_or_else(|| status.reason.clone(), |_| String::new());
    let grows = asked.stillness().is_none() && view.ended_at.is_none() && !status.terminal;
    let is_running = status.phase == phase::RUNNING;
    let waits = grows
        && !is_running
        && details.running_ms == 0
        && says_when_it_runs(&view.object.group, &view.object.kind);
    let told = Status { reason: view.ended_reason.clone().unwrap_or(own), ..status.clone() };
    html! {
        tr.gone[view.ended_at.is_some()] data-uid=(view.object.uid) data-seq=(view.seq) {
            td data-label="Phase" {
                @match &details.event {
                    Some(event) => (event_type(event)),
                    None if is_event(&view.object.group, &view.object.kind) => {}
                    None => (render_phase_badge(before.unwrap_or(&status.phase))),
                }
                (render_certainty(view))
            }
            th.name scope="row" data-f="name" { a href=(object_address(view, asked)) title=(view.object.name) { (view.object.name) } }
            @if asked.every_kind() { td.keep data-label="Kind" { (view.object.kind) } }
            td.keep data-label="Namespace" data-f="namespace" { (view.object.namespace) }
            @if !asked.is_of_events() {
                td.num data-label="Waited" { (render_duration(details.queued_ms, waits)) }
                td.num data-label="Ran" { (render_duration(details.running_ms, grows && is_running)) }
                td.num data-label="Restarts" { @if details.restarts > 0 { (details.restarts) } }
                @if asked.was.is_none() { td.num data-label="Ready" { @if status.total > 0 { (status.ready) "/" (status.total) } } }
                td.submitter data-label="Submitter" { @if let Some(name) = &details.submitter { span title=(name) { (name) } } }
                td.keep data-label="Plugins" { @for (plugin, state) in &details.plugins { (render_plugin_dot(plugin, state)) } }
            }
            @if asked.shows_causes() { td.keep data-label="Cause" { (render_cause(view)) } }
            td.wide data-label=(if asked.is_of_events() { "Message" } else { "Reason" }) { @if let Some(event) = &details.event { (event_words(event, &object_link(&event.about))) } @else { (render_status_reason(&told)) } @if details.cut { " " span.mark title="Retention took its first states, or it has more than a list reads." { "cut" } } }
            @if let Some(phase) = asked.was {
                td.when data-label={ "Was " (phase) } { (render_phase_since(view)) }
            } @else {
                td.num data-label="Age" { @if let Some(at) = &details.created_at { (age_of(at, now_ms, asked.stillness().is_none())) } }
                td.when data-label=(if view.ended_at.is_some() { "Ended" } else { "Last change" }) { (at_text(&view.observed_at)) }
            }
        }
    }
}

/// Why it ended badly: a word, with a link to the story.
fn render_cause(view: &ObjectView) -> Markup {
    html! {
        @if let Some(kind) = view.cause {
            a href={ "/objects/" (view.object.uid) "#why" } title="Why it ended so" { (kind.words()) }
        }
    }
}

/// A duration. The script lets it grow while it continues.
fn render_duration(ms: u64, grows: bool) -> Markup {
    html! {
        @if grows { span data-ticks=(ms) { @if ms > 0 { (duration_text(ms)) } } } @else if ms > 0 { (duration_text(ms)) }
    }
}

/// The age, with the creation time. The script lets it grow.
fn age_of(created: &str, now_ms: u64, grows: bool) -> Markup {
    html! {
        @match parse_rfc3339_ms(created).map(|ms| (ms, now_ms.saturating_sub(ms))) {
            Some((ms, age)) => span title={ "created " (readable_time(ms)) " UTC" } data-age=[grows.then_some(age)] { (age_text(age)) },
            None => (created),
        }
    }
}

/// Since when it was in the phase, and for how long.
fn render_phase_since(view: &ObjectView) -> Markup {
    let was = view.was.clone().unwrap_or_default();
    let times =
        (was.from.as_deref().and_then(parse_rfc3339_ms), was.until.as_deref().and_then(parse_rfc3339_ms));
    html! {
        @match &was.from {
            Some(from) => (at_text(from)),
            None => "from before the journal begins",
        }
        @match (&was.until, times) {
            (None, _) => { " " span.note { "still" } },
            (Some(_), (Some(from), Some(until))) if until > from => { " " span.note { "for " (duration_text(until - from)) } },
            (Some(until), (None, _)) => { " " span.note { "until " (at_text(until)) } },
            _ => {}
        }
    }
}

/// An object's page, at the moment of the list.
fn object_address(view: &ObjectView, asked: &JobsQuery) -> String {
    match &asked.at {
        Some(_) => format!("/objects/{}?state={}", view.object.uid, view.seq),
        None => format!("/objects/{}", view.object.uid),
    }
}

/// Whether it is gone, or how certain its state at the moment is. Not only by colour.
fn render_certainty(view: &ObjectView) -> Markup {
    let message = view.then.as_ref().and_then(|then| Some((then.known.as_str(), then.message.as_deref()?)));
    html! {
        @if view.ended_at.is_some() { " " span.mark { "gone" } }
        @if let Some((known, message)) = message { " " span.mark.doubt title=(message) { (known) span.unseen { ": " (message) } } }
    }
}

/// A dot for a plugin: its shape and its label say the same as its colour.
fn render_plugin_dot(plugin: &str, state: &str) -> Markup {
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

#[cfg(test)]
mod tests {
    use kubewitness_core::ObjectRef;
    use kubewitness_core::views::DetailsView;

    use super::*;

    /// The row of an object that waited 4 s, and has run so long.
    fn row(group: &str, kind: &str, phase: &str, running_ms: u64) -> String {
        let object = ObjectRef { group: group.into(), kind: kind.into(), ..ObjectRef::default() };
        let status = Status { phase: phase.into(), terminal: phase == phase::SUCCEEDED, ..Status::default() };
        let created_at = Some("2026-01-01T00:00:00Z".into());
        let details = DetailsView { created_at, queued_ms: 4_000, running_ms, ..DetailsView::default() };
        let view = ObjectView { object, status, details: Some(details), ..ObjectView::default() };
        let asked = JobsQuery::read(&"/".parse().unwrap()).unwrap();
        render_row(&view, &asked, 1_767_225_605_000).into_string()
    }

    #[test]
    fn the_duration_of_the_present_phase_grows_and_the_others_stand() {
        let waits = row("batch", "Job", phase::PENDING, 0);
        assert!(waits.contains("data-label=\"Waited\"><span data-ticks=\"4000\">4 s</span>"), "{waits}");
        assert!(waits.contains("data-age=\"5000\">5 s</span>"), "{waits}");
        let runs = row("batch", "Job", phase::RUNNING, 0);
        assert!(runs.contains("data-label=\"Waited\">4 s</td>"), "{runs}");
        assert!(runs.contains("data-label=\"Ran\"><span data-ticks=\"0\"></span>"), "{runs}");
        let ended = row("batch", "Job", phase::SUCCEEDED, 9_000);
        assert!(ended.contains("data-label=\"Ran\">9 s</td>") && !ended.contains("data-ticks"), "{ended}");
    }

    #[test]
    fn the_waiting_time_of_an_object_that_never_says_that_it_runs_does_not_grow() {
        let silent = row("trainer.kubeflow.org", "TrainJob", phase::PENDING, 0);
        assert!(!silent.contains("data-ticks"), "{silent}");
    }
}
