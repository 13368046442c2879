//! The document of one state, formatted for reading, and its changes since another one. The page changes
//! nothing. Secrets are hidden before a document reaches it.

mod diff;

use axum::extract::{Path, State};
use axum::http::Uri;
use axum::response::Redirect;
use kubewitness_core::kinds::is_event;
use kubewitness_core::{Change, Seq, State as Witnessed};
use maud::{Markup, html};
use serde_json::Value;

use self::diff::DiffLine;
use super::parts::{at_text, grouped_figure, object_link, render_empty, render_phase_badge, render_time};
use crate::access::PortalViewer;
use crate::answer::frame::PageContent;
use crate::answer::params::{self, QueryParams};
use crate::answer::{Problem, ProblemPage};
use crate::app::PortalApp;
use crate::scope::ViewerVisibility;

/// A larger document is shown only up to here; it can be downloaded whole.
const SHOWN_BYTES: usize = 512 * 1024;
/// The server's own bookkeeping, which hides what people look for.
const MANAGED_FIELDS: &str = "managedFields";

pub(super) async fn page(
    State(app): State<PortalApp>,
    viewer: PortalViewer,
    Path(seq): Path<String>,
    uri: Uri,
) -> Result<PageContent, ProblemPage> {
    let seq = params::parse_number("seq", &seq)?;
    let params = QueryParams::read(&uri, &["from", "as", "managed"])?;
    let from = params.optional_number("from")?;
    let shape = DocumentShape::of(&params)?;
    let visible = ViewerVisibility::new(&app, &viewer);
    let document = visible.visible_document(seq).await?;
    let state = match visible.state_at(seq).await? {
        Some(state) => Some(app.views.redacted_state(state).await?),
        None => None,
    };
    let title = match &state {
        Some(state) => format!("{}/{} at {seq}", state.object.kind, state.object.name),
        None => format!("State {seq}"),
    };
    let body = match from {
        Some(from) => render_changes(&visible.visible_document(from).await?, &document, from),
        None => render_whole(&shape_document(&document, shape)),
    };
    let changed = changed_by(&document);
    let content = html! {
        @if let Some(state) = &state { (render_heading(state, from)) } @else { div.head { h1 { (title) } } }
        @if let Some(told) = changed { p.note { (told) } }
        p.tools {
            @if from.is_some() { a href={ "/states/" (seq) } { "Whole document" } " · " }
            @else { (shape.links_to_others(seq)) }
            a href={ "/api/v1/states/" (seq) "/document" } download={ (seq) ".json" } { "Download" }
            " (" (grouped_figure(document.len() as u64)) " bytes)"
        }
        (body)
    };
    Ok(PageContent::new(title, "/", content))
}

/// How a document is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
struct DocumentShape {
    yaml: bool,
    /// With the server's own bookkeeping.
    managed: bool,
}

impl DocumentShape {
    fn of(params: &QueryParams) -> Result<Self, Problem> {
        let yaml = match params.text("as") {
            None | Some("json") => false,
            Some("yaml") => true,
            Some(other) => {
                return Err(Problem::invalid_request(
                    format!("`{other}` is no form of a document."),
                    "There are json and yaml.",
                ));
            }
        };
        Ok(Self { yaml, managed: params.is_true("managed")? })
    }

    fn page_address(self, seq: Seq) -> String {
        let form = if self.yaml { "yaml" } else { "json" };
        format!("/states/{seq}?as={form}&managed={}", self.managed)
    }

    /// Links to the other forms of the document.
    fn links_to_others(self, seq: Seq) -> Markup {
        html! {
            a href=(Self { yaml: !self.yaml, ..self }.page_address(seq)) { (if self.yaml { "As JSON" } else { "As YAML" }) } " · "
            a href=(Self { managed: !self.managed, ..self }.page_address(seq)) {
                (if self.managed { "Without " } else { "With " }) code { (MANAGED_FIELDS) }
            } " · "
        }
    }
}

