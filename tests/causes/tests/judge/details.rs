//! Judges the facts of an explanation beside its cause: who acted, which container it was, and which attempt.
//!
//! Each fact is counted for itself. An explanation may be right about the cause and silent about a fact, so a missing
//! fact lowers the recall of the fact, and a wrong one its precision too.

use std::collections::BTreeSet;

use kubewitness_causes::Expected;
use kubewitness_core::Status;
use kubewitness_core::views::{Cause, ContainerRole, WhyView};

use super::json_word;

/// The facts in the order of the table.
const FACTS: [&str; 6] = ["by", "init container", "sidecar", "signal", "also", "attempt"];

/// How often a fact was said, was labelled, and was both.
#[derive(Clone, Copy, Default)]
struct FactCounts {
    right: usize,
    said: usize,
    labelled: usize,
}

impl FactCounts {
    fn of<T: PartialEq + Copy>(said: Option<T>, label: Option<T>) -> Self {
        Self {
            right: usize::from(label.is_some() && said == label),
            said: usize::from(said.is_some()),
            labelled: usize::from(label.is_some()),
        }
    }

    fn add(&mut self, other: Self) {
        self.right += other.right;
        self.said += other.said;
        self.labelled += other.labelled;
    }
}

/// The counts of each of [`FACTS`].
#[derive(Default)]
pub struct FactTable([FactCounts; FACTS.len()]);

impl FactTable {
    /// `cause` is the one that names a pod, and `status` the object's last one.
    pub fn add(&mut self, label: &Expected, why: &WhyView, cause: &Cause, status: &Status) -> Vec<String> {
        let container = cause.container.clone().unwrap_or_default();
        let is = |role: ContainerRole| (cause.container.is_some() && container.role == role).then_some(true);
        let facts = [
            actor(label, why, cause),
            FactCounts::of(is(ContainerRole::Init), label.init.then_some(true)),
            FactCounts::of(is(ContainerRole::Sidecar), label.sidecar.then_some(true)),
            FactCounts::of(container.signal.map(i64::from), label.signal),
            other_causes(label, why),
            match label.attempt {
                Some(attempt) => {
                    let said = (status.attempt > 0).then_some(u64::from(status.attempt));
                    FactCounts::of(said, Some(attempt))
                }
                None => FactCounts::default(),
            },
        ];
        let is_wrong = |counts: &FactCounts| counts.said > counts.right || counts.labelled > counts.right;
        let wrong = FACTS.iter().zip(&facts).filter(|(_, counts)| is_wrong(counts));
        let wrong = wrong.map(|(fact, counts)| {
            format!("{fact}: {} right of {} said and {} labelled", counts.right, counts.said, counts.labelled)
        });
        let wrong = wrong.collect();
        for (sum, counts) in self.0.iter_mut().zip(facts) {
            sum.add(counts);
        }
        wrong
    }

    /// The share of facts that were said rightly, for the fact of which this share is least.
    pub fn least_precision(&self) -> f64 {
        let said = self.0.iter().filter(|counts| counts.said > 0);
        said.map(|counts| share(counts.right, counts.said)).fold(1.0, f64::min)
    }

    /// Facts of which none was said or labelled have no line.
    pub fn markdown(&self) -> String {
        let mut lines =
            vec!["| fact | labelled | precision | recall |".to_owned(), "|---|---|---|---|".to_owned()];
        for (fact, FactCounts { right, said, labelled }) in FACTS.iter().zip(&self.0) {
            if said + labelled > 0 {
                lines.push(format!(
                    "| {fact} | {labelled} | {} | {} |",
                    share_text(*right, *said),
                    share_text(*right, *labelled)
                ));
            }
        }
        lines.join("\n") + "\n"
    }
}

fn share(right: usize, of: usize) -> f64 {
    let number = |count: usize| f64::from(u32::try_from(count).expect("a few"));
    number(right) / number(of)
}

fn share_text(right: usize, of: usize) -> String {
    if of == 0 { "–".to_owned() } else { format!("{:.2}", share(right, of)) }
}

/// The actor counts as said if a field or the sentence has its name.
fn actor(label: &Expected, why: &WhyView, cause: &Cause) -> FactCounts {
    let by = why.cause.as_ref().map(|cause| cause.by.as_str()).filter(|by| !by.is_empty());
    let by = by.unwrap_or(&cause.by);
    let names = |text: &str, name: &str| {
        text.split([' ', ',', ';', ':', '(', ')']).any(|word| word.trim_end_matches('.') == name)
    };
    let is_named = label
        .by
        .as_ref()
        .is_some_and(|name| names(by, name) || cause.reason == *name || names(&why.sentence, name));
    FactCounts {
        right: usize::from(is_named),
        said: usize::from(is_named || !by.is_empty()),
        labelled: usize::from(label.by.is_some()),
    }
}

fn other_causes(label: &Expected, why: &WhyView) -> FactCounts {
    let said: BTreeSet<String> = why.also.iter().map(|cause| cause.kind.as_str().to_owned()).collect();
    let labelled: BTreeSet<String> = label.also.iter().map(json_word).collect();
    FactCounts { right: said.intersection(&labelled).count(), said: said.len(), labelled: labelled.len() }
}
