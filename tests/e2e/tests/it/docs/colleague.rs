//! The page "give a colleague one namespace": its commands in order, with the real kubectl. What a test does not have is
//! replaced: the way into a pod, the portal's public name, and the user `ann`, who is a service account here.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_harness::{
    Kubewitness, RunOptions, in_scratch, in_time, kubewitness_binary, project_root, until, until_ok,
};
use tokio::process::Command;

use super::page::Page;
use crate::deployment::cluster::ClusterLab;

const WITHIN: Duration = Duration::from_secs(90);
const PAGE: &str = "docs/how-to/give-a-colleague-one-namespace.md";
const ANN: &str = "system:serviceaccount:default:a-user";

const REPLACED: &str = r#"
kubectl() { command kubectl "${@/--user=ann/--user=$ANN}"; }
kubewitness() {
    local words=()
    while [ $# -gt 0 ]; do
        case $1 in
            --context | --server) shift ;;
            dashboard) words+=(dashboard --no-open) ;;
            *) words+=("$1") ;;
        esac
        shift
    done
    KUBEWITNESS_TOKEN=${KUBEWITNESS_TOKEN:-$ANNS_TOKEN} command kubewitness "${words[@]}" --server "$PORTAL"
}
"#;

const JOB: &str = r#"{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"train-team-a"},"spec":{"template":{
    "spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}}"#;

#[tokio::test]
async fn a_colleague_is_given_one_namespace_by_the_commands_of_the_page() {
    in_scratch("colleague", async |scratch| {
        let test = "a_colleague_is_given_one_namespace_by_the_commands_of_the_page";
        let Some(lab) = ClusterLab::of("kustomize", scratch, test).await? else { return Ok(()) };
        lab.kubectl.ok(&["create", "namespace", "team-a"]).await?;
        lab.kubectl.ok_with(&["-n", "team-a", "create", "-f", "-"], JOB).await?;
        lab.kubectl.ok(&["-n", "default", "create", "serviceaccount", "a-user"]).await?;
        let token = lab.token_of("default", "a-user", &[]).await?;
        let options = RunOptions {
            kubeconfig: lab.kubeconfig("service-account.kubeconfig", false).await?,
            data: scratch.folder("data")?,
            args: ["--auth", "kubernetes"].map(str::to_owned).into(),
            ..RunOptions::default()
        };
        let mut run = Kubewitness::start("run", &options, scratch.path())?;
        let portal = format!("http://{}", run.address());
        let jobs = async |token: &str| {
            let asked = kubewitness_harness::http().get(format!("{portal}/api/v1/objects?kind=Job"));
            let answer = asked.bearer_auth(token).send().await?.error_for_status()?;
            anyhow::Ok(answer.text().await?)
        };
        until(WITHIN, "the job to be witnessed", async || {
            let seen = jobs(lab.simulator.token()).await.is_ok_and(|seen| seen.contains("train-team-a"));
            Ok(seen.then_some(()))
        })
        .await?;

        let kubeconfig = lab.simulator.kubeconfig().to_string_lossy().into_owned();
        let said = follow(&[
            ("PORTAL", &portal),
            ("ANN", ANN),
            ("ANNS_TOKEN", &token),
            ("KUBECONFIG", &kubeconfig),
            ("HOME", &scratch.path().to_string_lossy()),
        ])
        .await?;
        ensure!(said.matches("train-team-a").count() == 2, "the user and the account see the job: {said}");
        ensure!(said.contains("/login/once?code="), "{said}");
        // The page ends with taking it back.
        until_ok(WITHIN, "the right to be withdrawn", async || {
            let seen = jobs(&token).await?;
            ensure!(seen == "[]", "{seen}");
            Ok(())
        })
        .await?;
        run.stop().await
    })
    .await;
}

/// Runs the page's commands; what they print.
async fn follow(env: &[(&str, &str)]) -> Result<String> {
    let page = Page::read(&project_root().join(PAGE))?;
    let blocks = page.blocks().into_iter().filter(|block| block.is_console());
    let commands: Vec<_> = blocks.flat_map(|block| block.commands()).collect();
    let (playgrounds, commands): (Vec<_>, Vec<_>) =
        commands.into_iter().partition(|line| line.contains("kubewitness playground"));
    ensure!(playgrounds.len() == 1 && commands.len() >= 8, "{commands:?}");
    let program = kubewitness_binary()?;
    let folder = program.parent().context("the program's folder")?;
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default());
    let script = format!("{REPLACED}\n{}", commands.join("\n"));
    let mut shell = Command::new("bash");
    shell.args(["-euo", "pipefail", "-c", &script]).current_dir(project_root()).env("PATH", path);
    shell.envs(env.iter().copied()).env_remove("KUBEWITNESS_TOKEN").env("NO_COLOR", "1").kill_on_drop(true);
    let output = in_time(WITHIN, shell.output()).await.context("it does not end")??;
    let (stdout, stderr) = (super::runs::text(&output.stdout), super::runs::text(&output.stderr));
    ensure!(output.status.success(), "the page's commands ended with {}: {stdout}{stderr}", output.status);
    Ok(stdout)
}