/// The document in another shape; unchanged if nothing in it changes.
fn shape_document(document: &[u8], shape: DocumentShape) -> Vec<u8> {
    let Ok(mut value) = serde_json::from_slice::<Value>(document) else { return document.to_vec() };
    let is_less = !shape.managed && without_managed_fields(&mut value);
    let text = match (shape.yaml, is_less) {
        (false, false) => None,
        (false, true) => serde_json::to_string(&value).ok(),
        (true, _) => serde_saphyr::to_string(&value).ok(),
    };
    text.map_or_else(|| document.to_vec(), String::into_bytes)
}

fn without_managed_fields(value: &mut Value) -> bool {
    let metadata = value.get_mut("metadata").and_then(Value::as_object_mut);
    metadata.is_some_and(|metadata| metadata.remove(MANAGED_FIELDS).is_some())
}

/// Who wrote this version, according to the server's bookkeeping of fields: the managers with the newest
/// time.
fn changed_by(document: &[u8]) -> Option<Markup> {
    let value: Value = serde_json::from_slice(document).ok()?;
    let entries = value.pointer("/metadata/managedFields")?.as_array()?;
    let text =
        |entry: &Value, name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let newest = entries.iter().map(|entry| text(entry, "time")).max().filter(|time| !time.is_empty())?;
    let managers = entries.iter().filter(|entry| text(entry, "time") == newest).map(|entry| {
        match text(entry, "subresource").as_str() {
            "" => text(entry, "manager"),
            part => format!("{} (its {part})", text(entry, "manager")),
        }
    });
    let mut managers: Vec<_> = managers.filter(|name| !name.is_empty()).collect();
    managers.dedup();
    (!managers.is_empty())
        .then(|| html! { "Last changed by " (managers.join(" and ")) " at " (at_text(&newest)) "." })
}

/// Redirects from two versions that a form has selected to the address of their comparison.
pub(super) async fn redirect_to_comparison(uri: Uri) -> Result<Redirect, ProblemPage> {
    let params = QueryParams::read(&uri, &["from", "to"])?;
    let (Some(from), Some(to)) = (params.optional_number("from")?, params.optional_number("to")?) else {
        return Err(ProblemPage(Problem::invalid_request(
            "Two versions are needed.",
            "Choose one to compare from and one to compare to.",
        )));
    };
    Ok(Redirect::to(&format!("/states/{to}?from={from}")))
}

fn render_heading(state: &Witnessed, from: Option<Seq>) -> Markup {
    html! {
        p.crumbs { (object_link(&state.object)) }
        div.head {
            h1 {
                @match from {
                    Some(from) => { "Changes from position " (from) " to " (state.seq) }
                    None => { "Position " (state.seq) }
                }
            }
            // An Event has no phase.
            @if !is_event(&state.object.group, &state.object.kind) { (render_phase_badge(&state.status.phase)) }
        }
        p.lead {
            @match state.change {
                Change::Present => { "Version " (state.resource_version) }
                Change::Gone => { "The last content before the deletion" }
                Change::Left => { "Version " (state.resource_version) ", which the source's selector no longer takes" }
                Change::Gap => { "What is known of the missing versions" }
            }
            ", observed " (render_time(state.observed_ms))
        }
    }
}

fn no_document(of: &str) -> Markup {
    render_empty(
        "There is no document",
        &html! {
            (of) " was found by comparing a list with the journal, so its last content was never sent. "
            "The state before it has the last content that was seen."
        },
    )
}

fn render_whole(document: &[u8]) -> Markup {
    if document.is_empty() {
        return no_document("This deletion");
    }
    let cut = document.len() > SHOWN_BYTES;
    let text = String::from_utf8_lossy(&document[..document.len().min(SHOWN_BYTES)]);
    let is_json = text.starts_with(['{', '[']);
    html! {
        @if cut { p.note { "Only the first " (grouped_figure(SHOWN_BYTES as u64)) " bytes are shown." } }
        pre.document tabindex="0" aria-label="Document" { code { @if is_json { (lay_out(&text)) } @else { (text) } } }
    }
}

