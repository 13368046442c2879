//! Reads the journal for the lanes: new states, states that were left, and the count of unread states.

use std::sync::Arc;
use std::time::Duration;

use kubewitness_core::lanes::{Behind, Lanes};
use kubewitness_core::ports::{Backlog, JournalError, Outside, Present};
use kubewitness_core::{Seq, State};

use crate::pacing::pause::Pause;
use crate::subscriptions::{Fitted, Interest};

/// States in one read: enough to make a read cheap, few enough to start calls early.
pub(crate) const CHUNK: usize = 1024;
/// How far the count of unread states may lag behind the journal while the window is full.
const RECOUNT: Duration = Duration::from_millis(250);
/// How far the count may lag behind retention, which removes counted states.
const RECOUNT_ALL: Duration = Duration::from_secs(30);

/// One query to the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fetch {
    /// States of which the lanes know the position.
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
pub(crate) enum Answer {
    States(Vec<Arc<State>>),
    /// Everything up to a position, with how each state fits the subscription.
    Fitted(Fitted, Seq),
    Count(u64),
    Present(Present),
}

impl Fetch {
    pub async fn ask(&self, backlog: &dyn Backlog, interest: &Interest) -> Result<Answer, JournalError> {
        Ok(match self {
            Self::Fill(seqs) => Answer::States(backlog.read_at(seqs).await?),
            Self::Read { after, limit, newest } => {
                let states = backlog.read(*after, *limit).await?;
                // Fewer states than asked for: nothing more lies before the end.
                let end = states.last().filter(|_| states.len() >= *limit).map_or(*newest, |state| state.seq);
                Answer::Fitted(interest.fits(states, true).await?, end)
            }
            Self::Outside { after, through, namespaces } => {
                let Outside { states, looked } =
                    backlog.read_outside(*after, *through, CHUNK, namespaces).await?;
                Answer::Fitted(interest.fits(states, true).await?, looked)
            }
            Self::Behind { from, limit, through } => {
                let mut states = backlog.read(from - 1, *limit).await?;
                let is_all = states.len() < *limit;
                states.retain(|state| state.seq <= *through);
                let end = states.last().filter(|_| !is_all).map_or(*through, |state| state.seq);
                Answer::Fitted(interest.fits(states, false).await?, end)
            }
            Self::Count { after, through } | Self::CountAll { after, through } => {
                Answer::Count(interest.count(backlog, *after, *through).await?)
            }
            Self::Present { source, from } => {
                let Present { states, next } = backlog.present(source, *from, CHUNK).await?;
                Answer::Present(Present { states: interest.keep(states).await?, next })
            }
        })
    }
}

/// The order of queries, so that no long replay, long backlog or lagging namespace makes the others wait.
const TURNS: [Turn; 4] = [Turn::Fill, Turn::Behind, Turn::Read, Turn::Count];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Fill,
    Behind,
    Read,
    Count,
}

/// Reads the journal. At most one query is in flight, so the lanes do not change in between.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    recount_at: Duration,
    recount_all_at: Duration,
    /// The index in [`TURNS`] of the last query.
    turn: usize,
    pause: Pause,
    /// States that no filter could judge, and the reason for the last one.
    pub unclear: u64,
    pub why: Option<Arc<str>>,
}

impl Reader {
    /// Whether the reader pauses because the journal could not be read.
    pub fn is_paused(&self, now: Duration) -> bool {
        now < self.pause.until()
    }

    /// The next query. `ahead`: whether to look for states of other namespaces while the window has no room
    /// for those that are behind.
    pub fn next(&self, lanes: &Lanes, newest: Seq, now: Duration, ahead: bool) -> Option<Fetch> {
        if self.is_paused(now) {
            return None;
        }
        let turns = (1..=TURNS.len()).map(|step| TURNS[(self.turn + step) % TURNS.len()]);
        turns.into_iter().find_map(|turn| match turn {
            Turn::Fill => Some(lanes.wanted(CHUNK)).filter(|seqs| !seqs.is_empty()).map(Fetch::Fill),
            Turn::Behind => lanes.next_behind(now).map(|Behind { from, limit }| Fetch::Behind {
                from,
                limit: limit.min(CHUNK),
                through: lanes.through(),
            }),
            Turn::Read => Self::read(lanes, newest, now, ahead),
            Turn::Count => self.count(lanes, newest, now, ahead),
        })
    }

