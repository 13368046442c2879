//! An older part of an object's story: its lanes and its states. The present state is on the object's own
//! page.

use axum::response::{IntoResponse, Response};
use kubewitness_core::Seq;
use kubewitness_core::cursor::StoryCursor;
use kubewitness_core::views::{DeliveryMap, TimelineQuery, TimelineView};
use maud::{Markup, html};

use super::states::StateTable;
use super::{ObjectQuery, RowNotes, lanes, lanes_of, owns_more, render_tables};
use crate::access::PortalViewer;
use crate::answer::ProblemPage;
use crate::answer::frame::PageContent;
use crate::app::PortalApp;
use crate::pages::parts::{encode, grouped_figure, plural_word, render_page_links, render_time};
use crate::scope::ViewerVisibility;

/// The cursor of the part that ends with this position.
pub(super) fn cursor_with(seq: Seq) -> StoryCursor {
    let before = seq.saturating_add(1);
    StoryCursor { states: before, related: before, ..StoryCursor::NEWEST }
}

/// The page of the part that begins at a cursor.
pub(super) fn part_address(asked: ObjectQuery<'_>, cursor: StoryCursor) -> String {
    let address = asked.page_address(asked.all);
    let mark = if address.contains('?') { '&' } else { '?' };
    format!("{address}{mark}cursor={}", encode(&cursor.to_string()))
}

pub(super) async fn page(
    app: &PortalApp,
    viewer: &PortalViewer,
    asked: ObjectQuery<'_>,
    cursor: StoryCursor,
) -> Result<Response, ProblemPage> {
    let query = TimelineQuery {
        uid: Some(asked.uid.to_owned()),
        cursor: Some(cursor),
        limit: Some(asked.limit),
        ..TimelineQuery::default()
    };
    let visible = ViewerVisibility::new(app, viewer);
    let (view, _turn) = visible.story_in_turn(&query).await?;
    let title = match view.states.first().map(|state| &state.object) {
        Some(object) => format!("{}/{}, older states", object.kind, object.name),
        // The owned objects have their own parts.
        None if !view.related.is_empty() => "What else the object owns".to_owned(),
        None => "Older states".to_owned(),
    };
    let other = part_address(ObjectQuery { all: !asked.all, ..asked }, cursor);
    let notes = RowNotes::read(app, &visible, &view, asked.all).await?;
    let table = StateTable { caption: "The object", named: false, asked, other: &other, notes: &notes };
    let content = html! {
        p.crumbs { a href=(asked.page_address(asked.all)) { "The object now" } }
        div.head { h1 { (title) } }
        p.lead { (span_text(&view)) }
        @if !(view.states.is_empty() && view.related.is_empty()) { (render_story(&view, table)) }
        (render_page_links("Pages of the story", Some(asked.page_address(asked.all)), view.next.map(|next| part_address(asked, next))))
    };
    Ok(PageContent::new(title, "/", content).with_stillness("older states").into_response())
}

fn span_text(view: &TimelineView) -> Markup {
    let all = || view.states.iter().chain(&view.related);
    let count = all().count() as u64;
    let times = (all().map(|state| state.observed_ms).min(), all().map(|state| state.observed_ms).max());
    html! {
        @match times {
            (Some(from), Some(through)) => {
                "This part of the story has " (grouped_figure(count)) " " (plural_word(count, "state", "states")) ", observed from " (render_time(from)) " to " (render_time(through)) ". "
                @if !view.cut && !view.states.is_empty() { "The journal has none before them. " }
                (owns_more(view))
            }
            _ => { "The journal has no states before this place, or none that you may see." }
        }
    }
}

fn render_story(view: &TimelineView, table: StateTable<'_>) -> Markup {
    html! {
        @if table.notes.versions.is_none() {
            section aria-labelledby="lanes" {
                h2 #lanes { "Phases over time" }
                (lanes::render_timeline(&lanes_of(&view.states, &view.related), &DeliveryMap::new(), &table.notes.holes, None))
            }
        }
        (render_tables(view, table))
    }
}
