use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::state::{Change, ObjectRef, StateId, Status};
use crate::version::Version;

fn state(seq: Seq, lane: u8) -> Arc<State> {
    let object = ObjectRef { namespace: "team".into(), name: format!("job-{lane}"), ..ObjectRef::default() };
    Arc::new(State {
        id: StateId::parse(&format!("jobs/0/{lane}/{seq}")),
        seq,
        source: "jobs".into(),
        epoch: 0,
        change: Change::Present,
        object: Arc::new(object),
        owner: None,
        resource_version: Version::new(&seq.to_string()),
        status: Arc::new(Status::default()),
        previous: None,
        observed_ms: seq * 10,
        late: false,
    })
}

fn options(on_dead_letter: OnDeadLetter) -> LaneOptions {
    LaneOptions {
        plugin: "probe".into(),
        window: 8,
        depth: 3,
        deferred: 6,
        retries: 2,
        backoff: Duration::from_millis(100),
        max_backoff: Duration::from_millis(300),
        on_dead_letter,
    }
}

fn at(ms: u64) -> Now {
    Now { elapsed: Duration::from_millis(ms), wall_ms: 1_000_000 + ms }
}

fn retry() -> Verdict {
    Verdict::Retry { after_ms: None, reason: "not yet".into() }
}

fn lanes_with(on_dead_letter: OnDeadLetter, states: &[(Seq, u8)]) -> Lanes {
    let mut lanes = Lanes::new(options(on_dead_letter), &Progress::default());
    for &(seq, lane) in states {
        lanes.push(state(seq, lane));
    }
    lanes
}

fn take(lanes: &mut Lanes, ms: u64, max: usize) -> Vec<Seq> {
    lanes.take(Duration::from_millis(ms), max).iter().map(|delivery| delivery.state.seq).collect()
}

#[test]
fn a_batch_takes_one_state_of_each_lane_and_none_of_a_lane_in_flight() {
    let mut lanes = lanes_with(OnDeadLetter::Continue, &[(1, 1), (2, 1), (3, 2)]);
    assert_eq!(take(&mut lanes, 0, 10), [1, 3]);
    assert_eq!(take(&mut lanes, 0, 10), [0; 0]);
    assert_eq!(lanes.finish(1, Verdict::Done, at(0)), Settled::Delivered);
    assert_eq!(take(&mut lanes, 0, 10), [2]);
}

#[test]
fn a_busy_lane_costs_the_others_one_place_each_round() {
    let mut lanes = lanes_with(OnDeadLetter::Continue, &[(1, 1), (2, 1), (3, 1), (4, 2), (5, 3)]);
    let mut order = Vec::new();
    while let [seq] = take(&mut lanes, 0, 1)[..] {
        lanes.finish(seq, Verdict::Done, at(0));
        order.push(seq);
    }
    assert_eq!(order, [1, 4, 5, 2, 3]);
}

#[test]
fn pauses_double_up_to_their_bound_and_a_plugins_own_wish_goes_first() {
    let mut lanes =
        Lanes::new(LaneOptions { retries: 9, ..options(OnDeadLetter::Continue) }, &Progress::default());
    lanes.push(state(1, 1));
    let mut now = 0;
    for expected in [100, 200, 300, 300] {
        assert_eq!(take(&mut lanes, now, 1), [1]);
        assert_eq!(
            lanes.finish(1, retry(), at(now)),
            Settled::Retried(Duration::from_millis(now + expected))
        );
        assert_eq!(take(&mut lanes, now + expected - 1, 1), [0; 0]);
        now += expected;
    }
    take(&mut lanes, now, 1);
    let wish = Verdict::Retry { after_ms: Some(5), reason: String::new() };
    assert_eq!(lanes.finish(1, wish, at(now)), Settled::Retried(Duration::from_millis(now + 5)));
    take(&mut lanes, now + 5, 1);
    let forever = Verdict::Retry { after_ms: Some(u64::MAX), reason: String::new() };
    assert_eq!(
        lanes.finish(1, forever, at(now + 5)),
        Settled::Retried(at(now + 5).elapsed + limits::PLUGIN_DELAY)
    );
}

