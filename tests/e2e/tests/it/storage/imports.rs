//! An import that is killed, from the command line: each command says that the journal is not whole,
//! and the import is continued or thrown away.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_core::ports::{AppendBatch, StateWitness, WitnessedState};
use kubewitness_core::{Change, ObjectRef, StateId, Version};
use kubewitness_harness::{Scratch, command, free_port, in_scratch, kubewitness_binary, until};
use kubewitness_journal::{ExportQuery, Journal, JournalLocation, JournalOptions, export_journal};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::support::simulator;

const WITHIN: Duration = Duration::from_secs(60);
const STATES: u64 = 2_000;

/// An export of one object's story.
async fn exported(scratch: &Scratch) -> Result<String> {
    let place = JournalLocation::file(&scratch.folder("first")?.join("journal.db"));
    let journal = Journal::open_at(&place, JournalOptions::default()).await?;
    let object = Arc::new(ObjectRef {
        group: "batch".into(),
        version: "v1".into(),
        kind: "Job".into(),
        namespace: "team-a".into(),
        name: "train".into(),
        uid: "u".into(),
    });
    let states = (1..=STATES).map(|number| {
        let version = Version::new(&number.to_string());
        WitnessedState {
            id: StateId::of("jobs", 0, &object, Change::Present, &version, None),
            change: Change::Present,
            object: object.clone(),
            owner: None,
            controller: None,
            resource_version: version,
            status: Arc::default(),
            previous: None,
            observed_ms: number,
            document: format!(
                "{{\"metadata\":{{\"name\":\"train\",\"namespace\":\"team-a\",\"uid\":\"u\",\
                 \"resourceVersion\":\"{number}\"}}}}"
            )
            .into(),
            base: None,
            quotes_none_under: None,
        }
    });
    let append = AppendBatch { source: "jobs".into(), states: states.collect(), ..AppendBatch::default() };
    journal.append_batch(append).await?;
    journal.close().await?;
    let (mut out, query) = (Vec::new(), ExportQuery { documents: true, ..ExportQuery::default() });
    export_journal(&place, &query, &mut out).await?;
    Ok(String::from_utf8(out)?)
}

/// Gives it half of what it needs, and kills it once some of that is in the journal.
async fn killed(data: &Path, text: &str) -> Result<()> {
    let mut import = Command::new(kubewitness_binary()?);
    import.args(["journal", "import", "-", "--data"]).arg(data).kill_on_drop(true);
    let mut import = import.stdin(Stdio::piped()).spawn().context("the import")?;
    let mut input = import.stdin.take().context("its input")?;
    input.write_all(&text.as_bytes()[..text.len() / 2]).await?;
    input.flush().await?;
    let begun = async || {
        let report = kubewitness_journal::verify_file(&data.join("journal.db")).await;
        Ok(report.is_ok_and(|report| report.states_checked >= 512).then_some(()))
    };
    until(WITHIN, "states in the journal", begun).await?;
    import.kill().await.context("killing it")
}

async fn says(args: &[&str], code: i32, parts: &[&str]) -> Result<()> {
    let (ended, out, errors) = command(args).await?;
    ensure!(ended == Some(code), "{args:?} ended with {ended:?}: {out}{errors}");
    for part in parts {
        ensure!(out.contains(part) || errors.contains(part), "{args:?} does not say `{part}`: {out}{errors}");
    }
    Ok(())
}

#[tokio::test]
async fn reading_a_journal_that_is_not_there_names_the_flag_and_makes_nothing() {
    in_scratch("imports", async |scratch| {
        let folder = scratch.path().join("nonexistent");
        let data = folder.to_string_lossy();
        for command in ["export", "verify", "stats"] {
            let args = ["journal", command, "--data", &data];
            says(&args, 1, &[&data, "there is no journal here", "--data"]).await?;
            let (_, out, errors) = self::command(&args).await?;
            ensure!(!format!("{out}{errors}").contains("written"), "`{command}` writes nothing: {errors}");
        }
        ensure!(!folder.exists(), "the folder was made");
        Ok(())
    })
    .await;
}

