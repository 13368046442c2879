//! The name and the annotations that the controller writes into a submitted Job.

use serde_json::{Value, json};

use crate::search::SUBMITTER;

/// The template from which a Job was made.
pub const TEMPLATE: &str = "kubewitness.dev/template";
const CHANNEL: &str = "kubewitness.dev/channel";
/// The digest of the idempotency key with which the Job was submitted. It identifies a repeated request.
const SUBMISSION: &str = "kubewitness.dev/submission";
/// The digest of the request that came with the key.
const REQUEST: &str = "kubewitness.dev/submission-request";

/// The letters of generated names. They form no words.
const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
const LETTERS_OF_NAME: usize = 10;
/// A Job's pods have its name as a label, of at most 63 bytes.
const PREFIX_BYTES: usize = 48;

/// The labels that record a Job's origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginLabels<'a> {
    pub template: &'a str,
    pub channel: &'a str,
    pub submitter: &'a str,
    /// The digest of the person and the key.
    pub submission: &'a str,
    /// The digest of the request.
    pub request: &'a str,
}

/// The prefix of the names of a template's Jobs. It is not the name in the manifest: replicas may have another
/// manifest of the template for a moment, and a repeated request must name the same Job at each of them.
pub fn job_name_prefix(template: &str) -> &str {
    template[..template.floor_char_boundary(PREFIX_BYTES)].trim_end_matches(['-', '.'])
}

/// The name of the Job for a key. The same key of the same person gives the same name, so the API server
/// itself refuses a second Job, at any replica.
pub fn name(prefix: &str, submission: &[u8; 32]) -> String {
    format!("{prefix}{}", name_end(submission))
}

/// The end of all names of the Jobs of one key. The beginning changes with the template, and each namespace
/// has its own names. By this end, such a Job is found.
pub fn name_end(submission: &[u8; 32]) -> String {
    let letters = submission.iter().take(LETTERS_OF_NAME);
    let letters = letters.map(|byte| char::from(LETTERS[usize::from(*byte) % LETTERS.len()]));
    std::iter::once('-').chain(letters).collect()
}

impl OriginLabels<'_> {
    /// The Job in the form that is sent to the API server.
    pub fn annotate_job(&self, mut job: Value, namespace: &str, name: &str) -> Value {
        let metadata = &mut job["metadata"];
        if !metadata.is_object() {
            *metadata = json!({});
        }
        metadata["name"] = name.into();
        metadata["namespace"] = namespace.into();
        if let Some(fields) = metadata.as_object_mut() {
            fields.remove("generateName");
        }
        if !metadata["annotations"].is_object() {
            metadata["annotations"] = json!({});
        }
        let annotations = [
            (TEMPLATE, self.template),
            (CHANNEL, self.channel),
            (SUBMITTER, self.submitter),
            (SUBMISSION, self.submission),
            (REQUEST, self.request),
        ];
        for (key, value) in annotations {
            metadata["annotations"][key] = value.into();
        }
        job
    }

    /// Whether a Job with these annotations was made with this key, and whether for the same request.
    pub fn match_job(&self, job: &Value) -> (bool, bool) {
        let annotations = &job["metadata"]["annotations"];
        (annotations[SUBMISSION] == self.submission, annotations[REQUEST] == self.request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_has_the_marks_of_its_submission_and_is_known_by_them() {
        let marks = OriginLabels {
            template: "t",
            channel: "portal",
            submitter: "ada",
            submission: "k",
            request: "r",
        };
        let job =
            json!({"metadata": {"generateName": "x-", "annotations": {SUBMITTER: "mallory", "a": "b"}}});
        let job = marks.annotate_job(job, "research", "train-x");
        assert_eq!(job["metadata"]["annotations"][SUBMITTER], "ada", "a template does not say who submits");
        assert_eq!(job["metadata"]["annotations"]["a"], "b");
        assert_eq!(
            (&job["metadata"]["name"], &job["metadata"]["namespace"]),
            (&json!("train-x"), &json!("research"))
        );
        assert!(job["metadata"].get("generateName").is_none());
        assert_eq!(marks.match_job(&job), (true, true));
        assert_eq!(OriginLabels { request: "other", ..marks.clone() }.match_job(&job), (true, false));
        assert_eq!(marks.match_job(&json!({})), (false, false));
    }

    #[test]
    fn a_name_follows_from_its_key_and_fits_into_a_label() {
        let long = "a".repeat(200);
        let made = name(job_name_prefix(&long), &[7; 32]);
        assert!(made.len() <= 63 && made == name(job_name_prefix(&long), &[7; 32]), "{made}");
        assert_ne!(made, name(job_name_prefix(&long), &[8; 32]));
        assert_eq!(job_name_prefix("train"), "train");
        assert_eq!(job_name_prefix("train-"), "train");
    }
}
