//! Describes each part of the API: its purpose, its refusals and its answers.

use kubewitness_core::views::{
    GapQuery, LetterQuery, ObjectQuery, PoisonQuery, SubmitRequest, SubmitView, TimelineQuery,
};
use serde_json::{Value, json};

use super::{ApiDescription, number_schema, text};
use crate::api::timeline::{TIMELINE, timeline};
use crate::api::{self, GAPS, LETTERS, OBJECTS, POISON};
use crate::submit::KEY_BYTES;

pub(super) fn describe_api() -> Value {
    let mut api = ApiDescription::new();
    api.get("/api/v1/status", "status", "Sources, plugins and the journal in figures").with_answer(
        api::status,
        "The figures. For each plugin observed = delivered + filtered + dead + waiting + taken.",
    );
    api.get("/api/v1/objects", "objects", "What is there now, each with its status")
        .with_query::<ObjectQuery>(OBJECTS)
        .with_refusals(&[403])
        .with_answer(
            api::objects,
            "Objects, the newest change first. Each `Kubewitness-Notice` is a sentence on what makes the answer less \
             than all. `Kubewitness-Forbidden` comes with an empty answer: it names the verb and the resources that you lack.",
        );
    api.get("/api/v1/timeline", "timeline", "The story of one object and of those that it owns")
        .with_query::<TimelineQuery>(TIMELINE)
        .with_refusals(&[404])
        .with_answer(timeline, "The newest states, oldest first. The next part has the states before them.");
    api.get(
        "/api/v1/states/{seq}/document",
        "document",
        "The document of one state as the server sent it, with a digest in the place of each secret",
    )
    .with_parameter("path", "seq", "The state's position.", &number_schema())
    .with_refusals(&[404])
    .with_media(
        "application/json",
        &json!({"type": "object"}),
        "The document. For a gap its description; empty where a deletion was found by comparison.",
    );
    api.get("/api/v1/plugins", "plugins", "The plugins, as in the status")
        .with_answer(api::plugins, "The plugins.");
    describe_pauses(&mut api);
    describe_mutes(&mut api);
    api.get("/api/v1/gaps", "gaps", "Versions that are known to be missing").with_query::<GapQuery>(GAPS).with_refusals(&[403]).with_answer(
        api::gaps,
        "The gaps, newest first. Versions strictly between `after` and `before` were not witnessed; an empty bound is \
         not known.",
    );
    api.get("/api/v1/poison", "poison", "Poison messages: bytes that are no object of their source's kind")
        .with_query::<PoisonQuery>(POISON)
        .with_refusals(&[403])
        .with_answer(api::poison, "Poison messages, newest first, without their bytes.");
    api.get("/api/v1/poison/{number}/raw", "poisonRaw", "The bytes of one poison message, as they came")
        .with_parameter("path", "number", "The poison message's number.", &number_schema())
        .with_refusals(&[403, 404])
        .with_media("text/plain", &text(), "The bytes, to be saved and not to be shown.");
    describe_letters(&mut api);
    describe_submissions(&mut api);
    let position = json!({"type": "string", "pattern": "^[0-9]{1,18}(-[0-9a-f]{12})?$"});
    api.get("/api/v1/events", "events", "The live stream of states")
        .with_parameter(
            "query",
            "after",
            "States after this position: the id of an event, or a number. Where it is left out, those to come.",
            &position,
        )
        .with_parameter(
            "header",
            "Last-Event-ID",
            "Like `after`, and takes precedence. A browser sends it when it reconnects.",
            &position,
        )
        .with_media(
            "text/event-stream",
            &text(),
            "Server-sent events. `state`: the id is the position and a mark of what stands there, the data a state as JSON. \
             `position`: comes first where no position is given; the data is the position after which the stream begins. \
             `reset`: the journal has not what stood at the position asked for; the data is its newest position. \
             `causes`: causes of outcomes were found; lists that show them are to be asked again. It has no id. \
             `Kubewitness-Notice` tells where retention has removed states after the position.",
        );
    api.add_operation(
        "post",
        "/api/v1/login",
        "login",
        "A one-time login for a browser, for the sender of a token",
    )
    .with_refusals(&[403])
    .with_answer(api::login_once, "The code. The page `/login/once?code=CODE` takes it once.");
    describe_itself(&mut api);
    api.into_document()
}

fn describe_pauses(api: &mut ApiDescription) {
    let name = "The plugin's name.";
    let message = "Whether that changed anything, and the pause that is in force now.";
    api.add_post(
        "/api/v1/plugins/{name}/pause",
        "pause",
        "Pauses a plugin: it gets no states until it is resumed",
        &on_plugin("pause"),
    )
    .with_parameter("path", "name", name, &text())
    .changes_named(api::pausing::pause, message);
    api.add_post(
        "/api/v1/plugins/{name}/resume",
        "resume",
        "Resumes a plugin: it goes on from where it was",
        &on_plugin("resume"),
    )
    .with_parameter("path", "name", name, &text())
    .changes_named(api::pausing::resume, message);
}

