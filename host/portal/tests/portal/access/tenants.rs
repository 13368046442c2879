//! Two tenants with distinct texts, and an API server that decides what each may see.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use kubewitness_core::cursor::StoryCursor;
use kubewitness_core::ports::*;
use kubewitness_core::views::*;
use kubewitness_core::{Change, Gap, ObjectRef, Seq, State, Status, calendar};
use serde_json::json;
use tokio::sync::watch;

use crate::fake;

/// The creation time of the namespaces. Their objects were created a second later.
pub const MADE_MS: u64 = 1_795_182_311_000;
const TENANTS: [&str; 2] = ["red", "blue"];

fn job(tenant: &str) -> ObjectRef {
    fake::object("Job", tenant, &format!("{tenant}-train"), &format!("uid-{tenant}"))
}

fn pod(tenant: &str) -> ObjectRef {
    fake::object("Pod", tenant, &format!("{tenant}-worker"), &format!("uid-{tenant}-worker"))
}

/// Positions 1 to 4 belong to red, 11 to 14 to blue: a job, its pod, the job again, and a gap of the job.
pub fn first(tenant: &str) -> Seq {
    if tenant == "red" { 1 } else { 11 }
}

fn story(tenant: &str) -> Vec<State> {
    let [job, pod] = [job(tenant), pod(tenant)];
    let status = |phase: &str| fake::status(phase, &format!("{tenant}-reason"), &format!("{tenant}-message"));
    let list =
        [(&job, Change::Present), (&pod, Change::Present), (&job, Change::Present), (&job, Change::Gap)];
    let state = |(index, (object, change)): (usize, (&ObjectRef, Change))| {
        let mut state =
            fake::state(first(tenant) + index as u64, object, change, index as u64, status("Running"));
        state.owner = state.owner.map(|_| Arc::new(job.clone()));
        state
    };
    list.into_iter().enumerate().map(state).collect()
}

/// Events about the state's job, and one about the other tenant's job, which only an operator should get. The
/// first one is of the other tenant and names the uid of this job.
fn events(state: &State) -> Vec<EventView> {
    let event = |tenant: &str| EventView {
        object: fake::object("Event", tenant, &format!("{tenant}-train.1"), &format!("uid-{tenant}-event")),
        about: job(tenant),
        kind: "Warning".into(),
        reason: format!("{tenant}-reason"),
        message: format!("{tenant}-message"),
        count: 2,
        first_ms: MADE_MS + 1000,
        last_ms: MADE_MS + 2000,
        from: "kubelet".into(),
        seq: state.seq,
    };
    let other = TENANTS.into_iter().find(|tenant| *tenant != state.object.namespace).unwrap_or_default();
    let about = ObjectRef { uid: state.object.uid.clone(), ..job(other) };
    let forged = EventView { about, ..event(other) };
    [forged].into_iter().chain(TENANTS.map(event)).collect()
}

/// Makes an object an Event about an object of the other tenant.
fn of_the_other(object: &ObjectRef) -> EventView {
    let other = TENANTS.into_iter().find(|tenant| *tenant != object.namespace).unwrap_or_default();
    EventView {
        object: object.clone(),
        about: job(other),
        reason: format!("{other}-reason"),
        message: format!("{other}-message"),
        ..EventView::default()
    }
}

