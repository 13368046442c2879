//! The choices that a seed makes for a run: which faults, in which order, and how much changes meanwhile.
//!
//! Faults are dealt with dice of their own. A run that names the same faults in the same order throws the other dice as
//! often, so it makes the same changes: a failure can be repeated by its seed and its faults.

use anyhow::{Result, bail};
use kubewitness_harness::Dice;

use super::TrialOptions;
use super::plans::{FaultNeed, FaultPlan, PLANS};

/// Makes other dice of the same seed.
const DEALING: u64 = 0x6661_756c_7473;

/// The abilities of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RunAbilities {
    pub has_other_minor: bool,
    pub has_small_disk: bool,
    pub has_peers: bool,
    pub has_journal_server: bool,
}

/// The faults and changes of a run.
#[derive(Clone, Debug)]
pub(super) struct RunChoices {
    pub plans: Vec<&'static FaultPlan>,
    /// For everything that is not a fault.
    pub dice: Dice,
}

impl FaultPlan {
    /// The need of the fault that this run does not meet. `None`: it is possible.
    fn lacks(&self, means: RunAbilities) -> Option<&'static str> {
        match self.need {
            FaultNeed::Nothing => None,
            FaultNeed::OtherMinor => (!means.has_other_minor)
                .then_some("a second minor, as `cargo xtask real 1.36 1.37` has, and no --peers"),
            FaultNeed::NoPeers | FaultNeed::SmallDisk | FaultNeed::JournalServer if means.has_peers => {
                Some("a run without --peers")
            }
            FaultNeed::NoPeers => None,
            FaultNeed::JournalServer => {
                (!means.has_journal_server).then_some("a journal in PostgreSQL: --postgres")
            }
            FaultNeed::SmallDisk if means.has_journal_server => Some("a run without --postgres"),
            FaultNeed::SmallDisk => (!means.has_small_disk).then_some("the right to mount: run it as root"),
        }
    }
}

/// The faults that were asked for, or so many of those that are possible. Fails if one that was asked for is not possible.
pub(super) fn choose(options: &TrialOptions, means: RunAbilities) -> Result<RunChoices> {
    for plan in &options.plans {
        if let Some(needed) = plan.lacks(means) {
            bail!("the fault {} needs {needed}", plan.name);
        }
    }
    let dice = Dice::new(options.seed);
    if !options.plans.is_empty() {
        return Ok(RunChoices { plans: options.plans.clone(), dice });
    }
    let possible: Vec<_> = PLANS.iter().filter(|plan| plan.lacks(means).is_none()).collect();
    let count = options.faults.unwrap_or(possible.len() as u64);
    Ok(RunChoices { plans: deal(&mut Dice::new(options.seed ^ DEALING), &possible, count), dice })
}

/// Each comes once before any comes again.
fn deal(dice: &mut Dice, possible: &[&'static FaultPlan], count: u64) -> Vec<&'static FaultPlan> {
    let mut dealt = Vec::new();
    let mut deck: Vec<&FaultPlan> = Vec::new();
    for _ in 0..count {
        if deck.is_empty() {
            deck = possible.to_vec();
        }
        dealt.push(deck.swap_remove(dice.index(deck.len())));
    }
    dealt
}

/// The names of faults that are not possible, and what each needs.
pub(super) fn left_out(means: RunAbilities) -> impl Iterator<Item = (&'static str, &'static str)> {
    PLANS.iter().filter_map(move |plan| plan.lacks(means).map(|needed| (plan.name, needed)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::promise::plans::named;

    const ALL: RunAbilities = RunAbilities {
        has_other_minor: true,
        has_small_disk: true,
        has_peers: false,
        has_journal_server: false,
    };
    const ON_A_SERVER: RunAbilities = RunAbilities { has_journal_server: true, ..ALL };
    const NONE: RunAbilities = RunAbilities { has_other_minor: false, has_small_disk: false, ..ALL };

    fn options(faults: Option<u64>, plans: &[&'static FaultPlan]) -> TrialOptions {
        TrialOptions { seed: 7, faults, plans: plans.to_vec(), ..TrialOptions::default() }
    }

    fn fault(name: &str) -> &'static FaultPlan {
        named(&[name.to_owned()]).expect("a fault")[0]
    }

    #[test]
    fn each_possible_fault_comes_once_before_any_comes_again() {
        for means in [ALL, NONE, ON_A_SERVER, RunAbilities { has_peers: true, ..ALL }] {
            let dealt = choose(&options(None, &[]), means).expect("faults").plans;
            let names: BTreeSet<_> = dealt.iter().map(|plan| plan.name).collect();
            assert_eq!(names.len(), dealt.len(), "none comes twice");
            assert_eq!(dealt.len() + left_out(means).count(), PLANS.len());
        }
        let more = choose(&options(Some(PLANS.len() as u64 + 1), &[]), ALL).expect("faults").plans;
        let once = PLANS.len() - left_out(ALL).count();
        let names: BTreeSet<_> = more[..once].iter().map(|plan| plan.name).collect();
        assert_eq!(names.len(), once);
    }

    #[test]
    fn the_same_seed_with_the_dealt_faults_named_makes_the_same_changes() {
        let mut dealt = choose(&options(Some(5), &[]), ALL).expect("faults");
        let mut again = choose(&options(Some(5), &[]), ALL).expect("faults");
        let mut repeated = choose(&options(None, &dealt.plans), ALL).expect("the same faults");
        assert_eq!(dealt.plans, again.plans);
        assert_eq!(dealt.plans, repeated.plans);
        for _ in 0..20 {
            let throw = dealt.dice.throw();
            assert_eq!((throw, throw), (again.dice.throw(), repeated.dice.throw()));
        }
    }

    #[test]
    fn a_fault_that_is_not_possible_is_refused_with_what_it_needs() {
        let with_peers = RunAbilities { has_peers: true, ..ALL };
        for (name, means, needed) in [
            ("minor-switch", NONE, "a second minor"),
            ("disk-full", NONE, "the right to mount"),
            ("disk-full", with_peers, "without --peers"),
            ("disk-full", ON_A_SERVER, "without --postgres"),
            ("journal-fail-over", ALL, "--postgres"),
            ("journal-fail-over", with_peers, "without --peers"),
            ("restore", with_peers, "without --peers"),
        ] {
            let error = choose(&options(None, &[fault("etcd-kill"), fault(name)]), means).expect_err(name);
            let text = error.to_string();
            assert!(text.contains(name) && text.contains(needed), "{text}");
            assert!(left_out(means).any(|(left, why)| left == name && why.contains(needed)));
        }
    }
}
