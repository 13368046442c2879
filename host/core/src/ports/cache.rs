//! The cache → its readers: which objects exist now.

use std::sync::Arc;

use async_trait::async_trait;
use thiserror::Error;

use super::Current;
use super::views::Counts;
use crate::index::IndexError;
use crate::order::{Order, Place};
use crate::redact::Redactor;
use crate::search::Search;
use crate::selector::Selector;
use crate::state::Seq;

/// Selects objects of one source. An object must fit every condition that is given.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    pub namespace: Option<String>,
    pub name: Option<String>,
    pub phase: Option<String>,
    pub labels: Selector,
    /// The name of an index ([`crate::index`]) and a key in it.
    pub index: Option<(String, String)>,
    pub limit: usize,
    /// A part of what the object is known by.
    pub search: Option<Search>,
    /// For somebody who may not see secrets: what hides them. An index over a hidden place is refused.
    pub rules: Option<Arc<Redactor>>,
    /// Only objects that were created at this moment or later, and whose document says so.
    pub created_since_ms: Option<u64>,
    /// Return the first objects of this order, in order, without a continuation. Otherwise they have none.
    pub order: Option<Order>,
    /// With `order`: only objects behind this place.
    pub beyond: Option<Place>,
    /// The [`next`](Selected::next) of the page before.
    pub after: Option<u32>,
}

#[derive(Clone, Debug, Default)]
pub struct Selected {
    pub objects: Vec<Current>,
    /// Where the next page begins, if there may be more.
    pub next: Option<u32>,
    /// With `order`: the place of each object.
    pub places: Vec<Place>,
    /// With `order`: the search ended early, and has looked at no object behind this place. The object there is one
    /// that fits, but for what only its document tells.
    pub looked: Option<Place>,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SelectError {
    #[error("no source `{source_name}` runs here; there is {}", list(known))]
    Source { source_name: String, known: Vec<String> },
    #[error("the source `{0}` is being read from the journal: ask again in a moment")]
    Loading(String),
    #[error(transparent)]
    Index(#[from] IndexError),
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Reads the objects that exist now from the cache. No request reaches the API server.
#[async_trait]
pub trait Lister: Send + Sync {
    fn get(&self, source: &str, namespace: &str, name: &str) -> Result<Option<Current>, SelectError>;
    fn select(&self, source: &str, selection: &Selection) -> Result<Selected, SelectError>;
    /// Adds what is selected to the counts, whatever the selection's limit is.
    fn tally(&self, source: &str, selection: &Selection, counts: &mut Counts) -> Result<(), SelectError>;
    fn count(&self, source: &str) -> usize;
    /// Returns once the source is loaded and shows its state at this position or a later one. Returns at once
    /// if the source does not run.
    async fn shows(&self, source: &str, seq: Seq);
}
