//! The needs of a plugin, compared with the grants in its manifest.

use std::collections::BTreeSet;

use kubewitness_core::shorten_text;
use kubewitness_core::views::{GrantUseView, ManifestView};
use maud::{Markup, html};
use serde_json::{Map, Value};

use crate::answer::time::duration_text;
use crate::pages::parts::{grouped_figure, with_code};

/// How many bytes of a configuration are shown. The manifest has the rest.
const SHOWN: usize = 16 * 1024;
/// How many bytes of a value are shown beside its field.
const SET: usize = 80;

pub(super) fn render_manifest(plugin: &str, manifest: &ManifestView, uses: &[GrantUseView]) -> Markup {
    let names: BTreeSet<&str> = manifest
        .declared
        .iter()
        .map(String::as_str)
        .chain(manifest.granted.iter().map(|it| it.name.as_str()))
        .collect();
    html! {
        details.commands {
            summary { "Grants and configuration" span.unseen { " of " (plugin) } }
            div.scroll tabindex="0" role="group" aria-label={ "Grants of " (plugin) } {
                table.plain.grants.folds {
                    caption { "What it asks for, and what its manifest grants it" }
                    thead { tr {
                        th scope="col" { "Capability" }
                        th scope="col" { "Asked for" }
                        th scope="col" { "Granted" }
                        th scope="col" { "Calls since it started" }
                    } }
                    tbody { @for name in names { (render_row(name, manifest, uses)) } }
                }
            }
            p {
                "It subscribes to " (manifest.sources.join(", ")) ". One call may take "
                (duration_text(manifest.call_limit_ms)) ", and one instance "
                (grouped_figure(manifest.memory_limit >> 20)) " MiB of memory."
            }
            @match &manifest.config {
                None => p {
                    "Its configuration is not shown. It takes the verb " code { "get" } " on " code { "plugins" } " in "
                    code { "kubewitness.dev" } ", and a controller that has its redaction key."
                }
                Some(config) if config.is_empty() => p { "It has no configuration of its own." },
                Some(config) => pre.document tabindex="0" aria-label={ "Configuration of " (plugin) } { (text(config)) },
            }
            @if !manifest.fields.is_empty() { (render_fields(plugin, manifest)) }
        }
    }
}

/// The fields of the schema, with the values that are set.
fn render_fields(plugin: &str, manifest: &ManifestView) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label={ "Fields of the configuration of " (plugin) } {
            table.plain.grants.folds {
                caption { "What its configuration may have, as the component says" }
                thead { tr {
                    th scope="col" { "Field" }
                    th scope="col" { "Set to" }
                    th scope="col" { "Type" }
                    th scope="col" { "Default" }
                    th scope="col" { "Meaning" }
                } }
                tbody {
                    @for field in &manifest.fields {
                        tr data-key={ "field-" (field.field) } {
                            th scope="row" { code { (field.field) } }
                            td data-label="Set to" { @if let Some(set) = value_at(&field.field, manifest.config.as_ref()) { code { (set) } } }
                            td data-label="Type" { (with_code(&field.kind)) }
                            td data-label="Default" { @if field.required { "required" } @else if !field.default.is_empty() { code { (field.default) } } }
                            td data-label="Meaning" { (with_code(&field.meaning)) }
                        }
                    }
                }
            }
        }
    }
}

/// The value of a field, if it is a single one. Items of lists and values of maps are many.
fn value_at(path: &str, config: Option<&Map<String, Value>>) -> Option<String> {
    let mut names = path.split('.');
    let first = config?.get(names.next()?)?;
    let value = names.try_fold(first, |value, name| value.get(name))?;
    Some(shorten_text(&value.to_string(), SET).into_owned())
}

fn render_row(name: &str, manifest: &ManifestView, uses: &[GrantUseView]) -> Markup {
    let granted = manifest.granted.iter().find(|grant| grant.name == name);
    html! {
        tr data-key={ "grant-" (name) } {
            th scope="row" { code { (name) } }
            td data-label="Asked for" { (if manifest.asks_for(name) { "yes" } else { "no" }) }
            td data-label="Granted" {
                @match granted {
                    Some(grant) if grant.of.is_empty() => "yes",
                    Some(grant) => (grant.of),
                    None if manifest.granted.iter().any(|grant| grant.name.starts_with(&format!("{name}:"))) => "as named",
                    None => "no",
                }
            }
            td data-label="Calls since it started" {
                @match uses.iter().find(|used| used.name == name) {
                    Some(used) if used.calls == 0 => "never used",
                    Some(used) => (grouped_figure(used.calls)),
                    None => "",
                }
            }
        }
    }
}

/// As indented JSON. A value that can't be written did not come from JSON.
fn text(config: &Map<String, Value>) -> String {
    let text = serde_json::to_string_pretty(config).unwrap_or_default();
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
