//! The portal in a real browser: scripts run under its policy, the live stream connects, and the
//! pages hold what the API says.
//!
//! The driver is asked by hand: these tests need four of its requests, and the crate `fantoccini` would bring eight
//! crates with it, among them the tables of ICU.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::prelude::{BASE64_STANDARD, Engine};
use kubewitness_harness::{
    ChildProcess, ProcessEnd, SHORT_TIMERS, Scratch, command, compiled, free_port, http, in_scratch,
    kubewitness_binary, plugins_folder, skip, until, until_ok,
};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::support::job;
use crate::watching::gaps::{GapLab, a_hole};

const DRIVER: &str = "chromedriver";
/// A page is judged in seconds, and in minutes on a busy machine. A driver's own limit is half a minute.
const LONGEST_ANSWER: Duration = Duration::from_secs(300);
pub const WITHIN: Duration = Duration::from_secs(120);

#[tokio::test]
async fn a_browser_shows_jobs_live_the_story_of_one_and_the_plugins() {
    if !has_driver("browser::a_browser_shows_jobs_live").await {
        return;
    }
    in_scratch("browser", async |scratch| {
        at_a_playground(scratch, &[], async |_, portal| look(scratch, portal).await).await
    })
    .await;
}

#[tokio::test]
async fn a_browser_shows_a_hole_on_the_page_of_gaps_and_in_the_story_that_it_is_in() {
    if !has_driver("browser::a_browser_shows_a_hole").await {
        return;
    }
    in_scratch("browser-gaps", async |scratch| {
        let mut lab = GapLab::start(scratch).await?;
        a_hole(&mut lab, "train-1").await?;
        let gaps: Vec<Value> =
            http().get(format!("{}/api/v1/gaps?kind=job", lab.url())).send().await?.json().await?;
        let gap = gaps.first().context("a gap")?;
        let (after, uid) =
            (gap["after"].as_str().context("after")?, gap["object"]["uid"].as_str().context("uid")?);
        let browser = Browser::start(scratch.path()).await?;

        browser.open(&format!("{}/gaps", lab.url())).await?;
        let text = browser.text().await?;
        for words in ["Job/train-1", "Compacted", after, "the whole source", "Replaced histories"] {
            ensure!(text.contains(words), "{words} is not in {text}");
        }
        // By keyboard: the link of the hole's object is reached with the tab key's order and leads on.
        let link = format!("document.querySelector('main td.object a[href$=\"{uid}\"]')");
        let reached =
            browser.script(&format!("{link}.focus(); return document.activeElement === {link}")).await?;
        ensure!(reached == true, "the link can be focused");
        browser.follow(&format!("{link}.click()")).await?;
        let text = browser.text().await?;
        ensure!(text.contains("Every state"), "the object's page: {text}");
        ensure!(text.contains("Compacted") && text.contains(&format!("{after} …")), "{text}");
        let drawn = browser.script("return document.querySelectorAll('svg .hole').length").await?;
        ensure!(drawn.as_u64() >= Some(2), "the hole is drawn: {drawn}");

        browser.open(&format!("{}/sources", lab.url())).await?;
        let text = browser.text().await?;
        ensure!(text.contains("jobs") && text.contains("synced") && text.contains("1 expired"), "{text}");
        browser.close().await?;
        lab.kubewitness.stop().await
    })
    .await;
}

