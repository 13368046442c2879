//! The objects that are gone, and those that were there at a moment: over the API, against an API server that
//! deletes and compacts.

use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use kubewitness_core::calendar;
use kubewitness_harness::{Simulator, command_in, http, in_scratch, until_ok};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::create_job;
use crate::watching::gaps::{GapLab, a_hole, annotate};

const WITHIN: Duration = Duration::from_secs(90);
const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";

struct PastAnswer {
    objects: Vec<Value>,
    next: Option<String>,
    notices: Vec<String>,
}

async fn objects(lab: &GapLab<'_>, query: &str) -> Result<PastAnswer> {
    let answer = http().get(format!("{}/api/v1/objects?{query}", lab.url())).send().await?;
    ensure!(answer.status() == 200, "{query}: {}", answer.text().await?);
    let link = answer.headers().get("link").map(|link| link.to_str().map(str::to_owned)).transpose()?;
    let next = link.as_deref().and_then(|link| link.strip_prefix("</api/v1/objects?")?.split_once('>'));
    let next = next.map(|(next, _)| next.to_owned());
    let notices = answer.headers().get_all("kubewitness-notice").iter();
    let notices = notices.map(|notice| Ok(notice.to_str()?.to_owned())).collect::<Result<_>>()?;
    Ok(PastAnswer { objects: answer.json().await?, next, notices })
}

fn names(objects: &[Value]) -> Vec<&str> {
    objects.iter().filter_map(|view| view["object"]["name"].as_str()).collect()
}

fn now() -> Result<String> {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    Ok(calendar::format_rfc3339(u64::try_from(since.as_millis())?))
}

async fn delete(simulator: &Simulator, name: &str) -> Result<()> {
    let (status, answer) = simulator.request(Method::DELETE, &format!("{JOBS}/{name}"), None).await?;
    ensure!(status == 200, "deleting {name} answered {status}: {answer}");
    Ok(())
}

#[tokio::test]
async fn a_job_that_was_deleted_is_found_and_shown_as_it_was() {
    in_scratch("past", async |scratch| {
        let mut lab = GapLab::start(scratch).await?;
        for name in ["past-1", "past-2", "past-3"] {
            create_job(&lab.simulator, name).await?;
        }
        let version = annotate(&lab.simulator, "past-2", "before").await?;
        until_ok(WITHIN, "the jobs to be witnessed", async || {
            let found = objects(&lab, "kind=Job&name=past-2").await?.objects;
            ensure!(
                found.first().is_some_and(|view| view["resource_version"] == version.as_str()),
                "{found:?}"
            );
            Ok(())
        })
        .await?;
        orders_hold_over_all_pages(&lab).await?;
        let then = now()?;
        tokio::time::sleep(Duration::from_millis(50)).await;
        delete(&lab.simulator, "past-2").await?;
        delete(&lab.simulator, "past-1").await?;
        until_ok(WITHIN, "the ends to be witnessed", async || {
            let found = objects(&lab, "kind=Job&gone=only").await?.objects;
            ensure!(names(&found) == ["past-1", "past-2"], "{found:?}");
            Ok(())
        })
        .await?;

        // Page by page, those that are gone and those that are there in one order.
        let found = every_page(&lab, "kind=Job&gone=true&limit=1").await?;
        ensure!(names(&found) == ["past-1", "past-2", "past-3"], "{found:?}");
        what_is_gone_is_sorted_with_what_is_there(&lab).await?;
        ensure!(found[0]["ended_at"].is_string() && found[2]["ended_at"].is_null(), "{found:?}");
        for (query, wanted) in [
            (format!("kind=Job&gone=only&since={then}"), vec!["past-1", "past-2"]),
            (format!("kind=Job&gone=only&until={then}"), vec![]),
            ("kind=Job&gone=only&search=AST-1".into(), vec!["past-1"]),
            ("kind=Job&gone=only&sort=-changed".into(), vec!["past-2", "past-1"]),
            ("kind=Job&gone=only&sort=-name".into(), vec!["past-2", "past-1"]),
            ("kind=Job&gone=true&search=past&sort=-changed".into(), vec!["past-3", "past-2", "past-1"]),
        ] {
            let found = objects(&lab, &query).await?.objects;
            ensure!(names(&found) == wanted, "{query}: {found:?}");
        }

        // At the moment before, all three were there, with the version that was the newest then.
        let found = objects(&lab, &format!("kind=Job&at={then}&details=true")).await?.objects;
        ensure!(names(&found) == ["past-2", "past-1", "past-3"], "{found:?}");
        ensure!(
            found[0]["resource_version"] == version.as_str() && found[0]["then"]["known"] == "exact",
            "{found:?}"
        );
        ensure!(found[0]["details"]["plugins"].is_object(), "{found:?}");
        let document = format!("{}/api/v1/states/{}/document", lab.url(), found[0]["seq"]);
        let document: Value = http().get(document).send().await?.json().await?;
        ensure!(document["metadata"]["annotations"]["n"] == "before", "{document}");
        commands_find_it(&lab, &then).await?;
        lab.kubewitness.stop().await
    })
    .await;
}

