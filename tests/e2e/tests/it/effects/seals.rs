//! A ledger that the controller signs and closes, proved by the program and by the one that the documentation shows.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_core::ledger::sha256;
use kubewitness_core::views::StatusView;
use kubewitness_harness::{
    Kubewitness, RunOptions, Scratch, Simulator, command, command_json, in_scratch, project_root, skip, until,
};
use serde_json::Value;

use crate::support::{
    AUDIT, BackgroundLoad, SEAL_FILE, SOURCES, example_copy, plugin_manifest, signed_example_copy, simulator,
    trail_files, write,
};

const WITHIN: Duration = Duration::from_secs(120);
const PAGE: &str = "docs/concepts/ledger.md";

/// The program of the documentation, as a reader would copy it.
fn verifier(scratch: &Scratch) -> Result<PathBuf> {
    let page = std::fs::read_to_string(project_root().join(PAGE)).context(PAGE)?;
    let (_, rest) = page.split_once("```python\n").context("the page has a program")?;
    let (program, _) = rest.split_once("```").context("which ends")?;
    let path = scratch.path().join("verify_ledger.py");
    std::fs::write(&path, program)?;
    Ok(path)
}

/// A host that has closed some files of its ledger, and has stopped.
async fn sealed(scratch: &Scratch) -> Result<(Simulator, RunOptions)> {
    let config = signed_example_copy(scratch)?;
    let closed = |data: &Path| Ok(trail_files(data).is_ok_and(|files| files.len() > 2));
    written(scratch, config, "two closed files", closed).await
}

/// A host that has written such a ledger, and has stopped.
async fn written(
    scratch: &Scratch,
    config: PathBuf,
    what: &str,
    is_enough: impl Fn(&Path) -> Result<bool>,
) -> Result<(Simulator, RunOptions)> {
    let simulator = simulator(scratch).await?;
    write(&config, "audit.yaml", &plugin_manifest("audit", AUDIT))?;
    let options = simulator.run_options(scratch, config)?;
    let mut host = Kubewitness::start("run", &options, scratch.path())?;
    host.listed(SOURCES.len(), WITHIN).await?;
    let load = BackgroundLoad::start(&simulator, 7, 150.0);
    let enough = async || Ok(is_enough(&options.data)?.then_some(()));
    until(WITHIN, what, enough).await.with_context(|| host.process().say())?;
    load.stop().await?;
    host.caught_up(WITHIN).await?;
    host.stop().await?;
    Ok((simulator, options))
}

async fn proved(files: &[PathBuf], key: &Path, more: &[&str]) -> Result<(Option<i32>, Value)> {
    verified(files, &[&["--key", &key.display().to_string()], more].concat()).await
}

async fn verified(files: &[PathBuf], more: &[&str]) -> Result<(Option<i32>, Value)> {
    let names: Vec<_> = files.iter().map(|file| file.display().to_string()).collect();
    let mut args = vec!["audit", "verify", "-o", "json"];
    args.extend(names.iter().map(String::as_str).chain(more.iter().copied()));
    let (code, stdout, stderr) = command(&args).await?;
    Ok((code, serde_json::from_str(&stdout).with_context(|| format!("{stdout}{stderr}"))?))
}

fn proved_in_python(program: &Path, files: &[PathBuf], key: &Path) -> Result<(bool, String)> {
    let mut python = std::process::Command::new("python3");
    let out = python.arg(program).arg(key).args(files).output().context("python3")?;
    let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    Ok((out.status.success(), said))
}

/// The harm that somebody does to the lines of the first file.
type SealHarm = fn(&mut Vec<String>);

/// A host writes one ledger; then people prove it, and harm it in every way that a proof has to find.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_changed_cut_back_or_rewritten_in_a_signed_ledger_is_found() {
    if std::process::Command::new("python3").arg("--version").output().is_err() {
        return skip("seals::a_signed_ledger_is_proved", "there is no python3");
    }
    in_scratch("seals", async |scratch| {
        let (_simulator, options) = sealed(scratch).await?;
        let data = &options.data;
        two_programs_prove_it_and_find_what_was_changed(scratch, data).await.context("the two programs")?;
        what_was_cut_back_is_found_by_the_journal(data).await.context("what was cut back")?;
        a_host_does_not_sign_what_was_rewritten(scratch, &options).await.context("what was rewritten")
    })
    .await;
}

