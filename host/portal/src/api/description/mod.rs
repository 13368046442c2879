//! Generates `openapi.json`: paths, parameters, bodies and answers are derived from the handlers and their
//! types. Writing it by hand was rejected, because it would drift from the handlers.
//!
//! It is compiled for tests only, so that the shipped program contains no schemas. The test below compares
//! the file with the code; `cargo xtask docs` writes it.

mod parts;

use std::future::Future;
use std::path::Path;

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::http::Uri;
use kubewitness_harness::generated;
use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::{MOST_ROWS, MOST_SEQS, REASON_BYTES, ROWS, WHO_BYTES};
use crate::access::PortalViewer;
use crate::answer::paged::PagedAnswer;
use crate::answer::{Problem, codes};
use crate::app::PortalApp;

const SCHEMAS: &str = "/components/schemas";
const PROBLEM: &str = "application/problem+json";
/// The handler's row limit, as one of its parameters.
const LIMIT: &str = "limit";

/// Everything described so far.
struct ApiDescription {
    answers: SchemaGenerator,
    bodies: SchemaGenerator,
    paths: Map<String, Value>,
}

/// The answer of a handler.
trait HandlerAnswer {
    type Body: JsonSchema;
    /// Whether a header has the address of the next part.
    const HAS_PARTS: bool;
}

impl<T: JsonSchema> HandlerAnswer for Json<T> {
    type Body = T;
    const HAS_PARTS: bool = false;
}

impl<T: JsonSchema> HandlerAnswer for PagedAnswer<T> {
    type Body = T;
    const HAS_PARTS: bool = true;
}

/// One method of one path.
struct PathOperation<'a> {
    of: &'a mut ApiDescription,
    path: &'static str,
    method: &'static str,
    fields: Map<String, Value>,
    refusals: Vec<u16>,
    has_parts: bool,
}

impl ApiDescription {
    fn new() -> Self {
        let settings = || {
            SchemaSettings::draft2020_12().with(|settings| {
                settings.definitions_path = SCHEMAS.into();
                settings.meta_schema = None;
                settings.transforms.push(Box::new(RecursiveTransform(tidy_schema)));
            })
        };
        let answers = settings().for_serialize().with_transform(RecursiveTransform(without_default));
        Self {
            answers: answers.into_generator(),
            bodies: settings().for_deserialize().into_generator(),
            paths: Map::new(),
        }
    }

    fn get(&mut self, path: &'static str, id: &str, summary: &str) -> PathOperation<'_> {
        self.add_operation("get", path, id, summary)
    }

    /// An operation that changes something. A page of another site can't call it. `right` is what a signed-in
    /// person needs.
    fn add_post(&mut self, path: &'static str, id: &str, summary: &str, right: &str) -> PathOperation<'_> {
        let mut operation =
            self.add_operation("post", path, id, summary).with_refusals(&[403, 404, 413, 415, 422]);
        let message = format!(
            "Refused (403) if the request's `Origin` or `Sec-Fetch-Site` names another site. If people sign in: refused \
             (403) if the person lacks the verb {right}."
        );
        operation.fields.insert("description".into(), message.into());
        operation
    }

    fn add_operation(
        &mut self,
        method: &'static str,
        path: &'static str,
        id: &str,
        summary: &str,
    ) -> PathOperation<'_> {
        let operation =
            Map::from_iter([("operationId".into(), id.into()), ("summary".into(), summary.into())]);
        let refusals = if path.starts_with("/api/") { vec![400, 503] } else { Vec::new() };
        PathOperation { of: self, path, method, fields: operation, refusals, has_parts: false }
    }

    /// The whole document.
    fn into_document(mut self) -> Value {
        let mut schemas = self.answers.take_definitions(true);
        schemas.extend(self.bodies.take_definitions(true));
        add_bounds(&mut schemas["ReplayRequest"]["properties"]);
        bound_record(&mut schemas["PauseRequest"]["properties"]);
        schemas.insert("Problem".into(), problem_schema());
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
                "responses": {"Problem": problem, "Unknown": sign_in_response(), "Unchanged": unchanged_response()},
                "securitySchemes": security_schemes(),
            },
        })
    }
}

