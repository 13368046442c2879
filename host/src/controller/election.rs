//! Decides whether this process delivers states to plugins. A process with its own journal always does. A
//! replica does while it holds the Lease and has begun a term in the journal: the Lease alone is not enough,
//! because a suspended process may believe in a hold that has expired.

use std::time::Duration;

use anyhow::{Result, bail};
use kubewitness_core::ports::JournalError;
use kubewitness_core::views::ReplicaView;
use kubewitness_journal::Journal;
use kubewitness_watch::election::{LeadershipHandle, LeaseRole, LeaseStanding};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{info, warn};

use crate::process::timers::ReplicaTimers;

/// The time limit for recording in the journal that this process no longer leads, because the process may be
/// ending.
const LEAVING: Duration = Duration::from_secs(3);

/// A failover takes a Lease of 15 seconds and a little more. After four times as long, a person is told.
const LEADERLESS: Duration = Duration::from_secs(60);

/// The election in which a replica takes part.
#[derive(Clone)]
pub struct ReplicaElection {
    pub leadership: LeadershipHandle,
    /// `NAMESPACE/NAME` of the Lease.
    pub lease: String,
    /// Whether this process takes part in elections: without a journal it would only be in the way of the
    /// others.
    pub may_lead: watch::Sender<bool>,
    pub timers: ReplicaTimers,
}

impl ReplicaElection {
    fn held_term(&self) -> Option<u64> {
        match self.leadership.current_role() {
            LeaseRole::Held { term } => Some(term),
            LeaseRole::Unknown { .. } | LeaseRole::Standby { .. } => None,
        }
    }

    pub fn takes_part(&self, does: bool) {
        let changed = self.may_lead.send_if_modified(|may| std::mem::replace(may, does) != does);
        if changed && !does {
            warn!(
                "this replica has had no journal for {} s: it leaves the Lease to the others",
                self.timers.without_journal.as_secs()
            );
        }
    }

    /// Identifies the Lease among all Leases with its name; `None` until it was read.
    pub fn lease_identity(&self) -> Option<String> {
        let uid = self.leadership.current_standing().lease_uid?;
        Some(format!("{} ({uid})", self.lease))
    }

    /// Uses the current time: a process that was suspended for a while starts nothing any more.
    pub fn is_held(&self) -> bool {
        self.leadership.is_held()
    }

    /// Why no replica has led for longer than any handover takes.
    pub fn why_leaderless(&self) -> Option<String> {
        let LeaseStanding { role, leaderless_since, .. } = self.leadership.current_standing();
        let LeaseRole::Unknown { why } = role else { return None };
        let since = leaderless_since.filter(|since| since.elapsed() >= LEADERLESS)?;
        Some(format!("no replica has led for {} s: {why}", since.elapsed().as_secs()))
    }

    pub async fn replica_view(&self, journal: &Journal) -> Result<ReplicaView, JournalError> {
        let replicas = journal.list_replicas().await?;
        let dispatcher = replicas.iter().find(|replica| replica.dispatches);
        let name = self.leadership.identity().to_owned();
        let LeaseStanding { role, condition, .. } = self.leadership.current_standing();
        let why = match role {
            LeaseRole::Unknown { why } => Some(format!("no replica leads: {why}")),
            // It may be a replica that has just ended.
            LeaseRole::Standby { holder } if replicas.iter().all(|replica| replica.name != holder) => {
                Some(format!(
                    "no replica leads: `{holder}` holds the Lease and does not share this journal; if it goes on, \
                     end that process or give these replicas another Lease"
                ))
            }
            LeaseRole::Standby { .. } | LeaseRole::Held { .. } => None,
        };
        let condition = condition.or_else(|| why.filter(|_| dispatcher.is_none()));
        Ok(ReplicaView {
            dispatches: self.is_held() && dispatcher.is_some_and(|replica| replica.name == name),
            dispatcher: dispatcher.map(|replica| replica.name.clone()),
            lease: self.lease.clone(),
            replicas: replicas.into_iter().map(|replica| replica.name).collect(),
            condition,
            name,
        })
    }
}

/// Whether this process delivers states to plugins: always, if no Lease elects a leader.
pub struct LeaderRole {
    election: Option<ReplicaElection>,
    journal: Journal,
    /// The term in which the journal accepts what plugins save here.
    term: Option<u64>,
    again_at: Instant,
}

impl LeaderRole {
    pub fn new(election: Option<ReplicaElection>, journal: Journal) -> Self {
        Self { election, journal, term: None, again_at: Instant::now() }
    }

    pub fn is_leader(&self) -> bool {
        self.election.is_none() || self.term.is_some()
    }

    /// Whether other replicas may be the leader.
    pub fn is_elected(&self) -> bool {
        self.election.is_some()
    }

    /// The name under which this process reads receipts, if other replicas may deliver states to the same
    /// plugins.
    pub fn reader_name(&self) -> Option<String> {
        let identity = self.election.as_ref()?.leadership.identity();
        // Its random part is unique.
        Some(identity.rsplit_once('_').map_or(identity, |(_, random)| random).to_owned())
    }

    /// Waits until the Lease is held by another replica than before.
    pub async fn await_change(&mut self) {
        let Some(election) = &mut self.election else { return std::future::pending().await };
        if election.held_term() != self.term {
            // The last attempt to become the leader may have failed a moment ago. The caller restarts this
            // wait whenever something else happens.
            return sleep_until(self.again_at).await;
        }
        while election.held_term() == self.term {
            election.leadership.await_change().await;
        }
    }

    /// Whether the leader's work must end: the Lease is not held any more, or was lost in between.
    pub fn is_lost(&self) -> bool {
        self.term.is_some()
            && self.election.as_ref().is_some_and(|election| election.held_term() != self.term)
    }

    /// From now on the journal accepts nothing from the plugins of this process.
    pub async fn step_down(&mut self) {
        if self.term.take().is_none() {
            return;
        }
        // If that can't be recorded, the next leader's term ends it as well.
        match timeout(LEAVING, self.journal.set_leadership(false)).await {
            Ok(Ok(())) => info!("this replica is no longer the leader; another one may be elected"),
            Ok(Err(error)) => {
                warn!("the journal can't record that this replica is no longer the leader: {error}");
            }
            Err(_) => warn!("the journal could not record in time that this replica is no longer the leader"),
        }
    }

    /// Begins a term in the journal if the Lease is held.
    pub async fn take(&mut self) -> Result<()> {
        let Some(election) = &self.election else { return Ok(()) };
        let Some(term) = election.held_term() else { return Ok(()) };
        match self.journal.set_leadership(true).await {
            Ok(()) => {
                info!("this replica is the leader now, and hands states to plugins");
                self.term = Some(term);
            }
            Err(JournalError::Fatal(reason)) => bail!("becoming the leader: {reason}"),
            Err(error) => {
                warn!("this replica can't become the leader yet: {error}");
                self.again_at = Instant::now() + election.timers.next_term;
            }
        }
        Ok(())
    }
}
