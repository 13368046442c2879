//! The ids of the states at given positions. Receipts in granted databases have such positions.

use std::collections::{BTreeMap, BTreeSet};

use kubewitness_core::intents::commits::CommitNotes;
use kubewitness_core::ports::{JournalError, NOTE};
use kubewitness_core::{Seq, StateId};

use super::shared_rows::{SharedNames, states_at};
use crate::report::OpenError;
use crate::store::place::JournalLocation;

/// The ids of the states at some positions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownIds {
    pub newest: Seq,
    /// Retention removed some states: a missing position may be one of those.
    pub retained: bool,
    pub ids: BTreeMap<Seq, StateId>,
    /// Damaged, and reported by [`verify_at`]: it is unknown which states they belong to.
    pub unreadable: BTreeSet<Seq>,
    /// The plugins that have a progress; `None` if it can't be read, which [`verify_at`] reports.
    pub plugins: Option<BTreeSet<String>>,
}

/// The journal's notes of the newest commits of each plugin in its granted database.
pub async fn commit_notes_at(place: &JournalLocation) -> Result<BTreeMap<String, CommitNotes>, OpenError> {
    let mut connection = place.open_to_read().await?.connection;
    let read = async {
        let rows = connection.store_reader();
        let mut notes: BTreeMap<String, CommitNotes> = BTreeMap::new();
        for (plugin, _) in rows.plugin_rows().await? {
            let mut of_plugin = CommitNotes::default();
            for (key, value) in rows.plugin_kv(&plugin).await?.iter().filter(|(key, _)| key.starts_with(NOTE))
            {
                // A damaged note keeps its plugin from starting.
                of_plugin.read(key, value);
            }
            notes.insert(plugin, of_plugin);
        }
        Ok::<_, JournalError>(notes)
    };
    let path = || place.to_string().into();
    read.await.map_err(|error| OpenError::Unavailable { path: path(), reason: error.to_string() })
}

/// After this many unreadable states, no more are requested individually.
const UNREADABLE: usize = 256;

/// The ids of the states at these positions.
pub async fn ids_at(place: &JournalLocation, seqs: &[Seq]) -> Result<KnownIds, OpenError> {
    let mut connection = place.open_to_read().await?.connection;
    let read = async {
        let rows = connection.store_reader();
        let newest = rows.journal_stats(0).await?.newest_seq;
        let retained = rows.retention_reader().taken_of_streams().await?.values().any(|taken| *taken > 0);
        let plugins = match rows.retention_reader().progress_of_all().await {
            Ok(progress) => Some(progress.into_iter().map(|(plugin, _)| plugin).collect()),
            Err(JournalError::Fatal(_)) => None,
            Err(error) => return Err(error),
        };
        let mut known = KnownIds { newest, retained, plugins, ..KnownIds::default() };
        // An unreadable range is split in halves, so that it hides nothing else.
        let mut parts = vec![seqs];
        while let Some(part) = parts.pop() {
            match (states_at(rows, &SharedNames::default(), part).await, part) {
                (Ok(states), _) => known.ids.extend(states.iter().map(|state| (state.seq, state.id.clone()))),
                (Err(JournalError::Fatal(_)), [seq]) if known.unreadable.len() < UNREADABLE => {
                    known.unreadable.insert(*seq);
                }
                (Err(JournalError::Fatal(_)), [_, _, ..]) => {
                    let (first, second) = part.split_at(part.len() / 2);
                    parts.extend([second, first]);
                }
                (Err(error), _) => return Err(error),
            }
        }
        Ok(known)
    };
    let path = || place.to_string().into();
    read.await.map_err(|error| OpenError::Unavailable { path: path(), reason: error.to_string() })
}
