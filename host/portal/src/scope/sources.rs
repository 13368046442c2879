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

/// Refuses a filter that no object of the requested kind and source has. Resources of several groups may share a
/// kind's name, so the filter is refused only if none of those that are watched has it.
pub(crate) fn check_filters(app: &PortalApp, query: &ObjectQuery) -> Result<(), ForeignFilter> {
    check_filters_of(app.views.watched_resources(), query)
}

fn check_filters_of(watched: Vec<WatchedResource>, query: &ObjectQuery) -> Result<(), ForeignFilter> {
    let is_meant = |watched: &WatchedResource| {
        let is_of_kind = |kind: &str| kind.eq_ignore_ascii_case("all") || is_of(watched, kind);
        query.source.as_ref().is_none_or(|name| watched.source == *name)
            && query.kind.as_deref().is_none_or(is_of_kind)
    };
    let mut is_any_watched = false;
    let mut refused = Ok(());
    for WatchedResource { group, kind, .. } in watched.into_iter().filter(is_meant) {
        let kind = if group.is_empty() { kind } else { format!("{kind}.{group}") };
        refused = ObjectQuery { kind: Some(kind), ..query.clone() }.check_filters();
        if refused.is_ok() {
            return Ok(());
        }
        is_any_watched = true;
    }
    let named = query.check_filters();
    // Its message has the kind's name as it was typed.
    if is_any_watched && named.is_ok() { refused } else { named }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_of_several_groups_is_refused_a_filter_only_if_none_that_is_watched_has_it() {
        let of = |source: &str, group: &str| WatchedResource {
            source: source.into(),
            group: group.into(),
            kind: "Node".into(),
            resource: "nodes".into(),
        };
        let (own, other) = (of("nodes", ""), of("longhorn-nodes", "longhorn.io"));
        let query = ObjectQuery {
            kind: Some("node".into()),
            namespace: Some("storage".into()),
            ..ObjectQuery::default()
        };
        let refused = check_filters_of(vec![own.clone()], &query).unwrap_err();
        assert!(refused.message.contains("`node` are in no namespace"), "{refused}");
        assert_eq!(check_filters_of(vec![other.clone()], &query), Ok(()));
        assert_eq!(check_filters_of(vec![own.clone(), other.clone()], &query), Ok(()));
        let of_source = |name: &str| ObjectQuery { source: Some(name.into()), ..query.clone() };
        assert_eq!(check_filters_of(vec![own.clone(), other.clone()], &of_source("longhorn-nodes")), Ok(()));
        check_filters_of(vec![own, other], &of_source("nodes")).unwrap_err();
        check_filters_of(Vec::new(), &query).unwrap_err();
    }
}
