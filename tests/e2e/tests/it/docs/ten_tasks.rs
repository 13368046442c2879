//! The page "ten tasks": its steps in the portal, done in a browser, and the commands that differ from run to run. The
//! other commands of the page run with those of every page.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_harness::{Scratch, command, in_scratch, project_root, until, until_ok};
use serde_json::Value;

use super::page::Page;
use crate::portal::browser::{Browser, at_a_playground, has_driver, token_of};
use crate::portal::troubles::Troubles;

const WITHIN: Duration = Duration::from_secs(120);
const PAGE: &str = "docs/how-to/ten-tasks.md";
const TASKS: usize = 10;

fn page() -> Result<String> {
    let page = Page::read(&project_root().join(PAGE))?;
    Ok(page.text().into_iter().map(|(_, line)| format!("{line}\n")).collect())
}

/// The addresses of the portal that the page names, such as (`/plugins`).
fn addresses(page: &str) -> Vec<&str> {
    page.split("(`/").skip(1).filter_map(|rest| Some(rest.split_once("`)")?.0)).collect()
}

#[test]
fn each_task_is_done_in_the_portal_and_on_the_command_line() {
    let page = page().unwrap();
    let tasks: Vec<_> = page.split("\n## ").skip(1).collect();
    assert_eq!(tasks.len(), TASKS);
    for (index, task) in tasks.iter().enumerate() {
        assert!(task.starts_with(&format!("{}. ", index + 1)), "{task}");
        assert!(task.contains("**Portal.**") && task.contains("**Command line.**"), "{task}");
    }
    assert!(addresses(&page).len() >= 8);
}

#[tokio::test]
async fn the_steps_in_the_portal_work_as_they_stand() {
    if !has_driver("docs::ten_tasks::the_steps_in_the_portal").await {
        return;
    }
    in_scratch("ten-tasks", async |scratch| {
        at_a_playground(scratch, &[], async |_, portal| {
            steps(scratch, portal).await.context("in the portal")?;
            commands(portal).await.context("on the command line")
        })
        .await
    })
    .await;
}

#[tokio::test]
async fn the_steps_about_what_goes_wrong_tell_of_it_in_the_portal() {
    if !has_driver("docs::ten_tasks::the_steps_about_what_goes_wrong").await {
        return;
    }
    in_scratch("ten-tasks-troubles", async |scratch| {
        let mut troubles = Troubles::start(scratch).await?;
        let browser = Browser::start(scratch.path()).await?;
        behind(&browser, &troubles).await.context("task 3")?;
        replayed(&browser, &troubles).await.context("task 4")?;
        whole(&browser, &troubles).await.context("task 5")?;
        browser.close().await?;
        troubles.lab.kubewitness.stop().await
    })
    .await;
}

/// Task 3: each card shows how many states wait, and how old the oldest one is.
async fn behind(browser: &Browser, troubles: &Troubles<'_>) -> Result<()> {
    let cards = "return Object.fromEntries([...document.querySelectorAll('article.card')].map((card) => \
        [card.querySelector('h2').textContent, {waiting: card.querySelector('[data-part=\"waiting\"] dd').textContent, \
        lag: card.querySelector('p.lag').innerText}]))";
    browser.open(&format!("{}/plugins", troubles.lab.url())).await?;
    let read = browser.script(cards).await?;
    let told = troubles.get("plugins").await?;
    let waits = told.as_array().into_iter().flatten().find(|it| it["name"] == "persistence");
    let waits = waits.context("the plugin")?["waiting"].to_string();
    ensure!(waits != "0" && read["persistence"]["waiting"] == *waits, "{read} and not {waits}");
    let lag = read["persistence"]["lag"].as_str().context("how far it is behind")?;
    ensure!(lag.contains("behind, the oldest unfinished state is") && lag.contains("old."), "{lag}");
    ensure!(read["probe"]["lag"].as_str().is_some_and(|lag| lag.contains("Up to date")), "{read}");
    Ok(())
}

