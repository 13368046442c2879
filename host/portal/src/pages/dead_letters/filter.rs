//! The filter of the page of dead letters. The forms of the page replay and drop only what the filter
//! selects.

use std::collections::BTreeSet;

use kubewitness_core::views::{DeadLetterView, ReplayRequest};
use maud::{Markup, html};

use crate::answer::params::QueryParams;
use crate::answer::{Problem, time};
use crate::pages::parts::encode;

const FIELDS: [&str; 5] = ["plugin", "namespace", "error", "since", "until"];

/// As typed.
#[derive(Default)]
pub(super) struct LetterFilter {
    values: [Option<String>; 5],
}

impl LetterFilter {
    pub fn read(params: &QueryParams) -> Self {
        Self { values: FIELDS.map(|name| params.owned_text(name)) }
    }

    /// Takes a field of a form, if it belongs to the filter.
    pub fn take(&mut self, name: &str, value: &str) -> bool {
        let Some(index) = FIELDS.iter().position(|known| *known == name) else { return false };
        self.values[index] = Some(value.trim().to_owned()).filter(|value| !value.is_empty());
        true
    }

    pub fn plugin_name(&self) -> Option<&str> {
        self.values[0].as_deref()
    }

    /// Whether it excludes some letters of a plugin.
    pub fn narrows_letters(&self) -> bool {
        self.values[1..].iter().any(Option::is_some)
    }

    pub fn replay_request(&self) -> ReplayRequest {
        let [plugin, namespace, error, since, until] = &self.values;
        let typed = |text: &Option<String>| text.as_deref().map(time::normalize_typed_time);
        ReplayRequest {
            plugin: plugin.clone().unwrap_or_default(),
            namespace: namespace.clone(),
            error: error.clone(),
            since: typed(since),
            until: typed(until),
            ..ReplayRequest::default()
        }
    }

    pub fn retain_matching(&self, letters: &mut Vec<DeadLetterView>) -> Result<(), Problem> {
        let request = self.replay_request();
        // This page has no field for ages.
        let fits = request.letter_filter(0)?;
        letters.retain(|view| fits(&view.letter, &view.object.namespace));
        Ok(())
    }

    /// The address of a page that shows the same, with one more parameter.
    pub fn address_with(&self, name: &str, value: u64) -> String {
        let mut address = format!("/deadletters?{name}={value}");
        if self.narrows_letters() {
            for (name, value) in FIELDS.iter().zip(&self.values) {
                if let Some(value) = value {
                    address.push_str(&format!("&{name}={}", encode(value)));
                }
            }
        }
        address
    }

    /// The address of a page with one plugin's matching letters.
    pub fn page_of_plugin(&self, plugin: &str, cursor: Option<&str>) -> String {
        let mut address = format!("/deadletters?plugin={}", encode(plugin));
        let others = FIELDS.iter().zip(&self.values).skip(1);
        let others = others.filter_map(|(name, value)| Some((*name, value.as_deref()?)));
        for (name, value) in others.chain(cursor.map(|cursor| ("cursor", cursor))) {
            address.push_str(&format!("&{name}={}", encode(value)));
        }
        address
    }

    /// For a form that acts on the shown letters.
    pub fn hidden_fields(&self, plugin: &str) -> Markup {
        html! {
            input type="hidden" name="plugin" value=(plugin);
            @for (name, value) in FIELDS.iter().zip(&self.values).skip(1) {
                @if let Some(value) = value { input type="hidden" name=(name) value=(value); }
            }
        }
    }

    pub fn render_form(&self, plugins: &BTreeSet<String>) -> Markup {
        let [plugin, namespace, error, since, until] = &self.values;
        html! {
            form.filters role="search" aria-label="Filter" method="get" action="/deadletters" {
                label { span { "Plugin" }
                    select name="plugin" {
                        option value="" { "All" }
                        @if let Some(name) = plugin.as_ref().filter(|name| !plugins.contains(*name)) {
                            option value=(name) selected { (name) }
                        }
                        @for name in plugins { option value=(name) selected[plugin.as_ref() == Some(name)] { (name) } }
                    }
                }
                label { span { "Namespace" } input name="namespace" value=[namespace.as_deref()] autocomplete="off" spellcheck="false"; }
                label { span { "Last error has" } input #search.error name="error" value=[error.as_deref()] placeholder="connection refused" autocomplete="off" spellcheck="false"; }
                label { span { "Parked from (UTC)" } input name="since" data-utc value=[since.as_deref()] placeholder="2026-11-24 22:00" autocomplete="off"; }
                label { span { "Parked before (UTC)" } input name="until" data-utc value=[until.as_deref()] placeholder="2026-11-25 06:00" autocomplete="off"; }
                button.strong { "Show" }
                @if plugin.is_some() || self.narrows_letters() { a href="/deadletters" { "Clear" } }
            }
        }
    }
}
