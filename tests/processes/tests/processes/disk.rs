//! Disks that are full, that can't sync, and that give back other bytes than they were given.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use kubewitness_harness::{Kubewitness, Platform, ProcessEnd, SmallDisk, compare, in_scratch, skip, until};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection};

use crate::lab::{ProcessLab, WITHIN};

/// The page size of SQLite, unless somebody chooses another.
const PAGE: usize = 4096;

/// Waits until it says so of itself.
async fn ready(run: &mut Kubewitness, wanted: bool) -> Result<String> {
    let what = if wanted { "it to be ready" } else { "it not to be ready" };
    let answer = until(WITHIN, what, async || {
        let (code, text) = run.get("/readyz").await?;
        Ok((wanted == (code == 200)).then_some(text))
    });
    let answer = answer.await;
    answer.with_context(|| run.process().say())
}

#[tokio::test]
async fn row_31_a_full_disk_stops_reading_and_goes_on_by_itself_when_there_is_room() {
    in_scratch("full", async |scratch| {
        let data = scratch.folder("data")?;
        let Some(small) = SmallDisk::mount(&data, "24m") else {
            skip("row_31", "a small file system can only be mounted by root");
            return Ok(());
        };
        let mut lab = ProcessLab::new(scratch, data).await?;
        lab.make(3).await?;
        let mut run = lab.start("run")?;
        run.answers().await?;
        lab.levels(&mut run).await?;
        for _ in 0..2 {
            small.fill()?;
            lab.make(60).await?;
            let said = ready(&mut run, false).await?;
            ensure!(said.contains("the disk is full"), "it says why: {said}");
            let (alive, _) = run.get("/healthz").await?;
            ensure!(alive == 200, "it lives: {alive}");
            small.make_room()?;
            ready(&mut run, true).await?;
            lab.levels(&mut run).await?;
        }
        run.stop().await?;
        lab.proves().await
    })
    .await;
}

