//! The live stream: states as they are journaled, as server-sent events.
//!
//! Each event's id is its [`JournalCursor`]. So a client that comes back (a browser sends `Last-Event-ID`) gets exactly what it
//! missed. A client that gave no position is told at once where the stream begins, since the next state may be long in
//! coming. States that a client may not see are passed over: once a second it is told how far the stream is, also after the
//! last of them, so that it does not begin before them again.
//!
//! A client's position can be of another journal, because this one was replaced by a copy that is older, whether or not it
//! has grown since. Then a `reset` tells the client, and the stream goes on from the journal's newest position. A position
//! that is newer than the journal may also come from a replica that is ahead: the stream waits a while for it.

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

use crate::access::PortalViewer;
use crate::answer::paged::NOTICE;
use crate::answer::params::QueryParams;
use crate::answer::{Problem, codes};
use crate::app::PortalApp;
use crate::scope::{AccessVerb, JournalCursor, PositionMatch, ViewerVisibility};
use crate::serve::StreamPlace;

/// States read at once for one stream; it holds no more than that.
const BATCH: usize = 128;
/// Proxies close what is silent for a minute.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// What was withdrawn ends a stream within a minute: it is kept for ten seconds, and asked for anew this often.
const CHECK: Duration = Duration::from_secs(30);
/// How long a stream waits for a position that it does not have yet. A replica is behind another one by about a second.
const AWAITED_FOR: Duration = Duration::from_secs(10);
/// A client that sees nothing of what comes is told so often how far the stream is.
const POSITION_EVERY: Duration = Duration::from_secs(1);
/// A stream that is so many states behind reads them from the disk.
const FAR_BEHIND: u64 = 1024;
/// After such a pause it is asked before anything is shown.
const PAUSE: Duration = Duration::from_secs(5);

struct LiveEvents {
    viewer: PortalViewer,
    visible: ViewerVisibility,
    /// When it was last asked whether the viewer may see all that was shown.
    checked: Instant,
    views: Arc<dyn Views>,
    newest: watch::Receiver<Seq>,
    stop: CancellationToken,
    after: Seq,
    states: VecDeque<RawState>,
    first: Option<FirstEvent>,
    /// Whether the rights are known by which it may show something. To ask for those in many namespaces takes longer than
    /// an answer may take to begin.
    has_noted_rights: bool,
    /// When the client last learned how far the stream is.
    told: Instant,
    /// The last state since then, if it was hidden.
    hidden: Option<JournalCursor>,
    place: StreamPlace,
}

/// The event before the states.
enum FirstEvent {
    Position(JournalCursor),
    Reset(JournalCursor),
    /// Nothing, once the journal has this position; otherwise a reset.
    Awaits(JournalCursor),
}

