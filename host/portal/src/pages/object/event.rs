//! The page of an Event of Kubernetes: its type, reason and message, and its object. It has no phase, so the
//! page has no lanes; it causes no notifications, so it can't be muted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kubewitness_core::events::{EventView, read};
use kubewitness_core::kinds::is_event;
use kubewitness_core::views::TimelineView;
use kubewitness_core::{Change, Seq, State as Witnessed};
use maud::{Markup, html};
use tokio::time::timeout;

use crate::answer::Problem;
use crate::pages::parts::{event_type, grouped_figure, object_link, render_time};
use crate::scope::ViewerVisibility;

/// The newest versions of an Event whose documents one page reads.
const READ: usize = 50;
/// The time limit for that: each document is searched for secrets.
const PATIENCE: Duration = Duration::from_secs(1);

/// The versions of an Event, by their positions.
pub(super) type EventVersions = BTreeMap<Seq, EventView>;

/// `None` if the object is not an Event. The content of an Event is only for people who may also get its
/// object.
pub(super) async fn event_versions(
    visible: &ViewerVisibility,
    states: &[Arc<Witnessed>],
) -> Result<Option<EventVersions>, Problem> {
    if !states.last().is_some_and(|last| is_event(&last.object.group, &last.object.kind)) {
        return Ok(None);
    }
    let newest = states.iter().rev().filter(|state| state.change == Change::Present).take(READ);
    let mut told = Vec::new();
    let reading = async {
        for state in newest {
            // The row is shown without the content.
            let Ok(document) = visible.visible_document(state.seq).await else { continue };
            told.extend(read(&document, &state.object, state.seq, state.observed_ms));
        }
    };
    // A row whose document was not read in time is shown without its content.
    timeout(PATIENCE, reading).await.unwrap_or_default();
    let seen = visible.of_events(told).await?;
    Ok(Some(seen.into_iter().map(|event| (event.seq, event)).collect()))
}

/// Its type, beside its name.
pub(super) fn render_event_type(versions: &EventVersions) -> Markup {
    html! { @if let Some((_, event)) = versions.last_key_value() { (event_type(event)) } }
}

/// Reason and message of its newest version.
pub(super) fn event_text(versions: &EventVersions) -> Markup {
    html! {
        @if let Some((_, event)) = versions.last_key_value() {
            p.story { (event.reason) }
            p.lead { (event.message) }
        }
    }
}

pub(super) fn render_event_facts(view: &TimelineView, versions: &EventVersions) -> Markup {
    html! {
        dl.facts {
            @if let Some((_, event)) = versions.last_key_value() {
                div { dt { "About" } dd { (object_link(&event.about)) } }
                div { dt { "Count" } dd { (grouped_figure(event.count)) } }
                div { dt { "First seen" } dd { (render_time(event.first_ms)) } }
                div { dt { "Last seen" } dd { (render_time(event.last_ms)) } }
                @if !event.from.is_empty() { div { dt { "From" } dd { (event.from) } } }
            }
            @if let Some(last) = view.states.last() {
                div { dt { "States" } dd { @if view.cut { "more than " } (grouped_figure(view.states.len() as u64)) } }
                div { dt { "Source" } dd { (last.source) } }
                div { dt { "UID" } dd { code { (last.object.uid) } } }
            }
        }
    }
}
