//! The source of a component: a path or an image.

use std::fmt;
use std::path::{Component, Path};

use thiserror::Error;

use crate::config::ModuleSpec;
use crate::config::destinations::{ADDRESSES, AddressRange};
use crate::model::fault::{ManifestFault, fault};

/// The host settings that concern every component.
pub(crate) fn check_modules(
    signed_by: &[String],
    addresses: &[AddressRange],
    faults: &mut Vec<ManifestFault>,
) {
    let given = addresses.len();
    if given > ADDRESSES {
        faults.push(fault(
            "spec.modules.addresses",
            format!("has {given} entries, and at most {ADDRESSES} are taken"),
        ));
    }
    for (place, key) in signed_by.iter().enumerate() {
        let key = key.trim();
        if !key.starts_with("-----BEGIN PUBLIC KEY-----") || !key.ends_with("-----END PUBLIC KEY-----") {
            let message = "is no public key as PEM: `cosign public-key --key …` prints one";
            faults.push(fault(format!("spec.modules.signedBy[{place}]"), message));
        }
    }
}

/// `is_signed` is set if the host's settings require signatures.
pub(crate) fn check_module(
    field: &str,
    module: &ModuleSpec,
    is_signed: bool,
    faults: &mut Vec<ManifestFault>,
) {
    let of = |name: &str| format!("{field}.{name}");
    let given =
        [&module.file, &module.config_map_key, &module.oci, &module.url].into_iter().flatten().count();
    if given != 1 {
        let what = if given == 0 { "names no component" } else { "names more than one component" };
        let message = format!("{what}: give one of `file`, `configMapKey`, `oci` and `url`");
        return faults.push(fault(field, message));
    }
    let is_digest = |text: &String| text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit());
    if module.sha256.as_ref().is_some_and(|text| !is_digest(text)) {
        faults.push(fault(of("sha256"), "is no SHA-256: write 64 hex digits, as `sha256sum` does"));
    }
    if let Some(Err(error)) = module.oci.as_deref().map(OciReference::parse) {
        faults.push(fault(of("oci"), error.to_string()));
    }
    if let Some(url) = &module.url {
        faults.extend(wrong_url(url).map(|message| fault(of("url"), message)));
        if module.sha256.is_none() {
            faults.push(fault(of("sha256"), "is missing: whoever has the address could change the file"));
        }
    }
    if is_signed && module.leads_out() {
        let message = "leads out of its folder, and the host's settings ask for signatures (`modules.signedBy`): put \
                       the component into a plugin folder, and name it without `..` and without a folder before it";
        faults.push(fault(of("file"), message));
    }
    if is_signed && module.is_never_signed() {
        let message = "has no signature, and the host's settings ask for one (`modules.signedBy`): push the \
                       component to a registry, sign it with cosign, and name it with `oci`";
        faults.push(fault(field, message));
    }
}

impl ModuleSpec {
    /// Whether it may run if signatures are required: it is in a folder of the operator, or its image can be
    /// signed.
    pub fn can_be_signed(&self) -> bool {
        !self.leads_out() && !self.is_never_signed()
    }

    fn leads_out(&self) -> bool {
        let is_plain = |part| matches!(part, Component::Normal(_) | Component::CurDir);
        self.file.as_deref().is_some_and(|file| !Path::new(file).components().all(is_plain))
    }

    fn is_never_signed(&self) -> bool {
        self.config_map_key.is_some() || self.url.is_some()
    }
}

fn wrong_url(url: &str) -> Option<&'static str> {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains('@') {
        return Some("has a name or a password in it: an address that needs none is fetched");
    }
    let is_plain = scheme == "http" && is_local(authority);
    let is_refused = authority.is_empty() || !(scheme == "https" || is_plain);
    is_refused.then_some("is no `https://` address: plain `http://` is for addresses of this machine")
}

