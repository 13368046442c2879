//! Each page of the portal, looked at by axe-core: light and dark, wide and narrow, and without anything that the pages'
//! own policy forbids. In a run, each page has one of the colours at one of the widths and the other at the other: the
//! seed chooses.

use anyhow::{Context, Result, ensure};
use kubewitness_harness::{Dice, Scratch, http, in_scratch, seed, services_folder, skip, until};
use serde_json::{Value, json};

use crate::portal::browser::{Browser, FEW, FEW_WITH_PERSONS, WITHIN, at_a_playground, has_driver, token_of};
use crate::portal::troubles::Troubles;

/// The script that returns the findings of axe-core, a line each: the rule, and the first elements that break
/// it.
const LOOK: &str = "return axe.run(document, {resultTypes: ['violations']}).then(({violations}) => violations.map(\
    (found) => `${found.id} (${found.help}): ` + found.nodes.slice(0, 3).map((node) => node.html + ' ' + \
    (node.any.concat(node.all)[0] || {message: ''}).message).join(' | ')))";

const WIDE: u32 = 1400;
/// At this width a row of a table is a card.
const NARROW: u32 = 400;
const SIDEWAYS: &str = "return [...document.querySelectorAll('.scroll')].filter((it) => it.querySelector('table') && \
    it.scrollWidth > it.clientWidth).map((it) => it.querySelector('caption')?.textContent ?? it.className)";

/// Reads the script that looks at the pages; `None` where it can't be had, and the test is skipped.
async fn axe(test: &str) -> Option<String> {
    if !has_driver(test).await {
        return None;
    }
    let script = services_folder().map(|folder| folder.join("axe/node_modules/axe-core/axe.min.js"));
    let axe = script.ok().and_then(|path| std::fs::read_to_string(path).ok());
    if axe.is_none() {
        skip(test, "axe-core can't be had from npm's registry");
    }
    axe
}

#[tokio::test]
async fn no_page_keeps_anybody_out_whatever_its_colours_and_width() {
    let Some(axe) = axe("accessible::no_page_keeps_anybody_out").await else { return };
    in_scratch("accessible", async |scratch| {
        at_a_playground(scratch, &FEW, async |_, portal| {
            let pages = until(WITHIN, "a job with a story and Events", async || pages(portal).await).await?;
            let browser = Browser::start(scratch.path()).await?;
            look(&browser, portal, &pages, &axe).await?;
            browser.close().await
        })
        .await
    })
    .await;
}

#[tokio::test]
async fn pages_that_tell_of_troubles_keep_nobody_out() {
    let Some(axe) = axe("accessible::pages_that_tell_of_troubles").await else { return };
    in_scratch("accessible-troubles", async |scratch| {
        let mut troubles = Troubles::start(scratch).await?;
        let (portal, pages) = (troubles.lab.url(), troubles.pages());
        for (page, words) in &pages {
            let text = http().get(format!("{portal}{page}")).send().await?.error_for_status()?.text().await?;
            ensure!(text.contains(words), "{page} does not say {words}: {text}");
        }
        let browser = Browser::start(scratch.path()).await?;
        look(&browser, &portal, &pages.map(|(page, _)| page), &axe).await?;
        browser.close().await?;
        troubles.lab.kubewitness.stop().await
    })
    .await;
}

#[tokio::test]
async fn neither_the_page_that_signs_in_nor_those_that_submit_keep_anybody_out() {
    let Some(axe) = axe("accessible::neither_the_page_that_signs_in").await else { return };
    in_scratch("accessible-login", async |scratch| {
        at_a_playground(scratch, &FEW_WITH_PERSONS, async |playground, portal| {
            let token = token_of(playground, "ada").await?;
            sign_in_and_look(scratch, portal, &token, &axe).await
        })
        .await
    })
    .await;
}

async fn sign_in_and_look(scratch: &Scratch, portal: &str, token: &str, axe: &str) -> Result<()> {
    let browser = Browser::start(scratch.path()).await?;
    look(&browser, portal, &["/login".to_owned()], axe).await?;
    browser.sign_in(portal, token).await?;
    let is_in = async || Ok(browser.text().await?.contains("Submit a Job").then_some(()));
    until(WITHIN, "the page of jobs of somebody who has signed in", is_in).await?;
    let templates =
        "return [...document.querySelectorAll('main a[href^=\"/submit/\"]')].map((it) => it.pathname)";
    // The playground offers its templates a moment after its portal answers.
    let offered = async || {
        browser.open(&format!("{portal}/submit")).await?;
        let templates: Vec<String> = serde_json::from_value(browser.script(templates).await?)?;
        Ok((!templates.is_empty()).then_some(templates))
    };
    let templates = until(WITHIN, "a template", offered).await?;
    let pages: Vec<_> = ["/submit".to_owned()].into_iter().chain(templates).collect();
    look(&browser, portal, &pages, axe).await?;
    browser.close().await
}

async fn look(browser: &Browser, portal: &str, pages: &[String], axe: &str) -> Result<()> {
    let mut found = Vec::new();
    let mut dice = Dice::new(seed());
    let wide_when_dark: Vec<bool> = pages.iter().map(|_| dice.below(2) == 0).collect();
    for (theme, width) in [("light", WIDE), ("light", NARROW), ("dark", WIDE), ("dark", NARROW)] {
        browser.open(&format!("{portal}{}", pages[0])).await?;
        browser.script(&format!("localStorage.setItem('theme', '{theme}')")).await?;
        browser.resize(width, 1000).await?;
        for (page, wide_when_dark) in pages.iter().zip(&wide_when_dark) {
            if ((width == WIDE) == (theme == "dark")) == *wide_when_dark {
                look_at(browser, (portal, page), (theme, width), axe, &mut found).await?;
            }
        }
    }
    ensure!(found.is_empty(), "{} findings:\n{}", found.len(), found.join("\n"));
    Ok(())
}

async fn look_at(
    browser: &Browser,
    (portal, page): (&str, &str),
    (theme, width): (&str, u32),
    axe: &str,
    found: &mut Vec<String>,
) -> Result<()> {
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
    let wider =
        "const {scrollWidth, clientWidth} = document.documentElement; return scrollWidth - clientWidth";
    let wider = browser.script(wider).await?;
    if wider != json!(0) {
        found.push(format!("{at}: the page is {wider} px wider than the window"));
    }
    if width == NARROW {
        let tables = browser.script(SIDEWAYS).await?;
        let tables = tables.as_array().context("the tables of the page")?;
        found.extend(tables.iter().map(|name| format!("{at}: the table {name} scrolls sideways")));
    }
    Ok(())
}

/// The addresses, once there is a job that has pods and Events.
pub(super) async fn pages(portal: &str) -> Result<Option<Vec<String>>> {
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
        "/?kind=Event",
        "/?range=day",
        "/plugins",
        "/plugins/audit/pause",
        "/deadletters",
        "/mutes",
        "/sources",
        "/gaps",
        "/health",
        "/api",
        "/none",
    ];
    Ok(Some(of_job.into_iter().chain(others.map(String::from)).collect()))
}
