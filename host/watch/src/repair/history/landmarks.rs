//! Landmarks: a few witnessed versions, kept whole, by which a history is known again.
//!
//! A server that was restored from a backup counts on from where the backup was, and may have
//! passed the checkpoint by the time it is asked: numbers alone don't tell. But what was witnessed
//! at a version can be asked for by that version. Nobody there, or another content, is another
//! history. What compaction removed, or a server can't read, proves nothing.
//!
//! One landmark may be the same in both histories by chance, or because a controller writes the
//! same again; so older ones are kept, too, each before a round number of versions.
//!
//! Nobody comes back: an object whose end was witnessed and that is there is another history, too.
//!
//! Where bookmarks have moved the checkpoint beyond the newest, the [census](crate::repair::history::census) tells.

use std::sync::Arc;

use bytes::Bytes;
use kubewitness_core::Version;
use kubewitness_core::project;
use kubewitness_core::state::ObjectRef;
use serde_json::Value;
use tokio::time::sleep;

use crate::connect::backoff::{Backoff, Dice};
use crate::connect::request::Address;
use crate::connect::resource::Resource;
use crate::repair::sweep::counts::number;
use crate::run::Parts;

/// A larger document is no landmark: a few are held for each source.
const LANDMARK_BYTES: usize = 64 * 1024;
/// Beside the newest, the last one before the latest multiple of each of these.
const ROUND: [u128; 3] = [1 << 6, 1 << 12, 1 << 18];
/// A server that is busy for a moment is asked so often before the watch is resumed without an
/// answer. One that never answers such questions must not keep a source from watching.
const TRIES: u32 = 4;

#[derive(Clone, Default)]
pub(crate) struct Landmarks {
    newest: Option<Landmark>,
    older: [Option<Landmark>; ROUND.len()],
    /// Something was found that can't be in this history: somebody whose end was witnessed is there.
    pub contradicted: bool,
}

impl Landmarks {
    /// Whether a version lies beyond the newest, and would be it.
    pub fn is_news(&self, version: &Version) -> bool {
        let Some(number) = number(version) else { return false };
        self.newest.as_ref().is_none_or(|held| held.number < number)
    }

    /// Up to which everything that was witnessed can be known again.
    pub fn newest(&self) -> Option<Version> {
        self.newest.as_ref().map(|landmark| landmark.version.clone())
    }

    pub fn note(&mut self, landmark: &Landmark) {
        let Some(before) = self.newest.replace(landmark.clone()) else { return };
        for (older, round) in self.older.iter_mut().zip(ROUND) {
            if before.number / round != landmark.number / round {
                *older = Some(before.clone());
            }
        }
    }

    /// Which of the versions that are known, in any order, are to be landmarks: oldest first.
    pub fn chosen(versions: &(impl Iterator<Item = u128> + Clone)) -> Vec<u128> {
        let Some(newest) = versions.clone().max() else { return Vec::new() };
        let before = |round: u128| versions.clone().filter(|version| *version < newest / round * round).max();
        let mut chosen: Vec<u128> = ROUND.iter().filter_map(|round| before(*round)).chain([newest]).collect();
        chosen.sort_unstable();
        chosen.dedup();
        chosen
    }

    /// Each once, the newest first.
    fn all(&self) -> Vec<&Landmark> {
        let mut all: Vec<_> = self.newest.iter().chain(self.older.iter().flatten()).collect();
        all.dedup_by_key(|landmark| landmark.number);
        all
    }

    /// Whether the server has something else at the place of one of them.
    pub async fn are_elsewhere(&self, parts: &Parts, resource: &Resource) -> bool {
        if self.contradicted {
            return true;
        }
        for landmark in self.all() {
            match landmark.found(parts, resource).await {
                Found::Other => return true,
                Found::Same => {}
                // Older ones are compacted, too, and a server that can't tell can't tell of them.
                Found::Untold => return false,
            }
        }
        false
    }
}

/// What the server has at a landmark's place.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    Same,
    Other,
    /// It can't tell.
    Untold,
}

#[derive(Clone)]
pub(crate) struct Landmark {
    object: Arc<ObjectRef>,
    version: Version,
    number: u128,
    document: Bytes,
}

impl Landmark {
    pub fn new(object: &Arc<ObjectRef>, version: &Version, document: &[u8]) -> Option<Self> {
        let number = number(version).filter(|_| document.len() <= LANDMARK_BYTES)?;
        // Copied: a slice would hold on to the whole chunk or page that it came in.
        let document = Bytes::copy_from_slice(document);
        Some(Self { object: Arc::clone(object), version: version.clone(), number, document })
    }

