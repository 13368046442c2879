//! Who may see what: people with tokens of Kubernetes, and with the roles of `deploy/kustomize` alone. The
//! controller has the rights that the manifests give its account.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use kubewitness_harness::{
    Kubewitness, RunOptions, Scratch, Simulator, SimulatorOptions, command_in, in_scratch, in_time, skip,
    tls, until_ok,
};
use serde_json::{Value, json};

use crate::deployment::cluster::ClusterLab;
use crate::support::{create_job, example};

const WITHIN: Duration = Duration::from_secs(90);
const AUDIENCE: &str = "kubewitness.dev";
/// The phase of a Job that nobody runs.
const NEW: &str = "Pending";

/// A cluster with two teams, and a controller that asks who somebody is.
pub struct AccessWorld<'a> {
    pub lab: ClusterLab<'a>,
    pub kubewitness: Kubewitness,
}

/// Exit code, standard output, standard error.
pub type CommandOutput = (Option<i32>, String, String);

impl<'a> AccessWorld<'a> {
    pub async fn start(scratch: &'a Scratch, test: &str) -> Result<Option<Self>> {
        let Some(lab) = ClusterLab::of("examples/access", scratch, &format!("access::{test}")).await? else {
            return Ok(None);
        };
        for (team, person) in [("team-a", "ann"), ("team-b", "bob")] {
            lab.kubectl.ok(&["create", "namespace", team]).await?;
            lab.kubectl.ok(&["-n", team, "create", "serviceaccount", person]).await?;
            bind(&lab, team, person).await?;
            lab.kubectl.ok_with(&["-n", team, "create", "-f", "-"], &job(team)).await?;
        }
        let options = RunOptions {
            kubeconfig: lab.kubeconfig("service-account.kubeconfig", false).await?,
            data: scratch.folder("data")?,
            args: ["--auth", "kubernetes", "--log-reads"].map(str::to_owned).into(),
            ..RunOptions::default()
        };
        let kubewitness = Kubewitness::start("kubewitness", &options, scratch.path())?;
        Ok(Some(Self { lab, kubewitness }))
    }

    /// Returns what a command prints for whoever has this token.
    async fn ask(&self, token: &str, arguments: &[&str]) -> Result<CommandOutput> {
        let url = format!("http://{}", self.kubewitness.address());
        let line: Vec<_> = arguments.iter().copied().chain(["--server", &url]).collect();
        let token = (!token.is_empty()).then(|| ("KUBEWITNESS_TOKEN".to_owned(), token.to_owned()));
        command_in(&line, token.as_slice()).await
    }

    async fn token(&self, team: &str, person: &str) -> Result<String> {
        self.lab.token_of(team, person, &[AUDIENCE]).await
    }

    /// The jobs that somebody sees, by name.
    async fn jobs(&self, token: &str, of: &[&str]) -> Result<Vec<String>> {
        let (code, stdout, stderr) = self.ask(token, &[&["jobs", "-o", "json"], of].concat()).await?;
        if code == Some(1) && stderr.contains("forbidden: you may not list jobs.batch") {
            return Ok(Vec::new());
        }
        ensure!(code == Some(0), "{code:?}: {stdout}{stderr}");
        let jobs: Vec<Value> = serde_json::from_str(&stdout).context("the jobs")?;
        Ok(jobs.iter().filter_map(|job| job["object"]["name"].as_str().map(str::to_owned)).collect())
    }

    pub async fn sees(&self, token: &str, wanted: &[&str]) -> Result<()> {
        self.sees_of(token, &[], wanted).await
    }

    async fn sees_of(&self, token: &str, of: &[&str], wanted: &[&str]) -> Result<()> {
        until_ok(WITHIN, "the jobs that a person may see", async || {
            let jobs = self.jobs(token, of).await?;
            ensure!(jobs == wanted, "{of:?}: {jobs:?} and not {wanted:?}");
            Ok(())
        })
        .await
    }
}

async fn bind(lab: &ClusterLab<'_>, team: &str, person: &str) -> Result<()> {
    let account = format!("--serviceaccount={team}:{person}");
    let binding = ["-n", team, "create", "rolebinding", person, "--clusterrole=kubewitness-viewer", &account];
    lab.kubectl.ok(&binding).await.map(drop)
}

/// Waits for the next whole second: a cluster tells no object's age more exactly.
async fn next_second() -> Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).context("a clock after 1970")?;
    // A timer may come a moment early.
    let rest = Duration::from_millis(1010) - Duration::from_nanos(now.subsec_nanos().into());
    tokio::time::sleep(rest).await;
    Ok(())
}

