//! Turns a text into a checked manifest, or into all of its faults with file, line and field.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use bytes::Bytes;
use kubewitness_core::config::templates::{TEMPLATE_BYTES, TemplateSpec};
use kubewitness_core::config::{API_VERSION, HostSpec, Manifest, ManifestFault, PluginSpec, is_name};
use kubewitness_core::limits::ERROR_TEXT;
use kubewitness_core::{shorten_text, with_nearest};
use kubewitness_filter::CelFilter;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::tree::YamlTree;

/// How many bytes of a value a message shows, enough for a person to recognize it.
pub(super) const VALUE: usize = 120;
/// How many bytes of a field's path a message shows.
const FIELD: usize = 256;

/// The place of a manifest, in a form that people can find.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestOrigin {
    /// A file's path, or `configmap NAMESPACE/NAME`.
    pub place: String,
    /// The line of `place` where the manifest's first line is.
    pub first_line: usize,
    /// The folder from which a relative component path starts.
    pub folder: Option<PathBuf>,
}

/// One host or plugin document, not yet parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestEntry {
    /// The ConfigMap's name: its status and events refer to it. A document outside of a ConfigMap has a name
    /// with a slash, which no ConfigMap has.
    pub config_map: String,
    pub origin: ManifestOrigin,
    pub text: String,
    pub binary: BTreeMap<String, Bytes>,
}

impl ManifestEntry {
    /// The name for people.
    pub fn display_name(&self) -> &str {
        self.config_map.split_once('/').map_or(&self.config_map, |(_, document)| document)
    }

    /// The same, and a document without a name as the controller shows it.
    pub fn shown_as(&self) -> String {
        match self.config_map.contains('/') && claimed_name(self).is_none() {
            true => self.set_apart(),
            false => self.display_name().to_owned(),
        }
    }

    /// A display name that no plugin can have.
    pub fn set_apart(&self) -> String {
        match self.config_map.split_once('/') {
            Some((_, document)) => format!("document.{document}"),
            None => format!("configmap.{}", self.config_map),
        }
    }
}

/// A fault with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestProblem {
    pub place: String,
    pub line: Option<usize>,
    pub field: String,
    pub message: String,
}

impl ManifestProblem {
    /// A fault of a whole place or line, not of one field.
    pub fn of(place: impl Into<String>, line: Option<usize>, message: impl Into<String>) -> Self {
        let message = shorten_text(&message.into(), ERROR_TEXT).into_owned();
        Self { place: place.into(), line, field: String::new(), message }
    }
}

impl fmt::Display for ManifestProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.place)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if !self.field.is_empty() {
            write!(f, ": {}", self.field)?;
        }
        write!(f, ": {}", self.message)
    }
}

/// A manifest that parsed, with its lines for later faults.
#[derive(Clone, Debug)]
pub struct ParsedManifest<Spec> {
    pub name: String,
    pub spec: Spec,
    pub entry: ManifestEntry,
    tree: YamlTree,
    /// Whether its component is that of the manifest's shadow.
    is_shadow: bool,
}

impl<Spec> ParsedManifest<Spec> {
    pub fn problems(&self, faults: Vec<ManifestFault>) -> Vec<ManifestProblem> {
        faults
            .into_iter()
            .map(|fault| if self.is_shadow { of_shadow(fault) } else { fault })
            .map(|fault| locate_fault(&self.entry.origin, &self.tree, &fault.field, &fault.message))
            .collect()
    }
}

impl ParsedManifest<PluginSpec> {
    /// The same plugin, with the component of its shadow.
    pub fn shadow(&self) -> Option<Self> {
        let module = self.spec.shadow.as_ref()?.module.clone();
        let spec = PluginSpec { module, shadow: None, ..self.spec.clone() };
        Some(Self { spec, is_shadow: true, ..self.clone() })
    }
}

fn of_shadow(fault: ManifestFault) -> ManifestFault {
    match fault.field.strip_prefix("spec.module") {
        Some(rest) => ManifestFault { field: format!("spec.shadow.module{rest}"), ..fault },
        None => {
            ManifestFault { message: format!("the component of `spec.shadow`: {}", fault.message), ..fault }
        }
    }
}

