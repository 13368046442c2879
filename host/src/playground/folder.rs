//! The playground's data folder. A simulated cluster lives as long as its process, so what an
//! earlier playground left there tells of a cluster that is gone.

use std::path::Path;

use anyhow::{Context, Result, bail};

use super::write;

/// Marks a folder as a playground's own, which the next playground may clear.
const MARKER: &str = ".kubewitness-playground";
const PLUGINS: &str = include_str!("../../../deploy/kustomize/plugins.yaml");
const HOST: &str = include_str!("../../../deploy/kustomize/host.yaml");
/// What the cluster's settings have in the place of the playground's own receiver.
const RECEIVER: &str = "http://notifications.kubewitness.svc:8080";

/// Makes the folder, or clears it of what an earlier playground left. Anything else in it is
/// somebody's, and refused.
pub fn prepare(data: &Path) -> Result<()> {
    std::fs::create_dir_all(data).with_context(|| format!("making {}", data.display()))?;
    let marker = data.join(MARKER);
    let entries = std::fs::read_dir(data).with_context(|| format!("reading {}", data.display()))?;
    let entries = entries
        .collect::<std::io::Result<Vec<_>>>()
        .with_context(|| format!("reading {}", data.display()))?;
    if !entries.is_empty() && !marker.is_file() {
        bail!(
            "{} holds data that is not a playground's; name an empty or new folder with --data",
            data.display()
        );
    }
    for entry in entries {
        let path = entry.path();
        let removed =
            if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        removed.with_context(|| format!("clearing {} of the playground before", path.display()))?;
    }
    write(&marker, "This folder belongs to `kubewitness playground`, which clears it at its start.\n")
}

/// The same manifests that a cluster is given, with the playground's receiver in them.
pub fn configure(data: &Path, receiver: &str) -> Result<()> {
    let config = data.join("config");
    std::fs::create_dir_all(&config).with_context(|| format!("making {}", config.display()))?;
    write(&config.join("host.yaml"), &HOST.replace(RECEIVER, receiver).replace("rate: 50", "rate: 5000"))?;
    write(&config.join("plugins.yaml"), &PLUGINS.replace("start: now", "start: beginning"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_with_somebodys_data_is_refused_and_left_alone() {
        let data = tempfile::tempdir().unwrap();
        let path = data.path().join("thesis.txt");
        std::fs::write(&path, "years").unwrap();
        assert!(prepare(data.path()).unwrap_err().to_string().contains("--data"));
        assert_eq!(std::fs::read_to_string(path).unwrap(), "years");
    }

    #[test]
    fn a_playgrounds_own_folder_is_cleared() {
        let data = tempfile::tempdir().unwrap();
        prepare(data.path()).unwrap();
        std::fs::write(data.path().join("journal.db"), "old").unwrap();
        prepare(data.path()).unwrap();
        assert!(!data.path().join("journal.db").exists());
    }

    #[test]
    fn the_receivers_address_is_in_the_settings() {
        let data = tempfile::tempdir().unwrap();
        configure(data.path(), "http://127.0.0.1:4711").unwrap();
        let host = std::fs::read_to_string(data.path().join("config/host.yaml")).unwrap();
        assert!(host.contains("http://127.0.0.1:4711") && !host.contains(RECEIVER));
    }
}
