//! Tests of several processes that witness into one journal.

use std::time::Instant;

use futures::StreamExt;
use kubewitness_core::Version;
use kubewitness_core::config::RetentionSpec;
use kubewitness_core::ports::{NoteDurability, NoteStore};
use kubewitness_journal::SourceRetention;

use super::*;
use crate::support::{document, gap, seqs, sharing, status};

async fn replica(place: &JournalLocation, name: &str) -> Journal {
    Journal::open_at(place, sharing(name)).await.unwrap()
}

fn progress(cursor: Seq) -> ProgressSave {
    ProgressSave {
        progress: PluginProgress { cursor, ..PluginProgress::default() },
        ..ProgressSave::default()
    }
}

pub async fn what_two_witness_is_there_once_and_each_knows_of_the_others() {
    let desk = TestJournal::shared("one").await;
    let (one, two) = (&desk.journal, replica(&desk.place, "two").await);
    let both = |version| of(SOURCE, 0, vec![present(&job(1), version), present(&job(2), version)]);
    assert_eq!(seqs(&one.append_batch(both(1)).await.unwrap()), [Some(1), Some(2)]);
    let again = two.append_batch(both(1)).await.unwrap();
    assert_eq!((seqs(&again), again.through, again.newest), (vec![None, None], 2, 2));
    // They append by turns, and each append has a state that the other lacks.
    for version in (2..20).step_by(2) {
        two.append_batch(both(version)).await.unwrap();
        one.append_batch(of(SOURCE, 0, vec![present(&job(1), version), present(&job(3), version)]))
            .await
            .unwrap();
        two.append_batch(of(SOURCE, 0, vec![present(&job(3), version), present(&job(3), version + 1)]))
            .await
            .unwrap();
    }
    // A late state is marked as late, whoever appended the newer one.
    let late = one.append_batch(of(SOURCE, 0, vec![present(&job(2), 17)])).await.unwrap();
    two.await_earlier_writes().await.unwrap();
    assert_eq!((*two.newest_position().borrow(), late.newest), (39, 39));
    let states = two.read(0, 100).await.unwrap();
    assert!(states.iter().map(|state| state.seq).eq(1..=39) && states[38].late && !states[37].late);
    let ids: std::collections::HashSet<_> = states.iter().map(|state| state.id.clone()).collect();
    assert_eq!(ids.len(), 39);
    for state in &states {
        let held =
            kubewitness_core::ports::DocumentReader::document_at(&two, state.seq).await.unwrap().unwrap();
        assert_eq!(held, document(&state.object, state.resource_version.as_str()));
    }
    two.close().await.unwrap();
    desk.assert_sound().await;
}

pub async fn one_that_wants_it_alone_and_those_that_share_it_keep_apart() {
    let beside = SharedJournal::new();
    let one = replica(&beside.place(), "one").await;
    let two = replica(&beside.place(), "two").await;
    let error = refused(&beside.place()).await;
    let text = error.to_string();
    assert!(matches!(error, OpenError::Shared { .. }), "{text}");
    assert!(text.contains("one, two") && text.contains("--lease"), "{text}");
    let names = |replicas: Vec<kubewitness_journal::JournalReplica>| -> Vec<_> {
        replicas.into_iter().map(|replica| replica.name).collect()
    };
    assert_eq!(names(one.list_replicas().await.unwrap()), ["one", "two"]);
    one.close().await.unwrap();
    refused(&beside.place()).await;
    assert_eq!(names(two.list_replicas().await.unwrap()), ["two"]);
    two.close().await.unwrap();
    let alone = open_at(&beside.place()).await;
    let error = Journal::open_at(&beside.place(), sharing("three")).await.err().unwrap();
    assert!(matches!(error, OpenError::Held { .. }), "{error}");
    alone.append_batch(of(SOURCE, 0, vec![present(&job(1), 1)])).await.unwrap();
    assert_eq!(alone.list_replicas().await.unwrap(), []);
}

pub async fn replicas_of_another_election_are_refused() {
    let beside = SharedJournal::new();
    let _one = replica(&beside.place(), "one").await;
    let mut options = sharing("two");
    options.sharing.as_mut().unwrap().lease = "kubewitness/election of cluster 2".into();
    let error = Journal::open_at(&beside.place(), options).await.err().unwrap();
    assert!(error.to_string().contains("one of another cluster"), "{error}");
}