/// Task 4: choose the plugin, select the dead letters, write the reason, and press **Replay**.
async fn replayed(browser: &Browser, troubles: &Troubles<'_>) -> Result<()> {
    browser.open(&format!("{}/deadletters", troubles.lab.url())).await?;
    let choose = "const filter = document.querySelector('form.filters'); filter.plugin.value = 'probe'; \
        filter.querySelector('button').click()";
    browser.follow(choose).await?;
    reads(browser, &["3 dead letters", "Choose", "trapped"]).await?;
    let replay = "const form = document.querySelector('form.replay'); form.querySelector('[name=seq]').checked = true; \
        form.querySelector('[name=reason]').value = 'the receiver is back'; \
        [...form.querySelectorAll('button')].find((it) => it.textContent.trim() === 'Replay').click()";
    browser.follow(replay).await?;
    reads(browser, &["The replay of 1 state has begun", "What was done", "the receiver is back"]).await?;
    let records = troubles.get("deadletters/records").await?;
    ensure!(records[0]["what"] == "replay" && records[0]["why"] == "the receiver is back", "{records}");
    Ok(())
}

/// Task 5: a gap is a row among the states of the job, and a hole in the picture; **Gaps** lists all.
async fn whole(browser: &Browser, troubles: &Troubles<'_>) -> Result<()> {
    let portal = troubles.lab.url();
    browser.open(&format!("{portal}/objects/{}", troubles.uid)).await?;
    let seen = "return {rows: [...document.querySelectorAll('section[aria-labelledby=\"states\"] tr.gap')].map((row) => \
        row.innerText), holes: document.querySelectorAll('svg .hole').length}";
    let seen = browser.script(seen).await?;
    let row = seen["rows"][0].as_str().with_context(|| format!("no row is a gap: {seen}"))?;
    ensure!(row.contains("Compacted") && row.contains('…'), "{row}");
    ensure!(seen["holes"].as_u64() > Some(0), "no hole is drawn: {seen}");
    browser.open(&format!("{portal}/gaps")).await?;
    let gaps = troubles.get("gaps").await?;
    let bounds = gaps.as_array().into_iter().flatten().filter_map(|gap| gap["after"].as_str());
    let text = browser.text().await?;
    for words in bounds.chain(["Job/train-1", "the whole source", "Compacted"]) {
        ensure!(text.contains(words), "{words} is not in {text}");
    }
    // A job without a gap has neither.
    let jobs = troubles.get("objects?kind=Job&name=waits").await?;
    let uid = jobs[0]["object"]["uid"].as_str().context("a job without a gap")?;
    browser.open(&format!("{portal}/objects/{uid}")).await?;
    let none = "return document.querySelectorAll('tr.gap, svg .hole').length";
    ensure!(browser.script(none).await? == 0, "a gap where none is");
    Ok(())
}

#[tokio::test]
async fn a_colleague_who_signs_in_reads_of_one_namespace_and_of_no_other() {
    if !has_driver("docs::ten_tasks::a_colleague_who_signs_in").await {
        return;
    }
    in_scratch("ten-tasks-colleague", async |scratch| {
        at_a_playground(scratch, &["--auth", "kubernetes"], async |playground, portal| {
            let (ada, linus) = (token_of(playground, "ada").await?, token_of(playground, "linus").await?);
            colleague(scratch, portal, &ada, &linus).await.context("task 8")
        })
        .await
    })
    .await;
}

