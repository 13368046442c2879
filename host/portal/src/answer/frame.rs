//! The frame of every page: head, navigation and footer, and the files for style and script.

use std::sync::{Arc, LazyLock};

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use kubewitness_core::document::checksum;
use maud::{DOCTYPE, Markup, html};

use super::etag;

/// Sent by a page that requests its own content again.
pub(crate) const CONTENT_ONLY: HeaderName = HeaderName::from_static("kubewitness-content");
/// The position up to which the content covers the states.
const POSITION: HeaderName = HeaderName::from_static("kubewitness-position");

const CSS: &str = include_str!("../../assets/portal.css");
const SCRIPT: &str = include_str!("../../assets/portal.js");
const ICON: &str = include_str!("../../assets/icon.svg");

/// The addresses of the assets contain a checksum, so that browsers may cache them forever.
static ADDRESSES: LazyLock<[String; 3]> = LazyLock::new(|| {
    [("portal.css", CSS), ("portal.js", SCRIPT), ("icon.svg", ICON)]
        .map(|(name, text)| format!("/assets/{name}?v={:08x}", checksum(text.as_bytes())))
});

/// The paths of the assets, with their handlers.
pub(crate) fn asset_routes<S: Clone + Send + Sync + 'static>() -> [(&'static str, MethodRouter<S>); 3] {
    [
        ("/assets/portal.css", get(|| asset_response("text/css; charset=utf-8", CSS))),
        ("/assets/portal.js", get(|| asset_response("text/javascript; charset=utf-8", SCRIPT))),
        ("/assets/icon.svg", get(|| asset_response("image/svg+xml", ICON))),
    ]
}

async fn asset_response(kind: &'static str, text: &'static str) -> Response {
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

const TABS: [(&str, &str); 6] = [
    ("/", "Jobs"),
    ("/plugins", "Plugins"),
    ("/deadletters", "Dead letters"),
    ("/sources", "Sources"),
    ("/gaps", "Gaps"),
    ("/health", "Health"),
];

/// The person for whom the frame is rendered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FrameReader {
    /// People are not distinguished.
    Anybody,
    /// A person who has not signed in.
    Nobody,
    /// A person; one with a session can sign out.
    Person { name: Arc<str>, can_leave: bool },
}

/// A page without its frame. [`dress_response`] renders the frame once the reader is known.
#[derive(Clone)]
pub(crate) struct PageContent {
    title: String,
    tab: &'static str,
    content: Markup,
    freshness: PageFreshness,
}

/// How an open page stays up to date.
#[derive(Clone)]
enum PageFreshness {
    /// Nothing on the page changes while it is open.
    Fixed,
    /// It stands still for this reason, although what it shows may change.
    Still(&'static str),
    /// The script requests the content again every second.
    Figures,
    /// The script requests the content again when a state of the live stream concerns it.
    States(NewsFilter),
}

/// After how many seconds a page of figures is requested again.
const FIGURES_SECONDS: u32 = 1;

/// Which states of the live stream concern a page. The script requests the page's content again when one of
/// them arrives.
#[derive(Clone, Default)]
pub(crate) struct NewsFilter {
    /// The position up to which the page covers the states, in the form of the stream's events.
    pub(crate) after: String,
    /// States of this object, and of the objects that it owns.
    pub(crate) uid: Option<String>,
    /// The outermost owner of this object. What this object owns has the same one in the stream, so states of
    /// its siblings concern the page as well.
    pub(crate) owner: Option<String>,
    pub(crate) kind: Option<String>,
    pub(crate) namespace: Option<String>,
    /// The page shows causes of many objects, which are found without a state.
    pub(crate) shows_causes: bool,
    /// The content is also refreshed after this many seconds, for changes without a state.
    pub(crate) refresh_seconds: Option<u32>,
}

impl PageContent {
    /// `tab` is the address of its tab, or empty.
    pub(crate) fn new(title: impl Into<String>, tab: &'static str, content: Markup) -> Self {
        Self { title: title.into(), tab, content, freshness: PageFreshness::Fixed }
    }

    /// Keeps the whole page up to date by the live stream.
    pub(crate) fn with_live_news(self, news: NewsFilter) -> Self {
        Self { freshness: PageFreshness::States(news), ..self }
    }

    /// Keeps the whole page up to date every second. Its rows and cards need keys, so that no row becomes
    /// another one under the reader's pointer.
    pub(crate) fn with_live_figures(self) -> Self {
        Self { freshness: PageFreshness::Figures, ..self }
    }

    /// Says that the page does not follow, and why.
    pub(crate) fn with_stillness(self, why: &'static str) -> Self {
        Self { freshness: PageFreshness::Still(why), ..self }
    }

    fn news(&self) -> Option<&NewsFilter> {
        match &self.freshness {
            PageFreshness::States(news) => Some(news),
            _ => None,
        }
    }

