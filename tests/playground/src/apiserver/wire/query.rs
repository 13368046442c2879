//! The parameters of lists and watches: their valid combinations, and continue tokens.

use serde_json::{Value, json};

use crate::apiserver::values::base64;
use crate::apiserver::values::versions::VersionStyle;
use crate::apiserver::wire::error::{ApiError, FieldCause};

/// Decoded query parameters. If a name is repeated, the last one counts.
#[derive(Debug, Clone, Default)]
pub struct QueryParameters(Vec<(String, String)>);

impl QueryParameters {
    pub fn parse(text: &str) -> Self {
        let pairs = text.split('&').filter(|part| !part.is_empty()).map(|part| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            (percent_decode(name), percent_decode(value))
        });
        QueryParameters(pairs.collect())
    }

    pub fn get(&self, name: &str) -> &str {
        self.0.iter().rev().find(|(n, _)| n == name).map_or("", |(_, value)| value)
    }

    /// Converts the versions that it names to decimals.
    pub fn translate(&mut self, versions: VersionStyle) {
        for (name, value) in &mut self.0 {
            if name == "resourceVersion" {
                *value = versions.decimal(value);
            }
        }
    }

    /// Removes parameters.
    pub fn remove(&mut self, names: &[&str]) {
        self.0.retain(|(name, _)| !names.contains(&name.as_str()));
    }

    pub fn flag(&self, name: &str) -> bool {
        matches!(self.get(name), "true" | "1" | "True" | "TRUE" | "t" | "T")
    }

    pub fn dry_run(&self) -> Result<bool, ApiError> {
        match self.get("dryRun") {
            "" => Ok(false),
            "All" => Ok(true),
            other => Err(ApiError::invalid_kind(
                "meta.k8s.io",
                "CreateOptions",
                "",
                &[FieldCause::not_supported("dryRun", other, &["All"])],
            )),
        }
    }

    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(n, _)| n == name)
    }
}

pub fn percent_decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = bytes.get(at + 1..at + 3).and_then(|h| std::str::from_utf8(h).ok());
        match (bytes[at], hex.and_then(|h| u8::from_str_radix(h, 16).ok())) {
            (b'%', Some(byte)) => {
                out.push(byte);
                at += 2;
            }
            (b'+', _) => out.push(b' '),
            (byte, _) => out.push(byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// The version that a list shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListVersion {
    /// The newest version of the store.
    Newest,
    /// The version of the server's cache.
    Cached,
    /// Any version from this one on, from the cache; from the store if the list has pages.
    NotOlderThan(u64),
    Exact(u64),
}

/// The checked parameters of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListOptions {
    pub at: ListVersion,
    pub limit: Option<usize>,
    pub token: Option<ContinueToken>,
}

/// The position at which a list continues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContinueToken {
    /// `None` continues at the newest version, inconsistently.
    pub version: Option<u64>,
    /// The key after which it continues, relative to the prefix of the list.
    pub after: String,
}

/// How a watch starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchOptions {
    /// `None` or 0 starts with the existing objects.
    pub version: Option<u64>,
    pub initial: InitialEvents,
    pub bookmarks: bool,
    pub timeout: Option<u64>,
    /// Whether a version that is too old is reported by the HTTP status instead of the stream.
    pub expired_as_status: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InitialEvents {
    /// The version decides.
    ByVersion,
    /// A streaming list, which a bookmark ends.
    Streamed,
    Skipped,
}

const EXACT: &str = "Exact";
const NOT_OLDER: &str = "NotOlderThan";

impl ListOptions {
    pub fn parse(query: &QueryParameters) -> Result<Self, ApiError> {
        let (version, matching) = (query.get("resourceVersion"), query.get("resourceVersionMatch"));
        check(&list_causes(query))?;
        let limit = number(query, "limit")?.filter(|n| *n > 0);
        let limit = limit.map(|n| usize::try_from(n).unwrap_or(usize::MAX));
        if query.has("continue") && !query.get("continue").is_empty() {
            if !matches!(version, "" | "0") {
                return Err(ApiError::bad_request(
                    "specifying resource version is not allowed when using continue",
                ));
            }
            let token = ContinueToken::parse(query.get("continue"))?;
            return Ok(ListOptions { at: ListVersion::Newest, limit, token: Some(token) });
        }
        let parsed = match version {
            "" => None,
            text => Some(
                parse_version(text)
                    .map_err(|why| ApiError::bad_request(format!("invalid resource version: {why}")))?,
            ),
        };
        let (at, limit) = match (parsed, matching) {
            (None, _) => (ListVersion::Newest, limit),
            // From the cache, which has no pages.
            (Some(0), _) => (ListVersion::Cached, None),
            (Some(n), EXACT) => (ListVersion::Exact(n), limit),
            (Some(n), NOT_OLDER) => (ListVersion::NotOlderThan(n), limit),
            // Without `resourceVersionMatch`, a limit makes it exact.
            (Some(n), _) if limit.is_some() => (ListVersion::Exact(n), limit),
            (Some(n), _) => (ListVersion::NotOlderThan(n), limit),
        };
        Ok(ListOptions { at, limit, token: None })
    }
}

