//! Random histories of a plugin whose address leads to a standby and back: with dead letters, owed rows, prunings, kills
//! and restarts. The part of the journal and of the dispatcher is played with their own types.

use std::collections::BTreeSet;

use kubewitness_chance::{Dice, ReplayHint, SeedPlan};
use kubewitness_core::intents::commits::DatabaseLoss;
use kubewitness_core::ports::{DurableCursor, PluginProgress};

use super::losses::{LACKS, at, closed, copy, make_table, restore, sql_alone};
use super::*;
use crate::SurvivingReceipts;

/// The distance between two states of the plugin, so that there are receipts to prune between them.
const SPREAD: Seq = 5000;
const STATES: Seq = 24;
const STEPS: u64 = 70;
const LOG: &str = "CREATE TABLE IF NOT EXISTS log (seq INTEGER)";

struct RandomHistory<'a> {
    world: &'a SessionWorld,
    /// `None` while it does not run.
    process: Option<(OpenCapabilities, Arc<dyn GrantProvider>)>,
    progress: PluginProgress,
    /// The states that the cursor passes: finished ones, dead letters and owed ones.
    passed: BTreeSet<Seq>,
    letters: BTreeSet<Seq>,
    owed: BTreeSet<Seq>,
    /// States that were applied before a kill, which the journal does not know.
    unsaved: BTreeSet<Seq>,
    /// Owed states that may have been applied: those of a former process.
    doubts: BTreeSet<Seq>,
    minutes: u64,
    server: usize,
    has_standby: bool,
    changes: u64,
    /// States that were applied from a dead letter or an owed row.
    late: BTreeSet<Seq>,
    /// States that became a dead letter after the standby took over, or waited behind one.
    held_since_change: BTreeSet<Seq>,
    /// States that waited behind a dead letter when commits were found missing: no server that they waited at has them.
    waited: BTreeSet<Seq>,
    losses: usize,
}

impl<'a> RandomHistory<'a> {
    async fn begin(world: &'a SessionWorld) -> Self {
        let capabilities = world.open().await;
        let plugin = world.started_at(&capabilities, &sql_alone(), at(0)).await;
        make_table(&plugin).await;
        let mut session = plugin.open(&[]).await.unwrap();
        session.sql_execute("main", LOG, vec![vec![]]).await.unwrap();
        world.paper.keep(&session.commit_effects(&[]).await.unwrap().take());
        Self {
            world,
            process: Some((capabilities, plugin)),
            progress: PluginProgress::default(),
            passed: BTreeSet::new(),
            letters: BTreeSet::new(),
            owed: BTreeSet::new(),
            unsaved: BTreeSet::new(),
            doubts: BTreeSet::new(),
            minutes: 0,
            server: 0,
            has_standby: false,
            changes: 0,
            late: BTreeSet::new(),
            held_since_change: BTreeSet::new(),
            waited: BTreeSet::new(),
            losses: 0,
        }
    }

    fn open_states(&self) -> Vec<Seq> {
        (1..=STATES).map(|number| number * SPREAD).filter(|seq| !self.passed.contains(seq)).collect()
    }

    /// Positions between the plugin's states belong to nobody.
    fn renew_progress(&mut self) {
        let mut states = (1..=STATES).map(|number| number * SPREAD);
        let cursor =
            states.find(|seq| !self.passed.contains(seq)).map_or(STATES * SPREAD, |seq| seq - SPREAD);
        let above = self.passed.range(cursor + 1..).map(|seq| (seq - SPREAD + 1, *seq)).collect();
        self.progress = PluginProgress { cursor, above, ..PluginProgress::default() };
    }

    fn capabilities(&self) -> &OpenCapabilities {
        &self.process.as_ref().expect("it runs").0
    }

    fn plugin(&self) -> &Arc<dyn GrantProvider> {
        &self.process.as_ref().expect("it runs").1
    }

    async fn start_plugin(&mut self, capabilities: OpenCapabilities) {
        let progress = &self.progress;
        let positions = StartPositions {
            cursor: progress.cursor,
            furthest_cursor: progress.furthest_cursor(),
            furthest: progress.furthest_position(),
            newest: STATES * SPREAD,
        };
        let plugin = self.world.started_at(&capabilities, &sql_alone(), positions).await;
        self.process = Some((capabilities, plugin));
        self.doubts.clone_from(&self.owed);
    }

