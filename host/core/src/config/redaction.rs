//! Which values are hidden from people and plugins.

use serde::{Deserialize, Serialize};

use super::SecretRef;
use crate::model::fault::{ManifestFault, fault};
use crate::project::JsonPointer;
use crate::redact::{self, RedactionRules, SecretField};

/// The most names of variables, patterns and fields. Each costs time for every document.
const RULES_MOST: usize = 256;

/// Values that people and plugins do not see. In the place of each stands a digest, so that a change of the value
/// is still seen. The journal keeps the documents as they are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RedactionSpec {
    /// Names whose value is a secret: of environment variables, HTTP headers, flags of a command, and keys of a
    /// `ConfigMap`. `*` stands for any characters. The case of letters does not matter, and `apiKey`, `api-key`,
    /// `api.key` and `API_KEY` are the same. A name after `!` is no secret's. A list here takes the place of the default.
    #[cfg_attr(test, schemars(length(max = RULES_MOST)))]
    pub variables: Vec<String>,
    /// Fields that are secrets. A list here takes the place of the default.
    #[cfg_attr(test, schemars(length(max = RULES_MOST)))]
    pub fields: Vec<RedactedField>,
    /// The key of the digests, of 32 bytes or more. Give replicas the same, so that their digests are equal. Left
    /// out: the controller makes one in its data folder.
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
    /// A JSON pointer to the field, such as `/data/*`. The token `*` stands for every key or place, and `**` for any
    /// number of them.
    pub pointer: String,
}

/// Parts of names that people give to secrets. Those after `!` are common names of values that are not
/// secret.
const VARIABLES: [&str; 84] = [
    "*PASSWORD*",
    "*PASSWD*",
    "*PGPASS*",
    "*PWD",
    "PASS",
    "*_PASS",
    "*DBPASS",
    "SSHPASS",
    "REQUIREPASS",
    "*KEYPASS",
    "*STOREPASS",
    "*PASSCODE*",
    "*PASSPHRASE*",
    "*SECRET*",
    "*TOKEN*",
    "*BEARER*",
    "*AUTHORIZATION*",
    "*COOKIE",
    "*CREDENTIAL*",
    "CREDS",
    "*_CREDS",
    "*APIKEY*",
    "*API_KEY*",
    "*ACCESS_KEY*",
    "*ACCESSKEY*",
    "*ACCOUNT_KEY*",
    "*PRIVATE_KEY*",
    "*PRIVATEKEY*",
    "KEY",
    "*_KEY",
    "*_KEYS",
    "*_KEY_BASE64",
    "*_KEY_B64",
    "*_KEY_PEM",
    "*MASTERKEY*",
    "PSK",
    "*_PSK",
    "*MNEMONIC*",
    "*_PAT",
    "AUTH",
    "*_AUTH",
    "*AUTH_CONFIG",
    "*JWT*",
    "OTP",
    "*_OTP",
    "TOTP",
    "*_TOTP",
    "PIN",
    "*_PIN",
    "SALT",
    "*_SALT",
    "DSN",
    "*_DSN",
    "ID_RSA*",
    "ID_ED25519*",
    "*DOCKERCFG*",
    "*DOCKERCONFIGJSON*",
    "*CONNECTION_STRING*",
    "*CONNECTIONSTRING*",
    "*CONN_STR",
    "*DATABASE_URL*",
    "*REDIS_URL*",
    "*WEBHOOK_URL*",
    "*SLACK_WEBHOOK*",
    "!*PASSWORD_FILE",
    "!*SECRET_FILE",
    "!*SECRET_NAME",
    "!*TOKEN_FILE",
    "!*TOKENIZER",
    "!*TOKENIZERS_PARALLELISM",
    "!*TOKENIZER_DIR",
    "!*TOKENIZER_MODE",
    "!*TOKENIZER_NAME",
    "!*TOKENIZER_PATH",
    "!*TOKENIZER_REVISION",
    "!*TOKENIZATION",
    "!MAX_TOKENS",
    "!*_MAX_TOKENS",
    "!MAX_*_TOKENS",
    "!*_MAX_*_TOKENS",
    "!NUM_TOKENS",
    "!*_NUM_TOKENS",
    "!NUM_*_TOKENS",
    "!*_NUM_*_TOKENS",
];

