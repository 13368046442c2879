//! A real component that traps, loops and eats memory on some states: those alone are parked, and
//! an operator shows, filters, replays and drops them from the command line.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_core::views::StatusView;
use kubewitness_harness::{
    Kubewitness, RunOptions, Scratch, Simulator, command, command_json, in_scratch, until,
};
use reqwest::Method;
use serde_json::{Value, json};

use crate::portal::browser::{Browser, has_driver};
use crate::support::{create_job, example_copy, journal_proof, plugin_manifest, proofs, simulator, write};

const WITHIN: Duration = Duration::from_secs(120);

/// It does to each job what the message of its status says, and sees no job that is called `quiet`.
const PROBE: &str = "module: {file: probe.wasm}
subscribe:
  - source: jobs
    mode: every
    start: beginning
    filter: state.phase == 'Failed' && object.metadata.name != 'quiet'
grants:
  kv: true
  lister: [jobs]
  sql: [{name: main, database: second}]
  http: [{name: nobody, destination: nobody}]
  ledger: [{name: notes, ledger: notes}]
limits: {call: 3s, memory: 32Mi}
delivery: {batch: 64, retries: 1, backoff: 10ms}";

const FOR_PROBE: &str = "        - {name: notes, path: audit/notes.jsonl}
      destinations:
        - {name: nobody, url: 'http://127.0.0.1:9'}
";

const HARMS: [(&str, &str, &str); 4] = [
    ("traps", "trap", "trapped"),
    ("loops", "loop", "longer than its limit"),
    ("eats", "eat 512", "more memory than its limit"),
    ("skips", "missing", "verdicts for 1 states"),
];

pub async fn fails_with(simulator: &Simulator, name: &str, message: &str) -> Result<()> {
    create_job(simulator, name).await?;
    tells(simulator, name, message).await
}

/// Gives the job a status that fails with this message.
async fn tells(simulator: &Simulator, name: &str, message: &str) -> Result<()> {
    let path = format!("/apis/batch/v1/namespaces/default/jobs/{name}");
    let (_, mut job) = simulator.request(Method::GET, &path, None).await?;
    let at = "2026-11-21T12:00:00Z";
    let condition = |kind: &str| {
        json!({"type": kind, "status": "True", "reason": "Told", "message": message,
               "lastProbeTime": at, "lastTransitionTime": at})
    };
    job["status"] = json!({"startTime": at, "failed": 1, "conditions": [condition("FailureTarget"), condition("Failed")]});
    let (code, answer) = simulator.request(Method::PUT, &format!("{path}/status"), Some(&job)).await?;
    ensure!(code == 200, "the status of {name} answered {code}: {answer}");
    Ok(())
}

/// The example with the plugin that misbehaves.
pub fn config(scratch: &Scratch) -> Result<PathBuf> {
    let config = example_copy(scratch)?;
    let host = std::fs::read_to_string(config.join("host.yaml"))?;
    write(&config, "host.yaml", &format!("{host}{FOR_PROBE}"))?;
    write(&config, "probe.yaml", &plugin_manifest("probe", PROBE))?;
    Ok(config)
}

async fn lab(scratch: &Scratch) -> Result<(Simulator, RunOptions)> {
    let config = config(scratch)?;
    let simulator = simulator(scratch).await?;
    for good in ["one", "two", "three", "four"] {
        fails_with(&simulator, good, "done").await?;
    }
    for (name, command, _) in HARMS {
        fails_with(&simulator, name, command).await?;
    }
    fails_with(&simulator, "quiet", "trap").await?;
    let options = simulator.run_options(scratch, config)?;
    Ok((simulator, options))
}

/// Whether a batch with a culprit in it failed as a whole, and then a call of one state alone.
fn splits(log: &str) -> bool {
    let failed = log.lines().filter(|line| line.contains("a call failed"));
    let mut sizes = failed.filter_map(|line| {
        let (_, rest) = line.split_once("states=")?;
        rest.split(|c: char| !c.is_ascii_digit()).next()?.parse::<usize>().ok()
    });
    sizes.any(|states| states > 1) && sizes.any(|states| states == 1)
}

