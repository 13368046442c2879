//! The probe, compiled once, the hostile guests, and grants whose sessions record their calls.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use kubewitness_core::config::{ComponentsSpec, LimitsSpec};
use kubewitness_core::ports::{
    CallError, CallOutcome, ChangedOutcome, EffectSession, ExplainedOutcome, GrantError, GrantProvider,
    HttpRequest, HttpResponse, KvWrite, KvWrites, LogLevel, MailMessage, MailRefusal, OutcomeFinding,
    OutcomePage, PluginHandler, ShownState, SqlDialect, SqlValue, StateDelivery, TableCopy, TableWrite,
};
use kubewitness_core::views::{Cause, CauseKind, FailedContainer};
use kubewitness_core::{Change, ObjectRef, Seq, State, StateId, Status, Version};
use kubewitness_sandbox::{ComponentCompiler, EngineOptions, PluginComponent, SandboxEngine, SandboxPlugin};
use tokio::sync::OnceCell;

/// A component from the folder that `KUBEWITNESS_PLUGINS` names, with the name that people use, or from the
/// target folder of this test's build.
fn component(named: &str, built: &str) -> Vec<u8> {
    let folder = std::env::var_os("KUBEWITNESS_PLUGINS").map(PathBuf::from);
    let test = std::env::current_exe().expect("a running program has a path");
    let beside = test.ancestors().map(|folder| folder.join("wasm32-wasip2").join(built));
    let found = folder.map(|folder| folder.join(named)).into_iter().chain(beside).find(|path| path.is_file());
    let found = found.unwrap_or_else(|| panic!("{named} is not built: run `cargo xtask plugins` first"));
    std::fs::read(found).expect("it was just found")
}

pub fn probe_bytes() -> Vec<u8> {
    component("probe.wasm", "plugin/kubewitness_plugin_probe.wasm")
}

/// The hostile guest with this name in `tests/guests/hostile`.
pub fn hostile_bytes(name: &str) -> Vec<u8> {
    component(&format!("hostile/{name}.wasm"), &format!("playground-plugin/examples/{name}.wasm"))
}

pub async fn hostile(name: &str) -> PluginComponent {
    engine().load(&hostile_bytes(name).into(), &ComponentsSpec::default()).await.unwrap()
}

static ENGINE: LazyLock<SandboxEngine> = LazyLock::new(|| {
    SandboxEngine::new(EngineOptions {
        cache: None,
        compiler: ComponentCompiler::InProcess,
        is_unattended: false,
    })
    .unwrap()
});

pub fn engine() -> SandboxEngine {
    ENGINE.clone()
}

pub async fn probe() -> PluginComponent {
    static PROBE: OnceCell<PluginComponent> = OnceCell::const_new();
    let load = async || engine().load(&probe_bytes().into(), &ComponentsSpec::default()).await.unwrap();
    PROBE.get_or_init(load).await.clone()
}

/// The record of one plugin's sessions, and their answers.
#[derive(Default)]
pub struct SessionRecord {
    /// `command` and `answer` of each line that the probe logged.
    pub answers: Vec<(String, String)>,
    pub lines: usize,
    pub committed: Vec<Vec<Seq>>,
    pub rolled_back: usize,
    pub open: usize,
    pub most_open: usize,
    pub written: Vec<TableWrite>,
    pub statements: Vec<String>,
    pub requests: Vec<HttpRequest>,
    pub mail: Vec<MailMessage>,
    pub appended: Vec<Vec<u8>>,
    pub documents: BTreeMap<Seq, &'static str>,
    pub before: BTreeMap<Seq, &'static str>,
}

pub struct FakeGrants {
    pub config: &'static str,
    pub granted: bool,
    pub applied: HashSet<Seq>,
    /// The duration of each query.
    pub query: Duration,
    /// How long each read of `kv` blocks the thread.
    pub kv_read: Duration,
    pub commit: Result<(), GrantError>,
    pub record: Arc<Mutex<SessionRecord>>,
    /// States with a request that must not be sent again.
    pub in_doubt: Vec<Seq>,
}

