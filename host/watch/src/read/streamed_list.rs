//! Gets a list as the beginning of a watch. The existing objects arrive as events, in no order of versions,
//! up to a bookmark that ends them. Then the same stream continues as the watch.
//!
//! This form is tried first. Neither side holds a large collection in memory, no page can expire, and nothing
//! is missed between the list and its watch. A server without this form refuses it, or answers with an
//! ordinary watch. From then on pages are used.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use kubewitness_core::Version;
use kubewitness_core::frames::FrameLine;
use kubewitness_core::project::{self, EventType, ListGuard, WatchFrame};
use tokio::sync::mpsc;

use crate::connect::request::{RequestFailure, status_failure};
use crate::read::next_action::StreamEnd;
use crate::read::watch_stream::WatchStream;
use crate::repair::compare::list_request::ListRequest;
use crate::repair::compare::{ListComparison, ListFailure};
use crate::source::input::WriterInput;
use crate::source::parts::SourceParts;
use crate::source::round::RepairRound;

/// A list that reached its end, and the watch that it has become.
pub(crate) struct FinishedList {
    /// The version from which the watch is complete: below the first of the changes.
    pub complete: Version,
    pub round: Option<RepairRound>,
    pub stream: WatchStream,
    /// Changes that arrived among the objects, in order. They belong to the watch. The list ends at the last
    /// of them.
    pub changes: Vec<Bytes>,
}

pub(crate) struct StreamedList {
    parts: Arc<SourceParts>,
    inputs: mpsc::Sender<WriterInput>,
    comparison: ListComparison,
    changes: Vec<Bytes>,
    lowest: Option<Version>,
    /// Names whose object was deleted meanwhile. An object that is added under such a name was also created
    /// meanwhile.
    freed: HashSet<(String, String)>,
    guard: ListGuard,
}

impl StreamedList {
    pub fn new(parts: &Arc<SourceParts>, inputs: &mpsc::Sender<WriterInput>, asked: &ListRequest) -> Self {
        let comparison = ListComparison::new(parts, inputs, asked);
        Self {
            parts: Arc::clone(parts),
            inputs: inputs.clone(),
            comparison,
            changes: Vec::new(),
            lowest: None,
            freed: HashSet::new(),
            guard: ListGuard::default(),
        }
    }

    pub async fn run(mut self, asked: &ListRequest, seconds: u64) -> Result<FinishedList, ListFailure> {
        let address = asked
            .resource
            .collection_address()
            .with_parameter("watch", "true")
            .with_parameter("allowWatchBookmarks", "true")
            .with_parameter("sendInitialEvents", "true")
            .with_parameter("resourceVersionMatch", "NotOlderThan")
            .with_parameter("timeoutSeconds", &seconds.to_string());
        let patience = self.parts.tuning.stream_patience;
        let body = match self.parts.api.open(address.as_str(), patience).await {
            Err(failure) if is_refusal(&failure) => {
                return Err(ListFailure::NotStreamed(failure.to_string()));
            }
            Err(RequestFailure::TimedOut(_)) => {
                return Err(ListFailure::NotStreamed("it doesn't begin".to_string()));
            }
            body => body?,
        };
        let mut stream = WatchStream::new(&self.parts, body);
        loop {
            match stream.await_more(patience).await {
                Ok(()) => {}
                Err(StreamEnd::Idle) => {
                    return Err(ListFailure::NotStreamed(format!(
                        "nothing came for {patience:?}, and no end"
                    )));
                }
                Err(StreamEnd::Broken(failure) | StreamEnd::ErrorFrame(failure)) => {
                    return Err(failure.into());
                }
                Err(StreamEnd::Closed) => {
                    return Err(
                        RequestFailure::Transport("the list's stream ended before the list".into()).into()
                    );
                }
            }
            let mut lines = std::mem::take(&mut stream.lines).into_iter();
            while let Some(line) = lines.next() {
                let Some(version) = self.take_line(line).await? else { continue };
                stream.lines = lines.collect();
                let round = self.comparison.complete_list(&version, &version, asked.id).await?;
                let complete =
                    self.lowest.and_then(|lowest| lowest.directly_before()).unwrap_or(version.clone());
                return Ok(FinishedList { complete, round, stream, changes: self.changes });
            }
        }
    }

    /// Takes one line. Returns the version if the line ends the list.
    async fn take_line(&mut self, line: FrameLine) -> Result<Option<Version>, ListFailure> {
        let frame = match line {
            FrameLine::Frame(frame) => {
                self.guard.count_objects(1, frame.len()).map_err(RequestFailure::from)?;
                frame
            }
            FrameLine::Oversized(kept) => {
                self.comparison.note_unread();
                self.send(WriterInput::Oversized(kept)).await?;
                return Ok(None);
            }
        };
        let Ok(read) = project::split_frame(&frame) else {
            self.comparison.note_unread();
            self.send(WriterInput::Line(frame, None)).await?;
            return Ok(None);
        };
        match read.kind {
            EventType::Added | EventType::Modified | EventType::Deleted if self.is_change(&read) => {
                if self.changes.len() >= self.parts.tuning.held_events {
                    return Err(ListFailure::Again);
                }
                self.changes.push(frame);
            }
            EventType::Added | EventType::Modified | EventType::Deleted => {
                self.comparison.take_item(frame.slice_ref(read.object), None).await?;
            }
            EventType::Bookmark => {
                let answer = |error: project::ProjectError| RequestFailure::Answer(error.to_string());
                if !project::ends_initial_events(read.object).map_err(answer)? {
                    let why = "a bookmark came before the end of the list";
                    return Err(ListFailure::NotStreamed(why.to_string()));
                }
                let version = Version::new(&project::bookmark_version(read.object).map_err(answer)?);
                // After the changes, the stream marks that they have ended.
                if !self.changes.is_empty() {
                    self.changes.push(frame);
                }
                return Ok(Some(version));
            }
            EventType::Error => {
                let failure = status_failure(None, read.object, None);
                return Err(if failure.is_expired() { ListFailure::Again } else { failure.into() });
            }
        }
        Ok(None)
    }

    /// Whether an event is a change and none of the list's own objects.
    fn is_change(&mut self, read: &WatchFrame<'_>) -> bool {
        let Ok(envelope) = project::read_envelope(read.object) else { return false };
        let name = || (envelope.namespace.to_string(), envelope.name.to_string());
        let is_change = match read.kind {
            EventType::Deleted => {
                self.freed.insert(name());
                true
            }
            EventType::Added if self.freed.is_empty() || !self.freed.contains(&name()) => false,
            _ => {
                self.comparison.note_known(&envelope.uid);
                true
            }
        };
        let version = Version::new(&envelope.resource_version);
        if is_change && self.lowest.as_ref().is_none_or(|lowest| lowest.is_newer_than(&version)) {
            self.lowest = Some(version);
        }
        is_change
    }

    async fn send(&self, input: WriterInput) -> Result<(), ListFailure> {
        self.inputs.send(input).await.map_err(|_| ListFailure::Closed)
    }
}

/// Whether the failure means that the server does not know such a request.
fn is_refusal(failure: &RequestFailure) -> bool {
    matches!(failure.status_code(), Some(400 | 405 | 406 | 422 | 501))
}
