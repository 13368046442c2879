//! Answers the portal and the API from the journal, the cache and the dispatchers. On request it replays and
//! drops dead letters, pauses and resumes plugins, and mutes. It changes nothing else.
//!
//! No secret may reach the portal, and only the portal knows what a person may see. So states that it has not
//! checked yet travel as raw types whose texts it can't read, and documents and texts are redacted here.

mod at_moment;
mod by_phase;
mod details;
mod events;
mod gone;
mod objects;
mod redacted;
mod retention_holds;
mod shapes;
mod standby;
mod visible;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use kubewitness_capability::AnswerPatience;
use kubewitness_core::clock::{Clock, SystemClock};
use kubewitness_core::cursor::{LetterCursor, StoryCursor};
use kubewitness_core::ports::{
    Backlog, DeadLetter, DocumentReader, JournalError, RawState, RawStory, SelectError, WatchedResource,
};
use kubewitness_core::views::{
    DeadLetterView, DeliveryMap, DocumentsBySeq, DropView, EpochView, ExplainedStates, GapQuery, HeldView,
    JournalView, LetterChoice, LetterQuery, LetterRecordView, MuteView, MutedView, ObjectCounts, ObjectPage,
    ObjectQuery, PauseRequest, PauseView, PluginView, PoisonQuery, PoisonView, RecordQuery, ReplayRequest,
    ReplayView, SourceView, StatusView, StreamView, TimelineQuery, TimelineView, ViewError, Views, WhyView,
};
use kubewitness_core::{Gap, Seq, State, calendar};
use kubewitness_dispatch::{DispatchError, DispatchHandle, LetterSelection, PauseChange};
use kubewitness_journal::{Journal, PhaseIndex, ReplayRecord};
use tokio::sync::watch;

use self::at_moment::WalkTurns;
use self::gone::EndedIn;
use self::shapes::*;
use super::election::ReplicaElection;
use super::mutes::StoryMutes;
use super::shared::{PluginPhase, PluginState, SharedStatus};

/// Letters that are examined together to find those of a request: of the rest, only the positions are kept.
const LETTERS: usize = 1000;

pub struct HostViews {
    shared: Arc<SharedStatus>,
    journal: Journal,
    clock: SystemClock,
    /// Set if replicas share the journal.
    election: Option<ReplicaElection>,
    mutes: Arc<StoryMutes>,
    phases: PhaseIndex,
    walks: WalkTurns,
    ended_in: EndedIn,
}

impl HostViews {
    pub fn new(
        shared: Arc<SharedStatus>,
        journal: Journal,
        election: Option<ReplicaElection>,
        mutes: Arc<StoryMutes>,
        phases: PhaseIndex,
    ) -> Self {
        Self {
            shared,
            journal,
            clock: SystemClock::default(),
            election,
            mutes,
            phases,
            walks: WalkTurns::default(),
            ended_in: EndedIn::default(),
        }
    }

    async fn plugin_views(&self) -> Result<Vec<PluginView>, ViewError> {
        let now_ms = self.clock.now_ms();
        let mut untold = self.journal.removed_before_delivery().await.map_err(unavailable)?;
        let plugins = self.shared.plugins();
        let (mut saved, mut pauses) = match plugins.values().any(|state| state.handle.is_none()) {
            true => (
                self.journal.all_progress().await.map_err(unavailable)?,
                self.journal.pauses_in_force().await.map_err(unavailable)?,
            ),
            false => (BTreeMap::new(), BTreeMap::new()),
        };
        let mut views = Vec::new();
        for (name, state) in plugins {
            let taken = untold.remove(&name).unwrap_or_default();
            let progress = saved.remove(&name).filter(|_| state.handle.is_none());
            let paused = pauses.remove(&name).filter(|_| state.handle.is_none());
            let losses = self.shared.losses(&name);
            let mut view = plugin_view(name, &state, now_ms);
            view.losses = losses.iter().map(loss_view).collect();
            if let Some(paused) = paused {
                view.paused = Some(paused_view(&paused));
            }
            let view = match progress {
                Some(progress) => self.idle_view(view, progress).await?,
                None => view,
            };
            let manifest = view.manifest.as_deref().map(|manifest| self.shown_manifest(manifest));
            views.push(PluginView { observed: view.observed + taken, taken, manifest, ..view });
        }
        Ok(views)
    }

