//! Calls a plugin as the controller does, but without the outside world.
//!
//! An author wants to see a plugin's effects before they are real, and a shadow version must not write to the
//! operator's systems. A separate mock host was rejected: it would behave differently from the real one. So a
//! trial uses the real sandbox and the real capabilities, with a temporary database and ledgers. Requests and
//! messages are answered instead of sent. Intended effects are recorded. Plugins at work never run in it:
//! shadows and the commands for authors do.

mod effects;
mod recorder;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use async_trait::async_trait;
use kubewitness_capability::{
    OpenCapabilities, PluginServices, SecretRedaction, StartPositions, SubscribedKinds,
};
use kubewitness_core::clock::Clock;
use kubewitness_core::config::{
    Bytes, DatabaseSpec, DestinationSpec, HostSpec, KeySpec, LedgerSpec, MailSpec, PluginSpec, RedactionSpec,
    SecretRef, SourceSpec, SqliteSpec,
};
use kubewitness_core::ports::{
    DocumentReader, JournalError, KvWrite, NoteDurability, NoteStore, ObjectLister, OutcomeFinder,
    PluginHandler, StateDelivery, Verdict,
};
use kubewitness_core::{Seq, State};
use kubewitness_sandbox::{PluginComponent, PluginTally, SandboxPlugin};
use serde_json::{Value, json};
use tempfile::TempDir;

pub use effects::{HttpReply, MailReply, NotedEffects, TrialEffect, TrialReply};
pub use recorder::{EffectKeep, EffectRecorder};

/// Digests of secrets are keyed. This key is public, so that the same secret has the same digest in each
/// trial.
const REDACTION_KEY: &str = "a trial of a plugin hides nothing: it sends nothing";
/// The prefix of an Ed25519 key in PKCS#8; its 32 bytes follow.
const KEY_BEGINS: [u8; 16] = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];

/// The stand-ins for the journal, the cache and the clock.
pub struct TrialServices {
    pub documents: Arc<dyn DocumentReader>,
    pub lister: Arc<dyn ObjectLister>,
    pub outcomes: Arc<dyn OutcomeFinder>,
    pub subscribed: SubscribedKinds,
    pub clock: Arc<dyn Clock>,
    /// The entries that the plugin has stored.
    pub kv: Vec<(String, Vec<u8>)>,
    pub newest: Seq,
    /// The size limit of its database.
    pub database: Option<Bytes>,
    /// The folder for its files while it is called. `None`: a temporary folder.
    pub folder: Option<PathBuf>,
}

/// The folder for the trials of a controller.
pub fn folder(data: &Path) -> PathBuf {
    data.join("trial")
}

