//! Plugins that mean harm, one after the other, beside two good ones under load. The operator is told what each did,
//! and the good ones go on. `docs/concepts/hostile-plugins.md` lists them.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kubewitness_core::views::{PluginView, StatusView};
use kubewitness_harness::registry::sha256;
use kubewitness_harness::{Kubewitness, RunOptions, Scratch, Simulator, command, in_scratch, plugins_folder};

use super::hostile_files::{Hostile, files, looping};
use crate::support::{AUDIT, Load, example_copy, plugin_manifest, proofs, same_story, simulator, write};

const WITHIN: Duration = Duration::from_secs(120);
/// What one question to the API may take on a machine that builds and tests something else too.
const ANSWER: Duration = Duration::from_secs(10);
/// States a second of the workload, about.
const RATE: f64 = 20.0;
/// States that come while a plugin does harm.
const MEANWHILE: u64 = 40;
/// The good plugins get at least this share of them. What else the machine does may take it from them for a moment, so the
/// best of some looks counts: the harm goes on during all of them.
const KEPT: f64 = 0.5;
const LOOKS: usize = 5;
const GOOD: [&str; 2] = ["persistence", "audit"];

const GRANTS: &str = "grants:
  kv: true
  lister: [jobs]
  sql: [{name: main, database: second}]
  http: [{name: nobody, destination: nobody}]
  ledger: [{name: notes, ledger: notes}]";

pub const FOR_PROBE: &str = "        - {name: notes, path: audit/notes.jsonl}
      destinations:
        - {name: nobody, url: 'http://127.0.0.1:9'}
";

/// Values may be as long as a call can hand over: what is bounded is how fast they are written.
const LONG_VALUES: &str = "      limits:
        plugins: {kv: 64Mi}
";
const RESTS: &str = "its next call waits: it writes more to `kv` than 1Mi a second";

/// Each command, and what the plugin's status says of it. Nothing where the host only refuses or cuts what it asks.
const IN_A_CALL: [(&str, Option<&str>); 17] = [
    ("loop", Some("the plugin ran longer than its limit of 300 ms")),
    ("sleep 600000", Some("the plugin ran longer than its limit of 300 ms")),
    ("recurse", Some("the plugin trapped")),
    ("eat 512", Some("the plugin wanted more memory than its limit of 33554432 bytes")),
    ("trap", Some("the plugin trapped")),
    // In the middle of a batch, and again in each instance that follows.
    ("trap-after 2", Some("the plugin trapped")),
    ("exit", Some("it exited with 1")),
    ("missing", Some("the plugin's answer is invalid: 0 verdicts for")),
    ("double", Some("the plugin's answer is invalid")),
    ("kv.flood 20000", None),
    ("kv.fill 1000000", None),
    ("kv.fill 4000000", Some(RESTS)),
    // As much as one call may hand over.
    ("kv.fill 15000000", Some(RESTS)),
    ("stderr 10000000", None),
    ("log.flood 20000", None),
    ("document.of 1", None),
    ("sql.run strangers select", None),
];

/// What the probe holds in the place of the name of a call in which it is to hang, or of another version.
const HANGS: &[u8] = b"the probe hangs in: nothing ";

pub fn hanging(config: &Path, call: &str) -> Result<String> {
    let mut bytes = std::fs::read(plugins_folder()?.join("probe.wasm")).context("the probe")?;
    let at =
        bytes.windows(HANGS.len()).position(|window| window == HANGS).context("the probe has no mark")?;
    let word = at + HANGS.len() - 8;
    bytes[word..word + 8].copy_from_slice(format!("{call:<8}").as_bytes());
    let file = format!("{call}.wasm");
    std::fs::write(config.join(&file), bytes)?;
    Ok(file)
}

pub fn hostile(name: &str, file: &str, command: &str) -> String {
    granted(name, file, command, GRANTS)
}

fn granted(name: &str, file: &str, command: &str, grants: &str) -> String {
    let spec = format!(
        "module: {{file: {file}}}\nsubscribe: [{{source: jobs}}]\n{grants}\nlimits: {{call: 300ms, memory: 32Mi}}\n\
         delivery: {{batch: 4, retries: 1, backoff: 10ms}}\nconfig: {{command: {command}}}"
    );
    plugin_manifest(name, &spec)
}

