//! A plugin that is called as the controller calls it, with nothing behind it: the database is a file that is thrown
//! away, requests are answered and not sent. What it would have done is written down. It is no part of a plugin at
//! work: a shadow and the commands for authors try plugins so.

mod effects;
mod recorder;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use async_trait::async_trait;
use kubewitness_capability::{OpenCapabilities, PluginServices, SecretRedaction, SubscribedKinds};
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

/// Digests of secrets are keyed. This key is no secret, so that the same secret has the same digest in each trial.
const REDACTION_KEY: &str = "a trial of a plugin hides nothing: it sends nothing";
/// What an Ed25519 key in PKCS#8 begins with; its 32 bytes follow.
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
    /// The largest that its database may grow.
    pub database: Option<Bytes>,
    /// Where its files are, for as long as it is called. Left out: among the temporary files.
    pub folder: Option<PathBuf>,
}

/// Where the trials of a controller have their files.
pub fn folder(data: &Path) -> PathBuf {
    data.join("trial")
}

/// Removes what the trials of a controller left that did not end by itself.
pub fn clear(data: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(folder(data)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The rules that hide secrets from the plugin.
pub enum SecretHiding {
    /// These rules, and a key that everybody knows.
    Rules(Box<RedactionSpec>),
    /// As a controller does it.
    Same(Arc<SecretRedaction>),
}

/// A plugin that is ready to be called, with what it is granted.
pub struct TrialPlugin {
    pub plugin: SandboxPlugin,
    pub recorder: Arc<EffectRecorder>,
    /// Where its database and its ledgers are, for as long as it is called.
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
            let told = faults.iter().map(|fault| format!("{}: {}", fault.field, fault.message));
            anyhow::anyhow!(
                "what the plugin is granted can't be opened: {}",
                told.collect::<Vec<_>>().join("; ")
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
            told: Default::default(),
            reports: Default::default(),
            notes: Arc::new(UnreadNotes),
            version: component.digest().to_owned(),
            cursor: 0,
            newest: lent.newest,
        };
        let grants = capabilities.grants(name, spec, backing).await?;
        let recorder = Arc::new(EffectRecorder::new(grants, &spec.grants, keep));
        let plugin = component.plugin(name, &spec.limits, recorder.clone())?;
        Ok(Self { plugin, recorder, _folder: folder })
    }

    /// Its calls are counted here.
    pub fn counted_by(self, tally: Arc<PluginTally>) -> Self {
        Self { plugin: self.plugin.counted_by(tally), ..self }
    }

    /// Hands one state over. The answer is the verdict, or why the call failed.
    pub async fn hand_over(&self, state: &Arc<State>) -> Value {
        let delivery = StateDelivery { state: state.clone(), attempt: 1, resync: false };
        match self.plugin.handle(&[delivery]).await {
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

/// A trial has no later start that could read its notes.
struct UnreadNotes;

#[async_trait]
impl NoteStore for UnreadNotes {
    async fn note(&self, _: &str, _: Vec<KvWrite>, _: NoteDurability) -> Result<(), JournalError> {
        Ok(())
    }

    fn note_later(&self, _: &str, _: Vec<KvWrite>) {}
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

/// A host that has whatever a plugin names.
pub fn host_for(spec: &PluginSpec) -> HostSpec {
    let PluginSpec { subscribe, grants, .. } = spec.clone();
    let granted = grants.lister.into_iter().chain(grants.outcomes);
    let sources: BTreeSet<_> = subscribe.into_iter().map(|s| s.source).chain(granted).collect();
    let secret = || SecretRef::Env("UNCHECKED".into());
    HostSpec {
        sources: sources.iter().map(|name| source(name)).collect(),
        databases: once(grants.sql, |g| g.database)
            .map(|name| DatabaseSpec {
                name,
                sqlite: Some(SqliteSpec { path: "unchecked.db".into(), size: None }),
                ..DatabaseSpec::default()
            })
            .collect(),
        destinations: once(grants.http, |g| g.destination)
            .map(|name| DestinationSpec::of(&name, "http://unchecked.invalid"))
            .collect(),
        mail: once(grants.mail, |g| g.server).map(|name| MailSpec::of(&name)).collect(),
        ledgers: once(grants.ledger, |g| g.ledger)
            .map(|name| LedgerSpec { name, path: "unchecked.jsonl".into(), ..LedgerSpec::default() })
            .collect(),
        keys: once(grants.keys, |g| g.key).map(|name| KeySpec { name, value_from: secret() }).collect(),
        ..HostSpec::default()
    }
}

/// Two grants may be of the same.
fn once<T>(grants: Vec<T>, name: fn(T) -> String) -> impl Iterator<Item = String> {
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