/// Removes the files of a controller's trials that were interrupted.
pub fn clear(data: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(folder(data)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The rules that hide secrets from the plugin.
pub enum SecretHiding {
    /// These rules, with a public key.
    Rules(Box<RedactionSpec>),
    /// As in a controller.
    Same(Arc<SecretRedaction>),
}

/// A plugin that is ready to be called, with its grants.
pub struct TrialPlugin {
    pub plugin: SandboxPlugin,
    pub recorder: Arc<EffectRecorder>,
    /// The folder of its database and ledgers while it is called.
    _folder: TempDir,
}

impl TrialPlugin {
    pub async fn open(
        name: &str,
        spec: &PluginSpec,
        component: &PluginComponent,
        lent: TrialServices,
        hiding: SecretHiding,
        keep: EffectKeep,
    ) -> Result<Self> {
        let folder = folder_in(lent.folder.as_deref()).context("making a folder for the trial")?;
        let (rules, same) = match hiding {
            SecretHiding::Rules(rules) => (*rules, None),
            SecretHiding::Same(redaction) => (RedactionSpec::default(), Some(redaction)),
        };
        let mut host = host(spec, rules, folder.path())?;
        for sqlite in host.databases.iter_mut().filter_map(|database| database.sqlite.as_mut()) {
            sqlite.size = lent.database;
        }
        let capabilities = OpenCapabilities::open(&host, folder.path()).await;
        let capabilities = capabilities.map_err(|faults| {
            let messages = faults.iter().map(|fault| format!("{}: {}", fault.field, fault.message));
            anyhow::anyhow!(
                "what the plugin is granted can't be opened: {}",
                messages.collect::<Vec<_>>().join("; ")
            )
        })?;
        let capabilities = match same {
            Some(redaction) => capabilities.hiding_as(redaction),
            None => capabilities,
        };
        let backing = PluginServices {
            documents: lent.documents,
            lister: lent.lister,
            outcomes: lent.outcomes,
            subscribed: lent.subscribed,
            clock: lent.clock,
            uses: Arc::default(),
            kv: lent.kv,
            shared_mutes: Default::default(),
            reports: Default::default(),
            notes: Arc::new(UnreadNotes),
            version: component.file_digest().to_owned(),
            positions: StartPositions { cursor: 0, furthest_cursor: 0, furthest: 0, newest: lent.newest },
        };
        let grants = capabilities.grant_plugin(name, spec, backing).await?;
        let recorder = Arc::new(EffectRecorder::new(grants, &spec.grants, keep));
        let plugin = component.make_plugin(name, &spec.limits, recorder.clone())?;
        Ok(Self { plugin, recorder, _folder: folder })
    }

    /// Counts its calls.
    pub fn counted_by(self, tally: Arc<PluginTally>) -> Self {
        Self { plugin: self.plugin.counted_by(tally), ..self }
    }

    /// Delivers one state. Returns the verdict, or why the call failed.
    pub async fn deliver_state(&self, state: &Arc<State>) -> Value {
        let delivery = StateDelivery { state: state.clone(), attempt: 1, resync: false };
        match self.plugin.handle_batch(&[delivery]).await {
            Ok(outcome) => outcome.verdicts.into_iter().next().map_or(Value::Null, verdict),
            Err(error) => json!({"failed": error.to_string()}),
        }
    }
}

fn folder_in(folder: Option<&Path>) -> io::Result<TempDir> {
    let Some(folder) = folder else { return tempfile::tempdir() };
    std::fs::create_dir_all(folder)?;
    tempfile::tempdir_in(folder)
}

fn verdict(verdict: Verdict) -> Value {
    match verdict {
        Verdict::Done => json!("done"),
        Verdict::Retry { after_ms, reason } => json!({"retry": {"afterMs": after_ms, "reason": reason}}),
        Verdict::Reject(reason) => json!({"reject": reason}),
    }
}

/// `Job team/train-1`
pub fn object_of(state: &State) -> String {
    let object = &state.object;
    let place = if object.namespace.is_empty() { String::new() } else { format!("{}/", object.namespace) };
    format!("{} {place}{}", object.kind, object.name)
}

/// A trial never restarts, so its notes are never read.
struct UnreadNotes;

#[async_trait]
impl NoteStore for UnreadNotes {
    async fn save_notes(&self, _: &str, _: Vec<KvWrite>, _: NoteDurability) -> Result<(), JournalError> {
        Ok(())
    }

    fn note_later(&self, _: &str, _: Vec<KvWrite>) {}
}

/// A host with everything that the plugin is granted, in a separate folder.
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

/// A host that has everything that a plugin names.
pub fn host_for(spec: &PluginSpec) -> HostSpec {
    let PluginSpec { subscribe, grants, .. } = spec.clone();
    let granted = grants.lister.into_iter().chain(grants.outcomes);
    let sources: BTreeSet<_> = subscribe.into_iter().map(|s| s.source).chain(granted).collect();
    let secret = || SecretRef::Env("UNCHECKED".into());
    HostSpec {
        sources: sources.iter().map(|name| source(name)).collect(),
        databases: distinct_names(grants.sql, |g| g.database)
            .map(|name| DatabaseSpec {
                name,
                sqlite: Some(SqliteSpec { path: "unchecked.db".into(), size: None }),
                ..DatabaseSpec::default()
            })
            .collect(),
        destinations: distinct_names(grants.http, |g| g.destination)
            .map(|name| DestinationSpec::of(&name, "http://unchecked.invalid"))
            .collect(),
        mail: distinct_names(grants.mail, |g| g.server).map(|name| MailSpec::of(&name)).collect(),
        ledgers: distinct_names(grants.ledger, |g| g.ledger)
            .map(|name| LedgerSpec { name, path: "unchecked.jsonl".into(), ..LedgerSpec::default() })
            .collect(),
        keys: distinct_names(grants.keys, |g| g.key)
            .map(|name| KeySpec { name, value_from: secret() })
            .collect(),
        ..HostSpec::default()
    }
}

/// Two grants may name the same thing.
fn distinct_names<T>(grants: Vec<T>, name: fn(T) -> String) -> impl Iterator<Item = String> {
    grants.into_iter().map(name).collect::<BTreeSet<_>>().into_iter()
}

fn source(name: &str) -> SourceSpec {
    SourceSpec::of(name, "v1", "Unchecked")
}

pub fn base64_of(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_each_thing_once_however_many_grants_are_of_it() {
        let spec: PluginSpec = serde_json::from_value(serde_json::json!({
            "module": {"file": "x.wasm"},
            "subscribe": [],
            "grants": {
                "http": [{"name": "ops", "destination": "slack"}, {"name": "vision", "destination": "slack"}],
                "mail": [{"name": "a", "server": "relay"}, {"name": "b", "server": "relay"}],
            },
        }))
        .unwrap();
        let host = host_for(&spec);
        assert_eq!((host.destinations.len(), host.mail.len()), (1, 1));
    }
}