pub async fn a_lease_that_is_made_anew_is_that_of_who_comes_then() {
    let beside = SharedJournal::new();
    let (one, two) = (replica(&beside.place(), "one").await, replica(&beside.place(), "two").await);
    let anew = |name: &str| {
        let mut options = sharing(name);
        options.sharing.as_mut().unwrap().lease = "made anew".into();
        options
    };
    one.elect_by("made anew".into()).await.unwrap();
    assert!(Journal::open_at(&beside.place(), anew("three")).await.is_err(), "not all of them know it");
    two.elect_by("made anew".into()).await.unwrap();
    let three = Journal::open_at(&beside.place(), anew("three")).await.unwrap();
    three.append_batch(of(SOURCE, 0, vec![present(&job(1), 1)])).await.unwrap();
    assert!(Journal::open_at(&beside.place(), sharing("four")).await.is_err());
}

/// A process that stopped while it joined: it holds locks that others need for joining.
pub async fn a_replica_that_stops_while_it_comes_in_is_ended() {
    let beside = SharedJournal::new();
    replica(&beside.place(), "one").await.close().await.unwrap();
    let lock = match StoreKind::here() {
        StoreKind::Postgres => "SELECT pg_advisory_lock(1263291953, hashtext(current_schema()))",
        _ => "DO get_lock(concat('kubewitness ', left(sha2(database(), 256), 40)), 0)",
    };
    let holder = "UPDATE kw_journal SET holder = 'a replica that comes in, two'";
    let _stopped = beside.session(&[lock, holder]).await;
    let since = Instant::now();
    let comes = async {
        loop {
            match Journal::open_at(&beside.place(), sharing("three")).await {
                Ok(journal) => return journal,
                Err(OpenError::Away { .. }) => tokio::time::sleep(Duration::from_millis(100)).await,
                Err(error) => panic!("{error}"),
            }
        }
    };
    let three = tokio::select! {
        three = tokio::time::timeout(PATIENCE, comes) => three.unwrap(),
        () = beside.asks_with_bytes() => panic!("it came in too late"),
    };
    assert!(since.elapsed() > Duration::from_secs(4), "nobody was in its way: nothing is tried here");
    three.append_batch(of(SOURCE, 0, vec![present(&job(1), 1)])).await.unwrap();
}

pub async fn only_so_many_replicas_come_in() {
    let beside = SharedJournal::new();
    let mut replicas = Vec::new();
    for number in 0..16 {
        replicas.push(replica(&beside.place(), &format!("replica-{number}")).await);
    }
    let error = Journal::open_at(&beside.place(), sharing("more")).await.err().unwrap();
    assert!(matches!(error, OpenError::Shared { .. }) && error.to_string().contains("fewer"), "{error}");
    replicas.pop().unwrap().close().await.unwrap();
    replica(&beside.place(), "more").await;
}

pub async fn only_who_leads_writes_what_plugins_left() {
    let desk = TestJournal::shared("one").await;
    let (one, two) = (&desk.journal, replica(&desk.place, "two").await);
    one.append_batch(of(SOURCE, 0, vec![present(&job(1), 1)])).await.unwrap();
    let not_mine = |told: Result<(), JournalError>| match told {
        Err(JournalError::Unavailable(text)) => assert!(text.contains("another replica"), "{text}"),
        other => panic!("{other:?}"),
    };
    not_mine(one.save("p", progress(1)).await);
    not_mine(one.save_notes("p", Vec::new(), NoteDurability::ProcessCrash).await);
    one.set_leadership(true).await.unwrap();
    one.save("p", progress(1)).await.unwrap();
    not_mine(two.save("p", progress(0)).await);
    two.set_leadership(true).await.unwrap();
    not_mine(one.save("p", progress(0)).await);
    not_mine(one.mark_dropped("p", &[1], "me", "why").await);
    assert_eq!(two.plugin_progress("p").await.unwrap().unwrap().cursor, 1);
    // The process may still witness, even in the same append with a refused save.
    let (append, save) =
        tokio::join!(one.append_batch(of(SOURCE, 0, vec![present(&job(1), 2)])), one.save("p", progress(2)));
    assert_eq!(append.unwrap().newest, 2);
    not_mine(save);
    // The end of an earlier term ends nobody else's.
    one.set_leadership(false).await.unwrap();
    two.save("p", progress(2)).await.unwrap();
    let leads = |replicas: Vec<kubewitness_journal::JournalReplica>| -> Vec<bool> {
        replicas.into_iter().map(|replica| replica.dispatches).collect()
    };
    assert_eq!(leads(one.list_replicas().await.unwrap()), [false, true]);
    two.set_leadership(false).await.unwrap();
    not_mine(two.save("p", progress(2)).await);
    assert_eq!(leads(one.list_replicas().await.unwrap()), [false, false]);
    desk.assert_sound().await;
}

