//! Several windows of one browser, which share one live stream.

use anyhow::{Context, Result, ensure};
use kubewitness_harness::{Scratch, http, in_scratch, until, until_ok};

use crate::portal::browser::{Browser, FEW, FEW_WITH_PERSONS, WITHIN, at_a_playground, has_driver, token_of};

#[tokio::test]
async fn two_windows_share_one_stream_which_goes_on_when_either_is_closed() {
    if !has_driver("windows::two_windows_share_one_stream").await {
        return;
    }
    in_scratch("windows", async |scratch| {
        at_a_playground(scratch, &FEW, async |_, portal| share(scratch, portal).await).await
    })
    .await;
}

#[tokio::test]
async fn a_log_out_in_one_window_ends_the_stream_and_leads_the_other_window_to_the_log_in() {
    if !has_driver("windows::a_log_out_in_one_window").await {
        return;
    }
    in_scratch("windows-log-out", async |scratch| {
        at_a_playground(scratch, &FEW_WITH_PERSONS, async |playground, portal| {
            let token = token_of(playground, "linus").await?;
            log_out(scratch, portal, &token).await
        })
        .await
    })
    .await;
}

#[tokio::test]
async fn a_page_that_was_hidden_reads_nothing_of_what_came_meanwhile_one_by_one() {
    if !has_driver("windows::a_page_that_was_hidden").await {
        return;
    }
    in_scratch("windows-hidden", async |scratch| {
        at_a_playground(scratch, &FEW, async |_, portal| hidden(scratch, portal).await).await
    })
    .await;
}

#[tokio::test]
async fn a_page_whose_stream_is_dead_without_an_error_opens_another_one() {
    if !has_driver("windows::a_page_whose_stream_is_dead").await {
        return;
    }
    in_scratch("windows-dead-stream", async |scratch| {
        at_a_playground(scratch, &FEW, async |_, portal| dead_stream(scratch, portal).await).await
    })
    .await;
}

#[tokio::test]
async fn a_page_of_figures_pauses_and_keeps_the_card_that_its_reader_works_in() {
    if !has_driver("windows::a_page_of_figures_pauses").await {
        return;
    }
    in_scratch("windows-figures", async |scratch| {
        at_a_playground(scratch, &FEW, async |_, portal| figures(scratch, portal).await).await
    })
    .await;
}

/// The first stream gives nothing any more, as after a sleep or behind a router that has forgotten it.
async fn dead_stream(scratch: &Scratch, portal: &str) -> Result<()> {
    let browser = Browser::start(scratch.path()).await?;
    let note = "window.opened = []; const Source = EventSource; \
        window.EventSource = class extends Source { \
            constructor(url) { super(url); opened.push(this); } \
            addEventListener(type, heard) { super.addEventListener(type, (event) => this.isDead || heard(event)); } };";
    browser.before_each_page(note).await?;
    open_live(&browser, portal).await?;
    browser.script("opened[0].isDead = true").await?;
    let another = async || Ok((browser.script("return opened.length").await? == 2).then_some(()));
    until(WITHIN, "another stream", another).await?;
    let closed = browser.script("return opened[0].readyState === EventSource.CLOSED").await?;
    ensure!(closed == true, "the dead stream is closed");
    changes_by_itself(&browser).await?;
    browser.close().await
}

