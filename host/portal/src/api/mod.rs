//! The API for programs, described by `api/openapi.json`, which `cargo xtask docs` generates from this code.
//!
//! Scripts need stable shapes, and people's pages change. So the API has its own routes, and renders no HTML;
//! both read the same views. A handler never decides about rights: `access` determines the viewer, and
//! `scope` decides what the viewer sees. A list is limited, and has a cursor to its next part.

#[cfg(test)]
mod description;
mod events;
pub(crate) mod muting;
pub(crate) mod pausing;
pub(crate) mod submitting;
mod timeline;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use kubewitness_core::Gap;
use kubewitness_core::views::{
    DeadLetterView, DropView, GapQuery, LetterQuery, LetterRecordView, LoginView, ObjectQuery, ObjectView,
    PluginView, PoisonQuery, PoisonView, RecordQuery, ReplayRequest, ReplayView, StatusView,
};

use crate::access::codes::GOOD_FOR;
use crate::access::{GuardedAct, PortalViewer};
pub(crate) use crate::answer::WHO_BYTES;
use crate::answer::paged::PagedAnswer;
use crate::answer::params::{self, QueryParams};
use crate::answer::{Problem, codes};
use crate::app::{AppRoute, PortalApp};
use crate::scope::{self, AccessVerb, ViewerVisibility, VisiblePart};

/// The most rows of one answer: the default is what a person looks through, the maximum what a script may
/// request.
pub(crate) const ROWS: usize = 500;
pub(crate) const MOST_ROWS: usize = 10_000;
/// A reason is one sentence in the record.
pub(crate) const REASON_BYTES: usize = 1024;
/// The most positions of one replay. With more, people replay all letters of the plugin.
const MOST_SEQS: usize = 1000;

/// The parameters of the operations that take several.
const OBJECTS: &[&str] = &[
    "source",
    "kind",
    "namespace",
    "name",
    "labelSelector",
    "index",
    "phase",
    "was",
    "cause",
    "gone",
    "since",
    "until",
    "search",
    "at",
    "sort",
    "details",
    "cursor",
    "limit",
];
const GAPS: &[&str] = &["source", "uid", "kind", "namespace", "name", "cursor", "limit"];
const POISON: &[&str] = &["source", "cursor", "limit"];
const LETTERS: &[&str] = &["plugin", "cursor", "limit"];

/// How many objects with details one answer has by default.
const DETAILED: usize = 100;

pub(crate) const OPENAPI: &str = include_str!("openapi.json");

pub(crate) fn routes() -> Vec<AppRoute> {
    vec![
        ("/api/v1/status", get(status)),
        ("/api/v1/objects", get(objects)),
        ("/api/v1/timeline", get(timeline::timeline)),
        ("/api/v1/states/{seq}/document", get(document)),
        ("/api/v1/plugins", get(plugins)),
        ("/api/v1/plugins/{name}/pause", post(pausing::pause)),
        ("/api/v1/plugins/{name}/resume", post(pausing::resume)),
        ("/api/v1/mutes", get(muting::mutes)),
        ("/api/v1/mute", post(muting::mute)),
        ("/api/v1/unmute", post(muting::unmute)),
        ("/api/v1/gaps", get(gaps)),
        ("/api/v1/poison", get(poison)),
        ("/api/v1/poison/{number}/raw", get(poison_raw)),
        ("/api/v1/deadletters", get(dead_letters)),
        ("/api/v1/deadletters/replay", post(replay)),
        ("/api/v1/deadletters/drop", post(drop_letters)),
        ("/api/v1/deadletters/records", get(letter_records)),
        ("/api/v1/templates", get(submitting::templates)),
        ("/api/v1/jobs", post(submitting::submit)),
        ("/api/v1/events", get(events::events)),
        ("/api/v1/login", post(login_once)),
        ("/api/v1/openapi.json", get(openapi)),
    ]
}

async fn status(
    State(app): State<PortalApp>,
    viewer: PortalViewer,
    uri: Uri,
) -> Result<Json<StatusView>, Problem> {
    QueryParams::read(&uri, &[])?;
    Ok(Json(ViewerVisibility::new(&app, &viewer).visible_status().await?))
}

