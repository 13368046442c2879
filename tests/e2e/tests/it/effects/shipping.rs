//! Closed files of a ledger on their way into a bucket: with a server that is away, refuses, and stores other bytes,
//! and with a controller that is killed.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_core::views::{LedgerView, StatusView};
use kubewitness_harness::{Kubewitness, RunOptions, Scratch, Simulator, command, in_scratch, until};
use serde_json::Value;

use crate::effects::bucket::{ACCESS, BUCKET, FakeBucket, SECRET};
use crate::support::{
    AUDIT, BackgroundLoad, SEAL_FILE, SOURCES, plugin_manifest, signed_example_copy, simulator, trail_files,
    write,
};

const WITHIN: Duration = Duration::from_secs(180);
const PREFIX: &str = "here/";
/// How long a shipped file is kept: the shortest time that the settings take.
const KEEP_MS: u64 = 60_000;

struct ShippingWorld {
    simulator: Simulator,
    options: RunOptions,
    bucket: FakeBucket,
    secret: PathBuf,
}

impl ShippingWorld {
    async fn new(scratch: &Scratch) -> Result<Self> {
        let simulator = simulator(scratch).await?;
        let bucket = FakeBucket::start(scratch).await?;
        let config = signed_example_copy(scratch)?;
        write(&config, "audit.yaml", &plugin_manifest("audit", AUDIT))?;
        write(scratch.path(), "access", ACCESS)?;
        write(scratch.path(), "secret", SECRET)?;
        let secret = scratch.path().join("secret");
        let ship = format!(
            "ship: {{endpoint: {:?}, allowPlain: true, bucket: {BUCKET}, prefix: {PREFIX}, keep: 1m, accessKeyFrom: {{file: \
             {:?}}}, secretKeyFrom: {{file: {secret:?}}}}}, signing: ",
            bucket.endpoint(),
            scratch.path().join("access"),
        );
        let host = std::fs::read_to_string(config.join("host.yaml")).context("host.yaml")?;
        write(&config, "host.yaml", &host.replacen("signing: ", &ship, 1))?;
        let options = simulator.run_options(scratch, config)?;
        Ok(Self { simulator, options, bucket, secret })
    }

    async fn run(&self, name: &str, scratch: &Scratch) -> Result<Kubewitness> {
        let mut host = Kubewitness::start(name, &self.options, scratch.path())?;
        host.listed(SOURCES.len(), WITHIN).await?;
        Ok(host)
    }

    /// The names of closed files, and their bytes.
    fn closed(&self) -> Result<BTreeMap<String, Vec<u8>>> {
        by_name(trail_files(&self.options.data)?.into_iter().filter(|file| !file.ends_with("trail.jsonl")))
    }

    /// Makes the notes of shipped files older than the time for which a file is kept.
    fn shipped_long_ago(&self) -> Result<()> {
        for entry in std::fs::read_dir(self.options.data.join("audit"))? {
            let path = entry?.path();
            if path.extension().is_some_and(|ending| ending == "shipped") {
                let mut note: Value = serde_json::from_slice(&std::fs::read(&path)?)?;
                let shipped_ms = note["shippedMs"].as_u64().context("when it was shipped")?;
                note["shippedMs"] = (shipped_ms - 2 * KEEP_MS).into();
                std::fs::write(&path, note.to_string())?;
            }
        }
        Ok(())
    }

    fn shipped(&self) -> Result<BTreeMap<String, Vec<u8>>> {
        by_name(self.bucket.files(PREFIX)?.into_iter())
    }
}

fn by_name(files: impl Iterator<Item = PathBuf>) -> Result<BTreeMap<String, Vec<u8>>> {
    let named = files.filter_map(|file| {
        let name = file.file_name()?.to_string_lossy().into_owned();
        match std::fs::read(&file) {
            // It was kept long enough, and has left the disk since it was listed.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            read => Some(read.map(|bytes| (name, bytes)).map_err(anyhow::Error::from)),
        }
    });
    named.collect()
}

async fn when(host: &mut Kubewitness, what: &str, holds: impl Fn(&LedgerView) -> bool) -> Result<StatusView> {
    host.status_when(WITHIN, what, |status| status.ledgers.first().is_some_and(&holds)).await
}

