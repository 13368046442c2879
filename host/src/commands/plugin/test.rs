//! `kubewitness plugin test`: passes each file of objects in the folder `tests` to the plugin, and compares
//! the effects with the file beside it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use kubewitness_core::files;

use super::run::read_replies;
use super::subject::{self, TrialSubject};
use super::trial::{self, ObservedTimes, PluginTrial, StandIns};
use crate::cli::TestPluginArgs;
use crate::commands::print::{self, clean_line, coloured_mark, line_diff};
use crate::commands::{CommandEnd, CommandResult, object_files};

/// The expected effects for `NAME.yaml` are in `NAME.expected.json`; the answers to its requests may be in
/// `NAME.answers.yaml`.
const EXPECTED: &str = ".expected.json";
const ANSWERS: &str = ".answers.yaml";
const OBJECTS: [&str; 3] = [".yaml", ".yml", ".json"];
const EXPECTED_BYTES: u64 = 64 << 20;

pub async fn test(args: TestPluginArgs) -> CommandResult {
    // A person in the wrong folder gets this error first.
    subject::read_manifest(&args.dir)?;
    let cases = find_cases(&subject::path_in_folder(&args.dir, "tests"))?;
    let subject = subject::load(&args.dir, None).await?;
    let mut failed = 0;
    for case in &cases {
        let found =
            try_case(&subject, case).await.with_context(|| format!("in {}", case.objects.display()))?;
        match compare_calls(case, &found, args.update)? {
            None => print::text(&format!("{} {}\n", coloured_mark(true), clean_line(&case.name)))?,
            Some(why) => {
                failed += 1;
                print::text(&format!("{} {}: {why}", coloured_mark(false), clean_line(&case.name)))?;
            }
        }
    }
    let verb = if args.update { "written" } else { "passed" };
    print::text(&format!("{} of {} tests {verb}\n", cases.len() - failed, cases.len()))?;
    Ok(if failed == 0 { CommandEnd::Fine } else { CommandEnd::Failed })
}

struct PluginCase {
    name: String,
    objects: PathBuf,
    expected: PathBuf,
    answers: PathBuf,
}

fn find_cases(folder: &Path) -> Result<Vec<PluginCase>> {
    let hint = "a test is a file of objects there, such as `tests/failed.yaml`";
    let entries =
        std::fs::read_dir(folder).with_context(|| format!("reading {}: {hint}", folder.display()))?;
    let (mut cases, mut beside_cases) = (Vec::<PluginCase>::new(), Vec::new());
    for entry in entries {
        let file = entry?.file_name().to_string_lossy().into_owned();
        // Files of editors and `git` are not tests.
        if file.starts_with('.') {
            continue;
        }
        if let Some(name) = file.strip_suffix(EXPECTED).or_else(|| file.strip_suffix(ANSWERS)) {
            beside_cases.push((name.to_owned(), folder.join(&file)));
            continue;
        }
        let Some(name) = OBJECTS.iter().find_map(|ending| file.strip_suffix(ending)) else { continue };
        let beside = |ending: &str| folder.join(format!("{name}{ending}"));
        let (expected, answers) = (beside(EXPECTED), beside(ANSWERS));
        cases.push(PluginCase { name: name.to_owned(), objects: folder.join(&file), expected, answers });
    }
    cases.sort_by(|a, b| a.objects.cmp(&b.objects));
    let is_orphan = |(name, _): &&(String, PathBuf)| cases.iter().all(|case| case.name != *name);
    if let Some((name, file)) = beside_cases.iter().find(is_orphan) {
        bail!(
            "{} belongs to no test: there is no {name}.yaml beside it, so remove it or rename it",
            file.display()
        );
    }
    if cases.is_empty() {
        bail!("{} has no test: {hint}", folder.display());
    }
    if let Some([one, other]) = cases.array_windows().find(|[one, other]| one.name == other.name) {
        bail!(
            "{} and {} are two tests of the name `{}`, and what is expected of them is in one file: rename one",
            one.objects.display(),
            other.objects.display(),
            one.name
        );
    }
    Ok(cases)
}

/// The plugin's effects, as JSON that is compared line by line.
async fn try_case(subject: &TrialSubject, case: &PluginCase) -> Result<String> {
    let seen = object_files::read(&case.objects)?;
    let answers = if case.answers.exists() { read_replies(&case.answers)? } else { Vec::new() };
    let stand_ins = StandIns::of(&subject.spec, &seen, ObservedTimes::Fixed)?;
    let tried = trial::run_trial(
        subject,
        PluginTrial { stand_ins, replies: answers, redaction: None, is_measured: false },
    )
    .await?;
    Ok(serde_json::to_string_pretty(&tried.handed)? + "\n")
}

/// The difference from the expected result, if there is one.
fn compare_calls(case: &PluginCase, found: &str, update: bool) -> Result<Option<String>> {
    let path = case.expected.display();
    if update {
        std::fs::write(&case.expected, found).with_context(|| format!("writing {path}"))?;
        return Ok(None);
    }
    let there = files::look(&case.expected).with_context(|| format!("reading {path}"))?;
    if there.is_none() {
        return Ok(Some(format!("{path} is not there. `kubewitness plugin test --update` writes it\n")));
    }
    let expected = files::text(&case.expected, EXPECTED_BYTES).with_context(|| format!("reading {path}"))?;
    if expected == found {
        return Ok(None);
    }
    let titles = [format!("{path}"), "what the plugin does".to_owned()];
    let diff = line_diff::unified_diff(&titles, &expected, found, print::is_coloured());
    Ok(Some(format!("the plugin does something else. If that is right, run with --update\n{diff}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for file in files {
            std::fs::write(folder.path().join(file), "kind: Job").unwrap();
        }
        folder
    }

    #[test]
    fn files_that_editors_hide_are_no_tests() {
        let folder =
            folder(&["a.yaml", ".a.yaml", ".#b.yaml", "a.expected.json", "a.answers.yaml", "notes.txt"]);
        let names: Vec<_> = find_cases(folder.path()).unwrap().into_iter().map(|case| case.name).collect();
        assert_eq!(names, ["a"]);
    }

    #[test]
    fn what_is_expected_of_no_test_is_refused_by_its_name() {
        for file in ["b.expected.json", "b.answers.yaml"] {
            let error = find_cases(folder(&["a.yaml", file]).path()).err().unwrap().to_string();
            assert!(error.contains(&format!("{file} belongs to no test: there is no b.yaml")), "{error}");
        }
    }

    #[test]
    fn two_tests_of_one_name_are_refused_by_their_names() {
        let folder = folder(&["a.yml", "a.yaml", "b.json"]);
        let error = find_cases(folder.path()).err().unwrap().to_string();
        assert!(
            error.contains("a.yaml and ") && error.contains("a.yml are two tests of the name `a`"),
            "{error}"
        );
    }
}
