//! Where closed files of a ledger are shipped, and how long the local copies stay.

use serde::{Deserialize, Serialize};
use url::Url;

use crate::config::destinations::{ADDRESSES, AddressRange, DestinationSpec};
use crate::config::values::check_secret;
use crate::config::{Duration, SecretRef};
use crate::model::fault::{ManifestFault, fault};

/// A bucket allows keys of at most 1,024 bytes, including the name of the file.
const PREFIX_BYTES: usize = 512;
/// A shipped file is verified again before its local copy is removed, which takes seconds.
const KEEP_LEAST: std::time::Duration = std::time::Duration::from_secs(60);

/// A bucket of an S3-compatible storage that gets the closed files of a ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ShipSpec {
    /// The address of the storage, without the bucket, such as `https://s3.eu-central-1.amazonaws.com`. Over `http://` it
    /// needs `allowPlain`.
    #[cfg_attr(test, schemars(extend("pattern" = "^https?://")))]
    pub endpoint: String,
    /// The bucket. The controller does not make it.
    pub bucket: String,
    /// The beginning of the files' names in the bucket, such as `production/`. Each ledger of each
    /// installation needs a prefix of its own.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub prefix: String,
    /// The region that requests are signed for.
    #[serde(default = "region")]
    pub region: String,
    /// Whether the bucket is the first part of the path. `false`: it stands before the host's name.
    #[serde(default = "yes")]
    pub path_style: bool,
    /// Where the name of the access key is. The controller reads it for each request.
    pub access_key_from: SecretRef,
    /// Where its secret is. The controller reads it for each request.
    pub secret_key_from: SecretRef,
    /// Whether the controller uses `http://`, where everybody on the way can read the files.
    #[serde(default)]
    pub allow_plain: bool,
    /// The addresses that the controller connects to, as for a destination. Left out: what the host part of
    /// `endpoint` says.
    #[cfg_attr(test, schemars(length(max = ADDRESSES)))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<AddressRange>,
    /// How long a file stays here once it is shipped. Left out: for ever. A file that is not shipped always stays.
    #[cfg_attr(test, schemars(extend("x-bounds" = crate::config::reference::at_least(KEEP_LEAST))))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<Duration>,
}

fn region() -> String {
    "us-east-1".to_owned()
}

fn yes() -> bool {
    true
}

impl ShipSpec {
    /// The address of the bucket; `None` if `endpoint` is not a valid address.
    pub fn bucket_address(&self) -> Option<Url> {
        let mut url = Url::parse(&self.endpoint).ok()?;
        if self.path_style {
            url.set_path(&self.bucket);
            return Some(url);
        }
        let host = format!("{}.{}", self.bucket, url.domain()?);
        url.set_host(Some(&host)).ok()?;
        Some(url)
    }

    /// The addresses that the controller connects to.
    pub fn reachable_addresses(&self) -> Vec<AddressRange> {
        self.as_destination().reachable_addresses(&self.endpoint)
    }

    /// The destination whose address rules apply to this bucket.
    fn as_destination(&self) -> DestinationSpec {
        DestinationSpec { addresses: self.addresses.clone(), ..DestinationSpec::of("", &self.endpoint) }
    }
}

pub fn check(place: &str, spec: &ShipSpec, faults: &mut Vec<ManifestFault>) {
    let mut wrong = |field: &str, message: String| faults.push(fault(format!("{place}.{field}"), message));
    if let Some(message) = wrong_endpoint(spec) {
        wrong("endpoint", message);
    }
    let is_bucket = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    if !(3..=63).contains(&spec.bucket.len())
        || !spec.bucket.chars().all(is_bucket)
        || spec.bucket.contains("..")
    {
        let message = "is no name of a bucket: it has 3 to 63 small letters, digits, `-` and `.`";
        wrong("bucket", message.into());
    }
    let is_prefix = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    let is_odd = |part: &str| matches!(part, "." | "..");
    let prefix = &spec.prefix;
    if prefix.len() > PREFIX_BYTES
        || !prefix.chars().all(is_prefix)
        || prefix.starts_with('/')
        || prefix.contains("//")
        || prefix.split('/').any(is_odd)
    {
        let message = format!(
            "is no prefix: it has at most {PREFIX_BYTES} letters, digits, `-`, `_`, `.` and `/`, such as `production/`"
        );
        wrong("prefix", message);
    }
    let is_region = |c: char| c.is_ascii_alphanumeric() || c == '-';
    if !(1..=63).contains(&spec.region.len()) || !spec.region.chars().all(is_region) {
        wrong("region", "is no region: write one such as eu-central-1".into());
    }
    if spec.addresses.len() > ADDRESSES {
        wrong("addresses", format!("has {} entries: the most is {ADDRESSES}", spec.addresses.len()));
    }
    if spec.keep.is_some_and(|keep| keep.0 < KEEP_LEAST) {
        let least = Duration(KEEP_LEAST);
        wrong("keep", format!("is less than {least}: write {least} or more, or leave it out"));
    }
    check_secret(&format!("{place}.accessKeyFrom"), &spec.access_key_from, faults);
    check_secret(&format!("{place}.secretKeyFrom"), &spec.secret_key_from, faults);
}

fn wrong_endpoint(spec: &ShipSpec) -> Option<String> {
    let fault = |message: &str| Some(message.to_owned());
    let Ok(url) = Url::parse(&spec.endpoint) else {
        return fault("is no address: write one such as https://s3.eu-central-1.amazonaws.com");
    };
    match url.scheme() {
        "https" => {}
        "http" if spec.allow_plain => {}
        "http" => {
            return fault(
                "would send the files over plain http: use https, or write `allowPlain: true` for a network that you trust",
            );
        }
        _ => return fault("is not an http or https address"),
    }
    if !url.username().is_empty() || url.password().is_some() {
        return fault("holds a name or a password: name them with `accessKeyFrom` and `secretKeyFrom`");
    }
    if !matches!(url.path(), "" | "/") || url.query().is_some() || url.fragment().is_some() {
        return fault("has more than a host and a port: the bucket and the prefix are fields of their own");
    }
    if !spec.path_style && url.domain().is_none() {
        return fault(
            "is an address without a name, so the bucket can't stand before it: leave `pathStyle` out",
        );
    }
    spec.as_destination().wrong_address(&spec.endpoint).map(|unnamed| unnamed.to_string())
}
