//! The live stream: states as they are journaled, as server-sent events.
//!
//! Each event's id is its [`JournalCursor`]. So a client that reconnects (a browser sends `Last-Event-ID`)
//! gets exactly the states that it missed. A client without a position gets the start of the stream at once,
//! because the next state may take long. States that a client may not see are skipped: once a second, and
//! after the last of them, it gets the stream's position, so that it does not resume before them.
//!
//! A cause is found after the last state of its object. So an event without a state announces new causes, and
//! clients request their content again.
//!
//! A client's position may belong to another journal, because this one was replaced by an older copy, which
//! may have grown since. Then the client gets a `reset`, and the stream continues from the journal's newest
//! position. A position that is newer than the journal may also come from a replica that is ahead: the stream
//! waits a while for it. A number without a mark can't be compared: a journal that has grown past it goes on
//! there, whatever it had there before.

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
use crate::scope::{AccessVerb, JournalCursor, PositionMatch, RightsReview, ViewerVisibility};
use crate::serve::StreamPlace;

/// How many states are read at once for one stream; it holds no more.
const BATCH: usize = 128;
/// Proxies close connections after a minute of silence.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// How often rights are checked again, after the end of the check before. Answers are cached for ten seconds, so a
/// withdrawn right ends a quiet stream within a minute, unless the API server is slow.
const CHECK_RIGHTS_EVERY: Duration = Duration::from_secs(30);
/// How long the first states of a stream come before the first step of a review.
const FIRST_STEP_AFTER: Duration = Duration::from_secs(1);
/// How long a stream waits for a position that the journal does not have yet. A replica lags another one by
/// about a second.
const AWAITED_FOR: Duration = Duration::from_secs(10);
/// A number without a mark is waited for if it is so few states ahead: more than a replica lags. Another number
/// was mistyped, or comes from another journal.
const AHEAD_WITHOUT_MARK: u64 = 65_536;
/// How often a client is sent the stream's position while it may see none of the new states.
const POSITION_EVERY: Duration = Duration::from_secs(1);
/// The shortest interval between two announcements of causes: a burst of failures is explained in parts.
const CAUSES_EVERY: Duration = Duration::from_millis(500);
/// A stream that lags by this many states reads them from disk.
const FAR_BEHIND: u64 = 1024;
/// After such a long pause, rights are checked before anything is shown.
const LONG_PAUSE: Duration = Duration::from_secs(5);

struct LiveEvents {
    viewer: PortalViewer,
    visible: ViewerVisibility,
    /// When the viewer was last known, and each right expired.
    fresh: Instant,
    /// When the last review of all rights ended.
    reviewed: Instant,
    /// The review that runs. It may take minutes, so states are shown between its steps, each by its own right.
    review: Option<RightsReview>,
    /// When its last step ended, and how long that took.
    last_step: (Instant, Duration),
    views: Arc<dyn Views>,
    newest: watch::Receiver<Seq>,
    outcome_news: watch::Receiver<u64>,
    /// Causes were found that were not announced to the client yet.
    has_new_causes: bool,
    /// When causes were last announced to the client.
    causes_announced: Instant,
    stop: CancellationToken,
    after: Seq,
    states: VecDeque<RawState>,
    first: Option<FirstEvent>,
    /// When the client last got the stream's position.
    position_sent: Instant,
    /// The last state since then, if it was hidden.
    hidden: Option<JournalCursor>,
    place: StreamPlace,
}

/// The event before the first state.
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
    let place = app.streams.take(viewer.party_of_shares()).ok_or_else(|| {
        Problem::with_code(
            codes::TOO_MANY_STREAMS,
            "There are too many live streams.",
            "Close another window of the portal, or reload this one now and then.",
        )
    })?;
    let visible = ViewerVisibility::new(&app, &viewer);
    let (newest, outcome_news) = (app.views.newest_position()?, app.views.outcome_news()?);
    let now = *newest.borrow();
    let known = seen.or(asked);
    let first = first_event(&*app.views, known, now).await;
    let from = match &first {
        Some(FirstEvent::Position(begins) | FirstEvent::Reset(begins)) => begins.seq,
        Some(FirstEvent::Awaits(_)) | None => known.map_or(now, |known| known.seq),
    };
    let has_all = from >= now || {
        // Counting them reads the disk, as a replay does.
        let _turn = if is_far_behind(from, now) { place.await_turn().await } else { None };
        app.views.has_all_after(from).await?
    };
    let notice = (!has_all).then(|| removed_header(from));
    let live = LiveEvents {
        review: (!visible.is_whole()).then(RightsReview::default),
        last_step: (Instant::now(), FIRST_STEP_AFTER),
        visible,
        viewer,
        fresh: Instant::now(),
        reviewed: Instant::now(),
        views: app.views,
        newest,
        outcome_news,
        // Causes may have been found between the client's page, or its previous stream, and now.
        has_new_causes: known.is_some(),
        causes_announced: Instant::now(),
        stop: app.stop,
        after: from,
        states: VecDeque::new(),
        first,
        position_sent: Instant::now(),
        hidden: None,
        place,
    };
    let stream = stream::unfold(live, |mut live| async {
        let viewer = live.viewer.clone();
        let event = tokio::select! {
            biased;
            () = viewer.signed_out() => None,
            event = viewer.run_as_party(live.next()) => event,
        };
        Some((Ok::<_, Infallible>(event?), live))
    });
    let mut response = Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response();
    response.headers_mut().extend(notice.map(|notice| (NOTICE, notice)));
    Ok(response)
}