async fn figures(scratch: &Scratch, portal: &str) -> Result<()> {
    let browser = Browser::start(scratch.path()).await?;
    let cards = "return [...document.querySelectorAll('article')].map((card) => card.dataset.key)";
    let all = async || {
        browser.open(&format!("{portal}/plugins")).await?;
        Ok(browser.script(cards).await?.as_array().filter(|all| all.len() == 3).cloned())
    };
    let all = until(WITHIN, "three plugins", all).await?;
    // A plugin goes while its reader has opened its card and works in it.
    let hide = "window.hides = true; const ask = window.fetch; \
        window.fetch = async (address, asked) => { delete asked.headers['if-none-match']; \
            const answer = await ask(address, asked); \
            const page = new DOMParser().parseFromString(await answer.text(), 'text/html'); \
            if (window.hides) page.querySelectorAll('article')[1].remove(); \
            return new Response(page.querySelector('main').outerHTML); }; \
        const card = document.querySelectorAll('article')[1]; card.querySelector('details').open = true; \
        card.querySelector('summary').focus();";
    browser.script(hide).await?;
    let leaves = "const card = document.querySelector('article.leaves'); \
        return card && [card.dataset.key, card.querySelector('details').open, card.contains(document.activeElement)]";
    let leaves = async || Ok(Some(browser.script(leaves).await?).filter(|card| !card.is_null()));
    let told = until(WITHIN, "the card to say that it is gone", leaves).await?;
    ensure!(told == serde_json::json!([all[1], true, true]), "{told}");
    browser.script("document.activeElement.blur()").await?;
    let rest = serde_json::json!([all[0], all[2]]);
    until(WITHIN, "the card to go", async || Ok((browser.script(cards).await? == rest).then_some(())))
        .await?;

    let press = "document.getElementById('live').click(); window.hides = false; \
        return document.getElementById('live').textContent";
    let told = browser.script(press).await?;
    ensure!(told == "Paused: by you", "{told}");
    let told = browser.script(press).await?;
    // A slow machine says how often the page looks.
    let is_live = |told: &str| told == "Live" || told.starts_with("Live, every ");
    ensure!(told.as_str().is_some_and(is_live), "{told}");
    let back = serde_json::Value::from(all);
    until(WITHIN, "the plugin again", async || Ok((browser.script(cards).await? == back).then_some(())))
        .await?;
    no_violation(&browser).await?;
    browser.close().await
}

async fn hidden(scratch: &Scratch, portal: &str) -> Result<()> {
    let browser = Browser::start(scratch.path()).await?;
    let note = "window.opened = []; const Source = EventSource; \
        window.EventSource = class extends Source { constructor(url) { super(url); opened.push(url); } };";
    browser.before_each_page(note).await?;
    open_live(&browser, portal).await?;
    streams(portal, None, 1).await?;
    let hide = "Object.defineProperty(document, 'hidden', {get: () => true, configurable: true}); \
        document.dispatchEvent(new Event('visibilitychange')); return document.getElementById('live').innerText";
    let told = browser.script(hide).await?;
    ensure!(told.as_str().is_some_and(|told| told.contains("this tab is hidden")), "{told}");
    streams(portal, None, 0).await?;

    let states = async || -> Result<u64> {
        let status: serde_json::Value =
            http().get(format!("{portal}/api/v1/status")).send().await?.json().await?;
        status["journal"]["states"].as_u64().context("the number of states")
    };
    let before = states().await?;
    until(WITHIN, "states to come", async || Ok((states().await? > before + 20).then_some(()))).await?;
    let newest = states().await?;
    let show = "delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))";
    browser.script(show).await?;
    live(&browser).await?;
    streams(portal, None, 1).await?;
    let opened = browser.script("return opened.map((url) => parseInt(url.split('after=')[1], 10))").await?;
    let last = opened.as_array().and_then(|all| all.last()?.as_u64()).context("a stream")?;
    ensure!(last >= newest, "the stream goes on from {last}, and {newest} states were there: {opened}");
    changes_by_itself(&browser).await?;
    no_violation(&browser).await?;
    browser.close().await
}