    async fn stream_views(&self) -> Result<Vec<StreamView>, ViewError> {
        let newest = *self.journal.newest_position().borrow();
        let mut views = Vec::new();
        for (spec, handle) in self.shared.streams() {
            let view = handle.current_snapshot();
            let limitation = spec.missing_key_text();
            let sources: Vec<_> = spec.carry.iter().map(|name| Arc::from(name.as_str())).collect();
            let waiting = self.journal.count(&sources, view.cursor, newest).await.map_err(unavailable)?;
            views.push(StreamView {
                name: spec.name,
                carries: spec.carry,
                carried: view.carried,
                waiting,
                condition: view.condition,
                limitation,
            });
        }
        Ok(views)
    }
}

fn raw(states: Vec<Arc<State>>) -> Vec<RawState> {
    states.into_iter().map(RawState::from).collect()
}

fn unavailable<E: std::error::Error>(error: E) -> ViewError {
    ViewError::Unavailable(error.to_string())
}

#[async_trait]
impl Views for HostViews {
    async fn status_view(&self) -> Result<StatusView, ViewError> {
        let counters = self.journal.source_counters().await.map_err(unavailable)?;
        let counters: BTreeMap<_, _> = counters.into_iter().map(|c| (c.source.clone(), c)).collect();
        let mut epochs: BTreeMap<String, Vec<EpochView>> = BTreeMap::new();
        for (source, epoch) in self.journal.source_epochs().await.map_err(unavailable)? {
            epochs.entry(source).or_default().push(epoch);
        }
        let now_ms = self.clock.now_ms();
        let outcomes = self.phases.outcome_counts();
        let sources = self.shared.sources_with_specs();
        let sources = sources.iter().map(|(spec, handle)| {
            let counters = counters.get(handle.name()).cloned().unwrap_or_default();
            let view = source_view(spec, handle.snapshot_view(), counters, now_ms);
            let mut epochs = epochs.remove(handle.name()).unwrap_or_default();
            if let Some(from) = &spec.from {
                epochs.iter_mut().for_each(|e| e.checkpoint = read_through(&from.stream, &e.checkpoint));
            }
            let outcomes = outcomes_of(spec, &outcomes);
            let unsigned = spec.from.as_ref().and_then(|from| self.shared.unsigned_stream(&from.stream));
            let limitation = view.limitation.or(unsigned);
            SourceView { epochs, outcomes, limitation, ..view }
        });
        let sources = sources.collect();
        let journal: JournalView = self.journal.journal_stats().await.map_err(unavailable)?;
        let plugins = self.plugin_views().await?;
        let streams = self.stream_views().await?;
        let (replica, problems) = (self.replica_view().await?, self.shared.problems());
        let refused =
            |state: &PluginState| matches!(state.phase, PluginPhase::Degraded | PluginPhase::Failed);
        let refused = self.shared.plugins().values().filter(|state| refused(state)).count();
        let configuration_problems = (problems.len() + refused) as u64;
        let held = self.retention_holds();
        let shipping = self.shared.shipping().into_iter();
        let ledgers = shipping.map(|(name, shipping)| ledger_view(name, shipping, now_ms)).collect();
        Ok(StatusView {
            version: env!("CARGO_PKG_VERSION").into(),
            replica,
            sources,
            plugins,
            streams,
            ledgers,
            journal,
            held,
            problems,
            restricted: false,
            configuration_problems,
        })
    }

