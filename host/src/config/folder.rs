//! Configuration from a folder: the ConfigMaps that `kubectl apply` would take.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use kubewitness_core::config::{HOST_KEY, HOST_LABEL, PLUGIN_KEY, PLUGIN_LABEL};
use ring::digest::{Context, SHA256};

use super::manifest::{Entry, Origin, Problem};
use super::tree::Tree;
use super::{Snapshot, decode_base64, rules};

/// A folder larger than this is not one of manifests; reading it would only take memory.
const FILES: usize = 1000;
const FILE_BYTES: u64 = 16 << 20;

/// Reads every `.yaml`, `.yml` and `.json` file directly in the folder. A file that can't be
/// read is a problem of that file and hides none of the others.
pub fn read(folder: &Path) -> Result<Snapshot, Problem> {
    let mut snapshot = Snapshot::default();
    for path in files(folder)? {
        match text(&path) {
            Ok(text) => read_text(&path, &text, &mut snapshot),
            Err(error) => snapshot.problems.push(problem(&path, None, format!("can't be read: {error}"))),
        }
    }
    Ok(snapshot)
}

/// Reads one file, whatever its ending.
pub fn read_file(path: &Path) -> Result<Snapshot, Problem> {
    let text = text(path).map_err(|error| problem(path, None, format!("can't be read: {error}")))?;
    let mut snapshot = Snapshot::default();
    read_text(path, &text, &mut snapshot);
    Ok(snapshot)
}

/// A device or a pipe may never end, and says nothing of its size beforehand.
pub fn bytes(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        let what = format!("is larger than {} MiB, so that it is none: name another file", most >> 20);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
    }
    Ok(bytes)
}

pub fn text(path: &Path) -> io::Result<String> {
    String::from_utf8(bytes(path, FILE_BYTES)?)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Changes whenever a file of the folder does. Polled, because a mounted ConfigMap is swapped
/// by links that file events miss.
pub fn fingerprint(folder: &Path) -> Option<Vec<u8>> {
    let mut context = Context::new(&SHA256);
    // Components beside the manifests: a new build is a change.
    for component in with_endings(folder, &["wasm"]).ok()? {
        context.update(component.as_os_str().as_encoded_bytes());
        if let Ok(metadata) = component.metadata() {
            context.update(format!("{} {:?}", metadata.len(), metadata.modified().ok()).as_bytes());
        }
    }
    for path in files(folder).ok()? {
        context.update(path.as_os_str().as_encoded_bytes());
        match bytes(&path, FILE_BYTES) {
            Ok(bytes) => context.update(&bytes),
            Err(error) => context.update(error.to_string().as_bytes()),
        }
    }
    Some(context.finish().as_ref().to_vec())
}

fn files(folder: &Path) -> Result<Vec<PathBuf>, Problem> {
    let mut paths = with_endings(folder, &["yaml", "yml", "json"])?;
    paths.retain(|path| path.file_name().is_some_and(|name| name != "kustomization.yaml"));
    if paths.len() > FILES {
        return Err(problem(folder, None, format!("has more than {FILES} manifests")));
    }
    if let Some(large) = paths.iter().find(|path| path.metadata().is_ok_and(|m| m.len() > FILE_BYTES)) {
        return Err(problem(large, None, format!("is larger than {} MiB", FILE_BYTES >> 20)));
    }
    Ok(paths)
}

fn with_endings(folder: &Path, endings: &[&str]) -> Result<Vec<PathBuf>, Problem> {
    let list = std::fs::read_dir(folder)
        .map_err(|error| problem(folder, None, format!("is not a folder that can be read: {error}")))?;
    let is_one =
        |path: &PathBuf| path.extension().and_then(|e| e.to_str()).is_some_and(|e| endings.contains(&e));
    let mut paths: Vec<_> = list.filter_map(|file| Some(file.ok()?.path())).filter(is_one).collect();
    paths.sort();
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
        // `kubectl get -o yaml` writes several objects as the items of a list.
        match document.get("items") {
            Some(items) => items.items().for_each(|item| read_document(path, item, snapshot)),
            None => read_document(path, document, snapshot),
        }
    }
}

