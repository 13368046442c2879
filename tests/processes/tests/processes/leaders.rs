//! Two that would write to one journal: one that was taken for dead, and two that live.

use anyhow::{Context, Result, bail, ensure};
use kubewitness_harness::{
    DatabaseServer, Dice, Kubewitness, ProcessEnd, Scratch, SqlService, in_scratch, seed, shared_server,
    until,
};

use crate::lab::{ProcessLab, WITHIN};

/// Times that a second process wants what the first one has.
const CHALLENGES: u32 = 4;
/// The words of the one that lost, and those of one that never had it.
const OVERTAKEN: &str = "writes to this journal now";
const REFUSED: &str = "is in use";

/// The name of the database that an address ends with.
fn database(address: &str) -> &str {
    address.rsplit('/').next().unwrap_or_default()
}

/// Ends the session that has the journal's lock, as an operator does who takes its process for dead.
fn end_the_writers_session(server: &DatabaseServer, journal: &str) -> Result<()> {
    let name = database(journal);
    match server.service() {
        SqlService::Postgres => {
            let text = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted \
                        AND classid = 1263291953 \
                        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
            server.run(Some(name), text).map(drop)
        }
        SqlService::MariaDb | SqlService::MySql => {
            let text = "SELECT is_used_lock(concat('kubewitness ', left(sha2(database(), 256), 40)))";
            let session = server.run(Some(name), text)?;
            // Empty, or `NULL` as its text, where nobody has the lock.
            session.trim().parse::<u64>().map_or(Ok(()), |id| server.end_session(&id.to_string()))
        }
    }
}

/// The statement that a refused process tells to end a session that is lost.
fn told_statement(said: &str) -> Result<&str> {
    let (_, rest) = said.split_once("end its session with ").context("it doesn't say how")?;
    rest.lines().next().context("it doesn't say how")
}

async fn ends_and_says(run: &mut Kubewitness, what: &str) -> Result<String> {
    let ended = run.process().wait(WITHIN).await?;
    let said = run.process().stderr();
    ensure!(ended == ProcessEnd::Code(1), "it ended with {ended:?}: {said}");
    ensure!(said.contains(what), "it doesn't say `{what}`: {said}");
    Ok(said)
}

/// Row 28 of a journal that several machines reach: what holds it there is a lock of the server,
/// which others can take from a process that stands still.
async fn stopped_past_its_lock(scratch: &Scratch, server: &DatabaseServer) -> Result<()> {
    let (mut lab, journal) = ProcessLab::on(scratch, server).await?;
    lab.make(3).await?;
    let mut first = lab.start("first")?;
    first.answers().await?;
    lab.levels(&mut first).await?;
    let mut platform = lab.platform().await?;
    let before = platform.count().await?;
    platform.note_effects().await?;
    first.process().signal("STOP").await?;
    // What it is about to see when it goes on.
    lab.make(20).await?;
    let mut refused = lab.start_beside("refused")?;
    let said = ends_and_says(&mut refused, REFUSED).await?;
    server.run(Some(database(&journal)), told_statement(&said)?)?;
    let mut second = lab.start_beside("second")?;
    second.answers().await?;
    lab.levels(&mut second).await?;

    first.process().signal("CONT").await?;
    ends_and_says(&mut first, OVERTAKEN).await?;
    lab.make(5).await?;
    lab.levels(&mut second).await?;
    second.stop().await?;
    lab.platform().await?.one_effect_each(before).await?;
    lab.proves().await
}

/// The one of both that goes on, once the other has given way.
async fn one_gives_way(mut one: Kubewitness, mut other: Kubewitness) -> Result<Kubewitness> {
    let is_first = until(WITHIN, "one of two to give way", async || {
        Ok(match (one.process().ended()?, other.process().ended()?) {
            (Some(_), Some(_)) => bail!("both ended"),
            (None, None) => None,
            (ended, _) => Some(ended.is_none()),
        })
    });
    let is_first = is_first.await;
    let is_first = is_first.with_context(|| format!("{}{}", one.process().say(), other.process().say()))?;
    let (stays, mut goes) = if is_first { (one, other) } else { (other, one) };
    let ended = goes.process().wait(WITHIN).await?;
    let said = goes.process().stderr();
    ensure!(ended == ProcessEnd::Code(1), "it ended with {ended:?}: {said}");
    ensure!(said.contains(REFUSED) || said.contains(OVERTAKEN), "it doesn't say why: {said}");
    Ok(stays)
}

