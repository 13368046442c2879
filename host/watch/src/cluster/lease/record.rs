//! Reads and rewrites a Lease. It preserves fields that other people set. Pure.

use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

/// A Lease in the form that the API server returned.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LeaseRecord {
    pub uid: String,
    /// Empty if it was released.
    pub holder: String,
    /// How long the holder asks others to wait.
    pub lasts: Option<Duration>,
    object: Value,
}

/// The values that a holder writes.
#[derive(Clone, Debug)]
pub(crate) struct LeaseClaim<'a> {
    pub identity: &'a str,
    pub lasts_seconds: u32,
    pub stamp: Timestamp,
}

impl LeaseRecord {
    /// `None` for a Lease without a version or a uid. Without a version, a write would not be refused if somebody else was faster.
    pub fn from_value(object: Value) -> Option<Self> {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        if text("/metadata/resourceVersion").is_empty() || text("/metadata/uid").is_empty() {
            return None;
        }
        let (uid, holder) = (text("/metadata/uid").to_string(), text("/spec/holderIdentity").to_string());
        let seconds = object.pointer("/spec/leaseDurationSeconds").and_then(Value::as_u64);
        let lasts = seconds.filter(|seconds| *seconds > 0).map(Duration::from_secs);
        Some(Self { uid, holder, lasts, object })
    }

    /// Whether nobody has renewed, taken or released it in between. Labels don't count, so setting one does
    /// not keep a dead holder alive.
    pub fn is_unchanged(&self, other: &Self) -> bool {
        self.uid == other.uid && self.object.get("spec") == other.object.get("spec")
    }

    /// The Lease as its holder writes it. The version is included, so that only this version is overwritten.
    pub fn claimed_object(&self, claim: &LeaseClaim<'_>) -> Value {
        let mut object = self.object.clone();
        let spec = spec_mut(&mut object);
        let stamp = micro_time(claim.stamp);
        if self.holder != claim.identity {
            let transitions = spec["leaseTransitions"].as_i64().unwrap_or(0).clamp(0, i32::MAX.into());
            spec["leaseTransitions"] = json!((transitions + 1).min(i32::MAX.into()));
            spec["acquireTime"] = json!(stamp);
        }
        spec["holderIdentity"] = json!(claim.identity);
        spec["leaseDurationSeconds"] = json!(claim.lasts_seconds);
        spec["renewTime"] = json!(stamp);
        object
    }

    /// A Lease without a holder: the next replica takes it at once.
    pub fn released_object(&self, stamp: Timestamp) -> Value {
        let mut object = self.object.clone();
        let spec = spec_mut(&mut object);
        spec["holderIdentity"] = json!("");
        spec["renewTime"] = json!(micro_time(stamp));
        object
    }
}

/// Somebody may have created a Lease without a spec.
fn spec_mut(object: &mut Value) -> &mut Value {
    if !object["spec"].is_object() {
        object["spec"] = json!({});
    }
    &mut object["spec"]
}

/// A Lease that does not exist yet.
pub(crate) fn new_lease_object(namespace: &str, name: &str, claim: &LeaseClaim<'_>) -> Value {
    let stamp = micro_time(claim.stamp);
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "holderIdentity": claim.identity, "leaseDurationSeconds": claim.lasts_seconds,
            "acquireTime": stamp, "renewTime": stamp, "leaseTransitions": 0,
        },
    })
}

