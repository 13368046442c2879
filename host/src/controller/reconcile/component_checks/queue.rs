//! Decides what is examined, what is abandoned, and how long a round of the configuration waits. Pure: time
//! is a parameter, and the work is done elsewhere.
//!
//! Each pass over the configuration is a round. An examination that a round asks for starts or continues. One
//! that it does not ask for has been replaced by a newer document or removed, and ends.

use std::time::Duration;

use crate::controller::plugins::ExaminedQuestion;

/// Almost every component is in the cache, and its examination takes milliseconds. A round waits this long
/// for examinations that have just begun; longer ones continue beside it.
pub const PATIENCE: Duration = Duration::from_secs(1);

pub struct CheckQueue<A> {
    /// In the order of their arrival.
    cases: Vec<CheckCase<A>>,
    begun: u64,
}

struct CheckCase<A> {
    number: u64,
    question: ExaminedQuestion,
    begun: BothClocks,
    answer: Option<A>,
    is_asked: bool,
}

/// Both clocks: one for decisions, one for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BothClocks {
    pub elapsed: Duration,
    pub ms: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub struct CheckRequest {
    pub number: u64,
    /// Whether the caller has to begin the work under this number.
    pub is_new: bool,
}

/// Nobody asks for it any more.
#[derive(Debug, PartialEq, Eq)]
pub struct AbandonedCheck {
    pub number: u64,
    /// The examination that compiles the same component and for which compiling continues.
    pub heir: Option<u64>,
}

impl<A> Default for CheckQueue<A> {
    fn default() -> Self {
        Self { cases: Vec::new(), begun: 0 }
    }
}

impl<A> CheckQueue<A> {
    pub fn begin_round(&mut self) {
        for case in &mut self.cases {
            case.is_asked = false;
        }
    }

    pub fn request_check(&mut self, question: ExaminedQuestion, now: BothClocks) -> CheckRequest {
        if let Some(case) = self.cases.iter_mut().find(|case| case.question == question) {
            case.is_asked = true;
            return CheckRequest { number: case.number, is_new: false };
        }
        self.begun += 1;
        let number = self.begun;
        self.cases.push(CheckCase { number, question, begun: now, answer: None, is_asked: true });
        CheckRequest { number, is_new: true }
    }

    /// An answer to an abandoned question is dropped.
    pub fn note_answer(&mut self, number: u64, answer: A) {
        if let Some(case) = self.cases.iter_mut().find(|case| case.number == number) {
            case.answer = Some(answer);
        }
    }

    /// Returns the answer, once. Asking again starts another examination.
    pub fn take(&mut self, number: u64) -> Option<A> {
        let index = self.cases.iter().position(|case| case.number == number && case.answer.is_some())?;
        self.cases.remove(index).answer
    }