    fn is_live(&self) -> bool {
        matches!(self.freshness, PageFreshness::Figures | PageFreshness::States(_))
    }

    fn refresh_seconds(&self) -> Option<u32> {
        match &self.freshness {
            PageFreshness::Figures => Some(FIGURES_SECONDS),
            PageFreshness::States(news) => news.refresh_seconds,
            PageFreshness::Fixed | PageFreshness::Still(_) => None,
        }
    }

    fn main(&self) -> Markup {
        html! {
            main #content tabindex="-1" data-live[self.is_live()] data-refresh=[self.refresh_seconds()] {
                (self.content)
            }
        }
    }
}

impl IntoResponse for PageContent {
    fn into_response(self) -> Response {
        let mut response = Html(String::new()).into_response();
        response.extensions_mut().insert(self);
        response
    }
}

/// Renders the frame of the page in a response, if it has one.
pub(crate) fn dress_response(mut response: Response, stranger: &FrameReader) -> Response {
    let Some(page) = response.extensions_mut().remove::<PageContent>() else { return response };
    let reader = response.extensions_mut().remove::<FrameReader>();
    let text = render_page(&page, reader.as_ref().unwrap_or(stranger)).into_string();
    // The length was that of the empty page.
    response.headers_mut().remove(header::CONTENT_LENGTH);
    *response.body_mut() = Body::from(text);
    response
}

/// Answers a page that requests its own content again: without the frame, or 304 if it has the content
/// already. The position is a header, because it changes with every state of the journal.
pub(crate) fn content_response(mut response: Response, known: &[HeaderValue]) -> Response {
    let Some(page) = response.extensions_mut().remove::<PageContent>() else { return response };
    response.headers_mut().remove(header::CONTENT_LENGTH);
    if let Some(news) = page.news() {
        let position = HeaderValue::try_from(&news.after).expect("digits and letters");
        response.headers_mut().insert(POSITION, position);
    }
    let text = page.main().into_string();
    match response.status() {
        StatusCode::OK => etag::tagged_answer(response, text.into(), known),
        _ => response.map(|_| Body::from(text)),
    }
}

fn render_page(page: &PageContent, reader: &FrameReader) -> Markup {
    let [css, script, icon] = &*ADDRESSES;
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (page.title) " · Kubewitness" }
                link rel="stylesheet" href=(css);
                link rel="icon" href=(icon) type="image/svg+xml";
                script src=(script) defer {}
            }
            body {
                a.skip href="#content" { "Skip to content" }
                (render_top(page, reader, icon))
                @if *reader == FrameReader::Anybody {
                    aside.open aria-label="Access" { "No sign-in: anyone who reaches this address sees and changes everything." }
                }
                (page.main())
                footer {
                    span #times { "Times are UTC. " }
                    button #zone type="button" hidden {} " "
                    details.keys #keys { summary { "Keys" } kbd { "/" } " search, " kbd { "?" } " this help, " kbd { "Tab" } " next. " }
                    button #theme type="button" hidden {} " "
                    @if *reader != FrameReader::Nobody {
                        a href="/api" { "API" } " · " a href="/metrics" { "Metrics" }
                    }
                }
            }
        }
    }
}

fn render_top(page: &PageContent, reader: &FrameReader, icon: &str) -> Markup {
    html! {
        header.top {
            a.brand href="/" { img src=(icon) alt="" width="20" height="20"; "Kubewitness" }
            @if *reader != FrameReader::Nobody {
                nav aria-label="Main" {
                    @for (address, name) in TABS {
                        a href=(address) aria-current=[(address == page.tab).then_some("page")] { (name) }
                    }
                }
            }
            (render_freshness(page))
            @if let FrameReader::Person { name, can_leave } = reader {
                div.person {
                    span.unseen { "Signed in as " } b title=(name) { (name) }
                    @if *can_leave { form method="post" action="/logout" { button { "Log out" } } }
                }
            }
        }
    }
}

/// Whether the page follows. The script shows the button, and pauses the page by it.
fn render_freshness(page: &PageContent) -> Markup {
    let news = page.news();
    let text = |of: fn(&NewsFilter) -> Option<&str>| news.and_then(of);
    if let PageFreshness::Still(why) = page.freshness {
        return html! { span.live data-state="paused" { "Stands still: " (why) } };
    }
    html! {
        @if page.is_live() { noscript { span.live data-state="paused" { "Stands still: it needs script to follow" } } }
        button #live.live type="button" hidden data-after=[news.map(|news| &news.after)] data-uid=[text(|news| news.uid.as_deref())]
            data-owner=[text(|news| news.owner.as_deref())] data-kind=[text(|news| news.kind.as_deref())] data-namespace=[text(|news| news.namespace.as_deref())]
            data-causes[news.is_some_and(|news| news.shows_causes)] { "Live" }
    }
}