impl WatchOptions {
    pub fn parse(query: &QueryParameters) -> Result<Self, ApiError> {
        check(&watch_causes(query))?;
        let version = match query.get("resourceVersion") {
            "" => None,
            text => Some(parse_version(text).map_err(ApiError::unknown)?),
        };
        let initial = match (query.has("sendInitialEvents"), query.flag("sendInitialEvents")) {
            (false, _) => InitialEvents::ByVersion,
            (true, true) => InitialEvents::Streamed,
            (true, false) => InitialEvents::Skipped,
        };
        Ok(WatchOptions {
            version,
            initial,
            bookmarks: query.flag("allowWatchBookmarks"),
            timeout: number(query, "timeoutSeconds")?.filter(|n| *n > 0),
            expired_as_status: false,
        })
    }
}

fn check(causes: &[FieldCause]) -> Result<(), ApiError> {
    if causes.is_empty() {
        return Ok(());
    }
    Err(ApiError::invalid_kind("meta.k8s.io", "ListOptions", "", causes))
}

fn list_causes(query: &QueryParameters) -> Vec<FieldCause> {
    let (version, matching) = (query.get("resourceVersion"), query.get("resourceVersionMatch"));
    let forbidden = |why| FieldCause::forbidden("resourceVersionMatch", why);
    let mut causes = Vec::new();
    if !matching.is_empty() {
        if version.is_empty() {
            causes.push(forbidden("resourceVersionMatch is forbidden unless resourceVersion is provided"));
        }
        if !query.get("continue").is_empty() {
            causes.push(forbidden("resourceVersionMatch is forbidden when continue is provided"));
        }
        if !matches!(matching, EXACT | NOT_OLDER) {
            causes.push(FieldCause::not_supported("resourceVersionMatch", matching, &[EXACT, NOT_OLDER, ""]));
        }
        if matching == EXACT && version == "0" {
            causes.push(forbidden("resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\""));
        }
    }
    if query.has("sendInitialEvents") {
        causes.push(FieldCause::forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"));
    }
    causes
}

fn watch_causes(query: &QueryParameters) -> Vec<FieldCause> {
    let matching = query.get("resourceVersionMatch");
    let forbidden = |why| FieldCause::forbidden("resourceVersionMatch", why);
    let mut causes = Vec::new();
    let initial = query.has("sendInitialEvents");
    if initial && matching != NOT_OLDER {
        causes.push(forbidden("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"));
    }
    if !matching.is_empty() {
        if !initial {
            causes.push(forbidden(
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            ));
        }
        if matching != NOT_OLDER {
            causes.push(FieldCause::not_supported("resourceVersionMatch", matching, &[NOT_OLDER]));
        }
        if !query.get("continue").is_empty() {
            causes.push(forbidden("resourceVersionMatch is forbidden when continue is provided"));
        }
    }
    causes
}

fn number(query: &QueryParameters, name: &str) -> Result<Option<u64>, ApiError> {
    match query.get(name) {
        "" => Ok(None),
        text => text.parse::<i64>().map(|n| u64::try_from(n).ok()).map_err(|_| {
            ApiError::bad_request(format!(
                "strconv.ParseInt: parsing {}: invalid syntax",
                crate::apiserver::wire::error::quoted(text)
            ))
        }),
    }
}

/// A client's version. The error is that of the real server.
pub fn parse_version(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| {
        let quoted = crate::apiserver::wire::error::quoted(text);
        format!(
            "resourceVersion: Invalid value: {quoted}: strconv.ParseUint: parsing {quoted}: invalid syntax"
        )
    })
}