fn plugin<'s>(status: &'s StatusView, name: &str) -> Option<&'s PluginView> {
    status.plugins.iter().find(|plugin| plugin.name == name)
}

/// States that the good plugins have been given, the one that has fewest of them.
fn given(status: &StatusView) -> u64 {
    GOOD.iter().filter_map(|name| plugin(status, name)).map(|p| p.delivered + p.filtered).min().unwrap_or(0)
}

fn came(status: &StatusView) -> u64 {
    GOOD.iter().filter_map(|name| plugin(status, name)).map(|p| p.observed).min().unwrap_or(0)
}

struct Beside {
    simulator: Simulator,
    config: std::path::PathBuf,
    options: RunOptions,
    run: Kubewitness,
}

impl Beside {
    async fn begin(scratch: &Scratch) -> Result<Self> {
        let config = example_copy(scratch)?;
        let host = std::fs::read_to_string(config.join("host.yaml"))?;
        write(&config, "host.yaml", &format!("{host}{FOR_PROBE}{LONG_VALUES}"))?;
        write(&config, "audit.yaml", &plugin_manifest("audit", AUDIT))?;
        let simulator = simulator(scratch).await?;
        let options = RunOptions {
            kubeconfig: simulator.kubeconfig().to_path_buf(),
            config: Some(config.clone()),
            data: scratch.folder("data")?,
            ..RunOptions::default()
        };
        let mut run = Kubewitness::start("run", &options, scratch.path())?;
        run.answers().await?;
        run.listed(2, WITHIN).await?;
        let both = |status: &StatusView| {
            GOOD.iter().all(|name| plugin(status, name).is_some_and(|p| p.state == "active"))
        };
        run.status_when(WITHIN, "both good plugins", both).await?;
        Ok(Self { simulator, config, options, run })
    }

    /// One plugin does harm until it is told of and so many states have come. Answers the share of them that the good
    /// plugins got meanwhile.
    async fn suffer(&mut self, name: &str, file: &str, command: &str, told: Option<&str>) -> Result<f64> {
        self.suffer_from(name, &hostile(name, file, command), command, told).await
    }

    async fn suffer_from(
        &mut self,
        name: &str,
        manifest: &str,
        command: &str,
        told: Option<&str>,
    ) -> Result<f64> {
        write(&self.config, "hostile.yaml", manifest)?;
        let begun = |status: &StatusView| match (plugin(status, name), told) {
            (Some(it), Some(told)) => it.message.as_deref().is_some_and(|message| message.contains(told)),
            (Some(it), None) => it.delivered > 0 && it.dead == 0,
            (None, _) => false,
        };
        let before = self.run.status_when(WITHIN, &format!("what {command} does to be told"), begun).await?;
        let mut share = self.share_after(&before).await?;
        for _ in 1..LOOKS {
            if share >= KEPT {
                break;
            }
            let now = self.run.status().await?;
            share = self.share_after(&now).await?;
        }
        let since = Instant::now();
        let (code, text) = self.run.get("/api/v1/objects?kind=Job").await?;
        ensure!(code == 200, "the API answered {code}: {text}");
        ensure!(since.elapsed() < ANSWER, "the API took {:?} beside {command}", since.elapsed());
        Ok(share)
    }