pub fn parse_host(entry: &ManifestEntry) -> Result<ParsedManifest<HostSpec>, Vec<ManifestProblem>> {
    let parsed = parse::<HostSpec>(entry, "Host")?;
    let faults = parsed.spec.check();
    if faults.is_empty() { Ok(parsed) } else { Err(parsed.problems(faults)) }
}

/// Checks names against `host`. The component is not examined.
pub fn parse_plugin(
    entry: &ManifestEntry,
    host: &HostSpec,
) -> Result<ParsedManifest<PluginSpec>, Vec<ManifestProblem>> {
    let parsed = parse::<PluginSpec>(entry, "Plugin")?;
    let mut faults = parsed.spec.check(host);
    faults.extend(filter_faults(&parsed.spec));
    if faults.is_empty() { Ok(parsed) } else { Err(parsed.problems(faults)) }
}

pub fn parse_template(entry: &ManifestEntry) -> Result<ParsedManifest<TemplateSpec>, Vec<ManifestProblem>> {
    if entry.text.len() > TEMPLATE_BYTES {
        let message = format!("is larger than {} KiB: a template is one Job", TEMPLATE_BYTES >> 10);
        return Err(vec![ManifestProblem::of(&entry.origin.place, Some(entry.origin.first_line), message)]);
    }
    let parsed = parse::<TemplateSpec>(entry, "JobTemplate")?;
    let faults = parsed.spec.check();
    if faults.is_empty() { Ok(parsed) } else { Err(parsed.problems(faults)) }
}

/// The faults of a plugin's filters.
fn filter_faults(spec: &PluginSpec) -> Vec<ManifestFault> {
    let filters =
        spec.subscribe.iter().enumerate().filter_map(|(index, s)| Some((index, s.filter.as_deref()?)));
    let fault = |(index, text)| {
        let fault = CelFilter::compile_filter(text).err()?;
        Some(ManifestFault { field: format!("spec.subscribe[{index}].filter"), message: fault.to_string() })
    };
    filters.filter_map(fault).collect()
}

fn parse<Spec: DeserializeOwned>(
    entry: &ManifestEntry,
    kind: &str,
) -> Result<ParsedManifest<Spec>, Vec<ManifestProblem>> {
    let origin = &entry.origin;
    let whole = |line: usize, message: String| {
        vec![ManifestProblem::of(&origin.place, Some(origin.first_line + line - 1), message)]
    };
    let mut trees = YamlTree::parse(&entry.text).map_err(|error| whole(error.line.max(1), error.message))?;
    let tree = match trees.len() {
        1 => trees.remove(0),
        0 => return Err(whole(1, format!("is empty: write one {kind} document"))),
        _ => {
            return Err(whole(
                trees[1].line,
                format!("has several documents: one {kind} document is expected"),
            ));
        }
    };
    let json = tree.to_json();
    let fault = |field: &str, message: String| vec![locate_fault(origin, &tree, field, &message)];
    if json["apiVersion"] != API_VERSION {
        return Err(fault(
            "apiVersion",
            format!("is {}: this version reads `{API_VERSION}`", value_text(&json["apiVersion"])),
        ));
    }
    if json["kind"] != kind {
        return Err(fault(
            "kind",
            format!("is {}, and `{kind}` is expected here", value_text(&json["kind"])),
        ));
    }
    let manifest: Manifest<Spec> = serde_path_to_error::deserialize(&json).map_err(|error| {
        let path = error.path().to_string();
        let field = if path == "." { String::new() } else { path };
        let message = of_fields(error.into_inner().to_string());
        let other = message.ends_with("expected a string").then(|| tree.nearest(&field));
        fault(&field, other.and_then(|value| value.other_than_text(&entry.text)).unwrap_or(message))
    })?;
    // The name becomes part of paths, and of names in the cluster.
    if !is_name(&manifest.metadata.name) {
        let name = shorten_text(&manifest.metadata.name, VALUE);
        let message = format!("`{name}` is not a name: use up to 63 lower-case letters, digits and dashes");
        return Err(fault("metadata.name", message));
    }
    Ok(ParsedManifest {
        name: manifest.metadata.name,
        spec: manifest.spec,
        entry: entry.clone(),
        tree,
        is_shadow: false,
    })
}

