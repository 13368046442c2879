use std::sync::Arc;

use kubewitness_core::clock::SystemClock;
use kubewitness_core::config::SourceSpec;
use kubewitness_core::ports::{AppendBatch, StateWitness, WitnessedState};
use kubewitness_core::{Change, ObjectRef, StateId, Status, Version};
use kubewitness_journal::{Journal, JournalOptions};
use kubewitness_sandbox::{ComponentCompiler, EngineOptions, SandboxEngine};
use kubewitness_watch::{ConnectOptions, connect_to_server};
use tokio::net::{TcpListener, TcpStream};

use super::settings::changed_sources;
use super::*;
use crate::config::component::component_digest;
use crate::config::manifest::{ManifestEntry, ManifestOrigin};
use crate::controller::shared::PluginPhase;
use crate::tasks::TaskSupervisor;

fn source(kind: &str, api_version: &str, namespace: Option<&str>) -> SourceSpec {
    SourceSpec { namespace: namespace.map(Into::into), ..SourceSpec::of("jobs", api_version, kind) }
}

pub(super) fn entry(config_map: &str, text: &str) -> ManifestEntry {
    let origin = ManifestOrigin { place: format!("{config_map}.yaml"), first_line: 1, folder: None };
    ManifestEntry { config_map: config_map.into(), origin, text: text.into(), binary: BTreeMap::new() }
}

const HOST: &str =
    "apiVersion: kubewitness.dev/v1alpha1\nkind: Host\nmetadata: {name: host}\nspec: {sources: []}\n";

/// A new controller, with one plugin whose last good settings are known.
pub(super) async fn control(data: &std::path::Path) -> ReconcileLoop {
    let kubeconfig = data.join("kubeconfig");
    let text = "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n\
                clusters: [{name: c, cluster: {server: \"http://127.0.0.1:1\"}}]\nusers: [{name: u, user: {}}]\n";
    std::fs::write(&kubeconfig, text).unwrap();
    let options = ConnectOptions { kubeconfig: Some(kubeconfig), ..ConnectOptions::default() };
    let connection = connect_to_server(&options).await.unwrap();
    let journal = Journal::open(&data.join("journal.db"), JournalOptions::default()).await.unwrap();
    let (shared, clock) = (Arc::new(SharedStatus::default()), Arc::new(SystemClock::default()));
    let tasks = TaskSupervisor::new(CancellationToken::new(), CancellationToken::new());
    let (witness, role) = (Arc::new(journal.clone()), LeaderRole::new(None, journal.clone()));
    let timers = ControllerTimers::default();
    let sources = SourceParts::new(
        connection,
        witness,
        clock.clone(),
        shared.clone(),
        tasks.clone(),
        timers.watch.clone(),
    );
    // Compiled code is found again at once.
    let engine = SandboxEngine::new(EngineOptions {
        cache: Some(data.join("cache")),
        compiler: ComponentCompiler::InProcess,
        is_unattended: false,
    })
    .unwrap();
    let abort = CancellationToken::new();
    let folders = kubewitness_harness::plugins_folder().into_iter().collect::<Vec<_>>().into();
    let plugins = RunningPlugins::new(engine, journal, clock, shared, tasks, folders, abort);
    let last_good = LastGood::open(data).unwrap();
    last_good.save_plugin("old", &good(entry("old", ""), b"component"), b"component").unwrap();
    let reporter = ConfigReporter::new(None);
    ReconcileLoop::new(data.to_path_buf(), role, sources, plugins, reporter, last_good, &timers)
        .await
        .unwrap()
}

fn good(entry: ManifestEntry, component: &[u8]) -> GoodPlugin {
    GoodPlugin { entry, component: component_digest(component), pulled: None }
}

/// The state after a restart.
fn ran_before(control: &mut ReconcileLoop, quick: ManifestEntry, component: &[u8]) {
    let good = good(quick, component);
    control.last_good.save_plugin("quick", &good, component).unwrap();
    control.good_plugins.insert("quick".into(), good);
}

