//! The API for people: a page made from its OpenAPI description, without script.
//!
//! The usual viewers of OpenAPI are large scripts, and the portal's pages work without one. So the page is
//! rendered on the server. It reads only the description: no state, no figure.

mod described;

use std::sync::LazyLock;

use axum::extract::State;
use axum::http::Uri;
use maud::{Markup, html};

use self::described::{DescribedField, DescribedOperation};
use crate::access::PortalViewer;
use crate::answer::codes::{self, ProblemCode};
use crate::answer::frame::PageContent;
use crate::answer::params::QueryParams;
use crate::answer::{Problem, ProblemPage};
use crate::api::OPENAPI;
use crate::app::PortalApp;
use crate::pages::parts::with_code;

/// Parsed once. A test ensures that it parses.
static OPERATIONS: LazyLock<Result<Vec<DescribedOperation>, String>> =
    LazyLock::new(|| described::read(OPENAPI));

pub(super) async fn page(
    State(_): State<PortalApp>,
    _: PortalViewer,
    uri: Uri,
) -> Result<PageContent, ProblemPage> {
    QueryParams::read(&uri, &[])?;
    let operations = OPERATIONS.as_ref().map_err(|error| {
        let message = format!("The description of the API can't be read: {error}");
        ProblemPage(Problem::with_code(
            codes::FAILED,
            message,
            "Read /api/v1/openapi.json instead, and report this.",
        ))
    })?;
    let content = html! {
        div.head { h1 { "API" } }
        p.lead {
            "What the portal shows, programs read as JSON. This page is made from "
            a href="/api/v1/openapi.json" { "the description in OpenAPI 3.1" }
            ". The examples take the portal's address from " code { "PORTAL" } " and a token of Kubernetes from "
            code { "TOKEN" } ":"
        }
        pre.document tabindex="0" { "PORTAL=127.0.0.1:8787\nTOKEN=$(kubectl create token my-account)" }
        p.note {
            "Where nobody signs in, leave the token out. Lists and documents have an " code { "ETag" }
            ": send it as " code { "If-None-Match" } ", and what is still the same answers 304 without a body."
        }
        (render_contents(operations))
        @for operation in operations { (render_section(operation)) }
        section aria-labelledby="problems" {
            h2 #problems { "Problems" }
            p.lead {
                "A request that is refused gets " code { "application/problem+json" } ". Its " code { "code" }
                " keeps its meaning; " code { "detail" } " and " code { "hint" } " are for people."
            }
            (render_problems())
        }
    };
    Ok(PageContent::new("API", "", content))
}

fn render_contents(operations: &[DescribedOperation]) -> Markup {
    html! {
        nav.scroll aria-label="Operations" {
            table.plain.stacked.folds {
                caption { (operations.len()) " operations" }
                thead { tr { th scope="col" { "Operation" } th scope="col" { "What it does" } } }
                tbody {
                    @for operation in operations {
                        tr {
                            th.keep scope="row" { a href={ "#op-" (operation.id) } { code { (operation.method) " " (operation.path) } } }
                            td { (operation.summary) }
                        }
                    }
                }
            }
        }
    }
}

fn render_section(operation: &DescribedOperation) -> Markup {
    let DescribedOperation { id, method, path, summary, about, parameters, body, answers, .. } = operation;
    html! {
        section.operation aria-labelledby={ "op-" (id) } {
            h2 id={ "op-" (id) } { code { (method) " " (path) } }
            p.lead { (with_code(summary)) "." @if !about.is_empty() { " " (with_code(about)) } }
            @if !parameters.is_empty() { (render_fields(parameters, "Parameters")) }
            @if !body.is_empty() { (render_fields(body, "Fields of the body")) }
            div.scroll {
                table.plain.stacked.folds {
                    caption { "Answers" }
                    thead { tr { th scope="col" { "Status" } th scope="col" { "What it is" } th scope="col" { "Codes" } } }
                    tbody {
                        @for answer in answers {
                            tr {
                                th.keep scope="row" { (answer.status) }
                                td { (with_code(&answer.about)) @if !answer.media.is_empty() { " " code { (answer.media) } } }
                                td { @for code in codes_of(&answer.status, id) { a href={ "#" (code.name) } { code { (code.name) } } " " } }
                            }
                        }
                    }
                }
            }
            @if !operation.given.is_empty() {
                details.given {
                    summary { "Fields of the answer" }
                    (render_fields(&operation.given, "Of each element, where it is a list"))
                }
            }
            pre.document tabindex="0" { (operation.example_command()) }
        }
    }
}

/// The codes of an operation's answers with this status.
fn codes_of(status: &str, operation: &str) -> impl Iterator<Item = &'static ProblemCode> {
    let is_its_own = move |code: &ProblemCode| match code.name {
        name if name == codes::TOO_MANY_STREAMS.name => operation == "events",
        name if name == codes::TOO_MANY_LOGINS.name => operation == "login",
        _ => true,
    };
    codes::ALL.iter().copied().filter(move |code| code.status.as_str() == status && is_its_own(code))
}

fn render_fields(fields: &[DescribedField], caption: &str) -> Markup {
    html! {
        div.scroll {
            table.plain.stacked.folds {
                caption { (caption) }
                thead { tr { th scope="col" { "Name" } th scope="col" { "Type" } th scope="col" { "Meaning" } } }
                tbody {
                    @for field in fields {
                        tr {
                            th scope="row" {
                                code { (field.name) }
                                @if field.is_required { " " span.mark { "required" } }
                                @if !field.place.is_empty() { " " span.note { "in the " (field.place) } }
                            }
                            td data-label="Type" { (field.kind) }
                            td { (with_code(&field.about)) }
                        }
                    }
                }
            }
        }
    }
}

fn render_problems() -> Markup {
    html! {
        div.scroll {
            table.plain.stacked.folds {
                caption { (codes::ALL.len()) " codes" }
                thead {
                    tr {
                        th scope="col" { "Code" } th.num scope="col" { "Status" }
                        th scope="col" { "What it means" } th scope="col" { "What to do" }
                    }
                }
                tbody {
                    @for code in codes::ALL {
                        tr id=(code.name) {
                            th scope="row" { code { (code.name) } }
                            td.num data-label="Status" { (code.status.as_u16()) }
                            td { (with_code(code.about)) }
                            td { (with_code(code.remedy)) }
                        }
                    }
                }
            }
        }
    }
}
