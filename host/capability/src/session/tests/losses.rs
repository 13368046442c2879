//! Tests of databases that lose their newest commits: a file restored from a copy, and a standby that was
//! promoted without them.

use std::path::Path;

use kubewitness_core::intents::commits::{
    CommitNote, CommitNotes, DatabaseCommits, DatabaseLoss, NotedCommit,
};
use kubewitness_harness::{DatabaseServer, SqlService, database_of, skip};

use super::*;
use crate::sql::ReceiptPruning;
use crate::{SharedServices, SurvivingReceipts};

pub(super) fn sql_alone() -> PluginSpec {
    plugin(json!({"sql": [{"name": "main", "database": "platform"}]}))
}

impl SessionWorld {
    /// Applies a state like the plugin and the dispatcher.
    async fn apply(&self, grants: &Arc<dyn GrantProvider>, seq: Seq) -> Result<(), GrantError> {
        let mut session = grants.open(&batch(&[seq])).await?;
        if !session.applied_states().contains(&seq) {
            session.sql_write("main", rows(&[seq]), None).await?;
        }
        self.paper.keep(&session.commit_effects(&[seq]).await?.take());
        Ok(())
    }

    /// Waits until the database may be checked again.
    async fn lacks(&self, capabilities: &OpenCapabilities) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while capabilities.plugins_lacking_commits().is_empty() {
            assert!(Instant::now() < deadline, "nothing is missing");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(capabilities.plugins_lacking_commits(), ["p"]);
    }

    pub(super) fn notes(&self) -> CommitNotes {
        let mut notes = CommitNotes::default();
        for (key, value) in &self.paper.read() {
            assert_ne!(notes.read(key, value), Some(false));
        }
        notes
    }

    /// Records the loss as the controller does, with what survived.
    async fn mend(&self, capabilities: &OpenCapabilities) -> SurvivingReceipts {
        self.mend_through(capabilities, 99, &[]).await
    }

    /// The same as [`mend`](Self::mend), for a plugin that had finished states up to a position, but for some.
    async fn mend_through(
        &self,
        capabilities: &OpenCapabilities,
        through: Seq,
        unfinished: &[Seq],
    ) -> SurvivingReceipts {
        self.lacks(capabilities).await;
        let survivors = capabilities.survey_survivors("p").await.unwrap().unwrap();
        assert_eq!(survivors.database, "platform");
        let SurvivingReceipts { database, after, beneath, former_floor, commits } = survivors.clone();
        let mut loss =
            DatabaseLoss { database, after, beneath, through, former_floor, ..DatabaseLoss::default() };
        loss.note_unfinished(unfinished.iter().copied());
        self.paper.keep(&self.notes().record_loss(&loss, commits));
        capabilities.end_loss("p");
        survivors
    }

    /// A plugin as a start loads it that has finished everything up to a position.
    pub(super) async fn started_at(
        &self,
        capabilities: &OpenCapabilities,
        spec: &PluginSpec,
        positions: StartPositions,
    ) -> Arc<dyn GrantProvider> {
        let notes = self.paper.clone();
        let backing = PluginServices { kv: self.paper.read(), notes, positions, ..backing(0) };
        capabilities.grant_plugin("p", spec, backing).await.unwrap()
    }

    async fn tick(&self, grants: &Arc<dyn GrantProvider>, seq: Seq) -> KvWrites {
        let mut tick = grants.open(&[]).await.unwrap();
        tick.sql_write("main", rows(&[seq]), None).await.unwrap();
        tick.commit_effects(&[]).await.unwrap()
    }

    pub(super) fn file(&self) -> PathBuf {
        self.folder.path().join("platform.db")
    }

    fn count_receipts(&self, condition: &str) -> i64 {
        let text = format!("SELECT count(*) FROM kubewitness_receipts WHERE {condition}");
        rusqlite::Connection::open(self.file()).unwrap().query_row(&text, [], |row| row.get(0)).unwrap()
    }
}

pub(super) fn at(cursor: Seq) -> StartPositions {
    StartPositions { cursor, furthest_cursor: cursor, furthest: cursor, newest: cursor }
}

pub(super) const LACKS: &str = "lacks commits";

