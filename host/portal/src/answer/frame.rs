//! What every page has around its content, and the files that it is drawn with.

use std::sync::LazyLock;

use axum::http::header;
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use kubewitness_core::document::checksum;
use maud::{DOCTYPE, Markup, html};

const CSS: &str = include_str!("../../assets/portal.css");
const SCRIPT: &str = include_str!("../../assets/portal.js");
const ICON: &str = include_str!("../../assets/icon.svg");

/// The addresses of the assets hold their checksum, so that browsers may keep them for ever.
static ADDRESSES: LazyLock<[String; 3]> = LazyLock::new(|| {
    [("portal.css", CSS), ("portal.js", SCRIPT), ("icon.svg", ICON)]
        .map(|(name, text)| format!("/assets/{name}?v={:08x}", checksum(text.as_bytes())))
});

/// Where the files are found, and what answers there.
pub(crate) fn assets<S: Clone + Send + Sync + 'static>() -> [(&'static str, MethodRouter<S>); 3] {
    [
        ("/assets/portal.css", get(|| asset("text/css; charset=utf-8", CSS))),
        ("/assets/portal.js", get(|| asset("text/javascript; charset=utf-8", SCRIPT))),
        ("/assets/icon.svg", get(|| asset("image/svg+xml", ICON))),
    ]
}

async fn asset(kind: &'static str, text: &'static str) -> Response {
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

const TABS: [(&str, &str); 5] = [
    ("/", "Jobs"),
    ("/plugins", "Plugins"),
    ("/deadletters", "Dead letters"),
    ("/sources", "Sources"),
    ("/gaps", "Gaps"),
];

/// A whole page. `tab` is the address of the tab that it belongs to, or empty.
pub(crate) fn layout(title: &str, tab: &str, content: &Markup) -> Html<String> {
    let [css, script, icon] = &*ADDRESSES;
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " · Kubewitness" }
                link rel="stylesheet" href=(css);
                link rel="icon" href=(icon) type="image/svg+xml";
                script src=(script) defer {}
            }
            body {
                a.skip href="#content" { "Skip to content" }
                header.top {
                    a.brand href="/" { img src=(icon) alt="" width="20" height="20"; "Kubewitness" }
                    nav aria-label="Main" {
                        @for (address, name) in TABS {
                            a href=(address) aria-current=[(address == tab).then_some("page")] { (name) }
                        }
                    }
                    span #live.live hidden { "Live" }
                }
                main #content tabindex="-1" { (content) }
                footer {
                    "Times are UTC. "
                    a href="/api/v1/openapi.json" { "API" } " · " a href="/metrics" { "Metrics" }
                }
            }
        }
    };
    Html(page.into_string())
}
