//! The timeline of an object. A long one is read twice: first to find its states and why its object failed,
//! and again as it is written. So an answer that its client reads slowly holds positions, one block of
//! states, and no turn to read.

use std::collections::VecDeque;
use std::io;
use std::mem::take;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::State as AppState;
use axum::http::Uri;
use futures::stream;
use kubewitness_core::views::{ObjectQuery, TimelineQuery, TimelineView};
use kubewitness_core::{Seq, State};

use super::{MOST_ROWS, ROWS};
use crate::access::PortalViewer;
use crate::answer::Problem;
use crate::answer::paged::PagedAnswer;
use crate::answer::params::QueryParams;
use crate::answer::streamed::{LONG, append_rows};
use crate::app::PortalApp;
use crate::scope::{AccessVerb, ViewerVisibility};

pub(super) const TIMELINE: &[&str] = &["uid", "kind", "namespace", "name", "cursor", "limit"];
/// How many states are read and written at once.
const BLOCK: usize = 128;
/// The start of the text of a timeline without states.
const EMPTY_LISTS: &str = r#"{"states":[],"related":[]"#;

pub(super) async fn timeline(
    AppState(app): AppState<PortalApp>,
    viewer: PortalViewer,
    uri: Uri,
) -> Result<PagedAnswer<TimelineView>, Problem> {
    let params = QueryParams::read(&uri, TIMELINE)?;
    let cursor = params.parse_cursor("cursor")?;
    let mut query = TimelineQuery {
        uid: params.owned_text("uid"),
        kind: params.owned_text("kind"),
        namespace: params.owned_text("namespace"),
        name: params.owned_text("name"),
        limit: Some(params.row_limit(ROWS, MOST_ROWS)?),
        events: cursor.is_none(),
        cursor,
        ..TimelineQuery::default()
    };
    let named = query.kind.is_some() && query.name.is_some();
    if query.uid.is_some() == (query.kind.is_some() || query.name.is_some())
        || (query.uid.is_none() && !named)
    {
        return Err(Problem::invalid_request(
            "It is not clear whose timeline this should be.",
            "Give `uid`, or `kind`, `name` and, where it has one, `namespace`.",
        ));
    }
    let visible = ViewerVisibility::new(&app, &viewer);
    query.kinds = visible.kinds_of(&query).await?;
    if query.kinds.as_ref().is_some_and(Vec::is_empty) {
        // Nothing is looked up, so neither the answer nor its time reveals what exists.
        let (kind, namespace) = (query.kind, query.namespace);
        let asked = ObjectQuery { kind, namespace, ..ObjectQuery::default() };
        let forbidden = match asked.namespace {
            Some(_) => visible.missing_right(AccessVerb::Get, &asked).await?,
            None => None,
        };
        return Ok(PagedAnswer::new(TimelineView::default(), None).with_forbidden(forbidden));
    }
    let story = visible.story_part(&query).await?;
    let next = params.next(&uri, story.next);
    match story.states.len() + story.related.len() > LONG {
        true => Ok(PagedAnswer::from_stream(LongTimeline::of(story, visible, viewer).into_body(), next)),
        false => Ok(PagedAnswer::new(story, next)),
    }
}

enum TimelinePiece {
    Text(Bytes),
    States { seqs: Vec<Seq>, is_first: bool },
}

/// The pieces of a timeline that are still to be written.
struct LongTimeline {
    visible: ViewerVisibility,
    viewer: PortalViewer,
    pieces: VecDeque<TimelinePiece>,
}

impl LongTimeline {
    fn of(mut story: TimelineView, visible: ViewerVisibility, viewer: PortalViewer) -> Self {
        let lists = [take(&mut story.states), take(&mut story.related)];
        let text = serde_json::to_string(&story).expect("texts and numbers always serialize");
        let rest = text.strip_prefix(EMPTY_LISTS).expect("the lists come first").to_owned();
        let mut pieces = VecDeque::new();
        for (begin, list) in [r#"{"states":["#, r#"],"related":["#].into_iter().zip(lists) {
            pieces.push_back(TimelinePiece::Text(begin.into()));
            let blocks = list.chunks(BLOCK).enumerate();
            pieces.extend(blocks.map(|(index, states)| TimelinePiece::States {
                seqs: states.iter().map(|state| state.seq).collect(),
                is_first: index == 0,
            }));
        }
        pieces.push_back(TimelinePiece::Text(format!("]{rest}").into()));
        Self { visible, viewer, pieces }
    }

    fn into_body(self) -> Body {
        Body::from_stream(stream::unfold(self, |mut timeline| async {
            let piece = timeline.pieces.pop_front()?;
            let written = timeline.viewer.run_as_party(timeline.write(piece)).await;
            if let Err(error) = &written {
                // The client notices it by the connection, which closes before the answer is complete.
                tracing::debug!(%error, "a long timeline breaks off");
                timeline.pieces.clear();
            }
            Some((written, timeline))
        }))
    }

    async fn write(&self, piece: TimelinePiece) -> io::Result<Bytes> {
        let (seqs, is_first) = match piece {
            TimelinePiece::Text(text) => return Ok(text),
            TimelinePiece::States { seqs, is_first } => (seqs, is_first),
        };
        let states = self.visible.read_again(&seqs).await;
        let states = states.map_err(|problem| io::Error::other(problem.message))?;
        if !states.iter().map(|state: &Arc<State>| state.seq).eq(seqs) {
            return Err(io::Error::other("retention has removed some of its states meanwhile"));
        }
        let mut text = Vec::new();
        append_rows(&mut text, &states, is_first)?;
        Ok(text.into())
    }
}
