//! Renders objects for answers: whole, as metadata alone, or as rows of a table; single, in lists, and as
//! frames of a watch.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::apiserver::kinds::{Kind, tables};
use crate::apiserver::store::Event;
use crate::apiserver::store::record::{Record, type_prefix, write_object};
use crate::apiserver::values::versions::Versions;
use crate::apiserver::wire::error::ApiError;
use crate::apiserver::wire::query::Query;

/// What a client accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Whole,
    Metadata,
    Table,
}

/// How much of an object a table has beside its cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Include {
    Nothing,
    Metadata,
    Object,
}

impl Form {
    /// The first known form of an `Accept` header.
    pub fn negotiate(accept: Option<&str>) -> Result<Self, ApiError> {
        let Some(accept) = accept.filter(|a| !a.trim().is_empty()) else { return Ok(Form::Whole) };
        for range in accept.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let media = parts.next().unwrap_or_default();
            if !matches!(
                media,
                "application/json" | "application/*" | "*/*" | "application/json;stream=watch"
            ) {
                continue;
            }
            let mut form = None;
            let mut version = "v1";
            for parameter in parts {
                match parameter.split_once('=') {
                    Some(("as", value)) => form = Some(value),
                    Some(("v", value)) => version = value,
                    _ => {}
                }
            }
            match (form, version) {
                (None, _) => return Ok(Form::Whole),
                (Some("Table"), "v1") => return Ok(Form::Table),
                (Some("PartialObjectMetadata" | "PartialObjectMetadataList"), "v1") => {
                    return Ok(Form::Metadata);
                }
                _ => {}
            }
        }
        Err(ApiError::not_acceptable())
    }
}

/// How the objects of one request are written.
pub struct View {
    pub kind: Arc<Kind>,
    pub form: Form,
    pub include: Include,
    versions: Versions,
    prefix: String,
}

impl View {
    pub fn new(kind: Arc<Kind>, form: Form, query: &Query, versions: Versions) -> Self {
        let include = match query.get("includeObject") {
            "None" => Include::Nothing,
            "Object" => Include::Object,
            _ => Include::Metadata,
        };
        View { prefix: type_prefix(&kind), kind, form, include, versions }
    }

    /// A single object as the answer to a request.
    pub fn single(&self, record: &Record) -> Vec<u8> {
        let mut out = Vec::with_capacity(record.tail.len() + 128);
        self.write(&mut out, record.version, record, true);
        out
    }

