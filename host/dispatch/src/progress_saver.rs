//! Decides when a plugin's progress is saved. At most one save is in flight. Changes during a save go into
//! the next one, in order.

use std::collections::HashSet;
use std::time::Duration;

use kubewitness_core::Seq;
use kubewitness_core::lanes::Lanes;
use kubewitness_core::limits;
use kubewitness_core::ports::{DeadLetter, KvWrite, NOTE, PluginProgress, ProgressSave};

use crate::pacing::pause::OperatorPause;
use crate::subscriptions::SourceInterest;

/// The pause between two saves of a busy plugin. It bounds the plugin's share of the journal's writer, whose
/// syncs take up to some milliseconds each, and the number of states that are handed over again after a kill.
const BETWEEN: Duration = Duration::from_millis(50);
/// Finished ranges for which a save waits that long once more. A save writes all of them, so a plugin whose cursor is
/// held while thousands of objects pass it would fill the journal's log with them. So a plugin writes at most some
/// 40,000 ranges a second, which are less than 2 MB.
const RANGES: usize = 2048;
/// A save that only moves the cursor past unwanted states waits this much longer. Losing it only means
/// reading them again.
const LAZY: Duration = Duration::from_secs(1);
/// Finished states that may be unsaved. Beyond this nothing more is handed over. It bounds memory and repeats
/// while the journal can't be written.
const UNSAVED: usize = limits::LANE_WINDOW;

/// The finished ranges that a save writes, also those from before the cursor went back for an added source.
fn count_ranges(progress: &PluginProgress) -> usize {
    let former = progress.former_cursors.iter().map(|former| former.above.len());
    progress.above.len() + former.sum::<usize>()
}

fn is_note(write: &KvWrite) -> bool {
    write.key.starts_with(NOTE)
}

#[derive(Debug, Default)]
pub(crate) struct ProgressSaver {
    parked: Vec<DeadLetter>,
    revived: Vec<Seq>,
    owed: Vec<Seq>,
    kv: Vec<KvWrite>,
    /// Whether something must be saved soon. Otherwise `lazy_since` says since when a moved cursor waits.
    urgent: bool,
    lazy_since: Option<Duration>,
    last: Option<Duration>,
    /// The finished ranges in the last save.
    ranges: usize,
    /// The states finished since the last save began.
    unsaved: usize,
    /// The reading position of the last durable save.
    saved_through: Seq,
    /// The cursor of that save; 0 before the first.
    saved_cursor: Seq,
    /// The content of the save in flight, until it is known to be durable.
    sent: Option<SentSave>,
    pause: OperatorPause,
}

#[derive(Debug)]
struct SentSave {
    parked: Vec<DeadLetter>,
    revived: Vec<Seq>,
    owed: Vec<Seq>,
    kv: Vec<KvWrite>,
    unsaved: usize,
    through: Seq,
    cursor: Seq,
}

/// The rows of a durable save.
#[derive(Default)]
pub(crate) struct SavedRows {
    pub letters: Vec<Seq>,
    /// States that are owed now.
    pub owed: Vec<Seq>,
    /// Letters and owed states that are no more.
    pub revived: Vec<Seq>,
}

impl ProgressSaver {
    /// `through` is the reading position in the saved progress.
    pub fn new(through: Seq) -> Self {
        Self { saved_through: through, ..Self::default() }
    }

    /// Everything up to here is finished, and the journal knows it.
    pub fn saved_cursor(&self) -> Seq {
        self.saved_cursor
    }

    /// Whether so much was read that a save must come before the next read.
    pub fn is_behind(&self, through: Seq) -> bool {
        through.saturating_sub(self.saved_through) >= limits::READ_AHEAD as Seq
    }

    /// Notes that states were finished, and the `kv` writes that came with them.
    pub fn note_finished(&mut self, count: usize, kv: Vec<KvWrite>) {
        self.urgent = true;
        self.unsaved += count;
        // Each call brings a note of the newest commits, and the last one counts.
        let is_newer = |last: &mut KvWrite| kv.last().is_some_and(|new| is_note(new) && new.key == last.key);
        self.kv.pop_if(is_newer);
        self.kv.extend(kv);
    }

    /// Notes another change that must be saved soon.
    pub fn note_urgent_change(&mut self) {
        self.urgent = true;
    }

    /// Notes that the cursor may have moved.
    pub fn note_cursor_moved(&mut self, now: Duration) {
        self.lazy_since.get_or_insert(now);
    }

    /// Makes a lazy save due, because the dispatcher ends.
    pub fn touch_if_lazy(&mut self) {
        self.urgent |= self.lazy_since.is_some();
    }

    pub fn is_clean(&self) -> bool {
        self.sent.is_none() && !self.urgent && self.lazy_since.is_none()
    }

    /// Whether the unsaved states have reached their bound.
    pub fn is_full(&self) -> bool {
        self.unsaved + self.sent.as_ref().map_or(0, |sent| sent.unsaved) >= UNSAVED
    }