    fn watched_resources(&self) -> Vec<WatchedResource> {
        let sources = self.shared.sources_with_specs();
        sources.iter().map(|(spec, _)| watched_resource(spec)).collect()
    }

    async fn known_namespaces(
        &self,
        source: &str,
        past: bool,
        most: usize,
    ) -> Result<BTreeSet<String>, ViewError> {
        let mut names = match visible::namespaces(&self.shared.listers, source, most).await {
            // It ended a moment ago.
            Err(SelectError::Source { .. }) => BTreeSet::new(),
            found => found.map_err(unavailable)?,
        };
        if past {
            self.add_ended(source, most, &mut names).await?;
        }
        Ok(names)
    }

    async fn object_page(&self, query: &ObjectQuery) -> Result<ObjectPage, ViewError> {
        self.page_of_objects(query).await
    }

    async fn object_counts(&self, query: &ObjectQuery) -> Result<ObjectCounts, ViewError> {
        let counts = self.tally_objects(query)?;
        let was = match &query.was {
            Some(phase) => self.count_was(query, phase).await?,
            None => None,
        };
        Ok(ObjectCounts { was, ..counts })
    }

    async fn raw_story(&self, query: &TimelineQuery) -> Result<RawStory, ViewError> {
        // One more shows whether more exist.
        let asked = TimelineQuery { limit: query.limit.map(|limit| limit + 1), ..query.clone() };
        let mut found = self.journal.object_timeline(&asked).await.map_err(|error| match error {
            JournalError::Invalid(message) => ViewError::Invalid(message),
            other => unavailable(other),
        })?;
        let cut = |states: &mut Vec<Arc<State>>| {
            let over = query.limit.map_or(0, |limit| states.len().saturating_sub(limit));
            states.drain(..over);
            states.first().filter(|_| over > 0).map_or(0, |oldest| oldest.seq)
        };
        let here = query.cursor.unwrap_or(StoryCursor::NEWEST);
        let next = StoryCursor {
            states: cut(&mut found.states),
            related: cut(&mut found.related),
            owned: here.owned,
        };
        // After the last states of these objects, those of the next ones follow.
        let next = match found.owned_below {
            Some(owned) if next.related == 0 => StoryCursor { related: Seq::MAX, owned, ..next },
            _ => next,
        };
        let next = Some(next).filter(|next| next.states > 0 || next.related > 0);
        if query.events {
            found.events.extend(events::state_with_content(&found.states));
        }
        let [states, related, events] = [found.states, found.related, found.events].map(raw);
        Ok(RawStory { states, related, events, reports: query.events, next, owns_more: found.owns_more })
    }

    async fn timeline_view(&self, story: RawStory) -> Result<TimelineView, ViewError> {
        let RawStory { states, related, events, reports, next, owns_more } = story;
        let events = self.event_views(events, &mut AnswerPatience::of_a_request()).await?;
        let (states, related) = (self.shown_all(states).await?, self.shown_all(related).await?);
        let uids = states.iter().chain(&related).map(|state| state.object.uid.clone()).collect();
        let reports = match reports {
            true => self.journal.reports_about(&uids).await.map_err(unavailable)?,
            false => Vec::new(),
        };
        let cut = next.is_some();
        Ok(TimelineView { states, related, events, reports, cut, owns_more, next, ..TimelineView::default() })
    }

