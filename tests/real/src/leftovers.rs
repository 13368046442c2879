//! Takes away what a run leaves if this process is killed, and so can do nothing more itself.
//!
//! The processes of a run need nobody: the kernel kills each when this one ends ([`bound_command`]). A folder and a mounted
//! disk stay, so a shell waits for the end of this process. It listens to no signal of the terminal.
//!
//! [`bound_command`]: kubewitness_harness::bound_command

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use kubewitness_harness::Scratch;

/// `$1` is the folder, `$2` where a small disk may be mounted in it. The read ends with this process, or with a word from
/// it. A process that was just killed may still write for a moment.
const SCRIPT: &str = r#"
word=
read -r word
[ "$word" = orderly ] && exit 0
sleep 1
umount -l "$2"
rm -rf "$1"
"#;
const ORDERLY: &str = "orderly";

/// While it exists, the folder of a run goes with this process, however that ends. If it is dropped, the folder is its
/// owner's again.
pub struct LeftoverGuard {
    shell: Child,
}

impl LeftoverGuard {
    pub fn of(scratch: &Scratch, disk: &str) -> Result<Self> {
        Self::of_folder(scratch.path(), disk)
    }

    fn of_folder(folder: &Path, disk: &str) -> Result<Self> {
        let mut shell = Command::new("sh");
        shell.args(["-c", SCRIPT, "leftovers"]).arg(folder).arg(folder.join(disk));
        shell.process_group(0).current_dir("/").stdin(Stdio::piped());
        shell.stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self { shell: shell.spawn().context("starting sh")? })
    }
}

impl Drop for LeftoverGuard {
    fn drop(&mut self) {
        let told = self.shell.stdin.take().map(|mut word| writeln!(word, "{ORDERLY}"));
        let ended = self.shell.wait();
        if !matches!((told, ended), (Some(Ok(())), Ok(_))) {
            eprintln!(
                "real: the shell that would remove the folder of a killed run did not end as it should"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kubewitness_harness::until;

    use super::*;

    #[tokio::test]
    async fn the_folder_goes_with_a_process_that_says_nothing_and_stays_otherwise() {
        let scratch = Scratch::new("leftovers").expect("a folder");
        let (kept, lost) =
            (scratch.folder("kept").expect("a folder"), scratch.folder("lost").expect("a folder"));
        drop(LeftoverGuard::of_folder(&kept, "data").expect("starts"));
        let mut of_killed = LeftoverGuard::of_folder(&lost, "data").expect("starts");
        // As the kernel closes it when this process is killed.
        drop(of_killed.shell.stdin.take());
        until(Duration::from_secs(20), "the end of the folder", async || Ok((!lost.exists()).then_some(())))
            .await
            .expect("removed");
        assert!(kept.is_dir());
    }
}
