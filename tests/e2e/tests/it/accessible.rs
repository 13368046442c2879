//! Each page of the portal, looked at by axe-core: light and dark, wide and narrow, and without anything that the pages'
//! own policy forbids.

use anyhow::{Context, Result, ensure};
use kubewitness_harness::{
    Ended, Scratch, free_port, http, in_scratch, services_folder, skip, skip_where_there_is_no_tool, until,
};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::browser::{Browser, DRIVER, WITHIN, playground};

/// What axe-core finds, a line each: the rule, and the first elements that break it.
const LOOK: &str = "return axe.run(document, {resultTypes: ['violations']}).then(({violations}) => violations.map(\
    (found) => `${found.id} (${found.help}): ` + found.nodes.slice(0, 3).map((node) => node.html + ' ' + \
    (node.any.concat(node.all)[0] || {message: ''}).message).join(' | ')))";

#[tokio::test]
async fn no_page_keeps_anybody_out_whatever_its_colours_and_width() {
    const NAME: &str = "accessible::no_page_keeps_anybody_out";
    if Command::new(DRIVER).arg("--version").output().await.is_err() {
        return skip(NAME, "chromedriver is not on the PATH");
    }
    let script = services_folder().map(|folder| folder.join("axe/node_modules/axe-core/axe.min.js"));
    let Some(axe) = script.ok().and_then(|path| std::fs::read_to_string(path).ok()) else {
        return skip_where_there_is_no_tool(NAME, "axe-core can't be had from npm's registry");
    };
    in_scratch("accessible", async |scratch| {
        let port = free_port()?;
        let mut playground = playground(scratch, port)?;
        let result = look(scratch, &format!("http://127.0.0.1:{port}"), &axe).await;
        let result = result.with_context(|| playground.say());
        let ended = playground.terminate(WITHIN).await?;
        result?;
        ensure!(ended == Ended::Code(0), "the playground ended with {ended:?}; {}", playground.say());
        Ok(())
    })
    .await;
}

async fn look(scratch: &Scratch, portal: &str, axe: &str) -> Result<()> {
    let pages = until(WITHIN, "a job with a story and Events", async || pages(portal).await).await?;
    let browser = Browser::start(scratch.path()).await?;
    let mut found = Vec::new();
    for theme in ["light", "dark"] {
        browser.open(portal).await?;
        browser.script(&format!("localStorage.setItem('theme', '{theme}')")).await?;
        for width in [1400, 400] {
            browser.resize(width, 1000).await?;
            for page in &pages {
                browser.open(&format!("{portal}{page}")).await?;
                let told = browser.console().await?;
                let told = told.iter().filter(|line| line.contains("Content Security Policy"));
                found.extend(told.map(|line| format!("{page}: {line}")));
                let at = format!("{page} ({theme}, {width} px)");
                let shown = browser.script("return document.documentElement.dataset.theme").await?;
                ensure!(shown == theme, "{at} is shown in {shown}");
                let violations = browser.script(&format!("{axe}; {LOOK}")).await?;
                let violations = violations.as_array().context("what axe-core found")?;
                found.extend(violations.iter().filter_map(Value::as_str).map(|text| format!("{at}: {text}")));
                let wider = "const {scrollWidth, clientWidth} = document.documentElement; return scrollWidth - clientWidth";
                let wider = browser.script(wider).await?;
                if wider != json!(0) {
                    found.push(format!("{at}: the page is {wider} px wider than the window"));
                }
            }
        }
    }
    ensure!(found.is_empty(), "{} findings:\n{}", found.len(), found.join("\n"));
    browser.close().await
}

/// The addresses, once there is a job that has pods and Events.
async fn pages(portal: &str) -> Result<Option<Vec<String>>> {
    let get = async |path: &str| -> Result<Option<Value>> {
        let answer = http().get(format!("{portal}{path}")).send().await;
        let Ok(answer) = answer.and_then(reqwest::Response::error_for_status) else { return Ok(None) };
        Ok(Some(answer.json().await?))
    };
    let Some(jobs) = get("/api/v1/objects?kind=Job&phase=Running").await? else { return Ok(None) };
    let Some(uid) = jobs[0]["object"]["uid"].as_str() else { return Ok(None) };
    let Some(story) = get(&format!("/api/v1/timeline?uid={uid}")).await? else { return Ok(None) };
    let seqs: Vec<_> =
        story["states"].as_array().into_iter().flatten().filter_map(|it| it["seq"].as_u64()).collect();
    let (Some(first), Some(last), true) = (seqs.first(), seqs.last(), story["events"][0].is_object()) else {
        return Ok(None);
    };
    let of_job =
        [format!("/objects/{uid}"), format!("/states/{last}"), format!("/states/{last}?from={first}")];
    let others = [
        "/",
        "/?kind=all&gone=true",
        "/?search=no+such+words",
        "/plugins",
        "/plugins/audit/pause",
        "/deadletters",
        "/sources",
        "/gaps",
        "/health",
        "/api",
        "/none",
    ];
    Ok(Some(of_job.into_iter().chain(others.map(String::from)).collect()))
}
