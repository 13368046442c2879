//! Counts from recorded objects which attempt an object came to.
//!
//! A Job's own count of failed pods is no count of attempts, because the Job ends its other pods with the first one that
//! fails for good, and counts them as failed. So the pods that were made in place of others are counted.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::{HistoryChange, LabelSubject, Operation};

/// The attempt that the object came to; `None` for kinds without attempts, and before the first one.
pub fn attempt_of(subject: &LabelSubject, changes: &[HistoryChange]) -> Option<u64> {
    let of_kind = |kind: &'static str| changes.iter().filter(move |it| it.document["kind"] == kind);
    let restarts = |kind: &'static str| {
        of_kind(kind).filter_map(|it| it.document["status"]["restarts"].as_u64()).max().unwrap_or_default()
    };
    match subject.kind.as_str() {
        "Job" if subject.group == "batch" => job_attempt(subject, changes),
        // A TrainJob has a JobSet of its name, which counts its restarts.
        "JobSet" | "TrainJob" => of_kind("JobSet").next().map(|_| restarts("JobSet") + 1),
        // Each attempt has a cluster of its own.
        "RayJob" => {
            let clusters: BTreeSet<_> = of_kind("RayCluster").map(|it| &it.key).collect();
            u64::try_from(clusters.len()).ok().filter(|clusters| *clusters > 0)
        }
        _ => None,
    }
}

/// One more than the pods that replaced others. Pods that a Job gets when it is resumed replace none, and a pod that
/// replaces one whose failure does not count begins no attempt.
fn job_attempt(subject: &LabelSubject, changes: &[HistoryChange]) -> Option<u64> {
    let key = format!("jobs/{}/{}", subject.namespace, subject.name);
    let versions: Vec<&Value> = changes
        .iter()
        .filter(|change| change.key == key && change.op == Operation::Put)
        .map(|change| &change.document)
        .collect();
    let (first, last) = (versions.first()?, versions.last()?);
    let is_owned = |pod: &Value| {
        let owners = pod["metadata"]["ownerReferences"].as_array();
        owners.into_iter().flatten().any(|owner| owner["uid"] == first["metadata"]["uid"])
    };
    let pods = changes.iter().filter(|it| it.key.starts_with("pods/") && is_owned(&it.document));
    let pods = u64::try_from(pods.map(|it| &it.key).collect::<BTreeSet<_>>().len()).ok()?;
    let is_held = |job: &Value| job["spec"]["suspend"] == true;
    let resumed = versions.windows(2).filter(|pair| is_held(pair[0]) && !is_held(pair[1])).count();
    let runs = u64::try_from(resumed).ok()? + u64::from(!is_held(first));
    let workers = last["spec"]["parallelism"].as_u64().unwrap_or(1);
    let failed = last["status"]["failed"].as_u64().unwrap_or_default();
    (pods > 0).then(|| 1 + pods.saturating_sub(workers * runs).min(failed))
}
