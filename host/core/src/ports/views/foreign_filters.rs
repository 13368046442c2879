//! Filters that objects of a kind do not have. An empty list would look like an answer, so such a query is
//! refused with the one to ask instead. The portal refuses it, for the API and its pages, because it knows what
//! is watched; the command line prints its answer.

use thiserror::Error;

use super::objects::ObjectQuery;
use crate::kinds;
use crate::story::outcomes;

/// A query for objects of a kind by a filter that none of them has.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{message}")]
pub struct ForeignFilter {
    /// Why nothing can match.
    pub message: String,
    /// Another query, as parameters of a list.
    pub parameters: String,
    /// The same on the command line.
    pub command: String,
}

/// Kinds that are in no namespace, with their API groups.
const CLUSTER_SCOPED: [(&str, &[&str]); 7] = [
    ("", &["Node", "Namespace", "PersistentVolume"]),
    ("apiextensions.k8s.io", &["CustomResourceDefinition"]),
    ("kueue.x-k8s.io", &["ClusterQueue", "ResourceFlavor", "AdmissionCheck"]),
    ("node.k8s.io", &["RuntimeClass"]),
    ("rbac.authorization.k8s.io", &["ClusterRole", "ClusterRoleBinding"]),
    ("scheduling.k8s.io", &["PriorityClass"]),
    ("storage.k8s.io", &["StorageClass", "VolumeAttachment"]),
];

impl ObjectQuery {
    /// Refuses a filter that no object of the requested kind has.
    pub fn check_filters(&self) -> Result<(), ForeignFilter> {
        let Some(kind) = self.kind.as_deref().filter(|kind| !kind.eq_ignore_ascii_case("all")) else {
            return Ok(());
        };
        let is_of = |group: &str, known: &str| kinds::is_kind(group, known, kind);
        let is_event = is_of("", "Event") || is_of("events.k8s.io", "Event");
        let phase = self.was.as_deref().or(self.phase.as_deref());
        if let Some(cause) = self.cause.filter(|_| !outcomes::may_have_causes(kind)) {
            let cause = cause.as_str();
            let why = match is_of("", "Pod") {
                true => "the cause of a failed pod is that of its job",
                false => "it is of objects whose work comes to an end, such as jobs",
            };
            return Err(ForeignFilter {
                message: format!("Objects of the kind `{kind}` have no cause: {why}."),
                parameters: format!("kind=jobs&cause={cause}"),
                command: format!("kubewitness get jobs --cause {cause}"),
            });
        }
        if let Some(phase) = phase.filter(|_| is_event) {
            let (name, option) = if self.was.is_some() { ("was", "--was") } else { ("phase", "--phase") };
            return Err(ForeignFilter {
                message: "Events have no phase: they report about objects, which have one.".into(),
                parameters: format!("kind=jobs&{name}={phase}"),
                command: format!("kubewitness get jobs {option} {phase}"),
            });
        }
        let is_in_cluster =
            CLUSTER_SCOPED.iter().any(|(group, known)| known.iter().any(|known| is_of(group, known)));
        if self.namespace.is_some() && is_in_cluster {
            return Err(ForeignFilter {
                message: format!("Objects of the kind `{kind}` are in no namespace."),
                parameters: format!("kind={kind}"),
                command: format!("kubewitness get {kind}"),
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views::CauseKind;

    fn query(kind: &str) -> ObjectQuery {
        ObjectQuery { kind: Some(kind.into()), ..ObjectQuery::default() }
    }

    #[test]
    fn a_filter_that_a_kind_lacks_is_refused_with_what_to_ask_instead() {
        let cause = Some(CauseKind::OutOfMemory);
        for kind in ["pods", "po", "Event", "deployments", "nodes", "workloads", "secrets"] {
            let refused = ObjectQuery { cause, ..query(kind) }.check_filters().unwrap_err();
            assert!(refused.message.contains(&format!("`{kind}` have no cause")), "{refused}");
            assert_eq!(refused.command, "kubewitness get jobs --cause out-of-memory");
            assert_eq!(refused.parameters, "kind=jobs&cause=out-of-memory");
        }
        for kind in ["events", "ev", "events.events.k8s.io"] {
            let phase = Some("Failed".to_owned());
            let refused = ObjectQuery { phase: phase.clone(), ..query(kind) }.check_filters().unwrap_err();
            assert_eq!(refused.command, "kubewitness get jobs --phase Failed", "{kind}");
            let refused = ObjectQuery { was: phase, ..query(kind) }.check_filters().unwrap_err();
            assert_eq!(refused.parameters, "kind=jobs&was=Failed", "{kind}");
        }
        for kind in ["nodes", "ns", "clusterqueues"] {
            let namespace = Some("research".to_owned());
            let refused = ObjectQuery { namespace, ..query(kind) }.check_filters().unwrap_err();
            assert_eq!(refused.command, format!("kubewitness get {kind}"));
        }
    }

    #[test]
    fn a_filter_that_some_objects_have_is_not_refused() {
        let all = |kind: &str| ObjectQuery {
            cause: Some(CauseKind::Evicted),
            phase: Some("Failed".into()),
            namespace: Some("research".into()),
            ..query(kind)
        };
        for kind in ["jobs", "Job", "rayjobs", "all", "trainings.x.example", "vcjob"] {
            assert_eq!(all(kind).check_filters(), Ok(()), "{kind}");
        }
        assert_eq!(ObjectQuery { kind: None, ..all("") }.check_filters(), Ok(()));
        assert_eq!(ObjectQuery { cause: None, ..all("pods") }.check_filters(), Ok(()), "pods have phases");
        let namespace = Some("research".to_owned());
        assert_eq!(ObjectQuery { namespace, ..query("events") }.check_filters(), Ok(()));
    }
}
