//! A wrong thing in the place of a file, or one beside the manifests: neither stops anything, and neither is
//! passed over in silence.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_core::views::StatusView;
use kubewitness_harness::{
    Kubewitness, RunOptions, Scratch, Simulator, command, in_scratch, in_time, until, until_ok,
};

use crate::support::{
    AUDIT, create_job, example_copy, plugin_manifest, proofs, same_story, simulator, write,
};

const WITHIN: Duration = Duration::from_secs(120);

struct FileLab {
    simulator: Simulator,
    options: RunOptions,
    config: PathBuf,
}

impl FileLab {
    async fn new(scratch: &Scratch) -> Result<Self> {
        let simulator = simulator(scratch).await?;
        let config = example_copy(scratch)?;
        let options = simulator.run_options(scratch, config.clone())?;
        Ok(Self { simulator, options, config })
    }

    fn start(&self, scratch: &Scratch) -> Result<Kubewitness> {
        Kubewitness::start("run", &self.options, scratch.path())
    }

    fn change_host(&self, from: &str, to: &str) -> Result<()> {
        let host = std::fs::read_to_string(self.config.join("host.yaml"))?;
        ensure!(host.contains(from), "the example has changed: {host}");
        write(&self.config, "host.yaml", &host.replace(from, to))
    }
}

fn pipe(path: &Path) -> Result<()> {
    let made = Command::new("mkfifo").arg(path).status().context("starting mkfifo")?;
    ensure!(made.success(), "mkfifo {} failed", path.display());
    Ok(())
}

fn state<'a>(status: &'a StatusView, name: &str) -> Option<&'a str> {
    status.plugins.iter().find(|plugin| plugin.name == name).map(|plugin| plugin.state.as_str())
}

fn tells(status: &StatusView, parts: &[&str]) -> bool {
    status.problems.iter().any(|problem| parts.iter().all(|part| problem.contains(part)))
}

async fn ready(kubewitness: &Kubewitness) -> Result<()> {
    let (code, why) = kubewitness.get("/readyz").await?;
    ensure!(code == 200, "it is not ready: {why}");
    Ok(())
}

/// Opened as any file is, each of these would be waited for until the process is killed.
#[tokio::test]
async fn what_is_no_regular_file_in_the_folder_is_refused_by_name_and_everything_else_goes_on() {
    in_scratch("files", async |scratch| {
        let lab = FileLab::new(scratch).await?;
        let mut kubewitness = lab.start(scratch)?;
        kubewitness
            .status_when(WITHIN, "the example", |status| state(status, "persistence") == Some("active"))
            .await?;
        pipe(&lab.config.join("x.yaml"))?;
        std::os::unix::fs::symlink("/dev/zero", lab.config.join("y.yaml"))?;
        std::fs::create_dir(lab.config.join("z.yaml"))?;
        let refused = |status: &StatusView| {
            tells(status, &["x.yaml", "it is a pipe"]) && tells(status, &["y.yaml", "it is a device"])
        };
        kubewitness.status_when(WITHIN, "the refusals", refused).await?;
        until_ok(WITHIN, "it to be ready", async || ready(&kubewitness).await).await?;
        let (_, metrics) = kubewitness.get("/metrics").await?;
        ensure!(metrics.contains("kubewitness_configuration_problems 2\n"), "{metrics}");
        let (_, first_page) = kubewitness.get("/").await?;
        ensure!(first_page.contains("x.yaml") && first_page.contains("it is a pipe"), "{first_page}");

        // Other files are read, and states handed over.
        write(&lab.config, "audit.yaml", &plugin_manifest("audit", AUDIT))?;
        let taken = |status: &StatusView| state(status, "audit") == Some("active") && refused(status);
        kubewitness.status_when(WITHIN, "a plugin beside them", taken).await?;
        create_job(&lab.simulator, "one").await?;
        kubewitness.status_when(WITHIN, "the job", |status| status.journal.states > 0).await?;
        kubewitness.caught_up(WITHIN).await?;
        std::fs::remove_file(lab.config.join("x.yaml"))?;
        std::fs::remove_file(lab.config.join("y.yaml"))?;
        kubewitness.status_when(WITHIN, "all to be well", |status| status.problems.is_empty()).await?;
        kubewitness.stop().await?;
        let log = kubewitness.process().stderr();
        ensure!(log.matches("it is a pipe").count() == 1, "it is told once: {log}");
        same_story(&lab.simulator, &lab.options.data).await?;
        proofs(&lab.options.data).await
    })
    .await;
}

