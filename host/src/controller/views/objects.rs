//! A page of objects: those that are there, from the cache, and those that are gone, from the journal. Both are ordered
//! by positions, so a position is the cursor of both.

use std::cmp::Reverse;

use kubewitness_core::config::SourceSpec;
use kubewitness_core::index::IndexError;
use kubewitness_core::ports::{SelectError, Selection};
use kubewitness_core::views::{Counts, DetailsView, Gone, ObjectPage, ObjectQuery, ObjectView, ViewError};
use kubewitness_core::{Seq, calendar};
use kubewitness_watch::SourceHandle;

use super::shapes::is_asked;
use super::{HostViews, unavailable, within};

/// Rows of one page with details: each takes the object's states and its document.
const DETAILED: usize = 500;

/// A part of a page, and how far it goes: objects of a lower position may have been left out.
#[derive(Default)]
pub(super) struct Part {
    /// Each with the position that orders it.
    pub objects: Vec<(Seq, ObjectView)>,
    pub floor: Seq,
}

impl HostViews {
    pub(super) async fn page(&self, query: &ObjectQuery) -> Result<ObjectPage, ViewError> {
        let selection = self.selection(query)?;
        if query.details && selection.limit > DETAILED {
            let told = format!("`details` is for at most {DETAILED} objects: give a `limit`");
            return Err(ViewError::Invalid(told));
        }
        let at_ms = query.at.as_deref().map(|text| time("at", text)).transpose()?;
        let mut page = match at_ms {
            Some(at_ms) => self.then(query, &selection, at_ms).await?,
            None => self.now(query, selection).await?,
        };
        let needs = matches!(query.sort.as_deref(), Some("queued" | "running" | "restarts"));
        if query.details || (needs && page.objects.len() <= DETAILED) {
            self.add_details(&mut page.objects, at_ms).await?;
        }
        sort(&mut page.objects, query.sort.as_deref())?;
        if !query.details {
            page.objects.iter_mut().for_each(|view| view.details = None);
        }
        Ok(page)
    }

    async fn now(&self, query: &ObjectQuery, mut selection: Selection) -> Result<ObjectPage, ViewError> {
        let limit = selection.limit;
        if selection.index.is_some() && query.gone != Gone::No {
            let told = "`index` looks up what is there: with `gone`, give `labelSelector` or `search`";
            return Err(ViewError::Invalid(told.into()));
        }
        selection.before = query.cursor.as_deref().map(position).transpose()?;
        let live = match query.gone {
            Gone::Only => Part::default(),
            Gone::No | Gone::Too => self.live(query, &selection)?,
        };
        let gone = match query.gone {
            Gone::No => Part::default(),
            Gone::Too | Gone::Only => self.gone(query, &selection).await?,
        };
        let floor = live.floor.max(gone.floor);
        let mut objects = live.objects;
        objects.extend(gone.objects);
        objects.retain(|(position, _)| *position >= floor);
        // What changed last comes first.
        objects.sort_by_key(|(position, _)| Reverse(*position));
        let next = match objects.get(limit) {
            Some(_) => objects.get(limit - 1).map(|(position, _)| *position),
            None => Some(floor).filter(|floor| *floor > 0),
        };
        objects.truncate(limit);
        let objects = objects.into_iter().map(|(_, view)| view).collect();
        let notices = if query.gone == Gone::Only { Vec::new() } else { self.behind(query) };
        Ok(ObjectPage { objects, next: next.map(|next| next.to_string()), notices })
    }

    /// What makes a list of what is there old or less than all. It tells no number: a reader of one namespace would
    /// learn from it how much happens in others.
    fn behind(&self, query: &ObjectQuery) -> Vec<String> {
        let asked = self.asked(query);
        let sources = self.shared.sources_with_specs().into_iter();
        let notice = |(SourceSpec { name, .. }, handle): (SourceSpec, SourceHandle)| {
            let view = handle.view();
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

    fn live(&self, query: &ObjectQuery, selection: &Selection) -> Result<Part, ViewError> {
        let mut part = Part::default();
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
            match within::select(&self.ages, &self.shared.listers, source, selection, shown.flatten()) {
                // Less than all would be taken for all.
                Err(error @ SelectError::Loading(_)) => return Err(unavailable(error)),
                Ok(found) => {
                    answered = true;
                    part.floor = part.floor.max(found.floor);
                    for current in found.objects {
                        part.objects.push((current.seq, self.shown_object(source, current)?));
                    }
                }
                // An answer without this source's objects would tell as much.
                Err(SelectError::Index(error @ IndexError::Hidden { .. })) => {
                    return Err(ViewError::Invalid(error.to_string()));
                }
                Err(SelectError::Index(error)) => refused = Some(format!("source `{source}`: {error}")),
                // It ended a moment ago.
                Err(SelectError::Source { .. }) => {}
            }
        }
        // An index that only some sources have is no fault; one that none has is.
        match (answered, refused) {
            (false, Some(error)) => Err(ViewError::Invalid(error)),
            _ => Ok(part),
        }
    }

    pub(super) fn tally(&self, query: &ObjectQuery) -> Result<Counts, ViewError> {
        let selection = self.selection(query)?;
        let mut counts = Counts::default();
        for (spec, handle) in self.shared.sources_with_specs() {
            let shown = query.within.as_ref().map(|within| within.sources.get(&spec.name));
            if !is_asked(&spec, query) || shown == Some(None) {
                continue;
            }
            match within::tally(
                &self.ages,
                &self.shared.listers,
                handle.name(),
                &selection,
                shown.flatten(),
                &mut counts,
            ) {
                Err(error @ SelectError::Loading(_)) => return Err(unavailable(error)),
                // An index that this source lacks, or a source that ended a moment ago.
                Err(SelectError::Index(_) | SelectError::Source { .. }) | Ok(()) => {}
            }
        }
        Ok(counts)
    }
}

fn position(cursor: &str) -> Result<Seq, ViewError> {
    cursor.parse().map_err(|_| wrong_cursor(cursor))
}

pub(super) fn wrong_cursor(cursor: &str) -> ViewError {
    ViewError::Invalid(format!(
        "`{cursor}` is no cursor of this list: take it from the header `Link` of the page before"
    ))
}

/// The moment of a parameter, in milliseconds.
pub(super) fn time(name: &str, text: &str) -> Result<u64, ViewError> {
    calendar::moment(text).ok_or_else(|| {
        ViewError::Invalid(format!(
            "`{name}` is no time: write it like 2026-11-24T03:00:00Z, and `{text}` is not"
        ))
    })
}

/// The rows of one page.
fn sort(objects: &mut [ObjectView], by: Option<&str>) -> Result<(), ViewError> {
    fn greatest_first<T: Ord + Default>(view: &ObjectView, figure: impl Fn(&DetailsView) -> T) -> Reverse<T> {
        Reverse(view.details.as_ref().map(figure).unwrap_or_default())
    }
    match by {
        None | Some("changed") => {}
        Some("name") => objects.sort_by(|a, b| a.object.name.cmp(&b.object.name)),
        Some("phase") => objects.sort_by(|a, b| a.status.phase.cmp(&b.status.phase)),
        Some("queued") => objects.sort_by_key(|view| greatest_first(view, |told| told.queued_ms)),
        Some("running") => objects.sort_by_key(|view| greatest_first(view, |told| told.running_ms)),
        Some("restarts") => objects.sort_by_key(|view| greatest_first(view, |told| told.restarts)),
        Some(other) => {
            return Err(ViewError::Invalid(format!(
                "`{other}` is no order: there are changed, name, phase, queued, running, restarts"
            )));
        }
    }
    Ok(())
}
