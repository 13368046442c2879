//! Events of Kubernetes about the object and the objects that it owns. The cluster forgets them after an
//! hour.

use kubewitness_core::events::EventView;
use maud::{Markup, html};

use crate::pages::parts::{at, event_type, figure, object_link, plural};

pub(super) fn table(events: &[EventView]) -> Markup {
    let count = events.len() as u64;
    html! {
        div.scroll tabindex="0" role="group" aria-label="Events" {
            table.dense.stacked.plain.folds {
                caption {
                    (figure(count)) " " (plural(count, "event", "events"))
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
                tbody { @for event in events { (row(event)) } }
            }
        }
    }
}

fn row(event: &EventView) -> Markup {
    let repeated = event.repeated();
    html! {
        tr {
            td.when data-label="Last seen" { (at(event.last_ms)) @if !repeated.is_empty() { " " span.note { "(" (repeated) ")" } } }
            td.keep data-label="Type" { (event_type(event)) }
            td.keep data-label="Reason" { span.reason { (event.reason) } }
            td.object data-label="Object" { (object_link(&event.about)) }
            td.wide.whole data-label="Message" { span.message { (event.message) } }
            td.keep data-label="From" { (event.from) }
            td.keep data-label="Document" { a href={ "/states/" (event.seq) } { "show" } }
        }
    }
}