/// Whether an authority (host, with or without a port) is this machine.
pub fn is_local(authority: &str) -> bool {
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    matches!(host, "127.0.0.1" | "::1" | "localhost")
}

/// The name of a component in a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OciReference {
    pub registry: String,
    pub repository: String,
    pub tag: Option<String>,
    /// The hex digits of a SHA-256.
    pub digest: Option<String>,
}

/// A text does not name a component in a registry.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{fault}: write `REGISTRY/REPOSITORY:TAG` or `REGISTRY/REPOSITORY@sha256:DIGEST`")]
pub struct OciReferenceError {
    fault: &'static str,
}

impl OciReference {
    pub fn parse(text: &str) -> Result<Self, OciReferenceError> {
        let form = |fault| Err(OciReferenceError { fault });
        let (name, digest) = match text.split_once('@') {
            None => (text, None),
            Some((name, digest)) => {
                let hex = digest.strip_prefix("sha256:").unwrap_or_default();
                let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
                if hex.len() != 64 || !hex.bytes().all(is_hex) {
                    return form("has a digest that is no `sha256:` with 64 hex digits");
                }
                (name, Some(hex.to_owned()))
            }
        };
        let Some((registry, path)) = name.split_once('/') else { return form("names no registry") };
        let is_of_host = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
        let is_host = registry.contains(['.', ':']) || registry == "localhost";
        if !is_host || registry.len() > 255 || !registry.chars().all(is_of_host) {
            return form("names no registry before its first `/`");
        }
        let (repository, tag) = match path.split_once(':') {
            Some((repository, tag)) => (repository, Some(tag.to_owned())),
            None => (path, None),
        };
        if repository.len() > 255 || !repository.split('/').all(is_component) {
            return form("has a repository that is not of lower case letters, digits and `/`, `.`, `-`, `_`");
        }
        if tag.as_deref().is_some_and(|tag| !is_tag(tag)) {
            return form("has a tag that no registry takes");
        }
        if tag.is_none() && digest.is_none() {
            return form("has neither a tag nor a digest");
        }
        Ok(Self { registry: registry.into(), repository: repository.into(), tag, digest })
    }
}

fn is_component(text: &str) -> bool {
    let is_inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b);
    let ends_well = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let bytes = text.as_bytes();
    bytes.iter().all(|b| is_inner(*b)) && ends_well(bytes.first()) && ends_well(bytes.last())
}

fn is_tag(text: &str) -> bool {
    let is_inner = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    (1..=128).contains(&text.len()) && text.bytes().all(is_inner) && !text.starts_with(['.', '-'])
}

