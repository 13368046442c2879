//! A server, journals, and tasks that carry and read.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use futures::FutureExt;
use kubewitness_chance::Dice;
use kubewitness_core::clock::SystemClock;
use kubewitness_core::config::{FromSpec, StreamSpec};
use kubewitness_core::ports::{AppendBatch, Backlog, DocumentReader, StateWitness, WitnessedState};
use kubewitness_core::stream::StateFeed;
use kubewitness_core::{Change, ObjectRef, StateId, Version};
use kubewitness_harness::{MessageCluster, MessageServer, PASSWORD, until};
use kubewitness_journal::{Journal, JournalOptions};
use kubewitness_stream::{CarrierHandle, SecretReader, StreamCarrier, StreamReader, StreamServer, new_name};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub const WITHIN: Duration = Duration::from_secs(60);

pub struct StreamWorld<S = MessageServer> {
    folder: tempfile::TempDir,
    pub server: S,
    pub spec: StreamSpec,
    pub address: String,
    /// The key that carriers and readers share from now on.
    pub key: Option<String>,
    told: Arc<Mutex<Option<String>>>,
}

pub struct StreamTask {
    stop: CancellationToken,
    task: JoinHandle<Result<()>>,
}

impl StreamTask {
    pub async fn stop(self) -> Result<()> {
        self.stop.cancel();
        self.task.await.context("it panicked")?
    }

    /// Ends the task without a message to the server.
    pub async fn kill(self) {
        self.task.abort();
        self.task.await.ok();
    }
}

pub struct RunningCarrier {
    pub handle: CarrierHandle,
    task: StreamTask,
}

impl RunningCarrier {
    pub async fn stop(self) -> Result<()> {
        self.task.stop().await
    }

    pub async fn kill(self) {
        self.task.kill().await;
    }
}

pub fn from(partitions: &[u32]) -> FromSpec {
    FromSpec { stream: "platform".into(), partitions: partitions.to_vec(), take_over: None }
}

pub async fn connect(server: &MessageServer) -> Result<async_nats::Client> {
    let options = async_nats::ConnectOptions::new().user_and_password("kubewitness".into(), PASSWORD.into());
    Ok(options.connect(server.address().to_string()).await?)
}

impl StreamWorld {
    /// Returns `None` if there is no message server.
    pub fn new(test: &str) -> Result<Option<Self>> {
        let Some(server) = MessageServer::start(test)? else { return Ok(None) };
        let address = server.url(server.address());
        Self::with(server, address).map(Some)
    }
}

impl StreamWorld<MessageCluster> {
    /// The same with three servers, each of which stores the whole stream.
    pub fn of_cluster(test: &str) -> Result<Option<Self>> {
        let Some(server) = MessageCluster::start(test)? else { return Ok(None) };
        let address = server.url();
        let mut world = Self::with(server, address)?;
        world.spec.replicas = MessageCluster::SERVERS as u32;
        Ok(Some(world))
    }
}

impl<S> StreamWorld<S> {
    fn with(server: S, address: String) -> Result<Self> {
        let spec = serde_json::from_value(
            serde_json::json!({"name": "platform", "urlFrom": {"env": "UNUSED"}, "window": "1s"}),
        )?;
        let folder = tempfile::tempdir()?;
        Ok(Self { folder, server, spec, address, key: None, told: Arc::default() })
    }

    /// Gives all tasks another address from now on.
    pub fn tell(&self, address: String) {
        *self.told.lock().expect("nobody panics while he has it") = Some(address);
    }

    pub async fn journal(&self, name: &str) -> Result<Journal> {
        let path = self.folder.path().join(name).with_extension("db");
        Ok(Journal::open(&path, JournalOptions::default()).await?)
    }

    fn server_of(&self, carry: &[&str]) -> StreamServer {
        let carry = carry.iter().map(ToString::to_string).collect();
        let (address, told) = (self.address.clone(), self.told.clone());
        let address = move || {
            let told = told.lock().expect("nobody panics while he has it").clone();
            std::future::ready(Ok(told.unwrap_or_else(|| address.clone()))).boxed()
        };
        let spec = StreamSpec { carry, ..self.spec.clone() };
        let key = self
            .key
            .clone()
            .map(|key| -> SecretReader { Arc::new(move || std::future::ready(Ok(key.clone())).boxed()) });
        StreamServer { spec, address: Arc::new(address), credentials: None, key, instance: new_name() }
    }

    pub fn carry(&self, journal: &Journal, sources: &[&str]) -> RunningCarrier {
        self.carry_of(Arc::new(journal.clone()), journal, sources)
    }

    /// The same with another backlog for the journal.
    #[allow(clippy::disallowed_methods)]
    pub fn carry_of(&self, backlog: Arc<dyn Backlog>, journal: &Journal, sources: &[&str]) -> RunningCarrier {
        let documents = Arc::new(journal.clone());
        let (carrier, handle) = StreamCarrier::new(self.server_of(sources), backlog, documents);
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let task = tokio::spawn(async move { Ok(carrier.run(stopped).await?) });
        RunningCarrier { handle, task: StreamTask { stop, task } }
    }