pub async fn a_shared_text_is_changed_only_by_who_knows_the_newest() {
    let desk = TestJournal::shared("one").await;
    let (one, two) = (&desk.journal, replica(&desk.place, "two").await);
    let texts = async || (one.shared_text("ends").await.unwrap(), two.shared_text("ends").await.unwrap());
    assert_eq!(texts().await, (String::new(), String::new()));
    assert!(one.change_shared_text("ends", "", "a").await.unwrap());
    assert!(!two.change_shared_text("ends", "", "b").await.unwrap(), "it is no longer empty");
    assert_eq!(texts().await, ("a".into(), "a".into()));
    let long = "b".repeat(500_000);
    assert!(two.change_shared_text("ends", "a", &long).await.unwrap());
    assert_eq!(one.shared_text("ends").await.unwrap(), long);
    assert_eq!(one.shared_text("other").await.unwrap(), "");
    desk.assert_sound().await;
}

pub async fn a_witness_that_lags_takes_no_checkpoint_back() {
    let desk = TestJournal::shared("one").await;
    let (one, two) = (&desk.journal, replica(&desk.place, "two").await);
    let at = |version: &str, rewinds| AppendBatch {
        checkpoint: Some(Version::new(version)),
        rewinds,
        ..of(SOURCE, 0, Vec::new())
    };
    let standing = async || one.shared_standing(SOURCE).await.unwrap().unwrap().1.unwrap().to_string();
    one.append_batch(at("100", false)).await.unwrap();
    two.append_batch(at("90", false)).await.unwrap();
    assert_eq!(standing().await, "100");
    two.append_batch(at("101", false)).await.unwrap();
    assert_eq!(standing().await, "101");
    one.append_batch(at("50", true)).await.unwrap();
    assert_eq!(standing().await, "50");
    desk.assert_sound().await;
}

pub async fn a_gap_of_what_another_witness_has_passed_is_refused_and_its_states_are_not() {
    let desk = TestJournal::shared("one").await;
    let (one, two) = (&desk.journal, replica(&desk.place, "two").await);
    let at = |version: &str| Some(Version::new(version));
    one.append_batch(AppendBatch { checkpoint: at("10"), ..of(SOURCE, 0, vec![present(&job(1), 10)]) })
        .await
        .unwrap();
    // Both read back the versions since then, and one finishes first.
    let seen = vec![present(&job(1), 15), present(&job(1), 20)];
    one.append_batch(AppendBatch { since: at("10"), checkpoint: at("20"), ..of(SOURCE, 0, seen) })
        .await
        .unwrap();
    let hole = AppendBatch { since: at("10"), ..of(SOURCE, 0, vec![gap(&job(1), "10", "20")]) };
    let result = two.append_batch(hole).await;
    assert!(matches!(result, Err(JournalError::Overtaken(_))), "{result:?}");
    let late = AppendBatch { since: at("10"), ..of(SOURCE, 0, vec![present(&job(1), 12)]) };
    assert_eq!(seqs(&two.append_batch(late).await.unwrap()), [Some(4)]);
    // From the other's checkpoint, the missing versions are a gap.
    let next = AppendBatch { since: at("20"), ..of(SOURCE, 0, vec![gap(&job(1), "20", "30")]) };
    assert_eq!(seqs(&two.append_batch(next).await.unwrap()), [Some(5)]);
    desk.assert_sound().await;
}

