//! The lanes in lockstep with a model that knows no queues: a table of states and their fates.

use proptest::prelude::*;

use super::tests::{at, options, state};
use super::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Waiting,
    Flying,
    Delivered,
    Filtered,
    Skipped,
    Parked,
    /// Taken back, its state not yet read.
    Recalled,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    lane: u8,
    fate: Fate,
    tries: u32,
    prior: u32,
    not_before: u64,
    replay: bool,
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Push(u8),
    Filter,
    Skip,
    Take(usize),
    Done(usize),
    Retry(usize, Option<u64>),
    Reject(usize),
    GiveBack(usize),
    Advance(u64),
    Replay(usize),
    Fill(usize),
    Restart,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0u8..5).prop_map(Op::Push),
        1 => Just(Op::Filter),
        1 => Just(Op::Skip),
        6 => (1usize..5).prop_map(Op::Take),
        5 => any::<usize>().prop_map(Op::Done),
        4 => (any::<usize>(), proptest::option::of(0u64..200)).prop_map(|(pick, after)| Op::Retry(pick, after)),
        1 => any::<usize>().prop_map(Op::Reject),
        2 => any::<usize>().prop_map(Op::GiveBack),
        3 => (0u64..250).prop_map(Op::Advance),
        2 => any::<usize>().prop_map(Op::Replay),
        4 => (1usize..10).prop_map(Op::Fill),
        1 => Just(Op::Restart),
    ]
}

struct Model {
    lanes: Lanes,
    rows: BTreeMap<Seq, Row>,
    /// The dead letters as a journal would have them after a save.
    letters: BTreeMap<Seq, DeadLetter>,
    now: u64,
    policy: OnDeadLetter,
}

impl Model {
    fn new(policy: OnDeadLetter) -> Self {
        let lanes = Lanes::new(options(policy), &Progress::default());
        Self { lanes, rows: BTreeMap::new(), letters: BTreeMap::new(), now: 0, policy }
    }

    fn with(&self, fate: Fate) -> Vec<Seq> {
        self.rows.iter().filter(|(_, row)| row.fate == fate).map(|(seq, _)| *seq).collect()
    }

    fn pick(&self, fate: Fate, pick: usize) -> Option<Seq> {
        let seqs = self.with(fate);
        (!seqs.is_empty()).then(|| seqs[pick % seqs.len()])
    }

    fn add(&mut self, lane: u8, fate: Fate) -> Seq {
        let seq = self.rows.len() as Seq + 1;
        self.rows.insert(seq, Row { lane, fate, tries: 0, prior: 0, not_before: 0, replay: false });
        seq
    }

