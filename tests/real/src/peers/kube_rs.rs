//! The peers on kube-rs, as its documentation shows them: a watcher, and a reflector with its store.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::pin::pin;

use anyhow::{Context, Result, bail};
use futures::StreamExt;
use k8s_openapi::api::batch::v1::Job;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::reflector::{self, Store};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};

/// Runs until it is killed.
pub async fn run_peer(name: &str, kubeconfig: &Path, file: &Path) -> Result<()> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let jobs: Api<Job> = Api::all(Client::try_from(config)?);
    let file = File::options().create(true).append(true).open(file).context("opening the file")?;
    let notes = PeerNotes { file, known: BTreeSet::new(), listed: BTreeSet::new() };
    match name {
        "watcher" => watch(jobs, notes).await,
        "reflector" => reflect(jobs, notes).await,
        _ => bail!("there is no peer {name}"),
    }
}

struct PeerNotes {
    file: File,
    known: BTreeSet<String>,
    /// By the list that is being read.
    listed: BTreeSet<String>,
}

impl PeerNotes {
    /// In one write.
    fn line(&mut self, text: &str) -> Result<()> {
        self.file.write_all(format!("{text}\n").as_bytes()).context("writing a line")
    }

    fn present(&mut self, job: &Job) -> Result<()> {
        self.known.insert(job.name_any());
        let version = job.resource_version().unwrap_or_default();
        self.line(&format!("present {} {version}", job.name_any()))
    }

    fn gone(&mut self, name: &str) -> Result<()> {
        self.known.remove(name);
        self.line(&format!("gone {name}"))
    }

    /// Takes objects that a list no longer has for deleted, as the documentation of `Event` says.
    fn listed(&mut self) -> Result<()> {
        let gone: Vec<_> = self.known.difference(&self.listed).cloned().collect();
        for name in gone {
            self.gone(&name)?;
        }
        self.line("listed")
    }
}

async fn watch(jobs: Api<Job>, mut notes: PeerNotes) -> Result<()> {
    let mut events = pin!(watcher(jobs, watcher::Config::default()).default_backoff());
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => notes.listed.clear(),
            Ok(Event::InitApply(job)) => {
                notes.listed.insert(job.name_any());
                notes.present(&job)?;
            }
            Ok(Event::InitDone) => notes.listed()?,
            Ok(Event::Apply(job)) => notes.present(&job)?,
            Ok(Event::Delete(job)) => notes.gone(&job.name_any())?,
            // The stream goes on after its back-off.
            Err(_) => {}
        }
    }
    bail!("the watcher ended")
}

async fn reflect(jobs: Api<Job>, mut notes: PeerNotes) -> Result<()> {
    let (store, writer) = reflector::store();
    let events = watcher(jobs, watcher::Config::default()).default_backoff();
    let mut events = pin!(reflector::reflector(writer, events));
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(job) | Event::Delete(job)) => look_up(&store, &job, &mut notes)?,
            // The store takes a list as a whole.
            Ok(Event::InitDone) => {
                let jobs = store.state();
                notes.listed = jobs.iter().map(|job| job.name_any()).collect();
                for job in jobs {
                    notes.present(&job)?;
                }
                notes.listed()?;
            }
            Ok(Event::Init | Event::InitApply(_)) | Err(_) => {}
        }
    }
    bail!("the reflector ended")
}

fn look_up(store: &Store<Job>, job: &Job, notes: &mut PeerNotes) -> Result<()> {
    match store.get(&reflector::ObjectRef::from_obj(job)) {
        Some(job) => notes.present(&job),
        None => notes.gone(&job.name_any()),
    }
}