    pub fn end_round(&mut self) -> Vec<AbandonedCheck> {
        let (kept, left): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.cases).into_iter().partition(|case| case.is_asked);
        self.cases = kept;
        let heir = |left: &CheckCase<A>| {
            let is_heir = |case: &&CheckCase<A>| {
                case.answer.is_none() && case.question.compiles_the_same(&left.question)
            };
            self.cases.iter().find(is_heir).map(|case| case.number)
        };
        left.iter().map(|case| AbandonedCheck { number: case.number, heir: heir(case) }).collect()
    }

    /// How long a round waits: until all have an answer, but for none longer than its patience.
    pub fn remaining_patience(&self, now: BothClocks) -> Option<Duration> {
        let open = self.cases.iter().filter(|case| case.answer.is_none());
        let left = |case: &CheckCase<A>| {
            PATIENCE
                .checked_sub(now.elapsed.saturating_sub(case.begun.elapsed))
                .filter(|left| !left.is_zero())
        };
        open.filter_map(left).max()
    }

    /// An unanswered question, and since when it waits.
    pub fn open(&self, number: u64) -> Option<(u64, &ExaminedQuestion)> {
        let case = self.cases.iter().find(|case| case.number == number && case.answer.is_none())?;
        Some((case.begun.ms, &case.question))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kubewitness_core::config::{ComponentsSpec, ModulesSpec};

    use super::*;
    use crate::config::manifest::{ManifestEntry, ManifestOrigin};

    fn question(text: &str, digest: &str) -> ExaminedQuestion {
        let origin = ManifestOrigin { place: "a.yaml".into(), first_line: 1, folder: None };
        let entry =
            ManifestEntry { config_map: "a".into(), origin, text: text.into(), binary: BTreeMap::new() };
        ExaminedQuestion {
            entry,
            mark: digest.into(),
            shadow_mark: None,
            limits: ComponentsSpec::default(),
            modules: ModulesSpec::default(),
        }
    }

    fn at(ms: u64) -> BothClocks {
        BothClocks { elapsed: Duration::from_millis(ms), ms: 1_000_000 + ms }
    }

    /// One round that asks for these.
    fn round(
        queue: &mut CheckQueue<&'static str>,
        ms: u64,
        questions: &[ExaminedQuestion],
    ) -> (Vec<CheckRequest>, Vec<AbandonedCheck>) {
        queue.begin_round();
        let asked = questions.iter().map(|question| queue.request_check(question.clone(), at(ms))).collect();
        (asked, queue.end_round())
    }

    #[test]
    fn the_same_question_is_begun_once_and_keeps_its_arrival() {
        let mut queue = CheckQueue::default();
        let slow = question("slow", "s");
        let (asked, _) = round(&mut queue, 0, std::slice::from_ref(&slow));
        assert_eq!(asked, [CheckRequest { number: 1, is_new: true }]);
        let (asked, left) = round(&mut queue, 70_000, &[question("other", "o"), slow]);
        assert_eq!(
            asked,
            [CheckRequest { number: 2, is_new: true }, CheckRequest { number: 1, is_new: false }]
        );
        assert!(left.is_empty());
        let open = queue.open(1).map(|(since, question)| (since, question.mark.as_str()));
        assert_eq!(open, Some((1_000_000, "s")), "since it was asked first");
    }

    #[test]
    fn a_newer_document_replaces_the_one_that_is_examined() {
        let mut queue = CheckQueue::default();
        round(&mut queue, 0, &[question("old", "old")]);
        let (asked, left) = round(&mut queue, 1, &[question("new", "new")]);
        assert_eq!(asked, [CheckRequest { number: 2, is_new: true }]);
        assert_eq!(
            left,
            [AbandonedCheck { number: 1, heir: None }],
            "another component: compiling the old one ends"
        );
        queue.note_answer(1, "too late");
        assert_eq!((queue.take(1), queue.open(1)), (None, None));
        let (_, left) = round(&mut queue, 2, &[]);
        assert_eq!(left, [AbandonedCheck { number: 2, heir: None }], "it was taken out");
    }

    #[test]
    fn a_newer_document_with_the_same_component_goes_on_with_compiling_it() {
        let mut queue = CheckQueue::default();
        round(&mut queue, 0, &[question("batch: 1", "same")]);
        let (_, left) = round(&mut queue, 1, &[question("batch: 2", "same")]);
        assert_eq!(left, [AbandonedCheck { number: 1, heir: Some(2) }]);
        let raised = ComponentsSpec { locals: 7, ..ComponentsSpec::default() };
        let (_, left) =
            round(&mut queue, 2, &[ExaminedQuestion { limits: raised, ..question("batch: 2", "same") }]);
        assert_eq!(
            left,
            [AbandonedCheck { number: 2, heir: None }],
            "within other limits it is compiled anew"
        );
    }

    #[test]
    fn an_answer_is_had_once_and_a_further_question_is_begun_again() {
        let mut queue = CheckQueue::default();
        let asked = question("a", "a");
        round(&mut queue, 0, std::slice::from_ref(&asked));
        assert_eq!(queue.take(1), None, "there is none yet");
        queue.note_answer(1, "refused");
        assert_eq!(queue.open(1), None);
        assert_eq!(queue.take(1), Some("refused"));
        assert_eq!(queue.take(1), None);
        assert_eq!(queue.request_check(asked, at(10)), CheckRequest { number: 2, is_new: true });
    }

    #[test]
    fn a_round_waits_for_what_has_just_begun_and_not_for_what_takes_long() {
        let mut queue = CheckQueue::default();
        assert_eq!(queue.remaining_patience(at(0)), None);
        round(&mut queue, 0, &[question("slow", "s")]);
        assert_eq!(queue.remaining_patience(at(0)), Some(PATIENCE));
        assert_eq!(queue.remaining_patience(at(999)), Some(Duration::from_millis(1)));
        assert_eq!(queue.remaining_patience(at(1000)), None, "it goes on beside everything else");
        round(&mut queue, 60_000, &[question("slow", "s"), question("quick", "q")]);
        assert_eq!(queue.remaining_patience(at(60_400)), Some(Duration::from_millis(600)));
        queue.note_answer(2, "fits");
        assert_eq!(queue.remaining_patience(at(60_400)), None);
    }
}