async fn two_programs_prove_it_and_find_what_was_changed(scratch: &Scratch, data: &Path) -> Result<()> {
    let (files, key, program) = (trail_files(data)?, data.join(SEAL_FILE), verifier(scratch)?);
    let (code, report) = proved(&files, &key, &[]).await?;
    ensure!(code == Some(0) && report["ok"] == true, "{report}");
    ensure!(report["open"] == 0, "what was written last was signed at the end: {report}");
    ensure!(report["seals"] == files.len() as u64 - 1, "{report}");
    let (holds, said) = proved_in_python(&program, &files, &key)?;
    let expected = format!("{} records, {} signed roots\n", report["lines"], report["signedRoots"]);
    ensure!(holds && said == expected, "{said} and {report}");

    // On a busy machine one of the first lines may be a signed root, which has no phase.
    let changed: SealHarm = |lines| {
        let with_phase = (3..lines.len()).find(|at| lines[*at].contains("\"phase\":\""));
        let at = with_phase.unwrap_or(3);
        lines[at] = lines[at].replace("\"phase\":\"", "\"phase\":\"X");
    };
    let removed: SealHarm = |lines| drop(lines.remove(3));
    let repeated: SealHarm = |lines| lines.insert(4, lines[3].clone());
    let swapped: SealHarm = |lines| lines.swap(3, 4);
    let cut: SealHarm = |lines| lines.truncate(lines.len() - 1);
    let forged: SealHarm = |lines| {
        let seal = lines.len() - 1;
        let (text, signature) = lines[seal].split_at(lines[seal].len() - 10);
        lines[seal] = format!("{text}{}", signature.replace(|digit: char| digit.is_ascii_hexdigit(), "0"));
    };
    let original = std::fs::read_to_string(&files[0])?;
    for (name, harm) in [
        ("changed", changed),
        ("removed", removed),
        ("repeated", repeated),
        ("swapped", swapped),
        ("cut", cut),
        ("forged", forged),
    ] {
        let mut lines: Vec<_> = original.split_inclusive('\n').map(str::to_owned).collect();
        harm(&mut lines);
        std::fs::write(&files[0], lines.concat())?;
        let (code, report) = proved(&files, &key, &[]).await?;
        ensure!(code == Some(3) && report["ok"] == false, "{name}: {report}");
        let (holds, said) = proved_in_python(&program, &files, &key)?;
        ensure!(!holds, "{name}: {said}");
    }
    std::fs::write(&files[0], original)?;
    both_find_what_a_forger_makes(&files, &key, &program).await?;
    both_read_records_alike(&files, &key, &program).await?;
    noted_roots_are_compared(&files, &key).await
}

/// Files that are rewritten while the host is down.
async fn a_host_does_not_sign_what_was_rewritten(scratch: &Scratch, options: &RunOptions) -> Result<()> {
    let files = trail_files(&options.data)?;
    let texts: Vec<_> = files.iter().map(std::fs::read_to_string).collect::<Result<_, _>>()?;
    let (open, receipts) =
        (options.data.join("audit/trail.jsonl"), options.data.join("audit/trail.receipts"));
    let kept = std::fs::read(&receipts)?;
    // One chain without a statement, as the host would take over a file from before.
    let records = texts.iter().flat_map(|text| text.lines()).filter(|line| line.starts_with("{\"n\":"));
    let forged: String = records.map(|line| format!("{line}\n")).collect();
    for file in files.iter().chain([&receipts]) {
        std::fs::remove_file(file)?;
    }
    std::fs::write(&open, &forged)?;
    let mut host = Kubewitness::start("rewritten", options, scratch.path())?;
    let is_told = |problem: &String| {
        problem.contains("spec.ledgers[0].path") && problem.contains("was rewritten or removed")
    };
    let told = |status: &StatusView| status.problems.iter().any(is_told);
    host.status_when(WITHIN, "the ledger to be refused", told).await?;
    ensure!(std::fs::read_to_string(&open)? == forged && !receipts.exists(), "nothing was written");
    for (file, text) in files.iter().zip(&texts) {
        std::fs::write(file, text)?;
    }
    std::fs::write(&receipts, kept)?;
    host.status_when(WITHIN, "the ledger that is back", |status| status.problems.is_empty()).await?;
    host.stop().await
}

/// A record behind the newest root: its text without the hash is hashed rightly, whatever it says.
fn record(said: &str, prev: &str) -> String {
    let hash = sha256(format!("{prev}{said}}}").as_bytes());
    let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{said},\"hash\":\"{hash}\"}}")
}

fn is_record(line: &str) -> bool {
    line.starts_with("{\"n\":")
}