async fn share(scratch: &Scratch, portal: &str) -> Result<()> {
    let browser = Browser::start(scratch.path()).await?;
    let first = browser.window().await?;
    open_live(&browser, portal).await?;
    let second = browser.another_window().await?;
    open_live(&browser, portal).await?;
    streams(portal, None, 1).await?;
    for window in [&first, &second] {
        browser.look_at(window).await?;
        changes_by_itself(&browser).await?;
    }

    // A page that pauses leaves the stream to the other one, and goes on from where it was.
    browser.look_at(&first).await?;
    let press =
        "document.getElementById('live').click(); return document.getElementById('live').dataset.state";
    ensure!(browser.script(press).await? == "paused", "it is paused");
    browser.look_at(&second).await?;
    changes_by_itself(&browser).await?;
    browser.look_at(&first).await?;
    browser.script(press).await?;
    changes_by_itself(&browser).await?;
    streams(portal, None, 1).await?;

    let third = browser.another_window().await?;
    open_live(&browser, portal).await?;
    streams(portal, None, 1).await?;
    for (closed, stays) in [(&first, &second), (&second, &third)] {
        browser.look_at(closed).await?;
        browser.close_window().await?;
        browser.look_at(stays).await?;
        changes_by_itself(&browser).await?;
        streams(portal, None, 1).await?;
    }
    no_violation(&browser).await?;
    without_locks(&browser, portal).await?;
    browser.close().await
}

/// Each page has a stream of its own there.
async fn without_locks(browser: &Browser, portal: &str) -> Result<()> {
    let hide = "Object.defineProperty(Navigator.prototype, 'locks', {get: () => undefined})";
    browser.before_each_page(hide).await?;
    open_live(browser, portal).await?;
    let second = browser.another_window().await?;
    browser.before_each_page(hide).await?;
    open_live(browser, portal).await?;
    streams(portal, None, 2).await?;
    changes_by_itself(browser).await?;
    browser.look_at(&second).await?;
    changes_by_itself(browser).await
}

async fn log_out(scratch: &Scratch, portal: &str, token: &str) -> Result<()> {
    let browser = Browser::start(scratch.path()).await?;
    let first = browser.window().await?;
    browser.sign_in(portal, token).await?;
    live(&browser).await?;
    browser.another_window().await?;
    open_live(&browser, portal).await?;
    streams(portal, Some(token), 1).await?;
    browser.follow("document.querySelector('form[action=\"/logout\"] button').click()").await?;
    streams(portal, Some(token), 0).await?;
    for signed_out in ["You are signed out", "Your session has ended"] {
        let told = async || Ok(browser.text().await?.contains(signed_out).then_some(()));
        until(WITHIN, "the page for signing in", told).await?;
        no_violation(&browser).await?;
        browser.look_at(&first).await?;
    }
    browser.close().await
}

async fn open_live(browser: &Browser, portal: &str) -> Result<()> {
    browser.open(&format!("{portal}/")).await?;
    live(browser).await
}

async fn live(browser: &Browser) -> Result<()> {
    let live = "const live = document.getElementById('live'); return live && live.dataset.state";
    until(WITHIN, "the live stream", async || Ok((browser.script(live).await? == "open").then_some(()))).await
}

/// The page has to be told of it by the stream: it is not loaded again.
async fn changes_by_itself(browser: &Browser) -> Result<()> {
    let state = "return [document.visibilityState, document.getElementById('live').dataset.state].join()";
    let told = browser.script(state).await?;
    let before = browser.text().await?;
    let changed = async || Ok((browser.text().await? != before).then_some(()));
    until(WITHIN, "the page to change by itself", changed).await.with_context(|| told.to_string())
}

async fn no_violation(browser: &Browser) -> Result<()> {
    let told = browser.console().await?;
    let found: Vec<_> = told.iter().filter(|line| line.contains("Content Security Policy")).collect();
    ensure!(found.is_empty(), "{found:?}");
    Ok(())
}

/// Waits until the server has this many live streams open.
async fn streams(portal: &str, token: Option<&str>, wanted: u64) -> Result<()> {
    let look = async || {
        let mut request = http().get(format!("{portal}/metrics"));
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        let page = request.send().await?.error_for_status()?.text().await?;
        let found = page.lines().find_map(|line| line.strip_prefix("kubewitness_http_streams "));
        ensure!(found == Some(wanted.to_string().as_str()), "there are {found:?}");
        Ok(())
    };
    until_ok(WITHIN, &format!("{wanted} streams"), look).await
}