async fn every_page(lab: &GapLab<'_>, query: &str) -> Result<Vec<Value>> {
    let (mut query, mut found) = (query.to_owned(), Vec::new());
    loop {
        let page = objects(lab, &query).await?;
        found.extend(page.objects);
        let Some(next) = page.next else { return Ok(found) };
        query = next;
    }
}

/// Checks the orders of three jobs, of which the second changed last.
async fn orders_hold_over_all_pages(lab: &GapLab<'_>) -> Result<()> {
    for (sort, wanted) in [
        ("changed", ["past-2", "past-3", "past-1"]),
        ("-changed", ["past-1", "past-3", "past-2"]),
        ("name", ["past-1", "past-2", "past-3"]),
        ("-name", ["past-3", "past-2", "past-1"]),
    ] {
        let found = every_page(lab, &format!("kind=Job&limit=1&sort={sort}")).await?;
        ensure!(names(&found) == wanted, "{sort}: {found:?}");
        let told = lab.ask(&["jobs", "--sort", sort, "-o", "name"]).await?;
        let told: Vec<_> = told.lines().filter_map(|line| line.strip_prefix("job.batch/")).collect();
        ensure!(told == wanted, "{sort}: {told:?}");
    }
    for refused in ["sort=queued", "sort=name&at=2026-01-01T00:00:00Z"] {
        let answer = http().get(format!("{}/api/v1/objects?{refused}", lab.url())).send().await?;
        ensure!(answer.status() == 400, "{refused}: {}", answer.text().await?);
    }
    Ok(())
}

async fn what_is_gone_is_sorted_with_what_is_there(lab: &GapLab<'_>) -> Result<()> {
    let of = async |sort: &str| every_page(lab, &format!("kind=Job&gone=true&limit=1&sort={sort}")).await;
    let ascending = ["past-1", "past-2", "past-3"];
    for sort in ["name", "namespace"] {
        let found = of(sort).await?;
        ensure!(names(&found) == ascending, "{sort}: {found:?}");
        let found = of(&format!("-{sort}")).await?;
        ensure!(names(&found).into_iter().rev().eq(ascending), "-{sort}: {found:?}");
    }
    // Within a second they have no order that a test could know, and each of them comes once.
    for sort in ["created", "-created", "phase", "-restarts"] {
        let found = of(sort).await?;
        let mut told = names(&found);
        told.sort_unstable();
        ensure!(told == ascending, "{sort}: {found:?}");
    }
    Ok(())
}

/// The same on the command line, whose times are the reader's.
async fn commands_find_it(lab: &GapLab<'_>, then: &str) -> Result<()> {
    let gone = ["jobs", "--gone", "--since", "2d"];
    let names = lab.ask(&[&gone[..], &["-o", "name"]].concat()).await?;
    ensure!(names == "job.batch/past-1\njob.batch/past-2\n", "{names}");
    let newest = lab.ask(&[&gone[..], &["-o", "name", "--limit", "1"]].concat()).await?;
    ensure!(newest == "job.batch/past-1\n", "{newest}");
    let table = lab.ask(&["jobs", "--gone=too", "--search", "AST-2", "--until", "2100-01-01"]).await?;
    ensure!(table.contains("DELETED") && table.contains("past-2") && table.lines().count() == 2, "{table}");
    let yaml = lab.ask(&["get", "job/past-2", "-n", "default", "--at", then, "-o", "yaml"]).await?;
    ensure!(yaml.contains(": before\n") && yaml.contains("kind: Job"), "{yaml}");

    let utc = calendar::parse_rfc3339_ms(then).context("a time")?;
    let tokyo = calendar::format_rfc3339(utc + 9 * 3_600_000).replace('T', " ").replace('Z', "");
    let (url, env) = (lab.url(), [("TZ".to_owned(), "JST-9".to_owned())]);
    let line = ["get", "jobs", "--at", &tokyo, "--server", &url];
    let (code, stdout, stderr) = command_in(&line, &env).await?;
    ensure!(code == Some(0) && stdout.lines().count() == 4, "{stdout}{stderr}");
    ensure!(stdout.contains("exact") && stdout.contains("Z)"), "UTC stands beside the local time: {stdout}");
    ensure!(stderr.contains(&format!("as of {}", &tokyo[..19])), "{stderr}");

    let line = ["get", "job/past-9", "--at", then, "--server", &url];
    let (code, _, stderr) = command_in(&line, &[]).await?;
    ensure!(code == Some(1) && stderr.contains("was not there at"), "{stderr}");
    Ok(())
}

