//! Ended objects, from the journal's index over their ends, or by name from the index of phases.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kubewitness_core::document::unpack_document;
use kubewitness_core::kinds::is_event;
use kubewitness_core::order::{ObjectOrder, OrderFields, OrderKey, OrderPosition};
use kubewitness_core::ports::{
    Backlog, DocumentReader, ObjectLister, ObjectSelection, SourceVisibility, created_ms,
};
use kubewitness_core::search::DocumentFacts;
use kubewitness_core::views::{ObjectQuery, ObjectView, ViewError, Views};
use kubewitness_core::{Change, Seq, State, Status, calendar};
use kubewitness_journal::{EndedObject, EndedQuery, NamePlace, NamedEnd, NamedEndQuery};
use tokio::time::Instant;

use super::by_phase::{INCOMPLETE, PATIENCE};
use super::objects::{FoundObject, PagePart, time};
use super::shapes::is_asked;
use super::{HostViews, unavailable};

/// How many documents one page reads to check whether objects match. A page that finds too few matches ends
/// early.
pub(super) const DOCUMENTS: usize = 2_000;

/// How often one page asks the journal for more, which examines some thousands of objects each time.
pub(super) const ROUNDS: usize = 5;

/// Indexes find objects by their ends and by their names. For any other order, one page sorts this many of
/// the objects that ended last.
const SORTED: usize = 2_000;

/// How many names are examined together, and how often one page does that.
const NAMES: usize = 2_000;
/// The same for each namespace, if a person may see only some of them.
pub(super) const FEWEST_NAMES: usize = 100;
const ROUNDS_OF_NAMES: usize = 10;

/// How many namespaces of ended objects are found, and how long they are kept.
const NAMESPACES: usize = 1_000;
const KEPT: Duration = Duration::from_secs(2);

/// The namespaces of ended objects, by source. They are the same for everybody. Finding them holds one of the
/// journal's few readers for long, so one request at a time does that, and the others share the result. A
/// namespace whose only object has just ended is found at most two seconds later.
#[derive(Default)]
pub(super) struct EndedIn {
    looks: tokio::sync::Mutex<()>,
    kept: Mutex<HashMap<String, (Instant, NameSet)>>,
}

type NameSet = Arc<BTreeSet<String>>;

impl EndedIn {
    /// The result of `look`, or a recent one.
    async fn of(
        &self,
        source: &str,
        look: impl Future<Output = Result<BTreeSet<String>, ViewError>>,
    ) -> Result<NameSet, ViewError> {
        let _looks = self.looks.lock().await;
        if let Some(known) = self.recent_names(source) {
            return Ok(known);
        }
        let found = Arc::new(look.await?);
        self.lock_kept().insert(source.to_owned(), (Instant::now(), found.clone()));
        Ok(found)
    }

    fn recent_names(&self, source: &str) -> Option<NameSet> {
        let mut kept = self.lock_kept();
        kept.retain(|_, (found, _)| found.elapsed() < KEPT);
        kept.get(source).map(|(_, names)| names.clone())
    }

    fn lock_kept(&self) -> MutexGuard<'_, HashMap<String, (Instant, NameSet)>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A range of ends that a page examines.
struct EndRange {
    after: Seq,
    before: Seq,
    oldest_first: bool,
    limit: usize,
}

impl HostViews {
    pub(super) async fn ended_objects(
        &self,
        query: &ObjectQuery,
        selection: &ObjectSelection,
    ) -> Result<PagePart, ViewError> {
        let (after, before) = self.position_range(query).await?;
        match selection.order.unwrap_or_default().by {
            OrderKey::Changed => self.by_end(query, selection, (after, before)).await,
            OrderKey::Name | OrderKey::Namespace if !self.asks_for_events(query) => {
                self.by_name(query, selection, (after, before)).await
            }
            _ => self.sorted_ended(query, selection, (after, before)).await,
        }
    }

    /// The positions for the times of a query: after the first and before the second.
    pub(super) async fn position_range(&self, query: &ObjectQuery) -> Result<(Seq, Seq), ViewError> {
        let after = match &query.since {
            Some(text) => self.position_before(time("since", text)?).await?,
            None => 0,
        };
        let before = match &query.until {
            Some(text) => self.position_before(time("until", text)?).await? + 1,
            None => Seq::MAX,
        };
        Ok((after, before))
    }

