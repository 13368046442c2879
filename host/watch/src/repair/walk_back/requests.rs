//! Sends the requests of the walk-back, one exact list at a time. It waits for a busy server, and asks twice
//! before it believes in compaction.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use kubewitness_core::Version;
use kubewitness_core::project::{self, ObjectEnvelope, ProjectError};
use kubewitness_core::state::ObjectRef;
use tokio::time::sleep;

use super::{CONTRADICTED, OldVersions};
use crate::connect::backoff::{Backoff, JitterDice};
use crate::connect::request::{ANSWER_TIME, RequestAddress, RequestFailure};
use crate::judge::object::with_kind;
use crate::repair::walk_back::versions::{ExactAnswer, ReadRefusal};
use crate::source::handle::{ServerLimit, count};
use crate::version::version_number;

/// Why an exact list can't be read. Its text stands in conditions and in gaps.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ExactListError {
    #[error("the server doesn't read old versions")]
    Refused,
    #[error(transparent)]
    Request(RequestFailure),
    #[error(transparent)]
    Unreadable(#[from] ProjectError),
    /// A server that does not know the parameter answers with the present objects.
    #[error("an exact list at {asked} was answered for {answered}")]
    OtherVersion { asked: Version, answered: String },
    /// A server that does not know the selector answers with other objects.
    #[error("a list of `{asked}` was answered with `{answered}`")]
    OtherObject { asked: String, answered: String },
}

impl OldVersions {
    /// The object that had this name at one version, with its content.
    pub async fn fetch_object_at(&self, object: &ObjectRef, at: &Version) -> ExactAnswer {
        for _ in 0..CONTRADICTED {
            if self.compaction.is_compacted(at) {
                return ExactAnswer::Compacted;
            }
            match self.ask_once(object, at).await {
                ExactAnswer::Compacted if self.is_compacted(at).await => return ExactAnswer::Compacted,
                ExactAnswer::Compacted => {}
                answer => return answer,
            }
        }
        ExactAnswer::Refused(ReadRefusal::Contradicted(at.clone()))
    }

    async fn ask_once(&self, object: &ObjectRef, at: &Version) -> ExactAnswer {
        let address = self.resource.of_name_at(object, at);
        match self.read_within(&address, self.parts.tuning.one_answer).await {
            Ok(Some(bytes)) => match self.decode_answer(&bytes, object, at) {
                Ok(answer) => {
                    self.parts.shared.set_limitation(ServerLimit::Exact, None);
                    answer
                }
                Err(why) => ExactAnswer::Refused(self.refused_at(at, why).await),
            },
            Ok(None) => ExactAnswer::Compacted,
            Err(why) => ExactAnswer::Refused(self.refused_at(at, why).await),
        }
    }

    /// One object could not be read. If the whole collection can't be either, no further object is tried.
    async fn refused_at(&self, at: &Version, why: ExactListError) -> ReadRefusal {
        let number = version_number(at).filter(|_| !self.is_refused());
        let is_whole = match number {
            Some(number) => self.is_gone(number).await.is_err(),
            None => true,
        };
        if is_whole {
            self.note_refusal(ServerLimit::Exact, why.to_string());
        }
        why.into()
    }

    /// Everything up to here is known to be compacted.
    pub fn compacted_through(&self) -> u128 {
        self.compaction.compacted_through()
    }

    /// One answer says that this version is compacted. Returns whether a second one agrees. If so, it finds
    /// out how far compaction has come, once for all callers.
    pub async fn is_compacted(&self, at: &Version) -> bool {
        // Versions without order allow no further request.
        let Some(number) = version_number(at) else { return true };
        let _alone = self.compaction.looking.lock().await;
        if self.compaction.is_compacted(at) {
            return true;
        }
        if !self.is_gone(number).await.is_ok_and(|gone| gone) {
            return false;
        }
        self.compaction.note_compacted(number);
        let mut halving = self.compaction.begin_search();
        while let Some(middle) = halving.next() {
            let Ok(gone) = self.is_gone_twice(middle).await else { break };
            if gone {
                self.compaction.note_compacted(middle);
            }
            halving.narrow_to(middle, gone);
        }
        let (source, up_to) = (&self.parts.spec.name, self.compaction.compacted_through());
        tracing::debug!(%source, "compaction has removed versions up to {up_to}");
        true
    }

    async fn is_gone_twice(&self, at: u128) -> Result<bool, ExactListError> {
        Ok(self.is_gone(at).await? && self.is_gone(at).await?)
    }