/// Waits until every component of the snapshot is examined.
async fn settled(control: &mut ReconcileLoop, snapshot: &ConfigSnapshot) {
    loop {
        control.reconcile_snapshot(snapshot, &CancellationToken::new()).await;
        if control.waiting.is_empty() {
            return;
        }
        control.examinations.await_answer().await;
    }
}

#[tokio::test]
async fn what_a_stop_kept_from_being_looked_at_is_not_taken_for_removed() {
    let folder = tempfile::tempdir().unwrap();
    let mut control = control(folder.path()).await;
    let hosts = vec![entry("host", HOST)];
    let snapshot =
        ConfigSnapshot { hosts, plugins: vec![entry("new", "kind: Plugin")], ..ConfigSnapshot::default() };
    let stop = CancellationToken::new();
    stop.cancel();
    control.reconcile_snapshot(&snapshot, &stop).await;
    assert!(control.good_plugins.contains_key("old"), "a stop is no change of the configuration");
    assert!(control.shared.plugins().is_empty(), "and nothing is begun after it");
    assert!(control.last_good.plugins().unwrap().contains_key("old"));

    control.reconcile_snapshot(&snapshot, &CancellationToken::new()).await;
    assert!(control.good_plugins.is_empty(), "but what was looked at and is not there is taken out");
    assert_eq!(control.shared.plugins().into_keys().collect::<Vec<_>>(), ["new"]);
}

fn head(kind: &str, name: &str) -> String {
    format!("apiVersion: kubewitness.dev/v1alpha1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec:\n")
}

/// A plugin that writes to the database of its name.
fn writer(name: &str, batch: u32) -> ManifestEntry {
    let text = format!(
        "{}  module: {{file: persistence.wasm}}\n  subscribe: [{{source: jobs, mode: every, start: beginning}}]\n  \
         grants: {{sql: [{{name: main, database: {name}}}]}}\n  delivery: {{batch: {batch}}}\n",
        head("Plugin", name)
    );
    entry(name, &text)
}

/// Two plugins that write, one of them to a database that never answers.
fn two_writers(url: &std::path::Path) -> ManifestEntry {
    let text = format!(
        "{}  sources: [{{name: jobs, apiVersion: batch/v1, kind: Job}}]\n  databases:\n  \
         - {{name: quick, sqlite: {{path: quick.db}}}}\n  - {{name: hung, postgres: {{urlFrom: {{file: {}}}}}}}\n",
        head("Host", "host"),
        url.display()
    );
    entry("host", &text)
}

async fn witness_a_job(journal: &Journal) {
    let object = Arc::new(ObjectRef { kind: "Job".into(), uid: "u".into(), ..ObjectRef::default() });
    let version = Version::new("1");
    let state = WitnessedState {
        id: StateId::of("jobs", 0, &object, Change::Present, &version, None),
        change: Change::Present,
        object,
        owner: None,
        controller: None,
        resource_version: version,
        status: Arc::new(Status::default()),
        previous: None,
        observed_ms: 1,
        document: "{}".into(),
        base: None,
        quotes_none_under: None,
    };
    journal
        .append_batch(AppendBatch { source: "jobs".into(), states: vec![state], ..AppendBatch::default() })
        .await
        .unwrap();
}

/// Two plugins, one of which is in a call that waits for its database until the stream closes.
struct HangingPlugins {
    control: ReconcileLoop,
    url: std::path::PathBuf,
    call: TcpStream,
    _folder: tempfile::TempDir,
}