/// One chain of these records, with correct numbers and hashes.
fn rechained<'l>(records: impl Iterator<Item = &'l str>) -> Result<String> {
    let (mut prev, mut text) = ("0".repeat(64), String::new());
    for (index, line) in records.enumerate() {
        let (_, said) = line.split_once(",\"id\":").context("an id")?;
        let (said, _) = said.rsplit_once(",\"hash\":").context("a hash")?;
        let line = record(&format!("{{\"n\":{},\"prev\":\"{prev}\",\"id\":{said}", index + 1), &prev);
        let (_, hash) = line.rsplit_once(",\"hash\":\"").context("a hash")?;
        prev = hash.trim_end_matches("\"}").to_owned();
        text.push_str(&format!("{line}\n"));
    }
    Ok(text)
}

/// Has both programs judge what somebody makes of a ledger without its key. Both programs give the same
/// answer, and the one in Python gives it without a traceback.
async fn both_find_what_a_forger_makes(files: &[PathBuf], key: &Path, program: &Path) -> Result<()> {
    let texts: Vec<_> = files.iter().map(std::fs::read_to_string).collect::<Result<_, _>>()?;
    let all = || texts.iter().flat_map(|text| text.lines());
    let records: Vec<_> = all().filter(|line| is_record(line)).collect();
    let earlier: Vec<_> =
        records.iter().map(|line| line.replace("\"observed_at\":\"2", "\"observed_at\":\"1")).collect();
    let rewritten = rechained(earlier.iter().map(String::as_str))?;
    let mut new = rewritten.lines();
    let same_roots = all().map(|line| if is_record(line) { new.next().unwrap_or(line) } else { line });
    let same_roots: String = same_roots.map(|line| format!("{line}\n")).collect();
    let id =
        texts[0].split_once("\"ledger\":\"").and_then(|(_, rest)| rest.split('"').next()).context("an id")?;
    let last = all().rfind(|line| is_record(line)).context("a record")?;
    let mut many = texts[texts.len() - 1].clone();
    many.push_str(&behind(last, 3000)?);
    let alone = |text: &str| {
        let mut texts = vec![String::new(); texts.len()];
        texts[0] = text.to_owned();
        (1, texts)
    };
    let with = |at: usize, text: String| {
        let mut texts = texts.clone();
        texts[at] = text;
        (texts.len(), texts)
    };
    let mut cases = vec![
        ("a chain that is rewritten without roots".to_owned(), alone(&rewritten)),
        ("a chain that is rewritten between its roots".to_owned(), alone(&same_roots)),
        ("a file twice".to_owned(), with(1, texts[0].clone())),
        ("a file of another installation".to_owned(), with(0, texts[0].replace(id, &"ab".repeat(16)))),
        ("many records behind the newest root".to_owned(), with(texts.len() - 1, many)),
    ];
    for step in 0..16 {
        let mut bytes = texts[0].clone().into_bytes();
        let at = bytes.len() / 16 * step + step;
        bytes[at] ^= 1 << (step % 7);
        // Bytes of other than ASCII are what is wrong with the line in both.
        let text = String::from_utf8(bytes).with_context(|| format!("the flipped bit of byte {at}"))?;
        cases.push((format!("a flipped bit of byte {at}"), with(0, text)));
    }
    for (name, (count, changed)) in cases {
        for (file, text) in files.iter().zip(&changed) {
            std::fs::write(file, text)?;
        }
        let (code, report) = proved(&files[..count], key, &[]).await?;
        ensure!(code == Some(3) && report["ok"] == false, "{name}: {report}");
        let (holds, said) = proved_in_python(program, &files[..count], key)?;
        ensure!(!holds && said.starts_with("does not hold: "), "{name}: {said}");
    }
    for (file, text) in files.iter().zip(&texts) {
        std::fs::write(file, text)?;
    }
    Ok(())
}

/// So many records that follow this one.
fn behind(last: &str, count: u64) -> Result<String> {
    let last: Value = serde_json::from_str(last)?;
    let (n, mut prev) =
        (last["n"].as_u64().context("n")?, last["hash"].as_str().context("a hash")?.to_owned());
    let mut text = String::new();
    for n in n + 1..=n + count {
        let line = record(&format!("{{\"n\":{n},\"prev\":\"{prev}\",\"id\":\"forged {n}\""), &prev);
        let (_, hash) = line.rsplit_once(",\"hash\":\"").context("a hash")?;
        prev = hash.trim_end_matches("\"}").to_owned();
        text.push_str(&format!("{line}\n"));
    }
    Ok(text)
}

