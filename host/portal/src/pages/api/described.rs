//! Reads operations from the description of the API, for a page.

use serde_json::{Map, Value};

pub(super) struct DescribedOperation {
    pub(super) id: String,
    pub(super) method: String,
    pub(super) path: String,
    pub(super) summary: String,
    pub(super) about: String,
    pub(super) parameters: Vec<DescribedField>,
    /// The fields of its body.
    pub(super) body: Vec<DescribedField>,
    pub(super) answers: Vec<DescribedAnswer>,
    /// The fields of a JSON answer; for a list, those of one element.
    pub(super) given: Vec<DescribedField>,
}

#[derive(Debug, PartialEq)]
pub(super) struct DescribedField {
    pub(super) name: String,
    /// `query`, `path` or `header`; empty for a field of a body.
    pub(super) place: String,
    pub(super) kind: String,
    pub(super) about: String,
    pub(super) is_required: bool,
}

pub(super) struct DescribedAnswer {
    pub(super) status: String,
    pub(super) about: String,
    pub(super) media: String,
}

/// In the order of their paths.
pub(super) fn read(text: &str) -> Result<Vec<DescribedOperation>, String> {
    let document: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let paths = document["paths"].as_object().ok_or("it has no paths")?;
    let methods = |(path, methods): (&String, &Value)| {
        let methods = methods.as_object().cloned().unwrap_or_default();
        let read = |(method, told): (String, Value)| describe_operation(&document, path, &method, &told);
        methods.into_iter().map(read).collect::<Vec<_>>()
    };
    Ok(paths.iter().flat_map(methods).collect())
}

fn describe_operation(document: &Value, path: &str, method: &str, told: &Value) -> DescribedOperation {
    let body = resolve_reference(document, &told["requestBody"]["content"]["application/json"]["schema"]);
    let given =
        resolve_reference(document, &told["responses"]["200"]["content"]["application/json"]["schema"]);
    let given = if given["type"] == "array" { resolve_reference(document, &given["items"]) } else { given };
    let parameters = told["parameters"].as_array().map(Vec::as_slice).unwrap_or_default();
    let answers = told["responses"].as_object().into_iter().flatten();
    DescribedOperation {
        id: text(&told["operationId"]),
        method: method.to_uppercase(),
        path: path.to_owned(),
        summary: text(&told["summary"]),
        about: text(&told["description"]),
        parameters: parameters.iter().map(describe_parameter).collect(),
        body: describe_fields(body),
        answers: answers
            .map(|(status, answer)| self::describe_answer(status, resolve_reference(document, answer)))
            .collect(),
        given: describe_fields(given),
    }
}

/// The target of a reference, or the value itself.
fn resolve_reference<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
    let target = value["$ref"].as_str().and_then(|reference| reference.strip_prefix('#'));
    target.and_then(|pointer| document.pointer(pointer)).unwrap_or(value)
}

fn describe_parameter(told: &Value) -> DescribedField {
    DescribedField {
        name: text(&told["name"]),
        place: text(&told["in"]),
        kind: kind_in_words(&told["schema"]),
        about: text(&told["description"]),
        is_required: told["required"] == true,
    }
}

fn describe_answer(status: &str, told: &Value) -> DescribedAnswer {
    let media = told["content"].as_object().and_then(|content| content.keys().next());
    let status = if status == "default" { "any other" } else { status };
    DescribedAnswer {
        status: status.to_owned(),
        about: text(&told["description"]),
        media: media.cloned().unwrap_or_default(),
    }
}

fn describe_fields(schema: &Value) -> Vec<DescribedField> {
    let required = schema["required"].as_array().map(Vec::as_slice).unwrap_or_default();
    let properties: Option<&Map<String, Value>> = schema["properties"].as_object();
    let field = |(name, told): (&String, &Value)| DescribedField {
        name: name.clone(),
        place: String::new(),
        kind: kind_in_words(told),
        about: text(&told["description"]),
        is_required: required.iter().any(|one| one == name),
    };
    properties.into_iter().flatten().map(field).collect()
}

