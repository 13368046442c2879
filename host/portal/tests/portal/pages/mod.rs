//! Tests of the pages for people: what each shows, and what its forms do.

mod letter_choice;
mod shared_counts;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::body::Body;
use kubewitness_core::Change;

use crate::fake::{self, FakeViews};
use crate::{PortalAnswer, ask, get, portal, request};

/// Checks the parts that every page has for keyboards, screen readers and readers without scripts.
fn check_page(answer: &PortalAnswer, path: &str) {
    let text = &answer.text;
    assert_eq!(answer.header("content-type"), "text/html; charset=utf-8", "{path}");
    for part in [
        "<!DOCTYPE html>",
        "<html lang=\"en\">",
        "<main id=\"content\"",
        "<nav aria-label=\"Main\"",
        "class=\"skip\"",
    ] {
        assert!(text.contains(part), "{path} lacks {part}");
    }
    assert_eq!(text.matches("<h1").count(), 1, "{path}");
    assert_eq!(text.matches("<table").count(), text.matches("<caption>").count(), "{path}");
    for inline in ["<style", " style=", "onclick", "javascript:", "http://", "https://"] {
        let text = text.replace("https://www.w3.org", "");
        assert!(!text.contains(inline), "{path} has {inline}");
    }
    assert_eq!(text.matches("<script").count(), 1, "{path}");
}

#[tokio::test]
async fn every_page_is_whole() {
    let portal = portal(FakeViews::default());
    for path in [
        "/",
        "/?kind=all",
        "/?kind=Job&namespace=vision&phase=Running",
        "/objects/uid-train",
        "/states/1",
        "/states/12",
        "/states/3?from=1",
        "/plugins",
        "/deadletters",
        "/deadletters?plugin=persistence",
        "/deadletters?replayed=2",
        "/deadletters?dropped=2",
        "/gaps",
        "/gaps?source=jobs",
        "/gaps?uid=uid-train",
        "/sources",
        "/?labelSelector=team%3Da",
        "/?gone=true&range=day&sort=-changed",
        "/?was=Preempted&range=week",
        "/?sort=restarts&namespace=research",
        "/?at=2026-11-20+12:00",
        "/objects/uid-train?all=true",
        "/objects/uid-train?at=2026-11-20+13:50&state=3",
        "/states/1?as=yaml&managed=true",
        "/health",
        "/api",
    ] {
        let answer = get(&portal, path).await;
        assert_eq!(answer.status, 200, "{path}");
        check_page(&answer, path);
    }
    for (path, status) in [
        ("/nowhere", 404),
        ("/objects/nobody", 404),
        ("/states/99", 404),
        ("/states/x", 400),
        ("/?phase=odd", 400),
        ("/?x=1", 400),
        ("/?sort=queued", 400),
        ("/?range=century", 400),
        ("/objects/uid-train?at=soon", 400),
        ("/states/1?as=xml", 400),
        ("/compare?from=1", 400),
    ] {
        let answer = get(&portal, path).await;
        assert_eq!(answer.status.as_u16(), status, "{path}");
        check_page(&answer, path);
        assert!(answer.text.contains("class=\"hint\""), "{path}");
    }
    let broken = get(&crate::portal(FakeViews { broken: true, ..FakeViews::default() }), "/").await;
    assert_eq!((broken.status.as_u16(), broken.header("refresh")), (503, "5"));
    check_page(&broken, "a broken journal");
    let opens = get(&crate::portal(FakeViews { opens: true, ..FakeViews::default() }), "/").await;
    assert_eq!((opens.status.as_u16(), opens.header("refresh")), (503, "5"), "the page loads itself again");
}

#[tokio::test]
async fn jobs_are_counted_by_phase_and_filtered() {
    let portal = portal(FakeViews::default());
    let all = get(&portal, "/").await.text;
    assert!(all.contains("26 objects, newest change first"));
    assert!(all.contains("<b>4</b> Running"));
    assert!(all.contains("data-after=\"18-") && all.contains("data-kind=\"Job\""));
    assert!(all.contains("data-causes"), "a page without a row shows causes of rows to come, too");
    assert!(!get(&portal, "/?kind=Pod").await.text.contains("data-causes"), "pods have none");
    assert!(all.find("llm-train-7").unwrap() < all.find("resnet-sweep-12").unwrap());
    let running = get(&portal, "/?phase=running&namespace=research").await.text;
    assert!(running.contains("1 object, newest change first") && running.contains("llm-train-7"));
    assert!(running.contains("<b>1</b> Queued"), "the figures of other phases stay, to go to them");
}

#[tokio::test]
async fn a_column_that_orders_all_pages_says_so_and_a_second_click_turns_it_around() {
    let portal = portal(FakeViews::default());
    let text = get(&portal, "/?namespace=research").await.text;
    assert!(text.contains(
        "aria-sort=\"descending\"><a href=\"/?kind=Job&amp;namespace=research&amp;sort=-changed\""
    ));
    for sort in ["phase", "name", "namespace", "restarts", "created"] {
        assert!(text.contains(&format!("&amp;sort={sort}\"")), "{sort}");
    }
    let disabled = "<span role=\"link\" aria-disabled=\"true\" aria-describedby=\"no-order\"";
    assert_eq!(text.matches(disabled).count(), 2, "times that grow order nothing");
    assert!(text.contains("id=\"no-order\">The columns Waited and Ran can't be sorted"), "{text}");
    let text = get(&portal, "/?sort=name").await.text;
    assert!(text.contains("objects, by name"), "{text}");
    assert!(text.contains("aria-sort=\"ascending\"><a href=\"/?kind=Job&amp;sort=-name\""), "{text}");
    assert!(
        text.contains("<input type=\"hidden\" name=\"sort\" value=\"name\">"),
        "a filter keeps the order"
    );
    let text = get(&portal, "/?sort=name&at=2026-11-20+12:00").await.text;
    assert!(text.contains("first those that have ended since then") && !text.contains("sort="), "{text}");
    assert!(text.contains("id=\"no-order\">A list of a moment can't be sorted."), "{text}");
    assert_eq!(text.matches(disabled).count(), 8, "every head that is a link otherwise, and the two times");
}