/// Removes the type's name, which means nothing to an operator.
fn of_fields(message: String) -> String {
    match message.split_once("expected struct ") {
        Some((before, _)) => format!("{before}expected a map of fields"),
        None => message,
    }
}

/// The document's own name, if it can be read.
pub fn claimed_name(entry: &ManifestEntry) -> Option<String> {
    let tree = YamlTree::parse(&entry.text).ok()?.into_iter().next()?;
    let name = tree.get("metadata")?.get("name")?.text()?;
    is_name(name).then(|| name.to_string())
}

/// Whether a document is meant as a rule: it has `cases`, or at least a `group` and a `kind`, and no version
/// that a cluster knows.
pub(super) fn is_rule(tree: &YamlTree) -> bool {
    let has = |field: &str| tree.get(field).is_some();
    (has("cases") || has("group") && has("kind")) && !has("apiVersion")
}

/// Adds the line of a fault, and the name that was probably meant. Faults of components also pass through
/// here.
pub(super) fn locate_fault(
    origin: &ManifestOrigin,
    tree: &YamlTree,
    field: &str,
    message: &str,
) -> ManifestProblem {
    let line = Some(origin.first_line + tree.line_of(field) - 1);
    let problem = ManifestProblem::of(&origin.place, line, with_nearest(message));
    ManifestProblem { field: shorten_text(field, FIELD).into_owned(), ..problem }
}

