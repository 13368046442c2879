//! The lister: reads the caches of all sources.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use async_trait::async_trait;
use kubewitness_core::Seq;
use kubewitness_core::ports::{CurrentObject, ObjectLister, ObjectSelection, SelectError, SelectedObjects};
use kubewitness_core::state::ObjectRef;
use kubewitness_core::views::ObjectCounts;

use crate::cache::{BriefObject, SelectPlan, SelectSearch};
use crate::source::handle::SourceHandle;

/// The most levels of owners that are followed. Real chains have three.
const OWNER_DEPTH: usize = 8;

/// Reads over the caches of all sources.
#[derive(Clone, Default)]
pub struct CacheListers {
    sources: Arc<RwLock<Vec<SourceHandle>>>,
}

impl CacheListers {
    /// Adds a source. It replaces a source of the same name.
    pub fn add(&self, handle: SourceHandle) {
        let mut sources = self.sources.write().unwrap_or_else(PoisonError::into_inner);
        sources.retain(|held| held.name() != handle.name());
        sources.push(handle);
    }

    pub fn remove(&self, name: &str) {
        self.sources.write().unwrap_or_else(PoisonError::into_inner).retain(|held| held.name() != name);
    }

    pub fn all_handles(&self) -> Vec<SourceHandle> {
        self.read().clone()
    }

    /// The object with this uid, whichever source has it.
    pub(crate) fn find_brief(&self, uid: &str) -> Option<BriefObject> {
        self.read().iter().find_map(|handle| handle.shared.read().brief_by_uid(uid))
    }

    /// Follows controlling owners up to the outermost known one.
    ///
    /// The creator of an object may name any uid as its owner. Kubernetes allows no owner in another
    /// namespace, so such a reference is ignored.
    pub(crate) fn outermost_owner(&self, direct: ObjectRef) -> Arc<ObjectRef> {
        let namespace = direct.namespace.clone();
        let may_own = |owner: &ObjectRef| owner.namespace.is_empty() || owner.namespace == namespace;
        let mut owner = Arc::new(direct);
        for _ in 0..OWNER_DEPTH {
            let Some(held) = self.find_brief(&owner.uid).filter(|held| may_own(&held.object)) else { break };
            // The cached reference is complete.
            owner = held.object;
            match held.owner {
                Some(above) if above.uid != owner.uid && may_own(&above) => owner = above,
                _ => break,
            }
        }
        owner
    }

    /// Whether an object of another namespace has this uid. Such an object owns nothing here.
    pub(crate) fn is_elsewhere(&self, owner: &ObjectRef) -> bool {
        let held = self.find_brief(&owner.uid);
        held.is_some_and(|held| !held.object.namespace.is_empty() && held.object.namespace != owner.namespace)
    }

    fn read(&self) -> RwLockReadGuard<'_, Vec<SourceHandle>> {
        self.sources.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn find_source(&self, name: &str) -> Option<SourceHandle> {
        self.read().iter().find(|handle| handle.name() == name).cloned()
    }

    /// The handle of a source whose cache can be read.
    fn loaded_source(&self, name: &str) -> Result<SourceHandle, SelectError> {
        let Some(handle) = self.find_source(name) else {
            let known = self.read().iter().map(|handle| handle.name().to_owned()).collect();
            return Err(SelectError::Source { source_name: name.into(), known });
        };
        if handle.shared.shown_through().is_none() {
            return Err(SelectError::Loading(name.into()));
        }
        Ok(handle)
    }
}

fn plan_search(handle: &SourceHandle, search: &SelectSearch<'_>) -> SelectPlan {
    let plan = handle.shared.read().plan_search(search);
    search.narrow_plan(plan, |search, from, passing| handle.shared.read().add_passing(search, from, passing))
}

#[async_trait]
impl ObjectLister for CacheListers {
    fn get(&self, source: &str, namespace: &str, name: &str) -> Result<Option<CurrentObject>, SelectError> {
        Ok(self.loaded_source(source)?.shared.read().by_name(namespace, name))
    }

    /// Selects objects. It holds the lock for one page at a time. An object that changes meanwhile is found
    /// in its old or its new form. An object that exists throughout is found once. A short page of an order
    /// may lack an object that changes meanwhile, because its new position may be before the page.
    fn select_objects(
        &self,
        source: &str,
        selection: &ObjectSelection,
    ) -> Result<SelectedObjects, SelectError> {
        let handle = self.loaded_source(source)?;
        let indexes = handle.shared.read().index_set();
        let mut search = SelectSearch::new(selection, &indexes)?;
        let plan = plan_search(&handle, &search);
        if let SelectPlan::Ordered = plan {
            let mut beyond = selection.beyond.clone();
            loop {
                let page = handle.shared.read().ordered_page(&search, beyond.as_ref());
                let next = page.beyond.clone();
                let is_enough = search.take_ordered(page);
                match next {
                    Some(_) if !is_enough => beyond = next,
                    _ => return Ok(search.into_selected()),
                }
            }
        }
        let mut from = selection.after.unwrap_or_default();
        loop {
            let page = handle.shared.read().page_of_records(&search, &plan, from);
            let next = page.next;
            let enough = search.take(page);
            match next {
                Some(next) if !enough => from = next,
                _ => break,
            }
        }
        Ok(search.into_selected())
    }