/// The body has the page's objects; the headers have the next page's address and notices.
async fn objects(
    State(app): State<PortalApp>,
    viewer: PortalViewer,
    uri: Uri,
) -> Result<PagedAnswer<Vec<ObjectView>>, Problem> {
    let params = QueryParams::read(&uri, OBJECTS)?;
    let details = params.is_true("details")?;
    let limit = params.row_limit(if details { DETAILED } else { ROWS }, MOST_ROWS)?;
    let mut query = ObjectQuery {
        source: params.owned_text("source"),
        kind: params.owned_text("kind"),
        namespace: params.owned_text("namespace"),
        name: params.owned_text("name"),
        label_selector: params.owned_text("labelSelector"),
        index: params.owned_text("index"),
        phase: params.parse_phase("phase")?.map(str::to_owned),
        was: params.parse_phase("was")?.map(str::to_owned),
        cause: params.parse_cause("cause")?,
        gone: params.gone_filter()?,
        since: params.owned_text("since"),
        until: params.owned_text("until"),
        search: params.owned_text("search"),
        at: params.owned_text("at"),
        sort: params.owned_text("sort"),
        cursor: params.owned_text("cursor"),
        details,
        limit: Some(limit),
        gone_name_end: None,
        within: None,
        hides_plugins: false,
    };
    scope::check_filters(&app, &query)?;
    let visible = ViewerVisibility::new(&app, &viewer);
    query.within = visible.visible_objects(&query).await?;
    let turn = app.readings.await_turn(viewer.party_of_shares(), limit).await;
    let mut page = visible.object_page(query.clone()).await?;
    page.objects.truncate(limit);
    let mut forbidden = None;
    // If nothing was found, nothing waits to be sent, and checking rights may take long.
    let turn = turn.filter(|_| !page.objects.is_empty());
    if page.objects.is_empty() {
        scope::check(&app, query.source.as_deref(), query.kind.as_deref())?;
        forbidden = visible.missing_right(AccessVerb::List, &query).await?;
    }
    let next = params.next(&uri, page.next);
    Ok(PagedAnswer::of_rows(page.objects, next, turn).with_notices(page.notices).with_forbidden(forbidden))
}

async fn document(
    State(app): State<PortalApp>,
    viewer: PortalViewer,
    Path(seq): Path<String>,
    uri: Uri,
) -> Result<Response, Problem> {
    QueryParams::read(&uri, &[])?;
    let bytes =
        ViewerVisibility::new(&app, &viewer).visible_document(params::parse_number("seq", &seq)?).await?;
    Ok(([(header::CONTENT_TYPE, "application/json")], bytes).into_response())
}

async fn plugins(
    State(app): State<PortalApp>,
    viewer: PortalViewer,
    uri: Uri,
) -> Result<Json<Vec<PluginView>>, Problem> {
    QueryParams::read(&uri, &[])?;
    Ok(Json(ViewerVisibility::new(&app, &viewer).visible_status().await?.plugins))
}

async fn gaps(
    State(app): State<PortalApp>,
    viewer: PortalViewer,
    uri: Uri,
) -> Result<PagedAnswer<Vec<Gap>>, Problem> {
    let params = QueryParams::read(&uri, GAPS)?;
    let limit = params.row_limit(ROWS, MOST_ROWS)?;
    let visible = ViewerVisibility::new(&app, &viewer);
    let query = GapQuery {
        source: params.owned_text("source"),
        uid: params.owned_text("uid"),
        kind: params.owned_text("kind"),
        namespace: params.owned_text("namespace"),
        name: params.owned_text("name"),
        cursor: params.parse_cursor("cursor")?,
        limit: None,
    };
    let (source, kind, namespace) = (query.source.clone(), query.kind.clone(), query.namespace.clone());
    let could_list = visible.could_list(kind.as_deref(), namespace.as_deref()).await?;
    let part = match could_list {
        true => visible.visible_gaps(query, limit).await?,
        false => VisiblePart::default(),
    };
    if part.rows.is_empty() {
        scope::check(&app, source.as_deref(), kind.as_deref())?;
    }
    let forbidden = match could_list {
        true => None,
        false => {
            visible
                .missing_right(
                    AccessVerb::List,
                    &ObjectQuery { source, kind, namespace, ..ObjectQuery::default() },
                )
                .await?
        }
    };
    Ok(PagedAnswer::of_rows(part.rows, params.next(&uri, part.next), part.turn).with_forbidden(forbidden))
}

