//! Plugins that mean harm, one after the other, beside two good ones under load. The operator is told what each did,
//! and the good ones are handed what comes meanwhile. What each of them gets of the processors is in `processors.rs`.
//! `docs/concepts/hostile-plugins.md` lists them; the programs are in `tests/guests/hostile`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_core::views::{PluginView, StatusView};
use kubewitness_harness::{
    Kubewitness, RunOptions, Scratch, Simulator, command, half, in_scratch, plugins_folder, registry::sha256,
};
use kubewitness_hostile as made;

const WITHIN: Duration = Duration::from_secs(120);
/// On a machine that does other things too, what comes waits for its turn.
const KEEP_UP: Duration = Duration::from_secs(300);
/// States a second of the workload, about.
const RATE: f64 = 20.0;
/// States that come while a plugin does harm.
const MEANWHILE: u64 = 20;
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
const LONGER: &str = "the plugin ran longer than its limit of 300 ms";
/// The limit of time in the manifests of these plugins.
const CALL: &str = "call: 300ms";
const MEMORY: &str = "more memory than its limit of 67108864 bytes";

/// The message that the operator gets about a plugin.
#[derive(Clone, Copy)]
enum OperatorMessage {
    /// A part of its message.
    Says(&'static str),
    /// It has dead letters, and goes on.
    DeadLetters,
    /// The host only refuses or cuts what it asks.
    Nothing,
}

use crate::support::{
    AUDIT, BackgroundLoad, example_copy, is_active, plugin, plugin_manifest, proofs, same_story, simulator,
    versions, write,
};
use OperatorMessage::{DeadLetters, Nothing, Says};

/// A program with its configuration, and what the operator is told.
type HostileProgram = (&'static str, &'static str, OperatorMessage);

/// Programs of which the rest of the test needs something.
const NEEDED: [HostileProgram; 2] =
    [("floods_the_log", "{}", Nothing), ("asks_for_other_states", "{}", Nothing)];

const PROGRAMS: [HostileProgram; 16] = [
    ("loops", "{}", Says(LONGER)),
    ("sleeps", "{millis: 600000}", Says(LONGER)),
    (
        "loops_in_describe",
        "{}",
        Says("the component failed in `describe`: the plugin ran longer than its limit of 2000 ms"),
    ),
    (
        "loops_in_check",
        "{}",
        Says("the component failed in `check`: the plugin ran longer than its limit of 300 ms"),
    ),
    ("recurses", "{}", Says("the plugin trapped")),
    ("allocates", "{}", Says("the plugin wanted more memory than its limit of 33554432 bytes")),
    ("traps", "{}", Says("the plugin trapped")),
    ("exits", "{}", Says("it exited with 1")),
    ("too_few_verdicts", "{}", Says("the plugin's answer is invalid: 0 verdicts for")),
    ("too_many_verdicts", "{}", Says("the plugin's answer is invalid")),
    ("giant_reasons", "{mebibytes: 2}", DeadLetters),
    ("calls_without_end", "{}", Nothing),
    ("leaks_handles", "{}", Says("the plugin trapped")),
    ("floods_the_output", "{}", Says("the plugin trapped")),
    ("uses_what_nobody_granted", "{}", Nothing),
    ("writes_long_values", "{bytes: 4000000}", Says(RESTS)),
];

/// Files that no compiler makes.
fn files() -> Result<Vec<(&'static str, Vec<u8>, &'static str)>> {
    let plugin = |name| std::fs::read(plugins_folder()?.join(name)).context("a plugin");
    let (audit, probe) = (plugin("audit.wasm")?, plugin("probe.wasm")?);
    Ok(vec![
        ("text", made::text(), "this is not WebAssembly"),
        ("module", made::core_module(), "core WebAssembly module"),
        ("cut", made::half(&audit), "the component can't be read"),
        (
            "start",
            made::starting_with_a_loop(&audit),
            "the component failed in `instantiate`: the plugin ran longer than its limit",
        ),
        ("bomb", made::known_bomb(), "has 20000 local variables: the limit is 5000"),
        ("functions", made::many_functions(100_001), "100001 functions: the limit is 100000"),
        ("blocks", made::deep_blocks(5001), "levels of blocks within each other: the limit is 5000"),
        ("data", made::many_data_segments(20_001), "20001 data segments: the limit is 20000"),
        ("levels", made::deep_components(9), "levels of components and modules: the limit is 8"),
        ("types", made::nested_types(), "the component"),
        ("memories", made::with_memories(&audit, 1, 8, 20), MEMORY),
        ("table", made::with_table(&audit, 9_000_000), MEMORY),
        ("world", made::of_another_world(&probe), "kubewitness:plugin/kw"),
    ])
}

/// Where the program of this name is below the folder with the plugins.
pub fn program(name: &str) -> String {
    format!("hostile/{name}.wasm")
}

fn program_file(name: &str) -> Result<PathBuf> {
    Ok(plugins_folder()?.join(program(name)))
}

pub fn hostile(name: &str, file: &str, config: &str) -> String {
    granted(name, file, config, GRANTS)
}

/// The manifest with time enough for calls that end by themselves, also on a busy machine.
pub fn unhurried(manifest: &str) -> String {
    manifest.replace(CALL, "call: 30s")
}

fn granted(name: &str, file: &str, config: &str, grants: &str) -> String {
    let spec = format!(
        "module: {{file: {file}}}\nsubscribe: [{{source: jobs}}]\n{grants}\nlimits: {{{CALL}, memory: 32Mi}}\n\
         delivery: {{batch: 4, retries: 1, backoff: 10ms}}\nconfig: {config}"
    );
    plugin_manifest(name, &spec)
}

/// States that the good plugins have been given, the one that has fewest of them.
fn given(status: &StatusView) -> u64 {
    GOOD.iter().filter_map(|name| plugin(status, name)).map(|p| p.delivered + p.filtered).min().unwrap_or(0)
}

fn came(status: &StatusView) -> u64 {
    GOOD.iter().filter_map(|name| plugin(status, name)).map(|p| p.observed).min().unwrap_or(0)
}

struct BesidePlugin {
    simulator: Simulator,
    config: PathBuf,
    options: RunOptions,
    run: Kubewitness,
}

impl BesidePlugin {
    async fn begin(scratch: &Scratch) -> Result<Self> {
        let config = example_copy(scratch)?;
        let host = std::fs::read_to_string(config.join("host.yaml"))?;
        write(&config, "host.yaml", &format!("{host}{FOR_PROBE}{LONG_VALUES}"))?;
        write(&config, "audit.yaml", &plugin_manifest("audit", AUDIT))?;
        let simulator = simulator(scratch).await?;
        let options = simulator.run_options(scratch, config.clone())?;
        let mut run = Kubewitness::start("run", &options, scratch.path())?;
        run.answers().await?;
        run.listed(2, WITHIN).await?;
        let both = |status: &StatusView| GOOD.iter().all(|name| is_active(status, name));
        run.status_when(WITHIN, "both good plugins", both).await?;
        Ok(Self { simulator, config, options, run })
    }

