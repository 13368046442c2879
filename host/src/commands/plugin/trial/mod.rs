//! Hands states to a plugin as the host does, with nothing behind it: the database is a file that is thrown away, requests
//! are answered and not sent, the clock stands at the time of the state. So the same objects give the same effects.

mod recorder;
mod stand_ins;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kubewitness_capability::{Backing, Capabilities};
use kubewitness_core::Seq;
use kubewitness_core::config::{Duration as Span, HostSpec, PluginSpec, RedactionSpec, SecretRef};
use kubewitness_core::ports::{Delivery, Handler, Tick, Verdict};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::subject::Subject;
use crate::commands::check::host_for;
use crate::commands::print::clean;
use recorder::Recorder;
pub use stand_ins::{Recorded, StandIns};

/// Digests of secrets are keyed. This key is no secret, so that the same secret has the same digest in each trial.
const REDACTION_KEY: &str = "a trial of a plugin hides nothing: it sends nothing";
/// What an Ed25519 key in PKCS#8 begins with; its 32 bytes follow.
const KEY_BEGINS: [u8; 16] = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];

/// What stands in the place of an object for the tick behind the states.
const TICK: &str = "tick";
/// How long after the last state it is due: what waits for a job to settle does so no longer.
const TICK_AFTER: Duration = Duration::from_secs(60);

/// What an HTTP request is answered.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reply {
    pub status: u16,
    #[serde(default)]
    pub body: String,
}

/// One call that had an effect, or would have had one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Effect {
    pub call: &'static str,
    /// The name that the plugin uses: a database, a destination, a ledger, a key; the level of a log line.
    pub to: String,
    #[serde(flatten)]
    pub what: Map<String, Value>,
    /// Why the host refused it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// One state, and what the plugin did with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Handed {
    /// Where it is in the journal; left out for an object of a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seq: Option<Seq>,
    /// `Job team/train-1`
    pub object: String,
    pub change: String,
    pub phase: String,
    pub effects: Vec<Effect>,
    pub verdict: Value,
}

impl Handed {
    pub fn is_done(&self) -> bool {
        self.verdict == "done"
    }

    /// Whether it is no state, but the tick behind them.
    pub fn is_tick(&self) -> bool {
        self.object == TICK
    }

    pub fn text(&self) -> String {
        let at = self.seq.map(|seq| format!("{seq} ")).unwrap_or_default();
        let mut text = match self.is_tick() {
            true => format!("{TICK}, {} later\n", Span(TICK_AFTER)),
            false => format!("{at}{} ({}): {}\n", clean(&self.object), self.change, self.phase),
        };
        for Effect { call, to, what, refused } in &self.effects {
            text.push_str(&format!("  {call:<13} {}", clean(to)));
            for (name, value) in what {
                let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                text.push_str(&format!("  {name}={}", clean(&value)));
            }
            if let Some(why) = refused {
                text.push_str(&format!("  refused: {}", clean(why)));
            }
            text.push('\n');
        }
        let verdict = self.verdict.as_str().map_or_else(|| self.verdict.to_string(), str::to_owned);
        text.push_str(&format!("  {:<13} {}\n", "verdict", clean(&verdict)));
        text
    }
}

/// What is handed over, and what answers the plugin.
pub struct Trial {
    pub stand_ins: StandIns,
    pub replies: Vec<Reply>,
    /// What is hidden from the plugin. Left out: what a host hides without any setting.
    pub redaction: Option<RedactionSpec>,
    /// Whether the plugin is called for a tick behind the states, if its manifest has a schedule.
    pub ticks: bool,
}

pub struct Tried {
    pub handed: Vec<Handed>,
    /// The calls of the plugin, without what was done around them.
    pub took: Duration,
}

/// Hands over the states, one at a time.
pub async fn hand_over(subject: &Subject, trial: Trial) -> Result<Tried> {
    let stop = CancellationToken::new();
    // The time limits of calls are counted in its ticks.
    tokio::select! {
        () = subject.engine.ticker(stop.clone()) => bail!("the clock of the sandbox has stopped"),
        handed = hand_each(subject, trial) => handed,
    }
}

