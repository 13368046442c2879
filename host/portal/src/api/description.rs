//! Makes `openapi.json`: paths, parameters, bodies and answers are read off the handlers and their types.
//!
//! It is compiled for tests alone, so that what is shipped knows no schemas. The test below compares the
//! file with what the code says; `cargo xtask docs` has it written.

use std::future::Future;
use std::path::Path;

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::http::Uri;
use kubewitness_core::views::{
    GapQuery, LetterQuery, ObjectQuery, PoisonQuery, SubmitRequest, SubmitView, TimelineQuery,
};
use kubewitness_harness::generated;
use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::{GAPS, LETTERS, MOST_ROWS, MOST_SEQS, OBJECTS, POISON, REASON_BYTES, ROWS, TIMELINE, WHO_BYTES};
use crate::access::Viewer;
use crate::answer::paged::Paged;
use crate::answer::{Problem, codes};
use crate::app::App;
use crate::submit::KEY_BYTES;

const SCHEMAS: &str = "/components/schemas";
const PROBLEM: &str = "application/problem+json";
/// Where a handler's row limit stands among its parameters.
const LIMIT: &str = "limit";

/// All that is described so far.
struct Description {
    answers: SchemaGenerator,
    bodies: SchemaGenerator,
    paths: Map<String, Value>,
}

/// What a handler gives.
trait Answer {
    type Body: JsonSchema;
    /// Whether a header tells where the next part is.
    const HAS_PARTS: bool;
}

impl<T: JsonSchema> Answer for Json<T> {
    type Body = T;
    const HAS_PARTS: bool = false;
}

impl<T: JsonSchema> Answer for Paged<T> {
    type Body = T;
    const HAS_PARTS: bool = true;
}

/// One method of one path.
struct Operation<'a> {
    of: &'a mut Description,
    path: &'static str,
    method: &'static str,
    told: Map<String, Value>,
    refusals: Vec<u16>,
    has_parts: bool,
}

impl Description {
    fn new() -> Self {
        let settings = || {
            SchemaSettings::draft2020_12().with(|settings| {
                settings.definitions_path = SCHEMAS.into();
                settings.meta_schema = None;
                settings.transforms.push(Box::new(RecursiveTransform(tidy)));
            })
        };
        let answers = settings().for_serialize().with_transform(RecursiveTransform(without_default));
        Self {
            answers: answers.into_generator(),
            bodies: settings().for_deserialize().into_generator(),
            paths: Map::new(),
        }
    }

