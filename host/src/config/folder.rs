//! Configuration from a folder: the ConfigMaps that `kubectl apply` would take.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kubewitness_core::config::{HOST_KEY, HOST_LABEL, PLUGIN_KEY, PLUGIN_LABEL};
use sha2::{Digest, Sha256};

use super::manifest::{Entry, Origin, Problem};
use super::tree::Tree;
use super::{Snapshot, decode_base64};

/// A folder larger than this is not one of manifests; reading it would only take memory.
const FILES: usize = 1000;
const FILE_BYTES: u64 = 16 << 20;

/// Reads every `.yaml`, `.yml` and `.json` file directly in the folder. A file that can't be
/// read is a problem of that file and hides none of the others.
pub fn read(folder: &Path) -> Result<Snapshot, Problem> {
    let mut snapshot = Snapshot::default();
    for path in files(folder)? {
        match std::fs::read_to_string(&path) {
            Ok(text) => read_text(&path, &text, &mut snapshot),
            Err(error) => snapshot.problems.push(problem(&path, None, format!("can't be read: {error}"))),
        }
    }
    Ok(snapshot)
}

/// Reads one file, whatever its ending.
pub fn read_file(path: &Path) -> Result<Snapshot, Problem> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| problem(path, None, format!("can't be read: {error}")))?;
    let mut snapshot = Snapshot::default();
    read_text(path, &text, &mut snapshot);
    Ok(snapshot)
}

/// Changes whenever a file of the folder does. Polled, because a mounted ConfigMap is swapped
/// by links that file events miss.
pub fn fingerprint(folder: &Path) -> Option<Vec<u8>> {
    let mut context = Sha256::new();
    for path in files(folder).ok()? {
        context.update(path.as_os_str().as_encoded_bytes());
        match std::fs::read(&path) {
            Ok(bytes) => context.update(&bytes),
            Err(error) => context.update(error.to_string().as_bytes()),
        }
    }
    Some(context.finalize().to_vec())
}

fn files(folder: &Path) -> Result<Vec<PathBuf>, Problem> {
    let list = std::fs::read_dir(folder)
        .map_err(|error| problem(folder, None, format!("is not a folder that can be read: {error}")))?;
    let mut paths: Vec<_> = list
        .filter_map(|file| Some(file.ok()?.path()))
        .filter(|path| matches!(path.extension().and_then(|e| e.to_str()), Some("yaml" | "yml" | "json")))
        .filter(|path| path.file_name().is_some_and(|name| name != "kustomization.yaml"))
        .collect();
    paths.sort();
    if paths.len() > FILES {
        return Err(problem(folder, None, format!("has more than {FILES} manifests")));
    }
    if let Some(large) = paths.iter().find(|path| path.metadata().is_ok_and(|m| m.len() > FILE_BYTES)) {
        return Err(problem(large, None, format!("is larger than {} MiB", FILE_BYTES >> 20)));
    }
    Ok(paths)
}

fn problem(path: &Path, line: Option<usize>, message: String) -> Problem {
    Problem { place: path.display().to_string(), line, field: String::new(), message }
}

fn read_text(path: &Path, text: &str, snapshot: &mut Snapshot) {
    let documents = match Tree::parse(text) {
        Ok(documents) => documents,
        Err(error) => return snapshot.problems.push(problem(path, Some(error.line), error.message)),
    };
    for document in &documents {
        let is_config_map = document.get("kind").and_then(Tree::text) == Some("ConfigMap");
        if let (true, Err(found)) = (is_config_map, read_config_map(path, document, snapshot)) {
            snapshot.problems.push(found);
        }
    }
}

fn read_config_map(path: &Path, document: &Tree, snapshot: &mut Snapshot) -> Result<(), Problem> {
    let metadata = document.get("metadata");
    let labelled = |label| {
        let value = metadata.and_then(|m| m.get("labels")).and_then(|labels| labels.get(label));
        value.and_then(Tree::text) == Some("true")
    };
    let (key, host) = match (labelled(HOST_LABEL), labelled(PLUGIN_LABEL)) {
        (true, _) => (HOST_KEY, true),
        (_, true) => (PLUGIN_KEY, false),
        _ => return Ok(()),
    };
    let name = metadata.and_then(|m| m.get("name")).and_then(Tree::text).unwrap_or_default();
    let Some(value) = document.get("data").and_then(|data| data.get(key)) else {
        return Err(problem(path, Some(document.line_of("data")), format!("data: has no key `{key}`")));
    };
    let Some(text) = value.text() else {
        return Err(problem(path, Some(value.line), format!("data.{key}: is not text: begin it with `|`")));
    };
    // A block begins on the line after its key; leading empty lines belong to the text.
    let blank = text.bytes().take_while(|byte| *byte == b'\n').count();
    let entry = Entry {
        config_map: name.to_string(),
        origin: Origin {
            place: path.display().to_string(),
            first_line: value.line.saturating_sub(blank),
            folder: path.parent().map(Path::to_path_buf),
        },
        text: text.to_string(),
        binary: binary(path, document)?,
    };
    if host {
        snapshot.hosts.push(entry);
    } else {
        snapshot.plugins.push(entry);
    }
    Ok(())
}

fn binary(path: &Path, document: &Tree) -> Result<BTreeMap<String, Vec<u8>>, Problem> {
    let Some(data) = document.get("binaryData") else { return Ok(BTreeMap::new()) };
    data.entries()
        .map(|(key, value)| {
            let bytes = value.text().and_then(decode_base64);
            let bytes = bytes
                .ok_or_else(|| problem(path, Some(value.line), format!("binaryData.{key}: is not base64")))?;
            Ok((key.to_string(), bytes))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labelled_config_maps_are_found_and_others_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.yaml"), "kind: Secret\n---\nkind: ConfigMap\nmetadata:\n  name: kw\n  labels: {kubewitness.dev/host: \"true\"}\ndata:\n  host.yaml: |\n\n    apiVersion: x\n").unwrap();
        std::fs::write(folder.path().join("note.txt"), "not: yaml: at all").unwrap();
        let snapshot = read(folder.path()).unwrap();
        assert_eq!(snapshot.hosts.len(), 1);
        assert_eq!(snapshot.hosts[0].origin.first_line, 9);
        assert!(snapshot.plugins.is_empty() && snapshot.problems.is_empty());
    }

    #[test]
    fn a_broken_file_hides_no_other() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.yaml"), "a: [1\n").unwrap();
        std::fs::write(folder.path().join("b.yaml"), "kind: ConfigMap\nmetadata: {name: p, labels: {kubewitness.dev/plugin: \"true\"}}\ndata: {plugin.yaml: \"x\"}\nbinaryData: {p.wasm: AGFzbQ==}\n").unwrap();
        let snapshot = read(folder.path()).unwrap();
        assert_eq!(snapshot.problems.len(), 1);
        assert!(snapshot.problems[0].to_string().contains("a.yaml:1"), "{}", snapshot.problems[0]);
        assert_eq!(snapshot.plugins[0].binary["p.wasm"], b"\0asm");
    }
}