    /// Whether versions at this number can no longer be read. The request counts against the budget but is
    /// never denied, because it saves many others.
    async fn is_gone(&self, at: u128) -> Result<bool, ExactListError> {
        self.budget.take();
        let at = Version::new(&at.to_string());
        let address = self.resource.collection_address().with_parameter("limit", "1");
        let address = address
            .with_parameter("resourceVersion", at.as_str())
            .with_parameter("resourceVersionMatch", "Exact");
        let Some(bytes) = self.read_within(&address, self.parts.tuning.one_answer).await? else {
            return Ok(true);
        };
        let page = project::list_page(&bytes)?;
        check_version_of(&page.resource_version, &at).map(|()| false)
    }

    /// Reads one exact list. `None` means that compaction has removed it; `Err` has the reason why it can't
    /// be read.
    pub(crate) async fn read(&self, address: &RequestAddress) -> Result<Option<Bytes>, ExactListError> {
        self.read_within(address, ANSWER_TIME).await
    }

    async fn read_within(
        &self,
        address: &RequestAddress,
        within: Duration,
    ) -> Result<Option<Bytes>, ExactListError> {
        if self.is_refused() {
            return Err(ExactListError::Refused);
        }
        match self.request_patiently(address.as_str(), within).await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(failure) if failure.is_expired() => Ok(None),
            Err(failure) => Err(ExactListError::Request(failure)),
        }
    }

    pub fn note_refusal(&self, limit: ServerLimit, why: String) -> String {
        if !self.refused.swap(true, Ordering::Relaxed) {
            self.parts.shared.set_limitation(limit, Some(&why));
        }
        why
    }

    /// Repeats a request, so that a server that is briefly busy or away does not cost a version.
    async fn request_patiently(&self, address: &str, within: Duration) -> Result<Bytes, RequestFailure> {
        let tuning = &self.parts.tuning;
        let (mut backoff, mut dice) =
            (Backoff::new(tuning.first_pause, tuning.longest_pause), JitterDice::new(tuning.seed));
        let mut waited = Duration::ZERO;
        loop {
            self.parts.repairs.await_turn(&tuning.walk).await;
            count(&self.parts.shared.counters.walk_back_requests, 1);
            let failure = match self.parts.api.get_within(address, within).await {
                Err(failure) => failure,
                Ok(bytes) => {
                    self.parts.repairs.count_received(bytes.len(), &tuning.walk);
                    self.budget.note_answered();
                    return Ok(bytes);
                }
            };
            let patience = match &failure {
                RequestFailure::Transport(_) => self.away,
                failure if may_pass(failure) => self.busy,
                _ => {
                    self.budget.note_answered();
                    return Err(failure);
                }
            };
            if waited >= patience {
                return Err(failure);
            }
            self.budget.note_server_away();
            let pause = backoff.next(&mut dice, failure.retry_after());
            waited += pause;
            sleep(pause).await;
        }
    }

    fn decode_answer(
        &self,
        bytes: &Bytes,
        object: &ObjectRef,
        at: &Version,
    ) -> Result<ExactAnswer, ExactListError> {
        let page = project::list_page(bytes)?;
        check_version_of(&page.resource_version, at)?;
        let Some(item) = page.items.first() else { return Ok(ExactAnswer::Nobody) };
        let envelope = project::read_envelope(item)?;
        if envelope.name != *object.name || envelope.namespace != *object.namespace {
            let (asked, answered) = (object.name.clone(), envelope.name.to_string());
            return Err(ExactListError::OtherObject { asked, answered });
        }
        Ok(ExactAnswer::Item {
            uid: envelope.uid.to_string(),
            version: Version::new(&envelope.resource_version),
            document: self.copy_document(bytes, item, &envelope),
        })
    }

    /// A copy, because a slice would keep the whole answer in memory.
    pub fn copy_document(&self, bytes: &Bytes, item: &[u8], envelope: &ObjectEnvelope<'_>) -> Bytes {
        let spec = &self.parts.spec;
        self.parts.repairs.hold_document(&with_kind(
            bytes.slice_ref(item),
            envelope,
            &spec.api_version,
            &spec.kind,
        ))
    }
}

/// Checks the version of an answer.
pub(crate) fn check_version_of(answered: &str, asked: &Version) -> Result<(), ExactListError> {
    if answered == asked.as_str() {
        return Ok(());
    }
    Err(ExactListError::OtherVersion { asked: asked.clone(), answered: answered.to_owned() })
}

/// Whether the same request may succeed later. Rights may come back, too.
pub(crate) fn may_pass(failure: &RequestFailure) -> bool {
    failure.is_passing() && failure.status_code() != Some(501)
        || matches!(failure.status_code(), Some(401 | 403 | 404))
}
