//! kube's own client and watcher against the simulated API server: a judge of the server that is
//! not ours. What they make of it must be what the server says that it has.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::batch::v1::Job;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::runtime::watcher;
use kube::runtime::watcher::{Event, InitialListStrategy};
use kube::{Api, Client, ResourceExt};
use kubewitness_playground::apiserver::{ApiServer, ApiServerOptions, WatchDrop};
use kubewitness_watch::{ConnectOptions, connect_to_server};
use serde_json::json;
use tokio_util::sync::{CancellationToken, DropGuard};

const WITHIN: Duration = Duration::from_secs(30);

struct ClientLab {
    server: ApiServer,
    jobs: Api<Job>,
    client: Client,
    _serving: DropGuard,
}

async fn lab() -> Result<ClientLab> {
    let options = ApiServerOptions {
        bookmark_every: Duration::from_millis(100),
        keep_truth: true,
        ..ApiServerOptions::default()
    };
    let (server, serving) = ApiServer::bind(options).await?;
    let stop = CancellationToken::new();
    tokio::spawn(serving.serve(stop.clone()));
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("kubeconfig");
    std::fs::write(&path, server.kubeconfig())?;
    let client = connect_to_server(&ConnectOptions { kubeconfig: Some(path), context: None }).await?.client;
    Ok(ClientLab {
        server,
        jobs: Api::default_namespaced(client.clone()),
        client,
        _serving: stop.drop_guard(),
    })
}

fn job(name: &str) -> Result<Job> {
    Ok(serde_json::from_value(json!({"apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": name, "labels": {"team": "vision"}},
        "spec": {"template": {"spec": {"restartPolicy": "Never",
            "containers": [{"name": "trainer", "image": "registry.example.com/train:1"}]}}}}))?)
}

impl ClientLab {
    async fn create(&self, name: &str) -> Result<Job> {
        Ok(self.jobs.create(&PostParams::default(), &job(name)?).await?)
    }

    async fn touch(&self, name: &str, change: u32) -> Result<Job> {
        let patch = json!({"metadata": {"annotations": {"change": change.to_string()}}});
        Ok(self.jobs.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?)
    }

    /// uid → version of what the server says that it has.
    fn live(&self) -> BTreeMap<String, String> {
        let mut live = BTreeMap::new();
        for entry in self.server.history("batch", "jobs") {
            match entry.event {
                "DELETED" => live.remove(&entry.uid),
                _ => live.insert(entry.uid, entry.version.to_string()),
            };
        }
        live
    }
}

fn identity(job: &Job) -> (String, String) {
    (job.uid().unwrap_or_default(), job.resource_version().unwrap_or_default())
}

#[tokio::test]
async fn a_typed_client_lists_by_pages_gets_patches_and_deletes() -> Result<()> {
    let lab = lab().await?;
    for number in 0..5 {
        lab.create(&format!("job-{number}")).await?;
    }
    let taken = lab.jobs.create(&PostParams::default(), &job("job-1")?).await;
    ensure!(matches!(&taken, Err(kube::Error::Api(status)) if status.code == 409), "{taken:?}");
    let patched = lab.touch("job-2", 7).await?;
    ensure!(patched.annotations().get("change").map(String::as_str) == Some("7"), "{patched:?}");
    // A stale version is refused.
    let mut stale = lab.jobs.get("job-2").await?;
    lab.touch("job-2", 8).await?;
    stale.labels_mut().insert("late".into(), "true".into());
    let refused = lab.jobs.replace("job-2", &PostParams::default(), &stale).await;
    ensure!(matches!(&refused, Err(kube::Error::Api(status)) if status.code == 409), "{refused:?}");
    // Pages, which all show one version.
    let (mut found, mut params, mut versions) = (BTreeMap::new(), ListParams::default().limit(2), Vec::new());
    loop {
        let page = lab.jobs.list(&params).await?;
        found.extend(page.items.iter().map(identity));
        versions.extend(page.metadata.resource_version.clone());
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = ListParams::default().limit(2).continue_token(&token),
            None => break,
        }
    }
    ensure!(found == lab.live(), "{found:?} instead of {:?}", lab.live());
    ensure!(versions.len() == 3 && versions.iter().all(|version| *version == versions[0]), "{versions:?}");
    let ours = lab.jobs.list(&ListParams::default().labels("team=vision")).await?;
    let theirs = lab.jobs.list(&ListParams::default().labels("team=speech")).await?;
    ensure!(
        (ours.items.len(), theirs.items.len()) == (5, 0),
        "{} and {}",
        ours.items.len(),
        theirs.items.len()
    );
    lab.jobs.delete("job-3", &DeleteParams::background()).await?;
    ensure!(lab.jobs.get_opt("job-3").await?.is_none(), "it is still there");
    ensure!(lab.client.apiserver_version().await?.major == "1", "a version");
    Ok(())
}

