//! Power cuts: what was written and not synced is lost, or torn, or there by luck.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use kubewitness_harness::{
    Dice, Platform, PlatformAddress, ProcessEnd, command_json, in_scratch, kills, seed, skip,
};

use crate::disk::preloaded;
use crate::lab::{ProcessLab, WITHIN};

const CUTS: u64 = 5;
/// The number of bytes that a disk writes as a whole.
const SECTOR: usize = 512;

/// Returns a file after a cut, where it was `written`, with `synced` of it on disk: each sector is the one or
/// the other, as the dice say, and so is the length.
fn cut(written: &[u8], synced: &[u8], dice: &mut Dice) -> Vec<u8> {
    let luck = dice.below(3);
    let mut is_lucky = || match luck {
        // Nothing that was not synced is there; or some of it; or most.
        0 => false,
        1 => dice.below(2) == 0,
        _ => dice.below(16) != 0,
    };
    let length = if is_lucky() { written.len() } else { synced.len() };
    let mut left = vec![0; length];
    for (number, sector) in left.chunks_mut(SECTOR).enumerate() {
        let (at, end) = (number * SECTOR, number * SECTOR + sector.len());
        // A place that the file never had on disk is empty there.
        let image = if is_lucky() { written } else { synced };
        let there = &image[at.min(image.len())..end.min(image.len())];
        sector[..there.len()].copy_from_slice(there);
    }
    left
}

/// A ledger that the disk has as it has the databases: by its name it is one of them.
const LEDGER: &str = "trail.db.jsonl";
const AUDIT: &str = r#"apiVersion: v1
kind: ConfigMap
metadata:
  name: audit
  labels:
    kubewitness.dev/plugin: "true"
data:
  plugin.yaml: |
    apiVersion: kubewitness.dev/v1alpha1
    kind: Plugin
    metadata: {name: audit}
    spec:
      module: {file: audit.wasm}
      subscribe: [{source: jobs, mode: every, start: beginning}]
      grants:
        ledger: [{name: trail, ledger: trail}]
"#;

/// The example's configuration, with an audit trail beside the database.
fn with_ledger(lab: &mut ProcessLab<'_>) -> Result<()> {
    let config = lab.scratch.folder("config")?;
    let example = lab.options.config.replace(config.clone()).context("the lab has a configuration")?;
    for file in ["host.yaml", "persistence.yaml"] {
        let text = std::fs::read_to_string(example.join(file)).with_context(|| file.to_owned())?;
        let ledger = format!("      ledgers:\n        - {{name: trail, path: {LEDGER}}}\n");
        let more = if file == "host.yaml" { ledger } else { String::new() };
        std::fs::write(config.join(file), format!("{}\n{more}", text.trim_end()))?;
    }
    lab.plugins += 1;
    Ok(std::fs::write(config.join("audit.yaml"), AUDIT)?)
}

/// The trail has each state of the jobs once, in an unbroken chain.
async fn ledger_proves(lab: &ProcessLab<'_>) -> Result<()> {
    let trail = lab.data().join(LEDGER);
    let report = command_json(&["audit", "verify", &trail.to_string_lossy(), "-o", "json"]).await?;
    ensure!(report["ok"] == true, "audit verify said {report}");
    let states = lab.platform().await?.history("jobs").await?.len() as u64;
    ensure!(report["lines"] == states, "of {states} states the trail has {report}");
    Ok(())
}

/// A data folder, and beside it what its disk would have.
struct PowerLoss {
    data: PathBuf,
    disk: PathBuf,
    /// Says in front of which sync it fails.
    flag: PathBuf,
}

impl PowerLoss {
    fn databases(folder: &Path) -> Result<Vec<PathBuf>> {
        let all = std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path()));
        let mut all = all.collect::<Result<Vec<_>>>()?;
        all.retain(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.contains(".db") && !name.ends_with(".lock")
        });
        all.sort();
        Ok(all)
    }

    fn beside(path: &Path, folder: &Path) -> PathBuf {
        folder.join(path.file_name().unwrap_or_default())
    }

    /// Everything that is there now is on disk: so it is when a process starts.
    fn all_is_synced(&self) -> Result<()> {
        for old in Self::databases(&self.disk)? {
            std::fs::remove_file(old)?;
        }
        for path in Self::databases(&self.data)? {
            std::fs::copy(&path, Self::beside(&path, &self.disk))?;
        }
        Ok(())
    }

    fn fails(&self, dice: &mut Dice) -> Result<()> {
        for path in Self::databases(&self.data)? {
            if path.to_string_lossy().ends_with("-shm") {
                std::fs::remove_file(&path)?;
                continue;
            }
            let synced = std::fs::read(Self::beside(&path, &self.disk)).unwrap_or_default();
            let written = std::fs::read(&path)?;
            std::fs::write(&path, cut(&written, &synced, dice))?;
        }
        Ok(())
    }
}

