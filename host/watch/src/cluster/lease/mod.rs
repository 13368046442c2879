//! Elects the leader among the replicas: the holder of a Lease dispatches. `machine` decides; this module
//! sends the requests, limits their time, and publishes the result.
//!
//! A Lease is not a fence: its holder may be suspended between a check and an action. Anything that must not
//! happen twice has its own fence, such as the term in the journal.
//!
//! ```text
//! machine ─▶ read, create, claim ─▶ API server ─▶ machine ─▶ `LeadershipHandle`
//! ```

mod leadership;
mod machine;
mod record;
mod timing;

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};

use http::Method;
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::connect::ApiConnection;
use crate::connect::backoff::JitterDice;
use crate::connect::request::{ApiClient, RequestAddress, RequestFailure};
use leadership::LeaseView;
use machine::{LeaseMachine, LeaseStep};
use record::{LeaseClaim, LeaseRecord, LeaseStamps};

pub use leadership::{LeadershipHandle, LeaseRole, LeaseStanding};
pub use timing::{LeaseTiming, TimingError};

/// A release that a concurrent label change overtakes is retried, but only a few times.
const RELEASE_TRIES: u32 = 3;

const JSON: &str = "application/json";

#[derive(Clone, Debug)]
pub struct ElectionOptions {
    pub namespace: String,
    /// The name of the Lease. All replicas that share a journal use the same.
    pub name: String,
    /// The name by which people know the process, such as the name of its pod. A random suffix is added in
    /// the Lease, so that a restarted process is a different holder.
    pub identity: String,
    pub timing: LeaseTiming,
}

/// Reads, takes and renews one Lease while it runs.
pub struct LeaseElector {
    api: ApiClient,
    lease: LeaseName,
    machine: LeaseMachine,
    timing: LeaseTiming,
    stamps: LeaseStamps,
    views: watch::Sender<LeaseView>,
    condition: Option<String>,
    leaderless_since: Option<Instant>,
    /// The failures that were logged since the last success.
    warned: BTreeSet<Option<u16>>,
    /// The role that the log reported last.
    logged: LeaseRole,
}

struct LeaseName {
    namespace: String,
    name: String,
}

impl LeaseName {
    fn collection_address(&self) -> RequestAddress {
        RequestAddress::new("/apis/coordination.k8s.io/v1/namespaces")
            .with_member(&self.namespace)
            .with_member("leases")
    }

    fn object_address(&self) -> RequestAddress {
        self.collection_address().with_member(&self.name)
    }

    /// The message for people when a request fails.
    fn failure_message(&self, verb: &str, failure: &RequestFailure) -> String {
        let Self { namespace, name } = self;
        if failure.status_code() == Some(403) {
            return format!(
                "the right to {verb} leases in namespace {namespace} is missing; get, create and update of \
                 leases.coordination.k8s.io are needed there: {failure}"
            );
        }
        format!("the Lease {namespace}/{name} could not be asked for ({verb}): {failure}")
    }
}

impl LeaseElector {
    /// No request is made before it [runs](Self::run).
    pub fn new(connection: &ApiConnection, options: ElectionOptions) -> (Self, LeadershipHandle) {
        let ElectionOptions { namespace, name, identity, timing } = options;
        let identity = format!("{identity}_{:016x}", RandomState::new().hash_one(&identity));
        let machine = LeaseMachine::new(identity.clone(), timing, JitterDice::new(None), Instant::now());
        let unknown = LeaseRole::Unknown { why: "the Lease was not read yet".to_string() };
        let leaderless_since = Some(Instant::now());
        let view = LeaseView {
            hold: None,
            otherwise: unknown.clone(),
            lease_uid: None,
            condition: None,
            leaderless_since,
        };
        let (views, seen) = watch::channel(view);
        let elector = Self {
            api: connection.api_client(),
            lease: LeaseName { namespace, name },
            machine,
            timing,
            stamps: LeaseStamps::default(),
            views,
            condition: None,
            leaderless_since,
            warned: BTreeSet::new(),
            logged: unknown,
        };
        (elector, LeadershipHandle::new(seen, identity))
    }

