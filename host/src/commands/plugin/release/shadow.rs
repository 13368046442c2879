//! `kubewitness plugin shadow`: compares the shadow version of a plugin with the version at work.

use anyhow::{Result, anyhow};
use kubewitness_core::views::{ShadowActView, ShadowDifferenceView, ShadowSideView, ShadowView};

use crate::cli::ShadowPluginArgs;
use crate::commands::api::{ApiClient, plugin_views};
use crate::commands::print::{self, clean_line, coloured_mark, line_diff};
use crate::commands::{CommandEnd, CommandResult};

const SIDES: [&str; 2] = ["the version at work", "in the shadow"];

pub async fn shadow(args: ShadowPluginArgs) -> CommandResult {
    let client = ApiClient::reach_controller(&args.query.reach).await?;
    let shadow = find(&client, &args.name).await?;
    print::print_value(args.query.output, &shadow, |shadow| text(shadow, print::is_coloured()))?;
    Ok(command_end(&shadow))
}

fn command_end(shadow: &ShadowView) -> CommandEnd {
    match (shadow.states, shadow.different) {
        (0, _) => CommandEnd::Warned,
        (_, 0) => CommandEnd::Fine,
        _ => CommandEnd::Failed,
    }
}

/// The comparison that the controller runs now.
pub async fn find(client: &ApiClient, name: &str) -> Result<ShadowView> {
    let plugin = plugin_views(client, Some(name)).await?.into_iter().next();
    plugin.and_then(|plugin| plugin.shadow).ok_or_else(|| {
        anyhow!(
            "the plugin `{}` has no version in its shadow: `spec.shadow.module` of its manifest names one, and \
             `kubewitness plugins` says whether that was taken",
            clean_line(name)
        )
    })
}

fn text(shadow: &ShadowView, coloured: bool) -> String {
    let mut text = String::new();
    for ShadowDifferenceView { id, seq, object, change, phase, active, shadow } in &shadow.differences {
        let at = format!("{seq} {object} ({change}): {phase}, state {id}");
        text.push_str(&format!("{}\n", clean_line(&at)));
        let [before, after] = [active, shadow].map(json_lines);
        text.push_str(&line_diff::unified_diff(&SIDES.map(str::to_owned), &before, &after, coloured));
        text.push('\n');
    }
    let ShadowView { digest, since, states, same, different, missed, .. } = shadow;
    let more = different.saturating_sub(shadow.differences.len() as u64);
    if more > 0 {
        text.push_str(&format!("{more} more states differ, and are not kept\n\n"));
    }
    let digest: String = digest.chars().take(12).collect();
    // Without any state, the result is not good.
    let mark = coloured_mark(*states > 0 && *different == 0);
    text.push_str(&format!(
        "{mark} states: {states}, same: {same}, different: {different}, missed: {missed}; {digest} in the shadow since {}\n",
        clean_line(since)
    ));
    match states {
        0 => text.push_str("No state was compared yet, so nothing is known of the version in the shadow.\n"),
        _ => {
            for (name, side) in SIDES.iter().zip([&shadow.active, &shadow.shadow]) {
                text.push_str(&format!("  {name}: {}\n", cost_text(side, *states)));
            }
        }
    }
    if let Some(message) = &shadow.message {
        text.push_str(&format!("{}\n", clean_line(message)));
    }
    text.push_str("The effects of both were held back.\n");
    text
}

fn cost_text(side: &ShadowSideView, states: u64) -> String {
    let ShadowSideView { not_done, effects, seconds, guest_seconds, peak_memory } = side;
    let micros = |seconds: f64| (1e6 * seconds / states.max(1) as f64).round();
    format!(
        "not done {not_done}, effects {effects}, {}µs a state, {}µs of it in the plugin, {} KiB at most",
        micros(*seconds),
        micros(*guest_seconds),
        peak_memory >> 10
    )
}

/// As JSON with many lines, so that a diff shows the difference.
fn json_lines(act: &ShadowActView) -> String {
    serde_json::to_string_pretty(act).unwrap_or_else(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn where_nothing_was_compared_nothing_is_called_good() {
        let nothing = ShadowView { missed: 3, message: Some("it traps".into()), ..ShadowView::default() };
        assert_eq!(command_end(&nothing), CommandEnd::Warned);
        let shown = text(&nothing, false);
        assert!(
            shown.starts_with(&format!(
                "{} states: 0, same: 0, different: 0, missed: 3;",
                coloured_mark(false)
            )),
            "{shown}"
        );
        assert!(shown.contains("No state was compared yet") && shown.contains("it traps\n"), "{shown}");
        assert!(!shown.contains(coloured_mark(true)) && !shown.contains("a state,"), "{shown}");
        let one = ShadowView { states: 1, same: 1, ..nothing };
        assert_eq!(command_end(&one), CommandEnd::Fine);
        assert!(text(&one, false).starts_with(coloured_mark(true)));
        assert_eq!(command_end(&ShadowView { different: 1, ..one }), CommandEnd::Failed);
    }

    #[test]
    fn a_difference_is_shown_with_both_effects_and_the_sums_below() {
        let act = |body: &str| ShadowActView {
            effects: vec![json!({"call": "http.send", "body": body})],
            more: 0,
            verdict: json!("done"),
        };
        let difference = ShadowDifferenceView {
            id: "jobs/0/u/1".into(),
            seq: 7,
            object: "Job team/a\u{1b}".into(),
            change: "present".into(),
            phase: "Failed".into(),
            active: act("a"),
            shadow: act("b"),
        };
        let side = ShadowSideView { effects: 4, seconds: 0.001, peak_memory: 2048, ..Default::default() };
        let view = ShadowView {
            digest: "0123456789abcdef".into(),
            states: 4,
            same: 2,
            different: 2,
            active: side.clone(),
            shadow: side,
            differences: vec![difference],
            ..ShadowView::default()
        };
        let text = text(&view, false);
        for part in [
            "7 Job team/a· (present): Failed, state jobs/0/u/1\n--- the version at work\n+++ in the shadow",
            "-      \"body\": \"a\"",
            "+      \"body\": \"b\"",
            "1 more states differ",
            "states: 4, same: 2, different: 2, missed: 0; 0123456789ab in the shadow",
            "  in the shadow: not done 0, effects 4, 250µs a state, 0µs of it in the plugin, 2 KiB at most",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