    /// An object that is not stored, such as the result of a dry run.
    pub fn single_value(&self, value: &Value) -> Vec<u8> {
        let mut value = value.clone();
        let version = value["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok());
        if let Some(version) = version {
            value["metadata"]["resourceVersion"] = self.versions.text(version).into();
        }
        let value = &value;
        match self.form {
            Form::Whole => value.to_string().into_bytes(),
            Form::Metadata => partial(value).to_string().into_bytes(),
            Form::Table => self.table(value, true).to_string().into_bytes(),
        }
    }

    /// Everything of a list before its items.
    pub fn list_head(&self, version: u64, next: Option<&str>, remaining: Option<u64>) -> Vec<u8> {
        let (kind, api_version) = match self.form {
            Form::Whole => (self.kind.list_kind(), self.kind.api_version()),
            Form::Metadata => ("PartialObjectMetadataList".to_owned(), "meta.k8s.io/v1".to_owned()),
            Form::Table => ("Table".to_owned(), "meta.k8s.io/v1".to_owned()),
        };
        let mut metadata = json!({"resourceVersion": self.versions.text(version)});
        if let Some(next) = next {
            metadata["continue"] = next.into();
        }
        if let Some(remaining) = remaining {
            metadata["remainingItemCount"] = remaining.into();
        }
        let mut head =
            format!("{{\"kind\":\"{kind}\",\"apiVersion\":\"{api_version}\",\"metadata\":{metadata},");
        if self.form == Form::Table {
            head.push_str("\"columnDefinitions\":");
            head.push_str(&tables::definitions(&self.kind).to_string());
            head.push_str(",\"rows\":[");
        } else {
            head.push_str("\"items\":[");
        }
        head.into_bytes()
    }

    /// One item of a list.
    pub fn list_item(&self, out: &mut Vec<u8>, record: &Record) {
        match self.form {
            // Built-in kinds do not repeat the type of the list; custom ones do.
            Form::Whole if self.kind.custom.is_none() => {
                write_object(out, "", &self.versions.text(record.version), &record.tail);
            }
            Form::Table => {
                let mut value = record.to_value(&self.kind);
                value["metadata"]["resourceVersion"] = self.versions.text(record.version).into();
                let row = self.row(&value);
                out.extend_from_slice(row.to_string().as_bytes());
            }
            _ => self.write(out, record.version, record, false),
        }
    }

    /// One frame of a watch: the content of `record` under `version`.
    pub fn frame(&self, out: &mut Vec<u8>, event: Event, version: u64, record: &Record, first: bool) {
        out.extend_from_slice(b"{\"type\":\"");
        out.extend_from_slice(event.as_str().as_bytes());
        out.extend_from_slice(b"\",\"object\":");
        self.write(out, version, record, first);
        out.extend_from_slice(b"}\n");
    }

    pub fn bookmark(&self, version: u64, ends_initial: bool) -> Vec<u8> {
        let mut metadata = json!({"resourceVersion": self.versions.text(version)});
        if ends_initial {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let object = match self.form {
            Form::Whole => json!({
                "kind": self.kind.kind, "apiVersion": self.kind.api_version(), "metadata": metadata,
            }),
            Form::Metadata => json!({
                "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
            }),
            Form::Table => {
                let object = json!({
                    "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
                });
                json!({
                    "kind": "Table", "apiVersion": "meta.k8s.io/v1",
                    "metadata": {"resourceVersion": self.versions.text(version)},
                    "columnDefinitions": null, "rows": [{"cells": [], "object": object}],
                })
            }
        };
        format!("{}\n", json!({"type": "BOOKMARK", "object": object})).into_bytes()
    }

    fn write(&self, out: &mut Vec<u8>, version: u64, record: &Record, first: bool) {
        if self.form == Form::Whole {
            write_object(out, &self.prefix, &self.versions.text(version), &record.tail);
            return;
        }
        let mut value = record.to_value(&self.kind);
        value["metadata"]["resourceVersion"] = self.versions.text(version).into();
        let value = if self.form == Form::Metadata { partial(&value) } else { self.table(&value, first) };
        out.extend_from_slice(value.to_string().as_bytes());
    }

    /// A table of one row. Only the first table of a watch names its columns.
    fn table(&self, value: &Value, first: bool) -> Value {
        let columns = if first { tables::definitions(&self.kind) } else { Value::Null };
        json!({
            "kind": "Table",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": {"resourceVersion": value["metadata"]["resourceVersion"]},
            "columnDefinitions": columns,
            "rows": [self.row(value)],
        })
    }

    fn row(&self, value: &Value) -> Value {
        let cells = tables::cells(&self.kind, value);
        match self.include {
            Include::Nothing => json!({"cells": cells, "object": null}),
            Include::Metadata => json!({"cells": cells, "object": partial(value)}),
            Include::Object => json!({"cells": cells, "object": value}),
        }
    }
}

fn partial(value: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": value["metadata"],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_known_form_is_taken() {
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
        assert_eq!(Form::negotiate(Some(table)).unwrap(), Form::Table);
        let old = "application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        assert_eq!(Form::negotiate(Some(old)).unwrap(), Form::Whole);
        let partial = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
        assert_eq!(Form::negotiate(Some(partial)).unwrap(), Form::Metadata);
        let protobuf = "application/vnd.kubernetes.protobuf,application/json";
        assert_eq!(Form::negotiate(Some(protobuf)).unwrap(), Form::Whole);
        assert_eq!(Form::negotiate(Some("application/vnd.kubernetes.protobuf")).unwrap_err().code, 406);
        assert_eq!(Form::negotiate(None).unwrap(), Form::Whole);
    }
}