impl fmt::Display for OciReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        self.tag.iter().try_for_each(|tag| write!(f, ":{tag}"))?;
        self.digest.iter().try_for_each(|digest| write!(f, "@sha256:{digest}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

    fn faults(module: &ModuleSpec, is_signed: bool) -> Vec<String> {
        let mut faults = Vec::new();
        check_module("spec.module", module, is_signed, &mut faults);
        faults.into_iter().map(|fault| format!("{}: {}", fault.field, fault.message)).collect()
    }

    #[test]
    fn a_reference_is_read_and_written_the_same() {
        for text in [
            "ghcr.io/team/plugin:1.2.0".to_owned(),
            "localhost:5000/plugin:Latest_1".to_owned(),
            "[::1]:5000/a/b/c:1".to_owned(),
            format!("registry.example.com/a@sha256:{DIGEST}"),
            format!("registry.example.com/a-b/c.d_e:v1@sha256:{DIGEST}"),
        ] {
            let read = OciReference::parse(&text).unwrap();
            assert_eq!(read.to_string(), text);
        }
    }

    #[test]
    fn what_is_no_reference_says_what_to_write() {
        for text in [
            "",
            "plugin",
            "plugin:1",
            "team/plugin:1",
            "ghcr.io/team/plugin",
            "ghcr.io/Team/plugin:1",
            "ghcr.io//plugin:1",
            "ghcr.io/../plugin:1",
            "ghcr.io/plugin:",
            "ghcr.io/plugin:-a",
            "ghcr.io/plugin:a/b",
            "ghcr.io/plugin@sha256:12",
            "ghcr.io/plugin@md5:9f86d081884c7d659a2feaa0c55ad015",
            "user@ghcr.io/plugin:1",
            "https://ghcr.io/plugin:1",
            "ghcr.io/plugin?x:1",
        ] {
            let error = OciReference::parse(text).unwrap_err();
            assert!(error.to_string().contains("REGISTRY/REPOSITORY:TAG"), "{text}: {error}");
        }
    }

    #[test]
    fn a_module_is_named_once_and_what_others_could_change_by_its_digest() {
        let of = |value| serde_json::from_value::<ModuleSpec>(value).unwrap();
        for fine in [
            serde_json::json!({"file": "a.wasm"}),
            serde_json::json!({"oci": "ghcr.io/a/b:1"}),
            serde_json::json!({"url": "https://example.com/a.wasm", "sha256": DIGEST}),
            serde_json::json!({"url": "http://127.0.0.1:8000/a.wasm", "sha256": DIGEST}),
        ] {
            assert!(faults(&of(fine), false).is_empty());
        }
        for (wrong, field) in [
            (serde_json::json!({}), "spec.module:"),
            (serde_json::json!({"file": "a", "oci": "ghcr.io/a/b:1"}), "spec.module:"),
            (serde_json::json!({"file": "a", "sha256": "12"}), "spec.module.sha256:"),
            (serde_json::json!({"oci": "b:1"}), "spec.module.oci:"),
            (serde_json::json!({"url": "https://example.com/a"}), "spec.module.sha256:"),
            (serde_json::json!({"url": "http://example.com/a", "sha256": DIGEST}), "spec.module.url:"),
            (serde_json::json!({"url": "https://u:p@example.com/a", "sha256": DIGEST}), "spec.module.url:"),
            (
                serde_json::json!({"url": "http://127.0.0.1@evil.example/a", "sha256": DIGEST}),
                "spec.module.url:",
            ),
            (serde_json::json!({"url": "https://", "sha256": DIGEST}), "spec.module.url:"),
        ] {
            let messages = faults(&of(wrong), false);
            assert!(messages.len() == 1 && messages[0].starts_with(field), "{field} {messages:?}");
        }
    }

    #[test]
    fn where_signatures_are_needed_only_a_registry_and_the_hosts_own_files_have_components() {
        let of = |value| faults(&serde_json::from_value(value).unwrap(), true);
        assert!(of(serde_json::json!({"file": "a.wasm"})).is_empty());
        assert!(of(serde_json::json!({"file": "./team/a.wasm"})).is_empty());
        for file in ["../d/last-good/a/plugin.wasm", "/d/last-good/a/plugin.wasm", "a/../../b.wasm"] {
            let messages = of(serde_json::json!({"file": file}));
            assert!(
                messages.len() == 1 && messages[0].starts_with("spec.module.file: leads out"),
                "{messages:?}"
            );
        }
        assert!(of(serde_json::json!({"oci": "ghcr.io/a/b:1"})).is_empty());
        for unsigned in [
            serde_json::json!({"configMapKey": "a.wasm"}),
            serde_json::json!({"url": "https://example.com/a.wasm", "sha256": DIGEST}),
        ] {
            assert!(of(unsigned)[0].contains("modules.signedBy"));
        }
        let mut faults = Vec::new();
        let addresses = [AddressRange::Loopback; ADDRESSES + 1];
        check_modules(&["ssh-ed25519 AAAA".into()], &addresses, &mut faults);
        assert_eq!(faults.remove(0).field, "spec.modules.addresses");
        assert_eq!(faults[0].field, "spec.modules.signedBy[0]");
    }
}