#[tokio::test]
async fn jobs_that_are_gone_are_in_the_list_with_how_they_went() {
    let portal = portal(FakeViews::default());
    assert!(!get(&portal, "/").await.text.contains("deleted-yesterday"));
    let text = get(&portal, "/?gone=true").await.text;
    for words in [
        "deleted-yesterday",
        "<span class=\"mark\">gone</span>",
        "<span class=\"phase\" data-phase=\"Failed\">Failed</span> <span class=\"mark\">gone",
        "title=\"created 2026-11-20 11:30:00 UTC\"",
        "4 m 0 s",
        "2 h 10 m",
        "<span class=\"reason\">DeadlineExceeded</span>",
        "ana@example.com",
        "notification: dead",
        "audit: delivered",
    ] {
        assert!(text.contains(words), "{words} is not in\n{text}");
    }
    assert!(
        text.contains("href=\"/?kind=Job&amp;gone=true&amp;sort=-changed\""),
        "the order keeps the question"
    );
    assert!(
        text.contains(
            "newest change first. Objects that are gone are ordered by the time of their deletion."
        ),
        "{text}"
    );
    let by_name = get(&portal, "/?gone=true&sort=name").await.text;
    assert!(by_name.contains("objects, by name. <") && by_name.contains("sort=-name"), "{by_name}");
    let range = get(&portal, "/?range=hour").await.text;
    assert!(range.contains("deleted-yesterday"), "a time of the end asks for those that are gone");
    let custom = get(&portal, "/?range=custom&since=2026-11-20+11:00&until=2026-11-20+13:00").await.text;
    assert!(custom.contains("deleted-yesterday") && custom.contains("value=\"custom\" selected"), "{custom}");
    assert!(
        range.contains("llm-train-7") && !custom.contains("llm-train-7"),
        "what lives was deleted at no time"
    );
    assert!(custom.contains("value=\"2026-11-20 11:00\"") && custom.contains("value=\"2026-11-20 13:00\""));
}

#[tokio::test]
async fn what_was_in_a_phase_is_listed_with_when_and_a_way_back() {
    let portal = portal(FakeViews::default());
    let text = get(&portal, "/?was=preempted&range=week&sort=name").await.text;
    for words in [
        "<a class=\"chip\" href=\"/?kind=Job&amp;gone=true&amp;range=week\"",
        "Was Preempted in the last week",
        "<option value=\"Preempted\" selected>",
        "<th scope=\"col\">Was Preempted</th>",
        "2026-11-20 12:00:00</time> <span class=\"note\">for 4 m 0 s</span>",
        "deleted-yesterday",
        "first those that are in the phase still",
        "A list by phase can't be sorted.",
    ] {
        assert!(text.contains(words), "{words} is not in\n{text}");
    }
    // The page shows the past, so it has no live updates and no counts by phase.
    for words in ["id=\"objects\"", "aria-label=\"By phase\"", "sort="] {
        assert!(!text.contains(words), "{words} is in\n{text}");
    }
    assert_eq!(get(&portal, "/?was=Asleep").await.status, 400);
}

#[tokio::test]
async fn a_job_that_ended_badly_shows_its_cause_with_a_way_to_its_story() {
    let portal = portal(FakeViews::default());
    let text = get(&portal, "/").await.text;
    let words = "#why\" title=\"Why it ended so\">out of memory</a>";
    assert!(text.contains("<th scope=\"col\">Cause</th>") && text.contains(words), "{text}");
    for path in [
        "/?kind=Event",
        "/?kind=Pod",
        "/?kind=deploy",
        "/?kind=CronJob",
        "/?kind=wl",
        "/?at=2026-11-20T12:00:00Z",
    ] {
        let text = get(&portal, path).await.text;
        assert!(!text.contains(">Cause</th>"), "{path} has a column that would be empty");
    }
}

#[tokio::test]
async fn what_ended_for_a_cause_is_listed_with_a_way_back() {
    let portal = portal(FakeViews::default());
    let text = get(&portal, "/?cause=out-of-memory&range=week&sort=name").await.text;
    for words in [
        "<a class=\"chip\" href=\"/?kind=Job&amp;gone=true&amp;range=week\"",
        "Ended by out of memory in the last week",
        "<option value=\"out-of-memory\" selected>out of memory</option>",
        "first those that ended last",
        "A list by cause can't be sorted.",
        ">out of memory</a>",
    ] {
        assert!(text.contains(words), "{words} is not in\n{text}");
    }
    for words in ["id=\"objects\"", "aria-label=\"By phase\"", "sort=", "data-phase=\"Running\""] {
        assert!(!text.contains(words), "{words} is in\n{text}");
    }
    let none = get(&portal, "/?cause=node-lost").await.text;
    assert!(none.contains("Nothing matches"), "{none}");
    let wrong = get(&portal, "/?cause=oom").await;
    assert!(wrong.status == 400 && wrong.text.contains("out-of-memory"), "{}", wrong.text);
}

#[tokio::test]
async fn an_event_shows_its_type_and_what_it_is_about_and_no_phase() {
    let text = get(&portal(FakeViews::default()), "/?kind=Event").await.text;
    for words in [
        "Type</a>",
        "<span class=\"mark doubt\">Warning</span>",
        "<span class=\"reason\">BackOff</span> <span class=\"note\">(x3 over 1 min)</span>",
        "href=\"/objects/uid-pod\"",
        "Back-off &lt;b&gt;restarting&lt;/b&gt;",
    ] {
        assert!(text.contains(words), "{words} is not in\n{text}");
    }
    let row =
        text.split("data-uid=\"uid-event\"").nth(1).and_then(|rest| rest.split("</tr>").next()).unwrap();
    assert!(!row.contains("Unknown") && !text.contains("aria-label=\"By phase\""), "{row}");
}

