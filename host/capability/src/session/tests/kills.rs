//! Kills a process at any moment of its calls: while a request is noted, sent or answered, or while its
//! verdict is saved. A receiver counts the requests, and the remaining notes in the journal show which were
//! in progress.

use std::collections::BTreeSet;

use futures::StreamExt;
use kubewitness_core::intents::requests::MAY_HAVE_BEEN_SENT;
use kubewitness_harness::{Dice, kills, seed};

use super::requests::{CountingReceiver, opened, post, sender};
use super::*;

/// Each takes milliseconds. A kill of a real process takes a second: `posts.rs` of the end-to-end tests has
/// some.
const KILLS: u64 = 300;
const CALLS: usize = 4;
/// The requests that each state makes to each of two destinations.
const REQUESTS: usize = 2;
/// The most states of one life.
const STATES: usize = 12;

/// A slow journal, so that a kill may come before or after each of its writes.
#[derive(Default)]
struct SlowPaper {
    paper: Arc<KvPaper>,
    /// A fault for the test: answers are never stored.
    forgets_answers: bool,
}

#[async_trait]
impl NoteStore for SlowPaper {
    async fn save_notes(
        &self,
        plugin: &str,
        notes: Vec<KvWrite>,
        kept: NoteDurability,
    ) -> Result<(), JournalError> {
        tokio::task::yield_now().await;
        self.paper.save_notes(plugin, notes, kept).await?;
        tokio::task::yield_now().await;
        Ok(())
    }

    fn note_later(&self, plugin: &str, notes: Vec<KvWrite>) {
        if !self.forgets_answers {
            self.paper.note_later(plugin, notes);
        }
    }
}

#[derive(Debug, Default)]
struct KillFigures {
    kills: u64,
    in_the_air: usize,
    most_in_the_air: usize,
    parked: BTreeSet<Seq>,
    done: BTreeSet<Seq>,
}

fn path(to: &str, seq: Seq, nth: usize) -> String {
    format!("{to}-{seq}-{nth}")
}

/// Returns whether the state is parked.
async fn call(plugin: &Arc<dyn GrantProvider>, paper: &KvPaper, seq: Seq) -> bool {
    let mut session = plugin.open(&batch(&[seq])).await.unwrap();
    for to in ["people", "bank"] {
        for nth in 0..REQUESTS {
            match session.http_send(to, post(&path(to, seq, nth), None)).await {
                Ok(_) => {}
                Err(GrantError::Denied(why)) if to == "bank" => {
                    assert!(why.starts_with(MAY_HAVE_BEEN_SENT), "{why}");
                }
                Err(error) => panic!("{error:?}"),
            }
        }
    }
    let is_parked = !session.in_doubt().is_empty();
    let writes = match is_parked {
        true => session.writes_if_undone(&[seq]),
        false => session.commit_effects(&[seq]).await.unwrap().take(),
    };
    tokio::task::yield_now().await;
    paper.keep(&writes);
    is_parked
}

/// Requests that were noted, but whose answers were not.
fn in_the_air(paper: &KvPaper) -> usize {
    let is_sent = |note: &&Vec<u8>| String::from_utf8_lossy(note).contains(r#""fate":"sent""#);
    paper.kept.lock().unwrap().values().filter(is_sent).count()
}

/// Runs until everything is done, or until the kill.
async fn live(
    plugin: &Arc<dyn GrantProvider>,
    paper: &KvPaper,
    figures: &Mutex<KillFigures>,
    kill: impl Future<Output = ()>,
) {
    let states: Vec<Seq> = {
        let figures = figures.lock().unwrap();
        let is_open = |seq: &Seq| !figures.done.contains(seq) && !figures.parked.contains(seq);
        (1..).filter(is_open).take(STATES).collect()
    };
    let calls = futures::stream::iter(states).for_each_concurrent(CALLS, async |seq| {
        let is_parked = call(plugin, paper, seq).await;
        let mut figures = figures.lock().unwrap();
        match is_parked {
            true => figures.parked.insert(seq),
            false => figures.done.insert(seq),
        };
    });
    tokio::select! {
        () = calls => {}
        () = kill => {
            let mut figures = figures.lock().unwrap();
            let in_the_air = in_the_air(paper);
            figures.kills += 1;
            figures.in_the_air += in_the_air;
            figures.most_in_the_air = figures.most_in_the_air.max(in_the_air);
        }
    }
}

async fn lives(forgets_answers: bool, kills: u64) -> (KillFigures, CountingReceiver) {
    let (world, receiver, mut dice) = (SessionWorld::new(), CountingReceiver::default(), Dice::new(seed()));
    let capabilities = opened(&world, &receiver.listen().await).await;
    let (figures, paper) = (Mutex::new(KillFigures::default()), world.paper.clone());
    let born = async || {
        let notes = Arc::new(SlowPaper { paper: paper.clone(), forgets_answers });
        // Writes that were deferred are lost.
        let backing = PluginServices { kv: paper.read(), notes, ..backing(0) };
        capabilities.grant_plugin("p", &sender(), backing).await.unwrap()
    };
    while figures.lock().unwrap().kills < kills {
        let plugin = born().await;
        let (pause, turns) = (Duration::from_millis(dice.below(8)), dice.below(64));
        let kill = async {
            tokio::time::sleep(pause).await;
            for _ in 0..turns {
                tokio::task::yield_now().await;
            }
        };
        live(&plugin, &paper, &figures, kill).await;
    }
    let last = born().await;
    live(&last, &paper, &figures, std::future::pending()).await;
    (figures.into_inner().unwrap(), receiver)
}

#[tokio::test]
async fn at_hundreds_of_kills_what_comes_twice_is_no_more_than_what_was_in_the_air() {
    let (figures, receiver) = lives(false, kills(KILLS)).await;
    let count = |to: &str, seq: Seq, nth: usize| receiver.count(&format!("/{}", path(to, seq, nth)));
    let (mut posts, mut twice) = (0, 0);
    for seq in figures.done.union(&figures.parked) {
        for nth in 0..REQUESTS {
            let (people, bank) = (count("people", *seq, nth), count("bank", *seq, nth));
            assert!(people > 0, "state {seq} lost a request: {figures:?}");
            assert!(bank <= 1 && (bank == 1 || figures.parked.contains(seq)), "state {seq}: {bank}");
            (posts, twice) = (posts + people, twice + people - 1);
        }
    }
    let KillFigures { kills, in_the_air, most_in_the_air, parked, .. } = &figures;
    println!(
        "{kills} kills: of {posts} posts {twice} came twice, {in_the_air} were in the air, {most_in_the_air} at most at \
         a time; {} states were parked",
        parked.len()
    );
    assert!(*most_in_the_air <= CALLS, "each call has one request in the air");
    assert!(twice > 0 && twice <= *in_the_air, "{twice} of {in_the_air}");
    assert!(!parked.is_empty() && parked.len() <= *in_the_air);
}

#[tokio::test]
async fn a_journal_that_keeps_no_answer_is_found_by_the_requests_in_the_air() {
    let (figures, _) = lives(true, 30).await;
    assert!(figures.most_in_the_air > CALLS, "{figures:?}");
}