#[tokio::test]
async fn a_moment_in_a_hole_says_between_which_times_versions_are_missing() {
    in_scratch("past-hole", async |scratch| {
        let mut lab = GapLab::start(scratch).await?;
        let before = now()?;
        let told = objects(&lab, "at=2001-01-01T00:00:00Z").await?.notices;
        let is_early =
            |told: &String| told.starts_with("The journal begins at") || told.contains("no state yet");
        ensure!(told.iter().any(is_early), "{told:?}");
        let url = lab.url();
        let line = ["get", "jobs", "--at", "2001-01-01T00:00:00Z", "--server", &url];
        let (code, _, stderr) = command_in(&line, &[]).await?;
        let is_told = stderr.contains("The journal begins at") || stderr.contains("no state yet");
        ensure!(code == Some(0) && is_told, "a notice is for people: {stderr}");
        a_hole(&mut lab, "train-1").await?;
        let uid = objects(&lab, "kind=Job&name=train-1").await?.objects[0]["object"]["uid"].clone();
        let story: Value = http()
            .get(format!("{}/api/v1/timeline?uid={}", lab.url(), uid.as_str().context("a uid")?))
            .send()
            .await?
            .json()
            .await?;
        let states = story["states"].as_array().context("states")?;
        let gap = states.iter().position(|state| state["change"] == "gap").context("a gap")?;
        let at = |index: usize| states[index]["observed_ms"].as_u64().map(calendar::format_rfc3339);
        let inside = at(gap - 1).context("a time")?;
        let found = objects(&lab, &format!("kind=Job&name=train-1&at={inside}")).await?.objects;
        ensure!(found[0]["then"]["known"] == "missing", "{found:?}");
        let message = found[0]["then"]["message"].as_str().context("a message")?;
        ensure!(message.starts_with(&format!("Between {inside} and")), "{message}");
        let table = lab.ask(&["get", "jobs", "--at", &inside]).await?;
        ensure!(table.contains("missing") && table.contains(message), "{table}");
        let found = objects(&lab, &format!("kind=Job&name=train-1&at={}", now()?)).await?.objects;
        ensure!(found[0]["then"]["known"] == "exact", "{found:?}");
        let found = objects(&lab, &format!("kind=Job&at={before}")).await?.objects;
        ensure!(found.is_empty(), "{found:?}");
        lab.kubewitness.stop().await
    })
    .await;
}

