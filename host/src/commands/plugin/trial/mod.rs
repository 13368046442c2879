//! Hands states and ticks to a plugin as the host does, with nothing behind it: the database is a file that is thrown away, requests
//! are answered and not sent, the clock stands at the time of the state. So the same objects give the same effects.

mod measure;
mod recorder;
mod stand_ins;
mod steps;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use kubewitness_capability::{Backing, Capabilities};
use kubewitness_core::calendar;
use kubewitness_core::config::{HostSpec, PluginSpec, RedactionSpec, SecretRef};
use kubewitness_core::ports::{Delivery, Handler, MailRefusal, Tick, Verdict};
use kubewitness_core::{Seq, State};
use kubewitness_sandbox::Plugin;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::subject::Subject;
use crate::commands::check::host_for;
use crate::commands::print::clean;
pub use measure::{Cost, measure};
use recorder::Recorder;
pub use stand_ins::{Recorded, StandIns};
use steps::Step;
pub use steps::{next_tick, tick_of};

/// Digests of secrets are keyed. This key is no secret, so that the same secret has the same digest in each trial.
const REDACTION_KEY: &str = "a trial of a plugin hides nothing: it sends nothing";
/// What an Ed25519 key in PKCS#8 begins with; its 32 bytes follow.
const KEY_BEGINS: [u8; 16] = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];

/// What a request is answered, or a message: requests and messages take theirs in order, each from its own kind.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Reply {
    Http(HttpReply),
    Mail(MailReply),
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpReply {
    pub status: u16,
    #[serde(default)]
    pub body: String,
}

/// The recipients that the mail server refuses. It takes the message for the others.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MailReply {
    pub refused: Vec<RefusedReply>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RefusedReply {
    pub recipient: String,
    #[serde(default)]
    pub permanent: bool,
    #[serde(default)]
    pub reason: String,
}

impl From<RefusedReply> for MailRefusal {
    fn from(RefusedReply { recipient, permanent, reason }: RefusedReply) -> Self {
        Self { recipient, is_permanent: permanent, reason }
    }
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

/// What a plugin was called for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Call {
    State {
        /// Where it is in the journal; left out for an object of a file.
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

impl Call {
    fn state(state: &State, is_recorded: bool) -> Self {
        let object = &state.object;
        let place =
            if object.namespace.is_empty() { String::new() } else { format!("{}/", object.namespace) };
        Self::State {
            seq: is_recorded.then_some(state.seq),
            object: format!("{} {place}{}", object.kind, object.name),
            change: state.change.as_str().to_owned(),
            phase: state.status.phase.to_string(),
        }
    }

    pub fn text(&self) -> String {
        match self {
            Self::State { seq, object, change, phase } => {
                let at = seq.map(|seq| format!("{seq} ")).unwrap_or_default();
                format!("{at}{} ({change}): {phase}", clean(object))
            }
            Self::Tick { tick } => format!("tick of {tick}"),
        }
    }
}

/// One call, and what the plugin did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Handed {
    #[serde(flatten)]
    pub call: Call,
    pub effects: Vec<Effect>,
    pub verdict: Value,
}

impl Handed {
    pub fn is_tick(&self) -> bool {
        matches!(self.call, Call::Tick { .. })
    }

    pub fn is_done(&self) -> bool {
        self.verdict == "done"
    }

    pub fn text(&self) -> String {
        let mut text = self.call.text() + "\n";
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
    /// Its cost is of interest, and not what it does: no effect is written down.
    pub is_measured: bool,
}

pub struct Tried {
    pub handed: Vec<Handed>,
    /// The calls of the plugin, without what was done around them.
    pub took: Duration,
}

/// Makes the calls, one at a time.
pub async fn hand_over(subject: &Subject, trial: Trial) -> Result<Tried> {
    hand_each(&Stage::open(subject, trial).await?).await
}

/// A plugin that is ready to be called, with what it is granted.
struct Stage {
    plugin: Plugin,
    stand_ins: Arc<StandIns>,
    recorder: Arc<Recorder>,
    /// Where its database and its ledgers are, for as long as it is called.
    _folder: TempDir,
}

impl Stage {
    async fn open(subject: &Subject, trial: Trial) -> Result<Self> {
        let Subject { name, spec, component, .. } = subject;
        let folder = tempfile::tempdir().context("making a folder for the trial")?;
        let host = host(spec, trial.redaction.unwrap_or_default(), folder.path())?;
        let capabilities = Capabilities::open(&host, folder.path()).await;
        let capabilities = capabilities.map_err(|faults| {
            let told = faults.iter().map(|fault| format!("{}: {}", fault.field, fault.message));
            anyhow::anyhow!(
                "what the plugin is granted can't be opened: {}",
                told.collect::<Vec<_>>().join("; ")
            )
        })?;
        let stand_ins = Arc::new(trial.stand_ins);
        let backing = Backing {
            documents: stand_ins.clone(),
            lister: stand_ins.clone(),
            clock: stand_ins.clone(),
            uses: Arc::default(),
            kv: Vec::new(),
            notes: stand_ins.clone(),
            version: component.digest().to_owned(),
            cursor: 0,
            newest: stand_ins.newest(),
        };
        let grants = capabilities.grants(name, spec, backing).await?;
        let recorder = Arc::new(Recorder::new(grants, &spec.grants, trial.replies, trial.is_measured));
        let plugin = component.plugin(name, &spec.limits, recorder.clone())?;
        Ok(Self { plugin, stand_ins, recorder, _folder: folder })
    }
}

async fn hand_each(Stage { plugin, stand_ins, recorder, .. }: &Stage) -> Result<Tried> {
    let (mut handed, mut took) = (Vec::new(), Duration::ZERO);
    for step in stand_ins.steps() {
        stand_ins.show(step);
        let begun = Instant::now();
        let answer = match step {
            Step::State(state) => {
                let delivery = Delivery { state: state.clone(), attempt: 1, resync: false };
                let outcome = plugin.handle(&[delivery]).await;
                outcome.map(|it| it.verdicts.into_iter().next().map_or(Value::Null, verdict))
            }
            Step::Tick { due_ms, timeout } => {
                let tick = Tick { due_ms: *due_ms, timeout: *timeout };
                plugin.tick(tick).await.map(|_| json!("done"))
            }
        };
        took += begun.elapsed();
        handed.push(Handed {
            call: match step {
                Step::State(state) => Call::state(state, stand_ins.is_recorded()),
                Step::Tick { due_ms, .. } => Call::Tick { tick: calendar::rfc3339(*due_ms) },
            },
            effects: recorder.take(),
            verdict: answer.unwrap_or_else(|error| json!({"failed": error.to_string()})),
        });
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