/// For a client that knows this position, while the journal is at `now`.
async fn first_event(views: &dyn Views, known: Option<JournalCursor>, now: Seq) -> Option<FirstEvent> {
    let Some(known) = known else {
        return Some(FirstEvent::Position(JournalCursor::at_seq(views, now).await));
    };
    if known.seq > now && (known.mark.is_some() || known.seq - now <= AHEAD_WITHOUT_MARK) {
        return Some(FirstEvent::Awaits(known));
    }
    // If states can't be read, the stream ends at its first one.
    let is_other =
        known.seq > now || known.match_position(views).await.is_ok_and(|found| found == PositionMatch::Other);
    match is_other {
        true => Some(FirstEvent::Reset(JournalCursor::at_seq(views, now).await)),
        false => None,
    }
}

fn is_far_behind(after: Seq, newest: Seq) -> bool {
    newest.saturating_sub(after) > FAR_BEHIND
}

/// A notice of removed states. It reveals neither how many there were, nor whose.
fn removed_header(after: Seq) -> HeaderValue {
    let message =
        format!("Retention has removed states after position {after}: the stream does not have them.");
    HeaderValue::try_from(message).expect("a sentence and a number")
}

/// `None` if the check failed: the stream ends.
fn or_end_stream<T>(answer: Result<T, Problem>) -> Option<T> {
    answer.inspect_err(|problem| tracing::debug!(problem.message, "a live stream ends")).ok()
}

