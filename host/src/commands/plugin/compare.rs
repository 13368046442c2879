//! Compares the effects of two versions of a plugin for the same states.

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use super::trial::{HandedCall, TrialCall, TrialEffect, TriedCalls};
use crate::cli::Output;
use crate::commands::print::{self, coloured_mark, line_diff};
use crate::commands::{CommandEnd, CommandResult};

/// How many differing states are printed. The count includes all of them.
const SHOWN: usize = 20;
/// The names of the two sides in a difference.
const SIDES: [&str; 2] = ["the other version", "this version"];

#[derive(Debug, Serialize)]
struct TrialComparison {
    states: usize,
    same: usize,
    differ: usize,
    this: ComparedSide,
    against: ComparedSide,
    differences: Vec<EffectDifference>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct ComparedSide {
    not_done: usize,
    effects: usize,
    /// The duration of all calls together.
    took_micros: u128,
}

#[derive(Debug, Serialize)]
struct EffectDifference {
    #[serde(flatten)]
    call: TrialCall,
    this: SideEffects,
    against: SideEffects,
}

#[derive(Debug, Serialize)]
struct SideEffects {
    effects: Vec<TrialEffect>,
    verdict: Value,
}

/// `rest` is the remark about the states that were not delivered.
pub fn print_comparison(output: &Output, this: TriedCalls, against: TriedCalls, rest: &str) -> CommandResult {
    let comparison = compare_calls(this, against);
    print::print_value(*output, &comparison, |comparison| text(comparison, print::is_coloured()) + rest)?;
    Ok(if comparison.differ == 0 { CommandEnd::Fine } else { CommandEnd::Failed })
}

fn compare_calls(this: TriedCalls, against: TriedCalls) -> TrialComparison {
    let sides = [compared_side(&this), compared_side(&against)];
    let states = this.handed.len();
    let pairs = this.handed.into_iter().zip(against.handed);
    let differing = pairs.filter(|(this, against)| this != against);
    let differences: Vec<_> = differing
        .map(|(this, against)| EffectDifference {
            call: this.call.clone(),
            this: side_effects(this),
            against: side_effects(against),
        })
        .collect();
    let [this, against] = sides;
    let differ = differences.len();
    TrialComparison { states, same: states - differ, differ, this, against, differences }
}

fn side_effects(handed: HandedCall) -> SideEffects {
    SideEffects { effects: handed.effects, verdict: handed.verdict }
}

fn compared_side(tried: &TriedCalls) -> ComparedSide {
    ComparedSide {
        not_done: tried.handed.iter().filter(|handed| !handed.is_done()).count(),
        effects: tried.handed.iter().map(|handed| handed.effects.len()).sum(),
        took_micros: tried.took.as_micros(),
    }
}

fn text(comparison: &TrialComparison, coloured: bool) -> String {
    let mut text = String::new();
    for EffectDifference { call, this, against } in comparison.differences.iter().take(SHOWN) {
        let [before, after] = [against, this].map(json_lines);
        text.push_str(&format!("{}\n", call.text()));
        text.push_str(&line_diff::unified_diff(&SIDES.map(str::to_owned), &before, &after, coloured));
        text.push('\n');
    }
    let TrialComparison { states, same, differ, this, against, .. } = comparison;
    if *differ > SHOWN {
        text.push_str(&format!("{} more states differ; `-o json` has them all\n\n", differ - SHOWN));
    }
    let mark = coloured_mark(*differ == 0 && *states > 0);
    text.push_str(&format!("{mark} states: {states}, same: {same}, different: {differ}\n"));
    for (name, side) in SIDES.iter().zip([against, this]) {
        let ComparedSide { not_done, effects, took_micros } = side;
        let mean = took_micros.checked_div(*states as u128).unwrap_or_default();
        let mean = Duration::from_micros(mean.try_into().unwrap_or(u64::MAX));
        text.push_str(&format!("  {name}: not done {not_done}, effects {effects}, {mean:?} a state\n"));
    }
    text.push_str("Nothing was sent, and nothing is kept.\n");
    text
}

/// As JSON with many lines, so that a diff shows the difference.
fn json_lines(did: &SideEffects) -> String {
    serde_json::to_string_pretty(did).unwrap_or_else(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tried(bodies: &[&str], took: u64) -> TriedCalls {
        let effect = |body: &str| TrialEffect {
            call: "http.send",
            to: "people".into(),
            what: json!({"body": body}).as_object().cloned().unwrap_or_default(),
            refused: None,
        };
        let handed = bodies.iter().zip(1..).map(|(body, seq)| HandedCall {
            call: TrialCall::State {
                seq: Some(seq),
                object: format!("Job team/{seq}"),
                change: "present".into(),
                phase: "Failed".into(),
            },
            effects: vec![effect(body)],
            verdict: json!("done"),
        });
        TriedCalls { handed: handed.collect(), took: Duration::from_micros(took) }
    }

    #[test]
    fn what_two_versions_do_alike_is_counted_and_what_differs_is_shown() {
        let comparison = compare_calls(tried(&["a", "b"], 40), tried(&["a", "c"], 20));
        let text = text(&comparison, false);
        for part in [
            "2 Job team/2 (present): Failed\n--- the other version\n+++ this version",
            "-      \"body\": \"c\"\n+      \"body\": \"b\"",
            "states: 2, same: 1, different: 1",
            "  the other version: not done 0, effects 2, 10µs a state",
            "  this version: not done 0, effects 2, 20µs a state",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("Job team/1"), "{text}");
        let same = compare_calls(tried(&["a"], 1), tried(&["a"], 1));
        assert_eq!((same.same, same.differ, same.differences.len()), (1, 0, 0));
        let none = compare_calls(tried(&[], 0), tried(&[], 0));
        assert!(super::text(&none, false).contains("states: 0"));
    }

    #[test]
    fn many_differences_are_counted_and_the_first_are_shown() {
        let (ones, others) = (vec!["a"; SHOWN + 5], vec!["b"; SHOWN + 5]);
        let text = text(&compare_calls(tried(&ones, 1), tried(&others, 1)), false);
        assert!(text.contains("5 more states differ; `-o json` has them all"), "{text}");
    }
}
