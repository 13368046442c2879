//! How the portal looks and what it says of itself: the controller that goes and comes back, the theme, names of the
//! greatest length, and a picture of each page.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use kubewitness_harness::{ProcessEnd, Scratch, Simulator, free_port, in_scratch, until, until_ok};
use reqwest::Method;
use serde_json::{Value, json};

use crate::portal::accessible::pages;
use crate::portal::browser::{Browser, FEW, WITHIN, at_a_playground, has_driver, playground};
use crate::portal::troubles::Troubles;
use crate::support::{create_job, job};
use crate::watching::gaps::GapLab;

#[tokio::test]
async fn a_page_says_that_it_reconnects_while_the_controller_is_gone_and_is_live_again_when_it_is_back() {
    if !has_driver("appearance::a_page_says_that_it_reconnects").await {
        return;
    }
    in_scratch("reconnecting", async |scratch| {
        let port = free_port()?;
        let mut first = playground(scratch, port, &FEW)?;
        let browser = Browser::start(scratch.path()).await?;
        until_ok(WITHIN, "the page", async || {
            browser.open(&format!("http://127.0.0.1:{port}/")).await?;
            says(&browser, "Live", "open").await
        })
        .await?;
        ensure!(first.terminate(WITHIN).await? == ProcessEnd::Code(0), "{}", first.say());
        until_ok(WITHIN, "a page that reconnects", async || {
            says(&browser, "Paused: the connection is lost", "waiting").await
        })
        .await?;
        let mut again = playground(scratch, port, &FEW)?;
        until_ok(WITHIN, "a page that is live again", async || says(&browser, "Live", "open").await)
            .await
            .with_context(|| again.say())?;
        // It goes on by itself from where it was: nothing was loaded again.
        let before = browser.text().await?;
        until_ok(WITHIN, "the page to change by itself", async || {
            ensure!(browser.text().await? != before, "it is as it was");
            Ok(())
        })
        .await?;
        browser.close().await?;
        ensure!(again.terminate(WITHIN).await? == ProcessEnd::Code(0), "{}", again.say());
        Ok(())
    })
    .await;
}

/// Where the pictures are wanted; `cargo xtask images --pages FOLDER` says so.
const FOLDER: &str = "KUBEWITNESS_PICTURES";

fn folder() -> Result<PathBuf> {
    std::env::var_os(FOLDER).map(PathBuf::from).with_context(|| format!("{FOLDER} names no folder"))
}

#[tokio::test]
#[ignore = "takes pictures for somebody who looks at them: `cargo xtask images --pages FOLDER`"]
async fn each_page_has_a_picture_light_and_dark_wide_and_narrow() {
    if !has_driver("appearance::each_page_has_a_picture").await {
        return;
    }
    in_scratch("pictures", async |scratch| {
        let folder = folder()?;
        at_a_playground(scratch, &FEW, async |_, portal| {
            let pages = until(WITHIN, "a job with a story and Events", async || pages(portal).await).await?;
            pictures(scratch, portal, &pages, &folder.join("playground")).await
        })
        .await
    })
    .await;
}

#[tokio::test]
#[ignore = "takes pictures for somebody who looks at them: `cargo xtask images --pages FOLDER`"]
async fn each_page_that_tells_of_troubles_has_a_picture() {
    if !has_driver("appearance::each_page_that_tells_of_troubles").await {
        return;
    }
    in_scratch("pictures-troubles", async |scratch| {
        let folder = folder()?;
        let mut troubles = Troubles::start(scratch).await?;
        let pages = troubles.pages().map(|(page, _)| page);
        pictures(scratch, &troubles.lab.url(), &pages, &folder.join("troubles")).await?;
        troubles.lab.kubewitness.stop().await
    })
    .await;
}

async fn pictures(scratch: &Scratch, portal: &str, pages: &[String], folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let browser = Browser::start(scratch.path()).await?;
    for (number, page) in pages.iter().enumerate() {
        for theme in ["light", "dark"] {
            for width in [1400, 400] {
                browser.scheme(theme).await?;
                browser.resize(width, 1000).await?;
                browser.open(&format!("{portal}{page}")).await?;
                let picture = browser.picture(width).await?;
                ensure!(
                    picture.starts_with(b"\x89PNG") && width_of(&picture) == Some(width),
                    "{page}: no picture of {width} px"
                );
                let name = page.split(|one: char| !one.is_ascii_alphanumeric()).find(|part| !part.is_empty());
                let name = name.unwrap_or("jobs");
                let file = folder.join(format!("{number:02}-{name}-{theme}-{width}.png"));
                std::fs::write(&file, picture).with_context(|| format!("writing {}", file.display()))?;
            }
        }
    }
    browser.close().await
}

/// The first number of a PNG's header.
fn width_of(picture: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(picture.get(16..20)?.try_into().ok()?))
}

/// Checks the words and the state of the sign of the live stream.
async fn says(browser: &Browser, words: &str, state: &str) -> Result<()> {
    let script = "const live = document.getElementById('live'); \
        return live && !live.hidden ? [live.innerText.trim(), live.dataset.state] : []";
    let told = browser.script(script).await?;
    // A slow machine says how often the page looks: "Live, every 3 s".
    let is_said = told[0].as_str().is_some_and(|said| said.starts_with(words));
    ensure!(is_said && told[1] == state, "{told}");
    Ok(())
}

#[tokio::test]
async fn the_theme_follows_the_system_until_somebody_chooses_and_long_names_break_no_line() {
    if !has_driver("appearance::the_theme_follows_the_system").await {
        return;
    }
    in_scratch("appearance", async |scratch| {
        let mut lab = GapLab::start(scratch).await?;
        create_job(&lab.simulator, "short").await?;
        let [name, namespace] = [long(253), "n".repeat(63)];
        create_long(&lab.simulator, &name, &namespace).await?;
        look(&lab, scratch, &name, &namespace).await?;
        lab.kubewitness.stop().await
    })
    .await;
}