/// The right to change something of one plugin.
fn on_plugin(verb: &str) -> String {
    format!("`{verb}` on `plugins` of `kubewitness.dev`, for the plugin's name")
}

fn describe_mutes(api: &mut ApiDescription) {
    let right = "`mute` on `notifications` of `kubewitness.dev`, in the namespace or in the cluster";
    api.get("/api/v1/mutes", "mutes", "The mutes: recipient and object of each")
        .with_answer(api::muting::mutes, "The mutes that the person may undo, newest first.");
    let message = "Whether that changed anything, and the mute.";
    api.add_post("/api/v1/mute", "mute", "Mutes an object, a namespace or everything", right)
        .with_refusals(&[404])
        .with_change(api::muting::mute, message);
    api.add_post("/api/v1/unmute", "unmute", "Undoes a mute", right)
        .with_refusals(&[404])
        .with_change(api::muting::unmute, message);
}

fn describe_submissions(api: &mut ApiDescription) {
    api.get("/api/v1/templates", "templates", "The templates of which people make Jobs")
        .with_refusals(&[404])
        .with_answer(api::submitting::templates, "The templates, by name. 404 where nobody submits Jobs.");
    let key = json!({"type": "string", "minLength": 1, "maxLength": KEY_BYTES, "pattern": "^[!-~]+$"});
    let mut operation = api
        .add_operation("post", "/api/v1/jobs", "submit", "Creates a Job from a template, in the name of the person who asks")
        .with_refusals(&[403, 404, 409, 413, 415, 422])
        .with_parameter(
            "header",
            "Idempotency-Key",
            "A request with the same key makes no second Job, also at another replica. Without it: a new key.",
            &key,
        )
        .with_body::<SubmitRequest>();
    let message = "The API server decides whether the person may. What it refuses has the parameter in `fields`. 503: it \
                is not known whether the Job was created; the same request with the same key tells.";
    operation.fields.insert("description".into(), message.into());
    let schema = operation.of.answers.subschema_for::<SubmitView>();
    let created = json!({
        "description": "The Job is created.", "content": {"application/json": {"schema": schema}},
    });
    operation.fields.insert("responses".into(), json!({"201": created}));
    let text = "An earlier request with this key has created the Job, or `dry_run` has created none.";
    operation.with_media("application/json", schema.as_value(), text);
}

fn describe_letters(api: &mut ApiDescription) {
    api.get("/api/v1/deadletters", "deadLetters", "States that were parked after their last try")
        .with_query::<LetterQuery>(LETTERS)
        .with_refusals(&[404])
        .with_answer(api::dead_letters, "The dead letters, by plugin and position.");
    api.add_post("/api/v1/deadletters/replay", "replay", "Replays dead letters", &on_plugin("replay"))
        .with_refusals(&[409])
        .with_change(api::replay, "The dead letters that were replayed, or with `dry_run` would be.");
    let dropped = "The dead letters that were dropped, or with `dry_run` would be. Dropped letters stay counted as dead.";
    api.add_post("/api/v1/deadletters/drop", "drop", "Drops dead letters for good", &on_plugin("drop"))
        .with_refusals(&[409])
        .with_change(api::drop_letters, dropped);
    api.get(
        "/api/v1/deadletters/records",
        "letterRecords",
        "Who replayed or dropped dead letters, newest first",
    )
    .with_query::<LetterQuery>(LETTERS)
    .with_refusals(&[403])
    .with_answer(api::letter_records, "The records.");
}

/// The operations about the process and about the API itself.
fn describe_itself(api: &mut ApiDescription) {
    let mut description = api.get("/api/v1/openapi.json", "openapi", "This description");
    description.refusals.clear();
    description.with_media("application/json", &json!({"type": "object"}), "OpenAPI 3.1.");
    api.get("/healthz", "healthz", "Whether the process runs").with_media("text/plain", &text(), "It does.");
    let mut ready = api.get("/readyz", "readyz", "Whether the controller is ready");
    let not = json!({"description": "It is not, and why.", "content": {"text/plain": {"schema": text()}}});
    ready.fields.insert("responses".into(), json!({"503": not}));
    ready.with_media("text/plain", &text(), "It is.");
    api.get("/metrics", "metrics", "Figures for Prometheus").with_refusals(&[403, 503]).with_media(
        "text/plain",
        &text(),
        "Text format 0.0.4.",
    );
}
