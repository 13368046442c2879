//! `lister`: reads of the host's cache, of the sources that were granted.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use kubewitness_core::ObjectRef;
use kubewitness_core::document;
use kubewitness_core::ports::{GrantError, Lister, SelectError, Selection};

/// Objects that one listing may return.
const LIST_OBJECTS: usize = 10_000;

pub struct Granted {
    lister: Arc<dyn Lister>,
    sources: BTreeSet<String>,
}

impl Granted {
    pub fn new(lister: Arc<dyn Lister>, sources: &[String]) -> Self {
        Self { lister, sources: sources.iter().cloned().collect() }
    }

    fn allow(&self, source: &str) -> Result<(), GrantError> {
        if self.sources.contains(source) {
            return Ok(());
        }
        Err(crate::denied("source", source, "spec.grants.lister"))
    }

    pub fn get(&self, source: &str, namespace: &str, name: &str) -> Result<Option<Bytes>, GrantError> {
        self.allow(source)?;
        let Some(current) = self.lister.get(source, namespace, name) else { return Ok(None) };
        match document::unpack(&current.packed) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) => {
                tracing::error!(source, namespace, name, %error, "a cached document does not unpack");
                Err(GrantError::Other("the cached document does not unpack".into()))
            }
        }
    }

    pub fn list(
        &self,
        source: &str,
        index: &str,
        key: &str,
        limit: usize,
    ) -> Result<Vec<ObjectRef>, GrantError> {
        self.allow(source)?;
        let index = (!index.is_empty()).then(|| (index.to_owned(), key.to_owned()));
        let selection = Selection { index, limit: limit.min(LIST_OBJECTS), ..Selection::default() };
        let found = self.lister.select(source, &selection).map_err(|error| match error {
            SelectError::Index(error) => GrantError::Invalid(error.to_string()),
            // Granted, so configured: it is on its way, or its kind is not there now.
            SelectError::Source { .. } => {
                GrantError::Unavailable(format!("the source `{source}` does not run now"))
            }
        })?;
        Ok(found.objects.into_iter().map(|current| (*current.object).clone()).collect())
    }
}