impl LiveEvents {
    /// `None` ends the stream; a browser then reconnects by itself, from its last position.
    async fn next(&mut self) -> Option<Event> {
        let first = match self.first.take() {
            Some(FirstEvent::Awaits(known)) => self.await_position(known).await?,
            first => first,
        };
        let begins = match first {
            Some(FirstEvent::Position(begins)) => Some(("position", begins)),
            Some(FirstEvent::Reset(begins)) => Some(("reset", begins)),
            Some(FirstEvent::Awaits(_)) | None => None,
        };
        if let Some((kind, begins)) = begins {
            (self.after, self.position_sent) = (begins.seq, Instant::now());
            return Some(Event::default().event(kind).id(begins.to_string()).data(begins.seq.to_string()));
        }
        loop {
            self.review_in_turn().await?;
            if let Some(event) = self.position_event().or_else(|| self.causes_event()) {
                return Some(event);
            }
            if let Some(state) = self.states.pop_front() {
                self.after = state.seq();
                if !self.may_show(&state).await? {
                    self.hidden = Some(JournalCursor::of(&state));
                    continue;
                }
                (self.position_sent, self.hidden) = (Instant::now(), None);
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

    /// Waits until the journal reaches a position that another replica has issued, and sends a reset if it
    /// does not. `None` ends the stream.
    async fn await_position(&mut self, known: JournalCursor) -> Option<Option<FirstEvent>> {
        let deadline = Instant::now() + AWAITED_FOR;
        while *self.newest.borrow_and_update() < known.seq {
            tokio::select! {
                () = self.stop.cancelled() => return None,
                () = tokio::time::sleep_until(deadline) => break,
                changed = self.newest.changed() => changed.ok()?,
            }
        }
        let now = *self.newest.borrow();
        let is_there =
            now >= known.seq && known.match_position(&*self.views).await.ok()? != PositionMatch::Other;
        Some(match is_there {
            true => None,
            false => Some(FirstEvent::Reset(JournalCursor::at_seq(&*self.views, now).await)),
        })
    }

    /// The stream's position within hidden states, if the client got none for a while.
    fn position_event(&mut self) -> Option<Event> {
        if self.position_sent.elapsed() < POSITION_EVERY {
            return None;
        }
        let position = self.hidden.take()?;
        self.position_sent = Instant::now();
        Some(Event::default().event("position").id(position.to_string()).data(position.seq.to_string()))
    }

    /// Announces that causes were found, and not whose. The event has no id: a client resumes after the state
    /// before.
    fn causes_event(&mut self) -> Option<Event> {
        if self.causes_announced.elapsed() < CAUSES_EVERY {
            return None;
        }
        let has_more = self.outcome_news.has_changed().unwrap_or_default();
        if !std::mem::take(&mut self.has_new_causes) && !has_more {
            return None;
        }
        self.outcome_news.mark_unchanged();
        self.causes_announced = Instant::now();
        // A browser drops an event without data.
        Some(Event::default().event("causes").data("found"))
    }

    /// `None` ends the stream: what was shown before may no longer be shown, or the check failed.
    async fn may_show(&mut self, state: &RawState) -> Option<bool> {
        self.check(CHECK_RIGHTS_EVERY).await?;
        let may_see = self.visible.may_see(AccessVerb::List, state.object(), Some(state.seq())).await;
        let may_see = or_end_stream(may_see)?;
        (!self.visible.has_lost_right()).then_some(may_see)
    }

    /// If the last check is older than `age`: checks whether the viewer is still known, and lets each right expire, so
    /// that it is asked for again before it shows anything. A review of all rights begins if one is due. It takes
    /// as long as it takes: the next one begins only some time after its end, so that a slow API server is not
    /// asked without a pause.
    async fn check(&mut self, age: Duration) -> Option<()> {
        if matches!(self.viewer, PortalViewer::Everybody) {
            return Some(());
        }
        let is_due = self.review.is_none() && self.reviewed.elapsed() >= CHECK_RIGHTS_EVERY;
        if !is_due && self.fresh.elapsed() < age {
            return Some(());
        }
        if !self.viewer.is_still_known().await.ok()? {
            return None;
        }
        self.visible.expire_rights();
        self.fresh = Instant::now();
        if is_due {
            self.review = Some(self.visible.begin_review()?);
        }
        Some(())
    }

    /// Lets the review make a step between two events, if states have had as much time as its last step. So a long
    /// review ends however many states there are, and holds none of them up for longer than a step.
    async fn review_in_turn(&mut self) -> Option<()> {
        let (ended, took) = self.last_step;
        let Some(review) = self.review.as_mut().filter(|_| ended.elapsed() >= took) else { return Some(()) };
        let begun = Instant::now();
        let done = tokio::select! {
            () = self.stop.cancelled() => return None,
            done = self.visible.review_some(review) => done,
        };
        // A right was withdrawn, or the API server gives no answer.
        or_end_stream(done)?;
        self.last_step = (Instant::now(), begun.elapsed());
        if self.review.as_ref().is_some_and(RightsReview::is_done) {
            (self.review, self.reviewed) = (None, Instant::now());
        }
        (!self.visible.has_lost_right()).then_some(())
    }

    /// Reads the next states, and waits for them if there are none.
    async fn read(&mut self) -> Option<()> {
        // Marked as seen before reading, so that a state in between ends the wait below.
        let newest = *self.newest.borrow_and_update();
        let is_behind = is_far_behind(self.after, newest);
        let read = tokio::select! {
            () = self.stop.cancelled() => return None,
            read = async {
                let _turn = match is_behind {
                    true => self.place.await_turn().await,
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
        let (step_ended, step_took) = self.last_step;
        let last_check = if self.review.is_none() { self.reviewed } else { self.fresh };
        let next_check = last_check + CHECK_RIGHTS_EVERY;
        tokio::select! {
            () = self.stop.cancelled() => None,
            // The caller makes the step. A state that comes here would throw away what the API server was just asked.
            () = tokio::time::sleep_until(step_ended + step_took), if self.review.is_some() => Some(()),
            () = tokio::time::sleep_until(self.position_sent + POSITION_EVERY), if self.hidden.is_some() => Some(()),
            () = tokio::time::sleep_until(self.causes_announced + CAUSES_EVERY), if self.has_new_causes => Some(()),
            changed = self.outcome_news.changed(), if !self.has_new_causes => {
                changed.ok()?;
                self.has_new_causes = true;
                Some(())
            }
            changed = self.newest.changed() => {
                changed.ok()?;
                self.check(LONG_PAUSE).await
            }
            () = tokio::time::sleep_until(next_check), if !matches!(self.viewer, PortalViewer::Everybody) => {
                self.check(CHECK_RIGHTS_EVERY).await
            }
        }
    }
}