/// The page asks for its content only when the stream brings something that concerns it: timers that repeat are off.
#[tokio::test]
async fn a_page_of_a_job_of_a_cronjob_follows_the_pods_of_this_job_by_the_stream() {
    if !has_driver("browser::a_page_of_a_job_of_a_cronjob").await {
        return;
    }
    in_scratch("browser-cronjob", async |scratch| {
        let mut lab = GapLab::start(scratch).await?;
        let owned = |mut object: Value, kind: &str, name: &str, uid: &str| {
            let api_version = if kind == "Job" || kind == "CronJob" { "batch/v1" } else { "v1" };
            object["metadata"]["ownerReferences"] = json!([
                {"apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "controller": true},
            ]);
            object
        };
        let create = async |resource: &str, object: &Value| {
            let path = format!("/{resource}");
            let (status, answer) = lab.simulator.request(reqwest::Method::POST, &path, Some(object)).await?;
            ensure!(status == 201, "{resource} answered {status}: {answer}");
            anyhow::Ok(answer)
        };
        let nightly = owned(job("nightly-1"), "CronJob", "nightly", "uid-of-nightly");
        create("apis/batch/v1/namespaces/default/jobs", &nightly).await?;
        let url = format!("{}/api/v1/objects?kind=job", lab.url());
        let found = async || {
            let jobs: Vec<Value> = http().get(&url).send().await?.json().await?;
            Ok(jobs.first().and_then(|job| job["object"]["uid"].as_str()).map(str::to_owned))
        };
        let uid = until(WITHIN, "the job", found).await?;
        let browser = Browser::start(scratch.path()).await?;
        browser.before_each_page("window.setInterval = () => 0;").await?;
        browser.open(&format!("{}/objects/{uid}", lab.url())).await?;
        let shows = async |words: &'static str| {
            let shown = async || Ok(browser.text().await?.contains(words).then_some(()));
            until(WITHIN, words, shown).await
        };
        shows("Live").await?;
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "nightly-1-first", "namespace": "default"},
            "spec": {"containers": [{"name": "main", "image": "x"}]},
        });
        create("api/v1/namespaces/default/pods", &owned(pod, "Job", "nightly-1", &uid)).await?;
        shows("nightly-1-first").await?;
        browser.close().await?;
        lab.kubewitness.stop().await
    })
    .await;
}

#[tokio::test]
async fn a_list_takes_a_new_row_in_its_place_and_durations_grow_with_the_phase() {
    if !has_driver("browser::a_list_takes_a_new_row_in_its_place").await {
        return;
    }
    in_scratch("browser-sorted", async |scratch| {
        let mut lab = GapLab::start(scratch).await?;
        let jobs = "/apis/batch/v1/namespaces/default/jobs";
        let send = async |method: reqwest::Method, path: &str, object: &Value| {
            let (status, answer) = lab.simulator.request(method, path, Some(object)).await?;
            ensure!((200..300).contains(&status), "{path} answered {status}: {answer}");
            anyhow::Ok(answer)
        };
        for name in ["train-a", "train-c"] {
            send(reqwest::Method::POST, jobs, &job(name)).await?;
        }
        let browser = Browser::start(scratch.path()).await?;
        let shows = async |script: &'static str, expected: Value| {
            let shown = async || Ok((browser.script(script).await? == expected).then_some(()));
            until(WITHIN, script, shown).await
        };
        let rows = "return [...document.querySelectorAll('#objects tbody tr')].map((row) => \
            [row.querySelector('[data-f=name]').textContent, row.classList.contains('came')])";
        let list = format!("{}/?kind=Job&sort=name", lab.url());
        let both = async || {
            browser.open(&list).await?;
            let is_live =
                browser.script("return document.getElementById('live').dataset.state").await? == "open";
            Ok((is_live && at_least(&browser, "#objects tbody tr", 2).await?).then_some(()))
        };
        until(WITHIN, "a live list of both", both).await?;
        let mut between = send(reqwest::Method::POST, jobs, &job("train-b")).await?;
        shows(rows, json!([["train-a", false], ["train-b", true], ["train-c", false]])).await?;

        let ticking = "return [...document.querySelectorAll('#objects tbody tr:nth-child(2) [data-ticks]')] \
            .map((part) => part.closest('td').dataset.label)";
        shows(ticking, json!(["Waited"])).await?;
        between["status"] = json!({"startTime": "2026-01-01T00:00:00Z", "active": 1, "ready": 1});
        send(reqwest::Method::PUT, &format!("{jobs}/train-b/status"), &between).await?;
        shows(ticking, json!(["Ran"])).await?;

        // No further state comes.
        let uid = between["metadata"]["uid"].as_str().context("a uid")?;
        browser.open(&format!("{}/objects/{uid}", lab.url())).await?;
        let why = async || browser.script("return document.getElementById('why').textContent").await;
        for _ in 0..2 {
            let before = why().await?;
            let is_longer = async || Ok((why().await? != before).then_some(()));
            until(WITHIN, "a longer duration", is_longer).await?;
        }
        browser.close().await?;
        lab.kubewitness.stop().await
    })
    .await;
}