    async fn explain_timeline(&self, timeline: &TimelineView) -> Result<WhyView, ViewError> {
        let pods = self.pod_coverage(timeline);
        let story = ExplainedStates { pods, ..timeline.explained_states() };
        let mut documents = DocumentsBySeq::new();
        for seq in story.documents_wanted() {
            match self.document_at(seq).await {
                Ok(document) => drop(documents.insert(seq, document)),
                // Retention may have removed it since, or it is withheld. The states still have their own
                // information.
                Err(ViewError::NotFound { .. } | ViewError::Unavailable(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(story.explain_object(&documents, self.clock.now_ms()))
    }

    async fn redacted_state(&self, state: RawState) -> Result<Arc<State>, ViewError> {
        self.without_secrets(&state.unredacted()).await
    }

    async fn created_ms(&self, seq: Seq) -> Result<Option<u64>, ViewError> {
        // The creation time is not secret for a person who may see the object, whatever the rules hide.
        redacted::or_without_age(seq, self.journal.document_at(seq).await).map_err(unavailable)
    }

    async fn delivery_stages(&self, states: &[Arc<State>]) -> Result<DeliveryMap, ViewError> {
        self.told_of(states).await
    }

    async fn document_at(&self, seq: Seq) -> Result<Vec<u8>, ViewError> {
        let (redaction, party) = (self.secret_redaction()?, redacted::current_party());
        let shown = redaction.read(&self.journal, self.journal.document_at(seq), &party).await;
        let missing = || {
            ViewError::NotFound {
            message: format!("the journal has no document at position {seq}"),
            hint: "Nobody saw the last content of an object whose deletion a comparison found. Other positions were not \
                   witnessed yet, or are older than what the journal keeps."
                .into(),
        }
        };
        shown.map_err(unavailable)?.map(Vec::from).ok_or_else(missing)
    }

    async fn find_gaps(&self, query: &GapQuery) -> Result<Vec<(u64, Gap)>, ViewError> {
        self.journal.gaps_of(query).await.map_err(unavailable)
    }

    async fn find_poison(&self, query: &PoisonQuery) -> Result<Vec<PoisonView>, ViewError> {
        self.journal.poison_of(query).await.map_err(unavailable)
    }

    async fn poison_raw(&self, number: u64) -> Result<Vec<u8>, ViewError> {
        let raw = self.journal.poison_raw(number).await.map_err(unavailable)?;
        raw.ok_or_else(|| ViewError::NotFound {
            message: format!("the journal has no poison message with the number {number}"),
            hint: "`kubewitness poison` and the portal's page of gaps list those that it has.".into(),
        })
    }

    async fn dead_letters(&self, query: &LetterQuery) -> Result<Vec<DeadLetterView>, ViewError> {
        let letters = self.journal.letters_with_states(query).await.map_err(unavailable)?;
        // A removed plugin may have left letters behind; after the last one, none exist.
        let is_unknown = |name: &&String| {
            letters.is_empty() && query.cursor.is_none() && self.shared.plugin(name).is_none()
        };
        if let Some(name) = query.plugin.as_ref().filter(is_unknown) {
            return Err(no_plugin(name));
        }
        let view = |(letter, state): (_, Arc<State>)| DeadLetterView {
            letter,
            object: (*state.object).clone(),
            phase: state.status.phase.clone(),
        };
        Ok(letters.into_iter().map(view).collect())
    }

    async fn replay_letters(&self, request: &ReplayRequest) -> Result<ReplayView, ViewError> {
        if request.reason.trim().is_empty() {
            return Err(ViewError::Invalid("say why in `reason`: it is kept with the replay".into()));
        }
        let replayed = match self.choose_letters(request).await? {
            ChosenLetters::Counted(count) => count,
            ChosenLetters::From(handle, seqs) => handle
                .replay_letters(selection_of(request, seqs), request.actor_name(), &request.reason)
                .await
                .map_err(dispatch_error)?,
        };
        request.check_done(replayed)?;
        Ok(ReplayView { replayed, who: request.actor_name().to_owned(), dry_run: request.dry_run })
    }

    async fn drop_letters(&self, request: &ReplayRequest) -> Result<DropView, ViewError> {
        if request.reason.trim().is_empty() {
            return Err(ViewError::Invalid("say why in `reason`: it is kept with what was dropped".into()));
        }
        let dropped = match self.choose_letters(request).await? {
            ChosenLetters::Counted(count) => count,
            ChosenLetters::From(handle, seqs) => handle
                .drop_letters(selection_of(request, seqs), request.actor_name(), &request.reason)
                .await
                .map_err(dispatch_error)?,
        };
        request.check_done(dropped)?;
        Ok(DropView { dropped, who: request.actor_name().to_owned(), dry_run: request.dry_run })
    }

    async fn set_plugin_pause(
        &self,
        plugin: &str,
        pauses: bool,
        request: &PauseRequest,
    ) -> Result<PauseView, ViewError> {
        let state = self.shared.plugin(plugin).ok_or_else(|| no_plugin(plugin))?;
        let Some(handle) = state.handle else { return Err(self.why_idle(plugin).await?) };
        let done =
            handle.set_pause(pauses, request.actor_name(), &request.reason).await.map_err(dispatch_error)?;
        let PauseChange { changed, paused } = done;
        Ok(PauseView { plugin: plugin.to_owned(), changed, paused: paused.as_deref().map(paused_view) })
    }

    async fn list_mutes(&self) -> Result<Vec<MuteView>, ViewError> {
        self.mutes.all_mutes().await.map_err(|error| ViewError::Unavailable(format!("{error:#}")))
    }

    async fn set_mute(&self, mute: &MuteView, mutes: bool) -> Result<MutedView, ViewError> {
        let mute = MuteView { at: calendar::format_rfc3339(self.clock.now_ms()), ..mute.clone() };
        let changed = self.mutes.change_mute(&mute, mutes).await;
        let changed = changed.map_err(|error| ViewError::Unavailable(format!("{error:#}")))?;
        Ok(MutedView { changed, mute })
    }

    async fn letter_records(&self, query: &RecordQuery) -> Result<Vec<LetterRecordView>, ViewError> {
        let RecordQuery { plugin, before, limit } = query;
        let records = self.journal.replay_records(plugin.as_deref(), before.unwrap_or(u64::MAX), *limit);
        let records = records.await.map_err(unavailable)?;
        let view = |record: ReplayRecord| LetterRecordView {
            number: record.number,
            plugin: record.plugin,
            what: record.what,
            who: record.who,
            why: record.why,
            seqs: record.seqs,
            at: calendar::format_rfc3339(record.at_ms),
        };
        Ok(records.into_iter().map(view).collect())
    }

    async fn has_all_after(&self, after: Seq) -> Result<bool, ViewError> {
        let counters = self.journal.source_counters().await.map_err(unavailable)?;
        let sources: Vec<Arc<str>> = counters.into_iter().map(|it| it.source.into()).collect();
        let newest = *self.journal.newest_position().borrow();
        let there = self.journal.count(&sources, after, newest).await.map_err(unavailable)?;
        // Positions are consecutive.
        Ok(there >= newest.saturating_sub(after))
    }

    async fn states_after(&self, after: Seq, limit: usize) -> Result<Vec<RawState>, ViewError> {
        Ok(raw(self.journal.read(after, limit).await.map_err(unavailable)?))
    }

    async fn states_at(&self, seqs: &[Seq]) -> Result<Vec<RawState>, ViewError> {
        Ok(raw(self.journal.read_at(seqs).await.map_err(unavailable)?))
    }

    fn newest_position(&self) -> Result<watch::Receiver<Seq>, ViewError> {
        Ok(self.journal.newest_position())
    }

    fn outcome_news(&self) -> Result<watch::Receiver<u64>, ViewError> {
        Ok(self.phases.outcome_news())
    }

    fn retention_holds(&self) -> Vec<HeldView> {
        retention_holds::hold_views(&self.shared, self.clock.now_ms())
    }

    fn why_not_ready(&self) -> Option<String> {
        if let Some(trouble) = self.shared.journal_trouble() {
            return Some(format!("the journal: {trouble}"));
        }
        if !self.shared.has_settings() {
            let problems = self.shared.problems();
            return Some(problems.into_iter().next().unwrap_or_else(|| "no settings were read yet".into()));
        }
        if let Some(why) = self.election.as_ref().and_then(ReplicaElection::why_leaderless) {
            return Some(why);
        }
        for handle in self.shared.sources() {
            let view = handle.snapshot_view();
            if let Some(condition) = view.stalled.or(view.condition) {
                return Some(format!("source {}: {condition}", handle.name()));
            }
            if !view.synced {
                return Some(format!("source {} has not listed yet", handle.name()));
            }
        }
        None
    }
}

/// The letters that a request selects.
enum ChosenLetters {
    /// It only asks for the number, or none match.
    Counted(u64),
    From(DispatchHandle, Vec<Seq>),
}

/// A request for a number of letters changes all of them or none.
fn selection_of(request: &ReplayRequest, seqs: Vec<Seq>) -> LetterSelection {
    match request.exactly {
        Some(_) => LetterSelection::Exactly(seqs),
        None => LetterSelection::Parked(seqs),
    }
}

impl HostViews {
    async fn choose_letters(&self, request: &ReplayRequest) -> Result<ChosenLetters, ViewError> {
        let name = &request.plugin;
        let plugin = self.shared.plugin(name).ok_or_else(|| no_plugin(name))?;
        let seqs = self.meant_positions(request).await?;
        request.check_count(seqs.len() as u64)?;
        if request.dry_run || seqs.is_empty() {
            return Ok(ChosenLetters::Counted(seqs.len() as u64));
        }
        match plugin.handle {
            Some(handle) => Ok(ChosenLetters::From(handle, seqs)),
            None => Err(self.why_idle(name).await?),
        }
    }

    /// The positions of the parked letters that a request selects, in order.
    async fn meant_positions(&self, request: &ReplayRequest) -> Result<Vec<Seq>, ViewError> {
        let mut meant = MeantLetters::new(request, self.clock.now_ms())?;
        let mut query = meant.letter_query();
        loop {
            let letters = self.journal.letters_with_states(&query).await.map_err(unavailable)?;
            meant.take(&letters);
            match letters.last() {
                Some((last, _)) if letters.len() >= LETTERS && !meant.is_behind(last.seq) => {
                    query.cursor = Some(LetterCursor::from(last));
                }
                _ => return meant.into_positions(),
            }
        }
    }
}

fn dispatch_error(error: DispatchError) -> ViewError {
    match error {
        DispatchError::Journal(JournalError::Invalid(message)) => ViewError::Invalid(message),
        other => unavailable(other),
    }
}

fn no_plugin(name: &str) -> ViewError {
    ViewError::NotFound {
        message: format!("no plugin is called `{name}`"),
        hint: "`kubewitness plugins` and the portal's page of plugins list those that there are.".into(),
    }
}

/// Finds the parked letters of a request. Positions without a letter are an error; letters that are already
/// being replayed or were dropped are not.
struct MeantLetters<'a, F> {
    request: &'a ReplayRequest,
    fits: F,
    asked: BTreeSet<Seq>,
    has_named: bool,
    seqs: Vec<Seq>,
}

impl<'a> MeantLetters<'a, ()> {
    fn new(
        request: &'a ReplayRequest,
        now_ms: u64,
    ) -> Result<MeantLetters<'a, impl Fn(&DeadLetter, &str) -> bool>, ViewError> {
        let (fits, asked) = (request.letter_filter(now_ms)?, request.seqs.iter().copied().collect());
        Ok(MeantLetters { request, fits, asked, has_named: false, seqs: Vec::new() })
    }
}

impl<F: Fn(&DeadLetter, &str) -> bool> MeantLetters<'_, F> {
    /// Begins at the first letter that it may select.
    fn letter_query(&self) -> LetterQuery {
        let plugin = self.request.plugin.clone();
        let which = if self.asked.is_empty() { LetterChoice::NotDropped } else { LetterChoice::All };
        let first = self.asked.first().map(|first| first.saturating_sub(1));
        let cursor = first.map(|seq| LetterCursor { plugin: plugin.clone(), seq });
        LetterQuery { plugin: Some(plugin), cursor, limit: Some(LETTERS), which }
    }

    fn is_behind(&self, seq: Seq) -> bool {
        self.asked.last().is_some_and(|last| seq >= *last)
    }

    fn take(&mut self, letters: &[(DeadLetter, Arc<State>)]) {
        let is_named =
            |(letter, _): &&(DeadLetter, _)| self.asked.is_empty() || self.asked.contains(&letter.seq);
        for (letter, state) in letters.iter().filter(is_named) {
            self.has_named = true;
            if !letter.replaying && !letter.dropped && (self.fits)(letter, &state.object.namespace) {
                self.seqs.push(letter.seq);
            }
        }
    }

    fn into_positions(self) -> Result<Vec<Seq>, ViewError> {
        if self.asked.is_empty() || self.has_named {
            return Ok(self.seqs);
        }
        let seqs: Vec<_> = self.request.seqs.iter().map(Seq::to_string).collect();
        let plugin = &self.request.plugin;
        Err(ViewError::NotFound {
            message: format!("the plugin `{plugin}` has no dead letter at position {}", seqs.join(", ")),
            hint: format!(
                "`kubewitness deadletters list --plugin {plugin}` and the portal's page of dead letters show those that \
                 it has."
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing<T: std::fmt::Debug>(answer: Result<T, ViewError>) -> String {
        match answer {
            Err(ViewError::NotFound { message, hint }) => format!("{message} | {hint}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn positions_that_name_no_letter_are_told_and_those_on_their_way_are_not_counted() {
        let letter = |seq, replaying| DeadLetter {
            plugin: "p".into(),
            seq,
            id: kubewitness_core::StateId::parse("x"),
            attempts: 1,
            error: String::new(),
            first_ms: 0,
            last_ms: 0,
            replaying,
            dropped: false,
            tries: Vec::new(),
        };
        let state = |seq, namespace: &str| {
            Arc::new(State {
                id: kubewitness_core::StateId::parse("x"),
                seq,
                source: "jobs".into(),
                epoch: 0,
                change: kubewitness_core::Change::Present,
                object: Arc::new(kubewitness_core::ObjectRef {
                    namespace: namespace.into(),
                    ..kubewitness_core::ObjectRef::default()
                }),
                owner: None,
                resource_version: kubewitness_core::Version::new("1"),
                status: Arc::default(),
                previous: None,
                observed_ms: 0,
                late: false,
                quotes_none_under: None,
            })
        };
        let dropped = DeadLetter { dropped: true, ..letter(11, false) };
        let late = DeadLetter { last_ms: 9_000, error: "no such table".into(), ..letter(9, false) };
        let letters = [
            (letter(4, false), state(4, "a")),
            (letter(7, true), state(7, "a")),
            (late, state(9, "b")),
            (dropped, state(11, "b")),
        ];
        let request = |seqs: &[Seq]| ReplayRequest {
            plugin: "p".into(),
            seqs: seqs.to_vec(),
            ..ReplayRequest::default()
        };
        let chosen = |letters: &[_], request: &ReplayRequest| {
            let mut meant = MeantLetters::new(request, 10_000)?;
            letters.chunks(2).for_each(|part| meant.take(part));
            meant.into_positions()
        };
        let meant = |request: &ReplayRequest| chosen(&letters, request).unwrap();
        assert_eq!(meant(&request(&[])), [4, 9]);
        assert_eq!(meant(&request(&[4, 999])), [4]);
        assert_eq!((meant(&request(&[7])), meant(&request(&[11]))), (vec![], vec![]));
        assert_eq!(meant(&ReplayRequest { namespace: Some("b".into()), ..request(&[]) }), [9]);
        assert_eq!(meant(&ReplayRequest { error: Some("such table".into()), ..request(&[]) }), [9]);
        assert_eq!(meant(&ReplayRequest { older_than_seconds: Some(5), ..request(&[]) }), [4]);
        let at = |text: &str| Some(text.to_owned());
        let early = ReplayRequest { until: at("1970-01-01T00:00:05Z"), ..request(&[]) };
        let late = ReplayRequest { since: at("1970-01-01T00:00:05Z"), ..request(&[]) };
        assert_eq!((meant(&early), meant(&late)), (vec![4], vec![9]));
        let wrong = ReplayRequest { since: at("yesterday"), ..request(&[]) };
        assert!(matches!(chosen(&[], &wrong), Err(ViewError::Invalid(_))));
        let all = ReplayRequest { error: Some(String::new()), ..request(&[]) };
        assert!(
            matches!(chosen(&letters, &all), Err(ViewError::Invalid(_))),
            "an empty text is in every error"
        );
        assert!(chosen(&[], &request(&[])).unwrap().is_empty());
        let text = missing(chosen(&letters, &request(&[998, 999])));
        assert!(text.contains("`p` has no dead letter at position 998, 999"), "{text}");
    }

    fn views_of(shared: &Arc<SharedStatus>, journal: Journal, data: &std::path::Path) -> HostViews {
        let mutes =
            Arc::new(StoryMutes::new(journal.clone(), data, kubewitness_capability::SharedValue::default()));
        let phases = PhaseIndex::new(data.join("phases.db"));
        HostViews::new(shared.clone(), journal, None, mutes, phases)
    }

    #[tokio::test]
    async fn ready_is_who_does_his_work_whatever_of_the_configuration_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let options = kubewitness_journal::JournalOptions::default();
        let journal = Journal::open(&folder.path().join("journal.db"), options).await.unwrap();
        let shared = Arc::new(SharedStatus::default());
        let views = views_of(&shared, journal, folder.path());
        assert_eq!(views.why_not_ready().unwrap(), "no settings were read yet");
        shared.set_problems(vec!["host.yaml: it is a pipe".into()]);
        assert_eq!(
            views.why_not_ready().unwrap(),
            "host.yaml: it is a pipe",
            "there are no others to go on with"
        );
        shared.settings_are_taken();
        assert_eq!(views.why_not_ready(), None);
        let failed = PluginState::idle(PluginPhase::Failed, None);
        shared.set_plugin("p", failed);
        assert_eq!(views.why_not_ready(), None);
        assert_eq!(views.status_view().await.unwrap().configuration_problems, 2, "both are told");
        shared.set_journal_trouble(Some("it has not answered for 2s".into()));
        assert_eq!(views.why_not_ready().unwrap(), "the journal: it has not answered for 2s");
    }

    #[tokio::test]
    async fn a_plugin_that_is_not_there_is_not_taken_for_one_without_letters() {
        let folder = tempfile::tempdir().unwrap();
        let options = kubewitness_journal::JournalOptions::default();
        let journal = Journal::open(&folder.path().join("journal.db"), options).await.unwrap();
        let shared = Arc::new(SharedStatus::default());
        let state = PluginState::idle(PluginPhase::Active, None);
        shared.set_plugin("there", state);
        shared.set_problems(vec!["two hosts".into()]);
        let views = views_of(&shared, journal, folder.path());
        assert!(views.dead_letters(&LetterQuery::of("there")).await.unwrap().is_empty());
        assert!(views.dead_letters(&LetterQuery::default()).await.unwrap().is_empty());
        let text = missing(views.dead_letters(&LetterQuery::of("nope")).await);
        assert!(text.contains("no plugin is called `nope` | `kubewitness plugins`"), "{text}");
        let replay = |plugin: &str| ReplayRequest {
            plugin: plugin.into(),
            reason: "why".into(),
            seqs: vec![999],
            ..ReplayRequest::default()
        };
        assert!(missing(views.replay_letters(&replay("nope")).await).contains("`nope`"));
        assert!(missing(views.replay_letters(&replay("there")).await).contains("position 999"));
        assert_eq!(views.status_view().await.unwrap().problems, ["two hosts"]);
    }
}
