//! The settings of `http` destinations and what each lets a plugin send.
//!
//! A destination carries the operator's credentials, so a plugin must not choose where they go. So an
//! operator sets the address, and decides which methods, paths and headers a plugin may use. Everything not
//! allowed is refused. The addresses that a name may resolve to are limited as well ([`addresses`]), because
//! a name's owner can change them. This module opens no connection, resolves no name and reads no secret.

mod addresses;
mod mail;
mod plugin_headers;
mod repeat;
mod scheme;
mod tls;

use serde::{Deserialize, Serialize};
use url::{Host, Url};

use super::values::check_secret;
use super::{Bytes, Duration, SecretRef};
use crate::model::fault::{ManifestFault, fault};

pub use addresses::{AddressKind, AddressRange, UnnamedAddress};
pub(super) use mail::check as check_mail;
pub use mail::{MAIL_MOST, MailLogin, MailSpec, MailTls, RECIPIENTS_MOST};
pub use plugin_headers::is_plugin_header;
pub use repeat::Repeat;
pub use scheme::{HeaderSignature, RateQuota, SchemeSpec, Signing, SigningScheme, Unsigned};
pub use tls::TlsSpec;

/// The controller holds a request and its answer in memory while they are in transit.
pub const REQUEST_MOST: u64 = 4 << 20;
pub const RESPONSE_MOST: u64 = 1 << 20;

/// An HTTP destination. The controller holds its address and secrets; a plugin names a path below it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DestinationSpec {
    /// The name that grants use.
    #[cfg_attr(test, schemars(schema_with = "super::reference::name"))]
    pub name: String,
    /// The base address. A plugin names a path below it. Left out: `urlFrom` says where it is.
    #[cfg_attr(test, schemars(extend("pattern" = "^(https?://.*)?$", "x-bounds" = "`http://` or `https://`")))]
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub url: String,
    /// Where the base address is, if it is a secret. The controller reads it for each request. Over `http://` it needs
    /// `allowPlain`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url_from: Option<SecretRef>,
    /// The service behind it, by whose rules the controller signs requests and keeps a rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheme: Option<SchemeSpec>,
    /// The authorities that the controller trusts over `https://`, and the certificate that it shows. Left
    /// out: it trusts the authorities of the machine, and shows no certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsSpec>,
    /// Headers that the controller adds to every request. With `http://`, they need `allowPlain`.
    #[serde(default)]
    pub headers: Vec<HeaderSpec>,
    /// Whether the controller sends `headers` over `http://`, where everybody on the way can read them.
    #[serde(default)]
    pub allow_plain: bool,
    /// Further headers that plugins may send, such as `x-team`. Plugins may always send headers of content, conditions and
    /// traces, `Idempotency-Key`, and the attributes of CloudEvents.
    #[cfg_attr(test, schemars(length(max = plugin_headers::PLUGIN_HEADERS)))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plugin_headers: Vec<String>,
    /// The methods that plugins may use. Left out: every one of these.
    #[cfg_attr(test, schemars(length(min = 1)))]
    #[serde(default = "HttpMethod::all_methods")]
    pub methods: Vec<HttpMethod>,
    /// Where plugins may go below the address. `/v1/jobs` allows `/v1/jobs` and what is below it. Left out:
    /// every path.
    #[cfg_attr(test, schemars(length(max = PATHS)))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
    /// The addresses that the controller connects to. Each is `public`, `private`, `loopback`, `linkLocal` or a range
    /// such as `10.20.0.0/16`. Left out: what the host part of `url` says.
    #[cfg_attr(test, schemars(length(max = ADDRESSES)))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<AddressRange>,
    /// Bytes of a request's body at most.
    #[cfg_attr(test, schemars(extend("x-bounds" = "at most 4Mi")))]
    #[serde(default = "request_most")]
    pub request_size: Bytes,
    /// Bytes of an answer's body at most. A larger answer is an error.
    #[cfg_attr(test, schemars(extend("x-bounds" = "at most 1Mi")))]
    #[serde(default = "response_most")]
    pub response_size: Bytes,
    /// Requests per second at most. Left out: what `scheme` says, or no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<u32>,
    /// How long the controller waits for one answer.
    #[serde(default = "ten_seconds")]
    pub timeout: Duration,
    /// Whether the controller sends a request again that may have been sent: one that was on its way when the
    /// controller was killed, or that got no answer.
    #[serde(default)]
    pub repeat: Repeat,
}

