//! The faults, as data: each has a name and the steps of which it is made. [`choices`](super::choices) deals them.
//!
//! A new fault is a row here. Only one that needs a step of a new kind needs code, in `trial.rs`.

use anyhow::{Context, Result};

use crate::cluster::ServerPart;

/// Who is killed, stopped or started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultTarget {
    /// The controller, and each peer beside it.
    Watchers,
    Server(ServerPart),
}

/// Which API servers the address of the watchers leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WatcherRoute {
    First,
    Second,
    InTurn,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultStep {
    /// Some changes of Jobs, through the first API server.
    Change,
    /// Waits until the watchers have all that etcd has.
    Settle,
    /// Seconds in which nothing happens.
    Wait(u64),
    Kill(FaultTarget),
    Start(FaultTarget),
    Stop(FaultTarget),
    Continue(FaultTarget),
    /// All that etcd has is compacted, whether it was witnessed or not.
    Compact,
    BackUp,
    Restore,
    SwitchMinor,
    RenewCertificate,
    /// Ends all connections of the watchers.
    Cut,
    /// Keeps the watchers out, or lets them in again.
    Shut(bool),
    /// How late everything that the API server says arrives, in milliseconds.
    Delay(u64),
    /// Whether every second connection is overtaken by those after it.
    Reorder(bool),
    StartSecond,
    StopSecond,
    Route(WatcherRoute),
    /// How late the second API server hears of etcd, in milliseconds.
    LinkDelay(u64),
    /// Cuts the second API server off from etcd, or lets it in again.
    LinkShut(bool),
    FillDisk,
    MakeRoom,
    /// Whether the API server encrypts Jobs that are written from now on.
    Encrypt(bool),
    /// Each Job is written again as it is.
    Rewrite,
    /// The journal's server gets a standby, for which each commit waits.
    StartStandby,
    /// The journal's server is killed, and its standby takes over.
    FailOver,
}

/// The needs of a fault beside one minor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultNeed {
    Nothing,
    /// A second minor that was built.
    OtherMinor,
    /// No peers: Kubernetes' guide to restoring etcd tells to start its clients anew.
    NoPeers,
    /// The right to mount, and a journal on that disk. Peers have none.
    SmallDisk,
    /// A journal in PostgreSQL, and no peers: they have none.
    JournalServer,
}

#[derive(Debug, PartialEq, Eq)]
pub struct FaultPlan {
    pub name: &'static str,
    pub(super) need: FaultNeed,
    pub(super) steps: &'static [FaultStep],
}

const WATCHERS: FaultTarget = FaultTarget::Watchers;
const API: FaultTarget = FaultTarget::Server(ServerPart::ApiServer);
const ETCD: FaultTarget = FaultTarget::Server(ServerPart::Etcd);

const fn plan(name: &'static str, steps: &'static [FaultStep]) -> FaultPlan {
    FaultPlan { name, need: FaultNeed::Nothing, steps }
}

use FaultStep::{
    BackUp, Change, Compact, Continue, Cut, Delay, Encrypt, FailOver, FillDisk, Kill, LinkDelay, LinkShut,
    MakeRoom, RenewCertificate, Reorder, Restore, Rewrite, Settle, Shut, Start, StartSecond, StartStandby,
    Stop, StopSecond, SwitchMinor, Wait,
};

