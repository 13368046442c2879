//! Tests of searches.

use std::sync::Arc;

use kubewitness_core::config::{HostSpec, RedactedField, RedactionSpec};
use kubewitness_core::redact::RedactionRules;
use kubewitness_core::search::SearchText;

use super::*;

/// The default rules and one more.
fn rules(pointer: Option<&str>) -> Arc<RedactionRules> {
    let mut redaction = RedactionSpec::default();
    let field = |pointer: &str| RedactedField { kind: None, pointer: pointer.to_owned() };
    redaction.fields.extend(pointer.map(field));
    Arc::new(HostSpec { redaction, ..HostSpec::default() }.compile_redaction_rules().unwrap())
}

fn searched(search: Option<SearchText>) -> ObjectSelection {
    ObjectSelection {
        search,
        order: Some(ObjectOrder::default()),
        limit: usize::MAX,
        ..ObjectSelection::default()
    }
}

#[test]
fn a_search_reads_no_more_documents_than_its_bound_and_says_how_far_it_came() {
    let mut cache = cache();
    for seq in 1..=5_000 {
        // The object's signature excludes no search.
        let labels = [("mirror".to_owned(), "redis://u:hush@h".to_owned())].into();
        let model = ModelObject { name: format!("x{seq}"), seq, labels, ..ModelObject::default() };
        model.put(&mut cache, &format!("u{seq}"), PutForm::Plain);
    }
    let mut selection = searched(SearchText::new("nobody"));
    let first = select(&cache, &selection);
    assert!(first.objects.is_empty());
    let looked = first.looked.expect("it has not looked at all of them");
    assert!((1..=1_001).contains(&looked.number), "{looked:?}");
    selection.beyond = Some(looked);
    assert_eq!(select(&cache, &selection).looked, None);
    selection.search = SearchText::new("X4999");
    selection.beyond = None;
    assert_eq!(uids(&select(&cache, &selection)), ["u4999"]);
}

#[test]
fn a_search_for_what_few_objects_have_is_one_page_of_all_objects() {
    let mut cache = cache();
    for seq in 1..=20_000 {
        let labels = [("team".to_owned(), format!("team-{}", seq % 7))].into();
        let submitter = Some(format!("user{seq}@example.com"));
        let model = ModelObject { name: format!("x{seq}"), seq, labels, submitter, ..ModelObject::default() };
        model.put(&mut cache, &format!("u{seq}"), PutForm::Plain);
    }
    for (text, expected) in [("nobody", &[][..]), ("USER777@", &["u777"][..]), ("x19999", &["u19999"])] {
        let found = select(&cache, &searched(SearchText::new(text)));
        assert_eq!(
            (uids(&found), found.looked),
            (expected.iter().map(|uid| uid.to_string()).collect(), None)
        );
    }
    cache.remove("u777");
    assert_eq!(uids(&select(&cache, &searched(SearchText::new("user777@")))), [""; 0]);
}

#[test]
fn how_far_a_page_comes_tells_nothing_of_a_label_that_a_rule_hides() {
    let looked = |hidden: &str| {
        let mut cache = cache();
        for seq in 1..=5_000 {
            let labels = [("code".to_owned(), hidden.to_owned())].into();
            let model = ModelObject { name: format!("x{seq}"), seq, labels, ..ModelObject::default() };
            model.put(&mut cache, &format!("u{seq}"), PutForm::Plain);
        }
        let search =
            SearchText::new("hush").map(|search| search.hiding_secrets(rules(Some("/metadata/labels/code"))));
        let found = select(&cache, &searched(search));
        assert!(found.objects.is_empty());
        found.looked
    };
    assert_eq!(looked("hush"), looked("other"));
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[abAB\u{212a}k.-]{0,6}",
        Just("redis://u:abba@h".to_owned()),
        Just("ana@example.com".to_owned()),
        Just("--token=abba".to_owned()),
    ]
}

fn model() -> impl Strategy<Value = ModelObject> {
    let label = prop::sample::select(vec!["team", "code", "env", "args"]);
    let labels = prop::collection::btree_map(label.prop_map(str::to_owned), text(), 0..4);
    (0u8..2, labels, prop::option::of(text())).prop_map(|(namespace, labels, submitter)| ModelObject {
        namespace: format!("s{namespace}"),
        labels,
        submitter,
        phase: "Running".into(),
        ..ModelObject::default()
    })
}

/// Searches by reading every object.
fn looked_through(
    cache: &ObjectCache,
    models: &BTreeMap<String, ModelObject>,
    search: &SearchText,
) -> Vec<String> {
    let fits = |uid: &&String| {
        let held = cache.by_uid(uid).unwrap();
        let document = unpack_document(&held.packed).unwrap();
        search.fits_name(&held.object.name, uid) || search.fits_document(&document)
    };
    models.keys().filter(fits).cloned().collect()
}

proptest! {
    #[test]
    fn a_search_by_signatures_finds_what_a_look_at_every_object_finds(
        steps in prop::collection::vec((prop::option::weighted(0.8, model()), 0u8..10, put(), 0usize..3), 0..40),
        texts in prop::collection::vec("[abAB\u{212a}kx.:@-]{1,4}", 1..6),
        hides in prop::option::of(prop::sample::select(vec!["/spec/x", "/metadata/labels/code", "/**/team"])),
        word in prop::sample::select(ORDERS.to_vec()),
    ) {
        let mut cache = cache();
        let mut models: BTreeMap<String, ModelObject> = BTreeMap::new();
        for (seq, (step, id, how, packed)) in steps.into_iter().enumerate() {
            match step {
                Some(mut model) => {
                    let uid = format!("u{id}-{}", model.namespace);
                    (model.name, model.seq) = (format!("ab{id}"), seq as u64);
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
        let mut filling = CacheFill::instead_of(&cache);
        filling.add(models.keys().map(|uid| cache.by_uid(uid).unwrap()).collect());
        let started = filling.into_cache();
        for text in texts {
            let all = SearchText::new(&text).unwrap();
            for search in [all.clone(), all.clone().hiding_secrets(rules(hides))] {
                let expected = looked_through(&cache, &models, &search);
                for order in [None, Some(ObjectOrder::parse(word).unwrap())] {
                    let selection = ObjectSelection { order, ..searched(Some(search.clone())) };
                    prop_assert_eq!(uids(&select(&cache, &selection)), expected.clone(), "{}", text);
                    prop_assert_eq!(uids(&select(&started, &selection)), expected.clone(), "{}", text);
                }
            }
        }
    }
}
