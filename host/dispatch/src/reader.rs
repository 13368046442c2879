//! Feeds the lanes from the journal: what is new, what was set aside, and how much lies unread.

use std::sync::Arc;
use std::time::Duration;

use kubewitness_core::lanes::Lanes;
use kubewitness_core::ports::{Backlog, JournalError, Present};
use kubewitness_core::{Seq, State};

use crate::interest::{Fit, Interest};
use crate::pause::Pause;

/// States in one read: enough to make a read cheap, few enough to start calls early.
pub(crate) const CHUNK: usize = 1024;
/// How far the count of the unread may lag behind the journal while the window is full.
const RECOUNT: Duration = Duration::from_millis(250);

/// One question to the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fetch {
    /// States that the lanes know by position.
    Fill(Vec<Seq>),
    Read {
        after: Seq,
        limit: usize,
        newest: Seq,
    },
    Count {
        after: Seq,
        through: Seq,
    },
    /// A part of what is there of a source, for a resync.
    Present {
        source: Arc<str>,
        from: u64,
    },
}

#[derive(Debug)]
pub(crate) enum Answer {
    States(Vec<Arc<State>>),
    Count(u64),
    Present(Present),
}

impl Fetch {
    pub async fn ask(&self, backlog: &dyn Backlog, interest: &Interest) -> Result<Answer, JournalError> {
        match self {
            Self::Fill(seqs) => backlog.read_at(seqs).await.map(Answer::States),
            Self::Read { after, limit, .. } => backlog.read(*after, *limit).await.map(Answer::States),
            Self::Count { after, through } => {
                interest.count(backlog, *after, *through).await.map(Answer::Count)
            }
            Self::Present { source, from } => {
                backlog.present(source, *from, CHUNK).await.map(Answer::Present)
            }
        }
    }
}

/// At most one question is under way, so every answer is about what is still true.
#[derive(Debug)]
pub(crate) struct Reader {
    /// Up to here the unread are counted.
    counted: Seq,
    /// States of the subscription after what was read, up to `counted`.
    unread: u64,
    recount_at: Duration,
    filled_last: bool,
    pause: Pause,
}

impl Reader {
    pub fn new(counted: Seq, unread: u64) -> Self {
        Self { counted, unread, recount_at: Duration::ZERO, filled_last: false, pause: Pause::default() }
    }

    /// Whether the journal could not be read, and is left alone for a while.
    pub fn is_paused(&self, now: Duration) -> bool {
        now < self.pause.until()
    }

    pub fn unread(&self) -> u64 {
        self.unread
    }

    pub fn next(&self, lanes: &Lanes, newest: Seq, now: Duration) -> Option<Fetch> {
        if self.is_paused(now) {
            return None;
        }
        let wanted = lanes.wanted(CHUNK);
        let read = Self::read(lanes, newest, now);
        match (wanted.is_empty(), read) {
            // By turns, so that neither a long replay nor a long backlog waits for the other.
            (false, Some(read)) if self.filled_last => Some(read),
            (false, _) => Some(Fetch::Fill(wanted)),
            (true, Some(read)) => Some(read),
            (true, None) => (newest > self.counted && now >= self.recount_at)
                .then_some(Fetch::Count { after: self.counted.max(lanes.through()), through: newest }),
        }
    }

    fn read(lanes: &Lanes, newest: Seq, now: Duration) -> Option<Fetch> {
        let unread = usize::try_from(newest.saturating_sub(lanes.through())).unwrap_or(usize::MAX);
        let room = lanes.room();
        // A nearly full window is not worth a read for a few states, unless the plugin waits.
        let worth = room >= unread.min(CHUNK) || !lanes.has_ready(now);
        (unread > 0 && room > 0 && worth).then(|| Fetch::Read {
            after: lanes.through(),
            limit: room.min(CHUNK),
            newest,
        })
    }

    /// When to ask again although nothing else happens.
    pub fn wake(&self, newest: Seq) -> Option<Duration> {
        if self.pause.is_on() {
            return Some(self.pause.until());
        }
        (newest > self.counted).then_some(self.recount_at)
    }

    pub fn failed(&mut self, now: Duration) {
        self.pause.begin(now);
    }

    /// An answer to somebody else's question.
    pub fn passed(&mut self) {
        self.pause.end();
    }

    pub fn answered(
        &mut self,
        fetch: Fetch,
        answer: Answer,
        lanes: &mut Lanes,
        interest: &Interest,
        now: Duration,
    ) -> Vec<Seq> {
        self.pause.end();
        self.filled_last = matches!(fetch, Fetch::Fill(_));
        match (fetch, answer) {
            (Fetch::Fill(asked), Answer::States(states)) => return lanes.fill(&asked, states),
            (Fetch::Read { limit, newest, .. }, Answer::States(states)) => {
                // Fewer than asked for: there is nothing more up to what was the newest.
                let through = if states.len() < limit { newest } else { 0 };
                self.take_in(states, through, lanes, interest);
            }
            (Fetch::Count { through, .. }, Answer::Count(count)) => {
                self.unread += count;
                self.counted = through;
                self.recount_at = now + RECOUNT;
            }
            (fetch, answer) => unreachable!("{fetch:?} is never answered by {answer:?}"),
        }
        Vec::new()
    }

    fn take_in(&mut self, states: Vec<Arc<State>>, through: Seq, lanes: &mut Lanes, interest: &Interest) {
        for state in states {
            let seq = state.seq;
            let fit = interest.fit(&state);
            if fit != Fit::Foreign && seq <= self.counted {
                self.unread = self.unread.saturating_sub(1);
            }
            match fit {
                Fit::Wanted => lanes.push(state),
                Fit::Filtered => lanes.filter(seq),
                Fit::Foreign => lanes.skip_to(seq),
            }
        }
        lanes.skip_to(through);
        if lanes.through() >= self.counted {
            self.counted = lanes.through();
            self.unread = 0;
        }
    }
}
