//! The page of plugins: the progress of each, and whether its figures add up. It shows no state. Its form
//! pauses and resumes, and nothing else here has an effect.

mod calls;
mod manifest;
pub(super) mod pausing;
mod shadow;

use axum::extract::State;
use axum::http::Uri;
use kubewitness_core::views::{BackfillView, HeldView, PluginView, StatusView, TickView};
use maud::{Markup, html};

use super::parts::{at_text, grouped_figure, plural_word, render_empty};
use crate::access::PortalViewer;
use crate::answer::ProblemPage;
use crate::answer::frame::PageContent;
use crate::answer::params::QueryParams;
use crate::answer::time;
use crate::app::PortalApp;
use crate::scope::ViewerVisibility;
use pausing::PauseRights;

pub(super) async fn page(
    State(app): State<PortalApp>,
    viewer: PortalViewer,
    uri: Uri,
) -> Result<PageContent, ProblemPage> {
    QueryParams::read(&uri, &[])?;
    let visible = ViewerVisibility::new(&app, &viewer);
    let status = visible.recent_status().await?;
    let not_ready = visible.not_ready().await?;
    let mut cards = Vec::new();
    for plugin in &status.plugins {
        cards.push(render_card(plugin, PauseRights::of(&viewer, &plugin.name).await?));
    }
    let content = html! {
        div.head { h1 { "Plugins" } }
        (render_notices(&status, not_ready.as_deref()))
        section aria-label="Plugins" {
            @if status.restricted { (super::parts::render_restricted("What plugins there are and how far they are")) }
            @else { (render_plugins(&cards)) }
        }
    };
    Ok(PageContent::new("Plugins", "/plugins", content).with_live_figures())
}

/// Problems that belong to no plugin. Each is shown once: what keeps the controller from being ready is often
/// one of the others.
pub(super) fn render_notices(status: &StatusView, not_ready: Option<&str>) -> Markup {
    let is_news = |text: &str| !not_ready.is_some_and(|why| why.contains(text));
    html! {
        @if let Some(why) = not_ready { p.alert { b { "Not ready. " } (why) } }
        @for problem in status.problems.iter().filter(|text| is_news(text)) {
            p.alert { b { "Configuration. " } (problem) }
        }
        (render_holds(&status.held))
        @for source in &status.sources {
            @if let Some(condition) = source.condition.as_deref().filter(|text| is_news(text)) {
                p.alert { b { "Source " (source.name) ". " } (condition) }
            }
            @if let Some(doubt) = &source.doubt {
                p.alert { b { "Source " (source.name) ". " } (doubt) }
            }
        }
        @for stream in &status.streams {
            @if let Some(condition) = &stream.condition {
                p.alert { b { "Stream " (stream.name) ". " } (condition) }
            }
        }
    }
}

/// Renders what blocks retention: the disk fills, and no plugin's own figures say why.
pub(super) fn render_holds(held: &[HeldView]) -> Markup {
    html! {
        @for HeldView { source, holder, states, since, remedy } in held {
            p.alert {
                b { "Retention of " (source) ". " }
                (grouped_figure(*states)) " " (plural_word(*states, "state", "states")) " beyond its bounds held by " (holder) " since "
                (at_text(since)) ": " (remedy)
            }
        }
    }
}

fn render_plugins(cards: &[Markup]) -> Markup {
    if cards.is_empty() {
        return render_empty(
            "No plugin yet",
            &html! {
                "States are journaled all the same, and a plugin that is added later can start from the beginning: apply a ConfigMap labelled "
                code { "kubewitness.dev/plugin=true" } ", or put its manifest into the configuration folder."
            },
        );
    }
    html! {
        div.cards { @for card in cards { (card) } }
    }
}

