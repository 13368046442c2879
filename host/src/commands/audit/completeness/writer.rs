//! The plugin that writes a trail: its subscriptions and its progress.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use kubewitness_core::State;
use kubewitness_core::config::{DocumentsGrant, HostSpec, LedgerSpec, Mode, PluginSpec, SubscribeSpec};
use kubewitness_core::ledger::{LedgerProgress, is_closed_file};
use kubewitness_journal::{JournalLocation, PluginAccount, account_at};

use super::ELSEWHERE;
use crate::commands::journal::{host_of, place_hint};
use crate::config::last_good::LastGood;
use crate::config::manifest::{ParsedManifest, parse_plugin};

/// The facts about the plugin that writes a ledger. If several plugins are granted it, nobody knows which of
/// them write.
#[derive(Debug, Default)]
pub struct LedgerWriter {
    /// Sources of which it does not receive every state, or did not at some time.
    pub selective: BTreeSet<String>,
    /// Whether it is granted the digests of documents as the API server sent them.
    pub has_digests: bool,
    /// Its progress; `None` if unknown.
    pub account: Option<PluginAccount>,
    /// The progress of the ledger when the accounts were read.
    pub reached: Option<LedgerProgress>,
    /// `records` of its `signing`.
    pub signed_every: Option<u64>,
}

/// The plugin's treatment of a state that the trail lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingOutcome {
    /// It must be in the trail.
    Finished,
    Waiting,
    DeadLetter,
    /// It is not in the subscription, or a filter or a mode may have held it back.
    Other,
}

impl LedgerWriter {
    /// Whether it is known which states were delivered.
    pub fn is_known(&self) -> bool {
        self.account.is_some()
    }

    /// `None` if unknown.
    pub fn outcome_of_state(&self, state: &State) -> Option<MissingOutcome> {
        let PluginAccount { progress, letters, owed } = self.account.as_ref()?;
        Some(match () {
            () if !progress.sources.iter().any(|start| start.covers_state(state)) => MissingOutcome::Other,
            () if letters.contains(&state.seq) => MissingOutcome::DeadLetter,
            () if owed.contains(&state.seq) => MissingOutcome::Waiting,
            () if !progress.has_finished(&state.source, state.seq) => MissingOutcome::Waiting,
            () if self.selective.contains(&*state.source) => MissingOutcome::Other,
            () => MissingOutcome::Finished,
        })
    }

    /// The number of delivered states, each of which left a record; `None` if unknown.
    pub fn count_delivered(&self) -> Option<u64> {
        self.account.as_ref().map(|account| account.progress.delivered)
    }

    pub fn why_missing(&self) -> String {
        let Some(account) = &self.account else {
            return "they wait, were parked (`kubewitness deadletters list`), or somebody removed them"
                .to_owned();
        };
        let held_back = account.progress.filtered;
        match held_back {
            0 => ELSEWHERE.to_owned(),
            _ => format!("{ELSEWHERE}, or they are among the {held_back} that a filter or a mode held back"),
        }
    }
}

/// Reads what the configuration in force says about the plugin that writes these files, and what the journal
/// has of it. Must be called before the files are read: a running plugin appends first, and then records that
/// it did.
pub async fn find_ledger_writer(
    data: &Path,
    files: &[PathBuf],
    place: &JournalLocation,
) -> Result<LedgerWriter> {
    let Some(host) = host_of(data)? else { return Ok(LedgerWriter::default()) };
    let kept = LastGood::open(data).and_then(|last_good| last_good.plugins());
    let kept = kept.context("reading the plugins that were taken last")?;
    let Some(ledger) = ledger_of(&host, data, files) else { return Ok(LedgerWriter::default()) };
    let plugins = kept.values().filter_map(|good| parse_plugin(&good.entry, &host).ok());
    let plugins: Vec<_> = plugins
        .filter(|plugin| plugin.spec.grants.ledger.iter().any(|grant| grant.ledger == ledger.name))
        .collect();
    let has_digests =
        |plugin: &ParsedManifest<PluginSpec>| plugin.spec.grants.documents != DocumentsGrant::Redacted;
    let has_digests = !plugins.is_empty() && plugins.iter().all(has_digests);
    let name = <&[_; 1]>::try_from(plugins.as_slice()).ok().map(|[plugin]| plugin.name.clone());
    let is_some =
        |subscription: &SubscribeSpec| subscription.mode != Mode::Every || subscription.filter.is_some();
    let subscriptions = plugins.into_iter().flat_map(|plugin| plugin.spec.subscribe);
    let selective = subscriptions.filter(is_some).map(|subscription| subscription.source).collect();
    let found = account_at(place, name.as_deref(), &ledger.name).await;
    let found = found.with_context(|| place_hint("reading", place))?;
    let signed_every = ledger.signing.as_ref().map(|signing| signing.records);
    // A progress from an older version does not contain where its sources begin.
    let account = found.account.filter(|account| !account.progress.sources.is_empty());
    let mut writer = LedgerWriter { selective, has_digests, account, reached: found.reached, signed_every };
    if let Some(account) = &writer.account {
        // States that were in transit when a source was unsubscribed are held back.
        let ended = account.progress.sources.iter().filter(|start| start.until.is_some());
        writer.selective.extend(ended.map(|start| start.source.to_string()));
    }
    Ok(writer)
}

/// The ledger to which these files belong: by their place, or by their names if only one ledger has them.
fn ledger_of<'h>(host: &'h HostSpec, data: &Path, files: &[PathBuf]) -> Option<&'h LedgerSpec> {
    let same = |one: &Path, other: &Path| {
        one.canonicalize().ok().is_some_and(|one| other.canonicalize().is_ok_and(|other| one == other))
    };
    let is_named = |open: &Path, file: &PathBuf| {
        file.file_name().is_some_and(|name| {
            Some(name) == open.file_name() || is_closed_file(open, &open.with_file_name(name))
        })
    };
    let folder = |path: &Path| path.parent().map(Path::to_path_buf).unwrap_or_default();
    let is_there =
        |open: &Path, file: &PathBuf| is_named(open, file) && same(&folder(open), &folder(file).join("."));
    let of = |is_it: &dyn Fn(&Path, &PathBuf) -> bool| -> Vec<_> {
        let has = |ledger: &&LedgerSpec| {
            let open = data.join(&ledger.path);
            files.iter().any(|file| is_it(&open, file))
        };
        host.ledgers.iter().filter(has).collect()
    };
    match (of(&is_there).as_slice(), of(&is_named).as_slice()) {
        ([ledger], _) | ([], [ledger]) => Some(*ledger),
        _ => None,
    }
}
