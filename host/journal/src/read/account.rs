//! Reads the journal's records of the plugin that writes a ledger, and of the ledger itself.

use std::collections::BTreeSet;

use kubewitness_core::Seq;
use kubewitness_core::ledger::LedgerProgress;
use kubewitness_core::ports::{JournalError, NOTE, PluginProgress};
use kubewitness_core::views::LetterQuery;

use crate::report::OpenError;
use crate::store::StoreConnection;
use crate::store::place::JournalLocation;

/// Used in place of a plugin's name; no plugin can have this name.
pub(crate) const LEDGERS: &str = ".ledgers";

/// The progress of a plugin, and the states that were finally not delivered to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PluginAccount {
    pub progress: PluginProgress,
    /// The positions of its dead letters (parked or dropped), and of those that an operator replays.
    pub letters: BTreeSet<Seq>,
    /// Positions that the cursor has passed and that are still to be delivered.
    pub owed: BTreeSet<Seq>,
}

/// All accounts, read at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PluginAccounts {
    /// The account of the requested plugin, if it has a progress.
    pub account: Option<PluginAccount>,
    /// The progress of the requested ledger, if it is signed.
    pub reached: Option<LedgerProgress>,
}

/// The progress of this plugin and of this ledger.
pub async fn account_at(
    place: &JournalLocation,
    plugin: Option<&str>,
    ledger: &str,
) -> Result<PluginAccounts, OpenError> {
    let mut connection = place.open_to_read().await?.connection;
    let read = read(&mut *connection, plugin, ledger).await;
    let path = || place.to_string().into();
    read.map_err(|error| OpenError::Unavailable { path: path(), reason: error.to_string() })
}

async fn read(
    connection: &mut dyn StoreConnection,
    plugin: Option<&str>,
    ledger: &str,
) -> Result<PluginAccounts, JournalError> {
    connection.begin_snapshot().await?;
    let rows = connection.store_reader();
    let mut accounts = PluginAccounts::default();
    if let Some(plugin) = plugin
        && let Some(progress) = rows.plugin_progress(plugin).await?
    {
        let letters =
            rows.dead_letters(&LetterQuery::of(plugin)).await?.into_iter().map(|letter| letter.seq).collect();
        let owed = rows.owed_positions(plugin, 0, i64::from(i32::MAX)).await?;
        let owed = owed.into_iter().map(|seq| seq as Seq).collect();
        accounts.account = Some(PluginAccount { progress, letters, owed });
    }
    accounts.reached = ledger_progress_in(rows.plugin_kv(LEDGERS).await?, ledger)?;
    connection.end_snapshot().await?;
    Ok(accounts)
}

/// The key for the progress of this ledger.
pub(crate) fn ledger_key(ledger: &str) -> String {
    format!("{NOTE}{ledger}")
}

pub(crate) fn ledger_progress_in(
    kept: Vec<(String, Vec<u8>)>,
    ledger: &str,
) -> Result<Option<LedgerProgress>, JournalError> {
    let key = ledger_key(ledger);
    let kept = kept.into_iter().find(|(name, _)| *name == key);
    let read = |(_, value): (_, Vec<u8>)| serde_json::from_slice(&value);
    kept.map(read).transpose().map_err(|error| {
        JournalError::Invalid(format!("what it keeps of the ledger `{ledger}` can't be read: {error}"))
    })
}
