//! Streams between controllers: which sources a controller publishes to a stream, and which partitions it
//! reads.

use serde::{Deserialize, Serialize};

use super::values::{check_secret, unknown_name_message};
use super::{Bytes, Duration, HostSpec, SecretRef, SourceSpec};
use crate::limits::PARTITIONS;
use crate::model::fault::{ManifestFault, fault};

/// A smaller stream could not hold one large object beside its other messages.
const BYTES_LEAST: u64 = 64 << 20;
/// A NATS server refuses more copies.
const REPLICAS_MOST: u32 = 5;
/// A NATS server refuses a shorter window.
const WINDOW_LEAST: std::time::Duration = std::time::Duration::from_millis(100);

/// The part of a stream that is read here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FromSpec {
    /// The name of the stream.
    pub stream: String,
    /// The partitions that this controller reads, counted from 0. One controller reads a partition. Left out: all of
    /// them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<u32>,
    /// The name of a reader that is gone for good, as the refusal shows it. This controller reads its partitions
    /// from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub take_over: Option<String>,
}

/// A stream on a NATS server with JetStream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StreamSpec {
    /// The name of the stream, here and on the server.
    #[cfg_attr(test, schemars(schema_with = "super::reference::name"))]
    pub name: String,
    /// Where the address of the server is. The address looks like `nats://user:password@nats:4222` or
    /// `tls://…`. For a cluster it is a list with commas.
    pub url_from: SecretRef,
    /// Where the content of a `.creds` file is, for a server that asks for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_from: Option<SecretRef>,
    /// Where the key is that the carrying controller and its readers share: 32 characters or more. With it, a reader takes
    /// only messages that were signed under the key. A second line holds the former key while the key is rotated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_from: Option<SecretRef>,
    /// The sources of this controller whose states it hands to the stream.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub carry: Vec<String>,
    /// The number of partitions. The states of an object are in one partition, and one controller reads a
    /// partition. The number can't be changed later.
    #[cfg_attr(test, schemars(range(min = 1, max = PARTITIONS)))]
    #[serde(default = "four")]
    pub partitions: u32,
    /// The bytes of unread states that the server keeps. While the stream is full, states wait in the journal.
    #[cfg_attr(test, schemars(extend("x-bounds" = super::reference::at_least_bytes(BYTES_LEAST))))]
    #[serde(default = "one_gibibyte")]
    pub max_bytes: Bytes,
    /// How long the server recognises a state that it is sent twice. A reader recognises it for ever.
    #[cfg_attr(test, schemars(extend("x-bounds" = super::reference::at_least(WINDOW_LEAST))))]
    #[serde(default = "two_minutes")]
    pub window: Duration,
    /// Copies in a cluster of servers.
    #[cfg_attr(test, schemars(range(min = 1, max = REPLICAS_MOST)))]
    #[serde(default = "one")]
    pub replicas: u32,
    /// The name of a journal that is gone for good, as the refusal shows it. The states of the stream come
    /// from this controller from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub take_over: Option<String>,
}

fn four() -> u32 {
    4
}

fn one() -> u32 {
    1
}

fn one_gibibyte() -> Bytes {
    Bytes(1 << 30)
}

fn two_minutes() -> Duration {
    Duration(std::time::Duration::from_secs(120))
}

impl FromSpec {
    /// The partitions that this controller reads, of a stream with `partitions` partitions.
    pub fn chosen_partitions(&self, partitions: u32) -> Vec<u32> {
        match self.partitions.as_slice() {
            [] => (0..partitions).collect(),
            some => some.to_vec(),
        }
    }
}

impl StreamSpec {
    /// Why a reader can't trust the stream; `None` if its messages are signed.
    pub fn missing_key_text(&self) -> Option<String> {
        self.key_from.is_none().then(|| {
            format!(
                "the stream `{}` has no key: whoever may publish to it can add states that never were, and hide true ones \
                 without a gap. Share a key with `keyFrom` among its controllers",
                self.name
            )
        })
    }
}