impl Default for FakeGrants {
    fn default() -> Self {
        Self {
            config: "{}",
            granted: true,
            applied: HashSet::new(),
            in_doubt: Vec::new(),
            query: Duration::ZERO,
            kv_read: Duration::ZERO,
            commit: Ok(()),
            record: Arc::default(),
        }
    }
}

pub struct SandboxBench {
    pub plugin: SandboxPlugin,
    record: Arc<Mutex<SessionRecord>>,
}

impl SandboxBench {
    pub async fn new(fake: FakeGrants, limits: LimitsSpec) -> Self {
        Self::of(&probe().await, fake, &limits)
    }

    pub fn of(component: &PluginComponent, fake: FakeGrants, limits: &LimitsSpec) -> Self {
        let record = fake.record.clone();
        let plugin = component.make_plugin("probe", limits, Arc::new(fake)).unwrap();
        Self { plugin, record }
    }

    pub async fn hostile(name: &str, config: &'static str, limits: LimitsSpec) -> Self {
        Self::of(&hostile(name).await, FakeGrants { config, ..FakeGrants::default() }, &limits)
    }

    pub async fn plain() -> Self {
        Self::new(FakeGrants::default(), LimitsSpec::default()).await
    }

    /// Delivers one state for each command, with positions from 1.
    pub async fn run(&self, commands: &[&str]) -> Result<CallOutcome, CallError> {
        let batch: Vec<_> = (1..).zip(commands).map(|(seq, command)| delivery(seq, command)).collect();
        self.plugin.handle_batch(&batch).await
    }

    /// Delivers this many states, for a plugin that reads no commands.
    pub async fn hand_over(&self, states: usize) -> Result<CallOutcome, CallError> {
        self.run(&vec![""; states]).await
    }

    /// The output of one command.
    pub async fn ask(&self, command: &str) -> String {
        self.run(&[command]).await.unwrap();
        let (asked, answer) = self.record().answers.pop().expect("a command that was obeyed is answered");
        assert_eq!(asked, command);
        answer
    }

    pub fn record(&self) -> MutexGuard<'_, SessionRecord> {
        self.record.lock().unwrap()
    }

    /// Expects that nothing was committed, and that one call was rolled back.
    pub fn expect_one_rollback(&self) {
        let record = self.record();
        assert_eq!((record.committed.len(), record.rolled_back), (0, 1));
    }
}

pub fn delivery(seq: Seq, command: &str) -> StateDelivery {
    let object = Arc::new(ObjectRef {
        group: "batch".into(),
        version: "v1".into(),
        kind: "Job".into(),
        namespace: "default".into(),
        name: format!("job-{seq}"),
        uid: format!("uid-{seq}"),
    });
    let version = Version::new(&seq.to_string());
    let state = State {
        id: StateId::of("jobs", 0, &object, Change::Present, &version, None),
        seq,
        source: "jobs".into(),
        epoch: 0,
        change: Change::Present,
        object,
        owner: None,
        resource_version: version,
        status: Arc::new(Status { phase: "Running".into(), message: command.into(), ..Status::default() }),
        previous: None,
        observed_ms: 1000 + seq,
        late: false,
        quotes_none_under: None,
    };
    StateDelivery { state: Arc::new(state), attempt: 1, resync: false }
}

#[async_trait]
impl GrantProvider for FakeGrants {
    fn plugin_config(&self) -> &str {
        self.config
    }

    async fn open(&self, _batch: &[StateDelivery]) -> Result<Box<dyn EffectSession>, GrantError> {
        let mut record = self.record.lock().unwrap();
        record.open += 1;
        record.most_open = record.most_open.max(record.open);
        Ok(Box::new(FakeSession {
            granted: self.granted,
            applied: self.applied.clone(),
            in_doubt: self.in_doubt.clone(),
            query: self.query,
            kv_read: self.kv_read,
            commit: self.commit.clone(),
            record: self.record.clone(),
            kv: BTreeMap::new(),
        }))
    }
}

struct FakeSession {
    granted: bool,
    applied: HashSet<Seq>,
    in_doubt: Vec<Seq>,
    query: Duration,
    kv_read: Duration,
    commit: Result<(), GrantError>,
    record: Arc<Mutex<SessionRecord>>,
    kv: BTreeMap<String, Vec<u8>>,
}

