//! The mutes that people set: for an object, a namespace or everything, and for all recipients or one of
//! them.
//!
//! The controller stores the list, and offers it to each plugin under a key of `kv`. A plugin that notifies
//! people respects it.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::calendar;

/// The key of `kv` under which a plugin reads the list, as JSON. A plugin can't write it.
pub const KEY: &str = "kubewitness.dev/mutes";
/// The most mutes in total. A plugin reads all of them in one call.
pub const MOST: usize = 1000;
/// The most mutes of one namespace. So a person who may mute in one namespace can't push out the mutes of
/// another. Within a namespace, the oldest mute is removed.
const OF_NAMESPACE: usize = 100;
/// The most mutes without a namespace. The rest always has room for a mute of a namespace.
const OF_CLUSTER: usize = MOST / 2;
/// The most bytes of a name or address. Names in Kubernetes and e-mail addresses are not longer.
const TEXT_BYTES: usize = 256;

/// Who is not told of what.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Mute"))]
#[serde(default)]
pub struct MuteView {
    /// The muted object. Empty: a namespace, or everything.
    pub uid: String,
    /// The object as `Kind/name`, for people.
    pub object: String,
    /// The object's namespace, or the muted one. Empty without a `uid`: everything.
    pub namespace: String,
    /// The uid of that namespace. A namespace that is made again under the name has none of these mutes. Empty where
    /// nobody signs in.
    #[serde(rename = "namespaceUid", skip_serializing_if = "String::is_empty")]
    pub namespace_uid: String,
    /// The only recipient that is not told, as the plugin names it. Empty: nobody is told.
    pub to: String,
    pub who: String,
    pub at: String,
}

impl MuteView {
    fn is_same_mute(&self, other: &Self) -> bool {
        let is_same_namespace = !self.uid.is_empty()
            || self.namespace_uid.is_empty()
            || other.namespace_uid.is_empty()
            || self.namespace_uid == other.namespace_uid;
        let is_same = (&self.uid, &self.namespace, &self.to) == (&other.uid, &other.namespace, &other.to);
        is_same && is_same_namespace
    }

    /// Whether it belongs to this namespace, and not to an earlier one with the same name.
    pub fn is_of(&self, namespace_uid: &str, created_ms: u64) -> bool {
        match self.namespace_uid.is_empty() {
            false => self.namespace_uid == namespace_uid,
            true => calendar::parse(&self.at).is_some_and(|at_ms| at_ms >= created_ms),
        }
    }

    /// Whether it covers an object: by its uid, by its namespace, or because it covers everything.
    pub fn covers_object(&self, uid: &str, namespace: &str) -> bool {
        match self.uid.is_empty() {
            true => self.namespace.is_empty() || self.namespace == namespace,
            false => self.uid == uid,
        }
    }
}

/// The objects that are muted, or told again: one of `uid`, `namespace` and `all`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct MuteRequest {
    /// An object.
    pub uid: Option<String>,
    /// All objects of a namespace.
    pub namespace: Option<String>,
    /// Everything.
    pub all: bool,
    /// Only this recipient, such as `ops` or `mail:ada@example.com`. Empty: every recipient.
    pub to: String,
    /// Who asks, as they say of themselves. Empty: `api`. Where people sign in, it is not taken: their name at Kubernetes
    /// is kept.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub who: String,
}

impl MuteRequest {
    pub fn check(&self) -> Result<(), &'static str> {
        let texts = [self.uid.as_ref(), self.namespace.as_ref(), Some(&self.to), Some(&self.who)];
        let named = usize::from(self.uid.is_some()) + usize::from(self.namespace.is_some());
        if named + usize::from(self.all) != 1 {
            return Err("exactly one of `uid`, `namespace` and `all` has to be given");
        }
        if self.uid.as_ref().or(self.namespace.as_ref()).is_some_and(String::is_empty) {
            return Err("`uid` or `namespace` is empty");
        }
        match texts
            .into_iter()
            .flatten()
            .any(|text| text.len() > TEXT_BYTES || text.contains(char::is_control))
        {
            true => Err("a text has more than 256 bytes or more than one line"),
            false => Ok(()),
        }
    }
}

/// The result of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "MuteResult"))]
pub struct MutedView {
    /// False where it was so already.
    pub changed: bool,
    pub mute: MuteView,
}

/// The list with this mute added or removed; `None` if nothing changes.
pub fn with_change(mut current: Vec<MuteView>, mute: &MuteView, mutes: bool) -> Option<Vec<MuteView>> {
    let before = current.iter().position(|known| known.is_same_mute(mute));
    match (before, mutes) {
        // A mute without the uid of its namespace may belong to an earlier namespace.
        (Some(place), true) if current[place].namespace_uid != mute.namespace_uid => {
            current[place] = mute.clone();
        }
        (Some(_), true) | (None, false) => return None,
        (Some(place), false) => drop(current.remove(place)),
        (None, true) => {
            if let Some(place) = mute_to_end(&current, &mute.namespace) {
                current.remove(place);
            }
            current.push(mute.clone());
        }
    }
    Some(current)
}

