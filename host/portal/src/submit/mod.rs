//! Submits Jobs from templates under the identity of the requesting person. The API and the form both use it.
//! It has no rights of its own, and changes no existing Job.
//!
//! A request may come twice: at once, after a restart, or at another replica. A list of seen keys was
//! rejected, because replicas would have to share it. Instead the name of a Job is derived from the person
//! and a key, and the API server itself ensures that names are unique.

mod refusal;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::http::StatusCode;
use kubewitness_core::config::is_name;
use kubewitness_core::config::templates::{OriginLabels, TemplateSpec, job_name_prefix, name, name_end};
use kubewitness_core::ports::{ActingIdentity, JobSubmitter, SubmitError, TemplateOffer};
use kubewitness_core::views::{
    GoneFilter, ObjectPage, ObjectQuery, SubmitRequest, SubmitView, TemplateView, TimelineQuery, ViewError,
};
use kubewitness_core::{Change, ObjectRef, shorten_text};
use ring::digest::{Context, SHA256};
use ring::rand::{SecureRandom, SystemRandom};
use serde_json::Value;

use crate::access::{AUDIT, PortalViewer};
use crate::answer::{FieldFault, Problem, WHO_BYTES};
use crate::app::PortalApp;
use crate::serve::JobPlace;

/// A key of 32 random letters is long enough.
pub(crate) const KEY_BYTES: usize = 128;
/// How many namespaces of all templates are checked for one answer.
const NAMESPACES: usize = 256;
/// How many bytes of the typed text a message repeats.
const VALUE_SHOWN: usize = 80;
/// How many Jobs with names from one key are examined.
const JOBS_OF_A_KEY: usize = 10;
/// A field of the request beside the parameters, as faults name it.
pub(crate) const NAMESPACE: &str = "namespace";

/// Shown in place of a secret default. A Job that is submitted without the parameter gets the default itself.
const SECRET_SHOWN: &str = "redacted";

/// The templates that can be submitted, and the client that creates their Jobs.
pub(crate) struct SubmitDesk {
    pub(crate) offer: Arc<TemplateOffer>,
    submitter: Arc<dyn JobSubmitter>,
}

/// A random key.
pub(crate) fn random_key() -> Result<String, Problem> {
    let mut bytes = [0_u8; 16];
    SystemRandom::new().fill(&mut bytes).map_err(|_| {
        Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "No random key can be made for this submission.",
            "Try again in a moment, or send a key of your own as `Idempotency-Key`.",
        )
    })?;
    Ok(hex::encode(bytes))
}

impl SubmitDesk {
    pub(crate) fn of_app(app: &PortalApp) -> Result<Self, Problem> {
        let desk = app.submitter.clone().and_then(|submitter| {
            let offer = submitter.template_offer()?;
            Some(Self { offer, submitter })
        });
        desk.ok_or_else(|| {
            Problem::new(
                StatusCode::NOT_FOUND,
                "Nobody submits Jobs here.",
                "An operator sets `submit` in the host's settings, and offers templates.",
            )
        })
    }

    /// Templates that the viewer may submit, each with the allowed namespaces; those of other people are not
    /// shown. The list is empty if the template leaves the decision to the API server.
    pub(crate) async fn open_to(
        &self,
        viewer: &PortalViewer,
    ) -> Result<BTreeMap<&str, Vec<String>>, Problem> {
        let (mut open, mut may) = (BTreeMap::new(), BTreeMap::new());
        for (name, spec) in &self.offer.templates {
            let mut theirs = Vec::new();
            for namespace in &spec.namespaces {
                if !may.contains_key(namespace) && may.len() < NAMESPACES {
                    may.insert(namespace, viewer.may_submit_to(namespace).await?);
                }
                if may.get(namespace) == Some(&true) {
                    theirs.push(namespace.clone());
                }
            }
            if spec.namespaces.is_empty() || !theirs.is_empty() {
                open.insert(name.as_str(), theirs);
            }
        }
        Ok(open)
    }

