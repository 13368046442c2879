//! The health on one page: the progress of each plugin, the state of each source, and the content of the
//! journal.

use axum::extract::State;
use axum::http::Uri;
use kubewitness_core::views::{PluginView, SourceView, StatusView};
use maud::{Markup, html};

use super::parts::{at_text, encode, grouped_figure, plural_word, render_restricted};
use super::plugins::render_notices;
use super::sources::byte_size_text;
use crate::access::PortalViewer;
use crate::answer::ProblemPage;
use crate::answer::frame::PageContent;
use crate::answer::params::QueryParams;
use crate::answer::time;
use crate::app::PortalApp;
use crate::scope::ViewerVisibility;

pub(super) async fn page(
    State(app): State<PortalApp>,
    viewer: PortalViewer,
    uri: Uri,
) -> Result<PageContent, ProblemPage> {
    QueryParams::read(&uri, &[])?;
    let visible = ViewerVisibility::new(&app, &viewer);
    let status = visible.recent_status().await?;
    let not_ready = visible.not_ready().await?;
    let notices = render_notices(&status, not_ready.as_deref());
    let content = html! {
        div.head { h1 { "Health" } }
        (render_verdict(&status, not_ready.is_some() || !notices.0.is_empty()))
        (notices)
        @if status.restricted { (render_restricted("How far plugins, sources and the journal are")) }
        @else {
            section aria-labelledby="complete" { h2 #complete { "Plugins" } (render_plugins(&status.plugins)) }
            section aria-labelledby="watched" { h2 #watched { "Sources" } (render_sources(&status.sources)) }
            section aria-labelledby="journal" { h2 #journal { "Journal" } (render_journal(&status)) }
        }
    };
    Ok(PageContent::new("Health", "/health", content).with_live_figures())
}

fn is_complete(plugin: &PluginView) -> bool {
    plugin.observed == plugin.delivered + plugin.filtered + plugin.dead + plugin.waiting + plugin.taken
}

/// One line first, because most readers need no more. `has_notices` is set if a problem is shown below it.
fn render_verdict(status: &StatusView, has_notices: bool) -> Markup {
    let behind = status.sources.iter().filter(|source| !source.synced).count() as u64;
    let wrong = status.plugins.iter().filter(|plugin| !is_complete(plugin)).count() as u64;
    let ill = status.plugins.iter().filter(|plugin| plugin.needs_attention()).count() as u64;
    let dead: u64 = status.plugins.iter().map(|plugin| plugin.dead - plugin.dropped.min(plugin.dead)).sum();
    let gaps: u64 = status.sources.iter().map(|source| source.gaps).sum();
    let is_well = !has_notices && behind + wrong + ill == 0 && status.problems.is_empty();
    html! {
        @if !status.restricted {
            p.verdict.wrong[!is_well] {
                @if is_well { "✓ Every source is up to date, and each plugin accounts for every state." }
                @else { "✗ Something needs attention." }
            }
            ul.summary {
                @if behind > 0 { li { a href="/sources" { (grouped_figure(behind)) " of " (status.sources.len()) " sources" } " not up to date" } }
                @if ill > 0 { li { a href="/plugins" { (grouped_figure(ill)) " of " (status.plugins.len()) " plugins" } " " (plural_word(ill, "needs", "need")) " attention" } }
                @if dead > 0 { li { a href="/deadletters" { (grouped_figure(dead)) " " (plural_word(dead, "dead letter", "dead letters")) } } }
                @if gaps > 0 { li { a href="/gaps" { (grouped_figure(gaps)) " " (plural_word(gaps, "gap", "gaps")) } ", each with its bounds" } }
            }
        }
    }
}

/// The columns of the table of plugins.
const FIGURES: [&str; 6] = ["Observed", "Delivered", "Filtered", "Dead", "Waiting", "Taken"];

fn render_plugins(plugins: &[PluginView]) -> Markup {
    html! {
        div.scroll tabindex="0" role="group" aria-label="Plugins" { table.dense.folds {
            caption { "Observed = delivered + filtered + dead + waiting + taken" }
            thead { tr {
                th scope="col" { "Plugin" } th scope="col" { "State" }
                @for name in FIGURES { th.num scope="col" { (name) } }
                th scope="col" { "Complete" } th.num scope="col" { "Oldest waiting" }
            } }
            tbody { @for plugin in plugins { tr data-key={ "row-" (plugin.name) } {
                th scope="row" { (plugin.name) }
                td data-label="State" { span.state data-state=(plugin.state) { (plugin.state) } }
                @for (name, count) in FIGURES.into_iter().zip([plugin.observed, plugin.delivered, plugin.filtered, plugin.dead, plugin.waiting, plugin.taken]) {
                    td.num data-label=(name) { (grouped_figure(count)) }
                }
                td.keep data-label="Complete" { @if plugin.state == "failed" && plugin.observed == 0 { "– it does not run" } @else if is_complete(plugin) { "✓ yes" } @else { "✗ no: run kubewitness journal verify" } }
                td.num data-label="Oldest waiting" { @if plugin.lag_seq > 0 { (time::duration_text((plugin.lag_seconds.max(0.0) * 1000.0) as u64)) } }
            } } }
        } }
    }
}

fn render_sources(sources: &[SourceView]) -> Markup {
    html! {
        div.scroll tabindex="0" role="group" aria-label="Sources" { table.dense.folds {
            caption { "What is watched" }
            thead { tr {
                th scope="col" { "Source" } th scope="col" { "Kind" } th scope="col" { "State" }
                th.num scope="col" { "Objects" } th.num scope="col" { "Gaps" } th.num scope="col" { "Poison" }
                th scope="col" { "Last event" } th scope="col" { "Last audit" } th scope="col" { "Retention" }
            } }
            tbody { @for source in sources { tr data-key={ "row-" (source.name) } {
                th scope="row" { (source.name) }
                td.keep data-label="Kind" { (source.kind) }
                td data-label="State" { @if source.synced { span.state data-state="active" { "synced" } } @else { span.state data-state="starting" { "not up to date" } } }
                td.num data-label="Objects" { (grouped_figure(source.objects)) }
                td.num data-label="Gaps" { @if source.gaps > 0 { a href={ "/gaps?source=" (encode(&source.name)) } { (grouped_figure(source.gaps)) } } @else { "0" } }
                td.num data-label="Poison" { (grouped_figure(source.poison)) }
                td.when data-label="Last event" { @if let Some(text) = &source.last_event_at { (at_text(text)) } }
                td.when data-label="Last audit" { @match &source.last_audit_at { Some(text) => (at_text(text)), None => "none yet" } }
                td.keep data-label="Retention" { (source.retention.as_deref().unwrap_or("everything stays")) }
            } } }
        } }
    }
}

fn render_journal(status: &StatusView) -> Markup {
    let journal = &status.journal;
    let held: u64 = status.held.iter().map(|held| held.states).sum();
    html! {
        dl.facts {
            div { dt { "Store" } dd { (journal.store) } }
            div { dt { "States" } dd { (grouped_figure(journal.states)) } }
            div { dt { "Size" } dd { (byte_size_text(journal.bytes)) } }
            div { dt { "Oldest state" } dd { @match &journal.oldest_at { Some(text) => (at_text(text)), None => "none yet" } } }
            div { dt { "Newest position" } dd { (grouped_figure(journal.newest_seq)) } }
            div { dt { "Held beyond retention" } dd { (grouped_figure(held)) " states" } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_with_an_error_is_named_though_it_is_active_and_its_figures_add_up() {
        let verdict = |message: Option<&str>| {
            let plugin = PluginView {
                state: "active".into(),
                message: message.map(Into::into),
                ..PluginView::default()
            };
            let status = StatusView { plugins: vec![plugin], ..StatusView::default() };
            render_verdict(&status, false).into_string()
        };
        assert!(verdict(None).contains("✓ Every source is up to date"));
        let ill = verdict(Some("its tick failed"));
        assert!(ill.contains("✗ Something needs attention") && !ill.contains('✓'), "{ill}");
        assert!(ill.contains("1 of 1 plugins</a> needs attention"), "{ill}");
    }
}
