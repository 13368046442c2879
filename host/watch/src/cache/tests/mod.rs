//! Tests of the cache against a model.

mod search;

use std::cmp::Ordering::{Greater, Less};
use std::collections::{BTreeMap, BTreeSet};

use kubewitness_core::config::IndexSpec;
use kubewitness_core::document::pack_document;
use kubewitness_core::order::{ORDERS, ObjectOrder, OrderFields, OrderPosition};
use kubewitness_core::ports::{ObjectSelection, SelectError, SelectedObjects, WitnessedState};
use kubewitness_core::project::ObjectOutline;
use kubewitness_core::search::SUBMITTER;
use kubewitness_core::selector::LabelSelector;
use kubewitness_core::state::{Change, StateId};
use kubewitness_core::views::ObjectCounts;
use kubewitness_core::{Version, calendar};
use proptest::prelude::*;

use super::*;

fn cache() -> ObjectCache {
    ObjectCache::new(IndexSet::new(&[IndexSpec { name: "zone".into(), pointer: "/spec/zones".into() }]))
}

/// A way in which an object enters the cache.
#[derive(Clone, Copy, Debug, PartialEq)]
enum PutForm {
    Packed,
    Plain,
    RecentObject,
}

fn witnessed(current: &CurrentObject, document: &str) -> WitnessedState {
    WitnessedState {
        id: StateId::parse(""),
        change: Change::Present,
        object: Arc::clone(&current.object),
        owner: current.owner.clone(),
        controller: None,
        resource_version: current.resource_version.clone(),
        status: Arc::clone(&current.status),
        previous: None,
        observed_ms: current.observed_ms,
        document: document.to_owned().into(),
        base: None,
        quotes_none_under: None,
    }
}

fn put_packed(cache: &mut ObjectCache, most: usize) {
    let packed: Vec<_> = cache.longest_quiet(most).into_iter().map(ToPack::pack_object).collect();
    packed.into_iter().for_each(|packed| cache.store_packed(packed));
}

/// An object in the model.
#[derive(Clone, Debug, Default)]
struct ModelObject {
    seq: u64,
    namespace: String,
    name: String,
    owners: Vec<String>,
    outermost: Option<String>,
    node: String,
    labels: BTreeMap<String, String>,
    zones: Vec<u8>,
    submitter: Option<String>,
    phase: String,
    attempt: u32,
    /// 0 if the document has no creation time.
    created_s: u32,
}

impl ModelObject {
    fn place(&self, order: ObjectOrder, uid: &str) -> OrderPosition {
        let status = Status { phase: self.phase.clone(), attempt: self.attempt, ..Status::default() };
        let (seq, created_s) = (self.seq, self.created_s);
        let (namespace, name) = (&*self.namespace, &*self.name);
        order
            .position_of(&OrderFields { seq, created_s, namespace, name, status: &status }, || uid.to_owned())
    }

    fn document(&self) -> String {
        let owners: Vec<_> = self.owners.iter().map(|uid| serde_json::json!({"uid": uid})).collect();
        let created =
            (self.created_s > 0).then(|| calendar::format_rfc3339(u64::from(self.created_s) * 1_000));
        serde_json::json!({
            "metadata": {
                "labels": self.labels,
                "annotations": {SUBMITTER: self.submitter},
                "ownerReferences": owners,
                "creationTimestamp": created,
            },
            "spec": {"nodeName": self.node, "zones": self.zones},
        })
        .to_string()
    }

    fn put(&self, cache: &mut ObjectCache, uid: &str, how: PutForm) {
        let document = self.document();
        let object = |uid: &str, name: &str| {
            let (namespace, name, uid) = (self.namespace.clone(), name.into(), uid.into());
            Arc::new(ObjectRef { kind: "Pod".into(), namespace, name, uid, ..ObjectRef::default() })
        };
        let current = CurrentObject {
            object: object(uid, &self.name),
            owner: self.outermost.as_ref().map(|owner| object(owner, "owner")),
            resource_version: Version::new(&self.seq.to_string()),
            status: Arc::new(Status {
                phase: self.phase.clone(),
                attempt: self.attempt,
                ..Status::default()
            }),
            seq: self.seq,
            observed_ms: 0,
            packed: pack_document(document.as_bytes()),
        };
        if how != PutForm::RecentObject {
            return cache.put_object(&current, (how == PutForm::Plain).then_some(document.as_bytes()));
        }
        let outline = ObjectOutline::of(document.as_bytes()).unwrap();
        let (keyer, before) = (cache.key_maker(), cache.known_object(uid).and_then(|known| known.keys));
        let (object, owner) = (&current.object, current.owner.as_deref());
        let keys = keyer.next(object, owner, document.as_bytes(), &outline, before.as_ref());
        let (recent, status) = RecentObject::of(witnessed(&current, &document), current.seq, keys, None);
        cache.put_recent(recent, status);
    }
}