pub const PLANS: &[FaultPlan] = &[
    plan("watcher-kill", &[Change, Kill(WATCHERS), Change, Start(WATCHERS)]),
    plan("watcher-stop", &[Change, Stop(WATCHERS), Change, Wait(2), Change, Continue(WATCHERS)]),
    plan("api-server-kill", &[Change, Kill(API), Start(API), Change]),
    plan("api-server-stop", &[Change, Stop(API), Wait(3), Continue(API), Change]),
    plan("etcd-kill", &[Change, Kill(ETCD), Start(ETCD), Change]),
    plan("etcd-stop", &[Change, Stop(ETCD), Wait(3), Continue(ETCD), Change]),
    plan("compaction", &[Change, Settle, Compact, Change]),
    // What was not witnessed yet is lost to a gap.
    plan("unseen-compaction", &[Settle, Kill(WATCHERS), Change, Compact, Change, Start(WATCHERS), Change]),
    plan(
        "unseen-compaction-and-api-server-kill",
        &[
            Change,
            Settle,
            Shut(true),
            Cut,
            Change,
            Compact,
            Change,
            Kill(API),
            Start(API),
            Shut(false),
            Change,
        ],
    ),
    FaultPlan {
        name: "restore",
        need: FaultNeed::NoPeers,
        steps: &[Settle, BackUp, Change, Settle, Restore, Change, Settle],
    },
    FaultPlan {
        name: "unseen-restore",
        need: FaultNeed::NoPeers,
        steps: &[
            Settle,
            BackUp,
            Change,
            Settle,
            Kill(WATCHERS),
            Change,
            Restore,
            Change,
            Start(WATCHERS),
            Change,
            Settle,
        ],
    },
    plan("certificate-renewal", &[Change, RenewCertificate, Kill(API), Start(API), Cut, Change]),
    plan("network-cut", &[Change, Cut, Change, Shut(true), Cut, Change, Wait(1), Shut(false), Change, Cut]),
    plan(
        "slow-network",
        &[Delay(150), Change, Reorder(true), Cut, Change, Cut, Reorder(false), Delay(0), Change],
    ),
    plan(
        "lagging-api-server",
        &[
            LinkDelay(0),
            StartSecond,
            Change,
            LinkDelay(300),
            FaultStep::Route(WatcherRoute::Second),
            Cut,
            Change,
            FaultStep::Route(WatcherRoute::First),
            Cut,
            Change,
            FaultStep::Route(WatcherRoute::InTurn),
            Cut,
            Change,
            Cut,
            Change,
            FaultStep::Route(WatcherRoute::First),
            Cut,
            StopSecond,
            Change,
        ],
    ),
    plan(
        "watch-cache-restart",
        &[
            LinkDelay(0),
            StartSecond,
            FaultStep::Route(WatcherRoute::Second),
            Cut,
            Change,
            LinkShut(true),
            Change,
            Compact,
            Change,
            LinkShut(false),
            Change,
            Settle,
            FaultStep::Route(WatcherRoute::First),
            Cut,
            StopSecond,
        ],
    ),
    FaultPlan { name: "minor-switch", need: FaultNeed::OtherMinor, steps: &[Change, SwitchMinor, Change] },
    FaultPlan {
        name: "disk-full",
        need: FaultNeed::SmallDisk,
        steps: &[Change, FillDisk, Change, Wait(2), MakeRoom, Change],
    },
    // Each Job gets a version whose content is that of the one before.
    plan(
        "storage-migration",
        &[Change, Encrypt(true), Change, Rewrite, Change, Encrypt(false), Rewrite, Change],
    ),
    FaultPlan {
        name: "journal-fail-over",
        need: FaultNeed::JournalServer,
        steps: &[Change, StartStandby, Change, FailOver, Change],
    },
];

/// The plan that is measured beside the faults: changes, and nothing that disturbs the watchers.
pub static NO_FAULT: FaultPlan = plan("no-fault", &[Change; 20]);

/// The plans with these names, in this order.
pub fn named(names: &[String]) -> Result<Vec<&'static FaultPlan>> {
    let known = || PLANS.iter().map(|plan| plan.name).collect::<Vec<_>>().join(", ");
    let find = |name: &String| {
        let found = PLANS.iter().find(|plan| plan.name == name);
        found.with_context(|| format!("no fault is called {name}. They are {}", known()))
    };
    names.iter().map(find).collect()
}

/// As `--fault` takes them.
pub fn names(plans: &[&FaultPlan]) -> String {
    plans.iter().map(|plan| plan.name).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fault leaves everything as it found it: the next one may be any.
    #[test]
    fn each_fault_undoes_what_it_did() {
        for plan in PLANS {
            let (mut open, mut second, mut backed_up) = (Vec::new(), false, false);
            for step in plan.steps {
                match *step {
                    Kill(part) | Stop(part) => open.push(part),
                    Start(part) | Continue(part) => open.retain(|other| *other != part),
                    StartSecond => second = true,
                    StopSecond => second = false,
                    BackUp => backed_up = true,
                    Restore => assert!(backed_up, "{} restores an older backup", plan.name),
                    _ => {}
                }
            }
            assert!(open.is_empty() && !second, "{} leaves {open:?}", plan.name);
            let last = |is_one: fn(&FaultStep) -> bool| plan.steps.iter().rfind(|step| is_one(step)).copied();
            assert!(last(|step| matches!(step, Shut(_))).is_none_or(|step| step == Shut(false)));
            assert!(last(|step| matches!(step, LinkShut(_))).is_none_or(|step| step == LinkShut(false)));
            assert!(last(|step| matches!(step, Delay(_))).is_none_or(|step| step == Delay(0)));
            assert!(last(|step| matches!(step, Reorder(_))).is_none_or(|step| step == Reorder(false)));
            let route = last(|step| matches!(step, FaultStep::Route(_)));
            assert!(route.is_none_or(|step| step == FaultStep::Route(WatcherRoute::First)));
            assert!(last(|step| matches!(step, Encrypt(_))).is_none_or(|step| step == Encrypt(false)));
            let journal = last(|step| matches!(step, StartStandby | FailOver));
            assert!(journal.is_none_or(|step| step == FailOver));
            let disk = last(|step| matches!(step, FillDisk | MakeRoom));
            assert!(disk.is_none_or(|step| step == MakeRoom));
        }
    }

    #[test]
    fn a_fault_that_nobody_knows_is_answered_with_those_that_exist() {
        let error = named(&["moon".to_owned()]).expect_err("unknown");
        assert!(error.to_string().contains("watcher-kill, watcher-stop"), "{error}");
    }
}
