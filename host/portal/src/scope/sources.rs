//! Refuses a request about a source or a kind that is not watched.

use kubewitness_core::kinds::is_kind;
use kubewitness_core::ports::WatchedResource;
use kubewitness_core::views::{ForeignFilter, ObjectQuery};

use crate::answer::{Problem, codes};
use crate::app::PortalApp;

/// An answer without rows may mean that nothing matches, or that nobody watches the requested kind; this
/// refuses the latter. While no source is configured yet, nothing can be said.
pub(crate) fn check(app: &PortalApp, source: Option<&str>, kind: Option<&str>) -> Result<(), Problem> {
    let sources = app.views.watched_resources();
    if sources.is_empty() {
        return Ok(());
    }
    if let Some(name) = source.filter(|name| !sources.iter().any(|known| known.source == *name)) {
        let message = format!("No source is called `{name}`.");
        return Err(Problem::with_code(
            codes::NOT_WITNESSED,
            message,
            format!("The sources are {}.", source_list(&sources)),
        ));
    }
    match kind.filter(|kind| !sources.iter().any(|source| is_of(source, kind))) {
        Some(kind) => {
            let message = format!("No source witnesses `{kind}`.");
            Err(Problem::with_code(codes::NOT_WITNESSED, message, describe_witnessed(&sources)))
        }
        None => Ok(()),
    }
}

/// Refuses a filter that objects of the requested kind, or of the requested source, do not have.
pub(crate) fn check_filters(app: &PortalApp, query: &ObjectQuery) -> Result<(), ForeignFilter> {
    query.check_filters()?;
    let Some(name) = &query.source else { return Ok(()) };
    let of_source = app.views.watched_resources().into_iter().filter(|watched| watched.source == *name);
    let mut of_source = of_source.map(|WatchedResource { group, kind, .. }| match group.is_empty() {
        true => kind,
        false => format!("{kind}.{group}"),
    });
    of_source.try_for_each(|kind| ObjectQuery { kind: Some(kind), ..query.clone() }.check_filters())
}

fn is_of(source: &WatchedResource, kind: &str) -> bool {
    is_kind(&source.group, &source.kind, kind)
}

/// The kind's name in the sources, for the name that somebody typed.
pub(crate) fn kind_of(sources: &[WatchedResource], kind: &str) -> Option<String> {
    sources.iter().find(|source| is_of(source, kind)).map(|source| source.kind.clone())
}

/// Names the watched kinds, for people.
pub(crate) fn describe_witnessed(sources: &[WatchedResource]) -> String {
    format!("The sources witness {}. The host's settings name more.", source_list(sources))
}

fn source_list(sources: &[WatchedResource]) -> String {
    let name = |watched: &WatchedResource| format!("{} (source `{}`)", watched.kind, watched.source);
    sources.iter().map(name).collect::<Vec<_>>().join(", ")
}
