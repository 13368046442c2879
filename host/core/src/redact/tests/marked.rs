//! Measures the default rules by manifests in which each secret is marked, and writes the figures into
//! `docs/reference/secrets.md`.
//!
//! `⟦…⟧` marks a secret. `⟪…⟫` marks one that the default rules are known to show. A manifest is searched without its
//! marks, and the rules are right if they hide exactly what was marked. So a rule that finds more must unmark what it
//! finds, and one that hides what is no secret is noticed.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use kubewitness_harness::{GENERATED, cell, project_root, reference};

use super::*;

const FOLDER: &str = "host/core/marked-secrets";
const INTRODUCTION: &str = "\
The default rules of `spec.redaction` look for secrets in documents of any kind. This page says how well they do on manifests in\n\
which each secret was marked by hand: `host/core/marked-secrets`. They have the form that the charts and controllers give them,\n\
and were written for this measurement. A text is kept if all of it that is no secret stays readable.\n\n\
[Hide secrets](../how-to/hide-secrets.md) says what is hidden, how to hide more, and what is not hidden.";

/// A text with the secrets in it.
struct MarkedText {
    plain: String,
    /// The text with a digest in the place of each secret that the rules hide.
    expected: String,
    hidden: Vec<String>,
    shown: Vec<String>,
}

impl MarkedText {
    fn of(marked: &str) -> Self {
        let mut text =
            Self { plain: String::new(), expected: String::new(), hidden: Vec::new(), shown: Vec::new() };
        let mut rest = marked;
        while let Some((before, after)) = rest.split_once(['⟦', '⟪']) {
            let is_hidden = rest[before.len()..].starts_with('⟦');
            let (secret, after) = after.split_once(['⟧', '⟫']).expect("a mark that ends");
            text.plain.extend([before, secret]);
            text.expected.extend([before, if is_hidden { DIGEST } else { secret }]);
            if is_hidden { &mut text.hidden } else { &mut text.shown }.push(secret.to_owned());
            rest = after;
        }
        text.plain += rest;
        text.expected += rest;
        text
    }

    fn has_plain_text(&self) -> bool {
        self.expected.replace(DIGEST, "").chars().any(char::is_alphanumeric)
    }
}

const DIGEST: &str = "redacted:0";

/// The findings about one manifest.
#[derive(Default)]
struct ManifestFigures {
    about: String,
    secrets: usize,
    texts: usize,
    /// The places of secrets that are shown, known or not.
    missed: Vec<String>,
    /// The places of texts of which too much is hidden.
    lost: Vec<String>,
    /// Differences from the marks.
    wrong: Vec<String>,
}

fn collect_texts(value: &Value, path: &str, texts: &mut BTreeMap<String, String>) {
    match value {
        Value::String(text) => drop(texts.insert(path.to_owned(), text.clone())),
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                collect_texts(item, &format!("{path}[{index}]"), texts);
            }
        }
        Value::Object(fields) => {
            for (name, field) in fields {
                collect_texts(field, &format!("{path}.{name}"), texts);
            }
        }
        _ => {}
    }
}

fn without_marks(value: &mut Value) {
    match value {
        Value::String(text) => *text = MarkedText::of(text).plain,
        Value::Array(items) => items.iter_mut().for_each(without_marks),
        Value::Object(fields) => fields.values_mut().for_each(without_marks),
        _ => {}
    }
}

fn judge(manifest: &str) -> ManifestFigures {
    let marked: Value = serde_saphyr::from_str(manifest).expect("YAML");
    let mut plain = marked.clone();
    without_marks(&mut plain);
    let document = plain.to_string();
    let rules = HostSpec::default().compile_redaction_rules().expect("the default rules");
    let shown = rules.redact_document(document.as_bytes(), |_| "0".to_owned()).expect("is searched");
    let shown = shown.unwrap_or_else(|| document.into_bytes());
    let (mut texts, mut shown_texts) = (BTreeMap::new(), BTreeMap::new());
    collect_texts(&marked, "", &mut texts);
    collect_texts(&serde_json::from_slice(&shown).expect("JSON"), "", &mut shown_texts);
    let about = manifest.lines().next().and_then(|line| line.strip_prefix("# ")).expect("a comment");
    let mut figures = ManifestFigures { about: about.to_owned(), ..ManifestFigures::default() };
    for (path, text) in texts {
        let (text, shown) = (MarkedText::of(&text), &shown_texts[&path]);
        let path = path.trim_start_matches('.');
        figures.secrets += text.hidden.len() + text.shown.len();
        figures.texts += usize::from(text.has_plain_text());
        figures.missed.extend(text.shown.iter().map(|_| path.to_owned()));
        if *shown == text.expected {
            continue;
        }
        figures.wrong.push(format!("{path}: `{shown}` instead of `{}`", text.expected));
        let missed = text.hidden.iter().filter(|secret| shown.contains(secret.as_str()));
        let missed: Vec<_> = missed.map(|_| path.to_owned()).collect();
        if missed.is_empty() {
            figures.lost.push(path.to_owned());
        }
        figures.missed.extend(missed);
    }
    figures
}

/// By the name of the manifest.
fn judge_all() -> BTreeMap<String, ManifestFigures> {
    let files = std::fs::read_dir(project_root().join(FOLDER)).expect("the manifests");
    let paths = files.map(|file| file.expect("a file").path());
    paths
        .map(|path| {
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            (name, judge(&std::fs::read_to_string(&path).expect("a manifest")))
        })
        .collect()
}

#[test]
fn the_default_rules_hide_what_is_marked_and_nothing_else() {
    let wrong: Vec<_> = judge_all()
        .into_iter()
        .flat_map(|(name, figures)| figures.wrong.into_iter().map(move |wrong| format!("{name}: {wrong}")))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_reference_says_how_well_marked_secrets_are_found() {
    let all = judge_all();
    let mut page = format!("{GENERATED}# How well secrets are found\n\n{INTRODUCTION}\n\n");
    page += "| manifest | what it is | secrets | hidden | other texts | kept |\n|---|---|---|---|---|---|\n";
    let mut sums = [0; 4];
    let row = |page: &mut String, name: &str, about: &str, figures: [usize; 4]| {
        let [secrets, hidden, texts, kept] = figures;
        writeln!(page, "| {name} | {} | {secrets} | {hidden} | {texts} | {kept} |", cell(about))
            .expect("a text");
    };
    for (name, found) in &all {
        let figures =
            [found.secrets, found.secrets - found.missed.len(), found.texts, found.texts - found.lost.len()];
        sums.iter_mut().zip(figures).for_each(|(sum, figure)| *sum += figure);
        row(&mut page, name, &found.about, figures);
    }
    row(&mut page, "**all**", "", sums);
    page += "\n## Secrets that stay shown\n\nTo hide one, put it into a `Secret`, or name its field.\n\n| manifest | place |\n|---|---|\n";
    for (name, found) in &all {
        for place in &found.missed {
            writeln!(page, "| {name} | `{}` |", cell(place)).expect("a text");
        }
    }
    reference("secrets.md", &page);
}
