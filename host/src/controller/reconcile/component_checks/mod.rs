//! Examines components beside the loop that follows the configuration.
//!
//! Compiling a component may take minutes. In the loop it would delay every other change, so it runs as a
//! task of its own, and delays only its plugin. [`queue`] decides what is examined, and abandons an
//! examination once no document asks for it any more. A later round of the loop takes the answer. This module
//! starts and stops no plugin: the loop does.

mod queue;

use std::collections::BTreeMap;
use std::sync::Arc;

use kubewitness_core::calendar;
use kubewitness_core::clock::Clock;
use kubewitness_sandbox::SandboxEngine;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::config::component::is_fetching;
use crate::config::manifest::ManifestProblem;
use crate::controller::plugins::{ExaminedFit, WantedPlugin};
use crate::tasks::{TaskFate, TaskSupervisor};
use queue::{BothClocks, CheckQueue};

pub type CheckAnswer = Result<ExaminedFit, Vec<ManifestProblem>>;

pub struct ComponentChecks {
    engine: SandboxEngine,
    tasks: TaskSupervisor,
    clock: Arc<dyn Clock>,
    queue: CheckQueue<CheckAnswer>,
    /// The tasks that end with each examination: its own, and those whose compilation it shares.
    work: BTreeMap<u64, Vec<DropGuard>>,
    compiling: watch::Receiver<Option<Arc<str>>>,
    answers: mpsc::UnboundedReceiver<(u64, CheckAnswer)>,
    /// Passed to each examination, which answers once.
    to_answer: mpsc::UnboundedSender<(u64, CheckAnswer)>,
}

impl ComponentChecks {
    pub fn new(engine: SandboxEngine, tasks: TaskSupervisor, clock: Arc<dyn Clock>) -> Self {
        let (work, compiling) = (BTreeMap::new(), engine.digest_in_progress());
        let (to_answer, answers) = mpsc::unbounded_channel();
        Self { engine, tasks, clock, queue: CheckQueue::default(), work, compiling, answers, to_answer }
    }

    fn now(&self) -> BothClocks {
        BothClocks { elapsed: self.clock.elapsed(), ms: self.clock.now_ms() }
    }

    /// Examinations that nobody asks for before [`Self::end_round`] end there.
    pub fn begin_round(&mut self) {
        self.queue.begin_round();
    }

    /// Requests an examination. Returns the number under which its answer arrives.
    pub fn request_check(&mut self, wanted: WantedPlugin) -> u64 {
        let asked = self.queue.request_check(wanted.question.clone(), self.now());
        if asked.is_new {
            self.begin_check(asked.number, wanted);
        }
        asked.number
    }

    fn begin_check(&mut self, number: u64, wanted: WantedPlugin) {
        let (stop, engine, answers) = (CancellationToken::new(), self.engine.clone(), self.to_answer.clone());
        self.work.insert(number, vec![stop.clone().drop_guard()]);
        let name = format!("examining {}", wanted.parsed.name);
        self.tasks.spawn_task(name, TaskFate::Finite, async move {
            if let Some(answer) = stop.run_until_cancelled(wanted.examine_component(&engine)).await {
                // The loop that asked may have ended meanwhile.
                answers.send((number, answer)).ok();
            }
            Ok(())
        });
    }

    pub fn end_round(&mut self) {
        for left in self.queue.end_round() {
            let Some(guards) = self.work.remove(&left.number) else { continue };
            if let Some(of_heir) = left.heir.and_then(|heir| self.work.get_mut(&heir)) {
                of_heir.extend(guards);
            }
        }
    }

    /// Returns once one has an answer.
    pub async fn await_answer(&mut self) {
        // The sender is held beside the receiver, so the channel never closes.
        if let Some((number, answer)) = self.answers.recv().await {
            self.work.remove(&number);
            self.queue.note_answer(number, answer);
        }
    }

    /// Returns once all that do not take long have an answer.
    pub async fn await_quick_answers(&mut self) {
        while let Some(patience) = self.queue.remaining_patience(self.now()) {
            // After the limit, patience is 0.
            tokio::time::timeout(patience, self.await_answer()).await.ok();
        }
    }

    /// The answer, if it has arrived.
    pub fn take(&mut self, number: u64) -> Option<CheckAnswer> {
        self.queue.take(number)
    }

    /// The message about an examination without an answer.
    pub fn waiting_message(&self, number: u64) -> Option<String> {
        let (since_ms, question) = self.queue.open(number)?;
        let (mark, now) = (question.mark.as_str(), self.compiling.borrow());
        let what = match now.as_deref() {
            _ if question.shadow_mark.as_deref().is_some_and(is_fetching) => {
                "for its shadow is being fetched"
            }
            // A digest contains no slash.
            _ if mark.contains('/') && is_fetching(mark) => "is being fetched",
            _ if mark.contains('/') => "waits for its turn to be fetched, or is being checked",
            Some(compiled) if compiled == mark => "is being compiled",
            Some(_) => "waits: another component is being compiled",
            None => "is being checked",
        };
        Some(format!("the plugin's component {what} (since {})", calendar::format_rfc3339(since_ms)))
    }

    /// Ends all. Those still wanted are requested again.
    pub fn abandon_all(&mut self) {
        self.begin_round();
        self.end_round();
    }
}
