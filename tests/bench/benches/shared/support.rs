//! Fixtures of the stage benchmarks.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use kubewitness_bench::{job, uid};
use kubewitness_core::ports::{
    Append, Delivery, Dialect, GrantError, Grants, HttpRequest, HttpResponse, KvWrite, LogLevel, MailMessage,
    MailRefusal, Session, ShownState, SqlValue, TableCopy, TableWrite, Witnessed,
};
use kubewitness_core::status::Rules;
use kubewitness_core::{Change, ObjectRef, Seq, State, StateId, Version};

pub fn component(name: &str) -> Vec<u8> {
    let folder = std::env::var_os("KUBEWITNESS_PLUGINS").map(PathBuf::from);
    let folder = folder.expect("KUBEWITNESS_PLUGINS names the built plugins: run `cargo xtask bench`");
    std::fs::read(folder.join(format!("{name}.wasm")))
        .expect("the component was built by `cargo xtask bench`")
}

fn object(index: usize) -> Arc<ObjectRef> {
    Arc::new(ObjectRef {
        group: "batch".into(),
        version: "v1".into(),
        kind: "Job".into(),
        namespace: format!("team-{}", index % 20),
        name: format!("train-{index:05}"),
        uid: uid(index),
    })
}

/// `count` states over `objects` objects, as they would come to a plugin.
pub fn deliveries(count: usize, objects: usize) -> Vec<Delivery> {
    let status = Arc::new(Rules::builtin().status("batch", "Job", job(1, 1, 1).as_bytes()));
    let status = Arc::new(kubewitness_core::Status { message: String::new(), ..(*status).clone() });
    (0..count)
        .map(|index| {
            let object = object(index % objects);
            let version = Version::new(&(index + 1).to_string());
            let state = State {
                id: StateId::of("jobs", 0, &object, Change::Present, &version, None),
                seq: index as Seq + 1,
                source: "jobs".into(),
                epoch: 0,
                change: Change::Present,
                object,
                owner: None,
                resource_version: version,
                status: status.clone(),
                previous: None,
                observed_ms: 0,
                late: false,
            };
            Delivery { state: Arc::new(state), attempt: 1, resync: false }
        })
        .collect()
}

/// The `first`th and following states of 5,000 Jobs in turn, each with the version before.
pub fn witnessed(first: usize, count: usize) -> Append {
    const JOBS: usize = 5_000;
    let rules = Rules::builtin();
    let states = (first..first + count).map(|index| {
        let (number, step) = (index % JOBS, index / JOBS);
        let text = job(number, step, index as u64 + 1);
        let base = step.checked_sub(1).map(|step| Bytes::from(job(number, step, (index - JOBS) as u64 + 1)));
        let object = object(number);
        let version = Version::new(&(index + 1).to_string());
        let status = Arc::new(rules.status("batch", "Job", text.as_bytes()));
        Witnessed {
            id: StateId::of("jobs", 0, &object, Change::Present, &version, None),
            change: Change::Present,
            object,
            owner: None,
            controller: None,
            resource_version: version,
            previous: base.is_some().then(|| status.clone()),
            status,
            observed_ms: 1,
            document: text.into(),
            base,
        }
    });
    Append { source: "jobs".into(), states: states.collect(), ..Append::default() }
}

/// A plugin that was granted nothing.
pub struct NoGrants {
    config: String,
    applied: HashSet<Seq>,
}

impl NoGrants {
    pub fn new(config: &str) -> Self {
        Self { config: config.into(), applied: HashSet::new() }
    }
}

#[async_trait]
impl Grants for NoGrants {
    fn config(&self) -> &str {
        &self.config
    }

    async fn open(&self, _batch: &[Delivery]) -> Result<Box<dyn Session>, GrantError> {
        Ok(Box::new(Nothing { applied: self.applied.clone() }))
    }
}

struct Nothing {
    applied: HashSet<Seq>,
}

fn denied<T>() -> Result<T, GrantError> {
    Err(GrantError::Denied("nothing is granted in a benchmark".into()))
}

#[async_trait]
impl Session for Nothing {
    async fn show(&mut self, state: &Arc<State>) -> Result<ShownState, GrantError> {
        Ok(ShownState { state: state.clone(), document_digest: None, has_subscribed_owner: true })
    }

    fn applied(&self) -> &HashSet<Seq> {
        &self.applied
    }
    fn sql_dialect(&self, _: &str) -> Result<Dialect, GrantError> {
        denied()
    }
    async fn sql_execute(&mut self, _: &str, _: &str, _: Vec<Vec<SqlValue>>) -> Result<u64, GrantError> {
        denied()
    }
    async fn sql_write(&mut self, _: &str, _: TableWrite, _: Option<TableCopy>) -> Result<u64, GrantError> {
        denied()
    }
    async fn sql_query(
        &mut self,
        _: &str,
        _: &str,
        _: Vec<SqlValue>,
    ) -> Result<Vec<Vec<SqlValue>>, GrantError> {
        denied()
    }
    async fn http_send(&mut self, _: &str, _: HttpRequest) -> Result<HttpResponse, GrantError> {
        denied()
    }

    async fn mail_send(&mut self, _: &str, _: MailMessage) -> Result<Vec<MailRefusal>, GrantError> {
        denied()
    }
    fn kv_get(&self, _: &str) -> Option<Vec<u8>> {
        None
    }
    fn kv_set(&mut self, _: &str, _: Vec<u8>) -> Result<(), GrantError> {
        denied()
    }
    fn kv_delete(&mut self, _: &str) -> Result<(), GrantError> {
        denied()
    }
    fn kv_keys(&self, _: &str, _: usize) -> Vec<String> {
        Vec::new()
    }
    async fn ledger_append(&mut self, _: &str, _: Vec<Vec<u8>>) -> Result<u64, GrantError> {
        denied()
    }
    async fn ledger_last(&mut self, _: &str) -> Result<Option<Vec<u8>>, GrantError> {
        denied()
    }
    async fn conceal(&mut self, _: &str, _: String) -> Result<String, GrantError> {
        denied()
    }
    fn ledger_sign(&self, _: &str, _: &[u8]) -> Result<Vec<u8>, GrantError> {
        denied()
    }
    async fn document(&mut self, _: Seq) -> Result<Option<Bytes>, GrantError> {
        denied()
    }
    async fn document_before(&mut self, _: Seq) -> Result<Option<Bytes>, GrantError> {
        denied()
    }
    async fn lister_get(&mut self, _: &str, _: &str, _: &str) -> Result<Option<Bytes>, GrantError> {
        denied()
    }
    fn lister_list(&self, _: &str, _: &str, _: &str, _: usize) -> Result<Vec<ObjectRef>, GrantError> {
        denied()
    }
    fn log(&self, _: LogLevel, _: &str, _: &[(String, String)]) {}
    fn now_ms(&self) -> u64 {
        0
    }
    async fn commit(self: Box<Self>, _: &[Seq]) -> Result<Vec<KvWrite>, GrantError> {
        Ok(Vec::new())
    }
    async fn rollback(self: Box<Self>) {}
}
