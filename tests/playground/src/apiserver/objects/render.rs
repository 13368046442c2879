//! Renders objects for answers: whole, as metadata alone, or as rows of a table; single, in lists, and as
//! frames of a watch.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::apiserver::kinds::{ServedKind, tables};
use crate::apiserver::store::StoreEvent;
use crate::apiserver::store::record::{VersionRecord, type_prefix, write_object};
use crate::apiserver::values::versions::VersionStyle;
use crate::apiserver::wire::error::ApiError;
use crate::apiserver::wire::query::QueryParameters;

/// The format that a client accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcceptedForm {
    Whole,
    Metadata,
    Table,
}

/// How much of an object a table contains beside its cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableInclude {
    Nothing,
    Metadata,
    Object,
}

impl AcceptedForm {
    /// The first known form of an `Accept` header.
    pub fn negotiate(accept: Option<&str>) -> Result<Self, ApiError> {
        let Some(accept) = accept.filter(|a| !a.trim().is_empty()) else { return Ok(AcceptedForm::Whole) };
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
                (None, _) => return Ok(AcceptedForm::Whole),
                (Some("Table"), "v1") => return Ok(AcceptedForm::Table),
                (Some("PartialObjectMetadata" | "PartialObjectMetadataList"), "v1") => {
                    return Ok(AcceptedForm::Metadata);
                }
                _ => {}
            }
        }
        Err(ApiError::not_acceptable())
    }
}

/// How the objects of one request are written.
pub struct RenderView {
    pub kind: Arc<ServedKind>,
    pub form: AcceptedForm,
    pub include: TableInclude,
    versions: VersionStyle,
    prefix: String,
}

impl RenderView {
    pub fn new(
        kind: Arc<ServedKind>,
        form: AcceptedForm,
        query: &QueryParameters,
        versions: VersionStyle,
    ) -> Self {
        let include = match query.get("includeObject") {
            "None" => TableInclude::Nothing,
            "Object" => TableInclude::Object,
            _ => TableInclude::Metadata,
        };
        RenderView { prefix: type_prefix(&kind), kind, form, include, versions }
    }

    /// A single object as the answer to a request.
    pub fn single(&self, record: &VersionRecord) -> Vec<u8> {
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
            AcceptedForm::Whole => value.to_string().into_bytes(),
            AcceptedForm::Metadata => partial(value).to_string().into_bytes(),
            AcceptedForm::Table => self.table(value, true).to_string().into_bytes(),
        }
    }

    /// The part of a list before its items.
    pub fn list_head(&self, version: u64, next: Option<&str>, remaining: Option<u64>) -> Vec<u8> {
        let (kind, api_version) = match self.form {
            AcceptedForm::Whole => (self.kind.list_kind(), self.kind.api_version()),
            AcceptedForm::Metadata => ("PartialObjectMetadataList".to_owned(), "meta.k8s.io/v1".to_owned()),
            AcceptedForm::Table => ("Table".to_owned(), "meta.k8s.io/v1".to_owned()),
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
        if self.form == AcceptedForm::Table {
            head.push_str("\"columnDefinitions\":");
            head.push_str(&tables::definitions(&self.kind).to_string());
            head.push_str(",\"rows\":[");
        } else {
            head.push_str("\"items\":[");
        }
        head.into_bytes()
    }

    /// One item of a list.
    pub fn list_item(&self, out: &mut Vec<u8>, record: &VersionRecord) {
        match self.form {
            // Built-in kinds do not repeat the type of the list; custom ones do.
            AcceptedForm::Whole if self.kind.custom.is_none() => {
                write_object(out, "", &self.versions.text(record.version), &record.tail);
            }
            AcceptedForm::Table => {
                let mut value = record.to_value(&self.kind);
                value["metadata"]["resourceVersion"] = self.versions.text(record.version).into();
                let row = self.row(&value);
                out.extend_from_slice(row.to_string().as_bytes());
            }
            _ => self.write(out, record.version, record, false),
        }
    }

    /// One frame of a watch: the content of `record` under `version`.
    pub fn frame(
        &self,
        out: &mut Vec<u8>,
        event: StoreEvent,
        version: u64,
        record: &VersionRecord,
        first: bool,
    ) {
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
            AcceptedForm::Whole => json!({
                "kind": self.kind.kind, "apiVersion": self.kind.api_version(), "metadata": metadata,
            }),
            AcceptedForm::Metadata => json!({
                "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
            }),
            AcceptedForm::Table => {
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

    fn write(&self, out: &mut Vec<u8>, version: u64, record: &VersionRecord, first: bool) {
        if self.form == AcceptedForm::Whole {
            write_object(out, &self.prefix, &self.versions.text(version), &record.tail);
            return;
        }
        let mut value = record.to_value(&self.kind);
        value["metadata"]["resourceVersion"] = self.versions.text(version).into();
        let value =
            if self.form == AcceptedForm::Metadata { partial(&value) } else { self.table(&value, first) };
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
            TableInclude::Nothing => json!({"cells": cells, "object": null}),
            TableInclude::Metadata => json!({"cells": cells, "object": partial(value)}),
            TableInclude::Object => json!({"cells": cells, "object": value}),
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
        assert_eq!(AcceptedForm::negotiate(Some(table)).unwrap(), AcceptedForm::Table);
        let old = "application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        assert_eq!(AcceptedForm::negotiate(Some(old)).unwrap(), AcceptedForm::Whole);
        let partial = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
        assert_eq!(AcceptedForm::negotiate(Some(partial)).unwrap(), AcceptedForm::Metadata);
        let protobuf = "application/vnd.kubernetes.protobuf,application/json";
        assert_eq!(AcceptedForm::negotiate(Some(protobuf)).unwrap(), AcceptedForm::Whole);
        assert_eq!(
            AcceptedForm::negotiate(Some("application/vnd.kubernetes.protobuf")).unwrap_err().code,
            406
        );
        assert_eq!(AcceptedForm::negotiate(None).unwrap(), AcceptedForm::Whole);
    }
}