async fn hand_each(subject: &Subject, trial: Trial) -> Result<Tried> {
    let Subject { name, spec, component, .. } = subject;
    let folder = tempfile::tempdir().context("making a folder for the trial")?;
    let host = host(spec, trial.redaction.unwrap_or_default(), folder.path())?;
    let capabilities = Capabilities::open(&host, folder.path()).await;
    let capabilities = capabilities.map_err(|faults| {
        let told = faults.iter().map(|fault| format!("{}: {}", fault.field, fault.message));
        anyhow::anyhow!("what the plugin is granted can't be opened: {}", told.collect::<Vec<_>>().join("; "))
    })?;
    let stand_ins = Arc::new(trial.stand_ins);
    let backing = Backing {
        documents: stand_ins.clone(),
        lister: stand_ins.clone(),
        clock: stand_ins.clone(),
        uses: Arc::default(),
        kv: Vec::new(),
        cursor: 0,
        newest: stand_ins.newest(),
    };
    let grants = capabilities.grants(name, spec, backing).await?;
    let recorder = Arc::new(Recorder::new(grants, &spec.grants, trial.replies));
    let plugin = component.plugin(name, &spec.limits, recorder.clone())?;
    let (mut handed, mut took) = (Vec::new(), Duration::ZERO);
    for state in stand_ins.states() {
        stand_ins.show(state.seq);
        let object = &state.object;
        let place =
            if object.namespace.is_empty() { String::new() } else { format!("{}/", object.namespace) };
        let delivery = Delivery { state: state.clone(), attempt: 1, resync: false };
        let begun = Instant::now();
        let outcome = plugin.handle(&[delivery]).await;
        took += begun.elapsed();
        let verdict = match outcome {
            Ok(outcome) => outcome.verdicts.into_iter().next().map_or(Value::Null, verdict),
            Err(error) => json!({"failed": error.to_string()}),
        };
        handed.push(Handed {
            seq: stand_ins.is_recorded().then_some(state.seq),
            object: format!("{} {place}{}", object.kind, object.name),
            change: state.change.as_str().to_owned(),
            phase: state.status.phase.to_string(),
            effects: recorder.take(),
            verdict,
        });
    }
    if let Some(schedule) = spec.tick.filter(|_| trial.ticks) {
        let due_ms = stand_ins.wait(TICK_AFTER);
        let ticked = plugin.tick(Tick { due_ms, timeout: schedule.timeout() }).await;
        let verdict = ticked.map_or_else(|error| json!({"failed": error.to_string()}), |_| json!("done"));
        let (seq, object, effects) = (None, TICK.to_owned(), recorder.take());
        handed.push(Handed { seq, object, change: String::new(), phase: String::new(), effects, verdict });
    }
    Ok(Tried { handed, took })
}

fn verdict(verdict: Verdict) -> Value {
    match verdict {
        Verdict::Done => json!("done"),
        Verdict::Retry { after_ms, reason } => json!({"retry": {"afterMs": after_ms, "reason": reason}}),
        Verdict::Reject(reason) => json!({"reject": reason}),
    }
}

/// A host that has what the plugin is granted, in a folder of its own.
fn host(spec: &PluginSpec, redaction: RedactionSpec, folder: &Path) -> Result<HostSpec> {
    let secret = |file: &str, text: &str| {
        let path = folder.join(file);
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        anyhow::Ok(SecretRef::File(path.to_string_lossy().into_owned()))
    };
    let key = base64_of(&[KEY_BEGINS.as_slice(), &[7; 32]].concat());
    let key = secret("signing.key", &key)?;
    let mut host = host_for(spec);
    host.redaction = redaction;
    host.redaction.key_from = Some(secret("redaction.key", REDACTION_KEY)?);
    host.keys.iter_mut().for_each(|spec| spec.value_from = key.clone());
    Ok(host)
}

pub fn base64_of(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}