fn read_document(path: &Path, document: &Tree, snapshot: &mut Snapshot) {
    let is_config_map = document.get("kind").and_then(Tree::text) == Some("ConfigMap");
    if let (true, Err(found)) = (is_config_map, read_config_map(path, document, snapshot)) {
        snapshot.problems.push(found);
    }
    if rules::is_rule(document) {
        let told = "a status rule works as an item of spec.statusRules in the host's settings, and not here";
        snapshot.problems.push(problem(path, Some(document.line), told.to_string()));
    }
}

/// Whether a label is there. Any other value than the text `"true"` is a slip that would take a
/// plugin out without a word.
fn labelled(path: &Path, metadata: Option<&Tree>, label: &str) -> Result<bool, Problem> {
    let Some(value) = metadata.and_then(|m| m.get("labels")).and_then(|labels| labels.get(label)) else {
        return Ok(false);
    };
    match value.text() {
        Some("true") => Ok(true),
        Some("false") => Ok(false),
        _ => Err(problem(
            path,
            Some(value.line),
            format!("metadata.labels.{label}: write \"true\", in quotes"),
        )),
    }
}

/// As the API server wants it: it becomes part of other names.
fn is_config_map_name(name: &str) -> bool {
    let ends = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    name.len() <= 253
        && name.starts_with(ends)
        && name.ends_with(ends)
        && name.chars().all(|c| ends(c) || c == '-' || c == '.')
}

fn read_config_map(path: &Path, document: &Tree, snapshot: &mut Snapshot) -> Result<(), Problem> {
    let metadata = document.get("metadata");
    let (is_host, is_plugin) =
        (labelled(path, metadata, HOST_LABEL)?, labelled(path, metadata, PLUGIN_LABEL)?);
    let (key, host) = match (is_host, is_plugin) {
        (true, _) => (HOST_KEY, true),
        (_, true) => (PLUGIN_KEY, false),
        _ => return Ok(()),
    };
    let name = metadata.and_then(|m| m.get("name")).and_then(Tree::text).unwrap_or_default();
    if !is_config_map_name(name) {
        let line = Some(document.line_of("metadata.name"));
        return Err(problem(path, line, format!("metadata.name: `{name}` is not the name of a ConfigMap")));
    }
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
    fn a_rule_beside_the_manifests_is_not_passed_over_in_silence() {
        let folder = tempfile::tempdir().unwrap();
        let rule = "group: example.com\nkind: Widget\ncases:\n  - {when: [], phase: Pending}\n";
        std::fs::write(folder.path().join("widget-rule.yaml"), rule).unwrap();
        std::fs::write(folder.path().join("other.yaml"), "apiVersion: v1\nkind: Secret\n").unwrap();
        let problems = read(folder.path()).unwrap().problems;
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].to_string().contains("spec.statusRules"), "{}", problems[0]);
    }

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

    fn read_one(text: &str) -> Snapshot {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.yaml"), text).unwrap();
        read(folder.path()).unwrap()
    }

    #[test]
    fn the_items_of_a_list_are_read() {
        let snapshot = read_one(
            "kind: List\nitems:\n- kind: ConfigMap\n  metadata: {name: p, labels: {kubewitness.dev/plugin: \"true\"}}\n  data: {plugin.yaml: \"x\"}\n",
        );
        assert_eq!(snapshot.plugins.len(), 1);
    }

    #[test]
    fn a_label_that_is_not_the_text_true_is_told_and_not_taken_for_none() {
        let snapshot =
            read_one("kind: ConfigMap\nmetadata: {name: p, labels: {kubewitness.dev/plugin: true}}\n");
        assert!(snapshot.problems[0].to_string().contains("in quotes"), "{:?}", snapshot.problems);
    }

    #[test]
    fn a_config_map_whose_name_is_a_path_is_refused() {
        let snapshot = read_one(
            "kind: ConfigMap\nmetadata: {name: \"..\", labels: {kubewitness.dev/plugin: \"true\"}}\ndata: {plugin.yaml: \"x\"}\n",
        );
        assert!(snapshot.plugins.is_empty() && snapshot.problems.len() == 1);
    }

    #[test]
    #[cfg(unix)]
    fn what_never_ends_is_not_read_for_ever() {
        let zero = Path::new("/dev/zero");
        let told = read_file(zero).unwrap_err().to_string();
        assert!(told.contains("larger than 16 MiB"), "{told}");
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(zero, folder.path().join("a.yaml")).unwrap();
        assert_eq!(read(folder.path()).unwrap().problems.len(), 1);
        assert!(fingerprint(folder.path()).is_some());
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
