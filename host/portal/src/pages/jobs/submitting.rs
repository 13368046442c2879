//! The form from which people submit a Job, with each fault beside its field.

use std::collections::BTreeMap;

use axum::Form;
use axum::extract::rejection::FormRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use kubewitness_core::clock::{Clock, SystemClock};
use kubewitness_core::config::templates::{ParameterSpec, ParameterType, TemplateSpec};
use kubewitness_core::views::{SubmitRequest, SubmitView};
use maud::{Markup, html};
use serde_json::Value;

use super::super::parts::{encode, expect_own_page, render_empty};
use crate::access::PortalViewer;
use crate::answer::frame::PageContent;
use crate::answer::params::QueryParams;
use crate::answer::{Problem, ProblemPage};
use crate::api::WHO_BYTES;
use crate::api::submitting::check_key;
use crate::app::PortalApp;
use crate::submit::{NAMESPACE, SubmitDesk, random_key};

/// The prefix of a parameter's name, which might equal that of another field.
const PARAMETER: &str = "p.";

pub(crate) async fn page(
    State(app): State<PortalApp>,
    viewer: PortalViewer,
    uri: Uri,
) -> Result<PageContent, ProblemPage> {
    QueryParams::read(&uri, &[])?;
    let desk = SubmitDesk::of_app(&app)?;
    let open = desk.open_to(&viewer).await?;
    let content = html! {
        div.head { h1 { "Submit a Job" } }
        @if desk.offer.templates.is_empty() {
            (render_empty("No templates", &html! {
                "An operator offers them as ConfigMaps with the label " code { "kubewitness.dev/template: \"true\"" } "."
            }))
        } @else {
            p { "Choose a template. The Job is created in your name, and the API server decides whether you may." }
            ul.plain {
                @for (name, template) in desk.offer.templates.iter().filter(|(name, _)| open.contains_key(name.as_str())) {
                    li { p { a href={ "/submit/" (encode(name)) } { (name) } @if !template.about.is_empty() { " " span.hint { (template.about) } } } }
                }
            }
        }
    };
    Ok(PageContent::new("Submit a Job", "/", content))
}

/// The values in the form, as typed.
struct FormValues {
    key: String,
    request: SubmitRequest,
    is_new: bool,
    /// The choices; empty if any namespace may be typed.
    namespaces: Vec<String>,
}

pub(crate) async fn form(
    State(app): State<PortalApp>,
    viewer: PortalViewer,
    Path(name): Path<String>,
    uri: Uri,
) -> Result<PageContent, ProblemPage> {
    let params = QueryParams::read(&uri, &[NAMESPACE])?;
    let desk = SubmitDesk::of_app(&app)?;
    // A form that can't be sent is not shown.
    viewer.acting_identity(desk.offer.credentials)?;
    let namespaces = submittable_namespaces(&desk, &viewer, &name).await?;
    let template = find_template(&desk, &name)?;
    let namespace = params.owned_text(NAMESPACE).unwrap_or_default();
    let request = SubmitRequest { template: name, namespace, ..SubmitRequest::default() };
    let typed = FormValues { key: random_key()?, request, is_new: true, namespaces };
    Ok(render_submit_form(&viewer, &desk, template, &typed, None))
}

pub(crate) async fn post_submit(
    State(app): State<PortalApp>,
    viewer: PortalViewer,
    Path(name): Path<String>,
    headers: HeaderMap,
    fields: Result<Form<Vec<(String, String)>>, FormRejection>,
) -> Result<Response, ProblemPage> {
    expect_own_page(&headers)?;
    let desk = SubmitDesk::of_app(&app)?;
    let template = find_template(&desk, &name)?;
    let Form(fields) = fields?;
    let namespaces = submittable_namespaces(&desk, &viewer, &name).await?;
    let typed = FormValues { namespaces, ..read(template, name, fields)? };
    match desk.submit_job(&app, &viewer, &typed.request, "portal", check_key(&typed.key)?).await {
        Ok(view) if view.dry_run => {
            Ok(render_submit_form(&viewer, &desk, template, &typed, Some(&checked_only())).into_response())
        }
        Ok(view) => Ok(render_done(&view).into_response()),
        Err(problem) => {
            let status = problem.status;
            Ok((status, render_submit_form(&viewer, &desk, template, &typed, Some(&problem))).into_response())
        }
    }
}