pub(super) async fn make_table(grants: &Arc<dyn GrantProvider>) {
    let mut session = grants.open(&[]).await.unwrap();
    session.sql_execute("main", "CREATE TABLE t (seq BIGINT PRIMARY KEY)", vec![vec![]]).await.unwrap();
    session.commit_effects(&[]).await.unwrap();
}

pub(super) fn copy(from: &Path, to: &Path) {
    std::fs::remove_file(to).ok();
    let text = format!("VACUUM INTO '{}'", to.display());
    rusqlite::Connection::open(from).unwrap().execute_batch(&text).unwrap();
}

/// Replaces the file by a copy.
pub(super) fn restore(kept: &Path, file: &Path) {
    for end in ["", "-wal", "-shm"] {
        std::fs::remove_file(format!("{}{end}", file.display())).ok();
    }
    std::fs::copy(kept, file).unwrap();
}

pub(super) async fn closed(file: &Path) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while std::fs::exists(format!("{}-wal", file.display())).unwrap() {
        assert!(Instant::now() < deadline, "the database is not closed");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_file_that_was_restored_from_a_copy_gets_its_lost_states_again_and_none_twice() {
    let world = SessionWorld::new();
    let (file, kept) = (world.folder.path().join("platform.db"), world.folder.path().join("copy.db"));
    // While the controller runs, and before its start.
    for (round, is_running) in [(0, true), (1, false)] {
        let [first, second, third] = [1, 2, 3].map(|seq| round * 3 + seq);
        let mut capabilities = world.open().await;
        let mut plugin = world.started(&capabilities, &sql_alone()).await;
        if round == 0 {
            make_table(&plugin).await;
        }
        world.apply(&plugin, first).await.unwrap();
        copy(&file, &kept);
        world.apply(&plugin, second).await.unwrap();
        world.apply(&plugin, third).await.unwrap();
        if !is_running {
            drop((plugin, capabilities));
            closed(&file).await;
            restore(&kept, &file);
            capabilities = world.open().await;
            plugin = world.started(&capabilities, &sql_alone()).await;
        } else {
            restore(&kept, &file);
        }
        let refused = world.apply(&plugin, third + 1).await.unwrap_err().to_string();
        assert!(refused.contains(LACKS), "{refused}");
        assert!(world.apply(&plugin, second).await.is_err(), "nothing is done before it is mended");
        capabilities.prune_receipts("p", third, Duration::from_secs(6000)).await.unwrap();
        let survivors = world.mend(&capabilities).await;
        assert_eq!(survivors.after, Some(0), "no receipt was removed so far");
        let plugin = world.started(&capabilities, &sql_alone()).await;
        assert_eq!(applied(&plugin, &[first, second, third]).await, [first]);
        for seq in [first, second, third] {
            world.apply(&plugin, seq).await.unwrap();
        }
        assert_eq!(stored(&plugin).await as Seq, third);
        assert!(capabilities.plugins_lacking_commits().is_empty());
    }
}

#[tokio::test]
async fn a_database_that_is_empty_says_not_how_much_it_lost() {
    let world = SessionWorld::new();
    let capabilities = world.open().await;
    let plugin = world.started(&capabilities, &sql_alone()).await;
    make_table(&plugin).await;
    world.apply(&plugin, 1).await.unwrap();
    for end in ["", "-wal", "-shm"] {
        std::fs::remove_file(world.folder.path().join(format!("platform.db{end}"))).ok();
    }
    assert!(world.apply(&plugin, 2).await.is_err());
    let survivors = world.mend(&capabilities).await;
    assert_eq!((survivors.after, survivors.commits.newest), (None, None));
    let plugin = world.started(&capabilities, &sql_alone()).await;
    make_table(&plugin).await;
    world.apply(&plugin, 2).await.unwrap();
    assert!(capabilities.plugins_lacking_commits().is_empty());
}

#[tokio::test]
async fn a_loss_of_what_a_tick_or_a_resync_wrote_is_found_and_can_not_come_again() {
    for is_tick in [true, false] {
        let world = SessionWorld::new();
        let kept = world.folder.path().join("copy.db");
        let capabilities = world.open().await;
        let plugin = world.started_at(&capabilities, &sql_alone(), at(5)).await;
        make_table(&plugin).await;
        copy(&world.file(), &kept);
        if is_tick {
            world.paper.keep(&world.tick(&plugin, 7).await.take());
        } else {
            let again = batch(&[4]).into_iter().map(|delivery| StateDelivery { resync: true, ..delivery });
            let mut session = plugin.open(&again.collect::<Vec<_>>()).await.unwrap();
            session.sql_write("main", rows(&[4]), None).await.unwrap();
            world.paper.keep(&session.commit_effects(&[4]).await.unwrap().take());
        }
        restore(&kept, &world.file());
        assert!(world.apply(&plugin, 6).await.unwrap_err().to_string().contains(LACKS));
        let survivors = world.mend(&capabilities).await;
        assert_eq!((survivors.after, survivors.beneath), (Some(5), true));
        assert!(world.notes().losses[0].1.is_gap());
        // The next loss, of a state that comes again, is not a gap.
        let plugin = world.started_at(&capabilities, &sql_alone(), at(5)).await;
        world.apply(&plugin, 6).await.unwrap();
        restore(&kept, &world.file());
        assert!(world.apply(&plugin, 7).await.is_err());
        assert!(!world.mend(&capabilities).await.beneath);
    }
}

#[tokio::test]
async fn a_database_that_catches_up_within_a_moment_has_lost_nothing() {
    let world = SessionWorld::new();
    let [older, newer] = ["older.db", "newer.db"].map(|name| world.folder.path().join(name));
    let capabilities = world.open().await;
    let plugin = world.started(&capabilities, &sql_alone()).await;
    make_table(&plugin).await;
    copy(&world.file(), &older);
    world.apply(&plugin, 1).await.unwrap();
    copy(&world.file(), &newer);
    restore(&older, &world.file());
    assert!(world.apply(&plugin, 2).await.unwrap_err().to_string().contains(LACKS));
    assert!(capabilities.plugins_lacking_commits().is_empty(), "it is not asked again at once");
    restore(&newer, &world.file());
    world.lacks(&capabilities).await;
    assert_eq!(capabilities.survey_survivors("p").await.unwrap(), None);
    world.apply(&plugin, 2).await.unwrap();
    assert!(capabilities.plugins_lacking_commits().is_empty());
}

#[tokio::test]
async fn a_tick_replaces_the_receipt_of_the_one_before_and_a_kill_between_them_is_no_loss() {
    let world = SessionWorld::new();
    let capabilities = world.open().await;
    let plugin = world.started(&capabilities, &sql_alone()).await;
    make_table(&plugin).await;
    world.apply(&plugin, 1).await.unwrap();
    world.paper.keep(&world.tick(&plugin, 7).await.take());
    // The kill comes before their notes are saved.
    for seq in 8..12 {
        drop(world.tick(&plugin, seq).await);
    }
    assert_eq!(world.count_receipts("plugin = 'p'"), 2, "one of a state and one of a tick");
    drop((plugin, capabilities));
    closed(&world.file()).await;
    let capabilities = world.open().await;
    let plugin = world.started(&capabilities, &sql_alone()).await;
    drop(world.tick(&plugin, 12).await);
    world.apply(&plugin, 2).await.unwrap();
    assert_eq!(world.count_receipts("plugin = 'p'"), 3);
}

#[tokio::test]
async fn a_resync_keeps_its_receipt_beside_those_of_others_until_it_is_pruned() {
    let world = SessionWorld::new();
    let capabilities = world.open().await;
    let plugin = world.started_at(&capabilities, &sql_alone(), at(5)).await;
    make_table(&plugin).await;
    for seq in [3, 4] {
        let again = batch(&[seq]).into_iter().map(|delivery| StateDelivery { resync: true, ..delivery });
        let mut session = plugin.open(&again.collect::<Vec<_>>()).await.unwrap();
        session.sql_write("main", rows(&[seq]), None).await.unwrap();
        // Its states get no receipt.
        world.paper.keep(&session.commit_effects(&[]).await.unwrap().take());
    }
    world.paper.keep(&world.tick(&plugin, 7).await.take());
    assert_eq!(world.count_receipts("plugin = 'p' AND token NOT LIKE 'p.tick.%'"), 2);
    assert_eq!(world.count_receipts("plugin = 'p' AND token LIKE 'p.tick.%'"), 1);
    let ticks: Vec<_> = world.notes().newest.unwrap().current.unwrap().commits;
    assert!(ticks.iter().all(|commit| commit.is_tick), "{ticks:?}");
}

#[tokio::test]
async fn a_commit_whose_note_was_not_saved_is_expected_once_its_receipt_has_finished_states() {
    for restarts in [false, true] {
        let world = SessionWorld::new();
        let kept = world.folder.path().join("copy.db");
        let mut capabilities = world.open().await;
        let mut plugin = world.started(&capabilities, &sql_alone()).await;
        make_table(&plugin).await;
        world.apply(&plugin, 1).await.unwrap();
        copy(&world.file(), &kept);
        let mut session = plugin.open(&batch(&[2])).await.unwrap();
        session.sql_write("main", rows(&[2]), None).await.unwrap();
        // The kill comes before the save.
        drop(session.commit_effects(&[2]).await.unwrap());
        drop((plugin, capabilities));
        closed(&world.file()).await;
        capabilities = world.open().await;
        plugin = world.started(&capabilities, &sql_alone()).await;
        let session = plugin.open(&batch(&[2])).await.unwrap();
        assert!(session.applied_states().contains(&2));
        world.paper.keep(&session.commit_effects(&[]).await.unwrap().take());
        if restarts {
            drop((plugin, capabilities));
            closed(&world.file()).await;
            restore(&kept, &world.file());
            capabilities = world.open().await;
        } else {
            restore(&kept, &world.file());
        }
        plugin = world.started_at(&capabilities, &sql_alone(), at(2)).await;
        let refused = world.apply(&plugin, 3).await.unwrap_err().to_string();
        assert!(refused.contains(LACKS), "{refused}");
        assert_eq!(world.mend(&capabilities).await.after, Some(0), "2 comes again");
    }
}

#[tokio::test]
async fn a_first_look_asks_whether_a_receipt_was_removed_before_it_finds_a_loss() {
    let world = SessionWorld::new();
    let capabilities = world.open().await;
    let granted = capabilities.resolve_access("p", &sql_alone(), &backing(0)).unwrap();
    let engine = &granted.sql["main"].engine;
    let watch = crate::session::commits::CommitWatch::default();
    for (at_ms, is_lost) in [(4, false), (5, true)] {
        let commits = vec![NotedCommit { token: "p.1".into(), at_ms, is_tick: false }];
        let current = DatabaseCommits { database: "platform".into(), commits, ..DatabaseCommits::default() };
        let newest = Some(CommitNote { current: Some(current), earlier: Vec::new() });
        watch.load_note("platform", CommitNotes { newest, losses: Vec::new() });
        let pruning =
            ReceiptPruning { plugin: "p".into(), through: 9, before_ms: 5, floor: 9, pruned_before_ms: 5 };
        engine.begin("p").await.unwrap().prune_receipts(pruning).await.unwrap();
        let mut transaction = engine.begin("p").await.unwrap();
        assert_eq!(watch.expect_commits("p", &mut *transaction).await.is_err(), is_lost);
        transaction.roll_back().await;
    }
}

/// The address leads to a standby, and then back to the former server, which has removed receipts newer than
/// everything on the standby.
#[tokio::test]
async fn a_server_that_comes_back_after_its_standby_gets_no_state_twice() {
    for (writes_meanwhile, letters) in
        [(false, &[][..]), (true, &[]), (false, &[4, 9000]), (true, &[4, 9000])]
    {
        let world = SessionWorld::new();
        let [standby, original] = ["standby.db", "original.db"].map(|name| world.folder.path().join(name));
        let mut capabilities = world.open().await;
        let mut plugin = world.started_at(&capabilities, &sql_alone(), at(0)).await;
        make_table(&plugin).await;
        world.apply(&plugin, 1).await.unwrap();
        copy(&world.file(), &standby);
        drop((plugin, capabilities));
        closed(&world.file()).await;
        capabilities = world.open().await;
        plugin = world.started_at(&capabilities, &sql_alone(), at(9000)).await;
        for minutes in [0, 10] {
            capabilities.prune_receipts("p", 9000, Duration::from_secs(minutes * 60)).await.unwrap();
        }
        world.apply(&plugin, 9001).await.unwrap();
        copy(&world.file(), &original);
        restore(&standby, &world.file());
        assert!(world.apply(&plugin, 9002).await.is_err());
        assert_eq!(world.mend_through(&capabilities, 9001, letters).await.after, Some(0));
        plugin = world.started_at(&capabilities, &sql_alone(), at(0)).await;
        if writes_meanwhile {
            for seq in [1, 2, 3] {
                world.apply(&plugin, seq).await.unwrap();
            }
        }
        restore(&original, &world.file());
        // Dead letters stay where they are, above all that is taken back.
        let mut positions = StartPositions { cursor: 0, furthest_cursor: 0, furthest: 9500, newest: 9600 };
        if writes_meanwhile {
            positions = StartPositions { cursor: 3, furthest_cursor: 3, furthest: 9500, newest: 9600 };
            assert!(world.apply(&plugin, 4).await.is_err());
            assert_eq!(world.mend_through(&capabilities, 9500, &[]).await.after, Some(9000));
            assert!(world.notes().losses.iter().any(|(_, loss)| loss.after == Some(9000) && loss.is_gap()));
        } else {
            drop((plugin, capabilities));
            capabilities = world.open().await;
        }
        for _ in 0..2 {
            plugin = world.started_at(&capabilities, &sql_alone(), positions).await;
            let mut done = vec![4, 9000, 9001];
            // The former server never had the rows of a dead letter that waited.
            done.retain(|seq| !letters.contains(seq));
            assert_eq!(applied(&plugin, &[4, 9000, 9001, 9002]).await, done);
            assert_eq!(world.count_receipts("plugin = '/floor' AND last = 9000"), 1, "it stays");
        }
        // Once the cursor has moved on, the past of an added source is delivered.
        plugin = world.started_at(&capabilities, &sql_alone(), at(9001)).await;
        world.apply(&plugin, 9002).await.unwrap();
        let positions = StartPositions { cursor: 10, furthest_cursor: 9001, furthest: 9002, newest: 9600 };
        plugin = world.started_at(&capabilities, &sql_alone(), positions).await;
        assert_eq!(applied(&plugin, &[20, 9001]).await, [9001]);
    }
}

#[tokio::test]
async fn the_first_floor_is_the_last_position_that_was_ever_finished() {
    let world = SessionWorld::new();
    let kept = world.folder.path().join("copy.db");
    let capabilities = world.open().await;
    // The plugin goes back for the past of a source. An older version may have removed receipts up to 50.
    let positions = StartPositions { cursor: 0, furthest_cursor: 0, furthest: 50, newest: 60 };
    let plugin = world.started_at(&capabilities, &sql_alone(), positions).await;
    make_table(&plugin).await;
    world.apply(&plugin, 55).await.unwrap();
    copy(&world.file(), &kept);
    world.apply(&plugin, 3).await.unwrap();
    world.apply(&plugin, 56).await.unwrap();
    restore(&kept, &world.file());
    assert!(world.apply(&plugin, 57).await.is_err());
    let survivors = world.mend(&capabilities).await;
    assert_eq!((survivors.after, survivors.beneath), (Some(50), true), "3 does not come again");
}

#[tokio::test]
async fn beside_an_older_copy_of_the_journal_nothing_is_lost_and_the_floor_is_laid_anew() {
    let world = SessionWorld::new();
    let kept = world.folder.path().join("copy.db");
    let mut capabilities = world.open().await;
    let mut plugin = world.started_at(&capabilities, &sql_alone(), at(0)).await;
    make_table(&plugin).await;
    world.apply(&plugin, 1).await.unwrap();
    let older = world.paper.read();
    world.apply(&plugin, 2).await.unwrap();
    let reopen = async |positions| {
        let capabilities = world.open().await;
        let plugin = world.started_at(&capabilities, &sql_alone(), positions).await;
        (capabilities, plugin)
    };
    drop((plugin, capabilities));
    (capabilities, plugin) = reopen(at(9000)).await;
    for minutes in [0, 10] {
        capabilities.prune_receipts("p", 9000, Duration::from_secs(minutes * 60)).await.unwrap();
    }
    assert_eq!(world.count_receipts("plugin = 'p'"), 1, "that of the newest commit");
    drop((plugin, capabilities));
    *world.paper.kept.lock().unwrap() = older.into_iter().collect();
    (capabilities, plugin) = reopen(at(1)).await;
    world.apply(&plugin, 3).await.unwrap();
    copy(&world.file(), &kept);
    world.apply(&plugin, 4).await.unwrap();
    restore(&kept, &world.file());
    assert!(world.apply(&plugin, 5).await.is_err());
    assert_eq!(world.mend(&capabilities).await.after, Some(1), "4 comes again");
}

#[tokio::test]
async fn rows_whose_receipts_were_deleted_do_not_come_twice() {
    let world = SessionWorld::new();
    let capabilities = world.open().await;
    let plugin = world.started(&capabilities, &sql_alone()).await;
    make_table(&plugin).await;
    world.apply(&plugin, 1).await.unwrap();
    drop((plugin, capabilities));
    closed(&world.file()).await;
    let database = rusqlite::Connection::open(world.file()).unwrap();
    database.execute("DELETE FROM kubewitness_receipts WHERE plugin = 'p'", []).unwrap();
    drop(database);
    let capabilities = world.open().await;
    let plugin = world.started(&capabilities, &sql_alone()).await;
    assert!(world.apply(&plugin, 2).await.is_err());
    assert_eq!(world.mend(&capabilities).await.after, None);
}

#[tokio::test]
async fn a_plugin_without_its_database_does_not_wait_for_what_it_lost() {
    let world = SessionWorld::new();
    let capabilities = world.open().await;
    let plugin = world.started(&capabilities, &sql_alone()).await;
    make_table(&plugin).await;
    world.apply(&plugin, 1).await.unwrap();
    for end in ["", "-wal", "-shm"] {
        std::fs::remove_file(format!("{}{end}", world.file().display())).ok();
    }
    assert!(world.apply(&plugin, 2).await.is_err());
    world.lacks(&capabilities).await;
    let plugin = world.started(&capabilities, &plugin_spec_without_sql()).await;
    plugin.open(&batch(&[2])).await.unwrap().commit_effects(&[2]).await.unwrap();
    assert!(capabilities.plugins_lacking_commits().is_empty());
}

fn plugin_spec_without_sql() -> PluginSpec {
    plugin(json!({"kv": true}))
}

#[tokio::test]
async fn a_plugin_that_comes_back_to_a_database_counts_on_its_commits_and_not_on_its_floor() {
    for loses_meanwhile in [false, true] {
        let world = SessionWorld::new();
        let mut settings = serde_json::to_value(world.settings()).unwrap();
        settings["databases"] = json!([
            {"name": "platform", "sqlite": {"path": "platform.db"}},
            {"name": "other", "sqlite": {"path": "other.db"}},
        ]);
        let settings: HostSpec = serde_json::from_value(settings).unwrap();
        let capabilities = OpenCapabilities::open(&settings, world.folder.path()).await.unwrap();
        let kept = world.folder.path().join("copy.db");
        let plugin_here = world.started_at(&capabilities, &sql_alone(), at(0)).await;
        make_table(&plugin_here).await;
        copy(&world.file(), &kept);
        world.apply(&plugin_here, 1).await.unwrap();
        let elsewhere = plugin(json!({"sql": [{"name": "main", "database": "other"}]}));
        let plugin_there = world.started_at(&capabilities, &elsewhere, at(1)).await;
        make_table(&plugin_there).await;
        world.apply(&plugin_there, 2).await.unwrap();
        if loses_meanwhile {
            restore(&kept, &world.file());
        }
        let plugin_here = world.started_at(&capabilities, &sql_alone(), at(2)).await;
        if loses_meanwhile {
            assert!(world.apply(&plugin_here, 3).await.unwrap_err().to_string().contains(LACKS));
            let survivors = world.mend(&capabilities).await;
            assert_eq!(survivors.after, None, "2 is not handed over to it");
        } else {
            copy(&world.file(), &kept);
            world.apply(&plugin_here, 3).await.unwrap();
            restore(&kept, &world.file());
            assert!(world.apply(&plugin_here, 4).await.is_err());
            assert_eq!(world.mend(&capabilities).await.after, Some(2));
        }
        // From then on the plugin has a floor of its own.
        let plugin_here = world.started_at(&capabilities, &sql_alone(), at(3)).await;
        copy(&world.file(), &kept);
        world.apply(&plugin_here, 4).await.unwrap();
        restore(&kept, &world.file());
        assert!(world.apply(&plugin_here, 5).await.is_err());
        let survivors = world.mend(&capabilities).await;
        assert_eq!((survivors.after, survivors.beneath), (Some(if loses_meanwhile { 3 } else { 2 }), false));
    }
}

#[test]
fn a_clock_that_goes_back_does_not_make_a_commit_older_than_the_one_before() {
    let watch = crate::session::commits::CommitWatch::default();
    let mut moments = Vec::new();
    for at_ms in [100, 40, 41, 200] {
        let mut receipt = crate::sql::receipt::receipt("p.1", &[1]);
        receipt.at_ms = at_ms;
        let sent = watch.begin_commit(&mut receipt, false);
        watch.note_commit(sent, &receipt);
        moments.push(receipt.at_ms);
    }
    assert_eq!(moments, [100, 101, 102, 200]);
}

#[tokio::test]
async fn of_two_plugins_in_a_database_only_the_one_that_lost_commits_waits() {
    let world = SessionWorld::new();
    let (file, kept) = (world.folder.path().join("platform.db"), world.folder.path().join("copy.db"));
    let capabilities = world.open().await;
    let plugin = world.started(&capabilities, &sql_alone()).await;
    make_table(&plugin).await;
    let other = capabilities.grant_plugin("q", &sql_alone(), backing(0)).await.unwrap();
    let write = async |seq| {
        let mut session = other.open(&batch(&[seq])).await?;
        session.sql_write("main", rows(&[100 + seq]), None).await?;
        session.commit_effects(&[seq]).await.map(drop)
    };
    write(1).await.unwrap();
    copy(&file, &kept);
    world.apply(&plugin, 1).await.unwrap();
    restore(&kept, &file);
    assert!(world.apply(&plugin, 2).await.unwrap_err().to_string().contains(LACKS));
    write(2).await.unwrap();
    world.mend(&capabilities).await;
    assert!(capabilities.plugins_lacking_commits().is_empty());
    write(3).await.unwrap();
}

#[tokio::test]
async fn a_journal_that_notes_no_commit_finds_no_loss() {
    let world = SessionWorld::new();
    let capabilities = world.open().await;
    let plugin = world.started(&capabilities, &sql_alone()).await;
    make_table(&plugin).await;
    world.apply(&plugin, 1).await.unwrap();
    drop((plugin, capabilities));
    closed(&world.folder.path().join("platform.db")).await;
    // The state in which a version without these notes leaves the journal and the database.
    world.paper.kept.lock().unwrap().clear();
    let database = rusqlite::Connection::open(world.folder.path().join("platform.db")).unwrap();
    database.execute("DELETE FROM kubewitness_receipts WHERE plugin = '/floor'", []).unwrap();
    drop(database);
    let capabilities = world.open().await;
    let plugin = world.started(&capabilities, &sql_alone()).await;
    assert_eq!(applied(&plugin, &[1, 2]).await, [1]);
    world.apply(&plugin, 2).await.unwrap();
    assert!(capabilities.plugins_lacking_commits().is_empty());
}

/// A copy of the database like a standby that lacks everything committed from now on.
fn standby_of(server: &DatabaseServer, database: &str) -> String {
    let standby = format!("{database}_standby");
    if server.service() == SqlService::Postgres {
        server.end_sessions(database).unwrap();
        server
            .run(None, &format!("CREATE DATABASE {standby} TEMPLATE {database} OWNER kubewitness"))
            .unwrap();
    } else {
        server.run(None, &format!("CREATE DATABASE {standby}")).unwrap();
        for table in ["t", "kubewitness_receipts", "kubewitness_fences"] {
            let text = format!(
                "CREATE TABLE {standby}.{table} LIKE {database}.{table}; \
                 INSERT INTO {standby}.{table} SELECT * FROM {database}.{table}"
            );
            server.run(Some(database), &text).unwrap();
        }
    }
    server.url(&standby)
}

async fn a_standby_without_the_last_commits_gets_them_again(service: SqlService) {
    let Some(server) = DatabaseServer::shared(service).unwrap() else {
        return skip("losses::a_standby", "its database is not installed");
    };
    let world = SessionWorld::new();
    let (address, url) = (world.folder.path().join("address"), server.create_database().unwrap());
    std::fs::write(&address, &url).unwrap();
    let kind = if service == SqlService::Postgres { "postgres" } else { "mysql" };
    let mut settings = serde_json::to_value(world.settings()).unwrap();
    settings["databases"] = json!([{"name": "platform", kind: {"urlFrom": {"file": address}}}]);
    let settings: HostSpec = serde_json::from_value(settings).unwrap();
    let folder = world.folder.path();
    let capabilities =
        OpenCapabilities::open_with(&settings, folder, SharedServices::default()).await.unwrap();
    let plugin = world.started(&capabilities, &sql_alone()).await;
    make_table(&plugin).await;
    world.apply(&plugin, 1).await.unwrap();
    let standby = standby_of(&server, database_of(&url));
    world.apply(&plugin, 2).await.unwrap();
    world.apply(&plugin, 3).await.unwrap();
    std::fs::write(&address, &standby).unwrap();
    server.end_sessions(database_of(&url)).unwrap();
    let refused = world.apply(&plugin, 4).await.unwrap_err().to_string();
    assert!(refused.contains(LACKS), "{refused}");
    let survivors = world.mend(&capabilities).await;
    assert_eq!(survivors.after, Some(0));
    assert!(survivors.commits.newest.is_some());
    let plugin = world.started(&capabilities, &sql_alone()).await;
    assert_eq!(applied(&plugin, &[1, 2, 3]).await, [1]);
    for seq in [1, 2, 3, 4] {
        world.apply(&plugin, seq).await.unwrap();
    }
    let rows =
        server.run(Some(database_of(&standby)), "SELECT count(*), count(DISTINCT seq) FROM t").unwrap();
    assert_eq!(rows.split_whitespace().collect::<Vec<_>>(), ["4", "4"]);
    // A new process finds all notes.
    drop((plugin, capabilities));
    let capabilities = OpenCapabilities::open(&settings, folder).await.unwrap();
    let plugin = world.started(&capabilities, &sql_alone()).await;
    world.apply(&plugin, 5).await.unwrap();
    assert!(capabilities.plugins_lacking_commits().is_empty());
}

#[tokio::test]
async fn a_loss_is_judged_over_no_connection_to_the_server_of_before() {
    let Some(server) = DatabaseServer::shared(SqlService::Postgres).unwrap() else {
        return skip("losses::a_loss_is_judged", "its database is not installed");
    };
    let world = SessionWorld::new();
    let (address, url) = (world.folder.path().join("address"), server.create_database().unwrap());
    std::fs::write(&address, &url).unwrap();
    let mut settings = serde_json::to_value(world.settings()).unwrap();
    settings["databases"] = json!([{"name": "platform", "postgres": {"urlFrom": {"file": address}}}]);
    let settings: HostSpec = serde_json::from_value(settings).unwrap();
    let capabilities = OpenCapabilities::open(&settings, world.folder.path()).await.unwrap();
    let plugin = world.started(&capabilities, &sql_alone()).await;
    make_table(&plugin).await;
    let standby = standby_of(&server, database_of(&url));
    world.apply(&plugin, 1).await.unwrap();
    let mut old = plugin.open(&batch(&[2])).await.unwrap();
    old.sql_write("main", rows(&[2]), None).await.unwrap();
    std::fs::write(&address, &standby).unwrap();
    let refused = world.apply(&plugin, 3).await.unwrap_err().to_string();
    assert!(refused.contains(LACKS), "{refused}");
    old.roll_back_effects().await;
    assert_eq!(world.mend(&capabilities).await.after, Some(0), "its connection waits for the next call");
}

#[tokio::test]
async fn a_standby_of_postgresql_without_the_last_commits_gets_them_again() {
    a_standby_without_the_last_commits_gets_them_again(SqlService::Postgres).await;
}

#[tokio::test]
async fn a_standby_of_mariadb_without_the_last_commits_gets_them_again() {
    a_standby_without_the_last_commits_gets_them_again(SqlService::MariaDb).await;
}

#[tokio::test]
async fn a_standby_of_mysql_without_the_last_commits_gets_them_again() {
    a_standby_without_the_last_commits_gets_them_again(SqlService::MySql).await;
}
