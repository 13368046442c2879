//! `cargo xtask structure`: measures the folders of source, tests and benchmarks. It reports folders that are
//! too large, folders whose first file does not state their purpose, and source folders that use each other
//! in circles. It also judges names and doc comments. It changes nothing.

mod circles;
mod modules;
mod names;
mod syntax;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::build;
use circles::FolderCircle;
use modules::{FileEdges, ModuleTree};
use names::DefinedNames;

/// The most entries that a reader takes in at a glance.
const ENTRIES: usize = 12;
/// How many of the largest are printed.
const SHOWN: usize = 8;

/// Folders that still have more entries, with their number. It may not grow, and a line is removed when its
/// folder fits.
const LARGE: &[(&str, usize)] = &[];

/// Circles of folders that still exist, with the reason. No other may be added, and a line is removed with
/// its circle.
const CIRCLES: &[(&str, &str)] = &[];

#[derive(Default)]
struct FolderFindings {
    /// The number of entries of each folder with Rust files.
    folders: BTreeMap<PathBuf, usize>,
    /// The number of lines of each Rust file.
    files: BTreeMap<PathBuf, usize>,
    /// First files of folders that do not begin with a `//!`.
    silent: BTreeSet<PathBuf>,
    circles: Vec<FolderCircle>,
    of_files: Vec<BTreeSet<PathBuf>>,
    names: DefinedNames,
}

