//! Reads objects from files that a person names: YAML or JSON, several documents, a list, or the events of a
//! watch.

use std::io::Read;
use std::path::Path;

use anyhow::{Result, bail, ensure};
use kubewitness_core::files;
use kubewitness_core::state::ObjectRef;
use serde::Serialize;
use serde_json::Value;

use crate::config::tree::YamlTree;

/// Objects have at most a few MB. A larger text is not one, and reading it would only take memory.
const OBJECT_BYTES: u64 = 64 << 20;

/// Each object is delivered separately and printed as a line. A larger file must be divided.
const OBJECTS: usize = 10_000;

/// One object of a file.
#[derive(Debug)]
pub struct ObservedObject {
    pub object: Value,
    /// Whether an event of a watch says that it was deleted.
    pub is_gone: bool,
}

/// The name of an object.
#[derive(Clone, Debug, Serialize)]
pub struct NamedFile {
    pub kind: String,
    pub group: String,
    pub namespace: String,
    pub name: String,
}

impl NamedFile {
    pub fn of(object: &Value) -> Result<Self> {
        let (kind, api_version) = (text(object, "/kind"), text(object, "/apiVersion"));
        ensure!(
            !kind.is_empty() && !api_version.is_empty(),
            "an object has no `kind` or no `apiVersion`: give it whole, as `kubectl get -o yaml` prints it"
        );
        let group = api_version.rsplit_once('/').map_or("", |(group, _)| group);
        let [namespace, name] =
            ["/metadata/namespace", "/metadata/name"].map(|it| text(object, it).to_owned());
        Ok(Self { kind: kind.to_owned(), group: group.to_owned(), namespace, name })
    }

    /// For a complete object, which has a name.
    pub fn of_whole(object: &Value) -> Result<Self> {
        let named = Self::of(object)?;
        // YAML reads an unquoted 5 as a number, and an unquoted n as false.
        ensure!(
            !named.name.is_empty(),
            "an object of the kind {} has no `metadata.name` that is a text: give it whole, as `kubectl get -o yaml` \
             prints it",
            named.kind
        );
        Ok(named)
    }

    pub fn text(&self) -> String {
        let namespace =
            if self.namespace.is_empty() { String::new() } else { format!("{}/", self.namespace) };
        let group = if self.group.is_empty() { String::new() } else { format!(".{}", self.group) };
        format!("{}{group} {namespace}{}", self.kind, self.name)
    }

    pub fn object_reference(&self, object: &Value) -> ObjectRef {
        let version = text(object, "/apiVersion").rsplit('/').next().unwrap_or_default();
        ObjectRef {
            group: self.group.clone(),
            version: version.to_owned(),
            kind: self.kind.clone(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            uid: text(object, "/metadata/uid").to_owned(),
        }
    }
}

pub fn text<'o>(object: &'o Value, pointer: &str) -> &'o str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// `-` reads standard input.
pub fn read(path: &Path) -> Result<Vec<ObservedObject>> {
    let mut text = String::new();
    let input: Box<dyn Read> = if path == Path::new("-") {
        Box::new(std::io::stdin())
    } else {
        Box::new(files::open_command_input(path)?)
    };
    input.take(OBJECT_BYTES + 1).read_to_string(&mut text)?;
    ensure!(text.len() as u64 <= OBJECT_BYTES, "it has more than {} MiB", OBJECT_BYTES >> 20);
    parse(&text)
}

pub fn parse(text: &str) -> Result<Vec<ObservedObject>> {
    let mut objects = Vec::new();
    for document in parse_documents(text)? {
        flatten_lists(document, false, &mut objects)?;
    }
    if objects.is_empty() {
        bail!("it has no object");
    }
    ensure!(
        objects.len() <= OBJECTS,
        "it has {} objects: divide it into files of up to {OBJECTS}",
        objects.len()
    );
    Ok(objects)
}

fn parse_documents(text: &str) -> Result<Vec<Value>> {
    // YAML refuses tabs, with which JSON may be indented.
    if text.trim_start().starts_with(['{', '['])
        && let Ok(values) = serde_json::Deserializer::from_str(text).into_iter().collect()
    {
        return Ok(values);
    }
    let trees =
        YamlTree::parse(text).map_err(|error| anyhow::anyhow!("line {}: {}", error.line, error.message))?;
    Ok(trees.iter().map(YamlTree::to_json).collect())
}