#[tokio::test]
async fn the_page_of_an_event_tells_what_it_says_how_often_and_of_which_object() {
    let portal = portal(FakeViews::default());
    let text = get(&portal, "/objects/uid-event").await.text;
    for words in [
        "</h1><span class=\"mark doubt\">Warning</span>",
        "<p class=\"story\">BackOff</p><p class=\"lead\">Back-off &lt;b&gt;restarting&lt;/b&gt;</p>",
        "<dt>About</dt><dd><a href=\"/objects/uid-pod\" title=\"llm-train-7-0\">Pod/llm-train-7-0</a></dd>",
        "<dt>Count</dt><dd>2</dd>",
        "<dt>From</dt><dd>kubelet</dd>",
        ">2026-11-20 12:02:00</time>",
        "<span class=\"reason\">BackOff</span> <span class=\"note\">(x2 over 2 min)</span>",
    ] {
        assert!(text.contains(words), "{words} is not in\n{text}");
    }
    // An Event has no phase and no notifications.
    for page in [
        "/objects/uid-event",
        "/objects/uid-event?at=2026-11-20+13:00",
        "/objects/uid-event?cursor=999%2F999",
    ] {
        let text = get(&portal, page).await.text;
        for words in ["Unknown", "data-phase", "Phases over time", ">Mute<", "Waited"] {
            assert!(!text.contains(words), "{page}: {words} is in\n{text}");
        }
    }
}

#[tokio::test]
async fn a_list_of_a_moment_tells_what_is_not_known_and_is_not_live() {
    let text = get(&portal(FakeViews::default()), "/?at=2026-11-20+12:00").await.text;
    assert!(text.contains(">2026-11-20 12:00:00 UTC</time>"), "{text}");
    assert!(text.contains("The journal begins at 2026-11-20T11:00:00.000Z."));
    assert!(text.contains("missing<span class=\"unseen\">: Between 12:00 and 12:05 versions are missing."));
    assert!(text.contains("/objects/uid-train?state=100"), "a row leads to the state of that moment");
    assert!(!text.contains("data-after"), "nothing keeps it up to date");
}

#[tokio::test]
async fn jobs_are_filtered_by_label_and_keep_the_filter() {
    let portal = portal(FakeViews::default());
    let text = get(&portal, "/?labelSelector=team%3Da").await.text;
    assert!(text.contains("9 objects, newest change first"), "{text}");
    assert!(text.contains("data-live") && text.contains("value=\"team=a\""));
    assert!(text.contains("/?kind=Job&amp;labelSelector=team%3Da&amp;phase=Running"), "the figures keep it");
    assert_eq!(get(&portal, "/?labelSelector=a%3D%3D%3Db").await.status, 400);
}

#[tokio::test]
async fn a_page_that_asks_again_gets_its_content_alone_and_nothing_where_it_has_that() {
    let portal = portal(FakeViews::default());
    let again = async |path: &str, tag: &str| {
        let request =
            request("GET", path).header("kubewitness-content", "again").header("if-none-match", tag);
        ask(&portal, request.body(Body::empty()).unwrap()).await
    };
    for (path, live) in [("/objects/uid-train", true), ("/?kind=Pod", true), ("/mutes", false)] {
        let whole = get(&portal, path).await.text;
        let part = again(path, "").await;
        assert_eq!(
            (part.status.as_u16(), part.header("kubewitness-position").split('-').next()),
            (200, Some(if live { "18" } else { "" }))
        );
        assert!(
            part.text.starts_with("<main id=\"content\"") && part.text.ends_with("</main>"),
            "{}",
            part.text
        );
        assert!(whole.contains("<header") && !part.text.contains("<header"), "{path}");
        assert_eq!(
            (part.text.contains("data-live"), whole.contains("data-after=\"18-")),
            (live, live),
            "{path}"
        );
        let same = again(path, part.header("etag")).await;
        // A live page differs when durations in it have grown.
        assert!(same.status == 304 && same.text.is_empty() || live, "{path}");
    }
    assert_eq!(again("/objects/nobody", "").await.status, 404);
}

/// The start tags of these elements in a page.
fn start_tags<'a>(page: &'a str, element: &str) -> Vec<&'a str> {
    let parts = page.split('<').filter_map(|part| part.strip_prefix(element));
    parts.filter(|tag| tag.starts_with([' ', '>'])).map(|tag| tag.split_once('>').unwrap().0).collect()
}

fn data_key(tag: &str) -> Option<&str> {
    tag.split_once("data-key=\"")?.1.split_once('"').map(|(key, _)| key)
}

/// A row without a key would become another one under the pointer of its reader.
#[tokio::test]
async fn a_page_of_figures_follows_every_second_and_no_row_of_it_becomes_another_one() {
    let portal = portal(FakeViews::default());
    for path in ["/plugins", "/sources", "/health", "/gaps", "/deadletters", "/gaps?source=jobs"] {
        let text = get(&portal, path).await.text;
        let main = start_tags(&text, "main").pop().unwrap();
        assert!(main.contains("data-live") && main.contains("data-refresh=\"1\""), "{path}: {main}");
        assert!(text.contains("<noscript><span class=\"live\" data-state=\"paused\">Stands still"), "{path}");
        let bodies = text.split("<tbody>").skip(1).map(|body| body.split_once("</tbody>").unwrap().0);
        let groups = bodies.map(|body| start_tags(body, "tr")).chain([start_tags(&text, "article")]);
        let mut count = 0;
        for tags in groups {
            let keys: BTreeSet<_> = tags.iter().filter_map(|tag| data_key(tag)).collect();
            assert_eq!(keys.len(), tags.len(), "{path}: one has no key, or two have the same: {tags:?}");
            assert!(!keys.contains(""), "{path}: {tags:?}");
            count += tags.len();
        }
        assert!(count > 1, "{path}");
    }
}

#[tokio::test]
async fn a_page_that_does_not_follow_says_why_it_stands_still() {
    let portal = portal(FakeViews::default());
    for (path, why) in [
        ("/?at=2026-11-20+12:00", "a past moment"),
        ("/?was=Preempted&range=week", "a list of the past"),
        ("/?cause=out-of-memory", "a list of the past"),
        ("/?gone=only", "a list of the past"),
        ("/objects/uid-train?cursor=0%2F0", "older states"),
    ] {
        let text = get(&portal, path).await.text;
        let told = format!("<span class=\"live\" data-state=\"paused\">Stands still: {why}</span>");
        assert!(text.contains(&told), "{path}: {text}");
        assert!(!text.contains("id=\"live\"") && !text.contains("data-live"), "{path} does not follow");
    }
    let fixed = get(&portal, "/states/1").await.text;
    assert!(!fixed.contains("Stands still"), "a document never changes");
}

