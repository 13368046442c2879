//! Decodes the protobuf bodies of a few `kubectl` commands into documents.
//!
//! `create job`, `create namespace`, `auth can-i` and the like send no JSON, but accept JSON answers. So only
//! decoding is needed, and only for the fields that these commands send: their numbers are a table in
//! `schema`. The complete generated types of Kubernetes would be a large dependency for that.
//!
//! Invariant: a field that is not in the table is refused, never dropped. A dropped field would be a wrong
//! answer that nobody notices.

mod schema;

use serde_json::{Map, Value, json};

use crate::apiserver::values::base64;
use schema::{FieldType, SchemaField};

/// The first bytes of every body.
const MAGIC: &[u8] = b"k8s\0";

/// The deepest nesting of messages. No table goes deeper.
const MAX_DEPTH: u32 = 16;

/// Returns the document, or why it can't be decoded.
pub fn decode(body: &[u8]) -> Result<Value, String> {
    let body = body.strip_prefix(MAGIC).ok_or("the body does not begin as protobuf of Kubernetes does")?;
    let (mut kind, mut raw) = (Value::Null, None);
    for entry in entries(body)? {
        match (entry.number, entry.wire) {
            (1, WireValue::Bytes(bytes)) => kind = Value::Object(message(bytes, schema::TYPE, 0)?),
            (2, WireValue::Bytes(bytes)) => raw = Some(bytes),
            _ => {}
        }
    }
    let name = kind["kind"].as_str().unwrap_or_default();
    let fields = schema::of(name).ok_or_else(|| format!("{name} cannot be read as protobuf"))?;
    let mut document = message(raw.ok_or("there is no object in the body")?, fields, 0)?;
    document.insert("apiVersion".into(), kind["apiVersion"].clone());
    document.insert("kind".into(), kind["kind"].clone());
    Ok(Value::Object(document))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WireValue<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

struct MapEntry<'a> {
    number: u64,
    wire: WireValue<'a>,
}

fn entries(bytes: &[u8]) -> Result<Vec<MapEntry<'_>>, String> {
    let mut rest = bytes;
    let mut found = Vec::new();
    while !rest.is_empty() {
        let tag = varint(&mut rest)?;
        let wire = match tag & 7 {
            0 => WireValue::Number(varint(&mut rest)?),
            2 => {
                let length = usize::try_from(varint(&mut rest)?).unwrap_or(usize::MAX);
                let (value, after) = rest.split_at_checked(length).ok_or("the body is cut off")?;
                rest = after;
                WireValue::Bytes(value)
            }
            other => return Err(format!("wire type {other} is not used by Kubernetes")),
        };
        found.push(MapEntry { number: tag >> 3, wire });
    }
    Ok(found)
}

fn varint(rest: &mut &[u8]) -> Result<u64, String> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, after) = rest.split_first().ok_or("the body is cut off")?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err("a number is too long".to_owned())
}

fn message(bytes: &[u8], fields: &[SchemaField], depth: u32) -> Result<Map<String, Value>, String> {
    if depth > MAX_DEPTH {
        return Err("messages are nested too deeply".to_owned());
    }
    let mut object = Map::new();
    for entry in entries(bytes)? {
        match fields.iter().find(|field| u64::from(field.0) == entry.number) {
            Some((_, name, kind)) => insert(&mut object, name, kind, entry.wire, depth)?,
            None if matches!(entry.wire, WireValue::Number(0) | WireValue::Bytes(&[])) => {}
            None => return Err(format!("field {} cannot be read as protobuf", entry.number)),
        }
    }
    Ok(object)
}