/// The list once the journal has all of them: it saves them a moment after the status tells of them.
async fn four_letters(server: &str) -> Result<Value> {
    let saved = async || {
        let letters = command_json(&["deadletters", "list", "--server", server, "-o", "json"]).await?;
        Ok((letters.as_array().map_or(0, Vec::len) == 4).then_some(letters))
    };
    until(WITHIN, "four dead letters in the list", saved).await
}

fn named<'v>(letters: &'v Value, name: &str) -> &'v Value {
    let all = letters.as_array().map(Vec::as_slice).unwrap_or_default();
    all.iter().find(|letter| letter["object"]["name"] == name).unwrap_or(&Value::Null)
}

#[tokio::test]
async fn a_component_that_traps_loops_or_eats_memory_parks_those_states_alone_and_they_are_replayed_or_dropped()
 {
    in_scratch("letters", async |scratch| {
        let (_simulator, options) = lab(scratch).await?;
        let mut run = Kubewitness::start("run", &options, scratch.path())?;
        let four = |status: &StatusView| {
            status.plugins.iter().any(|p| p.name == "probe" && p.dead == 4 && p.waiting == 0)
        };
        let status = run.status_when(WITHIN, "four dead letters", four).await?;
        let probe = status.plugins.iter().find(|plugin| plugin.name == "probe").expect("it is there");
        ensure!(probe.delivered == 4 && probe.observed == 9 && probe.filtered == 1, "{probe:?}");
        ensure!(probe.filter_errors == 0, "{probe:?}");

        let server = format!("http://{}", run.address());
        let list = async || command_json(&["deadletters", "list", "--server", &server, "-o", "json"]).await;
        let letters = four_letters(&server).await?;
        let log = run.process().stderr();
        ensure!(splits(&log), "no call of several states failed before one of a single state: {log}");
        for (name, _, error) in HARMS {
            let letter = named(&letters, name);
            let tries = letter["tries"].as_array().map_or(0, Vec::len);
            ensure!(letter["attempts"] == 2 && tries == 2, "{letter}");
            ensure!(letter["error"].as_str().is_some_and(|text| text.contains(error)), "{letter}");
        }
        let seq = named(&letters, "traps")["seq"].to_string();
        let (_, shown, _) = command(&["deadletters", "show", &seq, "--server", &server]).await?;
        ensure!(
            shown.contains("tries     2") && shown.contains("TRY") && shown.contains("trapped"),
            "{shown}"
        );

        let (code, _, told) =
            command(&["deadletters", "replay", "--plugin", "probe", "--server", &server]).await?;
        ensure!(code == Some(2) && told.contains("--reason"), "a reason is needed: {told}");
        let by_error = [
            "--plugin",
            "probe",
            "--error",
            "more memory",
            "--reason",
            "more of it",
            "--who",
            "ada",
            "--server",
            &server,
        ];
        let replay = |more: &[&'static str]| {
            let words: Vec<String> = ["deadletters", "replay"]
                .iter()
                .chain(&by_error)
                .chain(more)
                .map(ToString::to_string)
                .collect();
            async move { command(&words.iter().map(String::as_str).collect::<Vec<_>>()).await }
        };
        let (_, told, _) = replay(&["--dry-run"]).await?;
        ensure!(told == "1 would be replayed\n", "{told}");
        let (code, _, told) = replay(&[]).await?;
        ensure!(code == Some(2) && told.contains("--yes=1"), "nobody can be asked: {code:?} {told}");
        let (code, _, told) = replay(&["--yes=2"]).await?;
        ensure!(code == Some(1) && told.contains("exactly 2") && told.contains("means 1"), "{code:?} {told}");
        let (code, told, progress) = replay(&["--wait", "--yes"]).await?;
        ensure!(told == "1 being replayed\n" && progress.contains("1 of 1 tried again"), "{told}{progress}");
        ensure!(
            code == Some(4) && progress.contains("1 parked again"),
            "it fails again: {code:?} {progress}"
        );
        ensure!(named(&list().await?, "eats")["attempts"] == 4, "and all of its tries are counted");

        let drop = ["deadletters", "drop", "--plugin", "probe", "--reason", "no use", "--server", &server];
        let (code, _, told) = command(&drop).await?;
        ensure!(code == Some(2) && told.contains("say --all"), "{code:?} {told}");
        let all: Vec<&str> = drop.into_iter().chain(["--all"]).collect();
        let both: Vec<&str> = all.iter().copied().chain(["--seq", "1"]).collect();
        let (code, _, told) = command(&both).await?;
        ensure!(code == Some(2) && told.contains("--all"), "{code:?} {told}");
        let (code, _, told) = command(&all).await?;
        ensure!(
            code == Some(2) && told.contains("drops 4 dead letters of probe, for good"),
            "{code:?} {told}"
        );
        let sure: Vec<&str> = all.iter().copied().chain(["--yes=4"]).collect();
        let (_, told, _) = command(&sure).await?;
        ensure!(told == "4 dropped\n", "{told}");
        ensure!(list().await? == json!([]), "they are not listed any more");
        let records = command_json(&["deadletters", "records", "--server", &server, "-o", "json"]).await?;
        let told: Vec<_> =
            records.as_array().into_iter().flatten().map(|r| (&r["what"], &r["why"])).collect();
        ensure!(
            told == [(&json!("drop"), &json!("no use")), (&json!("replay"), &json!("more of it"))],
            "{records}"
        );
        // Who says nothing is told as the system knows them.
        ensure!(records[1]["who"] == "ada" && records[0]["who"] != "api", "{records}");

        let until_told = until(WITHIN, "the figures to say so", async || {
            let status = run.status().await?;
            let of = status.plugins.iter().find(|plugin| plugin.name == "probe");
            Ok(of.filter(|probe| probe.dropped == 4).cloned())
        });
        let probe = until_told.await?;
        let sum = probe.delivered + probe.filtered + probe.dead + probe.waiting;
        ensure!(probe.observed == sum && probe.dead == 4, "{probe:?}");
        run.stop().await?;
        proofs(&options.data).await
    })
    .await;
}