    async fn by_end(
        &self,
        query: &ObjectQuery,
        selection: &ObjectSelection,
        (mut after, mut before): (Seq, Seq),
    ) -> Result<PagePart, ViewError> {
        let oldest_first = !selection.order.unwrap_or_default().is_descending();
        match &selection.beyond {
            Some(place) if oldest_first => after = after.max(place.number),
            Some(place) => before = before.min(place.number),
            None => {}
        }
        let range = EndRange { after, before, oldest_first, limit: selection.limit };
        let (ends, next) = self.matching_ends(query, selection, range).await?;
        let placed = |end: EndedObject| (OrderPosition::at_seq(end.position), FoundObject::Ended(end.state));
        let (objects, floor) = (ends.into_iter().map(placed).collect(), next.map(OrderPosition::at_seq));
        Ok(PagePart { objects, floor, ..PagePart::default() })
    }

    /// By name, from the index with the names of ended objects.
    async fn by_name(
        &self,
        query: &ObjectQuery,
        selection: &ObjectSelection,
        (after, before): (Seq, Seq),
    ) -> Result<PagePart, ViewError> {
        let order = selection.order.unwrap_or_default();
        let newest = *self.journal.newest_position().borrow();
        let mut part = PagePart::default();
        if !self.phases.await_position(newest, PATIENCE).await {
            part.notices.push(INCOMPLETE.into());
        }
        let by_namespace = order.by == OrderKey::Namespace;
        let within = self.named_within(query);
        let mut asked = NamedEndQuery {
            limit: NAMES.checked_div(within.len()).unwrap_or(NAMES).max(FEWEST_NAMES),
            within,
            by_namespace,
            descends: order.is_descending(),
            beyond: selection.beyond.as_ref().map(|place| name_place(place, by_namespace)),
        };
        let mut documents = DOCUMENTS;
        for _ in 0..ROUNDS_OF_NAMES {
            let ends = self.phases.ended_by_name(asked.clone()).await.map_err(unavailable)?;
            let is_last = ends.len() < asked.limit;
            let is_asked = |end: &NamedEnd| {
                end.ended > after
                    && end.ended < before
                    && is_named(query, &end.source, &end.namespace, &end.name)
            };
            // A page often ends among the first names, and the states of the others are not read.
            for ends in ends.chunks(selection.limit.max(FEWEST_NAMES)) {
                let seqs: Vec<Seq> = ends.iter().filter(|end| is_asked(end)).map(|end| end.ended).collect();
                let states = self.states_at(&seqs).await?;
                for end in ends {
                    let place = place_of_end(order, end);
                    part.floor = Some(place.clone());
                    asked.beyond = Some(asked.place_of(end));
                    // States that retention has just removed are left out.
                    let Some(state) = states.get(&end.ended) else { continue };
                    if !self.is_there_again(state)
                        && self.is_meant(state, query, selection, &mut documents).await?
                    {
                        part.objects.push((place, FoundObject::Ended(state.clone())));
                    }
                    if part.objects.len() >= selection.limit || documents == 0 {
                        return Ok(part);
                    }
                }
            }
            if is_last {
                part.floor = None;
                break;
            }
        }
        Ok(part)
    }

    /// Where names are looked up: only in what the person may see, so the answer depends on nothing else.
    fn named_within(&self, query: &ObjectQuery) -> Vec<(String, Option<String>)> {
        let mut within = Vec::new();
        for source in self.sources_asked(query) {
            match query.within.as_ref().and_then(|within| within.sources.get(&source)) {
                None | Some(SourceVisibility::Everything) => within.push((source, query.namespace.clone())),
                Some(SourceVisibility::Namespaces(names)) => {
                    let is_asked = |name: &&String| query.namespace.as_ref().is_none_or(|it| it == *name);
                    within.extend(
                        names.keys().filter(is_asked).map(|name| (source.clone(), Some(name.clone()))),
                    );
                }
            }
        }
        within
    }