#[tokio::test]
async fn a_list_says_that_missed_versions_are_still_read_back() {
    in_scratch("past-back", async |scratch| {
        let mut lab = GapLab::start(scratch).await?;
        create_job(&lab.simulator, "train-1").await?;
        let seen = annotate(&lab.simulator, "train-1", "seen").await?;
        until_ok(WITHIN, "the job to be witnessed", async || {
            let found = objects(&lab, "kind=Job").await?.objects;
            ensure!(found.first().is_some_and(|view| view["resource_version"] == seen.as_str()), "{found:?}");
            Ok(())
        })
        .await?;
        let mut last = String::new();
        lab.kubewitness.caught_up(WITHIN).await?;
        lab.restart_after(async |simulator| {
            annotate(simulator, "train-1", "lost").await?;
            simulator.compact(None).await?;
            for turn in ["1", "2", "3"] {
                last = annotate(simulator, "train-1", turn).await?;
            }
            // The first two look whether this is the history that is known. Each of the others is given up after
            // eight seconds, and asked for again.
            let fault =
                json!({"fault": "hang", "verb": "exact", "resource": "jobs.batch", "skip": 2, "times": 2});
            simulator.make("faults", &fault).await.map(drop)
        })
        .await?;
        until_ok(WITHIN, "the notice", async || {
            let told = objects(&lab, "kind=Job").await?.notices;
            ensure!(
                told.iter().any(|text| text.starts_with("Source jobs is reading missed versions back")),
                "{told:?}"
            );
            Ok(())
        })
        .await?;
        let pods = objects(&lab, "kind=Pod").await?.notices;
        ensure!(pods.is_empty(), "of a source that is not asked about: {pods:?}");
        let gone = objects(&lab, "kind=Job&gone=only").await?.notices;
        ensure!(gone.is_empty(), "what is gone is whole: {gone:?}");
        until_ok(WITHIN, "the newest version without a notice", async || {
            let answer = objects(&lab, "kind=Job").await?;
            ensure!(answer.objects[0]["resource_version"] == last.as_str(), "{:?}", answer.objects);
            ensure!(answer.notices.is_empty(), "{:?}", answer.notices);
            Ok(())
        })
        .await?;
        lab.kubewitness.stop().await
    })
    .await;
}

/// Jobs that are made and deleted: more than one page looks at.
const ENDED: usize = 2_100;

#[tokio::test]
async fn a_page_that_finds_too_little_ends_at_its_bounds_and_leads_on() {
    in_scratch("past-bounds", async |scratch| {
        let mut lab = GapLab::start(scratch).await?;
        for number in 0..ENDED {
            let name = format!("past-{number}");
            create_job(&lab.simulator, &name).await?;
            delete(&lab.simulator, &name).await?;
        }
        until_ok(WITHIN, "the ends to be witnessed", async || {
            let found = every_page(&lab, "kind=Job&gone=only&limit=1000").await?.len();
            ensure!(found == ENDED, "{found}");
            Ok(())
        })
        .await?;
        // So many objects lie behind the page whose search fits none.
        let behind = async |query: &str| {
            let page = objects(&lab, query).await?;
            ensure!(page.objects.is_empty(), "{:?}", page.objects);
            let mut left = 0;
            let mut query = page
                .next
                .context("a next page")?
                .replace("search=nobody", "")
                .replace("limit=1&", "limit=1000&");
            loop {
                let page = objects(&lab, &query).await?;
                left += page.objects.len();
                let Some(next) = page.next else { return Ok(left) };
                query = next;
            }
        };
        let rounds = behind("kind=Job&gone=only&limit=1&search=nobody").await?;
        ensure!(rounds == ENDED - 5, "one object in each of five rounds: {rounds}");
        let documents = behind("kind=Job&gone=only&limit=1000&search=nobody").await?;
        ensure!(documents == ENDED - 2_000, "each with its document: {documents}");
        for order in ["-name", "-namespace"] {
            let sorted = every_page(&lab, &format!("kind=Job&gone=only&limit=700&sort={order}")).await?;
            ensure!(sorted.len() == ENDED, "{order} has all of them: {}", sorted.len());
            ensure!(names(&sorted).is_sorted_by(|a, b| a > b), "{order}: {:?}", names(&sorted));
        }
        let named = every_page(&lab, "kind=Job&gone=only&limit=3&sort=name&search=past-20").await?;
        ensure!(named.len() == 111 && names(&named).is_sorted(), "past-20, past-200 to 209, 2000 to 2099");
        let sorted = every_page(&lab, "kind=Job&gone=only&limit=700&sort=-created").await?;
        ensure!(sorted.len() == 2_000, "those that ended last: {}", sorted.len());
        let notices = objects(&lab, "kind=Job&gone=only&limit=1&sort=-created").await?.notices;
        let oldest = sorted.iter().filter_map(|view| view["ended_at"].as_str()).min().context("ends")?;
        ensure!(
            notices.iter().any(|notice| notice.contains(&format!("ended at {oldest} or later"))),
            "{notices:?}"
        );
        lab.kubewitness.stop().await
    })
    .await;
}

