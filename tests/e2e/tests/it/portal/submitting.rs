//! Jobs that people submit: in their own name, one of a key whatever dies in between, and what the API server says.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_harness::{
    Kubewitness, RunOptions, Scratch, Simulator, command_in, in_scratch, project_root, until,
};
use reqwest::Method;
use serde_json::Value;

use crate::deployment::cluster::ClusterLab;
use crate::portal::browser::{Browser, has_driver};
use crate::support::{simulator, write};

const WITHIN: Duration = Duration::from_secs(90);
const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
/// A Job is created, and the answer never comes.
const SILENT: &str = r#"{"fault": "silent", "at": 0, "verb": "create", "resource": "jobs.batch"}"#;
const CUT: &str = r#"{"fault": "cut", "at": 0, "verb": "create", "resource": "jobs.batch"}"#;

type SubmitOutput = (Option<i32>, String, String);

/// A controller without people who sign in, and one cluster.
struct SubmitWorld {
    simulator: Simulator,
    options: RunOptions,
}

impl SubmitWorld {
    async fn new(scratch: &Scratch) -> Result<Self> {
        let simulator = simulator(scratch).await?;
        let config = scratch.folder("config")?;
        write(&config, "host.yaml", &settings("controller"))?;
        write(&config, "templates.yaml", &templates()?)?;
        let options = simulator.run_options(scratch, config)?;
        Ok(Self { simulator, options })
    }

    async fn start(&self, name: &str, scratch: &Scratch) -> Result<Kubewitness> {
        let mut run = Kubewitness::start(name, &self.options, scratch.path())?;
        run.listed(1, WITHIN).await?;
        Ok(run)
    }

