//! Reads status rules with the place of each: from a file of rules, from a host document, or built in.

use std::path::Path;

use kubewitness_core::config::{HostSpec, ManifestFault};
use kubewitness_core::status::{RuleOrigin, RuleSpec, StatusRules};

use super::manifest::{self, ManifestProblem, ParsedManifest, is_rule, locate_fault, parse_host};
use super::tree::YamlTree;
use super::{ConfigSnapshot, folder};

/// The rules that would be in force, and where each of them is written.
pub struct PlacedRules {
    pub rules: StatusRules,
    places: RulePlace,
}

enum RulePlace {
    Builtin,
    File { origin: manifest::ManifestOrigin, trees: Vec<YamlTree> },
    Host(Box<ParsedManifest<HostSpec>>),
}

impl PlacedRules {
    pub fn builtin() -> Self {
        Self { rules: StatusRules::builtin(), places: RulePlace::Builtin }
    }

    /// The file and line of a field of a rule, such as `job.json:12`.
    pub fn place_of_field(&self, origin: RuleOrigin, field: &str) -> String {
        match (origin, &self.places) {
            (RuleOrigin::Builtin(name), _) => {
                let trees = StatusRules::builtin_text(name).map(YamlTree::parse).and_then(Result::ok);
                let tree = trees.and_then(|trees| trees.into_iter().next());
                let line = tree.map_or(1, |tree| tree.line_of(field));
                format!("{name}.json:{line}")
            }
            (RuleOrigin::Operator(index), RulePlace::File { origin, trees }) => {
                let line = trees.get(index).map_or(1, |tree| tree.line_of(field));
                format!("{}:{line}", origin.place)
            }
            (RuleOrigin::Operator(index), RulePlace::Host(host)) => {
                let fault = ManifestFault {
                    field: format!("spec.statusRules[{index}].{field}"),
                    message: String::new(),
                };
                let lines = host.problems(vec![fault]);
                let line = lines.first().and_then(|problem| problem.line).unwrap_or(1);
                format!("{}:{line}", host.entry.origin.place)
            }
            (RuleOrigin::Operator(index), RulePlace::Builtin) => format!("rule {index}"),
        }
    }
}

/// Reads a file of rules, or a manifest or folder with a host document.
pub fn read(path: &Path) -> Result<PlacedRules, Vec<ManifestProblem>> {
    let one = |problem| vec![problem];
    if path.is_dir() {
        return of_host(&folder::read(path).map_err(one)?);
    }
    let text = folder::text(path).map_err(one)?;
    of_text(path, &text).unwrap_or_else(|| of_host(&folder::of_text(path, &text)))
}

fn of_host(snapshot: &ConfigSnapshot) -> Result<PlacedRules, Vec<ManifestProblem>> {
    if !snapshot.problems.is_empty() {
        return Err(snapshot.problems.clone());
    }
    let host = snapshot.only_host().map_err(|problem| vec![problem]).and_then(parse_host)?;
    let rules = host.spec.status_rules_in_force().map_err(|faults| host.problems(faults))?;
    Ok(PlacedRules { rules, places: RulePlace::Host(Box::new(host)) })
}

/// `None` if the documents of a text are not rules.
pub fn of_text(path: &Path, text: &str) -> Option<Result<PlacedRules, Vec<ManifestProblem>>> {
    let trees = YamlTree::parse(text).ok()?;
    if trees.is_empty() || !trees.iter().all(is_rule) {
        return None;
    }
    let place = path.display().to_string();
    Some(of_trees(manifest::ManifestOrigin { place, first_line: 1, folder: None }, trees))
}

