//! `kubewitness check --object` shows the status of an object, and the line of the rule that decides it.
//! `kubewitness check --list-rules` lists the rules in force.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use kubewitness_core::state::{Change, State, StateId, Status};
use kubewitness_core::status::{CaseSpec, RuleExplanation, RuleOrigin, RuleSpec, TestedCase};
use kubewitness_core::version::Version;
use kubewitness_filter::CelFilter;
use serde::Serialize;
use serde_json::Value;

use super::{CheckFinding, print_findings, problem_texts};
use crate::cli::{CheckArgs, Output};
use crate::commands::object_files::{self, NamedFile, ObservedObject};
use crate::commands::print::{self, TextTable, clean_line, sign_of};
use crate::commands::{CommandEnd, CommandResult};
use crate::config::rules::{self, PlacedRules};

pub fn explain_or_list(args: &CheckArgs) -> CommandResult {
    let read = args.path.as_deref().map_or_else(|| Ok(PlacedRules::builtin()), rules::read);
    let placed = match read {
        Ok(placed) => placed,
        Err(problems) => {
            let finding = CheckFinding::new("status rules".into(), String::new(), problem_texts(&problems));
            return print_findings(args.output, &vec![finding]);
        }
    };
    let filter = match args.filter.as_deref().map(CelFilter::compile_filter).transpose() {
        Ok(filter) => filter,
        Err(fault) => {
            let finding = CheckFinding::new("filter".into(), String::new(), vec![fault.to_string()]);
            return print_findings(args.output, &vec![finding]);
        }
    };
    match &args.object {
        Some(path) => explain(&placed, path, args.expect.as_deref(), filter.as_ref(), args.output),
        None => list(&placed, args.output),
    }
}

// ---- one object --------------------------------------------------------------------------

/// The report about one object.
#[derive(Serialize)]
struct ObjectReport<'r> {
    object: NamedFile,
    status: &'r Status,
    /// Whether the result is as expected.
    ok: bool,
    rule: RuleOf<'r>,
    /// The number of the deciding case, from 1, and its place.
    case: usize,
    cases: usize,
    place: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    about: &'r str,
    held: &'r [TestedCase],
    before: Vec<EarlierCase<'r>>,
    reason_from: Option<&'r str>,
    message_from: Option<&'r str>,
    /// The result of the filter: `wanted`, `filtered`, or why it can't decide.
    #[serde(skip_serializing_if = "Option::is_none")]
    filter: Option<String>,
}

#[derive(Serialize)]
struct RuleOf<'r> {
    origin: RuleOrigin,
    group: &'r str,
    kind: &'r [String],
}

#[derive(Serialize)]
struct ShownStatus<'r> {
    origin: RuleOrigin,
    #[serde(flatten)]
    spec: &'r RuleSpec,
}

/// A case before the deciding one, with its first failed test.
#[derive(Serialize)]
struct EarlierCase<'r> {
    case: usize,
    phase: &'r str,
    place: String,
    #[serde(flatten)]
    failed: &'r TestedCase,
}

fn explain(
    placed: &PlacedRules,
    path: &Path,
    expect: Option<&str>,
    filter: Option<&CelFilter>,
    output: Output,
) -> CommandResult {
    let objects = object_files::read(path).with_context(|| format!("reading {}", path.display()))?;
    let mut explained = Vec::new();
    for ObservedObject { object, .. } in &objects {
        let named = NamedFile::of(object)?;
        let explanation =
            placed.rules.explain_status(&named.group, &named.kind, object.to_string().as_bytes());
        let explanation = explanation.with_context(|| format!("{} is not an object", named.text()))?;
        let filter_result = filter.map(|filter| filter_says(filter, &named, object, &explanation.status));
        explained.push((named, explanation, filter_result));
    }
    let reports: Vec<ObjectReport<'_>> = explained
        .iter()
        .map(|(named, explanation, filter_result)| ObjectReport {
            filter: filter_result.clone(),
            ..ObjectReport::new(placed, named.clone(), explanation, expect)
        })
        .collect();
    print::print_value(output, &reports, |reports| {
        reports.iter().map(|report| report.text(expect)).collect::<Vec<_>>().join("\n")
    })?;
    Ok(if reports.iter().all(|report| report.ok) { CommandEnd::Fine } else { CommandEnd::Failed })
}

