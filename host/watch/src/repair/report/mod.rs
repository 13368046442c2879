//! Reports the findings of a round to the writer, name by name and in each name's order.
//!
//! Other objects may have come and gone under the same name, and only the sweep finds them. So an object that
//! began in the outage waits until the sweep has reached its beginning. A name whose object has ended waits
//! until the end of the sweep.
//!
//! Holes that another replica of a shared journal may have seen come last. This module sends no request to
//! the server.

pub(crate) mod discrepancy;
pub(crate) mod other_witnesses;

use std::sync::Arc;

use kubewitness_core::state::ObjectRef;
use tokio::sync::mpsc;

use crate::repair::report::other_witnesses::{OtherWitnesses, WaitResult};
use crate::source::input::{ReadStory, StoryStep, WriterClosed, WriterInput};
use crate::source::life::UnwitnessedLife;
use crate::source::missing::MissingVersions;
use crate::source::parts::SourceParts;
use crate::source::round::RoundId;

/// One name with its missed versions.
pub(crate) struct NameReport {
    pub object: Arc<ObjectRef>,
    /// The end of the name's former object.
    pub before: Vec<StoryStep>,
    /// Objects that had the name in between.
    pub between: Vec<UnwitnessedLife>,
    pub after: Vec<StoryStep>,
    /// The version up to which the sweep must be complete before this name is reported.
    pub waits: Option<u128>,
}

impl NameReport {
    pub fn into_steps(mut self) -> Vec<StoryStep> {
        self.between.sort_by_key(UnwitnessedLife::first_version);
        let mut steps = self.before;
        steps.extend(self.between.into_iter().map(StoryStep::Life));
        steps.append(&mut self.after);
        steps
    }

    /// Whether versions are missing, the end among them.
    fn is_torn(&self) -> bool {
        let torn =
            |step: &StoryStep| matches!(step, StoryStep::MissingVersions(..) | StoryStep::Ended(_, None));
        self.before.iter().chain(&self.after).any(torn) || self.between.iter().any(UnwitnessedLife::is_torn)
    }
}

pub(crate) struct RepairReporter {
    parts: Arc<SourceParts>,
    inputs: mpsc::Sender<WriterInput>,
    round: RoundId,
    waiting: Vec<NameReport>,
    /// Other witnesses that may have seen the versions in holes.
    others: Option<OtherWitnesses>,
    /// Names with holes that other witnesses may have seen.
    torn: Vec<NameReport>,
    /// Names that were not reported yet.
    left: usize,
}

impl RepairReporter {
    pub fn new(
        parts: &Arc<SourceParts>,
        inputs: &mpsc::Sender<WriterInput>,
        round: RoundId,
        names: usize,
        others: Option<OtherWitnesses>,
    ) -> Self {
        let reporter = Self {
            parts: Arc::clone(parts),
            inputs: inputs.clone(),
            round,
            waiting: Vec::new(),
            others,
            torn: Vec::new(),
            left: names,
        };
        reporter.show_progress();
        reporter
    }

    /// Takes a name that was read back.
    pub async fn take_report(&mut self, mut report: NameReport) -> Result<(), WriterClosed> {
        if report.waits.is_none() {
            return self.send_report(report).await;
        }
        if !report.before.is_empty() && !self.may_be_whole(&report) {
            // The end of the former object is older than any object that the sweep may still find.
            self.send_story(std::mem::take(&mut report.before), None).await?;
        }
        self.waiting.push(report);
        Ok(())
    }

    /// Takes an unknown object that the sweep found.
    pub async fn take_life(&mut self, life: UnwitnessedLife) -> Result<(), WriterClosed> {
        let of_name = |report: &&mut NameReport| {
            report.object.name == life.object.name && report.object.namespace == life.object.namespace
        };
        match self.waiting.iter_mut().find(of_name) {
            Some(report) => report.between.push(life),
            None => {
                let object = Arc::new(life.object.clone());
                let between = vec![life];
                let report =
                    NameReport { object, before: Vec::new(), between, after: Vec::new(), waits: None };
                match self.may_be_whole(&report) {
                    true => self.torn.push(report),
                    false => self.send_story(report.into_steps(), None).await?,
                }
            }
        }
        Ok(())
    }

    /// Notes that the sweep is complete up to this version.
    pub async fn send_ready_reports(&mut self, clean: u128) -> Result<(), WriterClosed> {
        let waits =
            |report: &mut NameReport| report.waits.is_some_and(|until| until > clean.saturating_add(1));
        let ready: Vec<NameReport> = self.waiting.extract_if(.., |report| !waits(report)).collect();
        for report in ready {
            self.send_report(report).await?;
        }
        Ok(())
    }

    /// Whether another witness may have seen the missing versions.
    fn may_be_whole(&self, report: &NameReport) -> bool {
        self.others.is_some() && report.is_torn()
    }

    /// Ends the report. These holes contain the objects that were not found.
    pub async fn end_report(mut self, mut holes: Vec<MissingVersions>) -> Result<(), WriterClosed> {
        self.send_ready_reports(u128::MAX).await?;
        let is_whole = holes.is_empty() && self.torn.is_empty();
        if let Some(others) = self.others.take().filter(|_| !is_whole)
            && self.is_seen_by(&others).await?
        {
            holes.clear();
        }
        self.send_torn_reports().await?;
        for hole in holes {
            self.send(WriterInput::SourceHole(Some(self.round), hole)).await?;
        }
        self.send(WriterInput::Settled(self.round)).await
    }

    /// Whether another witness knows the missing versions. If only that witness can continue, the source
    /// ends.
    async fn is_seen_by(&mut self, others: &OtherWitnesses) -> Result<bool, WriterClosed> {
        self.send(WriterInput::Swept(self.round)).await?;
        loop {
            match others.have_seen(&self.parts, !self.torn.is_empty()).await {
                WaitResult::InVain => return Ok(false),
                WaitResult::Behind => self.send_torn_reports().await?,
                WaitResult::Seen(_) if self.torn.is_empty() => return Ok(true),
                WaitResult::Seen(why) => {
                    // The journal now has what is missing here.
                    self.send(WriterInput::Overtaken(why)).await?;
                    return Err(WriterClosed);
                }
            }
        }
    }

    async fn send_torn_reports(&mut self) -> Result<(), WriterClosed> {
        for report in std::mem::take(&mut self.torn) {
            self.send_report(report).await?;
        }
        Ok(())
    }

    async fn send_report(&mut self, report: NameReport) -> Result<(), WriterClosed> {
        if self.may_be_whole(&report) {
            self.torn.push(report);
            return Ok(());
        }
        let object = Arc::clone(&report.object);
        self.send_story(report.into_steps(), Some(object)).await?;
        self.left = self.left.saturating_sub(1);
        self.show_progress();
        Ok(())
    }

    async fn send_story(
        &self,
        steps: Vec<StoryStep>,
        release: Option<Arc<ObjectRef>>,
    ) -> Result<(), WriterClosed> {
        self.send(WriterInput::Story(ReadStory { round: Some(self.round), epoch: None, steps, release }))
            .await
    }

    fn show_progress(&self) {
        self.parts.shared.lock_live().walking = self.left;
    }

    async fn send(&self, input: WriterInput) -> Result<(), WriterClosed> {
        self.inputs.send(input).await.map_err(|_| WriterClosed)
    }
}
