//! `kubewitness dashboard`: signs a browser in once, and no command line and no file of others has the code.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_harness::{
    ChildProcess, Kubewitness, ProcessEnd, RunOptions, Scratch, Simulator, SimulatorOptions, command_in,
    http, in_scratch, kubewitness_binary, until,
};
use reqwest::header::{CONTENT_TYPE, COOKIE, LOCATION, SET_COOKIE};
use tokio::process::Command;

use crate::portal::browser::{Browser, has_driver};

const WITHIN: Duration = Duration::from_secs(120);

struct DashboardWorld {
    simulator: Simulator,
    run: Kubewitness,
    options: RunOptions,
}

impl DashboardWorld {
    async fn start(scratch: &Scratch, auth: &str) -> Result<Self> {
        let simulator = Simulator::start(scratch.path(), &SimulatorOptions::default()).await?;
        let options = RunOptions {
            args: ["--auth", auth].map(str::to_owned).into(),
            ..simulator.run_options(scratch, None)?
        };
        let run = Kubewitness::start("run", &options, scratch.path())?;
        let world = Self { simulator, run, options };
        world.answers().await?;
        Ok(world)
    }

    async fn answers(&self) -> Result<()> {
        until(WITHIN, "the portal", async || {
            let answer =
                http().get(format!("{}/api/v1/status", self.url())).bearer_auth(self.simulator.token());
            Ok(answer.send().await.is_ok_and(|answer| answer.status().is_success()).then_some(()))
        })
        .await
    }

    fn url(&self) -> String {
        format!("http://{}", self.run.address())
    }

    fn token(&self) -> (String, String) {
        ("KUBEWITNESS_TOKEN".to_owned(), self.simulator.token().to_owned())
    }

    /// The address that is printed for whoever has the token.
    async fn printed(&self) -> Result<String> {
        let line = ["dashboard", "--no-open", "--server", &self.url()];
        let (code, stdout, stderr) = command_in(&line, &[self.token()]).await?;
        ensure!(code == Some(0), "{code:?}: {stdout}{stderr}");
        Ok(stdout.trim().to_owned())
    }

    /// Where a person who opens the address and goes on is led, and the cookie that they get.
    async fn opened(&self, address: &str) -> Result<(String, Option<String>)> {
        let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build()?;
        let asked = client.get(address).header("sec-fetch-site", "none").send().await?;
        ensure!(asked.headers().get(SET_COOKIE).is_none(), "nobody was asked");
        let (page, code) = address.split_once("?code=").context("a code")?;
        let form = client
            .post(page)
            .header("origin", self.url())
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        let answer = form.body(format!("code={code}")).send().await?;
        let text = |name| answer.headers().get(name).and_then(|value| value.to_str().ok());
        let cookie = text(SET_COOKIE).and_then(|set| set.split(';').next()).map(str::to_owned);
        Ok((text(LOCATION).unwrap_or_default().to_owned(), cookie))
    }

    async fn status(&self, cookie: &str) -> Result<u16> {
        let asked = http().get(format!("{}/api/v1/status", self.url())).header(COOKIE, cookie);
        Ok(asked.send().await?.status().as_u16())
    }
}

#[tokio::test]
async fn a_printed_address_signs_in_once_and_a_log_out_holds_over_a_restart() {
    in_scratch("dashboard", async |scratch| {
        let mut world = DashboardWorld::start(scratch, "kubernetes").await?;
        let address = world.printed().await?;
        ensure!(
            address.contains("/login/once?code=") && !address.contains(world.simulator.token()),
            "{address}"
        );
        let (leads, cookie) = world.opened(&address).await?;
        let cookie = cookie.context("a cookie")?;
        ensure!(leads == "/" && world.status(&cookie).await? == 200, "{leads}");
        let (leads, none) = world.opened(&address).await?;
        ensure!(leads == "/login?used=true" && none.is_none(), "{leads} {none:?}");
        let (_, stays) = world.opened(&world.printed().await?).await?;
        let stays = stays.context("a cookie")?;

        let url = world.url();
        let out = http().post(format!("{url}/logout")).header(COOKIE, &cookie).header("origin", &url);
        ensure!(out.send().await?.status().as_u16() < 400, "the log-out");
        ensure!(world.status(&cookie).await? == 401 && world.status(&stays).await? == 200);
        world.run.kill().await?;
        world.run = Kubewitness::start("again", &world.options, scratch.path())?;
        world.answers().await?;
        ensure!(world.status(&cookie).await? == 401, "a log-out does not hold");
        ensure!(world.status(&stays).await? == 200, "a restart has ended a session");
        world.run.stop().await
    })
    .await;
}

