//! Talks to the API server for one source and hands what comes to the writer, in order. What to
//! do next is decided by [`Course`]; what an object means, by the writer.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use kube::client::Body;
use kubewitness_core::Version;
use kubewitness_core::limits::FRAME_BYTES;
use kubewitness_core::project;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::backoff::{Backoff, Dice};
use crate::course::{Action, Course, Ended, Pause, Step};
use crate::discovery::{Resource, resolve};
use crate::handle::count;
use crate::input::{Input, Standing};
use crate::relist::{Listed, Relist};
use crate::request::{Failure, causes};
use crate::source::Parts;
use kubewitness_core::frames::{Line, Splitter};

/// Frames up to this size are bounded by their number alone (16 MiB in flight at most).
const SMALL_FRAME: usize = 16 * 1024;
/// Larger frames share this many bytes in flight: a burst of large objects waits in the socket.
const LARGE_IN_FLIGHT: usize = 64 * 1024 * 1024;
/// A share of them, so that the count fits a semaphore.
const SHARE: usize = 1024;
const _: () = assert!(LARGE_IN_FLIGHT > FRAME_BYTES, "one frame must always fit");

/// A stream that came this far was no failed attempt, even if nothing happened on it.
const LIVED: Duration = Duration::from_secs(5);

/// The writer has ended, and the reader ends with it.
pub(crate) struct Closed;

pub(crate) struct Reader {
    parts: Arc<Parts>,
    inputs: mpsc::Sender<Input>,
    large: Arc<Semaphore>,
    course: Course,
    backoff: Backoff,
    dice: Dice,
    resource: Option<Resource>,
    /// No watch has lived since the last list: one that expires again must not list at once.
    just_listed: bool,
}

impl Reader {
    pub fn new(parts: Arc<Parts>, inputs: mpsc::Sender<Input>) -> Self {
        Self {
            inputs,
            large: Arc::new(Semaphore::new(LARGE_IN_FLIGHT / SHARE)),
            course: Course::default(),
            backoff: Backoff::new(parts.tuning.first_pause, parts.tuning.longest_pause),
            dice: Dice::new(parts.tuning.seed),
            resource: None,
            just_listed: false,
            parts,
        }
    }

    /// Ends only with its writer; it is dropped to stop it.
    pub async fn run(mut self) {
        let mut action = Action::Resolve;
        loop {
            let step = match self.carry_out(&action).await {
                Ok(step) => step,
                Err(Closed) => return,
            };
            if let Some(condition) = step.condition {
                self.parts.shared.set_condition(Some(condition));
            }
            if let Some(pause) = step.pause {
                sleep(self.backoff.next(&mut self.dice, pause.asked)).await;
            }
            action = step.action;
        }
    }

    async fn carry_out(&mut self, action: &Action) -> Result<Step, Closed> {
        let failed = |failure: Failure| Course::failed(action, &failure);
        match action {
            Action::Resolve => match resolve(&self.parts.api, &self.parts.spec).await {
                Ok(resource) => {
                    self.resource = Some(resource);
                    let standing = self.sync().await?;
                    Ok(Course::resolved(standing.resume.as_ref(), standing.epoch))
                }
                Err(failure) => Ok(failed(failure)),
            },
            Action::Probe => match self.server_version().await {
                Ok(server) => {
                    let standing = self.sync().await?;
                    Ok(self.course.probed(&server, standing.resume.as_ref(), standing.epoch))
                }
                Err(failure) => Ok(failed(failure)),
            },
            Action::Watch => self.watch().await,
            Action::NewEpoch { server } => {
                tracing::warn!(source = %self.parts.spec.name, %server, "the server's history was replaced");
                self.send(Input::NewEpoch).await?;
                let standing = self.sync().await?;
                Ok(Course::resolved(None, standing.epoch))
            }
            Action::List(reason) => {
                let Some(resource) = self.resource.clone() else { return Ok(Course::unresolved()) };
                let standing = self.sync().await?;
                let relist = Relist::new(
                    Arc::clone(&self.parts),
                    self.inputs.clone(),
                    resource,
                    reason,
                    standing.resume,
                );
                match relist.run().await? {
                    Listed::Complete => {
                        // Nothing that is listed is watched before it is durable.
                        self.sync().await?;
                        self.just_listed = true;
                        self.parts.shared.set_condition(None);
                        Ok(Course::listed())
                    }
                    Listed::OtherHistory(server) => Ok(Course::replaced(server)),
                    Listed::Failed(failure) => Ok(failed(failure)),
                }
            }
        }
    }

    /// A consistent list of one object: its version is where the server is.
    async fn server_version(&self) -> Result<Version, Failure> {
        let Some(resource) = &self.resource else {
            return Err(Failure::Answer("the kind is not known".into()));
        };
        let page = self.parts.api.get(resource.collection().with("limit", "1").as_str()).await?;
        let page = project::list_page(&page).map_err(|error| Failure::Answer(error.to_string()))?;
        Ok(Version::new(&page.resource_version))
    }

