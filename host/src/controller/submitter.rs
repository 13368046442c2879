//! Submission of Jobs: the configured templates, and the API server that creates Jobs from them.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use kubewitness_core::config::HostSpec;
use kubewitness_core::config::templates::TEMPLATES_MOST;
use kubewitness_core::ports::{ActingIdentity, JobSubmitter, SubmitError, TemplateOffer};
use kubewitness_watch::JobClient;
use serde_json::Value;

use super::shared::SharedStatus;
use crate::config::ConfigSnapshot;
use crate::config::manifest::{ManifestProblem, parse_template};

/// The [`JobSubmitter`] of a controller.
pub struct JobSubmissions {
    shared: Arc<SharedStatus>,
    jobs: JobClient,
}

impl JobSubmissions {
    pub fn new(shared: Arc<SharedStatus>, jobs: JobClient) -> Self {
        Self { shared, jobs }
    }
}

#[async_trait]
impl JobSubmitter for JobSubmissions {
    fn template_offer(&self) -> Option<Arc<TemplateOffer>> {
        self.shared.offer()
    }

    async fn create_job(
        &self,
        acting: ActingIdentity<'_>,
        namespace: &str,
        job: &Value,
        dry_run: bool,
    ) -> Result<Value, SubmitError> {
        self.jobs.create(acting, namespace, job, dry_run).await
    }

    async fn find_job(
        &self,
        acting: ActingIdentity<'_>,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Value>, SubmitError> {
        self.jobs.job(acting, namespace, name).await
    }
}

/// The offer from these settings and templates, and the faults of refused templates. A faulty template hides
/// no other.
pub fn make_offer(
    host: Option<&HostSpec>,
    snapshot: &ConfigSnapshot,
) -> (Option<TemplateOffer>, Vec<ManifestProblem>) {
    let (mut templates, mut problems) = (BTreeMap::new(), Vec::new());
    for entry in &snapshot.templates {
        let place = &entry.origin.place;
        let parsed = match parse_template(entry) {
            Ok(parsed) => parsed,
            Err(found) => {
                problems.extend(found);
                continue;
            }
        };
        let message = if templates.contains_key(&parsed.name) {
            format!("is a second template of the name `{}`: keep one", parsed.name)
        } else if templates.len() == TEMPLATES_MOST {
            format!("is one template too many: at most {TEMPLATES_MOST} are offered")
        } else {
            templates.insert(parsed.name, parsed.spec);
            continue;
        };
        problems.push(ManifestProblem::of(place, Some(entry.origin.first_line), message));
    }
    let Some((host, submit)) = host.and_then(|host| Some((host, host.submit.as_ref()?))) else {
        return (None, problems);
    };
    match host.compile_redaction_rules() {
        Ok(rules) => {
            let offer = TemplateOffer { credentials: submit.credentials, templates, rules: Arc::new(rules) };
            (Some(offer), problems)
        }
        // It is unknown which parts of a template may be shown.
        Err(faults) => {
            problems.extend(faults.into_iter().map(|fault| ManifestProblem {
                place: "the host's settings".into(),
                line: None,
                field: fault.field,
                message: fault.message,
            }));
            (None, problems)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use kubewitness_core::config::{Credentials, SubmitSpec};

    use super::*;
    use crate::config::folder::of_text;

    const TEMPLATE: &str = include_str!("../../core/testdata/manifests/template.yaml");

    #[test]
    fn a_template_with_a_fault_hides_no_other_and_nothing_is_offered_unless_the_settings_say_so() {
        let broken = TEMPLATE.replace("name: train}", "name: broken}").replace("kind: Job\n", "kind: Pod\n");
        let snapshot = of_text(Path::new("t.yaml"), &[TEMPLATE, &broken, TEMPLATE].join("---\n"));
        assert!(snapshot.problems.is_empty(), "{:?}", snapshot.problems);
        let host = HostSpec {
            submit: Some(SubmitSpec { credentials: Credentials::Impersonation }),
            ..HostSpec::default()
        };
        let (offer, problems) = make_offer(Some(&host), &snapshot);
        let offer = offer.unwrap();
        assert_eq!(offer.templates.keys().collect::<Vec<_>>(), ["train"]);
        assert_eq!(offer.credentials, Credentials::Impersonation);
        let messages: Vec<_> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(messages.len(), 2, "{messages:?}");
        assert!(messages[0].contains("spec.manifest: is no Job of batch/v1"), "{messages:?}");
        assert!(messages[1].contains("is a second template of the name `train`"), "{messages:?}");
        assert!(make_offer(Some(&HostSpec::default()), &snapshot).0.is_none());
        assert!(make_offer(None, &snapshot).0.is_none());
    }
}