    /// The part of what the viewer may submit that an answer to this request may reveal: all of it if the
    /// request names something else.
    async fn open_for(
        &self,
        viewer: &PortalViewer,
        request: &SubmitRequest,
    ) -> Result<BTreeMap<&str, Vec<String>>, Problem> {
        if let Some((name, spec)) = self.offer.templates.get_key_value(&request.template) {
            let namespace = &request.namespace;
            let theirs = match spec.namespaces.contains(namespace) {
                true if viewer.may_submit_to(namespace).await? => vec![namespace.clone()],
                _ => Vec::new(),
            };
            if spec.namespaces.is_empty() || !theirs.is_empty() {
                return Ok([(name.as_str(), theirs)].into());
            }
        }
        self.open_to(viewer).await
    }

    pub(crate) async fn template_views(&self, viewer: &PortalViewer) -> Result<Vec<TemplateView>, Problem> {
        let open = self.open_to(viewer).await?;
        let view = |(name, spec): (&String, &TemplateSpec)| {
            let namespaces = open.get(name.as_str())?.clone();
            let secret = spec.secret_parameters(&self.offer.rules);
            let mut parameters = spec.parameters.clone();
            for parameter in parameters.iter_mut().filter(|it| secret.contains(it.name.as_str())) {
                parameter.default = parameter.default.as_ref().map(|_| SECRET_SHOWN.into());
            }
            Some(TemplateView { name: name.clone(), about: spec.about.clone(), namespaces, parameters })
        };
        Ok(self.offer.templates.iter().filter_map(view).collect())
    }

    /// `channel` is the way by which the request came. The key was checked.
    pub(crate) async fn submit_job(
        &self,
        app: &PortalApp,
        viewer: &PortalViewer,
        request: &SubmitRequest,
        channel: &str,
        key: &str,
    ) -> Result<SubmitView, Problem> {
        let acting = viewer.acting_identity(self.offer.credentials)?;
        let submitter = match viewer.name() {
            Some(name) => name,
            None if request.who.trim().is_empty() => channel,
            None => request.who.trim(),
        };
        let job = self.fill_template(request, &self.open_for(viewer, request).await?)?;
        let digest = digest_parts(&[submitter, key]);
        let (submission, asked) = (hex::encode(digest), hex::encode(content_digest(request)));
        let marks = OriginLabels {
            template: &request.template,
            channel,
            submitter,
            submission: &submission,
            request: &asked,
        };
        let name = name(job_name_prefix(&request.template), &digest);
        let job = marks.annotate_job(job, &request.namespace, &name);
        let view = SubmitView {
            namespace: request.namespace.clone(),
            name,
            submitter: submitter.to_owned(),
            dry_run: request.dry_run,
            ..SubmitView::default()
        };
        if request.dry_run {
            return self.submit_dry_run(acting, request, &job, view).await;
        }
        let mut made = app.submissions.await_turn(digest).await;
        let place = JobPlace { namespace: view.namespace.clone(), name: view.name.clone() };
        if let Some(other) = made.as_ref().filter(|other| **other != place) {
            return Err(made_elsewhere(other));
        }
        refuse_deleted_job(app, &view).await?;
        refuse_other_job_of_key(app, viewer, &place, &name_end(&digest)).await?;
        // A request that is abandoned may still have created it.
        let before = made.replace(place);
        let created = self.submitter.create_job(acting, &view.namespace, &job, false).await;
        // 409 means that the Job exists, perhaps by another replica.
        if matches!(created, Err(SubmitError::Refused { status, .. }) if status != 409) {
            *made = before;
        }
        match created {
            Ok(job) => {
                tracing::info!(
                    target: AUDIT,
                    submitter, channel, namespace = view.namespace, name = view.name, template = request.template,
                    "a job was submitted"
                );
                Ok(SubmitView { uid: uid_of_job(&job), created: true, ..view })
            }
            Err(SubmitError::Refused { status: 409, message, .. }) => {
                self.answer_existing(acting, &marks, view, message).await
            }
            Err(error) => Err(refusal::problem_of(error, &self.offer, request)),
        }
    }

    async fn submit_dry_run(
        &self,
        acting: ActingIdentity<'_>,
        request: &SubmitRequest,
        job: &Value,
        view: SubmitView,
    ) -> Result<SubmitView, Problem> {
        match self.submitter.create_job(acting, &view.namespace, job, true).await {
            Ok(_) => Ok(view),
            Err(SubmitError::Refused { status: 409, message, .. }) => {
                Err(conflict_problem(message, "A Job of this key exists already."))
            }
            Err(error) => Err(refusal::problem_of(error, &self.offer, request)),
        }
    }

