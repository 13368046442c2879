//! How the controller and an `https://` destination authenticate each other.

use serde::{Deserialize, Serialize};

use super::super::SecretRef;
use super::super::values::check_secret;
use crate::model::fault::{ManifestFault, fault};

/// The authorities that the controller trusts, and the certificate that it shows. The controller reads the
/// files again for each request, so that they may be rotated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TlsSpec {
    /// A file with the certificates of authorities (PEM) that are trusted beside those of the machine. Left out: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
    /// A file with the certificate that the controller shows a destination that asks for one (PEM), and those that
    /// lead to its authority. `keyFrom` is needed beside it. Left out: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// Where the private key of `certificate` is (PEM).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_from: Option<SecretRef>,
}

/// `url` is the address of the destination. It is empty if the address is a secret.
pub fn check(place: &str, spec: &TlsSpec, url: &str, faults: &mut Vec<ManifestFault>) {
    let TlsSpec { ca, certificate, key_from } = spec;
    let of = |field: &str| format!("{place}.tls{field}");
    if ca.is_none() && certificate.is_none() && key_from.is_none() {
        faults.push(fault(of(""), "is empty: name `ca`, or `certificate` and `keyFrom`, or leave it out"));
    }
    match (certificate, key_from) {
        (Some(_), None) => faults.push(fault(of(".keyFrom"), "is missing: the certificate needs its key")),
        (None, Some(_)) => {
            faults.push(fault(of(".certificate"), "is missing: the key is that of a certificate"));
        }
        _ => {}
    }
    if let Some(key) = key_from {
        check_secret(&of(".keyFrom"), key, faults);
    }
    if url.starts_with("http://") {
        faults.push(fault(of(""), "is for `https://`, and `url` is an `http://` address"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_handshake_cannot_use_is_a_fault_of_its_field() {
        for (text, url, message) in [
            ("{}", "https://x", "a.tls: is empty"),
            ("{certificate: /c}", "https://x", "a.tls.keyFrom: is missing"),
            ("{keyFrom: {file: /k}}", "", "a.tls.certificate: is missing"),
            ("{certificate: /c, keyFrom: {file: ''}}", "https://x", "a.tls.keyFrom: is empty"),
            ("{ca: /ca}", "http://x", "a.tls: is for `https://`"),
        ] {
            let (spec, mut faults) = (serde_saphyr::from_str(text).unwrap(), Vec::new());
            check("a", &spec, url, &mut faults);
            let messages: Vec<_> =
                faults.iter().map(|fault| format!("{}: {}", fault.field, fault.message)).collect();
            assert!(messages.len() == 1 && messages[0].starts_with(message), "{text}: {messages:?}");
        }
        let mut faults = Vec::new();
        let fine = "{ca: /ca, certificate: /c, keyFrom: {env: KEY}}";
        check("a", &serde_saphyr::from_str(fine).unwrap(), "https://x", &mut faults);
        assert_eq!(faults, []);
    }
}
