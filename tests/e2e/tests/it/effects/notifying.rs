//! People and programs are told of outcomes through every channel, by the services' own rules.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_harness::{
    ADDRESS_SECRET, ChatServices, Encryption, Kubewitness, MailServer, RunOptions, SIGNING_SECRET, Scratch,
    Simulator, command, command_in, in_scratch, project_root, until, until_ok,
};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{SEAL_KEY, create_job, example_copy, plugin_manifest, simulator, write};

pub const WITHIN: Duration = Duration::from_secs(90);
/// Twenty a minute is the slowest rate, of which ten may come at once.
const PACED_WITHIN: Duration = Duration::from_secs(120);
const SERVICES: [&str; 8] =
    ["slack", "feishu", "lark", "dingtalk", "wecom", "alertmanager", "events", "hook"];
const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";

/// Every channel by the name of its service.
const NOTIFICATION: &str = "module: {file: notification.wasm}
subscribe: [{source: jobs, mode: transitions, start: beginning}]
grants:
  http: [HTTP]
  mail: [{name: mail, server: relay}]
  kv: true
tick: {every: 1s}
delivery: {batch: 64, backoff: 100ms}
config:
  channels:
    - {name: slack, kind: slack}
    - {name: feishu, kind: feishu}
    - {name: lark, kind: lark}
    - {name: dingtalk, kind: dingtalk}
    - {name: wecom, kind: wecom}
    - {name: alertmanager, kind: alertmanager}
    - {name: events, kind: cloudevents}
    - {name: hook, kind: webhook}
    - {name: mail, kind: email}
  routes:
    - {to: [slack, feishu, lark, dingtalk, wecom, alertmanager, events, hook, 'mail:ada@example.com'], phases: [Failed]}
  settle: 1s
  portal: https://kubewitness.example.com";

/// The settings: each address and each secret is in a file.
fn destinations(chats: &ChatServices, mail: &MailServer, folder: &Path) -> Result<String> {
    std::fs::write(folder.join("sign"), SIGNING_SECRET)?;
    let secret = format!("{{secretFrom: {{file: {}}}}}", folder.join("sign").display());
    let mut text = String::from("\n      destinations:\n");
    for service in SERVICES {
        let url = folder.join(service);
        std::fs::write(&url, chats.url(service))?;
        let scheme = match service {
            "slack" | "wecom" => format!(", scheme: {{{service}: {{}}}}"),
            "feishu" | "lark" => format!(", scheme: {{feishu: {secret}}}"),
            "dingtalk" => format!(", scheme: {{dingtalk: {secret}}}"),
            "hook" => format!(", scheme: {{hmac: {secret}}}"),
            _ => String::new(),
        };
        let url = url.display();
        text +=
            &format!("        - {{name: {service}, urlFrom: {{file: {url}}}, allowPlain: true{scheme}}}\n");
    }
    let port = mail.address.port();
    text += "      mail:\n";
    text += &format!(
        "        - {{name: relay, server: 127.0.0.1, port: {port}, tls: none, from: kw@example.com, recipients: [example.com]}}\n"
    );
    Ok(text)
}

fn notification() -> String {
    let grants = SERVICES.map(|service| format!("{{name: {service}, destination: {service}}}")).join(", ");
    NOTIFICATION.replace("HTTP", &grants)
}

pub async fn fails(simulator: &Simulator, name: &str) -> Result<()> {
    fails_with(simulator, name, "BackoffLimitExceeded", "it failed <too> often").await
}

async fn fails_with(simulator: &Simulator, name: &str, reason: &str, message: &str) -> Result<()> {
    let failed = json!({"failed": 1, "conditions": [{
        "type": "Failed", "status": "True", "reason": reason, "message": message,
    }]});
    becomes(simulator, name, failed).await
}

pub async fn becomes(simulator: &Simulator, name: &str, job_status: Value) -> Result<()> {
    let (_, mut job) = simulator.request(Method::GET, &format!("{JOBS}/{name}"), None).await?;
    job["status"] = job_status;
    let (status, answer) =
        simulator.request(Method::PUT, &format!("{JOBS}/{name}/status"), Some(&job)).await?;
    ensure!(status == 200, "the status of {name} is refused with {status}: {answer}");
    Ok(())
}