fn render_card(plugin: &PluginView, may: PauseRights) -> Markup {
    let mut parts = vec![
        ("delivered", plugin.delivered),
        ("filtered", plugin.filtered),
        ("dead", plugin.dead),
        ("waiting", plugin.waiting),
    ];
    // Only retention past cursors removes states that a plugin has not finished.
    parts.extend((plugin.taken > 0).then_some(("taken", plugin.taken)));
    let accounted = parts.iter().map(|(_, count)| count).sum();
    let complete = accounted == plugin.observed;
    let is_ill = plugin.needs_attention();
    html! {
        article.card data-key=(plugin.name) aria-labelledby={ "plugin-" (plugin.name) } {
            header {
                h2 id={ "plugin-" (plugin.name) } { (plugin.name) }
                span.state data-state=(plugin.state) { (plugin.state) }
                @if !plugin.digest.is_empty() {
                    code.digest title=(plugin.digest) { (plugin.digest.get(..12).unwrap_or(&plugin.digest)) }
                }
            }
            @if let Some(module) = &plugin.module { p.module { code { (module) } } }
            @if let Some(message) = &plugin.message { p.alert { (message) } }
            (pausing::of_card(plugin, may))
            (render_proportions(&parts, accounted))
            dl.sum {
                div { dt { "Observed" } dd { (grouped_figure(plugin.observed)) } }
                @for (index, (name, count)) in parts.iter().enumerate() {
                    div.part data-part=(name) {
                        dt { span.sign aria-hidden="true" { (if index == 0 { "=" } else { "+" }) } (name) }
                        dd {
                            @if *name == "dead" && *count > 0 { a href={ "/deadletters?plugin=" (plugin.name) } { (grouped_figure(*count)) } }
                            @else { (grouped_figure(*count)) }
                        }
                    }
                }
            }
            p.verdict.wrong[!complete].soft[is_ill] {
                @if complete && is_ill { "Every observed state is accounted for, but the plugin needs attention." }
                @else if complete { "✓ Every observed state is accounted for." }
                @else { "✗ " (grouped_figure(plugin.observed.abs_diff(accounted))) " states are not accounted for: run kubewitness journal verify." }
            }
            p.lag {
                @if plugin.state == "failed" { "It does not run: no state is handed to it." }
                @else if plugin.lag_seq == 0 && is_ill { "No state waits for it." }
                @else if plugin.lag_seq == 0 { "Up to date." }
                @else {
                    (grouped_figure(plugin.lag_seq)) " " (plural_word(plugin.lag_seq, "position", "positions")) " behind, the oldest unfinished state is "
                    (time::duration_text((plugin.lag_seconds.max(0.0) * 1000.0) as u64)) " old."
                }
                @if plugin.retrying > 0 { " " (grouped_figure(plugin.retrying)) " of the waiting failed before and are tried again." }
            }
            @if let Some(BackfillView { sources, through }) = &plugin.backfill {
                p.lag {
                    "It goes back for the past of " (sources.join(", ")) ", up to position " (grouped_figure(*through)) "."
                }
            }
            (calls::render_calls(plugin))
            @if let Some(tick) = &plugin.tick { p.lag { (render_ticks(tick)) } }
            @if let Some(shadow) = &plugin.shadow { (shadow::render_shadow(&plugin.name, shadow)) }
            @if let Some(manifest) = &plugin.manifest { (manifest::render_manifest(&plugin.name, manifest, &plugin.grants)) }
        }
    }
}

/// The calls on its schedule.
fn render_ticks(TickView { ticks, failed, last, next, error }: &TickView) -> Markup {
    html! {
        (grouped_figure(*ticks)) " " (plural_word(*ticks, "tick", "ticks")) ", " (grouped_figure(*failed)) " failed"
        @if let Some(last) = last { ", the last at " (at_text(last)) }
        @if let Some(next) = next { ", the next at " (at_text(next)) }
        "."
        @if let Some(error) = error { " The last failed: " (error) }
    }
}

fn render_proportions(parts: &[(&str, u64)], total: u64) -> Markup {
    let mut x = 0.0;
    let bars: Vec<(&str, f64, f64)> = parts
        .iter()
        .map(|(name, count)| {
            let width = if total == 0 { 0.0 } else { 100.0 * *count as f64 / total as f64 };
            x += width;
            (*name, x - width, width)
        })
        .collect();
    html! {
        svg.proportions viewBox="0 0 100 3" preserveAspectRatio="none" aria-hidden="true" {
            rect.rest x="0" y="0" width="100" height="3" {}
            @for (name, x, width) in bars { @if width > 0.0 {
                rect data-part=(name) x=(format!("{x:.2}")) y="0" width=(format!("{width:.2}")) height="3" {}
            } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_under_an_alert_is_not_said_to_be_up_to_date() {
        let lag = |state: &str, message: Option<&str>| {
            let plugin =
                PluginView { state: state.into(), message: message.map(Into::into), ..PluginView::default() };
            render_card(&plugin, PauseRights::default()).into_string()
        };
        assert!(lag("active", None).contains("Up to date."));
        for (state, message) in
            [("degraded", Some("no answer")), ("active", Some("no answer")), ("degraded", None)]
        {
            let card = lag(state, message);
            assert!(!card.contains("Up to date.") && card.contains("No state waits for it."), "{card}");
            assert!(card.contains("the plugin needs attention") && !card.contains('✓'), "{card}");
        }
        assert!(lag("failed", Some("no module")).contains("It does not run"));
    }
}