#[tokio::test]
async fn a_gap_is_shown_with_scope_bounds_and_reason() {
    let portal = portal(FakeViews::default());
    let text = get(&portal, "/gaps").await.text;
    for words in [
        "2 gaps, newest first",
        "href=\"/objects/uid-train\" title=\"llm-train-7\">Job/llm-train-7",
        "the whole source",
        "data-label=\"After version\">1013</td><td class=\"num\" data-label=\"Before version\">1019</td>",
        ">open</td>",
        "HistoryReplaced",
        "compacted these versions",
    ] {
        assert!(text.contains(words), "{words} is not in\n{text}");
    }
    let one = get(&portal, "/gaps?uid=uid-train").await.text;
    assert!(one.contains("1 gap, newest first") && !one.contains("HistoryReplaced"), "{one}");
}

#[tokio::test]
async fn poison_is_text_and_its_bytes_are_a_download() {
    let text = get(&portal(FakeViews::default()), "/gaps").await.text;
    assert!(text.contains("2 frames that were no objects of their kind"), "{text}");
    assert!(text.contains("href=\"/api/v1/poison/1/raw\" download=\"poison-1.txt\""));
    assert!(text.contains("&lt;script&gt;alert(1)&lt;/script&gt;·[2J") && !text.contains("<script>alert"));
    assert!(text.contains("expected value at line 1 column 9"));
}

#[tokio::test]
async fn replaced_histories_and_audits_are_told() {
    let text = get(&portal(FakeViews::default()), "/gaps").await.text;
    for words in [
        "2026-11-20 11:02:03",
        "data-label=\"Watched up to\">91044</td>",
        "with the journal",
        "2026-11-20 13:55:00",
        "differed-1",
        "no longer",
    ] {
        assert!(text.contains(words), "{words} is not in\n{text}");
    }
}

#[tokio::test]
async fn a_source_shows_how_far_it_is_and_what_it_has_done() {
    let text = get(&portal(FakeViews::default()), "/sources").await.text;
    for words in [
        "reading back",
        "held up",
        "batch/v1 Job",
        "does not read old versions",
        "href=\"/gaps?source=jobs\">2</a>",
        "213 versions in 240 requests, 4 objects wait",
        "1 first, 2 expired, 1 replaced, 6 audits",
        "(2 s ago)",
        "1 object differed",
        "103 MiB, read in 91 ms",
        "the server refuses: pods is &lt;forbidden&gt;",
        "2026-11-18 09:00:00",
    ] {
        assert!(text.contains(words), "{words} is not in\n{text}");
    }
}

#[tokio::test]
async fn names_are_text_and_never_markup() {
    let text = get(&portal(FakeViews::default()), "/").await.text;
    assert!(text.contains("&lt;b&gt;bold&lt;/b&gt;") && !text.contains("<b>bold"));
    let hostile =
        get(&portal(FakeViews::default()), "/?kind=%22%3E%3Cscript%3Ealert(1)%3C/script%3E").await.text;
    assert!(!hostile.contains("<script>alert"));
}

#[tokio::test]
async fn empty_pages_tell_nothing_yet_from_nothing_that_matches() {
    let empty = portal(FakeViews { empty: true, ..FakeViews::default() });
    let full = portal(FakeViews::default());
    for (path, words) in [
        ("/", "Nothing yet"),
        ("/plugins", "No plugin yet"),
        ("/deadletters", "No dead letters"),
        ("/gaps", "Nothing is watched yet"),
        ("/sources", "No source yet"),
    ] {
        assert!(get(&empty, path).await.text.contains(words), "{path}");
        assert!(!get(&full, path).await.text.contains(words), "{path}");
    }
    assert!(get(&full, "/?namespace=nowhere").await.text.contains("Nothing matches"));
    assert!(get(&full, "/?labelSelector=team%3Da&namespace=nowhere").await.text.contains("Nothing matches"));
    let nobody = get(&full, "/?kind=Deployment").await.text;
    assert!(nobody.contains("Nobody watches that") && nobody.contains("Job (source `jobs`)"), "{nobody}");
    assert!(
        get(&full, "/?kind=po").await.text.contains("Nothing yet"),
        "pods are watched, and there are none"
    );
    assert!(get(&full, "/gaps?uid=uid-other").await.text.contains("Nothing matches"));
    assert!(get(&full, "/gaps?source=nope").await.text.contains("No source is called <b>nope</b>"));
    let odd = get(&full, "/gaps?source=pods%22%5C").await.text;
    assert!(odd.contains("No gaps so far") && odd.contains("every event was an object"), "{odd}");
    assert!(get(&full, "/deadletters?plugin=audit").await.text.contains("Nothing matches"));
}

#[tokio::test]
async fn an_objects_story_is_a_picture_and_a_table() {
    let text = get(&portal(FakeViews::default()), "/objects/uid-train").await.text;
    assert!(text.contains("role=\"img\"") && text.contains("Phases of 3 objects"));
    assert_eq!(text.matches("class=\"label\"").count(), 4, "one lane for the job, one a pod, one a plugin");
    for words in ["Queued", "PreemptionByScheduler", "CompletionsReached", "What it owns", "/states/2?from=1"]
    {
        assert!(text.contains(words), "{words}");
    }
    assert!(text.contains("class=\"gap\""), "a hole is marked as a hole");
    assert!(text.contains("Versions are missing here, between 1013 and 1019: Compacted"), "in the picture");
    assert!(text.contains("The API server had compacted these versions"), "and in the table");
    assert!(text.contains("href=\"/gaps?uid=uid-train\">1</a>"));
}