impl FakeSession {
    fn granted(&self, what: &str) -> Result<MutexGuard<'_, SessionRecord>, GrantError> {
        let denied = || GrantError::Denied(format!("{what} was not granted"));
        self.granted.then(|| self.record.lock().unwrap()).ok_or_else(denied)
    }
}

impl Drop for FakeSession {
    fn drop(&mut self) {
        self.record.lock().unwrap().open -= 1;
    }
}

#[async_trait]
impl EffectSession for FakeSession {
    async fn show_state(&mut self, state: &Arc<State>) -> Result<ShownState, GrantError> {
        let has_subscribed_owner = state.owner.as_ref().is_none_or(|owner| owner.kind != "JobSet");
        Ok(ShownState { state: state.clone(), document_digest: None, has_subscribed_owner })
    }

    fn applied_states(&self) -> &HashSet<Seq> {
        &self.applied
    }

    fn sql_dialect(&self, database: &str) -> Result<SqlDialect, GrantError> {
        self.granted(database).map(|_| SqlDialect::Sqlite)
    }

    async fn sql_execute(
        &mut self,
        database: &str,
        statement: &str,
        rows: Vec<Vec<SqlValue>>,
    ) -> Result<u64, GrantError> {
        self.granted(database)?.statements.push(statement.to_string());
        Ok(rows.len() as u64)
    }

    async fn sql_write(
        &mut self,
        database: &str,
        write: TableWrite,
        copy: Option<TableCopy>,
    ) -> Result<u64, GrantError> {
        let copy = copy.map(|copy| copy.into_write(&write)).transpose()?;
        let writes: Vec<_> = [Some(write), copy].into_iter().flatten().collect();
        let rows = writes.iter().map(|write| write.rows.len() as u64).sum();
        self.granted(database)?.written.extend(writes);
        Ok(rows)
    }

    async fn sql_query(
        &mut self,
        database: &str,
        _statement: &str,
        _params: Vec<SqlValue>,
    ) -> Result<Vec<Vec<SqlValue>>, GrantError> {
        drop(self.granted(database)?);
        tokio::time::sleep(self.query).await;
        Ok(vec![vec![SqlValue::Integer(7), SqlValue::Null, SqlValue::Text("seven".into())]])
    }

    async fn http_send(
        &mut self,
        destination: &str,
        request: HttpRequest,
    ) -> Result<HttpResponse, GrantError> {
        if request.path == "/busy" {
            return Err(GrantError::RateLimited { after_ms: 250 });
        }
        self.granted(destination)?.requests.push(request);
        Ok(HttpResponse { status: 202, headers: Vec::new(), body: b"taken".to_vec() })
    }

    async fn mail_send(
        &mut self,
        server: &str,
        message: MailMessage,
    ) -> Result<Vec<MailRefusal>, GrantError> {
        self.granted(server)?.mail.push(message);
        let recipient = "bob@example.com".into();
        Ok(vec![MailRefusal { recipient, is_permanent: true, reason: "no such user".into() }])
    }

    fn kv_get(&self, key: &str) -> Option<Vec<u8>> {
        std::thread::sleep(self.kv_read);
        self.kv.get(key).cloned()
    }

    fn kv_set(&mut self, key: &str, value: Vec<u8>) -> Result<(), GrantError> {
        drop(self.granted("kv")?);
        self.kv.insert(key.to_string(), value);
        Ok(())
    }

    fn kv_delete(&mut self, key: &str) -> Result<(), GrantError> {
        drop(self.granted("kv")?);
        self.kv.remove(key);
        Ok(())
    }

    fn kv_keys(&self, prefix: &str, limit: usize) -> Vec<String> {
        self.kv.keys().filter(|key| key.starts_with(prefix)).take(limit).cloned().collect()
    }

    async fn ledger_append(&mut self, ledger: &str, records: Vec<Vec<u8>>) -> Result<u64, GrantError> {
        let mut record = self.granted(ledger)?;
        record.appended.extend(records);
        Ok(record.appended.len() as u64)
    }

    async fn ledger_last(&mut self, ledger: &str) -> Result<Option<Vec<u8>>, GrantError> {
        Ok(self.granted(ledger)?.appended.last().cloned())
    }