#[tokio::test]
async fn a_job_that_was_preempted_is_found_whatever_became_of_it() {
    in_scratch("was", async |scratch| {
        let mut lab = GapLab::start(scratch).await?;
        for name in ["was-1", "was-2", "was-3"] {
            create_job(&lab.simulator, name).await?;
        }
        until_ok(WITHIN, "the jobs to be witnessed", async || {
            let found = objects(&lab, "kind=Job").await?.objects;
            ensure!(found.len() == 3, "{found:?}");
            Ok(())
        })
        .await?;
        let before = now()?;
        for (name, is_preempted) in [("was-1", true), ("was-2", true), ("was-1", false)] {
            preempt(&lab.simulator, name, is_preempted).await?;
        }
        delete(&lab.simulator, "was-2").await?;
        until_ok(WITHIN, "the job that was preempted and is gone", async || {
            let found = objects(&lab, "kind=Job&was=preempted&gone=true").await?;
            ensure!(names(&found.objects) == ["was-2", "was-1"], "{:?}", found.objects);
            ensure!(found.notices.is_empty(), "{:?}", found.notices);
            Ok(())
        })
        .await?;
        let after = now()?;
        let found = every_page(&lab, "kind=Job&was=Preempted&gone=true&limit=1&details=true").await?;
        ensure!(names(&found) == ["was-2", "was-1"], "{found:?}");
        ensure!(
            found[0]["status"]["phase"] == "Deleted" && found[1]["status"]["phase"] != "Preempted",
            "{found:?}"
        );
        for object in &found {
            let times =
                ["from", "until"].map(|name| object["was"][name].as_str().unwrap_or_default().to_owned());
            ensure!(before < times[0] && times[0] <= times[1] && times[1] < after, "{object}");
        }
        for (query, wanted) in [
            ("was=Preempted".to_owned(), vec!["was-1"]),
            ("was=Preempted&gone=only".into(), vec!["was-2"]),
            (format!("was=Preempted&gone=true&since={after}"), vec![]),
            (format!("was=Preempted&gone=true&until={before}"), vec![]),
            ("was=Preempted&gone=true&search=was-2".into(), vec!["was-2"]),
            ("was=Deleted&gone=true".into(), vec!["was-2"]),
            ("was=Preempted&gone=true&namespace=other".into(), vec![]),
        ] {
            let found = objects(&lab, &format!("kind=Job&{query}")).await?.objects;
            ensure!(names(&found) == wanted, "{query}: {found:?}");
        }
        for refused in [
            "was=Asleep",
            "was=Failed&sort=name",
            "was=Failed&at=2026-01-01T00:00:00Z",
            "was=Failed&cursor=x",
        ] {
            let answer = http().get(format!("{}/api/v1/objects?{refused}", lab.url())).send().await?;
            ensure!(answer.status() == 400, "{refused}: {}", answer.text().await?);
        }
        let line = ["jobs", "--was", "preempted", "--since", "7d"];
        ensure!(
            lab.ask(&[&line[..], &["-o", "name"]].concat()).await? == "job.batch/was-2\njob.batch/was-1\n"
        );
        let table = lab.ask(&line).await?;
        ensure!(table.contains("SINCE") && table.contains("UNTIL") && table.lines().count() == 3, "{table}");
        // The index is made again from the journal alone.
        let index = scratch.path().join("data").join("index");
        lab.restart_after(async |_| Ok(std::fs::remove_dir_all(&index)?)).await?;
        until_ok(WITHIN, "the same list again", async || {
            let found = objects(&lab, "kind=Job&was=Preempted&gone=true").await?.objects;
            ensure!(names(&found) == ["was-2", "was-1"], "{found:?}");
            Ok(())
        })
        .await?;
        lab.kubewitness.stop().await
    })
    .await;
}

/// As a queue does: the job is suspended, with the condition that says why.
async fn preempt(simulator: &Simulator, name: &str, is_preempted: bool) -> Result<()> {
    let path = format!("{JOBS}/{name}");
    let (_, mut job) = simulator.request(Method::GET, &path, None).await?;
    job["spec"]["suspend"] = json!(is_preempted);
    let (status, mut job) = simulator.request(Method::PUT, &path, Some(&job)).await?;
    ensure!(status == 200, "changing {name} answered {status}: {job}");
    job["status"]["conditions"] = match is_preempted {
        true => json!([{"type": "Suspended", "status": "True", "reason": "Preempted"}]),
        false => json!([]),
    };
    let (status, answer) = simulator.request(Method::PUT, &format!("{path}/status"), Some(&job)).await?;
    ensure!(status == 200, "changing the status of {name} answered {status}: {answer}");
    Ok(())
}
