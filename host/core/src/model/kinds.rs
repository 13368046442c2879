//! Matches kinds as people write them: `Job`, `job`, `jobs`, `jobs.batch`, `po`. Also decides which names are
//! valid.

/// Short names as in kubectl and in the kinds' definitions. Only common ones are listed; every other kind is
/// found by its full name.
const SHORT: [(&str, &str); 37] = [
    ("cj", "CronJob"),
    ("cm", "ConfigMap"),
    ("cq", "ClusterQueue"),
    ("crd", "CustomResourceDefinition"),
    ("crds", "CustomResourceDefinition"),
    ("cwf", "CronWorkflow"),
    ("deploy", "Deployment"),
    ("ds", "DaemonSet"),
    ("ep", "Endpoints"),
    ("ev", "Event"),
    ("hpa", "HorizontalPodAutoscaler"),
    ("ing", "Ingress"),
    ("js", "JobSet"),
    ("limits", "LimitRange"),
    ("lq", "LocalQueue"),
    ("netpol", "NetworkPolicy"),
    ("no", "Node"),
    ("ns", "Namespace"),
    ("pc", "PriorityClass"),
    ("pdb", "PodDisruptionBudget"),
    ("pg", "PodGroup"),
    ("po", "Pod"),
    ("pv", "PersistentVolume"),
    ("pvc", "PersistentVolumeClaim"),
    ("quota", "ResourceQuota"),
    ("rc", "ReplicationController"),
    ("rf", "ResourceFlavor"),
    ("rs", "ReplicaSet"),
    ("sa", "ServiceAccount"),
    ("sc", "StorageClass"),
    ("sparkapp", "SparkApplication"),
    ("sts", "StatefulSet"),
    ("svc", "Service"),
    ("vcjob", "Job"),
    ("vj", "Job"),
    ("wf", "Workflow"),
    ("wl", "Workload"),
];

/// Kinds that report about other objects, and have no progress of their own.
pub fn is_event(group: &str, kind: &str) -> bool {
    kind == "Event" && matches!(group, "" | "events.k8s.io")
}

/// The status of most objects says that they run. A TrainJob of Trainer 2.0 has none before its end, and only its pods
/// tell.
pub fn says_when_it_runs(group: &str, kind: &str) -> bool {
    (group, kind) != ("trainer.kubeflow.org", "TrainJob")
}

/// Whether `wanted` means this kind. As in kubectl, `all` means every kind except Events.
pub fn is_kind(group: &str, kind: &str, wanted: &str) -> bool {
    let wanted = wanted.to_ascii_lowercase();
    if wanted == "all" {
        return !is_event(group, kind);
    }
    let (name, rest) = wanted.split_once('.').unwrap_or((&wanted, ""));
    let kind = kind.to_ascii_lowercase();
    in_group(group, rest) && (name == kind || name == plural_of_kind(&kind) || is_short(group, &kind, name))
}

/// Both `batch` and `v1.batch` name the group `batch`.
fn in_group(group: &str, wanted: &str) -> bool {
    let without_version = wanted.split_once('.').map_or("", |(_, group)| group);
    wanted.is_empty() || wanted == group || (!without_version.is_empty() && without_version == group)
}

fn is_short(group: &str, kind: &str, name: &str) -> bool {
    // Volcano's Job has its own short names; the built-in one has none.
    let of_group = !matches!(name, "vcjob" | "vj") || group == "batch.volcano.sh";
    of_group && SHORT.iter().any(|(short, of)| *short == name && of.eq_ignore_ascii_case(kind))
}

/// The usual plural of a kind in lower case. Most resources have it as their name.
pub fn plural_of_kind(kind: &str) -> String {
    let before = |end: &str| kind.strip_suffix(end);
    match before("y") {
        Some(stem) if !stem.ends_with(['a', 'e', 'i', 'o', 'u']) => format!("{stem}ies"),
        _ if ["s", "x", "ch", "sh"].iter().any(|end| kind.ends_with(end)) => format!("{kind}es"),
        _ => format!("{kind}s"),
    }
}

/// Lower-case letters, digits and dashes: usable in file names, labels and addresses.
pub fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 63
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// API groups, each with its kinds whose work comes to an end.
pub(crate) const ENDING: [(&str, &[&str]); 9] = [
    ("batch", &["Job"]),
    ("batch.volcano.sh", &["Job"]),
    ("kubeflow.org", &["PyTorchJob", "TFJob", "MPIJob", "XGBoostJob", "PaddleJob", "JAXJob", "MXJob"]),
    ("trainer.kubeflow.org", &["TrainJob"]),
    ("jobset.x-k8s.io", &["JobSet"]),
    ("ray.io", &["RayJob"]),
    ("sparkoperator.k8s.io", &["SparkApplication"]),
    ("argoproj.io", &["Workflow"]),
    ("tekton.dev", &["PipelineRun", "TaskRun"]),
];

/// Objects of some kinds do work that comes to an end. Only those can be deleted before their end.
pub fn has_outcome(group: &str, kind: &str) -> bool {
    ENDING.iter().any(|(of, kinds)| *of == group && kinds.contains(&kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_found_as_people_write_it() {
        for wanted in ["Job", "job", "jobs", "JOBS", "jobs.batch", "job.batch", "jobs.v1.batch"] {
            assert!(is_kind("batch", "Job", wanted), "{wanted}");
        }
        for wanted in ["po", "pod", "pods", "Pods"] {
            assert!(is_kind("", "Pod", wanted), "{wanted}");
        }
        assert!(is_kind("networking.k8s.io", "NetworkPolicy", "networkpolicies"));
        assert!(is_kind("networking.k8s.io", "Ingress", "ingresses"));
        assert!(is_kind("", "Endpoints", "endpoints"));
        assert!(is_kind("gateway.networking.k8s.io", "Gateway", "gateways"));
        assert!(is_kind("apps", "StatefulSet", "sts"));
    }

    #[test]
    fn one_kind_is_not_taken_for_another() {
        for wanted in ["jobset", "pods", "", "s", "jobs.batch.volcano.sh", "vcjob", "jobs.", "po"] {
            assert_eq!(is_kind("batch", "Job", wanted), wanted == "jobs.", "{wanted}");
        }
        assert!(is_kind("batch.volcano.sh", "Job", "vcjob"));
        assert!(is_kind("batch.volcano.sh", "Job", "jobs.batch.volcano.sh"));
        assert!(!is_kind("batch.volcano.sh", "Job", "jobs.batch"));
    }

    #[test]
    fn short_names_are_in_order_and_each_is_there_once() {
        assert!(SHORT.is_sorted_by(|a, b| a.0 < b.0));
    }
}