/// Task 8: your colleague opens the portal, signs in with their token, and sees what Kubernetes lets them see.
async fn colleague(scratch: &Scratch, portal: &str, ada: &str, linus: &str) -> Result<()> {
    let browser = Browser::start(scratch.path()).await?;
    let namespaces = "return [...new Set([...document.querySelectorAll('#objects tbody tr[data-uid] [data-f=\"namespace\"]')]\
        .map((cell) => cell.textContent.trim()))].sort()";
    browser.open(portal).await?;
    reads(&browser, &["Sign in"]).await?;
    let enter = async |token: &str| {
        browser.sign_in(portal, token).await?;
        reads(&browser, &["Submit a Job"]).await
    };
    enter(linus).await?;
    until_ok(WITHIN, "jobs of several namespaces", async || {
        browser.open(&format!("{portal}/?gone=true")).await?;
        let seen = browser.script(namespaces).await?;
        ensure!(seen.as_array().is_some_and(|all| all.len() > 2), "{seen}");
        ensure!(seen.as_array().is_some_and(|all| all.contains(&"team-vision".into())), "{seen}");
        Ok(())
    })
    .await?;
    let foreign = "return document.querySelector('#objects tbody tr[data-uid] [data-f=\"namespace\"]:not(:empty)') && \
        [...document.querySelectorAll('#objects tbody tr[data-uid]')].find((row) => \
        row.querySelector('[data-f=\"namespace\"]').textContent.trim() !== 'team-vision').dataset.uid";
    let foreign = browser.script(foreign).await?;
    let foreign = foreign.as_str().context("a job of another namespace")?.to_owned();
    browser.follow("document.querySelector('form[action=\"/logout\"]').submit()").await?;
    reads(&browser, &["Sign in"]).await?;
    enter(ada).await?;
    until_ok(WITHIN, "jobs of one namespace", async || {
        browser.open(&format!("{portal}/?gone=true")).await?;
        let seen = browser.script(namespaces).await?;
        ensure!(seen == serde_json::json!(["team-vision"]), "{seen}");
        Ok(())
    })
    .await?;
    browser.open(&format!("{portal}/objects/{foreign}")).await?;
    reads(&browser, &["Nothing was witnessed of an object"]).await?;
    browser.close().await
}

async fn steps(scratch: &Scratch, portal: &str) -> Result<()> {
    let browser = Browser::start(scratch.path()).await?;
    let row = "main tbody a[href^=\"/objects/\"]";
    // 1 and 2: a job that failed, its story, and who was told.
    // The page knows of a plugin once its progress is saved, some seconds after the first start.
    until(WITHIN, "a page that says which plugin is done", async || {
        click(&browser, &format!("{portal}/?phase=Failed"), row).await?;
        reads(&browser, &["Every state", "Failed"]).await?;
        let text = browser.text().await?;
        Ok((text.contains("which plugin is done with each state") && text.contains("Who was told"))
            .then_some(()))
    })
    .await?;
    // 6: gone jobs, by a part of what they are known by.
    click(&browser, &format!("{portal}/?gone=only&range=day&search=team"), row).await?;
    reads(&browser, &["Every state"]).await?;
    // 7: a pod that is gone, and the document of a state.
    click(&browser, &format!("{portal}/?kind=Pod&gone=only"), row).await?;
    reads(&browser, &["Every state"]).await?;
    // Events have documents, too.
    let of_a_state = "section[aria-labelledby=\"states\"] a[href^=\"/states/\"]";
    browser.follow(&format!("document.querySelector('{of_a_state}').click()")).await?;
    reads(&browser, &["containers"]).await?;
    // Every address of the page.
    let page = page()?;
    for address in addresses(&page) {
        browser.open(&format!("{portal}/{address}")).await?;
        let text = browser.text().await?;
        for wrong in ["That did not work", "Not found", "Not now", "Something failed"] {
            ensure!(!text.contains(wrong), "/{address}: {text}");
        }
    }
    // 9: jobs that were preempted, and the way back to all jobs.
    reads_at(
        &browser,
        &format!("{portal}/?kind=all&was=Preempted&range=week"),
        &["Was Preempted in the last week", "for "],
    )
    .await?;
    click(&browser, &format!("{portal}/?kind=Job&was=Preempted&range=week"), "main a.chip").await?;
    reads(&browser, &["Last change"]).await?;
    // 10: from the list of jobs to the job that was submitted.
    click(&browser, portal, "main a[href=\"/submit\"]").await?;
    reads(&browser, &["Choose a template"]).await?;
    browser.follow("document.querySelector('main a[href=\"/submit/train\"]').click()").await?;
    reads(&browser, &["Submit train"]).await?;
    let fill = "document.querySelector('[name=\"namespace\"]').value = 'team-vision'; \
                document.querySelector('form.submit button.strong').click()";
    browser.follow(fill).await?;
    reads(&browser, &["The Job is created", "kubewitness wait job/train-"]).await?;
    let job = browser.script("return document.getElementById('job').href").await?;
    let job = job.as_str().context("the job's address")?;
    until_ok(WITHIN, "the page of the job", async || {
        browser.open(job).await?;
        let text = browser.text().await?;
        ensure!(text.contains("Every state"), "{text}");
        Ok(())
    })
    .await?;
    browser.close().await
}