/// Whether a browser can be steered here. Where it can't, the test is skipped.
pub async fn has_driver(test: &str) -> bool {
    let has = Command::new(DRIVER).arg("--version").output().await.is_ok();
    if !has {
        skip(test, "chromedriver is not on the PATH");
    }
    has
}

/// Looks at a playground, which then ends and has lost nothing.
pub async fn at_a_playground(
    scratch: &Scratch,
    more: &[&str],
    look: impl AsyncFnOnce(&mut ChildProcess, &str) -> Result<()>,
) -> Result<()> {
    let port = free_port()?;
    let mut playground = playground(scratch, port, more)?;
    let result = look(&mut playground, &format!("http://127.0.0.1:{port}")).await;
    let result = result.with_context(|| playground.say());
    let ended = playground.terminate(WITHIN).await?;
    result?;
    ensure!(ended == ProcessEnd::Code(0), "the playground ended with {ended:?}; {}", playground.say());
    Ok(())
}

/// For tests that need few jobs: the cluster leaves the processors to the browser.
pub const FEW: [&str; 2] = ["--rate", "10"];
/// The same, where people sign in.
pub const FEW_WITH_PERSONS: [&str; 4] = ["--rate", "10", "--auth", "kubernetes"];

pub fn playground(scratch: &Scratch, port: u16, more: &[&str]) -> Result<ChildProcess> {
    let mut command = Command::new(kubewitness_binary()?);
    let listen = format!("127.0.0.1:{port}");
    let data = scratch.path().join("data");
    compiled::seed_playground(&data)?;
    command.args(["playground", "--seed", "3", "--listen", &listen, "--data"]).arg(data);
    if !more.contains(&"--rate") {
        command.args(["--rate", "20"]);
    }
    command.args(more).env("KUBEWITNESS_PLUGINS", plugins_folder()?).env(SHORT_TIMERS.0, SHORT_TIMERS.1);
    ChildProcess::start("playground", &mut command, scratch.path())
}

async fn look(scratch: &Scratch, portal: &str) -> Result<()> {
    let job = until(WITHIN, "a job that runs", async || some_running_job(portal).await).await?;
    let name = job["object"]["name"].as_str().context("a name")?;
    let uid = job["object"]["uid"].as_str().context("a uid")?;
    let browser = Browser::start(scratch.path()).await?;

    browser.open(&format!("{portal}/")).await?;
    let live = async || Ok(browser.text().await?.contains("Live").then_some(()));
    until(WITHIN, "the live stream in the browser", live).await?;
    // What is counted changes without the page being loaded again.
    let before = browser.text().await?;
    let changed = async || Ok((browser.text().await? != before).then_some(()));
    until(WITHIN, "the page to change by itself", changed).await?;

    browser.open(&format!("{portal}/objects/{uid}")).await?;
    ensure!(browser.text().await?.contains(name), "one job's story: {}", browser.text().await?);
    // The first job runs while plugins are still compiled.
    let drawn = async || {
        browser.open(&format!("{portal}/objects/{uid}")).await?;
        let [phases, marks] =
            [at_least(&browser, "svg rect", 2).await?, at_least(&browser, "svg .told", 1).await?];
        let lanes = browser.text().await?.contains("which plugin is done with each state");
        Ok((phases && marks && lanes).then_some(()))
    };
    until(WITHIN, "its phases, and a mark for each state that a plugin has", drawn).await?;

    let seq = job["seq"].as_u64().context("a position")?;
    document_elsewhere(&browser, &format!("{portal}/states/{seq}")).await?;
    rows_come_and_the_pointer_keeps_its_own(&browser, portal).await?;
    a_look_asks_for_the_layout_a_few_times(&browser, portal).await?;
    a_story_follows(&browser, portal).await?;
    at_hand(&browser, portal).await?;

    browser.open(&format!("{portal}/plugins")).await?;
    let text = browser.text().await?;
    for plugin in ["audit", "notification", "persistence"] {
        ensure!(text.contains(plugin), "{plugin} is missing: {text}");
    }
    folds_by_its_own_width(&browser).await?;
    browser.close().await
}