#[tokio::test]
async fn an_objects_story_is_told_in_words_and_two_of_its_states_can_be_chosen() {
    let portal = portal(FakeViews::default());
    let text = get(&portal, "/objects/uid-train").await.text;
    assert!(
        text.contains(
            "<p class=\"story\" id=\"why\"><a href=\"/states/1\" title=\"Rests on state 1\">Waited "
        ),
        "{text}"
    );
    assert!(text.contains("<title>audit: dead at position 3</title>"), "who was told is drawn: {text}");
    assert!(
        text.contains("audit: delivered at position 1") && text.contains("audit: waiting at position 18")
    );
    assert!(text.contains("action=\"/compare\"") && text.contains("name=\"from\" value=\"1\" checked"));
    assert!(text.contains("kubectl get job.batch llm-train-7 -n research -o yaml"));
    let compare = get(&portal, "/compare?from=1&to=3").await;
    assert_eq!((compare.status.as_u16(), compare.header("location")), (303, "/states/3?from=1"));
    let chosen = get(&portal, "/objects/uid-train?state=3").await.text;
    assert!(chosen.contains("chosen\" id=\"state-3\""), "{chosen}");
}

#[tokio::test]
async fn health_is_one_page_with_a_verdict() {
    let text = get(&portal(FakeViews::default()), "/health").await.text;
    for words in
        ["Something needs attention", "Plugins", "Sources", "Held beyond retention", "Observed = delivered"]
    {
        assert!(text.contains(words), "{words} is not in\n{text}");
    }
    assert!(text.contains(" of 3 plugins</a> need attention"), "what is wrong leads to its page: {text}");
}

#[tokio::test]
async fn documents_are_laid_out_and_compared() {
    let portal = portal(FakeViews::default());
    let whole = get(&portal, "/states/1").await.text;
    assert!(whole.contains("\n  &quot;apiVersion&quot;: &quot;batch/v1&quot;"), "{whole}");
    let changes = get(&portal, "/states/3?from=2").await.text;
    assert!(changes.contains("<ins>+ ") && changes.contains("SuccessCriteriaMet"));
    assert!(!changes.contains("f:conditions"), "the server's book-keeping is left out");
    assert!(get(&portal, "/states/6?from=1").await.text.contains("No difference"));
    assert!(get(&portal, "/states/12").await.text.contains("There is no document"));
}

#[tokio::test]
async fn plugins_show_whether_their_figures_add_up() {
    let text = get(
        &portal(FakeViews { not_ready: Some("the disk is full".into()), ..FakeViews::default() }),
        "/plugins",
    )
    .await
    .text;
    assert_eq!(text.matches("Every observed state is accounted for").count(), 2);
    assert!(text.contains("200 states are not accounted for"));
    assert!(
        text.contains("It does not run: no state is handed to it.")
            && text.contains(">108 positions behind, ")
    );
    assert!(text.contains("href=\"/deadletters?plugin=notification\""));
    assert!(text.contains("did not answer within 10 s") && text.contains("Not ready. "));
}

#[tokio::test]
async fn plugins_show_what_they_ask_for_beside_what_they_are_granted_and_how_long_calls_take() {
    let text = get(&portal(FakeViews::default()), "/plugins").await.text;
    let row = |name: &str, asked: &str, granted: &str| {
        format!(
            "<code>{name}</code></th><td data-label=\"Asked for\">{asked}</td><td data-label=\"Granted\">{granted}</td>"
        )
    };
    for row in [
        row("sql:main", "yes", "database platform"),
        row("kv", "yes", "no"),
        row("documents", "no", "without secrets"),
    ] {
        assert!(text.contains(&row), "{row}: {text}");
    }
    assert!(
        text.contains("7 states were in calls that ended. The call of a state took 1 s on average."),
        "{text}"
    );
    assert!(text.contains("&quot;kw_states&quot;") && text.contains("64 MiB"));
    let field = "<tr data-key=\"field-table\"><th scope=\"row\"><code>table</code></th><td data-label=\"Set to\"><code>&quot;kw_states&quot;</code></td>\
                 <td data-label=\"Type\">text</td><td data-label=\"Default\"><code>&quot;states&quot;</code></td>\
                 <td data-label=\"Meaning\">Where <code>&lt;rows&gt;</code> go.</td></tr>";
    assert!(text.contains(field), "{text}");
    assert!(text.contains("12 ticks, 4 failed, the last at "), "{text}");
    assert!(text.contains("The last failed: the plugin says: the server is away"), "{text}");
}

#[tokio::test]
async fn plugins_show_the_last_good_call_the_last_error_and_what_calls_cost() {
    let text = get(&portal(FakeViews::default()), "/plugins").await.text;
    let fact = |name: &str, told: &str| format!("<dt>{name}</dt><dd>{told}</dd>");
    for fact in [
        fact("Last good call", "<time datetime=\"2026-11-20T13:46:38.120Z\">2026-11-20 13:46:38</time>"),
        fact(
            "Last error",
            "<time datetime=\"2026-11-20T13:46:41.000Z\">2026-11-20 13:46:41</time>, a timeout",
        ),
        fact("Traps", "5"),
        fact("Timeouts", "4"),
        fact("Unavailable", "1"),
        fact("Time in the plugin", "1 s, and 1 m 30 s in the controller for it"),
        fact("Peak memory", "3.0 of 64 MiB"),
    ] {
        assert!(text.contains(&fact), "{fact} is not in {text}");
    }
    assert!(
        !text.contains("Out of memory") && text.contains("The last error: the plugin ran longer"),
        "{text}"
    );
}

