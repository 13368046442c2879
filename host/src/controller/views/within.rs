//! What is there, for somebody who may see a part of it.

use std::collections::BTreeSet;

use kubewitness_core::document::unpack;
use kubewitness_core::ports::{Current, Lister, SelectError, Selection, Shown, created_ms};

/// Objects that are looked at before others have a turn.
const PAGE: usize = 1024;

/// As the selection says, of what is shown.
pub fn select(
    listers: &dyn Lister,
    source: &str,
    selection: &Selection,
    shown: Option<&Shown>,
) -> Result<Vec<Current>, SelectError> {
    let Some(Shown::Namespaces(namespaces)) = shown else {
        return listers.select(source, selection).map(|selected| selected.objects);
    };
    let mut found = Vec::new();
    let is_asked = |name: &&String| selection.namespace.as_ref().is_none_or(|asked| asked == *name);
    for name in namespaces.keys().filter(is_asked) {
        let selection = Selection { namespace: Some(name.clone()), ..selection.clone() };
        let selected = listers.select(source, &selection)?;
        found.extend(selected.objects.into_iter().filter(|current| is_of(current, namespaces[name])));
    }
    Ok(found)
}

/// Whether it was created in the namespace that is there now.
fn is_of(current: &Current, since_ms: u64) -> bool {
    let document = unpack(&current.packed).ok();
    document.and_then(|document| created_ms(&document)).is_some_and(|created_ms| created_ms >= since_ms)
}

pub async fn namespaces(
    listers: &dyn Lister,
    source: &str,
    most: usize,
) -> Result<BTreeSet<String>, SelectError> {
    let mut names = BTreeSet::new();
    let mut selection = Selection { limit: PAGE, ..Selection::default() };
    loop {
        let selected = listers.select(source, &selection)?;
        for current in selected.objects {
            if names.len() < most && !names.contains(&current.object.namespace) {
                names.insert(current.object.namespace.clone());
            }
        }
        if selected.next.is_none() || names.len() >= most {
            return Ok(names);
        }
        selection.after = selected.next;
        tokio::task::yield_now().await;
    }
}
