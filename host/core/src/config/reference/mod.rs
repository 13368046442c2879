//! Generates the reference of the manifests and their JSON Schemas from the types. A test compares both with
//! `docs/reference`. The module is compiled for tests only.

mod page;

use std::time::Duration as Time;

use kubewitness_harness::{GENERATED, reference};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::{AddressRange, Bytes, Duration, HostSpec, Manifest, PluginSpec, StartTime, config_faults};
use crate::config::templates::TemplateSpec;
use crate::model::fault::ManifestFault;
use crate::status::OneOrMany;

/// Bounds that a JSON Schema can't express. They are given as text.
const BOUNDS: &str = "x-bounds";
const HOST: &str = include_str!("../../../testdata/manifests/host.yaml");
const PLUGIN: &str = include_str!("../../../testdata/manifests/plugin.yaml");
const TEMPLATE: &str = include_str!("../../../testdata/manifests/template.yaml");

/// The schema of the names that `is_name` accepts.
pub(super) fn name(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$",
        BOUNDS: "up to 63 lower-case letters, digits and dashes",
    })
}

pub(super) fn at_least(least: Time) -> String {
    format!("at least {}", Duration(least))
}

pub(super) fn at_least_bytes(least: u64) -> String {
    format!("at least {}", Bytes(least))
}

/// Types that are written as texts.
macro_rules! text {
    ($type:ty, $name:literal, $pattern:literal, $about:literal) => {
        impl JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                $name.into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({"type": "string", "pattern": $pattern, "description": $about})
            }
        }
    };
}
text!(
    Duration,
    "Duration",
    "^[0-9]+(ms|s|m|h|d)$",
    "A whole number and `ms`, `s`, `m`, `h` or `d`, such as `2s`."
);
text!(
    Bytes,
    "Size",
    "^[0-9]+(Ki|Mi|Gi|Ti)?$",
    "Bytes, as a text: a whole number and `Ki`, `Mi`, `Gi` or `Ti`, such as `64Mi`."
);
text!(
    StartTime,
    "Since",
    r"^([0-9]+(ms|s|m|h|d)|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{3})?Z)$",
    "A time such as `2026-11-01T00:00:00Z`, or how long ago, such as `12h` or `30d`."
);
text!(
    AddressRange,
    "AddressRange",
    "^(public|private|loopback|linkLocal|[0-9a-fA-F.:]+(/[0-9]{1,3})?)$",
    "`public`, `private`, `loopback`, `linkLocal`, or a range such as `10.20.0.0/16`."
);

impl JsonSchema for OneOrMany {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "OneOrMany".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
            "description": "A text, or a list of texts.",
        })
    }
}

/// The schema of a kind of manifest, with defaults as an operator writes them.
fn schema_of<Spec: JsonSchema>(kind: &str) -> Value {
    let root = SchemaGenerator::default().into_root_schema_for::<Manifest<Spec>>();
    let mut schema = sort_members(root.to_value());
    schema["title"] = json!(format!("A manifest of Kubewitness of the kind {kind}"));
    schema["properties"]["kind"]["const"] = json!(kind);
    let defs = schema["$defs"].clone();
    let types = schema["$defs"].as_object_mut().expect("there are types").values_mut();
    types.for_each(|of| properties(of).for_each(|(_, field)| plain_default(field, &defs)));
    schema
}

fn properties(schema: &mut Value) -> impl Iterator<Item = (&String, &mut Value)> {
    schema.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten()
}

/// Defaults are serialized as milliseconds and bytes; operators write `10m` and `64Mi`.
fn plain_default(field: &mut Value, defs: &Value) {
    let of = page::field_type_name(field).map(str::to_owned);
    match (of.as_deref(), field.get_mut("default")) {
        (_, Some(Value::Null)) => {
            field.as_object_mut().map(|field| field.remove("default"));
        }
        (Some(of), Some(default)) => plain(default, of, defs),
        _ => {}
    }
}

fn plain(value: &mut Value, of: &str, defs: &Value) {
    match (of, &mut *value) {
        ("Duration", Value::String(text)) => {
            *text = text.parse::<Duration>().expect("a default is one").to_string();
        }
        ("Size", Value::String(text)) => {
            *text = Bytes::try_from(text.clone()).expect("a default is one").to_string();
        }
        (of, Value::Object(fields)) => {
            for (name, value) in fields {
                let field = &defs[of]["properties"][name];
                page::field_type_name(field).into_iter().for_each(|of| plain(value, of, defs));
            }
        }
        _ => {}
    }
}

/// Moves bounds that only a text can express into the description, because editors show it.
fn for_editors(mut schema: Value) -> String {
    let types = schema["$defs"].as_object_mut().expect("there are types").values_mut();
    for (_, field) in types.flat_map(properties) {
        let Some(bounds) = field.as_object_mut().and_then(|field| field.remove(BOUNDS)) else { continue };
        let about = field["description"].as_str().unwrap_or_default();
        field["description"] =
            json!(format!("{about} Bounds: {}.", bounds.as_str().unwrap_or_default()).trim());
    }
    let name = &mut schema["$defs"]["Metadata"]["properties"]["name"];
    name.as_object_mut().map(|name| name.remove(BOUNDS));
    format!("{:#}\n", sort_members(schema))
}

