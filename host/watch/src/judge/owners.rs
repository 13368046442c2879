//! Finds the owners of an object, from its controlling owner up to the outermost known one. So objects that
//! belong together are found together. An Event belongs to the object that it is about.

use std::sync::Arc;

use kubewitness_core::events;
use kubewitness_core::project::{self, ObjectEnvelope, OwnerRef};
use kubewitness_core::state::ObjectRef;

use crate::cache::known::KnownObjects;
use crate::connect::resource::group_version;
use crate::source::listers::CacheListers;

/// The owners of an object.
#[derive(Default)]
pub(crate) struct ObjectOwners {
    pub outermost: Option<Arc<ObjectRef>>,
    /// The direct owner, if it is not the outermost one.
    pub controller: Option<Arc<ObjectRef>>,
}

/// The outermost owner that the caches know now. An owner that becomes known later appears with the next
/// state. An owner that is not watched is its own outermost owner.
pub(crate) fn object_owners(
    listers: &CacheListers,
    envelope: &ObjectEnvelope<'_>,
    known: Option<&KnownObjects>,
) -> ObjectOwners {
    let Some(controller) = controlling_owner(envelope) else {
        return ObjectOwners { outermost: known.and_then(|known| known.owner.clone()), controller: None };
    };
    let direct = owner_reference(envelope, controller);
    // The creator of the object chose this reference. It would put the object into the story of somebody
    // else's object.
    if listers.is_elsewhere(&direct) {
        return ObjectOwners::default();
    }
    let found = listers.outermost_owner(direct.clone());
    let is_direct = found.uid == controller.uid;
    let outlived = known.filter(|_| is_direct).and_then(|known| outlived_owner(listers, controller, known));
    let outermost = outlived.unwrap_or(found);
    let controller = (outermost.uid != controller.uid).then(|| Arc::new(direct));
    ObjectOwners { outermost: Some(outermost), controller }
}

/// The same for an Event in this namespace. An event about an object that is no longer known keeps its former
/// owner.
pub(crate) fn of_event(
    listers: &CacheListers,
    namespace: &str,
    document: &[u8],
    known: Option<&KnownObjects>,
) -> ObjectOwners {
    let before = known.and_then(|known| known.owner.clone());
    let Some(about) = events::event_subject(document) else {
        return ObjectOwners { outermost: before, controller: None };
    };
    // The API server refuses such an Event. Its writer would learn who owns the object.
    if !about.namespace.is_empty() && about.namespace != namespace {
        return ObjectOwners::default();
    }
    let is_known = listers.find_brief(&about.uid).is_some();
    let outermost = match before.filter(|_| !is_known) {
        Some(before) => before,
        None => listers.outermost_owner(about.clone()),
    };
    let controller = (outermost.uid != about.uid).then(|| Arc::new(about));
    ObjectOwners { outermost: Some(outermost), controller }
}

/// The former owner, if the direct owner is no longer known. An owner is deleted before its objects, and at
/// startup its source may not be loaded yet. So the last states of a pod keep the owner of its first state.
fn outlived_owner(
    listers: &CacheListers,
    controller: &OwnerRef<'_>,
    known: &KnownObjects,
) -> Option<Arc<ObjectRef>> {
    let before = known.owner.clone().filter(|before| before.uid != controller.uid)?;
    if listers.find_brief(&controller.uid).is_some() {
        return None;
    }
    // Another owner may have adopted the object meanwhile.
    let document = known.document_hint()?;
    let envelope = project::read_envelope(&document).ok()?;
    let same = self::controlling_owner(&envelope).is_some_and(|held| held.uid == controller.uid);
    same.then_some(before)
}

/// The direct owner, if the outermost one is known and different.
pub(crate) fn direct_owner(
    envelope: &ObjectEnvelope<'_>,
    outermost: Option<&Arc<ObjectRef>>,
) -> Option<Arc<ObjectRef>> {
    let controller = controlling_owner(envelope)?;
    let is_another = outermost.is_some_and(|outermost| outermost.uid != controller.uid);
    is_another.then(|| Arc::new(owner_reference(envelope, controller)))
}

fn owner_reference(envelope: &ObjectEnvelope<'_>, owner: &OwnerRef<'_>) -> ObjectRef {
    let (group, version) = group_version(&owner.api_version);
    ObjectRef {
        group: group.to_string(),
        version: version.to_string(),
        kind: owner.kind.to_string(),
        namespace: envelope.namespace.to_string(),
        name: owner.name.to_string(),
        uid: owner.uid.to_string(),
    }
}

fn controlling_owner<'a, 'b>(envelope: &'b ObjectEnvelope<'a>) -> Option<&'b OwnerRef<'a>> {
    envelope.owners.iter().find(|owner| owner.controller)
}

#[cfg(test)]
mod tests {
    use kubewitness_core::Version;
    use kubewitness_core::document::pack_document;
    use kubewitness_core::ports::CurrentObject;
    use serde_json::json;

