//! Tests of rules that an operator adds.

use super::super::{RuleOrigin, RuleSpec, StatusRules};
use serde_json::{Value, json};

fn rule(value: Value) -> RuleSpec {
    serde_json::from_value(value).unwrap()
}

fn faults(rules: &[RuleSpec]) -> Vec<String> {
    let faults = StatusRules::with_rules(rules).unwrap_err();
    faults.into_iter().map(|fault| format!("{}: {}", fault.field, fault.message)).collect()
}

fn fault(cases: Value) -> String {
    faults(&[rule(json!({"group": "g", "kind": "K", "cases": cases}))]).join("\n")
}

const NAMED: &str = r#"{"metadata": {"name": "a"}}"#;

fn always(group: &str, kind: Value) -> RuleSpec {
    rule(json!({"group": group, "kind": kind,
        "cases": [{"when": [], "phase": "Running", "reason": ["@metadata.name"]}]}))
}

#[test]
fn an_operators_rule_takes_the_place_of_the_builtin_one_for_its_kinds_alone() {
    let rules = StatusRules::with_rules(&[always("kubeflow.org", json!(["PyTorchJob", "NewJob"]))]).unwrap();
    for kind in ["PyTorchJob", "NewJob"] {
        let explanation = rules.explain_status("kubeflow.org", kind, NAMED.as_bytes()).unwrap();
        assert_eq!((&*explanation.status.reason, explanation.origin), ("a", RuleOrigin::Operator(0)));
        assert_eq!(explanation.reason_from.as_deref(), Some("@metadata.name"));
    }
    assert_eq!(rules.status_of("kubeflow.org", "TFJob", NAMED.as_bytes()).phase, "Pending");
    assert_eq!(rules.status_of("other.org", "NewJob", NAMED.as_bytes()).phase, "Unknown");
    let builtin = StatusRules::builtin();
    assert_ne!(rules.rule_for("kubeflow.org", "PyTorchJob"), builtin.rule_for("kubeflow.org", "PyTorchJob"));
    assert_eq!(rules.rule_for("kubeflow.org", "TFJob"), builtin.rule_for("kubeflow.org", "TFJob"));
}

#[test]
fn an_operator_may_replace_the_ladder_for_all_other_kinds() {
    let rules = StatusRules::with_rules(&[always("*", json!("*"))]).unwrap();
    assert_eq!(rules.status_of("any.org", "Thing", NAMED.as_bytes()).reason, "a");
    assert_eq!(rules.status_of("", "Pod", NAMED.as_bytes()).phase, "Pending");
    assert!(faults(&[always("any.org", json!("*"))])[0].contains("only as both group and kind"));
}

#[test]
fn a_fault_names_its_place_and_says_what_to_do() {
    let last = json!({"when": [], "phase": "Running"});
    let with = |case: Value| fault(json!([case, last]));
    let rule_with = |test: Value| with(json!({"when": [test], "phase": "Running"}));
    for (message, wanted) in [
        (fault(json!([])), "[0].cases: is empty"),
        (
            fault(json!([{"when": [], "phase": "Great"}])),
            "[0].cases[0].phase: `Great` is no phase; there are Queued",
        ),
        (
            fault(json!([{"when": [{"at": "a.b", "exists": true}], "phase": "Running"}])),
            "[0].cases[0].when: add a last case",
        ),
        (with(json!({"when": [], "phase": "Running"})), "[0].cases[0].when: is empty and always holds"),
        (
            rule_with(json!({"at": "status", "exists": true})),
            "[0].cases[0].when[0].at: `status` is not a path: it needs at least two keys",
        ),
        (
            rule_with(json!({"at": ["a.b", "a..b"], "exists": true})),
            "[0].cases[0].when[0].at[1]: `a..b` is not a path",
        ),
        (rule_with(json!({"at": [], "exists": true})), "[0].cases[0].when[0].at: names no path"),
        (rule_with(json!({"at": "a.b"})), "[0].cases[0].when[0]: needs exactly one of"),
        (rule_with(json!({"at": "a.b", "is": 1, "above": 3})), "[0].cases[0].when[0]: needs exactly one of"),
        (rule_with(json!({"at": "a.b", "is": ["x"]})), "[0].cases[0].when[0].is: is no text"),
        (rule_with(json!({"at": "a.b", "behind": "c"})), "[0].cases[0].when[0].behind: `c` is not a path"),
        (rule_with(json!({"at": "a.b[", "exists": true})), "a `]` is missing"),
        (rule_with(json!({"at": "a.b[]", "exists": true})), "`[]` is empty"),
        (
            with(json!({"when": [{"at": "a.b", "is": 1}], "phase": "Running", "message": ["", "@a"]})),
            "[0].cases[0].message[1]: `a` is not",
        ),
    ] {
        assert!(message.contains(wanted), "{message}\nlacks {wanted}");
    }
    let number = rule(json!({"group": "g/v1", "kind": [], "ready": [{"sum": ["x"]}], "cases": [last]}));
    let messages = faults(&[number]).join("\n");
    for wanted in
        ["[0].kind: names no kind", "[0].group: leave out the version: `g`", "[0].ready[0].sum[0]: `x`"]
    {
        assert!(messages.contains(wanted), "{messages}");
    }
}

