//! The commands as people and scripts call them: on a narrow terminal, into a pipe that closes, with kubectl's words.

use anyhow::{Result, ensure};
use kubewitness_core::views::ObjectView;
use kubewitness_harness::{command, in_scratch, kubewitness_binary, skip};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::process::Command;

use crate::support::witness_job;
use crate::watching::gaps::{GapLab, a_hole};

const LONG: &str = "llama-70b-finetune-with-a-name-that-is-long-r7k2x";

/// Returns what a command prints on a terminal; `None` where no program makes one.
pub(super) async fn on_a_terminal(line: &str, env: &[(&str, &str)]) -> Result<Option<String>> {
    let line = format!("{} {line}", kubewitness_binary()?.display());
    let mut script = Command::new("script");
    script.args(["-qec", &line, "/dev/null"]).env_remove("NO_COLOR").env("TERM", "xterm");
    match script.envs(env.iter().copied()).kill_on_drop(true).output().await {
        Ok(output) => Ok(Some(String::from_utf8_lossy(&output.stdout).into_owned())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[tokio::test]
async fn lists_take_the_words_of_kubectl() {
    in_scratch("manners-words", async |scratch| {
        let mut lab = GapLab::start(scratch).await?;
        a_hole(&mut lab, "train-1").await?;
        witness_job(&lab.simulator, &mut lab.kubewitness, LONG).await?;
        lab.kubewitness.caught_up(std::time::Duration::from_secs(90)).await?;
        for line in [
            &["jobs", "train-1", "-o", "name"][..],
            &["jobs", "job/train-1", "-n", "default", "-o", "name"],
            &["get", "job", "train-1", "-A", "-o", "name"],
            &["get", "jobs.batch/train-1", "-o", "name"],
        ] {
            let told = lab.ask(line).await?;
            ensure!(told == "job.batch/train-1\n", "{line:?}: {told}");
        }
        let wide = lab.ask(&["jobs", "-A", "-o", "wide"]).await?;
        ensure!(wide.contains("UID") && wide.contains(LONG), "{wide}");
        for line in [
            &["gaps", "job/train-1"][..],
            &["gaps", "job", "train-1", "-A"],
            &["gaps", "jobs", "-n", "default", "-l", "!nothing"],
        ] {
            let told = lab.ask(line).await?;
            ensure!(told.contains("Job/default/train-1") || told.contains("train-1"), "{line:?}: {told}");
        }
        let none = lab.ask(&["gaps", "-l", "team=nobody"]).await?;
        ensure!(none.starts_with("no gap with the labels team=nobody, for itself"), "{none}");
        let url = lab.url();
        for line in [&["tap", "foo"][..], &["tap", "--source", "foo"], &["wait", "foo/x"]] {
            let (code, _, told) = command(&[line, &["--server", &url]].concat()).await?;
            ensure!(code == Some(2) && told.contains("`foo`"), "{line:?} ended with {code:?}: {told}");
        }
        let letters = lab.ask(&["deadletters", "list", "-n", "default"]).await?;
        ensure!(letters == "there are no dead letters\n", "{letters}");
        lab.kubewitness.stop().await
    })
    .await;
}

#[tokio::test]
async fn output_fits_its_reader() {
    in_scratch("manners-reader", async |scratch| {
        let mut lab = GapLab::start(scratch).await?;
        witness_job(&lab.simulator, &mut lab.kubewitness, LONG).await?;
        lab.kubewitness.caught_up(std::time::Duration::from_secs(90)).await?;
        let line = format!("jobs --server {}", lab.url());
        let Some(narrow) = on_a_terminal(&line, &[("COLUMNS", "72")]).await? else {
            skip("manners::output_fits_its_reader", "the program `script` is not on the PATH");
            return lab.kubewitness.stop().await;
        };
        ensure!(narrow.contains('…') && narrow.contains("-r7k2x"), "{narrow}");
        ensure!(narrow.lines().all(|line| line.trim_end().chars().count() <= 72), "{narrow}");
        let broad = on_a_terminal(&line, &[("COLUMNS", "200")]).await?.unwrap_or_default();
        ensure!(broad.contains(LONG), "{broad}");
        let piped = lab.ask(&["jobs"]).await?;
        ensure!(piped.contains(LONG), "a pipe gets every character: {piped}");

        let data = scratch.path().join("data");
        let verify = format!("journal verify --data {}", data.display());
        let coloured = on_a_terminal(&verify, &[]).await?.unwrap_or_default();
        ensure!(coloured.contains("\u{1b}[32m✓"), "{coloured:?}");
        for plain in [[("NO_COLOR", "1")], [("TERM", "dumb")]] {
            let told = on_a_terminal(&verify, &plain).await?.unwrap_or_default();
            ensure!(told.starts_with('✓'), "{told:?}");
        }

        // A reader that leaves after a byte is not an error.
        let pipe = format!("set -o pipefail; {} {line} -o json | head -c 1", kubewitness_binary()?.display());
        let output = Command::new("bash").args(["-c", &pipe]).kill_on_drop(true).output().await?;
        ensure!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        // One that looks again and again ends, too.
        let watch = format!("status -w --server {}", lab.url());
        let pipe =
            format!("set -o pipefail; timeout 60 {} {watch} | head -c 1", kubewitness_binary()?.display());
        let output = Command::new("bash").args(["-c", &pipe]).kill_on_drop(true).output().await?;
        ensure!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        lab.kubewitness.stop().await
    })
    .await;
}

#[tokio::test]
async fn a_closed_pipe_ends_every_command_without_a_panic() {
    in_scratch("manners-closed", async |scratch| {
        let trail = scratch.path().join("trail.jsonl");
        tokio::fs::write(&trail, "{}\n").await?;
        let show = format!("audit show {}", trail.display());
        for (line, expected) in [
            ("completion bash", 0),
            ("plugin --help", 0),
            ("deadletters show x", 2),
            ("get jobs --server http://127.0.0.1:1", 1),
            (&show, 3),
        ] {
            // Both outputs, as with `2>&1 | head`.
            let (reader, writer) = std::io::pipe()?;
            drop(reader);
            let mut command = Command::new(kubewitness_binary()?);
            command.args(line.split(' ')).stdout(writer.try_clone()?).stderr(writer);
            let code = command.kill_on_drop(true).status().await?.code();
            ensure!(code == Some(expected), "`{line}` ended with {code:?}");
        }
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_terminal_obeys_nothing_that_a_server_or_an_object_says() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    let told = async {
        for line in ["get jobs -o json", "get job x -o json", "get jobs -o yaml", "timeline job/x", "poison"]
        {
            let Some(told) = on_a_terminal(&format!("{line} --server {server}"), &[]).await? else {
                skip("manners::a_terminal_obeys_nothing", "the program `script` is not on the PATH");
                return Ok(());
            };
            let obeyed = |c: char| c.is_control() && !"\r\n\t".contains(c) || "\u{202e}\u{2066}".contains(c);
            ensure!(!told.chars().any(obeyed) && told.contains("31m"), "{line}: {told:?}");
        }
        anyhow::Ok(())
    };
    tokio::select! {
        told = told => told.unwrap(),
        ended = hostile(listener) => ended.unwrap(),
    }
}

/// A controller of which each answer has what a terminal obeys: in JSON's own escapes, and as it is.
async fn hostile(listener: TcpListener) -> std::io::Result<()> {
    const EVIL: &str = "x\u{9b}31m\u{202e}\u{2066}";
    loop {
        let (mut stream, _) = listener.accept().await?;
        let mut request = vec![0; 4096];
        let read = stream.read(&mut request).await?;
        let request = String::from_utf8_lossy(&request[..read]).into_owned();
        let path = request.split([' ', '?']).nth(1).unwrap_or_default();
        let (status, body) = match path.trim_start_matches("/api/v1/") {
            "objects" => {
                let object = ObjectView { seq: 7, ..super::narrow::object("default", EVIL, "Running") };
                ("200 OK", serde_json::json!([object]).to_string())
            }
            "states/7/document" => ("200 OK", format!(r#"{{"metadata":{{"name":"\u001b[31m{EVIL}"}}}}"#)),
            _ => ("404 Not Found", format!(r#"{{"error":{{"message":"{EVIL}"}}}}"#)),
        };
        let head = format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nConnection: close\r\n");
        let answer = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
        stream.write_all(answer.as_bytes()).await?;
    }
}