pub async fn a_watch_that_goes_on_is_known_to_others_while_its_witness_is_there() {
    let beside = SharedJournal::new();
    let (one, two) = (replica(&beside.place(), "one").await, replica(&beside.place(), "two").await);
    let version = Version::new;
    let elsewhere = async |journal: &Journal, before: &str| {
        loop {
            match journal.watched_elsewhere(SOURCE, 1, &version(before)).await {
                Ok(told) => return told,
                // Its session was ended, too.
                Err(JournalError::Unavailable(_)) => tokio::time::sleep(Duration::from_millis(20)).await,
                Err(error) => panic!("{error}"),
            }
        }
    };
    one.announce_watch(SOURCE, Some((1, version("99"))));
    one.announce_watch("another", Some((1, version("1"))));
    assert_eq!(elsewhere(&two, "100").await, None, "it is told with a transaction");
    one.await_earlier_writes().await.unwrap();
    assert_eq!(elsewhere(&two, "100").await.as_deref(), Some("one"));
    assert_eq!(elsewhere(&two, "99").await, None, "it began no sooner");
    assert_eq!(elsewhere(&one, "100").await, None, "it is no other's");
    assert_eq!(two.watched_elsewhere(SOURCE, 0, &version("100")).await.unwrap(), None, "of another epoch");
    // The watch is announced with the states, and a lost session does not revoke it permanently.
    two.announce_watch(SOURCE, Some((1, version("7"))));
    two.append_batch(of(SOURCE, 0, vec![present(&job(1), 8)])).await.unwrap();
    assert_eq!(elsewhere(&one, "8").await.as_deref(), Some("two"));
    beside.end_all();
    until_there(&two, of(SOURCE, 0, vec![present(&job(1), 9)])).await;
    until_there(&one, of(SOURCE, 0, vec![present(&job(1), 9)])).await;
    assert_eq!(elsewhere(&one, "8").await.as_deref(), Some("two"));
    two.announce_watch(SOURCE, None);
    assert_eq!(elsewhere(&one, "8").await.as_deref(), Some("two"), "it is told with a transaction");
    two.await_earlier_writes().await.unwrap();
    assert_eq!(elsewhere(&one, "8").await, None);
    two.announce_watch(SOURCE, Some((1, version("7"))));
    two.await_earlier_writes().await.unwrap();
    two.close().await.unwrap();
    // A server notices a lost client a moment later.
    let ended = async {
        while elsewhere(&one, "8").await.is_some() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), ended).await.expect("its session ends");
    // The new process has not announced anything yet.
    let _three = replica(&beside.place(), "three").await;
    assert_eq!(elsewhere(&one, "8").await, None);
}

pub async fn who_witnesses_an_epoch_that_is_over_is_told_where_the_journal_is() {
    let desk = TestJournal::shared("one").await;
    let (one, two) = (&desk.journal, replica(&desk.place, "two").await);
    one.append_batch(of(SOURCE, 0, vec![present(&job(1), 1)])).await.unwrap();
    two.append_batch(of(SOURCE, 0, vec![present(&job(1), 2)])).await.unwrap();
    one.append_batch(of(SOURCE, 1, Vec::new())).await.unwrap();
    let result = two.append_batch(of(SOURCE, 0, vec![present(&job(1), 3)])).await;
    assert!(matches!(result, Err(JournalError::Overtaken(_))), "{result:?}");
    assert_eq!(two.shared_standing(SOURCE).await.unwrap(), Some((1, None)));
    desk.assert_sound().await;
}

