//! Reads the journal for the lanes: new states, deferred states, and the count of unread states.

use std::sync::Arc;
use std::time::Duration;

use kubewitness_core::lanes::{CatchUpRange, Lanes};
use kubewitness_core::ports::{Backlog, JournalError, OtherNamespaces, OwedPage, PresentPage};
use kubewitness_core::{Seq, State};

use crate::pacing::pause::OperatorPause;
use crate::subscriptions::{FittedStates, SourceInterest};

/// States in one read: enough to make a read cheap, few enough to start calls early.
pub(crate) const CHUNK: usize = 1024;
/// The most positions by which the count of unread states may lag while the window is full.
const RECOUNT: Duration = Duration::from_millis(250);
/// How far the count may lag behind retention, which removes counted states.
const RECOUNT_ALL: Duration = Duration::from_secs(30);

/// One query to the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BacklogQuery {
    /// Reads states whose positions the lanes know.
    Fill(Vec<Seq>),
    Read {
        after: Seq,
        limit: usize,
        newest: Seq,
    },
    /// New states outside some namespaces.
    Outside {
        after: Seq,
        through: Seq,
        namespaces: Vec<String>,
    },
    /// States that were left before.
    Behind {
        from: Seq,
        limit: usize,
        through: Seq,
    },
    /// States that are owed, for lanes that go on.
    Owed {
        plugin: String,
        from: Seq,
    },
    Count {
        after: Seq,
        through: Seq,
    },
    /// The same, from the reading position of the lanes.
    CountAll {
        after: Seq,
        through: Seq,
    },
    /// A part of a source's present objects, for a resync.
    Present {
        source: Arc<str>,
        from: u64,
    },
}

#[derive(Debug)]
pub(crate) enum BacklogAnswer {
    States(Vec<Arc<State>>),
    /// Everything up to a position, with how each state fits the subscription.
    Fitted(FittedStates, Seq),
    /// A part of what is owed, up to a position.
    Owed(FittedStates, Option<Seq>),
    Count(u64),
    Present(PresentPage),
}

impl BacklogQuery {
    pub async fn run_query(
        &self,
        backlog: &dyn Backlog,
        interest: &SourceInterest,
    ) -> Result<BacklogAnswer, JournalError> {
        Ok(match self {
            Self::Fill(seqs) => BacklogAnswer::States(backlog.read_at(seqs).await?),
            Self::Read { after, limit, newest } => {
                let states = backlog.read(*after, *limit).await?;
                // Fewer states than asked for: nothing more lies before the end.
                let end = states.last().filter(|_| states.len() >= *limit).map_or(*newest, |state| state.seq);
                BacklogAnswer::Fitted(interest.fit_states(states, true).await?, end)
            }
            Self::Outside { after, through, namespaces } => {
                let OtherNamespaces { states, looked } =
                    backlog.read_outside(*after, *through, CHUNK, namespaces).await?;
                BacklogAnswer::Fitted(interest.fit_states(states, true).await?, looked)
            }
            Self::Behind { from, limit, through } => {
                let mut states = backlog.read(from - 1, *limit).await?;
                let is_all = states.len() < *limit;
                states.retain(|state| state.seq <= *through);
                let end = states.last().filter(|_| !is_all).map_or(*through, |state| state.seq);
                BacklogAnswer::Fitted(interest.fit_states(states, false).await?, end)
            }
            Self::Owed { plugin, from } => {
                let OwedPage { states, end } = backlog.owed_states(plugin, *from, CHUNK).await?;
                BacklogAnswer::Owed(interest.fits_owed(states).await?, end)
            }
            Self::Count { after, through } | Self::CountAll { after, through } => {
                BacklogAnswer::Count(interest.count(backlog, *after, *through).await?)
            }
            Self::Present { source, from } => {
                let PresentPage { states, next } = backlog.present_objects(source, *from, CHUNK).await?;
                BacklogAnswer::Present(PresentPage { states: interest.keep_wanted(states).await?, next })
            }
        })
    }
}

/// The order of queries, so that no long replay, long backlog or lagging namespace makes the others wait.
const TURNS: [ReaderTurn; 5] =
    [ReaderTurn::Fill, ReaderTurn::Owed, ReaderTurn::Behind, ReaderTurn::Read, ReaderTurn::Count];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReaderTurn {
    Fill,
    Owed,
    Behind,
    Read,
    Count,
}

/// Reads the journal. At most one query is in flight, so the lanes do not change in between.
#[derive(Debug, Default)]
pub(crate) struct BacklogReader {
    recount_at: Duration,
    recount_all_at: Duration,
    /// The index in [`TURNS`] of the last query.
    turn: usize,
    pause: OperatorPause,
    /// States that no filter could judge, and the reason for the last one.
    pub unclear: u64,
    pub why: Option<Arc<str>>,
}

impl BacklogReader {
    /// Whether the reader pauses because the journal could not be read.
    pub fn is_paused(&self, now: Duration) -> bool {
        now < self.pause.pause_end()
    }

