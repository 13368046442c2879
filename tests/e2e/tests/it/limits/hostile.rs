//! Plugins that mean harm, one after the other, beside two good ones under load. The operator is told what each did,
//! and the good ones go on. `docs/concepts/hostile-plugins.md` lists them.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kubewitness_core::views::{PluginView, StatusView};
use kubewitness_harness::{Kubewitness, RunOptions, Scratch, Simulator, command, in_scratch, plugins_folder};

use crate::support::{AUDIT, Load, example_copy, plugin_manifest, proofs, same_story, simulator, write};

const WITHIN: Duration = Duration::from_secs(120);
/// What one question to the API may take on a machine that builds and tests something else too.
const ANSWER: Duration = Duration::from_secs(10);
/// States a second of the workload, about.
const RATE: f64 = 10.0;
/// States that come while a plugin does harm.
const MEANWHILE: u64 = 40;
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

/// Each command, and what the plugin's status says of it. Nothing where the host only refuses or cuts what it asks.
const IN_A_CALL: [(&str, Option<&str>); 12] = [
    ("loop", Some("the plugin ran longer than its limit of 300 ms")),
    ("sleep 600000", Some("the plugin ran longer than its limit of 300 ms")),
    ("recurse", Some("the plugin trapped")),
    ("eat 512", Some("the plugin wanted more memory than its limit of 33554432 bytes")),
    ("trap", Some("the plugin trapped")),
    ("exit", Some("it exited with 1")),
    ("missing", Some("the plugin's answer is invalid: 0 verdicts for")),
    ("double", Some("the plugin's answer is invalid")),
    ("kv.flood 20000", None),
    ("log.flood 20000", None),
    ("document.of 1", None),
    ("sql.run strangers select", None),
];

/// Files that are no plugins, and what the status says of them.
const NOT_PLUGINS: [(&str, &[u8], &str); 2] = [
    ("text", b"apiVersion: v1", "this is not WebAssembly"),
    ("module", b"\0asm\x01\0\0\0", "core WebAssembly module"),
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
    let spec = format!(
        "module: {{file: {file}}}\nsubscribe: [{{source: jobs}}]\n{GRANTS}\nlimits: {{call: 300ms, memory: 32Mi}}\n\
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
        write(&config, "host.yaml", &format!("{host}{FOR_PROBE}"))?;
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
        write(&self.config, "hostile.yaml", &hostile(name, file, command))?;
        let begun = |status: &StatusView| match (plugin(status, name), told) {
            (Some(it), Some(told)) => it.message.as_deref().is_some_and(|message| message.contains(told)),
            (Some(it), None) => it.delivered > 0 && it.dead == 0,
            (None, _) => false,
        };
        let before = self.run.status_when(WITHIN, &format!("what {command} does to be told"), begun).await?;
        let more = |status: &StatusView| came(status) >= came(&before) + MEANWHILE;
        let after = self.run.status_when(WITHIN, "more states to come", more).await?;
        let since = Instant::now();
        let (code, text) = self.run.get("/api/v1/objects?kind=Job").await?;
        ensure!(code == 200, "the API answered {code}: {text}");
        ensure!(since.elapsed() < ANSWER, "the API took {:?} beside {command}", since.elapsed());
        Ok((given(&after) - given(&before)) as f64 / (came(&after) - came(&before)) as f64)
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
        for (name, bytes, told) in NOT_PLUGINS {
            let file = format!("{name}.wasm");
            std::fs::write(it.config.join(&file), bytes)?;
            shares.push((name, it.suffer(&format!("hostile-{name}"), &file, "done", Some(told)).await?));
        }
        let log = it.run.process().stderr();
        ensure!(log.contains("the plugin logs too much; messages were left out"), "the flood is not told of");
        eprintln!("the share of the states that both good plugins got meanwhile: {shares:?}");
        for (command, share) in &shares {
            ensure!(*share >= 0.5, "beside {command} the good plugins got {share} of the states: {shares:?}");
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

/// `(module (func $s (loop (br 0))) (start $s))`
const LOOPS: &[u8] =
    b"\0asm\x01\0\0\0\x01\x04\x01\x60\0\0\x03\x02\x01\0\x08\x01\0\x0a\x09\x01\x07\0\x03\x40\x0c\0\x0b\x0b";

/// A component that loops before its first call: with one more module, and an instance of it.
fn looping() -> Result<Vec<u8>> {
    let mut bytes = std::fs::read(plugins_folder()?.join("audit.wasm")).context("the audit plugin")?;
    let (mut at, mut modules) = (8, 0);
    while let Some(section) = bytes.get(at) {
        modules += u8::from(*section == 1);
        at += 1;
        let (mut size, mut shift) = (0, 0);
        loop {
            let byte = *bytes.get(at).context("a section has no end")?;
            at += 1;
            size |= usize::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                break;
            }
        }
        at += size;
    }
    bytes.extend([1, u8::try_from(LOOPS.len())?]);
    bytes.extend(LOOPS);
    bytes.extend([2, 4, 1, 0, modules, 0]);
    Ok(bytes)
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
