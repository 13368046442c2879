//! The reports of plugins about the object and the objects that it owns: who was notified, and what happened
//! to each message.

use kubewitness_core::reports::ReportView;
use maud::{Markup, html};

use crate::pages::parts::{grouped_figure, plural_word, render_time};

/// Outcomes in which nobody gets the message.
const LOST: [&str; 3] = ["refused", "given up", "unreadable"];

pub(super) fn render_reports(reports: &[ReportView]) -> Markup {
    let count = reports.len() as u64;
    html! {
        div.scroll tabindex="0" role="group" aria-label="Who was told" {
            table.dense.stacked.plain.folds {
                caption { (grouped_figure(count)) " " (plural_word(count, "report", "reports")) " of plugins, oldest first." }
                thead { tr {
                    th scope="col" { "When" }
                    th scope="col" { "To" }
                    th scope="col" { "Result" }
                    th.wide scope="col" { "Message" }
                    th.wide scope="col" { "Why" }
                    th scope="col" { "Plugin" }
                } }
                tbody { @for report in reports { (render_report_row(report)) } }
            }
        }
    }
}

fn render_report_row(report: &ReportView) -> Markup {
    html! {
        tr data-key={ "report-" (report.at_ms) "-" (report.plugin) "-" (report.to) } {
            td.when data-label="When" { (render_time(report.at_ms)) }
            td.keep data-label="To" { (report.to) @if !report.via.is_empty() { " " span.note { "(" (report.via) ")" } } }
            td.keep data-label="Result" { span.mark.doubt[LOST.contains(&&*report.result)] { (report.result) } }
            td.wide.whole data-label="Message" { (report.title) }
            td.wide.whole data-label="Why" { (report.why) }
            td.keep data-label="Plugin" { (report.plugin) }
        }
    }
}
