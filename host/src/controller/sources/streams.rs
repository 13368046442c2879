//! The streams to other controllers, with one carrier each, and the readers of sources that another
//! controller witnesses.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use anyhow::Context;
use futures::FutureExt;
use kubewitness_capability::secrets;
use kubewitness_core::clock::Clock;
use kubewitness_core::config::{SecretRef, SourceSpec, StreamSpec};
use kubewitness_journal::Journal;
use kubewitness_stream::{SecretReader, StreamCarrier, StreamReader, StreamServer, new_name, progress_name};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::controller::shared::SharedStatus;
use crate::tasks::{TaskFate, TaskSupervisor};

/// Identifies this process on the streams' servers, for as long as it lives.
static INSTANCE: LazyLock<Arc<str>> = LazyLock::new(new_name);

struct RunningStream {
    spec: StreamSpec,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl RunningStream {
    async fn await_end(self) {
        self.stop.cancel();
        // The supervisor has reported its end.
        self.task.await.ok();
    }
}

pub struct SourceStreams {
    journal: Journal,
    shared: Arc<SharedStatus>,
    tasks: TaskSupervisor,
    running: BTreeMap<String, RunningStream>,
}

impl SourceStreams {
    pub fn new(journal: Journal, shared: Arc<SharedStatus>, tasks: TaskSupervisor) -> Self {
        Self { journal, shared, tasks, running: BTreeMap::new() }
    }

    /// A stream whose settings changed ends before it starts again: two would share one progress.
    pub async fn reconcile_streams(&mut self, wanted: &[StreamSpec]) {
        let wanted: Vec<_> = wanted.iter().filter(|spec| !spec.carry.is_empty()).collect();
        let is_wanted = |running: &RunningStream| wanted.contains(&&running.spec);
        let over: Vec<_> = self.running.extract_if(.., |_, running| !is_wanted(running)).collect();
        for (name, running) in over {
            info!(stream = name, "no more states are sent to the stream");
            running.await_end().await;
            self.shared.remove_stream(&name);
        }
        for spec in wanted {
            if !self.running.contains_key(&spec.name) {
                self.start(spec);
            }
        }
    }

    fn start(&mut self, spec: &StreamSpec) {
        info!(stream = spec.name, carries = spec.carry.join(","), "states are sent to the stream");
        let journal = Arc::new(self.journal.clone());
        let (carrier, handle) = StreamCarrier::new(server(spec), journal.clone(), journal);
        self.shared.add_stream(spec.clone(), handle);
        let (stop, name) = (CancellationToken::new(), spec.name.clone());
        let stopped = stop.clone();
        let task = self.tasks.spawn_task(format!("stream {name}"), TaskFate::Finite, async move {
            carrier.run(stopped).await.with_context(|| format!("handing states to the stream `{name}`"))
        });
        self.running.insert(spec.name.clone(), RunningStream { spec: spec.clone(), stop, task });
    }

    /// The names under which the journal stores their progress.
    pub fn progress_names(&self) -> impl Iterator<Item = String> {
        self.running.keys().map(|name| progress_name(name))
    }

    pub async fn shut_down(&mut self) {
        for (_, running) in std::mem::take(&mut self.running) {
            running.await_end().await;
        }
    }
}

fn server(spec: &StreamSpec) -> StreamServer {
    let address = secret(&spec.url_from);
    let [credentials, key] = [&spec.credentials_from, &spec.key_from].map(|from| from.as_ref().map(secret));
    StreamServer { spec: spec.clone(), address, credentials, key, instance: INSTANCE.clone() }
}

fn secret(reference: &SecretRef) -> SecretReader {
    let reference = reference.clone();
    Arc::new(move || {
        let reference = reference.clone();
        let read = async move {
            let secret = secrets::resolve_secret(&reference).await.map_err(|error| error.to_string())?;
            Ok(secret.expose_secret().to_owned())
        };
        read.boxed()
    })
}

/// The reader of a source that another controller witnesses; `None` if it is witnessed here.
pub fn reader(source: &SourceSpec, streams: &[StreamSpec], clock: Arc<dyn Clock>) -> Option<StreamReader> {
    let from = source.from.as_ref()?;
    let stream = stream_of(source, streams)?;
    Some(StreamReader::new(server(stream), &source.name, &source.kind, from, clock))
}

pub fn stream_of<'a>(source: &SourceSpec, streams: &'a [StreamSpec]) -> Option<&'a StreamSpec> {
    let from = source.from.as_ref()?;
    streams.iter().find(|stream| stream.name == from.stream)
}
