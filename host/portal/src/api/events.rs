//! The live stream: states as they are journaled, as server-sent events.
//!
//! Each event's id is its position, so a browser that comes back (it sends `Last-Event-ID`)
//! gets exactly what it missed. A client whose position is newer than the journal's, because
//! the journal was replaced, is told so by a `reset` and goes on from what there is.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream;
use kubewitness_core::views::Views;
use kubewitness_core::{Seq, State as Witnessed};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio_util::sync::CancellationToken;

use crate::answer::Problem;
use crate::answer::params::{self, Params};
use crate::app::App;

/// States read at once for one stream; it holds no more than that.
const BATCH: usize = 128;
/// Proxies close what is silent for a minute.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

struct Live {
    views: Arc<dyn Views>,
    newest: watch::Receiver<Seq>,
    stop: CancellationToken,
    after: Seq,
    states: VecDeque<Arc<Witnessed>>,
    reset: Option<Seq>,
    _permit: OwnedSemaphorePermit,
}

pub(crate) async fn events(
    State(app): State<App>,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, Problem> {
    let asked = Params::read(&uri, &["after"])?.number("after")?;
    let seen =
        headers.get("last-event-id").and_then(|value| value.to_str().ok()).filter(|text| !text.is_empty());
    let seen = seen.map(|text| params::number("Last-Event-ID", text)).transpose()?;
    let permit = app.streams.clone().try_acquire_owned().map_err(|_| {
        Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "There are too many live streams.",
            "Close another window of the portal, or reload this one now and then.",
        )
    })?;
    let newest = app.views.newest();
    let now = *newest.borrow();
    let from = seen.or(asked).unwrap_or(now);
    let live = Live {
        views: app.views,
        newest,
        stop: app.stop,
        after: from.min(now),
        states: VecDeque::new(),
        reset: (from > now).then_some(now),
        _permit: permit,
    };
    let stream = stream::unfold(live, |mut live| async {
        let event = live.next().await?;
        Some((Ok::<_, Infallible>(event), live))
    });
    Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response())
}

impl Live {
    /// `None` ends the stream; a browser then asks again by itself, from where it was.
    async fn next(&mut self) -> Option<Event> {
        if let Some(newest) = self.reset.take() {
            return Some(Event::default().event("reset").id(newest.to_string()).data(newest.to_string()));
        }
        loop {
            if let Some(state) = self.states.pop_front() {
                self.after = state.seq;
                let event = Event::default().event("state").id(state.seq.to_string());
                return event.json_data(&*state).ok();
            }
            // Marked as seen before it is read, so that what comes in between wakes the wait below.
            self.newest.borrow_and_update();
            let read = tokio::select! {
                () = self.stop.cancelled() => return None,
                read = self.views.states_after(self.after, BATCH) => read,
            };
            match read {
                Ok(states) if !states.is_empty() => self.states.extend(states),
                Ok(_) => {
                    let changed = tokio::select! {
                        () = self.stop.cancelled() => return None,
                        changed = self.newest.changed() => changed,
                    };
                    changed.ok()?;
                }
                Err(error) => {
                    tracing::warn!(%error, "a live stream ends: states can't be read");
                    return None;
                }
            }
        }
    }
}
