//! The live stream: states as they are journaled, as server-sent events.
//!
//! Each event's id is its position. So a client that comes back (a browser sends `Last-Event-ID`) gets exactly what it
//! missed. A client that gave no position is told at once where the stream begins, since the next state may be long in
//! coming. States that a client may not see are passed over: once a second it is told how far the stream is, so that it does
//! not begin before them again. A client's position can be newer than the journal, because the journal was replaced. Then a `reset` tells the
//! client, and the stream goes on from the journal's newest position.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, Uri};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream;
use kubewitness_core::Seq;
use kubewitness_core::ports::RawState;
use kubewitness_core::views::Views;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::access::Viewer;
use crate::answer::paged::NOTICE;
use crate::answer::params::{self, Params};
use crate::answer::{Problem, codes};
use crate::app::App;
use crate::scope::{Verb, Visibility};
use crate::serve::StreamPlace;

/// States read at once for one stream; it holds no more than that.
const BATCH: usize = 128;
/// Proxies close what is silent for a minute.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// What was withdrawn ends a stream within a minute: it is kept for ten seconds, and asked for anew this often.
const CHECK: Duration = Duration::from_secs(30);
/// A client that sees nothing of what comes is told so often how far the stream is.
const POSITION_EVERY: Duration = Duration::from_secs(1);
/// A stream that is so many states behind reads them from the disk.
const BEHIND: u64 = 1024;
/// After such a pause it is asked before anything is shown.
const PAUSE: Duration = Duration::from_secs(5);

struct Live {
    viewer: Viewer,
    visible: Visibility,
    /// When it was last asked whether the viewer may see all that was shown.
    checked: Instant,
    views: Arc<dyn Views>,
    newest: watch::Receiver<Seq>,
    stop: CancellationToken,
    after: Seq,
    states: VecDeque<RawState>,
    /// The kind of the first event, and its position.
    first: Option<(&'static str, Seq)>,
    /// Up to here the client knows that it has everything, and since when.
    told: (Seq, Instant),
    place: StreamPlace,
}

pub(crate) async fn events(
    State(app): State<App>,
    viewer: Viewer,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, Problem> {
    let asked = Params::read(&uri, &["after"])?.number("after")?;
    let seen =
        headers.get("last-event-id").and_then(|value| value.to_str().ok()).filter(|text| !text.is_empty());
    let seen = seen.map(|text| params::number("Last-Event-ID", text)).transpose()?;
    let place = app.streams.take(viewer.party()).ok_or_else(|| {
        Problem::of(
            codes::TOO_MANY_STREAMS,
            "There are too many live streams.",
            "Close another window of the portal, or reload this one now and then.",
        )
    })?;
    let visible = Visibility::new(&app, &viewer);
    visible.note_rights().await?;
    let newest = app.views.newest()?;
    let now = *newest.borrow();
    let known = seen.or(asked);
    let from = known.unwrap_or(now);
    let notice = match known {
        Some(after) if after < now && !app.views.has_all_after(after).await? => Some(removed(after)),
        _ => None,
    };
    let live = Live {
        visible,
        viewer,
        checked: Instant::now(),
        told: (from.min(now), Instant::now()),
        views: app.views,
        newest,
        stop: app.stop,
        after: from.min(now),
        states: VecDeque::new(),
        first: match known {
            Some(known) => (known > now).then_some(("reset", now)),
            None => Some(("position", now)),
        },
        place,
    };
    let stream = stream::unfold(live, |mut live| async {
        let viewer = live.viewer.clone();
        let event = tokio::select! {
            biased;
            () = viewer.left() => None,
            event = viewer.does(live.next()) => event,
        };
        Some((Ok::<_, Infallible>(event?), live))
    });
    let mut response = Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response();
    response.headers_mut().extend(notice.map(|notice| (NOTICE, notice)));
    Ok(response)
}

/// It tells no more than the client knows: neither how many, nor whose.
fn removed(after: Seq) -> HeaderValue {
    let told = format!("Retention has removed states after position {after}: the stream does not have them.");
    HeaderValue::try_from(told).expect("a sentence and a number")
}

/// None where nobody can say: the stream ends.
fn told<T>(answer: Result<T, Problem>) -> Option<T> {
    answer.inspect_err(|problem| tracing::debug!(problem.message, "a live stream ends")).ok()
}

impl Live {
    /// `None` ends the stream; a browser then asks again by itself, from where it was.
    async fn next(&mut self) -> Option<Event> {
        if let Some((kind, position)) = self.first.take() {
            return Some(Event::default().event(kind).id(position.to_string()).data(position.to_string()));
        }
        loop {
            if let Some(state) = self.states.pop_front() {
                self.after = state.seq();
                match self.shows(&state).await {
                    Some(true) => self.told = (self.after, Instant::now()),
                    Some(false) => match self.position() {
                        Some(event) => return Some(event),
                        None => continue,
                    },
                    None => return None,
                }
                let state = told(self.visible.with_seen_owner(state).await)?;
                let state = match self.views.shown(state).await {
                    Ok(state) => state,
                    Err(error) => {
                        tracing::warn!(%error, "a live stream ends: a state can't be shown");
                        return None;
                    }
                };
                let event = Event::default().event("state").id(state.seq.to_string());
                return event.json_data(&*state).ok();
            }
            self.read().await?;
        }
    }

    /// How far the stream is, where the client has not been told for a while.
    fn position(&mut self) -> Option<Event> {
        let (told, since) = self.told;
        if self.after <= told || since.elapsed() < POSITION_EVERY {
            return None;
        }
        self.told = (self.after, Instant::now());
        let position = self.after.to_string();
        Some(Event::default().event("position").id(&position).data(position))
    }

    /// `None`: the stream ends, for what was shown before may no longer be, or nobody can say.
    async fn shows(&mut self, state: &RawState) -> Option<bool> {
        self.check(CHECK).await?;
        told(self.visible.sees(Verb::List, state.object(), Some(state.seq())).await)
    }

    /// Asks again, where it was asked so long ago, whether the viewer is still known and may see what they saw.
    async fn check(&mut self, age: Duration) -> Option<()> {
        if self.checked.elapsed() < age || matches!(self.viewer, Viewer::Everybody) {
            return Some(());
        }
        self.checked = Instant::now();
        let is_known = self.viewer.is_still_known().await.ok()?;
        (is_known && self.visible.still_holds().await.ok()?).then_some(())
    }

    /// Reads the states that come next, and waits for them where there are none.
    async fn read(&mut self) -> Option<()> {
        // Marked as seen before it is read, so that what comes in between wakes the wait below.
        let newest = *self.newest.borrow_and_update();
        let is_behind = newest.saturating_sub(self.after) > BEHIND;
        let read = tokio::select! {
            () = self.stop.cancelled() => return None,
            read = async {
                let _turn = match is_behind {
                    true => self.place.turn().await,
                    false => None,
                };
                self.views.states_after(self.after, BATCH).await
            } => read,
        };
        match read {
            Ok(states) if !states.is_empty() => {
                self.states.extend(states);
                return Some(());
            }
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%error, "a live stream ends: states can't be read");
                return None;
            }
        }
        let next_check = self.checked + CHECK;
        tokio::select! {
            () = self.stop.cancelled() => None,
            changed = self.newest.changed() => {
                changed.ok()?;
                self.check(PAUSE).await
            }
            () = tokio::time::sleep_until(next_check), if !matches!(self.viewer, Viewer::Everybody) => {
                self.check(CHECK).await
            }
        }
    }
}