    fn get(&mut self, path: &'static str, id: &str, summary: &str) -> Operation<'_> {
        self.operation("get", path, id, summary)
    }

    /// What changes something. A page of another site can't. `right` is what a person who signs in needs.
    fn post(&mut self, path: &'static str, id: &str, summary: &str, right: &str) -> Operation<'_> {
        let mut operation = self.operation("post", path, id, summary).refuses(&[403, 404, 413, 415, 422]);
        let told = format!(
            "Refused (403) if the request's `Origin` or `Sec-Fetch-Site` names another site. If people sign in: refused \
             (403) if the person lacks the verb {right}."
        );
        operation.told.insert("description".into(), told.into());
        operation
    }

    fn operation(
        &mut self,
        method: &'static str,
        path: &'static str,
        id: &str,
        summary: &str,
    ) -> Operation<'_> {
        let told = Map::from_iter([("operationId".into(), id.into()), ("summary".into(), summary.into())]);
        let refusals = if path.starts_with("/api/") { vec![400, 503] } else { Vec::new() };
        Operation { of: self, path, method, told, refusals, has_parts: false }
    }

    /// The whole document.
    fn finish(mut self) -> Value {
        let mut schemas = self.answers.take_definitions(true);
        schemas.extend(self.bodies.take_definitions(true));
        bound(&mut schemas["ReplayRequest"]["properties"]);
        bound_record(&mut schemas["PauseRequest"]["properties"]);
        schemas.insert("Problem".into(), problem());
        let problem = json!({
            "description": "What went wrong, and what to do about it.",
            "content": {PROBLEM: {"schema": {"$ref": format!("#{SCHEMAS}/Problem")}}},
        });
        for (path, operations) in &mut self.paths {
            for operation in operations.as_object_mut().into_iter().flat_map(Map::values_mut) {
                operation["responses"]["401"] = json!({"$ref": "#/components/responses/Unknown"});
                if path.starts_with("/api/") {
                    operation["responses"]["default"] = json!({"$ref": "#/components/responses/Problem"});
                }
            }
        }
        json!({
            "openapi": "3.1.0",
            "info": {
                "title": "Kubewitness",
                "version": "1",
                "description": "Every observed state of the watched objects, in order. Parameters that an \
                                operation does not name are refused.",
            },
            "paths": self.paths,
            "security": [{"token": []}, {"session": []}, {}],
            "components": {
                "schemas": schemas,
                "responses": {"Problem": problem, "Unknown": unknown(), "Unchanged": unchanged()},
                "securitySchemes": security(),
            },
        })
    }
}

/// A problem, with the fields that older clients read.
fn problem() -> Value {
    let text = json!({"type": "string"});
    let fields = json!({
        "type": "array",
        "description": "What is wrong with single fields; left out where it is not about fields.",
        "items": {
            "type": "object",
            "required": ["field", "message"],
            "properties": {"field": text, "message": text},
        },
    });
    let code = json!({"type": "string", "enum": codes::ALL.iter().map(|code| code.name).collect::<Vec<_>>()});
    json!({
        "type": "object",
        "required": ["type", "title", "status", "detail", "hint", "code", "error"],
        "properties": {
            "type": {"type": "string", "description": "The place of the code on the page `/api`."},
            "title": {"type": "string", "description": "The code in words."},
            "status": {"type": "integer"},
            "detail": {"type": "string", "description": "What happened this time."},
            "hint": {"type": "string", "description": "What to do about it."},
            "code": code,
            "fields": fields,
            "error": {
                "type": "object",
                "description": "`code`, `message` and `hint` again, for older clients.",
                "required": ["code", "message", "hint"],
                "properties": {"code": code, "message": text, "hint": text, "fields": fields},
            },
        },
    })
}

/// The client has the answer already.
fn unchanged() -> Value {
    json!({"description": "The answer is the one whose `ETag` was sent as `If-None-Match`. It has no body."})
}

/// Where people sign in, and nobody has.
fn unknown() -> Value {
    json!({
        "description": "Where people sign in: the request names no person. The header `WWW-Authenticate` is `Bearer`.",
        "headers": {"WWW-Authenticate": {"schema": {"type": "string"}}},
        "content": {PROBLEM: {"schema": {"$ref": format!("#{SCHEMAS}/Problem")}}},
    })
}

fn security() -> Value {
    json!({
        "token": {
            "type": "http",
            "scheme": "bearer",
            "description": "A token of Kubernetes. Its owner sees and does what Kubernetes lets them.",
        },
        "session": {
            "type": "apiKey",
            "in": "cookie",
            "name": "__Host-kubewitness",
            "description": "What the page `/login` sets for browsers. Without HTTPS its name is `kubewitness`.",
        },
    })
}

/// A bound of [`super::check_replay`] each.
fn bound(properties: &mut Value) {
    bound_record(properties);
    properties["plugin"]["minLength"] = 1.into();
    properties["seqs"]["maxItems"] = MOST_SEQS.into();
}

/// A bound of [`super::check_record`] each.
fn bound_record(properties: &mut Value) {
    for (name, bound, value) in
        [("reason", "minLength", 1), ("reason", "maxLength", REASON_BYTES), ("who", "maxLength", WHO_BYTES)]
    {
        properties[name][bound] = value.into();
    }
}

/// What may be left out is never null, a paragraph is one line, and words that are described one by one are
/// listed as well.
fn tidy(schema: &mut Schema) {
    let required = schema.get("required").cloned().unwrap_or_default();
    let is_required = |name: &str| required.as_array().is_some_and(|all| all.iter().any(|one| one == name));
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        for (_, property) in properties.iter_mut().filter(|(name, _)| !is_required(name)) {
            never_null(property);
        }
    }
    let described = schema.get("oneOf").and_then(Value::as_array);
    let words: Option<Vec<Value>> =
        described.and_then(|all| all.iter().map(|one| one.get("const").cloned()).collect());
    if let Some(words) = words {
        schema.insert("type".into(), "string".into());
        schema.insert("enum".into(), words.into());
    }
    if let Some(Value::String(text)) = schema.get_mut("description") {
        *text = text.replace('\n', " ");
    }
}

/// In an answer, a field that is always there has no default.
fn without_default(schema: &mut Schema) {
    schema.remove("default");
}

fn never_null(schema: &mut Value) {
    if let Some(types) = schema["type"].as_array_mut() {
        types.retain(|kind| kind != "null");
        if let [kind] = &types[..] {
            schema["type"] = kind.clone();
        }
    }
    if let Some(any) = schema["anyOf"].as_array_mut() {
        any.retain(|one| one["type"] != "null");
        if let [Value::Object(only)] = &any[..] {
            let only = only.clone();
            let fields = schema.as_object_mut().expect("it has a field");
            fields.remove("anyOf");
            fields.extend(only);
        }
    }
    if let Some(fields) = schema.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
}