    fn row(&mut self, seq: Seq) -> &mut Row {
        self.rows.get_mut(&seq).unwrap()
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Push(_) if self.lanes.room() == 0 => {}
            Op::Push(lane) => {
                let seq = self.add(lane, Fate::Waiting);
                self.lanes.push(state(seq, lane));
            }
            Op::Filter => {
                let seq = self.add(0, Fate::Filtered);
                self.lanes.filter(seq);
            }
            Op::Skip => {
                let seq = self.add(0, Fate::Skipped);
                self.lanes.skip_to(seq);
            }
            Op::Take(max) => self.take(max),
            Op::Done(pick) => self.finish(pick, &Verdict::Done),
            Op::Retry(pick, after_ms) => {
                self.finish(pick, &Verdict::Retry { after_ms, reason: "not yet".into() });
            }
            Op::Reject(pick) => self.finish(pick, &Verdict::Reject("never".into())),
            Op::GiveBack(pick) => {
                if let Some(seq) = self.pick(Fate::Flying, pick) {
                    self.lanes.give_back(seq);
                    self.row(seq).fate = Fate::Waiting;
                }
            }
            Op::Advance(ms) => self.now += ms,
            Op::Replay(pick) => self.replay(pick),
            Op::Fill(max) => self.fill(max),
            Op::Restart => self.restart(),
        }
        self.save();
        self.check();
    }

    /// What bars a state: an unfinished or held one before it in its lane.
    fn is_barred(&self, seq: Seq) -> bool {
        let lane = self.rows[&seq].lane;
        self.rows.range(..seq).filter(|(_, row)| row.lane == lane).any(|(_, row)| match row.fate {
            Fate::Waiting | Fate::Flying => true,
            Fate::Parked | Fate::Recalled => self.policy == OnDeadLetter::Hold && !self.rows[&seq].replay,
            _ => false,
        })
    }

    fn takeable(&self) -> Vec<Seq> {
        let flying: Vec<u8> = self.with(Fate::Flying).iter().map(|seq| self.rows[seq].lane).collect();
        let mut waiting = self.with(Fate::Waiting);
        waiting.retain(|seq| {
            let row = self.rows[seq];
            !flying.contains(&row.lane) && row.not_before <= self.now && !self.is_barred(*seq)
        });
        waiting
    }

    fn take(&mut self, max: usize) {
        let takeable = self.takeable();
        let batch = self.lanes.take(Duration::from_millis(self.now), max);
        assert!(batch.len() <= max);
        for delivery in &batch {
            let seq = delivery.state.seq;
            assert!(takeable.contains(&seq), "{seq} was handed over, but only {takeable:?} could be");
            let row = self.row(seq);
            assert_eq!(delivery.attempt, row.prior + row.tries + 1);
            assert_eq!(row.fate, Fate::Waiting, "{seq} was handed over twice");
            row.fate = Fate::Flying;
        }
        if batch.len() < max.min(takeable.len()) {
            let comes = !self.lanes.wanted(1).is_empty() || self.lanes.loaded == self.lanes.options.window;
            assert!(comes, "{takeable:?} are due, and neither taken nor asked for");
        }
    }

    fn finish(&mut self, pick: usize, verdict: &Verdict) {
        let Some(seq) = self.pick(Fate::Flying, pick) else { return };
        let now = self.now;
        let settled = self.lanes.finish(seq, verdict.clone(), at(now));
        let row = self.row(seq);
        let parks = match verdict {
            Verdict::Done => false,
            Verdict::Reject(_) => true,
            Verdict::Retry { .. } => row.tries == 2,
        };
        let expected = match verdict {
            Verdict::Done => {
                row.fate = Fate::Delivered;
                Settled::Delivered
            }
            _ if parks => {
                *row = Row {
                    fate: Fate::Parked,
                    prior: row.prior + row.tries + 1,
                    tries: 0,
                    not_before: 0,
                    ..*row
                };
                Settled::Parked
            }
            Verdict::Retry { after_ms, .. } => {
                row.tries += 1;
                row.not_before = now + after_ms.unwrap_or(if row.tries == 1 { 100 } else { 200 });
                row.fate = Fate::Waiting;
                Settled::Retried(Duration::from_millis(row.not_before))
            }
            Verdict::Reject(_) => unreachable!("it parks"),
        };
        assert_eq!(settled, expected);
    }

    fn replay(&mut self, pick: usize) {
        let Some(seq) = self.pick(Fate::Parked, pick) else { return };
        let letter = self.letters.get_mut(&seq).unwrap();
        letter.replaying = true;
        self.lanes.replay(letter, true);
        self.row(seq).fate = Fate::Recalled;
    }

    fn fill(&mut self, max: usize) {
        let asked = self.lanes.wanted(max);
        assert!(asked.len() <= max);
        let states = asked.iter().map(|seq| state(*seq, self.rows[seq].lane)).collect();
        assert_eq!(self.lanes.fill(&asked, states), [0; 0]);
        for seq in asked {
            let row = self.row(seq);
            if row.fate == Fate::Recalled {
                row.fate = Fate::Waiting;
                row.replay = true;
            }
        }
    }

    fn save(&mut self) {
        let Letters { parked, revived } = self.lanes.take_letters();
        for letter in parked {
            assert_eq!(letter.attempts, self.rows[&letter.seq].prior);
            self.letters.insert(letter.seq, letter);
        }
        for seq in revived {
            assert!(self.letters.remove(&seq).is_some());
        }
    }

    /// As after a kill: only the progress, the letters and the journal are left.
    fn restart(&mut self) {
        let progress = self.lanes.progress();
        self.lanes = Lanes::new(options(self.policy), &progress);
        for row in self.rows.values_mut() {
            row.fate = match row.fate {
                Fate::Flying | Fate::Waiting if row.replay => Fate::Recalled,
                Fate::Flying => Fate::Waiting,
                other => other,
            };
            (row.tries, row.not_before, row.replay) = (0, 0, false);
        }
        for letter in self.letters.values() {
            let of = state(letter.seq, self.rows[&letter.seq].lane);
            self.lanes.hold(letter.seq, of.lane());
            if letter.replaying {
                self.lanes.replay(letter, false);
                self.rows.get_mut(&letter.seq).unwrap().prior = letter.attempts;
            } else {
                self.lanes.park();
            }
        }
        for seq in holes(&progress) {
            assert_eq!(self.rows[&seq].fate, Fate::Waiting);
            self.lanes.push(state(seq, self.rows[&seq].lane));
        }
        let unread: Vec<(Seq, Row)> =
            self.rows.range(self.lanes.through() + 1..).map(|(s, r)| (*s, *r)).collect();
        for (seq, row) in unread {
            assert_eq!(row.fate, Fate::Waiting, "{seq} is finished and forgotten");
            self.lanes.push(state(seq, row.lane));
        }
    }

    fn check(&self) {
        let count =
            |fates: &[Fate]| self.rows.values().filter(|row| fates.contains(&row.fate)).count() as u64;
        let stats = self.lanes.stats();
        assert_eq!(stats.delivered, count(&[Fate::Delivered]));
        assert_eq!(stats.filtered, count(&[Fate::Filtered]));
        assert_eq!(stats.dead, count(&[Fate::Parked]));
        assert_eq!(stats.waiting, count(&[Fate::Waiting, Fate::Flying, Fate::Recalled]));
        assert_eq!(stats.in_flight, count(&[Fate::Flying]));
        assert_eq!(
            stats.retrying,
            self.rows.values().filter(|row| row.tries > 0 && row.fate != Fate::Delivered).count() as u64
        );
        let lanes = &self.lanes;
        assert!(lanes.loaded <= lanes.options.window, "{} states are held", lanes.loaded);
        assert_eq!(lanes.loaded, lanes.lanes.values().map(|lane| lane.loaded).sum::<usize>());

        let progress = lanes.progress();
        let is_open = |row: &Row| matches!(row.fate, Fate::Waiting | Fate::Flying) && !row.replay;
        let first = self.rows.iter().find(|(_, row)| is_open(row)).map(|(seq, _)| *seq);
        assert_eq!(progress.cursor, first.map_or(self.rows.len() as Seq, |seq| seq - 1));
        for (seq, row) in self.rows.range(progress.cursor + 1..) {
            let above = progress.above.iter().any(|(from, to)| (from..=to).contains(&seq));
            assert_eq!(above, !is_open(row), "{seq} {row:?} {:?}", progress.above);
        }
        assert!(progress.above.windows(2).all(|pair| pair[0].1 + 1 < pair[1].0), "{:?}", progress.above);
    }

    /// Nothing is lost: with a plugin that answers `done`, everything comes to its end.
    fn drain(&mut self) {
        for _ in 0..1000 {
            self.apply(Op::Replay(0));
            self.apply(Op::Fill(8));
            self.apply(Op::Advance(300));
            self.apply(Op::Take(4));
            for _ in 0..4 {
                self.apply(Op::Done(0));
            }
            if self.lanes.stats().waiting == 0 && self.lanes.stats().dead == 0 {
                break;
            }
        }
        assert_eq!((self.lanes.stats().waiting, self.lanes.stats().dead), (0, 0));
        assert_eq!(self.lanes.cursor(), self.rows.len() as Seq);
        assert!(self.lanes.lanes.is_empty(), "an empty lane is not kept");
        assert!(self.letters.is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_interleaving_keeps_order_accounts_and_every_state(
        hold in any::<bool>(),
        ops in proptest::collection::vec(op(), 1..120),
    ) {
        let mut model = Model::new(if hold { OnDeadLetter::Hold } else { OnDeadLetter::Continue });
        for op in ops {
            model.apply(op);
        }
        model.drain();
    }
}