pub struct TenantPortal {
    pub states: Mutex<Vec<Arc<State>>>,
    pub newest: watch::Sender<Seq>,
    pub outcome_news: watch::Sender<u64>,
    pub replays: Mutex<Vec<ReplayRequest>>,
    pub pauses: Mutex<Vec<(String, bool, PauseRequest)>>,
    pub muted: Mutex<Vec<(MuteView, bool)>>,
    /// The number of look-ups of objects, stories and gaps.
    pub lookups: AtomicUsize,
    /// Whether a source also witnesses Jobs of another group, which no tenant may see.
    pub volcano: bool,
    /// Whether there is a source of Events.
    pub has_events: bool,
    /// Whether there is a source of Kueue's Workloads.
    pub has_workloads: bool,
    /// The sources in which each list was searched, for people who do not see everything.
    pub looked_in: Mutex<Vec<BTreeSet<String>>>,
    /// The kinds and namespaces in which a story was last searched for.
    pub within: Mutex<Option<Vec<KindWithin>>>,
    /// The number of other namespaces.
    pub others: usize,
    /// The number of further kinds.
    pub kinds: usize,
    /// The number of dead letters of the last tenant, after all others.
    pub letters: AtomicUsize,
    /// The states that were searched for secrets.
    pub redacted: Mutex<Vec<Seq>>,
    /// The cursors of the requested lists.
    pub begun: Mutex<Vec<Option<String>>>,
    /// Whether the first part of a story has only its newest states.
    pub cuts: bool,
    /// Whether each state is read anew, as from a disk, without a record of the read.
    pub copies: bool,
    /// The parties for which documents and streams were read, as reported to the controller.
    pub asked_by: Mutex<Vec<Option<Arc<str>>>>,
    /// The number of streams far behind that read states now, and the most so far.
    pub far_readers: AtomicUsize,
    pub most_far_readers: AtomicUsize,
}

impl Default for TenantPortal {
    fn default() -> Self {
        let states: Vec<_> = TENANTS.into_iter().flat_map(story).map(Arc::new).collect();
        Self {
            newest: watch::Sender::new(14),
            outcome_news: watch::Sender::new(0),
            states: Mutex::new(states),
            replays: Mutex::default(),
            pauses: Mutex::default(),
            muted: Mutex::default(),
            lookups: AtomicUsize::default(),
            volcano: false,
            has_events: false,
            has_workloads: false,
            looked_in: Mutex::default(),
            within: Mutex::default(),
            others: 0,
            kinds: 0,
            letters: AtomicUsize::default(),
            redacted: Mutex::default(),
            begun: Mutex::default(),
            cuts: false,
            copies: false,
            asked_by: Mutex::default(),
            far_readers: AtomicUsize::default(),
            most_far_readers: AtomicUsize::default(),
        }
    }
}

impl TenantPortal {
    /// One more state of the tenant's job.
    pub fn push(&self, tenant: &str) -> Seq {
        let mut states = self.states.lock().unwrap();
        let seq = states.last().unwrap().seq + 1;
        let status = fake::status("Succeeded", &format!("{tenant}-reason"), "");
        states.push(Arc::new(fake::state(seq, &job(tenant), Change::Present, seq, status)));
        drop(states);
        self.newest.send_replace(seq);
        seq
    }

    /// The tenant's job gives up, and no pod of it has failed.
    pub fn push_failure(&self, tenant: &str) {
        let mut states = self.states.lock().unwrap();
        let seq = states.last().unwrap().seq + 1;
        // A Job has no exit code of its own.
        let status = Status { exit_code: None, ..fake::status("Failed", "BackoffLimitExceeded", "") };
        states.push(Arc::new(fake::state(seq, &job(tenant), Change::Present, seq, status)));
        drop(states);
        self.newest.send_replace(seq);
    }

    /// An Event of this tenant whose owner, according to the controller, is the job of another one.
    pub fn push_event(&self, tenant: &str, owner: &str) -> Seq {
        self.push_owned("Event", tenant, owner)
    }

    /// Adds a state of an object of this kind that the job of a tenant owns.
    pub fn push_owned(&self, kind: &str, tenant: &str, owner: &str) -> Seq {
        let mut states = self.states.lock().unwrap();
        let seq = states.last().unwrap().seq + 1;
        let name = format!("{tenant}-{}", kind.to_lowercase());
        let object = fake::object(kind, tenant, &name, &format!("uid-{name}"));
        let mut state = fake::state(seq, &object, Change::Present, seq, fake::status("Unknown", "", ""));
        state.owner = Some(Arc::new(job(owner)));
        states.push(Arc::new(state));
        drop(states);
        self.newest.send_replace(seq);
        seq
    }

