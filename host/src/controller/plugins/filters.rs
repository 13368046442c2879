//! Compiles the filters of subscriptions, and passes them the documents that they read.

use std::sync::Arc;

use async_trait::async_trait;
use kubewitness_core::State;
use kubewitness_core::ports::{DocumentReader, FilterError, StateFilter};
use kubewitness_filter::CelFilter;

/// A filter that passed the check of its manifest; `None` for a text that would not pass.
pub fn compile_filter(text: &str, documents: Arc<dyn DocumentReader>) -> Option<Arc<dyn StateFilter>> {
    let filter = CelFilter::compile_filter(text).ok()?;
    Some(Arc::new(WithDocuments { filter, documents }))
}

struct WithDocuments {
    filter: CelFilter,
    documents: Arc<dyn DocumentReader>,
}

impl std::fmt::Debug for WithDocuments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.filter.fmt(f)
    }
}

#[async_trait]
impl StateFilter for WithDocuments {
    async fn wants_state(&self, state: &State) -> Result<bool, FilterError> {
        let document = match self.filter.needs_document() {
            true => self.documents.document_at(state.seq).await?,
            false => None,
        };
        self.filter
            .wants_state(state, document.as_deref())
            .map_err(|error| FilterError::Unclear(error.into()))
    }
}