async fn at_least(browser: &Browser, selector: &str, count: u64) -> Result<bool> {
    let drawn = browser.script(&format!("return document.querySelectorAll('{selector}').length")).await?;
    Ok(drawn.as_u64() >= Some(count))
}

/// The table of a plugin's grants stands in a card: its rows are cards where the card is narrow, however wide the window.
async fn folds_by_its_own_width(browser: &Browser) -> Result<()> {
    browser.resize(1400, 1000).await?;
    let layouts = "const table = document.querySelector('table.grants'); table.closest('details').open = true; \
        const [place, row] = [table.closest('.scroll'), table.querySelector('tbody tr')]; \
        return [400, 1000].map((width) => { place.style.width = `${width}px`; return getComputedStyle(row).display; })";
    let layouts = browser.script(layouts).await?;
    ensure!(layouts == json!(["block", "table-row"]), "{layouts}");
    Ok(())
}

/// The page of a document tells its times in the reader's zone, with UTC where one is pointed at.
async fn document_elsewhere(browser: &Browser, page: &str) -> Result<()> {
    browser.zone("Asia/Tokyo").await?;
    browser.open(page).await?;
    let told = "return [...document.querySelectorAll('main time')].map((time) => { \
        const own = new Date(Date.parse(time.dateTime) + 9 * 3600e3).toISOString().slice(0, 19).replace('T', ' '); \
        return time.textContent === own && /^2.* UTC$/.test(time.title); })";
    let told = browser.script(told).await?;
    let all = told.as_array().context("times")?;
    ensure!(!all.is_empty() && all.iter().all(|is| *is == true), "{told}");
    browser.zone("UTC").await
}

/// Checks the objects that are gone, those that were there, and what a reader does by key and by choice.
async fn at_hand(browser: &Browser, portal: &str) -> Result<()> {
    let gone = async || {
        browser.open(&format!("{portal}/?gone=only")).await?;
        Ok(browser
            .script("return document.querySelectorAll('tr.gone').length")
            .await?
            .as_u64()
            .filter(|gone| *gone > 0))
    };
    until(WITHIN, "a job that is gone", gone).await?;
    events_are_kept(portal).await?;
    let key = "document.body.dispatchEvent(new KeyboardEvent('keydown', {key: '/', bubbles: true}));";
    let focused = browser.script(&format!("{key} return document.activeElement.id")).await?;
    ensure!(focused == "search", "the key / leads to the search: {focused}");
    let help = key.replace("'/'", "'?'");
    let open = browser.script(&format!("{help} return document.getElementById('keys').open")).await?;
    ensure!(open == true, "the key ? shows the keys: {open}");
    let switch = "const theme = document.getElementById('theme'); theme.click(); theme.click();";
    let theme = browser.script(&format!("{switch} return document.documentElement.dataset.theme")).await?;
    ensure!(theme == "dark", "the theme is switched: {theme}");
    browser.open(&format!("{portal}/health")).await?;
    let kept = browser.script("return document.documentElement.dataset.theme").await?;
    ensure!(kept == "dark", "and kept: {kept}");
    ensure!(browser.text().await?.contains("Held beyond retention"), "{}", browser.text().await?);
    elsewhere(browser, portal).await?;
    let now = browser.script("return new Date().toISOString()").await?;
    let now = now.as_str().context("a time")?;
    browser.open(&format!("{portal}/?at={now}")).await?;
    let rows = browser.script("return document.querySelectorAll('tbody tr[data-uid]').length").await?;
    ensure!(rows.as_u64() > Some(0), "what was there a moment ago: {rows}");
    Ok(())
}