    /// Suspends the tenant's job because Kueue preempted it for the job of this tenant.
    pub fn push_preemption(&self, tenant: &str, preemptor: &str) {
        let mut states = self.states.lock().unwrap();
        let seq = states.last().unwrap().seq + 1;
        let workload = ObjectRef {
            group: "kueue.x-k8s.io".into(),
            ..fake::object("Workload", tenant, &format!("job-{tenant}"), &format!("uid-{tenant}-workload"))
        };
        let message = format!(
            "Preempted to accommodate a workload (UID: uid-x, JobUID: uid-{preemptor}) due to prioritization in the \
             ClusterQueue; preemptor path: /gpus; preemptee path: /gpus"
        );
        let taken = fake::status("Preempted", "Preempted", &message);
        let mut taken = fake::state(seq, &workload, Change::Present, seq, taken);
        taken.owner = Some(Arc::new(job(tenant)));
        let held = fake::status("Suspended", "JobSuspended", "Job suspended");
        let held = fake::state(seq + 1, &job(tenant), Change::Present, seq + 1, held);
        states.extend([taken, held].map(Arc::new));
        drop(states);
        self.newest.send_replace(seq + 1);
    }

    /// Gives the tenant's job this many states with this message.
    pub fn push_many(&self, tenant: &str, count: u64, message: &str) {
        let mut states = self.states.lock().unwrap();
        let first = states.last().unwrap().seq + 1;
        states.extend((first..first + count).map(|seq| {
            let status = fake::status("Running", "", &format!("{seq} {message}"));
            Arc::new(fake::state(seq, &job(tenant), Change::Present, seq, status))
        }));
        self.newest.send_replace(first + count - 1);
    }

    fn all(&self) -> Vec<Arc<State>> {
        self.states.lock().unwrap().clone()
    }

    fn raw(&self, mut states: Vec<Arc<State>>) -> Vec<RawState> {
        let copy = |status: &Arc<Status>| Arc::new(Status::clone(status));
        for state in states.iter_mut().filter(|_| self.copies) {
            let (status, previous) = (copy(&state.status), state.previous.as_ref().map(copy));
            *state = Arc::new(State { status, previous, ..State::clone(state) });
        }
        raw(states)
    }
}

fn letter(tenant: &str) -> DeadLetterView {
    let (object, seq) = (job(tenant), first(tenant));
    let state = fake::state(seq, &object, Change::Present, 0, fake::status("Running", "", ""));
    DeadLetterView {
        letter: DeadLetter {
            plugin: "persistence".into(),
            seq,
            id: state.id,
            attempts: 1,
            error: format!("{tenant}-error"),
            first_ms: MADE_MS,
            last_ms: MADE_MS,
            replaying: false,
            dropped: false,
            tries: Vec::new(),
        },
        object,
        phase: "Running".into(),
    }
}

/// The newest state of the object and the newest of what it owns, before the cursor. More may exist.
fn cut(story: &mut RawStory, cursor: StoryCursor, most: usize) {
    let newest = |states: &mut Vec<RawState>, before: Seq| {
        states.retain(|state| state.seq() < before);
        states.drain(..states.len().saturating_sub(most));
        states.first().filter(|_| most == 1).map_or(0, RawState::seq)
    };
    let states = newest(&mut story.states, cursor.states);
    let related = newest(&mut story.related, cursor.related);
    story.next = (states + related > 0).then_some(StoryCursor { states, related, owned: u64::MAX });
}

fn raw(states: Vec<Arc<State>>) -> Vec<RawState> {
    states.into_iter().map(RawState::from).collect()
}

fn gap(object: Option<ObjectRef>, message: &str) -> Gap {
    Gap {
        source: "jobs".into(),
        object,
        epoch: 0,
        after: "1".into(),
        before: "9".into(),
        reason: "Compacted".into(),
        message: message.into(),
        recorded_ms: MADE_MS,
    }
}

/// The position at which a list stopped contains names of both tenants.
pub const STOPPED_AT: &str = "0/uid-red-and-uid-blue/red-secret blue-secret";

/// As many as the controller returns.
const REPORTS: usize = 500;

