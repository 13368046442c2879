//! Decides what a viewer may see, by asking the API server.
//!
//! A cluster-wide right shows everything. A right in a namespace shows what belongs to the present namespace
//! of that name: an older object belongs to a former one. A witness sees every object, so filtering only by
//! name would show a tenant the objects of a former tenant.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::StatusCode;
use futures::stream::{self, StreamExt, TryStreamExt};
use kubewitness_core::kinds;
use kubewitness_core::ports::{AccessAttempt, RawState, SourceVisibility, VisibleObjects, WatchedResource};
use kubewitness_core::views::{
    EventView, GoneFilter, KindWithin, ObjectPage, ObjectQuery, ObjectView, PoisonQuery, TimelineQuery, Views,
};
use kubewitness_core::{Change, Gap, ObjectRef, Seq};
use tokio::time::Instant;

use crate::access::ages::NamespaceAges;
use crate::access::{GuardedAct, PortalViewer, ReviewUnanswered, cursors};
use crate::answer::{Problem, codes};
use crate::app::{PortalApp, SharedStatus};
use crate::serve::ReadingRoom;

/// How many namespaces are checked for one answer. A person who may see more of them, but not all, has to
/// name one.
pub(super) const NAMESPACES: usize = 256;
/// The same for a right that covers a single name. No answer about a name is reused, so the API server pays
/// for each invented name.
const NAMESPACES_OF_A_NAME: usize = 32;
/// How many reviews of one answer run concurrently.
pub(super) const AT_ONCE: usize = 8;
/// How many decisions one answer or stream remembers.
pub(super) const DECISIONS: usize = 4096;
/// How many resources one sentence names.
const NAMED_RESOURCES: usize = 8;
/// The longest name in Kubernetes.
const NAME_BYTES: usize = 253;

/// A stream shows what a list shows, so it needs the right to list, and not the one to watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum AccessVerb {
    Get,
    List,
}

