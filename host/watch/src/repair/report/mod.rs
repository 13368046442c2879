//! Tells the writer what a round found, name by name and in each name's order.
//!
//! Under one name others may have come and gone that only the sweep finds. So what began in the
//! outage waits until the sweep has come to its beginning, and the name of what has ended until
//! the end of the sweep.
//!
//! Holes come last where another witness of a shared journal may have seen what lies in them. It asks the
//! server nothing.

pub(crate) mod discrepancy;
pub(crate) mod other_witnesses;

use std::sync::Arc;

use kubewitness_core::state::ObjectRef;
use tokio::sync::mpsc;

use crate::repair::report::other_witnesses::{OtherWitnesses, Waited};
use crate::source::hole::Hole;
use crate::source::input::{Closed, Input, Step, Story};
use crate::source::life::Life;
use crate::source::parts::Parts;
use crate::source::round::RoundId;

/// One name with what was missed of it.
pub(crate) struct NameReport {
    pub object: Arc<ObjectRef>,
    /// Of the bearer before.
    pub before: Vec<Step>,
    /// Whoever had the name in between.
    pub between: Vec<Life>,
    pub after: Vec<Step>,
    /// It waits until nobody unknown can have had the name before this version.
    pub waits: Option<u128>,
}

impl NameReport {
    pub fn steps(mut self) -> Vec<Step> {
        self.between.sort_by_key(Life::begins);
        let mut steps = self.before;
        steps.extend(self.between.into_iter().map(Step::Life));
        steps.append(&mut self.after);
        steps
    }

    /// Versions of it are not known, its end among them.
    fn is_torn(&self) -> bool {
        let torn = |step: &Step| matches!(step, Step::Hole(..) | Step::Ended(_, None));
        self.before.iter().chain(&self.after).any(torn) || self.between.iter().any(Life::is_torn)
    }
}

pub(crate) struct Reporter {
    parts: Arc<Parts>,
    inputs: mpsc::Sender<Input>,
    round: RoundId,
    waiting: Vec<NameReport>,
    /// Who may have seen what lies in holes.
    others: Option<OtherWitnesses>,
    /// Names with holes, where others may.
    torn: Vec<NameReport>,
    /// Names that are not told yet.
    left: usize,
}

impl Reporter {
    pub fn new(
        parts: &Arc<Parts>,
        inputs: &mpsc::Sender<Input>,
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
        reporter.show();
        reporter
    }

    /// A name was read back.
    pub async fn read_back(&mut self, mut report: NameReport) -> Result<(), Closed> {
        if report.waits.is_none() {
            return self.tell(report).await;
        }
        if !report.before.is_empty() && !self.may_be_whole(&report) {
            // How the bearer before ended is older than anybody who may be found.
            self.story(std::mem::take(&mut report.before), None).await?;
        }
        self.waiting.push(report);
        Ok(())
    }

    /// Somebody was found of whom nothing was known.
    pub async fn found(&mut self, life: Life) -> Result<(), Closed> {
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
                    false => self.story(report.steps(), None).await?,
                }
            }
        }
        Ok(())
    }

    /// Nobody unknown is hidden up to this version.
    pub async fn clean(&mut self, clean: u128) -> Result<(), Closed> {
        let waits =
            |report: &mut NameReport| report.waits.is_some_and(|until| until > clean.saturating_add(1));
        let ready: Vec<NameReport> = self.waiting.extract_if(.., |report| !waits(report)).collect();
        for report in ready {
            self.tell(report).await?;
        }
        Ok(())
    }

    /// Another witness may have seen what this one lacks of it.
    fn may_be_whole(&self, report: &NameReport) -> bool {
        self.others.is_some() && report.is_torn()
    }

    /// Whoever was not found lies in these holes.
    pub async fn end(mut self, mut holes: Vec<Hole>) -> Result<(), Closed> {
        self.clean(u128::MAX).await?;
        let is_whole = holes.is_empty() && self.torn.is_empty();
        if let Some(others) = self.others.take().filter(|_| !is_whole)
            && self.is_seen_by(&others).await?
        {
            holes.clear();
        }
        self.tell_torn().await?;
        for hole in holes {
            self.send(Input::SourceHole(Some(self.round), hole)).await?;
        }
        self.send(Input::Settled(self.round)).await
    }

    /// Whether another witness knows what this one does not. It ends where that one alone can go on.
    async fn is_seen_by(&mut self, others: &OtherWitnesses) -> Result<bool, Closed> {
        self.send(Input::Swept(self.round)).await?;
        loop {
            match others.have_seen(&self.parts, !self.torn.is_empty()).await {
                Waited::InVain => return Ok(false),
                Waited::Behind => self.tell_torn().await?,
                Waited::Seen(_) if self.torn.is_empty() => return Ok(true),
                Waited::Seen(why) => {
                    // What is missing here is there by now.
                    self.send(Input::Overtaken(why)).await?;
                    return Err(Closed);
                }
            }
        }
    }

    async fn tell_torn(&mut self) -> Result<(), Closed> {
        for report in std::mem::take(&mut self.torn) {
            self.tell(report).await?;
        }
        Ok(())
    }

    async fn tell(&mut self, report: NameReport) -> Result<(), Closed> {
        if self.may_be_whole(&report) {
            self.torn.push(report);
            return Ok(());
        }
        let object = Arc::clone(&report.object);
        self.story(report.steps(), Some(object)).await?;
        self.left = self.left.saturating_sub(1);
        self.show();
        Ok(())
    }

    async fn story(&self, steps: Vec<Step>, release: Option<Arc<ObjectRef>>) -> Result<(), Closed> {
        self.send(Input::Story(Story { round: Some(self.round), epoch: None, steps, release })).await
    }

    fn show(&self) {
        self.parts.shared.live().walking = self.left;
    }

    async fn send(&self, input: Input) -> Result<(), Closed> {
        self.inputs.send(input).await.map_err(|_| Closed)
    }
}
