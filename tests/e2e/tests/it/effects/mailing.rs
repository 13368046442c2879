//! A plugin that writes e-mail through a mail server of the host's settings.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_core::views::StatusView;
use kubewitness_harness::{Encryption, Kubewitness, MailServer, RunOptions, in_scratch, skip, tls, until};
use serde_json::Value;

use crate::support::{create_job, example_copy, plugin_manifest, simulator, write};

const WITHIN: Duration = Duration::from_secs(120);
/// The password that the mail server's login asks for, and that nobody else may see.
const PASSWORD: &str = "correct-horse-battery";

const MAILER: &str = r#"module: {file: mailer.wasm}
subscribe: [{source: jobs, mode: every, start: beginning}]
grants:
  mail: [{name: people, server: relay}]
delivery: {batch: 1, retries: 8, backoff: 10ms}
config:
  messages:
    - {server: people, to: [ada@example.com, nobody@example.com, later@example.com], subject: " has news"}
    - {server: strangers, to: [ada@example.com]}
    - {server: people, to: [ada@elsewhere.example]}
    - {server: people, to: [ada@example.com], subject: "\r\nBcc: eve@example.com"}
    - {server: people, to: [ada@example.com], bytes: 300000}"#;

/// The answers to the guest, message by message.
const ANSWERS: [(&str, &str); 5] = [
    ("people", "refused: [nobody@example.com for good: "),
    ("strangers", "denied: the mail server `strangers` was not granted: add it to spec.grants.mail"),
    ("people", "denied: the mail server is for recipients of example.com alone"),
    ("people", "invalid: a subject is one line of at most 512 bytes"),
    ("people", "too large: a message has at most 256Ki"),
];

fn relay(server: &MailServer, authority: &Path, password: &Path) -> String {
    format!(
        "\n      mail:\n        - {{name: relay, server: 127.0.0.1, port: {}, tls: startTls, ca: {}, rate: 100, \
         from: Kubewitness <kw@example.com>, recipients: [example.com], \
         login: {{user: ada, passwordFrom: {{file: {}}}}}}}\n",
        server.address.port(),
        authority.display(),
        password.display()
    )
}

/// Server and answer of each line that the guest wrote.
fn guest_lines(log: &str) -> Vec<(String, String)> {
    let records = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let of_guest = records.filter(|line| line["target"] == "plugin" && line["fields"]["plugin"] == "mailer");
    let data = of_guest.map(|line| line["fields"]["data"].clone());
    let text = |data: &Value, field: &str| data[field].as_str().map(str::to_owned);
    data.filter_map(|data: Value| Some((text(&data, "server")?, text(&data, "answer")?))).collect()
}

#[tokio::test]
async fn a_plugin_writes_e_mail_where_it_may_is_told_each_refusal_and_never_sees_the_login() {
    if !tls::is_installed() {
        return skip("a plugin that writes e-mail", "openssl is not installed");
    }
    in_scratch("mailing", async |scratch| {
        let certificates = tls::make(&scratch.folder("certificates")?)?;
        let server = MailServer::start(Encryption::StartTls, Some(&certificates)).await?;
        let password = scratch.path().join("password");
        std::fs::write(&password, PASSWORD)?;
        let simulator = simulator(scratch).await?;
        let config = example_copy(scratch)?;
        let host = std::fs::read_to_string(config.join("host.yaml"))?;
        let host = format!("{}{}", host.trim_end(), relay(&server, &certificates.authority, &password));
        write(&config, "host.yaml", &host)?;
        write(&config, "mailer.yaml", &plugin_manifest("mailer", MAILER))?;
        let options =
            RunOptions { args: vec!["--log-json".into()], ..simulator.run_options(scratch, config)? };
        let mut run = Kubewitness::start("run", &options, scratch.path())?;
        create_job(&simulator, "one").await?;
        let is_done = |status: &StatusView| {
            status.plugins.iter().any(|plugin| plugin.name == "mailer" && plugin.delivered > 0)
        };
        run.status_when(WITHIN, "the state to be handed over", is_done).await?;

        let log = until(WITHIN, "what the guest was told", async || {
            let log = run.process().stderr();
            Ok((guest_lines(&log).len() >= ANSWERS.len()).then_some(log))
        });
        let log = log.await?;
        let told = guest_lines(&log);
        for ((server, answer), (expected, begins)) in told.iter().zip(ANSWERS) {
            ensure!(
                server == expected && answer.starts_with(begins),
                "{answer:?} is not {begins:?}: {told:?}"
            );
        }
        let refusals = &told[0].1;
        ensure!(refusals.contains("later@example.com for now: ") && !refusals.contains("ada@"), "{refusals}");
        let login = delivered(&server)?;
        let (_, status) = run.get("/api/v1/status").await?;
        for secret in [PASSWORD, &login] {
            ensure!(
                !log.contains(secret) && !status.contains(secret),
                "the password is shown: {log}{status}"
            );
        }
        run.stop().await
    })
    .await;
}

/// One message for the one state, for the one recipient whom the server takes it for. Answers what the host logged in with,
/// as the server read it.
fn delivered(server: &MailServer) -> Result<String> {
    let received = server.received();
    let message = received.first().context("no message came")?;
    ensure!(received.len() == 1 && message.to == ["ada@example.com"], "{received:?}");
    ensure!(message.from == "kw@example.com" && message.is_encrypted, "{message:?}");
    ensure!(message.data.contains("Subject: one has news\r\n"), "{message:?}");
    message.login.clone().context("the host did not log in")
}