    async fn found(&self, parts: &Parts, resource: &Resource) -> Found {
        let address = resource.of_name_at(&self.object, &self.version);
        match ask(parts, &address, &self.version).await {
            Some(answer) => self.compared(&answer, &parts.spec.api_version),
            None => Found::Untold,
        }
    }

    /// `api_version` is what was asked for.
    fn compared(&self, answer: &[u8], api_version: &str) -> Found {
        let Ok(page) = project::list_page(answer) else { return Found::Untold };
        // A server that doesn't know the parameters answers with what is there now.
        if page.resource_version != self.version.as_str() {
            return Found::Untold;
        }
        let Some(item) = page.items.first() else { return Found::Other };
        let Ok(found) = project::envelope(item) else { return Found::Untold };
        if found.name != *self.object.name || found.namespace != *self.object.namespace {
            return Found::Untold;
        }
        if found.uid != *self.object.uid || found.resource_version != self.version.as_str() {
            return Found::Other;
        }
        let read = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).ok();
        let (Some(found), Some(held)) = (read(item), read(&self.document)) else { return Found::Untold };
        // The items of a list may not say what they are; then they are what was asked for.
        let held_as = held.get("apiVersion").and_then(Value::as_str).unwrap_or(api_version);
        if held_as != api_version {
            // The same version of it, converted: the source asks for another version of the API now.
            return Found::Same;
        }
        // Maps without a schema: nothing adds defaults to them.
        let marks = ["/metadata/labels", "/metadata/annotations", "/data", "/binaryData"];
        let is_other =
            marks.iter().any(|mark| found.pointer(mark) != held.pointer(mark)) || differ(&found, &held);
        if is_other { Found::Other } else { Found::Same }
    }
}

/// What the server answers about an old version; `None` where it can't tell.
pub(crate) async fn ask(parts: &Parts, address: &Address, version: &Version) -> Option<Bytes> {
    let tuning = &parts.tuning;
    let mut backoff = Backoff::new(tuning.first_pause, tuning.longest_pause);
    let mut dice = Dice::new(tuning.seed);
    let mut tries = 1;
    loop {
        let failure = match parts.api.get_within(address.as_str(), tuning.one_answer).await {
            Ok(answer) => return Some(answer),
            Err(failure) => failure,
        };
        let source = &parts.spec.name;
        if !failure.is_passing() || failure.code() == Some(501) {
            tracing::debug!(%source, %version, "the history can't be compared: {failure}");
            return None;
        }
        if tries >= TRIES {
            tracing::warn!(%source, %version, tries, "the history could not be compared: {failure}");
            return None;
        }
        let asked = failure.retry_after().map(|pause| pause.min(tuning.longest_pause));
        sleep(backoff.next(&mut dice, asked)).await;
        tries += 1;
    }
}