/// A type in words: `integer, 1 to 10000, usually 500`, `Job or Pod`, `list of State`.
fn kind_in_words(schema: &Value) -> String {
    if let Some(reference) = schema["$ref"].as_str() {
        return reference.rsplit('/').next().unwrap_or_default().to_owned();
    }
    let mut parts = vec![match (&schema["type"], schema["enum"].as_array()) {
        (_, Some(words)) => {
            words.iter().map(text).filter(|word| !word.is_empty()).collect::<Vec<_>>().join(", ")
        }
        (Value::String(list), _) if list == "array" => format!("list of {}", kind_in_words(&schema["items"])),
        (Value::Array(types), _) => types.iter().map(text).collect::<Vec<_>>().join(" or "),
        (other, _) => text(other),
    }];
    match (schema["minimum"].as_i64(), schema["maximum"].as_i64()) {
        (Some(least), Some(most)) => parts.push(format!("{least} to {most}")),
        (Some(least), None) if least != 0 => parts.push(format!("at least {least}")),
        _ => {}
    }
    if let Some(most) = schema["maxLength"].as_u64() {
        parts.push(format!("at most {most} bytes"));
    }
    if let Some(most) = schema["maxItems"].as_u64().filter(|_| schema["type"] == "array") {
        parts.push(format!("at most {most}"));
    }
    if let Some(usual) = schema.get("default").filter(|usual| usual.is_number()) {
        parts.push(format!("usually {usual}"));
    }
    parts.retain(|part| !part.is_empty());
    parts.join(", ")
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

impl DescribedOperation {
    /// A command that calls it. Words in capitals are placeholders.
    pub(super) fn example_command(&self) -> String {
        let mut path = self.path.clone();
        for field in self.parameters.iter().filter(|field| field.place == "path") {
            let value = if field.kind == "integer" { "1".to_owned() } else { field.name.to_uppercase() };
            path = path.replace(&format!("{{{}}}", field.name), &value);
        }
        let takes = |name: &str| self.parameters.iter().any(|field| field.name == name);
        let asked = match (takes("kind") && takes("uid"), takes("limit")) {
            // For one object, unless a list is meant.
            (true, _) if !takes("source") => "?kind=Job&name=NAME&namespace=NAMESPACE",
            (_, true) => "?limit=10",
            _ => "",
        };
        let mut command = "curl -H \"Authorization: Bearer $TOKEN\"".to_owned();
        if self.method != "GET" {
            command.push_str(&format!(" -X {}", self.method));
        }
        if !self.body.is_empty() {
            let value = |field: &DescribedField| match field.kind.split(',').next() {
                Some("string") => Value::from(field.name.to_uppercase()),
                Some("boolean") => Value::from(true),
                _ => Value::from(1),
            };
            let required = self.body.iter().filter(|field| field.is_required);
            let body: Map<String, Value> = required.map(|field| (field.name.clone(), value(field))).collect();
            command
                .push_str(&format!(" \\\n  -H 'Content-Type: application/json' -d '{}'", Value::from(body)));
        }
        let streams = if self.id == "events" { " -N" } else { "" };
        format!("{command}{streams} \\\n  \"$PORTAL{path}{asked}\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::OPENAPI;

    fn of(id: &str) -> DescribedOperation {
        read(OPENAPI).unwrap().into_iter().find(|operation| operation.id == id).unwrap()
    }

    #[test]
    fn each_operation_is_read_with_a_summary_an_answer_and_an_example() {
        let all = read(OPENAPI).unwrap();
        assert!(all.len() >= 20, "{}", all.len());
        for operation in &all {
            let DescribedOperation { id, path, summary, answers, parameters, .. } = operation;
            assert!(!id.is_empty() && !summary.is_empty() && !answers.is_empty(), "{path}");
            assert!(
                !operation.example_command().contains(['{', '}']) || !operation.body.is_empty(),
                "{path}"
            );
            for field in parameters.iter().chain(&operation.body) {
                assert!(!field.kind.is_empty(), "{path} {}", field.name);
            }
        }
    }

    #[test]
    fn bounds_references_and_lists_are_told_in_words() {
        let objects = of("objects");
        let limit = objects.parameters.iter().find(|field| field.name == "limit").unwrap();
        assert_eq!((limit.kind.as_str(), limit.is_required), ("integer, 1 to 10000, usually 500", false));
        let object = objects.given.iter().find(|field| field.name == "object").unwrap();
        assert_eq!((object.kind.as_str(), object.is_required), ("ObjectRef", true));
        let states = of("timeline").given;
        assert_eq!(states.iter().find(|field| field.name == "states").unwrap().kind, "list of State");
        let reason = of("replay").body.into_iter().find(|field| field.name == "reason").unwrap();
        assert_eq!(reason.kind, "string, at most 1024 bytes");
    }

    #[test]
    fn an_example_is_a_whole_command() {
        assert_eq!(
            of("timeline").example_command(),
            "curl -H \"Authorization: Bearer $TOKEN\" \\\n  \
             \"$PORTAL/api/v1/timeline?kind=Job&name=NAME&namespace=NAMESPACE\""
        );
        assert_eq!(
            of("pause").example_command(),
            "curl -H \"Authorization: Bearer $TOKEN\" -X POST \\\n  -H 'Content-Type: application/json' \
             -d '{\"reason\":\"REASON\"}' \\\n  \"$PORTAL/api/v1/plugins/NAME/pause\""
        );
        assert!(of("document").example_command().ends_with("\"$PORTAL/api/v1/states/1/document\""));
    }
}
