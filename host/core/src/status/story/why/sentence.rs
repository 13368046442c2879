//! Renders an explanation as one sentence, made of claims. Each claim knows the states that it rests on, so that a reader
//! can look at them.

use super::documents::OwnerDocument;
use super::pod_end::signal_name;
use super::queue;
use super::wait_times::{MeasuredWait, WaitReason, WaitTimes};
use super::waits::{self, InterruptionKind, RunInterruption};
use super::{
    Cause, CauseKind, ContainerRole, ExplainedStates, FailedContainer, Outcome, SentenceClaim, WhyView,
    last_work_status,
};
use crate::model::fault::shorten_text;
use crate::state::{Change, Seq, State, Status};
use crate::status::phase;
use crate::status::story::{PhaseTimes, begins_run, duration_text};

/// The most bytes of a message from the cluster: the sentence must fit a line.
pub(super) const MESSAGE_BYTES: usize = 240;
/// Shorter waits are not mentioned.
const NOTED_MS: u64 = 1_000;

/// The claims of the sentence, in its order. `index_attempt` is the attempt of the index whose pod is the cause, if each
/// index has a limit of its own.
pub(super) fn claims_of(
    story: &ExplainedStates<'_>,
    owner: &OwnerDocument,
    index_attempt: Option<u32>,
    why: &WhyView,
    now_ms: u64,
) -> Vec<SentenceClaim> {
    let Some(last) = story.last_state() else { return Vec::new() };
    let (status, times) = (last_work_status(last), PhaseTimes::of(story.states, now_ms));
    let waits = WaitTimes::of(story, owner, now_ms);
    let mut parts = Vec::new();
    let waits_now = waits.is_waiting && matches!(why.outcome, Outcome::Waiting | Outcome::Running);
    parts.extend(waiting_clause_of("waited", &waits.first, waits_now && !waits.has_begun));
    let silent_run = waits::silent_run(story);
    let silent_ms =
        silent_run.map_or(0, |(begin, to_ms)| to_ms.unwrap_or(now_ms).saturating_sub(begin.observed_ms));
    let running_ms = times.running_ms.max(silent_ms);
    if running_ms > 0 {
        let says_so = last.status.phase == phase::RUNNING && last.change == Change::Present;
        let runs = says_so || silent_run.is_some() && why.outcome == Outcome::Running;
        let text = format!("{} {}", if runs { "has run for" } else { "ran" }, duration_text(running_ms));
        let began = first_run(story).or(silent_run.map(|(begin, _)| begin));
        parts.push(SentenceClaim::new(text, began.map(|state| state.seq)));
    }
    let interruptions = waits::run_interruptions(story, now_ms);
    parts.extend(interruption_clauses(story, &interruptions));
    parts.extend(waiting_clause_of("waited again", &waits.again, waits_now));
    // No attempt ends by itself at a deadline.
    let is_deadline = why.cause.as_ref().is_some_and(|cause| cause.kind == CauseKind::Deadline);
    let attempts = AttemptCount::of(&status, owner, index_attempt).filter(|_| !is_deadline);
    let scene = ClauseScene {
        tells_preemption: interruptions.iter().any(|it| it.kind == InterruptionKind::Preempted),
        // The pod that is named failed in the first attempt, and not in the last one.
        attempts: attempts.filter(|_| why.outcome == Outcome::Failed),
        ..ClauseScene::of(story)
    };
    let are_told = scene.attempts.is_some();
    parts.extend(end_clauses(&scene, &status, why));
    let attempts = attempts.filter(|_| !are_told);
    parts.extend(attempts.map(|attempts| SentenceClaim::new(attempts.current(), newest_status(story))));
    let by_last = |text: &str| SentenceClaim::new(text, [last.seq]);
    match last.change {
        Change::Gone if why.outcome != Outcome::Deleted => parts.push(by_last("deleted since")),
        Change::Left => parts.push(by_last("no longer watched")),
        _ => {}
    }
    let gaps = story.states.iter().filter(|state| state.change == Change::Gap).map(|state| state.seq);
    let count = gaps.clone().count();
    if count > 0 {
        let text = format!("{count} {} in the history", if count == 1 { "gap" } else { "gaps" });
        parts.push(SentenceClaim::new(text, gaps));
    }
    if let Some(first) = parts.first_mut() {
        first.text = capitalize_first(&first.text);
    }
    parts
}

