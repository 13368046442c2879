//! Views over made-up data: a training job with two pods that was preempted and came back,
//! plugins in every condition, dead letters and gaps.

mod objects;
mod status;
mod story;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use kubewitness_core::kinds::is_kind;
use kubewitness_core::ports::{DeadLetter, RawState, RawStory, WatchedResource, created_ms};
use kubewitness_core::views::*;
use kubewitness_core::{Change, Gap, ObjectRef, Seq, State, StateId, Version};
use tokio::sync::watch;

use story::{events, reports, story};
pub use story::{object, state, status};

pub const START: u64 = 1_795_182_311_000;

pub const POISON: [&[u8]; 2] =
    [b"{\"type\":<script>alert(1)</script>\x1b[2J", b"{\"type\":\"ADDED\",\"object\":{\"kind\":\"Job\"}}"];

pub struct FakeViews {
    pub states: Mutex<Vec<Arc<State>>>,
    pub empty: bool,
    pub broken: bool,
    pub stuck: bool,
    /// Whether the journal is still being opened.
    pub opens: bool,
    pub not_ready: Option<String>,
    pub problems: Vec<String>,
    pub replays: Mutex<Vec<ReplayRequest>>,
    pub drops: Mutex<Vec<ReplayRequest>>,
    /// Letters that a colleague has dropped.
    pub gone_letters: Mutex<BTreeSet<Seq>>,
    /// The pause of the plugin `notification`.
    pub paused: Mutex<Option<PausedView>>,
    pub mutes: Mutex<Vec<MuteView>>,
    pub newest: watch::Sender<Seq>,
    pub outcome_news: watch::Sender<u64>,
    /// Documents of states that differ from those of every story.
    pub documents: Mutex<BTreeMap<Seq, String>>,
    /// Additional objects in lists of the kind `Job`.
    pub more: Mutex<Vec<ObjectView>>,
    /// The time of each read of a document.
    pub slow_document: Option<std::time::Duration>,
    /// How often the status was counted, and the time of each count.
    pub counts: AtomicUsize,
    pub slow_count: Option<std::time::Duration>,
    /// Retention has removed states up to this position.
    pub taken: Seq,
    /// The number of dead letters of the plugin `audit`, and of those that were read.
    pub many: Seq,
    /// How many of the oldest ones were dropped.
    pub dropped: Seq,
    pub read: AtomicUsize,
}

impl Default for FakeViews {
    fn default() -> Self {
        let states = story();
        Self {
            newest: watch::Sender::new(states.len() as u64),
            outcome_news: watch::Sender::new(0),
            states: Mutex::new(states),
            more: Mutex::default(),
            empty: false,
            broken: false,
            stuck: false,
            opens: false,
            not_ready: None,
            problems: Vec::new(),
            replays: Mutex::default(),
            drops: Mutex::default(),
            gone_letters: Mutex::default(),
            paused: Mutex::default(),
            mutes: Mutex::default(),
            documents: Mutex::default(),
            slow_document: None,
            counts: AtomicUsize::default(),
            slow_count: None,
            taken: 0,
            many: 0,
            dropped: 0,
            read: AtomicUsize::default(),
        }
    }
}

impl FakeViews {
    pub fn push(&self, state: State) {
        let seq = state.seq;
        self.states.lock().unwrap().push(Arc::new(state));
        self.newest.send_replace(seq);
    }

    /// The number of dead letters that a request selects: those named ones that are still there, or all five
    /// of a plugin.
    fn meant(&self, request: &ReplayRequest) -> Result<u64, ViewError> {
        let gone = self.gone_letters.lock().unwrap();
        let count = match request.seqs.is_empty() {
            true => 5,
            false => request.seqs.iter().filter(|seq| !gone.contains(seq)).count() as u64,
        };
        request.check_count(count)?;
        Ok(count)
    }