/// Sorts the members, because their order depends on which features of `serde_json` a build has.
fn sort_members(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let field = |(name, value): (String, Value)| match (name.as_str(), value) {
                // A doc comment's lines are joined into one text.
                ("description", Value::String(text)) => (name, json!(text.replace('\n', " "))),
                (_, value) => (name, sort_members(value)),
            };
            let mut fields: Vec<_> = fields.into_iter().map(field).collect();
            fields.sort_by(|first, second| first.0.cmp(&second.0));
            Value::Object(Map::from_iter(fields))
        }
        Value::Array(list) => list.into_iter().map(sort_members).collect(),
        other => other,
    }
}

fn check_against_schema(schema: &Value, value: &Value) -> Result<(), Vec<ManifestFault>> {
    let faults = config_faults(schema, value);
    if faults.is_empty() { Ok(()) } else { Err(faults) }
}

fn parse_yaml_documents<T: DeserializeOwned>(yaml: &str) -> Vec<T> {
    let documents = yaml.split("\n---\n");
    documents.map(|text| serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{error}"))).collect()
}

fn render_reference_page(title: &str, about: &str, schema: &Value, example: &str) -> String {
    let examples = parse_yaml_documents::<Value>(example);
    format!("{GENERATED}# {title}\n\n{about}\n\n{}", page::render_sections(schema, &examples))
        + "\n## An example with every field\n\n```yaml\n"
        + example.trim_end()
        + "\n```\n"
}

#[test]
fn the_reference_of_the_host_manifest_is_what_its_types_say() {
    let schema = schema_of::<HostSpec>("Host");
    let about = "The host manifest says what is watched, and what plugins may be granted. There is one: a ConfigMap \
        with the label `kubewitness.dev/host: \"true\"` and the document under `host.yaml`, or a file in the folder \
        of `kubewitness run --config`. `kubewitness check` names faults with their lines.\n\nEditors that know the \
        YAML language server complete and check a file that begins with `# yaml-language-server: \
        $schema=PATH/host.schema.json`: [host.schema.json](host.schema.json).";
    reference("host.md", &render_reference_page("The host manifest", about, &schema, HOST));
    reference("host.schema.json", &for_editors(schema));
}

#[test]
fn the_reference_of_plugin_manifests_is_what_their_types_say() {
    let schema = schema_of::<PluginSpec>("Plugin");
    let about = "A plugin manifest loads one plugin. It is a ConfigMap with the label `kubewitness.dev/plugin: \
        \"true\"` and the document under `plugin.yaml`, or a file in the folder of `kubewitness run --config`. \
        Applying it loads the plugin; deleting it takes the plugin out. `kubewitness check` names faults with their \
        lines.\n\nEditors that know the YAML language server complete and check a file that begins with `# \
        yaml-language-server: $schema=PATH/plugin.schema.json`: [plugin.schema.json](plugin.schema.json).";
    reference("plugin.md", &render_reference_page("The plugin manifest", about, &schema, PLUGIN));
    reference("plugin.schema.json", &for_editors(schema));
}

#[test]
fn the_reference_of_templates_is_what_their_types_say() {
    let schema = schema_of::<TemplateSpec>("JobTemplate");
    let about = "A template offers a Job that people submit by filling in its parameters. It is a ConfigMap with the \
        label `kubewitness.dev/template: \"true\"` and the document under `template.yaml`, or a file in the folder of \
        `kubewitness run --config`. People submit where the [host manifest](host.md) says `submit`. [How to submit \
        Jobs](../how-to/submit-jobs.md) shows it.\n\nEditors that know the YAML language server complete and check \
        a file that begins with `# yaml-language-server: $schema=PATH/template.schema.json`: \
        [template.schema.json](template.schema.json).";
    reference("template.md", &render_reference_page("The template manifest", about, &schema, TEMPLATE));
    reference("template.schema.json", &for_editors(schema));
}

#[test]
fn the_examples_have_no_fault_and_every_field() {
    let mut host = parse_yaml_documents::<Manifest<HostSpec>>(HOST)[0].spec.clone();
    assert_eq!(host.check(), []);
    // Some of the examples have a component that can't be signed.
    host.modules.signed_by.clear();
    for plugin in parse_yaml_documents::<Manifest<PluginSpec>>(PLUGIN) {
        assert_eq!(plugin.spec.check(&host), []);
    }
    for template in parse_yaml_documents::<Manifest<TemplateSpec>>(TEMPLATE) {
        assert_eq!(template.spec.check(), []);
    }
    for (schema, example) in [
        (schema_of::<HostSpec>("Host"), HOST),
        (schema_of::<PluginSpec>("Plugin"), PLUGIN),
        (schema_of::<TemplateSpec>("JobTemplate"), TEMPLATE),
    ] {
        let examples = parse_yaml_documents::<Value>(example);
        for path in page::all_field_paths(&schema) {
            assert!(page::first_example_at(&examples, &path).is_some(), "no example has {path}");
        }
        examples.iter().for_each(|example| check_against_schema(&schema, example).unwrap());
    }
}

/// Every manifest under `deploy`, also those within a ConfigMap.
fn deployed_manifests() -> Vec<Value> {
    let (mut folders, mut found) = (vec![kubewitness_harness::project_root().join("deploy")], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.extension().and_then(|ending| ending.to_str()) {
                None if path.is_dir() => folders.push(path),
                Some("yaml") => {
                    found.extend(parse_yaml_documents::<Value>(&std::fs::read_to_string(path).unwrap()));
                }
                _ => {}
            }
        }
    }
    let inner = |document: &Value| {
        let texts = [super::HOST_KEY, super::PLUGIN_KEY, super::TEMPLATE_KEY]
            .map(|key| document["data"][key].as_str());
        texts.into_iter().flatten().flat_map(parse_yaml_documents::<Value>).collect::<Vec<_>>()
    };
    let within: Vec<_> = found.iter().flat_map(inner).collect();
    found.into_iter().chain(within).filter(|document| document["apiVersion"] == super::API_VERSION).collect()
}

