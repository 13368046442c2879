//! Model test: a plugin, its journal and its database in memory. The database may lose its newest commits at
//! any moment, with or without a crash of the controller. At the end, each state must have been applied once,
//! and each lost tick must be reported as a gap. A database that has lost nothing is never reported as lossy,
//! not even beside an older copy of the journal.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::{CommitFrontier, CommitHistory, CommitTicket, NotedCommit};
use crate::ports::PluginProgress;
use crate::state::Seq;

const STATES: Seq = 40;
/// The number of newest commits whose receipts are not pruned.
const KEPT: usize = 3;

#[derive(Clone, Debug)]
enum DatabaseChange {
    Commit {
        commit: NotedCommit,
        states: Vec<Seq>,
    },
    /// Receipts up to a position are pruned, if their commits are older than a moment.
    Prune {
        through: Seq,
        before_ms: u64,
    },
}

type ModelReceipts = BTreeMap<String, (NotedCommit, Vec<Seq>)>;

/// The database as the list of its changes, so that it can lose the newest of them.
#[derive(Clone, Debug, Default)]
struct ModelDatabase(Vec<DatabaseChange>);

impl ModelDatabase {
    fn receipts(&self) -> ModelReceipts {
        let mut receipts = ModelReceipts::new();
        for change in &self.0 {
            match change {
                DatabaseChange::Commit { commit, states } => {
                    receipts.retain(|_, (older, _)| !(commit.is_tick && older.is_tick));
                    receipts.insert(commit.token.clone(), (commit.clone(), states.clone()));
                }
                DatabaseChange::Prune { through, before_ms } => {
                    receipts.retain(|_, (commit, states)| {
                        commit.at_ms >= *before_ms || states.iter().any(|seq| seq > through)
                    });
                }
            }
        }
        receipts
    }

    fn floor(&self) -> Seq {
        let floor = |change: &DatabaseChange| match change {
            DatabaseChange::Prune { through, .. } => Some(*through),
            DatabaseChange::Commit { .. } => None,
        };
        self.0.iter().filter_map(floor).max().unwrap_or(0)
    }

    fn history(&self) -> CommitHistory {
        let before = |change: &DatabaseChange| match change {
            DatabaseChange::Prune { before_ms, .. } => Some(*before_ms),
            DatabaseChange::Commit { .. } => None,
        };
        let receipts = self.receipts();
        let ticks = receipts.values().filter(|(commit, _)| commit.is_tick);
        CommitHistory {
            pruned_before_ms: self.0.iter().filter_map(before).max().unwrap_or(0),
            newest_tick_ms: ticks.map(|(commit, _)| commit.at_ms).max().unwrap_or(0),
        }
    }

    fn newest(&self) -> Option<NotedCommit> {
        let receipts = self.receipts().into_values();
        receipts.map(|(commit, _)| commit).max_by_key(|commit| commit.at_ms)
    }

    fn newest_tick(&self) -> Option<NotedCommit> {
        let receipts = self.receipts().into_values();
        receipts.map(|(commit, _)| commit).find(|commit| commit.is_tick)
    }

    fn has_done(&self, commit: &NotedCommit) -> bool {
        self.0
            .iter()
            .any(|change| matches!(change, DatabaseChange::Commit { commit: done, .. } if done == commit))
    }

    fn rows(&self) -> BTreeMap<Seq, usize> {
        let mut rows = BTreeMap::new();
        for change in &self.0 {
            if let DatabaseChange::Commit { states, .. } = change {
                states.iter().for_each(|seq| *rows.entry(*seq).or_default() += 1);
            }
        }
        rows
    }
}

#[derive(Debug)]
struct ModelCall {
    states: Vec<Seq>,
    fate: CallFate,
}

#[derive(Debug, Default)]
enum CallFate {
    #[default]
    Open,
    /// All states of the call have receipts, so nothing is committed.
    Needless,
    Sent(CommitTicket, NotedCommit),
}

/// The part of the journal that concerns the plugin.
#[derive(Clone, Debug, Default)]
struct ModelJournal {
    finished: BTreeSet<Seq>,
    note: Vec<NotedCommit>,
    tick: Option<NotedCommit>,
}

#[derive(Debug, Default)]
struct ModelWorld {
    database: ModelDatabase,
    journal: ModelJournal,
    saved: ModelJournal,
    copy: ModelJournal,
    frontier: CommitFrontier,
    /// When the newest commits were made.
    made: Vec<u64>,
    newest_ms: u64,
    calls: Vec<ModelCall>,
    tokens: u64,
    losses: usize,
}