/// Every request is compared with each path.
const PATHS: usize = 64;
pub(super) const ADDRESSES: usize = 64;

/// A method of HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "UPPERCASE")]
pub enum HttpMethod {
    /// Reads.
    Get,
    /// Reads the headers alone.
    Head,
    /// Hands something over.
    Post,
    /// Replaces what is there.
    Put,
    /// Changes what is there.
    Patch,
    /// Removes what is there.
    Delete,
}

impl HttpMethod {
    pub fn all_methods() -> Vec<Self> {
        vec![Self::Get, Self::Head, Self::Post, Self::Put, Self::Patch, Self::Delete]
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::all_methods().into_iter().find(|method| method.as_str() == text)
    }
}

/// A header that the controller adds to every request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HeaderSpec {
    /// The name of the header.
    pub name: String,
    /// Where the value is.
    pub value_from: SecretRef,
}

impl DestinationSpec {
    /// A destination with the defaults of everything else.
    pub fn of(name: &str, url: &str) -> Self {
        Self {
            name: name.to_owned(),
            url: url.to_owned(),
            url_from: None,
            scheme: None,
            tls: None,
            headers: Vec::new(),
            allow_plain: false,
            plugin_headers: Vec::new(),
            methods: HttpMethod::all_methods(),
            paths: Vec::new(),
            addresses: Vec::new(),
            request_size: request_most(),
            response_size: response_most(),
            rate: None,
            timeout: ten_seconds(),
            repeat: Repeat::default(),
        }
    }

    /// The addresses that the controller may connect to for a destination with this URL.
    ///
    /// If the operator wrote an IP address, exactly that address is allowed. A cluster name may resolve to
    /// the addresses of Services and pods. Any other name is resolved by a third party, so only public
    /// addresses are allowed.
    pub fn reachable_addresses(&self, url: &str) -> Vec<AddressRange> {
        if !self.addresses.is_empty() {
            return self.addresses.clone();
        }
        match Url::parse(url).ok().as_ref().and_then(Url::host) {
            Some(Host::Ipv4(address)) => vec![AddressRange::Net(std::net::IpAddr::V4(address).into())],
            Some(Host::Ipv6(address)) => vec![AddressRange::Net(std::net::IpAddr::V6(address).into())],
            Some(Host::Domain(name)) => of_name(name),
            None => Vec::new(),
        }
    }

    pub fn signing_scheme(&self) -> Option<SigningScheme<'_>> {
        self.scheme.as_ref().and_then(SchemeSpec::only_scheme)
    }

    /// Checks the address `url` and describes its fault without quoting it. An IP address in place of a name
    /// never changes, so it is judged before anything is sent.
    pub fn wrong_address(&self, url: &str) -> Option<UnnamedAddress> {
        let address = match Url::parse(url).ok()?.host()? {
            Host::Ipv4(address) => address.into(),
            Host::Ipv6(address) => address.into(),
            Host::Domain(_) => return None,
        };
        let kind = AddressKind::of(address);
        let is_named = self.reachable_addresses(url).iter().any(|range| range.contains(address));
        if is_named && !(kind == AddressKind::Metadata && self.addresses.is_empty()) {
            return None;
        }
        Some(UnnamedAddress { kind, address })
    }

    pub fn allows_path(&self, path: &str) -> bool {
        let path = path.split('?').next().unwrap_or_default().trim_start_matches('/');
        let below = |prefix: &String| {
            let prefix = prefix.trim_matches('/');
            path.strip_prefix(prefix)
                .is_some_and(|rest| prefix.is_empty() || rest.is_empty() || rest.starts_with('/'))
        };
        self.paths.is_empty() || self.paths.iter().any(below)
    }
}