    use super::*;
    use crate::source::handle::{SharedState, SourceHandle};

    /// `KIND/NAME`; the name is also the uid.
    fn document(object: &str, owner: &str) -> String {
        let split = |text: &str| text.split_once('/').map(|(a, b)| (a.to_string(), b.to_string()));
        let (kind, name) = split(object).unwrap();
        let owners = split(owner).map(|(kind, name)| {
            // An owner without `controller: true` does not count.
            json!([{"apiVersion": "v1", "kind": "Friend", "name": "f", "uid": "f"},
                {"apiVersion": "group.dev/v1", "kind": kind, "name": name, "uid": name, "controller": true}])
        });
        let metadata = json!({"name": name, "namespace": "team", "uid": name, "resourceVersion": "1", "ownerReferences": owners});
        json!({"apiVersion": "group.dev/v1", "kind": kind, "metadata": metadata}).to_string()
    }

    fn outermost_owner(listers: &CacheListers, document: &str, known: Option<&KnownObjects>) -> String {
        let envelope = project::read_envelope(document.as_bytes()).unwrap();
        object_owners(listers, &envelope, known)
            .outermost
            .map_or_else(String::new, |owner| format!("{}/{}", owner.kind, owner.name))
    }

    fn current(listers: &CacheListers, object: &str, owner_text: &str) -> CurrentObject {
        let text = document(object, owner_text);
        let envelope = project::read_envelope(text.as_bytes()).unwrap();
        let (kind, name) = object.split_once('/').unwrap();
        CurrentObject {
            object: Arc::new(ObjectRef {
                kind: kind.into(),
                name: name.into(),
                uid: name.into(),
                ..ObjectRef::default()
            }),
            owner: object_owners(listers, &envelope, None).outermost,
            resource_version: Version::new("1"),
            status: Arc::default(),
            seq: 1,
            observed_ms: 0,
            packed: pack_document(text.as_bytes()),
        }
    }

    /// A source with one object.
    fn watch(listers: &CacheListers, object: &str, owner: &str) {
        let current = current(listers, object, owner);
        let shared = Arc::new(SharedState::new(object, &[]));
        shared.write().put_object(&current, None);
        listers.add(SourceHandle { shared });
    }

    /// The watched objects, outermost first, and the owner of the last one.
    fn chain(watched: &[(&str, &str)], object: &str, owner: &str) -> String {
        let listers = CacheListers::default();
        watched.iter().for_each(|(object, owner)| watch(&listers, object, owner));
        outermost_owner(&listers, &document(object, owner), None)
    }

    #[test]
    fn an_object_belongs_to_the_outermost_owner_that_is_known() {
        let jobset = [("TrainJob/t", ""), ("JobSet/s", "TrainJob/t"), ("Job/j", "JobSet/s")];
        for (watched, object, owner, outermost) in [
            (&jobset[..], "Pod/p", "Job/j", "TrainJob/t"),
            (&jobset[1..], "Pod/p", "Job/j", "TrainJob/t"),
            (&jobset[2..], "Pod/p", "Job/j", "JobSet/s"),
            (&jobset[..2], "Pod/p", "Job/j", "Job/j"),
            (&[], "Pod/p", "Job/j", "Job/j"),
            (&[], "Job/j", "", ""),
            // Kueue's Workload is owned by its Job, so it belongs to the Job's owner.
            (&jobset[..], "Workload/w", "Job/j", "TrainJob/t"),
            (&[("Job/j", "")], "Workload/w", "Job/j", "Job/j"),
            (&[("RayJob/r", ""), ("RayCluster/c", "RayJob/r")], "Pod/p", "RayCluster/c", "RayJob/r"),
            (&[("Workflow/w", "")], "Pod/p", "Workflow/w", "Workflow/w"),
            (&[("Workflow/w", "CronWorkflow/cw")], "Pod/p", "Workflow/w", "CronWorkflow/cw"),
            // In Volcano a Job owns its PodGroup, in Spark a driver owns its executor.
            (&[("Job/v", "")], "PodGroup/g", "Job/v", "Job/v"),
            (
                &[("SparkApplication/a", ""), ("Pod/driver", "SparkApplication/a")],
                "Pod/x",
                "Pod/driver",
                "SparkApplication/a",
            ),
            (&[("CronJob/c", ""), ("Job/j", "CronJob/c")], "Pod/p", "Job/j", "CronJob/c"),
        ] {
            assert_eq!(chain(watched, object, owner), outermost, "{object} of {owner} with {watched:?}");
        }
    }