fn insert(
    object: &mut Map<String, Value>,
    name: &str,
    kind: &FieldType,
    wire: WireValue<'_>,
    depth: u32,
) -> Result<(), String> {
    let value = match (kind, wire) {
        (FieldType::Ignored, _) => return Ok(()),
        (FieldType::Text | FieldType::Texts, WireValue::Bytes(bytes)) => text(bytes)?.into(),
        // Negative numbers are written as very large ones.
        (FieldType::Number, WireValue::Number(number)) => number.cast_signed().into(),
        (FieldType::Flag, WireValue::Number(number)) => (number != 0).into(),
        (FieldType::Map | FieldType::ByteMap, WireValue::Bytes(bytes)) => {
            return insert_pair(object, name, kind, bytes);
        }
        (FieldType::One(fields) | FieldType::Many(fields), WireValue::Bytes(bytes)) => {
            Value::Object(message(bytes, fields, depth + 1)?)
        }
        _ => return Err(format!("{name} has the wrong wire type")),
    };
    match kind {
        FieldType::Texts | FieldType::Many(_) => {
            if let Value::Array(values) = object.entry(name).or_insert_with(|| json!([])) {
                values.push(value);
            }
        }
        // Kubernetes also writes most fields that are not set.
        _ if value == "" || value == json!({}) => {}
        _ => drop(object.insert(name.to_owned(), value)),
    }
    Ok(())
}

fn insert_pair(
    object: &mut Map<String, Value>,
    name: &str,
    kind: &FieldType,
    bytes: &[u8],
) -> Result<(), String> {
    let (mut key, mut value) = (String::new(), String::new());
    for entry in entries(bytes)? {
        match (entry.number, entry.wire) {
            (1, WireValue::Bytes(bytes)) => key = text(bytes)?,
            (2, WireValue::Bytes(bytes)) if matches!(kind, FieldType::ByteMap) => {
                value = base64::encode(bytes);
            }
            (2, WireValue::Bytes(bytes)) => value = text(bytes)?,
            _ => return Err(format!("{name} is no map")),
        }
    }
    object.entry(name).or_insert_with(|| json!({}))[key] = value.into();
    Ok(())
}

fn text(bytes: &[u8]) -> Result<String, String> {
    String::from_utf8(bytes.to_vec()).map_err(|_| "a text is not UTF-8".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let length = u8::try_from(bytes.len()).unwrap();
        assert!(number < 16 && length < 128);
        [&[number << 3 | 2, length][..], bytes].concat()
    }

    fn body(kind: &str, raw: &[u8]) -> Vec<u8> {
        let kind = [field(1, b"v1"), field(2, kind.as_bytes())].concat();
        [MAGIC, &field(1, &kind), &field(2, raw)].concat()
    }

    #[test]
    fn a_document_is_what_was_written() {
        let labels = field(11, &[field(1, b"team"), field(2, b"vision")].concat());
        // A time that is not set is written as well.
        let metadata = [field(1, b"a"), field(3, b""), field(8, &[8, 0, 16, 0]), labels].concat();
        let data = field(3, &[field(1, b"key"), field(2, &[0, 255])].concat());
        let map = body("ConfigMap", &[field(1, &metadata), data].concat());
        assert_eq!(
            decode(&map).unwrap(),
            json!({
                "apiVersion": "v1", "kind": "ConfigMap", "binaryData": {"key": "AP8="},
                "metadata": {"name": "a", "labels": {"team": "vision"}},
            })
        );
    }

    #[test]
    fn numbers_keep_their_sign_and_their_zero() {
        let spec = [&[7 << 3, 0, 1 << 3][..], &[255, 255, 255, 255, 255, 255, 255, 255, 255, 1]].concat();
        let job = decode(&body("Job", &field(2, &spec))).unwrap();
        assert_eq!(job["spec"], json!({"backoffLimit": 0, "parallelism": -1}));
    }

    #[test]
    fn what_is_not_known_is_refused_and_what_is_cut_off_too() {
        assert_eq!(decode(&body("Pony", b"")).unwrap_err(), "Pony cannot be read as protobuf");
        assert_eq!(
            decode(&body("ConfigMap", &field(15, b"x"))).unwrap_err(),
            "field 15 cannot be read as protobuf"
        );
        assert!(decode(b"{}").is_err());
        let whole = body("ConfigMap", &field(1, &field(1, b"a")));
        for end in MAGIC.len()..whole.len() {
            assert!(decode(&whole[..end]).is_err(), "{end}");
        }
    }
}
