//! Reads the documents of one file: hosts and plugins, bare or inside a ConfigMap.

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use kubewitness_core::config::{
    API_VERSION, HOST_KEY, HOST_LABEL, PLUGIN_KEY, PLUGIN_LABEL, TEMPLATE_KEY, TEMPLATE_LABEL, is_name,
};
use kubewitness_core::{nearest_name, shorten_text};

use super::problem;
use crate::config::manifest::{ManifestEntry, ManifestOrigin, ManifestProblem, VALUE, is_rule};
use crate::config::tree::YamlTree;
use crate::config::{ConfigSnapshot, decode_base64};

/// The API group of a document outside of a ConfigMap: it is one of ours, whatever its version.
const GROUP: &str = "kubewitness.dev";
const KINDS: [&str; 3] = ["Host", "Plugin", "JobTemplate"];
const CONFIG_MAP: &str = "ConfigMap";

/// The text of a file with its documents.
struct FileSource<'a> {
    path: &'a Path,
    text: &'a str,
}

pub fn read(path: &Path, text: &str, snapshot: &mut ConfigSnapshot) {
    let documents = match YamlTree::parse(text) {
        Ok(documents) => documents,
        Err(error) => return snapshot.problems.push(problem(path, Some(error.line), error.message)),
    };
    let source = FileSource { path, text };
    if text.trim().is_empty() {
        // A program that writes a file empties it first.
        let message = "is empty: write its documents, or remove the file".to_owned();
        snapshot.problems.push(problem(path, None, message));
    } else if documents.is_empty() {
        snapshot.note_passed_over(problem(path, None, "has no document".into()));
    }
    for document in &documents {
        // `kubectl get -o yaml` writes several objects as the items of a list.
        match document.get("items") {
            Some(items) => items.items().for_each(|item| source.read(item, false, snapshot)),
            None => source.read(document, true, snapshot),
        }
    }
}