    async fn check(&self) -> Result<(), ViewError> {
        if self.stuck {
            std::future::pending::<()>().await;
        }
        match self.broken {
            true => Err(ViewError::Unavailable("the journal can't be read now: disk I/O error".into())),
            false => Ok(()),
        }
    }
}

fn no_plugin(name: &str) -> ViewError {
    ViewError::NotFound {
        message: format!("there is no plugin `{name}`"),
        hint: "the page of plugins lists those that there are".into(),
    }
}

fn letter(plugin: &str, seq: Seq, error: &str) -> DeadLetterView {
    let object = object("Job", "research", "llm-train-7", "uid-train");
    DeadLetterView {
        letter: DeadLetter {
            plugin: plugin.into(),
            seq,
            id: StateId::of("jobs", 0, &object, Change::Present, &Version::new("1007"), None),
            attempts: 9,
            error: error.into(),
            first_ms: START,
            last_ms: START + 60_000,
            replaying: seq == 9,
            dropped: false,
            tries: Vec::new(),
        },
        object,
        phase: "Running".into(),
    }
}

#[async_trait]
impl Views for FakeViews {
    async fn status_view(&self) -> Result<StatusView, ViewError> {
        self.counts.fetch_add(1, Ordering::Relaxed);
        if let Some(time) = self.slow_count {
            tokio::time::sleep(time).await;
        }
        self.check().await?;
        if self.empty {
            return Ok(StatusView::default());
        }
        let (problems, paused) = (self.problems.clone(), self.paused.lock().unwrap().clone());
        Ok(StatusView { problems, ..status::all(*self.newest.borrow(), self.retention_holds(), paused) })
    }

    fn watched_resources(&self) -> Vec<WatchedResource> {
        let watched = |source: &str, group: &str, kind: &str, resource: &str| WatchedResource {
            source: source.into(),
            group: group.into(),
            kind: kind.into(),
            resource: resource.into(),
        };
        match self.empty {
            true => Vec::new(),
            false => {
                vec![watched("jobs", "batch", "Job", "jobs"), watched("pods\"\\", "", "Pod", "pods")]
            }
        }
    }

    async fn known_namespaces(
        &self,
        _source: &str,
        _: bool,
        most: usize,
    ) -> Result<BTreeSet<String>, ViewError> {
        Ok(objects::jobs().into_iter().map(|view| view.object.namespace).take(most).collect())
    }

    async fn object_page(&self, query: &ObjectQuery) -> Result<ObjectPage, ViewError> {
        self.check().await?;
        let mut page = objects::page(query, self.empty)?;
        if query.kind.as_deref() == Some("Job") {
            let is_asked = |view: &&ObjectView| match query.gone {
                GoneFilter::No => view.ended_at.is_none(),
                GoneFilter::Too => true,
                GoneFilter::Only => view.ended_at.is_some(),
            };
            page.objects.extend(self.more.lock().unwrap().iter().filter(is_asked).cloned());
        }
        Ok(page)
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
        self.check().await?;
        match query.uid.as_deref() {
            Some("uid-wide") => return Ok(story::wide(query)),
            Some("uid-event") => return Ok(story::of_an_event(query)),
            _ => {}
        }
        let known = query.uid.as_deref() == Some("uid-train") || query.name.as_deref() == Some("llm-train-7");
        let mut states = self.states.lock().unwrap().clone();
        if !known {
            let is_it = |object: &ObjectRef| {
                Some(&object.name) == query.name.as_ref() || Some(&object.uid) == query.uid.as_ref()
            };
            states.retain(|state| is_it(&state.object));
            return Ok(story::part((states, Vec::new()), query, false));
        }
        let parts = states.into_iter().partition(|state| state.object.uid == "uid-train");
        Ok(story::part(parts, query, query.events))
    }

    async fn timeline_view(&self, story: RawStory) -> Result<TimelineView, ViewError> {
        let RawStory { states, related, reports: tells, next, owns_more, .. } = story;
        let [states, related] =
            [states, related].map(|all| all.into_iter().map(RawState::unredacted).collect());
        let (events, reports) = if tells { (events(), reports()) } else { Default::default() };
        let cut = next.is_some();
        Ok(TimelineView { states, related, events, reports, cut, owns_more, next, ..TimelineView::default() })
    }

