//! Completion in the real shells and by the real kubectl, and the pages for `man`.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kubewitness_harness::{Scratch, command, in_scratch, kubewitness_binary, skip, until_ok};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::process::Command;

use crate::portal::browser::at_a_playground;
use crate::support::witness_job;
use crate::watching::gaps::GapLab;

const WITHIN: Duration = Duration::from_secs(90);

/// bash calls the function of a completion with the program, the word and the one before it.
const IN_BASH: &str = "source <(kubewitness completion bash)
COMP_WORDS=(\"$@\"); COMP_CWORD=$(($#-1)); COMP_TYPE=9
_clap_complete_kubewitness kubewitness \"${!#}\" x
printf '%s\\n' \"${COMPREPLY[@]}\"";

struct Shells<'a> {
    scratch: &'a Scratch,
    path: String,
    server: String,
}

impl<'a> Shells<'a> {
    /// A folder on the PATH that has the program by all of its names.
    fn new(scratch: &'a Scratch, server: String) -> Result<Self> {
        let bin = scratch.folder("bin")?;
        for name in ["kubewitness", "kubectl-kubewitness", "kubectl_complete-kubewitness"] {
            symlink(kubewitness_binary()?, bin.join(name))?;
        }
        let path = std::env::var("PATH").context("a PATH")?;
        Ok(Self { scratch, path: format!("{}:{path}", bin.display()), server })
    }