impl FileSource<'_> {
    fn read(&self, document: &YamlTree, is_whole: bool, snapshot: &mut ConfigSnapshot) {
        let text = |field: &str| document.get(field).and_then(YamlTree::text);
        let version = text("apiVersion");
        let is_ours = version.is_none_or(|version| group_of(version) == GROUP);
        match text("kind") {
            _ if is_rule(document) => {
                let message =
                    "a status rule works as an item of spec.statusRules in the host's settings, and not here";
                snapshot.problems.push(self.problem(document.line, message.to_owned()));
            }
            Some(CONFIG_MAP) => {
                if let Err(found) = self.read_config_map(document, snapshot) {
                    snapshot.problems.push(found);
                }
            }
            Some("Host") if is_ours => snapshot.hosts.push(self.bare_entry("Host", document, is_whole)),
            Some("Plugin") if is_ours => snapshot.plugins.push(self.bare_entry("Plugin", document, is_whole)),
            Some("JobTemplate") if is_ours => {
                snapshot.templates.push(self.bare_entry("JobTemplate", document, is_whole));
            }
            Some(kind) if KINDS.contains(&kind) => {
                self.of_another_version(document, kind, version.unwrap_or_default(), snapshot);
            }
            Some(kind) if let Some(meant) = meant_kind(kind, is_ours, version) => {
                let message = format!("kind: is `{kind}`, which is nothing here: write `{meant}`");
                snapshot.slips.push(self.problem(document.line_of("kind"), message));
            }
            kind => {
                let other = document.get("kind").and_then(|kind| kind.other_than_text(self.text));
                let what = match (kind, other) {
                    (Some(kind), _) => format!("is a {kind}"),
                    (None, Some(other)) => format!("kind: {other}"),
                    (None, None) => "has no `kind`".into(),
                };
                let message = format!(
                    "{what}: Kubewitness reads the kinds Host, Plugin and JobTemplate, and ConfigMaps that hold them"
                );
                snapshot.note_passed_over(self.problem(document.line, message));
            }
        }
    }

    /// Another program may have a kind with the same name.
    fn of_another_version(
        &self,
        document: &YamlTree,
        kind: &str,
        version: &str,
        snapshot: &mut ConfigSnapshot,
    ) {
        let group = group_of(version);
        let is_slip = group.is_empty() || nearest_name(group, [GROUP]).is_some();
        let version = shorten_text(version, VALUE);
        let ours = format!("a {kind} of Kubewitness has `{API_VERSION}`");
        if is_slip {
            let message = format!("apiVersion: is `{version}`: {ours}");
            snapshot.slips.push(self.problem(document.line_of("apiVersion"), message));
        } else {
            snapshot
                .note_passed_over(self.problem(document.line, format!("is a {kind} of `{version}`: {ours}")));
        }
    }

    fn problem(&self, line: usize, message: String) -> ManifestProblem {
        problem(self.path, Some(line), message)
    }

    /// Treats a bare document as if it were in a ConfigMap. Its identity is its own name, so that it may move
    /// to another file. It has a slash, which the name of a ConfigMap can't have.
    fn bare_entry(&self, kind: &str, document: &YamlTree, is_whole: bool) -> ManifestEntry {
        let name =
            document.get("metadata").and_then(|metadata| metadata.get("name")).and_then(YamlTree::text);
        let file = self.path.file_name().unwrap_or_default().to_string_lossy();
        let name = name.filter(|name| is_name(name));
        let name = name.map_or_else(|| format!("{file}.{}", document.line), ToOwned::to_owned);
        let (first_line, text) = match is_whole {
            true => part(self.text, document.line),
            false => (document.line, document.to_json().to_string()),
        };
        ManifestEntry {
            config_map: format!("{kind}/{name}"),
            origin: self.origin(first_line),
            text,
            binary: BTreeMap::new(),
        }
    }

    fn origin(&self, first_line: usize) -> ManifestOrigin {
        let folder = self.path.parent().map(Path::to_path_buf);
        ManifestOrigin { place: self.path.display().to_string(), first_line, folder }
    }

    /// Whether a label is set. Any value other than the text `"true"` is a mistake that would silently remove
    /// a plugin.
    fn has_label(&self, metadata: Option<&YamlTree>, label: &str) -> Result<bool, ManifestProblem> {
        let Some(value) = metadata.and_then(|m| m.get("labels")).and_then(|labels| labels.get(label)) else {
            return Ok(false);
        };
        match value.text() {
            Some("true") => Ok(true),
            Some("false") => Ok(false),
            _ => Err(self.problem(value.line, format!("metadata.labels.{label}: write \"true\", in quotes"))),
        }
    }

    fn read_config_map(
        &self,
        document: &YamlTree,
        snapshot: &mut ConfigSnapshot,
    ) -> Result<(), ManifestProblem> {
        let metadata = document.get("metadata");
        let (key, list) = if self.has_label(metadata, HOST_LABEL)? {
            (HOST_KEY, &mut snapshot.hosts)
        } else if self.has_label(metadata, PLUGIN_LABEL)? {
            (PLUGIN_KEY, &mut snapshot.plugins)
        } else if self.has_label(metadata, TEMPLATE_LABEL)? {
            (TEMPLATE_KEY, &mut snapshot.templates)
        } else {
            self.pass_over_config_map(document, snapshot);
            return Ok(());
        };
        let name = metadata.and_then(|m| m.get("name"));
        let other = name.map_or_else(|| Some("is missing".into()), |name| name.other_than_text(self.text));
        let name = name.and_then(YamlTree::text).unwrap_or_default();
        let other = other.or_else(|| {
            (!is_config_map_name(name)).then(|| format!("`{name}` is not the name of a ConfigMap"))
        });
        if let Some(other_name) = other {
            return Err(
                self.problem(document.line_of("metadata.name"), format!("metadata.name: {other_name}"))
            );
        }
        let Some(value) = document.get("data").and_then(|data| data.get(key)) else {
            return Err(self.problem(document.line_of("data"), format!("data: has no key `{key}`")));
        };
        let Some(text) = value.text() else {
            return Err(self.problem(value.line, format!("data.{key}: is not text: begin it with `|`")));
        };
        // A block begins on the line after its key; leading empty lines belong to the text.
        let blank = text.bytes().take_while(|byte| *byte == b'\n').count();
        list.push(ManifestEntry {
            config_map: name.to_string(),
            origin: self.origin(value.line.saturating_sub(blank)),
            text: text.to_string(),
            binary: self.binary_data(document)?,
        });
        Ok(())
    }

    /// A ConfigMap with the keys of a labelled one probably lacks its label by mistake.
    fn pass_over_config_map(&self, document: &YamlTree, snapshot: &mut ConfigSnapshot) {
        let has = |key: &str| document.get("data").is_some_and(|data| data.get(key).is_some());
        let keys = [(HOST_KEY, HOST_LABEL), (PLUGIN_KEY, PLUGIN_LABEL), (TEMPLATE_KEY, TEMPLATE_LABEL)];
        let slip = keys.into_iter().find(|(key, _)| has(key));
        match slip {
            Some((key, label)) => snapshot.slips.push(self.problem(
                document.line,
                format!("is a ConfigMap with `{key}`, and not taken without the label {label}: \"true\""),
            )),
            None => snapshot.note_passed_over(self.problem(
                document.line,
                format!("is a ConfigMap without the label {HOST_LABEL} or {PLUGIN_LABEL}: \"true\""),
            )),
        }
    }

    fn binary_data(&self, document: &YamlTree) -> Result<BTreeMap<String, Bytes>, ManifestProblem> {
        let Some(data) = document.get("binaryData") else { return Ok(BTreeMap::new()) };
        data.entries()
            .map(|(key, value)| {
                let bytes = value.text().and_then(decode_base64);
                let bytes = bytes
                    .ok_or_else(|| self.problem(value.line, format!("binaryData.{key}: is not base64")))?;
                Ok((key.to_string(), bytes.into()))
            })
            .collect()
    }
}