fn value_text(value: &Value) -> String {
    match value {
        Value::Null => "missing".into(),
        Value::String(text) => format!("`{}`", shorten_text(text, VALUE)),
        other => format!("`{}`", shorten_text(&other.to_string(), VALUE)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(text: &str) -> ManifestEntry {
        ManifestEntry {
            config_map: "p".into(),
            origin: ManifestOrigin { place: "plugins.yaml".into(), first_line: 10, folder: None },
            text: text.into(),
            binary: BTreeMap::new(),
        }
    }

    fn host() -> HostSpec {
        let text = "apiVersion: kubewitness.dev/v1alpha1\nkind: Host\nmetadata: {name: host}\nspec:\n  sources:\n    - {name: jobs, apiVersion: batch/v1, kind: Job}\n";
        parse_host(&entry(text)).unwrap().spec
    }

    fn plugin_problems(spec: &str) -> Vec<String> {
        let text = format!(
            "apiVersion: kubewitness.dev/v1alpha1\nkind: Plugin\nmetadata: {{name: p}}\nspec:\n{spec}"
        );
        parse_plugin(&entry(&text), &host()).unwrap_err().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_fault_names_file_line_and_field() {
        let problems = plugin_problems("  module: {file: a.wasm}\n  subscribe:\n    - source: pods\n");
        assert_eq!(
            problems,
            ["plugins.yaml:16: spec.subscribe[0].source: the controller has no source `pods`; it has jobs"]
        );
    }

    #[test]
    fn a_name_that_the_host_does_not_have_is_told_with_the_one_that_is_meant() {
        for (spec, expected) in [
            (
                "  subscribe: [{source: jbos}]",
                "spec.subscribe[0].source: the controller has no source `jbos`: is `jobs` meant?",
            ),
            (
                "  subscribe: [{source: jobs, filter: state.phaze == 'a'}]",
                "spec.subscribe[0].filter: a state has no `phaze`: is `phase` meant? (line 1, column 7 of the filter)",
            ),
            (
                "  subscribe: [{source: jobs, mode: transition}]",
                "spec.subscribe[0].mode: unknown variant `transition`, expected one of `every`, `transitions`, `latest`: is `transitions` meant?",
            ),
        ] {
            let problems = plugin_problems(&format!("  module: {{file: a.wasm}}\n{spec}\n"));
            assert!(problems[0].contains(expected), "{problems:?}");
        }
    }

    #[test]
    fn what_a_fault_repeats_of_a_manifest_is_bounded() {
        let long = "a".repeat(1 << 20);
        let text = format!(
            "apiVersion: kubewitness.dev/v1alpha1\nkind: Plugin\nmetadata: {{name: {long}}}\nspec: {{module: {{file: \
             a.wasm}}, subscribe: [{{source: jobs}}]}}\n"
        );
        let of_name = parse_plugin(&entry(&text), &host()).unwrap_err().remove(0).to_string();
        assert!(of_name.contains("a…` is not a name") && of_name.len() < 300, "{}", of_name.len());
        for spec in [
            format!("  module: {{file: a.wasm}}\n  subscribe: [{{source: {long}}}]\n"),
            format!("  module: {{file: a.wasm}}\n  subscribe: [{{source: jobs, {long}: 1}}]\n"),
            format!("  module: {{file: a.wasm}}\n  subscribe: [{{source: jobs, mode: {long}}}]\n"),
        ] {
            let problems = plugin_problems(&spec);
            assert!(problems.iter().map(String::len).sum::<usize>() < 10_000, "{}", problems.concat().len());
        }
    }

    #[test]
    fn a_filter_with_a_fault_is_refused_with_its_place_and_what_there_is() {
        let problems = plugin_problems(
            "  module: {file: a.wasm}\n  subscribe:\n    - source: jobs\n      filter: state.phaze == 'Failed'\n",
        );
        assert!(
            problems[0].starts_with(
                "plugins.yaml:17: spec.subscribe[0].filter: a state has no `phaze`: is `phase` meant?"
            ),
            "{problems:?}"
        );
        assert!(problems[0].ends_with("(line 1, column 7 of the filter)"), "{problems:?}");
    }

    #[test]
    fn an_unknown_field_is_refused_where_it_stands() {
        let problems = plugin_problems(
            "  module: {file: a.wasm}\n  subscribe: [{source: jobs}]\n  delivery:\n    batsh: 3\n",
        );
        assert!(
            problems[0].starts_with("plugins.yaml:17: spec.delivery.batsh: unknown field `batsh`"),
            "{problems:?}"
        );
    }

    #[test]
    fn a_value_of_the_wrong_kind_is_refused_where_it_stands() {
        let problems = plugin_problems(
            "  module: {file: a.wasm}\n  subscribe: [{source: jobs}]\n  limits:\n    call: soon\n",
        );
        assert!(
            problems[0].starts_with("plugins.yaml:17: spec.limits.call: `soon` is not a duration"),
            "{problems:?}"
        );
    }

    #[test]
    fn a_name_that_yaml_reads_as_something_else_is_told_as_what_it_is() {
        for (name, expected) in [
            ("n", "YAML reads `n` as a boolean, and this field is text: write it in quotes"),
            ("123", "YAML reads `123` as a number"),
            ("1e3", "YAML reads `1e3` as a number"),
            ("null", "YAML reads `null` as nothing"),
        ] {
            let head = "apiVersion: kubewitness.dev/v1alpha1\nkind: Plugin\n";
            let spec = "spec: {module: {file: a.wasm}, subscribe: [{source: jobs}]}\n";
            let text = format!("{head}metadata: {{name: {name}}}\n{spec}");
            let problems = parse_plugin(&entry(&text), &host()).unwrap_err();
            assert!(
                problems[0].to_string().starts_with(&format!("plugins.yaml:12: metadata.name: {expected}"))
            );
        }
        let source = plugin_problems("  module: {file: a.wasm}\n  subscribe:\n    - source: off\n");
        assert!(source[0].contains("subscribe[0].source: YAML reads `off` as a boolean"), "{source:?}");
    }

    #[test]
    fn a_name_that_would_leave_its_folder_is_refused() {
        for name in ["../../victim", "..", "a/b", "A", ""] {
            let text = format!(
                "apiVersion: kubewitness.dev/v1alpha1\nkind: Plugin\nmetadata: {{name: \"{name}\"}}\nspec: {{module: {{file: a}}, subscribe: [{{source: jobs}}]}}\n"
            );
            let problems = parse_plugin(&entry(&text), &host()).unwrap_err();
            assert_eq!(problems[0].field, "metadata.name", "{name}");
            assert_eq!(claimed_name(&entry(&text)), None);
        }
    }

    #[test]
    fn another_kind_of_document_is_refused() {
        let problems = parse_host(&entry("apiVersion: v1\nkind: Host\n")).unwrap_err();
        assert_eq!(
            problems[0].to_string(),
            "plugins.yaml:10: apiVersion: is `v1`: this version reads `kubewitness.dev/v1alpha1`"
        );
        assert!(parse_host(&entry("")).unwrap_err()[0].to_string().contains("is empty"));
    }
}