    /// Returns the output of a program; `None` where it is not on the PATH.
    async fn ask(&self, program: &str, args: &[&str]) -> Result<Option<String>> {
        let mut command = Command::new(program);
        command.args(args).env("PATH", &self.path).env("KUBEWITNESS_SERVER", &self.server);
        command.env("HOME", self.scratch.path()).env_remove("KUBECONFIG").kill_on_drop(true);
        match command.output().await {
            Ok(output) => {
                ensure!(output.status.success(), "{program} {args:?}: {output:?}");
                ensure!(output.stderr.is_empty(), "{program} {args:?}: {output:?}");
                Ok(Some(String::from_utf8(output.stdout)?))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Words that complete the last one, in bash.
    async fn bash(&self, words: &[&str]) -> Result<Vec<String>> {
        let told = self.ask("bash", &[&["-c", IN_BASH, "bash"], words].concat()).await?;
        let told = told.context("bash is everywhere")?;
        Ok(told.split(['\n', '\u{b}']).filter(|word| !word.is_empty()).map(str::to_owned).collect())
    }

    /// Waits until bash completes the last word with these. A completion that takes longer than a second offers
    /// nothing, and on a busy machine one may.
    async fn completes(&self, line: &[&str], words: &[&str]) -> Result<()> {
        until_ok(WITHIN, "the words of a completion", async || {
            let told = self.bash(line).await?;
            ensure!(told == words, "{line:?}: {told:?}");
            Ok(())
        })
        .await
    }

    /// Waits until a program that completes says what fits. `None` where it is not on the PATH.
    async fn says(&self, program: &str, args: &[&str], fits: impl Fn(&str) -> bool) -> Result<Option<()>> {
        until_ok(WITHIN, "the words of a completion", async || {
            let Some(told) = self.ask(program, args).await? else { return Ok(None) };
            ensure!(fits(&told), "{program} {args:?}: {told}");
            Ok(Some(()))
        })
        .await
    }
}

#[tokio::test]
async fn words_are_completed_as_the_controller_knows_them() {
    in_scratch("shells", async |scratch| {
        let mut lab = GapLab::start(scratch).await?;
        for name in ["train-1", "train-2", "serve-1"] {
            witness_job(&lab.simulator, &mut lab.kubewitness, name).await?;
        }
        lab.kubewitness.caught_up(WITHIN).await?;
        let shells = Shells::new(scratch, lab.url())?;
        for (line, words) in [
            (&["kubewitness", "get", "j"][..], &["job"][..]),
            (&["kubewitness", "get", "job", "tr"], &["train-1", "train-2"]),
            (&["kubewitness", "get", "job/se"], &["job/serve-1"]),
            (&["kubewitness", "timeline", "j"], &["job/"]),
            (&["kubewitness", "wait", "job/train-"], &["job/train-1", "job/train-2"]),
            (&["kubewitness", "jobs", "-n", "def"], &["default"]),
            (&["kubewitness", "deadletters", "list", "--plugin", "per"], &["persistence"]),
            (&["kubewitness", "deadl"], &["deadletters"]),
        ] {
            shells.completes(line, words).await?;
        }
        in_fish_and_zsh(&shells).await?;
        in_kubectl(&shells).await?;
        lab.kubewitness.stop().await
    })
    .await;
}

async fn in_fish_and_zsh(shells: &Shells<'_>) -> Result<()> {
    let line = "kubewitness completion fish | source; complete -C 'kubewitness get job tr'";
    let both = |told: &str| told == "train-1\ntrain-2\n";
    if shells.says("fish", &["--no-config", "-c", line], both).await?.is_none() {
        skip("shells::fish", "fish is not on the PATH");
    }
    // zsh gives words to `_describe`; only a terminal shows what that makes of them.
    let line = "autoload -U compinit; compinit -D -u; source <(kubewitness completion zsh)
        _describe() { print -l -- ${(P)3} }; words=(kubewitness get job tr); CURRENT=4; \
        _clap_dynamic_completer_kubewitness";
    let both = |told: &str| told.contains("train-1") && told.contains("train-2");
    if shells.says("zsh", &["-f", "-c", line], both).await?.is_none() {
        skip("shells::zsh", "zsh is not on the PATH");
    }
    Ok(())
}

async fn in_kubectl(shells: &Shells<'_>) -> Result<()> {
    let Some(help) = shells.ask("kubectl", &["kubewitness", "wait", "--help"]).await? else {
        skip("shells::kubectl", "kubectl is not on the PATH");
        return Ok(());
    };
    ensure!(help.contains("Usage: kubectl kubewitness wait"), "{help}");
    let jobs = shells.ask("kubectl", &["kubewitness", "jobs", "-o", "name"]).await?.unwrap_or_default();
    ensure!(jobs.contains("job.batch/train-1\n"), "{jobs}");
    until_ok(WITHIN, "the words of kubectl", async || {
        let mut command = Command::new("kubectl");
        command.args(["__complete", "kubewitness", "get", "job", "tr"]).env("PATH", &shells.path);
        let output = command.env("KUBEWITNESS_SERVER", &shells.server).kill_on_drop(true).output().await?;
        let told = String::from_utf8(output.stdout)?;
        ensure!(told.starts_with("train-1\ntrain-2\n:4"), "{told}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_template_and_its_parameters_are_completed_in_every_shell() {
    in_scratch("shells-submit", async |scratch| {
        at_a_playground(scratch, &[], async |_, portal| {
            let shells = Shells::new(scratch, portal.to_owned())?;
            let submit = ["kubewitness", "submit"];
            // The playground offers its templates a moment after its portal answers.
            until_ok(WITHIN, "the template", async || {
                let told = shells.bash(&[&submit[..], &["tr"]].concat()).await?;
                ensure!(told == ["train"], "{told:?}");
                Ok(())
            })
            .await?;
            for (line, words) in [
                (&["train", "-p", "wor"][..], &["workers="][..]),
                (&["train", "-p", "workers=2", "-p", "wor"], &[]),
                // bash takes a word apart at each `=`, and fills in the last part.
                (&["train", "-p", "workers", "="], &["1"]),
                (&["train", "-p", "workers", "=", "1"], &["1"]),
                (&["train", "-p", "workers", "=", "2", "-p", "wor"], &[]),
                (&["train", "-p", "model", "="], &["bert", "resnet", "whisper"]),
                (&["none", "-p", ""], &[]),
            ] {
                shells.completes(&[&submit[..], line].concat(), words).await?;
            }
            let fish = "kubewitness completion fish | source; complete -C 'kubewitness submit train -p wor'";
            shells.says("fish", &["--no-config", "-c", fish], |told| told == "workers=\n").await?;
            let zsh = "autoload -U compinit; compinit -D -u; source <(kubewitness completion zsh)
                _describe() { print -l -- ${(P)3} \"$4$5.\" }; words=(kubewitness submit train -p wor); CURRENT=5; \
                _clap_dynamic_completer_kubewitness";
            // No space comes behind the word.
            shells.says("zsh", &["-f", "-c", zsh], |told| told == "workers=\n-S.\n").await?;
            let by_kubectl = "kubectl_complete-kubewitness";
            for (word, wanted) in [("wor", "workers=\n:6\n"), ("workers=", "workers=1\n:4\n")] {
                let line = ["submit", "train", "-p", word];
                shells.says(by_kubectl, &line, |told| told == wanted).await?.context(by_kubectl)?;
            }
            Ok(())
        })
        .await
    })
    .await;
}

#[tokio::test]
async fn a_controller_that_does_not_answer_offers_nothing_in_a_second() {
    in_scratch("shells-silent", async |scratch| {
        let deaf = TcpListener::bind("127.0.0.1:0").await?;
        let server = format!("http://{}", deaf.local_addr()?);
        let shells = Shells::new(scratch, server)?;
        let begun = Instant::now();
        let (told, heard) = tokio::join!(shells.bash(&["kubewitness", "get", "job/tr"]), async {
            let (mut stream, _) = deaf.accept().await?;
            let mut bytes = [0; 1024];
            Ok::<_, anyhow::Error>(stream.read(&mut bytes).await?)
        });
        ensure!(heard? > 0 && told?.is_empty(), "a question, and no word of it");
        ensure!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
        drop(deaf);
        let told = shells.bash(&["kubewitness", "get", "job/tr"]).await?;
        ensure!(told.is_empty(), "{told:?}");
        Ok(())
    })
    .await;
}

fn pages(folder: &Path) -> Result<Vec<String>> {
    let names = std::fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names = names.collect::<Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

#[tokio::test]
async fn man_has_a_page_for_each_command() {
    in_scratch("shells-man", async |scratch| {
        let folder = scratch.path().join("man/man1");
        let line = ["man", "--dir", &folder.display().to_string()];
        let (code, _, stderr) = command(&line).await?;
        ensure!(code == Some(2) && stderr.contains("mkdir -p") && !folder.exists(), "{stderr}");
        std::fs::create_dir_all(&folder)?;
        let (code, _, stderr) = command(&line).await?;
        ensure!(code == Some(0), "{stderr}");
        let names = pages(&folder)?;
        for name in ["kubewitness.1", "kubewitness-get.1", "kubewitness-journal-verify.1"] {
            ensure!(names.iter().any(|found| found == name), "{name}: {names:?}");
        }
        ensure!(!names.iter().any(|name| name.contains("compile-component")), "{names:?}");
        let page = std::fs::read_to_string(folder.join("kubewitness-wait.1"))?;
        ensure!(page.contains(".SH OPTIONS") && page.contains("timeout"), "{page}");
        Ok(())
    })
    .await;
}
