//! Phases over time, one lane for each object, as SVG. Time is to scale; a phase that is too short to be
//! visible still has its tick. The table below says the same in words.

use std::collections::BTreeMap;
use std::sync::Arc;

use kubewitness_core::views::{DeliveryMap, DeliveryStage};
use kubewitness_core::{Change, Gap, Seq, State};
use maud::{Markup, html};

use super::StoryGaps;
use crate::answer::time;
use crate::pages::gaps::bound_or_open;
use crate::pages::parts::plural_word;

pub(super) struct TimelineLane {
    pub(super) label: String,
    /// Oldest first, never empty.
    pub(super) states: Vec<Arc<State>>,
}

/// The most lanes of one picture; the table has the others.
const LANES: usize = 40;

const LABEL: f64 = 190.0;
const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 26.0;
const BAR: f64 = 16.0;
const TOP: f64 = 24.0;
/// A narrower section has no room for its name.
const NAMED: f64 = 58.0;
const LABEL_CHARS: usize = 26;

struct TimeScale {
    from: u64,
    to: u64,
}

impl TimeScale {
    fn x_of(&self, ms: u64) -> f64 {
        let part = ms.clamp(self.from, self.to) - self.from;
        LABEL + (WIDTH - LABEL - 8.0) * part as f64 / (self.to - self.from) as f64
    }
}

/// A shorter axis, in ms, shows tenths of a second: otherwise several of its labels would be equal.
const TENTHS: u64 = 10_000;
/// The most marks of one plugin: those of the newest states.
const MARKS: usize = 400;

impl TimelineLane {
    /// Whether the object has ended.
    fn has_ended(&self) -> bool {
        self.states.last().is_some_and(|state| state.status.terminal || state.change != Change::Present)
    }
}

/// `told` has the stage of the first lane's states in each plugin. Running phases are drawn up to `now_ms`;
/// without it, the picture ends with its last state.
pub(super) fn render_timeline(
    lanes: &[TimelineLane],
    told: &DeliveryMap,
    holes: &StoryGaps,
    now_ms: Option<u64>,
) -> Markup {
    let times = || lanes.iter().flat_map(|lane| &lane.states).map(|state| state.observed_ms);
    let from = times().min().unwrap_or(0);
    let now_ms = now_ms.filter(|_| !lanes.iter().all(TimelineLane::has_ended));
    // At least a second, so that an object that was seen once has a bar as well.
    let scale = TimeScale { from, to: times().chain(now_ms).max().unwrap_or(0).max(from + 1000) };
    let shown = &lanes[..lanes.len().min(LANES)];
    let height = TOP + HEIGHT * (shown.len() + told.len()) as f64 + 6.0;
    html! {
        div.scroll.lanes tabindex="0" role="group" aria-label="Phases over time" {
            svg viewBox={ "0 0 " (WIDTH) " " (height) } role="img" aria-labelledby="lanes-title" {
                title #lanes-title {
                    "Phases of " (lanes.len()) " " (plural_word(lanes.len() as u64, "object", "objects")) " from " (time::readable_time(scale.from)) " to " (time::readable_time(scale.to))
                    "; the tables below list each state"
                }
                @for step in 0..=4 { (render_grid(&scale, step, height)) }
                @for (index, lane) in shown.iter().enumerate() { (render_bar(lane, &scale, TOP + HEIGHT * index as f64, holes)) }
                @if let Some(lane) = shown.first() {
                    @for (index, (plugin, told)) in told.iter().enumerate() {
                        (render_marks(plugin, told, lane, &scale, TOP + HEIGHT * (shown.len() + index) as f64))
                    }
                }
            }
        }
        @if lanes.len() > LANES { p.note { "The first " (LANES) " of " (lanes.len()) " objects." } }
    }
}

fn render_grid(scale: &TimeScale, step: u64, height: f64) -> Markup {
    let ms = scale.from + (scale.to - scale.from) * step / 4;
    let x = scale.x_of(ms);
    let anchor = match step {
        0 => "start",
        4 => "end",
        _ => "middle",
    };
    let is_short = scale.to - scale.from < TENTHS;
    html! {
        line.grid x1=(round_to_tenth(x)) x2=(round_to_tenth(x)) y1=(TOP - 6.0) y2=(height) {}
        text.axis x=(round_to_tenth(x)) y="12" text-anchor=(anchor) data-ms=(ms) data-tenths[is_short] {
            (time::clock_time(ms)) @if is_short { "." (ms / 100 % 10) }
        }
    }
}