/// A text for operators, with the names of both tenants.
const BOTH: &str = "red-secret and blue-secret";

#[async_trait]
impl Views for TenantPortal {
    async fn status_view(&self) -> Result<StatusView, ViewError> {
        let source = |name: &str, api_version: &str, kind: &str| SourceView {
            name: name.into(),
            api_version: api_version.into(),
            kind: kind.into(),
            objects: 77_123,
            gaps: 77_123,
            poison: 77_123,
            checkpoint: "77123".into(),
            synced: true,
            condition: Some(BOTH.into()),
            doubt: Some(BOTH.into()),
            discrepancies: TENANTS
                .map(|tenant| DiscrepancyView { object: job(tenant), ..Default::default() })
                .into(),
            ..SourceView::default()
        };
        let plugin = PluginView {
            name: "persistence".into(),
            message: Some(BOTH.into()),
            observed: 77_123,
            dead: 77_123,
            manifest: Some(Arc::new(ManifestView {
                config: json!({"table": "configured-table"}).as_object().cloned(),
                ..ManifestView::default()
            })),
            shadow: Some(ShadowView {
                differences: vec![ShadowDifferenceView {
                    seq: first("red"),
                    object: "Job compared-job".into(),
                    ..Default::default()
                }],
                ..ShadowView::default()
            }),
            ..Default::default()
        };
        Ok(StatusView {
            sources: vec![source("jobs", "batch/v1", "Job"), source("pods", "v1", "Pod")],
            plugins: vec![plugin],
            journal: JournalView { states: 77_123, place: BOTH.into(), ..Default::default() },
            held: self.retention_holds(),
            problems: vec![BOTH.into()],
            ..StatusView::default()
        })
    }

    fn watched_resources(&self) -> Vec<WatchedResource> {
        let watched = |source: &str, group: &str, kind: &str, resource: &str| WatchedResource {
            source: source.into(),
            group: group.into(),
            kind: kind.into(),
            resource: resource.into(),
        };
        let volcano = self.volcano.then(|| watched("volcano", "batch.volcano.sh", "Job", "jobs"));
        let sources = [watched("jobs", "batch", "Job", "jobs"), watched("pods", "", "Pod", "pods")];
        let events = self.has_events.then(|| watched("events", "", "Event", "events"));
        let workloads =
            self.has_workloads.then(|| watched("workloads", "kueue.x-k8s.io", "Workload", "workloads"));
        let kinds = (0..self.kinds).map(|number| {
            let name = format!("kind{number}");
            watched(&name, "example.com", &name, &format!("{name}s"))
        });
        sources.into_iter().chain(kinds).chain(volcano).chain(events).chain(workloads).collect()
    }

    async fn known_namespaces(
        &self,
        _source: &str,
        _: bool,
        most: usize,
    ) -> Result<BTreeSet<String>, ViewError> {
        let others = (0..self.others).map(|index| format!("other-{index}"));
        // In alphabetical order, the tenants come after many others.
        Ok(others.chain(TENANTS.into_iter().map(Into::into)).take(most).collect())
    }

