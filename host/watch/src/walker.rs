//! Works off the rounds that lists leave behind, beside the watch: reads missed versions back,
//! looks for what came and went unseen, and tells the writer, name by name.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, stream};
use kubewitness_core::Version;
use kubewitness_core::document::unpack;
use kubewitness_core::state::ObjectRef;
use tokio::sync::mpsc;

use crate::budget::Budget;
use crate::exact::{Ended, Exact, Life};
use crate::input::{Input, Step, Story};
use crate::reader::Closed;
use crate::round::{Job, Moved, Outage, Round, RoundId, Vanished};
use crate::source::Parts;
use crate::sweep::{Told, number};
use crate::sweeping::Sweeping;
use crate::walkback::{Met, Walked};

/// Rounds that wait to be worked off; a list waits until the one before is settled.
pub(crate) const ROUNDS: usize = 1;

pub(crate) struct Walker {
    parts: Arc<Parts>,
    inputs: mpsc::Sender<Input>,
}

/// A name with what was missed of it.
pub(crate) struct Walk {
    object: Arc<ObjectRef>,
    /// Of the bearer before, and of whoever had the name in between.
    before: Vec<Step>,
    between: Vec<Life>,
    after: Vec<Step>,
    told: Vec<Told>,
    /// Others may have had the name in between: the sweep will tell.
    is_chain: bool,
}

/// What reading all names of a round back gave.
#[derive(Default)]
struct Walks {
    told: Vec<Told>,
    /// Uids that were met on the way and are told already.
    met: Vec<String>,
    chains: Vec<Walk>,
}

impl Walker {
    pub fn new(parts: Arc<Parts>, inputs: mpsc::Sender<Input>) -> Self {
        Self { parts, inputs }
    }

    /// Ends only with the writer or the reader; it is dropped to stop it.
    pub async fn run(self, mut rounds: mpsc::Receiver<Round>) {
        while let Some(round) = rounds.recv().await {
            let cancel = round.cancel.clone();
            let worked = tokio::select! {
                () = cancel.cancelled() => Ok(()),
                worked = self.round(round) => worked,
            };
            self.parts.shared.live().walking = 0;
            if worked.is_err() {
                return;
            }
        }
    }

    async fn round(&self, mut round: Round) -> Result<(), Closed> {
        let begun = tokio::time::Instant::now();
        let jobs = std::mem::take(&mut round.jobs);
        let objects = jobs.len();
        self.walking(objects);
        let Walks { told, met, chains } = self.walk_all(&round, jobs).await?;
        if let Some(outage) = round.sweep.take() {
            self.sweep(&round, outage, told, met, chains).await?;
        } else {
            for chain in chains {
                self.tell(round.id, chain).await?;
            }
        }
        tracing::info!(source = %self.parts.spec.name, objects, took = ?begun.elapsed(), "what was missed is read back");
        self.send(Input::Settled(round.id)).await
    }

    /// Reads all names back. Those under which others may have come and gone wait for the sweep.
    async fn walk_all(&self, round: &Round, jobs: Vec<Job>) -> Result<Walks, Closed> {
        let budget = &self.parts.tuning.walk;
        let exact = Exact::new(
            Arc::clone(&self.parts),
            round.resource.clone(),
            Budget::new(budget.requests, budget.time, budget.rate),
        );
        let (mut walks, mut left) = (Walks::default(), jobs.len());
        let outage = round.sweep.as_ref();
        let walking = jobs.into_iter().map(|job| walk(&exact, job, outage));
        let mut walking = stream::iter(walking).buffer_unordered(budget.concurrency.max(1));
        while let Some(mut walk) = walking.next().await {
            walks.told.append(&mut walk.told);
            walks.met.extend(walk.between.iter().map(|life| life.object.uid.clone()));
            if walk.is_chain && round.sweep.is_some() {
                walks.chains.push(walk);
                continue;
            }
            self.tell(round.id, walk).await?;
            left -= 1;
            self.walking(left);
        }
        Ok(walks)
    }

    async fn sweep(
        &self,
        round: &Round,
        outage: Outage,
        told: Vec<Told>,
        met: Vec<String>,
        chains: Vec<Walk>,
    ) -> Result<(), Closed> {
        let swept = Sweeping::new(&self.parts, round.resource.clone(), outage, told, &met).run().await;
        let name = |object: &ObjectRef| (object.namespace.clone(), object.name.clone());
        let mut chains: HashMap<_, Walk> =
            chains.into_iter().map(|chain| (name(&chain.object), chain)).collect();
        for life in swept.lives {
            match chains.get_mut(&name(&life.object)) {
                Some(chain) => chain.between.push(life),
                None => self.tell_life(round.id, life).await?,
            }
        }
        for chain in chains.into_values() {
            self.tell(round.id, chain).await?;
        }
        for hole in swept.holes {
            self.send(Input::SourceHole(Some(round.id), hole)).await?;
        }
        Ok(())
    }

    async fn tell(&self, round: RoundId, walk: Walk) -> Result<(), Closed> {
        let (steps, object) = steps(walk);
        self.story(Some(round), steps, Some(object)).await
    }

