//! `lister`: reads the controller's cache, of the granted sources only.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kubewitness_core::ObjectRef;
use kubewitness_core::document;
use kubewitness_core::ports::{GrantError, ObjectLister, ObjectSelection, SelectError, StateDelivery};
use tokio::time::timeout;

use super::documents;
use crate::secrets::redaction::RedactedDocuments;

/// The most objects that one listing returns.
const LIST_OBJECTS: usize = 10_000;
/// A state is in the cache a moment after it is durable. At startup the journal is read first: a plugin whose
/// sources are not loaded by then has to ask again later.
const SHOWN_WITHIN: Duration = Duration::from_secs(2);

pub struct GrantedLister {
    lister: Arc<dyn ObjectLister>,
    sources: BTreeSet<String>,
    /// `None` for a plugin that may see secrets.
    redaction: Option<RedactedDocuments>,
}

impl GrantedLister {
    pub fn new(
        lister: Arc<dyn ObjectLister>,
        sources: &[String],
        redaction: Option<RedactedDocuments>,
    ) -> Self {
        Self { lister, sources: sources.iter().cloned().collect(), redaction }
    }

    fn check_source(&self, source: &str) -> Result<(), GrantError> {
        if self.sources.contains(source) {
            return Ok(());
        }
        Err(crate::denied_error("source", source, "spec.grants.lister"))
    }

    /// Waits until the cache has the states of the call, so that a plugin finds each state that it received,
    /// or a newer one.
    pub async fn await_shown(&self, batch: &[StateDelivery]) -> Result<(), GrantError> {
        for source in &self.sources {
            let of_source =
                batch.iter().map(|delivery| &delivery.state).filter(|state| *state.source == **source);
            let newest = of_source.map(|state| state.seq).max().unwrap_or_default();
            if timeout(SHOWN_WITHIN, self.lister.await_shown(source, newest)).await.is_err() {
                return Err(refusal_of(SelectError::Loading(source.clone())));
            }
        }
        Ok(())
    }

    pub async fn get(&self, source: &str, namespace: &str, name: &str) -> Result<Option<Bytes>, GrantError> {
        self.check_source(source)?;
        let found = self.lister.get(source, namespace, name).map_err(refusal_of)?;
        let Some(current) = found else { return Ok(None) };
        match (document::unpack_document(&current.packed), &self.redaction) {
            (Ok(bytes), Some(redaction)) => redaction
                .redacted_document(std::future::ready(Ok(Some(bytes))))
                .await
                .map_err(|error| documents::refusal_of(&error)),
            (Ok(bytes), None) => Ok(Some(bytes)),
            (Err(error), _) => {
                tracing::error!(source, namespace, name, %error, "a cached document does not unpack");
                Err(GrantError::Other("the cached document does not unpack".into()))
            }
        }
    }

    pub fn list_objects(
        &self,
        source: &str,
        index: &str,
        key: &str,
        limit: usize,
    ) -> Result<Vec<ObjectRef>, GrantError> {
        self.check_source(source)?;
        let rules = self.redaction.as_ref().map(|redacted| redacted.redaction.redaction_rules());
        let index = (!index.is_empty()).then(|| (index.to_owned(), key.to_owned()));
        let selection =
            ObjectSelection { index, limit: limit.min(LIST_OBJECTS), rules, ..ObjectSelection::default() };
        let found = self.lister.select_objects(source, &selection).map_err(refusal_of)?;
        Ok(found.objects.into_iter().map(|current| (*current.object).clone()).collect())
    }
}

fn refusal_of(error: SelectError) -> GrantError {
    match error {
        SelectError::Index(error) => GrantError::Invalid(error.to_string()),
        SelectError::Loading(_) => GrantError::Unavailable(error.to_string()),
        // A granted source is configured, so it is starting, or its kind is missing now.
        SelectError::Source { source_name, .. } => {
            GrantError::Unavailable(format!("the source `{source_name}` does not run now"))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use async_trait::async_trait;
    use kubewitness_core::Seq;
    use kubewitness_core::ports::{CurrentObject, SelectedObjects};
    use kubewitness_core::views::ObjectCounts;

    use super::*;

    /// Records the number of objects that it was last asked for.
    #[derive(Default)]
    struct AskedLimit(AtomicUsize);

    #[async_trait]
    impl ObjectLister for AskedLimit {
        fn get(&self, _: &str, _: &str, _: &str) -> Result<Option<CurrentObject>, SelectError> {
            Ok(None)
        }

        fn select_objects(
            &self,
            _: &str,
            selection: &ObjectSelection,
        ) -> Result<SelectedObjects, SelectError> {
            self.0.store(selection.limit, Ordering::Relaxed);
            Ok(SelectedObjects::default())
        }

        fn tally_objects(
            &self,
            _: &str,
            _: &ObjectSelection,
            _: &mut ObjectCounts,
        ) -> Result<(), SelectError> {
            Ok(())
        }

        fn count(&self, _: &str) -> usize {
            0
        }

        async fn await_shown(&self, _: &str, _: Seq) {}
    }

    #[test]
    fn a_listing_asks_for_no_more_objects_than_its_bound() {
        let cache = Arc::new(AskedLimit::default());
        let granted = GrantedLister::new(cache.clone(), &["jobs".to_owned()], None);
        for (limit, asked) in [(7, 7), (LIST_OBJECTS, LIST_OBJECTS), (usize::MAX, LIST_OBJECTS)] {
            granted.list_objects("jobs", "", "", limit).unwrap();
            assert_eq!(cache.0.load(Ordering::Relaxed), asked);
        }
        assert!(matches!(granted.list_objects("pods", "", "", 1), Err(GrantError::Denied(_))));
    }
}