fn select(cache: &ObjectCache, selection: &ObjectSelection) -> SelectedObjects {
    let indexes = cache.index_set();
    let mut search = SelectSearch::new(selection, &indexes).unwrap();
    let plan = search.narrow_plan(cache.plan_search(&search), |search, from, passing| {
        cache.add_passing(search, from, passing)
    });
    if let SelectPlan::Ordered = plan {
        let mut beyond = selection.beyond.clone();
        loop {
            let page = cache.ordered_page(&search, beyond.as_ref());
            beyond = page.beyond.clone();
            if search.take_ordered(page) || beyond.is_none() {
                return search.into_selected();
            }
        }
    }
    let mut from = Some(selection.after.unwrap_or_default());
    while let Some(slot) = from {
        let page = cache.page_of_records(&search, &plan, slot);
        from = page.next;
        if search.take(page) {
            break;
        }
    }
    search.into_selected()
}

fn by(index: &str, key: &str) -> ObjectSelection {
    ObjectSelection {
        index: Some((index.into(), key.into())),
        limit: usize::MAX,
        ..ObjectSelection::default()
    }
}

fn uids(selected: &SelectedObjects) -> Vec<String> {
    let mut uids: Vec<_> = selected.objects.iter().map(|current| current.object.uid.clone()).collect();
    uids.sort();
    uids
}

#[test]
fn another_uid_under_a_name_makes_the_old_one_leave_every_index() {
    let mut cache = cache();
    let object =
        |owner: &str| ModelObject { name: "x".into(), owners: vec![owner.into()], ..ModelObject::default() };
    object("o1").put(&mut cache, "u1", PutForm::Plain);
    object("o2").put(&mut cache, "u2", PutForm::Plain);
    assert_eq!(cache.len(), 1);
    assert!(cache.by_uid("u1").is_none());
    assert_eq!(cache.by_name("", "x").unwrap().object.uid, "u2");
    assert_eq!(uids(&select(&cache, &by("owner", "o1"))), [""; 0]);
    assert_eq!(uids(&select(&cache, &by("owner", "o2"))), ["u2"]);
    cache.remove("u2");
    assert_eq!((cache.len(), cache.by_key.len()), (0, 0));
    assert!(cache.orders.is_empty());
}

#[test]
fn pages_of_any_size_show_each_object_once() {
    let mut cache = cache();
    for number in 0..600 {
        let labels = [("half".to_string(), (number % 2).to_string())].into();
        ModelObject { name: format!("x{number}"), seq: number, labels, ..ModelObject::default() }.put(
            &mut cache,
            &format!("u{number:03}"),
            if number % 3 == 0 { PutForm::RecentObject } else { PutForm::Packed },
        );
    }
    for size in [1, 7, 256, 300, 1_000] {
        let labels = LabelSelector::parse("half=1").unwrap();
        let mut selection = ObjectSelection { labels, limit: size, ..ObjectSelection::default() };
        let mut seen = Vec::new();
        loop {
            let page = select(&cache, &selection);
            assert!(page.objects.len() <= size);
            seen.extend(uids(&page));
            selection.after = page.next;
            if page.next.is_none() {
                break;
            }
        }
        seen.sort();
        let expected: Vec<_> = (0..300).map(|half| format!("u{:03}", half * 2 + 1)).collect();
        assert_eq!(seen, expected, "pages of {size}");
    }
    let newest = select(
        &cache,
        &ObjectSelection { order: Some(ObjectOrder::default()), limit: 3, ..ObjectSelection::default() },
    );
    let seqs: Vec<_> = newest.objects.iter().map(|current| current.seq).collect();
    assert_eq!((seqs, newest.next), (vec![599, 598, 597], None));
}

#[test]
fn what_changed_lately_is_plain_until_it_cools_the_longest_unchanged_first() {
    let mut cache = cache();
    let put = |cache: &mut ObjectCache, name: &str, seq: u64| {
        let labels = [("seq".to_string(), seq.to_string())].into();
        ModelObject { name: name.into(), seq, labels, ..ModelObject::default() }.put(
            cache,
            name,
            PutForm::RecentObject,
        );
    };
    for (seq, name) in ["a", "b", "c", "a"].into_iter().enumerate() {
        put(&mut cache, name, seq as u64);
    }
    let is_plain = |cache: &ObjectCache, name: &str| cache.known_object(name).unwrap().keys.is_some();
    put_packed(&mut cache, 1);
    assert_eq!(["a", "b", "c"].map(|name| is_plain(&cache, name)), [true, false, true]);
    // The object changes while it is packed. The change must win.
    let to_pack = cache.longest_quiet(2);
    put(&mut cache, "a", 9);
    to_pack.into_iter().for_each(|to_pack| cache.store_packed(to_pack.pack_object()));
    assert_eq!(["a", "b", "c"].map(|name| is_plain(&cache, name)), [true, false, false]);
    assert_eq!(uids(&select(&cache, &by("label", "seq=9"))), ["a"]);
    assert_eq!(uids(&select(&cache, &by("label", "seq=3"))), [""; 0]);
    cache.remove("a");
    assert!(!cache.has_recent());
}