#[test]
fn two_rules_for_one_kind_are_refused() {
    let messages =
        faults(&[always("g", json!("K")), always("g", json!(["J", "K"])), always("h", json!("K"))]);
    assert_eq!(messages, ["[1].kind: the rule 0 is for K already: keep one of them"]);
}

#[test]
fn what_is_written_comes_back_as_it_was() {
    for (_, spec) in StatusRules::builtin().all_rules() {
        let text = serde_json::to_string(spec).unwrap();
        assert_eq!(&serde_json::from_str::<RuleSpec>(&text).unwrap(), spec);
    }
    let unknown = serde_json::from_str::<RuleSpec>(r#"{"group": "", "kind": 7, "cases": []}"#).unwrap_err();
    assert!(unknown.to_string().contains("a text or a list of texts"), "{unknown}");
}

#[test]
fn an_explanation_tells_what_held_and_what_kept_the_others_from_deciding() {
    let object = json!({"metadata": {"generation": 1}, "spec": {"suspend": false},
        "status": {"ready": 0, "active": 2, "conditions": [{"type": "Failed", "status": "False"}]}});
    let rules = StatusRules::builtin();
    let explanation = rules.explain_status("batch", "Job", object.to_string().as_bytes()).unwrap();
    assert_eq!((&*explanation.status.phase, explanation.origin), ("Starting", RuleOrigin::Builtin("job")));
    let line = |tested: &super::super::TestedCase| {
        format!("{} | {} | {}", tested.field, tested.test, tested.found.join(", "))
    };
    assert_eq!(
        explanation.held.iter().map(line).collect::<Vec<_>>(),
        [format!("cases[{}].when[0] | status.active is above 0 | 2", explanation.case)]
    );
    assert_eq!(
        line(&explanation.before[1]),
        "cases[1].when[0] | status.conditions[type=Failed].status is True | \"False\""
    );
    assert_eq!(line(&explanation.before[2]), "cases[2].when[0] | metadata.deletionTimestamp is there | ");
    assert!(rules.explain_status("batch", "Job", b"[1").is_none());
}

#[test]
fn a_number_is_made_less_and_has_a_limit() {
    let spec = rule(json!({"group": "g", "kind": "K",
        "attempt": [{"sum": ["status.failed"], "less": ["spec.workers"], "plus": 1, "most": [
            {"when": [{"at": "spec.perIndex", "exists": true}], "sum": ["spec.perIndex"], "plus": 1},
            {"when": [{"at": "spec.limit", "exists": true}], "sum": ["spec.limit"], "plus": 1},
        ]}],
        "cases": [{"when": [], "phase": "Running"}]}));
    let rules = StatusRules::with_rules(&[spec]).unwrap();
    let attempt = |object: Value| rules.status_of("g", "K", object.to_string().as_bytes()).attempt;
    for (failed, workers, spec, expected) in [
        (0, 4, json!({}), 1),
        (3, 4, json!({}), 1),
        (6, 4, json!({}), 3),
        (6, 4, json!({"limit": 1}), 2),
        (6, 4, json!({"limit": 0}), 1),
        (6, 4, json!({"limit": 9}), 3),
        (6, 4, json!({"limit": 9, "perIndex": 0}), 1),
        (u64::MAX, 0, json!({"limit": u64::MAX}), u32::MAX),
    ] {
        let mut object = json!({"spec": spec, "status": {"failed": failed}});
        object["spec"]["workers"] = workers.into();
        assert_eq!(attempt(object.clone()), expected, "{object}");
    }
    let wrong = rule(json!({"group": "g", "kind": "K", "attempt": [{"most": [{"sum": ["x"]}]}],
        "cases": [{"when": [], "phase": "Running"}]}));
    assert!(faults(&[wrong])[0].starts_with("[0].attempt[0].most[0].sum[0]: "));
}