#[test]
fn the_last_try_parks_with_its_error_and_the_lane_goes_on() {
    let mut lanes = lanes_with(OnDeadLetter::Continue, &[(1, 1), (2, 1)]);
    for (ms, attempt) in [(0, 1), (1000, 2), (2000, 3)] {
        assert_eq!(lanes.take(Duration::from_millis(ms), 5)[0].attempt, attempt);
        lanes.finish(1, retry(), at(ms));
    }
    let Letters { parked, revived } = lanes.take_letters();
    assert!(revived.is_empty());
    assert_eq!((parked[0].seq, parked[0].attempts, parked[0].error.as_str()), (1, 3, "not yet"));
    assert_eq!((parked[0].first_ms, parked[0].last_ms), (1_000_000, 1_002_000));
    assert_eq!(lanes.cursor(), 1);
    assert_eq!(take(&mut lanes, 2000, 5), [2]);
}

#[test]
fn a_held_lane_waits_for_its_replay_and_no_other_lane_does() {
    let mut lanes = lanes_with(OnDeadLetter::Hold, &[(1, 1), (2, 1), (3, 2)]);
    assert_eq!(take(&mut lanes, 0, 5), [1, 3]);
    assert_eq!(lanes.finish(1, Verdict::Reject("never".into()), at(0)), Settled::Parked);
    lanes.finish(3, Verdict::Done, at(0));
    assert_eq!(take(&mut lanes, 9000, 5), [0; 0]);

    let letter = lanes.take_letters().parked.remove(0);
    lanes.replay(&letter, true);
    assert_eq!(take(&mut lanes, 9000, 5), [0; 0], "its state is not here yet");
    assert_eq!(lanes.wanted(10), [1]);
    assert!(lanes.fill(&[1], vec![state(1, 1)]).is_empty());
    let replayed = lanes.take(Duration::from_secs(9), 5);
    assert_eq!((replayed[0].state.seq, replayed[0].attempt), (1, 2));
    lanes.finish(1, Verdict::Done, at(9000));
    assert_eq!(lanes.take_letters().revived, [1]);

    assert_eq!(lanes.wanted(10), [2], "what lay behind a held head was not kept in memory");
    lanes.fill(&[2], vec![state(2, 1)]);
    assert_eq!(take(&mut lanes, 9000, 5), [2]);
}

#[test]
fn a_replay_of_what_the_journal_no_longer_has_frees_its_lane() {
    let mut lanes = lanes_with(OnDeadLetter::Hold, &[(1, 1), (2, 1)]);
    take(&mut lanes, 0, 5);
    lanes.finish(1, Verdict::Reject("never".into()), at(0));
    let letter = lanes.take_letters().parked.remove(0);
    lanes.replay(&letter, true);
    assert_eq!(lanes.fill(&[1], Vec::new()), [1]);
    assert_eq!(lanes.take_letters().revived, [1]);
    lanes.fill(&[2], vec![state(2, 1)]);
    assert_eq!(take(&mut lanes, 0, 5), [2]);
}

#[test]
fn a_failing_lane_does_not_fill_the_window() {
    let mut lanes = lanes_with(OnDeadLetter::Continue, &[(1, 1)]);
    take(&mut lanes, 0, 1);
    for seq in 2..=7 {
        lanes.push(state(seq, 1));
    }
    assert!(lanes.room() > 0, "only {} states of the lane are held", 3);
    lanes.push(state(8, 2));
    assert_eq!(take(&mut lanes, 0, 5), [8]);
}

#[test]
fn finishing_what_is_not_in_flight_changes_nothing() {
    let mut lanes = lanes_with(OnDeadLetter::Continue, &[(1, 1)]);
    assert_eq!(lanes.finish(1, Verdict::Done, at(0)), Settled::Unknown);
    lanes.give_back(7);
    assert_eq!((lanes.stats().waiting, lanes.cursor()), (1, 0));
}

#[test]
fn an_error_text_is_cut_at_a_characters_end() {
    assert_eq!(cut("short"), "short");
    let long = "ü".repeat(limits::ERROR_TEXT);
    assert_eq!(cut(&long).len(), limits::ERROR_TEXT);
    assert_eq!(cut(&format!("a{long}")).len(), limits::ERROR_TEXT - 1);
}

// ---- against a naive model ---------------------------------------------------------------

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

#[derive(Clone, Debug)]
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
            Op::Done(pick) => self.finish(pick, Verdict::Done),
            Op::Retry(pick, after_ms) => {
                self.finish(pick, Verdict::Retry { after_ms, reason: "not yet".into() })
            }
            Op::Reject(pick) => self.finish(pick, Verdict::Reject("never".into())),
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

    fn finish(&mut self, pick: usize, verdict: Verdict) {
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
