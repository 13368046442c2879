//! The document of one state, laid out to be read, and what changed since another.

use axum::extract::{Path, State};
use axum::http::Uri;
use kubewitness_core::{Change, Seq, State as Witnessed};
use maud::{Markup, html};
use serde_json::Value;

use super::diff::{self, Line};
use super::{at, badge, empty, figure, object_link};
use crate::access::Viewer;
use crate::answer::Shown;
use crate::answer::frame::Page;
use crate::answer::params::{self, Params};
use crate::app::App;
use crate::scope::Sight;

/// More of a document than this is not laid out; it can be fetched whole.
const SHOWN_BYTES: usize = 512 * 1024;
/// The server's own book-keeping, which hides what people look for.
const MANAGED_FIELDS: &str = "managedFields";

pub(super) async fn page(
    State(app): State<App>,
    viewer: Viewer,
    Path(seq): Path<String>,
    uri: Uri,
) -> Result<Page, Shown> {
    let seq = params::number("seq", &seq)?;
    let from = Params::read(&uri, &["from"])?.number("from")?;
    let sight = Sight::new(&app, &viewer);
    let document = sight.document(seq).await?;
    let state = sight.state_at(seq).await?;
    let title = match &state {
        Some(state) => format!("{}/{} at {seq}", state.object.kind, state.object.name),
        None => format!("State {seq}"),
    };
    let body = match from {
        Some(from) => changes(&sight.document(from).await?, &document, from),
        None => whole(&document),
    };
    let content = html! {
        @if let Some(state) = &state { (heading(state, from)) } @else { div.head { h1 { (title) } } }
        p.tools {
            @if from.is_some() { a href={ "/states/" (seq) } { "Whole document" } " · " }
            a href={ "/api/v1/states/" (seq) "/document" } download={ (seq) ".json" } { "Download" }
            " (" (figure(document.len() as u64)) " bytes)"
        }
        (body)
    };
    Ok(Page::new(title, "/", content))
}

fn heading(state: &Witnessed, from: Option<Seq>) -> Markup {
    html! {
        p.crumbs { (object_link(&state.object)) }
        div.head {
            h1 {
                @match from {
                    Some(from) => { "Changes from position " (from) " to " (state.seq) }
                    None => { "Position " (state.seq) }
                }
            }
            (badge(&state.status.phase))
        }
        p.lead {
            @match state.change {
                Change::Present => { "Version " (state.resource_version) }
                Change::Gone => { "The last content before the deletion" }
                Change::Left => { "Version " (state.resource_version) ", which the source's selector no longer takes" }
                Change::Gap => { "What is known of the missing versions" }
            }
            ", observed " (at(state.observed_ms))
        }
    }
}

fn whole(document: &[u8]) -> Markup {
    if document.is_empty() {
        return empty(
            "There is no document",
            &html! {
                "This deletion was found by comparing a list with the journal, so its last content was never sent. "
                "The state before it has the last content that was seen."
            },
        );
    }
    let cut = document.len() > SHOWN_BYTES;
    let text = String::from_utf8_lossy(&document[..document.len().min(SHOWN_BYTES)]);
    html! {
        @if cut { p.note { "Only the first " (figure(SHOWN_BYTES as u64)) " bytes are shown." } }
        pre.document tabindex="0" aria-label="Document" { code { (lay_out(&text)) } }
    }
}

fn changes(old: &[u8], new: &[u8], from: Seq) -> Markup {
    if old.len().max(new.len()) > SHOWN_BYTES {
        return empty(
            "Too large to compare here",
            &html! { "Download both documents and compare them there." },
        );
    }
    let (old, new) = (comparable(old), comparable(new));
    let lines = diff::lines(&old, &new);
    if lines.iter().all(|line| matches!(line, Line::Skipped(_))) {
        return empty(
            "No difference",
            &html! {
                "Apart from " code { (MANAGED_FIELDS) } ", the document is the same as at position " (from) "."
            },
        );
    }
    html! {
        p.note { code { (MANAGED_FIELDS) } " is left out, and keys are in alphabetical order." }
        pre.document.diff tabindex="0" aria-label="Changes" {
            @for line in lines {
                @match line {
                    Line::Same(text) => { span.same { "  " (text) "\n" } }
                    Line::Removed(text) => { del { "- " (text) "\n" } }
                    Line::Added(text) => { ins { "+ " (text) "\n" } }
                    Line::Skipped(count) => { span.skipped { "  ⋯ " (count) " equal lines\n" } }
                }
            }
        }
    }
}

fn comparable(document: &[u8]) -> String {
    let Ok(mut value) = serde_json::from_slice::<Value>(document) else {
        return String::from_utf8_lossy(document).into_owned();
    };
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove(MANAGED_FIELDS);
    }
    serde_json::to_string_pretty(&value).unwrap_or_else(|_| value.to_string())
}

/// Breaks JSON into lines and changes nothing else: order, numbers and escapes stay as they
/// came. What is not JSON comes out readable too.
fn lay_out(text: &str) -> String {
    let mut out = String::with_capacity(text.len() * 2);
    let (mut depth, mut quoted, mut escaped) = (0usize, false, false);
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        if quoted {
            out.push(character);
            quoted = escaped || character != '"';
            escaped = !escaped && character == '\\';
            continue;
        }
        match character {
            '"' => {
                quoted = true;
                out.push(character);
            }
            '{' | '[' => {
                while characters.next_if(char::is_ascii_whitespace).is_some() {}
                out.push(character);
                if let Some(close) = characters.next_if(|next| matches!(next, '}' | ']')) {
                    out.push(close);
                } else {
                    depth += 1;
                    new_line(&mut out, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                new_line(&mut out, depth);
                out.push(character);
            }
            ',' => {
                out.push(character);
                new_line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            space if space.is_ascii_whitespace() => {}
            other => out.push(other),
        }
    }
    out
}

/// What is nested deeper is not moved further to the right; hostile nesting must not fill memory.
fn new_line(out: &mut String, depth: usize) {
    const DEEPEST: usize = 64;
    out.push('\n');
    out.extend(std::iter::repeat_n("  ", depth.min(DEEPEST)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_laid_out_and_otherwise_left_alone() {
        let text = r#"{"b":{ },"a":[1.50,"x\"{,"],"e":""}"#;
        let laid = lay_out(text);
        assert_eq!(laid, "{\n  \"b\": {},\n  \"a\": [\n    1.50,\n    \"x\\\"{,\"\n  ],\n  \"e\": \"\"\n}");
        assert_eq!(serde_json::from_str::<Value>(&laid).ok(), serde_json::from_str::<Value>(text).ok());
    }

    #[test]
    fn nesting_does_not_multiply_the_text() {
        assert!(lay_out(&"[".repeat(10_000)).len() < 10_000 * 140);
    }

    #[test]
    fn no_more_of_a_document_is_shown_or_compared_than_its_bound() {
        let fits = vec![b'x'; SHOWN_BYTES];
        assert!(!whole(&fits).into_string().contains("are shown"));
        let large = vec![b'x'; SHOWN_BYTES + 1000];
        let page = whole(&large).into_string();
        assert!(page.contains("Only the first"), "{} bytes", page.len());
        assert_eq!(page.matches('x').count() - whole(b"{}").into_string().matches('x').count(), SHOWN_BYTES);
        for (old, new) in [(&large[..], &b"{}"[..]), (b"{}", &large)] {
            assert!(changes(old, new, 1).into_string().contains("Too large to compare"));
        }
    }
}