    /// The next query. `ahead`: whether to look for states of other namespaces while the window has no room
    /// for those that are behind.
    pub fn next(&self, lanes: &Lanes, newest: Seq, now: Duration, ahead: bool) -> Option<BacklogQuery> {
        if self.is_paused(now) {
            return None;
        }
        let turns = (1..=TURNS.len()).map(|step| TURNS[(self.turn + step) % TURNS.len()]);
        turns.into_iter().find_map(|turn| match turn {
            ReaderTurn::Fill => {
                Some(lanes.wanted_positions(CHUNK)).filter(|seqs| !seqs.is_empty()).map(BacklogQuery::Fill)
            }
            ReaderTurn::Owed | ReaderTurn::Behind if lanes.owes_too_much() => None,
            ReaderTurn::Owed => lanes
                .next_owed()
                .map(|from| BacklogQuery::Owed { plugin: lanes.plugin_name().to_owned(), from }),
            ReaderTurn::Behind => lanes.next_behind(now).map(|CatchUpRange { from, limit }| {
                BacklogQuery::Behind { from, limit: limit.min(CHUNK), through: lanes.last_read() }
            }),
            ReaderTurn::Read => Self::read(lanes, newest, now, ahead),
            ReaderTurn::Count => self.count(lanes, newest, now, ahead),
        })
    }

    fn read(lanes: &Lanes, newest: Seq, now: Duration, ahead: bool) -> Option<BacklogQuery> {
        let after = lanes.last_read();
        let unread = usize::try_from(newest.saturating_sub(after)).unwrap_or(usize::MAX);
        if unread == 0 || lanes.is_scattered() || lanes.owes_too_much() {
            return None;
        }
        if lanes.is_in_past() {
            return Some(BacklogQuery::Read { after, limit: CHUNK, newest });
        }
        let namespaces = lanes.namespaces_behind();
        if !namespaces.is_empty() {
            // States that are read past must be counted before.
            let through = lanes.counted_through().min(newest);
            return (ahead && through > after).then_some(BacklogQuery::Outside {
                after,
                through,
                namespaces,
            });
        }
        match lanes.room_for_states() {
            0 => ahead.then_some(BacklogQuery::Read { after, limit: CHUNK, newest }),
            room => {
                // A nearly full window is not worth a read for a few states, unless the plugin waits.
                let worth = room >= unread.min(CHUNK) || !lanes.has_ready(now);
                worth.then(|| BacklogQuery::Read { after, limit: room.min(CHUNK), newest })
            }
        }
    }

    /// The query that counts unread states, if reading does not tell their number.
    fn count(&self, lanes: &Lanes, newest: Seq, now: Duration, ahead: bool) -> Option<BacklogQuery> {
        if lanes.is_countable() && now >= self.recount_all_at {
            return Some(BacklogQuery::CountAll { after: lanes.last_read(), through: newest });
        }
        let after = lanes.counted_through();
        let is_due = newest > after && now >= self.recount_at;
        let is_told =
            || lanes.namespaces_behind().is_empty() && Self::read(lanes, newest, now, ahead).is_some();
        (is_due && !is_told()).then_some(BacklogQuery::Count { after, through: newest })
    }

    /// When to query again although nothing else happens.
    pub fn next_wake(&self, lanes: &Lanes, newest: Seq) -> Option<Duration> {
        if self.pause.is_paused() {
            return Some(self.pause.pause_end());
        }
        let all = lanes.is_countable().then_some(self.recount_all_at);
        let new = (newest > lanes.counted_through()).then_some(self.recount_at);
        all.into_iter().chain(new).min()
    }

    pub fn note_failure(&mut self, now: Duration) {
        self.pause.begin_pause(now);
    }

    /// Notes an answer to another part's query.
    pub fn note_success(&mut self) {
        self.pause.end_pause();
    }

    /// Applies an answer to the lanes. Returns the positions known to the lanes whose states the journal no
    /// longer has; of owed states, the first that was asked for.
    pub fn apply_answer(
        &mut self,
        fetch: BacklogQuery,
        answer: BacklogAnswer,
        lanes: &mut Lanes,
        now: Duration,
    ) -> Vec<Seq> {
        self.pause.end_pause();
        if let BacklogAnswer::Fitted(fitted, _) = &answer {
            self.unclear += fitted.unclear;
            self.why = fitted.why.as_deref().map(Arc::from).or(self.why.take());
        }
        let turn = match (fetch, answer) {
            (BacklogQuery::Fill(asked), BacklogAnswer::States(states)) => {
                self.turn = 0;
                return lanes.fill_wanted(&asked, states, now);
            }
            (BacklogQuery::Owed { from, .. }, BacklogAnswer::Owed(fitted, end)) => {
                self.turn = TURNS.iter().position(|other| *other == ReaderTurn::Owed).unwrap_or(0);
                let missing = lanes.return_owed(from, fitted.states, end, now);
                return (missing > 0).then_some(from).into_iter().collect();
            }
            (BacklogQuery::Behind { from, .. }, BacklogAnswer::Fitted(fitted, end)) => {
                lanes.take_in_deferred(from, fitted.states, end, now);
                ReaderTurn::Behind
            }
            (BacklogQuery::Read { .. }, BacklogAnswer::Fitted(fitted, end)) => {
                lanes.read(fitted.states, end, now);
                ReaderTurn::Read
            }
            (BacklogQuery::Outside { .. }, BacklogAnswer::Fitted(fitted, end)) => {
                lanes.read_outside(fitted.states, end, now);
                ReaderTurn::Read
            }
            (BacklogQuery::Count { through, .. }, BacklogAnswer::Count(count)) => {
                lanes.count(through, count);
                self.recount_at = now + RECOUNT;
                ReaderTurn::Count
            }
            (BacklogQuery::CountAll { through, .. }, BacklogAnswer::Count(count)) => {
                lanes.set_unread_count(through, count);
                self.recount_all_at = now + RECOUNT_ALL;
                ReaderTurn::Count
            }
            (fetch, answer) => unreachable!("{fetch:?} is never answered by {answer:?}"),
        };
        self.turn = TURNS.iter().position(|other| *other == turn).unwrap_or(0);
        Vec::new()
    }
}