impl Operation<'_> {
    fn refuses(mut self, statuses: &[u16]) -> Self {
        self.refusals.extend(statuses);
        self
    }

    /// The handler takes `names`; what they mean stands in its query's type.
    fn query<Q: JsonSchema>(mut self, names: &[&str]) -> Self {
        let schema = self.of.bodies.root_schema_for::<Q>();
        let known = schema.get("properties").and_then(Value::as_object).expect("a query has fields");
        assert_eq!(known.len(), names.len(), "{}: the handler takes what its query has", self.path);
        for name in names {
            let mut schema = known.get(*name).unwrap_or_else(|| panic!("{name} is no field")).clone();
            let told = schema.as_object_mut().and_then(|fields| fields.remove("description"));
            self = match *name {
                LIMIT => self.limit(),
                _ => self.parameter(
                    "query",
                    name,
                    told.as_ref().and_then(Value::as_str).unwrap_or(""),
                    &schema,
                ),
            };
        }
        self
    }

    fn limit(self) -> Self {
        let schema = json!({"type": "integer", "minimum": 1, "maximum": MOST_ROWS, "default": ROWS});
        self.parameter("query", LIMIT, &format!("Rows at most; {ROWS} where it is left out."), &schema)
    }

    fn parameter(mut self, place: &str, name: &str, text: &str, schema: &Value) -> Self {
        assert!(!text.is_empty(), "{}: {name} is not described", self.path);
        let parameters = self.told.entry("parameters").or_insert_with(|| json!([]));
        parameters.as_array_mut().expect("an array").push(json!({
            "name": name, "in": place, "required": place == "path", "description": text, "schema": schema,
        }));
        self
    }

    /// With the schema of what the handler gives.
    fn answers<A, F>(mut self, _: impl Fn(State<App>, Viewer, Uri) -> F, text: &str)
    where
        A: Answer,
        F: Future<Output = Result<A, Problem>>,
    {
        self.has_parts = A::HAS_PARTS;
        let schema = self.of.answers.subschema_for::<A::Body>();
        self.gives("application/json", schema.as_value(), text);
    }

    /// The same for a handler that takes a body.
    fn changes<B, T, F>(
        mut self,
        _: impl Fn(State<App>, Viewer, Uri, Result<Json<B>, JsonRejection>) -> F,
        text: &str,
    ) where
        B: JsonSchema,
        T: JsonSchema,
        F: Future<Output = Result<Json<T>, Problem>>,
    {
        self = self.takes::<B>();
        let schema = self.of.answers.subschema_for::<T>();
        self.gives("application/json", schema.as_value(), text);
    }

    fn takes<B: JsonSchema>(mut self) -> Self {
        let body = self.of.bodies.subschema_for::<B>();
        let body = json!({"required": true, "content": {"application/json": {"schema": body}}});
        self.told.insert("requestBody".into(), body);
        self
    }

    /// The same for a handler that takes a name from its path as well.
    fn changes_named<B, T, F>(
        self,
        _: impl Fn(State<App>, Viewer, axum::extract::Path<String>, Uri, Result<Json<B>, JsonRejection>) -> F,
        text: &str,
    ) where
        B: JsonSchema,
        T: JsonSchema,
        F: Future<Output = Result<Json<T>, Problem>>,
    {
        let handler = |_: State<App>, _: Viewer, _: Uri, _: Result<Json<B>, JsonRejection>| {
            std::future::pending::<Result<Json<T>, Problem>>()
        };
        self.changes(handler, text);
    }

    fn gives(mut self, media: &str, schema: &Value, text: &str) {
        let mut answer = json!({"description": text, "content": {media: {"schema": schema}}});
        let mut responses = Map::new();
        if self.method == "get" && self.path.starts_with("/api/") && media != "text/event-stream" {
            let about = "The `ETag` of an earlier answer. If the answer is unchanged, the status is 304 and there is \
                         no body.";
            self = self.parameter("header", "If-None-Match", about, &self::text());
            let of = "The tag of this answer, for this person.";
            answer["headers"] = json!({"ETag": {"description": of, "schema": self::text()}});
            if self.has_parts {
                let about = "The address of the next part, with `rel=\"next\"`; left out with the last part.";
                answer["headers"]["Link"] = json!({"description": about, "schema": self::text()});
            }
            responses.insert("304".into(), json!({"$ref": "#/components/responses/Unchanged"}));
        }
        responses.insert("200".into(), answer);
        for status in &self.refusals {
            responses.insert(status.to_string(), json!({"$ref": "#/components/responses/Problem"}));
        }
        let kept = self.told.entry("responses").or_insert_with(|| json!({}));
        kept.as_object_mut().expect("an object").append(&mut responses);
        self.of.paths.insert(self.path.into(), json!({self.method: self.told}));
    }
}