impl HangingPlugins {
    async fn begin() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut control = control(folder.path()).await;
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = folder.path().join("url");
        std::fs::write(&url, format!("postgres://ann:hush@{}/d", silent.local_addr().unwrap())).unwrap();
        witness_a_job(&control.plugins.journal).await;
        let snapshot = wanted(&url, &[("hung", 1), ("quick", 1)]);
        settled(&mut control, &snapshot).await;
        assert_eq!(control.shared.problems(), [""; 0]);
        Self { control, url, call: silent.accept().await.unwrap().0, _folder: folder }
    }

    async fn change(&mut self, plugins: &[(&str, u32)]) {
        let snapshot = wanted(&self.url, plugins);
        settled(&mut self.control, &snapshot).await;
        // On a busy machine it may drain for longer than a change waits for it.
        while self.is_draining("quick") {
            self.control.plugins.await_drained().await;
            settled(&mut self.control, &snapshot).await;
        }
    }

    fn is_draining(&self, name: &str) -> bool {
        self.control.shared.plugin(name).is_some_and(|plugin| plugin.phase == PluginPhase::Draining)
    }

    fn taken(&self, name: &str) -> (PluginPhase, ManifestEntry) {
        let phase = self.control.shared.plugin(name).unwrap().phase;
        (phase, self.control.good_plugins[name].entry.clone())
    }
}

fn wanted(url: &std::path::Path, plugins: &[(&str, u32)]) -> ConfigSnapshot {
    let plugins = plugins.iter().map(|(name, batch)| writer(name, *batch)).collect();
    ConfigSnapshot { hosts: vec![two_writers(url)], plugins, ..ConfigSnapshot::default() }
}

#[tokio::test]
async fn while_a_plugin_drains_the_changes_of_others_are_taken_and_its_own_wait() {
    let mut hanging = HangingPlugins::begin().await;
    for batch in 2..=3 {
        hanging.change(&[("hung", batch), ("quick", batch)]).await;
        assert_eq!(hanging.taken("quick"), (PluginPhase::Active, writer("quick", batch)));
        assert_eq!(hanging.taken("hung"), (PluginPhase::Draining, writer("hung", 1)));
        assert!(!hanging.control.plugins.is_running("hung"), "nobody goes on before its call has ended");
    }
    drop(hanging.call);
    hanging.control.plugins.await_drained().await;
    let snapshot = wanted(&hanging.url, &[("hung", 3), ("quick", 3)]);
    settled(&mut hanging.control, &snapshot).await;
    let good = &hanging.control.good_plugins["hung"].entry;
    assert_eq!(good, &writer("hung", 3), "the newest of its changes is taken");
    assert!(hanging.control.plugins.is_running("hung"));
}

#[tokio::test]
async fn a_plugin_that_is_taken_out_is_forgotten_when_it_has_drained() {
    let mut hanging = HangingPlugins::begin().await;
    hanging.change(&[("quick", 1)]).await;
    assert_eq!(hanging.taken("hung"), (PluginPhase::Draining, writer("hung", 1)));
    drop(hanging.call);
    hanging.control.plugins.await_drained().await;
    hanging.control.reconcile_snapshot(&wanted(&hanging.url, &[]), &CancellationToken::new()).await;
    assert!(hanging.control.good_plugins.is_empty() && hanging.control.shared.plugins().is_empty());
}

#[tokio::test]
async fn a_shut_down_waits_for_whoever_was_left_draining() {
    let mut hanging = HangingPlugins::begin().await;
    hanging.change(&[("hung", 2), ("quick", 1)]).await;
    let mut shut_down = std::pin::pin!(hanging.control.plugins.shut_down());
    assert!(tokio::time::timeout(Duration::from_millis(100), &mut shut_down).await.is_err());
    drop(hanging.call);
    shut_down.await;
}

/// The state after a restart with an invalid manifest and without a cache.
#[tokio::test]
async fn the_last_good_version_starts_once_it_is_compiled_and_the_fault_is_told_all_the_while() {
    let folder = tempfile::tempdir().unwrap();
    let mut control = control(folder.path()).await;
    let url = folder.path().join("url");
    std::fs::write(&url, "postgres://ann:hush@127.0.0.1:1/d").unwrap();
    let component = std::fs::read(control.plugins.folders.plugins[0].join("persistence.wasm")).unwrap();
    ran_before(&mut control, writer("quick", 1), &component);
    let bad = entry("quick", &format!("{}  nonsense: 1\n", head("Plugin", "quick")));
    let snapshot =
        ConfigSnapshot { hosts: vec![two_writers(&url)], plugins: vec![bad], ..ConfigSnapshot::default() };
    loop {
        control.reconcile_snapshot(&snapshot, &CancellationToken::new()).await;
        let state = control.shared.plugin("quick").unwrap();
        assert!(state.message.unwrap().contains("nonsense"), "whatever else is told");
        if control.waiting.is_empty() {
            break;
        }
        assert_eq!(state.phase, PluginPhase::Starting);
        control.examinations.await_answer().await;
    }
    assert_eq!(control.shared.plugin("quick").unwrap().phase, PluginPhase::Degraded);
    assert!(control.plugins.is_running("quick"));
}

