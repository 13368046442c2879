//! Checks that the links, files and tests that the documentation names exist.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use kubewitness_core::config::{Bytes, HostSpec};
use kubewitness_harness::project_root;

use super::page::{Page, pages};

/// Folders of the root that pages name files in.
const ROOMS: [&str; 6] = ["host", "plugins", "wit", "deploy", "tests", "docs"];
/// Pages whose tables name tests.
const TABLES: [&str; 3] = ["docs/repair.md", "docs/bounds.md", HOSTILE];
const HOSTILE: &str = "docs/concepts/hostile-plugins.md";
/// Guests that mean harm, and where all guests of tests are.
const HARM: &str = "tests/guests/hostile";
const GUESTS: &str = "tests/guests/";
/// A name with at least so many underlines is a test's.
const UNDERLINES: usize = 3;

/// `[text](target)` outside of code.
fn links(line: &str) -> Vec<&str> {
    let after = line.split("](").skip(1);
    after.filter_map(|after| after.split_once(')')).map(|(target, _)| target).collect()
}

fn in_backticks(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// The anchor that GitHub gives a heading.
fn anchor(heading: &str) -> String {
    let kept = |letter: char| letter.is_alphanumeric() || letter == '-' || letter == '_';
    let text = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
    text.chars().filter(|letter| kept(*letter)).collect()
}

fn check_link(page: &Page, target: &str) -> Result<()> {
    if target.contains("://") {
        return Ok(());
    }
    let (file, heading) = target.split_once('#').unwrap_or((target, ""));
    let folder = page.path.parent().unwrap_or(Path::new(""));
    let path = if file.is_empty() { page.path.clone() } else { folder.join(file) };
    ensure!(project_root().join(&path).exists(), "there is no {}", path.display());
    if !heading.is_empty() {
        let there = Page::read(&path)?;
        let found = there.text().iter().any(|(_, line)| line.starts_with('#') && anchor(line) == heading);
        ensure!(found, "{} has no heading #{heading}", path.display());
    }
    Ok(())
}

/// Whether the text names a file or folder of the project. Patterns and built files have other names.
fn is_named_file(text: &str) -> bool {
    let is_path =
        |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || "/._-".contains(letter);
    text.contains('/')
        && text.chars().all(is_path)
        && text.split('/').next().is_some_and(|first| ROOMS.contains(&first))
}

fn missing_files<'a>(texts: impl Iterator<Item = &'a str>) -> impl Iterator<Item = &'a str> {
    texts.filter(|text| is_named_file(text) && !project_root().join(text).exists())
}

/// The names of all functions in all Rust files. Tests are among them.
fn functions(folder: &Path, found: &mut BTreeSet<String>) -> Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            functions(&path, found)?;
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            let text = std::fs::read_to_string(&path)?;
            let names = text.split("fn ").skip(1).filter_map(|after| after.split(['(', '<']).next());
            found.extend(names.map(str::to_owned));
        }
    }
    Ok(())
}

#[test]
fn links_and_names_of_files_lead_somewhere() -> Result<()> {
    let mut faults = Vec::new();
    for page in pages()? {
        for (number, line) in page.text() {
            let place = format!("{}:{number}", page.name());
            for target in links(line) {
                faults.extend(check_link(&page, target).err().map(|why| format!("{place}: {why:#}")));
            }
            faults
                .extend(missing_files(in_backticks(line)).map(|path| format!("{place}: there is no {path}")));
        }
        for (number, line) in page.remarks() {
            let words = line.split([' ', ',', ';', ':']).map(|word| word.trim_matches('`'));
            let missing = missing_files(words);
            faults.extend(missing.map(|path| format!("{}:{number}: there is no {path}", page.name())));
        }
    }
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    Ok(())
}

#[test]
fn tests_that_tables_name_exist_and_each_row_of_faults_is_in_one() -> Result<()> {
    let mut known = BTreeSet::new();
    for room in ["host", "plugins", "tests"] {
        functions(&project_root().join(room), &mut known)?;
    }
    let mut faults = Vec::new();
    let mut told = BTreeSet::new();
    for path in TABLES {
        let page = Page::read(path.as_ref())?;
        for (number, line) in page.text() {
            let tests = in_backticks(line).filter(|text| text.matches('_').count() >= UNDERLINES);
            let missing = tests.filter(|test| !known.contains(*test));
            faults.extend(missing.map(|test| format!("{path}:{number}: no test is called {test}")));
            told.extend(rows_of_cells(line));
        }
    }
    let rows: BTreeSet<u32> = known.iter().filter_map(|name| row(name)).collect();
    ensure!(rows.len() > 30, "only {} rows have tests", rows.len());
    faults.extend(rows.difference(&told).map(|row| format!("no table tells of row {row}")));
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    Ok(())
}

