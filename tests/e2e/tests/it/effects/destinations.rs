//! The forms that the controller allows a destination of `http`, as an operator meets them.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_core::views::StatusView;
use kubewitness_harness::{Kubewitness, command, in_scratch, skip, tls, until};
use kubewitness_playground::receiver::{self, ReceiverProgress};
use tokio_util::sync::CancellationToken;

use crate::support::{create_job, example_copy, plugin_manifest, simulator, write};

const WITHIN: Duration = Duration::from_secs(120);

const NOTIFICATION: &str = "module: {file: notification.wasm}
subscribe:
  - {source: jobs, mode: every, start: beginning}
grants:
  http: [{name: people, destination: people}]
delivery: {batch: 16, retries: 1000, backoff: 100ms, maxBackoff: 500ms}";

fn destination(fields: &str) -> String {
    format!("\n      destinations:\n        - {{name: people, {fields}}}\n")
}

#[tokio::test]
#[allow(clippy::disallowed_methods)]
async fn a_name_that_resolves_to_an_address_that_is_not_allowed_gets_nothing_until_the_operator_allows_it() {
    in_scratch("destinations", async |scratch| {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let (progress, stop) = (Arc::new(ReceiverProgress::default()), CancellationToken::new());
        let file = scratch.path().join("notifications.jsonl");
        let receiving = tokio::spawn(receiver::serve(listener, file, progress.clone(), stop.clone()));

        let simulator = simulator(scratch).await?;
        let config = example_copy(scratch)?;
        let host = std::fs::read_to_string(config.join("host.yaml"))?;
        let reached = |addresses: &str| {
            let fields =
                format!("url: \"http://localhost:{port}\", methods: [POST], addresses: [{addresses}]");
            write(&config, "host.yaml", &format!("{}{}", host.trim_end(), destination(&fields)))
        };
        reached("public")?;
        write(&config, "notification.yaml", &plugin_manifest("notification", NOTIFICATION))?;
        create_job(&simulator, "one").await?;
        let options = simulator.run_options(scratch, config.clone())?;
        let mut run = Kubewitness::start("run", &options, scratch.path())?;
        run.answers().await?;
        let is_told = |status: &StatusView| {
            let told = "the destination's name resolves to a loopback address";
            let notification = status.plugins.iter().find(|plugin| plugin.name == "notification");
            notification.is_some_and(|plugin| plugin.message.as_deref().is_some_and(|m| m.contains(told)))
        };
        run.status_when(WITHIN, "the plugin to say why it sends nothing", is_told).await?;
        let said = until(WITHIN, "what to do in the log", async || {
            let log = run.process().stderr();
            Ok(log.contains("name the address under `addresses` of the destination").then_some(()))
        });
        said.await.with_context(|| run.process().say())?;
        ensure!(progress.received.load(Relaxed) == 0, "something was sent to an address that is not allowed");

        reached("loopback")?;
        until(WITHIN, "what waited to be sent", async || {
            Ok((progress.received.load(Relaxed) > 0).then_some(()))
        })
        .await
        .with_context(|| run.process().say())?;
        run.stop().await?;
        stop.cancel();
        receiving.await??;
        Ok(())
    })
    .await;
}

async fn checked(config: &std::path::Path) -> Result<(Option<i32>, String)> {
    let (code, stdout, stderr) = command(&["check", &config.to_string_lossy()]).await?;
    Ok((code, format!("{stdout}{stderr}")))
}