/// Shown in place of a problem.
fn checked_only() -> Problem {
    Problem::new(StatusCode::OK, "The API server takes this Job. Nothing was created.", "Submit creates it.")
}

fn find_template<'d>(desk: &'d SubmitDesk, name: &str) -> Result<&'d TemplateSpec, Problem> {
    desk.offer.templates.get(name).ok_or_else(no_template)
}

/// The namespaces of the template in which the viewer may submit it.
async fn submittable_namespaces(
    desk: &SubmitDesk,
    viewer: &PortalViewer,
    name: &str,
) -> Result<Vec<String>, Problem> {
    desk.open_to(viewer).await?.remove(name).ok_or_else(no_template)
}

fn no_template() -> Problem {
    Problem::new(
        StatusCode::NOT_FOUND,
        "There is no such template, or you may create Jobs in none of its namespaces.",
        "The page /submit lists those that you may submit.",
    )
}

/// An empty field counts as absent, unless it is a text that may be empty.
fn read(template: &TemplateSpec, name: String, fields: Vec<(String, String)>) -> Result<FormValues, Problem> {
    let request = SubmitRequest { template: name, ..SubmitRequest::default() };
    let mut typed = FormValues { key: String::new(), request, is_new: false, namespaces: Vec::new() };
    for (field, value) in fields {
        match (field.as_str(), field.strip_prefix(PARAMETER)) {
            ("key", _) => typed.key = value,
            (NAMESPACE, _) => typed.request.namespace = value.trim().to_owned(),
            ("who", _) => typed.request.who = value.trim().to_owned(),
            ("check", _) => typed.request.dry_run = true,
            (_, Some(name)) if template.parameters.iter().any(|known| known.name == name) => {
                if !value.is_empty() {
                    typed.request.parameters.insert(name.to_owned(), value.into());
                }
            }
            _ => {
                let hint = "Go back to /submit and open the form again: the template may have changed.";
                return Err(Problem::invalid_request(format!("`{field}` is no field of this form."), hint));
            }
        }
    }
    Ok(typed)
}

fn render_submit_form(
    viewer: &PortalViewer,
    desk: &SubmitDesk,
    template: &TemplateSpec,
    typed: &FormValues,
    problem: Option<&Problem>,
) -> PageContent {
    let secret = template.secret_parameters(&desk.offer.rules);
    let mut faults: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for fault in problem.into_iter().flat_map(|problem| &problem.fields) {
        faults.entry(&fault.field).or_default().push(&fault.message);
    }
    let own = |field: &str| field == NAMESPACE || template.parameters.iter().any(|p| p.name == field);
    let name = &typed.request.template;
    let content = html! {
        div.head { h1 { "Submit " (name) } }
        @if !template.about.is_empty() { p { (template.about) } }
        @if let Some(problem) = problem { (problem_box(problem, &faults, own)) }
        form.submit method="post" action={ "/submit/" (encode(name)) } {
            input type="hidden" name="key" value=(typed.key);
            (render_namespace_field(typed, &faults))
            @for parameter in &template.parameters { (render_parameter_field(template, parameter, secret.contains(parameter.name.as_str()), typed, &faults)) }
            @if viewer.name().is_none() {
                label { span { "Your name" } input name="who" maxlength=(WHO_BYTES) value=(typed.request.who) autocomplete="name"; }
            }
            div.actions {
                button.strong { "Submit" }
                button name="check" value="true" { "Check only" }
                a href="/submit" { "All templates" }
            }
        }
    };
    PageContent::new(format!("Submit {name}"), "/", content)
}

/// A fault that concerns no field of the form is shown above it.
fn problem_box(problem: &Problem, faults: &BTreeMap<&str, Vec<&str>>, own: impl Fn(&str) -> bool) -> Markup {
    let is_good = problem.status.is_success();
    html! {
        div class=(if is_good { "done" } else { "alert" }) role=(if is_good { "status" } else { "alert" }) {
            p { (problem.message) }
            @for (field, messages) in faults.iter().filter(|(field, _)| !own(field)) {
                @for message in messages { p { code { (field) } ": " (message) } }
            }
            p.hint { (problem.hint) }
        }
    }
}

