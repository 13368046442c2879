//! A person's name in an audit trail: kept beside it, shown, erased while the controller runs, and given anew.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_core::views::StatusView;
use kubewitness_harness::{
    Kubewitness, RunOptions, Scratch, Simulator, command, command_json, in_scratch, until,
};

use crate::support::{
    AUDIT, SOURCES, components, job, plugin_manifest, proofs, signed_example_copy, simulator, trail_files,
    write,
};

const WITHIN: Duration = Duration::from_secs(120);
const ADA: &str = "ada@example.com";

async fn submit(simulator: &Simulator, name: &str) -> Result<()> {
    let mut job = job(name);
    job["metadata"]["annotations"]["kubewitness.dev/submitter"] = ADA.into();
    let path = "/apis/batch/v1/namespaces/default/jobs";
    let (status, answer) = simulator.request(reqwest::Method::POST, path, Some(&job)).await?;
    ensure!(status == 201, "creating {name} answered {status}: {answer}");
    Ok(())
}

/// Names of objects of which records name her.
async fn hers(data: &Path) -> Result<Vec<String>> {
    let files: Vec<_> = trail_files(data)?.iter().map(|file| file.display().to_string()).collect();
    let mut args = vec!["audit", "show", "-o", "json", "--person", ADA];
    args.extend(files.iter().map(String::as_str));
    let found = command_json(&args).await?;
    let records = found.as_array().context("records")?.iter();
    Ok(records.filter_map(|record| record["name"].as_str().map(str::to_owned)).collect())
}

/// A controller whose audit trail has the patches of changes. `more` ends the plugin's manifest.
async fn with_patches(scratch: &Scratch, more: &str) -> Result<(Simulator, RunOptions, Kubewitness)> {
    let (simulator, config) = (simulator(scratch).await?, signed_example_copy(scratch)?);
    let spec = AUDIT.replace("audit.wasm", "audit-0.wasm");
    let audit = plugin_manifest("audit", &format!("{spec}\nconfig: {{change: patch}}{more}"));
    write(&config, "audit.yaml", &audit)?;
    // The other plugin of the example is not among the components here.
    std::fs::remove_file(config.join("persistence.yaml"))?;
    let options = RunOptions {
        plugins: Some(components(scratch, "audit")?),
        // A name may stand by chance in the code of another test's plugin.
        compiles_anew: true,
        ..simulator.run_options(scratch, config)?
    };
    let mut host = Kubewitness::start("run", &options, scratch.path())?;
    host.listed(SOURCES.len(), WITHIN).await?;
    Ok((simulator, options, host))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_is_erased_beside_a_running_host_is_gone_and_the_trail_holds() {
    in_scratch("persons", async |scratch| {
        let (simulator, options, mut host) = with_patches(scratch, "").await?;
        let data = options.data.clone();
        submit(&simulator, "first").await?;
        let named = async || Ok((!hers(&data).await.unwrap_or_default().is_empty()).then_some(()));
        until(WITHIN, "a record that names her", named).await.with_context(|| host.process().say())?;
        for file in trail_files(&data)? {
            ensure!(!std::fs::read_to_string(&file)?.contains(ADA), "her name is in {}", file.display());
        }
        let names = data.join("audit").join("trail.persons");
        ensure!(std::fs::read_to_string(&names)?.contains(ADA), "her name is beside the trail");

        let open = data.join("audit").join("trail.jsonl").display().to_string();
        let asked = ["audit", "erase", "--person", ADA, "-o", "json", &open];
        let told = command_json(&asked).await?;
        ensure!(
            told["erased"] == false && told["names"] == 1 && told["records"].as_u64() > Some(0),
            "{told}"
        );
        ensure!(std::fs::read_to_string(&names)?.contains(ADA), "a dry run changes nothing");
        let told = command_json(&[&asked[..], &["--yes"]].concat()).await?;
        ensure!(told["erased"] == true && told["inClear"] == 0, "{told}");
        ensure!(!std::fs::read_to_string(&names)?.contains(ADA), "her name is gone");
        let (code, text, errors) = command(&["audit", "show", "--name", "first", &open]).await?;
        ensure!(code == Some(0) && text.contains("erased"), "{text}{errors}");

        // For a second the host takes a name that it has just written for one that is there.
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        submit(&simulator, "second").await?;
        let again = async || Ok(hers(&data).await?.contains(&"second".to_owned()).then_some(()));
        until(WITHIN, "a record that names her again", again).await.with_context(|| host.process().say())?;
        let found = hers(&data).await?;
        ensure!(!found.contains(&"first".to_owned()), "the old records stay erased: {found:?}");
        host.caught_up(WITHIN).await?;
        host.stop().await?;
        proofs(&data).await
    })
    .await;
}

/// All files below a folder that have her name.
fn files_with_her_name(folder: &Path, found: &mut Vec<String>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            files_with_her_name(&path, found)?;
        } else if path.is_file() {
            let bytes = std::fs::read(&path)?;
            if bytes.windows(ADA.len()).any(|part| part == ADA.as_bytes()) {
                found.push(path.display().to_string());
            }
        }
    }
    Ok(())
}

