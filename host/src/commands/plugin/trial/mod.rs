//! Delivers states and ticks to a plugin as the controller does, but without the outside world.
//!
//! The commands for authors compare the effects of two runs, so the same objects must have the same effects.
//! So everything that varies is fixed: the database is a temporary file, requests are answered and not sent,
//! and the clock is the time of the state. It calls no controller and no cluster.

mod measure;
mod stand_ins;
mod steps;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use kubewitness_core::calendar;
use kubewitness_core::config::RedactionSpec;
use kubewitness_core::ports::{NoOutcomes, PluginHandler, ScheduledCall};
use kubewitness_core::{Seq, State};
use serde::Serialize;
use serde_json::{Value, json};

use super::subject::TrialSubject;
use crate::commands::print::clean_line;
use crate::controller::trial::{self, EffectKeep, SecretHiding, TrialServices, object_of};
pub use crate::controller::trial::{TrialEffect, TrialReply, base64_of};
pub use measure::{CallCost, measure};
pub use stand_ins::{ObservedTimes, RecordedState, StandIns};
use steps::TrialStep;
#[cfg(test)]
pub use steps::next_tick;
pub use steps::tick_of;

/// How many bytes of one call's effects are kept. The plugin may have more.
const KEPT: usize = 64 << 20;

/// The reason for a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum TrialCall {
    State {
        /// Its position in the journal; absent for an object of a file.
        #[serde(skip_serializing_if = "Option::is_none")]
        seq: Option<Seq>,
        /// `Job team/train-1`
        object: String,
        change: String,
        phase: String,
    },
    Tick {
        /// When it was due.
        tick: String,
    },
}

impl TrialCall {
    fn state(state: &State, is_recorded: bool) -> Self {
        Self::State {
            seq: is_recorded.then_some(state.seq),
            object: object_of(state),
            change: state.change.as_str().to_owned(),
            phase: state.status.phase.to_string(),
        }
    }

    pub fn text(&self) -> String {
        match self {
            Self::State { seq, object, change, phase } => {
                let at = seq.map(|seq| format!("{seq} ")).unwrap_or_default();
                format!("{at}{} ({change}): {phase}", clean_line(object))
            }
            Self::Tick { tick } => format!("tick of {tick}"),
        }
    }
}

/// One call, and its effects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HandedCall {
    #[serde(flatten)]
    pub call: TrialCall,
    pub effects: Vec<TrialEffect>,
    pub verdict: Value,
}

impl HandedCall {
    pub fn is_tick(&self) -> bool {
        matches!(self.call, TrialCall::Tick { .. })
    }

    pub fn is_done(&self) -> bool {
        self.verdict == "done"
    }

    pub fn text(&self) -> String {
        let mut text = self.call.text() + "\n";
        for TrialEffect { call, to, what, refused } in &self.effects {
            text.push_str(&format!("  {call:<13} {}", clean_line(to)));
            for (name, value) in what {
                let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                text.push_str(&format!("  {name}={}", clean_line(&value)));
            }
            if let Some(why) = refused {
                text.push_str(&format!("  refused: {}", clean_line(why)));
            }
            text.push('\n');
        }
        let verdict = self.verdict.as_str().map_or_else(|| self.verdict.to_string(), str::to_owned);
        text.push_str(&format!("  {:<13} {}\n", "verdict", clean_line(&verdict)));
        text
    }
}

/// The states of a trial, and the stand-ins that answer the plugin.
pub struct PluginTrial {
    pub stand_ins: StandIns,
    pub replies: Vec<TrialReply>,
    /// The parts of a document that are hidden from the plugin. `None`: what a host hides by default.
    pub redaction: Option<RedactionSpec>,
    /// Only the cost matters: no effect is recorded.
    pub is_measured: bool,
}

pub struct TriedCalls {
    pub handed: Vec<HandedCall>,
    /// The time of the plugin's calls, without the work around them.
    pub took: Duration,
}

/// Makes the calls, one at a time.
pub async fn run_trial(subject: &TrialSubject, trial: PluginTrial) -> Result<TriedCalls> {
    hand_each(&TrialStage::open(subject, trial).await?).await
}

/// A plugin in the trial's surroundings, with the time and the cache that it sees.
struct TrialStage {
    stage: trial::TrialPlugin,
    stand_ins: Arc<StandIns>,
}

impl TrialStage {
    async fn open(subject: &TrialSubject, trial: PluginTrial) -> Result<Self> {
        let TrialSubject { name, spec, component, .. } = subject;
        let stand_ins = Arc::new(trial.stand_ins);
        let lent = TrialServices {
            folder: None,
            documents: stand_ins.clone(),
            lister: stand_ins.clone(),
            outcomes: Arc::new(NoOutcomes),
            subscribed: stand_ins.subscribed_kinds(spec),
            clock: stand_ins.clone(),
            kv: Vec::new(),
            newest: stand_ins.newest_position(),
            database: None,
        };
        let hiding = SecretHiding::Rules(trial.redaction.unwrap_or_default().into());
        let keep = match trial.is_measured {
            true => EffectKeep::Nothing(trial.replies),
            false => EffectKeep::Bytes(KEPT, trial.replies),
        };
        let stage = trial::TrialPlugin::open(name, spec, component, lent, hiding, keep).await?;
        Ok(Self { stage, stand_ins })
    }
}

async fn hand_each(TrialStage { stage, stand_ins }: &TrialStage) -> Result<TriedCalls> {
    let (mut handed, mut took) = (Vec::new(), Duration::ZERO);
    for step in stand_ins.steps() {
        stand_ins.show_step(step);
        let begun = Instant::now();
        let verdict = match step {
            TrialStep::State(state) => stage.deliver_state(state).await,
            TrialStep::Tick { due_ms, timeout } => {
                let tick = ScheduledCall { due_ms: *due_ms, timeout: *timeout };
                let called = stage.plugin.handle_tick(tick).await;
                called.map_or_else(|error| json!({"failed": error.to_string()}), |_| json!("done"))
            }
        };
        took += begun.elapsed();
        handed.push(HandedCall {
            call: match step {
                TrialStep::State(state) => TrialCall::state(state, stand_ins.is_recorded()),
                TrialStep::Tick { due_ms, .. } => TrialCall::Tick { tick: calendar::format_rfc3339(*due_ms) },
            },
            effects: stage.recorder.take().effects,
            verdict,
        });
    }
    Ok(TriedCalls { handed, took })
}