    async fn object_page(&self, query: &ObjectQuery) -> Result<ObjectPage, ViewError> {
        self.begun.lock().unwrap().push(query.cursor.clone());
        let looked_in = query.within.iter().map(|within| within.sources.keys().cloned().collect());
        self.looked_in.lock().unwrap().extend(looked_in);
        let source = |object: &ObjectRef| if object.kind == "Job" { "jobs" } else { "pods" };
        let objects = TENANTS.into_iter().flat_map(|tenant| [job(tenant), pod(tenant)]);
        let is_shown = |object: &ObjectRef| match &query.within {
            None => true,
            Some(within) => match within.sources.get(source(object)) {
                None => false,
                Some(SourceVisibility::Everything) => true,
                Some(SourceVisibility::Namespaces(names)) => {
                    names.get(&object.namespace).is_some_and(|since| *since <= MADE_MS + 1000)
                }
            },
        };
        let is_asked = |object: &ObjectRef| {
            query.namespace.as_ref().is_none_or(|name| *name == object.namespace)
                && query
                    .kind
                    .as_ref()
                    .is_none_or(|kind| kubewitness_core::kinds::is_kind(&object.group, &object.kind, kind))
        };
        let view = |object: ObjectRef| ObjectView {
            source: source(&object).into(),
            seq: first(&object.namespace),
            owner: None,
            resource_version: "1".into(),
            status: fake::status("Running", &format!("{}-reason", object.namespace), ""),
            observed_at: calendar::format_rfc3339(MADE_MS),
            cause: (query.details || query.cause.is_some()).then_some(CauseKind::OutOfMemory),
            details: query.details.then(|| DetailsView {
                plugins: [("hidden-plugin".to_owned(), "delivered".to_owned())].into(),
                event: Some(of_the_other(&object)),
                ..DetailsView::default()
            }),
            object,
            ..ObjectView::default()
        };
        let objects = objects.filter(|object| is_shown(object) && is_asked(object)).map(view).collect();
        Ok(ObjectPage { objects, next: Some(STOPPED_AT.into()), ..ObjectPage::default() })
    }

    async fn object_counts(&self, query: &ObjectQuery) -> Result<ObjectCounts, ViewError> {
        let mut counts = ObjectCounts::default();
        for view in self.object_page(query).await?.objects {
            *counts.phases.entry(view.status.phase).or_default() += 1;
            counts.namespaces.insert(view.object.namespace);
        }
        Ok(counts)
    }

    async fn raw_story(&self, query: &TimelineQuery) -> Result<RawStory, ViewError> {
        self.lookups.fetch_add(1, Ordering::SeqCst);
        self.within.lock().unwrap().clone_from(&query.kinds);
        if self.copies {
            // A disk read lets other tasks run.
            tokio::task::yield_now().await;
        }
        let is_it = |object: &ObjectRef| match &query.uid {
            Some(uid) => object.uid == *uid,
            None => Some(&object.name) == query.name.as_ref(),
        };
        let states: Vec<_> = self.all().into_iter().filter(|state| is_it(&state.object)).collect();
        let uid = states.first().map(|state| state.object.uid.clone());
        let is_owned = |state: &Arc<State>| state.owner.as_ref().map(|owner| &owner.uid) == uid.as_ref();
        let related: Vec<_> =
            self.all().into_iter().filter(|state| uid.is_some() && is_owned(state)).collect();
        let [states, related] = [states, related].map(|states| self.raw(states));
        let mut story = RawStory { states, related, reports: query.events, ..RawStory::default() };
        if self.cuts && (query.events || query.cursor.is_some()) {
            // No story has as many states.
            let most = if query.limit >= Some(10_000) { usize::MAX } else { 1 };
            cut(&mut story, query.cursor.unwrap_or(StoryCursor::NEWEST), most);
        }
        Ok(story)
    }

    async fn timeline_view(&self, story: RawStory) -> Result<TimelineView, ViewError> {
        let read = |states: Vec<RawState>| {
            let states: Vec<_> = states.into_iter().map(RawState::unredacted).collect();
            let noted = states.iter().filter(|_| !self.copies).map(|state| state.seq);
            self.redacted.lock().unwrap().extend(noted);
            states
        };
        let [states, related] = [story.states, story.related].map(read);
        let events = states.iter().take(usize::from(story.reports)).flat_map(|state| events(state)).collect();
        // This includes an object outside the story: whatever a view returns, people see only their own.
        let all = self.all();
        let report = |state: &Arc<State>| ReportView {
            uid: state.object.uid.clone(),
            to: format!("{}-people", state.object.namespace),
            ..ReportView::default()
        };
        let reports = all.iter().filter(|_| story.reports).take(REPORTS).map(report).collect();
        Ok(TimelineView { states, related, events, reports, next: story.next, ..TimelineView::default() })
    }

    async fn explain_timeline(&self, timeline: &TimelineView) -> Result<WhyView, ViewError> {
        Ok(timeline.explained_states().explain_object(&BTreeMap::new(), 0))
    }