    /// One plugin does harm until it is told of, so many states have come since then, and the good plugins have got them.
    async fn suffer(&mut self, what: &str, file: &str, config: &str, told: OperatorMessage) -> Result<()> {
        let name = format!("hostile-{}", what.replace('_', "-"));
        let mut manifest = hostile(&name, file, config);
        if !matches!(told, Says(text) if text.contains("longer than its limit")) {
            manifest = unhurried(&manifest);
        }
        self.suffer_from(&name, &manifest, told).await
    }

    async fn suffer_from(&mut self, name: &str, manifest: &str, told: OperatorMessage) -> Result<()> {
        write(&self.config, "hostile.yaml", manifest)?;
        let begun = |status: &StatusView| {
            plugin(status, name).is_some_and(|it| match told {
                Says(part) => it.message.as_deref().is_some_and(|message| message.contains(part)),
                DeadLetters => it.dead > 0,
                Nothing => it.delivered > 0 && it.dead == 0,
            })
        };
        let before = self.run.status_when(WITHIN, &format!("what {name} does to be told"), begun).await?;
        let wanted = came(&before) + MEANWHILE;
        let keep_up = |status: &StatusView| plugin(status, name).is_some() && given(status) >= wanted;
        let what = format!("both good plugins to get {MEANWHILE} more states beside {name}");
        self.run.status_when(KEEP_UP, &what, keep_up).await?;
        let (code, text) = self.run.get("/api/v1/objects?kind=Job").await?;
        ensure!(code == 200, "the API answered {code} beside {name}: {text}");
        Ok(())
    }