#[tokio::test]
async fn dead_letters_are_filtered_counted_and_replayed_as_they_are_shown() {
    let fake = std::sync::Arc::new(FakeViews::default());
    let portal = kubewitness_portal::router(fake.clone(), &crate::options());
    let all = get(&portal, "/deadletters").await.text;
    let none = get(&portal, "/deadletters?error=no+such+words&namespace=research").await.text;
    assert!(none.contains("No dead letter fits the filter") && none.contains("value=\"no such words\""));
    let some = get(&portal, "/deadletters?namespace=research&error=e&since=2026-11-01").await.text;
    assert!(some.contains("that fit the filter") && !all.contains("that fit the filter"), "{some}");
    assert!(
        some.contains("name=\"since\" value=\"2026-11-01\"")
            && some.contains("name=\"namespace\" value=\"research\"")
    );
    assert_eq!(get(&portal, "/deadletters?since=yesterday").await.status, 400);

    let body = "plugin=notification&namespace=research&error=disk+full&since=2026-11-01&until=&reason=it+is+back&exactly=5";
    let request = request("POST", "/deadletters/replay")
        .header("content-type", "application/x-www-form-urlencoded")
        .header("sec-fetch-site", "same-origin");
    let done = ask(&portal, request.body(Body::from(body)).unwrap()).await;
    assert_eq!(
        done.header("location"),
        "/deadletters?replayed=5&plugin=notification&namespace=research&error=disk%20full&since=2026-11-01"
    );
    let request = fake.replays.lock().unwrap()[0].clone();
    assert_eq!(
        (request.namespace.as_deref(), request.error.as_deref()),
        (Some("research"), Some("disk full"))
    );
    assert_eq!((request.since.as_deref(), request.until), (Some("2026-11-01T00:00:00Z"), None));
}

#[tokio::test]
async fn the_page_of_dead_letters_reads_as_few_of_many_and_says_that_there_are_more() {
    for (many, of_all, of_one) in [
        (10, "10 dead letters", "10 dead letters"),
        (
            100_000,
            "More than 500 dead letters, 100 of them on this page",
            "More than 5\u{202f}000 dead letters, 500 of them on this page",
        ),
    ] {
        let fake = std::sync::Arc::new(FakeViews { many, ..FakeViews::default() });
        let portal = kubewitness_portal::router(fake.clone(), &crate::options());
        for (path, words, most) in
            [("/deadletters", of_all, 520), ("/deadletters?plugin=audit", of_one, 5_001)]
        {
            let page = get(&portal, path).await.text;
            assert!(page.contains(words), "{path}: {page}");
            let read = fake.read.swap(0, Ordering::Relaxed);
            assert!(read <= most, "{path} reads {read} of {many}");
        }
        let none = get(&portal, "/deadletters?plugin=audit&error=another").await.text;
        match many {
            10 => assert!(none.contains("No dead letter fits the filter")),
            _ => assert!(
                none.contains("0 dead letters that fit the filter, of the first 5\u{202f}000")
                    && none.contains("Next page"),
                "{none}"
            ),
        }
    }
}

#[tokio::test]
async fn letters_that_were_dropped_are_in_nobodys_way_and_the_tools_stand_above_the_rows() {
    let fake = std::sync::Arc::new(FakeViews { many: 6_000, dropped: 5_990, ..FakeViews::default() });
    let portal = kubewitness_portal::router(fake.clone(), &crate::options());
    for (path, at_least) in [("/deadletters", "500"), ("/deadletters?plugin=audit", "5\u{202f}000")] {
        let page = get(&portal, path).await.text;
        assert!(page.contains(">10 dead letters<"), "{path}: {page}");
        assert!(
            page.contains(&format!("At least {at_least} states were dropped: they stay counted")),
            "{page}"
        );
        let section = page.split("id=\"plugin-audit\"").nth(1).unwrap();
        let places =
            ["Reason", "name=\"dry_run\"", "name=\"drop\"", "10 dead letters", "Choose position 5991"]
                .map(|words| section.find(words).unwrap());
        assert!(places.is_sorted(), "{places:?}: {section}");
    }
}

#[tokio::test]
async fn the_form_replays_what_was_chosen() {
    let fake = std::sync::Arc::new(FakeViews::default());
    let portal = kubewitness_portal::router(fake.clone(), &crate::options());
    let send = async |body: &'static str| {
        let request = request("POST", "/deadletters/replay")
            .header("content-type", "application/x-www-form-urlencoded")
            .header("sec-fetch-site", "same-origin");
        ask(&portal, request.body(Body::from(body)).unwrap()).await
    };
    let done = send("plugin=notification&seq=7&seq=9&reason=the+disk+is+back").await;
    assert_eq!((done.status.as_u16(), done.header("location")), (303, "/deadletters?replayed=2"));
    let tried = send("plugin=notification&seq=7&reason=why+not&who=ada&dry_run=true").await;
    assert_eq!(tried.header("location"), "/deadletters?tried=1");
    let dropped = send("plugin=notification&seq=7&reason=no+use&who=&drop=true").await;
    assert_eq!(dropped.header("location"), "/deadletters?dropped=1");
    let drop = fake.drops.lock().unwrap()[0].clone();
    assert_eq!((drop.seqs.as_slice(), drop.actor_name()), (&[7][..], "portal"));
    let seen = fake.replays.lock().unwrap().clone();
    assert_eq!((seen[0].seqs.as_slice(), seen[0].reason.as_str()), (&[7, 9][..], "the disk is back"));
    assert_eq!((seen[0].dry_run, seen[1].dry_run), (false, true));
    assert_eq!((seen[0].actor_name(), seen[1].actor_name()), ("portal", "ada"));
    for (body, status) in [
        ("plugin=notification&reason=", 400),
        ("plugin=notification&reason=x&colour=red", 400),
        ("plugin=notification&reason=x&seq=a", 400),
        ("plugin=nobody&reason=x", 404),
        ("plugin=notification&reason=x&exactly=4", 409),
    ] {
        let answer = send(body).await;
        assert_eq!(answer.status.as_u16(), status, "{body}");
        check_page(&answer, body);
    }
}