/// Warns of each stream without a key that this controller carries to or reads.
pub(super) fn warn_of_unsigned_streams(host: &HostSpec) -> Vec<ManifestFault> {
    let is_read = |stream: &StreamSpec| {
        host.sources.iter().filter_map(|source| source.from.as_ref()).any(|from| from.stream == stream.name)
    };
    let used =
        host.streams.iter().enumerate().filter(|(_, stream)| !stream.carry.is_empty() || is_read(stream));
    used.filter_map(|(index, stream)| {
        Some(fault(format!("spec.streams[{index}].keyFrom"), stream.missing_key_text()?))
    })
    .collect()
}

pub(super) fn check(host: &HostSpec, faults: &mut Vec<ManifestFault>) {
    for (index, stream) in host.streams.iter().enumerate() {
        check_stream(&format!("spec.streams[{index}]"), stream, host, faults);
    }
    for (index, source) in host.sources.iter().enumerate() {
        if let Some(from) = &source.from {
            check_from(&format!("spec.sources[{index}]"), source, from, &host.streams, faults);
        }
    }
}

fn check_stream(place: &str, stream: &StreamSpec, host: &HostSpec, faults: &mut Vec<ManifestFault>) {
    check_secret(&format!("{place}.urlFrom"), &stream.url_from, faults);
    if let Some(key) = &stream.key_from {
        check_secret(&format!("{place}.keyFrom"), key, faults);
    }
    let sources: Vec<_> = host.sources.iter().map(|source| source.name.as_str()).collect();
    for (index, name) in stream.carry.iter().enumerate() {
        let field = format!("{place}.carry[{index}]");
        match host.sources.iter().find(|source| source.name == *name) {
            None => faults.push(fault(field, unknown_name_message("source", name, &sources))),
            Some(source) if source.from.is_some() => {
                let message =
                    format!("`{name}` is not witnessed here: carry it from the controller that witnesses it");
                faults.push(fault(field, message));
            }
            Some(_) if stream.carry[..index].contains(name) => {
                faults.push(fault(field, format!("`{name}` occurs twice: keep one")));
            }
            Some(_) => {}
        }
    }
    if !(1..=PARTITIONS).contains(&stream.partitions) {
        let message = format!("is {}: use 1 to {PARTITIONS}", stream.partitions);
        faults.push(fault(format!("{place}.partitions"), message));
    }
    if stream.max_bytes.0 < BYTES_LEAST {
        faults.push(fault(format!("{place}.maxBytes"), "is less than 64Mi: write 64Mi or more"));
    }
    if stream.window.0 < WINDOW_LEAST {
        faults.push(fault(format!("{place}.window"), "is less than 100ms: write 100ms or more"));
    }
    if !(1..=REPLICAS_MOST).contains(&stream.replicas) {
        let message = format!("is {}: use 1 to {REPLICAS_MOST}", stream.replicas);
        faults.push(fault(format!("{place}.replicas"), message));
    }
}

