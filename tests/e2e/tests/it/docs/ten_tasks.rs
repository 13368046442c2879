//! The page "ten tasks": its steps in the portal, done in a browser, and the commands that differ from run to run. The
//! other commands of the page run with those of every page.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_harness::{Scratch, command, in_scratch, project_root, until, until_ok};
use serde_json::Value;

use super::page::Page;
use crate::portal::browser::{Browser, at_a_playground, has_driver};

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
    let document = format!("document.querySelector('{of_a_state}').click(); return true");
    browser.script(&document).await?;
    reads(&browser, &["containers"]).await?;
    // 3, 4 and 5, and every other address of the page.
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
    browser.script("document.querySelector('main a[href=\"/submit/train\"]').click(); return true").await?;
    reads(&browser, &["Submit train"]).await?;
    let fill = "document.querySelector('[name=\"namespace\"]').value = 'team-vision'; \
                document.querySelector('form.submit button.strong').click(); return true";
    browser.script(fill).await?;
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
        let script = format!("const link = document.querySelector('{link}'); link?.click(); return !!link");
        Ok((browser.script(&script).await? == true).then_some(()))
    };
    until(WITHIN, &format!("a link at {address}"), found).await
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