/// States that wait behind the letter. Each writes its number into a ledger.
const BEHIND: u64 = 200;
/// So many of them are written when the process is killed among them.
const WRITTEN: usize = 20;

#[tokio::test]
async fn a_held_letter_keeps_nobody_else_and_what_waits_behind_it_survives_kill_9() {
    in_scratch("letters-held", async |scratch| {
        let config = config(scratch)?;
        let hold = PROBE.replace("delivery: {", "delivery: {onDeadLetter: hold, ");
        write(&config, "probe.yaml", &plugin_manifest("probe", &hold))?;
        let simulator = simulator(scratch).await?;
        fails_with(&simulator, "traps", "trap").await?;
        let options = simulator.run_options(scratch, config)?;
        let mut run = Kubewitness::start("run", &options, scratch.path())?;
        let probe =
            |status: &StatusView| status.plugins.iter().find(|plugin| plugin.name == "probe").cloned();
        run.status_when(WITHIN, "the letter", |status| probe(status).is_some_and(|probe| probe.dead == 1))
            .await?;
        for turn in 0..BEHIND {
            tells(&simulator, "traps", &format!("ledger.append notes {turn}")).await?;
        }
        fails_with(&simulator, "good", "done").await?;
        let passed = |status: &StatusView| {
            probe(status).is_some_and(|probe| {
                (probe.dead, probe.delivered, probe.waiting, probe.lag_seq) == (1, 1, BEHIND, 0)
            })
        };
        run.status_when(WITHIN, "the cursor to pass what waits", passed).await?;
        run.kill().await?;
        let mut run = Kubewitness::start("again", &options, scratch.path())?;
        run.status_when(WITHIN, "the same after a kill", passed).await?;
        // Beside the process that writes.
        journal_proof(&options.data, &[]).await?;
        let server = format!("http://{}", run.address());
        let drop = ["deadletters", "drop", "--plugin", "probe", "--reason", "mended", "--server", &server];
        let all: Vec<&str> = drop.into_iter().chain(["--all", "--yes=1"]).collect();
        let (_, told, errors) = command(&all).await?;
        ensure!(told == "1 dropped\n", "{told}{errors}");
        let notes = || std::fs::read_to_string(options.data.join("audit/notes.jsonl")).unwrap_or_default();
        let is_written = async || Ok((notes().lines().count() >= WRITTEN).then_some(()));
        until(WITHIN, "the first of what waited", is_written).await?;
        run.kill().await?;
        let mut run = Kubewitness::start("at last", &options, scratch.path())?;
        let done = |status: &StatusView| {
            probe(status).is_some_and(|probe| (probe.delivered, probe.waiting) == (BEHIND + 1, 0))
        };
        let status = run.status_when(WITHIN, "what waited", done).await?;
        let sum = probe(&status).map(|it| (it.observed, it.delivered + it.filtered + it.dead));
        ensure!(sum.is_some_and(|(observed, sum)| observed == sum), "{sum:?}");
        let expected: Vec<String> = (0..BEHIND).map(|turn| turn.to_string()).collect();
        ensure!(notes().lines().eq(&expected), "each once and in order: {}", notes());
        run.stop().await?;
        proofs(&options.data).await
    })
    .await;
}