fn render_changes(old: &[u8], new: &[u8], from: Seq) -> Markup {
    // A document that nobody has seen has no removed lines.
    if new.is_empty() {
        return no_document("This deletion");
    }
    if old.is_empty() {
        return no_document(&format!("The deletion at position {from}"));
    }
    if old.len().max(new.len()) > SHOWN_BYTES {
        return render_empty(
            "Too large to compare here",
            &html! { "Download both documents and compare them there." },
        );
    }
    let (old, new) = (comparable_text(old), comparable_text(new));
    let lines = diff::diff_lines(&old, &new);
    if lines.iter().all(|line| matches!(line, DiffLine::Skipped(_))) {
        return render_empty(
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
                    DiffLine::Same(text) => { span.same { "  " (text) "\n" } }
                    DiffLine::Removed(text) => { del { "- " (text) "\n" } }
                    DiffLine::Added(text) => { ins { "+ " (text) "\n" } }
                    DiffLine::Skipped(count) => { span.skipped { "  ⋯ " (count) " equal lines\n" } }
                }
            }
        }
    }
}

fn comparable_text(document: &[u8]) -> String {
    let Ok(mut value) = serde_json::from_slice::<Value>(document) else {
        return String::from_utf8_lossy(document).into_owned();
    };
    without_managed_fields(&mut value);
    serde_json::to_string_pretty(&value).unwrap_or_else(|_| value.to_string())
}

/// Breaks JSON into lines and changes nothing else: order, numbers and escapes stay. Text that is not JSON
/// becomes readable, too.
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

/// Deeper levels are not indented any further, so that hostile nesting can't fill memory.
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
    fn a_document_has_other_shapes_and_says_who_wrote_it_last() {
        let document = br#"{"kind":"Job","metadata":{"name":"a","managedFields":[
            {"manager":"kubectl-create","time":"2026-11-20T13:00:00Z"},
            {"manager":"kube-controller-manager","time":"2026-11-20T13:05:00Z","subresource":"status"}]}}"#;
        let text = |yaml, managed| {
            String::from_utf8(shape_document(document, DocumentShape { yaml, managed })).unwrap()
        };
        assert_eq!(text(false, true).as_bytes(), document, "as it came");
        assert_eq!(text(false, false), r#"{"kind":"Job","metadata":{"name":"a"}}"#);
        assert_eq!(text(true, false).trim(), "kind: Job\nmetadata:\n  name: a");
        assert_eq!(
            changed_by(document).unwrap().into_string(),
            "Last changed by kube-controller-manager (its status) at \
             <time datetime=\"2026-11-20T13:05:00Z\">2026-11-20 13:05:00</time>."
        );
        assert!(changed_by(b"{}").is_none() && changed_by(b"").is_none());
        assert_eq!(shape_document(b"no json", DocumentShape { yaml: true, managed: false }), b"no json");
    }

    #[test]
    fn nesting_does_not_multiply_the_text() {
        assert!(lay_out(&"[".repeat(10_000)).len() < 10_000 * 140);
    }

    #[test]
    fn no_more_of_a_document_is_shown_or_compared_than_its_bound() {
        let fits = vec![b'x'; SHOWN_BYTES];
        assert!(!render_whole(&fits).into_string().contains("are shown"));
        let large = vec![b'x'; SHOWN_BYTES + 1000];
        let page = render_whole(&large).into_string();
        assert!(page.contains("Only the first"), "{} bytes", page.len());
        assert_eq!(
            page.matches('x').count() - render_whole(b"{}").into_string().matches('x').count(),
            SHOWN_BYTES
        );
        for (old, new) in [(&b""[..], &b"{}"[..]), (b"{}", b"")] {
            let page = render_changes(old, new, 1).into_string();
            assert!(page.contains("There is no document") && !page.contains("<del>"), "{page}");
        }
        for (old, new) in [(&large[..], &b"{}"[..]), (b"{}", &large)] {
            assert!(render_changes(old, new, 1).into_string().contains("Too large to compare"));
        }
    }
}
