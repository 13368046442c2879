//! A page of objects: existing ones from the cache, and ended ones from the journal. Each has a position in
//! the requested order, and the position of the last one is the cursor of the next page.

use std::sync::Arc;

use kubewitness_capability::AnswerPatience;
use kubewitness_core::config::SourceSpec;
use kubewitness_core::index::IndexError;
use kubewitness_core::order::OrderPosition;
use kubewitness_core::ports::{CurrentObject, ObjectSelection, SelectError};
use kubewitness_core::views::{GoneFilter, ObjectCounts, ObjectPage, ObjectQuery, ObjectView, ViewError};
use kubewitness_core::{State, calendar};
use kubewitness_watch::SourceHandle;

use super::by_phase::PastQuery;
use super::shapes::is_asked;
use super::visible::{self, first_of};
use super::{HostViews, unavailable};

/// The most rows of a page with details: each needs the object's states and its document.
const DETAILED: usize = 500;

/// An object that a page may show. Its texts are searched for secrets only once the page shows it: the cache
/// and each namespace of a person find a whole page of their own.
pub(super) enum FoundObject {
    Living { source: String, current: CurrentObject },
    Ended(Arc<State>),
}

/// A part of a page, and how far it extends.
#[derive(Default)]
pub(super) struct PagePart {
    /// Each object with its position in the requested order.
    pub objects: Vec<(OrderPosition, FoundObject)>,
    /// Objects after this position may have been left out.
    pub floor: Option<OrderPosition>,
    /// The notices that the part is incomplete.
    pub notices: Vec<String>,
}

impl HostViews {
    pub(super) async fn page_of_objects(&self, query: &ObjectQuery) -> Result<ObjectPage, ViewError> {
        let selection = self.safe_selection(query)?;
        if query.details && selection.limit > DETAILED {
            let message = format!("`details` is for at most {DETAILED} objects: give a `limit`");
            return Err(ViewError::Invalid(message));
        }
        let at_ms = query.at.as_deref().map(|text| time("at", text)).transpose()?;
        // A text that is not a time is an error, even if nothing is asked about an end.
        for (name, text) in [("since", &query.since), ("until", &query.until)] {
            text.as_deref().map(|text| time(name, text)).transpose()?;
        }
        let past = PastQuery::of(query)?;
        let mut page = match (past, at_ms) {
            (Some(past), _) => self.list_past(query, &selection, past).await?,
            (None, Some(at_ms)) => self.objects_at(query, &selection, at_ms).await?,
            (None, None) => self.now(query, selection).await?,
        };
        if query.details {
            self.add_details(&mut page.objects, at_ms, query.hides_plugins).await?;
        }
        // A cause belongs to the end, not to a moment before.
        if (query.details || query.cause.is_some()) && at_ms.is_none() {
            self.add_causes(&mut page.objects).await?;
        }
        Ok(page)
    }

    async fn now(
        &self,
        query: &ObjectQuery,
        mut selection: ObjectSelection,
    ) -> Result<ObjectPage, ViewError> {
        let (limit, order) = (selection.limit, selection.order.unwrap_or_default());
        if query.gone != GoneFilter::No && selection.index.is_some() {
            let message = "`index` looks up what is there: with `gone`, give `labelSelector` or `search`";
            return Err(ViewError::Invalid(message.into()));
        }
        selection.beyond = query.cursor.as_deref().map(place).transpose()?;
        let live = match query.gone {
            GoneFilter::Only => PagePart::default(),
            GoneFilter::No | GoneFilter::Too => self.live_objects(query, &selection)?,
        };
        let gone = match query.gone {
            GoneFilter::No => PagePart::default(),
            GoneFilter::Too | GoneFilter::Only => self.ended_objects(query, &selection).await?,
        };
        let floor = first_of(order, live.floor, gone.floor);
        let mut objects = live.objects;
        objects.extend(gone.objects);
        objects.retain(|(place, _)| floor.as_ref().is_none_or(|floor| !order.is_before(floor, place)));
        objects.sort_by(|(a, _), (b, _)| if order.is_descending() { b.cmp(a) } else { a.cmp(b) });
        let next = match objects.get(limit) {
            Some(_) => objects.get(limit - 1).map(|(place, _)| place.clone()),
            None => floor,
        };
        objects.truncate(limit);
        let objects = self.shown_objects(objects).await?;
        let mut notices = if query.gone == GoneFilter::Only { Vec::new() } else { self.why_outdated(query) };
        notices.extend(gone.notices);
        Ok(ObjectPage { objects, next: next.map(|next| next.as_page_cursor()), notices })
    }