fn progress_of(finished: &BTreeSet<Seq>) -> PluginProgress {
    let cursor = (1..).take_while(|seq| finished.contains(seq)).last().unwrap_or(0);
    let above = finished.range(cursor + 1..).map(|seq| (*seq, *seq)).collect();
    PluginProgress { cursor, above, ..PluginProgress::default() }
}

impl ModelWorld {
    fn take(&mut self, skip: usize, count: usize) {
        let busy: BTreeSet<Seq> = self.calls.iter().flat_map(|call| call.states.iter().copied()).collect();
        let open = (1..=STATES).filter(|seq| !self.journal.finished.contains(seq) && !busy.contains(seq));
        let states: Vec<Seq> = open.skip(skip).take(count).collect();
        if !states.is_empty() && self.calls.len() < 4 {
            self.calls.push(ModelCall { states, fate: CallFate::Open });
        }
    }

    fn commit(&mut self, states: Vec<Seq>, is_tick: bool) -> (CommitTicket, NotedCommit) {
        self.tokens += 1;
        self.newest_ms += 1;
        let commit = NotedCommit { token: format!("p.{}", self.tokens), at_ms: self.newest_ms, is_tick };
        let ticket = self.frontier.begin_commit();
        self.database.0.push(DatabaseChange::Commit { commit: commit.clone(), states });
        (ticket, commit)
    }

    fn send(&mut self, at: usize) {
        let applied: BTreeSet<Seq> =
            self.database.receipts().into_values().flat_map(|(_, states)| states).collect();
        let Some(call) = self.calls.get(at).filter(|call| matches!(call.fate, CallFate::Open)) else {
            return;
        };
        let states: Vec<Seq> = call.states.iter().copied().filter(|seq| !applied.contains(seq)).collect();
        self.calls[at].fate = match &*states {
            [] => CallFate::Needless,
            _ => {
                let (ticket, commit) = self.commit(states, false);
                CallFate::Sent(ticket, commit)
            }
        };
    }

    fn note(&mut self, (ticket, commit): (CommitTicket, NotedCommit)) {
        self.made.push(commit.at_ms);
        self.made.drain(..self.made.len().saturating_sub(KEPT));
        self.frontier.note_commit(ticket, commit);
        self.journal.note = self.frontier.newest_commits().cloned().collect();
    }

    fn answer(&mut self, at: usize) {
        if self.calls.get(at).is_none_or(|call| matches!(call.fate, CallFate::Open)) {
            return;
        }
        let ModelCall { states, fate } = self.calls.remove(at);
        match fate {
            CallFate::Sent(ticket, commit) => self.note((ticket, commit)),
            // The frontier notes the commits that the database reported.
            _ => self.journal.note = self.frontier.newest_commits().cloned().collect(),
        }
        self.journal.finished.extend(states);
    }

    /// Ends the call, possibly before its answer arrives.
    fn tick(&mut self, is_answered: bool) {
        let sent = self.commit(Vec::new(), true);
        if is_answered {
            self.journal.tick = Some(sent.1.clone());
            self.note(sent);
        }
    }

    fn prune(&mut self, behind: Seq) {
        let cursor = progress_of(&self.saved.finished).cursor;
        let through = cursor.saturating_sub(behind).max(self.database.floor());
        let before_ms = self.made.iter().copied().min().unwrap_or(0);
        self.database.0.push(DatabaseChange::Prune { through, before_ms });
    }

    /// Breaks the connection, and perhaps stops the controller. The database loses its newest `lost` changes.
    /// Returns whether a gap was noted.
    fn lose(&mut self, changes: usize, crashes: bool) -> bool {
        self.database.0.truncate(self.database.0.len().saturating_sub(changes));
        self.calls.clear();
        if crashes {
            self.journal = self.saved.clone();
            self.frontier = CommitFrontier::from_commits(self.journal.note.clone());
            self.made.clear();
            let noted = self.journal.note.iter().map(|commit| commit.at_ms).max();
            let stored = self.database.newest().map(|commit| commit.at_ms);
            let pruned = self.database.history().pruned_before_ms;
            self.newest_ms = noted.max(stored).unwrap_or(0).max(pruned);
        }
        let (receipts, history) = (self.database.receipts(), self.database.history());
        let is_lost =
            |commit: &NotedCommit| !receipts.contains_key(&commit.token) && !history.has_outlived(commit);
        if !self.frontier.newest_commits().chain(&self.journal.tick).any(is_lost) {
            let is_removed = |commit: &NotedCommit| !receipts.contains_key(&commit.token);
            self.frontier.replace_commits(is_removed, self.database.newest().as_ref());
            if self.journal.tick.as_ref().is_some_and(is_removed) {
                self.journal.tick = self.database.newest_tick();
            }
            if self.made.is_empty() {
                self.made = self.frontier.newest_commits().map(|commit| commit.at_ms).collect();
            }
            return false;
        }
        self.losses += 1;
        let is_gap = self.journal.tick.as_ref().is_some_and(is_lost);
        let mut progress = progress_of(&self.journal.finished);
        progress.take_back(self.database.floor(), &BTreeSet::new());
        self.journal.finished.retain(|seq| progress.has_finished("s", *seq));
        self.journal.note = self.database.newest().into_iter().collect();
        self.journal.tick.take_if(|_| is_gap);
        self.frontier = CommitFrontier::from_commits(self.journal.note.clone());
        self.made = self.journal.note.iter().map(|commit| commit.at_ms).collect();
        self.saved = self.journal.clone();
        is_gap
    }

