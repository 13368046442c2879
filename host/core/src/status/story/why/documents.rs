//! Reads from documents the facts that an explanation needs: the containers of a pod, and the limits of an
//! owner.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::super::QUEUE_LABEL;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PodDocument {
    pub metadata: PodMetadata,
    pub spec: PodSpec,
    pub status: PodStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PodMetadata {
    pub deletion_timestamp: Option<String>,
    pub deletion_grace_period_seconds: Option<u64>,
    pub annotations: Option<BTreeMap<String, String>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PodSpec {
    pub node_name: Option<String>,
    pub init_containers: Vec<InitContainer>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct InitContainer {
    pub name: String,
    pub restart_policy: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PodStatus {
    pub reason: String,
    pub message: String,
    pub conditions: Vec<StatusCondition>,
    pub container_statuses: Vec<ContainerStatus>,
    pub init_container_statuses: Vec<ContainerStatus>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct StatusCondition {
    #[serde(rename = "type")]
    pub kind: String,
    pub status: String,
    pub reason: Option<String>,
    pub message: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ContainerStatus {
    pub name: String,
    pub ready: bool,
    pub state: ContainerState,
    pub last_state: ContainerState,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ContainerState {
    pub waiting: Option<WaitingContainer>,
    pub terminated: Option<TerminatedContainer>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WaitingContainer {
    pub reason: String,
    pub message: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct TerminatedContainer {
    pub exit_code: i32,
    pub signal: Option<i32>,
    pub reason: String,
    pub message: String,
    pub finished_at: Option<String>,
}

impl PodDocument {
    pub fn read(document: &[u8]) -> Option<Self> {
        serde_json::from_slice(document).ok()
    }

    pub fn find_condition(&self, kind: &str) -> Option<&StatusCondition> {
        self.status.conditions.iter().find(|condition| condition.kind == kind)
    }

    /// The pod's index in an indexed Job.
    pub fn completion_index(&self) -> Option<u32> {
        self.annotation_number("batch.kubernetes.io/job-completion-index")
    }

    /// How often its index failed before, in an indexed Job with a limit for each index.
    pub fn index_failures(&self) -> Option<u32> {
        self.annotation_number("batch.kubernetes.io/job-index-failure-count")
    }

    fn annotation_number(&self, annotation: &str) -> Option<u32> {
        self.metadata.annotations.as_ref()?.get(annotation)?.parse().ok()
    }
}

/// The limits and policies of an object, from its newest document.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnerDocument {
    /// How often it may be tried.
    pub attempts_allowed: Option<u32>,
    /// How often each of its indexes may be tried. Failed pods of other indexes don't count for an index.
    pub index_attempts_allowed: Option<u32>,
    /// Whether Kueue decides when it starts.
    pub has_queue: bool,
    /// Whether pods that a disruption ended are not counted as attempts.
    pub ignores_disruptions: bool,
    /// The indexes of an indexed Job that failed for good, as ranges.
    failed_indexes: Vec<(u32, u32)>,
}

impl OwnerDocument {
    /// Kinds differ, so each member is read separately.
    pub fn read(document: &[u8]) -> Self {
        let document: Value = serde_json::from_slice(document).unwrap_or_default();
        let at = |path: &str| document.pointer(path);
        let number = |path: &str| at(path).and_then(Value::as_u64);
        let allowed = |limit: u64| u32::try_from(limit.saturating_add(1)).ok();
        let per_index = number("/spec/backoffLimitPerIndex");
        let limit = number("/spec/backoffLimit").filter(|_| per_index.is_none());
        let rules = at("/spec/podFailurePolicy/rules").and_then(Value::as_array);
        let ignores = |rule: &Value| {
            let on = rule["onPodConditions"].as_array();
            rule["action"] == "Ignore" && on.into_iter().flatten().any(|on| on["type"] == "DisruptionTarget")
        };
        let failed_indexes = at("/status/failedIndexes").and_then(Value::as_str);
        Self {
            attempts_allowed: limit.and_then(allowed),
            index_attempts_allowed: per_index.and_then(allowed),
            has_queue: document["metadata"]["labels"][QUEUE_LABEL].is_string(),
            ignores_disruptions: rules.into_iter().flatten().any(ignores),
            failed_indexes: parse_index_ranges(failed_indexes.unwrap_or_default()),
        }
    }

    /// Whether the object failed because of this index. An object without failed indexes failed as a whole.
    pub fn failed_by_index(&self, index: Option<u32>) -> bool {
        let Some(index) = index.filter(|_| !self.failed_indexes.is_empty()) else { return true };
        self.failed_indexes.iter().any(|(first, last)| (*first..=*last).contains(&index))
    }
}

/// Parses index ranges such as `1,3-5`.
fn parse_index_ranges(text: &str) -> Vec<(u32, u32)> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some((first.trim().parse().ok()?, last.trim().parse().ok()?))
    };
    text.split(',').filter_map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_are_read_as_the_job_controller_writes_them() {
        assert_eq!(parse_index_ranges("1,3-5"), [(1, 1), (3, 5)]);
        assert_eq!(parse_index_ranges(""), []);
        assert_eq!(parse_index_ranges("x,4"), [(4, 4)]);
    }
}