/// The filter's result for an object in this state, seen for the first time.
fn filter_says(filter: &CelFilter, named: &NamedFile, object: &Value, status: &Status) -> String {
    let seen = named.object_reference(object);
    let resource_version = Version::new(object_files::text(object, "/metadata/resourceVersion"));
    let state = State {
        id: StateId::of("", 0, &seen, Change::Present, &resource_version, None),
        seq: 0,
        source: "".into(),
        epoch: 0,
        change: Change::Present,
        object: Arc::new(seen),
        owner: None,
        resource_version,
        status: Arc::new(status.clone()),
        previous: None,
        observed_ms: 0,
        late: false,
        quotes_none_under: None,
    };
    match filter.wants_state(&state, Some(object.to_string().as_bytes())) {
        Ok(true) => "wanted".to_owned(),
        Ok(false) => "filtered".to_owned(),
        Err(why) => format!("handed over, since the filter can't judge it: {why}"),
    }
}

impl<'r> ObjectReport<'r> {
    fn new(
        placed: &PlacedRules,
        object: NamedFile,
        found: &'r RuleExplanation<'_>,
        expect: Option<&str>,
    ) -> Self {
        let case = |index: usize| found.rule.cases.get(index).unwrap_or(&NO_CASE);
        let before = found.before.iter().enumerate().map(|(index, failed)| EarlierCase {
            case: index + 1,
            phase: &case(index).phase,
            place: placed.place_of_field(found.origin, &failed.field),
            failed,
        });
        Self {
            object,
            status: &found.status,
            ok: expect.is_none_or(|phase| phase == found.status.phase),
            rule: RuleOf { origin: found.origin, group: &found.rule.group, kind: &found.rule.kind.0 },
            case: found.case + 1,
            cases: found.rule.cases.len(),
            place: placed.place_of_field(found.origin, &format!("cases[{}]", found.case)),
            about: &case(found.case).about,
            held: &found.held,
            before: before.collect(),
            reason_from: found.reason_from.as_deref(),
            message_from: found.message_from.as_deref(),
            filter: None,
        }
    }

    fn text(&self, expect: Option<&str>) -> String {
        let status = self.status;
        let mut text = format!("{}: {}", clean_line(&self.object.text()), status.phase);
        if status.terminal {
            text.push_str(" (terminal)");
        }
        if let (Some(phase), false) = (expect, self.ok) {
            text.push_str(&format!("   {} {phase} was expected", sign_of(false)));
        }
        text.push('\n');
        let from =
            |from: Option<&str>| from.map(|from| format!("   from {}", clean_line(from))).unwrap_or_default();
        for (name, value, from) in [
            ("reason", &status.reason, from(self.reason_from)),
            ("message", &status.message, from(self.message_from)),
        ] {
            if !value.is_empty() {
                text.push_str(&format!("  {name:<8} {}{from}\n", clean_line(value)));
            }
        }
        text.push_str(&format!(
            "  {:<8} attempt {}, ready {} of {}",
            "figures", status.attempt, status.ready, status.total
        ));
        if let Some(code) = status.exit_code {
            text.push_str(&format!(", exit code {code}"));
        }
        let builtin = if matches!(self.rule.origin, RuleOrigin::Builtin(_)) { "built-in " } else { "" };
        let Self { place, case, cases, .. } = self;
        text.push_str(&format!("\n  {:<8} {builtin}{place}, case {case} of {cases}", "decided"));
        if !self.about.is_empty() {
            text.push_str(&format!(": {}", clean_line(self.about)));
        }
        text.push('\n');
        if let Some(result) = &self.filter {
            text.push_str(&format!("  {:<8} {}\n", "filter", clean_line(result)));
        }
        for tested in self.held {
            text.push_str(&format!("           {} {}\n", sign_of(true), tested_text(tested)));
        }
        if self.held.is_empty() {
            text.push_str(&format!(
                "           {} no test: it holds where no earlier case does\n",
                sign_of(true)
            ));
        }
        if !self.before.is_empty() {
            text.push_str("  earlier cases that do not hold, each with its first failed test:\n");
        }
        for before in &self.before {
            let (place, failed) = (&before.place, tested_text(before.failed));
            text.push_str(&format!(
                "  {:>4} {:<10} {} {failed}   {place}\n",
                before.case,
                before.phase,
                sign_of(false)
            ));
        }
        text
    }
}

static NO_CASE: CaseSpec = CaseSpec {
    about: String::new(),
    when: Vec::new(),
    phase: String::new(),
    terminal: false,
    reason: Vec::new(),
    message: Vec::new(),
};