async fn poison(
    State(app): State<PortalApp>,
    viewer: PortalViewer,
    uri: Uri,
) -> Result<PagedAnswer<Vec<PoisonView>>, Problem> {
    let params = QueryParams::read(&uri, POISON)?;
    let limit = params.row_limit(ROWS, MOST_ROWS)?;
    viewer.require_right(GuardedAct::SeeStatus, "").await?;
    let source = params.owned_text("source");
    let query = PoisonQuery { source: source.clone(), cursor: params.parse_cursor("cursor")?, limit: None };
    let part = ViewerVisibility::new(&app, &viewer).visible_poison(query, limit).await?;
    if part.rows.is_empty() {
        scope::check(&app, source.as_deref(), None)?;
    }
    Ok(PagedAnswer::of_rows(part.rows, params.next(&uri, part.next), part.turn))
}

/// A browser must save it and not show it, whatever it is: it comes from an untrusted source.
async fn poison_raw(
    State(app): State<PortalApp>,
    viewer: PortalViewer,
    Path(number): Path<String>,
    uri: Uri,
) -> Result<Response, Problem> {
    QueryParams::read(&uri, &[])?;
    let number = params::parse_number("number", &number)?;
    let bytes = ViewerVisibility::new(&app, &viewer).poison_raw(number).await?;
    let saved = format!("attachment; filename=\"poison-{number}.txt\"");
    let headers = [
        (header::CONTENT_TYPE, "text/plain; charset=utf-8".to_owned()),
        (header::CONTENT_DISPOSITION, saved),
    ];
    Ok((headers, bytes).into_response())
}

async fn dead_letters(
    State(app): State<PortalApp>,
    viewer: PortalViewer,
    uri: Uri,
) -> Result<PagedAnswer<Vec<DeadLetterView>>, Problem> {
    let params = QueryParams::read(&uri, LETTERS)?;
    let limit = params.row_limit(ROWS, MOST_ROWS)?;
    let query = LetterQuery {
        plugin: params.owned_text("plugin"),
        cursor: params.parse_cursor("cursor")?,
        ..LetterQuery::default()
    };
    let (visible, is_first) = (ViewerVisibility::new(&app, &viewer), query.cursor.is_none());
    let part = visible.visible_letters(query, limit).await?;
    let forbidden = match is_first && part.rows.is_empty() {
        true => visible.missing_right(AccessVerb::List, &ObjectQuery::default()).await?,
        false => None,
    };
    Ok(PagedAnswer::of_rows(part.rows, params.next(&uri, part.next), part.turn).with_forbidden(forbidden))
}

async fn replay(
    State(app): State<PortalApp>,
    viewer: PortalViewer,
    uri: Uri,
    body: Result<Json<ReplayRequest>, JsonRejection>,
) -> Result<Json<ReplayView>, Problem> {
    QueryParams::read(&uri, &[])?;
    let Json(request) = body?;
    let request = authorise_replay(&viewer, GuardedAct::Replay, request).await?;
    Ok(Json(app.views.replay_letters(&request).await?))
}

async fn drop_letters(
    State(app): State<PortalApp>,
    viewer: PortalViewer,
    uri: Uri,
    body: Result<Json<ReplayRequest>, JsonRejection>,
) -> Result<Json<DropView>, Problem> {
    QueryParams::read(&uri, &[])?;
    let Json(request) = body?;
    let request = authorise_replay(&viewer, GuardedAct::Drop, request).await?;
    Ok(Json(app.views.drop_letters(&request).await?))
}