fn micro_time(stamp: Timestamp) -> String {
    stamp.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

/// The timestamps that one process writes. Others only check whether they change, so no timestamp repeats,
/// whatever happens to the wall clock.
#[derive(Debug, Default)]
pub(crate) struct LeaseStamps {
    last: Option<Timestamp>,
}

impl LeaseStamps {
    pub fn next(&mut self, now: Timestamp) -> Timestamp {
        let after = |last: Timestamp| last.checked_add(SignedDuration::from_micros(1)).unwrap_or(last);
        let stamp = self.last.map_or(now, |last| now.max(after(last)));
        self.last = Some(stamp);
        stamp
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(identity: &str, second: i64) -> LeaseClaim<'_> {
        LeaseClaim { identity, lasts_seconds: 15, stamp: Timestamp::from_second(second).unwrap() }
    }

    fn lease(mut object: Value) -> LeaseRecord {
        object["metadata"]["resourceVersion"] = json!("7");
        object["metadata"]["uid"] = json!("u");
        LeaseRecord::from_value(object).unwrap()
    }

    #[test]
    fn times_have_six_digits_also_on_a_whole_second() {
        assert_eq!(micro_time(Timestamp::UNIX_EPOCH), "1970-01-01T00:00:00.000000Z");
        let odd = Timestamp::from_microsecond(1_700_000_000_012_345).unwrap();
        assert_eq!(micro_time(odd), "2023-11-14T22:13:20.012345Z");
    }

    #[test]
    fn a_renewal_keeps_what_others_set_and_since_when_it_is_held() {
        let mut object = new_lease_object("ns", "l", &claim("a", 1));
        object["metadata"]["labels"] = json!({"team": "x"});
        object["spec"]["strategy"] = json!("theirs");
        let renewed = lease(object).claimed_object(&claim("a", 2));
        assert_eq!(renewed["metadata"]["labels"]["team"], "x");
        assert_eq!(renewed["metadata"]["resourceVersion"], "7");
        assert_eq!(renewed["spec"]["strategy"], "theirs");
        assert_eq!(renewed["spec"]["acquireTime"], "1970-01-01T00:00:01.000000Z");
        assert_eq!(renewed["spec"]["renewTime"], "1970-01-01T00:00:02.000000Z");
        assert_eq!(renewed["spec"]["leaseTransitions"], 0);
    }

    #[test]
    fn a_new_holder_is_counted_and_the_one_after_a_release_is_new() {
        let held = lease(new_lease_object("ns", "l", &claim("a", 1)));
        let taken = lease(held.claimed_object(&claim("b", 2)));
        assert_eq!(
            (taken.holder.as_str(), taken.object["spec"]["leaseTransitions"].as_i64()),
            ("b", Some(1))
        );
        assert_eq!(taken.object["spec"]["acquireTime"], "1970-01-01T00:00:02.000000Z");
        let released = lease(taken.released_object(Timestamp::UNIX_EPOCH));
        assert_eq!((released.holder.as_str(), released.is_unchanged(&taken)), ("", false));
        assert_eq!(released.claimed_object(&claim("b", 3))["spec"]["leaseTransitions"], 2);
    }

    #[test]
    fn an_empty_lease_that_somebody_made_can_be_claimed() {
        let empty = lease(json!({"spec": null}));
        assert_eq!((empty.holder.as_str(), empty.lasts), ("", None));
        assert_eq!(lease(empty.claimed_object(&claim("a", 1))).holder, "a");
    }

    #[test]
    fn a_duration_of_nothing_is_none() {
        let lasts = |seconds: u64| lease(json!({"spec": {"leaseDurationSeconds": seconds}})).lasts;
        assert_eq!((lasts(7), lasts(0)), (Some(Duration::from_secs(7)), None));
    }

    #[test]
    fn a_lease_without_a_version_is_not_understood() {
        assert!(LeaseRecord::from_value(json!({"metadata": {"uid": "u"}})).is_none());
        assert!(LeaseRecord::from_value(json!("gone")).is_none());
    }

    #[test]
    fn labels_are_no_sign_of_life_and_renewals_are() {
        let held = lease(new_lease_object("ns", "l", &claim("a", 1)));
        let mut labelled = held.object.clone();
        labelled["metadata"]["labels"] = json!({"x": "y"});
        assert!(held.is_unchanged(&lease(labelled)));
        assert!(!held.is_unchanged(&lease(held.claimed_object(&claim("a", 2)))));
    }

    #[test]
    fn no_time_is_written_twice_even_if_the_clock_goes_back() {
        let mut stamps = LeaseStamps::default();
        let first = stamps.next(Timestamp::from_second(9).unwrap());
        let second = stamps.next(Timestamp::from_second(5).unwrap());
        assert!(second > first && micro_time(second) != micro_time(first));
    }
}
