//! Mutes: the part of an object's page that mutes it, and the page that lists all mutes.

use axum::Form;
use axum::extract::State;
use axum::extract::rejection::FormRejection;
use axum::http::{HeaderMap, Uri};
use axum::response::{IntoResponse, Redirect, Response};
use kubewitness_core::ObjectRef;
use kubewitness_core::views::{MuteRequest, MuteView, ReportView};
use maud::{Markup, html};

use crate::access::{GuardedAct, PortalViewer};
use crate::answer::frame::PageContent;
use crate::answer::params::QueryParams;
use crate::answer::{Problem, ProblemPage};
use crate::api::WHO_BYTES;
use crate::api::muting::{change_mute, visible_mutes};
use crate::app::PortalApp;
use crate::pages::parts::{at_text, encode, expect_own_page, render_empty};

const PAGE: &str = "/mutes";
/// Fits a name in Kubernetes and an e-mail address.
const TEXT_BYTES: usize = 256;

/// The mutes of an object, and the form that mutes it, if the viewer may.
pub(super) async fn of_object(
    app: &PortalApp,
    viewer: &PortalViewer,
    object: &ObjectRef,
    reports: &[ReportView],
) -> Result<Markup, Problem> {
    let may = viewer.may_in(GuardedAct::Mute, &object.namespace).await?;
    let mut mutes = Vec::new();
    for mute in app.views.list_mutes().await? {
        if mute.covers_object(&object.uid, &object.namespace) && viewer.is_in_force(&mute).await? {
            mutes.push(mute);
        }
    }
    let mut recipients: Vec<&str> =
        reports.iter().map(|report| &*report.to).filter(|to| !to.is_empty()).collect();
    recipients.sort_unstable();
    recipients.dedup();
    Ok(html! {
        @if may || !mutes.is_empty() {
            section aria-labelledby="mutes" {
                h2 #mutes { "Mute" }
                @for mute in &mutes {
                    p.notice { (mute_text(mute)) }
                    @if may && mute.uid == object.uid { (render_unmute_form(mute)) }
                }
                @if may {
                    form method="post" action=(PAGE) {
                        input type="hidden" name="uid" value=(object.uid);
                        div.replay-tools {
                            label { span { "Recipient" } select name="to" {
                                option value="" { "everybody" }
                                @for to in recipients { option value=(to) { (to) @if is_theirs(viewer, to) { " (you)" } } }
                            } }
                            (render_name_field(viewer))
                            button name="do" value="mute" { "Mute" }
                        }
                    }
                }
                p.hint { a href=(PAGE) { "Mute a namespace, or undo a mute" } }
            }
        }
    })
}

fn is_theirs(viewer: &PortalViewer, to: &str) -> bool {
    viewer
        .name()
        .is_some_and(|name| to == name || to.split_once(':').is_some_and(|(_, address)| address == name))
}

fn render_name_field(viewer: &PortalViewer) -> Markup {
    html! {
        @if viewer.name().is_none() { label { span { "Your name" } input name="who" maxlength=(WHO_BYTES) autocomplete="name"; } }
    }
}

fn render_mute_scope(mute: &MuteView) -> Markup {
    html! {
        @match (mute.uid.is_empty(), mute.namespace.is_empty()) {
            (false, _) => { a href={ "/objects/" (encode(&mute.uid)) } { (mute.object) @if !mute.namespace.is_empty() { " in " (mute.namespace) } } }
            (true, false) => { "The namespace " (mute.namespace) }
            (true, true) => { "Everything" }
        }
    }
}

fn mute_text(mute: &MuteView) -> Markup {
    let whom = if mute.to.is_empty() { "Nobody is told" } else { mute.to.as_str() };
    html! { b { (render_mute_scope(mute)) " is muted." } " " (whom) @if !mute.to.is_empty() { " is not told" } ". " (mute.who) " muted it at " (at_text(&mute.at)) "." }
}

fn render_unmute_form(mute: &MuteView) -> Markup {
    let MuteView { uid, namespace, to, .. } = mute;
    html! {
        form method="post" action=(PAGE) {
            @if !uid.is_empty() { input type="hidden" name="uid" value=(uid); }
            @else if namespace.is_empty() { input type="hidden" name="all" value="true"; }
            @else { input type="hidden" name="namespace" value=(namespace); }
            input type="hidden" name="to" value=(to);
            button name="do" value="unmute" { "Unmute" }
        }
    }
}

pub(crate) async fn page(
    State(app): State<PortalApp>,
    viewer: PortalViewer,
    uri: Uri,
) -> Result<PageContent, ProblemPage> {
    QueryParams::read(&uri, &[])?;
    let mutes = visible_mutes(&app, &viewer).await?;
    let content = html! {
        div.head { h1 { "Mutes" } }
        p { "Plugins send no messages about what is muted. A mute for one recipient stops the messages to that recipient alone. To mute one job, open its page." }
        form method="post" action=(PAGE) {
            div.replay-tools {
                label { span { "Namespace" } input name="namespace" maxlength=(TEXT_BYTES) autocomplete="off"; }
                label { input type="checkbox" name="all" value="true"; span { "Everything, in all namespaces" } }
                label { span { "Recipient, or empty for everybody" } input name="to" maxlength=(TEXT_BYTES) autocomplete="off"; }
                (render_name_field(&viewer))
                button.strong name="do" value="mute" { "Mute" }
            }
        }
        @if mutes.is_empty() { (render_empty("No mutes", &html! { "There is no mute that you may undo." })) }
        @for mute in &mutes { p.notice { (mute_text(mute)) } (render_unmute_form(mute)) }
    };
    Ok(PageContent::new("Mutes", "/", content).with_stillness("mutes"))
}

pub(crate) async fn post_mute_change(
    State(app): State<PortalApp>,
    viewer: PortalViewer,
    headers: HeaderMap,
    fields: Result<Form<Vec<(String, String)>>, FormRejection>,
) -> Result<Response, ProblemPage> {
    expect_own_page(&headers)?;
    let Form(fields) = fields?;
    let mut request = MuteRequest { who: "portal".to_owned(), ..MuteRequest::default() };
    let mut mutes = None;
    for (field, value) in fields {
        let value = value.trim().to_owned();
        match (field.as_str(), value.as_str()) {
            ("do", "mute") => mutes = Some(true),
            ("do", "unmute") => mutes = Some(false),
            ("uid", _) => request.uid = Some(value),
            ("namespace", "") => {}
            ("all", "true") => request.all = true,
            ("namespace", _) => request.namespace = Some(value),
            ("to", _) => request.to = value,
            ("who", "") => {}
            ("who", _) => request.who = value,
            _ => {
                let hint = "The form has the fields do, uid, namespace, all (true), to and who.";
                return Err(
                    Problem::invalid_request(format!("`{field}` is no field of this form."), hint).into()
                );
            }
        }
    }
    let Some(mutes) = mutes else {
        return Err(
            Problem::invalid_request("It is not said what to do.", "`do` is `mute` or `unmute`.").into()
        );
    };
    let back =
        request.uid.as_ref().map_or_else(|| PAGE.to_owned(), |uid| format!("/objects/{}", encode(uid)));
    change_mute(&app, &viewer, mutes, request).await?;
    Ok(Redirect::to(&back).into_response())
}