    /// The index of names has no Events.
    fn asks_for_events(&self, query: &ObjectQuery) -> bool {
        let asked = self.sources_asked(query);
        let watched = self.watched_resources().into_iter();
        watched.filter(|it| asked.contains(&it.source)).any(|it| is_event(&it.group, &it.kind))
    }

    /// In an order without an index: sorts the objects that ended last.
    async fn sorted_ended(
        &self,
        query: &ObjectQuery,
        selection: &ObjectSelection,
        (after, before): (Seq, Seq),
    ) -> Result<PagePart, ViewError> {
        let order = selection.order.unwrap_or_default();
        let range = EndRange { after, before, oldest_first: false, limit: SORTED };
        let (ends, next) = self.matching_ends(query, selection, range).await?;
        let mut part = PagePart::default();
        if next.is_some() {
            part.notices.push(not_sorted(ends.last()));
        }
        let mut placed = Vec::new();
        for end in ends {
            let place = self.place_of(order, &end).await?;
            if selection.beyond.as_ref().is_none_or(|beyond| order.is_before(beyond, &place)) {
                placed.push((place, end.state));
            }
        }
        placed.sort_by(|(a, _), (b, _)| if order.is_descending() { b.cmp(a) } else { a.cmp(b) });
        if placed.len() > selection.limit {
            placed.truncate(selection.limit);
            part.floor = placed.last().map(|(place, _)| place.clone());
        }
        let ended = |(place, state)| (place, FoundObject::Ended(state));
        part.objects = placed.into_iter().map(ended).collect();
        Ok(part)
    }

    /// The matching ends, and the end after which more may follow.
    async fn matching_ends(
        &self,
        query: &ObjectQuery,
        selection: &ObjectSelection,
        range: EndRange,
    ) -> Result<(Vec<EndedObject>, Option<Seq>), ViewError> {
        let EndRange { mut after, mut before, oldest_first, limit } = range;
        let sources = self.sources_asked(query);
        let fits = |source: &str, namespace: &str, name: &str| is_named(query, source, namespace, name);
        let (mut found, mut documents) = (Vec::new(), DOCUMENTS);
        let mut rest = None;
        // Each submission of a Job asks for a name's end, and mostly in vain.
        let rounds = if query.gone_name_end.is_some() { 1 } else { ROUNDS };
        for _ in 0..rounds {
            let wanted = limit - found.len();
            let ended =
                EndedQuery { sources: &sources, after, before, oldest_first, limit: wanted, fits: &fits };
            let page = self.journal.ended_objects(&ended).await.map_err(unavailable)?;
            for end in page.objects {
                let is_meant = !self.is_there_again(&end.state)
                    && self.is_meant(&end.state, query, selection, &mut documents).await?;
                let position = end.position;
                found.extend(is_meant.then_some(end));
                if documents == 0 {
                    return Ok((found, Some(position)));
                }
            }
            rest = page.next;
            match rest {
                Some(_) if found.len() >= limit => break,
                Some(next) if oldest_first => after = next,
                Some(next) => before = next,
                None => break,
            }
        }
        Ok((found, rest))
    }

    pub(super) async fn ended_view(&self, state: &Arc<State>) -> Result<ObjectView, ViewError> {
        let ended_at = Some(calendar::format_rfc3339(state.observed_ms));
        Ok(ObjectView { ended_at, ..ObjectView::from(&*self.without_secrets(state).await?) })
    }

    /// Its position among the existing objects. A deleted object has the phase from before its deletion.
    async fn place_of(&self, order: ObjectOrder, end: &EndedObject) -> Result<OrderPosition, ViewError> {
        let EndedObject { position, state } = end;
        let created = match order.by {
            OrderKey::Created => created_ms(&self.last_document(state).await?),
            _ => None,
        };
        let before = state.previous.as_ref().filter(|_| state.change == Change::Gone);
        let placed = OrderFields {
            seq: *position,
            created_s: created.and_then(|ms| u32::try_from(ms / 1_000).ok()).unwrap_or_default(),
            namespace: &state.object.namespace,
            name: &state.object.name,
            status: before.unwrap_or(&state.status),
        };
        Ok(order.position_of(&placed, || state.object.uid.clone()))
    }

