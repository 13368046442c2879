//! When objects were created: a recreated namespace shows nothing from the former namespace with its name.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use kubewitness_core::views::{TimelineQuery, ViewError, Views};
use kubewitness_core::{Change, ObjectRef, Seq};

/// A uid and a number each. If there are more, the map is cleared and read again.
const KEPT: usize = 16_384;
/// How many states of an object are searched for one with a document, and how many documents are read. Every
/// document from the server contains the creation time.
const STATES: usize = 64;
const DOCUMENTS: usize = 4;

#[derive(Default)]
pub(crate) struct NamespaceAges(Mutex<HashMap<String, u64>>);

impl NamespaceAges {
    /// `None` if no document of the object exists any more. `seq` is one of its states, if one is known.
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
            if kept.len() >= KEPT {
                kept.clear();
            }
            kept.insert(object.uid.clone(), created);
        }
        Ok(found)
    }
}

async fn find_created_ms(views: &dyn Views, uid: &str) -> Result<Option<u64>, ViewError> {
    let query = TimelineQuery { uid: Some(uid.into()), limit: Some(STATES), ..TimelineQuery::default() };
    let story = views.raw_story(&query).await?;
    let present = story.states.iter().filter(|state| state.change() == Change::Present);
    for state in present.take(DOCUMENTS) {
        if let Some(created) = views.created_ms(state.seq()).await? {
            return Ok(Some(created));
        }
    }
    Ok(None)
}
