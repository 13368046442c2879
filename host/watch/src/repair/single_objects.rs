//! Repairs single objects beside the watch, name by name: differences that an audit found, and losses that an
//! event proves. A new object under the name of a live one proves a lost deletion. A change of an unknown
//! object proves a lost beginning.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use kubewitness_core::document::unpack_document;
use kubewitness_core::ports::FormerEnd;
use kubewitness_core::views::DiscrepancyView;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use crate::connect::backoff::{Backoff, JitterDice};
use crate::connect::request::RequestFailure;
use crate::connect::resource::{SourceResource, resolve_resource};
use crate::judge::meaning::is_upto;
use crate::repair::lookup::end_of_former;
use crate::repair::report::discrepancy::report_discrepancy;
use crate::repair::rounds::{came_of, walk_name};
use crate::repair::walk_back::OldVersions;
use crate::repair::walk_back::requests::may_pass;
use crate::repair::walk_back::versions::missing_between;
use crate::source::handle::count;
use crate::source::input::{ReadStory, StoryStep, WriterClosed, WriterInput, await_durable};
use crate::source::missing::reason;
use crate::source::parts::SourceParts;
use crate::source::round::{
    CompleteSince, MISSED_AT_ONCE, MissedObject, MovedObject, NameRead, newest_asked,
};

/// How often it checks whether the epoch has ended.
const LOOK: Duration = Duration::from_millis(100);

pub(crate) struct MissedRepair {
    parts: Arc<SourceParts>,
    inputs: mpsc::Sender<WriterInput>,
}

impl MissedRepair {
    pub fn new(parts: Arc<SourceParts>, inputs: mpsc::Sender<WriterInput>) -> Self {
        Self { parts, inputs }
    }

    /// Runs until the writer ends. Dropping the future stops it.
    pub async fn run(self, mut found: mpsc::UnboundedReceiver<MissedObject>) {
        let mut unended = Vec::new();
        while found.recv_many(&mut unended, MISSED_AT_ONCE).await > 0 {
            let names = unended.len();
            let mended = self.mend_objects(std::mem::take(&mut unended)).await;
            self.parts.shared.lock_live().mending -= names;
            if mended.is_err() {
                return;
            }
        }
    }

    async fn mend_objects(&self, unended: Vec<MissedObject>) -> Result<(), WriterClosed> {
        // By then, everything that arrived with it is known, perhaps also the end that overtook it.
        let epoch = await_durable(&self.inputs).await?.epoch;
        let mut jobs = Vec::new();
        for MissedObject { epoch: of, mut moved, place } in unended {
            // The permit is returned before the story is sent, so that the writer sees it as free.
            drop(place);
            // Its history has ended, and its name is no longer held.
            if of != epoch {
                continue;
            }
            match end_of_former(&self.parts, epoch, &moved.object.uid).await {
                FormerEnd::Ended => self.take_late_version(epoch, moved).await?,
                FormerEnd::Left(left) if is_upto(&moved.version, &left) => {
                    self.take_late_version(epoch, moved).await?;
                }
                FormerEnd::Left(left) if moved.rival.is_none() => {
                    moved.since = CompleteSince::since_floor(left);
                    moved.witnessed = true;
                    jobs.push(moved);
                }
                FormerEnd::Left(_) | FormerEnd::Unknown => jobs.push(moved),
            }
        }
        if jobs.is_empty() {
            return Ok(());
        }
        self.send(WriterInput::Differs(jobs.iter().map(|moved| self.discrepancy_of(moved)).collect()))
            .await?;
        let resource = tokio::select! {
            resource = self.resolve_resource() => resource,
            () = await_epoch_end(&self.parts, epoch) => return Ok(()),
        };
        match resource {
            Ok(resource) => {
                let jobs = jobs.into_iter().map(NameRead::Moved).collect();
                read_back_and_report(&self.parts, &self.inputs, epoch, jobs, &resource).await
            }
            Err(failure) => {
                for moved in jobs {
                    self.leave_gap(epoch, moved, &failure).await?;
                }
                Ok(())
            }
        }
    }

