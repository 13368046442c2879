//! A program as its own process. It is ended by its process id, and its output goes into files.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};

use crate::{in_time, until};

/// How much of a log is shown when something fails.
const TAIL: usize = 4096;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessEnd {
    Code(i32),
    Signal,
}

impl From<ExitStatus> for ProcessEnd {
    fn from(status: ExitStatus) -> Self {
        status.code().map_or(Self::Signal, Self::Code)
    }
}

pub struct ChildProcess {
    name: String,
    child: Child,
    stdout: PathBuf,
    stderr: PathBuf,
    ended: Option<ProcessEnd>,
}

/// Among the signals that a process ignores, as the kernel tells them.
const INTERRUPT: u64 = 1 << 1;

/// Lets children hear interrupts, which a script's background jobs ignore. Children ignore what their parent
/// ignores, and do not inherit what it listens to. Where nothing is ignored, nothing is changed: a person who
/// interrupts the suite means it.
fn let_children_hear_interrupts() -> Result<()> {
    let status =
        std::fs::read_to_string("/proc/self/status").context("looking at the signals of the suite")?;
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    if ignored.context("the kernel does not tell what is ignored")? & INTERRUPT != 0 {
        // Who listens once listens for the life of the process.
        drop(signal(SignalKind::interrupt()).context("listening to interrupts")?);
    }
    Ok(())
}

/// A program that a Ctrl-C in the terminal does not reach, and that the kernel kills when the thread that starts it ends.
/// So its parent decides when it ends, and a parent that is killed leaves nothing behind.
pub fn bound_command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program).process_group(0);
    command
}

impl ChildProcess {
    /// Starts it; its output goes to `NAME.out` and `NAME.err` in `logs`, after what is there.
    pub fn start(name: &str, command: &mut Command, logs: &Path) -> Result<Self> {
        let (stdout, stderr) = (logs.join(format!("{name}.out")), logs.join(format!("{name}.err")));
        let_children_hear_interrupts()?;
        let append = |path: &Path| {
            File::options()
                .create(true)
                .append(true)
                .open(path)
                .with_context(|| format!("opening {}", path.display()))
        };
        let child = command
            .stdin(Stdio::null())
            .stdout(append(&stdout)?)
            .stderr(append(&stderr)?)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("starting {:?}", command.as_std().get_program()))?;
        Ok(Self { name: name.to_owned(), child, stdout, stderr, ended: None })
    }

    pub fn pid(&self) -> Result<u32> {
        self.child.id().with_context(|| format!("{} has ended", self.name))
    }

    /// Waits for a line of standard output (from byte `from` of the file on) that `pick` takes.
    pub async fn line<T>(
        &mut self,
        from: u64,
        within: Duration,
        pick: impl Fn(&str) -> Option<T>,
    ) -> Result<T> {
        let path = self.stdout.clone();
        let found = until(within, "a line of its output", async || {
            // Asked first: of one that has ended, all that it has said is in the file.
            let ended = self.ended()?;
            let text = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
            let text = String::from_utf8_lossy(&text[(from as usize).min(text.len())..]).into_owned();
            let whole = text.rfind('\n').map_or("", |end| &text[..end]);
            if let Some(found) = whole.lines().find_map(&pick) {
                return Ok(Some(found));
            }
            if let Some(ended) = ended {
                bail!("it ended with {ended:?}");
            }
            Ok(None)
        });
        let found = found.await;
        found.with_context(|| self.say())
    }

    /// `None` while it runs.
    pub fn ended(&mut self) -> Result<Option<ProcessEnd>> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait()?.map(ProcessEnd::from);
        }
        Ok(self.ended)
    }

    /// SIGKILL, and waits until it is gone.
    pub async fn kill(&mut self) -> Result<()> {
        self.child.start_kill().with_context(|| format!("killing {}", self.name))?;
        self.ended = Some(self.child.wait().await?.into());
        Ok(())
    }

    pub async fn signal(&self, signal: &str) -> Result<()> {
        let command = format!("kill -{signal} {}", self.pid()?);
        let status = Command::new("sh").args(["-c", &command]).status().await.context("starting sh")?;
        if !status.success() {
            bail!("`{command}` failed");
        }
        Ok(())
    }

    /// SIGTERM, and how it ended within the deadline.
    pub async fn terminate(&mut self, within: Duration) -> Result<ProcessEnd> {
        self.signal("TERM").await?;
        self.wait(within).await
    }

    pub async fn wait(&mut self, within: Duration) -> Result<ProcessEnd> {
        if let Some(ended) = self.ended {
            return Ok(ended);
        }
        match in_time(within, self.child.wait()).await {
            Some(status) => {
                let ended = status?.into();
                self.ended = Some(ended);
                Ok(ended)
            }
            None => bail!("{} has not ended within {within:?}; {}", self.name, self.say()),
        }
    }

    pub fn stdout(&self) -> String {
        read(&self.stdout)
    }

    pub fn stderr(&self) -> String {
        read(&self.stderr)
    }

    /// The end of both logs, for error messages.
    pub fn say(&self) -> String {
        let (out, err) = (self.stdout(), self.stderr());
        format!("{} said:\n--- stdout\n{}\n--- stderr\n{}", self.name, tail(&out), tail(&err))
    }
}