#[test]
fn changes_without_end_leave_no_trace_of_old_ones() {
    let mut cache = cache();
    for number in 0..10_000 {
        let name = format!("x{}", number % 7);
        ModelObject { name: name.clone(), seq: number, ..ModelObject::default() }.put(
            &mut cache,
            &name,
            PutForm::RecentObject,
        );
        if number % 3 == 0 {
            cache.remove(&name);
        }
    }
    assert!(cache.heat_places() < 2_000, "{}", cache.heat_places());
}

#[test]
fn an_index_that_is_not_there_is_told_with_those_that_are() {
    let cache = cache();
    let (selection, indexes) = (by("rack", "7"), cache.index_set());
    let error = SelectSearch::new(&selection, &indexes).err().map(SelectError::from).unwrap().to_string();
    assert_eq!(error, "there is no index `rack`; this source has namespace, owner, node, label, zone");
}

fn model() -> impl Strategy<Value = ModelObject> {
    let labels = prop::collection::btree_map("[ab]", "[xy]?", 0..3);
    let phase = prop_oneof![Just("Running"), Just("Failed")];
    (
        0u8..3,
        prop::collection::vec("o[12]", 0..3),
        prop::option::of("o[23]"),
        "n[12]",
        labels,
        prop::collection::vec(0u8..3, 0..3),
        (phase, 0u32..3),
    )
        .prop_map(|(namespace, owners, outermost, node, labels, zones, (phase, attempt))| ModelObject {
            namespace: format!("s{namespace}"),
            owners,
            outermost,
            node,
            labels,
            zones,
            phase: phase.into(),
            attempt,
            ..ModelObject::default()
        })
}

fn selection() -> impl Strategy<Value = ObjectSelection> {
    let index = prop_oneof![
        "s[0-3]".prop_map(|key| ("namespace".to_string(), key)),
        "o[0-4]".prop_map(|key| ("owner".to_string(), key)),
        "n[0-3]".prop_map(|key| ("node".to_string(), key)),
        "[abc]=[xy]?".prop_map(|key| ("label".to_string(), key)),
        "[0-3]".prop_map(|key| ("zone".to_string(), key)),
    ];
    let labels = prop::sample::select(vec!["", "a=x", "a!=x", "a", "!b", "a in (x,y),b", "b=", "a=x,b=y"]);
    (
        prop::option::of("s[0-3]"),
        prop::option::of("x[0-9]"),
        prop::option::of("(running|Failed)"),
        labels,
        prop::option::of(index),
        prop::option::of(prop::sample::select(ORDERS.to_vec())),
        prop::option::of(0u64..4_000),
    )
        .prop_map(|(namespace, name, phase, labels, index, order, created_since_ms)| ObjectSelection {
            namespace,
            name,
            phase,
            labels: LabelSelector::parse(labels).unwrap(),
            index,
            limit: usize::MAX,
            order: order.map(|word| ObjectOrder::parse(word).unwrap()),
            created_since_ms,
            ..ObjectSelection::default()
        })
}

fn put() -> impl Strategy<Value = PutForm> {
    prop::sample::select(vec![PutForm::Packed, PutForm::Plain, PutForm::RecentObject, PutForm::RecentObject])
}

fn holds(model: &ModelObject, selection: &ObjectSelection) -> bool {
    let index = selection.index.as_ref().is_none_or(|(index, key)| match index.as_str() {
        "namespace" => model.namespace == *key,
        "owner" => model.owners.contains(key) || model.outermost.as_ref() == Some(key),
        "node" => model.node == *key,
        "label" => model.labels.iter().any(|(label, value)| format!("{label}={value}") == *key),
        _ => model.zones.iter().any(|zone| zone.to_string() == *key),
    });
    let is_young = |since_ms: u64| model.created_s > 0 && u64::from(model.created_s) * 1_000 >= since_ms;
    index
        && selection.created_since_ms.is_none_or(is_young)
        && selection.namespace.as_ref().is_none_or(|namespace| model.namespace == *namespace)
        && selection.name.as_ref().is_none_or(|name| model.name == *name)
        && selection.phase.as_ref().is_none_or(|phase| model.phase.eq_ignore_ascii_case(phase))
        && selection.labels.matches(|key| model.labels.get(key).map(String::as_str))
}

