//! How people name an object (KIND/NAME, KIND NAME or a uid), and its witnessed states.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use kubewitness_core::views::{GoneFilter, ObjectQuery, ObjectView, TimelineQuery, TimelineView};
use kubewitness_core::{ObjectRef, kinds};
use kubewitness_watch::ConnectOptions;

use super::client::{ApiClient, PAGE, RefusedRequest, is_forbidden, query_parameters};
use crate::cli::ReachArgs;
use crate::commands::UsageError;
use crate::commands::print::clean_line;

/// The default namespace, as in kubectl.
const NAMESPACE: &str = "default";
/// The most objects with the same name whose namespaces are listed.
const ELSEWHERE: usize = 10;

/// The namespace in which an object is searched: as in kubectl, the namespace of the kubeconfig's context
/// unless another is named. If the person names an address, no kubeconfig is read, because it may belong to
/// another cluster or not exist.
pub(super) async fn namespace_or_context(given: Option<&str>, reach: &ReachArgs) -> Result<String> {
    if let Some(given) = given {
        return Ok(given.to_owned());
    }
    let names_a_cluster = reach.kubeconfig.is_some() || reach.context.is_some();
    if reach.server.is_some() && !names_a_cluster {
        return Ok(NAMESPACE.to_owned());
    }
    let options = ConnectOptions { kubeconfig: reach.kubeconfig.clone(), context: reach.context.clone() };
    let named = kubewitness_watch::context_namespace(&options).await;
    let named =
        named.context("which namespace is meant is not known: name it with -n, or repair the kubeconfig")?;
    Ok(named.unwrap_or_else(|| NAMESPACE.to_owned()))
}

/// An object's name in the form that kubectl prints and accepts.
pub(super) fn name(object: &ObjectRef) -> String {
    let (kind, dot) = (object.kind.to_lowercase(), if object.group.is_empty() { "" } else { "." });
    format!("{kind}{dot}{}/{}", object.group, object.name)
}

