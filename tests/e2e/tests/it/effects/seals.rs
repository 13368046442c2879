//! A ledger that the host signs and closes, proved by the program and by the one that the documentation shows.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_core::ledger::sha256;
use kubewitness_core::views::StatusView;
use kubewitness_harness::{
    Kubewitness, RunOptions, Scratch, Simulator, command, command_json, in_scratch, project_root,
    skip_where_there_is_no_tool, until,
};
use serde_json::Value;

use crate::support::{
    AUDIT, Load, SEAL_FILE, SOURCES, plugin_manifest, signed_example_copy, simulator, trail_files, write,
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
    let simulator = simulator(scratch).await?;
    let config = signed_example_copy(scratch)?;
    write(&config, "audit.yaml", &plugin_manifest("audit", AUDIT))?;
    let options = RunOptions {
        kubeconfig: simulator.kubeconfig().to_path_buf(),
        config: Some(config),
        data: scratch.folder("data")?,
        ..RunOptions::default()
    };
    let mut host = Kubewitness::start("run", &options, scratch.path())?;
    host.listed(SOURCES.len(), WITHIN).await?;
    let load = Load::start(&simulator, 7, 150.0);
    let closed = async || Ok((trail_files(&options.data)?.len() > 2).then_some(()));
    until(WITHIN, "two closed files", closed).await.with_context(|| host.process().say())?;
    load.stop().await?;
    host.caught_up(WITHIN).await?;
    host.stop().await?;
    Ok((simulator, options))
}

async fn proved(files: &[PathBuf], key: &Path, more: &[&str]) -> Result<(Option<i32>, Value)> {
    let key = key.display().to_string();
    let names: Vec<_> = files.iter().map(|file| file.display().to_string()).collect();
    let mut args = vec!["audit", "verify", "-o", "json", "--key", &key];
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

/// What somebody does to the lines of the first file, and whether it is to be found.
type Harm = fn(&mut Vec<String>);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signed_ledger_is_proved_by_two_programs_and_both_find_what_was_changed() {
    if std::process::Command::new("python3").arg("--version").output().is_err() {
        return skip_where_there_is_no_tool("seals::a_signed_ledger_is_proved", "there is no python3");
    }
    in_scratch("seals", async |scratch| {
        let data = sealed(scratch).await?.1.data;
        let (files, key, program) = (trail_files(&data)?, data.join(SEAL_FILE), verifier(scratch)?);
        let (code, report) = proved(&files, &key, &[]).await?;
        ensure!(code == Some(0) && report["ok"] == true, "{report}");
        ensure!(report["open"] == 0, "what was written last was signed at the end: {report}");
        ensure!(report["seals"] == files.len() as u64 - 1, "{report}");
        let (holds, said) = proved_in_python(&program, &files, &key)?;
        let expected = format!("{} records, {} signed roots\n", report["lines"], report["signedRoots"]);
        ensure!(holds && said == expected, "{said} and {report}");

        let changed: Harm = |lines| lines[3] = lines[3].replace("\"phase\":\"", "\"phase\":\"X");
        let removed: Harm = |lines| drop(lines.remove(3));
        let repeated: Harm = |lines| lines.insert(4, lines[3].clone());
        let swapped: Harm = |lines| lines.swap(3, 4);
        let cut: Harm = |lines| lines.truncate(lines.len() - 1);
        let forged: Harm = |lines| {
            let seal = lines.len() - 1;
            let (text, signature) = lines[seal].split_at(lines[seal].len() - 10);
            lines[seal] =
                format!("{text}{}", signature.replace(|digit: char| digit.is_ascii_hexdigit(), "0"));
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
        both_read_records_alike(&files, &key, &program).await?;
        noted_roots_are_compared(&files, &key).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_does_not_sign_a_ledger_that_was_rewritten_while_it_was_down() {
    in_scratch("seals_forged", async |scratch| {
        let (_simulator, options) = sealed(scratch).await?;
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
        let mut host = Kubewitness::start("run", &options, scratch.path())?;
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
    })
    .await;
}

/// A record behind the newest root: its text without the hash is hashed rightly, whatever it says.
fn record(said: &str, prev: &str) -> String {
    let hash = sha256(format!("{prev}{said}}}").as_bytes());
    let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{said},\"hash\":\"{hash}\"}}")
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
    Ok(())
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