/// Whether two documents say different things. A field that one of them lacks is no difference: an
/// upgraded server adds defaults to versions of old.
fn differ(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            let mut common = one.iter().filter(|(key, _)| *key != "managedFields");
            common.any(|(key, value)| other.get(key).is_some_and(|there| differ(value, there)))
        }
        (Value::Array(one), Value::Array(other)) => {
            one.len() != other.len() || one.iter().zip(other).any(|(one, other)| differ(one, other))
        }
        (one, other) => one != other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn job(uid: &str, version: &str, note: &str, failed: u32) -> Value {
        json!({
            "metadata": {"name": "a", "namespace": "n", "uid": uid, "resourceVersion": version,
                "annotations": {"note": note}, "managedFields": [{"time": version}]},
            "status": {"failed": failed},
        })
    }

    fn contradicted(at: &str, items: &[Value]) -> bool {
        compared(at, items) == Found::Other
    }

    fn compared(at: &str, items: &[Value]) -> Found {
        let object =
            ObjectRef { namespace: "n".into(), name: "a".into(), uid: "u".into(), ..ObjectRef::default() };
        let held = job("u", "7", "x", 1).to_string();
        let landmark = Landmark::new(&Arc::new(object), &Version::new("7"), held.as_bytes()).unwrap();
        let answer = json!({"kind": "JobList", "metadata": {"resourceVersion": at}, "items": items});
        landmark.compared(answer.to_string().as_bytes(), "batch/v1")
    }

    #[test]
    fn what_was_witnessed_at_a_version_and_is_not_there_is_another_history() {
        assert!(!contradicted("7", &[job("u", "7", "x", 1)]));
        assert!(contradicted("7", &[]));
        assert!(contradicted("7", &[job("v", "7", "x", 1)]));
        assert!(contradicted("7", &[job("u", "5", "x", 1)]));
        assert!(contradicted("7", &[job("u", "7", "y", 1)]));
        assert!(contradicted("7", &[job("u", "7", "x", 2)]));
    }

    #[test]
    fn another_key_in_a_map_without_a_schema_is_another_content() {
        let map = |key: &str| {
            let mut map = job("u", "7", "x", 1);
            map["data"] = json!({key: "1"});
            map
        };
        let object =
            ObjectRef { namespace: "n".into(), name: "a".into(), uid: "u".into(), ..ObjectRef::default() };
        let held = map("n").to_string();
        let landmark = Landmark::new(&Arc::new(object), &Version::new("7"), held.as_bytes()).unwrap();
        let compared = |item: Value| {
            let answer = json!({"metadata": {"resourceVersion": "7"}, "items": [item]});
            landmark.compared(answer.to_string().as_bytes(), "v1")
        };
        assert_eq!(compared(map("n")), Found::Same);
        assert_eq!(compared(map("m")), Found::Other);
    }

    fn landmark(version: u128) -> Landmark {
        let document = version.to_string();
        let version = Version::new(&document);
        Landmark::new(&Arc::default(), &version, document.as_bytes()).unwrap()
    }

    fn kept(landmarks: &Landmarks) -> Vec<u128> {
        landmarks.all().into_iter().map(|landmark| landmark.number).collect()
    }

    #[test]
    fn beside_the_newest_a_few_older_ones_are_kept() {
        let mut landmarks = Landmarks::default();
        for version in (1..=300_000).step_by(7) {
            assert!(landmarks.is_news(&Version::new(&version.to_string())));
            landmarks.note(&landmark(version));
        }
        let numbers = kept(&landmarks);
        assert_eq!(numbers[0], 300_000);
        assert_eq!(numbers.len(), 1 + ROUND.len(), "{numbers:?}");
        for (number, round) in numbers[1..].iter().zip(ROUND) {
            let bound = numbers[0] / round * round;
            assert!(*number < bound && *number + 7 >= bound, "{numbers:?}");
        }
        assert!(!landmarks.is_news(&Version::new("5")) && !landmarks.is_news(&Version::new("b")));
    }

    #[test]
    fn what_a_journal_has_gives_the_same_ones() {
        let versions: Vec<u128> = (1..=300_000).step_by(7).collect();
        let mut watched = Landmarks::default();
        versions.iter().for_each(|version| watched.note(&landmark(*version)));
        let mut chosen = Landmarks::chosen(&versions.iter().copied());
        let mut warm = Landmarks::default();
        chosen.iter().for_each(|version| warm.note(&landmark(*version)));
        assert_eq!(kept(&warm), kept(&watched));
        chosen.reverse();
        assert_eq!(chosen, kept(&watched));
        assert_eq!(Landmarks::chosen(&std::iter::empty()), Vec::<u128>::new());
        assert_eq!(Landmarks::chosen(&[9].into_iter()), [9]);
    }

    #[test]
    fn what_is_served_in_another_version_of_the_api_is_the_same_object() {
        let object =
            ObjectRef { namespace: "n".into(), name: "a".into(), uid: "u".into(), ..ObjectRef::default() };
        let mut held = job("u", "7", "x", 1);
        held["apiVersion"] = json!("example.com/v1beta1");
        let document = held.to_string();
        let landmark = Landmark::new(&Arc::new(object), &Version::new("7"), document.as_bytes()).unwrap();
        let answer = json!({"metadata": {"resourceVersion": "7"}, "items": [job("u", "7", "x", 2)]});
        let compared = |as_what: &str| landmark.compared(answer.to_string().as_bytes(), as_what);
        assert_eq!(compared("example.com/v1"), Found::Same);
        assert_eq!(compared("example.com/v1beta1"), Found::Other);
    }

    #[test]
    fn what_a_server_adds_or_does_not_answer_proves_nothing() {
        let mut upgraded = job("u", "7", "x", 1);
        upgraded["status"]["ready"] = json!(0);
        upgraded["metadata"]["managedFields"] = json!([]);
        assert!(!contradicted("7", &[upgraded]));
        // The parameters were ignored.
        assert!(!contradicted("12", &[job("u", "12", "z", 3)]));
        assert!(!contradicted(
            "7",
            &[json!({"metadata": {"name": "another", "namespace": "n", "uid": "w"}})]
        ));
    }
}