    /// When the next save may begin; `None` while one is in flight or there is nothing to save.
    pub fn next_save_at(&self) -> Option<Duration> {
        if self.sent.is_some() {
            return None;
        }
        let lazy = self.lazy_since.map(|since| since + LAZY);
        let wanted = if self.urgent { Some(Duration::ZERO) } else { lazy };
        let pause = BETWEEN * u32::try_from(1 + self.ranges / RANGES).unwrap_or(u32::MAX);
        let paced = self.last.map_or(Duration::ZERO, |last| last + pause);
        wanted.map(|at| at.max(paced).max(self.pause.pause_end()))
    }

    /// Makes the save that begins now.
    pub fn begin_save(
        &mut self,
        lanes: &mut Lanes,
        interest: &SourceInterest,
        now: Duration,
    ) -> ProgressSave {
        let letters = lanes.take_letters();
        self.parked.extend(letters.parked);
        self.revived.extend(letters.revived);
        self.owed.extend(letters.owed);
        // What was owed in a save that failed may be finished since.
        if !self.owed.is_empty() {
            let parked = self.parked.iter().map(|letter| letter.seq);
            let finished: HashSet<Seq> = self.revived.iter().copied().chain(parked).collect();
            self.owed.retain(|seq| !finished.contains(seq));
        }
        let mut progress = lanes.progress_to_save();
        interest.add_to(&mut progress);
        self.ranges = count_ranges(&progress);
        let sent = SentSave {
            parked: std::mem::take(&mut self.parked),
            revived: std::mem::take(&mut self.revived),
            owed: std::mem::take(&mut self.owed),
            kv: std::mem::take(&mut self.kv),
            unsaved: std::mem::take(&mut self.unsaved),
            through: lanes.last_read(),
            cursor: progress.cursor,
        };
        let save = ProgressSave {
            progress,
            parked: sent.parked.clone(),
            revived: sent.revived.clone(),
            owed: sent.owed.clone(),
            kv: sent.kv.clone(),
        };
        self.sent = Some(sent);
        self.urgent = false;
        self.lazy_since = None;
        self.last = Some(now);
        save
    }

    /// Notes that the save in flight is durable, and returns what it had.
    pub fn note_saved(&mut self) -> SavedRows {
        self.pause.end_pause();
        let Some(sent) = self.sent.take() else { return SavedRows::default() };
        self.saved_through = sent.through;
        self.saved_cursor = sent.cursor;
        let letters = sent.parked.iter().map(|letter| letter.seq).collect();
        SavedRows { letters, owed: sent.owed, revived: sent.revived }
    }

    /// Notes that the save failed. Its content goes first in the next one.
    pub fn note_failure(&mut self, now: Duration) {
        let Some(mut sent) = self.sent.take() else { return };
        sent.parked.append(&mut self.parked);
        sent.revived.append(&mut self.revived);
        sent.owed.append(&mut self.owed);
        sent.kv.append(&mut self.kv);
        self.parked = sent.parked;
        self.revived = sent.revived;
        self.owed = sent.owed;
        self.kv = sent.kv;
        self.unsaved += sent.unsaved;
        self.urgent = true;
        self.pause.begin_pause(now);
    }

    /// Whether the journal refused the last save.
    pub fn is_failing(&self) -> bool {
        self.pause.is_paused()
    }
}

#[cfg(test)]
mod tests {
    use kubewitness_core::config::DeliverySpec;
    use kubewitness_core::lanes::LaneOptions;
    use kubewitness_core::ports::{FormerCursor, SourceStart};

    use super::*;

    /// The bytes that a busy plugin saves in ten seconds.
    fn bytes_saved(progress: &PluginProgress) -> usize {
        const SECONDS: Duration = Duration::from_secs(10);
        let mut lanes = Lanes::new(LaneOptions::new("p", &DeliverySpec::default()), progress);
        let interest = SourceInterest::of(progress);
        let (mut saver, mut now, mut bytes) = (ProgressSaver::new(0), Duration::ZERO, 0);
        while now < SECONDS {
            saver.note_finished(1, Vec::new());
            let save = saver.begin_save(&mut lanes, &interest, now);
            assert_eq!(count_ranges(&save.progress), count_ranges(progress), "all are written");
            // Formatted, a range is at least as long as it is in the journal.
            bytes += format!("{:?}", save.progress).len();
            saver.note_saved();
            saver.note_finished(1, Vec::new());
            now = saver.next_save_at().unwrap();
        }
        bytes
    }

    #[test]
    fn a_plugin_saves_a_bounded_number_of_bytes_a_second_however_many_ranges_it_has_finished() {
        const SECOND: usize = 2_000_000;
        for many in [100, 3_000, 30_000] {
            let ranges: Vec<(Seq, Seq)> =
                (1..=many).map(|n| (9_000_000_000 + 3 * n, 9_000_000_000 + 3 * n)).collect();
            let start = SourceStart { source: "jobs".into(), after: 0, until: None };
            let held = PluginProgress {
                above: ranges.clone(),
                sources: vec![start.clone()],
                ..PluginProgress::default()
            };
            assert!(bytes_saved(&held) < 10 * SECOND, "{many} ranges above the cursor");
            let former = FormerCursor { cursor: 5, above: ranges, added: vec![("pods".into(), 0)] };
            let back = PluginProgress {
                former_cursors: vec![former],
                sources: vec![start],
                ..PluginProgress::default()
            };
            assert!(bytes_saved(&back) < 10 * SECOND, "{many} ranges from before the cursor went back");
        }
    }
}