impl Default for RedactionSpec {
    fn default() -> Self {
        let field = |kind: Option<&str>, pointer: &str| RedactedField {
            kind: kind.map(str::to_owned),
            pointer: pointer.to_owned(),
        };
        Self {
            variables: VARIABLES.map(str::to_owned).to_vec(),
            fields: ["/data/*", "/stringData/*"]
                .map(|pointer| field(Some("Secret"), pointer))
                .into_iter()
                // The templates of pods have annotations, too.
                .chain(
                    redact::COPIES
                        .map(|name| field(None, &format!("/**/annotations/{}", name.replace('/', "~1")))),
                )
                .collect(),
            key_from: None,
        }
    }
}

/// The most bytes of a pattern. No variable has a longer name.
const PATTERN_BYTES: usize = 256;

impl RedactionSpec {
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) fn compile_redaction_rules(&self) -> Result<RedactionRules, Vec<ManifestFault>> {
        let mut faults = Vec::new();
        for (list, length) in [("variables", self.variables.len()), ("fields", self.fields.len())] {
            if length > RULES_MOST {
                let message = format!("has {length} entries; the most are {RULES_MOST}");
                faults.push(fault(format!("spec.redaction.{list}"), message));
            }
        }
        for (place, pattern) in self.variables.iter().enumerate() {
            if pattern.trim_start_matches('!').is_empty() || pattern.len() > PATTERN_BYTES {
                let message =
                    format!("is empty or longer than {PATTERN_BYTES} bytes: write a name such as `*TOKEN*`");
                faults.push(fault(format!("spec.redaction.variables[{place}]"), message));
            }
        }
        let mut fields = Vec::new();
        for (place, field) in self.fields.iter().enumerate() {
            match JsonPointer::parse(&field.pointer) {
                Ok(path) if is_ambiguous(&path) => {
                    let message = "has `**` twice or at its end: write it once, before the last key";
                    faults.push(fault(format!("spec.redaction.fields[{place}].pointer"), message));
                }
                Ok(path) => fields.push(SecretField { kind: field.kind.clone(), path }),
                Err(error) => {
                    faults.push(fault(format!("spec.redaction.fields[{place}].pointer"), error.to_string()));
                }
            }
        }
        if faults.is_empty() { Ok(RedactionRules::new(&self.variables, fields)) } else { Err(faults) }
    }
}

/// Whether a path ends with `**` or contains it twice. Each `**` costs time at every place of a document, and
/// one at the end would match everything below.
fn is_ambiguous(path: &JsonPointer) -> bool {
    let tokens = path.tokens();
    let stars = tokens.iter().filter(|token| *token == "**").count();
    stars > 1 || tokens.last().is_some_and(|token| token == "**")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_right_and_wrong_settings_are_told_with_their_place() {
        assert!(RedactionSpec::default().compile_redaction_rules().is_ok());
        let wrong = RedactionSpec {
            variables: vec![String::new()],
            fields: vec![RedactedField { kind: None, pointer: "data".into() }],
            key_from: None,
        };
        let faults: Vec<_> =
            wrong.compile_redaction_rules().unwrap_err().into_iter().map(|fault| fault.field).collect();
        assert_eq!(faults, ["spec.redaction.variables[0]", "spec.redaction.fields[0].pointer"]);
        for pointer in ["/a/**", "/**/a/**/b"] {
            let fields = vec![RedactedField { kind: None, pointer: pointer.into() }];
            let wrong = RedactionSpec { fields, ..RedactionSpec::default() };
            assert!(wrong.compile_redaction_rules().unwrap_err()[0].message.contains("write it once"));
        }
        let many = RedactionSpec { variables: vec!["A".into(); RULES_MOST + 1], ..RedactionSpec::default() };
        assert_eq!(many.compile_redaction_rules().unwrap_err()[0].field, "spec.redaction.variables");
        let long =
            RedactionSpec { variables: vec!["A".repeat(PATTERN_BYTES + 1)], ..RedactionSpec::default() };
        assert_eq!(long.compile_redaction_rules().unwrap_err()[0].field, "spec.redaction.variables[0]");
    }
}