/// Row 29.
async fn two_leaders(scratch: &Scratch, server: &DatabaseServer) -> Result<()> {
    let (mut lab, journal) = ProcessLab::on(scratch, server).await?;
    lab.make(3).await?;
    // Both make the tables, and both want to be first.
    let (one, other) = (lab.start_beside("one")?, lab.start_beside("other")?);
    let mut leader = one_gives_way(one, other).await.context("two at once on an empty database")?;
    leader.answers().await?;
    lab.levels(&mut leader).await?;
    let mut platform = lab.platform().await?;
    let before = platform.count().await?;
    platform.note_effects().await?;
    let mut dice = Dice::new(seed());
    for round in 0..CHALLENGES {
        let challenger = lab.start_beside(&format!("challenger-{round}"))?;
        lab.make(10).await?;
        dice.pause(1500).await;
        end_the_writers_session(server, &journal)?;
        lab.make(10).await?;
        leader = one_gives_way(leader, challenger).await.with_context(|| format!("challenge {round}"))?;
        leader.answers().await?;
        lab.levels(&mut leader).await.with_context(|| format!("challenge {round}"))?;
    }
    leader.stop().await?;
    lab.platform().await?.one_effect_each(before).await?;
    lab.proves().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_28_stopped_while_another_took_over_in_postgres_its_append_is_refused() {
    let test = "row_28_stopped_while_another_took_over_in_postgres_its_append_is_refused";
    let Some(server) = shared_server(SqlService::Postgres, test) else { return };
    in_scratch("stopped", async |scratch| stopped_past_its_lock(scratch, server).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_28_stopped_while_another_took_over_in_mariadb_its_append_is_refused() {
    let test = "row_28_stopped_while_another_took_over_in_mariadb_its_append_is_refused";
    let Some(server) = shared_server(SqlService::MariaDb, test) else { return };
    in_scratch("stopped", async |scratch| stopped_past_its_lock(scratch, server).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_28_stopped_while_another_took_over_in_mysql_its_append_is_refused() {
    let test = "row_28_stopped_while_another_took_over_in_mysql_its_append_is_refused";
    let Some(server) = shared_server(SqlService::MySql, test) else { return };
    in_scratch("stopped", async |scratch| stopped_past_its_lock(scratch, server).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_29_of_two_leaders_in_postgres_one_epoch_wins_and_nothing_is_done_twice() {
    let test = "row_29_of_two_leaders_in_postgres_one_epoch_wins_and_nothing_is_done_twice";
    let Some(server) = shared_server(SqlService::Postgres, test) else { return };
    in_scratch("leaders", async |scratch| two_leaders(scratch, server).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_29_of_two_leaders_in_mariadb_one_epoch_wins_and_nothing_is_done_twice() {
    let test = "row_29_of_two_leaders_in_mariadb_one_epoch_wins_and_nothing_is_done_twice";
    let Some(server) = shared_server(SqlService::MariaDb, test) else { return };
    in_scratch("leaders", async |scratch| two_leaders(scratch, server).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_29_of_two_leaders_in_mysql_one_epoch_wins_and_nothing_is_done_twice() {
    let test = "row_29_of_two_leaders_in_mysql_one_epoch_wins_and_nothing_is_done_twice";
    let Some(server) = shared_server(SqlService::MySql, test) else { return };
    in_scratch("leaders", async |scratch| two_leaders(scratch, server).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_29_of_two_that_start_at_once_on_one_folder_one_is_refused() {
    in_scratch("leaders", async |scratch| {
        let mut lab = ProcessLab::new(scratch, scratch.folder("data")?).await?;
        lab.make(5).await?;
        let mut leader = one_gives_way(lab.start("one")?, lab.start("other")?).await?;
        leader.answers().await?;
        lab.levels(&mut leader).await?;
        lab.make(5).await?;
        lab.levels(&mut leader).await?;
        leader.stop().await?;
        lab.proves().await
    })
    .await;
}