async fn letter_records(
    State(app): State<PortalApp>,
    viewer: PortalViewer,
    uri: Uri,
) -> Result<PagedAnswer<Vec<LetterRecordView>>, Problem> {
    let params = QueryParams::read(&uri, LETTERS)?;
    let limit = params.row_limit(ROWS, MOST_ROWS)?;
    viewer.require_right(GuardedAct::SeeStatus, "").await?;
    // One more row shows whether more exist.
    let query = RecordQuery {
        plugin: params.owned_text("plugin"),
        before: params.parse_cursor("cursor")?,
        limit: limit + 1,
    };
    let turn = app.readings.await_turn(viewer.party_of_shares(), limit).await;
    let mut records = app.views.letter_records(&query).await?;
    let is_cut = records.len() > limit;
    records.truncate(limit);
    let next = records.last().filter(|_| is_cut).map(|record| record.number);
    let next = params.next(&uri, next);
    Ok(PagedAnswer::of_rows(records, next, turn))
}

/// The request as it is executed: the record names the signed-in person.
pub(crate) async fn authorise_replay(
    viewer: &PortalViewer,
    act: GuardedAct,
    mut request: ReplayRequest,
) -> Result<ReplayRequest, Problem> {
    check_replay(&request)?;
    viewer.require_right(act, &request.plugin).await?;
    if let Some(name) = viewer.name() {
        request.who = name.to_owned();
    }
    Ok(request)
}

/// Checks the texts that the record stores.
fn check_record(what: &str, reason: &str, who: &str) -> Result<(), Problem> {
    let hint = "The reason is kept with what was done, for whoever asks later.";
    if reason.trim().is_empty() {
        return Err(Problem::invalid_request(format!("{what} needs a reason."), hint));
    }
    if reason.len() > REASON_BYTES {
        return Err(Problem::invalid_request(
            format!("The reason is longer than {REASON_BYTES} bytes."),
            hint,
        ));
    }
    if who.len() > WHO_BYTES {
        return Err(Problem::invalid_request(format!("`who` is longer than {WHO_BYTES} bytes."), hint));
    }
    Ok(())
}

fn check_replay(request: &ReplayRequest) -> Result<(), Problem> {
    if request.plugin.trim().is_empty() {
        return Err(Problem::invalid_request(
            "`plugin` is empty.",
            "Name the plugin whose dead letters are meant.",
        ));
    }
    check_record("A replay or a drop", &request.reason, &request.who)?;
    if request.is_unconfirmed() {
        return Err(Problem::invalid_request(
            "The request names no positions, and does not say how many dead letters it means.",
            "Count them by the same request with `dry_run`, and send that number as `exactly`. Or name their positions in \
             `seqs`.",
        ));
    }
    if request.seqs.len() > MOST_SEQS {
        return Err(Problem::invalid_request(
            format!("More than {MOST_SEQS} positions are named."),
            "Name them in parts, or name none and choose by `namespace`, `error`, `since` or `until`.",
        ));
    }
    Ok(())
}

/// For `kubewitness dashboard`: no token ever appears in an address.
async fn login_once(
    State(_): State<PortalApp>,
    viewer: PortalViewer,
    uri: Uri,
) -> Result<Json<LoginView>, Problem> {
    QueryParams::read(&uri, &[])?;
    if matches!(viewer, PortalViewer::Everybody) {
        return Ok(Json(LoginView::default()));
    }
    let (control, token) = viewer.sent_token().ok_or_else(|| {
        Problem::new(
            StatusCode::FORBIDDEN,
            "A one-time login is for a person who has sent a token.",
            "Send the token as `Authorization: Bearer TOKEN`. A session and a proxy have signed you in already.",
        )
    })?;
    let code = control.codes.issue_code(token, viewer.name().unwrap_or_default()).ok_or_else(|| {
        Problem::with_code(
            codes::TOO_MANY_LOGINS,
            "There are too many one-time logins under way.",
            "Try again in a minute, or sign in with a token at /login.",
        )
    })?;
    Ok(Json(LoginView { code, good_for_seconds: GOOD_FOR.as_secs() }))
}

async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI).into_response()
}