    fn finish(&mut self) {
        while !self.calls.is_empty() || self.journal.finished.len() < STATES as usize {
            self.take(0, 3);
            self.send(0);
            self.answer(0);
        }
    }

    fn run(&mut self, step: &WorldStep) {
        match *step {
            WorldStep::Take(skip, count) => self.take(skip, count),
            WorldStep::Send(at) => self.send(at),
            WorldStep::Answer(at) => self.answer(at),
            WorldStep::Tick(is_answered) => self.tick(is_answered),
            WorldStep::Save => self.saved = self.journal.clone(),
            WorldStep::Prune(behind) => self.prune(behind),
        }
    }
}

#[derive(Clone, Debug)]
enum WorldStep {
    Take(usize, usize),
    Send(usize),
    Answer(usize),
    Tick(bool),
    Save,
    Prune(Seq),
}

#[derive(Clone, Debug)]
enum FaultStep {
    Work(WorldStep),
    Lose(usize, bool),
    Copy,
    /// The journal is restored from its copy.
    Restore,
}

fn work() -> impl Strategy<Value = WorldStep> {
    prop_oneof![
        4 => (0usize..4, 1usize..4).prop_map(|(skip, count)| WorldStep::Take(skip, count)),
        5 => (0usize..4).prop_map(WorldStep::Send),
        5 => (0usize..4).prop_map(WorldStep::Answer),
        1 => any::<bool>().prop_map(WorldStep::Tick),
        3 => Just(WorldStep::Save),
        1 => (0u64..6).prop_map(WorldStep::Prune),
    ]
}

fn with_losses() -> impl Strategy<Value = FaultStep> {
    prop_oneof![
        19 => work().prop_map(FaultStep::Work),
        1 => (0usize..8, any::<bool>()).prop_map(|(changes, crashes)| FaultStep::Lose(changes, crashes)),
    ]
}

fn without_losses() -> impl Strategy<Value = FaultStep> {
    prop_oneof![
        19 => work().prop_map(FaultStep::Work),
        1 => any::<bool>().prop_map(|crashes| FaultStep::Lose(0, crashes)),
        1 => Just(FaultStep::Copy),
        1 => Just(FaultStep::Restore),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn whatever_a_database_loses_each_state_is_applied_once(
        steps in proptest::collection::vec(with_losses(), 1..120),
    ) {
        let mut world = ModelWorld::default();
        for step in steps {
            match step {
                FaultStep::Work(step) => world.run(&step),
                FaultStep::Lose(changes, crashes) => {
                    let known = if crashes { &world.saved.tick } else { &world.journal.tick };
                    let known = known.clone();
                    let is_gap = world.lose(changes, crashes);
                    let is_lost = known.is_some_and(|tick| !world.database.has_done(&tick));
                    prop_assert_eq!(is_gap, is_lost, "a gap where a tick is lost, and nowhere else");
                }
                FaultStep::Copy | FaultStep::Restore => {}
            }
            let rows = world.database.rows();
            for seq in &world.saved.finished {
                // The loss is detected only when the next connection is made.
                prop_assert!(rows.get(seq).is_none_or(|count| *count == 1), "{} twice", seq);
            }
        }
        world.finish();
        world.lose(0, true);
        world.finish();
        let rows = world.database.rows();
        for seq in 1..=STATES {
            prop_assert_eq!(rows.get(&seq), Some(&1), "state {}", seq);
        }
    }

    #[test]
    fn a_database_that_lost_nothing_is_never_said_to_have_also_beside_an_older_journal(
        steps in proptest::collection::vec(without_losses(), 1..120),
    ) {
        let mut world = ModelWorld::default();
        for step in steps {
            match step {
                FaultStep::Work(step) => world.run(&step),
                FaultStep::Lose(_, crashes) => drop(world.lose(0, crashes)),
                FaultStep::Copy => world.copy = world.saved.clone(),
                FaultStep::Restore => {
                    world.saved = world.copy.clone();
                    world.lose(0, true);
                }
            }
            prop_assert_eq!(world.losses, 0);
        }
    }
}
