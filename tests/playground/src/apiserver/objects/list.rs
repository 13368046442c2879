//! Answers lists: which objects a request selects, and pages of them.

use std::sync::Arc;

use axum::body::Body;
use bytes::Bytes;

use crate::apiserver::cluster::front::ServerFront;
use crate::apiserver::cluster::shared::SharedCluster;
use crate::apiserver::kinds::ServedKind;
use crate::apiserver::objects::render::RenderView;
use crate::apiserver::store::record::VersionRecord;
use crate::apiserver::store::{AsOf, ObjectPage, PageRequest, TableId, TooOld};
use crate::apiserver::wire::error::ApiError;
use crate::apiserver::wire::query::{ContinueToken, ListOptions, ListVersion, QueryParameters};
use crate::apiserver::wire::selector::{FieldSelector, LabelSelector};

/// A list is sent in chunks of about this size.
const CHUNK_BYTES: usize = 256 * 1024;

/// Selects objects of a resource.
pub struct ListFilter {
    /// Empty means every namespace.
    pub namespace: String,
    pub labels: LabelSelector,
    pub fields: FieldSelector,
}

impl ListFilter {
    pub fn parse(kind: &ServedKind, namespace: &str, query: &QueryParameters) -> Result<Self, ApiError> {
        let known = crate::apiserver::kinds::fields::selectable(kind);
        Ok(ListFilter {
            namespace: namespace.to_owned(),
            labels: LabelSelector::parse(query.get("labelSelector"))?,
            fields: FieldSelector::parse(query.get("fieldSelector"), &known, &kind.kind)?,
        })
    }

    pub fn selects(&self) -> bool {
        !self.labels.is_empty() || !self.fields.is_empty()
    }

    pub fn matches(&self, record: &VersionRecord) -> bool {
        (self.namespace.is_empty() || *record.namespace == *self.namespace)
            && self.labels.matches(|name| record.label(name))
            && self.fields.matches(|name| record.field(name))
    }

    /// The prefix of the keys. A field selector on the namespace narrows a list as its path does.
    fn prefix(&self) -> String {
        let selected = self.fields.required("metadata.namespace").unwrap_or_default();
        match (self.namespace.as_str(), selected) {
            ("", "") => String::new(),
            ("", selected) => format!("{selected}/"),
            (namespace, _) => format!("{namespace}/"),
        }
    }

    /// A page of the selected objects. One object by name is looked up, not searched.
    pub fn page(
        &self,
        shared: &SharedCluster,
        table: TableId,
        at: AsOf,
        after: Option<&str>,
        limit: Option<usize>,
    ) -> Result<ObjectPage, TooOld> {
        let prefix = self.prefix();
        let name = self.fields.required("metadata.name");
        if let (Some(name), None, false) = (name, after, prefix.is_empty()) {
            let (version, found) = shared.store.get_at(table, &format!("{prefix}{name}"), at)?;
            let items = found.into_iter().filter(|r| self.matches(r)).collect();
            return Ok(ObjectPage { version, items, last: None, remaining: 0 });
        }
        let after = after.map(|after| format!("{}{after}", self.base()));
        shared.store.page(
            table,
            &PageRequest {
                prefix: &prefix,
                after: after.as_deref(),
                name,
                at,
                limit,
                matches: &|r| self.matches(r),
            },
        )
    }

    /// The prefix that continue tokens omit from keys: the namespace of the path.
    fn base(&self) -> String {
        if self.namespace.is_empty() { String::new() } else { format!("{}/", self.namespace) }
    }
}

/// Answers a list.
pub async fn list(
    front: &ServerFront,
    table: TableId,
    view: RenderView,
    filter: &ListFilter,
    options: &ListOptions,
) -> Result<Body, ApiError> {
    let page = page(front, table, filter, options).await?;
    let base = filter.base();
    let next = page.last.as_deref().map(|last| {
        let after = last.strip_prefix(&base).unwrap_or(last).to_owned();
        ContinueToken { version: Some(page.version), after }.encode()
    });
    let remaining = next.as_ref().filter(|_| !filter.selects()).map(|_| page.remaining);
    let head = view.list_head(page.version, next.as_deref(), remaining);
    Ok(body(view, head, page.items))
}

async fn page(
    front: &ServerFront,
    table: TableId,
    filter: &ListFilter,
    options: &ListOptions,
) -> Result<ObjectPage, ApiError> {
    if let Some(token) = &options.token {
        let at = token.version.map_or(AsOf::Newest, |v| AsOf::Exact(v.min(front.store.version())));
        let page = filter.page(front, table, at, Some(&token.after), options.limit);
        return page.map_err(|_| {
            let inconsistent = ContinueToken { version: None, after: token.after.clone() };
            ApiError::continue_expired(inconsistent.encode())
        });
    }
    let at = match options.at {
        ListVersion::Newest => AsOf::Newest,
        ListVersion::Cached => front.cached(),
        ListVersion::NotOlderThan(version) if options.limit.is_some() => {
            front.wait_for_version(version).await?;
            AsOf::Newest
        }
        ListVersion::NotOlderThan(version) => {
            front.wait_for_cached(version).await?;
            front.cached()
        }
        ListVersion::Exact(version) => {
            front.wait_for_version(version).await?;
            AsOf::Exact(version)
        }
    };
    filter.page(front, table, at, None, options.limit).map_err(|_| ApiError::list_expired())
}

fn body(view: RenderView, head: Vec<u8>, items: Vec<Arc<VersionRecord>>) -> Body {
    let mut out = head;
    let mut items = items.into_iter();
    let mut first = true;
    fill(&view, &mut out, &mut items, &mut first);
    if items.as_slice().is_empty() {
        out.extend_from_slice(b"]}");
        return Body::from(out);
    }
    let rest = (view, items, first, Some(out));
    Body::from_stream(futures::stream::unfold(rest, |(view, mut items, mut first, head)| async move {
        let mut out = match head {
            Some(head) => {
                return Some((Ok::<_, std::io::Error>(Bytes::from(head)), (view, items, first, None)));
            }
            None => Vec::with_capacity(CHUNK_BYTES + CHUNK_BYTES / 4),
        };
        if items.as_slice().is_empty() {
            return None;
        }
        fill(&view, &mut out, &mut items, &mut first);
        if items.as_slice().is_empty() {
            out.extend_from_slice(b"]}");
        }
        Some((Ok(Bytes::from(out)), (view, items, first, None)))
    }))
}

fn fill(
    view: &RenderView,
    out: &mut Vec<u8>,
    items: &mut std::vec::IntoIter<Arc<VersionRecord>>,
    first: &mut bool,
) {
    while out.len() < CHUNK_BYTES {
        let Some(record) = items.next() else { return };
        if !std::mem::take(first) {
            out.push(b',');
        }
        view.list_item(out, &record);
    }
}
