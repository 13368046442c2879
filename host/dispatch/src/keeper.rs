//! When progress is saved, and with what. At most one save is on its way; what happens
//! meanwhile goes into the next, in order.

use std::time::Duration;

use kubewitness_core::Seq;
use kubewitness_core::lanes::Lanes;
use kubewitness_core::limits;
use kubewitness_core::ports::{DeadLetter, KvWrite, Save};

use crate::interest::Interest;
use crate::pause::Pause;

/// Between two saves of a busy plugin: bounds its share of the journal's writer, whose syncs take
/// up to some milliseconds each, and how much is handed over again after a kill.
const BETWEEN: Duration = Duration::from_millis(50);
/// What only moves the cursor past states of no concern is kept this much later: losing it
/// costs reading them again.
const LAZY: Duration = Duration::from_secs(1);
/// Finished states that aren't saved; beyond, nothing new is handed over. It bounds memory and
/// repetition while the journal can't be written.
const UNSAVED: usize = limits::LANE_WINDOW;

#[derive(Debug, Default)]
pub(crate) struct Keeper {
    parked: Vec<DeadLetter>,
    revived: Vec<Seq>,
    kv: Vec<KvWrite>,
    /// Since when there is something to save, by urgency.
    urgent: bool,
    lazy_since: Option<Duration>,
    last: Option<Duration>,
    /// Finished since the last save began.
    unsaved: usize,
    /// What was read when the last save began that is durable now.
    saved_through: Seq,
    /// The cursor of that save; 0 before the first.
    saved_cursor: Seq,
    /// What the save on its way carries, until it is known to be durable.
    sent: Option<Sent>,
    pause: Pause,
}

#[derive(Debug)]
struct Sent {
    parked: Vec<DeadLetter>,
    revived: Vec<Seq>,
    kv: Vec<KvWrite>,
    unsaved: usize,
    through: Seq,
    cursor: Seq,
}

impl Keeper {
    /// `through` is what the kept progress says was read.
    pub fn new(through: Seq) -> Self {
        Self { saved_through: through, ..Self::default() }
    }

    /// Up to here everything is finished, and the journal knows it.
    pub fn saved_cursor(&self) -> Seq {
        self.saved_cursor
    }

    /// Whether so much was read that a save has to come before the next reading.
    pub fn is_behind(&self, through: Seq) -> bool {
        through.saturating_sub(self.saved_through) >= limits::READ_AHEAD as Seq
    }

    /// States were finished, with what they wrote.
    pub fn finished(&mut self, count: usize, kv: Vec<KvWrite>) {
        self.urgent = true;
        self.unsaved += count;
        self.kv.extend(kv);
    }

    /// Something else changed that must be kept soon.
    pub fn touch(&mut self) {
        self.urgent = true;
    }

    /// The cursor may have moved.
    pub fn moved(&mut self, now: Duration) {
        self.lazy_since.get_or_insert(now);
    }

    /// There will be no later.
    pub fn touch_if_lazy(&mut self) {
        self.urgent |= self.lazy_since.is_some();
    }

    pub fn is_clean(&self) -> bool {
        self.sent.is_none() && !self.urgent && self.lazy_since.is_none()
    }

    /// Whether what isn't saved has reached its bound.
    pub fn is_full(&self) -> bool {
        self.unsaved + self.sent.as_ref().map_or(0, |sent| sent.unsaved) >= UNSAVED
    }

    /// When the next save may begin; `None` while one is on its way or nothing is to be saved.
    pub fn due(&self) -> Option<Duration> {
        if self.sent.is_some() {
            return None;
        }
        let lazy = self.lazy_since.map(|since| since + LAZY);
        let wanted = if self.urgent { Some(Duration::ZERO) } else { lazy };
        let paced = self.last.map_or(Duration::ZERO, |last| last + BETWEEN);
        wanted.map(|at| at.max(paced).max(self.pause.until()))
    }

    /// The save that begins now.
    pub fn begin(&mut self, lanes: &mut Lanes, interest: &Interest, now: Duration) -> Save {
        let letters = lanes.take_letters();
        self.parked.extend(letters.parked);
        self.revived.extend(letters.revived);
        let mut progress = lanes.progress();
        progress.start = interest.start();
        progress.sources = interest.starts().to_vec();
        progress.pasts = interest.pasts().to_vec();
        let sent = Sent {
            parked: std::mem::take(&mut self.parked),
            revived: std::mem::take(&mut self.revived),
            kv: std::mem::take(&mut self.kv),
            unsaved: std::mem::take(&mut self.unsaved),
            through: lanes.through(),
            cursor: progress.cursor,
        };
        let save = Save {
            progress,
            parked: sent.parked.clone(),
            revived: sent.revived.clone(),
            kv: sent.kv.clone(),
        };
        self.sent = Some(sent);
        self.urgent = false;
        self.lazy_since = None;
        self.last = Some(now);
        save
    }

    /// The save on its way is durable; these letters were in it.
    pub fn saved(&mut self) -> impl Iterator<Item = Seq> + use<> {
        self.pause.end();
        let sent = self.sent.take();
        if let Some(sent) = &sent {
            self.saved_through = sent.through;
            self.saved_cursor = sent.cursor;
        }
        sent.into_iter().flat_map(|sent| sent.parked).map(|letter| letter.seq)
    }

    /// It was not saved: its content goes first in the next one.
    pub fn failed(&mut self, now: Duration) {
        let Some(mut sent) = self.sent.take() else { return };
        sent.parked.append(&mut self.parked);
        sent.revived.append(&mut self.revived);
        sent.kv.append(&mut self.kv);
        self.parked = sent.parked;
        self.revived = sent.revived;
        self.kv = sent.kv;
        self.unsaved += sent.unsaved;
        self.urgent = true;
        self.pause.begin(now);
    }

    /// Whether the journal refused the last save.
    pub fn is_failing(&self) -> bool {
        self.pause.is_on()
    }
}