pub fn command() -> Result<ExitCode> {
    let found = look(&build::root())?;
    build::print_text(&report(&found))?;
    let mut faults = faults(&found, LARGE, CIRCLES);
    faults.extend(found.names.faults());
    for fault in &faults {
        eprintln!("xtask: {fault}");
    }
    Ok(if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn look(root: &Path) -> Result<FolderFindings> {
    let mut found = FolderFindings::default();
    let mut edges = FileEdges::new();
    for top in ["host", "plugins", "tests"] {
        walk(root, &root.join(top), root, &mut found, &mut edges)?;
    }
    found.circles = circles::of_folders(&edges);
    found.of_files = circles::of_files(&edges);
    Ok(found)
}

/// Paths begin at the root of the repository. `package` is the crate that the folder belongs to, unless it has a
/// `Cargo.toml` itself.
fn walk(
    root: &Path,
    folder: &Path,
    package: &Path,
    found: &mut FolderFindings,
    edges: &mut FileEdges,
) -> Result<()> {
    let name = |path: &Path| path.strip_prefix(root).unwrap_or(path).to_path_buf();
    let package = if folder.join("Cargo.toml").is_file() { folder } else { package };
    let mut entries = 0;
    let mut has_rust = false;
    for entry in std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        entries += 1;
        if path.is_dir() {
            walk(root, &path, package, found, edges)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            has_rust = true;
            let text =
                std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
            found.files.insert(name(&path), text.lines().count());
            found.names.read(&name(package), &name(&path), &text)?;
            if is_first(&path) && !text.starts_with("//!") {
                found.silent.insert(name(&path));
            }
        }
    }
    if has_rust {
        found.folders.insert(name(folder), entries);
    }
    for crate_root in ["src/lib.rs", "src/main.rs"].map(|file| folder.join(file)) {
        if crate_root.is_file() {
            let modules = ModuleTree::read(&crate_root)?;
            edges.extend(modules.edges().into_iter().map(|(from, to)| (name(&from), name(&to))));
        }
    }
    Ok(())
}

/// Whether the file introduces a folder: the one that contains it, or the one beside it with its name.
fn is_first(file: &Path) -> bool {
    let stem = file.file_stem().unwrap_or_default();
    ["lib", "main", "mod"].iter().any(|name| stem == *name) || file.with_extension("").is_dir()
}

/// A folder that is not below one of these is the root of a crate, with the crates in it.
fn is_judged(folder: &Path) -> bool {
    folder.components().any(|part| ["src", "tests", "benches"].iter().any(|name| part.as_os_str() == *name))
}

/// A circle as the exceptions name it: `host/watch/src: read, write`.
fn title(circle: &FolderCircle) -> String {
    let parts: Vec<&str> = circle.parts.iter().map(String::as_str).collect();
    format!("{}: {}", circle.folder.display(), parts.join(", "))
}

fn report(found: &FolderFindings) -> String {
    let mut text = String::new();
    let mut line = |text_of_line: std::fmt::Arguments<'_>| writeln!(text, "{text_of_line}").is_ok();
    line(format_args!("entries of a folder, at most {ENTRIES} under src, tests and benches:"));
    for (folder, entries) in largest(&found.folders) {
        line(format_args!("  {entries:4}  {}", folder.display()));
    }
    line(format_args!("lines of a file:"));
    for (file, lines) in largest(&found.files) {
        line(format_args!("  {lines:4}  {}", file.display()));
    }
    line(format_args!("circles of folders: {}", found.circles.len()));
    for circle in &found.circles {
        line(format_args!("  {}", title(circle)));
        for ((from, to), (count, example)) in &circle.steps {
            let (user, used) = (example.0.display(), example.1.display());
            line(format_args!("    {from} > {to}, {count} times: {user} uses {used}"));
        }
    }
    let files = found.of_files.iter().map(BTreeSet::len);
    line(format_args!(
        "circles of files: {}, of {} files; the largest of {}",
        found.of_files.len(),
        files.clone().sum::<usize>(),
        files.max().unwrap_or(0)
    ));
    for files in &found.of_files {
        let names: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
        line(format_args!("  {}", names.join(" ")));
    }
    text
}

fn largest(sizes: &BTreeMap<PathBuf, usize>) -> Vec<(&PathBuf, &usize)> {
    let mut all: Vec<_> = sizes.iter().collect();
    all.sort_by_key(|(path, size)| (std::cmp::Reverse(**size), *path));
    all.truncate(SHOWN);
    all
}

fn faults(found: &FolderFindings, large: &[(&str, usize)], known: &[(&str, &str)]) -> Vec<String> {
    let mut faults = Vec::new();
    for (folder, entries) in found.folders.iter().filter(|(folder, _)| is_judged(folder)) {
        let most =
            large.iter().find(|(name, _)| Path::new(name) == folder).map_or(ENTRIES, |(_, most)| *most);
        if *entries > most {
            faults.push(format!(
                "{} has {entries} entries, and {most} is the most: put what belongs together into a folder",
                folder.display()
            ));
        }
    }
    for (name, most) in large {
        let entries = found.folders.get(Path::new(name)).copied().unwrap_or(0);
        if entries < *most {
            faults.push(format!(
                "{name} has {entries} entries now: lower the {most} that LARGE in tests/xtask/src/structure has for it, \
                 or remove the line where {ENTRIES} are enough"
            ));
        }
    }
    for file in &found.silent {
        faults.push(format!(
            "{} introduces a folder and has no module doc: begin it with `//!`, and say what the folder is for and what \
             it may not touch",
            file.display()
        ));
    }
    let titles: Vec<String> = found.circles.iter().map(title).collect();
    for title in titles.iter().filter(|title| !known.iter().any(|(name, _)| name == title)) {
        faults.push(format!(
            "these folders use each other in a circle: {title}. What both need belongs into the lower one, \
             or into one below both; the steps are printed above"
        ));
    }
    for (name, _) in known.iter().filter(|(name, _)| !titles.iter().any(|title| title == name)) {
        faults.push(format!(
            "the circle `{name}` is gone: take it out of CIRCLES in tests/xtask/src/structure, so that it stays gone"
        ));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(folders: &[(&str, usize)], edges: &[(&str, &str)]) -> FolderFindings {
        let edges: FileEdges =
            edges.iter().map(|(from, to)| (PathBuf::from(from), PathBuf::from(to))).collect();
        FolderFindings {
            folders: folders.iter().map(|(name, entries)| (PathBuf::from(name), *entries)).collect(),
            circles: circles::of_folders(&edges),
            of_files: circles::of_files(&edges),
            ..FolderFindings::default()
        }
    }

    const CIRCLE: [(&str, &str); 2] = [("c/src/a/x.rs", "c/src/b/y.rs"), ("c/src/b/y.rs", "c/src/a/z.rs")];

    #[test]
    fn a_folder_of_source_or_tests_that_is_too_large_is_a_fault_and_the_root_of_a_crate_is_not() {
        let folders = [("c", ENTRIES + 1), ("c/src", ENTRIES), ("c/src/a", 13), ("c/tests/it", 14)];
        let faults = faults(&found(&folders, &[]), &[], &[]);
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(faults[0].starts_with("c/src/a has 13 entries"), "{faults:?}");
        assert!(faults[1].starts_with("c/tests/it has 14 entries"), "{faults:?}");
    }

    #[test]
    fn a_first_file_without_a_doc_is_a_fault() {
        let silent = ["c/src/a/mod.rs".into()].into();
        let faults = faults(&FolderFindings { silent, ..FolderFindings::default() }, &[], &[]);
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert!(faults[0].starts_with("c/src/a/mod.rs introduces a folder"), "{faults:?}");
    }

    #[test]
    fn the_first_file_of_a_folder_lies_in_it_or_beside_it() {
        let folder = build::root().join("tests/xtask/src");
        for (file, expected) in [("main.rs", true), ("structure/mod.rs", true), ("run.rs", false)] {
            assert_eq!(is_first(&folder.join(file)), expected, "{file}");
        }
        assert!(is_first(&build::root().join("host/capability/src/session/tests.rs")));
    }

    #[test]
    fn a_large_folder_that_is_listed_may_not_grow_and_has_to_be_taken_out_when_it_shrinks() {
        let found = found(&[("c/src", 20)], &[]);
        assert_eq!(faults(&found, &[("c/src", 20)], &[]), Vec::<String>::new());
        assert!(faults(&found, &[("c/src", 19)], &[])[0].contains("has 20 entries, and 19 is the most"));
        assert!(faults(&found, &[("c/src", 21)], &[])[0].contains("lower the 21"));
    }

    #[test]
    fn a_circle_is_a_fault_unless_it_is_listed_and_one_that_is_gone_may_not_stay_listed() {
        let known = [("c/src: a, b", "for now")];
        let round = found(&[], &CIRCLE);
        assert!(faults(&round, &[], &[])[0].contains("c/src: a, b"));
        assert_eq!(faults(&round, &[], &known), Vec::<String>::new());
        assert!(faults(&found(&[], &CIRCLE[..1]), &[], &known)[0].contains("`c/src: a, b` is gone"));
    }

    #[test]
    fn the_report_shows_the_steps_of_a_circle() {
        let text = report(&found(&[("c/src", 3)], &CIRCLE));
        assert!(text.contains("     3  c/src\n"), "{text}");
        assert!(text.contains("    a > b, 1 times: c/src/a/x.rs uses c/src/b/y.rs\n"), "{text}");
        assert!(text.contains("circles of files: 0"), "{text}");
    }

    #[test]
    fn the_project_itself_can_be_read() {
        let found = look(&build::root()).unwrap();
        assert!(found.folders.contains_key(Path::new("tests/xtask/src/structure")));
        assert!(found.files.len() > 100);
    }
}