    async fn explain_timeline(&self, timeline: &TimelineView) -> Result<WhyView, ViewError> {
        Ok(timeline.explained_states().explain_object(&BTreeMap::new(), START + 10_000_000))
    }

    async fn redacted_state(&self, state: RawState) -> Result<Arc<State>, ViewError> {
        Ok(state.unredacted())
    }

    async fn created_ms(&self, seq: Seq) -> Result<Option<u64>, ViewError> {
        Ok(created_ms(&self.document_at(seq).await?))
    }

    async fn delivery_stages(&self, states: &[Arc<State>]) -> Result<DeliveryMap, ViewError> {
        let stages = states.iter().map(|state| match state.seq {
            3 => (state.seq, DeliveryStage::Dead),
            18.. => (state.seq, DeliveryStage::Waiting),
            seq => (seq, DeliveryStage::Delivered),
        });
        Ok(DeliveryMap::from([("audit".to_owned(), stages.collect())]))
    }

    async fn document_at(&self, seq: Seq) -> Result<Vec<u8>, ViewError> {
        self.check().await?;
        if let Some(time) = self.slow_document {
            tokio::time::sleep(time).await;
        }
        if let Some(document) = self.documents.lock().unwrap().get(&seq) {
            return Ok(document.clone().into_bytes());
        }
        let lines: Vec<&str> = include_str!("../../../../core/testdata/jobs.jsonl").lines().collect();
        match seq {
            12 => Ok(Vec::new()),
            901 | 902 => Ok(story::event_document(seq - 900)),
            14 => {
                let gaps = self.find_gaps(&GapQuery::default()).await?;
                Ok(serde_json::to_vec(&gaps[0].1).unwrap())
            }
            1..=18 => {
                let line = lines[seq as usize % lines.len()].as_bytes();
                Ok(kubewitness_core::project::split_frame(line).unwrap().object.to_vec())
            }
            _ => Err(ViewError::NotFound {
                message: format!("there is no state at position {seq}"),
                hint: "it may be older than what the journal keeps".into(),
            }),
        }
    }

    async fn find_gaps(&self, query: &GapQuery) -> Result<Vec<(u64, Gap)>, ViewError> {
        self.check().await?;
        if self.empty {
            return Ok(Vec::new());
        }
        let gap = |object, before: &str, reason: &str, message: &str| Gap {
            source: "jobs".into(),
            object,
            epoch: 0,
            after: "1013".into(),
            before: before.into(),
            reason: reason.into(),
            message: message.into(),
            recorded_ms: START + 427_000,
        };
        let train = object("Job", "research", "llm-train-7", "uid-train");
        let gaps = [
            gap(
                Some(train),
                "1019",
                "Compacted",
                "The API server had compacted these versions before they could be read.",
            ),
            gap(
                None,
                "",
                "HistoryReplaced",
                "The API server's history went back: it was restored from a backup.",
            ),
        ];
        let about = |asked: &Option<String>, of: fn(&ObjectRef) -> &String, gap: &Gap| {
            asked.as_ref().is_none_or(|asked| gap.object.as_ref().is_some_and(|object| of(object) == asked))
        };
        let mut gaps: Vec<(u64, Gap)> = [2, 1].into_iter().zip(gaps).collect();
        gaps.retain(|(_, gap)| {
            let of_kind = |kind: &String| {
                gap.object.as_ref().is_some_and(|object| is_kind(&object.group, &object.kind, kind))
            };
            query.source.as_ref().is_none_or(|source| *source == gap.source)
                && query.kind.as_ref().is_none_or(of_kind)
                && about(&query.uid, |object| &object.uid, gap)
                && about(&query.namespace, |object| &object.namespace, gap)
                && about(&query.name, |object| &object.name, gap)
        });
        gaps.retain(|(number, _)| query.cursor.is_none_or(|before| *number < before));
        gaps.truncate(query.limit.unwrap_or(usize::MAX));
        Ok(gaps)
    }