#[tokio::test]
async fn settings_that_newly_ask_for_signatures_stop_a_component_that_has_none() {
    let folder = tempfile::tempdir().unwrap();
    let mut control = control(folder.path()).await;
    let url = folder.path().join("url");
    std::fs::write(&url, "postgres://ann:hush@127.0.0.1:1/d").unwrap();
    let component = std::fs::read(control.plugins.folders.plugins[0].join("persistence.wasm")).unwrap();
    let mut unsigned = writer("quick", 1);
    unsigned.text = unsigned.text.replace("{file: persistence.wasm}", "{configMapKey: p.wasm}");
    unsigned.binary.insert("p.wasm".into(), component.into());
    let mut snapshot = ConfigSnapshot {
        hosts: vec![two_writers(&url)],
        plugins: vec![unsigned],
        ..ConfigSnapshot::default()
    };
    settled(&mut control, &snapshot).await;
    assert!(control.plugins.is_running("quick"));
    let key = kubewitness_harness::registry::SigningKey::make().unwrap().public();
    let asked = format!("  modules: {{signedBy: [{}]}}\n", serde_json::to_string(&key).unwrap());
    snapshot.hosts[0].text.push_str(&asked);
    settled(&mut control, &snapshot).await;
    let state = control.shared.plugin("quick").unwrap();
    assert_eq!((state.phase, control.plugins.is_running("quick")), (PluginPhase::Failed, false));
    assert!(state.message.unwrap().contains("modules.signedBy"));
}

/// The state after a restart while the registry of the shadow accepts connections and sends nothing.
#[tokio::test]
async fn a_version_starts_while_the_registry_of_its_shadow_does_not_answer() {
    let folder = tempfile::tempdir().unwrap();
    let mut control = control(folder.path()).await;
    let url = folder.path().join("url");
    std::fs::write(&url, "postgres://ann:hush@127.0.0.1:1/d").unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut quick = writer("quick", 1);
    quick.text += &format!("  shadow: {{module: {{oci: \"{}/a:1\"}}}}\n", silent.local_addr().unwrap());
    let mut host = two_writers(&url);
    host.text += "  modules: {addresses: [loopback]}\n";
    let snapshot =
        ConfigSnapshot { hosts: vec![host], plugins: vec![quick.clone()], ..ConfigSnapshot::default() };
    let is_held_up = |control: &ReconcileLoop| {
        let message = control.shared.message("quick").unwrap_or_default();
        control.plugins.is_running("quick") && message.contains("component for its shadow is being fetched")
    };
    while !is_held_up(&control) {
        control.reconcile_snapshot(&snapshot, &CancellationToken::new()).await;
        assert_eq!(control.waiting.len(), 1, "{:?}", control.shared.message("quick"));
        if !control.plugins.is_running("quick") {
            control.examinations.await_answer().await;
        }
    }
    assert_eq!(control.good_plugins["quick"].entry, quick);
}