/// A library that stands between the program and its system, or `None` where there is no C compiler.
pub fn preloaded(folder: &Path, name: &str) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/processes").join(format!("{name}.c"));
    let library = folder.join(format!("{name}.so"));
    let mut compile = Command::new("cc");
    compile.args(["-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]).arg(&library).arg(source);
    compile.arg("-ldl").status().is_ok_and(|status| status.success()).then_some(library)
}

#[tokio::test]
async fn row_32_a_failed_sync_ends_it_and_is_never_tried_again_on_that_handle() {
    in_scratch("sync", async |scratch| {
        let Some(library) = preloaded(scratch.path(), "faulty_sync") else {
            skip("row_32", "there is no C compiler");
            return Ok(());
        };
        let mut lab = ProcessLab::new(scratch, scratch.folder("data")?).await?;
        let flag = scratch.path().join("fails");
        lab.options.env = vec![
            ("LD_PRELOAD".to_owned(), library.to_string_lossy().into_owned()),
            ("FAULTY_SYNC".to_owned(), flag.to_string_lossy().into_owned()),
            ("FAULTY_PATH".to_owned(), "/journal.db".to_owned()),
        ];
        lab.make(3).await?;
        let mut run = lab.start("run")?;
        run.answers().await?;
        lab.levels(&mut run).await?;
        std::fs::write(&flag, "")?;
        lab.make(5).await?;
        let ended = run.process().wait(WITHIN).await?;
        let said = run.process().stderr();
        ensure!(ended == ProcessEnd::Code(1), "it ended with {ended:?}: {said}");
        ensure!(said.contains("check the disk and start again"), "it says what to do: {said}");
        let failed = std::fs::read_to_string(flag.with_extension("log")).context("a sync failed")?;
        ensure!(failed.lines().count() == 1, "it was tried again:\n{failed}");

        std::fs::remove_file(&flag)?;
        let mut again = lab.start("again")?;
        again.answers().await?;
        lab.levels(&mut again).await?;
        again.stop().await?;
        lab.proves().await
    })
    .await;
}

/// Moves the log beside the journal into the journal.
async fn into_one_file(path: &Path) -> Result<()> {
    let mut connection = SqliteConnectOptions::new().filename(path).connect().await?;
    sqlx::raw_sql("PRAGMA wal_checkpoint(TRUNCATE)").execute(&mut connection).await?;
    Ok(connection.close().await?)
}

#[tokio::test]
async fn row_34_a_journal_with_torn_pages_is_refused_at_the_start_and_left_as_it_is() {
    in_scratch("torn", async |scratch| {
        let mut lab = ProcessLab::new(scratch, scratch.folder("data")?).await?;
        lab.make(120).await?;
        let mut run = lab.start("run")?;
        run.answers().await?;
        lab.levels(&mut run).await?;
        run.stop().await?;
        lab.proves().await?;
        let path = lab.data().join("journal.db");
        into_one_file(&path).await?;
        let whole = std::fs::read(&path)?;
        ensure!(whole.len() > 8 * PAGE, "a journal of some pages: {}", whole.len());
        let torn = torn(&whole, PAGE);
        std::fs::write(&path, &torn)?;
        let (code, said) = lab.verify().await?;
        ensure!(code != Some(0), "verify found nothing: {said}");
        let mut refused = lab.start("refused")?;
        let ended = refused.process().wait(WITHIN).await?;
        let said = refused.process().stderr();
        ensure!(ended == ProcessEnd::Code(1), "it ended with {ended:?}: {said}");
        if !said.contains("journal.db") || !said.contains("journal verify") {
            bail!("it doesn't say of which file, and what to do: {said}");
        }
        ensure!(std::fs::read(&path)? == torn, "the file was touched");
        // The copy that a person puts back is gone on from.
        std::fs::write(&path, whole)?;
        let mut again = lab.start("again")?;
        again.answers().await?;
        lab.make(5).await?;
        lab.levels(&mut again).await?;
        again.stop().await?;
        lab.proves().await
    })
    .await;
}

/// Half of each page but the first is old, as a power cut in the middle of a write leaves it.
fn torn(whole: &[u8], page: usize) -> Vec<u8> {
    let mut torn = whole.to_vec();
    for page in torn.chunks_mut(page).skip(1) {
        let half = page.len() / 2;
        page[..half].fill(0xA5);
    }
    torn
}

/// Everything goes into the one file, also while the program has it open.
async fn settled(path: &Path) -> Result<Vec<u8>> {
    let log = path.with_extension("db-wal");
    until(WITHIN, "the journal's log to be empty", async || {
        into_one_file(path).await?;
        let is_empty = std::fs::metadata(&log).map_or(0, |log| log.len()) == 0;
        let whole = std::fs::read(path)?;
        Ok(is_empty.then_some(whole))
    })
    .await
}

#[tokio::test]
async fn row_34_pages_that_are_torn_while_it_runs_are_never_handed_out_and_end_it() {
    in_scratch("torn", async |scratch| {
        let mut lab = ProcessLab::new(scratch, scratch.folder("data")?).await?;
        let config = scratch.folder("config")?;
        let example = lab.options.config.replace(config.clone()).context("the lab's configuration")?;
        let host = std::fs::read_to_string(example.join("host.yaml"))?;
        let second = "\n        - {name: second, sqlite: {path: second.db}}\n";
        std::fs::write(config.join("host.yaml"), format!("{}{second}", host.trim_end()))?;
        let plugin = std::fs::read_to_string(example.join("persistence.yaml"))?;
        std::fs::write(config.join("persistence.yaml"), &plugin)?;
        lab.make(300).await?;
        let mut run = lab.start("run")?;
        run.answers().await?;
        lab.levels(&mut run).await?;
        run.stop().await?;

        // One that has just started has nothing of the past in memory.
        let mut run = lab.start("torn")?;
        run.answers().await?;
        lab.levels(&mut run).await?;
        let path = lab.data().join("journal.db");
        let whole = settled(&path).await?;
        ensure!(whole.len() > 16 * PAGE, "a journal of some pages: {}", whole.len());
        let file = std::fs::File::options().write(true).open(&path)?;
        std::os::unix::fs::FileExt::write_all_at(&file, &torn(&whole, PAGE), 0)?;
        // Whoever comes now wants all of the past.
        let newcomer = plugin.replace("name: persistence", "name: second");
        let newcomer = newcomer.replace("database: platform", "database: second");
        std::fs::write(config.join("second.yaml"), newcomer)?;
        let ended = run.process().wait(WITHIN).await?;
        let said = run.process().stderr();
        ensure!(ended == ProcessEnd::Code(1), "it ended with {ended:?}: {said}");
        ensure!(said.contains("journal verify") && said.contains("a page of the file"), "what to do: {said}");
        let (code, said) = lab.verify().await?;
        ensure!(code != Some(0), "verify found nothing: {said}");

        // The copy that a person puts back is gone on from, and the newcomer gets it all.
        for beside in ["journal.db-wal", "journal.db-shm"] {
            std::fs::remove_file(lab.data().join(beside)).ok();
        }
        std::fs::write(&path, whole)?;
        let mut again = lab.start("again")?;
        again.answers().await?;
        lab.make(5).await?;
        lab.levels(&mut again).await?;
        again.stop().await?;
        lab.proves().await?;
        let truth = lab.simulator.truth("batch", "jobs").await?;
        let mut second = Platform::open(&lab.data().join("second.db")).await?;
        compare(&truth, &second.history("jobs").await?).context("what the newcomer was handed")
    })
    .await;
}
