//! Checks that the modules and types that the documentation names as paths (`core::ports::EffectSession`) exist.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use kubewitness_harness::project_root;

use super::page::pages;

/// A path that begins with one of these is not the project's.
const OTHERS: [&str; 2] = ["std", "tokio"];
/// The keywords that define a name in upper case.
const KEYWORDS: [&str; 5] = ["struct", "enum", "trait", "type", "const"];

fn is_code_path(text: &str) -> bool {
    let is_name = |part: &str| {
        !part.is_empty() && part.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
    };
    text.contains("::") && text.split("::").all(is_name)
}

/// The files and folders below a folder that hold a module of this name.
fn modules(folder: &Path, name: &str, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        if path.file_stem().is_some_and(|stem| stem == name) {
            found.push(path.clone());
        }
        if path.is_dir() {
            modules(&path, name, found)?;
        }
    }
    Ok(())
}

/// Whether a Rust file at or below the path defines the name.
fn defines(path: &Path, name: &str) -> Result<bool> {
    if path.is_dir() {
        for entry in std::fs::read_dir(path).with_context(|| format!("reading {}", path.display()))? {
            if defines(&entry?.path(), name)? {
                return Ok(true);
            }
        }
        return Ok(false);
    }
    if path.extension().is_none_or(|ending| ending != "rs") {
        return Ok(false);
    }
    let text = std::fs::read_to_string(path)?;
    let mut names =
        KEYWORDS.iter().flat_map(|word| text.split(&format!("{word} ")).skip(1).collect::<Vec<_>>());
    Ok(names.any(|after| {
        after.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next() == Some(name)
    }))
}

/// Follows a path from one name to the next. A re-export may leave out names between two of them.
fn leads_somewhere(path: &str) -> Result<bool> {
    let mut names = path.split("::").peekable();
    let first = names.peek().copied().unwrap_or_default();
    if OTHERS.contains(&first) {
        return Ok(true);
    }
    let mut at = vec![project_root().join("host")];
    for name in names {
        let is_item = name.starts_with(char::is_uppercase);
        let mut next = Vec::new();
        for place in &at {
            if is_item && defines(place, name)? {
                next.push(place.clone());
            } else if !is_item && place.is_dir() {
                modules(place, name, &mut next)?;
            }
        }
        at = next;
    }
    Ok(!at.is_empty())
}

#[test]
fn modules_and_types_that_pages_name_exist() -> Result<()> {
    let (mut faults, mut seen) = (Vec::new(), 0);
    for page in pages()? {
        for (number, line) in page.text() {
            for path in line.split('`').skip(1).step_by(2).filter(|text| is_code_path(text)) {
                seen += 1;
                if !leads_somewhere(path)? {
                    faults.push(format!("{}:{number}: there is no {path}", page.name()));
                }
            }
        }
    }
    ensure!(seen > 5, "only {seen} paths are named");
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    Ok(())
}

#[test]
fn a_path_that_leads_to_nothing_is_told_from_one_that_a_re_export_shortens() -> Result<()> {
    for (path, leads) in [
        ("core::ports::EffectSession", true),
        ("core::views", true),
        ("core::config", true),
        ("servers::ServerLink", true),
        ("tokio::spawn", true),
        ("core::carry", false),
        ("core::ports::Nobody", false),
        ("core::ports::Bucket", false),
    ] {
        ensure!(leads_somewhere(path)? == leads, "{path}");
    }
    Ok(())
}
