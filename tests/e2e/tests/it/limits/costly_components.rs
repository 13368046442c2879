//! Components that are made to be costly to compile: what it costs is bounded, and nobody else notices.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kubewitness_core::views::{PluginView, StatusView};
use kubewitness_harness::{Kubewitness, RunOptions, Scratch, command, in_scratch, until};
use kubewitness_hostile::{known_bomb, nested_types};

use crate::support::{
    create_job, example_copy, plugin, plugin_manifest, same_story, simulator, witness_job, write,
};

pub const WITHIN: Duration = Duration::from_secs(120);
/// The most that the controller may grow by while a component is compiled.
pub const GROWTH: u64 = 64 << 20;
/// The memory that it needs for the jobs of the test, and that an allocator takes by chance.
const NOISE: u64 = 32 << 20;

const SPEC: &str = "module: {file: bomb.wasm}\nsubscribe: [{source: jobs}]";

fn component_file(scratch: &Scratch, bytes: &[u8]) -> Result<PathBuf> {
    let path = scratch.path().join("bomb.wasm");
    std::fs::write(&path, bytes).context("writing the component")?;
    Ok(path)
}

/// Beside the component, where `check` looks for the limits too.
fn host_with(folder: &Path, limits: &str) -> Result<()> {
    let host = format!(
        "apiVersion: kubewitness.dev/v1alpha1\nkind: Host\nmetadata: {{name: host}}\nspec:\n  \
         sources: [{{name: jobs, apiVersion: batch/v1, kind: Job}}]\n  limits: {{components: {{{limits}}}}}\n"
    );
    write(folder, "host.yaml", &host)
}

async fn check(path: &Path) -> Result<(Option<i32>, String)> {
    let (code, stdout, stderr) = command(&["check", &path.to_string_lossy()]).await?;
    Ok((code, stdout + &stderr))
}

