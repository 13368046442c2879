//! Which values people and plugins do not see.

use serde::{Deserialize, Serialize};

use super::SecretRef;

/// Names of variables, patterns and fields that are looked for at most: each costs time with every document.
pub(crate) const RULES_MOST: usize = 256;

/// Values that people and plugins do not see. In the place of each stands a digest, so that a change of the value
/// is still seen. The journal keeps the documents as they are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RedactionSpec {
    /// Names of environment variables whose value is a secret. `*` stands for any characters; the case of letters does
    /// not matter. A list here takes the place of the default.
    #[cfg_attr(test, schemars(length(max = RULES_MOST)))]
    pub variables: Vec<String>,
    /// Fields that are secrets. A list here takes the place of the default.
    #[cfg_attr(test, schemars(length(max = RULES_MOST)))]
    pub fields: Vec<RedactedField>,
    /// The key of the digests, of 32 bytes or more. Give replicas the same, so that their digests are equal. Left
    /// out: the host makes one in its data folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_from: Option<SecretRef>,
}

/// A field whose value is a secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RedactedField {
    /// The kind of the objects that have it. Left out: every kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// A JSON pointer to the field, such as `/data/*`. The token `*` stands for every key or place.
    pub pointer: String,
}

/// Parts of names that people give to variables with secrets.
const VARIABLES: [&str; 12] = [
    "*PASSWORD*",
    "*PASSWD*",
    "*PASSPHRASE*",
    "*SECRET*",
    "*TOKEN*",
    "*CREDENTIAL*",
    "*API_KEY*",
    "*APIKEY*",
    "*ACCESS_KEY*",
    "*PRIVATE_KEY*",
    "*CONNECTION_STRING*",
    "*DATABASE_URL*",
];

impl Default for RedactionSpec {
    fn default() -> Self {
        let field = |kind: Option<&str>, pointer: &str| RedactedField {
            kind: kind.map(str::to_owned),
            pointer: pointer.to_owned(),
        };
        Self {
            variables: VARIABLES.map(str::to_owned).to_vec(),
            fields: vec![
                field(Some("Secret"), "/data/*"),
                field(Some("Secret"), "/stringData/*"),
                // `kubectl apply` keeps all of what it was given, variables included.
                field(None, "/metadata/annotations/kubectl.kubernetes.io~1last-applied-configuration"),
            ],
            key_from: None,
        }
    }
}

impl RedactionSpec {
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}