/// The state after a restart with a file that is no YAML, so its plugin is unknown, or with an empty folder.
#[tokio::test]
async fn while_a_file_can_not_be_read_or_all_are_gone_the_last_good_version_of_an_unnamed_plugin_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let mut control = control(folder.path()).await;
    let url = folder.path().join("url");
    std::fs::write(&url, "postgres://ann:hush@127.0.0.1:1/d").unwrap();
    let component = std::fs::read(control.plugins.folders.plugins[0].join("persistence.wasm")).unwrap();
    control.good_plugins.clear();
    ran_before(&mut control, writer("quick", 1), &component);
    let problems = vec![ManifestProblem::of("persistence.yaml", Some(1), "unclosed bracket")];
    let unread = ConfigSnapshot { hosts: vec![two_writers(&url)], problems, ..ConfigSnapshot::default() };
    let nothing = ConfigSnapshot::default();
    for snapshot in [&unread, &unread, &nothing] {
        settled(&mut control, snapshot).await;
        let state = control.shared.plugin("quick").unwrap();
        assert!(control.plugins.is_running("quick") && state.phase == PluginPhase::Degraded);
        assert!(state.message.unwrap().contains("can't be read"));
    }
    let mended = ConfigSnapshot { plugins: vec![writer("quick", 1)], problems: Vec::new(), ..unread };
    settled(&mut control, &mended).await;
    assert_eq!(control.shared.plugin("quick").unwrap().phase, PluginPhase::Active);
    let removed = ConfigSnapshot { plugins: Vec::new(), ..mended };
    settled(&mut control, &removed).await;
    assert!(!control.plugins.is_running("quick") && control.good_plugins.is_empty());
}

#[tokio::test]
async fn the_journal_keeps_what_a_plugin_is_owed_before_its_component_is_compiled() {
    let folder = tempfile::tempdir().unwrap();
    let mut control = control(folder.path()).await;
    let url = folder.path().join("url");
    std::fs::write(&url, "postgres://ann:hush@127.0.0.1:1/d").unwrap();
    let mut snapshot = wanted(&url, &[("quick", 1)]);
    let missing = writer("hung", 1);
    snapshot
        .plugins
        .push(ManifestEntry { text: missing.text.replace("persistence.wasm", "none.wasm"), ..missing });
    control.reconcile_snapshot(&snapshot, &CancellationToken::new()).await;
    let journal = control.plugins.journal.clone();
    let noted = journal.plugin_progress("hung").await.unwrap().unwrap();
    assert!(noted.is_unstarted && noted.is_subscribed("jobs"), "it has no component yet: {noted:?}");
    let quick = journal.plugin_progress("quick").await.unwrap().unwrap();
    assert!(quick.is_unstarted || control.plugins.is_running("quick"), "{quick:?}");
    settled(&mut control, &snapshot).await;
    assert!(control.plugins.is_running("quick"));
    control.plugins.shut_down().await;
    assert!(!journal.plugin_progress("quick").await.unwrap().unwrap().is_unstarted);
}

#[tokio::test]
async fn a_replica_that_is_no_longer_the_leader_examines_nothing() {
    let mut hanging = HangingPlugins::begin().await;
    let snapshot = wanted(&hanging.url, &[("quick", 2)]);
    hanging.control.examinations.begin_round();
    let (host, quick) = (hanging.control.host.clone().unwrap(), &snapshot.plugins[0]);
    let wanted = hanging.control.plugins.find(quick, &host).await.unwrap();
    let number = hanging.control.examinations.request_check(wanted);
    assert!(hanging.control.examinations.waiting_message(number).is_some());
    hanging.control.examinations.abandon_all();
    hanging.control.examinations.await_quick_answers().await;
    assert!(hanging.control.examinations.waiting_message(number).is_none());
    assert!(hanging.control.examinations.take(number).is_none());
}

#[test]
fn a_source_that_would_witness_something_else_under_its_old_name_is_refused() {
    let known = BTreeMap::from([("jobs".to_string(), source("Job", "batch/v1", None))]);
    assert!(changed_sources(&known, &[source("Job", "batch/v2", None)]).is_empty());
    for other in [source("Job", "batch/v1", Some("team")), source("Secret", "v1", None)] {
        assert_eq!(changed_sources(&known, &[other])[0].field, "spec.sources[0]");
    }
    assert!(changed_sources(&BTreeMap::new(), &[source("Secret", "v1", None)]).is_empty());
}