/// The sentence of these claims.
pub(super) fn join_claims(claims: &[SentenceClaim], doubt: &str) -> String {
    let texts: Vec<_> = claims.iter().map(|claim| claim.text.as_str()).collect();
    let sentence = texts.join(", ");
    match doubt.is_empty() {
        true => sentence,
        false => format!("{sentence} ({doubt})"),
    }
}

/// The state in which an object that says so first ran.
fn first_run<'a>(story: &ExplainedStates<'a>) -> Option<&'a State> {
    let mut states = story.states.iter().map(|state| &**state);
    states.find(|state| begins_run(&state.status))
}

/// The clause that says how it ended, or what it waits for.
pub(super) fn headline_clause(story: &ExplainedStates<'_>, status: &Status, why: &WhyView) -> String {
    let clauses = end_clauses(&ClauseScene::of(story), status, why);
    capitalize_first(clauses.first().map(|claim| claim.text.as_str()).unwrap_or_default())
}

/// The facts that the clauses of one sentence share.
struct ClauseScene<'a> {
    story: &'a ExplainedStates<'a>,
    /// The uid of the object that the sentence is about.
    itself: &'a str,
    /// An earlier clause says for whom the object made room.
    tells_preemption: bool,
    /// The attempts that failed.
    attempts: Option<AttemptCount>,
}

impl<'a> ClauseScene<'a> {
    fn of(story: &'a ExplainedStates<'a>) -> Self {
        let itself = story.states.last().map(|state| state.object.uid.as_str()).unwrap_or_default();
        Self { story, itself, tells_preemption: false, attempts: None }
    }

    fn after_attempts(&self) -> String {
        self.attempts.map(AttemptCount::passed).unwrap_or_default()
    }
}

/// The attempts so far.
#[derive(Clone, Copy)]
struct AttemptCount {
    used: u32,
    allowed: Option<u32>,
    /// The index of an indexed Job has attempts of its own.
    is_of_index: bool,
}

impl AttemptCount {
    /// The first attempt is not mentioned if nothing has failed yet, or no other is allowed.
    fn of(status: &Status, owner: &OwnerDocument, index_attempt: Option<u32>) -> Option<Self> {
        if let Some(allowed) = owner.index_attempts_allowed {
            // The object counts the failed pods of all its indexes together.
            let used = index_attempt.unwrap_or_default().min(allowed);
            return (used > 1).then_some(Self { used, allowed: Some(allowed), is_of_index: true });
        }
        let allowed = owner.attempts_allowed;
        // Pods that were deleted because another one failed count as failed, too.
        let used = allowed.map_or(status.attempt, |allowed| status.attempt.min(allowed));
        let is_told = match (used, allowed) {
            (0, _) | (1, None | Some(1)) => false,
            (1, Some(_)) => status.phase == phase::FAILED,
            _ => true,
        };
        is_told.then_some(Self { used, allowed, is_of_index: false })
    }

    /// `attempt 2 of 5`.
    fn current(self) -> String {
        format!("attempt {}{}", self.figures(), self.owner())
    }

    /// ` after 2 of 5 attempts`.
    fn passed(self) -> String {
        format!(" after {} attempts{}", self.figures(), self.owner())
    }

    fn figures(self) -> String {
        let Self { used, allowed, .. } = self;
        allowed.map_or_else(|| used.to_string(), |allowed| format!("{used} of {allowed}"))
    }

    fn owner(self) -> &'static str {
        if self.is_of_index { " of its index" } else { "" }
    }
}