/// Jobs whose records are longer than a file may be.
const MANY: usize = 60;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_lies_in_one_file_and_in_none_once_it_is_erased_also_beside_a_version_in_the_shadow() {
    in_scratch("persons_files", async |scratch| {
        let shadow = "\nshadow: {module: {file: audit-1.wasm}}";
        let (simulator, options, mut host) = with_patches(scratch, shadow).await?;
        let compared = |many: usize| {
            move |status: &StatusView| {
                let shadow = status.plugins.first().and_then(|plugin| plugin.shadow.as_ref());
                shadow.is_some_and(|shadow| shadow.states >= many as u64 && shadow.different == 0)
            }
        };
        for number in 0..MANY {
            submit(&simulator, &format!("job-{number:02}")).await?;
        }
        host.status_when(WITHIN, "both versions to have all jobs", compared(MANY)).await?;
        host.caught_up(WITHIN).await?;
        // One batch may have had them all: it is the next one that finds the file long enough.
        submit(&simulator, "one-more").await?;
        host.status_when(WITHIN, "both versions to have the last job", compared(MANY + 1)).await?;
        host.caught_up(WITHIN).await?;
        let data = options.data.clone();
        ensure!(trail_files(&data)?.len() > 1, "no file was closed");
        // The journal keeps objects as they were: retention takes them.
        let elsewhere = || -> Result<Vec<String>> {
            let mut found = Vec::new();
            files_with_her_name(&data, &mut found)?;
            found.retain(|file| !file.contains("journal.db"));
            Ok(found)
        };
        let names = data.join("audit").join("trail.persons").display().to_string();
        ensure!(elsewhere()? == [names], "her name is in {:?}", elsewhere()?);
        let open = data.join("audit").join("trail.jsonl").display().to_string();
        command_json(&["audit", "erase", "--person", ADA, "-o", "json", "--yes", &open]).await?;
        ensure!(elsewhere()?.is_empty(), "her name is still in {:?}", elsewhere()?);
        host.kill().await?;
        let mut host = Kubewitness::start("again", &options, scratch.path())?;
        host.caught_up(WITHIN).await?;
        host.stop().await?;
        ensure!(elsewhere()?.is_empty(), "her name is again in {:?}", elsewhere()?);
        proofs(&data).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_names_its_manager_and_the_beginning_of_a_deletion_names_nobody() {
    in_scratch("managers", async |scratch| {
        let (simulator, options, mut host) = with_patches(scratch, "").await?;
        let mut held = job("held");
        held["metadata"]["finalizers"] = serde_json::json!(["example.com/hold"]);
        let jobs = "/apis/batch/v1/namespaces/default/jobs";
        let made = format!("{jobs}?fieldManager=ci");
        let (status, answer) = simulator.request(reqwest::Method::POST, &made, Some(&held)).await?;
        ensure!(status == 201, "{status}: {answer}");
        let (status, answer) =
            simulator.request(reqwest::Method::DELETE, &format!("{jobs}/held"), None).await?;
        ensure!(status == 200, "{status}: {answer}");
        let shown = async |more: &[&str]| {
            let files: Vec<_> =
                trail_files(&options.data)?.iter().map(|file| file.display().to_string()).collect();
            let files = files.iter().map(String::as_str);
            let args: Vec<_> =
                ["audit", "show", "-o", "json", "--name", "held"].into_iter().chain(files).collect();
            let found = command_json(&[&args[..], more].concat()).await?;
            Ok::<_, anyhow::Error>(found.as_array().context("records")?.clone())
        };
        let both =
            async || Ok(Some(shown(&[]).await.unwrap_or_default()).filter(|records| records.len() > 1));
        let records = until(WITHIN, "both records", both).await.with_context(|| host.process().say())?;
        ensure!(records[0]["manager"] == "ci" && records[0]["operation"] == "Update", "{records:?}");
        let deletion = &records[1];
        ensure!(deletion["patch"]["metadata"]["deletionTimestamp"].is_string(), "{deletion}");
        ensure!(deletion.get("manager").is_none() && deletion.get("operation").is_none(), "{deletion}");
        ensure!(shown(&["--manager", "ci"]).await?.len() == 1);
        host.caught_up(WITHIN).await?;
        host.stop().await?;
        proofs(&options.data).await
    })
    .await;
}

#[tokio::test]
async fn an_erasure_without_names_beside_the_files_says_where_it_belongs() {
    in_scratch("persons_none", async |scratch| {
        let file = scratch.path().join("trail.jsonl");
        std::fs::write(&file, "")?;
        let (code, _, errors) =
            command(&["audit", "erase", "--person", ADA, &file.display().to_string()]).await?;
        ensure!(code == Some(1) && errors.contains("where the controller keeps the ledger"), "{errors}");
        Ok(())
    })
    .await;
}
