//! The test objects of every rule: `status/cases/NAME.json` beside `status/rules/NAME.json`.

use std::collections::BTreeSet;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::super::{CASES, FILES, RuleOrigin, StatusRules};
use crate::state::Status;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StatusCase {
    name: String,
    object: Value,
    /// The status as it is printed. A message that is left out is not compared.
    status: Map<String, Value>,
}

impl StatusCase {
    fn kind(&self) -> (&str, &str) {
        let api_version = self.object["apiVersion"].as_str().expect("an apiVersion");
        let group = api_version.rsplit_once('/').map_or("", |(group, _)| group);
        (group, self.object["kind"].as_str().expect("a kind"))
    }

    fn judged_status(&self, rules: &StatusRules) -> Status {
        let (group, kind) = self.kind();
        rules.status_of(group, kind, self.object.to_string().as_bytes())
    }

    fn expected(&self, status: &Status) -> Status {
        let mut expected = self.status.clone();
        expected.entry("message").or_insert_with(|| status.message.clone().into());
        serde_json::from_value(expected.into()).unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }
}

fn every_case() -> impl Iterator<Item = (&'static str, StatusCase)> {
    CASES.iter().flat_map(|(file, text)| {
        let cases: Vec<StatusCase> =
            serde_json::from_str(text).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(!cases.is_empty(), "{file} has no test objects");
        cases.into_iter().map(move |case| (*file, case))
    })
}

#[test]
fn every_object_has_the_status_that_its_kind_documents() {
    let rules = StatusRules::builtin();
    let mut wrong = Vec::new();
    for (file, case) in every_case() {
        let (status, (group, kind)) = (case.judged_status(&rules), case.kind());
        let expected = case.expected(&status);
        let explained =
            rules.explain_status(group, kind, case.object.to_string().as_bytes()).expect("an object");
        if status != expected {
            let at = explained.case;
            wrong.push(format!("{file}: {}: cases[{at}]: {status:?}\n  and not {expected:?}", case.name));
        }
        assert_eq!(explained.status, status, "{file}: {}", case.name);
        assert_eq!(explained.origin, RuleOrigin::Builtin(file), "{file}: {}", case.name);
        assert_eq!(explained.before.len(), explained.case, "{file}: {}", case.name);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_line_of_every_rule_decides_for_some_object_and_every_kind_has_one() {
    let rules = StatusRules::builtin();
    let (mut decided, mut kinds, mut names) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for (file, case) in every_case() {
        let (group, kind) = case.kind();
        let explained =
            rules.explain_status(group, kind, case.object.to_string().as_bytes()).expect("an object");
        decided.insert((file, explained.case));
        kinds.insert((group.to_string(), kind.to_string()));
        assert!(names.insert((file, case.name.clone())), "{file}: two are called `{}`", case.name);
    }
    let mut missing = Vec::new();
    for (origin, rule) in rules.all_rules() {
        let RuleOrigin::Builtin(file) = origin else { panic!("{origin:?}") };
        let never = (0..rule.cases.len()).filter(|case| !decided.contains(&(file, *case)));
        missing.extend(never.map(|case| format!("{file}: cases[{case}] ({})", rule.cases[case].phase)));
        let without = rule
            .kind
            .0
            .iter()
            .filter(|kind| *kind != "*" && !kinds.contains(&(rule.group.clone(), (*kind).clone())));
        missing.extend(without.map(|kind| format!("{file}: {kind} has no test object")));
    }
    assert!(missing.is_empty(), "never the deciding one:\n{}", missing.join("\n"));
}

#[test]
fn every_file_is_in_the_list_of_rules() {
    let listed: BTreeSet<String> = FILES.iter().map(|(name, _)| format!("{name}.json")).collect();
    assert_eq!(listed.len(), FILES.len());
    for folder in ["rules", "cases"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/status").join(folder);
        let files = std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().file_name());
        let files: BTreeSet<String> = files.map(|name| name.into_string().unwrap()).collect();
        assert_eq!(files, listed, "{}", folder.display());
    }
}

#[test]
fn heartbeats_change_no_status() {
    const HEARTBEATS: [&str; 6] = [
        "lastProbeTime",
        "lastHeartbeatTime",
        "lastUpdateTime",
        "lastTransitionTime",
        "lastReconcileTime",
        "lastHeartbeat",
    ];
    let rules = StatusRules::builtin();
    for (file, mut case) in every_case() {
        let before = case.judged_status(&rules);
        let Some(status) = case.object.get_mut("status").and_then(Value::as_object_mut) else { continue };
        let mut beat = |object: &mut Map<String, Value>| {
            object.extend(HEARTBEATS.map(|key| (key.to_string(), json!("2031-07-07T07:07:07Z"))));
        };
        let conditions = status.get_mut("conditions").and_then(Value::as_array_mut).into_iter().flatten();
        conditions.filter_map(Value::as_object_mut).for_each(&mut beat);
        beat(status);
        assert_eq!(case.judged_status(&rules), before, "{file}: {}", case.name);
    }
}

#[test]
fn a_status_that_is_behind_is_never_taken_for_success_by_the_ladder() {
    let rules = StatusRules::builtin();
    for (file, mut case) in every_case().filter(|(file, _)| *file == "generic") {
        case.object["metadata"]["generation"] = json!(9);
        case.object["status"]["observedGeneration"] = json!(8);
        let status = case.judged_status(&rules);
        // A deletion increases the generation. An object that was terminal before stays so.
        let was_over = status.terminal && !case.object["metadata"]["deletionTimestamp"].is_null();
        assert!(
            was_over || ["Unknown", "Cancelled"].contains(&&*status.phase),
            "{file}: {}: {status:?}",
            case.name
        );
    }
}
