//! When objects were created: a recreated namespace shows nothing from the former namespace with its name.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use kubewitness_core::views::{TimelineQuery, ViewError, Views};
use kubewitness_core::{Change, ObjectRef, Seq};

/// The most objects whose creation time is cached. If there are more, the map is cleared and filled again.
const MOST_CREATION_TIMES: usize = 16_384;
/// How many states of an object are searched for one with a document, and how many documents are read. Every
/// document from the server contains the creation time.
const STATES_SEARCHED: usize = 64;
const DOCUMENTS_READ: usize = 4;

#[derive(Default)]
pub(crate) struct NamespaceAges(Mutex<HashMap<String, u64>>);

impl NamespaceAges {
    /// The creation time of an object. `None` if no document of it exists any more. `seq` is one of its
    /// states, if one is known.
    pub(crate) async fn created_ms(
        &self,
        views: &dyn Views,
        object: &ObjectRef,
        seq: Option<Seq>,
    ) -> Result<Option<u64>, ViewError> {
        if let Some(known) = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&object.uid) {
            return Ok(Some(*known));
        }
        let mut found = match seq {
            Some(seq) => views.created_ms(seq).await?,
            None => None,
        };
        if found.is_none() {
            found = find_created_ms(views, &object.uid).await?;
        }
        if let Some(created) = found {
            let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if kept.len() >= MOST_CREATION_TIMES {
                kept.clear();
            }
            kept.insert(object.uid.clone(), created);
        }
        Ok(found)
    }
}

async fn find_created_ms(views: &dyn Views, uid: &str) -> Result<Option<u64>, ViewError> {
    let query =
        TimelineQuery { uid: Some(uid.into()), limit: Some(STATES_SEARCHED), ..TimelineQuery::default() };
    let story = views.raw_story(&query).await?;
    let present = story.states.iter().filter(|state| state.change() == Change::Present);
    for state in present.take(DOCUMENTS_READ) {
        if let Some(created) = views.created_ms(state.seq()).await? {
            return Ok(Some(created));
        }
    }
    Ok(None)
}