    async fn jobs(&self) -> Result<Vec<Value>> {
        let (status, list) = self.simulator.request(Method::GET, JOBS, None).await?;
        ensure!(status == 200, "{status}: {list}");
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    async fn one_job(&self) -> Result<Value> {
        let jobs = self.jobs().await?;
        ensure!(jobs.len() == 1, "{} jobs: {jobs:?}", jobs.len());
        jobs.into_iter().next().context("a job")
    }
}

fn settings(credentials: &str) -> String {
    format!(
        "apiVersion: kubewitness.dev/v1alpha1\nkind: Host\nmetadata: {{name: host}}\nspec:\n  sources: [{{name: jobs, \
         apiVersion: batch/v1, kind: Job}}]\n  submit: {{credentials: {credentials}}}\n"
    )
}

fn templates() -> Result<String> {
    let path = project_root().join("deploy/examples/submit/templates.yaml");
    std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
}

async fn submit(server: &str, token: &str, line: &[&str]) -> Result<SubmitOutput> {
    let url = format!("http://{server}");
    let line: Vec<_> = ["submit"].iter().chain(line).copied().chain(["--server", &url]).collect();
    let token = (!token.is_empty()).then(|| ("KUBEWITNESS_TOKEN".to_owned(), token.to_owned()));
    command_in(&line, token.as_slice()).await
}

fn is(told: &SubmitOutput, code: i32, part: &str) -> Result<()> {
    let (ended, stdout, stderr) = told;
    let whole = format!("{stdout}{stderr}");
    ensure!(*ended == Some(code) && whole.contains(part), "{ended:?} and not {code} with {part}: {whole}");
    Ok(())
}

fn fault(text: &str) -> Result<Value> {
    serde_json::from_str(text).context("a fault")
}

#[tokio::test]
async fn a_kill_between_the_creation_and_its_answer_makes_one_job() {
    in_scratch("submit-kill", async |scratch| {
        let world = SubmitWorld::new(scratch).await?;
        let mut run = world.start("run", scratch).await?;
        let address = run.address().to_owned();
        world.simulator.make("faults", &fault(SILENT)?).await?;
        let line = ["train", "-p", "workers=2", "--who", "ada"];
        let asking = submit(&address, "", &line);
        let killing = async {
            let there = async || Ok((!world.jobs().await?.is_empty()).then_some(()));
            until(WITHIN, "the job to be created", there).await?;
            run.kill().await?;
            // The command asks again at the same address.
            let mut run = Kubewitness::start_at("run-again", &world.options, &address, scratch.path())?;
            run.listed(1, WITHIN).await?;
            anyhow::Ok(run)
        };
        let (told, again) = tokio::join!(asking, killing);
        let mut run = again?;
        is(&told?, 0, "was created by an earlier request with this key")?;
        let job = world.one_job().await?;
        let annotations = &job["metadata"]["annotations"];
        ensure!(annotations["kubewitness.dev/submitter"] == "ada", "{annotations}");
        ensure!(annotations["kubewitness.dev/channel"] == "cli", "{annotations}");
        ensure!(job["spec"]["parallelism"] == 2 && job["spec"]["completions"] == 2, "{job}");
        run.stop().await
    })
    .await;
}

#[tokio::test]
async fn a_lost_answer_says_that_nothing_is_known_and_the_same_key_tells() {
    in_scratch("submit-lost", async |scratch| {
        let world = SubmitWorld::new(scratch).await?;
        let mut run = world.start("run", scratch).await?;
        let address = run.address().to_owned();
        world.simulator.make("faults", &fault(CUT)?).await?;
        let line = ["train", "--key", "monday"];
        is(&submit(&address, "", &line).await?, 1, "It is not known whether the Job was created")?;
        is(&submit(&address, "", &line).await?, 0, "was created by an earlier request")?;
        let name = world.one_job().await?["metadata"]["name"].as_str().context("a name")?.to_owned();
        is(
            &submit(&address, "", &["train", "--key", "monday", "-p", "gpus=4"]).await?,
            1,
            "from other values",
        )?;

        // A late repeat makes no other one of a job that is gone.
        let (status, _) = world.simulator.request(Method::DELETE, &format!("{JOBS}/{name}"), None).await?;
        ensure!(status == 200, "{status}");
        let story = format!("/api/v1/timeline?kind=Job&namespace=default&name={name}");
        let witnessed = async || {
            let (_, text) = run.get(&story).await?;
            let story: Value = serde_json::from_str(&text)?;
            let last = story["states"].as_array().and_then(|states| states.last());
            Ok(last.is_some_and(|state| state["change"] == "gone").then_some(()))
        };
        until(WITHIN, "the deletion to be witnessed", witnessed).await?;
        is(&submit(&address, "", &line).await?, 1, "the Job is gone")?;
        ensure!(world.jobs().await?.is_empty(), "no second job");
        run.stop().await
    })
    .await;
}

#[tokio::test]
async fn parameters_are_checked_before_the_api_server_looks_and_its_refusals_name_the_parameter() {
    in_scratch("submit-values", async |scratch| {
        let world = SubmitWorld::new(scratch).await?;
        let mut run = world.start("run", scratch).await?;
        let address = run.address().to_owned();
        is(&submit(&address, "", &["--list"]).await?, 0, "int 1..4")?;
        is(&submit(&address, "", &["train", "-p", "workers=9"]).await?, 1, "workers: is more than 4")?;
        is(&submit(&address, "", &["evaluate"]).await?, 1, "checkpoint: is missing")?;
        is(&submit(&address, "", &["nothing"]).await?, 1, "The templates are evaluate, train.")?;
        is(&submit(&address, "", &["train", "-p", "gpus"]).await?, 2, "write NAME=VALUE")?;
        is(&submit(&address, "", &["train", "-p", "gpus=1", "-p", "gpus=2"]).await?, 2, "given twice")?;
        is(&submit(&address, "", &["train", "-n", "nowhere"]).await?, 1, "namespaces \"nowhere\" not found")?;
        // What the template lets through and the API server does not.
        let config = world.options.config.clone().context("a folder")?;
        let loose = templates()?.replace("min: 1\n          max: 4", "max: 4");
        write(&config, "templates.yaml", &loose)?;
        let refused = async || {
            let told = submit(&address, "", &["train", "-p", "workers=-1"]).await?;
            let named = told.2.contains("workers: ") && told.2.contains("greater than or equal to 0");
            Ok((told.0 == Some(1) && named).then_some(()))
        };
        until(WITHIN, "the API server to refuse it", refused).await?;
        is(&submit(&address, "", &["train", "--dry-run"]).await?, 0, "nothing was created")?;
        ensure!(world.jobs().await?.is_empty(), "nothing was created");
        run.stop().await
    })
    .await;
}

/// Two teams, each with a person who may create Jobs in its namespace, and a controller that creates Jobs like this.
async fn teams(lab: &ClusterLab<'_>, credentials: &str, scratch: &Scratch) -> Result<Kubewitness> {
    for (team, person) in [("team-a", "ann"), ("team-b", "bob")] {
        lab.kubectl.ok(&["create", "namespace", team]).await?;
        lab.kubectl.ok(&["-n", team, "create", "serviceaccount", person]).await?;
        let account = format!("--serviceaccount={team}:{person}");
        let role =
            ["-n", team, "create", "role", "submits", "--verb=create,get,list", "--resource=jobs.batch"];
        lab.kubectl.ok(&role).await?;
        lab.kubectl.ok(&["-n", team, "create", "rolebinding", person, "--role=submits", &account]).await?;
    }
    lab.kubectl.ok(&["apply", "-n", "kubewitness", "-f", &deployed("templates.yaml")]).await?;
    let text = format!("host.yaml: |\n{}", indented(&settings(credentials)));
    let map = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: kubewitness-host, namespace: kubewitness, labels: \
         {{kubewitness.dev/host: \"true\"}}}}\ndata:\n  {text}"
    );
    lab.kubectl.ok_with(&["apply", "-f", "-"], &map).await?;
    let options = RunOptions {
        kubeconfig: lab.kubeconfig("service-account.kubeconfig", false).await?,
        data: scratch.folder("data")?,
        args: ["--auth", "kubernetes"].map(str::to_owned).into(),
        ..RunOptions::default()
    };
    Kubewitness::start("kubewitness", &options, scratch.path())
}

/// The first job, as soon as the controller can create one.
async fn first(run: &mut Kubewitness, token: &str) -> Result<()> {
    let address = run.address().to_owned();
    let made = async || {
        let told = submit(&address, token, &["train", "-n", "team-a", "--key", "k"]).await?;
        Ok((told.0 == Some(0)).then_some(told))
    };
    let told = until(WITHIN, "the first job", made).await.with_context(|| run.process().say())?;
    ensure!(told.1.contains("in team-a is created"), "{told:?}");
    Ok(())
}

/// Whom the Jobs name.
async fn submitters(lab: &ClusterLab<'_>) -> Result<Vec<String>> {
    let list = lab.kubectl.ok(&["get", "jobs", "-A", "-o", "json"]).await?;
    let list: Value = serde_json::from_str(&list)?;
    let submitter = |job: &Value| job["metadata"]["annotations"]["kubewitness.dev/submitter"].to_string();
    let mut who: Vec<_> = list["items"].as_array().context("jobs")?.iter().map(submitter).collect();
    who.sort();
    Ok(who)
}

#[tokio::test]
async fn each_person_submits_with_their_own_rights_and_the_job_names_them() {
    let test = "each_person_submits_with_their_own_rights_and_the_job_names_them";
    in_scratch("submit-people", async |scratch| {
        let name = format!("submitting::{test}");
        let Some(lab) = ClusterLab::of("examples/access", scratch, &name).await? else { return Ok(()) };
        let mut run = teams(&lab, "token", scratch).await?;
        let (ann, bob) =
            (lab.token_of("team-a", "ann", &[]).await?, lab.token_of("team-b", "bob", &[]).await?);
        let address = run.address().to_owned();
        first(&mut run, &ann).await?;
        is(&submit(&address, &ann, &["train", "-n", "team-b"]).await?, 1, "cannot create resource \"jobs\"")?;
        is(&submit(&address, &bob, &["train", "-n", "team-b", "--key", "k"]).await?, 0, "is created")?;
        is(&submit(&address, "", &["train", "-n", "team-a"]).await?, 1, "The request names no person")?;
        // A token for Kubewitness alone is none for the API server, and the refusal says so.
        let alone = lab.token_of("team-a", "ann", &["kubewitness.dev"]).await?;
        let told = submit(&address, &alone, &["train", "-n", "team-a"]).await?;
        is(&told, 1, "for the audience kubewitness.dev alone")?;
        let who = submitters(&lab).await?;
        let expected = ["team-a:ann", "team-b:bob"].map(|name| format!("\"system:serviceaccount:{name}\""));
        ensure!(who == expected, "{who:?}");
        run.stop().await
    })
    .await;
}

#[tokio::test]
async fn with_impersonation_a_person_submits_as_themselves_where_the_controller_may_act_for_them() {
    let test = "with_impersonation_a_person_submits_as_themselves_where_the_controller_may_act_for_them";
    in_scratch("submit-impersonation", async |scratch| {
        let name = format!("submitting::{test}");
        let Some(lab) = ClusterLab::of("examples/access", scratch, &name).await? else { return Ok(()) };
        let mut run = teams(&lab, "impersonation", scratch).await?;
        let user = "--resource-name=system:serviceaccount:team-a:ann";
        let role = ["create", "clusterrole", "acts", "--verb=impersonate", "--resource=users", user];
        lab.kubectl.ok(&role).await?;
        let account = "--serviceaccount=kubewitness:kubewitness";
        lab.kubectl.ok(&["create", "clusterrolebinding", "acts", "--clusterrole=acts", account]).await?;
        // A token has a uid and an id, which go along.
        lab.kubectl.ok_with(&["apply", "-f", "-"], ALL_OF_A_TOKEN).await?;
        lab.kubectl
            .ok(&["create", "clusterrolebinding", "acts-whole", "--clusterrole=acts-whole", account])
            .await?;
        // A token for Kubewitness alone is enough: the API server never sees it.
        let ann = lab.token_of("team-a", "ann", &["kubewitness.dev"]).await?;
        let bob = lab.token_of("team-b", "bob", &["kubewitness.dev"]).await?;
        let address = run.address().to_owned();
        first(&mut run, &ann).await?;
        is(&submit(&address, &ann, &["train", "-n", "team-b"]).await?, 1, "cannot create resource \"jobs\"")?;
        is(&submit(&address, &bob, &["train", "-n", "team-b"]).await?, 1, "impersonate")?;
        ensure!(submitters(&lab).await? == ["\"system:serviceaccount:team-a:ann\""], "one job of ann");
        run.stop().await
    })
    .await;
}

const ALL_OF_A_TOKEN: &str = "\
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: acts-whole}
rules:
  - apiGroups: [authentication.k8s.io]
    resources: [uids, userextras/authentication.kubernetes.io/credential-id]
    verbs: [impersonate]
";

fn deployed(file: &str) -> String {
    project_root().join("deploy/examples/submit").join(file).display().to_string()
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("    {line}\n")).collect()
}

#[tokio::test]
async fn a_browser_fills_in_the_form_sees_a_fault_beside_its_field_and_makes_one_job() {
    if !has_driver("submitting::a_browser_fills_in_the_form").await {
        return;
    }
    in_scratch("submit-browser", async |scratch| {
        let world = SubmitWorld::new(scratch).await?;
        let mut run = world.start("run", scratch).await?;
        let browser = Browser::start(scratch.path()).await?;
        let portal = format!("http://{}", run.address());
        browser.open(&portal).await?;
        let link = browser.script("return !!document.querySelector('a[href=\"/submit\"]')").await?;
        ensure!(link == true, "the list of jobs leads to the form");
        browser.open(&format!("{portal}/submit/train?namespace=default")).await?;
        let set = |name: &str, value: &str| {
            format!("document.querySelector('[name=\"p.{name}\"]').value = '{value}';")
        };
        let click = "document.querySelector('form.submit button.strong').click();";
        browser.follow(&format!("{}{click}", set("workers", "9"))).await?;
        let faulty = async || Ok(browser.text().await?.contains("is more than 4").then_some(()));
        until(WITHIN, "the fault", faulty).await?;
        let beside = "const field = document.querySelector('[name=\"p.workers\"]'); return field.value + ' ' + \
                      field.getAttribute('aria-invalid') + ' ' + field.parentElement.innerText;";
        let beside = browser.script(beside).await?;
        let beside = beside.as_str().context("the field")?;
        ensure!(beside.starts_with("9 true") && beside.contains("is more than 4"), "{beside}");
        browser.follow(&format!("{}{click}{click}", set("workers", "3"))).await?;
        let done = async || Ok(browser.text().await?.contains("kubewitness wait job/train-").then_some(()));
        until(WITHIN, "the job", done).await?;
        let job = world.one_job().await?;
        ensure!(job["spec"]["parallelism"] == 3, "{job}");
        ensure!(job["metadata"]["annotations"]["kubewitness.dev/channel"] == "portal", "{job}");
        browser.follow("document.getElementById('job').click()").await?;
        let story = async || {
            let text = browser.text().await?;
            Ok(text.contains("Every state").then_some(()))
        };
        until(WITHIN, "the story of the job", story).await?;
        browser.close().await?;
        run.stop().await
    })
    .await;
}
