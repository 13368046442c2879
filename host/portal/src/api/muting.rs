//! Muting: who is not notified about an object, about a namespace, or about anything.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::http::{StatusCode, Uri};
use kubewitness_core::views::{MuteRequest, MuteView, MutedView, TimelineQuery};

use crate::access::{GuardedAct, PortalViewer};
use crate::answer::Problem;
use crate::answer::paged::PagedAnswer;
use crate::answer::params::QueryParams;
use crate::app::PortalApp;
use crate::scope::ViewerVisibility;

/// The most namespaces whose mutes one answer shows to a person who may not see all.
const NAMESPACES: usize = 256;

/// For a person who may not mute everything.
const NARROWED: &str = "Only mutes that you may undo are listed. Others may be in force.";

type MuteBody = Result<Json<MuteRequest>, JsonRejection>;

pub(super) async fn mutes(
    State(app): State<PortalApp>,
    viewer: PortalViewer,
    uri: Uri,
) -> Result<PagedAnswer<Vec<MuteView>>, Problem> {
    QueryParams::read(&uri, &[])?;
    let mutes = visible_mutes(&app, &viewer).await?;
    // It is the same whether or not there are others.
    let notice = (!viewer.has_right(GuardedAct::Mute, "").await?).then(|| NARROWED.to_owned());
    Ok(PagedAnswer::new(mutes, None).with_notices(notice.into_iter().collect()))
}

pub(super) async fn mute(
    State(app): State<PortalApp>,
    viewer: PortalViewer,
    uri: Uri,
    body: MuteBody,
) -> Result<Json<MutedView>, Problem> {
    QueryParams::read(&uri, &[])?;
    Ok(Json(change_mute(&app, &viewer, true, body?.0).await?))
}

pub(super) async fn unmute(
    State(app): State<PortalApp>,
    viewer: PortalViewer,
    uri: Uri,
    body: MuteBody,
) -> Result<Json<MutedView>, Problem> {
    QueryParams::read(&uri, &[])?;
    Ok(Json(change_mute(&app, &viewer, false, body?.0).await?))
}

/// The mutes that the viewer may remove, newest first.
pub(crate) async fn visible_mutes(app: &PortalApp, viewer: &PortalViewer) -> Result<Vec<MuteView>, Problem> {
    let mut mutes = app.views.list_mutes().await?;
    mutes.reverse();
    if viewer.has_right(GuardedAct::Mute, "").await? {
        return Ok(mutes);
    }
    let mut may = BTreeMap::from([(String::new(), None)]);
    for MuteView { namespace, .. } in &mutes {
        if !may.contains_key(namespace) && may.len() <= NAMESPACES {
            may.insert(namespace.clone(), viewer.mutes_in(namespace).await?);
        }
    }
    mutes.retain(|mute| {
        let live = may.get(&mute.namespace).and_then(Option::as_ref);
        live.is_some_and(|live| mute.is_of(&live.uid, live.created_ms))
    });
    Ok(mutes)
}

/// The list has the name of the signed-in person.
pub(crate) async fn change_mute(
    app: &PortalApp,
    viewer: &PortalViewer,
    mutes: bool,
    request: MuteRequest,
) -> Result<MutedView, Problem> {
    request.check().map_err(|why| {
        let hint = "Name one object by `uid`, or one `namespace`, or `all`; and a recipient in `to` where it is for one.";
        Problem::invalid_request(format!("This can't be muted: {why}."), hint)
    })?;
    let MuteRequest { uid, namespace, all: _, to, who } = request;
    let who = viewer.name().map_or(who, str::to_owned);
    let mut mute = MuteView { namespace: namespace.unwrap_or_default(), to, who, ..MuteView::default() };
    if mute.who.trim().is_empty() {
        mute.who = "api".to_owned();
    }
    if let Some(uid) = uid {
        // A person who may not see the object does not learn whether it exists.
        let query = TimelineQuery { uid: Some(uid.clone()), limit: Some(1), ..TimelineQuery::default() };
        let story = ViewerVisibility::new(app, viewer).story_part(&query).await?;
        let known = story.states.last().map(|state| {
            (format!("{}/{}", state.object.kind, state.object.name), state.object.namespace.clone())
        });
        // The journal may have nothing of it any more.
        let known = match known {
            None if !mutes => {
                let before = visible_mutes(app, viewer).await?.into_iter().find(|mute| mute.uid == uid);
                before.map(|mute| (mute.object, mute.namespace))
            }
            known => known,
        };
        (mute.object, mute.namespace) = known.ok_or_else(|| {
            let message = format!("Nothing was witnessed of an object with the uid {uid}.");
            Problem::new(StatusCode::NOT_FOUND, message, "`kubewitness get KIND/NAME -o json` shows the uid.")
        })?;
        mute.uid = uid;
    }
    viewer.must_mute_in(&mute.namespace).await?;
    // A person who may mute everything also removes mutes of a former namespace with the name.
    let is_of_any = !mutes && viewer.has_right(GuardedAct::Mute, "").await?;
    if !mute.namespace.is_empty() && !is_of_any {
        mute.namespace_uid = viewer.mutes_in(&mute.namespace).await?.map(|live| live.uid).unwrap_or_default();
    }
    Ok(app.views.set_mute(&mute, mutes).await?)
}