    /// Never fails: errors are shown in the state and retried. On the stop it releases the Lease, so
    /// everything that acts as the leader must have ended before.
    ///
    /// While `may_lead` is false, it releases the Lease as well and does not take part in elections. The
    /// holder may still act until it notices.
    pub async fn run(mut self, stop: CancellationToken, mut may_lead: watch::Receiver<bool>) {
        loop {
            if !*may_lead.borrow_and_update() {
                self.release_lease("this replica does not take part in the election").await;
                let again = stop.run_until_cancelled(may_lead.wait_for(|may| *may));
                match again.await {
                    Some(Ok(_)) => continue,
                    Some(Err(_)) | None => break,
                }
            }
            let wait = async {
                if let LeaseStep::Wait(until) = self.machine.next_step(Instant::now()) {
                    sleep_until(until).await;
                }
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Ok(()) = may_lead.changed() => continue,
                () = wait => {}
            }
            self.run_step().await;
        }
        self.release_lease("the election was stopped").await;
    }

    /// One request at most. A stop does not cancel it, because its result would then be unknown.
    async fn run_step(&mut self) {
        let step = self.machine.next_step(Instant::now());
        let sent = Instant::now();
        let (verb, answer) = match step {
            LeaseStep::Wait(_) => return,
            LeaseStep::Read => return self.read().await,
            LeaseStep::Create => {
                let stamp = self.stamps.next(Timestamp::now());
                let claim = lease_claim(&self.machine, &self.timing, stamp);
                let body = record::new_lease_object(&self.lease.namespace, &self.lease.name, &claim);
                ("create", self.write(Method::POST, &self.lease.collection_address(), &body).await)
            }
            LeaseStep::Claim(lease) => {
                let stamp = self.stamps.next(Timestamp::now());
                let body = lease.claimed_object(&lease_claim(&self.machine, &self.timing, stamp));
                ("update", self.write(Method::PUT, &self.lease.object_address(), &body).await)
            }
        };
        match answer {
            Ok(lease) => {
                self.note_recovery();
                self.change_machine(|machine, now| machine.on_write_accepted(sent, now, lease));
            }
            // The Lease was created, changed or deleted meanwhile, so it is read again.
            Err(failure) if failure.status_code() == Some(409) => {
                self.change_machine(LeaseMachine::on_write_refused);
            }
            Err(failure) if verb == "update" && failure.status_code() == Some(404) => {
                self.change_machine(LeaseMachine::on_write_refused);
            }
            Err(failure) => self.note_failure(verb, &failure),
        }
    }

    async fn read(&mut self) {
        match self.get().await {
            Ok(lease) => {
                self.change_machine(|machine, now| machine.lease_read(now, lease));
                // The next write may fail.
                if matches!(self.machine.next_step(Instant::now()), LeaseStep::Wait(_)) {
                    self.note_recovery();
                    self.change_machine(|_, _| {});
                }
            }
            Err(failure) => self.note_failure("get", &failure),
        }
    }