fn read(path: &Path) -> String {
    std::fs::read(path)
        .map_or_else(|error| format!("({error})"), |text| String::from_utf8_lossy(&text).into_owned())
}

fn tail(text: &str) -> &str {
    let mut start = text.len().saturating_sub(TAIL);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scratch;

    fn sh(scratch: &Scratch, script: &str) -> ChildProcess {
        ChildProcess::start("sh", Command::new("sh").args(["-c", script]), scratch.path()).expect("starts")
    }

    #[tokio::test]
    async fn a_line_is_waited_for_and_the_signal_is_heard() {
        let scratch = Scratch::new("process").expect("a folder");
        let mut process = sh(&scratch, "trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done");
        let ready = process.line(0, Duration::from_secs(10), |line| (line == "ready").then_some(())).await;
        ready.expect("says ready");
        assert_eq!(process.terminate(Duration::from_secs(10)).await.expect("ends"), ProcessEnd::Code(7));
    }

    #[tokio::test]
    async fn a_program_that_ends_before_its_line_is_told_with_what_it_said() {
        let scratch = Scratch::new("process").expect("a folder");
        let mut process = sh(&scratch, "echo broken >&2; exit 3");
        let line = process.line(0, Duration::from_secs(10), |_| None::<()>).await;
        let text = format!("{:#}", line.expect_err("never says it"));
        assert!(text.contains("Code(3)") && text.contains("broken"), "{text}");
    }

    #[tokio::test]
    async fn a_child_hears_an_interrupt() {
        let scratch = Scratch::new("process").expect("a folder");
        let mut process = sh(&scratch, "exec sleep 60");
        process.signal("INT").await.expect("is sent");
        assert_eq!(process.wait(Duration::from_secs(10)).await.expect("ends"), ProcessEnd::Signal);
    }

    /// As a script starts what it puts into the background.
    #[tokio::test]
    async fn a_child_hears_an_interrupt_where_the_suite_itself_ignores_them() {
        let suite = std::env::current_exe().expect("its own name");
        let again = "trap '' INT; exec \"$0\" --exact programs::process::tests::a_child_hears_an_interrupt";
        let output = Command::new("sh").args(["-c", again]).arg(suite).output().await.expect("starts");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
    }

    /// The thread takes the place of a process that is killed: neither ends its children.
    #[tokio::test]
    #[allow(clippy::disallowed_methods, reason = "the thread of a test ends within it")]
    async fn a_bound_program_has_its_own_group_and_ends_with_its_parent() {
        let scratch = Scratch::new("process").expect("a folder");
        let logs = scratch.path().to_owned();
        let parent = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let mut script = bound_command("sh");
                script.args(["-c", "ps -o pgid= -p $$; exec sleep 60"]);
                let mut child = ChildProcess::start("child", &mut script, &logs).expect("starts");
                let group = child.line(0, Duration::from_secs(10), |line| Some(line.trim().to_owned())).await;
                let pid = child.pid().expect("runs").to_string();
                std::mem::forget(child);
                (group.expect("a group"), pid)
            })
        });
        let (group, pid) = parent.join().expect("no panic");
        assert_eq!(group, pid);
        until(Duration::from_secs(10), "the end of the child", async || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            Ok((stat.is_empty() || stat.contains(") Z ")).then_some(()))
        })
        .await
        .expect("ended with its parent");
    }

    #[tokio::test]
    async fn a_killed_process_is_gone() {
        let scratch = Scratch::new("process").expect("a folder");
        let mut process = sh(&scratch, "sleep 60");
        process.kill().await.expect("is killed");
        assert_eq!(process.ended().expect("known"), Some(ProcessEnd::Signal));
        assert!(process.pid().is_err());
    }
}
