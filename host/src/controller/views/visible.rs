//! Existing objects, for a viewer who may see some of them.

use std::collections::BTreeSet;

use kubewitness_core::order::{ObjectOrder, OrderPosition};
use kubewitness_core::ports::{
    CurrentObject, ObjectLister, ObjectSelection, SelectError, SelectedObjects, SourceVisibility,
};
use kubewitness_core::views::ObjectCounts;

/// How many objects are examined before others have a turn.
const PAGE: usize = 1024;

/// Objects, and how far the search has come.
#[derive(Default)]
pub struct VisibleObjects {
    /// Each object with its position.
    pub objects: Vec<(OrderPosition, CurrentObject)>,
    /// Objects after this position may have been left out.
    pub floor: Option<OrderPosition>,
}

impl VisibleObjects {
    fn add(&mut self, selected: SelectedObjects, selection: &ObjectSelection) {
        let last = selected.places.last().filter(|_| selected.objects.len() >= selection.limit).cloned();
        let floor = selected.looked.or(last);
        self.floor = first_of(selection.order.unwrap_or_default(), self.floor.take(), floor);
        self.objects.extend(selected.places.into_iter().zip(selected.objects));
    }
}

/// The earlier position.
pub(super) fn first_of(
    order: ObjectOrder,
    a: Option<OrderPosition>,
    b: Option<OrderPosition>,
) -> Option<OrderPosition> {
    match (a, b) {
        (Some(a), Some(b)) => Some(if order.is_before(&b, &a) { b } else { a }),
        (a, b) => a.or(b),
    }
}

/// The selections of visible objects: one for everything, or one for each namespace. The latter contains only
/// objects that were created in the present namespace of that name.
fn shown_of(selection: &ObjectSelection, shown: Option<&SourceVisibility>) -> Vec<ObjectSelection> {
    let Some(SourceVisibility::Namespaces(namespaces)) = shown else { return vec![selection.clone()] };
    let is_asked = |name: &str| selection.namespace.as_ref().is_none_or(|asked| asked == name);
    let of = |(name, since_ms): (&String, &u64)| ObjectSelection {
        namespace: Some(name.clone()),
        created_since_ms: Some(*since_ms),
        ..selection.clone()
    };
    namespaces.iter().filter(|(name, _)| is_asked(name)).map(of).collect()
}

/// Applies the selection to visible objects.
pub fn select(
    listers: &dyn ObjectLister,
    source: &str,
    selection: &ObjectSelection,
    shown: Option<&SourceVisibility>,
) -> Result<VisibleObjects, SelectError> {
    let mut found = VisibleObjects::default();
    for selection in shown_of(selection, shown) {
        found.add(listers.select_objects(source, &selection)?, &selection);
    }
    Ok(found)
}

/// Counts visible objects.
pub fn tally(
    listers: &dyn ObjectLister,
    source: &str,
    selection: &ObjectSelection,
    shown: Option<&SourceVisibility>,
    counts: &mut ObjectCounts,
) -> Result<(), SelectError> {
    shown_of(selection, shown)
        .iter()
        .try_for_each(|selection| listers.tally_objects(source, selection, counts))
}

