//! The form that pauses or resumes a plugin.

use axum::Form;
use axum::extract::rejection::FormRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Uri};
use axum::response::{IntoResponse, Redirect, Response};
use kubewitness_core::views::{PauseRequest, PluginView};
use maud::{Markup, html};

use super::super::parts::{at_text, encode, expect_own_page};
use crate::access::{GuardedAct, PortalViewer};
use crate::answer::frame::PageContent;
use crate::answer::params::QueryParams;
use crate::answer::{Problem, ProblemPage};
use crate::api::pausing::change_pause;
use crate::api::{REASON_BYTES, WHO_BYTES};
use crate::app::PortalApp;

/// The rights of a viewer to pause and to resume a plugin.
#[derive(Clone, Copy, Default)]
pub(super) struct PauseRights {
    pause: bool,
    resume: bool,
}

impl PauseRights {
    pub(super) async fn of(viewer: &PortalViewer, name: &str) -> Result<Self, Problem> {
        Ok(Self {
            pause: viewer.has_right(GuardedAct::Pause, name).await?,
            resume: viewer.has_right(GuardedAct::Resume, name).await?,
        })
    }
}

/// The pause on a plugin's card, and the link to the form.
pub(super) fn of_card(plugin: &PluginView, may: PauseRights) -> Markup {
    let address = format!("/plugins/{}", encode(&plugin.name));
    html! {
        @if let Some(paused) = &plugin.paused {
            p.alert {
                b { "Paused. " } (paused.who) " paused it at " (at_text(&paused.since)) ": " (paused.why.trim_end_matches('.'))
                ". Retention keeps the states that it has not finished."
            }
            @if may.resume { p { a href={ (address) "/resume" } { "Resume…" } } }
        } @else if may.pause {
            p { a href={ (address) "/pause" } { "Pause…" } }
        }
    }
}

pub(crate) async fn pause_form(
    viewer: PortalViewer,
    Path(name): Path<String>,
    uri: Uri,
) -> Result<PageContent, ProblemPage> {
    confirm_form(&viewer, true, &name, &uri).await
}

pub(crate) async fn resume_form(
    viewer: PortalViewer,
    Path(name): Path<String>,
    uri: Uri,
) -> Result<PageContent, ProblemPage> {
    confirm_form(&viewer, false, &name, &uri).await
}

async fn confirm_form(
    viewer: &PortalViewer,
    pauses: bool,
    name: &str,
    uri: &Uri,
) -> Result<PageContent, ProblemPage> {
    QueryParams::read(uri, &[])?;
    viewer.require_right(if pauses { GuardedAct::Pause } else { GuardedAct::Resume }, name).await?;
    let (verb, told, hint) = match pauses {
        true => (
            "Pause",
            "It gets no states until it is resumed. Calls in progress end. What it has not had waits in the journal, \
             also over a restart and a change of its manifest, and retention keeps it.",
            "The database moves",
        ),
        false => ("Resume", "It goes on from where it was, in order.", "The database is back"),
    };
    let content = html! {
        div.head { h1 { (verb) " " (name) } }
        p { (told) }
        form.replay method="post" action=(uri.path()) {
            div.replay-tools {
                label.grow { span { "Reason" } input name="reason" required maxlength=(REASON_BYTES) placeholder=(hint) autocomplete="off"; }
                @if viewer.name().is_none() { label { span { "Your name" } input name="who" maxlength=(WHO_BYTES) autocomplete="name"; } }
                button.strong { (verb) }
                p.hint { "The reason and your name are kept. " a href="/plugins" { "Back to the plugins" } }
            }
        }
    };
    Ok(PageContent::new(format!("{verb} {name}"), "/plugins", content))
}

pub(crate) async fn post_pause(
    State(app): State<PortalApp>,
    viewer: PortalViewer,
    Path(name): Path<String>,
    headers: HeaderMap,
    fields: Result<Form<Vec<(String, String)>>, FormRejection>,
) -> Result<Response, ProblemPage> {
    submit_form(&app, &viewer, true, &name, &headers, fields).await
}

pub(crate) async fn post_resume(
    State(app): State<PortalApp>,
    viewer: PortalViewer,
    Path(name): Path<String>,
    headers: HeaderMap,
    fields: Result<Form<Vec<(String, String)>>, FormRejection>,
) -> Result<Response, ProblemPage> {
    submit_form(&app, &viewer, false, &name, &headers, fields).await
}

async fn submit_form(
    app: &PortalApp,
    viewer: &PortalViewer,
    pauses: bool,
    name: &str,
    headers: &HeaderMap,
    fields: Result<Form<Vec<(String, String)>>, FormRejection>,
) -> Result<Response, ProblemPage> {
    expect_own_page(headers)?;
    let Form(fields) = fields?;
    let mut request = PauseRequest { who: "portal".into(), ..PauseRequest::default() };
    for (field, value) in fields {
        match field.as_str() {
            "reason" => request.reason = value.trim().to_owned(),
            "who" if value.trim().is_empty() => {}
            "who" => request.who = value.trim().to_owned(),
            _ => {
                let hint = "It has reason and who.";
                return Err(
                    Problem::invalid_request(format!("`{field}` is no field of this form."), hint).into()
                );
            }
        }
    }
    change_pause(app, viewer, pauses, name, request).await?;
    Ok(Redirect::to("/plugins").into_response())
}