fn faults_of(field: &str, faults: &BTreeMap<&str, Vec<&str>>) -> Markup {
    html! {
        @if let Some(messages) = faults.get(field) {
            span.fault id={ "fault-" (field) } { @for message in messages { (message) ". " } }
        }
    }
}

fn render_namespace_field(typed: &FormValues, faults: &BTreeMap<&str, Vec<&str>>) -> Markup {
    let (chosen, wrong) = (&typed.request.namespace, faults.contains_key(NAMESPACE));
    let described = wrong.then_some("fault-namespace");
    html! {
        label {
            span { "Namespace" @if typed.namespaces.is_empty() { " (required)" } }
            @if typed.namespaces.is_empty() {
                input name=(NAMESPACE) required value=(chosen) autocomplete="off" spellcheck="false" aria-invalid=[wrong.then_some("true")] aria-describedby=[described];
            } @else {
                select name=(NAMESPACE) aria-invalid=[wrong.then_some("true")] aria-describedby=[described] {
                    @for name in &typed.namespaces { option value=(name) selected[name == chosen] { (name) } }
                }
            }
            (faults_of(NAMESPACE, faults))
        }
    }
}

fn render_parameter_field(
    template: &TemplateSpec,
    parameter: &ParameterSpec,
    is_secret: bool,
    typed: &FormValues,
    faults: &BTreeMap<&str, Vec<&str>>,
) -> Markup {
    let (name, kind) = (parameter.name.as_str(), parameter.kind);
    let shown = match typed.request.parameters.get(name) {
        None if typed.is_new && !is_secret => template.initial_value(parameter).map(text).unwrap_or_default(),
        value => value.map(text).unwrap_or_default(),
    };
    // An empty field takes the template's value.
    let is_required = parameter.required && parameter.default.is_none();
    let has_hidden = is_secret && !is_required;
    let wrong = faults.contains_key(name);
    let (invalid, described) = (wrong.then_some("true"), format!("help-{name} fault-{name}"));
    let field = format!("{PARAMETER}{name}");
    let words: Vec<&str> = match kind {
        ParameterType::Bool => vec!["true", "false"],
        ParameterType::Choice => parameter.choices.iter().map(String::as_str).collect(),
        _ => Vec::new(),
    };
    let bounds = [("from", &parameter.min), ("to", &parameter.max)];
    let bounds: Vec<_> =
        bounds.iter().filter_map(|(word, bound)| Some(format!("{word} {}", text(bound.as_ref()?)))).collect();
    html! {
        label {
            span { (name) @if parameter.required { " (required)" } }
            @if words.is_empty() {
                input name=(field) value=(shown) required[is_required] inputmode=[matches!(kind, ParameterType::Int).then_some("numeric")] autocomplete="off" spellcheck="false" aria-invalid=[invalid] aria-describedby=(described);
            } @else {
                select name=(field) required[is_required] aria-invalid=[invalid] aria-describedby=(described) {
                    @if shown.is_empty() { option value="" { "Choose" } }
                    @for word in words { option value=(word) selected[word == shown] { (word) } }
                }
            }
            span.hint id={ "help-" (name) } {
                (parameter.help) @if !bounds.is_empty() { " (" (bounds.join(" ")) ")" }
                @if has_hidden { " The template has a value that is not shown: leave this empty to take it." }
            }
            (faults_of(name, faults))
        }
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn render_done(view: &SubmitView) -> PageContent {
    let now_ms = SystemClock::default().now_ms();
    let title = if view.created { "The Job is created" } else { "The Job was created before" };
    let content = html! {
        div.head { h1 { (title) } }
        p {
            a #job href={ "/objects/" (encode(&view.uid)) "?submitted=" (now_ms) } { "Job/" (view.name) } " in " (view.namespace)
            ", submitted by " (view.submitter) "."
        }
        @if !view.created { p.hint { "The form was sent twice, and one Job was made." } }
        p.hint { "The page of the Job waits for its first state. On the command line:" }
        pre { "kubewitness wait job/" (view.name) " -n " (view.namespace) }
        p { a href="/submit" { "Submit another one" } }
    };
    PageContent::new(title, "/", content)
}