fn number() -> Value {
    json!({"type": "integer", "minimum": 0})
}

fn text() -> Value {
    json!({"type": "string"})
}

fn describe() -> Value {
    let mut api = Description::new();
    api.get("/api/v1/status", "status", "Sources, plugins and the journal in figures").answers(
        super::status,
        "The figures. For each plugin observed = delivered + filtered + dead + waiting + taken.",
    );
    api.get("/api/v1/objects", "objects", "What is there now, each with its status")
        .query::<ObjectQuery>(OBJECTS)
        .refuses(&[403])
        .answers(
            super::objects,
            "Objects, the newest change first. Each `Kubewitness-Notice` is a sentence on what makes the answer less \
             than all.",
        );
    api.get("/api/v1/timeline", "timeline", "The story of one object and of those that it owns")
        .query::<TimelineQuery>(TIMELINE)
        .refuses(&[404])
        .answers(
            super::timeline,
            "The newest states, oldest first. The next part has the states before them.",
        );
    api.get(
        "/api/v1/states/{seq}/document",
        "document",
        "The document of one state as the server sent it, with a digest in the place of each secret",
    )
    .parameter("path", "seq", "The state's position.", &number())
    .refuses(&[404])
    .gives(
        "application/json",
        &json!({"type": "object"}),
        "The document. For a gap its description; empty where a deletion was found by comparison.",
    );
    api.get("/api/v1/plugins", "plugins", "The plugins, as in the status")
        .answers(super::plugins, "The plugins.");
    describe_pauses(&mut api);
    describe_mutes(&mut api);
    api.get("/api/v1/gaps", "gaps", "Versions that are known to be missing").query::<GapQuery>(GAPS).refuses(&[403]).answers(
        super::gaps,
        "The gaps, newest first. Versions strictly between `after` and `before` were not witnessed; an empty bound is \
         not known.",
    );
    api.get("/api/v1/poison", "poison", "Poison messages: bytes that are no object of their source's kind")
        .query::<PoisonQuery>(POISON)
        .refuses(&[403])
        .answers(super::poison, "Poison messages, newest first, without their bytes.");
    api.get("/api/v1/poison/{number}/raw", "poisonRaw", "The bytes of one poison message, as they came")
        .parameter("path", "number", "The poison message's number.", &number())
        .refuses(&[403, 404])
        .gives("text/plain", &text(), "The bytes, to be saved and not to be shown.");
    describe_letters(&mut api);
    describe_submissions(&mut api);
    api.get("/api/v1/events", "events", "The live stream of states")
        .parameter("query", "after", "States after this position; where it is left out, those to come.", &number())
        .parameter(
            "header",
            "Last-Event-ID",
            "Like `after`, and takes precedence. A browser sends it when it reconnects.",
            &number(),
        )
        .gives(
            "text/event-stream",
            &text(),
            "Server-sent events. `state`: the id is the position, the data a state as JSON. `position`: comes first \
             where no position is given; the data is the position after which the stream begins. `reset`: the journal is older than the position asked for; the \
             data is its newest position. `Kubewitness-Notice` tells where retention has removed states behind the position.",
        );
    api.operation(
        "post",
        "/api/v1/login",
        "login",
        "A one-time login for a browser, for whoever has sent a token",
    )
    .refuses(&[403])
    .answers(super::login, "The code. The page `/login/once?code=CODE` takes it once.");
    describe_itself(&mut api);
    api.finish()
}

fn describe_pauses(api: &mut Description) {
    let name = "The plugin's name.";
    let told = "Whether that changed anything, and the pause that is in force now.";
    api.post(
        "/api/v1/plugins/{name}/pause",
        "pause",
        "Pauses a plugin: it gets no states until it is resumed",
        &on_plugin("pause"),
    )
    .parameter("path", "name", name, &text())
    .changes_named(super::pausing::pause, told);
    api.post(
        "/api/v1/plugins/{name}/resume",
        "resume",
        "Resumes a plugin: it goes on from where it was",
        &on_plugin("resume"),
    )
    .parameter("path", "name", name, &text())
    .changes_named(super::pausing::resume, told);
}