/// A problem, with the fields that older clients read.
fn problem_schema() -> Value {
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

/// The client already has the answer.
fn unchanged_response() -> Value {
    json!({"description": "The answer is the one whose `ETag` was sent as `If-None-Match`. It has no body."})
}

/// Sign-in is required.
fn sign_in_response() -> Value {
    json!({
        "description": "Where people sign in: the request names no person. The header `WWW-Authenticate` is `Bearer`.",
        "headers": {"WWW-Authenticate": {"schema": {"type": "string"}}},
        "content": {PROBLEM: {"schema": {"$ref": format!("#{SCHEMAS}/Problem")}}},
    })
}

fn security_schemes() -> Value {
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
fn add_bounds(properties: &mut Value) {
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

/// Optional fields are never null, a paragraph is one line, and words with a description each are also listed
/// as an enum.
fn tidy_schema(schema: &mut Schema) {
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

/// In an answer, a field that always exists has no default.
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

impl PathOperation<'_> {
    fn with_refusals(mut self, statuses: &[u16]) -> Self {
        self.refusals.extend(statuses);
        self
    }

    /// The handler accepts `names`; the type of its query has their meaning.
    fn with_query<Q: JsonSchema>(mut self, names: &[&str]) -> Self {
        let schema = self.of.bodies.root_schema_for::<Q>();
        let known = schema.get("properties").and_then(Value::as_object).expect("a query has fields");
        assert_eq!(known.len(), names.len(), "{}: the handler takes what its query has", self.path);
        for name in names {
            let mut schema = known.get(*name).unwrap_or_else(|| panic!("{name} is no field")).clone();
            let description = schema.as_object_mut().and_then(|fields| fields.remove("description"));
            self = match *name {
                LIMIT => self.with_limit(),
                _ => self.with_parameter(
                    "query",
                    name,
                    description.as_ref().and_then(Value::as_str).unwrap_or(""),
                    &schema,
                ),
            };
        }
        self
    }

    fn with_limit(self) -> Self {
        let schema = json!({"type": "integer", "minimum": 1, "maximum": MOST_ROWS, "default": ROWS});
        self.with_parameter("query", LIMIT, &format!("Rows at most; {ROWS} where it is left out."), &schema)
    }

    fn with_parameter(mut self, place: &str, name: &str, text: &str, schema: &Value) -> Self {
        assert!(!text.is_empty(), "{}: {name} is not described", self.path);
        let parameters = self.fields.entry("parameters").or_insert_with(|| json!([]));
        parameters.as_array_mut().expect("an array").push(json!({
            "name": name, "in": place, "required": place == "path", "description": text, "schema": schema,
        }));
        self
    }

    /// With the schema of the handler's answer.
    fn with_answer<A, F>(mut self, _: impl Fn(State<PortalApp>, PortalViewer, Uri) -> F, text: &str)
    where
        A: HandlerAnswer,
        F: Future<Output = Result<A, Problem>>,
    {
        self.has_parts = A::HAS_PARTS;
        let schema = self.of.answers.subschema_for::<A::Body>();
        self.with_media("application/json", schema.as_value(), text);
    }

    /// The same for a handler with a body.
    fn with_change<B, T, F>(
        mut self,
        _: impl Fn(State<PortalApp>, PortalViewer, Uri, Result<Json<B>, JsonRejection>) -> F,
        text: &str,
    ) where
        B: JsonSchema,
        T: JsonSchema,
        F: Future<Output = Result<Json<T>, Problem>>,
    {
        self = self.with_body::<B>();
        let schema = self.of.answers.subschema_for::<T>();
        self.with_media("application/json", schema.as_value(), text);
    }

    fn with_body<B: JsonSchema>(mut self) -> Self {
        let body = self.of.bodies.subschema_for::<B>();
        let body = json!({"required": true, "content": {"application/json": {"schema": body}}});
        self.fields.insert("requestBody".into(), body);
        self
    }

    /// The same for a handler that also takes a name from its path.
    fn changes_named<B, T, F>(
        self,
        _: impl Fn(
            State<PortalApp>,
            PortalViewer,
            axum::extract::Path<String>,
            Uri,
            Result<Json<B>, JsonRejection>,
        ) -> F,
        text: &str,
    ) where
        B: JsonSchema,
        T: JsonSchema,
        F: Future<Output = Result<Json<T>, Problem>>,
    {
        let handler = |_: State<PortalApp>, _: PortalViewer, _: Uri, _: Result<Json<B>, JsonRejection>| {
            std::future::pending::<Result<Json<T>, Problem>>()
        };
        self.with_change(handler, text);
    }

    fn with_media(mut self, media: &str, schema: &Value, text: &str) {
        let mut answer = json!({"description": text, "content": {media: {"schema": schema}}});
        let mut responses = Map::new();
        if self.method == "get" && self.path.starts_with("/api/") && media != "text/event-stream" {
            let about = "The `ETag` of an earlier answer. If the answer is unchanged, the status is 304 and there is \
                         no body.";
            self = self.with_parameter("header", "If-None-Match", about, &self::text());
            let of = "The tag of this answer, for this person. An answer with more than 1,000 rows has none.";
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
        let kept = self.fields.entry("responses").or_insert_with(|| json!({}));
        kept.as_object_mut().expect("an object").append(&mut responses);
        self.of.paths.insert(self.path.into(), json!({self.method: self.fields}));
    }
}

fn number_schema() -> Value {
    json!({"type": "integer", "minimum": 0})
}

fn text() -> Value {
    json!({"type": "string"})
}

#[test]
fn the_reference_of_the_api_is_what_the_handlers_say() {
    let made = parts::describe_api();
    let paths = super::routes().into_iter().chain(crate::health::routes()).map(|(path, _)| path);
    let unsaid: Vec<_> = paths.filter(|path| made["paths"].get(*path).is_none()).collect();
    assert!(unsaid.is_empty(), "describe {unsaid:?} above");
    generated(Path::new("host/portal/src/api/openapi.json"), &format!("{made:#}\n"));
}