fn flatten_lists(document: Value, is_gone: bool, objects: &mut Vec<ObservedObject>) -> Result<()> {
    match document {
        Value::Array(items) => {
            items.into_iter().try_for_each(|item| flatten_lists(item, is_gone, objects))?;
        }
        Value::Object(mut map) if map.contains_key("items") && !map.contains_key("spec") => {
            if let Some(items) = map.remove("items") {
                flatten_lists(items, is_gone, objects)?;
            }
        }
        Value::Object(mut map) if map.contains_key("type") && map.contains_key("object") => {
            let is_gone = match map["type"].as_str() {
                Some("ADDED" | "MODIFIED") => false,
                Some("DELETED") => true,
                // It has a position, but no object.
                Some("BOOKMARK") => return Ok(()),
                _ => bail!("a watch's event has the type {}: give ADDED, MODIFIED or DELETED", map["type"]),
            };
            objects.extend(map.remove("object").map(|object| ObservedObject { object, is_gone }));
        }
        other => objects.push(ObservedObject { object: other, is_gone }),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(text: &str) -> Result<Vec<String>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("o");
        std::fs::write(&path, text).unwrap();
        let text = |seen: &ObservedObject| {
            let gone = if seen.is_gone { " gone" } else { "" };
            Ok(format!("{}{gone}", NamedFile::of_whole(&seen.object)?.text()))
        };
        read(&path)?.iter().map(text).collect()
    }

    #[test]
    fn objects_are_read_as_kubectl_prints_them() {
        let list = "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: batch/v1, kind: Job, metadata: {name: a, namespace: t}}\n- {apiVersion: v1, kind: Node, metadata: {name: b}}\n";
        assert_eq!(named(list).unwrap(), ["Job.batch t/a", "Node b"]);
        let stream = "{\"kind\":\"Pod\",\n\t\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"b\"}}\n{\"type\":\"BOOKMARK\",\"object\":{}}\n{\"type\":\"DELETED\",\"object\":{\"kind\":\"Pod\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"c\"}}}";
        assert_eq!(named(stream).unwrap(), ["Pod b", "Pod c gone"]);
        assert_eq!(
            named("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n---\napiVersion: g/v1\nkind: K\nmetadata: {name: b}\n").unwrap(),
            ["Pod a", "K.g b"]
        );
        for (text, why) in [
            ("", "no object"),
            ("a: [1\n", "line"),
            ("kind: Pod\n", "give it whole"),
            ("7", "give it whole"),
            ("{apiVersion: v1, kind: Pod, metdata: {name: a}}", "no `metadata.name` that is a text"),
            ("{apiVersion: v1, kind: Pod, metadata: {name: 5}}", "no `metadata.name` that is a text"),
            ("{type: GONE, object: {}}", "has the type \"GONE\": give ADDED"),
        ] {
            let error = named(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn more_objects_than_the_bound_are_refused_with_how_many_a_file_may_have() {
        let of = |count: usize| {
            "{\"kind\":\"Pod\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"a\"}}\n".repeat(count)
        };
        assert_eq!(named(&of(OBJECTS)).unwrap().len(), OBJECTS);
        let error = named(&of(OBJECTS + 1)).unwrap_err().to_string();
        assert!(error.contains("10001 objects: divide it into files of up to 10000"), "{error}");
    }

    #[test]
    fn a_pipe_without_a_writer_is_refused_and_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("p");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let error = read(&pipe).unwrap_err().to_string();
        assert!(error.contains("it is a pipe, and a regular file is expected"), "{error}");
    }

    #[test]
    fn objects_without_an_end_are_refused_at_their_bound() {
        let large = tempfile::NamedTempFile::new().unwrap();
        large.as_file().set_len(OBJECT_BYTES + 1).unwrap();
        let error_of = |path: &Path| read(path).unwrap_err().to_string();
        assert_eq!(error_of(large.path()), "it has more than 64 MiB");
        assert!(error_of(Path::new("/dev/zero")).starts_with("it is a device"));
    }
}
