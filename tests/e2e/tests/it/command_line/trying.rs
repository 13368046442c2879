//! `plugin run` and `plugin test` of a plugin that is called on a schedule and writes e-mail.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use kubewitness_harness::{command, in_scratch, plugins_folder};
use serde_json::Value;

use crate::support::write;

const MANIFEST: &str = "apiVersion: kubewitness.dev/v1alpha1
kind: Plugin
metadata: {name: mailer}
spec:
  module: {file: mailer.wasm}
  subscribe: [{source: jobs, mode: every}]
  grants: {mail: [{name: people, server: relay}]}
  tick: {every: 1h}
  config:
    messages: [{server: people, to: [ada@example.com, nobody@example.com]}]
";

const STATES: &str = "tick: next
---
{apiVersion: batch/v1, kind: Job, metadata: {name: one, namespace: team, uid: a1}}
---
tick: 2026-01-02T08:00:00Z
---
{apiVersion: batch/v1, kind: Job, metadata: {name: two, namespace: team, uid: a2}}
";

/// The first message is refused for one of its recipients.
const ANSWERS: &str = "- refused: [{recipient: nobody@example.com, permanent: true, reason: no such user}]\n";

fn folder(scratch: &Path) -> Result<PathBuf> {
    let folder = scratch.join("mailer");
    std::fs::create_dir_all(folder.join("tests"))?;
    std::fs::copy(plugins_folder()?.join("mailer.wasm"), folder.join("mailer.wasm"))?;
    write(&folder, "plugin.yaml", MANIFEST)?;
    write(&folder, "tests/digest.yaml", STATES)?;
    write(&folder, "tests/digest.answers.yaml", ANSWERS)?;
    Ok(folder)
}

async fn runs(line: &[&str], code: i32) -> Result<String> {
    let (ended, stdout, stderr) = command(&[&["plugin"], line].concat()).await?;
    ensure!(ended == Some(code), "{line:?} ended with {ended:?}: {stdout}{stderr}");
    Ok(stdout + &stderr)
}

#[tokio::test]
async fn ticks_and_e_mails_of_a_trial_are_shown_written_to_golden_files_and_compared() {
    in_scratch("trying", async |scratch| {
        let there = folder(scratch.path())?;
        let (dir, file) = (there.to_string_lossy(), there.join("tests/digest.yaml"));
        let told = runs(&["test", &dir], 3).await?;
        ensure!(told.contains("`kubewitness plugin test --update` writes it"), "{told}");
        runs(&["test", &dir, "--update"], 0).await?;
        let told = runs(&["test", &dir], 0).await?;
        ensure!(told.contains("1 of 1 tests passed"), "{told}");

        let expected: Value =
            serde_json::from_str(&std::fs::read_to_string(there.join("tests/digest.expected.json"))?)?;
        let ticks: Vec<_> = (0..4).map(|step| expected[step]["tick"].as_str()).collect();
        let due = [Some("2026-01-01T01:00:00.000Z"), None, Some("2026-01-02T08:00:00.000Z"), None];
        ensure!(ticks == due, "{expected}");
        let mail = |step: usize| &expected[step]["effects"][0];
        ensure!(
            mail(0)["call"] == "mail.send"
                && mail(0)["to"] == "people"
                && mail(0)["recipients"][0] == "ada@example.com",
            "{expected}"
        );
        ensure!(
            mail(0)["refusedFor"][0] == "nobody@example.com" && mail(2)["refusedFor"].is_null(),
            "{expected}"
        );
        ensure!(mail(1)["subject"] == "one" && mail(3)["subject"] == "two", "{expected}");
        ensure!(expected[0]["verdict"] == "done" && expected[1]["object"] == "Job team/one", "{expected}");

        let told = runs(&["run", &dir, "-f", &file.to_string_lossy(), "--tick"], 0).await?;
        for part in [
            "tick of 2026-01-01T01:00:00.000Z\n  mail.send",
            "2 states were handed over, and 3 ticks were made. Nothing was sent",
            "tick of 2026-01-02T09:00:00.000Z",
        ] {
            ensure!(told.contains(part), "{part}: {told}");
        }
        let told = runs(&["run", &dir, "--tick"], 0).await?;
        ensure!(told.contains("0 states were handed over, and 1 tick was made"), "{told}");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_tick_that_the_schedule_does_not_have_is_refused_with_what_to_write() {
    in_scratch("trying-wrong", async |scratch| {
        let there = folder(scratch.path())?;
        let dir = there.to_string_lossy();
        let (code, _, told) = command(&["plugin", "run", &dir]).await?;
        ensure!(code == Some(2) && told.contains("--file"), "{code:?}: {told}");
        write(&there, "tests/digest.yaml", "tick: 2026-01-02T08:10:00Z\n")?;
        let told = runs(&["test", &dir], 1).await?;
        ensure!(told.contains("`every: 1h` has no tick at 2026-01-02T08:10:00.000Z"), "{told}");
        write(&there, "plugin.yaml", &MANIFEST.replace("  tick: {every: 1h}\n", ""))?;
        let told = runs(&["run", &dir, "--tick"], 1).await?;
        ensure!(told.contains("add `spec.tick` to the manifest"), "{told}");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_bench_tells_what_a_state_costs_beside_the_plugins_that_come_with_the_host() {
    in_scratch("benching", async |scratch| {
        let there = folder(scratch.path())?;
        let (dir, file) = (there.to_string_lossy(), there.join("tests/digest.yaml"));
        let bench = ["bench", &*dir, "-f", &file.to_string_lossy(), "--states", "40", "--batch", "8"];
        let told = runs(&bench, 0).await?;
        for part in [
            "mail 1.00",
            "time of the shipped persistence, ",
            "time of the shipped notification, ",
            "time of the shipped audit, ",
            "Up to 8 states a call",
        ] {
            ensure!(told.contains(part), "{part}: {told}");
        }
        let told = runs(&[&bench[..], &["-o", "json"]].concat(), 0).await?;
        let told: Value = serde_json::from_str(&told)?;
        let (own, peers) = (&told["plugins"][0], told["ratios"].as_array().map_or(0, Vec::len));
        ensure!(
            own["name"] == "mailer" && own["states"] == 40 && own["notDone"] == 0 && peers == 3,
            "{told}"
        );
        for figure in ["micros", "guestMicros", "memory"] {
            ensure!(own[figure].as_f64().is_some_and(|figure| figure > 0.0), "{figure}: {told}");
        }
        for ratio in ["time", "memory"] {
            ensure!(told["ratios"][0][ratio].as_f64().is_some_and(|ratio| ratio > 0.0), "{ratio}: {told}");
        }
        let (code, _, told) = command(&[&["plugin"], &bench[..5], &["10001"]].concat()).await?;
        ensure!(code == Some(2) && told.contains("a whole number from 1 to 10000"), "{code:?}: {told}");
        Ok(())
    })
    .await;
}