    async fn find_poison(&self, query: &PoisonQuery) -> Result<Vec<PoisonView>, ViewError> {
        self.check().await?;
        let other = query.source.as_ref().is_some_and(|source| source != "jobs");
        if self.empty || other {
            return Ok(Vec::new());
        }
        let poison = |number, error: &str, raw: &[u8]| PoisonView {
            number,
            source: "jobs".into(),
            epoch: 1,
            error: error.into(),
            observed_ms: START + 500_000 + number,
            bytes: raw.len() as u64,
            excerpt: String::from_utf8_lossy(raw).into_owned(),
        };
        let mut all = vec![
            poison(2, "the object has no metadata.uid", POISON[1]),
            poison(1, "expected value at line 1 column 9", POISON[0]),
        ];
        all.retain(|view| query.cursor.is_none_or(|before| view.number < before));
        all.truncate(query.limit.unwrap_or(usize::MAX));
        Ok(all)
    }

    async fn poison_raw(&self, number: u64) -> Result<Vec<u8>, ViewError> {
        self.check().await?;
        let raw = POISON.get((number as usize).wrapping_sub(1));
        raw.map(|raw| raw.to_vec()).ok_or_else(|| ViewError::NotFound {
            message: format!("there is no poison message {number}"),
            hint: "the page of gaps lists them".into(),
        })
    }

    async fn dead_letters(&self, query: &LetterQuery) -> Result<Vec<DeadLetterView>, ViewError> {
        self.check().await?;
        let mut letters = vec![
            letter("notification", 7, "the destination answered 500 Internal Server Error"),
            letter("notification", 9, "the destination timed out"),
            letter("persistence", 4, "rejected: the name is longer than the column"),
        ];
        let plugin = query.plugin.as_deref();
        if let Some(name) = plugin.filter(|name| !["notification", "persistence", "audit"].contains(name)) {
            return Err(no_plugin(name));
        }
        let read = query.cursor.as_ref().filter(|behind| behind.plugin == "audit").map_or(0, |it| it.seq);
        let is_meant = |dropped: bool| match query.which {
            LetterChoice::All => true,
            LetterChoice::NotDropped => !dropped,
            LetterChoice::Dropped => dropped,
        };
        let many = (1..=self.many).skip(read.min(self.many) as usize);
        let many = many.filter(|seq| is_meant(*seq <= self.dropped)).take(query.limit.unwrap_or(usize::MAX));
        letters.extend(many.map(|seq| {
            let mut view = letter("audit", seq, "the disk is full");
            view.letter.dropped = seq <= self.dropped;
            view
        }));
        let gone = self.gone_letters.lock().unwrap().clone();
        letters.retain(|view| is_meant(view.letter.dropped) && !gone.contains(&view.letter.seq));
        letters.sort_by_key(|view| (view.letter.plugin.clone(), view.letter.seq));
        letters.retain(|view| !self.empty && plugin.is_none_or(|name| name == view.letter.plugin));
        let place = |view: &DeadLetterView| (view.letter.plugin.clone(), view.letter.seq);
        letters.retain(|view| {
            query.cursor.as_ref().is_none_or(|behind| place(view) > (behind.plugin.clone(), behind.seq))
        });
        letters.truncate(query.limit.unwrap_or(usize::MAX));
        self.read.fetch_add(letters.len(), Ordering::Relaxed);
        Ok(letters)
    }

    async fn replay_letters(&self, request: &ReplayRequest) -> Result<ReplayView, ViewError> {
        self.check().await?;
        if request.plugin != "notification" {
            return Err(no_plugin(&request.plugin));
        }
        let count = self.meant(request)?;
        self.replays.lock().unwrap().push(request.clone());
        Ok(ReplayView { replayed: count, who: request.who.clone(), dry_run: request.dry_run })
    }