    async fn watch(&mut self) -> Result<Step, Closed> {
        let Some(resource) = &self.resource else { return Ok(Course::unresolved()) };
        let Some(from) = self.sync().await?.resume else { return Ok(Course::unresolved()) };
        let (low, high) = self.parts.tuning.watch_seconds;
        let seconds = self.dice.between(low, high).to_string();
        let address = resource
            .collection()
            .with("watch", "true")
            .with("allowWatchBookmarks", "true")
            .with("resourceVersion", from.as_str())
            .with("timeoutSeconds", &seconds);
        count(&self.parts.shared.counters.watches, 1);
        let opened = self.parts.api.open(address.as_str(), self.parts.tuning.idle).await;
        let body = match opened {
            Ok(body) => body,
            Err(failure) => {
                self.count_expired(&failure);
                return Ok(self.unhurried(Course::failed(&Action::Watch, &failure)));
            }
        };
        tracing::debug!(source = %self.parts.spec.name, %from, "watching");
        self.parts.shared.set_condition(None);
        self.parts.shared.live().synced = true;
        let since = Instant::now();
        let (ended, any) = self.follow(body).await?;
        let ended = match self.sync().await?.told {
            Some(told) => Ended::Told(told),
            None => ended,
        };
        if let Ended::Told(failure) = &ended {
            self.count_expired(failure);
        }
        let lived = since.elapsed() >= LIVED || (any && !matches!(ended, Ended::Told(_)));
        if lived {
            self.backoff.reset();
            self.just_listed = false;
        }
        tracing::debug!(source = %self.parts.spec.name, ?ended, "the watch ended");
        Ok(self.unhurried(Course::ended(&ended, lived)))
    }

    fn unhurried(&self, mut step: Step) -> Step {
        if self.just_listed && matches!(step.action, Action::List(_)) {
            step.pause.get_or_insert(Pause { asked: None });
        }
        step
    }

    /// Reads a stream to its end. The flag says whether anything came on it.
    async fn follow(&self, body: Body) -> Result<(Ended, bool), Closed> {
        let hush = CancellationToken::new();
        self.send(Input::Opened(hush.clone())).await?;
        let mut body = std::pin::pin!(body);
        let (mut splitter, mut lines, mut any) = (Splitter::new(FRAME_BYTES), Vec::new(), false);
        let ended = loop {
            let next = tokio::select! {
                biased;
                () = hush.cancelled() => break Ended::Closed,
                next = timeout(self.parts.tuning.idle, body.frame()) => next,
            };
            let chunk = match next {
                Err(_) => break Ended::Idle,
                Ok(None) => break Ended::Closed,
                Ok(Some(Err(error))) => break Ended::Broken(Failure::Transport(causes(&error))),
                Ok(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
            };
            any |= !chunk.is_empty();
            count(&self.parts.shared.counters.bytes, chunk.len() as u64);
            splitter.push(chunk, &mut lines);
            for line in lines.drain(..) {
                match line {
                    Line::Frame(frame) => self.send_line(frame).await?,
                    Line::Oversized(kept) => self.send(Input::Oversized(kept)).await?,
                }
            }
        };
        count(&self.parts.shared.counters.discarded_bytes, splitter.pending() as u64);
        Ok((ended, any))
    }

    async fn send_line(&self, line: Bytes) -> Result<(), Closed> {
        let permit = if line.len() > SMALL_FRAME {
            let shares = u32::try_from(line.len().div_ceil(SHARE)).unwrap_or(u32::MAX);
            Some(Arc::clone(&self.large).acquire_many_owned(shares).await.map_err(|_| Closed)?)
        } else {
            None
        };
        self.send(Input::Line(line, permit)).await
    }

    async fn send(&self, input: Input) -> Result<(), Closed> {
        self.inputs.send(input).await.map_err(|_| Closed)
    }

    async fn sync(&self) -> Result<Standing, Closed> {
        sync(&self.inputs).await
    }

    fn count_expired(&self, failure: &Failure) {
        if failure.is_expired() {
            count(&self.parts.shared.counters.expired, 1);
            self.parts.shared.live().synced = false;
            tracing::warn!(source = %self.parts.spec.name, "the watch's version is gone: {failure}");
        }
    }
}

/// Waits until everything that was sent is durable.
pub(crate) async fn sync(inputs: &mpsc::Sender<Input>) -> Result<Standing, Closed> {
    let (answer, answered) = oneshot::channel();
    inputs.send(Input::Sync(answer)).await.map_err(|_| Closed)?;
    answered.await.map_err(|_| Closed)
}
