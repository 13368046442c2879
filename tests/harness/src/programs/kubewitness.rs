//! Runs the built `kubewitness` as its own process.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use kubewitness_core::views::{PluginView, SourceView, StatusView};
use serde_json::Value;
use tokio::process::Command;

use super::compiled;
use super::process::bound_command;
use crate::{ChildProcess, ProcessEnd, free_port, http, in_time, kubewitness_binary, plugins_folder, until};

/// A debug build may have to compile its plugins when it starts; on a busy machine that takes a while.
const START_WITHIN: Duration = Duration::from_secs(120);
/// Longer than the drain deadline, so that a drain that uses all of it still counts as clean.
const END_WITHIN: Duration = Duration::from_secs(45);

/// The variable for a controller whose Leases, looks and pauses are to be short: tests wait for what they
/// assert.
pub const SHORT_TIMERS: (&str, &str) = ("KUBEWITNESS_TEST_TIMERS", "short");

#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    pub kubeconfig: PathBuf,
    /// Left out: the labelled ConfigMaps of its namespace.
    pub config: Option<PathBuf>,
    pub data: PathBuf,
    /// Left out: the plugins that were built.
    pub plugins: Option<PathBuf>,
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    /// How many files it may have open; `None`: as many as this process may.
    pub files: Option<u32>,
    /// A test of compiling itself: its data folder begins without the code that earlier runs compiled.
    pub compiles_anew: bool,
    /// Whether it waits as long as in production. Otherwise its timers are [`SHORT_TIMERS`].
    pub has_real_timers: bool,
    /// Whether it is a [`bound_command`].
    pub is_bound: bool,
}

impl RunOptions {
    /// The program, and what it is told before anything else.
    fn program(&self) -> Result<Command> {
        let binary = kubewitness_binary()?;
        let start =
            |program: &Path| if self.is_bound { bound_command(program) } else { Command::new(program) };
        let Some(files) = self.files else { return Ok(start(&binary)) };
        let mut command = start(Path::new("sh"));
        command.args(["-c", &format!("ulimit -n {files} && exec \"$@\""), "sh"]).arg(binary);
        Ok(command)
    }

    /// `kubewitness run` as these options have it, with its portal on this address.
    pub fn command(&self, address: &str) -> Result<Command> {
        let mut command = self.program()?;
        command.arg("run").arg("--kubeconfig").arg(&self.kubeconfig);
        if let Some(config) = &self.config {
            command.arg("--config").arg(config);
        }
        command.arg("--data").arg(&self.data).args(["--listen", address]);
        let plugins = self.plugins.clone().map_or_else(plugins_folder, Ok)?;
        command.arg("--plugins").arg(plugins).args(&self.args);
        command.env_remove("KUBECONFIG").env("NO_COLOR", "1");
        if !self.has_real_timers {
            command.env(SHORT_TIMERS.0, SHORT_TIMERS.1);
        }
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        Ok(command)
    }
}

pub struct Kubewitness {
    process: ChildProcess,
    address: String,
    client: reqwest::Client,
    /// The data folder whose compiled code is kept for later runs.
    compiles_in: Option<PathBuf>,
}

impl Drop for Kubewitness {
    fn drop(&mut self) {
        self.keep_compiled();
    }
}

impl Kubewitness {
    /// Starts it and returns at once; `name` names the logs in `logs`.
    pub fn start(name: &str, options: &RunOptions, logs: &Path) -> Result<Self> {
        Self::start_at(name, options, &format!("127.0.0.1:{}", free_port()?), logs)
    }

    /// The same where another one was.
    pub fn start_at(name: &str, options: &RunOptions, address: &str, logs: &Path) -> Result<Self> {
        let mut command = options.command(address)?;
        command.env("HOME", logs);
        let compiles_in = Some(options.data.clone()).filter(|_| !options.compiles_anew);
        if let Some(data) = &compiles_in {
            compiled::seed(data)?;
        }
        let process = ChildProcess::start(name, &mut command, logs)?;
        Ok(Self { process, address: address.to_owned(), client: http(), compiles_in })
    }

    /// Without the code the next runs take longer, which fails no test.
    fn keep_compiled(&self) {
        if let Some(Err(error)) = self.compiles_in.as_deref().map(compiled::harvest) {
            eprintln!("compiled plugins are not kept: {error:#}");
        }
    }