async fn look(lab: &GapLab<'_>, scratch: &Scratch, name: &str, namespace: &str) -> Result<()> {
    let browser = Browser::start(scratch.path()).await?;
    until_ok(WITHIN, "both jobs on the page", async || {
        browser.open(&format!("{}/", lab.url())).await?;
        let rows = rows(&browser).await?;
        ensure!(rows.iter().any(|row| row["name"] == name) && rows.len() == 2, "{rows:?}");
        Ok(())
    })
    .await?;
    theme(&browser, &lab.url()).await?;
    lines_and_cards(&browser, name, namespace).await?;
    let uid = rows(&browser).await?.into_iter().find(|row| row["name"] == name).context("the long job")?;
    let uid = uid["uid"].as_str().context("its uid")?;
    for page in ["/", &format!("/objects/{uid}"), "/gaps", "/?kind=all&gone=true"] {
        for width in [1400, 400] {
            browser.resize(width, 1000).await?;
            browser.open(&format!("{}{page}", lab.url())).await?;
            ensure!(overflow(&browser).await? == 0, "{page} is wider than its window of {width} px");
        }
    }
    browser.close().await
}

/// As many signs as an object's name may have, in parts of 63 signs.
fn long(signs: usize) -> String {
    let parts = (0..signs).map(|index| if index % 64 == 63 { '.' } else { 'a' });
    parts.collect()
}

async fn create_long(simulator: &Simulator, name: &str, namespace: &str) -> Result<()> {
    let space = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
    let (status, answer) = simulator.request(Method::POST, "/api/v1/namespaces", Some(&space)).await?;
    ensure!(status == 201 || status == 409, "the namespace answered {status}: {answer}");
    let mut job = job(name);
    job["metadata"]["namespace"] = json!(namespace);
    let path = format!("/apis/batch/v1/namespaces/{namespace}/jobs");
    let (status, answer) = simulator.request(Method::POST, &path, Some(&job)).await?;
    ensure!(status == 201, "the job answered {status}: {answer}");
    Ok(())
}

/// Describes each job in the list: its name, its height, how it is laid out, and the lines that its name and
/// namespace take.
async fn rows(browser: &Browser) -> Result<Vec<Value>> {
    let script = "const lines = (cell) => { const range = document.createRange(); range.selectNodeContents(cell); \
        return new Set([...range.getClientRects()].map((it) => Math.round(it.top / 8))).size; }; \
        return [...document.querySelectorAll('#objects tbody tr[data-uid]')].map((row) => ({ \
        uid: row.dataset.uid, name: row.querySelector('[data-f=\"name\"]').textContent.trim(), \
        height: Math.round(row.getBoundingClientRect().height), layout: getComputedStyle(row).display, \
        lines: ['name', 'namespace'].map((it) => lines(row.querySelector(`[data-f=\"${it}\"]`)))}))";
    let rows = browser.script(script).await?;
    Ok(rows.as_array().context("rows")?.clone())
}

async fn overflow(browser: &Browser) -> Result<i64> {
    let script =
        "const {scrollWidth, clientWidth} = document.documentElement; return scrollWidth - clientWidth";
    browser.script(script).await?.as_i64().context("a width")
}

async fn lines_and_cards(browser: &Browser, name: &str, namespace: &str) -> Result<()> {
    browser.resize(1400, 1000).await?;
    let wide = rows(browser).await?;
    ensure!(wide.iter().all(|row| row["layout"] == "table-row"), "{wide:?}");
    ensure!(wide.iter().all(|row| row["lines"] == json!([1, 1])), "a name breaks a line: {wide:?}");
    let heights: Vec<_> = wide.iter().map(|row| row["height"].as_i64()).collect();
    ensure!(heights.windows(2).all(|pair| pair[0] == pair[1]), "a long row is higher: {heights:?}");
    browser.resize(400, 1000).await?;
    let narrow = rows(browser).await?;
    ensure!(narrow.iter().all(|row| row["layout"] != "table-row"), "a row is no card: {narrow:?}");
    ensure!(overflow(browser).await? == 0, "a card is wider than its window");
    // What is cut off can be read: the page's text has all of it.
    let text = browser.script("return document.querySelector('#objects').textContent").await?;
    let text = text.as_str().context("the list")?;
    ensure!(text.contains(name) && text.contains(namespace), "{text}");
    browser.resize(1400, 1000).await
}

async fn theme(browser: &Browser, portal: &str) -> Result<()> {
    let ground = "return getComputedStyle(document.body).backgroundColor";
    browser.scheme("light").await?;
    let light = browser.script(ground).await?;
    browser.scheme("dark").await?;
    let dark = browser.script(ground).await?;
    ensure!(light != dark, "the page follows the system: {light}, {dark}");
    let press = "const theme = document.getElementById('theme'); theme.click(); return theme.textContent";
    ensure!(browser.script(press).await? == "Theme: light", "the first press chooses light");
    ensure!(browser.script(ground).await? == light, "what is chosen goes before the system");
    browser.open(&format!("{portal}/health")).await?;
    ensure!(browser.script(ground).await? == light, "and is kept on the next page");
    browser.script(press).await?;
    browser.scheme("light").await?;
    ensure!(browser.script(ground).await? == dark, "the second press chooses dark");
    ensure!(browser.script(press).await? == "Theme: system", "the third follows the system again");
    ensure!(browser.script(ground).await? == light, "as it is now");
    browser.open(&format!("{portal}/")).await
}
