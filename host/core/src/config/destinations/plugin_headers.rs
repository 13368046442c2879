//! Decides which headers a plugin may send to a destination.
//!
//! A receiver may take any header as proof of identity, such as `X-Scope-OrgID` or `X-WebAuth-User`, and
//! trust it as much as the operator's secret. No deny list of such names is complete. So only known harmless
//! headers pass, and those that the operator names. Servers behind CGI, WSGI or Rack read `_` as `-`, so no
//! name with `_` passes.

use super::DestinationSpec;

/// Headers of bodies, conditions, retries and traces. No server takes them as proof of identity.
const HARMLESS: [&str; 14] = [
    "accept",
    "accept-language",
    "content-encoding",
    "content-language",
    "content-type",
    "idempotency-key",
    "if-match",
    "if-none-match",
    "if-unmodified-since",
    "prefer",
    "traceparent",
    "tracestate",
    "baggage",
    "x-request-id",
];
/// Headers that frame a message or identify its sender. The client sets the former, and `headers` with a
/// secret sets the last two.
const CLOUD_EVENT: &str = "ce-";
/// Headers that frame a message or identify its sender. The client sets the first ones, and `headers` with a
/// secret sets the last two.
const NEVER: [&str; 12] = [
    "host",
    "connection",
    "content-length",
    "transfer-encoding",
    "te",
    "trailer",
    "upgrade",
    "expect",
    "keep-alive",
    "forwarded",
    "authorization",
    "cookie",
];
const NEVER_PREFIX: &str = "proxy-";
/// Every header of a request is compared with each of these.
pub(super) const PLUGIN_HEADERS: usize = 64;

impl DestinationSpec {
    /// Whether a plugin may send this header. The name is in lower case.
    pub fn takes_header(&self, name: &str) -> bool {
        let is_named = || self.plugin_headers.iter().any(|named| named.eq_ignore_ascii_case(name));
        is_plugin_header(name) && (HARMLESS.contains(&name) || name.starts_with(CLOUD_EVENT) || is_named())
    }
}

/// Whether an operator may allow plugins to send a header with this name.
pub fn is_plugin_header(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        && !NEVER.contains(&name.as_str())
        && !name.starts_with(NEVER_PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_sends_harmless_headers_and_those_that_the_operator_names() {
        let mut spec = DestinationSpec::of("hook", "https://hooks.example");
        for name in ["content-type", "ce-id", "idempotency-key", "traceparent"] {
            assert!(spec.takes_header(name), "{name}");
        }
        for name in [
            "x-team",
            "x-scope-orgid",
            "x-webauth-user",
            "x-vault-token",
            "x-ms-client-principal",
            "x-envoy-original-path",
            "x-http-method-override",
            "x-forwarded-for",
        ] {
            assert!(!spec.takes_header(name), "{name}");
        }
        spec.plugin_headers = vec!["X-Team".into()];
        assert!(spec.takes_header("x-team") && !spec.takes_header("x-teams"));
    }

    #[test]
    fn no_name_with_an_underscore_passes_and_none_that_frames_a_message() {
        let mut spec = DestinationSpec::of("hook", "https://hooks.example");
        let refused = [
            "x_api_key",
            "ce-_",
            "content_type",
            "host",
            "te",
            "authorization",
            "cookie",
            "proxy-authorization",
            "a b",
        ];
        spec.plugin_headers = refused.map(str::to_owned).into();
        for name in refused {
            assert!(!is_plugin_header(name) && !spec.takes_header(name), "{name}");
        }
    }
}