/// One line for each object, in this order.
pub(super) fn object_lines<'a>(objects: impl Iterator<Item = &'a ObjectRef>) -> String {
    let mut printed = BTreeSet::new();
    objects
        .filter(|object| printed.insert(&object.uid))
        .map(|object| format!("{}\n", clean_line(&name(object))))
        .collect()
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ObjectName {
    Uid(String),
    Object { kind: String, name: String },
}

impl ObjectName {
    /// Reads the words of a command line. Returns the words after the object.
    pub fn read(words: &[String]) -> Result<(Self, &[String])> {
        let (first, rest) = words.split_first().ok_or_else(|| no_object(""))?;
        match (first.split_once('/'), rest.split_first()) {
            (Some((kind, name)), _) => Ok((Self::of(kind, name, first)?, rest)),
            (None, _) if is_uid(first) => Ok((Self::Uid(first.clone()), rest)),
            (None, Some((name, rest))) if !first.is_empty() => Ok((Self::of(first, name, first)?, rest)),
            // A uid that no API server would assign is still a uid.
            (None, None) if !first.is_empty() => Ok((Self::Uid(first.clone()), rest)),
            (None, _) => Err(no_object(first)),
        }
    }

    /// The one object that all the words name.
    pub fn parse_only(words: &[String]) -> Result<Self> {
        match Self::read(words)? {
            (named, []) => Ok(named),
            (_, [more, ..]) => {
                Err(UsageError::error(format!("`{more}` is one word too many: write KIND/NAME or KIND NAME")))
            }
        }
    }

    fn of(kind: &str, name: &str, typed: &str) -> Result<Self> {
        if kind.is_empty() || name.is_empty() || name.contains('/') {
            return Err(no_object(typed));
        }
        Ok(Self::Object { kind: kind.to_owned(), name: name.to_owned() })
    }

    /// The query for its timeline.
    pub fn timeline_query(&self, namespace: &str) -> TimelineQuery {
        match self.clone() {
            Self::Uid(uid) => TimelineQuery { uid: Some(uid), ..TimelineQuery::default() },
            Self::Object { kind, name } => TimelineQuery {
                kind: Some(kind),
                namespace: Some(namespace.to_owned()),
                name: Some(name),
                ..TimelineQuery::default()
            },
        }
    }

    /// Whether it is this object, in this namespace or, as in kubectl, cluster-scoped.
    pub fn is_object(&self, object: &ObjectRef, namespace: &str) -> bool {
        match self {
            Self::Uid(uid) => object.uid == *uid,
            Self::Object { kind, name } => {
                object.name == *name
                    && kinds::is_kind(&object.group, &object.kind, kind)
                    && (object.namespace.is_empty() || object.namespace == namespace)
            }
        }
    }

    /// For people: what they typed, and where it is searched.
    pub fn label_in(&self, namespace: &str) -> String {
        match self {
            Self::Uid(uid) => uid.clone(),
            Self::Object { kind, name } => {
                format!("{kind}/{name} in namespace {namespace}")
            }
        }
    }
}

fn no_object(typed: &str) -> anyhow::Error {
    UsageError::error(format!(
        "`{typed}` names no object: write KIND/NAME or KIND NAME, such as job/train-7, or a uid"
    ))
}

/// In the form that the API server generates. A kind has no digits between hyphens.
pub(super) fn is_uid(text: &str) -> bool {
    let parts: Vec<_> = text.split('-').map(str::len).collect();
    parts == [8, 4, 4, 4, 12] && text.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
}

/// The witnessed states of an object, oldest first; empty if none exist.
pub(super) async fn fetch_story(
    client: &ApiClient,
    named: &ObjectName,
    namespace: &str,
    limit: usize,
) -> Result<TimelineView> {
    let mut query = named.timeline_query(namespace);
    let (view, forbidden) = match newest_states(client, &query, limit).await {
        // The object may be cluster-scoped, and visible to the person.
        Err(error) if is_forbidden(&error) => (TimelineView::default(), Some(error)),
        view => (view?, None),
    };
    if !view.states.is_empty() || query.namespace.take().is_none() {
        return Ok(view);
    }
    // As in kubectl, a namespace does not restrict cluster-scoped objects. Searching everywhere may be too
    // much for people who see few of many namespaces.
    let mut view = match newest_states(client, &query, limit).await {
        Err(error) if error.is::<RefusedRequest>() => TimelineView::default(),
        view => view?,
    };
    view.states.retain(|state| state.object.namespace.is_empty());
    match forbidden {
        _ if !view.states.is_empty() => Ok(view),
        Some(forbidden) => Err(forbidden),
        None => Ok(TimelineView::default()),
    }
}

/// The newest states of a story, and as many states of its owned objects, in parts.
async fn newest_states(client: &ApiClient, query: &TimelineQuery, limit: usize) -> Result<TimelineView> {
    let mut whole = TimelineView::default();
    let take = |mut part: TimelineView| {
        let goes_on = |had: usize, got: usize| limit > PAGE && got > 0 && had + got < limit;
        let wants_more = goes_on(whole.states.len(), part.states.len())
            || goes_on(whole.related.len(), part.related.len())
            || part.owns_more && whole.related.len() + part.related.len() < limit;
        whole.owns_more = part.owns_more;
        part.states.append(&mut whole.states);
        part.related.append(&mut whole.related);
        (whole.states, whole.related) = (part.states, part.related);
        // The first part has all of them.
        whole.events.append(&mut part.events);
        whole.reports.append(&mut part.reports);
        whole.why = whole.why.take().or(part.why.take());
        wants_more
    };
    whole.cut = client.fetch_parts("api/v1/timeline", query, limit.min(PAGE), take).await?;
    // The parts are about different objects, and a state that belongs to several of them may come more than
    // once.
    whole.related.sort_by_key(|state| state.seq);
    whole.related.dedup_by_key(|state| state.seq);
    for states in [&mut whole.states, &mut whole.related] {
        let over = states.len().saturating_sub(limit);
        states.drain(..over);
        whole.cut |= over > 0;
    }
    Ok(whole)
}

/// The message if nothing was witnessed of an object. A word that is no name is refused, and so is a kind
/// that nobody watches. If the object exists in other namespaces, they are named.
pub(super) async fn nothing_witnessed_text(
    client: &ApiClient,
    named: &ObjectName,
    namespace: &str,
) -> Result<String> {
    let label = named.label_in(namespace);
    let ObjectName::Object { kind, name } = named else {
        return match named {
            ObjectName::Uid(word) if !is_uid(word) => Err(UsageError::error(format!(
                "nothing was witnessed of {word}, which is no uid as API servers make them: write KIND/NAME, such as \
                 job/{word}"
            ))),
            _ => Ok(format!("nothing was witnessed of {label}")),
        };
    };
    let asked = ObjectQuery {
        kind: Some(kind.clone()),
        name: Some(name.clone()),
        namespace: Some(namespace.to_owned()),
        gone: GoneFilter::Too,
        limit: Some(1),
        ..ObjectQuery::default()
    };
    // A kind that nobody watches is refused here.
    match client.get::<Vec<ObjectView>>("api/v1/objects", &query_parameters(&asked)).await {
        // If it existed, they could get it by its name, and it would have been shown.
        Err(error) if is_forbidden(&error) => {}
        found => drop(found?),
    }
    let asked = ObjectQuery { namespace: None, limit: Some(ELSEWHERE), ..asked };
    let found = match client.get::<Vec<ObjectView>>("api/v1/objects", &query_parameters(&asked)).await {
        Err(error) if error.is::<RefusedRequest>() => Vec::new(),
        found => found?,
    };
    let places = found.into_iter().map(|view| clean_line(&view.object.namespace).into_owned());
    let places: BTreeSet<_> = places.filter(|place| !place.is_empty() && place != namespace).collect();
    Ok(format!("nothing was witnessed of {label}{}", other_places_text(&places)))
}

fn other_places_text(places: &BTreeSet<String>) -> String {
    let Some(first) = places.first() else {
        return ", and no object of that name was found elsewhere".to_owned();
    };
    let places = places.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    format!(". An object of that name is in {places}: add -n {first}")
}

#[cfg(test)]
mod tests {
    use kubewitness_core::Change;

    use super::*;
    use crate::commands::api::testing;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn an_object_is_named_by_kind_and_name_in_one_word_or_two_or_by_uid() {
        let job = ObjectName::Object { kind: "job".into(), name: "train".into() };
        let uid = "0f31c8e2-8b1f-4a52-9a55-0d8f7f6f2b10";
        for (line, named, rest) in [
            ("job/train", job.clone(), 0),
            ("job train", job.clone(), 0),
            ("job/train 12 15", job.clone(), 2),
            ("job train 12 15", job.clone(), 2),
            (uid, ObjectName::Uid(uid.into()), 0),
            (&format!("{uid} 12 15"), ObjectName::Uid(uid.into()), 2),
            ("8a3c-uid", ObjectName::Uid("8a3c-uid".into()), 0),
        ] {
            let words = words(line);
            let read = ObjectName::read(&words).unwrap();
            assert_eq!((read.0, read.1.len()), (named, rest), "{line}");
        }
        for wrong in ["job/", "/x", "", "job/a/b", "job a/b"] {
            let error = ObjectName::read(&words(wrong)).unwrap_err();
            assert!(error.is::<UsageError>() && error.to_string().contains("KIND/NAME"), "{wrong}: {error}");
        }
        assert!(
            ObjectName::parse_only(&words("job/train again")).unwrap_err().to_string().contains("`again`")
        );
    }

    #[test]
    fn an_object_without_a_namespace_is_meant_too() {
        let node = ObjectRef { kind: "Node".into(), name: "w1".into(), ..ObjectRef::default() };
        let named = ObjectName::parse_only(&words("node/w1")).unwrap();
        assert!(named.is_object(&node, "a"));
        let elsewhere = ObjectRef { namespace: "b".into(), ..node };
        assert!(!named.is_object(&elsewhere, "a") && named.is_object(&elsewhere, "b"));
    }

    #[tokio::test]
    async fn an_object_is_looked_for_in_the_namespace_of_the_context() {
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = folder.path().join("kubeconfig");
        let of = |context: &str| {
            let config = format!("{{current-context: c, contexts: [{{name: c, context: {context}}}]}}");
            std::fs::write(&kubeconfig, config).unwrap();
            ReachArgs { kubeconfig: Some(kubeconfig.clone()), ..ReachArgs::default() }
        };
        let reach = of("{cluster: c, user: u, namespace: team-speech}");
        assert_eq!(namespace_or_context(None, &reach).await.unwrap(), "team-speech");
        assert_eq!(namespace_or_context(Some("b"), &reach).await.unwrap(), "b");
        assert_eq!(namespace_or_context(None, &of("{cluster: c, user: u}")).await.unwrap(), "default");
        let error = format!("{:#}", namespace_or_context(None, &of("[")).await.unwrap_err());
        assert!(error.contains("-n") && error.contains("kubeconfig"), "{error}");
        let server = Some("http://127.0.0.1:1".to_owned());
        let named =
            ReachArgs { server: server.clone(), ..of("{cluster: c, user: u, namespace: team-speech}") };
        assert_eq!(namespace_or_context(None, &named).await.unwrap(), "team-speech", "both are named");
    }

    #[tokio::test]
    async fn a_story_that_is_longer_than_one_answer_is_put_together_from_its_parts() {
        let parts = |asked: &str| {
            let of = |seqs: &[u64]| {
                seqs.iter().map(|seq| testing::state(*seq, Change::Present)).collect::<Vec<_>>()
            };
            let part = |states: &[u64], related: &[u64]| serde_json::json!({"states": of(states), "related": of(related)});
            match asked.split_once("cursor=").map(|(_, cursor)| cursor) {
                None => (part(&[8, 9], &[7]), Some("uid=u&cursor=8/0&limit=10000")),
                Some("8/0&limit=10000") => (part(&[4, 5], &[]), Some("uid=u&cursor=4/0&limit=10000")),
                Some(_) => (part(&[2], &[]), None),
            }
        };
        let named = ObjectName::Uid("u".into());
        let found = async |limit| {
            let client = testing::client_of_parts(parts).await;
            let view = fetch_story(&client, &named, "a", limit).await.unwrap();
            let seqs: Vec<_> = view.states.iter().chain(&view.related).map(|state| state.seq).collect();
            (seqs, view.cut)
        };
        assert_eq!(found(20_000).await, (vec![2, 4, 5, 8, 9, 7], false));
        assert_eq!(found(PAGE).await, (vec![8, 9, 7], true), "as many as one answer may have");
        assert_eq!(found(1).await, (vec![9, 7], true));
    }

    #[tokio::test]
    async fn a_story_of_more_objects_than_an_answer_is_about_goes_on_with_the_others_up_to_the_limit() {
        let parts = |asked: &str| {
            let of = |seqs: &[u64]| {
                seqs.iter().map(|seq| testing::state(*seq, Change::Present)).collect::<Vec<_>>()
            };
            let part = |states: &[u64], related: &[u64], owns_more: bool| serde_json::json!({"states": of(states), "related": of(related), "owns_more": owns_more});
            match asked.contains("cursor=") {
                false => (part(&[9], &[3, 8], true), Some("uid=u&cursor=0/9/5")),
                // A state of an object that two of them own comes twice.
                true => (part(&[], &[2, 3, 7], false), None),
            }
        };
        let named = ObjectName::Uid("u".into());
        let found = async |limit| {
            let client = testing::client_of_parts(parts).await;
            let view = fetch_story(&client, &named, "a", limit).await.unwrap();
            let seqs: Vec<_> = view.related.iter().map(|state| state.seq).collect();
            (seqs, view.owns_more, view.cut)
        };
        assert_eq!(found(500).await, (vec![2, 3, 7, 8], false, false));
        assert_eq!(found(2).await, (vec![3, 8], true, true));
    }

    #[tokio::test]
    async fn where_nothing_was_witnessed_of_a_name_its_other_namespaces_are_told() {
        let client = testing::client(|asked| {
            assert!(asked.contains("name=train-7") && asked.contains("gone=true"), "{asked}");
            let in_team = ObjectView {
                object: ObjectRef { namespace: "team-speech".into(), ..ObjectRef::default() },
                ..ObjectView::default()
            };
            serde_json::to_value([in_team]).unwrap()
        });
        let named = ObjectName::Object { kind: "job".into(), name: "train-7".into() };
        let text = nothing_witnessed_text(&client.await, &named, "default").await.unwrap();
        assert!(
            text.contains(
                "in namespace default. An object of that name is in team-speech: add -n team-speech"
            )
        );
        let client = testing::client(|_| serde_json::json!([])).await;
        let text = nothing_witnessed_text(&client, &named, "default").await.unwrap();
        assert!(text.ends_with(", and no object of that name was found elsewhere"), "{text}");
    }

    #[test]
    fn names_are_those_that_kubectl_takes_each_object_once() {
        let object = |group: &str, kind: &str, uid: &str| ObjectRef {
            group: group.into(),
            kind: kind.into(),
            name: format!("n{uid}\u{1b}"),
            uid: uid.into(),
            ..ObjectRef::default()
        };
        let objects = [object("batch", "Job", "1"), object("", "Pod", "2"), object("batch", "Job", "1")];
        assert_eq!(object_lines(objects.iter()), "job.batch/n1·\npod/n2·\n");
    }

    #[tokio::test]
    async fn a_name_without_its_kind_is_refused() {
        let client = testing::client(|_| serde_json::json!([])).await;
        let error =
            nothing_witnessed_text(&client, &ObjectName::Uid("train-7".into()), "default").await.unwrap_err();
        assert!(error.is::<UsageError>() && error.to_string().contains("job/train-7"), "{error}");
        let uid = ObjectName::Uid("0f31c8e2-8b1f-4a52-9a55-0d8f7f6f2b10".into());
        assert!(
            nothing_witnessed_text(&client, &uid, "default").await.is_ok(),
            "its object may be yet to come"
        );
    }
}