fn check_from(
    place: &str,
    source: &SourceSpec,
    from: &FromSpec,
    streams: &[StreamSpec],
    faults: &mut Vec<ManifestFault>,
) {
    let names: Vec<_> = streams.iter().map(|stream| stream.name.as_str()).collect();
    let Some(stream) = streams.iter().find(|stream| stream.name == from.stream) else {
        faults.push(fault(
            format!("{place}.from.stream"),
            unknown_name_message("stream", &from.stream, &names),
        ));
        return;
    };
    if from.take_over.as_deref() == Some("") {
        faults.push(fault(format!("{place}.from.takeOver"), "is empty: name the reader, or leave it out"));
    }
    for (index, partition) in from.partitions.iter().enumerate() {
        let field = format!("{place}.from.partitions[{index}]");
        if *partition >= stream.partitions {
            let last = stream.partitions.saturating_sub(1);
            faults.push(fault(field, format!("is {partition}: the stream has 0 to {last}")));
        } else if from.partitions[..index].contains(partition) {
            faults.push(fault(field, format!("{partition} occurs twice: keep one")));
        }
    }
    let witness = "belongs to the controller that witnesses the source: leave it out here";
    let not_here = [
        ("namespace", source.namespace.is_some()),
        ("matchLabels", !source.match_labels.is_empty()),
        ("resource", source.resource.is_some()),
    ];
    for (field, _) in not_here.iter().filter(|(_, given)| *given) {
        faults.push(fault(format!("{place}.{field}"), witness));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn faults(sources: &serde_json::Value, streams: &serde_json::Value) -> Vec<String> {
        let host: HostSpec = serde_json::from_value(json!({"sources": sources, "streams": streams})).unwrap();
        host.check().into_iter().map(|fault| fault.field).collect()
    }

    fn stream(fields: &[(&str, serde_json::Value)]) -> serde_json::Value {
        let mut stream = json!({"name": "platform", "urlFrom": {"env": "NATS_URL"}});
        for (name, value) in fields {
            stream[name] = value.clone();
        }
        json!([stream])
    }

    fn source(fields: &[(&str, serde_json::Value)]) -> serde_json::Value {
        let mut source = json!({"name": "jobs", "apiVersion": "batch/v1", "kind": "Job"});
        for (name, value) in fields {
            source[name] = value.clone();
        }
        json!([source])
    }

    #[test]
    fn a_host_carries_what_it_witnesses_and_reads_partitions_that_there_are() {
        let from = |value| source(&[("from", value)]);
        let none = [] as [&str; 0];
        assert_eq!(faults(&source(&[]), &stream(&[("carry", json!(["jobs"]))])), none);
        assert_eq!(faults(&from(json!({"stream": "platform", "partitions": [0, 3]})), &stream(&[])), none);
        let carry = stream(&[("carry", json!(["jobs", "pods"]))]);
        assert_eq!(
            faults(&from(json!({"stream": "platform"})), &carry),
            ["spec.streams[0].carry[0]", "spec.streams[0].carry[1]"]
        );
        assert_eq!(
            faults(&from(json!({"stream": "platform", "partitions": [4, 1, 1]})), &stream(&[])),
            ["spec.sources[0].from.partitions[0]", "spec.sources[0].from.partitions[2]"]
        );
        assert_eq!(faults(&from(json!({"stream": "other"})), &stream(&[])), ["spec.sources[0].from.stream"]);
    }

    #[test]
    fn a_stream_without_a_key_that_is_carried_to_or_read_is_warned_of() {
        let warned = |sources: &serde_json::Value, streams: &serde_json::Value| -> Vec<String> {
            let host = json!({"sources": sources, "streams": streams});
            let host: HostSpec = serde_json::from_value(host).unwrap();
            host.stream_warnings().into_iter().map(|warning| warning.field).collect()
        };
        let (read, carry) = (source(&[("from", json!({"stream": "platform"}))]), ("carry", json!(["jobs"])));
        let unsigned = ["spec.streams[0].keyFrom"];
        assert_eq!(warned(&read, &stream(&[])), unsigned);
        assert_eq!(warned(&source(&[]), &stream(std::slice::from_ref(&carry))), unsigned);
        let key = ("keyFrom", json!({"env": "STREAM_KEY"}));
        assert_eq!(warned(&source(&[]), &stream(&[carry, key.clone()])), [] as [&str; 0]);
        assert_eq!(warned(&read, &stream(&[key])), [] as [&str; 0]);
        assert_eq!(warned(&source(&[]), &stream(&[])), [] as [&str; 0], "nobody uses it");
    }

    #[test]
    fn numbers_that_no_server_takes_and_addresses_in_the_open_are_faults() {
        let wrong = stream(&[
            ("urlFrom", json!({"env": "nats://user:password@host"})),
            ("partitions", json!(0)),
            ("maxBytes", json!("1Mi")),
            ("window", json!("1ms")),
            ("replicas", json!(6)),
        ]);
        let fields = ["urlFrom", "partitions", "maxBytes", "window", "replicas"];
        assert_eq!(faults(&source(&[]), &wrong), fields.map(|field| format!("spec.streams[0].{field}")));
    }

    #[test]
    fn what_is_selected_is_the_witnesss_to_say() {
        let selected = source(&[
            ("from", json!({"stream": "platform"})),
            ("namespace", json!("ml")),
            ("matchLabels", json!({"team": "vision"})),
        ]);
        let fields = ["spec.sources[0].namespace", "spec.sources[0].matchLabels"];
        assert_eq!(faults(&selected, &stream(&[])), fields);
    }
}