    fn read(lanes: &Lanes, newest: Seq, now: Duration, ahead: bool) -> Option<Fetch> {
        let after = lanes.through();
        let unread = usize::try_from(newest.saturating_sub(after)).unwrap_or(usize::MAX);
        if unread == 0 || lanes.is_scattered() {
            return None;
        }
        if lanes.is_in_past() {
            return Some(Fetch::Read { after, limit: CHUNK, newest });
        }
        let namespaces = lanes.behind();
        if !namespaces.is_empty() {
            // States that are read past must be counted before.
            let through = lanes.counted().min(newest);
            return (ahead && through > after).then_some(Fetch::Outside { after, through, namespaces });
        }
        match lanes.room() {
            0 => ahead.then_some(Fetch::Read { after, limit: CHUNK, newest }),
            room => {
                // A nearly full window is not worth a read for a few states, unless the plugin waits.
                let worth = room >= unread.min(CHUNK) || !lanes.has_ready(now);
                worth.then(|| Fetch::Read { after, limit: room.min(CHUNK), newest })
            }
        }
    }

    /// The query that counts unread states, if reading does not tell their number.
    fn count(&self, lanes: &Lanes, newest: Seq, now: Duration, ahead: bool) -> Option<Fetch> {
        if lanes.is_countable() && now >= self.recount_all_at {
            return Some(Fetch::CountAll { after: lanes.through(), through: newest });
        }
        let after = lanes.counted();
        let is_due = newest > after && now >= self.recount_at;
        let is_told = || lanes.behind().is_empty() && Self::read(lanes, newest, now, ahead).is_some();
        (is_due && !is_told()).then_some(Fetch::Count { after, through: newest })
    }

    /// When to query again although nothing else happens.
    pub fn wake(&self, lanes: &Lanes, newest: Seq) -> Option<Duration> {
        if self.pause.is_on() {
            return Some(self.pause.until());
        }
        let all = lanes.is_countable().then_some(self.recount_all_at);
        let new = (newest > lanes.counted()).then_some(self.recount_at);
        all.into_iter().chain(new).min()
    }

    pub fn failed(&mut self, now: Duration) {
        self.pause.begin(now);
    }

    /// Notes an answer to another part's query.
    pub fn passed(&mut self) {
        self.pause.end();
    }

    /// Applies an answer to the lanes. Returns the positions known to the lanes whose states the journal no
    /// longer has.
    pub fn answered(&mut self, fetch: Fetch, answer: Answer, lanes: &mut Lanes, now: Duration) -> Vec<Seq> {
        self.pause.end();
        if let Answer::Fitted(fitted, _) = &answer {
            self.unclear += fitted.unclear;
            self.why = fitted.why.as_deref().map(Arc::from).or(self.why.take());
        }
        let turn = match (fetch, answer) {
            (Fetch::Fill(asked), Answer::States(states)) => {
                self.turn = 0;
                return lanes.fill(&asked, states, now);
            }
            (Fetch::Behind { from, .. }, Answer::Fitted(fitted, end)) => {
                lanes.catch_up(from, fitted.states, end, now);
                Turn::Behind
            }
            (Fetch::Read { .. }, Answer::Fitted(fitted, end)) => {
                lanes.read(fitted.states, end, now);
                Turn::Read
            }
            (Fetch::Outside { .. }, Answer::Fitted(fitted, end)) => {
                lanes.read_outside(fitted.states, end, now);
                Turn::Read
            }
            (Fetch::Count { through, .. }, Answer::Count(count)) => {
                lanes.count(through, count);
                self.recount_at = now + RECOUNT;
                Turn::Count
            }
            (Fetch::CountAll { through, .. }, Answer::Count(count)) => {
                lanes.recount(through, count);
                self.recount_all_at = now + RECOUNT_ALL;
                Turn::Count
            }
            (fetch, answer) => unreachable!("{fetch:?} is never answered by {answer:?}"),
        };
        self.turn = TURNS.iter().position(|other| *other == turn).unwrap_or(0);
        Vec::new()
    }
}