#[tokio::test]
async fn a_compile_bomb_is_refused_by_check_before_it_is_compiled() {
    in_scratch("compile", async |scratch| {
        let path = component_file(scratch, &known_bomb())?;
        let since = Instant::now();
        let (code, said) = check(&path).await?;
        ensure!(code == Some(3), "{code:?} {said}");
        ensure!(
            said.contains("function 0 of part 1 has 20000 local variables: the limit is 5000")
                && said.contains("spec.limits.components.locals"),
            "{said}"
        );
        ensure!(since.elapsed() < Duration::from_secs(60), "it took {:?}", since.elapsed());
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_compile_bomb_within_raised_limits_ends_at_the_bound_of_memory_of_processor_time_or_of_time() {
    in_scratch("compile", async |scratch| {
        let path = component_file(scratch, &known_bomb())?;
        for (limits, said_of) in [
            ("compileMemory: 256Mi", "too much memory: the limit is 256Mi"),
            ("compileMemory: 64Gi, compileCpu: 1s", "too much processor time: the limit is 1s"),
            ("compileMemory: 64Gi, compileTime: 1s", "too much time: the limit is 1s"),
        ] {
            host_with(scratch.path(), &format!("locals: 50000, loops: 50000, {limits}"))?;
            let (code, said) = check(&path).await?;
            ensure!(code == Some(3) && said.contains(said_of), "{limits}: {code:?} {said}");
        }
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_type_nested_without_end_ends_the_process_that_compiles_and_not_the_one_that_asked() {
    in_scratch("compile", async |scratch| {
        let path = component_file(scratch, &nested_types())?;
        let (code, said) = check(&path).await?;
        ensure!(code == Some(3) && said.contains("bomb.wasm"), "{code:?} {said}");
        Ok(())
    })
    .await;
}

fn is_refused(status: &StatusView, word: &str) -> bool {
    let told = |plugin: &PluginView| plugin.message.as_ref().is_some_and(|message| message.contains(word));
    plugin(status, "bomb").is_some_and(|plugin| plugin.state == "failed" && told(plugin))
}

fn of_proc(pid: u32, file: &str) -> Result<String> {
    let path = format!("/proc/{pid}/{file}");
    std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// In bytes: `VmRSS` is what it has in memory now, `VmHWM` the most that it had.
pub fn memory(pid: u32, which: &str) -> Result<u64> {
    let status = of_proc(pid, "status")?;
    let kib = field(&status, which).and_then(|value| value.strip_suffix("kB"));
    let kib: u64 = kib.context("a process has memory")?.trim().parse()?;
    Ok(kib << 10)
}

/// From now on the kernel counts anew what the most was.
pub fn count_anew(pid: u32) -> Result<u64> {
    std::fs::write(format!("/proc/{pid}/clear_refs"), "5").context("counting memory anew")?;
    memory(pid, "VmRSS:")
}

/// The processes that a process has started, whichever of its threads did.
pub fn children(pid: u32) -> Result<Vec<u32>> {
    let mut found = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may have ended meanwhile.
        let listed = std::fs::read_to_string(task?.path().join("children")).unwrap_or_default();
        found.extend(listed.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
    }
    Ok(found)
}

/// Looks from outside at the bounds of the process that compiles. `None` where it has not begun or has ended.
fn check_confined(pid: u32) -> Option<Result<()>> {
    let (status, limits) = (of_proc(pid, "status").ok()?, of_proc(pid, "limits").ok()?);
    let environment = of_proc(pid, "environ").ok()?;
    let handles = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count();
    let first = of_proc(pid, "oom_score_adj").ok()?;
    // One that ends has given its handles back already.
    if field(&status, "Seccomp:") != Some("2") || handles == 0 {
        return None;
    }
    let limit = |name: &str| {
        let line = field(&limits, name).unwrap_or_default();
        line.split_whitespace().next().unwrap_or_default().to_owned()
    };
    let found = [
        ("no new rights", field(&status, "NoNewPrivs:").unwrap_or_default().to_owned(), "1"),
        ("environment", environment, ""),
        ("handles", handles.to_string(), "3"),
        ("open files", limit("Max open files"), "3"),
        ("address space", limit("Max address space"), "402653184"),
        ("processor time", limit("Max cpu time"), "60"),
        ("core file", limit("Max core file size"), "0"),
        ("file size", limit("Max file size"), "0"),
        ("end first", first.trim().to_owned(), "1000"),
    ];
    let wrong: Vec<_> = found.iter().filter(|(_, found, wanted)| found != wanted).collect();
    Some(if wrong.is_empty() { Ok(()) } else { Err(anyhow::anyhow!("{wrong:?}")) })
}

#[tokio::test]
async fn a_compile_bomb_beside_a_plugin_at_work_takes_no_memory_of_the_controller_and_no_state_of_the_plugin()
{
    in_scratch("compile", async |scratch| {
        let simulator = simulator(scratch).await?;
        let folder = example_copy(scratch)?;
        let host = std::fs::read_to_string(folder.join("host.yaml"))?;
        // An unoptimised build gives three times as much of the processor.
        let limits = "locals: 50000, loops: 50000, compileMemory: 384Mi, compileCpu: 20s";
        write(&folder, "host.yaml", &format!("{host}      limits: {{components: {{{limits}}}}}\n"))?;
        let options = RunOptions { compiles_anew: true, ..simulator.run_options(scratch, folder.clone())? };
        let mut kubewitness = Kubewitness::start("run", &options, scratch.path())?;
        kubewitness.answers().await?;
        create_job(&simulator, "before").await?;
        kubewitness.status_when(WITHIN, "the first job", |status| status.journal.states > 0).await?;
        // Nothing waits for a plugin that is still being compiled.
        let has_it = |status: &StatusView| plugin(status, "persistence").is_some_and(|it| it.delivered > 0);
        kubewitness.status_when(WITHIN, "the plugin to have it", has_it).await?;
        kubewitness.caught_up(WITHIN).await?;
        let pid = kubewitness.process().pid()?;
        ensure!(children(pid)?.is_empty(), "what was compiled has ended");
        let before = count_anew(pid)?;

        std::fs::write(folder.join("bomb.wasm"), known_bomb())?;
        write(&folder, "bomb.yaml", &plugin_manifest("bomb", SPEC))?;
        let (mut confined, mut jobs) = (false, 0);
        until(WITHIN, "the bomb to be refused", async || {
            let compiling = children(pid)?;
            ensure!(compiling.len() <= 1, "one process compiles at a time: {compiling:?}");
            if let Some(found) = compiling.first().and_then(|pid| check_confined(*pid)) {
                found.context("the process that compiles")?;
                confined = true;
                if jobs < 20 {
                    create_job(&simulator, &format!("meanwhile-{jobs}")).await?;
                    jobs += 1;
                }
            }
            let status = kubewitness.status().await?;
            let persistence = plugin(&status, "persistence").context("the other plugin")?;
            ensure!(persistence.state == "active", "{persistence:?}");
            Ok(is_refused(&status, "too much memory: the limit is 384Mi").then_some(()))
        })
        .await?;
        ensure!(confined && jobs > 0, "the process that compiles was never seen");
        let grown = memory(pid, "VmHWM:")?.saturating_sub(before);
        println!("the controller grew by {} KiB while the bomb was compiled", grown >> 10);
        ensure!(grown <= GROWTH + NOISE, "the controller grew by {grown} bytes");

        // It is looked at again every ten seconds, and not compiled again.
        let again = Instant::now();
        while again.elapsed() < Duration::from_secs(13) {
            ensure!(children(pid)?.is_empty(), "the same bytes are compiled again");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        std::fs::remove_file(folder.join("bomb.yaml"))?;
        std::fs::remove_file(folder.join("bomb.wasm"))?;
        kubewitness.status_when(WITHIN, "it to be gone", |status| plugin(status, "bomb").is_none()).await?;
        witness_job(&simulator, &mut kubewitness, "after").await?;
        kubewitness.caught_up(WITHIN).await?;
        kubewitness.stop().await?;
        same_story(&simulator, &options.data).await
    })
    .await;
}

/// How often a process that compiles was seen.
async fn compilers_until_refused(run: &mut Kubewitness, told: &str) -> Result<usize> {
    let (pid, mut looks) = (run.process().pid()?, 0);
    let refused = run.status_when(WITHIN, "the bomb to be refused", |it| is_refused(it, told));
    let mut refused = std::pin::pin!(refused);
    loop {
        tokio::select! {
            refused = &mut refused => return refused.map(|_| looks),
            // The bomb takes seconds: a look each few milliseconds misses none.
            () = tokio::time::sleep(Duration::from_millis(5)) => looks += children(pid)?.len(),
        }
    }
}

/// Until the process that compiles has begun its work.
async fn compiling(run: &mut Kubewitness) -> Result<u32> {
    let pid = run.process().pid()?;
    until(WITHIN, "the process that compiles", async || {
        Ok(children(pid)?.into_iter().find(|pid| check_confined(*pid).is_some()))
    })
    .await
}

#[tokio::test]
async fn a_component_that_was_refused_is_compiled_again_by_the_next_controller_only_within_other_limits() {
    in_scratch("compile", async |scratch| {
        let simulator = simulator(scratch).await?;
        let folder = scratch.folder("config")?;
        let limits = |memory: &str| format!("locals: 50000, loops: 50000, compileMemory: {memory}");
        host_with(&folder, &limits("256Mi"))?;
        std::fs::write(folder.join("bomb.wasm"), known_bomb())?;
        write(&folder, "bomb.yaml", &plugin_manifest("bomb", SPEC))?;
        let options = RunOptions { compiles_anew: true, ..simulator.run_options(scratch, folder.clone())? };
        for (number, (memory, is_compiled)) in
            [("256Mi", true), ("256Mi", false), ("288Mi", true)].into_iter().enumerate()
        {
            host_with(&folder, &limits(memory))?;
            let mut run = Kubewitness::start(&format!("run-{number}"), &options, scratch.path())?;
            let looks =
                compilers_until_refused(&mut run, &format!("too much memory: the limit is {memory}")).await?;
            ensure!((looks > 0) == is_compiled, "run {number}: the compiler was seen {looks} times");
            run.stop().await?;
        }
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_controller_that_is_killed_leaves_no_process_that_compiles() {
    in_scratch("compile", async |scratch| {
        let simulator = simulator(scratch).await?;
        let folder = scratch.folder("config")?;
        host_with(&folder, "locals: 50000, loops: 50000, compileMemory: 2Gi")?;
        std::fs::write(folder.join("bomb.wasm"), known_bomb())?;
        write(&folder, "bomb.yaml", &plugin_manifest("bomb", SPEC))?;
        let options = RunOptions { compiles_anew: true, ..simulator.run_options(scratch, folder)? };
        let mut kubewitness = Kubewitness::start("run", &options, scratch.path())?;
        let compiling = compiling(&mut kubewitness).await?;
        kubewitness.kill().await?;
        until(Duration::from_secs(20), "it to end as well", async || {
            let state = of_proc(compiling, "status").unwrap_or_default();
            let is_gone = field(&state, "State:").is_none_or(|state| state.starts_with('Z'));
            Ok(is_gone.then_some(()))
        })
        .await
    })
    .await;
}

#[derive(Clone, Copy, PartialEq)]
enum CompileEnd {
    /// Before the process that compiles is large.
    EarlyKill,
    Kill,
    Stop,
}

#[tokio::test]
async fn a_component_over_which_a_large_compiler_was_killed_twice_is_refused_and_other_ends_do_not_count() {
    in_scratch("compile", async |scratch| {
        let simulator = simulator(scratch).await?;
        let folder = scratch.folder("config")?;
        host_with(&folder, "locals: 50000, loops: 50000, compileMemory: 2Gi")?;
        std::fs::write(folder.join("bomb.wasm"), known_bomb())?;
        write(&folder, "bomb.yaml", &plugin_manifest("bomb", SPEC))?;
        let options = RunOptions {
            // As in a pod: elsewhere a kill is somebody's own.
            env: vec![("KUBERNETES_SERVICE_HOST".to_owned(), "127.0.0.1".to_owned())],
            compiles_anew: true,
            ..simulator.run_options(scratch, folder)?
        };
        let mark = options.data.join("cache/compiling.json");
        let ends = [
            CompileEnd::EarlyKill,
            CompileEnd::Kill,
            CompileEnd::Stop,
            CompileEnd::EarlyKill,
            CompileEnd::Kill,
            CompileEnd::Kill,
        ];
        for (number, end) in ends.into_iter().enumerate() {
            let before = std::fs::read(&mark).ok();
            let mut run = Kubewitness::start(&format!("run-{number}"), &options, scratch.path())?;
            compiling(&mut run).await.with_context(|| format!("run {number} did not compile it"))?;
            if end != CompileEnd::EarlyKill {
                until(Duration::from_secs(60), "the process to be large", async || {
                    Ok((std::fs::read(&mark).ok() != before).then_some(()))
                })
                .await?;
            }
            // As where the kernel ends all of a container: the compiler ends with the controller.
            if end == CompileEnd::Stop {
                run.stop().await?;
            } else {
                run.kill().await?;
            }
            if end == CompileEnd::EarlyKill && std::fs::read(&mark).ok() != before {
                // The kill came late, so it counts. As if it had come early:
                match &before {
                    Some(before) => std::fs::write(&mark, before)?,
                    None => std::fs::remove_file(&mark)?,
                }
            }
        }
        let told =
            "the controller was killed 2 times while it had the component compiled and that took much memory";
        for number in ["the first after it", "one more"] {
            let mut run = Kubewitness::start(&number.replace(' ', "-"), &options, scratch.path())?;
            let looks = compilers_until_refused(&mut run, told).await?;
            ensure!(looks == 0, "{number}: the compiler was seen {looks} times");
            run.stop().await?;
        }
        // As the reason says.
        std::fs::remove_file(options.data.join("cache/refusals.json"))?;
        let mut run = Kubewitness::start("cleared", &options, scratch.path())?;
        compiling(&mut run).await?;
        run.stop().await
    })
    .await;
}
