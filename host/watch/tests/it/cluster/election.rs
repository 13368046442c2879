//! Tests of the election: one of several replicas holds a Lease, against the simulated API server.

use http::Method;
use kubewitness_playground::apiserver::faults::{FaultKind, InjectedFault};
use kubewitness_playground::apiserver::{ApiServer, ApiServerOptions};
use kubewitness_watch::election::{
    ElectionOptions, LeadershipHandle, LeaseElector, LeaseRole, LeaseStanding, LeaseTiming,
};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::simulator::SimulatedCluster;
use crate::*;

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases/kubewitness";
/// Longer than any of these steps takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// No hold ends while a test runs, however busy the machine is.
pub fn steady() -> LeaseTiming {
    let hour = Duration::from_secs(3600);
    LeaseTiming::new(hour, hour / 2, Duration::from_millis(200)).unwrap()
}

fn quick() -> LeaseTiming {
    LeaseTiming::new(Duration::from_secs(4), Duration::from_secs(1), Duration::from_millis(200)).unwrap()
}

pub struct ElectionReplica {
    leadership: LeadershipHandle,
    may_lead: watch::Sender<bool>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl ElectionReplica {
    pub fn start(connection: &ApiConnection, identity: &str, timing: LeaseTiming) -> Self {
        let options = ElectionOptions {
            namespace: "default".to_string(),
            name: "kubewitness".to_string(),
            identity: identity.to_string(),
            timing,
        };
        let (elector, leadership) = LeaseElector::new(connection, options);
        let stop = CancellationToken::new();
        let (may_lead, may) = watch::channel(true);
        let task = tokio::spawn(elector.run(stop.clone(), may));
        Self { leadership, may_lead, stop, task }
    }

    pub async fn holding(connection: &ApiConnection, identity: &str, timing: LeaseTiming) -> Self {
        let mut replica = Self::start(connection, identity, timing);
        replica.becomes("the holder", |standing| matches!(standing.role, LeaseRole::Held { .. })).await;
        replica
    }

    async fn becomes(&mut self, what: &str, is: impl Fn(&LeaseStanding) -> bool) -> LeaseStanding {
        let mut standing = self.leadership.current_standing();
        let became = timeout(PATIENCE, async {
            while !is(&standing) {
                standing = self.leadership.await_change().await;
            }
        });
        assert!(became.await.is_ok(), "never {what}: {:?}", self.leadership.current_standing());
        standing
    }

    pub async fn holds(&mut self) -> LeaseStanding {
        self.becomes("the holder", |standing| matches!(standing.role, LeaseRole::Held { .. })).await
    }

    pub async fn waits_for(&mut self, other: &ElectionReplica) {
        let holder = other.leadership.identity().to_string();
        let standby = LeaseRole::Standby { holder };
        self.becomes("a standby", |standing| standing.role == standby).await;
    }

    /// Ends like a killed process: it releases nothing.
    fn vanish(self) {
        self.task.abort();
    }

    pub async fn stop(self) {
        self.stop.cancel();
        timeout(PATIENCE, self.task).await.expect("the stop is bounded").unwrap();
    }
}

#[tokio::test]
async fn one_of_two_holds_and_the_other_sees_who() {
    let cluster = SimulatedCluster::start().await;
    let first = ElectionReplica::holding(&cluster.connection, "pod-0", steady()).await;
    let mut second = ElectionReplica::start(&cluster.connection, "pod-1", steady());
    second.waits_for(&first).await;
    assert!(first.leadership.is_held() && !second.leadership.is_held());
    let lease = cluster.send(Method::GET, LEASE, Value::Null).await;
    assert_eq!(lease["spec"]["holderIdentity"], first.leadership.identity());
    assert_eq!(
        (&lease["spec"]["leaseDurationSeconds"], &lease["spec"]["leaseTransitions"]),
        (&json!(3600), &json!(0))
    );
    assert_eq!(second.leadership.current_standing().lease_uid.as_deref(), lease["metadata"]["uid"].as_str());
    assert!(first.leadership.identity().starts_with("pod-0_"));
}

#[tokio::test]
async fn replicas_with_one_name_are_two() {
    let cluster = SimulatedCluster::start().await;
    let first = ElectionReplica::holding(&cluster.connection, "pod-0", steady()).await;
    let mut again = ElectionReplica::start(&cluster.connection, "pod-0", steady());
    again.waits_for(&first).await;
    assert!(first.leadership.is_held() && !again.leadership.is_held());
}

#[tokio::test]
async fn a_holder_that_renews_goes_on_in_one_term_beyond_its_deadline() {
    let cluster = SimulatedCluster::start().await;
    let second = Duration::from_secs(1);
    let timing = LeaseTiming::new(second * 30, second * 3, second / 10).unwrap();
    let mut holder = ElectionReplica::holding(&cluster.connection, "pod-0", timing).await;
    let change = timeout(second * 5, holder.leadership.await_change()).await;
    assert!(change.is_err(), "it goes on without a change: {change:?}");
    assert_eq!(holder.leadership.current_role(), LeaseRole::Held { term: 1 });
}

#[tokio::test]
async fn a_release_hands_over_at_once() {
    let cluster = SimulatedCluster::start().await;
    let first = ElectionReplica::holding(&cluster.connection, "pod-0", steady()).await;
    let mut second = ElectionReplica::start(&cluster.connection, "pod-1", steady());
    second.waits_for(&first).await;
    let leadership = first.leadership.clone();
    first.stop().await;
    assert!(!leadership.is_held());
    second.holds().await;
    let lease = cluster.send(Method::GET, LEASE, Value::Null).await;
    assert_eq!(lease["spec"]["leaseTransitions"], 1);
    // A standby holds nothing to release.
    let third = ElectionReplica::start(&cluster.connection, "pod-2", steady());
    third.stop().await;
    assert_eq!(second.leadership.current_role(), LeaseRole::Held { term: 1 });
}

#[tokio::test]
async fn a_holder_that_vanishes_is_replaced_when_its_time_is_over_and_not_before() {
    let cluster = SimulatedCluster::start().await;
    let began = Instant::now();
    let first = ElectionReplica::holding(&cluster.connection, "pod-0", quick()).await;
    let mut second = ElectionReplica::start(&cluster.connection, "pod-1", quick());
    second.waits_for(&first).await;
    let leadership = first.leadership.clone();
    first.vanish();
    until("the first no longer believes", || !leadership.is_held()).await;
    assert!(!second.leadership.is_held(), "others wait for longer than a holder believes");
    second.holds().await;
    assert!(began.elapsed() >= Duration::from_secs(4), "after {:?}", began.elapsed());
}

#[tokio::test]
async fn who_is_stopped_holds_nothing_from_then_on_even_if_the_release_hangs() {
    let cluster = SimulatedCluster::start().await;
    let holder = ElectionReplica::holding(&cluster.connection, "pod-0", steady()).await;
    let leadership = holder.leadership.clone();
    hang(&cluster);
    holder.stop().await;
    assert!(!leadership.is_held());
    cluster.server.disarm();
    let lease = cluster.send(Method::GET, LEASE, Value::Null).await;
    assert_eq!(lease["spec"]["holderIdentity"], leadership.identity(), "it was not released");
}

fn hang(cluster: &SimulatedCluster) {
    for verb in ["get", "update"] {
        cluster
            .server
            .inject(InjectedFault::always(FaultKind::Hang).verb(verb).on("leases.coordination.k8s.io"));
    }
}

#[tokio::test]
async fn a_holder_whose_server_hangs_no_longer_holds_after_its_deadline_and_begins_a_new_term() {
    let cluster = SimulatedCluster::start().await;
    let mut holder = ElectionReplica::holding(&cluster.connection, "pod-0", quick()).await;
    hang(&cluster);
    let hung = Instant::now();
    let lost =
        holder.becomes("without a hold", |standing| matches!(standing.role, LeaseRole::Unknown { .. })).await;
    assert!(!holder.leadership.is_held());
    assert!(hung.elapsed() < Duration::from_secs(10), "after {:?}", hung.elapsed());
    assert!(lost.condition.is_some_and(|text| text.contains("no answer within")));
    cluster.server.disarm();
    let regained = holder.holds().await;
    assert!(matches!(regained.role, LeaseRole::Held { term: 2.. }), "{regained:?}");
    until("no condition", || holder.leadership.current_standing().condition.is_none()).await;
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_ends_the_hold_and_its_stop_is_bounded() {
    let cluster = SimulatedCluster::start().await;
    let mut holder = ElectionReplica::holding(&cluster.connection, "pod-0", quick()).await;
    cluster.server.power_off().await;
    holder.becomes("without a hold", |standing| !matches!(standing.role, LeaseRole::Held { .. })).await;
    let standing = holder.leadership.current_standing();
    assert!(standing.condition.is_some_and(|text| text.contains("default/kubewitness")));
    holder.stop().await;
}

#[tokio::test]
async fn what_others_set_on_the_lease_survives_renewals_and_the_hold_survives_them() {
    let cluster = SimulatedCluster::start().await;
    let holder = ElectionReplica::holding(&cluster.connection, "pod-0", steady()).await;
    let patch = json!({"metadata": {"labels": {"team": "x"}, "annotations": {"note": "y"}}});
    let labelled = cluster.send(Method::PATCH, LEASE, patch).await;
    let renewed = |lease: &Value| lease["spec"]["renewTime"].as_str().unwrap().to_string();
    let lease = timeout(PATIENCE, async {
        loop {
            let lease = cluster.send(Method::GET, LEASE, Value::Null).await;
            if renewed(&lease) > renewed(&labelled) {
                return lease;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let lease = lease.await.expect("it is renewed");
    assert_eq!(
        (&lease["metadata"]["labels"]["team"], &lease["metadata"]["annotations"]["note"]),
        (&json!("x"), &json!("y"))
    );
    assert_eq!(holder.leadership.current_role(), LeaseRole::Held { term: 1 });
}

#[tokio::test]
async fn a_lease_that_somebody_deletes_is_made_again_by_its_holder() {
    let cluster = SimulatedCluster::start().await;
    let mut first = ElectionReplica::holding(&cluster.connection, "pod-0", steady()).await;
    let mut second = ElectionReplica::start(&cluster.connection, "pod-1", steady());
    second.waits_for(&first).await;
    let before = first.leadership.current_standing().lease_uid;
    cluster.send(Method::DELETE, LEASE, Value::Null).await;
    let anew = |standing: &LeaseStanding| {
        matches!(standing.role, LeaseRole::Held { .. })
            && standing.lease_uid.is_some()
            && standing.lease_uid != before
    };
    let standing = first.becomes("the holder of a new one", anew).await;
    assert_eq!(standing.role, LeaseRole::Held { term: 1 });
    second.becomes("aware of the new one", |seen| seen.lease_uid == standing.lease_uid).await;
    assert!(!second.leadership.is_held());
}

#[tokio::test]
async fn an_empty_lease_that_somebody_made_is_taken() {
    let cluster = SimulatedCluster::start().await;
    let empty = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "kubewitness", "labels": {"app": "kubewitness"}}});
    cluster.send(Method::POST, LEASES, empty).await;
    ElectionReplica::holding(&cluster.connection, "pod-0", steady()).await;
    let lease = cluster.send(Method::GET, LEASE, Value::Null).await;
    assert_eq!(lease["metadata"]["labels"]["app"], "kubewitness");
}

#[tokio::test]
async fn a_right_that_is_missing_is_named_and_is_no_end() {
    let options = ApiServerOptions { enforce_rbac: true, ..ApiServerOptions::default() };
    let (server, serving) = ApiServer::bind(options).await.unwrap();
    tokio::spawn(serving.serve(CancellationToken::new()));
    let admin = connected_by(&server.kubeconfig()).await;
    let cluster = SimulatedCluster { connection: admin, stop: CancellationToken::new(), server };
    let connection = connected_by(&cluster.server.kubeconfig_for("default", "replica")).await;
    let mut replica = ElectionReplica::start(&connection, "pod-0", steady());
    let names = |right: &'static str| {
        move |standing: &LeaseStanding| {
            standing.condition.as_ref().is_some_and(|text| {
                text.contains(right) && text.contains("in namespace default") && text.contains("403")
            })
        }
    };
    replica.becomes("without the right to get", names("the right to get leases")).await;
    grant(&cluster, &["get"]).await;
    replica.becomes("without the right to create", names("the right to create leases")).await;
    grant(&cluster, &["get", "create"]).await;
    replica.becomes("without the right to update", names("the right to update leases")).await;
    grant(&cluster, &["get", "create", "update"]).await;
    let holds = |standing: &LeaseStanding| {
        matches!(standing.role, LeaseRole::Held { .. }) && standing.condition.is_none()
    };
    replica.becomes("the holder", holds).await;
    replica.stop().await;
}

/// Grants exactly these verbs.
async fn grant(cluster: &SimulatedCluster, verbs: &[&str]) {
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "r"},
        "rules": [{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": verbs}]});
    if verbs.len() > 1 {
        cluster.send(Method::PUT, &format!("{rbac}/roles/r"), role).await;
        return;
    }
    cluster.send(Method::POST, &format!("{rbac}/roles"), role).await;
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": "r"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
        "subjects": [{"kind": "ServiceAccount", "name": "replica", "namespace": "default"}]});
    cluster.send(Method::POST, &format!("{rbac}/rolebindings"), binding).await;
}

#[tokio::test]
async fn a_holder_that_may_not_lead_leaves_the_lease_to_another_and_takes_part_again_once_it_may() {
    let cluster = SimulatedCluster::start().await;
    let mut first = ElectionReplica::holding(&cluster.connection, "first", steady()).await;
    first.may_lead.send_replace(false);
    let is_out = |standing: &LeaseStanding| matches!(standing.role, LeaseRole::Unknown { .. });
    first.becomes("out of the election", is_out).await;
    let second = ElectionReplica::holding(&cluster.connection, "second", steady()).await;
    assert!(!first.leadership.is_held());
    first.may_lead.send_replace(true);
    let waits = |standing: &LeaseStanding| matches!(&standing.role, LeaseRole::Standby { holder } if holder.starts_with("second"));
    first.becomes("a follower of the other", waits).await;
    second.stop.cancel();
    second.task.await.unwrap();
    first.becomes("the holder again", |standing| matches!(standing.role, LeaseRole::Held { .. })).await;
    first.stop.cancel();
    first.task.await.unwrap();
}

#[tokio::test]
async fn a_lease_in_no_namespace_is_a_condition() {
    let cluster = SimulatedCluster::start().await;
    let options = ElectionOptions {
        namespace: "nowhere".to_string(),
        name: "kubewitness".to_string(),
        identity: "pod-0".to_string(),
        timing: steady(),
    };
    let (elector, leadership) = LeaseElector::new(&cluster.connection, options);
    let (_may_lead, may) = watch::channel(true);
    let task = tokio::spawn(elector.run(cluster.stop.clone(), may));
    until("a condition", || {
        let condition = leadership.current_standing().condition;
        condition.is_some_and(|text| text.contains("nowhere/kubewitness") && text.contains("404"))
    })
    .await;
    task.abort();
}