fn of_name(name: &str) -> Vec<AddressRange> {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    let ends = |end: &str| name == end[1..] || name.ends_with(end);
    match () {
        () if ends(".localhost") => vec![AddressRange::Loopback],
        // A name without a dot belongs to this namespace, or to the machine's own list.
        () if !name.contains('.') || ends(".svc") || ends(".svc.cluster.local") => {
            vec![AddressRange::Public, AddressRange::Private]
        }
        () => vec![AddressRange::Public],
    }
}

struct DestinationFault<'a> {
    place: &'a str,
    faults: &'a mut Vec<ManifestFault>,
}

impl DestinationFault<'_> {
    fn note_fault(&mut self, field: &str, message: String) {
        self.faults.push(fault(format!("{}.{field}", self.place), message));
    }
}

pub(super) fn check(place: &str, spec: &DestinationSpec, faults: &mut Vec<ManifestFault>) {
    let mut wrong = DestinationFault { place, faults };
    match (spec.url.as_str(), &spec.url_from) {
        ("", Some(reference)) => check_secret(&format!("{place}.urlFrom"), reference, wrong.faults),
        ("", None) => {
            wrong.note_fault("url", "is missing: write it, or `urlFrom` where it is a secret".into());
        }
        (_, Some(_)) => wrong.note_fault("urlFrom", "is beside `url`: keep one of them".into()),
        (url, None) if !url.starts_with("http://") && !url.starts_with("https://") => {
            wrong.note_fault("url", format!("`{url}` is not an http or https address"));
        }
        (_, None) if spec.signing_scheme().is_some_and(SigningScheme::has_secret_address) => {
            let message = "whoever knows the address of this service may send: put it into a secret, and say where \
                           that is, with `urlFrom: {env: VARIABLE}` or `urlFrom: {file: PATH}`";
            wrong.note_fault("url", message.into());
        }
        (_, None) => {}
    }
    if let Some(unnamed) = spec.wrong_address(&spec.url) {
        wrong.note_fault("url", unnamed.to_string());
    }
    if spec.scheme.is_some() && spec.signing_scheme().is_none() {
        let message = "names none or more than one: give one of slack, feishu, dingtalk, wecom and hmac";
        wrong.note_fault("scheme", message.into());
    }
    if let Some(secret) = spec.signing_scheme().and_then(SigningScheme::secret_ref) {
        check_secret(&format!("{place}.scheme"), secret, wrong.faults);
    }
    if spec.url.starts_with("http://") && !spec.headers.is_empty() && !spec.allow_plain {
        let message = "would send the secrets of `headers` over plain http: use https, or write `allowPlain: true` \
                       for a network that you trust";
        wrong.note_fault("url", message.into());
    }
    if let Some(spec_of_tls) = &spec.tls {
        tls::check(place, spec_of_tls, &spec.url, wrong.faults);
    }
    if spec.methods.is_empty() {
        wrong.note_fault("methods", "is empty: name a method, or leave it out for all of them".into());
    }
    for (field, count, most) in [
        ("paths", spec.paths.len(), PATHS),
        ("addresses", spec.addresses.len(), ADDRESSES),
        ("pluginHeaders", spec.plugin_headers.len(), plugin_headers::PLUGIN_HEADERS),
    ] {
        if count > most {
            wrong.note_fault(field, format!("has {count} entries: the most is {most}"));
        }
    }
    for (index, name) in spec.plugin_headers.iter().enumerate().filter(|(_, name)| !is_plugin_header(name)) {
        let message = format!(
            "`{name}` is no header that a plugin may send: write letters, digits and `-`, and no header that frames a \
             message or says who asks, such as `Host` and `Authorization`"
        );
        wrong.note_fault(&format!("pluginHeaders[{index}]"), message);
    }
    for (index, path) in spec.paths.iter().enumerate().filter(|(_, path)| !is_path(path)) {
        let message =
            format!("`{path}` is no path: write one such as /v1/jobs, without `..`, `//`, `?`, `#` and `%`");
        wrong.note_fault(&format!("paths[{index}]"), message);
    }
    for (field, size, most) in [
        ("requestSize", spec.request_size, REQUEST_MOST),
        ("responseSize", spec.response_size, RESPONSE_MOST),
    ] {
        if size.0 > most {
            wrong.note_fault(
                field,
                format!("is over {}Mi, the most that the controller holds of one", most >> 20),
            );
        }
    }
}