    async fn stop(&mut self) {
        drop(self.process.take());
        closed(&self.world.file()).await;
    }

    async fn restart(&mut self) {
        self.stop().await;
        self.start_plugin(self.world.open().await).await;
    }

    /// Returns `false` if commits are missing, which are then taken back. Otherwise the state is applied once.
    async fn apply(&mut self, seq: Seq, saves: bool) -> bool {
        match self.try_apply(seq, saves).await {
            Ok(()) => true,
            Err(error) => {
                assert!(error.to_string().contains(LACKS), "{error}");
                self.mend().await;
                false
            }
        }
    }

    async fn try_apply(&self, seq: Seq, saves: bool) -> Result<(), GrantError> {
        let mut session = self.plugin().open(&batch(&[seq])).await?;
        if !session.applied_states().contains(&seq) {
            let row = vec![vec![SqlValue::Integer(seq as i64)]];
            session.sql_execute("main", "INSERT INTO log (seq) VALUES (?)", row).await?;
        }
        let writes = session.commit_effects(&[seq]).await?.take();
        if saves {
            self.world.paper.keep(&writes);
        }
        Ok(())
    }

    /// The controller's part, once a plugin has lacked commits for a while.
    async fn mend(&mut self) {
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(2)).await;
        tokio::time::resume();
        let Some(survivors) = self.capabilities().survey_survivors("p").await.unwrap() else { return };
        let SurvivingReceipts { database, after, beneath, former_floor, commits } = survivors;
        let through = self.progress.furthest_position();
        let mut loss =
            DatabaseLoss { database, after, beneath, through, former_floor, ..DatabaseLoss::default() };
        loss.note_unfinished(self.letters.union(&self.owed).copied());
        self.waited.extend(&self.owed);
        self.world.paper.keep(&self.world.notes().record_loss(&loss, commits));
        let after = after.expect("the database has receipts");
        if after < through {
            self.progress.take_back(after, &self.letters);
            self.passed.retain(|seq| self.progress.has_finished("jobs", *seq));
            self.owed.retain(|seq| *seq <= after);
            self.renew_progress();
        }
        self.capabilities().end_loss("p");
        self.losses += 1;
        let capabilities = self.capabilities().clone();
        self.start_plugin(capabilities).await;
    }

    async fn deliver(&mut self, seq: Seq, saves: bool) {
        if self.apply(seq, saves).await && saves {
            self.passed.insert(seq);
            self.renew_progress();
        }
        if !saves {
            self.unsaved.insert(seq);
            self.restart().await;
        }
    }

    async fn hold(&mut self, seq: Seq, dice: &mut Dice) {
        let is_owed = !self.letters.is_empty() && dice.one_in(2);
        // A plugin can't reject what it is not called with.
        if !is_owed && self.is_applied(seq).await {
            return self.deliver(seq, true).await;
        }
        let held = if is_owed { &mut self.owed } else { &mut self.letters };
        held.insert(seq);
        if is_owed && self.unsaved.contains(&seq) {
            self.doubts.insert(seq);
        }
        self.passed.insert(seq);
        if self.changes > 0 {
            self.held_since_change.insert(seq);
        }
        self.renew_progress();
    }

    async fn is_applied(&self, seq: Seq) -> bool {
        let Ok(session) = self.plugin().open(&batch(&[seq])).await else { return true };
        let is_applied = session.applied_states().contains(&seq);
        session.roll_back_effects().await;
        is_applied
    }

    async fn release(&mut self, seq: Seq) {
        if self.apply(seq, true).await {
            self.letters.remove(&seq);
            self.owed.remove(&seq);
            self.doubts.remove(&seq);
            self.late.insert(seq);
        }
    }

    async fn prune(&mut self) {
        self.minutes += 10;
        let cursor =
            DurableCursor { cursor: self.progress.cursor, receipts_from: self.doubts.first().copied() };
        let now = Duration::from_secs(60 * self.minutes);
        if let Err(error) = self.capabilities().prune_receipts("p", cursor, now).await {
            assert!(error.to_string().contains(LACKS), "{error}");
            self.mend().await;
        }
    }

    fn make_standby(&mut self) {
        if !self.has_standby {
            copy(&self.world.file(), &self.place(1));
            self.has_standby = true;
        }
    }

    fn place(&self, server: usize) -> PathBuf {
        self.world.folder.path().join(format!("server-{server}.db"))
    }

    async fn change_server(&mut self) {
        // One standby that takes over, and one return.
        if !self.has_standby || self.changes == 2 {
            return;
        }
        self.changes += 1;
        self.stop().await;
        copy(&self.world.file(), &self.place(self.server));
        self.server = 1 - self.server;
        restore(&self.place(self.server), &self.world.file());
        self.start_plugin(self.world.open().await).await;
    }

    async fn step(&mut self, dice: &mut Dice) {
        let next = self.open_states().get(dice.index(3)).copied();
        let held: Vec<Seq> = self.letters.union(&self.owed).copied().collect();
        let (what, one) = (dice.below(20), dice.pick(&held).copied());
        match (what, next, one) {
            (0..=7, Some(seq), _) => self.deliver(seq, true).await,
            (8, Some(seq), _) => self.deliver(seq, false).await,
            (9..=11, Some(seq), _) => self.hold(seq, dice).await,
            (12..=13, _, Some(seq)) => self.release(seq).await,
            (14..=15, ..) => self.prune().await,
            (16, ..) => self.restart().await,
            (17, ..) => self.make_standby(),
            (18, ..) => self.change_server().await,
            _ => {}
        }
    }

    /// Delivers everything, until a call that delivers nothing finds no loss.
    async fn finish(&mut self) {
        loop {
            self.deliver_all().await;
            match self.plugin().open(&[]).await {
                Ok(session) => return session.roll_back_effects().await,
                Err(error) => {
                    assert!(error.to_string().contains(LACKS), "{error}");
                    self.mend().await;
                }
            }
        }
    }

    async fn deliver_all(&mut self) {
        while let Some(seq) = self.open_states().first().copied() {
            self.deliver(seq, true).await;
        }
        while let Some(seq) = self.letters.first().or(self.owed.first()).copied() {
            self.release(seq).await;
            if let Some(open) = self.open_states().first().copied() {
                self.deliver(open, true).await;
            }
        }
    }

    async fn rows(&self) -> BTreeMap<Seq, usize> {
        let mut session = self.plugin().open(&[]).await.unwrap();
        let rows = session.sql_query("main", "SELECT seq FROM log", vec![]).await.unwrap();
        session.roll_back_effects().await;
        let mut counts = BTreeMap::new();
        for row in rows {
            let [SqlValue::Integer(seq)] = row[..] else { panic!("the row is {row:?}") };
            *counts.entry(seq as Seq).or_default() += 1;
        }
        counts
    }
}