/// The mute to remove for a new one in this namespace if there is no room: the oldest of the same namespace
/// if that has its share, otherwise the oldest of the namespace with the most mutes. Mutes of objects are
/// removed first.
fn mute_to_end(mutes: &[MuteView], namespace: &str) -> Option<usize> {
    let share = if namespace.is_empty() { OF_CLUSTER } else { OF_NAMESPACE };
    let count = |namespace: &str| mutes.iter().filter(|mute| mute.namespace == namespace).count();
    let from = if count(namespace) >= share {
        namespace
    } else if mutes.len() >= MOST {
        let namespaces: BTreeSet<&str> = mutes.iter().map(|mute| &*mute.namespace).collect();
        let most = namespaces.into_iter().filter(|name| !name.is_empty()).max_by_key(|name| count(name));
        most.unwrap_or_default()
    } else {
        return None;
    };
    let is_there = |mute: &MuteView| mute.namespace == from;
    let of_object = mutes.iter().position(|mute| is_there(mute) && !mute.uid.is_empty());
    of_object.or_else(|| mutes.iter().position(is_there))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(uid: &str, namespace: &str, to: &str) -> MuteView {
        MuteView { uid: uid.into(), namespace: namespace.into(), to: to.into(), ..MuteView::default() }
    }

    #[test]
    fn a_mute_is_one_of_an_object_a_namespace_or_everything_and_is_undone_by_the_same() {
        let all = with_change(vec![], &of("u", "a", ""), true).unwrap();
        let all = with_change(all, &of("u", "a", "ops"), true).unwrap();
        assert_eq!(with_change(all.clone(), &MuteView { who: "eve".into(), ..of("u", "a", "") }, true), None);
        assert_eq!(with_change(all.clone(), &of("", "a", ""), false), None);
        assert_eq!(with_change(all, &of("u", "a", ""), false).unwrap(), [of("u", "a", "ops")]);
        assert!(of("u", "a", "").covers_object("u", "a") && !of("u", "a", "").covers_object("v", "a"));
        assert!(of("", "a", "").covers_object("u", "a") && !of("", "a", "").covers_object("u", "b"));
        assert!(of("", "", "").covers_object("u", "b"));
    }

    #[test]
    fn a_mute_of_a_namespace_is_none_of_one_that_is_made_again_under_the_name() {
        let at = "2026-11-20T13:05:11.000Z";
        let with = |uid: &str| MuteView { namespace_uid: uid.into(), at: at.into(), ..of("", "a", "") };
        assert!(with("1").is_of("1", u64::MAX) && !with("1").is_of("2", 0));
        let at_ms = calendar::parse(at).unwrap();
        assert!(
            with("").is_of("2", at_ms) && !with("").is_of("2", at_ms + 1),
            "one without a uid goes by its time"
        );
        let all = with_change(vec![], &with("1"), true).unwrap();
        assert_eq!(with_change(all.clone(), &with("2"), false), None, "it is not theirs to undo");
        assert_eq!(with_change(all, &with("2"), true).unwrap(), [with("1"), with("2")]);
        let older = vec![with("")];
        assert_eq!(with_change(older.clone(), &with("2"), true).unwrap(), [with("2")]);
        assert_eq!(with_change(older, &with("2"), false).unwrap(), []);
    }

    #[test]
    fn who_mutes_in_one_namespace_ends_no_mute_of_another_or_of_the_cluster() {
        let mut all = vec![of("", "", ""), of("", "b", ""), of("", "a", "")];
        for n in 0..MOST {
            all = with_change(all, &of(&n.to_string(), "a", ""), true).unwrap();
        }
        assert_eq!(all[..3], [of("", "", ""), of("", "b", ""), of("", "a", "")]);
        assert_eq!((all.len(), &*all[3].uid), (OF_NAMESPACE + 2, "901"));
    }

    #[test]
    fn where_there_is_no_room_the_namespace_with_the_most_mutes_loses_its_oldest() {
        let mut all = vec![];
        for n in 0..OF_CLUSTER + 5 {
            all = with_change(all, &of("", "", &n.to_string()), true).unwrap();
        }
        assert_eq!((all.len(), &*all[0].to), (OF_CLUSTER, "5"));
        for n in 0..MOST - OF_CLUSTER {
            all = with_change(all, &of(&n.to_string(), &format!("few-{}", n % 6), ""), true).unwrap();
        }
        all = with_change(all, &of("more", "few-3", ""), true).unwrap();
        assert_eq!(all.len(), MOST);
        let of_cluster = |all: &[MuteView]| all.iter().filter(|one| one.namespace.is_empty()).count();
        let has = |all: &[MuteView], uid: &str| all.iter().any(|one| one.uid == uid);
        assert!(of_cluster(&all) == OF_CLUSTER && !has(&all, "1") && has(&all, "0"), "few-1 has the most");
        all = with_change(all, &of("", "", "one more"), true).unwrap();
        assert_eq!((all.len(), of_cluster(&all), &*all[0].to), (MOST, OF_CLUSTER, "6"));
    }

    #[test]
    fn a_request_names_one_thing_in_a_line() {
        let named = |uid: &str| MuteRequest { uid: Some(uid.into()), ..MuteRequest::default() };
        assert_eq!(named("u").check(), Ok(()));
        for wrong in [
            MuteRequest::default(),
            MuteRequest { all: true, ..named("u") },
            named(""),
            MuteRequest { to: "a\nb".into(), ..named("u") },
            MuteRequest { who: "x".repeat(257), ..named("u") },
        ] {
            assert!(wrong.check().is_err(), "{wrong:?}");
        }
    }
}