#[tokio::test]
async fn check_names_the_field_of_a_destination_that_would_send_secrets_in_the_open_or_reach_inward() {
    in_scratch("destinations-checked", async |scratch| {
        let config = example_copy(scratch)?;
        let host = std::fs::read_to_string(config.join("host.yaml"))?;
        let secret = "headers: [{name: Authorization, valueFrom: {env: TOKEN}}]";
        for (fields, told) in [
            (format!("url: \"http://hooks.example.com\", {secret}"), "allowPlain: true"),
            ("url: \"http://169.254.169.254\"".to_owned(), "the address of a cloud's metadata"),
            ("url: \"https://x\", paths: [jobs]".to_owned(), "`jobs` is no path"),
            ("url: \"https://x\", addresses: [inside]".to_owned(), "`inside` is no range of addresses"),
        ] {
            write(&config, "host.yaml", &format!("{}{}", host.trim_end(), destination(&fields)))?;
            let (code, said) = checked(&config).await?;
            ensure!(code == Some(3) && said.contains(told), "{fields}: {code:?}: {said}");
        }
        let fine = format!("url: \"http://hooks.example.com\", allowPlain: true, {secret}");
        write(&config, "host.yaml", &format!("{}{}", host.trim_end(), destination(&fine)))?;
        let (code, said) = checked(&config).await?;
        ensure!(code == Some(0), "{said}");
        Ok(())
    })
    .await;
}

/// The host shows a server that asks for one its certificate from a Secret, and trusts an authority that is named.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[allow(clippy::disallowed_methods)]
async fn a_server_that_asks_for_a_certificate_gets_requests_once_the_host_shows_the_right_one() {
    if !tls::is_installed() {
        return skip("destinations: client certificates", "openssl is not installed");
    }
    in_scratch("client-certificates", async |scratch| {
        let own = tls::make(&scratch.folder("own")?)?;
        let strange = tls::make(&scratch.folder("strange")?)?;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let plain = listener.local_addr()?;
        let (progress, stop) = (Arc::new(ReceiverProgress::default()), CancellationToken::new());
        let file = scratch.path().join("notifications.jsonl");
        let receiving = tokio::spawn(receiver::serve(listener, file, progress.clone(), stop.clone()));
        let front = tls::TlsFront::of(plain, own.acceptor(true)?).await?;

        let simulator = simulator(scratch).await?;
        let config = example_copy(scratch)?;
        let host = std::fs::read_to_string(config.join("host.yaml"))?;
        // As a Secret of the type `kubernetes.io/tls` is mounted.
        let secret = scratch.folder("secret")?;
        let shown = |from: &tls::TestCertificates| {
            std::fs::copy(&from.certificate, secret.join("tls.crt"))?;
            std::fs::copy(&from.key, secret.join("tls.key"))
        };
        shown(&strange)?;
        let known = |more: &str| {
            let ca = own.authority.display();
            let fields = format!("url: \"https://{}\", tls: {{ca: {ca}{more}}}", front.address);
            write(&config, "host.yaml", &format!("{}{}", host.trim_end(), destination(&fields)))
        };
        known("")?;
        write(&config, "notification.yaml", &plugin_manifest("notification", NOTIFICATION))?;
        create_job(&simulator, "one").await?;
        let options = simulator.run_options(scratch, config.clone())?;
        let mut run = Kubewitness::start("run", &options, scratch.path())?;
        run.answers().await?;
        let told = |told: &'static str| {
            move |status: &StatusView| {
                let notification = status.plugins.iter().find(|plugin| plugin.name == "notification");
                notification.is_some_and(|plugin| plugin.message.as_deref().is_some_and(|m| m.contains(told)))
            }
        };
        run.status_when(WITHIN, "the lack of a certificate", told("over TLS: CertificateRequired")).await?;
        let folder = secret.display();
        known(&format!(", certificate: {folder}/tls.crt, keyFrom: {{file: {folder}/tls.key}}"))?;
        run.status_when(WITHIN, "a strange certificate", told("refuses the controller over TLS: ")).await?;
        ensure!(progress.received.load(Relaxed) == 0, "a client was not asked for the right certificate");
        // Rotated: the settings stay.
        shown(&own)?;
        until(WITHIN, "what waited to be sent", async || {
            Ok((progress.received.load(Relaxed) > 0).then_some(()))
        })
        .await
        .with_context(|| run.process().say())?;
        run.stop().await?;
        stop.cancel();
        receiving.await??;
        Ok(())
    })
    .await;
}
