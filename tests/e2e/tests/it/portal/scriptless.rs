//! The portal in a browser that runs no script: each page shows its content, and the forms work. Dead letters are
//! replayed so in `letters.rs`.

use anyhow::{Context, Result, ensure};
use kubewitness_harness::{Scratch, http, in_scratch, until};
use serde_json::{Value, json};

use crate::portal::browser::{Browser, WITHIN, at_a_playground, has_driver, token_of};

#[tokio::test]
async fn every_page_and_form_works_in_a_browser_without_script() {
    if !has_driver("scriptless::every_page_and_form_works").await {
        return;
    }
    in_scratch("scriptless", async |scratch| {
        at_a_playground(scratch, &["--auth", "kubernetes"], async |playground, portal| {
            let token = token_of(playground, "linus").await?;
            let reader = ScriptlessReader::start(scratch, portal).await?;
            reader.browser.sign_in(portal, &token).await?;
            reader.reads("Submit a Job").await?;
            pages(&reader, &token).await?;
            lists(&reader).await?;
            submits(&reader).await?;
            pauses(&reader).await?;
            reader.press("form[action='/logout'] button").await?;
            reader.reads("You are signed out").await?;
            reader.browser.close().await
        })
        .await
    })
    .await;
}

struct ScriptlessReader<'p> {
    browser: Browser,
    portal: &'p str,
}

impl<'p> ScriptlessReader<'p> {
    async fn start(scratch: &Scratch, portal: &'p str) -> Result<Self> {
        let browser = Browser::start(scratch.path()).await?;
        browser.without_scripts().await?;
        Ok(Self { browser, portal })
    }

    async fn open(&self, path: &str) -> Result<()> {
        self.browser.open(&format!("{}{path}", self.portal)).await
    }

    /// A script of the page would show this button.
    async fn check_no_script(&self) -> Result<()> {
        let hidden = self.browser.script("return document.getElementById('theme').hidden").await?;
        ensure!(hidden == true, "a script of the page has run");
        Ok(())
    }

    async fn reads(&self, words: &str) -> Result<()> {
        let there = async || Ok(self.browser.text().await?.contains(words).then_some(()));
        let waited = until(WITHIN, words, there).await;
        match waited {
            Ok(()) => self.check_no_script().await,
            Err(error) => Err(error.context(self.browser.text().await?)),
        }
    }

    async fn fill(&self, field: &str, value: &str) -> Result<()> {
        let script =
            format!("document.querySelector({}).value = {}; return true", json!(field), json!(value));
        self.browser.script(&script).await.map(drop)
    }

    /// Each form and link leads to another page.
    async fn press(&self, what: &str) -> Result<()> {
        self.browser.follow(&format!("document.querySelector({}).click()", json!(what))).await
    }

    /// Returns the cells that the rows of a list have in a column.
    async fn column(&self, name: &str) -> Result<Vec<String>> {
        let cells = format!(
            "return [...document.querySelectorAll('tbody [data-f={name}]')].map((it) => it.innerText)"
        );
        Ok(serde_json::from_value(self.browser.script(&cells).await?)?)
    }
}