    async fn get(&self) -> Result<Option<LeaseRecord>, RequestFailure> {
        match self.send_request(Method::GET, &self.lease.object_address(), None).await {
            Ok(lease) => Ok(Some(lease)),
            Err(failure) if failure.status_code() == Some(404) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    async fn write(
        &self,
        method: Method,
        address: &RequestAddress,
        body: &Value,
    ) -> Result<LeaseRecord, RequestFailure> {
        self.send_request(method, address, Some((JSON, body.to_string().into_bytes()))).await
    }

    async fn send_request(
        &self,
        method: Method,
        address: &RequestAddress,
        body: Option<(&'static str, Vec<u8>)>,
    ) -> Result<LeaseRecord, RequestFailure> {
        let within = self.timing.answer_timeout();
        let asked = timeout(within, self.api.send_request(method, address.as_str(), body)).await;
        let answer = asked.map_err(|_| RequestFailure::TimedOut(within))??;
        let object =
            serde_json::from_slice(&answer).map_err(|error| RequestFailure::Answer(error.to_string()))?;
        let record = LeaseRecord::from_value(object);
        record.ok_or_else(|| RequestFailure::Answer("a Lease without a version or a uid".into()))
    }

    fn note_failure(&mut self, verb: &str, failure: &RequestFailure) {
        let condition = self.lease.failure_message(verb, failure);
        if self.warned.insert(failure.status_code()) {
            tracing::warn!("{condition}");
        }
        self.condition = Some(condition);
        self.change_machine(LeaseMachine::on_request_failed);
    }

    fn note_recovery(&mut self) {
        self.warned.clear();
        self.condition = None;
    }

    /// Changes the machine and publishes its state under one lock: nobody sees a hold expire that continues
    /// as the same term.
    fn change_machine<T>(&mut self, change: impl FnOnce(&mut LeaseMachine, Instant) -> T) -> T {
        let (machine, condition, since) = (&mut self.machine, &self.condition, &mut self.leaderless_since);
        let (mut role, mut new_view) = (None, None);
        self.views.send_if_modified(|held| {
            let now = Instant::now();
            new_view = Some(change(machine, now));
            let mut view = lease_view(machine, condition.clone(), now);
            *since = match view.role_at(now) {
                LeaseRole::Unknown { .. } => since.or(Some(now)),
                LeaseRole::Standby { .. } | LeaseRole::Held { .. } => None,
            };
            view.leaderless_since = *since;
            role = Some(view.role_at(now));
            let news = *held != view;
            *held = view;
            news
        });
        if let Some(role) = role.filter(|role| *role != self.logged) {
            log_role_change(&self.lease, &self.logged, &role);
            self.logged = role;
        }
        new_view.expect("the closure is called once")
    }

    async fn release_lease(&mut self, why: &str) {
        let ours = self.change_machine(|machine, _| machine.give_up_hold());
        if ours {
            let within = self.timing.answer_timeout();
            let failure = match timeout(within, self.release_on_server()).await {
                Ok(given) => given.err(),
                Err(_) => Some(RequestFailure::TimedOut(within)),
            };
            let LeaseName { namespace, name } = &self.lease;
            match failure {
                None => tracing::info!(namespace, name, "the Lease is released"),
                Some(failure) => {
                    tracing::warn!(namespace, name, %failure, "the Lease could not be released: it expires by itself");
                }
            }
        }
        self.views.send_modify(|view| {
            view.otherwise = LeaseRole::Unknown { why: why.to_string() };
        });
    }

    async fn release_on_server(&mut self) -> Result<(), RequestFailure> {
        let mut tries = 1;
        loop {
            let Some(lease) = self.get().await?.filter(|lease| lease.holder == self.machine.identity())
            else {
                return Ok(());
            };
            let body = lease.released_object(self.stamps.next(Timestamp::now()));
            match self.write(Method::PUT, &self.lease.object_address(), &body).await {
                Err(failure) if failure.status_code() == Some(409) && tries < RELEASE_TRIES => tries += 1,
                answer => return answer.map(|_| ()),
            }
        }
    }
}

fn lease_claim<'a>(machine: &'a LeaseMachine, timing: &LeaseTiming, stamp: Timestamp) -> LeaseClaim<'a> {
    LeaseClaim { identity: machine.identity(), lasts_seconds: timing.lease_seconds(), stamp }
}

fn lease_view(machine: &LeaseMachine, condition: Option<String>, now: Instant) -> LeaseView {
    let unknown = |why: &str| LeaseRole::Unknown { why: why.to_string() };
    let otherwise = match machine.seen_lease() {
        Some(lease) if lease.holder == machine.identity() => unknown("the hold was not renewed in time"),
        Some(lease) if lease.holder.is_empty() => unknown("nobody holds the Lease"),
        Some(lease) if machine.is_left(now) => unknown(&format!(
            "nobody leads: `{}` has not renewed the Lease in time, and no replica could take it yet",
            lease.holder
        )),
        Some(lease) => LeaseRole::Standby { holder: lease.holder.clone() },
        None => unknown(condition.as_deref().unwrap_or("there is no Lease yet")),
    };
    let lease_uid = machine.seen_lease().map(|lease| lease.uid.clone());
    LeaseView { hold: machine.valid_hold(now), otherwise, lease_uid, condition, leaderless_since: None }
}

fn log_role_change(lease: &LeaseName, before: &LeaseRole, now: &LeaseRole) {
    let LeaseName { namespace, name } = lease;
    if let LeaseRole::Held { term } = before {
        tracing::info!(namespace, name, term, "the Lease is no longer held");
    }
    match now {
        LeaseRole::Held { term } => tracing::info!(namespace, name, term, "the Lease is held"),
        LeaseRole::Standby { holder } => {
            tracing::info!(namespace, name, holder, "another replica holds the Lease");
        }
        LeaseRole::Unknown { why } => {
            tracing::debug!(namespace, name, why, "who holds the Lease isn't known");
        }
    }
}