/// New rows come where the order has them, and the row under the pointer stays where it is; and all of it can be paused.
async fn rows_come_and_the_pointer_keeps_its_own(browser: &Browser, portal: &str) -> Result<()> {
    // The list alone, so that the page ends far above the window's end and has to be made longer.
    browser.resize(1200, 2000).await?;
    browser.open(&format!("{portal}/")).await?;
    let place = "const row = document.querySelectorAll('#objects tbody tr')[3].getBoundingClientRect(); \
                 return [row.left + 30, row.top + row.height / 2]";
    let place = browser.script(place).await?;
    browser.point(&place[0], &place[1]).await?;
    // The page may have changed before the pointer was there.
    let rows =
        "const rows = [...document.querySelectorAll('#objects tbody tr')].map((row) => row.dataset.uid);";
    let under = format!(
        "const under = document.elementFromPoint({}, {}).closest('tr').dataset.uid;",
        place[0], place[1]
    );
    let seen = format!("{rows} {under} return {{rows, under}}");
    let mut before = browser.script(&seen).await?;
    let came = async || {
        let after = browser.script(&seen).await?;
        let known = before["rows"].as_array().context("rows")?;
        if !known.contains(&after["rows"][0]) {
            return Ok(Some(after));
        }
        // Where a job above is deleted, a page that is at its top can't be scrolled, and rows move up.
        before = after;
        Ok(None)
    };
    let after = until(WITHIN, "a new job above the others", came).await?;
    ensure!(after["under"] == before["under"], "another row is under the pointer: {before} {after}");
    let live = "const live = document.getElementById('live');";
    let press = format!("{live} live.click(); return live.dataset.state + ' ' + live.textContent");
    let told = browser.script(&press).await?;
    ensure!(told == "paused Paused: by you", "{told}");
    browser.script(&press).await?;
    let state = format!("{live} return live.dataset.state");
    until(WITHIN, "it to go on", async || Ok((browser.script(&state).await? == "open").then_some(()))).await
}

/// A browser lays a changed page out before it tells the selection. So a look asks for that once and not for each row:
/// a list of a hundred jobs took a second, and followed every four.
async fn a_look_asks_for_the_layout_a_few_times(browser: &Browser, portal: &str) -> Result<()> {
    const A_FEW: f64 = 20.0;
    browser.open(&format!("{portal}/")).await?;
    let count = "window.asked = 0; window.looks = []; window.since = performance.now(); \
        const of = Object.getOwnPropertyDescriptor(Selection.prototype, 'isCollapsed').get; \
        Object.defineProperty(Selection.prototype, 'isCollapsed', {get() { window.asked += 1; return of.call(this); }}); \
        const ask = window.fetch; \
        window.fetch = (...request) => { const now = performance.now(); \
        window.looks.push([window.asked, (now - window.since) / 1000]); \
        [window.asked, window.since] = [0, now]; return ask(...request); };";
    browser.script(count).await?;
    let three = async || {
        let looks = browser.script("return window.looks").await?;
        Ok(looks.as_array().filter(|looks| looks.len() > 3).cloned())
    };
    let looks = until(WITHIN, "three looks", three).await?;
    let rows = browser.script("return document.querySelectorAll('#objects tbody tr').length").await?;
    // Times that grow ask each second, also while a busy machine takes long for the next look.
    let is_few = |look: &Value| look[0].as_f64() < look[1].as_f64().map(|seconds| A_FEW + seconds);
    ensure!(looks.iter().all(is_few), "{looks:?} with {rows} rows");
    ensure!(looks.iter().any(|look| look[0].as_u64() > Some(0)), "a look asks what is selected: {looks:?}");
    Ok(())
}