    /// Adds the namespaces of the objects of a source that ended last.
    pub(super) async fn add_ended(
        &self,
        source: &str,
        most: usize,
        names: &mut BTreeSet<String>,
    ) -> Result<(), ViewError> {
        for name in self.ended_in.of(source, self.find_ended(source)).await?.iter() {
            if names.len() >= most {
                break;
            }
            names.insert(name.clone());
        }
        Ok(())
    }

    async fn find_ended(&self, source: &str) -> Result<BTreeSet<String>, ViewError> {
        let sources = [source.to_owned()];
        let found = Mutex::new(BTreeSet::new());
        let fits = |_: &str, namespace: &str, _: &str| {
            let mut names = found.lock().unwrap_or_else(PoisonError::into_inner);
            if names.len() < NAMESPACES && !names.contains(namespace) {
                names.insert(namespace.to_owned());
            }
            // Only the names are needed, so no state is read.
            false
        };
        let query = EndedQuery {
            sources: &sources,
            after: 0,
            before: Seq::MAX,
            oldest_first: false,
            limit: 1,
            fits: &fits,
        };
        self.journal.ended_objects(&query).await.map_err(unavailable)?;
        Ok(found.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    /// The sources that a query concerns and that may be shown.
    pub(super) fn sources_asked(&self, query: &ObjectQuery) -> Vec<String> {
        let specs = self.shared.sources_with_specs().into_iter().map(|(spec, _)| spec);
        let is_shown = |name: &str| {
            let within = query.within.as_ref().map(|within| within.sources.get(name));
            within.is_none_or(|shown| shown.is_some_and(SourceVisibility::is_something))
        };
        specs.filter(|spec| is_asked(spec, query) && is_shown(&spec.name)).map(|spec| spec.name).collect()
    }

    /// The position of the last state before a time.
    async fn position_before(&self, ms: u64) -> Result<Seq, ViewError> {
        Ok(self.journal.position_of_time(ms.saturating_sub(1)).await.map_err(unavailable)?.seq)
    }

    /// In another history of its server, under the same uid.
    fn is_there_again(&self, state: &State) -> bool {
        let object = &state.object;
        let found = self.shared.listers.get(&state.source, &object.namespace, &object.name);
        found.ok().flatten().is_some_and(|current| current.object.uid == object.uid)
    }

    /// Whether a state matches the query apart from its name, and may be shown.
    pub(super) async fn is_meant(
        &self,
        state: &Arc<State>,
        query: &ObjectQuery,
        selection: &ObjectSelection,
        documents: &mut usize,
    ) -> Result<bool, ViewError> {
        // A deleted object is also found by the phase before its deletion.
        let before = state.previous.as_ref().filter(|_| state.change == Change::Gone);
        let has = |phase: &str| {
            phase.eq_ignore_ascii_case(&state.status.phase)
                || before.is_some_and(|before| phase.eq_ignore_ascii_case(&before.phase))
        };
        if selection.phase.as_deref().is_some_and(|phase| !has(phase)) {
            return Ok(false);
        }
        let since_ms = shown_since(query, &state.source, &state.object.namespace);
        let search = selection.search.as_ref();
        let search = search.filter(|search| !search.fits_name(&state.object.name, &state.object.uid));
        if since_ms.is_none() && search.is_none() && selection.labels.is_empty() {
            return Ok(true);
        }
        *documents = documents.saturating_sub(1);
        let document = self.last_document(state).await?;
        let labels = DocumentFacts::read(&document).labels;
        Ok(search.is_none_or(|search| search.fits_document(&document))
            && selection.labels.matches(|key| labels.get(key).map(String::as_str))
            && match since_ms.zip(created_ms(&document)) {
                Some((since_ms, created_ms)) => {
                    self.is_since(since_ms, created_ms, &state.object.uid).await?
                }
                None => since_ms.is_none(),
            })
    }

    /// The document of a state. For a deletion that a relist found, that of the state before.
    pub(super) async fn last_document(&self, state: &State) -> Result<Vec<u8>, ViewError> {
        let object = &state.object;
        let current = self.shared.listers.get(&state.source, &object.namespace, &object.name).ok().flatten();
        if let Some(current) = current.filter(|current| current.seq == state.seq) {
            return unpack_document(&current.packed).map(Vec::from).map_err(unavailable);
        }
        if let Some(document) = self.journal.document_at(state.seq).await.map_err(unavailable)? {
            return Ok(document.into());
        }
        let before = self.journal.document_before(state.seq).await.map_err(unavailable)?;
        Ok(before.unwrap_or_default().into())
    }
}

/// The position of an ended object in an order of names.
fn place_of_end(order: ObjectOrder, end: &NamedEnd) -> OrderPosition {
    let placed = OrderFields {
        seq: end.ended,
        created_s: 0,
        namespace: &end.namespace,
        name: &end.name,
        status: &Status::default(),
    };
    order.position_of(&placed, || end.uid.clone())
}

/// The same position in the form of the index.
fn name_place(place: &OrderPosition, by_namespace: bool) -> NamePlace {
    let (namespace, name) = match place.text.split_once(' ') {
        Some((namespace, name)) if by_namespace => (namespace, name),
        _ => ("", &*place.text),
    };
    NamePlace { namespace: namespace.into(), name: name.into(), uid: place.uid.clone() }
}

/// The notice about objects that an order leaves out.
fn not_sorted(last: Option<&EndedObject>) -> String {
    let which = match last {
        Some(end) => {
            format!("those that ended at {} or later", calendar::format_rfc3339(end.state.observed_ms))
        }
        None => "those that ended last".to_owned(),
    };
    format!(
        "Of the objects that are gone, this order has {which}. Name a time before which the others ended, or take an \
         order that has all of them: changed, name or namespace."
    )
}

/// The creation time from which objects of a namespace may be shown; `None` if all may.
fn shown_since(query: &ObjectQuery, source: &str, namespace: &str) -> Option<u64> {
    match query.within.as_ref()?.sources.get(source) {
        Some(SourceVisibility::Everything) => None,
        Some(SourceVisibility::Namespaces(names)) => Some(names.get(namespace).copied().unwrap_or(u64::MAX)),
        None => Some(u64::MAX),
    }
}

/// Whether an object matches by namespace and name, and its namespace may be shown.
pub(super) fn is_named(query: &ObjectQuery, source: &str, namespace: &str, name: &str) -> bool {
    query.namespace.as_deref().is_none_or(|asked| asked == namespace)
        && query.name.as_deref().is_none_or(|asked| asked == name)
        && query.gone_name_end.as_deref().is_none_or(|end| name.ends_with(end))
        && shown_since(query, source, namespace) != Some(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::future::join_all;

    use super::*;

    /// Counts how often it is called, and finds one namespace.
    async fn look(looks: &AtomicUsize) -> Result<BTreeSet<String>, ViewError> {
        let number = looks.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(100)).await;
        Ok(BTreeSet::from([format!("look-{number}")]))
    }

    #[tokio::test(start_paused = true)]
    async fn requests_at_once_share_one_look_at_what_has_ended_and_a_later_one_looks_again() {
        let (ended, looks) = (EndedIn::default(), AtomicUsize::new(0));
        let found = join_all((0..20).map(|_| ended.of("jobs", look(&looks)))).await;
        assert!(found.iter().all(|names| names.as_ref().is_ok_and(|names| names.contains("look-0"))));
        assert!(ended.of("pods", look(&looks)).await.unwrap().contains("look-1"), "another source");
        tokio::time::advance(KEPT).await;
        assert!(ended.of("jobs", look(&looks)).await.unwrap().contains("look-2"));
        assert_eq!(looks.into_inner(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_that_fails_or_is_given_up_leaves_the_next_request_to_look() {
        let (ended, looks) = (EndedIn::default(), AtomicUsize::new(0));
        let fails = async { Err(ViewError::Unavailable("the journal is closed".into())) };
        assert!(ended.of("jobs", fails).await.is_err());
        let given_up = tokio::time::timeout(Duration::from_millis(10), ended.of("jobs", look(&looks)));
        assert!(given_up.await.is_err());
        assert!(ended.of("jobs", look(&looks)).await.unwrap().contains("look-1"));
    }
}