/// Opens a page until it has such a link, and follows the first one.
async fn click(browser: &Browser, address: &str, link: &str) -> Result<()> {
    let found = async || {
        browser.open(address).await?;
        let script = format!("return !!document.querySelector('{link}')");
        Ok((browser.script(&script).await? == true).then_some(()))
    };
    until(WITHIN, &format!("a link at {address}"), found).await?;
    browser.follow(&format!("document.querySelector('{link}').click()")).await
}

/// Opens a page until it has these words.
async fn reads_at(browser: &Browser, address: &str, words: &[&str]) -> Result<()> {
    until_ok(WITHIN, address, async || {
        browser.open(address).await?;
        let text = browser.text().await?;
        for word in words {
            ensure!(text.contains(word), "{word} is not in {text}");
        }
        Ok(())
    })
    .await
}

async fn reads(browser: &Browser, words: &[&str]) -> Result<()> {
    until_ok(WITHIN, "the words of a page", async || {
        let text = browser.text().await?;
        for word in words {
            ensure!(text.contains(word), "{word} is not in {text}");
        }
        Ok(())
    })
    .await
}

async fn commands(portal: &str) -> Result<()> {
    let at = |line: &[&'static str]| [line, &["--server"]].concat();
    let ask = async |line: &[&str]| command(&[line, &[portal]].concat()).await;
    // 7: the last document of a pod that is gone.
    let (code, stdout, stderr) = ask(&at(&["get", "pods", "--gone", "--limit", "1", "-o", "json"])).await?;
    ensure!(code == Some(0), "{stdout}{stderr}");
    let pods: Vec<Value> = serde_json::from_str(&stdout)?;
    let text = |name: &str| pods[0]["object"][name].as_str().unwrap_or_default().to_owned();
    let (named, namespace) = (format!("pod/{}", text("name")), text("namespace"));
    let line = ["get", &named, "-n", &namespace, "--gone", "-o", "yaml", "--server"];
    let (code, stdout, stderr) = ask(&line).await?;
    ensure!(
        code == Some(0) && stdout.contains("containers:") && stdout.contains(&text("uid")),
        "{stdout}{stderr}"
    );
    // 9: jobs that were preempted are found, also those that are gone or in another phase now.
    let was = at(&["get", "all", "--was", "Preempted", "--since", "7d", "-o", "json"]);
    until_ok(WITHIN, "an object that was preempted, and is in another phase", async || {
        let (code, stdout, stderr) = ask(&was).await?;
        ensure!(code == Some(0), "{stdout}{stderr}");
        let objects: Vec<Value> = serde_json::from_str(&stdout)?;
        ensure!(objects.iter().all(|object| object["was"]["from"].is_string()), "{stdout}");
        ensure!(objects.iter().any(|object| object["status"]["phase"] != "Preempted"), "{stdout}");
        Ok(())
    })
    .await?;
    // 10: the command waits for the end, and its exit code tells it.
    let submit = ["submit", "train", "-n", "team-vision", "-p", "workers=2", "--watch", "--timeout", "90s"];
    let (code, stdout, stderr) = ask(&at(&submit)).await?;
    let lines: Vec<_> = stdout.lines().collect();
    let expected = match lines.last() {
        Some(&"Succeeded") => Some(0),
        _ => Some(3),
    };
    ensure!(lines.len() == 2 && code == expected, "{code:?}: {stdout}{stderr}");
    ensure!(
        lines[0].starts_with("job/train-") && lines[0].ends_with(" in team-vision is created"),
        "{stdout}"
    );
    Ok(())
}