    pub fn process(&mut self) -> &mut ChildProcess {
        &mut self.process
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    pub async fn get(&self, path: &str) -> Result<(u16, String)> {
        let response = self.client.get(format!("http://{}{path}", self.address)).send().await?;
        Ok((response.status().as_u16(), response.text().await?))
    }

    pub async fn status(&self) -> Result<StatusView> {
        let (code, text) = self.get("/api/v1/status").await?;
        if code != 200 {
            bail!("/api/v1/status answered {code}: {text}");
        }
        serde_json::from_str(&text).with_context(|| format!("the status {text}"))
    }

    /// Waits until it answers.
    pub async fn answers(&mut self) -> Result<StatusView> {
        let (client, address) = (self.client.clone(), self.address.clone());
        let process = &mut self.process;
        let answer = until(START_WITHIN, "kubewitness to answer", async || {
            if let Some(ended) = process.ended()? {
                bail!("it ended with {ended:?}");
            }
            let Ok(response) = client.get(format!("http://{address}/api/v1/status")).send().await else {
                return Ok(None);
            };
            Ok(response.json().await.ok())
        });
        let answer = answer.await;
        answer.with_context(|| self.process.say())
    }

    /// Waits for a status that `holds`; past the deadline the last one is told.
    pub async fn status_when(
        &mut self,
        within: Duration,
        what: &str,
        holds: impl Fn(&StatusView) -> bool,
    ) -> Result<StatusView> {
        let mut last = None;
        let status = until(within, what, async || {
            if let Some(ended) = self.process.ended()? {
                bail!("it ended with {ended:?}");
            }
            match self.status().await {
                Ok(status) if holds(&status) => return Ok(Some(status)),
                Ok(status) => last = Some(anyhow!("the status is {}", serde_json::to_string(&status)?)),
                Err(error) => last = Some(error),
            }
            Ok(None)
        });
        let status = status.await.map_err(|late| match last {
            Some(last) => last.context(late),
            None => late,
        });
        // Early, for tests that run beside this one.
        self.keep_compiled();
        status.with_context(|| self.process.say())
    }

    /// Waits until so many sources have made their first lists: what was there before is no version of
    /// a story that a test may ask for.
    pub async fn listed(&mut self, sources: usize, within: Duration) -> Result<StatusView> {
        self.status_when(within, "the first lists", |status| {
            let listed = |source: &SourceView| source.synced && !source.checkpoint.is_empty();
            status.sources.len() == sources && status.sources.iter().all(listed)
        })
        .await
    }

    /// Waits until every source is synced and every plugin has finished what is in the journal. What was made a
    /// moment ago may not be there yet.
    pub async fn caught_up(&mut self, within: Duration) -> Result<StatusView> {
        self.status_when(within, "everything to be delivered", |status| {
            let sources = !status.sources.is_empty()
                && status.sources.iter().all(|source| source.synced && source.walking == 0);
            sources && !status.plugins.is_empty() && status.plugins.iter().all(has_finished)
        })
        .await
    }

    pub async fn kill(&mut self) -> Result<()> {
        self.process.kill().await
    }

    /// SIGTERM; anything but a clean end with 0 is an error.
    pub async fn stop(&mut self) -> Result<()> {
        let ended = self.process.terminate(END_WITHIN).await?;
        if ended != ProcessEnd::Code(0) {
            bail!("it ended with {ended:?} after SIGTERM; {}", self.process.say());
        }
        Ok(())
    }
}

/// Nothing waits for a plugin that is still being compiled, or that has not read yet what came last.
fn has_finished(plugin: &PluginView) -> bool {
    let has_read_all = match plugin.state.as_str() {
        "starting" => false,
        // It reads nothing.
        "failed" => true,
        _ => plugin.lag_seq == 0,
    };
    has_read_all && plugin.waiting == 0
}

/// Runs `kubewitness ARGS` to its end.
pub async fn command(args: &[&str]) -> Result<(Option<i32>, String, String)> {
    command_in(args, &[]).await
}

/// The same in an environment that has more.
pub async fn command_in(args: &[&str], env: &[(String, String)]) -> Result<(Option<i32>, String, String)> {
    let mut command = Command::new(kubewitness_binary()?);
    command
        .args(args)
        .envs(env.iter().cloned())
        .env_remove("KUBECONFIG")
        .env("NO_COLOR", "1")
        .kill_on_drop(true);
    let output = in_time(START_WITHIN, command.output())
        .await
        .with_context(|| format!("`kubewitness {}` does not end", args.join(" ")))??;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok((output.status.code(), text(&output.stdout), text(&output.stderr)))
}

/// The same, where it must succeed and answer with JSON.
pub async fn command_json(args: &[&str]) -> Result<Value> {
    command_json_in(args, &[]).await
}

pub async fn command_json_in(args: &[&str], env: &[(String, String)]) -> Result<Value> {
    let (code, stdout, stderr) = command_in(args, env).await?;
    if code != Some(0) {
        bail!("`kubewitness {}` ended with {code:?}: {stdout}{stderr}", args.join(" "));
    }
    serde_json::from_str(&stdout)
        .with_context(|| format!("`kubewitness {}` printed {stdout}", args.join(" ")))
}