/// Returns the finding of `doctor` about the ledger.
async fn diagnosis(host: &Kubewitness) -> Result<String> {
    let (_, stdout, stderr) =
        command(&["doctor", "-o", "json", "--server", &format!("http://{}", host.address())]).await?;
    let found: Value = serde_json::from_str(&stdout).with_context(|| format!("{stdout}{stderr}"))?;
    let checks = found.as_array().or_else(|| found["checks"].as_array()).context("checks")?;
    let ledger = checks.iter().find(|check| check["code"] == "KW-D015").context("a check of the ledger")?;
    Ok(ledger.to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_files_get_into_the_bucket_whatever_its_server_does_and_leave_the_disk_afterwards() {
    in_scratch("shipping", async |scratch| {
        let mut world = ShippingWorld::new(scratch).await?;
        let mut host = world.run("run", scratch).await?;
        let load = BackgroundLoad::start(&world.simulator, 7, 100.0);
        when(&mut host, "two shipped files", |ledger| ledger.shipped >= 2 && ledger.condition.is_none())
            .await?;

        world.bucket.leave();
        // An upload that it left in the middle is told in other words.
        let is_away = |told: &String| told.contains("can't be reached");
        let held_up =
            |ledger: &LedgerView| ledger.condition.as_ref().is_some_and(is_away) && ledger.waiting > 0;
        when(&mut host, "a bucket that is away", held_up).await?;
        ensure!(diagnosis(&host).await?.contains("can't be reached"));
        let (_, metrics) = host.get("/metrics").await?;
        ensure!(metrics.contains("kubewitness_ledger_shipping_up{ledger=\"trail\"} 0"), "{metrics}");
        world.bucket.come_back().await?;
        when(&mut host, "the bucket back", |ledger| ledger.condition.is_none() && ledger.shipped > 2).await?;

        std::fs::write(&world.secret, "another")?;
        let refused =
            |ledger: &LedgerView| ledger.condition.as_ref().is_some_and(|told| told.contains("403"));
        when(&mut host, "wrong credentials", refused).await?;
        std::fs::write(&world.secret, SECRET)?;
        load.stop().await?;
        host.caught_up(WITHIN).await?;
        let done = |ledger: &LedgerView| ledger.condition.is_none() && ledger.waiting == 0;
        when(&mut host, "everything shipped", done).await?;
        // One that is closed by its age meanwhile is on its way.
        let are_there = async || {
            let (closed, shipped) = (world.closed()?, world.shipped()?);
            let other = closed.iter().find(|(name, bytes)| shipped.get(*name).is_some_and(|it| it != *bytes));
            ensure!(other.is_none(), "{} is another in the bucket", other.map_or("", |(name, _)| name));
            Ok(closed.keys().all(|name| shipped.contains_key(name)).then_some(()))
        };
        until(WITHIN, "each closed file in the bucket", are_there).await?;
        host.stop().await?;
        world.shipped_long_ago()?;
        let mut host = world.run("later", scratch).await?;
        when(&mut host, "files that were kept long enough", |ledger| ledger.removed >= 2).await?;
        until(WITHIN, "each file that was closed later in the bucket", are_there).await?;
        host.stop().await?;
        fetched_back_files_are_proved(scratch, &world).await
    })
    .await;
}

/// All of them from the bucket, with the open one from the host.
async fn fetched_back_files_are_proved(scratch: &Scratch, world: &ShippingWorld) -> Result<()> {
    let fetched = scratch.folder("fetched")?;
    for (name, bytes) in world.shipped()? {
        std::fs::write(fetched.join(name), bytes)?;
    }
    let open = world.options.data.join("audit").join("trail.jsonl");
    std::fs::copy(open, fetched.join("trail.jsonl"))?;
    let mut files: Vec<_> =
        std::fs::read_dir(&fetched)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    files.sort();
    let files: Vec<_> = files.iter().map(|file| file.display().to_string()).collect();
    let key = world.options.data.join(SEAL_FILE).display().to_string();
    let mut args = vec!["audit", "verify", "-o", "json", "--key", &key];
    args.extend(files.iter().map(String::as_str));
    let (code, stdout, stderr) = command(&args).await?;
    let report: Value = serde_json::from_str(&stdout).with_context(|| format!("{stdout}{stderr}"))?;
    ensure!(code == Some(0) && report["seals"] == files.len() as u64 - 1, "{report}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_between_upload_and_note_ships_nothing_twice_and_other_bytes_are_never_overwritten() {
    in_scratch("shipping_kill", async |scratch| {
        let world = ShippingWorld::new(scratch).await?;
        world.bucket.hold(true);
        let mut host = world.run("run", scratch).await?;
        let load = BackgroundLoad::start(&world.simulator, 7, 100.0);
        let put = until(WITHIN, "an upload", async || Ok(world.bucket.all_puts().first().cloned())).await?;
        host.kill().await?;
        load.stop().await?;
        world.bucket.hold(false);
        // What is put from now on is not what was sent.
        world.bucket.alter(true);
        let first = put.rsplit('/').next().context("a name")?.to_owned();
        let note = world.options.data.join("audit").join(first.replace(".jsonl", ".shipped"));
        ensure!(!note.exists(), "it was killed before its note");

        let mut host = world.run("again", scratch).await?;
        until(WITHIN, "the note", async || Ok(note.exists().then_some(())))
            .await
            .with_context(|| host.process().say())?;
        ensure!(world.bucket.puts(&first) == 1, "it was found there: {:?}", world.bucket.all_puts());
        let load = BackgroundLoad::start(&world.simulator, 8, 100.0);
        let other =
            |ledger: &LedgerView| ledger.condition.as_ref().is_some_and(|told| told.contains("other bytes"));
        let status = when(&mut host, "a server that stores other bytes", other).await?;
        load.stop().await?;
        let told = status.ledgers[0].condition.clone().unwrap_or_default();
        let name =
            told.split('`').nth(1).and_then(|key| key.strip_prefix(PREFIX)).context("a name")?.to_owned();
        ensure!(world.closed()?.contains_key(&name), "it stays here: {told}");
        world.bucket.alter(false);
        when(&mut host, "another turn", |ledger| ledger.failed > status.ledgers[0].failed).await?;
        ensure!(world.bucket.puts(&name) == 1, "it was overwritten: {:?}", world.bucket.all_puts());
        host.stop().await?;
        Ok(())
    })
    .await;
}