async fn what_was_cut_back_is_found_by_the_journal(data: &Path) -> Result<()> {
    let (files, key, folder) = (trail_files(data)?, data.join(SEAL_FILE), data.display().to_string());
    let (code, report) = proved(&files, &key, &["--data", &folder]).await?;
    ensure!(code == Some(0) && report["compared"] == report["lines"], "{report}");
    ensure!(report["anchors"] == 0, "the journal's root was not noted elsewhere: {report}");
    let texts: Vec<_> = files.iter().map(std::fs::read).collect::<Result<_, _>>()?;
    // To its second root. The files behind it are gone.
    let text = std::fs::read_to_string(&files[0])?;
    let lines: Vec<_> = text.split_inclusive('\n').collect();
    let mut roots = (0..lines.len()).filter(|at| !is_record(lines[*at]));
    let root = roots.nth(1).context("a second root")?;
    std::fs::write(&files[0], lines[..=root].concat())?;
    for file in &files[1..] {
        std::fs::remove_file(file)?;
    }
    let (code, report) = proved(&files[..1], &key, &[]).await?;
    ensure!(code == Some(0) && report["ok"] == true, "its files alone can't show it: {report}");
    let (code, report) = proved(&files[..1], &key, &["--data", &folder]).await?;
    let what = report["what"].as_str().unwrap_or_default();
    ensure!(code == Some(3) && what.contains("the root that the journal keeps"), "{report}");
    for (file, text) in files.iter().zip(&texts) {
        std::fs::write(file, text)?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unsigned_ledger_that_lacks_its_end_or_a_source_is_found_by_what_the_journal_handed_over() {
    in_scratch("seals_unsigned", async |scratch| {
        let config = example_copy(scratch)?;
        let pods = |data: &Path| {
            let text = std::fs::read_to_string(data.join("audit/trail.jsonl")).unwrap_or_default();
            Ok(text.matches("\"source\":\"pods\"").count() > 100)
        };
        let (_simulator, options) = written(scratch, config, "records of Pods", pods).await?;
        let (files, folder) = (trail_files(&options.data)?, options.data.display().to_string());
        let (code, report) = verified(&files, &["--data", &folder]).await?;
        ensure!(code == Some(0) && report["compared"] == report["lines"], "{report}");
        let text = std::fs::read_to_string(&files[0])?;
        let count = text.lines().count();
        let jobs = || text.lines().filter(|line| line.contains("\"source\":\"jobs\""));
        for (name, rewritten) in [
            ("without its end", rechained(text.lines().take(count - 20))?),
            ("without its beginning", rechained(text.lines().skip(20))?),
            ("without Pods", rechained(jobs())?),
        ] {
            std::fs::write(&files[0], &rewritten)?;
            let (code, report) = verified(&files, &[]).await?;
            ensure!(code == Some(0) && report["ok"] == true, "{name}: its chain is whole: {report}");
            let (code, report) = verified(&files, &["--data", &folder]).await?;
            let what = report["what"].as_str().unwrap_or_default();
            ensure!(
                code == Some(3) && what.contains("states of the journal are not in the trail"),
                "{name}: {report}"
            );
        }
        Ok(())
    })
    .await;
}

/// Behind the newest root no signature decides: both programs must read each byte of a record alike.
async fn both_read_records_alike(files: &[PathBuf], key: &Path, program: &Path) -> Result<()> {
    let open = files.last().context("an open file")?;
    let original = std::fs::read_to_string(open)?;
    let texts: Vec<_> = files.iter().map(std::fs::read_to_string).collect::<Result<_, _>>()?;
    let mut lines = texts.iter().flat_map(|text| text.lines());
    let last = lines.rfind(|line| line.starts_with("{\"n\":")).context("a record")?;
    let last: Value = serde_json::from_str(last)?;
    let (n, prev) = (last["n"].as_u64().context("n")? + 1, last["hash"].as_str().context("a hash")?);
    let (own, twice) = (format!(r#""prev":"{prev}","id":"new""#), last["id"].as_str().context("an id")?);
    let whole = record(&format!(r#"{{"n":{n},{own}"#), prev);
    let cases = [
        (true, whole.clone()),
        (true, record(&format!(r#"{{"n": {n},{own},"x":[1e400,{{"n":1,"n":2}}]"#), prev)),
        (true, whole.replace("\"}", "\",\"signature\":\"c2ln\"}")),
        (false, whole.replace("\"}", "\",\"evil\":\"x\"}")),
        (false, format!("{whole}\r")),
        (false, format!("{whole} ")),
        (false, record(&format!(r#"{{"n":99,"n":{n},{own}"#), prev)),
        (false, record(&format!(r#"{{"n":{n},"prev":"x",{own}"#), prev)),
        (false, record(&format!(r#"{{"n":{n}.0,{own}"#), prev)),
        (false, record(&format!(r#"{{"n":"{n}",{own}"#), prev)),
        (false, record(&format!(r#"{{"n":{n},{own},"x":NaN"#), prev)),
        (false, record(&format!(r#"{{"n":{n},"prev":"{prev}","id":7"#), prev)),
        (false, record(&format!(r#"{{"n":{n},"prev":"{prev}","id":"{twice}""#), prev)),
        (false, record(&format!(r#"{{"n":{n},"prev":"{prev}""#), prev)),
        (false, String::new()),
        (true, record(&format!(r#"{{"n":{n},{own},"x":{}"#, "9".repeat(5000)), prev)),
        (true, record(&format!(r#"{{"n":{n},{own},"x":{}{}"#, "[".repeat(127), "]".repeat(127)), prev)),
        (false, record(&format!(r#"{{"n":{n},{own},"x":{}{}"#, "[".repeat(5000), "]".repeat(5000)), prev)),
        (true, record(&format!(r#"{{"n":{n},{own},"x":"\ud800""#), prev)),
        (false, record(&format!(r#"{{"n":{n},"prev":"{prev}","id":"\ud800""#), prev)),
        (false, record(&format!(r#"{{"n":{n},{own},"x":"{}""#, "x".repeat(256 * 1024)), prev)),
    ];
    for (expected, line) in cases {
        std::fs::write(open, format!("{original}{line}\n"))?;
        let (_, report) = proved(files, key, &[]).await?;
        let (holds, said) = proved_in_python(program, files, key)?;
        let line = &line[..line.len().min(300)];
        ensure!(report["ok"] == expected, "{line}: {report}");
        ensure!(holds == expected, "{line}: {said}");
    }
    std::fs::write(open, "")?;
    let (_, report) = proved(files, key, &[]).await?;
    let (holds, said) = proved_in_python(program, files, key)?;
    ensure!(report["ok"] == false && !holds, "an emptied file: {report} {said}");
    Ok(std::fs::write(open, original)?)
}

/// A root that is noted elsewhere shows that an end was cut, also where what is left holds.
async fn noted_roots_are_compared(files: &[PathBuf], key: &Path) -> Result<()> {
    let names: Vec<_> = files.iter().map(|file| file.display().to_string()).collect();
    let mut args = vec!["audit", "root", "-o", "json"];
    args.extend(names.iter().map(String::as_str));
    let noted = command_json(&args).await?;
    let anchor = noted["anchor"].as_str().context("a root")?;
    let (code, report) = proved(files, key, &["--anchor", anchor]).await?;
    ensure!(code == Some(0) && report["anchors"] == 1, "{report}");
    // Somebody cuts the file of that root back to its beginning, and removes the files behind it.
    let newest = anchor.split(':').nth(1).and_then(|file| file.parse().ok()).context("a file")?;
    let files = files.get(..newest).context("the files up to it")?;
    let cut = files.last().context("its file")?;
    let text = std::fs::read_to_string(cut)?;
    std::fs::write(cut, text.split_inclusive('\n').next().context("a head")?)?;
    let (code, report) = proved(files, key, &[]).await?;
    ensure!(code == Some(0), "without a noted root nobody can tell: {report}");
    let (code, report) = proved(files, key, &["--anchor", anchor]).await?;
    let what = report["what"].as_str().unwrap_or_default();
    ensure!(code == Some(3) && what.contains("its end was cut"), "{report}");
    Ok(std::fs::write(cut, text)?)
}

#[tokio::test]
async fn a_key_is_made_once_and_its_public_part_is_printed() {
    in_scratch("seals_key", async |scratch| {
        let key = scratch.path().join("new.key").display().to_string();
        let (code, public, errors) = command(&["audit", "key", "--new", &key]).await?;
        ensure!(code == Some(0) && public.starts_with("-----BEGIN PUBLIC KEY-----\n"), "{public}{errors}");
        ensure!(errors.starts_with("key "), "{errors}");
        let (code, again, errors) = command(&["audit", "key", &key]).await?;
        ensure!(code == Some(0) && again == public, "{again}{errors}");
        let (code, _, errors) = command(&["audit", "key", "--new", &key]).await?;
        ensure!(code == Some(1) && errors.contains("not there yet"), "{errors}");
        Ok(())
    })
    .await;
}