pub async fn what_one_sweeps_the_other_does_not_refer_to() {
    let desk = TestJournal::shared("one").await;
    let (one, two) = (&desk.journal, replica(&desk.place, "two").await);
    let witnessed = |number: usize, version, phase: &str| kubewitness_core::ports::WitnessedState {
        status: status(phase),
        ..present(&job(number), version)
    };
    // Both remember the status, but only states that retention removes refer to it.
    one.append_batch(of(SOURCE, 0, vec![witnessed(1, 1, "Rare")])).await.unwrap();
    two.append_batch(of(SOURCE, 0, vec![witnessed(1, 2, "Running"), witnessed(2, 3, "Running")]))
        .await
        .unwrap();
    for version in 4..60 {
        two.append_batch(of(SOURCE, 0, vec![witnessed(1, version, "Running")])).await.unwrap();
    }
    one.set_leadership(true).await.unwrap();
    one.await_earlier_writes().await.unwrap();
    let spec = RetentionSpec { count: Some(10), past_cursors: true, ..RetentionSpec::default() };
    let mut retention = SourceRetention::new(one.clone(), SOURCE).in_hand(0);
    retention.run_pass(&spec).await.unwrap();
    retention.sweep_shared_rows().await.unwrap();
    let swept = desk.ask("SELECT count(*) FROM kw_statuses").await;
    assert_eq!(swept, "1", "nothing was swept, so that nothing is tried here");
    two.append_batch(of(SOURCE, 0, vec![witnessed(2, 70, "Rare")])).await.unwrap();
    two.await_earlier_writes().await.unwrap();
    let newest = *two.newest_position().borrow();
    assert_eq!(two.read_at(&[newest]).await.unwrap()[0].status.phase, "Rare");
    // A process that does not lead removes nothing.
    let mut other = SourceRetention::new(two.clone(), SOURCE).in_hand(0);
    assert!(other.run_pass(&RetentionSpec { count: Some(2), ..spec }).await.is_err());
    desk.assert_sound().await;
}

pub async fn replicas_whose_sessions_are_ended_under_load_leave_every_state_once() {
    const VERSIONS: u64 = 60;
    let beside = SharedJournal::new();
    let (one, two) = (replica(&beside.place(), "one").await, replica(&beside.place(), "two").await);
    let writing = async |journal: &Journal, own: usize| {
        for version in 1..=VERSIONS {
            let states = vec![present(&job(1), version), present(&job(own), version)];
            until_there(journal, of(SOURCE, 0, states)).await;
        }
    };
    let ending = async {
        for _ in 0..8 {
            tokio::time::sleep(Duration::from_millis(30)).await;
            beside.end_all();
        }
    };
    tokio::join!(writing(&one, 2), writing(&two, 3), ending);
    let desk = TestJournal { folder: tempfile::tempdir().unwrap(), place: beside.place(), journal: one };
    assert_eq!(desk.verify().await.states_checked, 3 * VERSIONS);
    desk.assert_sound().await;
}

/// A process that stopped within a transaction: its session exists, but sends nothing more.
pub async fn a_replica_that_stops_in_the_middle_holds_the_others_up_for_seconds_alone() {
    let beside = SharedJournal::new();
    let one = replica(&beside.place(), "one").await;
    let desk = TestJournal { folder: tempfile::tempdir().unwrap(), place: beside.place(), journal: one };
    let one = &desk.journal;
    let (wire, place) = beside.behind_a_wire().await;
    let two = replica(&place, "two").await;
    one.append_batch(of(SOURCE, 0, vec![present(&job(1), 1)])).await.unwrap();
    // It begins, and never gets the answer that lets it continue.
    wire.deafen();
    let since = Instant::now();
    let stopped = two.append_batch(of(SOURCE, 0, vec![present(&job(1), 3)]));
    let others = async {
        let begins = async {
            while wire.lost() == 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, begins).await.expect("the server answers it");
        tokio::time::sleep(Duration::from_millis(500)).await;
        until_there(one, of(SOURCE, 0, vec![present(&job(1), 2)])).await;
    };
    tokio::pin!(others);
    tokio::select! {
        () = &mut others => {}
        // Its session was ended.
        told = stopped => {
            assert!(matches!(told, Err(JournalError::Unavailable(_))), "{told:?}");
            others.await;
        }
    }
    assert!(since.elapsed() > Duration::from_secs(5), "it held nobody up: nothing is tried here");
    assert_eq!(*one.newest_position().borrow(), 2);
    // It continues.
    wire.cut();
    until_there(&two, of(SOURCE, 0, vec![present(&job(1), 3)])).await;
    assert_eq!(desk.verify().await.states_checked, 3);
    desk.assert_sound().await;
}

/// A large answer, row by row.
const LARGE_ANSWER: &str = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200) \
                            SELECT repeat('x', 1000000) FROM n";

/// The class of the lock of slot 0 on PostgreSQL.
const FIRST_CLASS: i64 = 1_263_291_954;

/// The name of a seat's lock on MySQL and MariaDB.
fn seat_name(slot: i64) -> String {
    format!("concat('kubewitness {} ', left(sha2(database(), 256), 40))", slot + 1)
}