#[tokio::test]
async fn a_dead_letter_is_chosen_tried_and_replayed_in_a_browser_without_script() {
    if !has_driver("letters::a_dead_letter_is_chosen").await {
        return;
    }
    in_scratch("letters-browser", async |scratch| {
        let (_simulator, options) = lab(scratch).await?;
        let mut run = Kubewitness::start("run", &options, scratch.path())?;
        let four = |status: &StatusView| status.plugins.iter().any(|p| p.name == "probe" && p.dead == 4);
        run.status_when(WITHIN, "four dead letters", four).await?;
        let portal = format!("http://{}", run.address());
        let list = async || command_json(&["deadletters", "list", "--server", &portal, "-o", "json"]).await;
        let seq = named(&four_letters(&portal).await?, "traps")["seq"].to_string();
        let browser = Browser::start(scratch.path()).await?;
        browser.without_scripts().await?;
        browser.open(&format!("{portal}/deadletters?plugin=probe")).await?;
        let press = async |button: &str, wanted: &str| {
            let choose = "const form = document.querySelector('form.replay'); const of = (it) => form.querySelector(it);";
            let fill = format!("of('[value=\"{seq}\"]').checked = true; of('[name=reason]').value = 'it is mended';");
            browser.follow(&format!("{choose} {fill} of('{button}').click()")).await?;
            let told = async || Ok(browser.text().await?.contains(wanted).then_some(()));
            until(WITHIN, wanted, told).await
        };
        press("[name=dry_run]", "1 would be replayed or dropped; nothing was changed").await?;
        ensure!(named(&list().await?, "traps")["attempts"] == 2, "nothing was changed");
        press("button.strong", "The replay of 1 state has begun").await?;
        let text = browser.text().await?;
        ensure!(text.contains("What was done") && text.contains("it is mended"), "{text}");
        all_need_their_number(&browser, &portal).await?;
        let again = async || Ok((named(&list().await?, "traps")["attempts"] == 4).then_some(()));
        until(WITHIN, "the letter that fails again", again).await?;
        ensure!(named(&list().await?, "loops")["attempts"] == 2, "no other one was taken");
        browser.close().await?;
        run.stop().await
    })
    .await;
}

#[tokio::test]
async fn an_open_page_of_dead_letters_follows_and_keeps_what_was_chosen_and_typed() {
    if !has_driver("letters::an_open_page_of_dead_letters_follows").await {
        return;
    }
    in_scratch("letters-live", async |scratch| {
        let (simulator, options) = lab(scratch).await?;
        let mut run = Kubewitness::start("run", &options, scratch.path())?;
        let four = |status: &StatusView| status.plugins.iter().any(|p| p.name == "probe" && p.dead == 4);
        run.status_when(WITHIN, "four dead letters", four).await?;
        let browser = Browser::start(scratch.path()).await?;
        browser.open(&format!("http://{}/deadletters", run.address())).await?;
        let form = "const form = document.querySelector('form.replay'); const of = (it) => form.querySelector(it);";
        let typed = "window.isSame = true; of('[name=seq]').click(); of('[name=reason]').value = 'mended'; \
            of('[name=reason]').dispatchEvent(new Event('input', {bubbles: true}));";
        browser.script(&format!("{form} {typed}")).await?;
        fails_with(&simulator, "late", "trap").await?;
        let shown = "return [of('caption').textContent, form.querySelectorAll('tbody tr').length, of('[name=on_page]').value]";
        let five = async || {
            let shown = browser.script(&format!("{form} {shown}")).await?;
            Ok((shown == json!(["5 dead letters", 5, "5"])).then_some(()))
        };
        until(WITHIN, "the fifth letter on the page", five).await?;
        let kept = "return [window.isSame, of('[name=seq]').checked, of('[name=reason]').value]";
        let kept = browser.script(&format!("{form} {kept}")).await?;
        ensure!(kept == json!([true, true, "mended"]), "{kept}");
        a_chosen_letter_goes(&browser, &format!("http://{}", run.address())).await?;
        browser.close().await?;
        run.stop().await
    })
    .await;
}