fn job(team: &str) -> String {
    let template = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
    json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": format!("train-{team}")},
        "spec": {"template": template}})
    .to_string()
}

pub fn refused(told: &CommandOutput, what: &str) -> Result<()> {
    let (code, stdout, stderr) = told;
    ensure!(*code == Some(1) && stdout.is_empty() && stderr.contains(what), "{code:?}: {stdout}{stderr}");
    Ok(())
}

#[tokio::test]
async fn an_operator_an_administrator_and_each_person_sees_what_kubernetes_lets_them() {
    let test = "an_operator_an_administrator_and_each_person_sees_what_kubernetes_lets_them";
    in_scratch("access", async |scratch| {
        let Some(mut world) = AccessWorld::start(scratch, test).await? else { return Ok(()) };
        an_operator_sees_how_it_works_and_no_object(&world).await.context("an operator")?;
        an_administrator_sees_every_namespace_and_operates(&world).await.context("an administrator")?;
        each_person_sees_a_namespace_until_the_right_is_withdrawn(&world).await.context("a person")?;
        world.kubewitness.stop().await
    })
    .await;
}

async fn each_person_sees_a_namespace_until_the_right_is_withdrawn(world: &AccessWorld<'_>) -> Result<()> {
    let (ann, bob) = (world.token("team-a", "ann").await?, world.token("team-b", "bob").await?);
    world.sees(&ann, &["train-team-a"]).await?;
    world.sees(&bob, &["train-team-b"]).await?;
    // A token of a kubeconfig is as good.
    world.sees(&world.lab.token_of("team-a", "ann", &[]).await?, &["train-team-a"]).await?;
    // What was in a phase is found by an index that knows no rights.
    let was_new = ["--was", NEW];
    world.sees_of(&ann, &was_new, &["train-team-a"]).await?;
    world.sees_of(&bob, &was_new, &["train-team-b"]).await?;
    let story = ["timeline", "job/train-team-b", "-n", "team-b"];
    let (code, stdout, _) = world.ask(&bob, &story).await?;
    ensure!(code == Some(0) && stdout.contains("train-team-b"), "{code:?}: {stdout}");
    refused(&world.ask(&ann, &story).await?, "forbidden: you may not get jobs.batch in namespace team-b")?;

    refused(&world.ask("", &["jobs"]).await?, "kubectl create token ACCOUNT --audience kubewitness.dev")?;
    refused(&world.ask("nobody's", &["jobs"]).await?, "KUBEWITNESS_TOKEN=")?;
    let elsewhere = world.lab.token_of("team-a", "ann", &["vault.example.com"]).await?;
    refused(&world.ask(&elsewhere, &["jobs"]).await?, "KUBEWITNESS_TOKEN=")?;

    world.lab.kubectl.ok(&["-n", "team-a", "delete", "rolebinding", "ann"]).await?;
    world.sees(&ann, &[]).await?;
    world.sees(&bob, &["train-team-b"]).await?;
    world.lab.kubectl.ok(&["-n", "team-b", "delete", "serviceaccount", "bob"]).await?;
    until_ok(WITHIN, "a token to be worth nothing", async || {
        refused(&world.ask(&bob, &["jobs"]).await?, "KUBEWITNESS_TOKEN=")
    })
    .await?;
    Ok(())
}

async fn an_operator_sees_how_it_works_and_no_object(world: &AccessWorld<'_>) -> Result<()> {
    world.lab.kubectl.ok(&["-n", "team-a", "create", "serviceaccount", "olaf"]).await?;
    let binding = ["create", "clusterrolebinding", "olaf", "--clusterrole=kubewitness-operator"];
    world.lab.kubectl.ok(&[&binding[..], &["--serviceaccount=team-a:olaf"]].concat()).await?;
    let (ann, olaf) = (world.token("team-a", "ann").await?, world.token("team-a", "olaf").await?);
    world.sees(&ann, &["train-team-a"]).await?;
    world.sees(&olaf, &[]).await?;
    until_ok(WITHIN, "an operator to see all plugins", async || {
        let (code, stdout, stderr) = world.ask(&olaf, &["plugins"]).await?;
        ensure!(code == Some(0) && stdout.contains("persistence"), "{code:?}: {stdout}{stderr}");
        Ok(())
    })
    .await?;
    refused(&world.ask(&ann, &["plugins"]).await?, "kubewitness.dev")?;
    let replay = ["deadletters", "replay", "--plugin", "persistence", "--reason", "mended", "--dry-run"];
    let (code, stdout, stderr) = world.ask(&olaf, &replay).await?;
    ensure!(code == Some(0), "{code:?}: {stdout}{stderr}");
    refused(&world.ask(&ann, &replay).await?, "kubewitness.dev")?;
    Ok(())
}