fn render_bar(lane: &TimelineLane, scale: &TimeScale, y: f64, holes: &StoryGaps) -> Markup {
    let last = lane.states.last();
    let end = last.filter(|_| lane.has_ended()).map_or(scale.to, |state| state.observed_ms);
    html! {
        text.label x="0" y=(y + BAR - 3.0) { title { (lane.label) } (shorten_label(&lane.label)) }
        @for LaneStretch { phase, from, to } in lane_stretches(lane, end) {
            @let (x, width) = (scale.x_of(from), (scale.x_of(to) - scale.x_of(from)).max(2.0));
            @if let Some(phase) = phase { g.span data-phase=(phase) {
                title { (phase) ", " (time::readable_time(from)) ", " (time::duration_text(to - from)) }
                rect x=(round_to_tenth(x)) y=(y) width=(round_to_tenth(width)) height=(BAR) rx="2" {}
                @if width > NAMED { text x=(round_to_tenth(x + 6.0)) y=(y + BAR - 4.5) { (phase) } }
            } }
            @else { rect.unseen x=(round_to_tenth(x)) y=(y) width=(round_to_tenth(width)) height=(BAR) { title { "Nobody saw it here" } } }
        }
        @for state in &lane.states {
            @let x = round_to_tenth(scale.x_of(state.observed_ms));
            line.tick x1=(x) x2=(x) y1=(y + BAR) y2=(y + BAR + 4.0) {}
            @if state.change == Change::Gap {
                g {
                    title { (missing_text(holes.get(&state.seq))) }
                    line.hole x1=(x) x2=(x) y1=(y - 3.0) y2=(y + BAR + 4.0) {}
                    line.hole x1=(x) x2=(x) y1=(y - 3.0) y2=(y + BAR + 4.0) {}
                }
            }
        }
    }
}

/// A mark for each state: filled if the plugin got it, hollow while it waits, a cross for a dead letter.
fn render_marks(
    plugin: &str,
    told: &BTreeMap<Seq, DeliveryStage>,
    lane: &TimelineLane,
    scale: &TimeScale,
    y: f64,
) -> Markup {
    let middle = y + BAR / 2.0;
    let from = lane.states.len().saturating_sub(MARKS);
    html! {
        text.label x="0" y=(y + BAR - 3.0) { title { (plugin) } (shorten_label(plugin)) }
        @for (state, told) in lane.states[from..].iter().filter_map(|state| Some((state, told.get(&state.seq)?))) {
            @let x = scale.x_of(state.observed_ms);
            g.told data-state=(told.as_str()) {
                title { (plugin) ": " (told.as_str()) " at position " (state.seq) }
                @match told {
                    DeliveryStage::Dead => { path d=(format!("M{:.1} {:.1}l8 8m0 -8l-8 8", x - 4.0, middle - 4.0)) {} }
                    DeliveryStage::Delivered | DeliveryStage::Waiting => { circle cx=(round_to_tenth(x)) cy=(middle) r="4" {} }
                }
            }
        }
    }
}

fn missing_text(hole: Option<&Gap>) -> String {
    match hole {
        Some(gap) => {
            format!(
                "Versions are missing here, between {} and {}: {}",
                bound_or_open(&gap.after),
                bound_or_open(&gap.before),
                gap.reason
            )
        }
        None => "Versions are missing here".into(),
    }
}

#[derive(Debug, PartialEq)]
struct LaneStretch {
    /// `None` if versions are missing, so that the phase is unknown.
    phase: Option<String>,
    from: u64,
    to: u64,
}

fn lane_stretches(lane: &TimelineLane, end: u64) -> Vec<LaneStretch> {
    let mut all: Vec<LaneStretch> = Vec::new();
    // A phase lasts until the next state. The phase before a gap is certain only at its own time.
    let mut seen = None;
    for state in &lane.states {
        let at = state.observed_ms;
        let phase = (state.change != Change::Gap).then(|| state.status.phase.clone());
        let from = if phase.is_none() { seen.unwrap_or(at) } else { at };
        if let Some(open) = all.last_mut() {
            open.to = from.max(open.from);
        }
        if all.last().is_none_or(|open| open.phase != phase) {
            all.push(LaneStretch { phase, from, to: at });
        }
        seen = Some(at);
    }
    if let Some(open) = all.last_mut() {
        open.to = end.max(open.from);
    }
    all
}

fn shorten_label(label: &str) -> String {
    let count = label.chars().count();
    if count <= LABEL_CHARS {
        return label.to_owned();
    }
    // Names of pods differ at their end. The kind is short, or it is cut as well.
    let kind = label.split_once('/').map_or("", |(kind, _)| kind);
    let kind = if (1..=LABEL_CHARS / 2).contains(&kind.chars().count()) {
        format!("{kind}/")
    } else {
        String::new()
    };
    let end: String = label.chars().skip(count + 1 + kind.chars().count() - LABEL_CHARS).collect();
    format!("{kind}…{end}")
}

fn round_to_tenth(x: f64) -> f64 {
    (x * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::object::moment::tests::state;

    #[test]
    fn between_the_last_state_before_a_gap_and_the_gap_no_phase_is_drawn() {
        let states = vec![
            state(10, "1", Change::Present, false),
            state(20, "5", Change::Gap, false),
            state(21, "5", Change::Present, false),
        ];
        let drawn = lane_stretches(&TimelineLane { label: "job".into(), states }, 40_000);
        let phase = || Some("Running".to_owned());
        let expected = [
            LaneStretch { phase: phase(), from: 10_000, to: 10_000 },
            LaneStretch { phase: None, from: 10_000, to: 21_000 },
            LaneStretch { phase: phase(), from: 21_000, to: 40_000 },
        ];
        assert_eq!(drawn, expected);
    }
}