/// Whether a user of another group may do anything with it.
fn is_open_to_others(path: &Path) -> Result<bool> {
    Ok(std::fs::metadata(path)?.permissions().mode() & 0o007 != 0)
}

#[tokio::test]
async fn other_users_of_the_machine_can_read_neither_a_journal_nor_an_export() {
    in_scratch("imports", async |scratch| {
        let (given, out) = (scratch.path().join("given.jsonl"), scratch.path().join("out.jsonl"));
        std::fs::write(&given, exported(scratch).await?)?;
        let data = scratch.path().join("data");
        let [from, to, folder] = [&given, &out, &data].map(|path| path.to_string_lossy().into_owned());
        says(&["journal", "import", &from, "--data", &folder], 0, &["2000 states"]).await?;
        says(&["journal", "export", "--documents", "-f", &to, "--data", &folder], 0, &["2000 states"])
            .await?;
        for made in [data.clone(), data.join("journal.db"), out] {
            ensure!(!is_open_to_others(&made)?, "{} is open to others", made.display());
        }
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn an_import_of_no_file_makes_no_folder_and_a_file_that_is_there_is_named_once() {
    in_scratch("imports", async |scratch| {
        let (given, data) = (scratch.path().join("given.jsonl"), scratch.path().join("data"));
        let [file, folder] = [&given, &data].map(|path| path.to_string_lossy().into_owned());
        says(&["journal", "import", &file, "--data", &folder], 1, &[&file]).await?;
        ensure!(!data.exists(), "the folder was made");
        std::fs::write(&given, exported(scratch).await?)?;
        says(&["journal", "import", &file, "--data", &folder], 0, &["2000 states"]).await?;
        let (_, out, errors) = command(&["journal", "export", "-f", &file, "--data", &folder]).await?;
        ensure!(errors.matches("exists already").count() == 1, "{out}{errors}");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn an_import_that_was_killed_is_told_by_every_command_and_goes_on_or_is_thrown_away() {
    in_scratch("imports", async |scratch| {
        let text = exported(scratch).await?;
        let file = scratch.path().join("export.jsonl");
        std::fs::write(&file, &text)?;
        let (data, config) = (scratch.folder("data")?, scratch.folder("config")?);
        let [file, folder, config] = [&file, &data, &config].map(|path| path.to_string_lossy().into_owned());
        killed(&data, &text).await?;

        let what_to_do = ["has not come to its end", "--continue", "--discard"];
        says(&["journal", "verify", "--data", &folder], 3, &what_to_do).await?;
        says(&["journal", "verify", "--data", &folder], 3, &["unfinished"]).await?;
        says(&["journal", "stats", "--data", &folder], 0, &what_to_do).await?;
        says(&["journal", "export", "--data", &folder], 1, &what_to_do).await?;
        let simulator = simulator(scratch).await?;
        let (cluster, port) = (simulator.kubeconfig().to_string_lossy().into_owned(), free_port()?);
        let (run, listen) =
            (["run", "--kubeconfig", &cluster, "--config", &config], format!("127.0.0.1:{port}"));
        let run = [&run[..], &["--data", &folder, "--listen", &listen]].concat();
        says(&run, 1, &what_to_do).await?;
        says(&["journal", "import", &file, "--data", &folder], 1, &what_to_do).await?;
        says(&["journal", "import", &file, "--discard", "--data", &folder], 2, &[]).await?;
        says(&["journal", "import", "--data", &folder], 2, &[]).await?;

        says(&["journal", "import", &file, "--continue", "--data", &folder], 0, &["2000 states"]).await?;
        says(&["journal", "verify", "--data", &folder], 0, &["2000 states checked"]).await?;
        says(&["journal", "import", "--discard", "--data", &folder], 1, &["nothing to throw away"]).await?;

        let other = scratch.folder("other")?;
        killed(&other, &text).await?;
        let folder = other.to_string_lossy().into_owned();
        says(&["journal", "import", "--discard", "--data", &folder], 0, &["is discarded"]).await?;
        says(&["journal", "import", &file, "--data", &folder], 0, &["2000 states"]).await?;
        says(&["journal", "verify", "--data", &folder], 0, &[]).await
    })
    .await;
}