async fn an_administrator_sees_every_namespace_and_operates(world: &AccessWorld<'_>) -> Result<()> {
    world.lab.kubectl.ok(&["-n", "team-a", "create", "serviceaccount", "ada"]).await?;
    let binding = ["create", "clusterrolebinding", "ada", "--clusterrole=kubewitness-administrator"];
    world.lab.kubectl.ok(&[&binding[..], &["--serviceaccount=team-a:ada"]].concat()).await?;
    let ada = world.token("team-a", "ada").await?;
    world.sees(&ada, &["train-team-a", "train-team-b"]).await?;
    let replay = ["deadletters", "replay", "--plugin", "persistence", "--reason", "mended", "--dry-run"];
    until_ok(WITHIN, "an administrator to operate", async || {
        for does in [&["plugins"][..], &replay] {
            let (code, stdout, stderr) = world.ask(&ada, does).await?;
            ensure!(code == Some(0), "{code:?}: {stdout}{stderr}");
        }
        Ok(())
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn a_namespace_that_is_made_again_shows_nothing_of_the_one_before() {
    let test = "a_namespace_that_is_made_again_shows_nothing_of_the_one_before";
    in_scratch("access", async |scratch| {
        let Some(mut world) = AccessWorld::start(scratch, test).await? else { return Ok(()) };
        let bob = world.token("team-b", "bob").await?;
        world.sees(&bob, &["train-team-b"]).await?;
        world.lab.kubectl.ok(&["delete", "namespace", "team-b"]).await?;
        next_second().await?;
        world.lab.kubectl.ok(&["create", "namespace", "team-b"]).await?;
        world.lab.kubectl.ok(&["-n", "team-b", "create", "serviceaccount", "eve"]).await?;
        bind(&world.lab, "team-b", "eve").await?;
        let eve = world.token("team-b", "eve").await?;
        world.sees(&eve, &[]).await?;
        let story = ["timeline", "job/train-team-b", "-n", "team-b"];
        refused(&world.ask(&eve, &story).await?, "nothing was witnessed of job/train-team-b")?;
        // What is created in the second of the namespace, and gone within ten, could be of the one before.
        next_second().await?;
        world.lab.kubectl.ok_with(&["-n", "team-b", "create", "-f", "-"], &job("again")).await?;
        world.sees(&eve, &["train-again"]).await?;
        // Neither is what is gone, nor what was there: only what is of this namespace.
        let gone = async || {
            let url = format!("http://{}/api/v1/objects?kind=Job&gone=only", world.kubewitness.address());
            let answer = kubewitness_harness::http().get(url).bearer_auth(&eve).send().await?;
            let jobs: Vec<Value> = answer.json().await?;
            anyhow::Ok(
                jobs.iter()
                    .filter_map(|job| job["object"]["name"].as_str().map(str::to_owned))
                    .collect::<Vec<_>>(),
            )
        };
        ensure!(gone().await?.is_empty(), "{:?}", gone().await?);
        world.lab.kubectl.ok(&["-n", "team-b", "delete", "job", "train-again"]).await?;
        until_ok(WITHIN, "the job that is gone", async || {
            ensure!(gone().await? == ["train-again"], "{:?}", gone().await?);
            Ok(())
        })
        .await?;
        world.kubewitness.stop().await
    })
    .await;
}

#[tokio::test]
async fn over_https_a_command_knows_the_portal_by_its_certificate_also_once_the_mounted_secret_has_another() {
    let test = "access::over_https_a_command_knows_the_portal_by_its_certificate_also_once_the_mounted_secret_has_another";
    if !tls::is_installed() {
        return skip(test, "openssl is not on the PATH");
    }
    in_scratch("access", async |scratch| {
        let (first, second) = (tls::make(&scratch.folder("first")?)?, tls::make(&scratch.folder("second")?)?);
        let mounted = scratch.folder("mounted")?;
        mount(&mounted, &first)?;
        for name in ["tls.crt", "tls.key"] {
            symlink(Path::new("..data").join(name), mounted.join(name))?;
        }
        let simulator = Simulator::start(scratch.path(), &SimulatorOptions::default()).await?;
        let file = |path: &Path| path.to_string_lossy().into_owned();
        let key = scratch.path().join("session-key");
        std::fs::write(&key, "07".repeat(32))?;
        let mut args = vec!["--auth".to_owned(), "kubernetes".to_owned()];
        args.extend([
            "--tls-cert".to_owned(),
            file(&mounted.join("tls.crt")),
            "--tls-key".to_owned(),
            file(&mounted.join("tls.key")),
        ]);
        args.extend(["--session-key-file".to_owned(), file(&key)]);
        let options = RunOptions { args, ..simulator.run_options(scratch, None)? };
        let mut kubewitness = Kubewitness::start("kubewitness", &options, scratch.path())?;
        let url = format!("https://{}", kubewitness.address());
        let token = ("KUBEWITNESS_TOKEN".to_owned(), simulator.token().to_owned());
        let knows = |made: &tls::TestCertificates| ("SSL_CERT_FILE".to_owned(), file(&made.authority));
        let status = async |env: &[(String, String)]| command_in(&["status", "--server", &url], env).await;
        let answers = async |known: (String, String)| {
            until_ok(WITHIN, "an answer over HTTPS", async || {
                let (code, _, stderr) = status(&[token.clone(), known.clone()]).await?;
                ensure!(code == Some(0), "{code:?}: {stderr}");
                Ok(())
            })
            .await
        };
        let distrusted = async |env: &[(String, String)]| {
            let (code, _, stderr) = status(env).await?;
            ensure!(code == Some(1) && stderr.contains("certificate"), "{code:?}: {stderr}");
            anyhow::Ok(())
        };
        answers(knows(&first)).await?;
        refused(&status(&[knows(&first)]).await?, "KUBEWITNESS_TOKEN=")?;
        distrusted(std::slice::from_ref(&token)).await?;

        mount(&mounted, &second)?;
        answers(knows(&second)).await?;
        distrusted(&[token.clone(), knows(&first)]).await?;
        kubewitness.stop().await
    })
    .await;
}

/// Changes a mounted Secret as a kubelet does: all of its files at once, by another target of the link `..data`. Then
/// the version before is removed.
fn mount(folder: &Path, made: &tls::TestCertificates) -> Result<()> {
    let version = format!("..{}", std::fs::read_dir(folder)?.count());
    let files = folder.join(&version);
    std::fs::create_dir(&files)?;
    std::fs::copy(&made.certificate, files.join("tls.crt"))?;
    std::fs::copy(&made.key, files.join("tls.key"))?;
    let (data, next) = (folder.join("..data"), folder.join("..data_tmp"));
    let before = std::fs::read_link(&data).ok();
    symlink(&version, &next)?;
    std::fs::rename(&next, &data)?;
    match before {
        Some(before) => Ok(std::fs::remove_dir_all(folder.join(before))?),
        None => Ok(()),
    }
}

#[tokio::test]
async fn who_reads_a_document_is_logged_however_quiet_the_log_is() {
    in_scratch("access", async |scratch| {
        let simulator = Simulator::start(scratch.path(), &SimulatorOptions::default()).await?;
        create_job(&simulator, "train-1").await?;
        let options = RunOptions {
            args: ["--auth", "kubernetes", "--log-reads", "--log", "warn"].map(str::to_owned).into(),
            ..simulator.run_options(scratch, example())?
        };
        let mut kubewitness = Kubewitness::start("quiet", &options, scratch.path())?;
        let document = format!("http://{}/api/v1/states/1/document", kubewitness.address());
        until_ok(WITHIN, "the document", async || {
            let asked = kubewitness_harness::http().get(&document).bearer_auth(simulator.token());
            Ok(asked.send().await?.error_for_status()?)
        })
        .await?;
        kubewitness.stop().await?;
        let log = std::fs::read_to_string(scratch.path().join("quiet.err"))?;
        ensure!(log.contains("a document was read") && log.contains("train-1"), "{log}");
        ensure!(!log.contains("people sign in"), "the rest of the log is quiet: {log}");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn an_address_that_others_reach_is_refused_where_nobody_signs_in() {
    in_scratch("access", async |scratch| {
        let simulator = Simulator::start(scratch.path(), &SimulatorOptions::default()).await?;
        let options = simulator.run_options(scratch, None)?;
        for args in [vec![], vec!["--auth", "none"]] {
            let mut command = options.command("0.0.0.0:0")?;
            let output = command.args(args).env("HOME", scratch.path()).output();
            let output = in_time(WITHIN, output).await.context("it runs")??;
            let told = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.code() == Some(1) && told.contains("--auth kubernetes"), "{told}");
        }
        Ok(())
    })
    .await;
}