/// The last position that the plugin's table has.
async fn delivered(data: &Path) -> Result<i64> {
    let mut platform = Platform::open(&data.join("platform.db")).await?;
    let last = platform.history("jobs").await?.last().map_or(0, |row| row.seq);
    platform.close().await?;
    Ok(last)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_33_what_was_acknowledged_is_there_after_power_cuts_that_take_what_was_not_synced() {
    in_scratch("power", async |scratch| {
        let Some(library) = preloaded(scratch.path(), "synced_only") else {
            skip("row_33", "there is no C compiler");
            return Ok(());
        };
        let (data, disk) = (scratch.folder("data")?, scratch.folder("disk")?);
        let power = PowerLoss { data, disk, flag: scratch.path().join("cut") };
        let mut lab = ProcessLab::new(scratch, power.data.clone()).await?;
        with_ledger(&mut lab)?;
        let text = |path: &Path| path.to_string_lossy().into_owned();
        lab.options.env = vec![
            ("LD_PRELOAD".to_owned(), text(&library)),
            ("SYNCED_FOLDER".to_owned(), text(&power.data)),
            ("SYNCED_COPY".to_owned(), text(&power.disk)),
            ("SYNCED_CUT".to_owned(), text(&power.flag)),
        ];
        cuts(&mut lab, &power).await
    })
    .await;
}

async fn cuts(lab: &mut ProcessLab<'_>, power: &PowerLoss) -> Result<()> {
    let mut dice = Dice::new(seed());
    lab.make(3).await?;
    let mut first = lab.start("first")?;
    first.answers().await?;
    lab.levels(&mut first).await?;
    first.stop().await?;
    let platform = PlatformAddress::File(power.data.join("platform.db"));
    let before = platform.note_effects().await?;
    let mut lost = 0;
    for round in 0..kills(CUTS) {
        power.all_is_synced()?;
        let mut run = lab.start(&format!("run-{round:02}"))?;
        lab.make(1).await?;
        platform.grows_by(&mut run, WITHIN).await?;
        lab.make(15 + u32::try_from(dice.below(40))?).await?;
        // Whoever reads the tables while it runs sees what it said was done.
        let acknowledged = delivered(&power.data).await?;
        std::fs::write(&power.flag, dice.below(8).to_string())?;
        lab.make(10).await?;
        let ended = run.process().wait(WITHIN).await?;
        ensure!(ended == ProcessEnd::Signal, "it ended with {ended:?}: {}", run.process().say());
        std::fs::remove_file(&power.flag)?;
        let written = images(&power.data)?;
        power.fails(&mut dice)?;
        lost += usize::from(images(&power.data)? != written);
        let (code, said) = lab.verify().await?;
        ensure!(code == Some(0), "after cut {round}: {said}");
        let folder = power.data.to_string_lossy().into_owned();
        let stats = command_json(&["journal", "stats", "--data", &folder, "-o", "json"]).await?;
        let kept = stats["newest_seq"].as_i64().context("the newest position")?;
        let rows = delivered(&power.data).await?;
        ensure!(rows >= acknowledged, "cut {round} took rows of the plugin: {acknowledged}, then {rows}");
        ensure!(kept >= rows, "cut {round} took the journal back to {kept}, and {rows} was delivered");
    }
    ensure!(lost > 0, "no cut took anything");
    let mut last = lab.start("last")?;
    last.answers().await?;
    lab.levels(&mut last).await?;
    last.stop().await?;
    lab.platform().await?.one_effect_each(before).await?;
    ledger_proves(lab).await?;
    lab.proves().await
}

fn images(folder: &Path) -> Result<Vec<Vec<u8>>> {
    let paths = PowerLoss::databases(folder)?;
    let paths = paths.iter().filter(|path| !path.to_string_lossy().ends_with("-shm"));
    paths.map(|path| Ok(std::fs::read(path)?)).collect()
}
