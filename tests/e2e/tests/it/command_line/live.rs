//! The commands that go on with the live stream, while the controller is killed under them.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_harness::{
    Ended, Kubewitness, Process, RunOptions, command, in_scratch, kubewitness_binary, until,
};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::support::{create_job, example_copy, simulator};

const WITHIN: Duration = Duration::from_secs(120);

fn lines(text: &str) -> Result<Vec<Value>> {
    text.lines().map(|line| serde_json::from_str(line).with_context(|| line.to_owned())).collect()
}

#[tokio::test]
async fn tap_and_wait_go_on_where_they_were_when_the_controller_is_killed() {
    in_scratch("live", async |scratch| {
        let simulator = simulator(scratch).await?;
        create_job(&simulator, "one").await?;
        let options = RunOptions {
            kubeconfig: simulator.kubeconfig().to_owned(),
            config: Some(example_copy(scratch)?),
            data: scratch.path().join("data"),
            ..RunOptions::default()
        };
        let mut run = Kubewitness::start("run", &options, scratch.path())?;
        run.caught_up(WITHIN).await?;
        let address = run.address().to_owned();
        let url = format!("http://{address}");
        let start = |name: &str, args: &[&str]| {
            let mut command = Command::new(kubewitness_binary()?);
            Process::start(name, command.args(args).args(["--server", &url]), scratch.path())
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
        let mut again = Process::start("again", &mut again, scratch.path())?;
        ensure!(wait.wait(WITHIN).await? == Ended::Code(3), "{}", wait.say());
        ensure!(wait.stdout() == "Failed\n", "{}", wait.say());
        until(WITHIN, "the states of both", async || Ok(tap.stdout().contains("\"two\"").then_some(())))
            .await?;
        let (code, whole, said) = command(&["get", "job/one", "-n", "default", "--server", &url]).await?;
        ensure!(code == Some(0) && whole.contains("Failed"), "{said}");
        let (code, text, said) = command(&["diff", "job/one", "--server", &url]).await?;
        ensure!(code == Some(0) && text.contains("reason: Lost"), "{text}{said}");
        let positions: Vec<_> = lines(&tap.stdout())?.iter().map(|state| state["seq"].as_u64()).collect();
        ensure!(positions.len() >= 3, "{positions:?}");
        ensure!(positions.is_sorted_by(|a, b| a < b), "no state comes twice or out of order: {positions:?}");
        ensure!(again.terminate(WITHIN).await? == Ended::Code(0), "{}", again.say());
        Ok(())
    })
    .await;
}