/// The page of a job follows its states, and what its reader does with it stays: an open part, a choice, a selection.
async fn a_story_follows(browser: &Browser, portal: &str) -> Result<()> {
    let queued = async || {
        let path = "api/v1/objects?kind=Job&phase=Running";
        let jobs: Vec<Value> = http().get(format!("{portal}/{path}")).send().await?.json().await?;
        Ok(jobs.into_iter().next())
    };
    let job = until(WITHIN, "a job that runs", queued).await?;
    let uid = job["object"]["uid"].as_str().context("a uid")?;
    browser.open(&format!("{portal}/objects/{uid}")).await?;
    let set = "document.querySelector('details.commands').open = true; const from = document.querySelector('[name=from]'); \
               if (from) { from.checked = true; from.dispatchEvent(new Event('change', {bubbles: true})); } \
               const at = document.querySelector('[name=at]'); at.value = '2026-'; at.focus(); \
               at.dispatchEvent(new Event('input', {bubbles: true})); getSelection().selectAllChildren(document.querySelector('h1')); \
               window.isThere = true; const rows = document.querySelectorAll('[id^=state-]').length; \
               return [document.querySelector('.head .phase').dataset.phase, rows]";
    let before = browser.script(set).await?;
    let now = "return [document.querySelector('.head .phase').dataset.phase, document.querySelectorAll('[id^=state-]').length]";
    let changed = async || Ok((browser.script(now).await? != before).then_some(()));
    until(WITHIN, "the story to follow", changed).await?;
    let stays = "const from = document.querySelector('[name=from]'); const at = document.querySelector('[name=at]'); \
                 return [window.isThere, document.querySelector('details.commands').open, !from || from.checked, at.value, \
                 document.activeElement === at, getSelection().toString() === document.querySelector('h1').textContent]";
    let kept = browser.script(stays).await?;
    ensure!(kept == json!([true, true, true, "2026-", true, true]), "{kept}");
    Ok(())
}

/// The simulated cluster forgets the Events of a job with the job. Its story has them, and those of its pods.
async fn events_are_kept(portal: &str) -> Result<()> {
    let get = async |path: &str| -> Result<Value> {
        Ok(http().get(format!("{portal}/api/v1/{path}")).send().await?.error_for_status()?.json().await?)
    };
    // A job that was deleted while it was queued has none.
    let told = async || {
        let gone = get("objects?kind=Job&gone=only").await?;
        for uid in gone.as_array().into_iter().flatten().filter_map(|job| job["object"]["uid"].as_str()) {
            let story = get(&format!("timeline?uid={uid}")).await?;
            let has = |reason| {
                story["events"].as_array().is_some_and(|all| all.iter().any(|it| it["reason"] == reason))
            };
            if has("SuccessfulCreate") && has("Scheduled") {
                return Ok(Some(uid.to_owned()));
            }
        }
        Ok(None)
    };
    let uid = until(WITHIN, "a job that is gone and has Events", told).await?;
    let (code, stdout, stderr) = command(&["timeline", &uid, "--server", portal]).await?;
    ensure!(
        code == Some(0) && stdout.contains("LAST SEEN") && stdout.contains("Scheduled"),
        "{stdout}{stderr}"
    );
    Ok(())
}

/// A reader in Tokyo sees and types times of Tokyo, with UTC where one is pointed at.
async fn elsewhere(browser: &Browser, portal: &str) -> Result<()> {
    browser.zone("Asia/Tokyo").await?;
    browser.open(&format!("{portal}/?at=2026-11-20+20:30")).await?;
    let told = "const time = document.querySelector('h1 time'); const at = document.querySelector('[name=at]'); \
        const sent = new FormData(at.form).get('at'); \
        return [time.textContent, time.title, at.value, sent, document.getElementById('zone').textContent].join('; ')";
    let told = browser.script(told).await?;
    let wanted = "2026-11-21 05:30:00; 2026-11-20 20:30:00 UTC; 2026-11-21 05:30:00; 2026-11-20 20:30:00; Times: Asia/Tokyo";
    ensure!(told == wanted, "{told}");
    browser.follow("document.getElementById('zone').click()").await?;
    let told = "return document.querySelector('h1 time').textContent";
    let utc = async || Ok((browser.script(told).await? == "2026-11-20 20:30:00 UTC").then_some(()));
    until(WITHIN, "times of UTC again", utc).await?;
    browser.zone("UTC").await
}

/// The token of a person, as a playground with `--auth kubernetes` prints it.
pub async fn token_of(playground: &mut ChildProcess, person: &str) -> Result<String> {
    let of_person = |line: &str| {
        let (name, rest) = line.trim().split_once(' ')?;
        let token = rest.split_once("KUBEWITNESS_TOKEN=")?.1.split(' ').next()?;
        (name == person).then(|| token.to_owned())
    };
    playground.line(0, WITHIN, of_person).await
}