/// Takes the seat of a replica, and the journal's row if it writes. Returns a session that reads the first row
/// of an answer and nothing more, as a process does that is suspended there. If the answer is large, the server
/// waits to send.
async fn stopped_replica(
    beside: &SharedJournal,
    slot: i64,
    writes: bool,
    answer: &'static str,
) -> Box<dyn std::any::Any> {
    let is_postgres = StoreKind::here() == StoreKind::Postgres;
    let lock = match is_postgres {
        true => format!("SELECT pg_advisory_lock({}, hashtext(current_schema()))", FIRST_CLASS + slot),
        false => format!("SELECT get_lock({}, 5)", seat_name(slot)),
    };
    let row = format!(
        "INSERT INTO kw_replicas (slot, name, lease, since_ms, term) VALUES ({slot}, 'stopped', 'x', 0, 0)"
    );
    let mut first = vec![lock, row];
    if writes {
        first.push("START TRANSACTION".into());
        first.push("UPDATE kw_journal SET moves = moves + 1 WHERE id = 1".into());
    }
    /// One row is taken, and the stream stays.
    macro_rules! stop_after_a_row {
        ($kind:ty) => {{
            let session = Box::leak(Box::new(<$kind>::connect(&beside.address).await.unwrap()));
            for statement in first {
                sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(&mut *session).await.unwrap();
            }
            let mut rows = sqlx::raw_sql(answer).fetch(session);
            assert!(rows.next().await.unwrap().is_ok());
            Box::new(rows)
        }};
    }
    match is_postgres {
        true => stop_after_a_row!(PgConnection),
        false => stop_after_a_row!(MySqlConnection),
    }
}

/// Whether a session has the seat.
fn is_seated(beside: &SharedJournal, slot: i64) -> bool {
    let sessions = match StoreKind::here() {
        StoreKind::Postgres => format!(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND classid = {} \
             AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
            FIRST_CLASS + slot
        ),
        _ => format!("SELECT count(is_used_lock({}))", seat_name(slot)),
    };
    beside.run(&sessions).trim() == "1"
}

/// A session that stops within a writing transaction holds the others up until it is ended. A session that only
/// reads is not ended with it.
async fn wait_for_the_end_of_a_writer(beside: &SharedJournal, answer: &'static str) {
    let one = replica(&beside.place(), "one").await;
    one.append_batch(of(SOURCE, 0, vec![present(&job(1), 1)])).await.unwrap();
    let _reads_alone = stopped_replica(beside, 1, false, LARGE_ANSWER).await;
    let _writes = stopped_replica(beside, 2, true, answer).await;
    let since = Instant::now();
    until_there(&one, of(SOURCE, 0, vec![present(&job(1), 2)])).await;
    assert!(since.elapsed() > Duration::from_secs(5), "it held nobody up: nothing is tried here");
    assert_eq!(*one.newest_position().borrow(), 2);
    assert!(is_seated(beside, 1), "who reads outside of a transaction holds nobody up");
    beside.end_all();
}

/// On MySQL and MariaDB, a replica that reads for long looks like one that stopped in its answer.
pub async fn a_replica_that_reads_a_large_answer_is_not_ended_with_one_that_stops() {
    wait_for_the_end_of_a_writer(&SharedJournal::new(), "SELECT 1").await;
}

/// MySQL and MariaDB end such a session themselves, after a minute by default.
#[tokio::test]
async fn a_replica_that_stops_in_a_large_answer_holds_the_others_up_for_seconds_alone() {
    let name =
        "servers::replicas::a_replica_that_stops_in_a_large_answer_holds_the_others_up_for_seconds_alone";
    on(StoreKind::Postgres, name, async {
        wait_for_the_end_of_a_writer(&SharedJournal::new(), LARGE_ANSWER).await;
    })
    .await;
}

async fn until_there(journal: &Journal, append: AppendBatch) {
    let tried = async {
        loop {
            match journal.append_batch(append.clone()).await {
                Ok(_) => return,
                Err(JournalError::Unavailable(_)) => tokio::time::sleep(Duration::from_millis(20)).await,
                Err(error) => panic!("{error}"),
            }
        }
    };
    tokio::time::timeout(PATIENCE, tried).await.unwrap();
}