async fn pages(reader: &ScriptlessReader<'_>, token: &str) -> Result<()> {
    let get = async |path: &str| -> Result<Value> {
        let request = http().get(format!("{}{path}", reader.portal)).bearer_auth(token);
        Ok(request.send().await?.error_for_status()?.json().await?)
    };
    let story = until(WITHIN, "a job with a story", async || {
        let jobs = get("/api/v1/objects?kind=Job&phase=Running").await?;
        let Some(uid) = jobs[0]["object"]["uid"].as_str() else { return Ok(None) };
        let story = get(&format!("/api/v1/timeline?uid={uid}")).await?;
        Ok((story["states"][1].is_object() && story["events"][0].is_object())
            .then_some((uid.to_owned(), story)))
    });
    let (uid, story) = story.await?;
    let (first, last) = (&story["states"][0]["seq"], &story["states"][1]["seq"]);
    for (path, words) in [
        ("/".to_owned(), "Last change"),
        ("/?kind=all&gone=true".into(), "Everything"),
        ("/?kind=Event".into(), "Normal"),
        (format!("/objects/{uid}"), "Every state"),
        (format!("/states/{last}"), "creationTimestamp"),
        (format!("/states/{last}?from={first}"), "resourceVersion"),
        ("/submit".into(), "Choose a template"),
        ("/plugins".into(), "Every observed state is accounted for"),
        ("/plugins/audit/pause".into(), "Pause audit"),
        ("/deadletters".into(), "Dead letters"),
        ("/sources".into(), "synced"),
        ("/gaps".into(), "Replaced histories"),
        ("/health".into(), "Held beyond retention"),
        ("/api".into(), "/api/v1/objects"),
    ] {
        // Templates are offered, and plugins run, a moment after the portal answers.
        let there = async || {
            reader.open(&path).await?;
            Ok(reader.browser.text().await?.contains(words).then_some(()))
        };
        until(WITHIN, words, there).await.with_context(|| path.clone())?;
        reader.check_no_script().await?;
    }
    Ok(())
}

/// Search, filters, orders and pages.
async fn lists(reader: &ScriptlessReader<'_>) -> Result<()> {
    reader.open("/?kind=Pod&gone=true").await?;
    reader.fill("[name='namespace']", "team-vision").await?;
    reader.press("form.filters button").await?;
    let narrowed = async || {
        let namespaces = reader.column("namespace").await?;
        let is_narrowed = !namespaces.is_empty() && namespaces.iter().all(|it| it == "team-vision");
        Ok(is_narrowed.then_some(()))
    };
    until(WITHIN, "the pods of one namespace", narrowed).await?;
    reader.press("thead a[href*='sort=name']").await?;
    reader.reads("by name").await?;
    let names = reader.column("name").await?;
    ensure!(names.is_sorted(), "{names:?}");
    reader.fill("#search", "nobody-has-this-name").await?;
    reader.press("form.filters button").await?;
    reader.reads("Nothing matches").await?;

    let has_more = async || {
        reader.open("/?kind=all&gone=true").await?;
        let more = reader.browser.script("return !!document.querySelector('a[rel=next]')").await?;
        Ok((more == true).then_some(()))
    };
    until(WITHIN, "more than one page", has_more).await?;
    let first = reader.column("name").await?;
    reader.press("a[rel=next]").await?;
    reader.reads("First page").await?;
    let second = reader.column("name").await?;
    ensure!(!second.is_empty() && first != second, "{second:?}");
    reader.press("nav.pages a").await?;
    reader.reads("Next page").await
}

/// The link of a new Job leads to its page, which is there once it was witnessed.
async fn submits(reader: &ScriptlessReader<'_>) -> Result<()> {
    reader.open("/submit/train?namespace=team-vision").await?;
    reader.fill("[name='p.workers']", "9").await?;
    reader.press("form.submit button.strong").await?;
    reader.reads("is more than 4").await?;
    reader.fill("[name='p.workers']", "2").await?;
    reader.press("form.submit button.strong").await?;
    reader.reads("The Job is created").await?;
    reader.press("#job").await?;
    reader.reads("Every state").await?;
    reader.reads("linus").await
}

async fn pauses(reader: &ScriptlessReader<'_>) -> Result<()> {
    // What is still being compiled can't be paused.
    becomes(reader, "active").await?;
    for (verb, told) in [("pause", "paused"), ("resume", "active")] {
        reader.open(&format!("/plugins/audit/{verb}")).await?;
        reader.fill("[name='reason']", "the disk moves").await?;
        reader.press("form.replay button.strong").await?;
        becomes(reader, told).await?;
    }
    reader.check_no_script().await
}

/// Waits until the page of plugins says this of the one.
async fn becomes(reader: &ScriptlessReader<'_>, told: &str) -> Result<()> {
    let state = "const card = document.querySelector('[aria-labelledby=plugin-audit] .state'); return card && card.textContent";
    let is_told = async || {
        reader.open("/plugins").await?;
        Ok((reader.browser.script(state).await? == told).then_some(()))
    };
    until(WITHIN, told, is_told).await
}