    async fn conceal_name(&mut self, ledger: &str, name: String) -> Result<String, GrantError> {
        drop(self.granted(ledger)?);
        Ok(format!("digest of {name}"))
    }

    fn ledger_sign(&self, key: &str, message: &[u8]) -> Result<Vec<u8>, GrantError> {
        self.granted(key).map(|_| message.repeat(2))
    }

    async fn document_of_state(&mut self, seq: Seq) -> Result<Option<Bytes>, GrantError> {
        Ok(self.record.lock().unwrap().documents.get(&seq).map(|text| Bytes::from_static(text.as_bytes())))
    }

    async fn document_before(&mut self, seq: Seq) -> Result<Option<Bytes>, GrantError> {
        Ok(self.record.lock().unwrap().before.get(&seq).map(|text| Bytes::from_static(text.as_bytes())))
    }

    async fn lister_get(
        &mut self,
        source: &str,
        _namespace: &str,
        name: &str,
    ) -> Result<Option<Bytes>, GrantError> {
        self.granted(source).map(|_| (name == "there").then(|| Bytes::from_static(b"{}")))
    }

    fn lister_list(
        &self,
        source: &str,
        _index: &str,
        _key: &str,
        _limit: usize,
    ) -> Result<Vec<ObjectRef>, GrantError> {
        self.granted(source).map(|_| vec![ObjectRef { name: "there".into(), ..ObjectRef::default() }])
    }

    async fn find_outcome(&mut self, source: &str, uid: &str) -> Result<OutcomeFinding, GrantError> {
        drop(self.granted(source)?);
        Ok(match uid {
            "soon" => OutcomeFinding::Pending,
            "failed" => OutcomeFinding::Explained(Box::new(ExplainedOutcome {
                seq: 7,
                headline: "Failed: container main of pod a ran out of memory".into(),
                cause: Cause {
                    kind: CauseKind::OutOfMemory,
                    container: Some(FailedContainer { name: "main".into(), ..FailedContainer::default() }),
                    ..Cause::default()
                },
                ..ExplainedOutcome::default()
            })),
            _ => OutcomeFinding::Nothing,
        })
    }

    async fn outcome_changes(&mut self, after: &str, _limit: usize) -> Result<OutcomePage, GrantError> {
        drop(self.granted("outcomes")?);
        let changed = ChangedOutcome {
            uid: "failed".into(),
            seq: 7,
            kind: Some(CauseKind::OutOfMemory),
            ..ChangedOutcome::default()
        };
        let (next, is_restarted) = (format!("{after}x"), after.is_empty());
        Ok(OutcomePage { outcomes: vec![changed], next, has_more: false, is_restarted })
    }

    fn log_message(&self, _level: LogLevel, message: &str, fields: &[(String, String)]) {
        let mut record = self.record.lock().unwrap();
        record.lines += 1;
        if let ("probe", [(_, command), (_, answer)]) = (message, fields) {
            record.answers.push((command.clone(), answer.clone()));
        }
    }

    fn now_ms(&self) -> u64 {
        1234
    }

    fn in_doubt(&self) -> Vec<(Seq, String)> {
        self.in_doubt.iter().map(|seq| (*seq, "may have been sent".to_owned())).collect()
    }

    fn writes_if_undone(&mut self, seqs: &[Seq]) -> Vec<KvWrite> {
        seqs.iter().map(|seq| KvWrite { key: seq.to_string(), value: None }).collect()
    }

    async fn commit_effects(self: Box<Self>, done: &[Seq]) -> Result<KvWrites, GrantError> {
        self.commit.clone()?;
        self.record.lock().unwrap().committed.push(done.to_vec());
        let kv = self.kv.iter().map(|(key, value)| KvWrite { key: key.clone(), value: Some(value.clone()) });
        Ok(kv.collect::<Vec<_>>().into())
    }

    async fn undo_effects(mut self: Box<Self>, settled: &[Seq]) -> Result<KvWrites, GrantError> {
        self.commit.clone()?;
        self.record.lock().unwrap().rolled_back += 1;
        Ok(self.writes_if_undone(settled).into())
    }

    async fn roll_back_effects(self: Box<Self>) {
        self.record.lock().unwrap().rolled_back += 1;
    }
}