#[tokio::test]
async fn a_form_without_a_choice_drops_nothing_before_the_number_is_typed() {
    let fake = std::sync::Arc::new(FakeViews::default());
    let portal = kubewitness_portal::router(fake.clone(), &crate::options());
    let send = async |body: &'static str| {
        let request = request("POST", "/deadletters/replay")
            .header("content-type", "application/x-www-form-urlencoded")
            .header("sec-fetch-site", "same-origin");
        ask(&portal, request.body(Body::from(body)).unwrap()).await
    };
    let asked = send("plugin=notification&error=no&reason=no+use&who=ada&on_page=2&drop=true").await;
    check_page(&asked, "the confirmation");
    for words in [
        "<b>5 dead letters</b> of the plugin <b>notification</b> that fit the filter: 2 on the page before, and 3 on other pages",
        "name=\"exactly\" required",
        "name=\"error\" value=\"no\"",
        "name=\"reason\" value=\"no use\"",
        "name=\"who\" value=\"ada\"",
    ] {
        assert!(asked.text.contains(words), "{words} is not in {}", asked.text);
    }
    assert!(fake.drops.lock().unwrap().iter().all(|request| request.dry_run), "nothing is dropped");
    let other = send("plugin=notification&error=no&reason=no+use&drop=true&exactly=4").await;
    assert_eq!(other.status, 409);
    assert!(other.text.contains("exactly 4 dead letters, and by now it means 5"), "{}", other.text);
    let done = send("plugin=notification&error=no&reason=no+use&drop=true&exactly=5").await;
    assert_eq!(done.header("location"), "/deadletters?dropped=5&plugin=notification&error=no");
    let dropped = fake.drops.lock().unwrap().last().cloned().unwrap();
    assert_eq!((dropped.dry_run, dropped.exactly), (false, Some(5)));
}

#[tokio::test]
async fn the_page_of_a_job_says_who_was_told_and_mutes_it() {
    let portal = portal(FakeViews::default());
    let send = async |body: &'static str, from: (&'static str, &'static str)| {
        let request = request("POST", "/mutes")
            .header("content-type", "application/x-www-form-urlencoded")
            .header(from.0, from.1);
        ask(&portal, request.body(Body::from(body)).unwrap()).await
    };
    let own = ("sec-fetch-site", "same-origin");
    let page = get(&portal, "/objects/uid-train").await.text;
    let (_, told) = page.split_once("<h2 id=\"told\">Who was told</h2>").unwrap();
    assert!(
        told.contains("ops <span class=\"note\">(slack)</span>") && told.contains("&lt;no_team&gt;"),
        "{told}"
    );
    assert!(told.contains("<option value=\"research\">") && told.contains("Your name"), "{told}");
    for (body, from, status) in [
        ("do=mute&uid=uid-train", ("sec-fetch-site", "cross-site"), 403),
        ("do=mute&uid=uid-train", ("x-none", "x"), 403),
        ("uid=uid-train", own, 400),
        ("do=mute&namespace=&to=", own, 400),
        ("do=mute&uid=uid-train&colour=red", own, 400),
        ("do=mute&uid=uid-train&namespace=x", own, 400),
        ("do=mute&uid=uid-train&to=a%0Ab", own, 400),
        ("do=mute&uid=uid-nobody", own, 404),
    ] {
        assert_eq!(send(body, from).await.status.as_u16(), status, "{body}");
    }
    assert!(get(&portal, "/mutes").await.text.contains("No mutes"));
    let done = send("do=mute&uid=uid-train&to=research&who=ada+%3Cb%3E", own).await;
    assert_eq!((done.status.as_u16(), done.header("location")), (303, "/objects/uid-train"));
    assert_eq!(send("do=mute&namespace=&all=true&to=", own).await.header("location"), "/mutes");
    let page = get(&portal, "/objects/uid-train").await;
    check_page(&page, "/objects/uid-train");
    assert!(page.text.contains("research is not told. ada &lt;b&gt; muted it at "), "{}", page.text);
    assert!(page.text.contains("Everything is muted."));
    let mutes = get(&portal, "/mutes").await;
    check_page(&mutes, "/mutes");
    assert!(mutes.text.contains("Job/llm-train-7 in research") && mutes.text.contains("Everything"));
    assert_eq!(send("do=unmute&uid=uid-train&to=research", own).await.status.as_u16(), 303);
    assert_eq!(send("do=unmute&all=true&to=", own).await.status.as_u16(), 303);
    assert!(get(&portal, "/mutes").await.text.contains("No mutes"));
}

#[tokio::test]
async fn the_page_of_plugins_leads_to_the_forms_that_pause_and_resume_one() {
    let portal = portal(FakeViews::default());
    let send = async |path: &str, body: &'static str| {
        let request = request("POST", path)
            .header("content-type", "application/x-www-form-urlencoded")
            .header("sec-fetch-site", "same-origin");
        ask(&portal, request.body(Body::from(body)).unwrap()).await
    };
    let (pause, resume) = ("/plugins/notification/pause", "/plugins/notification/resume");
    let page = get(&portal, "/plugins").await;
    assert!(page.text.contains(&format!("href=\"{pause}\"")) && !page.text.contains(resume));
    for (address, verb) in [(pause, "Pause"), (resume, "Resume")] {
        let form = get(&portal, address).await;
        check_page(&form, address);
        assert!(form.text.contains(&format!("<h1>{verb} notification</h1>")), "{}", form.text);
    }
    for (address, body, status) in [
        (pause, "reason=", 400),
        (pause, "reason=x&colour=red", 400),
        ("/plugins/nobody/pause", "reason=x", 404),
    ] {
        let answer = send(address, body).await;
        assert_eq!(answer.status.as_u16(), status, "{address} {body}");
        check_page(&answer, address);
    }
    let done = send(pause, "reason=the+%3Cdatabase%3E+moves&who=ada").await;
    assert_eq!((done.status.as_u16(), done.header("location")), (303, "/plugins"));
    let page = get(&portal, "/plugins").await;
    check_page(&page, "/plugins");
    let told = page.text.split_once("<b>Paused. </b>").unwrap().1.split_once("</p>").unwrap().0;
    assert!(told.starts_with("ada paused it at ") && told.contains("the &lt;database&gt; moves"), "{told}");
    assert!(told.contains("Retention keeps"), "{told}");
    assert!(page.text.contains(&format!("href=\"{resume}\"")), "{}", page.text);
    assert_eq!(send(resume, "reason=moved").await.status.as_u16(), 303);
    assert!(!get(&portal, "/plugins").await.text.contains("Paused. "));
}