    #[test]
    fn nothing_is_told_of_an_owner_in_another_namespace() {
        let listers = CacheListers::default();
        let victim = |name: &str, namespace: &str| CurrentObject {
            object: Arc::new(ObjectRef {
                kind: "Job".into(),
                namespace: namespace.into(),
                name: format!("of-{namespace}"),
                uid: name.into(),
                ..ObjectRef::default()
            }),
            ..current(&CacheListers::default(), &format!("Job/{name}"), "")
        };
        for (source, namespace) in [("theirs", "other-team"), ("ours", "team"), ("cluster", "")] {
            let shared = Arc::new(SharedState::new(source, &[]));
            shared.write().put_object(&victim(source, namespace), None);
            listers.add(SourceHandle { shared });
        }
        let pod = |owner: &str| document("Pod/p", &format!("Pod/{owner}"));
        assert_eq!(outermost_owner(&listers, &pod("theirs"), None), "");
        let known = KnownObjects::from_cached(current(&CacheListers::default(), "Pod/p", "Job/theirs"));
        assert_eq!(
            outermost_owner(&listers, &pod("theirs"), Some(&known)),
            "",
            "not even what it had before"
        );
        assert_eq!(outermost_owner(&listers, &pod("ours"), None), "Job/of-team");
        assert_eq!(outermost_owner(&listers, &pod("cluster"), None), "Job/of-");
        let about =
            json!({"apiVersion": "v1", "kind": "Pod", "namespace": "team", "name": "guess", "uid": "theirs"});
        let event = json!({"kind": "Event", "involvedObject": about}).to_string();
        let owners = of_event(&listers, "team", event.as_bytes(), None);
        assert_eq!(owners.outermost.map(|owner| owner.name.clone()).as_deref(), Some("guess"));
    }

    #[test]
    fn an_event_belongs_to_what_it_is_about_and_to_the_outermost_owner_of_that() {
        let listers = CacheListers::default();
        watch(&listers, "Job/j", "");
        watch(&listers, "Pod/p", "Job/j");
        let event = |name: &str| {
            let about =
                json!({"apiVersion": "v1", "kind": "Pod", "namespace": "team", "name": name, "uid": name});
            json!({"kind": "Event", "involvedObject": about}).to_string()
        };
        let owners_of_event = |event: &str, known: Option<&KnownObjects>| {
            let ObjectOwners { outermost, controller } = of_event(&listers, "team", event.as_bytes(), known);
            let name = |owner: Option<Arc<ObjectRef>>| owner.map(|owner| owner.name.clone());
            (name(outermost), name(controller))
        };
        assert_eq!(owners_of_event(&event("p"), None), (Some("j".into()), Some("p".into())));
        assert_eq!(owners_of_event(&event("j"), None), (Some("j".into()), None));
        assert_eq!(owners_of_event(&event("stranger"), None), (Some("stranger".into()), None));
        assert_eq!(owners_of_event("{}", None), (None, None));
        let elsewhere = of_event(&listers, "other", event("p").as_bytes(), None);
        assert!(elsewhere.outermost.is_none() && elsewhere.controller.is_none());
        // The pod is gone, and its event comes once more.
        let known = KnownObjects::from_cached(CurrentObject {
            owner: of_event(&listers, "team", event("p").as_bytes(), None).outermost,
            ..current(&listers, "Event/e", "")
        });
        listers.remove("Pod/p");
        assert_eq!(owners_of_event(&event("p"), Some(&known)), (Some("j".into()), Some("p".into())));
    }

    #[test]
    fn an_owner_that_becomes_known_later_is_found_by_the_next_state() {
        let listers = CacheListers::default();
        let pod = document("Pod/p", "Job/j");
        assert_eq!(outermost_owner(&listers, &pod, None), "Job/j");
        watch(&listers, "Job/j", "JobSet/s");
        let known = KnownObjects::from_cached(current(&CacheListers::default(), "Pod/p", "Job/j"));
        assert_eq!(outermost_owner(&listers, &pod, Some(&known)), "JobSet/s");
        watch(&listers, "JobSet/s", "TrainJob/t");
        assert_eq!(outermost_owner(&listers, &pod, Some(&known)), "TrainJob/t");
    }

    #[test]
    fn owners_that_are_deleted_first_leave_what_they_owned_in_its_story() {
        let listers = CacheListers::default();
        watch(&listers, "JobSet/s", "");
        watch(&listers, "Job/j", "JobSet/s");
        let known = KnownObjects::from_cached(current(&listers, "Pod/p", "Job/j"));
        listers.remove("JobSet/s");
        assert_eq!(outermost_owner(&listers, &document("Pod/p", "Job/j"), Some(&known)), "JobSet/s");
        listers.remove("Job/j");
        assert_eq!(outermost_owner(&listers, &document("Pod/p", "Job/j"), Some(&known)), "JobSet/s");
        assert_eq!(
            outermost_owner(&listers, &document("Pod/p", "Job/other"), Some(&known)),
            "Job/other",
            "adopted"
        );
        assert_eq!(outermost_owner(&listers, &document("Pod/p", ""), Some(&known)), "JobSet/s", "orphaned");
    }
}
