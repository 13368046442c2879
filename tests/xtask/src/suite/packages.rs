//! The packages of the workspace, under the names that people use.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::build::root;

const PREFIX: &str = "kubewitness-";

/// A member of the workspace.
pub struct WorkspacePackage {
    /// The path within the workspace, such as `host/core`.
    folder: PathBuf,
    /// The name, such as `kubewitness-core`.
    name: String,
}

/// Reads the packages from the manifests. Cargo would take longer, and its answer needs a JSON parser.
pub fn members() -> Result<Vec<WorkspacePackage>> {
    let path = root().join("Cargo.toml");
    let manifest = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let (_, rest) = manifest.split_once("members = [").context("the workspace's manifest has no members")?;
    let (list, _) = rest.split_once(']').context("the list of members has no end")?;
    let folders =
        list.split(',').map(|entry| entry.trim().trim_matches('"')).filter(|entry| !entry.is_empty());
    folders.map(member).collect()
}

fn member(folder: &str) -> Result<WorkspacePackage> {
    let path = root().join(folder).join("Cargo.toml");
    let manifest = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let name = manifest.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
    let name = name.with_context(|| format!("{} names no package", path.display()))?;
    Ok(WorkspacePackage { folder: folder.into(), name: name.to_owned() })
}

/// The full name of the package `core`, `host/core` or `kubewitness-core`.
pub fn find(members: &[WorkspacePackage], called: &str) -> Option<String> {
    let folder = called.trim_end_matches('/');
    let is_called = |package: &&WorkspacePackage| {
        package.name == called
            || package.name.strip_prefix(PREFIX) == Some(called)
            || package.folder.as_os_str() == folder
    };
    members.iter().find(is_called).map(|package| package.name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_is_found_by_its_name_its_short_name_and_its_folder() {
        let members = members().expect("the workspace's manifests");
        for called in ["kubewitness-core", "core", "host/core", "host/core/"] {
            assert_eq!(find(&members, called).as_deref(), Some("kubewitness-core"), "{called}");
        }
        assert_eq!(find(&members, "host").as_deref(), Some("kubewitness"));
        assert_eq!(find(&members, "no_such_thing"), None);
    }
}