    fn tally_objects(
        &self,
        source: &str,
        selection: &ObjectSelection,
        counts: &mut ObjectCounts,
    ) -> Result<(), SelectError> {
        let selection = ObjectSelection { order: None, after: None, ..selection.clone() };
        let handle = self.loaded_source(source)?;
        if handle.shared.read().tally_by_index(&selection, counts) {
            return Ok(());
        }
        let indexes = handle.shared.read().index_set();
        let mut search = SelectSearch::new(&selection, &indexes)?;
        let plan = plan_search(&handle, &search);
        let mut from = Some(0);
        while let Some(slot) = from {
            let page = handle.shared.read().page_of_records(&search, &plan, slot);
            from = page.next;
            if search.tally_page(page, counts) && from.is_some() {
                counts.more = true;
                break;
            }
        }
        Ok(())
    }

    fn count(&self, source: &str) -> usize {
        self.find_source(source).map(|handle| handle.shared.read().len()).unwrap_or_default()
    }

    async fn await_shown(&self, source: &str, seq: Seq) {
        if let Some(handle) = self.find_source(source) {
            handle.shared.await_shown(seq).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::atomic::{AtomicBool, Ordering};

    use crate::source::handle::SharedState;
    use kubewitness_core::Version;
    use kubewitness_core::document::{pack_document, unpack_document};
    use kubewitness_core::order::ObjectOrder;
    use kubewitness_core::selector::LabelSelector;
    use kubewitness_core::state::Status;

    fn object(kind: &str, uid: &str) -> ObjectRef {
        ObjectRef { kind: kind.into(), name: uid.into(), uid: uid.into(), ..ObjectRef::default() }
    }

    fn source(name: &str, held: &[(&str, &str, Option<&str>)]) -> SourceHandle {
        let shared = Arc::new(SharedState::new(name, &[]));
        for (kind, uid, owner) in held {
            let current = CurrentObject {
                object: Arc::new(object(kind, uid)),
                owner: owner.map(|owner| Arc::new(object("", owner))),
                resource_version: Version::new("1"),
                status: Arc::default(),
                seq: 1,
                observed_ms: 0,
                packed: Arc::from(&b"\0{}"[..]),
            };
            shared.write().put_object(&current, None);
        }
        shared.set_shown(1);
        SourceHandle { shared }
    }

    #[test]
    fn the_outermost_owner_is_found_across_sources() {
        let listers = CacheListers::default();
        listers.add(source("jobs", &[("Job", "j1", Some("s1"))]));
        listers.add(source("jobsets", &[("JobSet", "s1", None)]));
        assert_eq!(listers.outermost_owner(object("Job", "j1")).kind, "JobSet");
        assert_eq!(listers.outermost_owner(object("Job", "unknown")).uid, "unknown");
    }

    #[test]
    fn owners_in_a_circle_end() {
        let listers = CacheListers::default();
        listers
            .add(source("a", &[("A", "a1", Some("b1")), ("B", "b1", Some("a1")), ("C", "c1", Some("c1"))]));
        assert!(["a1", "b1"].contains(&listers.outermost_owner(object("A", "a1")).uid.as_str()));
        assert_eq!(listers.outermost_owner(object("C", "c1")).uid, "c1");
    }

    #[test]
    fn a_source_added_again_takes_the_place_of_the_old_one() {
        let listers = CacheListers::default();
        listers.add(source("jobs", &[("Job", "j1", None)]));
        listers.add(source("jobs", &[]));
        assert_eq!((listers.all_handles().len(), listers.count("jobs")), (1, 0));
        listers.remove("jobs");
        assert!(listers.all_handles().is_empty());
    }

    const OBJECTS: usize = 700;

    /// One object at one version. Every part of it names the version.
    fn version(name: usize, version: u64) -> CurrentObject {
        let document = format!(
            r#"{{"metadata":{{"labels":{{"all":"{}","parity":"{}"}}}},"spec":{{"version":"{version}"}}}}"#,
            if name < OBJECTS { "yes" } else { "no" },
            version % 2
        );
        let namespace = format!("n{}", name % 3);
        let uid = format!("{name:032}");
        CurrentObject {
            object: Arc::new(ObjectRef { namespace, name: name.to_string(), uid, ..ObjectRef::default() }),
            owner: None,
            resource_version: Version::new(&version.to_string()),
            status: Arc::new(Status { phase: version.to_string(), ..Status::default() }),
            seq: version,
            observed_ms: version,
            packed: pack_document(document.as_bytes()),
        }
    }

    fn assert_whole(current: &CurrentObject) {
        let document = unpack_document(&current.packed).unwrap();
        let document: serde_json::Value = serde_json::from_slice(&document).unwrap();
        let version = current.seq.to_string();
        assert_eq!(document["spec"]["version"], version);
        assert_eq!(current.resource_version.as_str(), version);
        assert_eq!((&current.status.phase, current.observed_ms), (&version, current.seq));
    }

    #[test]
    fn many_readers_see_whole_objects_each_once_while_one_writer_changes_them_all() {
        const ROUNDS: u64 = 12;
        let listers = CacheListers::default();
        let shared = Arc::new(SharedState::new("jobs", &[]));
        listers.add(SourceHandle { shared: Arc::clone(&shared) });
        (0..OBJECTS).for_each(|name| shared.write().put_object(&version(name, 1), None));
        shared.set_shown(1);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|threads| {
            for reader in 0..3 {
                let (listers, is_over) = (&listers, &is_over);
                threads.spawn(move || {
                    let mut rounds = 0;
                    while !is_over.load(Ordering::Relaxed) || rounds == 0 {
                        let selection = ObjectSelection {
                            labels: LabelSelector::parse("all=yes").unwrap(),
                            order: (reader == 1).then(ObjectOrder::default),
                            limit: usize::MAX,
                            ..ObjectSelection::default()
                        };
                        let found = listers.select_objects("jobs", &selection).unwrap().objects;
                        let names: HashSet<_> = found.iter().map(|current| &current.object.name).collect();
                        assert_eq!((names.len(), found.len()), (OBJECTS, OBJECTS));
                        found.iter().for_each(assert_whole);
                        assert_whole(&listers.get("jobs", "n0", "0").unwrap().unwrap());
                        rounds += 1;
                    }
                });
            }
            for round in 2..=ROUNDS {
                for name in 0..OBJECTS {
                    shared.write().put_object(&version(name, round), None);
                    // Others come and go between them, in slots of their own.
                    shared.write().put_object(&version(OBJECTS + name, round), None);
                    shared.write().remove(&version(OBJECTS + name, round).object.uid);
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
        let odd = ObjectSelection {
            index: Some(("label".into(), "parity=1".into())),
            limit: usize::MAX,
            ..ObjectSelection::default()
        };
        assert!(listers.select_objects("jobs", &odd).unwrap().objects.is_empty(), "{ROUNDS} is even");
    }

    #[test]
    fn a_count_reads_no_more_documents_than_its_bound_and_says_so() {
        let listers = CacheListers::default();
        let shared = Arc::new(SharedState::new("jobs", &[]));
        listers.add(SourceHandle { shared: Arc::clone(&shared) });
        (0..5_000).for_each(|name| shared.write().put_object(&version(name, 1), None));
        shared.set_shown(1);
        let count = |labels: &str| {
            let labels = LabelSelector::parse(labels).unwrap();
            let (selection, mut counts) =
                (ObjectSelection { labels, ..ObjectSelection::default() }, ObjectCounts::default());
            listers.tally_objects("jobs", &selection, &mut counts).unwrap();
            (counts.phases.values().sum::<u64>(), counts.more)
        };
        assert_eq!(count(""), (5_000, false), "without a look at any document");
        assert_eq!(count("all=yes"), (OBJECTS as u64, false), "an index finds few");
        let (found, is_cut) = count("parity");
        assert!((4_000..5_000).contains(&found) && is_cut, "{found}");
    }

    #[tokio::test]
    async fn what_is_not_loaded_yet_is_told_apart_from_what_is_not_there_and_can_be_waited_for() {
        let listers = CacheListers::default();
        let shared = Arc::new(SharedState::new("jobs", &[]));
        listers.add(SourceHandle { shared: Arc::clone(&shared) });
        let loading = || SelectError::Loading("jobs".into());
        assert_eq!(listers.get("jobs", "ml", "a").unwrap_err(), loading());
        assert_eq!(listers.select_objects("jobs", &ObjectSelection::default()).unwrap_err(), loading());
        let soon = std::time::Duration::from_millis(20);
        assert!(tokio::time::timeout(soon, listers.await_shown("jobs", 0)).await.is_err());
        shared.set_shown(7);
        assert_eq!(listers.get("jobs", "ml", "a").unwrap().map(|current| current.seq), None);
        listers.await_shown("jobs", 7).await;
        assert!(tokio::time::timeout(soon, listers.await_shown("jobs", 8)).await.is_err());
        shared.set_shown(9);
        listers.await_shown("jobs", 8).await;
        listers.await_shown("pods", 99).await;
    }

    #[test]
    fn a_source_that_does_not_run_is_told_with_those_that_do() {
        let listers = CacheListers::default();
        listers.add(source("jobs", &[]));
        let error = listers.select_objects("pods", &ObjectSelection::default()).unwrap_err().to_string();
        assert_eq!(error, "no source `pods` runs here; there is jobs");
    }
}
