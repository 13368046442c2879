//! Announces the watches of each replica to the others. A replica that was away asks whether another
//! replica's watch began before the outage and still continues. If so, that replica has seen what the first
//! one missed, and no gap is recorded.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kubewitness_core::Version;
use kubewitness_core::ports::JournalError;

use super::lock::{LockRight, holding_session};
use super::replicas::is_stalled;
use super::session::ServerSession;
use crate::store::rows::StoreResult;

/// Counts changes of the announcements.
pub(crate) type WatchEdition = u64;

/// Epochs and versions by source.
type SourceVersions = BTreeMap<String, (u32, Version)>;

/// The watches of this replica. Each transaction announces the changes, and at least one runs every second.
pub(crate) struct ReplicaWatches {
    mine: String,
    held: Mutex<HeldWatches>,
}

#[derive(Default)]
struct HeldWatches {
    sources: SourceVersions,
    edition: WatchEdition,
    announced: WatchEdition,
}

impl ReplicaWatches {
    pub fn of(replica: &str) -> Self {
        Self { mine: replica.to_owned(), held: Mutex::default() }
    }

    fn lock_held(&self) -> MutexGuard<'_, HeldWatches> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_watch(&self, source: &str, since: Option<(u32, Version)>) {
        let mut held = self.lock_held();
        held.edition += u64::from(held.sources.get(source) != since.as_ref());
        match since {
            Some(since) => drop(held.sources.insert(source.to_owned(), since)),
            None => drop(held.sources.remove(source)),
        }
    }

    /// The changes that were not announced yet, encoded for the others.
    pub fn unannounced_changes(&self) -> Option<(WatchEdition, String)> {
        let held = self.lock_held();
        let text = || serde_json::to_string(&held.sources).unwrap_or_default();
        (held.edition != held.announced).then(|| (held.edition, text()))
    }

    pub fn mark_announced(&self, edition: Option<WatchEdition>) {
        let mut held = self.lock_held();
        held.announced = edition.unwrap_or(held.announced);
    }

    /// Called after the replica got a new seat.
    pub fn forget_watches(&self) {
        self.lock_held().edition += 1;
    }

    /// Another healthy replica whose watch began before a version and continues.
    pub async fn find_other_watcher(
        &self,
        session: &mut ServerSession,
        source: &str,
        epoch: u32,
        before: &Version,
    ) -> StoreResult<Option<String>> {
        let text = "SELECT w.slot, r.name, w.sources FROM kw_watches w JOIN kw_replicas r ON r.slot = w.slot \
                    ORDER BY w.slot";
        for mut row in session.fetch_rows(text, Vec::new()).await? {
            let (slot, name) = (row.int_at(0)? as u8, row.text(1)?);
            let sources = parse_watches(&name, &row.text(2)?)?;
            let began = sources.get(source).filter(|(of, _)| *of == epoch).map(|(_, since)| since);
            if name == self.mine || !began.is_some_and(|since| before.is_newer_than(since)) {
                continue;
            }
            let Some(number) = holding_session(session, LockRight::Replica(slot)).await? else { continue };
            if !is_stalled(session, number).await? {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }
}

fn parse_watches(replica: &str, text: &str) -> StoreResult<SourceVersions> {
    serde_json::from_str(text).map_err(|error| {
        JournalError::Unavailable(format!("what the replica {replica} says of its watches: {error}"))
    })
}

/// Replaces the earlier announcement of this replica.
pub(crate) async fn announce_watches(session: &mut ServerSession, slot: u8, text: &str) -> StoreResult<()> {
    let slot = i64::from(slot);
    session.fetch_rows("DELETE FROM kw_watches WHERE slot = ?", vec![slot.into()]).await?;
    let insert = "INSERT INTO kw_watches (slot, sources) VALUES (?, ?)";
    session.fetch_rows(insert, vec![slot.into(), text.into()]).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changed_is_told_until_it_was_and_again_from_a_new_seat() {
        let watches = ReplicaWatches::of("one");
        let since = || Some((0, Version::new("7")));
        assert!(watches.unannounced_changes().is_none());
        watches.set_watch("jobs", since());
        let (edition, text) = watches.unannounced_changes().unwrap();
        assert_eq!(text, r#"{"jobs":[0,"7"]}"#);
        assert_eq!(parse_watches("one", &text).unwrap()["jobs"], since().unwrap());
        // The watches changed during the announcement.
        watches.set_watch("pods", since());
        watches.mark_announced(Some(edition));
        let (edition, _) = watches.unannounced_changes().unwrap();
        watches.mark_announced(Some(edition));
        watches.set_watch("pods", since());
        watches.mark_announced(None);
        assert!(watches.unannounced_changes().is_none(), "nothing is new");
        watches.forget_watches();
        assert!(watches.unannounced_changes().is_some());
        watches.set_watch("jobs", None);
        assert_eq!(watches.unannounced_changes().unwrap().1, r#"{"pods":[0,"7"]}"#);
        assert!(parse_watches("one", "[]").unwrap_err().to_string().contains("replica one"));
    }
}