fn of_trees(
    origin: manifest::ManifestOrigin,
    trees: Vec<YamlTree>,
) -> Result<PlacedRules, Vec<ManifestProblem>> {
    let (mut specs, mut problems) = (Vec::new(), Vec::new());
    for tree in &trees {
        match serde_path_to_error::deserialize::<_, RuleSpec>(&tree.to_json()) {
            Ok(spec) => specs.push(spec),
            Err(error) => {
                let field = error.path().to_string();
                let field = if field == "." { String::new() } else { field };
                problems.push(locate_fault(&origin, tree, &field, &error.into_inner().to_string()));
            }
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    match StatusRules::with_rules(&specs) {
        Ok(rules) => Ok(PlacedRules { rules, places: RulePlace::File { origin, trees } }),
        Err(faults) => Err(faults.into_iter().map(|fault| of_fault(&origin, &trees, fault)).collect()),
    }
}

/// The field of a fault begins with the number of its document.
fn of_fault(origin: &manifest::ManifestOrigin, trees: &[YamlTree], fault: ManifestFault) -> ManifestProblem {
    let parts = fault.field.strip_prefix('[').and_then(|rest| rest.split_once("]."));
    let tree = parts.and_then(|(index, _)| trees.get(index.parse::<usize>().ok()?));
    match (parts, tree) {
        (Some((_, field)), Some(tree)) => locate_fault(origin, tree, field, &fault.message),
        _ => ManifestProblem {
            place: origin.place.clone(),
            line: None,
            field: fault.field,
            message: fault.message,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.yaml");
        std::fs::write(&path, text).unwrap();
        let found = read(&path).err().expect("a fault");
        found.iter().map(|problem| problem.to_string().rsplit('/').next().unwrap().to_string()).collect()
    }

    const RULE: &str = "group: g\nkind: K\ncases:\n  - when: [{at: status.ok, is: true}]\n    phase: Running\n  - {when: [], phase: Pending}\n";

    #[test]
    fn a_rule_is_found_with_the_line_that_decides() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.yaml");
        std::fs::write(&path, format!("# ours\n{RULE}---\n{}", RULE.replace("kind: K", "kind: L"))).unwrap();
        let placed = read(&path).ok().unwrap();
        assert!(placed.place_of_field(RuleOrigin::Operator(0), "cases[1]").ends_with("r.yaml:7"));
        assert!(placed.place_of_field(RuleOrigin::Operator(1), "cases[0].when[0]").ends_with("r.yaml:12"));
        let line: usize = placed.place_of_field(RuleOrigin::Builtin("job"), "cases[1]")["job.json:".len()..]
            .parse()
            .unwrap();
        let text = StatusRules::builtin_text("job").unwrap();
        assert!(text.lines().skip(line).take(3).any(|line| line.contains("type=Failed")), "{line}");
    }

    #[test]
    fn faults_of_a_file_of_rules_name_line_and_field() {
        assert_eq!(
            problems(&RULE.replace("phase: Running", "phase: Great"))[0].split("; ").next().unwrap(),
            "r.yaml:5: cases[0].phase: `Great` is no phase"
        );
        assert!(
            problems(&RULE.replace("    phase", "    fase"))[0]
                .starts_with("r.yaml:5: cases[0].fase: unknown field `fase`")
        );
        assert!(
            problems(&format!("{RULE}---\n{RULE}"))[0]
                .starts_with("r.yaml:9: kind: the rule 0 is for K already")
        );
        assert!(
            problems(&RULE.replace("status.ok", "status"))[0]
                .starts_with("r.yaml:4: cases[0].when[0].at: `status` is not a path")
        );
    }

    #[test]
    fn a_file_of_rules_is_known_as_one_without_its_cases_or_its_kind() {
        let mistyped = problems(&RULE.replace("cases:", "case:"));
        assert!(mistyped[0].contains("unknown field `case`"), "{mistyped:?}");
        let missing = problems("group: g\nkind: K\n");
        assert!(missing[0].contains("missing field `cases`"), "{missing:?}");
        let of_nothing = problems(&RULE.replace("kind: K\n", ""));
        assert!(of_nothing[0].contains("missing field `kind`"), "{of_nothing:?}");
    }

    #[test]
    fn rules_of_a_host_document_have_the_lines_of_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let indented: String = RULE
            .lines()
            .enumerate()
            .map(|(n, line)| format!("        {}{line}\n", if n == 0 { "- " } else { "  " }))
            .collect();
        let host = format!(
            "kind: ConfigMap\nmetadata: {{name: host, labels: {{kubewitness.dev/host: \"true\"}}}}\ndata:\n  host.yaml: |\n    apiVersion: kubewitness.dev/v1alpha1\n    kind: Host\n    metadata: {{name: host}}\n    spec:\n      sources: []\n      statusRules:\n{indented}"
        );
        std::fs::write(folder.path().join("host.yaml"), &host).unwrap();
        let placed = read(folder.path()).ok().unwrap();
        assert!(placed.place_of_field(RuleOrigin::Operator(0), "cases[1]").ends_with("host.yaml:16"));
        std::fs::write(folder.path().join("host.yaml"), host.replace("phase: Running", "phase: Runing"))
            .unwrap();
        let found = read(folder.path()).err().unwrap();
        assert!(
            found[0]
                .to_string()
                .contains("host.yaml:15: spec.statusRules[0].cases[0].phase: `Runing` is no phase"),
            "{}",
            found[0]
        );
    }
}
