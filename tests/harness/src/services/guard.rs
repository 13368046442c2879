//! Starts a server under a shell that ends it when the test's process ends.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Servers refuse to run as root. This user is everywhere and owns nothing.
const NOBODY: &str = "nobody";

/// `$1`: its folder, `$2`: its log, then the server's command. The read ends when the test's process
/// does, however that was, or when it says that the folder is kept.
const SCRIPT: &str = r#"
folder=$1 log=$2
shift 2
"$@" </dev/null >>"$log" 2>&1 &
server=$!
echo "$server"
exec >/dev/null
word=
read -r word
kill -9 $(cat "/proc/$server/task/$server/children" 2>/dev/null) "$server" 2>/dev/null
wait "$server" 2>/dev/null
[ "$word" = keep ] || rm -rf "$folder"
"#;

pub struct ServiceGuard {
    shell: Child,
    pub pid: u32,
}

impl ServiceGuard {
    pub fn start(command: &[String], folder: &Path, log: &Path) -> Result<Self> {
        let mut shell = Command::new("sh");
        shell.args(["-c", SCRIPT, "guard"]).arg(folder).arg(log).args(unprivileged()).args(command);
        // A Ctrl-C in the terminal ends the test; the guard has to outlive it.
        shell.process_group(0).current_dir(folder).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = shell.stderr(Stdio::null()).spawn().context("starting sh")?;
        let stdout = shell.stdout.take().context("the guard's output")?;
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line)?;
        let pid = line.trim().parse().with_context(|| format!("the guard said `{line}`"))?;
        Ok(Self { shell, pid })
    }

    /// Ends the server, waits until all its processes are gone, and leaves its folder.
    pub fn end(mut self, signal_name: &str, within: Duration) -> Result<()> {
        let family = family(self.pid);
        if signal_name == "KILL" {
            // Also to one that is paused, which does nothing more.
            signal(signal_name, &family)?;
        } else {
            // One that is paused would not hear it; and its processes it tells itself.
            signal("CONT", &family)?;
            signal(signal_name, &[self.pid])?;
        }
        let deadline = Instant::now() + within;
        let mut result = Ok(());
        while let Some(alive) = family.iter().find(|pid| is_alive(**pid)) {
            if Instant::now() > deadline {
                result = Err(anyhow::anyhow!("process {alive} has not ended {within:?} after {signal_name}"));
                break;
            }
            std::thread::sleep(super::PAUSE);
        }
        if let Some(mut word) = self.shell.stdin.take() {
            writeln!(word, "keep").context("telling the guard")?;
        }
        self.shell.wait().context("waiting for the guard")?;
        result
    }

    /// Ends the server at once and removes its folder.
    pub fn clean_up(mut self) {
        drop(self.shell.stdin.take());
        if let Err(error) = self.shell.wait() {
            eprintln!("the guard of a server can't be waited for: {error}");
        }
    }
}

fn is_root() -> bool {
    static IS_ROOT: LazyLock<bool> = LazyLock::new(|| {
        let output = Command::new("id").arg("-u").output();
        output.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
    });
    *IS_ROOT
}

/// Returns the words that come before the command of a server.
fn unprivileged() -> Vec<String> {
    static WORDS: LazyLock<Vec<String>> = LazyLock::new(|| {
        let of = |flag: &str| {
            let output = Command::new("id").args([flag, NOBODY]).output();
            output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
        };
        let (user, group) = (of("-u"), of("-g"));
        ["setpriv", "--reuid", &user, "--regid", &group, "--clear-groups", "--"].map(str::to_owned).to_vec()
    });
    if is_root() { WORDS.clone() } else { Vec::new() }
}

/// As the server's user, in its folder.
pub fn command(folder: &Path, program: &Path) -> Command {
    let mut words = unprivileged().into_iter();
    let mut command = match words.next() {
        Some(first) => {
            let mut command = Command::new(first);
            command.args(words).arg(program);
            command
        }
        None => Command::new(program),
    };
    command.current_dir(folder).env("TMPDIR", folder).env("HOME", folder);
    command
}

/// Makes the server's user the owner of a folder and of what is in it.
pub fn give_away(folder: &Path) -> Result<()> {
    if is_root() {
        let mut chown = Command::new("chown");
        super::output(chown.args(["-R", NOBODY]).arg(folder))?;
    }
    Ok(())
}

/// A server and its direct children, which is all that these servers have.
pub fn family(pid: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let children = children.split_whitespace().filter_map(|word| word.parse().ok());
    std::iter::once(pid).chain(children).collect()
}

/// One that has ended and that nobody has waited for yet counts as ended.
pub fn is_alive(pid: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}

/// Stops a server and its children, and waits until they stand still. The server comes first: one that
/// goes on may start a child that nobody would stop.
pub fn freeze(server: u32, within: Duration) -> Result<()> {
    stand_still(&[server], within)?;
    stand_still(&family(server), within)
}

/// A thread goes on until it is next scheduled.
fn stand_still(pids: &[u32], within: Duration) -> Result<()> {
    signal("STOP", pids)?;
    let deadline = Instant::now() + within;
    while !pids.iter().all(|pid| !is_alive(*pid) || is_frozen(*pid)) {
        if Instant::now() > deadline {
            bail!("{pids:?} do not stand still");
        }
        std::thread::sleep(super::PAUSE);
    }
    Ok(())
}

fn is_frozen(pid: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    threads.flatten().all(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // One that has ended meanwhile does nothing either.
        stat.is_empty() || stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    })
}

/// To each of these that is still there.
pub fn signal(name: &str, pids: &[u32]) -> Result<()> {
    for pid in pids.iter().filter(|pid| is_alive(**pid)) {
        let mut kill = Command::new("sh");
        kill.args(["-c", &format!("kill -{name} {pid}")]).stderr(Stdio::null());
        if !kill.status().context("starting sh")?.success() && is_alive(*pid) {
            bail!("`kill -{name} {pid}` failed");
        }
    }
    Ok(())
}