/// Whether a prefix is acceptable: it may not contain what a plugin's path may not contain.
fn is_path(path: &str) -> bool {
    let odd = |c: char| c.is_control() || c.is_whitespace() || matches!(c, '\\' | '#' | '?' | '%');
    path.starts_with('/')
        && !path.contains(odd)
        && !path.contains("//")
        && !path.split('/').any(|segment| matches!(segment, "." | ".."))
}

fn request_most() -> Bytes {
    Bytes(REQUEST_MOST)
}

fn response_most() -> Bytes {
    Bytes(RESPONSE_MOST)
}

fn ten_seconds() -> Duration {
    Duration(std::time::Duration::from_secs(10))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> DestinationSpec {
        serde_saphyr::from_str(text).unwrap()
    }

    fn faults(text: &str) -> Vec<ManifestFault> {
        let mut faults = Vec::new();
        check("spec.destinations[0]", &spec(text), &mut faults);
        faults
    }

    fn reaches(url: &str, address: &str) -> bool {
        let address = address.parse().unwrap();
        DestinationSpec::of("a", url).reachable_addresses(url).iter().any(|range| range.contains(address))
    }

    #[test]
    fn an_address_means_itself_a_name_of_the_cluster_its_services_and_another_name_the_public() {
        assert!(reaches("http://127.0.0.1:9/", "127.0.0.1") && !reaches("http://127.0.0.1:9/", "127.0.0.2"));
        // Other notations of the same address.
        assert!(reaches("http://0x7f.1:9/", "127.0.0.1") && reaches("http://[::1]:9/", "::1"));
        for own in ["http://people.team.svc:80", "http://people.team.svc.cluster.local.", "http://people"] {
            assert!(reaches(own, "10.96.0.7") && reaches(own, "34.118.224.9"), "{own}");
            assert!(!reaches(own, "127.0.0.1") && !reaches(own, "169.254.169.254"), "{own}");
        }
        assert!(reaches("http://localhost:9", "::1") && !reaches("http://localhost:9", "10.0.0.1"));
        for other in ["https://hooks.example.com", "https://svc.example.com", "https://notsvc.example"] {
            assert!(reaches(other, "8.8.8.8"), "{other}");
            assert!(!reaches(other, "10.0.0.1") && !reaches(other, "127.0.0.1"), "{other}");
        }
    }

    #[test]
    fn a_path_is_below_a_prefix_by_whole_segments() {
        let spec = spec("{name: a, url: 'https://x', paths: [/v1/jobs, /v2/]}");
        for path in ["/v1/jobs", "v1/jobs", "/v1/jobs/7", "/v1/jobs?x=/..", "/v2", "/v2/a"] {
            assert!(spec.allows_path(path), "{path}");
        }
        for path in ["", "/", "/v1", "/v1/jobsx", "/v1/job", "/v22", "/x?/v1/jobs", "/V1/jobs"] {
            assert!(!spec.allows_path(path), "{path}");
        }
        assert!(DestinationSpec::of("a", "https://x").allows_path("/any"));
    }

    #[test]
    fn what_a_destination_cannot_mean_is_a_fault_of_its_field() {
        let headers = "headers: [{name: a, valueFrom: {env: A}}]";
        for (text, field, message) in [
            ("{name: a, url: 'ftp://x'}", "url", "is not an http or https address"),
            (&format!("{{name: a, url: 'http://x', {headers}}}"), "url", "`allowPlain: true`"),
            ("{name: a}", "url", "is missing"),
            ("{name: a, url: 'https://x', urlFrom: {env: A}}", "urlFrom", "is beside `url`"),
            ("{name: a, urlFrom: {env: 'https://x'}}", "urlFrom", "is an address"),
            ("{name: a, url: 'https://x', scheme: {wecom: {}}}", "url", "`urlFrom: {env: VARIABLE}`"),
            ("{name: a, url: 'https://x', scheme: {hmac: {secretFrom: {env: ''}}}}", "scheme", "is empty"),
            ("{name: a, urlFrom: {env: A}, scheme: {}}", "scheme", "names none"),
            ("{name: a, urlFrom: {env: A}, scheme: {slack: {}, wecom: {}}}", "scheme", "more than one"),
            ("{name: a, url: 'https://x', methods: []}", "methods", "is empty"),
            ("{name: a, url: 'https://x', paths: [v1]}", "paths[0]", "`v1` is no path"),
            ("{name: a, url: 'https://x', paths: [/a, /b/../c]}", "paths[1]", "is no path"),
            ("{name: a, url: 'https://x', paths: ['/a%2fb']}", "paths[0]", "is no path"),
            ("{name: a, url: 'https://x', pluginHeaders: [x-a, x_b]}", "pluginHeaders[1]", "letters, digits"),
            ("{name: a, url: 'https://x', pluginHeaders: [Host]}", "pluginHeaders[0]", "`Host` is no header"),
            ("{name: a, url: 'https://x', requestSize: 5Mi}", "requestSize", "is over 4Mi"),
            ("{name: a, url: 'https://x', responseSize: 2Mi}", "responseSize", "is over 1Mi"),
            ("{name: a, url: 'http://127.0.0.1', addresses: [public]}", "url", "is a loopback address"),
            ("{name: a, url: 'http://169.254.169.254'}", "url", "add `169.254.169.254` there"),
            ("{name: a, url: 'http://[fd00:ec2::254]', addresses: [private]}", "url", "cloud's metadata"),
        ] {
            let faults = faults(text);
            assert_eq!(faults.len(), 1, "{text}: {faults:?}");
            assert_eq!(faults[0].field, format!("spec.destinations[0].{field}"));
            assert!(faults[0].message.contains(message), "{faults:?}");
        }
        for fine in [
            format!("{{name: a, url: 'https://x', {headers}}}"),
            format!("{{name: a, url: 'http://x', allowPlain: true, {headers}}}"),
            "{name: a, url: 'http://169.254.169.254', addresses: [169.254.169.254]}".into(),
            "{name: a, url: 'http://10.0.0.1', methods: [GET], paths: [/], requestSize: 0}".into(),
            "{name: a, urlFrom: {file: /secrets/slack}, scheme: {slack: {}}}".into(),
            "{name: a, url: 'https://x', scheme: {hmac: {secretFrom: {env: A}}}}".into(),
        ] {
            assert_eq!(faults(&fine), [], "{fine}");
        }
    }

    #[test]
    fn a_list_of_paths_or_addresses_has_an_end() {
        let mut long = DestinationSpec::of("a", "https://x");
        long.paths = vec!["/a".into(); PATHS + 1];
        long.addresses = vec![AddressRange::Private; ADDRESSES + 1];
        long.plugin_headers = vec!["x-team".into(); plugin_headers::PLUGIN_HEADERS + 1];
        let mut faults = Vec::new();
        check("spec.destinations[0]", &long, &mut faults);
        let fields: Vec<_> = faults.into_iter().map(|fault| fault.field).collect();
        let long =
            ["paths", "addresses", "pluginHeaders"].map(|field| format!("spec.destinations[0].{field}"));
        assert_eq!(fields, long);
    }
}