const RETURNS: SeedPlan = SeedPlan { test: "no_return_to_a_server_loses_or_repeats", fixed: 24, fresh: 6 };

#[tokio::test]
async fn no_return_to_a_server_loses_or_repeats_a_state_outside_of_what_the_page_says() {
    let mut losses = 0;
    for seed in RETURNS.list() {
        let _hint = ReplayHint { package: "kubewitness-capability", test: RETURNS.test, seed };
        let world = SessionWorld::new();
        let mut history = RandomHistory::begin(&world).await;
        let mut dice = Dice::new(seed);
        for _ in 0..STEPS {
            history.step(&mut dice).await;
        }
        history.finish().await;
        history.restart().await;
        history.finish().await;
        let rows = history.rows().await;
        let has_gap = world.notes().losses.iter().any(|(_, loss)| loss.is_gap());
        for seq in (1..=STATES).map(|number| number * SPREAD) {
            let count = rows.get(&seq).copied().unwrap_or_default();
            let may_repeat = history.held_since_change.contains(&seq);
            let has_waited = history.late.contains(&seq) || history.waited.contains(&seq);
            let may_be_lost = has_gap && (may_repeat || has_waited);
            assert!(count > 0 || may_be_lost, "{seq} is lost");
            assert!(count < 2 || may_repeat, "{seq} has {count} rows");
        }
        losses += history.losses;
    }
    assert!(!RETURNS.include_fixed() || losses > 20, "{losses} losses are too few");
}