#[tokio::test]
async fn every_channel_tells_of_a_failure_once_by_the_rules_of_its_service_also_across_a_restart() {
    in_scratch("notifying", async |scratch| {
        let (chats, mail) = (ChatServices::start().await?, MailServer::start(Encryption::None, None).await?);
        let simulator = simulator(scratch).await?;
        let config = example_copy(scratch)?;
        let host = std::fs::read_to_string(config.join("host.yaml"))?;
        let secrets = scratch.folder("secrets")?;
        let more = destinations(&chats, &mail, &secrets)?;
        write(&config, "host.yaml", &format!("{}{more}", host.trim_end()))?;
        write(&config, "notification.yaml", &plugin_manifest("notification", &notification()))?;
        let options = simulator.run_options(scratch, config.clone())?;
        let mut run = Kubewitness::start("run", &options, scratch.path())?;
        run.answers().await?;
        create_job(&simulator, "one").await?;
        fails(&simulator, "one").await?;
        await_messages(&chats, &mail, 1).await.with_context(|| run.process().say())?;
        let first_log = run.process().stderr();
        run.stop().await?;

        let mut run = Kubewitness::start("again", &options, scratch.path())?;
        run.answers().await?;
        create_job(&simulator, "two").await?;
        fails(&simulator, "two").await?;
        await_messages(&chats, &mail, 2).await.with_context(|| run.process().say())?;
        // Before the restart, and after it.
        for name in ["one", "two"] {
            await_listed(&url_of(&run), name).await?;
        }
        let log = first_log + &run.process().stderr();
        run.stop().await?;
        for service in SERVICES {
            let chat = chats.of(service);
            ensure!(chat.refused.is_empty() && chat.taken.len() == 2, "{service}: {chat:?}");
            let said = Value::from(chat.taken).to_string();
            ensure!(said.contains("default/one") && said.contains("default/two"), "{service}: {said}");
            ensure!(said.contains("kubewitness.dev/mute=true"), "{service} says how to mute: {said}");
        }
        let letters = mail.received();
        ensure!(
            letters.len() == 2 && letters[0].data.contains("Subject: Job default/one: Failed"),
            "{letters:?}"
        );
        for secret in [SIGNING_SECRET, ADDRESS_SECRET] {
            ensure!(!log.contains(secret), "the log tells a secret: {log}");
        }
        let preview = scratch.folder("preview")?;
        write(&preview, "plugin.yaml", &plugin_manifest("notification", &notification()))?;
        let [folder, data] = [&preview, &options.data].map(|it| it.display().to_string());
        let replay = ["plugin", "replay", &folder, "--data", &data, "--since", "2h", "--tick=2m"];
        let (code, stdout, stderr) = command(&replay).await?;
        let previewed =
            stdout.contains("Job default/two: Failed") && stdout.contains("the tick after them: done");
        ensure!(
            code == Some(0) && previewed && !stdout.contains("are examples"),
            "{code:?}: {stdout}{stderr}"
        );
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_preview_tells_when_an_object_of_a_file_failed() {
    in_scratch("notifying-previewed", async |scratch| {
        let example = project_root().join(EXAMPLE);
        let objects = std::fs::read_to_string(example.join("tests/failed.yaml"))?;
        let (objects, _) = objects.rsplit_once("---\n").context("no tick behind the objects")?;
        let folder = scratch.folder("objects")?;
        write(&folder, "objects.yaml", &objects.replace("2026-01-01T", "2025-06-01T"))?;
        let [example, objects] = [&example, &folder.join("objects.yaml")].map(|it| it.display().to_string());
        let (code, stdout, stderr) =
            command(&["plugin", "run", &example, "-f", &objects, "--tick=2m", "-o", "json"]).await?;
        ensure!(code == Some(0), "{code:?}: {stdout}{stderr}");
        let handed: Value = serde_json::from_str(&stdout)?;
        let tick = handed.as_array().and_then(|all| all.last()).cloned().unwrap_or_default();
        ensure!(tick["tick"] == "2025-06-01T00:02:10.000Z", "{tick}");
        ensure!(tick["effects"].to_string().contains("Since 2025-06-01T00:00:02.000Z"), "{tick}");
        let (_, stdout, _) = command(&["plugin", "run", &example, "-f", &objects, "--tick=2m"]).await?;
        ensure!(stdout.contains("Links with `?state=` are examples"), "{stdout}");
        Ok(())
    })
    .await;
}

/// More than the ten that the slowest service takes at once; each further one waits for its turn.
const JOBS_AT_ONCE: usize = 12;

/// The services with the slowest rates, and the one with the shortest texts. Each sign of `&` takes five.
const PACED: &str = "module: {file: notification.wasm}
subscribe: [{source: jobs, mode: transitions, start: beginning}]
grants:
  http: [{name: slack, destination: slack}, {name: dingtalk, destination: dingtalk}, {name: wecom, destination: wecom}]
  kv: true
tick: {every: 1s}
delivery: {batch: 64, backoff: 100ms}
config:
  channels: [{name: slack, kind: slack}, {name: dingtalk, kind: dingtalk}, {name: wecom, kind: wecom}]
  title: '{{name}} {{reason}}'
  settle: 1s
  digest: {above: 100}
  portal: https://kubewitness.example.com";

/// A controller with this manifest of `notification`, beside services and a mail server.
pub struct NotifyLab {
    pub chats: ChatServices,
    _mail: MailServer,
    pub simulator: Simulator,
    options: RunOptions,
    pub run: Kubewitness,
}

impl NotifyLab {
    async fn start(scratch: &Scratch, manifest: &str) -> Result<Self> {
        Self::start_on(scratch, manifest, simulator(scratch).await?).await
    }

    /// On a cluster that has objects already.
    pub async fn start_on(scratch: &Scratch, manifest: &str, simulator: Simulator) -> Result<Self> {
        let (chats, mail) = (ChatServices::start().await?, MailServer::start(Encryption::None, None).await?);
        let config = example_copy(scratch)?;
        let host = std::fs::read_to_string(config.join("host.yaml"))?;
        let more = destinations(&chats, &mail, &scratch.folder("secrets")?)?;
        write(&config, "host.yaml", &format!("{}{more}", host.trim_end()))?;
        write(&config, "notification.yaml", &plugin_manifest("notification", manifest))?;
        let options = simulator.run_options(scratch, config)?;
        let mut run = Kubewitness::start("run", &options, scratch.path())?;
        run.answers().await?;
        Ok(Self { chats, _mail: mail, simulator, options, run })
    }
}

#[tokio::test]
async fn more_outcomes_than_a_service_takes_at_once_are_all_told_at_its_rate_and_within_its_lengths() {
    in_scratch("notifying-paced", async |scratch| {
        let NotifyLab { chats, simulator, mut run, .. } = NotifyLab::start(scratch, PACED).await?;
        let names: Vec<_> = (0..JOBS_AT_ONCE).map(|n| format!("paced-{n:02}")).collect();
        for name in &names {
            create_job(&simulator, name).await?;
            fails_with(&simulator, name, &"&".repeat(200), &"&".repeat(2000)).await?;
        }
        let services = ["slack", "dingtalk", "wecom"];
        let said = |service: &str| Value::from(chats.of(service).taken).to_string();
        until(PACED_WITHIN, "every service to have all messages", async || {
            let is_told = |service: &&str| {
                let said = said(service);
                names.iter().all(|name| said.contains(name.as_str()))
            };
            Ok(services.iter().all(is_told).then_some(()))
        })
        .await
        .with_context(|| format!("{:?}: {}", services.map(|it| chats.of(it).refused), run.process().say()))?;
        run.stop().await?;
        for service in services {
            let chat = chats.of(service);
            // A message without an answer in time is sent again, so there may be more on a busy machine.
            ensure!(chat.refused.is_empty() && chat.taken.len() >= JOBS_AT_ONCE, "{service}: {chat:?}");
            let said = said(service);
            ensure!(said.contains("kubewitness.dev/mute=true"), "{service} says how to mute: {said}");
        }
        // The texts did reach the bounds that the service checks.
        let slack = chats.of("slack").taken.remove(0);
        let length =
            |pointer: &str| slack.pointer(pointer).and_then(Value::as_str).map_or(0, |it| it.chars().count());
        let lengths = (length("/blocks/0/text/text"), length("/blocks/1/text/text"));
        ensure!(lengths.0 > 140 && lengths.1 > 2900, "{lengths:?}");
        Ok(())
    })
    .await;
}

async fn await_messages(chats: &ChatServices, mail: &MailServer, messages: usize) -> Result<()> {
    until(WITHIN, "every service to have the message", async || {
        let is_told = SERVICES.iter().all(|service| chats.of(service).taken.len() >= messages);
        Ok((is_told && mail.received().len() >= messages).then_some(()))
    })
    .await
}

/// Each recipient's message has become `sent` on the timeline, and no secret is there.
async fn await_listed(url: &str, name: &str) -> Result<()> {
    let job = format!("job/{name}");
    let line = ["timeline", &job, "-n", "default", "-o", "wide", "--server", url];
    until_ok(WITHIN, "the timeline to list who was told", async || {
        let (code, stdout, stderr) = command(&line).await?;
        let (_, told) =
            stdout.split_once("TOLD AT").with_context(|| format!("{code:?}: {stdout}{stderr}"))?;
        for to in SERVICES.iter().chain(&["mail:ada@example.com"]) {
            let is_sent = |row: &str| row.contains(to) && row.contains(" sent ") && row.contains("Failed");
            ensure!(told.lines().any(is_sent), "{to}: {stdout}");
        }
        ensure!(!stdout.contains(SIGNING_SECRET) && !stdout.contains(ADDRESS_SECRET), "{stdout}");
        Ok(())
    })
    .await
}

/// One channel that any receiver of JSON answers.
pub const HOOK: &str = "module: {file: notification.wasm}
subscribe: [{source: jobs, mode: transitions, start: beginning}]
grants: {http: [{name: hook, destination: hook}], kv: true}
tick: {every: 1s}
config: {channels: [{name: hook, kind: webhook}], settle: 1s}";

#[tokio::test]
async fn what_a_person_mutes_is_told_to_nobody_also_after_a_restart() {
    in_scratch("muting", async |scratch| {
        let NotifyLab { chats, simulator, options, mut run, .. } = NotifyLab::start(scratch, HOOK).await?;
        create_job(&simulator, "one").await?;
        create_job(&simulator, "two").await?;
        until_ok(WITHIN, "the job to be muted", async || {
            let said = says(&url_of(&run), &["mute", "job/one", "--who", "ada"]).await?;
            ensure!(said == "Job/one in default is muted: nobody is told of it from now on\n", "{said}");
            Ok(())
        })
        .await?;
        run.stop().await?;

        let mut run = Kubewitness::start("again", &options, scratch.path())?;
        run.answers().await?;
        let url = url_of(&run);
        let list = says(&url, &["mute", "--list"]).await?;
        ensure!(list.contains("Job/one in default") && list.contains("ada"), "{list}");
        fails(&simulator, "one").await?;
        fails(&simulator, "two").await?;
        until_ok(WITHIN, "the timeline to say that it was muted", async || {
            let told = says(&url, &["timeline", "job/one"]).await?;
            ensure!(told.contains(" muted ") && told.contains("ada muted it at"), "{told}");
            let told = says(&url, &["timeline", "job/two"]).await?;
            ensure!(told.contains(" sent "), "{told}");
            Ok(())
        })
        .await?;
        says(&url, &["mute", "-n", "default", "--to", "hook"]).await?;
        let said = says(&url, &["unmute", "job/one"]).await?;
        ensure!(said.contains("is unmuted"), "{said}");
        create_job(&simulator, "three").await?;
        fails(&simulator, "three").await?;
        until_ok(WITHIN, "the namespace to be muted", async || {
            let told = says(&url, &["timeline", "job/three"]).await?;
            ensure!(told.contains(" muted "), "{told}");
            Ok(())
        })
        .await?;
        ensure!(chats.of("hook").taken.len() == 1, "{:?}", chats.of("hook"));
        let (code, _, stderr) = command(&["mute", "job/nobody", "--server", &url]).await?;
        ensure!(code == Some(1) && stderr.contains("nothing was witnessed"), "{code:?}: {stderr}");
        let (code, _, stderr) = command(&["mute", "--server", &url]).await?;
        ensure!(code == Some(2) && stderr.contains("--all"), "{code:?}: {stderr}");
        run.stop().await
    })
    .await;
}

pub fn url_of(run: &Kubewitness) -> String {
    format!("http://{}", run.address())
}

pub async fn says(url: &str, line: &[&str]) -> Result<String> {
    let (code, stdout, stderr) = command(&[line, &["--server", url]].concat()).await?;
    ensure!(code == Some(0), "{line:?} ended with {code:?}: {stdout}{stderr}");
    Ok(stdout)
}

const EXAMPLE: &str = "deploy/examples/notify-people";

#[tokio::test]
async fn the_example_fits_and_its_messages_are_those_on_file() {
    let example = project_root().join(EXAMPLE);
    let env: Vec<(String, String)> = ["SLACK_URL", "FEISHU_URL"]
        .map(|name| (name.to_owned(), "https://hooks.example.com/hush".to_owned()))
        .into_iter()
        .chain(["FEISHU_SECRET", "MAIL_PASSWORD"].map(|name| (name.to_owned(), "hush".to_owned())))
        .collect();
    let (code, stdout, stderr) = command_in(&["check", &example.to_string_lossy()], &env).await.unwrap();
    assert_eq!(code, Some(0), "{stdout}{stderr}");
    let folder = example.to_string_lossy();
    let (code, stdout, stderr) = command(&["plugin", "test", &folder]).await.unwrap();
    assert!(code == Some(0) && stdout.ends_with("1 of 1 tests passed\n"), "{code:?}: {stdout}{stderr}");
    let objects = example.join("tests/failed.yaml");
    let run = ["plugin", "run", &folder, "-f", &objects.to_string_lossy(), "-o", "json"];
    let (_, stdout, stderr) = command(&run).await.unwrap();
    let handed: Value = serde_json::from_str(&stdout).unwrap_or_else(|_| panic!("{stdout}{stderr}"));
    let tick = handed.as_array().and_then(|all| all.last()).cloned().unwrap_or_default();
    assert!(tick["tick"].is_string(), "{handed}");
    let sent = tick["effects"].to_string();
    assert!(sent.contains("ada@example.com") && sent.contains("Job team-vision/train: Failed"), "{sent}");
}

#[tokio::test]
async fn the_examples_of_the_other_plugins_fit_and_do_what_is_on_file() {
    let key = ("SEAL_KEY".to_owned(), SEAL_KEY.to_owned());
    for example in ["deploy/examples/audit-trail", "deploy/examples/tables-for-dashboards"] {
        let folder = project_root().join(example).display().to_string();
        let (code, stdout, stderr) =
            command_in(&["check", &folder], std::slice::from_ref(&key)).await.unwrap();
        assert_eq!(code, Some(0), "{example}: {stdout}{stderr}");
        let (code, stdout, stderr) = command(&["plugin", "test", &folder]).await.unwrap();
        assert!(code == Some(0) && stdout.ends_with("1 of 1 tests passed\n"), "{example}: {stdout}{stderr}");
    }
}

#[tokio::test]
async fn check_names_the_path_of_what_is_misspelt_in_a_configuration_and_what_is_meant() {
    in_scratch("notifying-checked", async |scratch| {
        let config = scratch.folder("config")?;
        for file in ["host.yaml", "plugin.yaml"] {
            std::fs::copy(project_root().join(EXAMPLE).join(file), config.join(file))?;
        }
        let manifest = std::fs::read_to_string(config.join("plugin.yaml"))?;
        for (from, to, told) in [
            (
                "kind: slack",
                "kind: slak",
                "spec.config.channels[0].kind: `slak` is not known: is `slack` meant?",
            ),
            ("        portal:", "        portl:", "is `portal` meant?"),
            ("to: [ops]", "to: [nobody]", "`nobody` is no channel"),
            ("to: [ops]", "to: [opps]", "spec.config.routes[0].to[0]: `opps` is no channel: is `ops` meant?"),
            (
                "        portal:",
                "        title: \"{{nmae}}\"\n        portal:",
                "spec.config.title: `{{nmae}}` is not known: is `{{name}}` meant?",
            ),
            (
                "destination: slack",
                "destination: slak",
                "spec.grants.http[0].destination: the controller has no destination `slak`: is `slack` meant?",
            ),
            (
                "source: jobs",
                "source: jbos",
                "spec.subscribe[0].source: the controller has no source `jbos`: is `jobs` meant?",
            ),
            (
                "phases: [Failed]",
                "phases: [Faild]",
                "spec.config.routes[0].phases: `Faild` is no phase: is `Failed` meant?",
            ),
            ("kind: Plugin", "kind: Plugni", "kind: is `Plugni`, and `Plugin` is expected here"),
            ("        kv: true\n", "", "spec.grants.kv"),
            ("      tick: {every: 10s}\n", "", "spec.tick"),
        ] {
            write(&config, "plugin.yaml", &manifest.replacen(from, to, 1))?;
            let (code, stdout, stderr) = command(&["check", &config.to_string_lossy()]).await?;
            let said = format!("{stdout}{stderr}");
            ensure!(code == Some(3) && said.contains(told), "{to}: {code:?}: {said}");
        }
        Ok(())
    })
    .await;
}