/// The right to change something of one plugin.
fn on_plugin(verb: &str) -> String {
    format!("`{verb}` on `plugins` of `kubewitness.dev`, for the plugin's name")
}

fn describe_mutes(api: &mut Description) {
    let right = "`mute` on `notifications` of `kubewitness.dev`, in the namespace or in the cluster";
    api.get("/api/v1/mutes", "mutes", "The mutes: whom no message reaches, and about what")
        .answers(super::muting::mutes, "The mutes that the person may undo, newest first.");
    let told = "Whether that changed anything, and the mute.";
    api.post("/api/v1/mute", "mute", "Mutes an object, a namespace or everything", right)
        .refuses(&[404])
        .changes(super::muting::mute, told);
    api.post("/api/v1/unmute", "unmute", "Undoes a mute", right)
        .refuses(&[404])
        .changes(super::muting::unmute, told);
}

fn describe_submissions(api: &mut Description) {
    api.get("/api/v1/templates", "templates", "The templates of which people make Jobs")
        .refuses(&[404])
        .answers(super::submitting::templates, "The templates, by name. 404 where nobody submits Jobs.");
    let key = json!({"type": "string", "minLength": 1, "maxLength": KEY_BYTES, "pattern": "^[!-~]+$"});
    let mut operation = api
        .operation("post", "/api/v1/jobs", "submit", "Creates a Job from a template, in the name of the person who asks")
        .refuses(&[403, 404, 409, 413, 415, 422])
        .parameter(
            "header",
            "Idempotency-Key",
            "A request with the same key makes no second Job, also at another replica. Without it: a new key.",
            &key,
        )
        .takes::<SubmitRequest>();
    let told = "The API server decides whether the person may. What it refuses has the parameter in `fields`. 503: it \
                is not known whether the Job was created; the same request with the same key tells.";
    operation.told.insert("description".into(), told.into());
    let schema = operation.of.answers.subschema_for::<SubmitView>();
    let created = json!({
        "description": "The Job is created.", "content": {"application/json": {"schema": schema}},
    });
    operation.told.insert("responses".into(), json!({"201": created}));
    let text = "An earlier request with this key has created the Job, or `dry_run` has created none.";
    operation.gives("application/json", schema.as_value(), text);
}

fn describe_letters(api: &mut Description) {
    api.get("/api/v1/deadletters", "deadLetters", "States that were parked after their last try")
        .query::<LetterQuery>(LETTERS)
        .refuses(&[404])
        .answers(super::dead_letters, "The dead letters, by plugin and position.");
    api.post("/api/v1/deadletters/replay", "replay", "Replays dead letters", &on_plugin("replay"))
        .changes(super::replay, "The dead letters that were replayed, or with `dry_run` would be.");
    api.post("/api/v1/deadletters/drop", "drop", "Drops dead letters for good", &on_plugin("drop")).changes(
        super::drop_letters,
        "The dead letters that were dropped, or with `dry_run` would be. Dropped letters stay counted as dead.",
    );
    api.get(
        "/api/v1/deadletters/records",
        "letterRecords",
        "Who replayed or dropped dead letters, newest first",
    )
    .query::<LetterQuery>(LETTERS)
    .refuses(&[403])
    .answers(super::letter_records, "The records.");
}

/// What says how the process is, and what this is.
fn describe_itself(api: &mut Description) {
    let mut description = api.get("/api/v1/openapi.json", "openapi", "This description");
    description.refusals.clear();
    description.gives("application/json", &json!({"type": "object"}), "OpenAPI 3.1.");
    api.get("/healthz", "healthz", "Whether the process runs").gives("text/plain", &text(), "It does.");
    let mut ready = api.get("/readyz", "readyz", "Whether the controller is ready");
    let not = json!({"description": "It is not, and why.", "content": {"text/plain": {"schema": text()}}});
    ready.told.insert("responses".into(), json!({"503": not}));
    ready.gives("text/plain", &text(), "It is.");
    api.get("/metrics", "metrics", "Figures for Prometheus").refuses(&[403, 503]).gives(
        "text/plain",
        &text(),
        "Text format 0.0.4.",
    );
}

#[test]
fn the_reference_of_the_api_is_what_the_handlers_say() {
    let made = describe();
    let paths = super::routes().into_iter().chain(crate::health::routes()).map(|(path, _)| path);
    let unsaid: Vec<_> = paths.filter(|path| made["paths"].get(*path).is_none()).collect();
    assert!(unsaid.is_empty(), "describe {unsaid:?} above");
    generated(Path::new("host/portal/src/api/openapi.json"), &format!("{made:#}\n"));
}