    async fn redacted_state(&self, state: RawState) -> Result<Arc<State>, ViewError> {
        let state = state.unredacted();
        if !self.copies {
            self.asked_by.lock().unwrap().push(kubewitness_portal::current_party());
            self.redacted.lock().unwrap().push(state.seq);
        }
        Ok(state)
    }

    async fn created_ms(&self, seq: Seq) -> Result<Option<u64>, ViewError> {
        let is_it = |state: &&Arc<State>| state.seq == seq && state.change != Change::Gap;
        Ok(self.all().iter().find(is_it).map(|_| MADE_MS + 1000))
    }

    async fn delivery_stages(&self, states: &[Arc<State>]) -> Result<DeliveryMap, ViewError> {
        let stages = states.iter().map(|state| match state.seq {
            3 => (state.seq, DeliveryStage::Dead),
            18.. => (state.seq, DeliveryStage::Waiting),
            seq => (seq, DeliveryStage::Delivered),
        });
        Ok(DeliveryMap::from([("hidden-plugin".to_owned(), stages.collect())]))
    }

    async fn document_at(&self, seq: Seq) -> Result<Vec<u8>, ViewError> {
        self.asked_by.lock().unwrap().push(kubewitness_portal::current_party());
        let state =
            self.all().into_iter().find(|state| state.seq == seq).ok_or_else(|| ViewError::NotFound {
                message: format!("the journal has no document at position {seq}"),
                hint: "It may be older than what the journal keeps.".into(),
            })?;
        let name = &state.object.name;
        if state.change == Change::Gap {
            return Ok(serde_json::to_vec(&gap(Some((*state.object).clone()), name)).unwrap());
        }
        let created = calendar::format_rfc3339(MADE_MS + 1000);
        Ok(format!(r#"{{"metadata":{{"name":"{name}","creationTimestamp":"{created}"}}}}"#).into_bytes())
    }

    async fn find_gaps(&self, query: &GapQuery) -> Result<Vec<(u64, Gap)>, ViewError> {
        self.lookups.fetch_add(1, Ordering::SeqCst);
        let mut gaps: Vec<_> =
            TENANTS.map(|tenant| gap(Some(job(tenant)), &format!("{tenant}-gap"))).into_iter().collect();
        gaps.push(gap(None, "whole-source-gap"));
        gaps.retain(|gap| {
            query.uid.as_ref().is_none_or(|uid| gap.object.as_ref().is_some_and(|object| object.uid == *uid))
        });
        let newest_first = (1..=gaps.len() as u64).rev().zip(gaps);
        let behind = newest_first.filter(|(number, _)| query.cursor.is_none_or(|cursor| *number < cursor));
        Ok(behind.take(query.limit.unwrap_or(usize::MAX)).collect())
    }

    async fn find_poison(&self, _: &PoisonQuery) -> Result<Vec<PoisonView>, ViewError> {
        Ok(vec![PoisonView { number: 1, source: "jobs".into(), excerpt: BOTH.into(), ..Default::default() }])
    }

    async fn poison_raw(&self, _: u64) -> Result<Vec<u8>, ViewError> {
        Ok(BOTH.into())
    }

    async fn dead_letters(&self, query: &LetterQuery) -> Result<Vec<DeadLetterView>, ViewError> {
        if query.plugin.as_deref().is_some_and(|plugin| plugin != "persistence") {
            return Err(ViewError::NotFound {
                message: "there is no such plugin".into(),
                hint: String::new(),
            });
        }
        if query.which == LetterChoice::Dropped {
            return Ok(Vec::new());
        }
        let last = TENANTS.last().copied().unwrap_or_default();
        let more = (0..self.letters.load(Ordering::SeqCst) as u64).map(|number| {
            let mut letter = letter(last);
            letter.letter.seq = 100 + number;
            letter
        });
        let after = query.cursor.as_ref().map_or(0, |cursor| cursor.seq);
        let all = TENANTS.map(letter).into_iter().chain(more).filter(|letter| letter.letter.seq > after);
        Ok(all.take(query.limit.unwrap_or(usize::MAX)).collect())
    }

    async fn replay_letters(&self, request: &ReplayRequest) -> Result<ReplayView, ViewError> {
        self.replays.lock().unwrap().push(request.clone());
        Ok(ReplayView { replayed: 2, who: request.actor_name().into(), dry_run: false })
    }

    async fn drop_letters(&self, request: &ReplayRequest) -> Result<DropView, ViewError> {
        Ok(DropView { dropped: 2, who: request.actor_name().into(), dry_run: false })
    }

    async fn list_mutes(&self) -> Result<Vec<MuteView>, ViewError> {
        let of = |tenant: &str| MuteView {
            uid: format!("uid-{tenant}"),
            object: format!("Job/{tenant}-train"),
            namespace: tenant.into(),
            to: format!("{tenant}-people"),
            who: format!("user-{tenant}"),
            at: calendar::format_rfc3339(MADE_MS + 2000),
            ..MuteView::default()
        };
        let whole = |tenant: &str| MuteView {
            uid: String::new(),
            object: String::new(),
            namespace_uid: format!("ns-{tenant}"),
            ..of(tenant)
        };
        Ok(TENANTS.into_iter().flat_map(|tenant| [of(tenant), whole(tenant)]).collect())
    }

    async fn set_mute(&self, mute: &MuteView, mutes: bool) -> Result<MutedView, ViewError> {
        self.muted.lock().unwrap().push((mute.clone(), mutes));
        Ok(MutedView { changed: true, mute: mute.clone() })
    }

    async fn set_plugin_pause(
        &self,
        plugin: &str,
        pauses: bool,
        request: &PauseRequest,
    ) -> Result<PauseView, ViewError> {
        self.pauses.lock().unwrap().push((plugin.to_owned(), pauses, request.clone()));
        Ok(PauseView { plugin: plugin.to_owned(), changed: true, paused: None })
    }

    async fn letter_records(&self, _: &RecordQuery) -> Result<Vec<LetterRecordView>, ViewError> {
        Ok(vec![LetterRecordView { who: BOTH.into(), seqs: vec![1, 11], ..Default::default() }])
    }

    async fn has_all_after(&self, _: Seq) -> Result<bool, ViewError> {
        Ok(true)
    }

    async fn states_after(&self, after: Seq, limit: usize) -> Result<Vec<RawState>, ViewError> {
        if *self.newest.borrow() > after + 2000 {
            let readers = self.far_readers.fetch_add(1, Ordering::SeqCst) + 1;
            self.most_far_readers.fetch_max(readers, Ordering::SeqCst);
            tokio::task::yield_now().await;
            self.far_readers.fetch_sub(1, Ordering::SeqCst);
        }
        Ok(raw(self.all().into_iter().filter(|state| state.seq > after).take(limit).collect()))
    }

    async fn states_at(&self, seqs: &[Seq]) -> Result<Vec<RawState>, ViewError> {
        let states = self.states.lock().unwrap();
        let found = seqs.iter().filter_map(|seq| {
            let place = states.binary_search_by_key(seq, |state| state.seq).ok()?;
            Some(states[place].clone())
        });
        Ok(self.raw(found.collect()))
    }

    fn newest_position(&self) -> Result<watch::Receiver<Seq>, ViewError> {
        Ok(self.newest.subscribe())
    }

    fn outcome_news(&self) -> Result<watch::Receiver<u64>, ViewError> {
        Ok(self.outcome_news.subscribe())
    }

    fn retention_holds(&self) -> Vec<HeldView> {
        vec![HeldView { holder: BOTH.into(), ..Default::default() }]
    }

    fn why_not_ready(&self) -> Option<String> {
        Some(BOTH.into())
    }
}

/// Tokens are names. `red` and `blue` have their namespaces, `boss` has everything, `guest` nothing,
/// `watcher` the status, `steward` all rights of Kubewitness itself, `reader` all Events and the objects of
/// `blue`. `roamer` has the objects of every namespace, by a right in each.
#[derive(Default)]
pub struct TenantServer {
    pub is_down: AtomicBool,
    pub slow: Option<Duration>,
    /// The time of a review of an invalid token.
    pub slow_with_garbage: Option<Duration>,
    pub gone: Mutex<BTreeSet<String>>,
    /// Rights that were withdrawn.
    pub denied: Mutex<BTreeSet<String>>,
    /// Resources for which only an operator has a right.
    pub refused: Mutex<BTreeSet<String>>,
    /// Namespaces that were recreated, and the times.
    pub remade: Mutex<BTreeMap<String, u64>>,
    pub authentications: AtomicUsize,
    /// The reviewed attempts, in order.
    pub asked: Mutex<Vec<AccessAttempt>>,
    pub reviews: AtomicUsize,
    pub most_at_once: AtomicUsize,
    pub now: AtomicUsize,
}

impl TenantServer {
    fn answers(&self) -> Result<(), ReviewError> {
        match self.is_down.load(Ordering::SeqCst) {
            true => Err(ReviewError::Unavailable("connection refused by 10.0.0.1".into())),
            false => Ok(()),
        }
    }

    async fn think(&self) {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_at_once.fetch_max(now, Ordering::SeqCst);
        if let Some(slow) = self.slow {
            tokio::time::sleep(slow).await;
        }
        self.now.fetch_sub(1, Ordering::SeqCst);
    }
}

#[async_trait]
impl AccessReviewer for TenantServer {
    async fn authenticate_token(&self, token: &str) -> Result<Option<Person>, ReviewError> {
        self.authentications.fetch_add(1, Ordering::SeqCst);
        self.think().await;
        self.answers()?;
        let name = token.trim_end_matches('x');
        let is_known = ["red", "blue", "boss", "guest", "named", "watcher", "steward", "reader", "roamer"]
            .contains(&name);
        if let Some(slow) = self.slow_with_garbage.filter(|_| !is_known) {
            tokio::time::sleep(slow).await;
        }
        let is_gone = self.gone.lock().unwrap().contains(token);
        let person = Person { user: format!("user-{name}"), groups: vec![name.into()], ..Person::default() };
        Ok((is_known && !is_gone).then_some(person))
    }

    async fn allows_attempt(&self, person: &Person, attempt: &AccessAttempt) -> Result<bool, ReviewError> {
        self.reviews.fetch_add(1, Ordering::SeqCst);
        self.asked.lock().unwrap().push(attempt.clone());
        self.think().await;
        self.answers()?;
        let name = person.user.trim_start_matches("user-");
        if self.denied.lock().unwrap().contains(name) {
            return Ok(false);
        }
        let reads = ["get", "list"].contains(&attempt.verb.as_str())
            && !["kubewitness.dev", "batch.volcano.sh"].contains(&attempt.group.as_str());
        if name != "boss" && self.refused.lock().unwrap().contains(&attempt.resource) {
            return Ok(false);
        }
        Ok(match name {
            "boss" => true,
            "steward" => attempt.group == "kubewitness.dev",
            "roamer" => reads && !attempt.namespace.is_empty(),
            "reader" => reads && (attempt.resource == "events" || attempt.namespace == "blue"),
            "watcher" => attempt.group == "kubewitness.dev" && attempt.resource == "status",
            "named" => {
                reads && attempt.verb == "get" && attempt.namespace == "red" && attempt.name == "red-train"
            }
            tenant => {
                (reads || ["mute", "create"].contains(&attempt.verb.as_str())) && attempt.namespace == tenant
            }
        })
    }

    async fn find_namespace(&self, name: &str) -> Result<Option<LiveNamespace>, ReviewError> {
        self.answers()?;
        let remade = self.remade.lock().unwrap().get(name).copied();
        let uid = format!("ns-{name}{}", if remade.is_some() { "-again" } else { "" });
        let created_ms = remade.unwrap_or(MADE_MS);
        let is_there = TENANTS.contains(&name) || name.starts_with("other-");
        Ok(is_there.then_some(LiveNamespace { uid, created_ms }))
    }
}