#[tokio::test]
async fn a_start_says_which_ledger_or_secret_is_a_pipe_and_goes_on_once_it_is_a_file() {
    in_scratch("files", async |scratch| {
        let lab = FileLab::new(scratch).await?;
        let secret = scratch.path().join("url");
        let key = "      keys: [{name: seal, valueFrom: {file: SECRET}}]\n";
        lab.change_host(
            "      ledgers:",
            &format!("{}      ledgers:", key.replace("SECRET", &secret.display().to_string())),
        )?;
        pipe(&secret)?;
        let trail = scratch.folder("data/audit")?.join("trail.jsonl");
        pipe(&trail)?;
        let mut kubewitness = lab.start(scratch)?;
        let told = |status: &StatusView| {
            tells(status, &["spec.ledgers[0].path", "trail.jsonl can't be opened: it is a pipe"])
                && tells(status, &["spec.keys[0].valueFrom", "url` can't be read: it is a pipe"])
        };
        kubewitness.answers().await?;
        kubewitness.status_when(WITHIN, "both faults", told).await?;
        // Nothing that is watched depends on them.
        until_ok(WITHIN, "it to be ready all the same", async || ready(&kubewitness).await).await?;
        let works = |status: &StatusView| state(status, "persistence") == Some("active");
        kubewitness.status_when(WITHIN, "the plugin that needs neither", works).await?;

        std::fs::remove_file(&trail)?;
        std::fs::remove_file(&secret)?;
        std::fs::write(&secret, "MC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC")?;
        let well = |status: &StatusView| {
            status.problems.is_empty() && state(status, "persistence") == Some("active")
        };
        kubewitness.status_when(WITHIN, "the settings to be taken", well).await?;
        until_ok(WITHIN, "it to be ready", async || ready(&kubewitness).await).await?;
        kubewitness.stop().await
    })
    .await;
}

/// The open file would be written on, and nobody would find it.
#[tokio::test]
async fn a_ledger_that_is_taken_away_fails_its_plugin_alone_also_at_a_restart_until_it_is_back() {
    in_scratch("files", async |scratch| {
        let lab = FileLab::new(scratch).await?;
        write(&lab.config, "audit.yaml", &plugin_manifest("audit", AUDIT))?;
        let mut kubewitness = lab.start(scratch)?;
        let both = |status: &StatusView| {
            ["persistence", "audit"].iter().all(|name| state(status, name) == Some("active"))
        };
        kubewitness.status_when(WITHIN, "both plugins", both).await?;
        create_job(&lab.simulator, "one").await?;
        kubewitness.status_when(WITHIN, "the job", |status| status.journal.states > 0).await?;
        kubewitness.caught_up(WITHIN).await?;

        let trail = lab.options.data.join("audit/trail.jsonl");
        std::fs::rename(&trail, trail.with_extension("1"))?;
        create_job(&lab.simulator, "two").await?;
        let figures = |status: &StatusView, name: &str| {
            let found = status.plugins.iter().find(|plugin| plugin.name == name);
            found.map_or((0, 0), |plugin| (plugin.delivered, plugin.waiting))
        };
        let held =
            |status: &StatusView| figures(status, "audit").1 > 0 && figures(status, "persistence").1 == 0;
        let status = kubewitness.status_when(WITHIN, "the audit to wait", held).await?;
        let delivered = figures(&status, "audit").0;
        until(WITHIN, "the file in the log", async || {
            Ok(kubewitness.process().stderr().contains("trail.jsonl is gone").then_some(()))
        })
        .await?;
        kubewitness.stop().await?;

        let mut kubewitness = lab.start(scratch)?;
        let failed = |status: &StatusView| {
            let audit = status.plugins.iter().find(|plugin| plugin.name == "audit");
            let why = audit.and_then(|audit| audit.message.as_deref()).unwrap_or_default();
            status.sources.len() == 2
                && state(status, "audit") == Some("failed")
                && why.contains("trail.jsonl is gone")
                && state(status, "persistence") == Some("active")
        };
        let status = kubewitness.status_when(WITHIN, "the audit alone to fail", failed).await?;
        let (saved, waiting) = figures(&status, "audit");
        ensure!(saved == delivered && waiting > 0, "{saved} of {delivered} delivered, {waiting} waiting");
        until_ok(WITHIN, "it to be ready", async || ready(&kubewitness).await).await?;
        create_job(&lab.simulator, "three").await?;
        let more = |status: &StatusView| figures(status, "persistence").0 > delivered + 1 && failed(status);
        kubewitness.status_when(WITHIN, "a job that is witnessed meanwhile", more).await?;

        std::fs::rename(trail.with_extension("1"), &trail)?;
        let well = |status: &StatusView| both(status) && status.problems.is_empty();
        kubewitness.status_when(WITHIN, "the audit to go on", well).await?;
        kubewitness.caught_up(WITHIN).await?;
        kubewitness.stop().await?;
        same_story(&lab.simulator, &lab.options.data).await?;
        proofs(&lab.options.data).await
    })
    .await;
}