#[tokio::test]
async fn a_typed_watch_tells_every_change_in_order_and_that_a_version_is_gone() -> Result<()> {
    let lab = lab().await?;
    lab.create("job-0").await?;
    let from = lab.server.version().to_string();
    for change in 0..4 {
        lab.touch("job-0", change).await?;
    }
    lab.jobs.delete("job-0", &DeleteParams::background()).await?;
    let params = WatchParams::default().timeout(20);
    let stream = lab.jobs.watch(&params, &from).await?.boxed();
    let events = stream.take(5).try_collect::<Vec<_>>();
    let events = tokio::time::timeout(WITHIN, events).await.context("five events")??;
    let kinds: Vec<_> = events
        .iter()
        .map(|event| match event {
            WatchEvent::Modified(_) => "MODIFIED",
            WatchEvent::Deleted(_) => "DELETED",
            _ => "another",
        })
        .collect();
    ensure!(kinds == ["MODIFIED", "MODIFIED", "MODIFIED", "MODIFIED", "DELETED"], "{kinds:?}");
    lab.server.compact(None);
    let mut stream = lab.jobs.watch(&params, &from).await?.boxed();
    let told = tokio::time::timeout(WITHIN, stream.try_next()).await.context("an answer")??;
    ensure!(matches!(&told, Some(WatchEvent::Error(status)) if status.code == 410), "{told:?}");
    Ok(())
}

/// Follows the server with kube's watcher while its watches break and its versions expire.
async fn followed(strategy: InitialListStrategy) -> Result<()> {
    let lab = lab().await?;
    for number in 0..4 {
        lab.create(&format!("job-{number}")).await?;
    }
    let config =
        watcher::Config { initial_list_strategy: strategy, page_size: Some(2), ..Default::default() };
    let mut events = watcher(lab.jobs.clone(), config).boxed();
    let (mut held, mut coming) = (BTreeMap::new(), BTreeMap::new());
    let mut lists = 0;
    let mut follow = async |until: &BTreeMap<String, String>| -> Result<u32> {
        let following = async {
            while held != *until {
                // An error is told, and the watcher goes on by itself.
                match events.next().await {
                    None => bail!("the watcher ended"),
                    Some(Err(_)) => {}
                    Some(Ok(Event::Init)) => coming = BTreeMap::new(),
                    Some(Ok(Event::InitApply(job))) => coming.extend([identity(&job)]),
                    Some(Ok(Event::InitDone)) => {
                        held = std::mem::take(&mut coming);
                        lists += 1;
                    }
                    Some(Ok(Event::Apply(job))) => held.extend([identity(&job)]),
                    Some(Ok(Event::Delete(job))) => drop(held.remove(&identity(&job).0)),
                }
            }
            Ok(lists)
        };
        let followed = tokio::time::timeout(WITHIN, following).await;
        followed.context("the watcher never had what the server has")?
    };
    ensure!(follow(&lab.live()).await? == 1, "one list at first");
    for change in 0..3 {
        lab.touch("job-1", change).await?;
        lab.server.drop_watches(if change == 1 { WatchDrop::Abort } else { WatchDrop::Clean });
        lab.create(&format!("more-{change}")).await?;
        lab.jobs.delete(&format!("job-{}", change + 1), &DeleteParams::background()).await?;
        lab.create(&format!("job-{}", change + 1)).await?;
        ensure!(follow(&lab.live()).await? == 1, "it listed again, although its version was there");
    }
    // Its version expires, so that it lists again.
    lab.server.compact(None);
    lab.server.drop_watches(WatchDrop::Clean);
    lab.touch("job-0", 9).await?;
    lab.server.compact(None);
    follow(&lab.live()).await?;
    Ok(())
}

#[tokio::test]
async fn kubes_watcher_follows_by_pages() -> Result<()> {
    followed(InitialListStrategy::ListWatch).await
}

#[tokio::test]
async fn kubes_watcher_follows_by_streaming_lists() -> Result<()> {
    followed(InitialListStrategy::StreamingList).await
}
