//! Objects that have ended, from the journal's index over their ends.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use kubewitness_core::document::unpack;
use kubewitness_core::order::Place;
use kubewitness_core::ports::{Documents, Lister, Selection, Shown, created_ms};
use kubewitness_core::search::About;
use kubewitness_core::views::{ObjectQuery, ObjectView, ViewError};
use kubewitness_core::{Change, Seq, State, calendar};
use kubewitness_journal::{Ended, EndedQuery};

use super::objects::{Part, time};
use super::shapes::is_asked;
use super::{HostViews, unavailable};

/// Documents that one page reads to see whether objects fit. A page that finds too few of them ends early.
pub(super) const DOCUMENTS: usize = 2_000;

/// So often one page asks the journal for more, which looks at some thousands of objects each time.
pub(super) const ROUNDS: usize = 5;

impl HostViews {
    pub(super) async fn gone(&self, query: &ObjectQuery, selection: &Selection) -> Result<Part, ViewError> {
        let sources = self.asked(query);
        let mut after = match &query.since {
            Some(text) => self.before(time("since", text)?).await?,
            None => 0,
        };
        let oldest_first = !selection.order.unwrap_or_default().descends();
        let mut before = Seq::MAX;
        match &selection.beyond {
            Some(place) if oldest_first => after = after.max(place.number),
            Some(place) => before = place.number,
            None => {}
        }
        if let Some(text) = &query.until {
            before = before.min(self.before(time("until", text)?).await? + 1);
        }
        let fits = |source: &str, namespace: &str, name: &str| is_named(query, source, namespace, name);
        let mut part = Part::default();
        let mut documents = DOCUMENTS;
        for _ in 0..ROUNDS {
            let limit = selection.limit - part.objects.len();
            let ended = EndedQuery { sources: &sources, after, before, oldest_first, limit, fits: &fits };
            let page = self.journal.ended(&ended).await.map_err(unavailable)?;
            for Ended { position, state } in page.objects {
                part.floor = Some(Place::at(position));
                if self.is_there_again(&state)
                    || !self.is_meant(&state, query, selection, &mut documents).await?
                {
                    continue;
                }
                let ended_at = Some(calendar::rfc3339(state.observed_ms));
                let state = self.shown(&state).await?;
                part.objects
                    .push((Place::at(position), ObjectView { ended_at, ..ObjectView::from(&*state) }));
                if documents == 0 {
                    return Ok(part);
                }
            }
            part.floor = page.next.map(Place::at);
            match page.next {
                Some(_) if part.objects.len() >= selection.limit || documents == 0 => break,
                Some(next) if oldest_first => after = next,
                Some(next) => before = next,
                None => break,
            }
        }
        Ok(part)
    }

    /// Adds the namespaces of the objects of a source that ended last.
    pub(super) async fn add_ended(
        &self,
        source: &str,
        most: usize,
        names: &mut BTreeSet<String>,
    ) -> Result<(), ViewError> {
        let sources = [source.to_owned()];
        let found = Mutex::new(names);
        let fits = |_: &str, namespace: &str, _: &str| {
            let mut names = found.lock().unwrap_or_else(PoisonError::into_inner);
            if names.len() < most && !names.contains(namespace) {
                names.insert(namespace.to_owned());
            }
            // What is looked at is all that is wanted: no state of it is read.
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
        self.journal.ended(&query).await.map(drop).map_err(unavailable)
    }

    /// The sources that a question is about, and that may be shown.
    pub(super) fn asked(&self, query: &ObjectQuery) -> Vec<String> {
        let specs = self.shared.sources_with_specs().into_iter().map(|(spec, _)| spec);
        let is_shown =
            |name: &str| query.within.as_ref().is_none_or(|within| within.sources.contains_key(name));
        specs.filter(|spec| is_asked(spec, query) && is_shown(&spec.name)).map(|spec| spec.name).collect()
    }

    /// The position of the last state before a time.
    async fn before(&self, ms: u64) -> Result<Seq, ViewError> {
        Ok(self.journal.moment(ms.saturating_sub(1)).await.map_err(unavailable)?.seq)
    }

    /// In another history of its server, under the same uid.
    fn is_there_again(&self, state: &State) -> bool {
        let object = &state.object;
        let found = self.shared.listers.get(&state.source, &object.namespace, &object.name);
        found.ok().flatten().is_some_and(|current| current.object.uid == object.uid)
    }

    /// Whether a state is asked for by more than the object's name, and may be shown.
    pub(super) async fn is_meant(
        &self,
        state: &Arc<State>,
        query: &ObjectQuery,
        selection: &Selection,
        documents: &mut usize,
    ) -> Result<bool, ViewError> {
        // An object that was deleted is found by the phase that it had before, too.
        let before = state.previous.as_ref().filter(|_| state.change == Change::Gone);
        let has = |phase: &str| {
            phase.eq_ignore_ascii_case(&state.status.phase)
                || before.is_some_and(|before| phase.eq_ignore_ascii_case(&before.phase))
        };
        if selection.phase.as_deref().is_some_and(|phase| !has(phase)) {
            return Ok(false);
        }
        let since_ms = since(query, &state.source, &state.object.namespace);
        let search = selection.search.as_ref();
        let search = search.filter(|search| !search.fits_name(&state.object.name, &state.object.uid));
        if since_ms.is_none() && search.is_none() && selection.labels.is_empty() {
            return Ok(true);
        }
        *documents = documents.saturating_sub(1);
        let document = self.last_document(state).await?;
        let labels = About::read(&document).labels;
        Ok(search.is_none_or(|search| search.fits_document(&document))
            && selection.labels.matches(|key| labels.get(key).map(String::as_str))
            && since_ms.is_none_or(|since| created_ms(&document).is_some_and(|created| created >= since)))
    }

    /// The document of a state; of an end that a comparison found, that of the state before.
    pub(super) async fn last_document(&self, state: &State) -> Result<Vec<u8>, ViewError> {
        let object = &state.object;
        let current = self.shared.listers.get(&state.source, &object.namespace, &object.name).ok().flatten();
        if let Some(current) = current.filter(|current| current.seq == state.seq) {
            return unpack(&current.packed).map(Vec::from).map_err(unavailable);
        }
        let document = self.journal.document(state.seq).await.map_err(unavailable)?.unwrap_or_default();
        if !document.is_empty() {
            return Ok(document.into());
        }
        let before = self.journal.document_before(state.seq).await.map_err(unavailable)?;
        Ok(before.unwrap_or_default().into())
    }
}

/// From when on objects of a namespace may be shown; `None` where all of them may.
fn since(query: &ObjectQuery, source: &str, namespace: &str) -> Option<u64> {
    match query.within.as_ref()?.sources.get(source) {
        Some(Shown::Everything) => None,
        Some(Shown::Namespaces(names)) => Some(names.get(namespace).copied().unwrap_or(u64::MAX)),
        None => Some(u64::MAX),
    }
}

/// Whether an object is asked for by its namespace and name, and its namespace may be shown.
pub(super) fn is_named(query: &ObjectQuery, source: &str, namespace: &str, name: &str) -> bool {
    query.namespace.as_deref().is_none_or(|asked| asked == namespace)
        && query.name.as_deref().is_none_or(|asked| asked == name)
        && since(query, source, namespace) != Some(u64::MAX)
}