impl ContinueToken {
    pub fn parse(token: &str) -> Result<Self, ApiError> {
        let bad = |why: String| {
            ApiError::bad_request(format!("invalid continue token: continue key is not valid: {why}"))
        };
        let bytes =
            base64::decode_url(token).map_err(|at| bad(format!("illegal base64 data at input byte {at}")))?;
        let value: Value = serde_json::from_slice(&bytes).map_err(|_| bad(not_json(&bytes)))?;
        let after = value["start"].as_str().and_then(|s| s.strip_prefix('/')).filter(|s| !s.contains(".."));
        let version = value["rv"].as_i64().filter(|v| *v != 0);
        match (value["v"].as_str(), version, after) {
            (Some("meta.k8s.io/v1"), Some(version), Some(after)) => Ok(ContinueToken {
                version: u64::try_from(version).ok(),
                after: after.trim_end_matches('\0').to_owned(),
            }),
            (Some("meta.k8s.io/v1"), None, _) => {
                Err(bad("incorrect encoded start resourceVersion (version meta.k8s.io/v1)".to_owned()))
            }
            (Some("meta.k8s.io/v1"), ..) => {
                Err(bad("encoded start key empty (version meta.k8s.io/v1)".to_owned()))
            }
            (other, ..) => Err(bad(format!(
                "server does not recognize this encoded version \"{}\"",
                other.unwrap_or("")
            ))),
        }
    }

    pub fn encode(&self) -> String {
        // Clients may decode it, so the members have the real order.
        let version = self.version.map_or("-1".to_owned(), |v| v.to_string());
        let start = json!(format!("/{}\0", self.after));
        base64::encode_url(
            format!("{{\"v\":\"meta.k8s.io/v1\",\"rv\":{version},\"start\":{start}}}").as_bytes(),
        )
    }
}

fn not_json(bytes: &[u8]) -> String {
    match bytes.first() {
        None => "unexpected end of JSON input".to_owned(),
        Some(byte) if byte.is_ascii_graphic() => {
            format!("invalid character '{}' looking for beginning of value", char::from(*byte))
        }
        Some(byte) => format!("invalid character '\\x{byte:02x}' looking for beginning of value"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(query: &str) -> Result<ListOptions, ApiError> {
        ListOptions::parse(&QueryParameters::parse(query))
    }

    #[test]
    fn a_continue_token_has_the_form_of_the_real_one() {
        let token = ContinueToken { version: Some(909), after: "p1".into() };
        let text = "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6OTA5LCJzdGFydCI6Ii9wMVx1MDAwMCJ9";
        assert_eq!(token.encode(), text);
        assert_eq!(ContinueToken::parse(text).unwrap(), token);
        let inconsistent = ContinueToken { version: None, after: "p1".into() };
        assert_eq!(ContinueToken::parse(&inconsistent.encode()).unwrap(), inconsistent);
    }

    #[test]
    fn a_bad_continue_token_is_refused() {
        let error = ContinueToken::parse("zzz").unwrap_err();
        assert_eq!(
            error.message,
            "invalid continue token: continue key is not valid: invalid character '\\xcf' looking for \
             beginning of value"
        );
    }

    #[test]
    fn versions_and_matches_choose_what_is_listed() {
        assert_eq!(list("").unwrap().at, ListVersion::Newest);
        assert_eq!(list("resourceVersion=0&limit=2").unwrap().limit, None);
        assert_eq!(list("resourceVersion=5").unwrap().at, ListVersion::NotOlderThan(5));
        assert_eq!(list("resourceVersion=5&limit=2").unwrap().at, ListVersion::Exact(5));
        assert_eq!(list("resourceVersion=5&resourceVersionMatch=Exact").unwrap().at, ListVersion::Exact(5));
    }

    #[test]
    fn parameters_that_do_not_go_together_are_refused() {
        for (query, code) in [
            ("resourceVersionMatch=Exact", 422),
            ("resourceVersion=0&resourceVersionMatch=Exact", 422),
            ("resourceVersion=5&resourceVersionMatch=Sometimes", 422),
            ("sendInitialEvents=true", 422),
            ("resourceVersion=abc", 400),
            ("limit=x", 400),
        ] {
            assert_eq!(list(query).unwrap_err().code, code, "{query}");
        }
        let token = ContinueToken { version: Some(9), after: "a".into() }.encode();
        assert_eq!(list(&format!("continue={token}&resourceVersion=5")).unwrap_err().code, 400);
    }

    #[test]
    fn a_streaming_list_needs_its_match() {
        let watch = |q: &str| WatchOptions::parse(&QueryParameters::parse(q));
        assert_eq!(
            watch("sendInitialEvents=true").unwrap_err().message,
            "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: sendInitialEvents \
             requires setting resourceVersionMatch to NotOlderThan"
        );
        let ok = watch("sendInitialEvents=true&resourceVersionMatch=NotOlderThan").unwrap();
        assert_eq!(ok.initial, InitialEvents::Streamed);
        assert_eq!(watch("resourceVersion=abc").unwrap_err().code, 500);
    }

    #[test]
    fn query_texts_are_decoded() {
        let query = QueryParameters::parse("labelSelector=a%3D1%2Cb+in+%28x%29&watch=true");
        assert_eq!(query.get("labelSelector"), "a=1,b in (x)");
        assert!(query.flag("watch"));
    }
}