pub async fn namespaces(
    listers: &dyn ObjectLister,
    source: &str,
    most: usize,
) -> Result<BTreeSet<String>, SelectError> {
    let mut names = BTreeSet::new();
    let mut selection = ObjectSelection { limit: PAGE, ..ObjectSelection::default() };
    loop {
        let selected = listers.select_objects(source, &selection)?;
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use async_trait::async_trait;
    use kubewitness_core::document::{pack_document, unpack_document};
    use kubewitness_core::ports::created_ms;
    use kubewitness_core::{ObjectRef, Seq, Status, Version, calendar};

    use super::*;

    /// Returns two objects for each page.
    struct TwoObjectCache(Vec<CurrentObject>);

    #[async_trait]
    impl ObjectLister for TwoObjectCache {
        fn get(&self, _: &str, _: &str, _: &str) -> Result<Option<CurrentObject>, SelectError> {
            Ok(None)
        }

        fn select_objects(
            &self,
            _: &str,
            selection: &ObjectSelection,
        ) -> Result<SelectedObjects, SelectError> {
            let from = selection.after.unwrap_or_default() as usize;
            let is_in = |current: &&CurrentObject| {
                let created = || created_ms(&unpack_document(&current.packed).ok()?);
                selection.namespace.as_ref().is_none_or(|name| *name == current.object.namespace)
                    && selection
                        .created_since_ms
                        .is_none_or(|since| created().is_some_and(|created| created >= since))
            };
            let page = self.0.iter().skip(from).take(2);
            let next = (from + 2 < self.0.len()).then_some(from as u32 + 2);
            let objects: Vec<_> = page.filter(is_in).cloned().collect();
            let places = objects.iter().map(|current| OrderPosition::at_seq(current.seq)).collect();
            Ok(SelectedObjects { objects, places, next, looked: None })
        }

        fn tally_objects(
            &self,
            source: &str,
            selection: &ObjectSelection,
            counts: &mut ObjectCounts,
        ) -> Result<(), SelectError> {
            *counts.phases.entry("all".into()).or_default() +=
                self.select_objects(source, selection)?.objects.len() as u64;
            Ok(())
        }

        fn count(&self, _: &str) -> usize {
            self.0.len()
        }

        async fn await_shown(&self, _: &str, _: Seq) {}
    }

    fn current(namespace: &str, document: &str) -> CurrentObject {
        CurrentObject {
            object: Arc::new(ObjectRef {
                namespace: namespace.into(),
                uid: document.into(),
                ..ObjectRef::default()
            }),
            owner: None,
            resource_version: Version::new("1"),
            status: Arc::new(Status::default()),
            seq: 1,
            observed_ms: 0,
            packed: pack_document(document.as_bytes()),
        }
    }

    fn created(ms: u64) -> String {
        format!(r#"{{"metadata":{{"creationTimestamp":"{}"}}}}"#, calendar::format_rfc3339(ms))
    }

    #[test]
    fn an_object_that_is_older_than_its_namespace_or_has_no_age_is_of_another_one() {
        let cache = TwoObjectCache(vec![current("a", &created(2_000)), current("a", &created(1_000))]);
        let none = TwoObjectCache(vec![current("a", "{}"), current("b", &created(5_000))]);
        let shown = |since| SourceVisibility::Namespaces(BTreeMap::from([("a".to_owned(), since)]));
        let found = |cache: &TwoObjectCache, shown: Option<&SourceVisibility>, asked: Option<&str>| {
            let namespace = asked.map(Into::into);
            let selection = ObjectSelection { namespace, limit: usize::MAX, ..ObjectSelection::default() };
            let mut counts = ObjectCounts::default();
            tally(cache, "jobs", &selection, shown, &mut counts).unwrap();
            let found = select(cache, "jobs", &selection, shown).unwrap().objects.len();
            assert_eq!(counts.phases.get("all").copied().unwrap_or_default(), found as u64);
            found
        };
        assert_eq!(found(&cache, Some(&shown(1_000)), None), 2);
        assert_eq!(found(&cache, Some(&shown(2_000)), None), 1);
        assert_eq!(found(&cache, Some(&shown(2_001)), None), 0);
        assert_eq!(found(&cache, Some(&shown(0)), Some("b")), 0);
        assert_eq!(found(&none, Some(&shown(0)), None), 0);
        assert_eq!(
            (found(&none, Some(&SourceVisibility::Everything), None), found(&none, None, None)),
            (2, 2)
        );
    }

    #[test]
    fn a_page_of_several_namespaces_goes_no_further_than_the_one_that_was_cut_off_first() {
        let mut objects = vec![current("a", &created(1_000)), current("b", &created(1_000))];
        (objects[0].seq, objects[1].seq) = (9, 4);
        let shown = SourceVisibility::Namespaces(BTreeMap::from([("a".to_owned(), 0), ("b".to_owned(), 0)]));
        let floor = |order: &str| {
            let order = Some(ObjectOrder::parse(order).unwrap());
            let selection = ObjectSelection { order, limit: 1, ..ObjectSelection::default() };
            select(&TwoObjectCache(objects.clone()), "jobs", &selection, Some(&shown)).unwrap().floor.unwrap()
        };
        assert_eq!(
            (floor("changed"), floor("-changed")),
            (OrderPosition::at_seq(9), OrderPosition::at_seq(4))
        );
    }

    #[tokio::test]
    async fn namespaces_are_those_of_all_pages_and_no_more_than_asked_for() {
        let names = ["a", "a", "b", "a", "c"];
        let cache = TwoObjectCache(names.iter().map(|name| current(name, "{}")).collect());
        let found =
            async |most| namespaces(&cache, "jobs", most).await.unwrap().into_iter().collect::<Vec<_>>();
        assert_eq!(found(10).await, ["a", "b", "c"]);
        assert_eq!(found(2).await, ["a", "b"]);
    }
}