/// The Rust files below a folder of the project, as pages of `docs/concepts` link to them.
fn linked_files(folder: &Path, found: &mut BTreeSet<String>) -> Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            linked_files(&path, found)?;
        } else {
            found.insert(format!("../../{}", path.strip_prefix(project_root())?.display()));
        }
    }
    Ok(())
}

#[test]
fn each_guest_that_means_harm_is_in_a_row_says_what_the_operator_sees_and_each_row_leads_to_its_guest()
-> Result<()> {
    let mut guests = BTreeSet::new();
    for folder in ["examples", "src"] {
        linked_files(&project_root().join(HARM).join(folder), &mut guests)?;
    }
    guests.remove(&format!("../../{HARM}/src/lib.rs"));
    ensure!(guests.len() > 20, "only {} guests mean harm", guests.len());
    let (mut faults, mut told) = (Vec::new(), BTreeSet::new());
    let page = Page::read(HOSTILE.as_ref())?;
    for (number, line) in page.text() {
        let is_row = line.starts_with("| ") && !line.contains("| what the operator sees |");
        let first = line.split('|').nth(1).unwrap_or_default();
        let linked: Vec<_> = links(first).into_iter().filter(|link| link.contains(GUESTS)).collect();
        if is_row && linked.is_empty() {
            faults.push(format!("{HOSTILE}:{number}: the row leads to no guest"));
        }
        told.extend(linked.into_iter().map(str::to_owned));
    }
    faults.extend(guests.difference(&told).map(|guest| format!("no row of {HOSTILE} leads to {guest}")));
    for guest in &guests {
        let text = std::fs::read_to_string(project_root().join("docs/concepts").join(guest))?;
        let head: Vec<_> = text.lines().map_while(|line| line.strip_prefix("//! ")).collect();
        if !head.join(" ").contains("operator sees") {
            faults.push(format!("{guest} does not begin with what the operator sees"));
        }
    }
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    Ok(())
}

/// `row_07_…` is of row 7.
fn row(test: &str) -> Option<u32> {
    test.strip_prefix("row_")?.split('_').next()?.parse().ok()
}

/// A cell that begins with `4, 5:` tells of rows 4 and 5.
fn rows_of_cells(line: &str) -> Vec<u32> {
    let heads = line.split('|').filter_map(|cell| cell.split_once(':')).map(|(head, _)| head);
    heads.flat_map(|head| head.split(',')).filter_map(|number| number.trim().parse().ok()).collect()
}

#[test]
fn headings_have_the_anchors_that_links_use() {
    assert_eq!(anchor("## How-to pages, one task each"), "how-to-pages-one-task-each");
    assert_eq!(anchor("## 4. Watch your own cluster"), "4-watch-your-own-cluster");
    assert_eq!(rows_of_cells("| a | 4, 5: b | `c` |"), [4, 5]);
}

/// The bytes behind a text of a file, up to one of these letters.
fn bytes_behind(file: &str, text: &str) -> Result<u64> {
    let whole = std::fs::read_to_string(project_root().join(file))?;
    let (_, after) = whole.split_once(text).with_context(|| format!("{file} has no `{text}`"))?;
    let size: String = after.chars().take_while(|letter| letter.is_ascii_alphanumeric()).collect();
    let bytes: Bytes =
        serde_json::from_value(size.clone().into()).with_context(|| format!("{file}: {size}"))?;
    Ok(bytes.0)
}

#[test]
fn the_container_holds_what_the_defaults_let_the_controller_its_plugins_and_a_compilation_take() -> Result<()>
{
    let limits = HostSpec::default().limits;
    let own = bytes_behind("docs/how-to/ceiling.md", "container's limit to at least ")?;
    let needed = own + limits.plugins.total_memory.0 + limits.components.compile_memory.0;
    let container = bytes_behind("deploy/kustomize/deployment.yaml", "limits: {memory: ")?;
    ensure!(needed <= container, "{needed} bytes are needed, and the container may have {container}");
    // Whoever copies the page's ceiling has the default.
    let shown = bytes_behind("docs/how-to/ceiling.md", "totalMemory: ")?;
    ensure!(shown == limits.plugins.total_memory.0, "the page shows {shown} bytes");
    Ok(())
}