    async fn drop_letters(&self, request: &ReplayRequest) -> Result<DropView, ViewError> {
        self.check().await?;
        let count = self.meant(request)?;
        self.drops.lock().unwrap().push(request.clone());
        if !request.dry_run {
            self.gone_letters.lock().unwrap().extend(&request.seqs);
        }
        Ok(DropView { dropped: count, who: request.who.clone(), dry_run: request.dry_run })
    }

    async fn set_plugin_pause(
        &self,
        plugin: &str,
        pauses: bool,
        request: &PauseRequest,
    ) -> Result<PauseView, ViewError> {
        self.check().await?;
        if plugin != "notification" {
            return Err(no_plugin(plugin));
        }
        let mut paused = self.paused.lock().unwrap();
        let changed = paused.is_some() != pauses;
        if changed {
            let view = PausedView {
                who: request.actor_name().to_owned(),
                why: request.reason.clone(),
                since: "2026-11-20T14:00:00.000Z".into(),
            };
            *paused = pauses.then_some(view);
        }
        Ok(PauseView { plugin: plugin.to_owned(), changed, paused: paused.clone() })
    }

    async fn list_mutes(&self) -> Result<Vec<MuteView>, ViewError> {
        Ok(self.mutes.lock().unwrap().clone())
    }

    async fn set_mute(&self, mute: &MuteView, mutes: bool) -> Result<MutedView, ViewError> {
        let mute = MuteView { at: "2026-11-20T14:00:00.000Z".into(), ..mute.clone() };
        let mut all = self.mutes.lock().unwrap();
        let after = kubewitness_core::mutes::with_change(all.clone(), &mute, mutes);
        let changed = after.is_some();
        *all = after.unwrap_or_else(|| all.clone());
        Ok(MutedView { changed, mute })
    }

    async fn letter_records(&self, query: &RecordQuery) -> Result<Vec<LetterRecordView>, ViewError> {
        self.check().await?;
        if query.before.is_some_and(|before| before <= 1) {
            return Ok(Vec::new());
        }
        Ok(vec![LetterRecordView {
            number: 1,
            plugin: "notification".into(),
            what: "drop".into(),
            who: "ada".into(),
            why: "the <receiver> is gone".into(),
            seqs: vec![3, 4],
            at: "2026-11-20T14:00:00.000Z".into(),
        }])
    }

    async fn has_all_after(&self, after: Seq) -> Result<bool, ViewError> {
        Ok(after >= self.taken)
    }

    async fn states_after(&self, after: Seq, limit: usize) -> Result<Vec<RawState>, ViewError> {
        self.check().await?;
        let states = self.states.lock().unwrap();
        let after = states.iter().filter(|state| state.seq > after).take(limit);
        Ok(after.cloned().map(RawState::from).collect())
    }

    async fn states_at(&self, seqs: &[Seq]) -> Result<Vec<RawState>, ViewError> {
        let states = self.states.lock().unwrap();
        let found = states.iter().filter(|state| seqs.contains(&state.seq));
        Ok(found.cloned().map(RawState::from).collect())
    }

    fn newest_position(&self) -> Result<watch::Receiver<Seq>, ViewError> {
        match self.opens {
            true => Err(ViewError::Unavailable("the journal is being opened".into())),
            false => Ok(self.newest.subscribe()),
        }
    }

    fn outcome_news(&self) -> Result<watch::Receiver<u64>, ViewError> {
        Ok(self.outcome_news.subscribe())
    }

    fn retention_holds(&self) -> Vec<HeldView> {
        if self.empty {
            return Vec::new();
        }
        vec![HeldView {
            source: "jobs".into(),
            holder: "plugin audit".into(),
            states: 12_345,
            since: "2026-11-20T13:59:58.120Z".into(),
            remedy: "it is failed (<no table>): repair it".into(),
        }]
    }

    fn why_not_ready(&self) -> Option<String> {
        self.not_ready.clone()
    }
}
