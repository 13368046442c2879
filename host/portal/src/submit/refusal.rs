//! Turns a refusal of the API server into faults of the fields that it is about.

use axum::http::StatusCode;
use kubewitness_core::config::templates::is_at;
use kubewitness_core::ports::{FieldCause, SubmitError, TemplateOffer};
use kubewitness_core::shorten_text;
use kubewitness_core::views::SubmitRequest;

use super::NAMESPACE;
use crate::answer::{FieldFault, Problem};

/// The messages of admission webhooks may have any length.
const MESSAGE_BYTES: usize = 4096;

/// The message repeats the faults for programs that ignore the fields.
pub(super) fn wrong_values(faults: Vec<FieldFault>) -> Problem {
    let messages: Vec<_> =
        faults.iter().map(|fault| format!("`{}` {}", fault.field, fault.message)).collect();
    Problem::new(
        StatusCode::UNPROCESSABLE_ENTITY,
        format!("The values do not fit the template: {}.", messages.join("; ")),
        "`kubewitness submit --list` and the portal's form show what each parameter takes.",
    )
    .of_fields(faults)
}

pub(super) fn unanswered_problem(why: &str) -> Problem {
    Problem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        format!("It is not known whether the Job was created: {}.", shorten_text(why, MESSAGE_BYTES)),
        "Send it again with the same key: no second Job is made.",
    )
}

pub(super) fn problem_of(error: SubmitError, offer: &TemplateOffer, request: &SubmitRequest) -> Problem {
    let (status, message, causes) = match error {
        SubmitError::Unanswered(why) => return unanswered_problem(&why),
        SubmitError::Refused { status, message, causes } => (status, message, causes),
    };
    let fields = causes.iter().map(|cause| field_fault(cause, offer, request)).collect();
    let message = format!("The API server refuses the Job: {}", shorten_text(&message, MESSAGE_BYTES));
    let (status, hint) = match status {
        401 => (
            StatusCode::FORBIDDEN,
            "It does not take the credentials. A token that was made for the audience kubewitness.dev alone is not \
             one for the API server: sign in with one that is, or ask an operator for `submit.credentials: \
             impersonation`.",
        ),
        403 => (
            StatusCode::FORBIDDEN,
            "Ask for the right `create` on `jobs` in this namespace, or for more quota, as the message says.",
        ),
        404 => (StatusCode::UNPROCESSABLE_ENTITY, "Choose a namespace that exists."),
        400 | 422 => (
            StatusCode::UNPROCESSABLE_ENTITY,
            "Change the values that are named; where none is, the template's author repairs the template.",
        ),
        _ => (StatusCode::CONFLICT, "The message says why. Send it again, or ask an operator."),
    };
    Problem::new(status, message, hint).of_fields(fields)
}

/// Under the name of the parameter whose value is at the field.
fn field_fault(cause: &FieldCause, offer: &TemplateOffer, request: &SubmitRequest) -> FieldFault {
    let parameters = offer.templates.get(&request.template).map_or(&[][..], |spec| &spec.parameters);
    let at_field = |place: &String| is_at(&cause.field, place);
    let parameter = parameters.iter().find(|parameter| parameter.places.iter().any(at_field));
    let field = match parameter {
        Some(parameter) => parameter.name.clone(),
        None if cause.field == "metadata.namespace" => NAMESPACE.into(),
        None => shorten_text(&cause.field, 256).into_owned(),
    };
    FieldFault { field, message: shorten_text(&cause.message, MESSAGE_BYTES).into_owned() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kubewitness_core::config::Credentials;
    use kubewitness_core::config::HostSpec;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_refusal_stands_beside_the_parameter_whose_value_it_is_about() {
        let template = serde_json::from_value(json!({
            "parameters": [{"name": "workers", "type": "int", "places": ["/spec/parallelism"]}],
            "manifest": {"spec": {"parallelism": 1}},
        }));
        let templates = BTreeMap::from([("train".to_owned(), template.unwrap())]);
        let rules = HostSpec::default().compile_redaction_rules().unwrap().into();
        let offer = TemplateOffer { credentials: Credentials::Token, templates, rules };
        let request = SubmitRequest { template: "train".into(), ..SubmitRequest::default() };
        let cause = |field: &str| FieldCause { field: field.into(), message: "must be greater".into() };
        let refused = |status, causes| {
            problem_of(SubmitError::Refused { status, message: "no".into(), causes }, &offer, &request)
        };
        let refusal = refused(422, vec![cause("spec.parallelism"), cause("spec.backoffLimit")]);
        let fields: Vec<_> = refusal.fields.iter().map(|fault| fault.field.as_str()).collect();
        assert_eq!((refusal.status.as_u16(), fields), (422, vec!["workers", "spec.backoffLimit"]));
        for (status, answered) in [(401, 403), (403, 403), (404, 422), (400, 422), (405, 409)] {
            assert_eq!(refused(status, Vec::new()).status.as_u16(), answered);
        }
        let lost = problem_of(SubmitError::Unanswered("reset".into()), &offer, &request);
        assert_eq!(lost.status.as_u16(), 503);
        assert!(lost.hint.contains("same key"));
    }
}