#[tokio::test]
async fn where_nobody_signs_in_the_portal_is_opened_as_it_is() {
    in_scratch("dashboard-none", async |scratch| {
        let mut world = DashboardWorld::start(scratch, "none").await?;
        ensure!(world.printed().await? == format!("{}/", world.url()));
        let url = world.url();
        let line = ["dashboard", "--no-open", "--server", &url];
        let (code, stdout, _) = command_in(&line, &[]).await?;
        ensure!(code == Some(0) && stdout == format!("{url}/\n"), "{code:?}: {stdout}");
        world.run.stop().await?;
        let (code, stdout, stderr) = command_in(&line, &[]).await?;
        ensure!(
            code == Some(1) && stdout.is_empty() && stderr.contains("no controller answers at"),
            "{code:?}: {stdout}{stderr}"
        );
        Ok(())
    })
    .await;
}

/// A browser that keeps what it is told to open.
fn browser(scratch: &Scratch) -> Result<(PathBuf, PathBuf)> {
    let (script, told) = (scratch.path().join("browser.sh"), scratch.path().join("told"));
    let text = format!("#!/bin/sh\nprintf '%s' \"$*\" > {0}.new && mv {0}.new {0}\n", told.display());
    std::fs::write(&script, text)?;
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o700))?;
    Ok((script, told))
}

fn dashboard(world: &DashboardWorld, script: &Path, logs: &Path) -> Result<ChildProcess> {
    let (name, token) = world.token();
    let mut command = Command::new(kubewitness_binary()?);
    command.args(["dashboard", "--server", &world.url()]).env(name, token).env("BROWSER", script);
    ChildProcess::start("dashboard", &mut command, logs)
}

#[tokio::test]
async fn a_browser_gets_a_private_file_on_its_command_line_and_no_code() {
    in_scratch("dashboard-file", async |scratch| {
        let mut world = DashboardWorld::start(scratch, "kubernetes").await?;
        let (script, told) = browser(scratch)?;
        let mut process = dashboard(&world, &script, scratch.path())?;
        let line = until(WITHIN, "the browser", async || Ok(std::fs::read_to_string(&told).ok())).await?;
        let file = PathBuf::from(line.strip_prefix("file://").with_context(|| line.clone())?);
        let mode = |path: &Path| anyhow::Ok(std::fs::metadata(path)?.permissions().mode() & 0o777);
        let folder = file.parent().context("a folder")?;
        ensure!(mode(&file)? == 0o600 && mode(folder)? == 0o700, "{:o} {:o}", mode(&file)?, mode(folder)?);
        let page = std::fs::read_to_string(&file)?;
        let printed = process.stdout();
        let (_, code) = printed.trim().split_once("?code=").context("a printed code")?;
        ensure!(page.contains(code) && page.contains("/login/once") && !line.contains(code), "{page} {line}");
        ensure!(process.terminate(WITHIN).await? == ProcessEnd::Code(0), "{}", process.say());
        ensure!(!folder.exists(), "the code is left behind in {}", file.display());
        world.run.stop().await
    })
    .await;
}

#[tokio::test]
async fn a_real_browser_is_signed_in_by_the_file_once_the_person_goes_on() {
    if !has_driver("dashboard::a_real_browser").await {
        return;
    }
    in_scratch("dashboard-browser", async |scratch| {
        let mut world = DashboardWorld::start(scratch, "kubernetes").await?;
        let (script, told) = browser(scratch)?;
        let real = Browser::start(scratch.path()).await?;
        let mut process = dashboard(&world, &script, scratch.path())?;
        let file = until(WITHIN, "the browser", async || Ok(std::fs::read_to_string(&told).ok())).await?;
        // The command removes its own after twenty seconds, however slow the browser is.
        let copy = scratch.path().join("sign-in.html");
        std::fs::copy(file.trim_start_matches("file://"), &copy)?;
        real.open(&file).await?;
        let asks = async || Ok(real.text().await?.contains("Sign in as admin").then_some(()));
        until(WITHIN, "the portal to ask whether to go on", asks).await?;
        real.follow("document.querySelector('main button, .login button').click()").await?;
        let is_in = async || Ok(real.text().await?.contains("Log out").then_some(()));
        until(WITHIN, "the portal", is_in).await?;
        // It is good once.
        real.open(&format!("file://{}", copy.display())).await?;
        let used = async || {
            let text = real.text().await?;
            Ok((text.contains("Log out") || text.contains("used already")).then_some(()))
        };
        until(WITHIN, "an answer to a code that was used", used).await?;
        real.close().await?;
        ensure!(process.wait(WITHIN).await? == ProcessEnd::Code(0), "{}", process.say());
        ensure!(!Path::new(file.trim_start_matches("file://")).exists(), "{file} is left behind");
        world.run.stop().await
    })
    .await;
}
