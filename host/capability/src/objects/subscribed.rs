//! The kinds that a plugin is subscribed to. A plugin that groups objects by their owner asks whether it will
//! ever receive the owner.

use kubewitness_core::ObjectRef;

/// The kinds of a plugin's subscriptions. The default knows none of them, and excludes nothing.
#[derive(Clone, Debug, Default)]
pub struct SubscribedKinds(Option<Vec<(String, String)>>);

impl SubscribedKinds {
    /// The group and kind of each subscription. If it is unknown, it may be any kind.
    pub fn of(kinds: impl IntoIterator<Item = Option<(String, String)>>) -> Self {
        let kinds: Option<Vec<_>> = kinds.into_iter().collect();
        Self(kinds.filter(|kinds| !kinds.is_empty()))
    }

    pub fn leaves_out(&self, owner: &ObjectRef) -> bool {
        let is_it = |(group, kind): &(String, String)| *group == owner.group && *kind == owner.kind;
        self.0.as_ref().is_some_and(|kinds| !kinds.iter().any(is_it))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_left_out_where_all_kinds_are_known_and_none_is_its_own() {
        let of = |group: &str, kind: &str| Some((group.to_owned(), kind.to_owned()));
        let job = ObjectRef { group: "batch".into(), kind: "Job".into(), ..ObjectRef::default() };
        assert!(!SubscribedKinds::default().leaves_out(&job) && !SubscribedKinds::of([]).leaves_out(&job));
        assert!(!SubscribedKinds::of([of("", "Pod"), of("batch", "Job")]).leaves_out(&job));
        assert!(SubscribedKinds::of([of("", "Pod"), of("batch.volcano.sh", "Job")]).leaves_out(&job));
        assert!(
            !SubscribedKinds::of([of("", "Pod"), None]).leaves_out(&job),
            "it may be the one that is not known"
        );
    }
}