#[test]
fn the_schemas_take_every_manifest_of_deploy_and_refuse_what_the_types_refuse() {
    let (host, plugin) = (schema_of::<HostSpec>("Host"), schema_of::<PluginSpec>("Plugin"));
    let (host, plugin) = (
        |document: &Value| check_against_schema(&host, document),
        |document: &Value| check_against_schema(&plugin, document),
    );
    let deployed = deployed_manifests();
    let is_host = |document: &&Value| document["kind"] == "Host";
    let (templates, deployed): (Vec<_>, Vec<_>) =
        deployed.iter().partition(|document| document["kind"] == "JobTemplate");
    let template = schema_of::<TemplateSpec>("JobTemplate");
    assert!(templates.len() >= 2, "{}", templates.len());
    for document in templates {
        check_against_schema(&template, document).unwrap();
        assert_eq!(
            serde_json::from_value::<Manifest<TemplateSpec>>(document.clone()).unwrap().spec.check(),
            []
        );
    }
    let (hosts, plugins) = deployed.into_iter().partition::<Vec<_>, _>(is_host);
    assert!(hosts.len() >= 6 && plugins.len() >= 6, "{} and {}", hosts.len(), plugins.len());
    hosts.iter().for_each(|document| host(document).unwrap());
    plugins.iter().for_each(|document| plugin(document).unwrap());

    let wrong = [
        ("/spec", "colour", json!("red")),
        ("/spec/sources/0", "colour", json!("red")),
        ("/spec/sources/0/retention", "years", json!(1)),
        ("/spec/sources/0", "name", json!("Not a name")),
        ("/spec/sources/0", "audit", json!("soon")),
        ("/spec/databases/1/postgres", "connections", json!(65)),
        ("/spec/databases/1/postgres", "urlFrom", json!("postgres://in-the-open")),
        ("/spec/statusRules/0/cases/0", "phase", json!("Done")),
        ("", "kind", json!("Plugin")),
        ("/metadata", "labels", json!({})),
    ];
    for (at, field, value) in wrong {
        let mut document = parse_yaml_documents::<Value>(HOST).remove(0);
        document.pointer_mut(at).unwrap()[field] = value;
        assert!(host(&document).is_err(), "{at}/{field}");
        assert!(
            serde_json::from_value::<Manifest<HostSpec>>(document)
                .map_or(true, |read| { read.kind != "Host" || !read.spec.check().is_empty() }),
            "{at}/{field} is refused by the schema alone"
        );
    }
    for (at, field, value) in [
        ("/spec", "colour", json!("red")),
        ("/spec/subscribe/0", "mode", json!("sometimes")),
        ("/spec/subscribe/0", "start", json!({"since": "last month"})),
        ("/spec/delivery", "batch", json!(1025)),
        ("/spec/delivery/rate", "perSecond", json!(0)),
        ("/spec/limits", "memory", json!("64MB")),
        ("/spec/grants", "files", json!([])),
    ] {
        let mut document = parse_yaml_documents::<Value>(PLUGIN).remove(0);
        document.pointer_mut(at).unwrap()[field] = value;
        assert!(plugin(&document).is_err(), "{at}/{field}");
    }
}

#[test]
fn the_schema_s_names_are_those_that_the_check_takes() {
    let schema = name(&mut SchemaGenerator::default()).to_value();
    let long = "a".repeat(63);
    for text in ["a", "a-b", "9", &long, &format!("{long}a"), "", "-a", "a-", "A", "a_b", "a.b"] {
        assert_eq!(check_against_schema(&schema, &json!(text)).is_ok(), super::is_name(text), "{text}");
    }
}