    async fn tell_life(&self, round: RoundId, life: Life) -> Result<(), Closed> {
        self.story(Some(round), vec![Step::Life(life)], None).await
    }

    async fn story(
        &self,
        round: Option<RoundId>,
        steps: Vec<Step>,
        release: Option<Arc<ObjectRef>>,
    ) -> Result<(), Closed> {
        self.send(Input::Story(Story { round, epoch: None, steps, release })).await
    }

    fn walking(&self, left: usize) {
        self.parts.shared.live().walking = left;
    }

    async fn send(&self, input: Input) -> Result<(), Closed> {
        self.inputs.send(input).await.map_err(|_| Closed)
    }
}

pub(crate) async fn walk(exact: &Exact, job: Job, outage: Option<&Outage>) -> Walk {
    match job {
        Job::Moved(moved) => moved_back(exact, moved, outage).await,
        Job::Vanished(vanished) => vanished_back(exact, vanished, outage).await,
    }
}

/// A walk as the writer tells it, and the name that passes after it.
pub(crate) fn steps(mut walk: Walk) -> (Vec<Step>, Arc<ObjectRef>) {
    walk.between.sort_by_key(Life::begins);
    let mut steps = walk.before;
    steps.extend(walk.between.into_iter().map(Step::Life));
    steps.append(&mut walk.after);
    (steps, walk.object)
}

/// What lies below a listed object, and how the bearer of its name before it ended.
async fn moved_back(exact: &Exact, moved: Moved, outage: Option<&Outage>) -> Walk {
    let errand = exact.errand();
    let Moved { object, floor, version, document, witnessed, rival } = moved;
    let walked = exact.versions(errand, &object, &floor, &version).await;
    let begins = walked.found.first().map_or(&version, |(oldest, _)| oldest).clone();
    let mut told = story_of(&walked);
    told.versions.extend(number(&version));
    told.born = number(&begins).filter(|_| !witnessed && walked.hole.is_none());
    told.unsure = number(&begins).filter(|_| !witnessed && walked.hole.is_some());
    let (mut told, mut before, mut between) = (vec![told], Vec::new(), Vec::new());
    let is_chain = rival.is_some();
    if let Some((rival, floor)) = rival {
        let ended = exact.end(errand, &rival, &floor, &begins).await;
        told.push(end_of(&ended));
        between = met_back(exact, &ended.met, &rival, &floor, &begins, outage).await;
        before = ending(rival, ended);
    }
    told.extend(between.iter().map(Life::told));
    let mut after = missed(&object, walked);
    // What can't be unpacked is kept as poison.
    after.push(Step::Version(unpack(&document).unwrap_or_else(|error| Bytes::from(error.to_string()))));
    Walk { object, before, between, after, told, is_chain }
}

async fn vanished_back(exact: &Exact, vanished: Vanished, outage: Option<&Outage>) -> Walk {
    let Vanished { object, floor, absent } = vanished;
    let ended = exact.end(exact.errand(), &object, &floor, &absent).await;
    let between = met_back(exact, &ended.met, &object, &floor, &absent, outage).await;
    let mut told = vec![end_of(&ended)];
    told.extend(between.iter().map(Life::told));
    let before = ending(Arc::clone(&object), ended);
    Walk { object, before, between, after: Vec::new(), told, is_chain: false }
}

/// Those who were seen under a name and of whom nothing was witnessed.
async fn met_back(
    exact: &Exact,
    met: &[Met],
    like: &ObjectRef,
    floor: &Version,
    absent: &Version,
    outage: Option<&Outage>,
) -> Vec<Life> {
    let mut lives: Vec<Life> = Vec::new();
    for met in met {
        let told = lives.iter().any(|life| life.object.uid == met.uid);
        if !told && !outage.is_some_and(|outage| outage.known.contains(&met.uid)) {
            let known = |uid: &str| outage.is_some_and(|outage| outage.known.contains(uid));
            lives.extend(exact.lives(exact.errand(), met.clone(), like, floor, absent, &known).await);
        }
    }
    lives
}

/// The last versions of an object, and its end.
fn ending(object: Arc<ObjectRef>, ended: Ended) -> Vec<Step> {
    let mut steps = missed(&object, ended.walked);
    steps.push(Step::Ended(object, ended.version));
    steps
}

fn missed(object: &Arc<ObjectRef>, walked: Walked) -> Vec<Step> {
    let mut steps: Vec<Step> =
        walked.hole.into_iter().map(|hole| Step::Hole(Arc::clone(object), hole)).collect();
    steps.extend(walked.found.into_iter().map(|(_, document)| Step::Missed(document)));
    steps
}

fn story_of(walked: &Walked) -> Told {
    Told {
        versions: walked.found.iter().filter_map(|(version, _)| number(version)).collect(),
        ..Told::default()
    }
}

fn end_of(ended: &Ended) -> Told {
    Told { died: ended.version.as_ref().and_then(number), ..story_of(&ended.walked) }
}