/// How long it waited for each thing: `has waited 3 s for a node and 9 s to start`.
fn waiting_clause_of(verb: &str, waits: &[MeasuredWait], goes_on: bool) -> Option<SentenceClaim> {
    let noted = waits.iter().filter(|wait| wait.took_ms >= NOTED_MS);
    let in_words = |wait: &MeasuredWait| {
        format!("{} {}", duration_text(wait.took_ms), waited_for(wait.reason)).trim_end().to_owned()
    };
    let each: Vec<_> = noted.clone().map(in_words).collect();
    let has = if goes_on { "has " } else { "" };
    let text = || format!("{has}{verb} {}", join_with_and(&each));
    (!each.is_empty()).then(|| SentenceClaim::new(text(), noted.map(|wait| wait.seq)))
}

fn waited_for(wait: WaitReason) -> &'static str {
    match wait {
        None => "to start",
        Some(CauseKind::Quota) => "for quota",
        Some(CauseKind::Suspended) => "suspended",
        Some(CauseKind::Unschedulable) => "for a node",
        Some(CauseKind::ImagePull) => "for an image",
        Some(CauseKind::Configuration) => "for its configuration",
        Some(CauseKind::Preempted) => "after it was preempted",
        Some(_) => "",
    }
}

/// Interruptions after the first run, such as how often it was preempted.
fn interruption_clauses(
    story: &ExplainedStates<'_>,
    interruptions: &[RunInterruption<'_>],
) -> Vec<SentenceClaim> {
    let (mut preempted, mut evicted, mut suspended) = (Vec::new(), Vec::new(), Vec::new());
    for interruption in interruptions {
        match interruption.kind {
            InterruptionKind::Preempted => preempted.push((interruption.message, interruption.seq)),
            InterruptionKind::Evicted => evicted.push((interruption.message, interruption.seq)),
            InterruptionKind::Suspended => suspended.push(interruption.seq),
        }
    }
    let mut parts = Vec::new();
    match &preempted[..] {
        [] => {}
        [(message, seq)] => {
            let whom = queue::preemption_clause(message, story.preemptors);
            parts.push(SentenceClaim::new(format!("was preempted{whom}"), [*seq]));
        }
        more => {
            let text = format!("was preempted {} times", more.len());
            parts.push(SentenceClaim::new(text, more.iter().map(|(_, seq)| *seq)));
        }
    }
    if let Some((reason, seq)) = evicted.last().copied().or(queue::eviction_before_run(story)) {
        parts.push(SentenceClaim::new(format!("was taken back by its queue ({reason})"), [seq]));
    }
    if !suspended.is_empty() {
        parts.push(SentenceClaim::new("was suspended", suspended));
    }
    parts
}

/// The clauses that say how it ended, or what it waits for.
fn end_clauses(scene: &ClauseScene<'_>, status: &Status, why: &WhyView) -> Vec<SentenceClaim> {
    let end = end_clause(scene, status, why)
        .map(|text| SentenceClaim::new(text, end_states(scene.story, status, why).into_iter().flatten()));
    // A sidecar is restarted on its own, and its end fails no pod.
    let (sidecars, pods): (Vec<_>, Vec<_>) = why.also.iter().partition(|cause| is_about_sidecar(cause));
    let words: Vec<_> = pods.iter().map(|cause| in_short(cause)).collect();
    let before = if why.cause.is_some() { "other pods" } else { "pods that failed" };
    let others = (!pods.is_empty()).then(|| {
        let text = format!("{before}: {}", join_with_and(&words));
        SentenceClaim::new(text, pods.iter().map(|cause| cause.seq))
    });
    let sidecars =
        sidecars.into_iter().map(|cause| SentenceClaim::new(failure_clause(cause, scene), [cause.seq]));
    end.into_iter().chain(others).chain(sidecars).collect()
}

fn is_about_sidecar(cause: &Cause) -> bool {
    cause.container.as_ref().is_some_and(|container| container.role == ContainerRole::Sidecar)
}

/// The states that the clause about the end rests on: that of the cause, and that of the object itself.
fn end_states(story: &ExplainedStates<'_>, status: &Status, why: &WhyView) -> [Option<Seq>; 2] {
    let by_cause = why.cause.as_ref().map(|cause| cause.seq).filter(|seq| *seq > 0);
    let own = newest_status(story);
    match why.outcome {
        Outcome::Deleted => [story.last_state().map(|state| state.seq), None],
        Outcome::Running if status.phase == phase::RESTARTING => [own, None],
        // The object itself says that it has failed, and how often.
        Outcome::Failed => [by_cause, own],
        Outcome::Waiting if super::is_failing(status) => [by_cause, own],
        _ => [by_cause.or(own), None],
    }
}

/// The state with the last status that describes the object's work.
fn newest_status(story: &ExplainedStates<'_>) -> Option<Seq> {
    story.newest_version().or(story.last_state()).map(|state| state.seq)
}

fn end_clause(scene: &ClauseScene<'_>, status: &Status, why: &WhyView) -> Option<String> {
    Some(match (why.outcome, &why.cause) {
        (Outcome::Succeeded, _) => "succeeded".to_owned(),
        (Outcome::Failed, Some(cause)) => {
            let words = match cause.kind {
                CauseKind::Unknown => given_up_clause(status, cause),
                _ => failure_clause(cause, scene),
            };
            format!("failed{}: {words}", scene.after_attempts())
        }
        (Outcome::Failed, None) => format!("failed{}", scene.after_attempts()),
        (Outcome::Deleted, Some(cause)) if cause.kind == CauseKind::Unknown => {
            "is gone, and how it ended is not known".to_owned()
        }
        (Outcome::Deleted, _) => "was deleted before its end".to_owned(),
        (Outcome::Waiting, Some(cause)) if super::is_failing(status) => {
            format!("is about to fail: {}", failure_clause(cause, scene))
        }
        (Outcome::Waiting, Some(cause)) => waiting_clause(cause, scene),
        (Outcome::Waiting, None) => {
            let has_run = scene.story.states.iter().any(|state| state.status.phase == phase::RUNNING);
            let words = if has_run { "has not started again yet" } else { "has not started yet" };
            words.to_owned()
        }
        (Outcome::Running, _) if status.phase == phase::RESTARTING => "is being started again".to_owned(),
        (Outcome::Running, Some(cause)) => waiting_clause(cause, scene),
        (Outcome::Running, None) => return None,
    })
}

fn failure_clause(cause: &Cause, scene: &ClauseScene<'_>) -> String {
    let subject = failure_subject(cause, scene.itself);
    let code = cause.container.as_ref().and_then(|container| container.exit_code);
    let exit = code.map(|code| format!(" (exit {code})")).unwrap_or_default();
    match cause.kind {
        CauseKind::ExitCode => match code {
            Some(code) => format!("{subject} exited with {code}{}", last_words(cause)),
            None => format!("{subject} failed"),
        },
        CauseKind::Signal => {
            format!("{subject} was ended by {}{exit}{}", in_short(cause), last_words(cause))
        }
        CauseKind::OutOfMemory => {
            format!("{subject} ran out of memory{exit}{}", last_words(cause))
        }
        CauseKind::Evicted if !cause.by.is_empty() => {
            format!("{subject} was evicted, because the node was low on {}", cause.by)
        }
        CauseKind::Evicted => format!("{subject} was evicted{}", cause_reason(cause)),
        CauseKind::Preempted if !cause.by.is_empty() => format!("{subject} was preempted by {}", cause.by),
        CauseKind::Preempted => format!("{subject} was preempted{}", cause_reason(cause)),
        CauseKind::NodeLost => format!("{subject} was lost with its node{}", cause_reason(cause)),
        CauseKind::Deleted => format!("{subject} was deleted"),
        CauseKind::Deadline => "its deadline passed".to_owned(),
        CauseKind::Unknown => "has not started yet".to_owned(),
        CauseKind::Suspended | CauseKind::Quota | CauseKind::Unschedulable => waiting_clause(cause, scene),
        CauseKind::ImagePull | CauseKind::Configuration => waiting_clause(cause, scene),
    }
}

/// The object gave up, and no witnessed state has the reason.
fn given_up_clause(status: &Status, cause: &Cause) -> String {
    let words = match status.reason.as_str() {
        "BackoffLimitExceeded" => "no attempts left".to_owned(),
        "" | "Failed" | "Error" => {
            status.exit_code.map_or("no reason given".to_owned(), |code| format!("exit {code}"))
        }
        reason => reason.to_owned(),
    };
    match status.reason.as_str() {
        "BackoffLimitExceeded" => words,
        _ => format!("{words}{}", cause_reason(cause)),
    }
}

fn waiting_clause(cause: &Cause, scene: &ClauseScene<'_>) -> String {
    let subject = failure_subject(cause, scene.itself);
    let is_of_queue = cause.object.as_ref().is_some_and(super::is_workload);
    match cause.kind {
        CauseKind::Suspended if queue::is_by_queue(cause) => format!("is queued{}", cause_reason(cause)),
        CauseKind::Suspended if is_of_queue => format!("is suspended{}", cause_reason(cause)),
        CauseKind::Suspended => "is suspended".to_owned(),
        CauseKind::Quota => format!("is queued{}", cause_reason(cause)),
        CauseKind::Configuration if is_of_queue => format!("can't be admitted{}", cause_reason(cause)),
        CauseKind::Preempted if scene.tells_preemption => "waits to be admitted again".to_owned(),
        CauseKind::Preempted => {
            let whom = queue::preemption_clause(&cause.message, scene.story.preemptors);
            let reason = if whom.is_empty() { cause_reason(cause) } else { format!(": was preempted{whom}") };
            format!("waits to be admitted again{reason}")
        }
        CauseKind::Unschedulable => {
            format!("no node fits {}{}", pod_phrase(cause, scene.itself), cause_reason(cause))
        }
        CauseKind::ImagePull => format!("the image of {subject} can't be pulled{}", cause_reason(cause)),
        CauseKind::Configuration => format!("{subject} can't start{}", cause_reason(cause)),
        _ => failure_clause(cause, scene),
    }
}

/// The cause in a word or two, for a list.
fn in_short(cause: &Cause) -> String {
    let container = cause.container.clone().unwrap_or_default();
    match (cause.kind, container) {
        (CauseKind::ExitCode, FailedContainer { exit_code: Some(code), .. }) => format!("exit {code}"),
        (CauseKind::Signal, FailedContainer { signal: Some(signal), .. }) => signal_name(signal),
        (kind, _) => kind.as_str().replace('-', " "),
    }
}

/// `container main of pod train-1 on node n1`.
fn failure_subject(cause: &Cause, itself: &str) -> String {
    let pod = pod_phrase(cause, itself);
    let node = match &cause.node {
        Some(node) if pod == "it" && cause.container.is_none() => format!(" (on node {node})"),
        Some(node) => format!(" on node {node}"),
        None => String::new(),
    };
    let container = cause.container.as_ref().filter(|container| !container.name.is_empty());
    match (container, pod == "it") {
        (Some(container), true) => format!("{}{node}", container_words(container)),
        (Some(container), false) => format!("{} of {pod}{node}", container_words(container)),
        (None, _) => format!("{pod}{node}"),
    }
}

fn container_words(container: &FailedContainer) -> String {
    format!("{} {}", container.role.words(), container.name)
}

fn pod_phrase(cause: &Cause, itself: &str) -> String {
    match cause.object.as_ref().filter(|object| object.uid != itself) {
        Some(object) => format!("{} {}", object.kind.to_lowercase(), object.name),
        None => "it".to_owned(),
    }
}

/// The cluster's message, or its reason if the message is empty.
fn cause_reason(cause: &Cause) -> String {
    let reason = if cause.message.is_empty() { &cause.reason } else { &cause.message };
    let reason = reason.replace(['\n', '\r'], " ");
    let reason = reason.trim().trim_end_matches('.');
    if reason.is_empty() { String::new() } else { format!(": {}", shorten_text(reason, MESSAGE_BYTES)) }
}

/// The text that the program left when it ended. The reason says no more than the clause: `Error` or `OOMKilled`.
fn last_words(cause: &Cause) -> String {
    if cause.message.trim().is_empty() { String::new() } else { cause_reason(cause) }
}

/// `a`, `a and b`, `a, b and c`.
fn join_with_and(parts: &[String]) -> String {
    match parts {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

fn capitalize_first(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}
