//! The cache → its readers: which objects exist now.

use std::sync::Arc;

use async_trait::async_trait;
use thiserror::Error;

use super::CurrentObject;
use super::views::ObjectCounts;
use crate::index::IndexError;
use crate::order::{ObjectOrder, OrderPosition};
use crate::redact::RedactionRules;
use crate::search::SearchText;
use crate::selector::LabelSelector;
use crate::state::Seq;

/// Selects objects of one source. An object must match every given condition.
#[derive(Clone, Debug, Default)]
pub struct ObjectSelection {
    pub namespace: Option<String>,
    pub name: Option<String>,
    pub phase: Option<String>,
    pub labels: LabelSelector,
    /// The name of an index ([`crate::index`]) and a key in it.
    pub index: Option<(String, String)>,
    pub limit: usize,
    /// A part of the object's name, uid, submitter or labels.
    pub search: Option<SearchText>,
    /// The rules that hide secrets, for a person who may not see them. An index over a hidden path is
    /// refused.
    pub rules: Option<Arc<RedactionRules>>,
    /// Only objects that were created at this time or later. An object without a creation time does not
    /// match.
    pub created_since_ms: Option<u64>,
    /// Returns the first objects of this order, in order, without a continuation. Without it, objects have no
    /// order.
    pub order: Option<ObjectOrder>,
    /// With `order`: only objects after this position.
    pub beyond: Option<OrderPosition>,
    /// The [`next`](SelectedObjects::next) of the previous page.
    pub after: Option<u32>,
}

#[derive(Clone, Debug, Default)]
pub struct SelectedObjects {
    pub objects: Vec<CurrentObject>,
    /// The start of the next page, if more may follow.
    pub next: Option<u32>,
    /// With `order`: the position of each object.
    pub places: Vec<OrderPosition>,
    /// With `order`: set if the search ended early. No object after this position was examined. The object at
    /// the position matches as far as that can be known without its document.
    pub looked: Option<OrderPosition>,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SelectError {
    #[error("no source `{source_name}` runs here; there is {}", names_or_none(known))]
    Source { source_name: String, known: Vec<String> },
    #[error("the source `{0}` is being read from the journal: ask again in a moment")]
    Loading(String),
    #[error(transparent)]
    Index(#[from] IndexError),
}

fn names_or_none(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Reads the objects that exist now from the cache. No request reaches the API server.
#[async_trait]
pub trait ObjectLister: Send + Sync {
    fn get(&self, source: &str, namespace: &str, name: &str) -> Result<Option<CurrentObject>, SelectError>;
    fn select_objects(
        &self,
        source: &str,
        selection: &ObjectSelection,
    ) -> Result<SelectedObjects, SelectError>;
    /// Adds the selected objects to the counts, ignoring the selection's limit.
    fn tally_objects(
        &self,
        source: &str,
        selection: &ObjectSelection,
        counts: &mut ObjectCounts,
    ) -> Result<(), SelectError>;
    fn count(&self, source: &str) -> usize;
    /// Returns once the source is loaded and shows its state at this position or later. Returns at once if
    /// the source does not run.
    async fn await_shown(&self, source: &str, seq: Seq);
}