fn tested_text(tested: &TestedCase) -> String {
    let found = if tested.found.is_empty() { "nothing there".into() } else { tested.found.join(", ") };
    format!("{} ({})", clean_line(&tested.test), clean_line(&found))
}

// ---- the rules in force -----------------------------------------------------------------

fn list(placed: &PlacedRules, output: Output) -> CommandResult {
    let all = placed.rules.all_rules();
    let shown: Vec<_> = all.iter().map(|(origin, spec)| ShownStatus { origin: *origin, spec }).collect();
    print::print_value(output, &shown, |shown| {
        let mut table = TextTable::new(&["GROUP", "KIND", "CASES", "RULE", "ABOUT"]);
        for rule in shown {
            let spec = rule.spec;
            let about = spec.about.split_inclusive(". ").next().unwrap_or_default();
            table.push_row([
                spec.group.clone(),
                spec.kind.0.join(","),
                spec.cases.len().to_string(),
                placed.place_of_field(rule.origin, "cases"),
                about.trim_end().to_string(),
            ]);
        }
        table.render()
    })?;
    Ok(CommandEnd::Fine)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fenced block of the page on status rules, without its first line.
    fn shown(begins: &str) -> &'static str {
        let page = include_str!("../../../../docs/how-to/status-rules.md");
        let block = page.split("```").find(|block| block.lines().nth(1) == Some(begins));
        let block = block.unwrap_or_else(|| panic!("the page has no block that begins with {begins}"));
        block.split_once('\n').unwrap().1
    }

    #[test]
    fn the_rule_on_its_page_says_what_the_page_says_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("experiment.yaml"), shown("# experiment.yaml")).unwrap();
        std::fs::write(path("one.yaml"), shown("# one.yaml")).unwrap();
        let placed = rules::read(&path("experiment.yaml")).ok().unwrap();
        let object = object_files::read(&path("one.yaml")).unwrap().remove(0).object;
        let named = NamedFile::of(&object).unwrap();
        let found =
            placed.rules.explain_status(&named.group, &named.kind, object.to_string().as_bytes()).unwrap();
        let text = ObjectReport::new(&placed, named, &found, Some("Running")).text(Some("Running"));
        let text = text.replace(&format!("{}/", folder.path().display()), "");
        let command = "$ kubewitness check experiment.yaml --object one.yaml --expect Running";
        assert_eq!(format!("{command}\n{text}"), shown(command));
    }

    fn checked_text(text: &str, expect: Option<&str>) -> String {
        let placed = PlacedRules::builtin();
        let object: Value = serde_json::from_str(text).unwrap();
        let named = NamedFile::of(&object).unwrap();
        let found = placed.rules.explain_status(&named.group, &named.kind, text.as_bytes()).unwrap();
        ObjectReport::new(&placed, named, &found, expect).text(expect)
    }

    #[test]
    fn a_status_is_told_with_the_line_that_decided_and_what_kept_the_others_from_it() {
        let pod = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"train-0","namespace":"team"},"spec":{"containers":[{}]},"status":{"phase":"Failed","reason":"Evicted","message":"low on\u001b[2Jmemory"}}"#;
        let text = checked_text(pod, None);
        assert!(text.starts_with("Pod team/train-0: Preempted (terminal)\n  reason   Evicted   from @status.reason\n  message  low on·[2Jmemory"), "{text}");
        let decided = text.lines().find(|line| line.contains("decided")).unwrap();
        assert!(decided.contains("pod.json:") && decided.contains("case 3 of 15"), "{decided}");
        assert!(text.contains("✓ status.phase is Failed (\"Failed\")\n"), "{text}");
        assert!(
            text.contains("   1 Succeeded  ✗ status.phase is Succeeded (\"Failed\")   pod.json:"),
            "{text}"
        );
        assert!(
            text.contains(
                "   2 Preempted  ✗ status.conditions[type=DisruptionTarget].status is True (nothing there)"
            ),
            "{text}"
        );
        assert!(!text.contains("was expected"));
    }

    #[test]
    fn another_phase_than_expected_is_told() {
        let text = checked_text(
            r#"{"apiVersion":"example.dev/v1","kind":"Thing","metadata":{"name":"a"}}"#,
            Some("Running"),
        );
        assert!(text.starts_with("Thing.example.dev a: Unknown   ✗ Running was expected\n"), "{text}");
        assert!(text.contains("✓ no test"), "{text}");
    }
}