fn group_of(version: &str) -> &str {
    version.split_once('/').map_or("", |(group, _)| group)
}

/// A kind of ours, or ConfigMap, in another spelling.
fn meant_kind(kind: &str, is_ours: bool, version: Option<&str>) -> Option<&'static str> {
    let kinds = KINDS.into_iter().filter(|_| is_ours);
    let config_map = (is_ours || version == Some("v1")).then_some(CONFIG_MAP);
    nearest_name(kind, kinds.chain(config_map)).filter(|_| !kind.ends_with("List"))
}

/// In the form that the API server requires, because it becomes part of other names.
fn is_config_map_name(name: &str) -> bool {
    let ends = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    name.len() <= 253
        && name.starts_with(ends)
        && name.ends_with(ends)
        && name.chars().all(|c| ends(c) || c == '-' || c == '.')
}

/// The part of a text with the document at this line, and the line where it begins.
fn part(text: &str, line: usize) -> (usize, String) {
    let begins = |line: &str| line == "---" || line.starts_with("--- ") || line.starts_with("---\t");
    let marks = text.lines().enumerate().filter(|(_, text)| begins(text)).map(|(index, _)| index + 1);
    let (mut first, mut end) = (1, usize::MAX);
    for mark in marks {
        if mark <= line {
            first = mark;
        } else {
            end = end.min(mark);
        }
    }
    let part: Vec<_> = text.lines().skip(first - 1).take(end - first).collect();
    (first, part.join("\n") + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::folder::of_text;
    use crate::config::manifest::{parse_host, parse_plugin};

    const HOST: &str = "# the host\napiVersion: kubewitness.dev/v1alpha1\nkind: Host\nmetadata: {name: host}\nspec:\n  sources: [{name: jobs, apiVersion: batch/v1, kind: Job}]\n";
    const PLUGIN: &str = "apiVersion: kubewitness.dev/v1alpha1\nkind: Plugin\nmetadata: {name: notify}\nspec:\n  module: {file: a.wasm}\n  subscribe: [{source: jobs}]\n";

    fn read_one(text: &str) -> ConfigSnapshot {
        of_text(Path::new("dir/a.yaml"), text)
    }

    fn passed_over(snapshot: &ConfigSnapshot) -> Vec<String> {
        snapshot.passed_over.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_host_and_a_plugin_in_no_config_map_are_taken_as_they_are() {
        let snapshot = read_one(&format!("{HOST}--- # and\n{PLUGIN}---\nkind: Secret\n"));
        assert!(snapshot.problems.is_empty(), "{:?}", snapshot.problems);
        let host = parse_host(snapshot.only_host().unwrap()).unwrap();
        assert_eq!(host.spec.sources[0].name, "jobs");
        let [entry] = snapshot.plugins.as_slice() else { panic!("{:?}", snapshot.plugins) };
        let plugin = parse_plugin(entry, &host.spec).unwrap();
        assert_eq!((plugin.name.as_str(), entry.config_map.as_str()), ("notify", "Plugin/notify"));
        assert_eq!(entry.origin.folder.as_deref(), Some(Path::new("dir")), "where its component lies");
    }

    #[test]
    fn a_fault_of_a_document_has_the_line_of_its_file() {
        let wrong = PLUGIN.replace("source: jobs", "sauce: jobs");
        let snapshot = read_one(&format!("{HOST}---\n{wrong}---\nkind: Secret\n"));
        let host = parse_host(snapshot.only_host().unwrap()).unwrap().spec;
        let problems = parse_plugin(&snapshot.plugins[0], &host).unwrap_err();
        assert!(
            problems[0].to_string().starts_with("dir/a.yaml:13: spec.subscribe[0].sauce"),
            "{problems:?}"
        );
        let list = read_one("kind: List\nitems:\n- kind: Plugin\n  metadata: {name: p}\n");
        let problems = parse_plugin(&list.plugins[0], &host).unwrap_err();
        assert_eq!(problems[0].line, Some(3), "{problems:?}");
    }

    #[test]
    fn a_document_of_another_version_of_ours_is_refused_and_one_of_somebody_else_is_not_ours() {
        let newer = read_one(&PLUGIN.replace("v1alpha1", "v9"));
        let refused = parse_plugin(&newer.plugins[0], &Default::default()).unwrap_err();
        assert!(refused[0].message.contains("this version reads"), "{refused:?}");
        let other = read_one(&PLUGIN.replace("kubewitness.dev/v1alpha1", "getambassador.io/v2"));
        assert!(other.plugins.is_empty());
        assert!(
            passed_over(&other)[0]
                .starts_with("dir/a.yaml:1: is a Plugin of `getambassador.io/v2`: a Plugin of Kubewitness"),
            "{other:?}"
        );
    }

    /// Its name is unusable, so it is treated separately and not as another document's.
    #[test]
    fn a_document_without_a_name_is_nobody_elses() {
        let nameless = read_one(&PLUGIN.replace("name: notify", "name: n"));
        let entry = &nameless.plugins[0];
        assert_eq!(entry.config_map, "Plugin/a.yaml.1");
        assert_eq!(entry.set_apart(), "document.a.yaml.1");
        assert_eq!(entry.shown_as(), "document.a.yaml.1", "`check` and the controller call it the same");
        assert_eq!(read_one(PLUGIN).plugins[0].shown_as(), "notify");
        let error = parse_plugin(entry, &Default::default()).unwrap_err();
        assert!(error[0].to_string().contains("metadata.name: YAML reads `n` as a boolean"), "{error:?}");
    }

    #[test]
    fn what_is_not_taken_is_named_with_the_reason() {
        let ignored = passed_over(&read_one(
            "kind: Deployment\n---\nfoo: 1\n---\nkind: ConfigMap\nmetadata: {name: c}\n",
        ));
        assert!(ignored[0].starts_with("dir/a.yaml:1: is a Deployment: Kubewitness reads"), "{ignored:?}");
        assert!(ignored[1].starts_with("dir/a.yaml:3: has no `kind`"), "{ignored:?}");
        assert!(ignored[2].starts_with("dir/a.yaml:5: is a ConfigMap without the label"), "{ignored:?}");
        assert_eq!(passed_over(&read_one("# nothing yet\n")), ["dir/a.yaml: has no document"]);
    }

    #[test]
    fn a_file_that_is_empty_is_one_that_can_not_be_read() {
        for text in ["", "\n \n"] {
            let [problem] = read_one(text).problems.try_into().unwrap();
            assert!(
                problem.to_string().starts_with("dir/a.yaml: is empty: write its documents"),
                "{problem}"
            );
        }
    }

    #[test]
    fn a_config_map_of_ours_without_its_label_is_told_as_a_slip() {
        let text = "kind: ConfigMap\nmetadata: {name: p}\ndata: {plugin.yaml: \"x\"}\n";
        let [slip] = read_one(text).slips.try_into().unwrap();
        assert!(slip.message.ends_with("without the label kubewitness.dev/plugin: \"true\""), "{slip}");
        let wrong = text.replace("name: p", "name: p, labels: {kubewitness.dev/plugin: \"false\"}");
        assert_eq!(read_one(&wrong).slips.len(), 1);
    }

    #[test]
    fn the_name_of_a_config_map_that_yaml_reads_as_something_else_is_told_as_what_it_is() {
        let named = |name: &str| {
            let text = format!(
                "kind: ConfigMap\nmetadata: {{name: {name}, labels: {{kubewitness.dev/plugin: \"true\"}}}}\n"
            );
            read_one(&text).problems[0].to_string()
        };
        assert!(named("n").contains(
            ":2: metadata.name: YAML reads `n` as a boolean, and this field is text: write it in quotes"
        ));
        assert!(named("1e3").contains("YAML reads `1e3` as a number"));
        assert!(named("\"\"").contains("`` is not the name of a ConfigMap"));
    }

    #[test]
    fn many_that_are_passed_over_are_counted_and_not_kept() {
        let snapshot = read_one(&"---\nkind: Pod\n".repeat(200));
        assert!(snapshot.passed_over.len() < 200);
        assert_eq!(snapshot.passed_over.len() + snapshot.more_passed_over, 200);
    }
}