    /// The template with the request's values, or their faults. `open` is what the viewer may submit, and in
    /// which namespaces.
    fn fill_template(
        &self,
        request: &SubmitRequest,
        open: &BTreeMap<&str, Vec<String>>,
    ) -> Result<Value, Problem> {
        // A template that somebody may not submit does not exist for them: no answer reveals its existence or
        // its content.
        let offered = self.offer.templates.get(&request.template);
        let Some((template, theirs)) = offered.zip(open.get(request.template.as_str())) else {
            let message = format!("There is no template `{}`.", shorten_text(&request.template, VALUE_SHOWN));
            let known: Vec<_> = open.keys().copied().collect();
            let hint = match known.is_empty() {
                true => "No template is offered.".to_owned(),
                false => format!("The templates are {}.", known.join(", ")),
            };
            return Err(Problem::new(StatusCode::NOT_FOUND, message, hint));
        };
        let mut faults = Vec::new();
        let namespace = &request.namespace;
        if !is_name(namespace) {
            let message = "is no name of a namespace: give the one that the Job is for".to_owned();
            faults.push(FieldFault { field: NAMESPACE.into(), message });
        } else if !template.namespaces.is_empty() && !theirs.contains(namespace) {
            let message = format!("is not one of {}", theirs.join(", "));
            faults.push(FieldFault { field: NAMESPACE.into(), message });
        }
        if request.who.len() > WHO_BYTES {
            let message = format!("is longer than {WHO_BYTES} bytes");
            faults.push(FieldFault { field: "who".into(), message });
        }
        let filled = template.fill_template(&request.parameters);
        let of_values = filled.as_ref().err().into_iter().flatten();
        faults.extend(
            of_values
                .map(|fault| FieldFault { field: fault.parameter.clone(), message: fault.message.clone() }),
        );
        match filled {
            Ok(job) if faults.is_empty() => Ok(job),
            _ => Err(refusal::wrong_values(faults)),
        }
    }

    /// A Job with this name exists. It comes either from the same request or from another one.
    async fn answer_existing(
        &self,
        acting: ActingIdentity<'_>,
        marks: &OriginLabels<'_>,
        view: SubmitView,
        message: String,
    ) -> Result<SubmitView, Problem> {
        let conflict = |message: String, hint: &str| Err(conflict_problem(message, hint));
        let found = self.submitter.find_job(acting, &view.namespace, &view.name).await;
        match found {
            Ok(Some(job)) => match marks.match_job(&job) {
                (true, true) => Ok(SubmitView { uid: uid_of_job(&job), ..view }),
                (true, false) => conflict(
                    format!("This key has made the Job {} from other values.", view.name),
                    "Send other values with a new key.",
                ),
                (false, _) => conflict(message, "Another Job has this name: send it again with a new key."),
            },
            // A quota that is being changed causes a conflict, too.
            Ok(None) => conflict(message, "No Job was created: send it again."),
            Err(SubmitError::Refused { status: 403, .. }) => conflict(
                message,
                "It is probably yours, from an earlier request with this key, and you may not read it.",
            ),
            Err(error) => Err(refusal::unanswered_problem(&error.to_string())),
        }
    }
}

fn conflict_problem(message: String, hint: &str) -> Problem {
    Problem::new(StatusCode::CONFLICT, message, hint)
}

fn made_elsewhere(JobPlace { namespace, name }: &JobPlace) -> Problem {
    let message = format!("This key has made the Job {name} in the namespace {namespace}.");
    conflict_problem(message, "Send it with a new key to make another one.")
}

