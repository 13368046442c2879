//! Tracks which states the server has acknowledged and may still forget: a NATS server acknowledges before it
//! syncs. The carrier sends forgotten states again, and a reader that has them skips them.

use std::fmt::Write as _;

use kubewitness_core::Seq;

/// The most marks. Beyond this, every second one is dropped, and a few more states may be sent again.
const MARKS: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AckMark {
    /// The number in the stream.
    sequence: u64,
    /// Everything up to this position in the journal has at most this number in the stream.
    position: Seq,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AckTracker {
    /// When the stream was created. A stream that is created again counts from 1.
    made: String,
    marks: Vec<AckMark>,
}

impl AckTracker {
    /// Returns `None` if the text can't be read. Then the acknowledged states are unknown.
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let made = words.next()?.to_owned();
        let mark = |word: &str| {
            let (sequence, position) = word.split_once(':')?;
            Some(AckMark { sequence: sequence.parse().ok()?, position: position.parse().ok()? })
        };
        Some(Self { made, marks: words.map(mark).collect::<Option<_>>()? })
    }

    pub fn text(&self) -> String {
        let mut text = self.made.clone();
        for AckMark { sequence, position } in &self.marks {
            // Writing to a string never fails.
            write!(text, " {sequence}:{position}").ok();
        }
        text
    }

    /// Compares with the present stream. If the stream no longer has what it acknowledged, returns the
    /// position from which everything must be sent again.
    pub fn compare_stream(&mut self, made: &str, last: u64) -> Option<Seq> {
        let is_same = self.made == made || self.made.is_empty();
        self.made = made.to_owned();
        let newest = self.marks.last()?.sequence;
        if is_same && last >= newest {
            return None;
        }
        let oldest = self.marks.first().map(|mark| mark.position);
        let kept = self.marks.iter().rfind(|mark| is_same && mark.sequence <= last);
        let position = kept.map(|mark| mark.position).or(oldest);
        self.marks.retain(|mark| is_same && mark.sequence <= last);
        position
    }

    /// Records that everything up to a position is acknowledged, with at most this number in the stream.
    pub fn add(&mut self, sequence: u64, position: Seq) {
        if self.marks.last().is_some_and(|mark| mark.sequence == sequence) {
            self.marks.pop();
        }
        self.marks.push(AckMark { sequence, position });
        if self.marks.len() > MARKS {
            let newest = self.marks.len() - 1;
            let mut place = 0;
            self.marks.retain(|_| {
                place += 1;
                place % 2 == 1 || place > newest
            });
        }
    }

    /// Records the first message that is still in the stream. Earlier ones were read and can't be forgotten.
    pub fn read_below(&mut self, first: u64) {
        // The last mark below it is the position from which the present messages were sent.
        let below = self.marks.iter().filter(|mark| mark.sequence < first).count();
        self.marks.drain(..below.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acked(marks: &[(u64, Seq)]) -> AckTracker {
        let mut acked = AckTracker::default();
        assert_eq!(acked.compare_stream("monday", 0), None);
        marks.iter().for_each(|(sequence, position)| acked.add(*sequence, *position));
        acked
    }

    #[test]
    fn what_was_forgotten_is_handed_over_again_from_the_last_that_is_there() {
        let mut held = acked(&[(3, 10), (7, 20), (9, 30)]);
        assert_eq!(held.compare_stream("monday", 9), None);
        assert_eq!(held.compare_stream("monday", 40), None, "others write, too");
        assert_eq!(held.compare_stream("monday", 8), Some(20));
        assert_eq!(held.compare_stream("monday", 8), None, "once");
        assert_eq!(held.compare_stream("monday", 1), Some(10), "the oldest that anybody may miss");
    }

    #[test]
    fn a_stream_that_was_made_anew_gets_all_that_nobody_had_read() {
        let mut held = acked(&[(3, 10), (7, 20), (9, 30)]);
        held.read_below(8);
        assert_eq!(held.compare_stream("tuesday", 500), Some(20));
        assert_eq!(AckTracker::default().compare_stream("tuesday", 500), None);
    }

    #[test]
    fn marks_are_few_and_the_newest_stays() {
        let marks: Vec<_> = (1..500).map(|number| (number, number * 10)).collect();
        let mut held = acked(&marks);
        assert!(held.marks.len() <= MARKS && held.marks.is_sorted_by_key(|mark| mark.sequence));
        assert_eq!(AckTracker::parse(&held.text()), Some(held.clone()));
        assert_eq!(held.compare_stream("monday", 499), None);
        let from = held.compare_stream("monday", 498).unwrap();
        assert!((4000..=4980).contains(&from), "{from}");
        for wrong in ["monday 1", "monday 1:x", "monday  "] {
            assert_eq!(AckTracker::parse(wrong), None, "{wrong}");
        }
    }
}