proptest! {
    #[test]
    fn every_index_agrees_with_a_plain_map(
        steps in prop::collection::vec((prop::option::weighted(0.8, model()), 0u8..10, put(), 0usize..3), 0..60),
        selections in prop::collection::vec(selection(), 1..12),
    ) {
        let (mut cache, started) = (cache(), cache());
        let mut models: BTreeMap<String, ModelObject> = BTreeMap::new();
        for (seq, (put, id, how, packed)) in steps.into_iter().enumerate() {
            match put {
                Some(mut model) => {
                    // A uid keeps its namespace and name, as in a cluster.
                    let uid = format!("u{id}-{}", model.namespace);
                    (model.name, model.seq) = (format!("x{id}"), seq as u64);
                    // Nor does its creation change; some are created in the same second.
                    model.created_s = u32::from(id) / 3;
                    model.put(&mut cache, &uid, how);
                    models.insert(uid, model);
                }
                None => {
                    let uid = format!("u{id}-s0");
                    prop_assert_eq!(cache.remove(&uid), models.remove(&uid).is_some());
                }
            }
            put_packed(&mut cache, packed);
        }
        prop_assert_eq!(cache.len(), models.len());
        prop_assert_eq!(cache.all_briefs().count(), models.len());
        for (uid, model) in &models {
            let held = cache.by_uid(uid).unwrap();
            prop_assert_eq!((&held.object.name, held.seq), (&model.name, model.seq));
            let (document, known) = (model.document(), cache.known_object(uid).unwrap());
            prop_assert_eq!(&unpack_document(&held.packed).unwrap()[..], document.as_bytes());
            prop_assert_eq!(&known.document_hint().unwrap()[..], document.as_bytes());
            prop_assert_eq!(&cache.by_name(&model.namespace, &model.name).unwrap().object.uid, uid);
        }
        // Page by page in each order, of all objects and of a phase: each object once, in order.
        for (word, phase) in ORDERS.into_iter().flat_map(|word| [(word, None), (word, Some("failed"))]) {
            let order = ObjectOrder::parse(word).unwrap();
            let phase = phase.map(str::to_owned);
            let mut paged = ObjectSelection { order: Some(order), limit: 2, phase, ..ObjectSelection::default() };
            let mut pages: Vec<OrderPosition> = Vec::new();
            loop {
                let page = select(&cache, &paged);
                prop_assert_eq!(page.places.len(), page.objects.len());
                let Some(last) = page.places.last() else { break };
                paged.beyond = Some(last.clone());
                pages.extend(page.places);
            }
            let meant = models.iter().filter(|(_, model)| holds(model, &paged));
            let mut expected: Vec<OrderPosition> = meant.map(|(uid, model)| model.place(order, uid)).collect();
            expected.sort_unstable_by(|a, b| if order.is_before(a, b) { Less } else { Greater });
            prop_assert_eq!(pages, expected, "{}", word);
        }
        for namespace in [None, Some("s1")] {
            let namespace = namespace.map(str::to_owned);
            let selection = ObjectSelection { namespace, limit: usize::MAX, ..ObjectSelection::default() };
            let mut counts = ObjectCounts::default();
            prop_assert!(cache.tally_by_index(&selection, &mut counts));
            let meant: Vec<_> = models.values().filter(|model| holds(model, &selection)).collect();
            prop_assert_eq!(counts.phases.values().sum::<u64>(), meant.len() as u64);
            let failed = meant.iter().filter(|model| model.phase == "Failed").count();
            prop_assert_eq!(counts.phases.get("Failed").copied().unwrap_or_default(), failed as u64);
            let namespaces: BTreeSet<_> = meant.iter().map(|model| model.namespace.clone()).collect();
            prop_assert_eq!(counts.namespaces, namespaces);
        }
        // As after a restart: all objects at once, and one of them twice.
        let held = models.keys().chain(models.keys().next()).map(|uid| cache.by_uid(uid).unwrap());
        let held: Vec<_> = held.collect();
        let mut filling = CacheFill::instead_of(&started);
        held.chunks(3).for_each(|part| filling.add(part.to_vec()));
        let started = filling.into_cache();
        for selection in selections {
            let expected: Vec<_> = models.iter().filter(|(_, model)| holds(model, &selection)).map(|(uid, _)| uid.clone()).collect();
            let found = select(&cache, &selection);
            prop_assert_eq!(uids(&select(&started, &selection)), expected.clone());
            prop_assert_eq!(uids(&found), expected);
            if let Some(order) = selection.order {
                prop_assert!(found.places.is_sorted_by(|a, b| order.is_before(a, b)));
            }
        }
        put_packed(&mut cache, usize::MAX);
        prop_assert!(!cache.has_recent());
        for (uid, model) in &models {
            let (document, held) = (model.document(), cache.by_uid(uid).unwrap());
            prop_assert_eq!(&unpack_document(&held.packed).unwrap()[..], document.as_bytes());
        }
    }
}