    async fn share_after(&mut self, before: &StatusView) -> Result<f64> {
        let more = |status: &StatusView| came(status) >= came(before) + MEANWHILE;
        let after = self.run.status_when(WITHIN, "more states to come", more).await?;
        Ok((given(&after) - given(before)) as f64 / (came(&after) - came(before)) as f64)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beside_a_plugin_that_does_harm_two_good_ones_lose_no_state_and_keep_up_and_the_api_answers() {
    in_scratch("hostile", async |scratch| {
        let mut it = Beside::begin(scratch).await?;
        let load = Load::start(&it.simulator, 7, RATE);
        let mut shares = Vec::new();
        for (number, (command, told)) in IN_A_CALL.iter().enumerate() {
            let name = format!("hostile-{number}");
            shares.push((*command, it.suffer(&name, "probe.wasm", command, *told).await?));
        }
        for (call, told) in [
            (
                "describe",
                "the component failed in `describe`: the plugin ran longer than its limit of 2000 ms",
            ),
            ("check", "the component failed in `check`: the plugin ran longer than its limit of 300 ms"),
        ] {
            let file = hanging(&it.config, call)?;
            shares.push((call, it.suffer(&format!("hostile-{call}"), &file, "done", Some(told)).await?));
        }
        for Hostile { name, bytes, told } in files()? {
            let file = format!("{name}.wasm");
            std::fs::write(it.config.join(&file), bytes)?;
            shares.push((name, it.suffer(&format!("hostile-{name}"), &file, "done", Some(told)).await?));
        }
        let ungranted = granted("hostile-ungranted", "probe.wasm", "done", "");
        let told = Some("the component imports `http` and is granted none");
        shares.push(("ungranted", it.suffer_from("hostile-ungranted", &ungranted, "done", told).await?));
        for (word, is_whole) in [("lies", true), ("half", false)] {
            let file = hanging(&it.config, word)?;
            lie_in_the_cache(&it.config.join(&file), &it.options.data.join("cache"), is_whole)?;
            shares.push((word, it.suffer(&format!("hostile-{word}"), &file, "done", None).await?));
        }
        let log = it.run.process().stderr();
        let untrusted = log.matches("is not what was written: compiling again").count();
        ensure!(untrusted >= 2, "{untrusted} files of the cache were found to be wrong");
        ensure!(log.contains("the plugin logs too much; messages were left out"), "the flood is not told of");
        eprintln!("the share of the states that both good plugins got meanwhile: {shares:?}");
        for (command, share) in &shares {
            ensure!(
                *share >= KEPT,
                "beside {command} the good plugins got {share} of the states: {shares:?}"
            );
        }

        std::fs::remove_file(it.config.join("hostile.yaml"))?;
        load.stop().await?;
        let settled = |status: &StatusView| {
            let is_done = |p: &PluginView| p.waiting == 0 && p.dead == 0 && p.state == "active";
            status.plugins.len() == 2 && status.plugins.iter().all(is_done)
        };
        it.run.status_when(WITHIN, "both good plugins to have everything", settled).await?;
        same_story(&it.simulator, &it.options.data).await?;
        it.run.stop().await?;
        proofs(&it.options.data).await
    })
    .await;
}

/// The code of another component, or a part of it, in the place of this one's.
fn lie_in_the_cache(component: &Path, cache: &Path, is_whole: bool) -> Result<()> {
    let of = |bytes: &[u8]| cache.join(format!("{}.cwasm", sha256(bytes)));
    let probe = std::fs::read(plugins_folder()?.join("probe.wasm"))?;
    let mut code = std::fs::read(of(&probe)).context("the probe has run before")?;
    if !is_whole {
        code.truncate(code.len() / 2);
    }
    std::fs::write(of(&std::fs::read(component)?), code).context("writing into the cache")
}

#[tokio::test]
async fn the_commands_of_an_author_end_also_with_a_component_that_loops() {
    in_scratch("looping", async |scratch| {
        std::fs::write(scratch.path().join("start.wasm"), looping()?)?;
        hanging(scratch.path(), "describe")?;
        for (file, call) in [("start.wasm", "instantiate"), ("describe.wasm", "describe")] {
            let file = scratch.path().join(file).display().to_string();
            for (line, code) in [(&["check", &file][..], 3), (&["plugin", "run", &file, "--tick"], 1)] {
                let (ended, stdout, stderr) = command(line).await?;
                let told = stdout + &stderr;
                ensure!(ended == Some(code), "{line:?} ended with {ended:?}: {told}");
                let part = format!("the component failed in `{call}`: the plugin ran longer than its limit");
                ensure!(told.contains(&part), "{line:?}: {told}");
            }
        }
        Ok(())
    })
    .await;
}