fn uid_of_job(job: &Value) -> String {
    job["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}

/// Each part with its length, so that different lists of parts never have the same digest.
fn digest_parts(parts: &[&str]) -> [u8; 32] {
    let mut context = Context::new(&SHA256);
    for part in parts {
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part.as_bytes());
    }
    let mut found = [0; 32];
    found.copy_from_slice(context.finish().as_ref());
    found
}

/// The content of the request, without its person and channel.
fn content_digest(request: &SubmitRequest) -> [u8; 32] {
    let values: Vec<String> =
        request.parameters.iter().flat_map(|(name, value)| [name.clone(), value.to_string()]).collect();
    let parts = [request.template.as_str(), &request.namespace].into_iter();
    digest_parts(&parts.chain(values.iter().map(String::as_str)).collect::<Vec<_>>())
}

/// A late repeat does not create a deleted Job again: the journal still knows it.
async fn refuse_deleted_job(app: &PortalApp, view: &SubmitView) -> Result<(), Problem> {
    let query = TimelineQuery {
        kind: Some("Job".into()),
        namespace: Some(view.namespace.clone()),
        name: Some(view.name.clone()),
        limit: Some(1),
        ..TimelineQuery::default()
    };
    let story = match app.views.raw_story(&query).await {
        Ok(story) => story,
        // Jobs are not watched, or not in this namespace.
        Err(ViewError::NotFound { .. } | ViewError::Invalid(_)) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    match story.states.last().is_some_and(|state| state.change() == Change::Gone) {
        true => Err(Problem::new(
            StatusCode::CONFLICT,
            format!("This key has made the Job {} before, and the Job is gone.", view.name),
            "Send it with a new key to make another one.",
        )),
        false => Ok(()),
    }
}

/// A key makes only one Job, even if its template was renamed or another namespace is requested. Then the API
/// server can't refuse the second one, because the names differ: the journal finds the first by the end of
/// its name. A Job that is gone counts as well: a late repeat must not run it again.
async fn refuse_other_job_of_key(
    app: &PortalApp,
    viewer: &PortalViewer,
    here: &JobPlace,
    name_end: &str,
) -> Result<(), Problem> {
    // The API server has not judged this person yet.
    let _turn = app.readings.await_turn(viewer.party_of_shares(), JOBS_OF_A_KEY).await;
    let query = ObjectQuery {
        kind: Some("Job".into()),
        search: Some(name_end.to_owned()),
        limit: Some(JOBS_OF_A_KEY),
        ..ObjectQuery::default()
    };
    let Some(page) = page_of_jobs(app, &query).await? else { return Ok(()) };
    if let Some(other) = other_place(page, here, name_end) {
        return Err(made_elsewhere(&other));
    }
    // One page looks at the names of the 20,000 Jobs that ended last. More would make each submission slow.
    let query = ObjectQuery {
        search: None,
        gone: GoneFilter::Only,
        gone_name_end: Some(name_end.to_owned()),
        ..query
    };
    let gone = page_of_jobs(app, &query).await?.unwrap_or_default();
    other_place(gone, here, name_end).map_or(Ok(()), |other| Err(made_elsewhere(&other)))
}

/// `None` if Jobs are not watched.
async fn page_of_jobs(app: &PortalApp, query: &ObjectQuery) -> Result<Option<ObjectPage>, Problem> {
    match app.views.object_page(query).await {
        Ok(page) => Ok(Some(page)),
        Err(ViewError::NotFound { .. } | ViewError::Invalid(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn other_place(page: ObjectPage, here: &JobPlace, name_end: &str) -> Option<JobPlace> {
    let of_key = page.objects.into_iter().map(|found| found.object).filter(|it| it.name.ends_with(name_end));
    let mut places = of_key.map(|ObjectRef { namespace, name, .. }| JobPlace { namespace, name });
    places.find(|place| place != here)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn digests_tell_apart_what_only_looks_the_same() {
        assert_ne!(digest_parts(&["ab", "c"]), digest_parts(&["a", "bc"]));
        let request = |values: Value| SubmitRequest {
            template: "t".into(),
            namespace: "n".into(),
            parameters: serde_json::from_value(values).unwrap(),
            ..SubmitRequest::default()
        };
        assert_eq!(
            content_digest(&request(json!({"a": "1", "b": 2}))),
            content_digest(&request(json!({"b": 2, "a": "1"})))
        );
        assert_ne!(content_digest(&request(json!({"a": "1"}))), content_digest(&request(json!({"a": 1}))));
        assert_eq!(random_key().unwrap().len(), 32);
    }
}
