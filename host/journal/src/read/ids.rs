//! The ids of the states at given positions. Receipts in granted databases keep such positions.

use std::collections::{BTreeMap, BTreeSet};

use kubewitness_core::ports::JournalError;
use kubewitness_core::{Seq, StateId};

use super::shared_rows::{Names, at};
use crate::report::OpenError;
use crate::store::place::Place;

/// What a journal has at some positions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    pub newest: Seq,
    /// Retention took some of it: a position that is not there may be one of those.
    pub retained: bool,
    pub ids: BTreeMap<Seq, StateId>,
    /// Damaged, and told by [`verify_at`]: nobody knows which states they are of.
    pub unreadable: BTreeSet<Seq>,
    /// Of which there is a progress; `None` where that can't be read, which [`verify_at`] tells.
    pub plugins: Option<BTreeSet<String>>,
}

/// States that can't be read before no more are asked for, one by one.
const UNREADABLE: usize = 256;

/// The ids of the states at these positions.
pub async fn ids_at(place: &Place, seqs: &[Seq]) -> Result<Known, OpenError> {
    let mut connection = place.open_to_read().await?.connection;
    let read = async {
        let rows = connection.rows();
        let newest = rows.stats(0).await?.newest_seq;
        let retained = rows.past().taken_of_streams().await?.values().any(|taken| *taken > 0);
        let plugins = match rows.past().progress_of_all().await {
            Ok(progress) => Some(progress.into_iter().map(|(plugin, _)| plugin).collect()),
            Err(JournalError::Fatal(_)) => None,
            Err(error) => return Err(error),
        };
        let mut known = Known { newest, retained, plugins, ..Known::default() };
        // What can't be read is looked for by halves, so that it hides nothing else.
        let mut parts = vec![seqs];
        while let Some(part) = parts.pop() {
            match (at(rows, &Names::default(), part).await, part) {
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
