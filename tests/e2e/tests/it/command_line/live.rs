//! The commands that go on with the live stream, while the controller is killed under them.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_harness::{
    ChildProcess, Kubewitness, ProcessEnd, Simulator, command, in_scratch, kubewitness_binary, until,
};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::support::{create_job, example_copy, simulator};

const WITHIN: Duration = Duration::from_secs(120);

fn lines(text: &str) -> Result<Vec<Value>> {
    text.lines().map(|line| serde_json::from_str(line).with_context(|| line.to_owned())).collect()
}

/// The same position with the mark of another state.
fn wrong_mark(position: &str) -> Result<String> {
    let (seq, mark) = position.split_once('-').context("a position with a mark")?;
    let turned: String = mark.chars().map(|digit| if digit == '0' { '1' } else { '0' }).collect();
    Ok(format!("{seq}-{turned}"))
}

#[tokio::test]
async fn tap_and_wait_go_on_where_they_were_when_the_controller_is_killed() {
    in_scratch("live", async |scratch| {
        let simulator = simulator(scratch).await?;
        create_job(&simulator, "one").await?;
        let options = simulator.run_options(scratch, example_copy(scratch)?)?;
        let mut run = Kubewitness::start("run", &options, scratch.path())?;
        run.caught_up(WITHIN).await?;
        let address = run.address().to_owned();
        let url = format!("http://{address}");
        let start = |name: &str, args: &[&str]| {
            let mut command = Command::new(kubewitness_binary()?);
            ChildProcess::start(name, command.args(args).args(["--server", &url]), scratch.path())
        };
        let mut tap = start("tap", &["tap", "jobs", "--after", "0"])?;
        let mut wait = start("wait", &["wait", "job", "one", "--timeout", "100s"])?;
        tap.line(0, WITHIN, |line| line.contains("\"one\"").then_some(())).await?;
        run.kill().await?;
        let path = "/apis/batch/v1/namespaces/default/jobs/one/status";
        let body =
            json!({"status": {"conditions": [{"type": "Failed", "status": "True", "reason": "Lost"}]}});
        let request = kubewitness_harness::http().patch(format!("{}{path}", simulator.url()));
        let request = request.header("Content-Type", "application/merge-patch+json").body(body.to_string());
        let answer = request.bearer_auth(simulator.token()).send().await?;
        ensure!(answer.status().is_success(), "the simulator answered {}", answer.status());
        create_job(&simulator, "two").await?;
        let mut again = options.command(&address)?;
        let mut again = ChildProcess::start("again", &mut again, scratch.path())?;
        ensure!(wait.wait(WITHIN).await? == ProcessEnd::Code(3), "{}", wait.say());
        ensure!(wait.stdout() == "Failed\n", "{}", wait.say());
        until(WITHIN, "the states of both", async || Ok(tap.stdout().contains("\"two\"").then_some(())))
            .await?;
        let (code, whole, said) = command(&["get", "job/one", "-n", "default", "--server", &url]).await?;
        ensure!(code == Some(0) && whole.contains("Failed"), "{said}");
        let (code, text, said) = command(&["diff", "job/one", "--server", &url]).await?;
        ensure!(code == Some(0) && text.contains("reason: Lost"), "{text}{said}");
        ends_as_it_ended(&simulator, &url).await?;
        let last = lines(&tap.stdout())?.pop().context("a line of tap")?;
        let last = last["position"].as_str().context("the position of the last line")?.to_owned();
        ensure!(tap.terminate(WITHIN).await? == ProcessEnd::Code(0), "{}", tap.say());
        ensure!(tap.stderr().contains(&format!("--after {last}")), "{}", tap.say());
        let (code, _, said) = command(&["tap", "--after", &wrong_mark(&last)?, "--server", &url]).await?;
        ensure!(code == Some(1) && said.contains("the journal was replaced"), "{code:?} {said}");
        let positions: Vec<_> = lines(&tap.stdout())?.iter().map(|state| state["seq"].as_u64()).collect();
        ensure!(positions.len() >= 3, "{positions:?}");
        ensure!(positions.is_sorted_by(|a, b| a < b), "no state comes twice or out of order: {positions:?}");
        ensure!(again.terminate(WITHIN).await? == ProcessEnd::Code(0), "{}", again.say());
        Ok(())
    })
    .await;
}

/// Checks what `wait` prints and how it ends: for a job that still runs, that succeeded, that was deleted,
/// and that is gone.
async fn ends_as_it_ended(simulator: &Simulator, url: &str) -> Result<()> {
    let ask = async |job: &str, timeout: &str| {
        let line = ["wait", "job", job, "-n", "default", "--timeout", timeout, "--server", url];
        let (code, phase, said) = command(&line).await?;
        anyhow::Ok((code, phase.trim_end().to_owned(), said))
    };
    let address = |job: &str| format!("{}/apis/batch/v1/namespaces/default/jobs/{job}", simulator.url());
    let delete = async |job: &str| {
        let request = kubewitness_harness::http().delete(address(job)).bearer_auth(simulator.token());
        anyhow::Ok(request.send().await?.error_for_status().map(drop)?)
    };
    // Long enough to be told a phase on a busy machine.
    let (code, phase, said) = ask("two", "5s").await?;
    ensure!(code == Some(5) && !phase.is_empty(), "a time-out: {code:?} {phase} {said}");
    delete("two").await?;
    let (code, phase, said) = ask("two", "60s").await?;
    ensure!(code == Some(3) && phase == "Deleted", "deleted: {code:?} {phase} {said}");
    delete("one").await?;
    let (code, phase, said) = ask("one", "60s").await?;
    ensure!(code == Some(3) && phase == "Failed", "gone after it failed: {code:?} {phase} {said}");
    create_job(simulator, "three").await?;
    let body = json!({"status": {"succeeded": 1, "conditions": [{"type": "Complete", "status": "True"}]}});
    let request = kubewitness_harness::http().patch(format!("{}/status", address("three")));
    let request = request.header("Content-Type", "application/merge-patch+json").body(body.to_string());
    request.bearer_auth(simulator.token()).send().await?.error_for_status()?;
    for is_gone in [false, true] {
        let (code, phase, said) = ask("three", "60s").await?;
        ensure!(code == Some(0) && phase == "Succeeded", "{is_gone}: {code:?} {phase} {said}");
        if !is_gone {
            delete("three").await?;
        }
    }
    Ok(())
}
