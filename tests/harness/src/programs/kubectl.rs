//! Runs the real kubectl with a home of its own, so that no configuration of the machine leaks in.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::{ChildProcess, in_time};

/// kubectl itself gives up later than this in hardly any command.
const WITHIN: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
    home: PathBuf,
}

/// The result of a run of it.
#[derive(Clone, Debug)]
pub struct KubectlRun {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Kubectl {
    /// `None` where no kubectl is on the PATH.
    pub fn find(kubeconfig: &Path, home: &Path) -> Option<Self> {
        let paths = std::env::var_os("PATH")?;
        let program =
            std::env::split_paths(&paths).map(|folder| folder.join("kubectl")).find(|path| path.is_file())?;
        Some(Self { program, kubeconfig: kubeconfig.to_path_buf(), home: home.to_path_buf() })
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(args)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", &self.home)
            .env("KUBECONFIG", &self.kubeconfig);
        command
    }

    /// Runs it to its end; `input` is what `-f -` reads.
    pub async fn run(&self, args: &[&str], input: &str) -> Result<KubectlRun> {
        let mut child = self
            .command(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("starting kubectl")?;
        let mut stdin = child.stdin.take().context("kubectl's input")?;
        let ran = async {
            // A kubectl that reads no input closes it: that is not an error of the test.
            stdin.write_all(input.as_bytes()).await.ok();
            drop(stdin);
            child.wait_with_output().await
        };
        let output = in_time(WITHIN, ran)
            .await
            .with_context(|| format!("`kubectl {}` has not ended within {WITHIN:?}", args.join(" ")))??;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(KubectlRun {
            code: output.status.code(),
            stdout: text(&output.stdout),
            stderr: text(&output.stderr),
        })
    }

    /// Runs it and gives its output; anything but success is an error with what it said.
    pub async fn ok(&self, args: &[&str]) -> Result<String> {
        self.ok_with(args, "").await
    }

    pub async fn ok_with(&self, args: &[&str], input: &str) -> Result<String> {
        let ran = self.run(args, input).await?;
        if ran.code != Some(0) {
            bail!("`kubectl {}` ended with {:?}: {}{}", args.join(" "), ran.code, ran.stdout, ran.stderr);
        }
        Ok(ran.stdout)
    }

    /// Runs it and gives what it said while it failed; success is an error.
    pub async fn fails(&self, args: &[&str], input: &str) -> Result<String> {
        let ran = self.run(args, input).await?;
        if ran.code == Some(0) {
            bail!("`kubectl {}` succeeded: {}", args.join(" "), ran.stdout);
        }
        Ok(ran.stderr)
    }

    /// Starts it and lets it run (`get -w`).
    pub fn start(&self, name: &str, args: &[&str]) -> Result<ChildProcess> {
        ChildProcess::start(name, &mut self.command(args), &self.home)
    }
}