const HOST: &str = "apiVersion: kubewitness.dev/v1alpha1
kind: Host
metadata: {name: host}
spec:
  sources:
    - {name: jobs, apiVersion: batch/v1, kind: Job}
    - {name: pods, apiVersion: v1, kind: Pod}
  databases:
    - {name: platform, sqlite: {path: platform.db}}
";

const PLUGIN: &str = "apiVersion: kubewitness.dev/v1alpha1
kind: Plugin
metadata: {name: persistence}
spec:
  module: {file: persistence.wasm}
  subscribe:
    - {source: jobs, mode: every, start: beginning}
    - {source: pods, mode: every, start: beginning}
  grants: {sql: [{name: main, database: platform}]}
";

#[tokio::test]
async fn a_host_and_a_plugin_are_taken_as_they_are_and_what_is_not_taken_is_named() {
    in_scratch("files", async |scratch| {
        let mut lab = FileLab::new(scratch).await?;
        lab.config = scratch.folder("bare")?;
        lab.options.config = Some(lab.config.clone());
        write(&lab.config, "all.yaml", &format!("{HOST}---\n{PLUGIN}---\nkind: Deployment\n"))?;
        write(&lab.config, "all.yaml~", HOST)?;
        write(&lab.config, "notes.txt", "remember the milk")?;
        std::fs::create_dir(lab.config.join("more"))?;
        let spec = "module: {file: persistence.wasm}\nsubscribe: [{source: jobs}]\n\
                    grants: {sql: [{name: main, database: platform}]}";
        let twice = plugin_manifest("twice", spec);
        let mut kubewitness = lab.start(scratch)?;
        kubewitness
            .status_when(WITHIN, "the plugin", |status| state(status, "persistence") == Some("active"))
            .await?;
        until_ok(WITHIN, "it to be ready", async || ready(&kubewitness).await).await?;
        let named = [
            "all.yaml:21: is a Deployment",
            "all.yaml~: is not named as a manifest",
            "notes.txt: is not named as a manifest",
            "more: is a folder",
        ];
        until(WITHIN, "what is not taken in the log", async || {
            let log = kubewitness.process().stderr();
            Ok(named.iter().all(|named| log.contains(named)).then_some(()))
        })
        .await?;

        // One of the same name in a ConfigMap is a double, and the first one goes on.
        write(
            &lab.config,
            "twice.yaml",
            &twice.replace("metadata: {name: twice}", "metadata: {name: persistence}"),
        )?;
        let double = |status: &StatusView| {
            let twice = status.plugins.iter().find(|plugin| plugin.name == "twice");
            twice
                .and_then(|plugin| plugin.message.as_deref())
                .is_some_and(|m| m.contains("choose another name"))
                && state(status, "persistence") == Some("active")
        };
        kubewitness.status_when(WITHIN, "the double", double).await?;
        std::fs::remove_file(lab.config.join("twice.yaml"))?;

        create_job(&lab.simulator, "one").await?;
        kubewitness.status_when(WITHIN, "the job", |status| status.journal.states > 0).await?;
        kubewitness.caught_up(WITHIN).await?;
        // A change of the document is a change of the plugin, also from another file.
        std::fs::remove_file(lab.config.join("all.yaml"))?;
        let changed = PLUGIN.replace("grants:", "delivery: {batch: 8}\n  grants:");
        write(&lab.config, "host.yaml", HOST)?;
        write(&lab.config, "plugin.yaml", &changed)?;
        let kept = lab.options.data.join("last-good/persistence/plugin.yaml");
        until(WITHIN, "the change to be taken", async || {
            let text = std::fs::read_to_string(&kept).unwrap_or_default();
            Ok(text.contains("batch: 8").then_some(()))
        })
        .await?;
        kubewitness.stop().await?;
        let log = kubewitness.process().stderr();
        ensure!(log.matches("notes.txt: is not named as a manifest").count() == 1, "it is told once: {log}");
        same_story(&lab.simulator, &lab.options.data).await
    })
    .await;
}