impl AccessVerb {
    fn word(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AccessRight {
    Everywhere,
    /// Only objects that were created at this time or later.
    Since(u64),
    Nowhere,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct VisibilityScope {
    pub(super) verb: AccessVerb,
    pub(super) group: String,
    pub(super) kind: String,
    pub(super) namespace: String,
}

/// A right as the API server has told it.
#[derive(Clone, Copy, Debug)]
pub(super) struct DecidedRight {
    pub(super) right: AccessRight,
    /// Before it was asked for.
    asked: Instant,
}

#[derive(Default)]
pub(super) struct DecidedRights {
    pub(super) of: HashMap<VisibilityScope, DecidedRight>,
    /// A right that was asked for before this is asked for again before it is used.
    pub(super) fresh_since: Option<Instant>,
}

impl DecidedRights {
    fn is_fresh(&self, decided: &DecidedRight) -> bool {
        self.fresh_since.is_none_or(|since| decided.asked >= since)
    }
}

pub(crate) struct ViewerVisibility {
    pub(super) views: Arc<dyn Views>,
    pub(super) viewer: PortalViewer,
    pub(super) readings: ReadingRoom,
    pub(super) status: Arc<SharedStatus>,
    ages: Arc<NamespaceAges>,
    pub(super) witnessed: Vec<WatchedResource>,
    decided: Mutex<DecidedRights>,
    /// Whether some rights were not checked in advance, while `decided` still has every right that has shown
    /// something.
    pub(super) has_unasked: AtomicBool,
    /// Whether a right was withdrawn or changed since it was first asked for.
    pub(super) has_lost_right: AtomicBool,
}

impl ViewerVisibility {
    pub(crate) fn new(app: &PortalApp, viewer: &PortalViewer) -> Self {
        Self {
            witnessed: app.views.watched_resources(),
            views: app.views.clone(),
            viewer: viewer.clone(),
            readings: app.readings.clone(),
            status: app.status.clone(),
            ages: app.ages.clone(),
            decided: Mutex::default(),
            has_unasked: AtomicBool::new(false),
            has_lost_right: AtomicBool::new(false),
        }
    }

    /// Whether people are not distinguished, so that they see everything.
    pub(crate) fn is_whole(&self) -> bool {
        matches!(self.viewer, PortalViewer::Everybody)
    }

    /// Whether it is known who asks.
    pub(crate) fn knows_person(&self) -> bool {
        self.viewer.name().is_some()
    }

    /// Whether the viewer may see how the controller works.
    pub(crate) async fn is_operators(&self) -> Result<bool, Problem> {
        Ok(self.viewer.has_right(GuardedAct::SeeStatus, "").await?)
    }

    // ---- objects -----------------------------------------------------------------------------

    /// One object. `seq` is one of its states, if one is known.
    pub(crate) async fn may_see(
        &self,
        verb: AccessVerb,
        object: &ObjectRef,
        seq: Option<Seq>,
    ) -> Result<bool, Problem> {
        if self.is_whole() {
            return Ok(true);
        }
        let right = self.right_in(verb, &object.group, &object.kind, &object.namespace).await?;
        self.is_reached_by(right, object, seq).await
    }

    /// The same with a right that may apply to this name alone.
    async fn may_get(&self, object: &ObjectRef, seq: Option<Seq>) -> Result<bool, Problem> {
        if self.may_see(AccessVerb::Get, object, seq).await? {
            return Ok(true);
        }
        let ObjectRef { group, kind, namespace, name, .. } = object;
        if name.is_empty() || name.len() > NAME_BYTES {
            return Ok(false);
        }
        let attempt = self.access_attempt(AccessVerb::Get, group, kind, namespace, name);
        let right = match namespace.is_empty() {
            false => self.right_since(&attempt).await?,
            true if self.viewer.allows_attempt(&attempt).await? => AccessRight::Everywhere,
            true => AccessRight::Nowhere,
        };
        self.is_reached_by(right, object, seq).await
    }

    /// Whether anything in such a list could be visible. It is checked before anything is looked up, so that
    /// neither the answer nor its time reveals what exists. Without a namespace, or for a kind that no source
    /// witnesses any more, only the matches can decide.
    pub(crate) async fn could_list(
        &self,
        kind: Option<&str>,
        namespace: Option<&str>,
    ) -> Result<bool, Problem> {
        let Some(namespace) = namespace.filter(|_| !self.is_whole()) else { return Ok(true) };
        let mut is_known = false;
        for WatchedResource { group, kind, .. } in self.of_kind(kind) {
            is_known = true;
            if self.right_in(AccessVerb::List, group, kind, namespace).await? != AccessRight::Nowhere {
                return Ok(true);
            }
        }
        Ok(!is_known)
    }

    fn of_kind(&self, kind: Option<&str>) -> impl Iterator<Item = &WatchedResource> {
        self.witnessed
            .iter()
            .filter(move |known| kind.is_none_or(|kind| kinds::is_kind(&known.group, &known.kind, kind)))
    }

    async fn is_reached_by(
        &self,
        right: AccessRight,
        object: &ObjectRef,
        seq: Option<Seq>,
    ) -> Result<bool, Problem> {
        let since_ms = match right {
            AccessRight::Everywhere => return Ok(true),
            AccessRight::Nowhere => return Ok(false),
            AccessRight::Since(ms) => ms,
        };
        let created = self.ages.created_ms(&*self.views, object, seq).await?;
        let Some(created_ms) = created else { return Ok(false) };
        Ok(self.views.is_since(since_ms, created_ms, &object.uid).await?)
    }

    /// A resource in the whole cluster, by the source that witnesses it.
    pub(crate) async fn sees_source(&self, verb: AccessVerb, source: &str) -> Result<bool, Problem> {
        if self.is_whole() {
            return Ok(true);
        }
        let Some(known) = self.witnessed.iter().find(|known| known.source == source) else {
            return Ok(false);
        };
        Ok(self.right_in(verb, &known.group, &known.kind, "").await? == AccessRight::Everywhere)
    }

    pub(super) async fn right_in(
        &self,
        verb: AccessVerb,
        group: &str,
        kind: &str,
        namespace: &str,
    ) -> Result<AccessRight, ReviewUnanswered> {
        let spot =
            VisibilityScope { verb, group: group.into(), kind: kind.into(), namespace: namespace.into() };
        let before = {
            let decided = self.lock_decided();
            let before = decided.of.get(&spot).copied();
            if let Some(fresh) = before.filter(|before| decided.is_fresh(before)) {
                return Ok(fresh.right);
            }
            before
        };
        let asked = Instant::now();
        let right = self.decide_right(&spot).await?;
        if before.is_some_and(|before| before.right != AccessRight::Nowhere && before.right != right) {
            self.has_lost_right.store(true, Ordering::Relaxed);
        }
        let mut decided = self.lock_decided();
        if decided.of.len() >= DECISIONS {
            // A stream keeps the rights that have shown something, which it must check again. The others are
            // asked for again.
            decided.of.retain(|_, decided| decided.right != AccessRight::Nowhere);
        }
        if decided.of.len() >= DECISIONS {
            decided.of.clear();
            self.has_unasked.store(false, Ordering::Relaxed);
        }
        decided.of.insert(spot, DecidedRight { right, asked });
        Ok(right)
    }

    pub(super) fn lock_decided(&self) -> MutexGuard<'_, DecidedRights> {
        self.decided.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn decide_right(
        &self,
        VisibilityScope { verb, group, kind, namespace }: &VisibilityScope,
    ) -> Result<AccessRight, ReviewUnanswered> {
        if self.viewer.allows_attempt(&self.access_attempt(*verb, group, kind, "", "")).await? {
            return Ok(AccessRight::Everywhere);
        }
        if namespace.is_empty() || namespace.len() > NAME_BYTES {
            return Ok(AccessRight::Nowhere);
        }
        self.right_since(&self.access_attempt(*verb, group, kind, namespace, "")).await
    }

    async fn right_since(&self, attempt: &AccessAttempt) -> Result<AccessRight, ReviewUnanswered> {
        Ok(self.viewer.namespace_since_ms(attempt).await?.map_or(AccessRight::Nowhere, AccessRight::Since))
    }

    fn access_attempt(
        &self,
        verb: AccessVerb,
        group: &str,
        kind: &str,
        namespace: &str,
        name: &str,
    ) -> AccessAttempt {
        let known = self.witnessed.iter().find(|known| known.group == group && known.kind == kind);
        let resource = known.map(|known| known.resource.clone());
        AccessAttempt {
            verb: verb.word().into(),
            group: group.into(),
            // A removed source leaves history for which no resource name is known.
            resource: resource.unwrap_or_else(|| kinds::plural_of_kind(&kind.to_lowercase())),
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    // ---- answers -----------------------------------------------------------------------------

    /// The objects that a list may find; `None` for all.
    pub(crate) async fn visible_objects(
        &self,
        query: &ObjectQuery,
    ) -> Result<Option<VisibleObjects>, Problem> {
        if self.is_whole() {
            return Ok(None);
        }
        let is_asked = |known: &&WatchedResource| {
            query.source.as_ref().is_none_or(|source| *source == known.source)
                && query.kind.as_ref().is_none_or(|kind| kinds::is_kind(&known.group, &known.kind, kind))
        };
        let mut within = VisibleObjects::default();
        let mut looked = BTreeSet::new();
        let past = query.gone != GoneFilter::No || query.at.is_some() || query.cause.is_some();
        // The controller finds the owner of an Event's object, so searching by owner needs the right to get
        // every owner.
        let by_owner = query.index.as_ref().is_some_and(|index| index.starts_with("owner="))
            && !self.sees_all_kinds().await?;
        let is_hidden = |known: &&WatchedResource| by_owner && kinds::is_event(&known.group, &known.kind);
        for known in self.witnessed.iter().filter(is_asked).filter(|known| !is_hidden(known)) {
            let shown = match self.right_in(AccessVerb::List, &known.group, &known.kind, "").await? {
                AccessRight::Everywhere => SourceVisibility::Everything,
                _ => SourceVisibility::Namespaces(
                    self.visible_namespaces(known, query.namespace.as_deref(), past, &mut looked).await?,
                ),
            };
            let shown = match query.cause {
                Some(_) => self.with_seen_causes(known, query, shown, &mut looked).await?,
                None => shown,
            };
            within.sources.insert(known.source.clone(), shown);
        }
        Ok(Some(within))
    }

    /// A cause reveals something about pods, so a query for one finds objects only where they may get pods.
    async fn with_seen_causes(
        &self,
        known: &WatchedResource,
        query: &ObjectQuery,
        shown: SourceVisibility,
        looked: &mut BTreeSet<String>,
    ) -> Result<SourceVisibility, Problem> {
        if self.right_in(AccessVerb::Get, "", "Pod", "").await? == AccessRight::Everywhere {
            return Ok(shown);
        }
        let mut names = match shown {
            SourceVisibility::Namespaces(names) => names,
            SourceVisibility::Everything => {
                self.visible_namespaces(known, query.namespace.as_deref(), true, looked).await?
            }
        };
        let mut seen = BTreeSet::new();
        for name in names.keys() {
            if self.sees_causes_in(name).await? {
                seen.insert(name.clone());
            }
        }
        names.retain(|name, _| seen.contains(name));
        Ok(SourceVisibility::Namespaces(names))
    }

    pub(super) async fn sees_causes_in(&self, namespace: &str) -> Result<bool, Problem> {
        Ok(self.is_whole()
            || self.right_in(AccessVerb::Get, "", "Pod", namespace).await? != AccessRight::Nowhere)
    }

    /// The right that an empty answer lacks, if nothing that the query requests could be visible. This
    /// follows from rights alone. Without a namespace, the rights in namespaces with present objects count.
    pub(crate) async fn missing_right(
        &self,
        verb: AccessVerb,
        query: &ObjectQuery,
    ) -> Result<Option<String>, Problem> {
        if self.is_whole() {
            return Ok(None);
        }
        let (mut resources, mut hides_causes) = (BTreeSet::new(), false);
        let is_of_source =
            |known: &&WatchedResource| query.source.as_ref().is_none_or(|name| *name == known.source);
        for known in self.of_kind(query.kind.as_deref()).filter(is_of_source) {
            // For a cause, rights count in the namespaces that ever had objects.
            let past = query.cause.is_some();
            let sees_all = query.namespace.is_none() && self.sees_source(verb, &known.source).await?;
            if sees_all && (!past || self.sees_causes_in("").await?) {
                return Ok(None);
            }
            let namespaces: BTreeSet<String> = match &query.namespace {
                Some(name) => [name.clone()].into(),
                None => self.views.known_namespaces(&known.source, past, NAMESPACES).await?,
            };
            hides_causes |= sees_all;
            for namespace in &namespaces {
                let may =
                    self.right_in(verb, &known.group, &known.kind, namespace).await? != AccessRight::Nowhere;
                if may && (!past || self.sees_causes_in(namespace).await?) {
                    return Ok(None);
                }
                hides_causes |= may;
            }
            let dot = if known.group.is_empty() { "" } else { "." };
            resources.insert(format!("{}{dot}{}", known.resource, known.group));
        }
        if hides_causes {
            return Ok(Some(format!("{} pods", AccessVerb::Get.word())));
        }
        let named: Vec<_> = resources.into_iter().take(NAMED_RESOURCES).collect();
        Ok((!named.is_empty()).then(|| format!("{} {}", verb.word(), named.join(", "))))
    }

    async fn visible_namespaces(
        &self,
        known: &WatchedResource,
        asked: Option<&str>,
        past: bool,
        looked: &mut BTreeSet<String>,
    ) -> Result<BTreeMap<String, u64>, Problem> {
        let names = match asked {
            Some(name) => [name.to_owned()].into(),
            None => self.views.known_namespaces(&known.source, past, NAMESPACES + 1).await?,
        };
        looked.extend(names.iter().cloned());
        if looked.len() > NAMESPACES {
            return Err(too_wide());
        }
        let rights = stream::iter(names).map(async |name| {
            let right = self.right_in(AccessVerb::List, &known.group, &known.kind, &name).await?;
            Ok::<_, Problem>((name, right))
        });
        let rights: Vec<_> = rights.buffer_unordered(AT_ONCE).try_collect().await?;
        let since = |(name, right)| match right {
            AccessRight::Since(ms) => Some((name, ms)),
            AccessRight::Everywhere => Some((name, 0)),
            AccessRight::Nowhere => None,
        };
        Ok(rights.into_iter().filter_map(since).collect())
    }

    /// The kinds and namespaces in which the viewer may see an object with this name; `None` for all. A story
    /// has a limited number of states, and those of a foreign object with the same name would show by what
    /// they displace.
    pub(crate) async fn kinds_of(&self, query: &TimelineQuery) -> Result<Option<Vec<KindWithin>>, Problem> {
        let (Some(name), None, false) = (&query.name, &query.uid, self.is_whole()) else { return Ok(None) };
        let (mut theirs, mut is_known) = (Vec::new(), false);
        for known in self.of_kind(query.kind.as_deref()) {
            is_known = true;
            let namespaces = match self.right_in(AccessVerb::Get, &known.group, &known.kind, "").await? {
                AccessRight::Everywhere => None,
                _ => Some(self.namespaces_of(known, query.namespace.as_deref(), name).await?),
            };
            if namespaces.as_ref().is_none_or(|all| !all.is_empty()) {
                theirs.push(KindWithin { group: known.group.clone(), kind: known.kind.clone(), namespaces });
            }
        }
        // For a kind that no source witnesses any more, its namespaces are unknown.
        Ok(is_known.then_some(theirs))
    }

    /// The namespaces in which the viewer may get an object with this name. Empty for a cluster-scoped
    /// object.
    async fn namespaces_of(
        &self,
        known: &WatchedResource,
        asked: Option<&str>,
        name: &str,
    ) -> Result<BTreeSet<String>, Problem> {
        let names = match asked {
            Some(namespace) => [namespace.to_owned()].into(),
            None => {
                let mut names = self.views.known_namespaces(&known.source, true, NAMESPACES + 1).await?;
                if names.len() > NAMESPACES {
                    return Err(too_wide());
                }
                names.insert(String::new());
                names
            }
        };
        let by_name = names.len() <= NAMESPACES_OF_A_NAME;
        let is_theirs = stream::iter(names).map(async |namespace| {
            let right = self.right_in(AccessVerb::Get, &known.group, &known.kind, &namespace).await?;
            let is_theirs = right != AccessRight::Nowhere
                || (by_name && self.may_get_by_name(known, &namespace, name).await?);
            Ok::<_, Problem>(is_theirs.then_some(namespace))
        });
        let found: Vec<_> = is_theirs.buffer_unordered(AT_ONCE).try_collect().await?;
        Ok(found.into_iter().flatten().collect())
    }

    /// Whether the viewer may get anything in a namespace, which contains the owned objects.
    pub(super) async fn may_get_something_in(&self, namespace: &str) -> Result<bool, Problem> {
        for WatchedResource { group, kind, .. } in &self.witnessed {
            if self.right_in(AccessVerb::Get, group, kind, namespace).await? != AccessRight::Nowhere {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn may_get_by_name(
        &self,
        known: &WatchedResource,
        namespace: &str,
        name: &str,
    ) -> Result<bool, Problem> {
        if name.is_empty() || name.len() > NAME_BYTES || namespace.len() > NAME_BYTES {
            return Ok(false);
        }
        let attempt = self.access_attempt(AccessVerb::Get, &known.group, &known.kind, namespace, name);
        match namespace.is_empty() {
            true => Ok(self.viewer.allows_attempt(&attempt).await?),
            false => Ok(self.right_since(&attempt).await? != AccessRight::Nowhere),
        }
    }

    /// A page of a list, [reduced](Self::visible_objects) to what the viewer may see.
    pub(crate) async fn object_page(&self, mut query: ObjectQuery) -> Result<ObjectPage, Problem> {
        let list = cursors::CursorList::of(&query);
        query.cursor = self.viewer.open_cursor(&list, query.cursor.as_deref())?;
        query.hides_plugins = query.details && !self.is_operators().await?;
        let page = self.views.object_page(&query).await?;
        Ok(self.viewer.seal_cursor(&list, self.of_page(page, query.hides_plugins).await?))
    }

    /// The progress of plugins is for operators, and so are their names.
    async fn of_page(&self, mut page: ObjectPage, hides_plugins: bool) -> Result<ObjectPage, Problem> {
        if hides_plugins {
            let details = page.objects.iter_mut().filter_map(|view| view.details.as_mut());
            details.for_each(|details| details.plugins.clear());
        }
        if !self.is_whole() {
            self.keep_seen_events(&mut page.objects).await?;
            for view in &mut page.objects {
                if !self.sees_owner(&view.object, view.owner.as_ref()).await? {
                    view.owner = None;
                }
                if view.cause.is_some() && !self.sees_causes_in(&view.object.namespace).await? {
                    view.cause = None;
                }
            }
        }
        Ok(page)
    }

    /// The content of an Event is only for people who may also get its object.
    async fn keep_seen_events(&self, objects: &mut [ObjectView]) -> Result<(), Problem> {
        let events = objects.iter_mut().filter_map(|view| view.details.as_mut()?.event.take());
        let events = self.of_events(events.collect()).await?.into_iter();
        let mut seen: HashMap<String, EventView> =
            events.map(|event| (event.object.uid.clone(), event)).collect();
        for view in objects {
            if let Some(details) = &mut view.details {
                details.event = seen.remove(&view.object.uid);
            }
        }
        Ok(())
    }

    /// Most objects contain their owner. The owner of an Event is found by the controller, so it is shown
    /// only to people who may get the owner.
    async fn sees_owner(&self, object: &ObjectRef, owner: Option<&ObjectRef>) -> Result<bool, Problem> {
        match owner.filter(|_| kinds::is_event(&object.group, &object.kind)) {
            Some(owner) => self.may_get(owner, None).await,
            None => Ok(true),
        }
    }

    pub(crate) async fn with_seen_owner(&self, state: RawState) -> Result<RawState, Problem> {
        let is_seen = self.is_whole() || self.sees_owner(state.object(), state.owner()).await?;
        Ok(if is_seen { state } else { state.without_owner() })
    }

    /// Whether the viewer may get all witnessed kinds in every namespace.
    pub(super) async fn sees_all_kinds(&self) -> Result<bool, Problem> {
        for known in &self.witnessed {
            if self.right_in(AccessVerb::Get, &known.group, &known.kind, "").await? != AccessRight::Everywhere
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The Events that the viewer may get, about objects that the viewer may get.
    pub(crate) async fn of_events(&self, events: Vec<EventView>) -> Result<Vec<EventView>, Problem> {
        // An Event may name any uid, so another one with the same uid proves nothing.
        let mut seen: HashMap<ObjectRef, bool> = HashMap::new();
        let mut shown = Vec::new();
        for event in events {
            if !self.may_see(AccessVerb::Get, &event.object, Some(event.seq)).await? {
                continue;
            }
            let sees_object = match seen.get(&event.about) {
                Some(known) => *known,
                None => {
                    let sees = self.may_get(&event.about, None).await?;
                    seen.insert(event.about.clone(), sees);
                    sees
                }
            };
            if sees_object {
                shown.push(event);
            }
        }
        Ok(shown)
    }

    pub(super) async fn of_states(
        &self,
        states: Vec<RawState>,
        by_name: bool,
    ) -> Result<Vec<RawState>, Problem> {
        // A state whose document has the creation time of its object.
        let mut tells: HashMap<&str, &RawState> = HashMap::new();
        for state in &states {
            let dated = tells.entry(&state.object().uid).or_insert(state);
            if dated.change() != Change::Present {
                *dated = state;
            }
        }
        let mut seen: HashMap<String, bool> = HashMap::new();
        for (uid, state) in tells {
            let is_seen = match by_name {
                true => self.may_get(state.object(), Some(state.seq())).await?,
                false => self.may_see(AccessVerb::Get, state.object(), Some(state.seq())).await?,
            };
            seen.insert(uid.to_owned(), is_seen);
        }
        let mut shown = Vec::new();
        for state in states.into_iter().filter(|state| seen.get(&state.object().uid) == Some(&true)) {
            shown.push(self.with_seen_owner(state).await?);
        }
        Ok(shown)
    }

    /// The state at a position, if the viewer may get its object.
    pub(crate) async fn state_at(&self, seq: Seq) -> Result<Option<RawState>, Problem> {
        let states = self.views.states_after(seq.saturating_sub(1), 1).await?;
        match states.into_iter().find(|state| state.seq() == seq) {
            Some(state) if self.is_whole() || self.may_get(state.object(), Some(seq)).await? => {
                Ok(Some(state))
            }
            _ => Ok(None),
        }
    }

    /// The document at a position, for the viewer. A missing document and a forbidden one give the same
    /// message.
    pub(crate) async fn visible_document(&self, seq: Seq) -> Result<Vec<u8>, Problem> {
        if self.is_whole() {
            return Ok(self.views.document_at(seq).await?);
        }
        let missing = || {
            Problem::new(
                StatusCode::NOT_FOUND,
                format!("There is no document at position {seq} that you may see."),
                "It may not have been witnessed yet, be older than what the journal keeps, or take the right to `get` \
                 its object.",
            )
        };
        let state = self.state_at(seq).await?.ok_or_else(missing)?;
        let document = self.views.document_at(seq).await.map_err(Problem::from);
        let document = document.map_err(|problem| match problem.status {
            StatusCode::NOT_FOUND => missing(),
            _ => problem,
        })?;
        self.viewer.log_read(state.object(), seq);
        Ok(document)
    }

    /// A gap of a whole source is only for people who may list its resource in the whole cluster, because it
    /// does not say whose versions are missing.
    pub(crate) async fn sees_gap(&self, gap: &Gap) -> Result<bool, Problem> {
        match &gap.object {
            Some(object) => self.may_see(AccessVerb::List, object, None).await,
            None => self.sees_source(AccessVerb::List, &gap.source).await,
        }
    }

    pub(crate) async fn poison_raw(&self, number: u64) -> Result<Vec<u8>, Problem> {
        if self.is_whole() {
            return Ok(self.views.poison_raw(number).await?);
        }
        self.viewer.require_right(GuardedAct::SeeStatus, "").await?;
        let missing = || {
            Problem::new(
                StatusCode::NOT_FOUND,
                format!("There is no poison message with the number {number} that you may see."),
                "It takes the right to `get` the objects of its source in the whole cluster.",
            )
        };
        let query = PoisonQuery { cursor: number.checked_add(1), limit: Some(1), ..PoisonQuery::default() };
        let found = self.views.find_poison(&query).await?;
        let view = found.into_iter().find(|view| view.number == number).ok_or_else(missing)?;
        match self.sees_source(AccessVerb::Get, &view.source).await? {
            true => {
                let raw = self.views.poison_raw(number).await?;
                self.viewer.log_poison_read(&view.source, number);
                Ok(raw)
            }
            false => Err(missing()),
        }
    }
}

fn too_wide() -> Problem {
    Problem::with_code(
        codes::TOO_WIDE,
        "You may not look into all namespaces, and there are too many to ask about one by one.",
        format!("Name one with `namespace`. Without it, no more than {NAMESPACES} are looked through."),
    )
}