    fn discrepancy_of(&self, moved: &MovedObject) -> DiscrepancyView {
        match &moved.rival {
            Some((rival, since)) => report_discrepancy(&self.parts, rival, Some(&since.floor), None),
            None => {
                let witnessed = moved.witnessed.then_some(&moved.since.floor);
                report_discrepancy(&self.parts, &moved.object, witnessed, moved.listed_version())
            }
        }
    }

    /// Takes a version that came after its object's end, or a repeat. The journal knows which.
    async fn take_late_version(&self, epoch: u32, moved: MovedObject) -> Result<(), WriterClosed> {
        let mut steps = Vec::new();
        if moved.is_end {
            count(&self.parts.shared.counters.duplicates, 1);
        } else {
            steps.extend(unpack_document(&moved.document).ok().map(StoryStep::Late));
        }
        let release = Some(moved.object);
        self.send(WriterInput::Story(ReadStory { round: None, epoch: Some(epoch), steps, release })).await
    }

    async fn resolve_resource(&self) -> Result<SourceResource, RequestFailure> {
        let tuning = &self.parts.tuning;
        let mut backoff = Backoff::new(tuning.first_pause, tuning.longest_pause);
        let (mut dice, until) = (JitterDice::new(tuning.seed), Instant::now() + tuning.walk.time);
        loop {
            match resolve_resource(&self.parts.api, &self.parts.spec).await {
                Err(failure) if may_pass(&failure) && Instant::now() < until => {
                    sleep(backoff.next(&mut dice, failure.retry_after())).await;
                }
                resolved => return resolved,
            }
        }
    }

    /// Gives up: the missing versions become a hole, and the name continues.
    async fn leave_gap(
        &self,
        epoch: u32,
        moved: MovedObject,
        failure: &RequestFailure,
    ) -> Result<(), WriterClosed> {
        let MovedObject { object, since, version, document, is_end, rival, .. } = moved;
        let mut steps = Vec::new();
        if let Some((rival, since)) = rival {
            let hole = missing_between(&since.floor, &version, reason::UNREADABLE, &failure.to_string());
            steps.extend(hole.map(|hole| StoryStep::MissingVersions(Arc::clone(&rival), hole)));
            steps.push(StoryStep::Ended(rival, None));
        }
        let hole = missing_between(&since.floor, &version, reason::UNREADABLE, &failure.to_string());
        steps.extend(hole.map(|hole| StoryStep::MissingVersions(Arc::clone(&object), hole)));
        steps.push(came_of(&document, is_end));
        let story = ReadStory { round: None, epoch: Some(epoch), steps, release: Some(object) };
        self.send(WriterInput::Story(story)).await
    }

    async fn send(&self, input: WriterInput) -> Result<(), WriterClosed> {
        self.inputs.send(input).await.map_err(|_| WriterClosed)
    }
}

/// Reads back held names that belong to no round, and reports them to the writer. It ends with its epoch:
/// another history can't be read from this one, and its names are no longer held.
pub(crate) async fn read_back_and_report(
    parts: &Arc<SourceParts>,
    inputs: &mpsc::Sender<WriterInput>,
    epoch: u32,
    jobs: Vec<NameRead>,
    resource: &SourceResource,
) -> Result<(), WriterClosed> {
    tokio::select! {
        result = read_back(parts, inputs, epoch, jobs, resource) => result,
        () = await_epoch_end(parts, epoch) => Ok(()),
    }
}

async fn await_epoch_end(parts: &SourceParts, epoch: u32) {
    while parts.shared.lock_live().epoch == epoch {
        sleep(LOOK).await;
    }
}

async fn read_back(
    parts: &Arc<SourceParts>,
    inputs: &mpsc::Sender<WriterInput>,
    epoch: u32,
    jobs: Vec<NameRead>,
    resource: &SourceResource,
) -> Result<(), WriterClosed> {
    let exact = OldVersions::beside_watch(parts, resource, newest_asked(&jobs));
    let walking = jobs.into_iter().map(|job| walk_name(&exact, job, None));
    let mut walking = stream::iter(walking).buffer_unordered(parts.tuning.walk.concurrency.max(1));
    while let Some(walk) = walking.next().await {
        let release = Some(Arc::clone(&walk.report.object));
        let story = ReadStory { round: None, epoch: Some(epoch), steps: walk.report.into_steps(), release };
        inputs.send(WriterInput::Story(story)).await.map_err(|_| WriterClosed)?;
    }
    Ok(())
}
