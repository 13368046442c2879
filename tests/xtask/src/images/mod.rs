//! Makes the pictures of `docs/images`: the portal in a browser and the terminal, both of a running
//! playground.

mod terminal;

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::build::BuildTimes;
use crate::build::plugins::PluginProfile;
use crate::build::{self, LintMode, check, step};
use crate::run;
use crate::suite::TestSelection;

const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
/// A playground first compiles its plugins, and its first jobs take some time to end.
const START_LIMIT: Duration = Duration::from_secs(180);
/// The phases, and the number of jobs, that the page of jobs must show before a picture is taken.
const PHASES_SHOWN: [&str; 4] = ["Running", "Queued", "Succeeded", "Failed"];
const JOBS_SHOWN: usize = 28;
const WIDTH: u32 = 1400;
const HEIGHT: u32 = 900;

/// The tests that take a picture of each page, and the variable with their folder.
const PICTURES: [&str; 2] = ["each_page_has_a_picture", "each_page_that_tells_of_troubles"];
const FOLDER: &str = "KUBEWITNESS_PICTURES";

pub fn command(args: &[String]) -> Result<()> {
    match args {
        [] => images(),
        [flag, folder] if flag == "--pages" => pages(folder),
        _ => bail!("`images` takes `--pages FOLDER` or nothing"),
    }
}

/// Takes a picture of each page, light and dark, wide and narrow, for a review of them all.
fn pages(folder: &str) -> Result<()> {
    let folder = std::path::absolute(folder).with_context(|| format!("{folder} is no folder"))?;
    let filters = PICTURES.map(str::to_owned).to_vec();
    let selection = TestSelection { filters, ignored: true, ..TestSelection::default() };
    run::test_with(&selection, LintMode::Ignored, |command| {
        command.env(FOLDER, &folder);
    })?;
    // Without chromedriver the tests are skipped, which would look like a success.
    if !folder.is_dir() {
        bail!("no picture was taken: install the package `chromium-driver`");
    }
    step(&format!("the pictures are in {}", folder.display()));
    Ok(())
}

fn images() -> Result<()> {
    let Some(browser) = BROWSERS.iter().find(|name| runs(name)) else {
        bail!("a browser takes the picture of the portal: install the package `chromium`");
    };
    build::tests(&[], LintMode::Ignored, &mut BuildTimes::default())?;
    let folder = build::root().join("docs").join("images");
    std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let playground = Playground::start()?;
    step("waiting until jobs of every kind are there");
    let jobs = playground.jobs()?;
    step("docs/images/portal.png");
    let picture = folder.join("portal.png");
    let mut command = Command::new(browser);
    command.args(["--headless", "--disable-gpu", "--hide-scrollbars", "--force-device-scale-factor=1"]);
    command.arg(format!("--window-size={WIDTH},{HEIGHT}"));
    command.arg(format!("--screenshot={}", picture.display()));
    command.arg(format!("--user-data-dir={}", build::target().join("images").join("browser").display()));
    if build::is_root() {
        command.arg("--no-sandbox");
    }
    // The page of a fixed moment, so that later states do not change the picture.
    let page = format!("{}/?at={}", playground.url, playground.moment()?);
    check(command.arg(&page).stdout(Stdio::null()).stderr(Stdio::null()))?;
    step("docs/images/terminal.svg");
    let (namespace, name) = ended_job(&jobs)?;
    let object = format!("job/{name}");
    let sessions = [vec!["jobs", "--limit", "8"], vec!["timeline", &object, "-n", namespace], vec!["status"]];
    let mut lines = Vec::new();
    for arguments in sessions {
        if !lines.is_empty() {
            lines.push(terminal::TerminalLine::Output(String::new()));
        }
        lines.push(terminal::TerminalLine::Command(format!("kubewitness {}", arguments.join(" "))));
        lines.extend(
            playground
                .ask(&arguments)?
                .lines()
                .map(|line| terminal::TerminalLine::Output(line.trim_end().to_owned())),
        );
    }
    let path = folder.join("terminal.svg");
    std::fs::write(&path, terminal::svg(&lines)).with_context(|| format!("writing {}", path.display()))
}

fn runs(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Namespace and name of a job that has ended.
fn ended_job(jobs: &str) -> Result<(&str, &str)> {
    let job = jobs.lines().find(|line| line.contains("Succeeded")).context("no job has ended")?;
    match job.split_whitespace().collect::<Vec<_>>().as_slice() {
        [namespace, name, ..] => Ok((namespace, name)),
        _ => bail!("`kubewitness jobs` has another table than this command knows: {job}"),
    }
}

/// A playground in a folder of its own. Dropping this ends it.
struct Playground {
    child: Child,
    url: String,
}

impl Drop for Playground {
    fn drop(&mut self) {
        if let Err(error) = self.child.kill().and_then(|()| self.child.wait()) {
            eprintln!("xtask: the playground can't be ended: {error}");
        }
    }
}

fn binary() -> Command {
    let mut command = Command::new(build::target().join("debug").join("kubewitness"));
    command.env("KUBEWITNESS_PLUGINS", PluginProfile::Quick.folder());
    command
}

impl Playground {
    fn start() -> Result<Self> {
        let folder = build::target().join("images");
        std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        let address = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let address = address.context("finding a free port")?.to_string();
        let mut command = binary();
        command.args(["playground", "--rate", "12", "--seed", "4", "--listen", &address, "--data"]);
        command
            .arg("kubewitness-playground")
            .current_dir(&folder)
            .stdout(Stdio::null())
            .stderr(log(&folder)?);
        let child = command.spawn().context("starting the playground")?;
        Ok(Self { child, url: format!("http://{address}") })
    }

    fn ask(&self, arguments: &[&str]) -> Result<String> {
        let output = binary().args(arguments).args(["--server", &self.url]).output();
        let output = output.context("starting kubewitness")?;
        if !output.status.success() {
            bail!("`kubewitness {}`: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr));
        }
        String::from_utf8(output.stdout).context("what it printed is no text")
    }

    /// The time at which the newest state of the jobs was observed, according to the API.
    fn moment(&self) -> Result<String> {
        let jobs = self.ask(&["jobs", "-o", "json"])?;
        let times = jobs.lines().filter_map(|line| line.trim().strip_prefix("\"observed_at\": \""));
        // Without fractions of a second, as people type times.
        let newest = times.filter_map(|rest| rest.get(..19)).max();
        newest.map(|time| format!("{time}Z")).context("`kubewitness jobs -o json` tells no time")
    }

    /// The table of jobs, once it contains every phase.
    fn jobs(&self) -> Result<String> {
        let until = Instant::now() + START_LIMIT;
        loop {
            // While the program starts, it answers with that.
            match self.ask(&["jobs"]) {
                Ok(jobs)
                    if jobs.lines().count() > JOBS_SHOWN
                        && PHASES_SHOWN.iter().all(|phase| jobs.contains(phase)) =>
                {
                    return Ok(jobs);
                }
                answer if Instant::now() > until => {
                    let seen = answer.unwrap_or_else(|error| error.to_string());
                    bail!(
                        "the playground has not had {JOBS_SHOWN} jobs, some in each of {PHASES_SHOWN:?}, in time: {seen}"
                    );
                }
                _ => std::thread::sleep(Duration::from_millis(500)),
            }
        }
    }
}

fn log(folder: &Path) -> Result<std::fs::File> {
    let path = folder.join("playground.log");
    std::fs::File::create(&path).with_context(|| format!("making {}", path.display()))
}