async fn some_running_job(portal: &str) -> Result<Option<Value>> {
    let answer = http().get(format!("{portal}/api/v1/objects?kind=Job&phase=Running")).send().await;
    // While it starts, it answers that it does.
    let Ok(answer) = answer.and_then(reqwest::Response::error_for_status) else { return Ok(None) };
    let jobs: Vec<Value> = answer.json().await?;
    Ok(jobs.into_iter().next())
}

/// A browser that a driver steers, as a person would.
pub struct Browser {
    client: reqwest::Client,
    session: String,
    driver: ChildProcess,
}

impl Drop for Browser {
    /// After a test that failed. A driver that is killed leaves its browser, which would go on for the rest of the run.
    fn drop(&mut self) {
        if let Ok(group) = self.driver.pid() {
            std::process::Command::new("kill").args(["-KILL", "--", &format!("-{group}")]).status().ok();
        }
    }
}

impl Browser {
    pub async fn start(scratch: &Path) -> Result<Self> {
        let port = free_port()?;
        let mut command = Command::new(DRIVER);
        command.process_group(0);
        let driver = ChildProcess::start("driver", command.arg(format!("--port={port}")), scratch)?;
        let client = http();
        let arguments = [
            "--headless",
            // Colours are judged, and a row that fades in has none of its own yet.
            "--force-prefers-reduced-motion",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            &format!("--user-data-dir={}", scratch.join("browser").display()),
        ];
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": {"args": arguments},
            "goog:loggingPrefs": {"browser": "ALL"},
            "timeouts": {"script": LONGEST_ANSWER.as_millis(), "pageLoad": LONGEST_ANSWER.as_millis()},
        }}});
        let base = format!("http://127.0.0.1:{port}/session");
        let made = until(WITHIN, "a browser", async || {
            // The driver answers once the browser is there.
            match client.post(&base).json(&wanted).timeout(WITHIN).send().await {
                Ok(answer) => Ok(Some(answer.json::<Value>().await?)),
                Err(error) if error.is_connect() => Ok(None),
                Err(error) => Err(error.into()),
            }
        });
        let made = made.await.with_context(|| driver.say())?;
        let id = made["value"]["sessionId"].as_str().with_context(|| format!("no browser: {made}"))?;
        let session = format!("{base}/{id}");
        Ok(Self { client, session, driver })
    }

    pub async fn open(&self, url: &str) -> Result<()> {
        self.ask("url", &json!({"url": url})).await?;
        Ok(())
    }

    /// Runs a script in the page, and returns its answer. Scripts of a driver are not bound by the page's
    /// policy.
    pub async fn script(&self, script: &str) -> Result<Value> {
        self.ask("execute/sync", &json!({"script": script, "args": []})).await
    }

    /// Runs a script that leads to another page, and waits until that one is loaded. Before that, the browser may
    /// refuse to run scripts, or show a part of the page.
    pub async fn follow(&self, script: &str) -> Result<()> {
        self.script(&format!("window.isLeft = true; {script}")).await?;
        until_ok(WITHIN, "the next page", async || {
            let script = "return !window.isLeft && document.readyState === 'complete'";
            ensure!(self.script(script).await? == true, "the page before is still there");
            Ok(())
        })
        .await
    }

    /// Returns the lines that the browser has told its console since it was asked last.
    pub async fn console(&self) -> Result<Vec<String>> {
        let lines = self.ask("se/log", &json!({"type": "browser"})).await?;
        let lines = lines.as_array().context("the console's lines")?.iter();
        Ok(lines.filter_map(|line| Some(line["message"].as_str()?.to_owned())).collect())
    }

    /// Shows the page as a device of this size does: a window has a least width.
    pub async fn resize(&self, width: u32, height: u32) -> Result<()> {
        self.emulate(
            "setDeviceMetricsOverride",
            &json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}),
        )
        .await
    }

    /// Moves the pointer there, as a person does.
    pub async fn point(&self, x: &Value, y: &Value) -> Result<()> {
        self.devtools("Input.dispatchMouseEvent", &json!({"type": "mouseMoved", "x": x, "y": y})).await
    }

    pub async fn zone(&self, name: &str) -> Result<()> {
        self.emulate("setTimezoneOverride", &json!({"timezoneId": name})).await
    }

    /// A picture of the whole page, as PNG.
    pub async fn picture(&self, width: u32) -> Result<Vec<u8>> {
        let height = self.script("return document.documentElement.scrollHeight").await?;
        let clip = json!({"x": 0, "y": 0, "width": width, "height": height, "scale": 1});
        let wanted = json!({"format": "png", "captureBeyondViewport": true, "clip": clip});
        let wanted = json!({"cmd": "Page.captureScreenshot", "params": wanted});
        let taken = self.ask("goog/cdp/execute", &wanted).await?;
        let text = taken["data"].as_str().context("a picture")?;
        BASE64_STANDARD.decode(text).context("the picture is no base64")
    }

    /// Sets the theme of the system.
    pub async fn scheme(&self, name: &str) -> Result<()> {
        let features = json!([{"name": "prefers-color-scheme", "value": name}]);
        self.emulate("setEmulatedMedia", &json!({"features": features})).await
    }

    async fn emulate(&self, what: &str, params: &Value) -> Result<()> {
        self.devtools(&format!("Emulation.{what}"), params).await
    }

    /// Scripts of pages do not run from the next page on; those of a driver do.
    pub async fn without_scripts(&self) -> Result<()> {
        self.emulate("setScriptExecutionDisabled", &json!({"value": true})).await
    }

    async fn devtools(&self, command: &str, params: &Value) -> Result<()> {
        self.ask("goog/cdp/execute", &json!({"cmd": command, "params": params})).await?;
        Ok(())
    }

    /// Runs in this window before the scripts of each page that it opens.
    pub async fn before_each_page(&self, script: &str) -> Result<()> {
        self.devtools("Page.addScriptToEvaluateOnNewDocument", &json!({"source": script})).await
    }

    /// The window that is looked at.
    pub async fn window(&self) -> Result<String> {
        let answer = self.client.get(format!("{}/window", self.session)).send().await?;
        let answer: Value = answer.error_for_status()?.json().await?;
        Ok(answer["value"].as_str().context("a window")?.to_owned())
    }

    /// Opens a window beside the others and looks at it.
    pub async fn another_window(&self) -> Result<String> {
        let made = self.ask("window/new", &json!({"type": "window"})).await?;
        let window = made["handle"].as_str().context("a new window")?.to_owned();
        self.look_at(&window).await?;
        Ok(window)
    }

    pub async fn look_at(&self, window: &str) -> Result<()> {
        self.ask("window", &json!({"handle": window})).await?;
        Ok(())
    }

    /// Closes the window that is looked at.
    pub async fn close_window(&self) -> Result<()> {
        self.client.delete(format!("{}/window", self.session)).send().await?.error_for_status()?;
        Ok(())
    }

    /// Returns the text that a person reads on the page. While the page leads to another one, a browser may
    /// refuse to tell.
    pub async fn text(&self) -> Result<String> {
        until_ok(WITHIN, "the text of a page", async || {
            let text = self.script("return document.body.innerText").await?;
            Ok(text.as_str().context("the page has no text")?.to_owned())
        })
        .await
    }

    pub async fn sign_in(&self, portal: &str, token: &str) -> Result<()> {
        self.open(&format!("{portal}/login")).await?;
        let form = "const form = document.querySelector('form[action=\"/login\"]');";
        let enter =
            format!("form.elements.token.value = {}; form.querySelector('button').click()", json!(token));
        self.follow(&format!("{form} {enter}")).await
    }

    async fn ask(&self, path: &str, body: &Value) -> Result<Value> {
        let request = self.client.post(format!("{}/{path}", self.session)).json(body);
        let answer = request.timeout(LONGEST_ANSWER).send().await?;
        let (status, answer) = (answer.status(), answer.json::<Value>().await?);
        ensure!(status.is_success(), "the browser refused {path}: {answer}");
        Ok(answer["value"].clone())
    }

    pub async fn close(self) -> Result<()> {
        self.client.delete(&self.session).send().await?.error_for_status()?;
        Ok(())
    }
}