pub(crate) async fn events(
    State(app): State<PortalApp>,
    viewer: PortalViewer,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, Problem> {
    let params = QueryParams::read(&uri, &["after"])?;
    let asked = params.text("after").map(|text| JournalCursor::read("after", text)).transpose()?;
    let seen =
        headers.get("last-event-id").and_then(|value| value.to_str().ok()).filter(|text| !text.is_empty());
    let seen = seen.map(|text| JournalCursor::read("Last-Event-ID", text)).transpose()?;
    let place = app.streams.take(viewer.party()).ok_or_else(|| {
        Problem::of(
            codes::TOO_MANY_STREAMS,
            "There are too many live streams.",
            "Close another window of the portal, or reload this one now and then.",
        )
    })?;
    let visible = ViewerVisibility::new(&app, &viewer);
    let newest = app.views.newest()?;
    let now = *newest.borrow();
    let known = seen.or(asked);
    let first = first_event(&*app.views, known, now).await;
    let from = match &first {
        Some(FirstEvent::Position(begins) | FirstEvent::Reset(begins)) => begins.seq,
        Some(FirstEvent::Awaits(_)) | None => known.map_or(now, |known| known.seq),
    };
    let has_all = from >= now || {
        // To count them reads the disk, as a replay does.
        let _turn = if is_far_behind(from, now) { place.turn().await } else { None };
        app.views.has_all_after(from).await?
    };
    let notice = (!has_all).then(|| removed(from));
    let live = LiveEvents {
        visible,
        viewer,
        checked: Instant::now(),
        views: app.views,
        newest,
        stop: app.stop,
        after: from,
        states: VecDeque::new(),
        first,
        has_noted_rights: false,
        told: Instant::now(),
        hidden: None,
        place,
    };
    let stream = stream::unfold(live, |mut live| async {
        let viewer = live.viewer.clone();
        let event = tokio::select! {
            biased;
            () = viewer.signed_out() => None,
            event = viewer.does(live.next()) => event,
        };
        Some((Ok::<_, Infallible>(event?), live))
    });
    let mut response = Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response();
    response.headers_mut().extend(notice.map(|notice| (NOTICE, notice)));
    Ok(response)
}

/// For a client that knows this position of a journal that is at `now`.
async fn first_event(views: &dyn Views, known: Option<JournalCursor>, now: Seq) -> Option<FirstEvent> {
    let Some(known) = known else { return Some(FirstEvent::Position(JournalCursor::at(views, now).await)) };
    if known.seq > now && known.mark.is_some() {
        return Some(FirstEvent::Awaits(known));
    }
    // Where states can't be read, the stream ends with its first.
    let is_other =
        known.seq > now || known.standing(views).await.is_ok_and(|found| found == PositionMatch::Other);
    match is_other {
        true => Some(FirstEvent::Reset(JournalCursor::at(views, now).await)),
        false => None,
    }
}

fn is_far_behind(after: Seq, newest: Seq) -> bool {
    newest.saturating_sub(after) > FAR_BEHIND
}

/// It tells no more than the client knows: neither how many, nor whose.
fn removed(after: Seq) -> HeaderValue {
    let told = format!("Retention has removed states after position {after}: the stream does not have them.");
    HeaderValue::try_from(told).expect("a sentence and a number")
}

/// None where nobody can say: the stream ends.
fn or_end_stream<T>(answer: Result<T, Problem>) -> Option<T> {
    answer.inspect_err(|problem| tracing::debug!(problem.message, "a live stream ends")).ok()
}

impl LiveEvents {
    /// `None` ends the stream; a browser then asks again by itself, from where it was.
    async fn next(&mut self) -> Option<Event> {
        let first = match self.first.take() {
            Some(FirstEvent::Awaits(known)) => self.awaited(known).await?,
            first => first,
        };
        let begins = match first {
            Some(FirstEvent::Position(begins)) => Some(("position", begins)),
            Some(FirstEvent::Reset(begins)) => Some(("reset", begins)),
            Some(FirstEvent::Awaits(_)) | None => None,
        };
        if let Some((kind, begins)) = begins {
            (self.after, self.told) = (begins.seq, Instant::now());
            return Some(Event::default().event(kind).id(begins.to_string()).data(begins.seq.to_string()));
        }
        if !std::mem::replace(&mut self.has_noted_rights, true) {
            tokio::select! {
                () = self.stop.cancelled() => return None,
                noted = self.visible.note_rights() => or_end_stream(noted)?,
            }
        }
        loop {
            if let Some(event) = self.position() {
                return Some(event);
            }
            if let Some(state) = self.states.pop_front() {
                self.after = state.seq();
                if !self.shows(&state).await? {
                    self.hidden = Some(JournalCursor::of(&state));
                    continue;
                }
                (self.told, self.hidden) = (Instant::now(), None);
                let position = JournalCursor::of(&state);
                let state = or_end_stream(self.visible.with_seen_owner(state).await)?;
                let state = match self.views.redacted_state(state).await {
                    Ok(state) => state,
                    Err(error) => {
                        tracing::warn!(%error, "a live stream ends: a state can't be shown");
                        return None;
                    }
                };
                let event = Event::default().event("state").id(position.to_string());
                return event.json_data(&*state).ok();
            }
            self.read().await?;
        }
    }

    /// Waits until the journal comes to a position that another replica has given, and tells a reset where it does not.
    /// `None` ends the stream.
    async fn awaited(&mut self, known: JournalCursor) -> Option<Option<FirstEvent>> {
        let deadline = Instant::now() + AWAITED_FOR;
        while *self.newest.borrow_and_update() < known.seq {
            tokio::select! {
                () = self.stop.cancelled() => return None,
                () = tokio::time::sleep_until(deadline) => break,
                changed = self.newest.changed() => changed.ok()?,
            }
        }
        let now = *self.newest.borrow();
        let is_there = now >= known.seq && known.standing(&*self.views).await.ok()? != PositionMatch::Other;
        Some(match is_there {
            true => None,
            false => Some(FirstEvent::Reset(JournalCursor::at(&*self.views, now).await)),
        })
    }

    /// How far the stream is with hidden states, where the client has not been told for a while.
    fn position(&mut self) -> Option<Event> {
        if self.told.elapsed() < POSITION_EVERY {
            return None;
        }
        let position = self.hidden.take()?;
        self.told = Instant::now();
        Some(Event::default().event("position").id(position.to_string()).data(position.seq.to_string()))
    }

    /// `None`: the stream ends, for what was shown before may no longer be, or nobody can say.
    async fn shows(&mut self, state: &RawState) -> Option<bool> {
        self.check(CHECK).await?;
        or_end_stream(self.visible.sees(AccessVerb::List, state.object(), Some(state.seq())).await)
    }

    /// Asks again, where it was asked so long ago, whether the viewer is still known and may see what they saw.
    async fn check(&mut self, age: Duration) -> Option<()> {
        if self.checked.elapsed() < age || matches!(self.viewer, PortalViewer::Everybody) {
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
        let is_behind = is_far_behind(self.after, newest);
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
            () = tokio::time::sleep_until(self.told + POSITION_EVERY), if self.hidden.is_some() => Some(()),
            changed = self.newest.changed() => {
                changed.ok()?;
                self.check(PAUSE).await
            }
            () = tokio::time::sleep_until(next_check), if !matches!(self.viewer, PortalViewer::Everybody) => {
                self.check(CHECK).await
            }
        }
    }
}