#[tokio::test]
async fn check_names_what_is_not_taken_and_reads_a_pipe_that_it_was_handed() {
    in_scratch("files", async |scratch| {
        let folder = scratch.folder("bare")?;
        write(&folder, "host.yaml", HOST)?;
        write(&folder, "secret.yaml", "apiVersion: v1\nkind: Secret\n")?;
        let path = folder.to_string_lossy().into_owned();
        let (code, told, _) = command(&["check", &path]).await?;
        ensure!(code == Some(0), "{code:?}: {told}");
        ensure!(
            told.contains("✓ host host (2 sources") && told.contains("secret.yaml:1: is a Secret"),
            "{told}"
        );

        // The label is what is forgotten: everything else of it is ours.
        let unlabelled = plugin_manifest("p", AUDIT).replace("kubewitness.dev/plugin: \"true\"", "team: a");
        write(&folder, "p.yaml", &unlabelled)?;
        let (code, told, _) = command(&["check", &path]).await?;
        ensure!(
            code == Some(4) && told.contains("not taken without the label kubewitness.dev/plugin"),
            "{code:?}: {told}"
        );
        std::fs::remove_file(folder.join("p.yaml"))?;

        pipe(&folder.join("x.yaml"))?;
        let (code, told, _) = command(&["check", &path]).await?;
        ensure!(code == Some(3) && told.contains("x.yaml: can't be read: it is a pipe"), "{code:?}: {told}");
        // As an argument of its own, too, for each command that reads a file.
        let lying = folder.join("x.yaml").to_string_lossy().into_owned();
        let data = scratch.folder("import")?.to_string_lossy().into_owned();
        for arguments in [
            vec!["check", &lying],
            vec!["check", &path, "--object", &lying],
            vec!["audit", "verify", &lying],
            vec!["journal", "import", &lying, "--data", &data],
        ] {
            let asked = in_time(WITHIN, command(&arguments)).await;
            let (code, said, told) = asked.with_context(|| format!("{arguments:?} waits"))??;
            let told = format!("{said}{told}");
            ensure!(code != Some(0) && told.contains("it is a pipe"), "{arguments:?}: {code:?}: {told}");
        }

        let binary = kubewitness_harness::kubewitness_binary()?;
        let script = "\"$0\" check <(cat \"$1\")";
        let host = folder.join("host.yaml");
        let shell =
            tokio::process::Command::new("bash").args(["-c", script]).arg(binary).arg(host).output().await?;
        let told = String::from_utf8_lossy(&shell.stdout).into_owned();
        ensure!(shell.status.success() && told.contains("✓ host host"), "{told}");
        Ok(())
    })
    .await;
}
