//! Events of Kubernetes about the object and the objects that it owns. The cluster forgets them after an
//! hour.

use kubewitness_core::events::EventView;
use maud::{Markup, html};

use crate::pages::parts::{event_type, grouped_figure, object_link, plural_word, render_time};

pub(super) fn render_events(events: &[EventView]) -> Markup {
    let count = events.len() as u64;
    html! {
        div.scroll tabindex="0" role="group" aria-label="Events" {
            table.dense.stacked.plain.folds {
                caption {
                    (grouped_figure(count)) " " (plural_word(count, "event", "events"))
                    ", oldest first. Equal events share one row. They stay here after the cluster has deleted them."
                }
                thead { tr {
                    th scope="col" { "Last seen" }
                    th scope="col" { "Type" }
                    th scope="col" { "Reason" }
                    th scope="col" { "Object" }
                    th.wide scope="col" { "Message" }
                    th scope="col" { "From" }
                    th scope="col" { "Document" }
                } }
                tbody { @for event in events { (render_event_row(event)) } }
            }
        }
    }
}

fn render_event_row(event: &EventView) -> Markup {
    let repeated = event.repetition_text();
    html! {
        tr data-key={ "event-" (event.object.uid) } {
            td.when data-label="Last seen" { (render_time(event.last_ms)) @if !repeated.is_empty() { " " span.note { "(" (repeated) ")" } } }
            td.keep data-label="Type" { (event_type(event)) }
            td.keep data-label="Reason" { span.reason { (event.reason) } }
            td.object data-label="Object" { (object_link(&event.about)) }
            td.wide.whole data-label="Message" { span.message { (event.message) } }
            td.keep data-label="From" { (event.from) }
            td.keep data-label="Document" { a href={ "/states/" (event.seq) } { "show" } }
        }
    }
}