    /// A good component, with the code of another one in the place of its own in the cache; or a half of it.
    fn lie_in_the_cache(&self, name: &str, is_whole: bool) -> Result<()> {
        let of = |bytes: &[u8]| self.options.data.join("cache").join(format!("{}.cwasm", sha256(bytes)));
        let other = std::fs::read(program_file("asks_for_other_states")?)?;
        let code = std::fs::read(of(&other)).context("the other one has run before")?;
        let component = made::renamed(&other, name);
        // What an earlier run compiled of it is a link to a file that others share.
        if of(&component).is_symlink() {
            std::fs::remove_file(of(&component))?;
        }
        std::fs::write(of(&component), if is_whole { code } else { made::half(&code) })?;
        std::fs::write(self.config.join(format!("{name}.wasm")), component).context("writing the component")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beside_a_plugin_that_does_harm_two_good_ones_lose_no_state_and_keep_up_and_the_api_answers() {
    in_scratch("hostile", async |scratch| {
        let mut it = BesidePlugin::begin(scratch).await?;
        let load = BackgroundLoad::start(&it.simulator, 7, RATE);
        for (number, (name, config, told)) in NEEDED.iter().copied().chain(half(PROGRAMS)).enumerate() {
            it.suffer(&format!("{name}-{number}"), &program(name), config, told).await?;
        }
        for (name, bytes, told) in half(files()?) {
            let file = format!("{name}.wasm");
            std::fs::write(it.config.join(&file), bytes)?;
            it.suffer(name, &file, "{}", Says(told)).await?;
        }
        let ungranted = granted("hostile-ungranted", &program("uses_what_nobody_granted"), "{}", "");
        let told = Says("the component imports `http` and is granted none");
        it.suffer_from("hostile-ungranted", &ungranted, told).await?;
        for (name, is_whole) in [("lies", true), ("half", false)] {
            it.lie_in_the_cache(name, is_whole)?;
            it.suffer(name, &format!("{name}.wasm"), "{}", Nothing).await?;
        }
        let log = it.run.process().stderr();
        let untrusted = log.matches("is not what was written: compiling again").count();
        ensure!(untrusted >= 2, "{untrusted} files of the cache were found to be wrong");
        ensure!(log.contains("the plugin logs too much; messages were left out"), "the flood is not told of");
        std::fs::remove_file(it.config.join("hostile.yaml"))?;
        load.stop().await?;
        // What came last may not have been witnessed yet.
        let versions = versions(&it.simulator).await?;
        let settled = |status: &StatusView| {
            let has_all = |p: &PluginView| p.waiting == 0 && p.delivered + p.filtered >= versions;
            let is_done = |p: &PluginView| has_all(p) && p.dead == 0 && p.state == "active";
            status.plugins.len() == 2 && status.plugins.iter().all(is_done)
        };
        it.run.status_when(WITHIN, "both good plugins to have everything", settled).await?;
        same_story(&it.simulator, &it.options.data).await?;
        it.run.stop().await?;
        proofs(&it.options.data).await
    })
    .await;
}

#[tokio::test]
async fn the_commands_of_an_author_end_also_with_a_component_that_loops() {
    in_scratch("looping", async |scratch| {
        let start = scratch.path().join("start.wasm");
        std::fs::write(&start, made::starting_with_a_loop(&std::fs::read(program_file("traps")?)?))?;
        for (file, call) in [(start, "instantiate"), (program_file("loops_in_describe")?, "describe")] {
            let file = file.display().to_string();
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
