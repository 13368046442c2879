//! What is there, for somebody who may see a part of it.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

use kubewitness_core::Seq;
use kubewitness_core::document::unpack;
use kubewitness_core::ports::{Current, Lister, SelectError, Selected, Selection, Shown, created_ms};
use kubewitness_core::views::Counts;

/// Objects that are looked at before others have a turn.
const PAGE: usize = 1024;

/// Objects whose age is remembered: a uid and a number each. When there are more, their documents are read anew.
const AGES: usize = 65_536;

/// When objects were created, by uid: it never changes, and to read it takes the whole document.
#[derive(Default)]
pub struct Ages(Mutex<HashMap<String, u64>>);

impl Ages {
    /// Whether it was created in the namespace that is there now.
    fn is_of(&self, current: &Current, since_ms: u64) -> bool {
        self.created_ms(current).is_some_and(|created_ms| created_ms >= since_ms)
    }

    fn created_ms(&self, current: &Current) -> Option<u64> {
        let uid = &current.object.uid;
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(uid).copied();
        if known.is_some() {
            return known;
        }
        let created = created_ms(&unpack(&current.packed).ok()?)?;
        let mut ages = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if ages.len() >= AGES {
            ages.clear();
        }
        ages.insert(uid.clone(), created);
        Some(created)
    }
}

/// Objects, and how far the search for them went.
#[derive(Default)]
pub struct Found {
    pub objects: Vec<Current>,
    /// Objects whose last change has a lower position may have been left out; 0 where none was.
    pub floor: Seq,
}

impl Found {
    fn lower(&mut self, selected: &Selected, limit: usize) {
        let last = selected.objects.last().filter(|_| selected.objects.len() >= limit).map(|last| last.seq);
        self.floor = self.floor.max(selected.looked.or(last).unwrap_or_default());
    }
}

/// As the selection says, of what is shown.
pub fn select(
    ages: &Ages,
    listers: &dyn Lister,
    source: &str,
    selection: &Selection,
    shown: Option<&Shown>,
) -> Result<Found, SelectError> {
    let mut found = Found::default();
    let Some(Shown::Namespaces(namespaces)) = shown else {
        let selected = listers.select(source, selection)?;
        found.lower(&selected, selection.limit);
        found.objects = selected.objects;
        return Ok(found);
    };
    let is_asked = |name: &&String| selection.namespace.as_ref().is_none_or(|asked| asked == *name);
    for name in namespaces.keys().filter(is_asked) {
        let selection = Selection { namespace: Some(name.clone()), ..selection.clone() };
        let selected = listers.select(source, &selection)?;
        found.lower(&selected, selection.limit);
        let of_now = selected.objects.into_iter().filter(|current| ages.is_of(current, namespaces[name]));
        found.objects.extend(of_now);
    }
    Ok(found)
}

/// Counts what is shown.
pub fn tally(
    ages: &Ages,
    listers: &dyn Lister,
    source: &str,
    selection: &Selection,
    shown: Option<&Shown>,
    counts: &mut Counts,
) -> Result<(), SelectError> {
    let Some(Shown::Namespaces(_)) = shown else { return listers.tally(source, selection, counts) };
    let found = select(ages, listers, source, selection, shown)?;
    counts.more |= found.floor > 0;
    for current in found.objects {
        *counts.phases.entry(current.status.phase.clone()).or_default() += 1;
        counts.namespaces.insert(current.object.namespace.clone());
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use async_trait::async_trait;
    use kubewitness_core::document::pack;
    use kubewitness_core::{ObjectRef, Status, Version, calendar};

    use super::*;

    /// Gives two objects a page.
    struct Cache(Vec<Current>);

    #[async_trait]
    impl Lister for Cache {
        fn get(&self, _: &str, _: &str, _: &str) -> Result<Option<Current>, SelectError> {
            Ok(None)
        }

        fn select(&self, _: &str, selection: &Selection) -> Result<Selected, SelectError> {
            let from = selection.after.unwrap_or_default() as usize;
            let is_in = |current: &&Current| {
                selection.namespace.as_ref().is_none_or(|name| *name == current.object.namespace)
            };
            let page = self.0.iter().skip(from).take(2);
            let next = (from + 2 < self.0.len()).then_some(from as u32 + 2);
            Ok(Selected { objects: page.filter(is_in).cloned().collect(), next, looked: None })
        }

        fn tally(&self, _: &str, _: &Selection, counts: &mut Counts) -> Result<(), SelectError> {
            counts.phases.insert("all".into(), self.0.len() as u64);
            Ok(())
        }

        fn count(&self, _: &str) -> usize {
            self.0.len()
        }

        async fn shows(&self, _: &str, _: Seq) {}
    }

    fn current(namespace: &str, document: &str) -> Current {
        Current {
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
            packed: pack(document.as_bytes()),
        }
    }

    fn created(ms: u64) -> String {
        format!(r#"{{"metadata":{{"creationTimestamp":"{}"}}}}"#, calendar::rfc3339(ms))
    }

    #[test]
    fn no_more_ages_are_remembered_than_there_is_room_for_and_one_is_read_once() {
        let ages = Ages::default();
        let mut object = current("a", &created(1_000));
        assert!(ages.is_of(&object, 1_000) && !ages.is_of(&object, 1_001));
        object.packed = pack(b"{}");
        assert!(ages.is_of(&object, 1_000), "its document is not read again");
        let others = (0..AGES as u64 - 1).map(|number| (number.to_string(), number));
        ages.0.lock().unwrap().extend(others);
        assert!(ages.is_of(&current("a", &created(2_000)), 2_000));
        assert_eq!(ages.0.lock().unwrap().len(), 1);
    }

    #[test]
    fn an_object_that_is_older_than_its_namespace_or_has_no_age_is_of_another_one() {
        let cache = Cache(vec![current("a", &created(1_000)), current("a", &created(999))]);
        let none = Cache(vec![current("a", "{}"), current("b", &created(5_000))]);
        let shown = |since| Shown::Namespaces(BTreeMap::from([("a".to_owned(), since)]));
        let found = |cache: &Cache, shown: Option<&Shown>, asked: Option<&str>| {
            let namespace = asked.map(Into::into);
            let selection = Selection { namespace, limit: usize::MAX, ..Selection::default() };
            select(&Ages::default(), cache, "jobs", &selection, shown).unwrap().objects.len()
        };
        assert_eq!(found(&cache, Some(&shown(999)), None), 2);
        assert_eq!(found(&cache, Some(&shown(1_000)), None), 1);
        assert_eq!(found(&cache, Some(&shown(1_001)), None), 0);
        assert_eq!(found(&cache, Some(&shown(0)), Some("b")), 0);
        assert_eq!(found(&none, Some(&shown(0)), None), 0);
        assert_eq!((found(&none, Some(&Shown::Everything), None), found(&none, None, None)), (2, 2));
    }

    #[tokio::test]
    async fn namespaces_are_those_of_all_pages_and_no_more_than_asked_for() {
        let names = ["a", "a", "b", "a", "c"];
        let cache = Cache(names.iter().map(|name| current(name, "{}")).collect());
        let found =
            async |most| namespaces(&cache, "jobs", most).await.unwrap().into_iter().collect::<Vec<_>>();
        assert_eq!(found(10).await, ["a", "b", "c"]);
        assert_eq!(found(2).await, ["a", "b"]);
    }
}