/// A colleague drops one of two chosen letters. The page says which, and its buttons take the other one; once nothing is
/// left of the choice, they take nothing.
async fn a_chosen_letter_goes(browser: &Browser, portal: &str) -> Result<()> {
    let form = "const form = document.querySelector('form.replay'); const of = (it) => form.querySelector(it); \
        const chosen = [...form.querySelectorAll('[name=seq]:checked')].map((box) => box.value);";
    let choose = "const other = form.querySelectorAll('[name=seq]')[1]; other.click(); \
        return [of('[name=seq]').value, other.value, of('[name=drop]').textContent]";
    let seqs = browser.script(&format!("{form} {choose}")).await?;
    ensure!(seqs[2] == "Drop 2 for good", "{seqs}");
    let drop = async |seq: &Value| {
        let seq = seq.as_str().context("a position")?;
        let drop = [
            "deadletters",
            "drop",
            "--server",
            portal,
            "--plugin",
            "probe",
            "--seq",
            seq,
            "--reason",
            "mine",
        ];
        let (code, _, stderr) = command(&drop).await?;
        ensure!(code == Some(0), "{stderr}");
        Ok(())
    };
    drop(&seqs[1]).await?;
    let shown =
        "return [document.getElementById('gone-letters').innerText, chosen, of('[name=drop]').textContent]";
    let gone = format!(
        "1 of the 2 dead letters that you chose is gone (position {})",
        seqs[1].as_str().unwrap_or("?")
    );
    let told = until(WITHIN, "the page to say what is gone", async || {
        let shown = browser.script(&format!("{form} {shown}")).await?;
        Ok(shown[0].as_str().is_some_and(|told| told.contains(&gone)).then_some(shown))
    });
    let told = told.await?;
    ensure!(told[1] == json!([seqs[0]]) && told[2] == "Drop 1 for good", "{told}");

    drop(&seqs[0]).await?;
    let left = format!("{form} return [chosen, of('[name=drop]').getAttribute('aria-disabled')]");
    let none = async || Ok((browser.script(&left).await? == json!([[], "true"])).then_some(()));
    until(WITHIN, "the choice to be gone", none).await?;
    let pressed = format!(
        "{form} of('[name=drop]').click(); return [document.activeElement.textContent, location.pathname]"
    );
    let pressed = browser.script(&pressed).await?;
    ensure!(pressed == json!(["OK", "/deadletters"]), "{pressed}");
    Ok(())
}

/// A click without a choice asks for the number of dead letters, and another number changes nothing.
async fn all_need_their_number(browser: &Browser, portal: &str) -> Result<()> {
    browser.open(&format!("{portal}/deadletters?plugin=probe&error=longer")).await?;
    let press =
        "const form = document.querySelector('form.replay'); const of = (it) => form.querySelector(it);";
    let drop = "of('[name=reason]').value = 'no use'; of('[name=drop]').click()";
    browser.follow(&format!("{press} {drop}")).await?;
    let text = browser.text().await?;
    ensure!(
        text.contains("You have chosen no dead letter. This takes 1 dead letter of the plugin probe"),
        "{text}"
    );
    let another = "of('[name=exactly]').removeAttribute('pattern'); of('[name=exactly]').value = '2';";
    browser.follow(&format!("{press} {another} of('[name=drop]').click()")).await?;
    let text = browser.text().await?;
    ensure!(text.contains("exactly 2 dead letters, and by now it means 1"), "{text}");
    Ok(())
}