    /// The condition of a carrier that can't continue.
    pub async fn refusal(&self, journal: &Journal) -> Result<String> {
        let carrying = self.carry(journal, &["jobs"]);
        let condition =
            until(WITHIN, "a refusal", async || Ok(carrying.handle.current_snapshot().condition)).await?;
        carrying.stop().await?;
        Ok(condition)
    }

    pub fn reader(&self, from: &FromSpec) -> StreamReader {
        self.reader_of("jobs", "Job", from)
    }

    pub fn reader_of(&self, source: &str, kind: &str, from: &FromSpec) -> StreamReader {
        StreamReader::new(self.server_of(&[]), source, kind, from, Arc::new(SystemClock::default()))
    }

    /// Copies a closed journal.
    pub fn copy(&self, journal: &str, to: &str) -> Result<()> {
        let path = |name: &str| self.folder.path().join(name).with_extension("db");
        std::fs::copy(path(journal), path(to)).map(drop).context("copying a journal")
    }

    /// Reads as a source does, without a cache.
    #[allow(clippy::disallowed_methods)]
    pub fn read(&self, journal: &Journal, from: &FromSpec) -> StreamTask {
        let (mut reader, journal) = (self.reader(from), journal.clone());
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let reading = async move {
            let warm = journal.load_warm_start("jobs").await?;
            reader.resume_from(warm.checkpoint.as_ref().map(|_| warm.epoch), warm.checkpoint.as_ref());
            loop {
                let Some(fed) = stopped.run_until_cancelled(reader.next()).await else {
                    reader.close().await;
                    return Ok(());
                };
                let fed = match fed {
                    Ok(fed) => fed,
                    Err(away) => {
                        println!("{away}");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                        continue;
                    }
                };
                journal.append_batch(fed.append).await?;
                if reader.confirm_durable().await.is_err() {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        };
        StreamTask { stop, task: tokio::spawn(reading) }
    }
}

/// Appends these states one by one, of as many objects as needed. Each document is barely compressible.
pub async fn sent(journal: &Journal, epoch: u32, numbers: Range<u64>, bytes: usize) -> Result<()> {
    for number in numbers {
        sent_at_once(journal, epoch, number..number + 1, bytes).await?;
    }
    Ok(())
}

/// The same in one append.
pub async fn sent_at_once(journal: &Journal, epoch: u32, numbers: Range<u64>, bytes: usize) -> Result<()> {
    journal.append_batch(one_append(epoch, numbers, bytes)).await?;
    Ok(())
}

/// Only creates the append, for tests that measure time.
pub fn one_append(epoch: u32, numbers: Range<u64>, bytes: usize) -> AppendBatch {
    let states = numbers.map(|number| state(epoch, number, bytes)).collect();
    AppendBatch { source: "jobs".into(), epoch, states, ..AppendBatch::default() }
}

fn state(epoch: u32, number: u64, bytes: usize) -> WitnessedState {
    let name = format!("job-{}", number % 16);
    let object = ObjectRef {
        group: "batch".into(),
        version: "v1".into(),
        kind: "Job".into(),
        namespace: "ml".into(),
        uid: format!("uid-{name}"),
        name,
    };
    let version = Version::new(&(u64::from(epoch) * 10_000 + number + 1).to_string());
    let document = document(&object, &version, number, bytes);
    WitnessedState {
        id: StateId::of("jobs", epoch, &object, Change::Present, &version, None),
        change: Change::Present,
        object: Arc::new(object),
        owner: None,
        controller: None,
        resource_version: version,
        status: Arc::default(),
        previous: None,
        observed_ms: 1,
        document,
        base: None,
        quotes_none_under: None,
    }
}

/// The document of this version, with 64 kinds of random characters that compress to this many bytes.
fn document(object: &ObjectRef, version: &Version, seed: u64, bytes: usize) -> Bytes {
    let mut dice = Dice::new(seed);
    let noise = (0..bytes * 4 / 3).map(|_| char::from(b'0' + (dice.throw() % 64) as u8));
    let noise: String = noise.map(|character| if character == '\\' { 'z' } else { character }).collect();
    let ObjectRef { namespace, name, uid, .. } = object;
    format!(
        r#"{{"metadata":{{"namespace":"{namespace}","name":"{name}","uid":"{uid}","resourceVersion":"{version}"}},"noise":"{noise}"}}"#
    )
    .into()
}

/// Waits until the journal has this many states.
pub async fn all(journal: &Journal, states: u64) -> Result<()> {
    until(WITHIN, &format!("{states} states"), async || {
        Ok((journal.journal_stats().await?.states >= states).then_some(()))
    })
    .await
}

/// The ids of each object's states, in order, each with its document.
pub async fn stories(journal: &Journal) -> Result<BTreeMap<String, Vec<(String, Bytes)>>> {
    let mut stories: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for state in journal.read(0, 10_000).await? {
        let document = journal.document_at(state.seq).await?.unwrap_or_default();
        stories.entry(state.object.name.clone()).or_default().push((state.id.to_string(), document));
    }
    Ok(stories)
}
