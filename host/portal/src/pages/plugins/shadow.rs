//! The shadow version of a plugin, compared with the version at work.

use kubewitness_core::views::{ShadowSideView, ShadowView};
use maud::{Markup, html};

use crate::pages::parts::{at_text, grouped_figure, plural_word};

const MIB: f64 = 1_048_576.0;

pub(super) fn render_shadow(name: &str, shadow: &ShadowView) -> Markup {
    let ShadowView { states, different, missed, .. } = shadow;
    html! {
        section.shadow {
            h3 { "In the shadow" }
            p.lag {
                "Since " (at_text(&shadow.since)) ", the version "
                code title=(shadow.digest) { (shadow.digest.get(..12).unwrap_or(&shadow.digest)) }
                " is compared with the version at work. Its effects are held back. "
                (grouped_figure(*states)) " " (plural_word(*states, "state", "states")) " compared, "
                (grouped_figure(*different)) " different, " (grouped_figure(*missed)) " missed."
            }
            @if let Some(module) = &shadow.module { p.module { code { (module) } } }
            @if let Some(message) = &shadow.message { p.alert { (message) } }
            @if *states > 0 {
                dl.facts.below {
                    @for (place, side) in [("At work", &shadow.active), ("In the shadow", &shadow.shadow)] {
                        div { dt { (place) } dd { (cost_text(side, *states)) } }
                    }
                }
            }
            @if !shadow.differences.is_empty() {
                p.lag { "The first that differ; " code { "kubewitness plugin shadow " (name) } " shows how:" }
                ul {
                    @for it in &shadow.differences {
                        li { (it.object) " (" (it.change) "): " (it.phase) ", state " code { (it.id) } }
                    }
                }
            }
        }
    }
}

fn cost_text(side: &ShadowSideView, states: u64) -> String {
    let each = |seconds: f64| 1_000_000.0 * seconds / states.max(1) as f64;
    format!(
        "{} not done, {} effects, {:.0} µs a state, of which {:.0} µs in the plugin, {:.1} MiB at most",
        grouped_figure(side.not_done),
        grouped_figure(side.effects),
        each(side.seconds),
        each(side.guest_seconds),
        side.peak_memory as f64 / MIB
    )
}
