//! Parses a reference to a secret. If an operator wrote the secret itself instead, the error says so without
//! quoting it.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

use crate::config::SecretRef;
use crate::model::fault::{ManifestFault, fault};
use crate::model::nearest::nearest_name;

impl<'de> Deserialize<'de> for SecretRef {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SecretReference)
    }
}

/// Checks the reference to a secret. The secret is an address that may hold a password.
pub(in crate::config) fn check_secret(field: &str, reference: &SecretRef, faults: &mut Vec<ManifestFault>) {
    let (SecretRef::Env(name) | SecretRef::File(name)) = reference;
    if name.is_empty() {
        faults
            .push(fault(field, "is empty: name the environment variable or the file that holds the address"));
    } else if name.contains("://") {
        faults.push(fault(
            field,
            "is an address: put it into a secret, and name the variable (`env`) or the file (`file`) that \
             holds it",
        ));
    }
}

const FORMS: [&str; 2] = ["env", "file"];

struct SecretReference;

impl<'de> Visitor<'de> for SecretReference {
    type Value = SecretRef;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`{env: VARIABLE}` or `{file: PATH}`, which say where the secret is")
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<SecretRef, E> {
        Err(E::custom(
            "is a value: put it into a secret, and say where that is, with `{env: VARIABLE}` or `{file: PATH}`",
        ))
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<SecretRef, E> {
        self.visit_str("")
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<SecretRef, E> {
        self.visit_str("")
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<SecretRef, E> {
        self.visit_str("")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<SecretRef, A::Error> {
        // The message omits the key, which may be the secret.
        let form = |key: &str| {
            let near =
                nearest_name(key, FORMS).map(|near| format!(": is `{near}` meant?")).unwrap_or_default();
            A::Error::custom(format!("takes one of `env` and `file`, such as `{{env: VARIABLE}}`{near}"))
        };
        let key: String = map.next_key()?.ok_or_else(|| form(""))?;
        let reference = match key.as_str() {
            "env" => SecretRef::Env(map.next_value()?),
            "file" => SecretRef::File(map.next_value()?),
            other => return Err(form(other)),
        };
        if map.next_key::<String>()?.is_some() {
            return Err(form(""));
        }
        Ok(reference)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_reference_is_read_and_a_secret_in_its_place_is_not_told() {
        let read = serde_json::from_value::<SecretRef>;
        assert_eq!(read(json!({"env": "URL"})).unwrap(), SecretRef::Env("URL".into()));
        assert_eq!(read(json!({"file": "/url"})).unwrap(), SecretRef::File("/url".into()));
        assert_eq!(serde_json::to_value(SecretRef::Env("URL".into())).unwrap(), json!({"env": "URL"}));
        for wrong in [
            json!("nats://joe:hush@host"),
            json!({"url": "nats://joe:hush@host"}),
            json!({"env": "A", "file": "hush"}),
            json!({"hush": "A"}),
            json!({}),
            json!(4711),
        ] {
            let error = read(wrong).unwrap_err().to_string();
            assert!(!error.contains("hush") && !error.contains("4711") && error.contains("env"), "{error}");
        }
        let error = read(json!({"evn": "URL"})).unwrap_err().to_string();
        assert!(error.ends_with("such as `{env: VARIABLE}`: is `env` meant?"), "{error}");
    }
}
