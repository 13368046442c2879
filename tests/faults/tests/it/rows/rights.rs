//! Rights that are revoked, kinds that are removed.

use anyhow::{Result, ensure};
use http::Method;
use kubewitness_core::Change;
use serde_json::{Value, json};

use crate::seeds::RowOptions;
use crate::workload::WIDGETS;
use crate::world::{FaultWorld, WorldOptions};

const ACCOUNT: &str = "witness";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

async fn grant(world: &FaultWorld) -> Result<Value> {
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": ACCOUNT},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ACCOUNT},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": "default"}]});
    world.herd.send(Method::POST, BINDINGS, &binding).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_40_revoked_rights_are_a_condition_and_nothing_is_taken_for_deleted() {
    let options = WorldOptions { account: Some(ACCOUNT), ..WorldOptions::default() };
    let row = RowOptions { options, ..RowOptions::new("row_40_revoked") };
    row.run(async |world, _| {
        let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": ACCOUNT},
            "rules": [{"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "list", "watch"]}]});
        world.herd.send(Method::POST, "/apis/rbac.authorization.k8s.io/v1/clusterroles", &role).await?;
        grant(world).await?;
        world.herd.create_some(5).await?;
        world.start_synced().await?;
        let expires = world.dice.one_in(2);
        world.herd.send(Method::DELETE, &format!("{BINDINGS}/{ACCOUNT}"), &Value::Null).await?;
        world.wire.break_watches();
        let refused =
            |world: &FaultWorld| world.view().condition.is_some_and(|condition| condition.contains("403"));
        world.until("the refusal is a condition", refused).await?;
        let objects = world.view().objects;
        let steps = world.dice.between(1, 12);
        world.herd.live_on(steps).await?;
        if expires {
            world.server.forget_watch_window();
        }
        ensure!((objects, world.view().counts.gone) == (5, 0), "{:?}", world.view());
        grant(world).await?;
        world.level().await?;
        world.until("the condition is over", |world| world.view().condition.is_none()).await?;
        let told = world.finish().await?;
        ensure!(told.gaps.is_empty(), "nothing was compacted: {:?}", told.gaps);
        Ok(())
    })
    .await;
}

async fn define(world: &FaultWorld) -> Result<Value> {
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}]}});
    world.herd.send(Method::POST, DEFINITIONS, &definition).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_40_a_kind_that_is_removed_is_a_condition_and_is_picked_up_again() {
    let options = WorldOptions { kind: WIDGETS, ..WorldOptions::default() };
    let row = RowOptions {
        options,
        sometimes: &["removed while nobody looked"],
        ..RowOptions::new("row_40_a_kind")
    };
    row.run(async |world, marks| {
        // Not yet there: picked up when it appears.
        world.start().await?;
        world.until("an unknown kind is a condition", |world| world.view().condition.is_some()).await?;
        define(world).await?;
        world.until("it watches", |world| world.view().synced).await?;
        world.herd.create_some(4).await?;
        world.level().await?;
        let away = world.dice.one_in(2);
        marks.when(away, "removed while nobody looked");
        if away {
            world.away().await?;
        }
        let gone = world.view().counts.gone;
        world.herd.send(Method::DELETE, &format!("{DEFINITIONS}/widgets.example.com"), &Value::Null).await?;
        world.herd.live.clear();
        world.wire.down(false);
        world.until("a missing kind is a condition", |world| world.view().condition.is_some()).await?;
        ensure!(!away || world.view().counts.gone == gone, "{:?}", world.view());
        define(world).await?;
        world.herd.create_some(3).await?;
        world.level().await?;
        world.until("the condition is over", |world| world.view().condition.is_none()).await?;
        let told = world.finish().await?;
        ensure!(told.gaps.is_empty(), "nothing was compacted: {:?}", told.gaps);
        let gone = told.states.iter().filter(|state| state.change == Change::Gone).count();
        ensure!(gone >= 4, "the objects went with their kind: {gone}");
        Ok(())
    })
    .await;
}
