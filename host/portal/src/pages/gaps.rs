//! Versions that are known to be missing.

use axum::extract::State;
use axum::http::Uri;
use axum::response::Html;
use kubewitness_core::Gap;
use maud::{Markup, html};

use super::{ROWS, at, empty, figure, layout, object_link, plural};
use crate::app::App;
use crate::params::Params;
use crate::problem::Shown;

pub(super) async fn page(State(app): State<App>, uri: Uri) -> Result<Html<String>, Shown> {
    Params::read(&uri, &[])?;
    let mut gaps = app.views.gaps(&Default::default()).await?;
    gaps.sort_by_key(|gap| std::cmp::Reverse(gap.recorded_ms));
    let content = html! {
        div.head { h1 { "Gaps" } }
        @if gaps.is_empty() {
            (empty("No gaps", &html! { "Every version since the first list was witnessed. A hole would be listed here with its exact bounds." }))
        } @else { (table(&gaps)) }
    };
    Ok(layout("Gaps", "/gaps", &content))
}

fn table(gaps: &[Gap]) -> Markup {
    let count = gaps.len() as u64;
    html! {
        p.lead { "Versions strictly between the bounds were not witnessed, and no longer can be." }
        div.scroll { table.dense {
            caption {
                (figure(count)) " " (plural(count, "gap", "gaps")) ", newest first"
                @if gaps.len() > ROWS { "; the first " (figure(ROWS as u64)) " are listed" }
            }
            thead { tr {
                th scope="col" { "Source" } th scope="col" { "Object" } th.num scope="col" { "After version" }
                th.num scope="col" { "Before version" } th.num scope="col" { "Epoch" } th.wide scope="col" { "Reason" }
                th scope="col" { "Recorded" }
            } }
            tbody { @for gap in gaps.iter().take(ROWS) { tr {
                td { (gap.source) }
                td.object { @match &gap.object { Some(object) => (object_link(object)), None => { "the whole source" } } }
                td.num { (bound(&gap.after)) }
                td.num { (bound(&gap.before)) }
                td.num { (gap.epoch) }
                td.wide { span.reason { (gap.reason) } " " span.message title=(gap.message) { (gap.message) } }
                td.when { (at(gap.recorded_ms)) }
            } } }
        } }
    }
}

fn bound(version: &str) -> &str {
    if version.is_empty() { "open" } else { version }
}