#[tokio::test]
async fn assets_are_kept_by_their_checksum() {
    let portal = portal(FakeViews::default());
    let page = get(&portal, "/").await.text;
    for (name, kind) in
        [("portal.css", "text/css"), ("portal.js", "text/javascript"), ("icon.svg", "image/svg+xml")]
    {
        let start = page.find(&format!("/assets/{name}?v=")).unwrap();
        let address = &page[start..start + page[start..].find('"').unwrap()];
        let asset = get(&portal, address).await;
        assert!(asset.header("content-type").starts_with(kind), "{address}");
        assert!(asset.header("cache-control").contains("immutable"), "{address}");
    }
}

#[tokio::test]
async fn what_keeps_retention_from_going_on_is_on_the_first_page_with_what_to_do() {
    let held = portal(FakeViews::default());
    for address in ["/", "/plugins", "/sources"] {
        let page = get(&held, address).await;
        check_page(&page, address);
        assert_eq!(page.text.matches("Retention of jobs").count(), 1, "{address} says it once");
        let (_, notice) =
            page.text.split_once("<b>Retention of jobs. </b>").unwrap_or_else(|| panic!("{address}"));
        let (notice, _) = notice.split_once("</p>").unwrap();
        assert!(notice.contains("states beyond its bounds held by plugin audit since "), "{notice}");
        assert!(notice.ends_with(": it is failed (&lt;no table&gt;): repair it"), "{notice}");
    }
    let well = portal(FakeViews { empty: true, ..FakeViews::default() });
    assert!(!get(&well, "/").await.text.contains("Retention of"));
}

#[tokio::test]
async fn what_is_wrong_beside_the_plugins_is_seen_on_their_page() {
    let faulty = portal(FakeViews { problems: vec!["two hosts, a & b".into()], ..FakeViews::default() });
    let page = get(&faulty, "/plugins").await;
    check_page(&page, "/plugins");
    let notice = |who: &str, what: &str| format!("<p class=\"alert\"><b>{who}. </b>{what}</p>");
    for part in [
        notice("Configuration", "two hosts, a &amp; b"),
        notice("Source pods&quot;\\", "the server refuses: pods is &lt;forbidden&gt;"),
        notice("Source jobs", "something that the watch had not brought was found"),
    ] {
        assert!(page.text.contains(&part), "{part} is not in\n{}", page.text);
    }
    assert_eq!(page.text.matches("<b>Source ").count(), 2, "a source that is well needs no notice");
    assert!(!get(&portal(FakeViews::default()), "/plugins").await.text.contains("Configuration. "));
    let first =
        get(&portal(FakeViews { problems: vec!["two hosts, a & b".into()], ..FakeViews::default() }), "/")
            .await;
    assert!(first.text.contains(&notice("Configuration", "two hosts, a &amp; b")), "on the first page, too");
    let fake = FakeViews {
        not_ready: Some("two hosts".into()),
        problems: vec!["two hosts".into()],
        ..FakeViews::default()
    };
    assert_eq!(get(&portal(fake), "/plugins").await.text.matches("two hosts").count(), 1, "told once");
}

#[tokio::test]
async fn where_nobody_signs_in_each_page_says_so() {
    let portal = portal(FakeViews::default());
    for path in
        ["/", "/objects/uid-train", "/states/1", "/plugins", "/sources", "/deadletters", "/gaps", "/none"]
    {
        let page = get(&portal, path).await.text;
        assert!(
            page.contains("No sign-in: anyone who reaches this address sees and changes everything."),
            "{path}"
        );
        assert!(!page.contains("Log out"), "{path}");
    }
    assert_eq!(get(&portal, "/login").await.status, 404);
}

#[tokio::test]
async fn the_page_of_the_api_has_each_operation_and_a_place_for_each_code() {
    let portal = portal(FakeViews::default());
    let text = get(&portal, "/api").await.text;
    let openapi = get(&portal, "/api/v1/openapi.json").await.json();
    for (path, methods) in openapi["paths"].as_object().unwrap() {
        for (method, expected) in methods.as_object().unwrap() {
            let id = expected["operationId"].as_str().unwrap();
            let head = format!("<h2 id=\"op-{id}\"><code>{} {path}</code></h2>", method.to_uppercase());
            assert!(text.contains(&head), "{head}");
        }
    }
    let refused = get(&portal, "/api/v1/objects?limit=0").await.json();
    let place = refused["type"].as_str().unwrap().strip_prefix("/api#").unwrap().to_owned();
    assert!(text.contains(&format!("<tr id=\"{place}\">")), "the type of a problem leads to its code");
    assert!(text.contains("curl -H &quot;Authorization: Bearer $TOKEN&quot;"));
    assert!(get(&portal, "/").await.text.contains("<a href=\"/api\">API</a>"));
}

#[tokio::test]
async fn events_about_an_object_and_its_pods_stand_on_its_page_counted_as_kubectl_does() {
    let text = get(&portal(FakeViews::default()), "/objects/uid-train").await.text;
    let (before, events) = text.split_once("<h2 id=\"events\">Events</h2>").unwrap();
    assert!(before.contains("id=\"lanes\""), "after the lanes");
    assert!(events.contains("(x3 over 2 min)"), "{events}");
    assert!(events.contains(">FailedScheduling<") && events.contains(">Scheduled<"));
    assert!(events.contains(
        "href=\"/objects/uid-llm-train-7-0-x8k2p\" title=\"llm-train-7-0-x8k2p\">Pod/llm-train-7-0-x8k2p"
    ));
}

#[tokio::test]
async fn the_page_of_an_object_names_its_outermost_owner_by_which_the_states_of_its_pods_are_recognized() {
    let views = FakeViews::default();
    let job = fake::object("Job", "research", "nightly-1", "uid-nightly-1");
    let mut state = fake::state(19, &job, Change::Present, 1000, fake::status("Running", "", ""));
    state.owner = Some(Arc::new(fake::object("CronJob", "research", "nightly", "uid-nightly")));
    views.push(state);
    let text = get(&portal(views), "/objects/uid-nightly-1").await.text;
    assert!(text.contains("data-uid=\"uid-nightly-1\" data-owner=\"uid-nightly\""), "{text}");
}