    async fn shown_objects(
        &self,
        objects: Vec<(OrderPosition, FoundObject)>,
    ) -> Result<Vec<ObjectView>, ViewError> {
        let (mut views, mut patience) = (Vec::with_capacity(objects.len()), AnswerPatience::of_a_list());
        for (_, found) in objects {
            views.push(match found {
                FoundObject::Living { source, current } => {
                    self.shown_object(&source, current, &mut patience).await?
                }
                FoundObject::Ended(state) => self.ended_view(&state).await?,
            });
        }
        Ok(views)
    }

    /// Why a list of present objects is outdated or incomplete. It contains no number, from which a reader of
    /// one namespace could learn how much happens in others.
    fn why_outdated(&self, query: &ObjectQuery) -> Vec<String> {
        let asked = self.sources_asked(query);
        let sources = self.shared.sources_with_specs().into_iter();
        let notice = |(SourceSpec { name, .. }, handle): (SourceSpec, SourceHandle)| {
            let view = handle.snapshot_view();
            if view.walking > 0 {
                return Some(format!(
                    "Source {name} is reading missed versions back. Until that is done, objects may be missing here \
                     or be shown as they were before."
                ));
            }
            let is_behind = view.condition.is_some() || view.stalled.is_some();
            is_behind.then(|| {
                format!(
                    "Source {name} does not follow the API server now, so this list may be old. \
                     `kubewitness status` says why."
                )
            })
        };
        sources.filter(|(spec, _)| asked.contains(&spec.name)).filter_map(notice).collect()
    }

    fn live_objects(&self, query: &ObjectQuery, selection: &ObjectSelection) -> Result<PagePart, ViewError> {
        let mut part = PagePart::default();
        let (mut answered, mut refused) = (false, None);
        for (spec, handle) in self.shared.sources_with_specs() {
            let source = handle.name();
            if !is_asked(&spec, query) {
                continue;
            }
            let shown = query.within.as_ref().map(|within| within.sources.get(&spec.name));
            if shown == Some(None) {
                answered = true;
                continue;
            }
            match visible::select(&self.shared.listers, source, selection, shown.flatten()) {
                // An incomplete list would look complete.
                Err(error @ SelectError::Loading(_)) => return Err(unavailable(error)),
                Ok(found) => {
                    answered = true;
                    let order = selection.order.unwrap_or_default();
                    part.floor = first_of(order, part.floor, found.floor);
                    let living = |current| FoundObject::Living { source: source.to_owned(), current };
                    let objects = found.objects.into_iter();
                    part.objects.extend(objects.map(|(place, current)| (place, living(current))));
                }
                // An answer without this source's objects would reveal the same.
                Err(SelectError::Index(error @ IndexError::Hidden { .. })) => {
                    return Err(ViewError::Invalid(error.to_string()));
                }
                Err(SelectError::Index(error)) => refused = Some(format!("source `{source}`: {error}")),
                // It ended a moment ago.
                Err(SelectError::Source { .. }) => {}
            }
        }
        // An index that only some sources have is not a fault; one that no source has is.
        match (answered, refused) {
            (false, Some(error)) => Err(ViewError::Invalid(error)),
            _ => Ok(part),
        }
    }

    pub(super) fn tally_objects(&self, query: &ObjectQuery) -> Result<ObjectCounts, ViewError> {
        let selection = self.safe_selection(query)?;
        let mut counts = ObjectCounts::default();
        for (spec, handle) in self.shared.sources_with_specs() {
            let shown = query.within.as_ref().map(|within| within.sources.get(&spec.name));
            if !is_asked(&spec, query) || shown == Some(None) {
                continue;
            }
            let source = handle.name();
            match visible::tally(&self.shared.listers, source, &selection, shown.flatten(), &mut counts) {
                Err(error @ SelectError::Loading(_)) => return Err(unavailable(error)),
                // An index that this source lacks, or a source that ended a moment ago.
                Err(SelectError::Index(_) | SelectError::Source { .. }) | Ok(()) => {}
            }
        }
        Ok(counts)
    }
}

fn place(cursor: &str) -> Result<OrderPosition, ViewError> {
    OrderPosition::parse(cursor).ok_or_else(wrong_cursor)
}

/// The error does not quote the cursor, which may contain what the person may not see.
pub(super) fn wrong_cursor() -> ViewError {
    let message = "the cursor is none of this list: take it from the header `Link` of the page before";
    ViewError::Invalid(message.into())
}

/// The time in a parameter, in milliseconds.
pub(super) fn time(name: &str, text: &str) -> Result<u64, ViewError> {
    calendar::parse_rfc3339_ms(text).ok_or_else(|| {
        ViewError::Invalid(format!(
            "`{name}` is no time: write it like 2026-11-24T03:00:00Z, and `{text}` is not"
        ))
    })
}
