//! Opens a journal on a server: checks the format, takes the lock or a seat, and migrates.

use std::sync::Arc;

use async_trait::async_trait;
use kubewitness_core::Version;
use kubewitness_core::clock::Clock;
use kubewitness_core::ports::JournalError;

use super::connect::lock::{self, LockAttempt, LockHolder, LockRight};
use super::connect::pool::SessionPool;
use super::connect::replicas::{self, PresentReplica, ReplicaSharing};
use super::connect::server::ServerAddress;
use super::connect::session::ServerSession;
use super::connect::watches::ReplicaWatches;
use super::engine::dialect::ServerDialect;
use super::schema;
use super::writer::{ReplicaShare, ServerWriter};
use crate::report::{JournalReplica, OpenError};
use crate::store::format::{marked, unmarked};
use crate::store::rows::StoreResult;
use crate::store::{self, OpenedJournal};

pub(crate) struct ServerStore {
    readers: Arc<SessionPool>,
    /// The announcements of this process's watches, if it shares the journal.
    watches: Option<Arc<ReplicaWatches>>,
}

impl ServerStore {
    /// `sharing` is set if other processes share the journal. With `unfinished` it also opens a journal with
    /// an unfinished import, and returns whether it is one.
    pub async fn open(
        server: ServerAddress,
        readers: u32,
        clock: Arc<dyn Clock>,
        sharing: Option<ReplicaSharing>,
        unfinished: bool,
    ) -> Result<(Self, ServerWriter, bool), OpenError> {
        let place = server.to_string();
        let mut session = dial(&server, &place).await?;
        let taken = take(&server, &place, &mut session, (sharing, unfinished), clock.now_ms()).await;
        let (share, is_unfinished) = taken.map_err(|error| explained(error, session.remedy()))?;
        let watches = share.as_ref().map(ReplicaShare::watches);
        let writer = ServerWriter::new(server.clone(), session, clock, share).await;
        let writer = writer.map_err(|error| open_error(&place, error))?;
        Ok((Self { readers: SessionPool::new(server, readers), watches }, writer, is_unfinished))
    }
}

async fn dial(server: &ServerAddress, place: &str) -> Result<ServerSession, OpenError> {
    let session = server.dial_directly().await;
    session.map_err(|refusal| explained(open_error(place, refusal.error), refusal.remedy))
}

/// Takes the journal for this session, alone or shared, and brings it to the current format.
async fn take(
    server: &ServerAddress,
    place: &str,
    session: &mut ServerSession,
    (sharing, unfinished): (Option<ReplicaSharing>, bool),
    now_ms: u64,
) -> Result<(Option<ReplicaShare>, bool), OpenError> {
    let fail = |error| open_error(place, error);
    server.make_durable(session).await.map_err(fail)?;
    // Before any write: a journal of a newer program must stay as it is.
    let format = version(session, place).await?;
    if format.is_none()
        && let Err(error) = make(session, schema::MARK).await
    {
        let remedy = session.remedy();
        // Two processes that start at once both create the table. PostgreSQL lets one of them fail once the
        // table of the other exists.
        *session = dial(server, place).await?;
        if version(session, place).await?.is_none() {
            return Err(explained(fail(error), remedy));
        }
    }
    // A suspended replica may hold the row of `kw_journal`.
    if format.is_some_and(|(format, _)| format >= schema::SHARED) {
        replicas::end_stalled(session, LockRight::Whole).await.map_err(fail)?;
    }
    let lock = match &sharing {
        Some(sharing) => replicas::come_in(session, sharing).await,
        None => lock::lock(session, LockRight::Whole).await,
    };
    if let LockAttempt::Others(holder) = lock.map_err(fail)? {
        return Err(held(server.dialect(), place, holder));
    }
    // Another process may have migrated it while this one waited.
    let (format, is_unfinished) = version(session, place).await?.unwrap_or_default();
    if is_unfinished && !unfinished {
        return Err(OpenError::Unfinished { place: place.into() });
    }
    let others = match format >= schema::SHARED {
        true => replicas::seated(session).await.map_err(fail)?,
        false => Vec::new(),
    };
    suits(place, &others, sharing.as_ref(), format)?;
    migrate(session, place, format, is_unfinished).await.map_err(fail)?;
    let Some(sharing) = sharing else { return Ok((None, is_unfinished)) };
    let Some(slot) = replicas::take_replica_slot(session, &sharing, None, now_ms).await.map_err(fail)? else {
        let remedy = "start fewer";
        return Err(OpenError::Shared { place: place.into(), replicas: names(&others), remedy });
    };
    lock::unlock(session, LockRight::Whole).await.map_err(fail)?;
    Ok((Some(ReplicaShare::new(sharing, slot)), is_unfinished))
}

fn held(dialect: ServerDialect, place: &str, LockHolder { name, session }: LockHolder) -> OpenError {
    let end =
        |number| format!(", or, if it is lost, end its session with {}", lock::how_to_end(dialect, number));
    OpenError::Held { place: place.into(), holder: name, how: session.map_or_else(String::new, end) }
}

/// Whether a process may join the replicas that share the journal.
fn suits(
    place: &str,
    others: &[PresentReplica],
    sharing: Option<&ReplicaSharing>,
    format: i64,
) -> Result<(), OpenError> {
    let remedy = match sharing {
        _ if others.is_empty() => return Ok(()),
        None => "start this process with their --lease as well",
        Some(_) if format < schema::VERSION => "replace them first: they run an older version",
        Some(sharing) if others.iter().any(|other| other.lease != sharing.lease) => {
            "give this process a journal of its own: they use another Lease, or one of another cluster"
        }
        Some(_) => return Ok(()),
    };
    Err(OpenError::Shared { place: place.into(), replicas: names(others), remedy })
}

fn names(replicas: &[PresentReplica]) -> String {
    let names: Vec<_> = replicas.iter().map(|other| other.replica.name.as_str()).collect();
    names.join(", ")
}

/// The format of the journal in this database, and whether it holds an unfinished import; `None` if no
/// journal exists.
async fn version(session: &mut ServerSession, place: &str) -> Result<Option<(i64, bool)>, OpenError> {
    let fail = |error| open_error(place, error);
    let text = match session.dialect() {
        ServerDialect::Postgres => "SELECT 1 FROM pg_class WHERE oid = to_regclass('kw_journal')",
        ServerDialect::Mysql => {
            "SELECT 1 FROM information_schema.tables WHERE table_schema = database() AND table_name = 'kw_journal'"
        }
    };
    if session.fetch(text, Vec::new()).await.map_err(fail)?.is_empty() {
        return Ok(None);
    }
    let rows = session.fetch("SELECT format FROM kw_journal WHERE id = 1", Vec::new()).await.map_err(fail)?;
    let (found, unfinished) = unmarked(rows.first().map_or(Ok(0), |row| row.int(0)).map_err(fail)?);
    let known = schema::VERSION;
    match found > known {
        true => Err(OpenError::Newer { path: place.into(), found, known }),
        false => Ok(Some((found, unfinished))),
    }
}

async fn make(session: &mut ServerSession, shared: &str) -> StoreResult<()> {
    if let Some((table, column)) = schema::added(shared)
        && session.has_column(table, column).await?
    {
        return Ok(());
    }
    if let (ServerDialect::Mysql, Some((table, index, ..))) = (session.dialect(), schema::indexed(shared))
        && session.has_index(table, index).await?
    {
        return Ok(());
    }
    match schema::statement(session.dialect(), shared) {
        Some(text) => session.script(&text).await,
        None => Ok(()),
    }
}

/// Migrates one version at a time. If a process is killed in between, the next one repeats the step.
async fn migrate(session: &mut ServerSession, place: &str, from: i64, unfinished: bool) -> StoreResult<()> {
    let steps = (1..).zip(schema::STEPS).filter(|(version, _)| *version > from);
    for (version, step) in steps {
        if version > 1 {
            tracing::info!(place, version, "migrating the journal to a newer format");
        }
        for shared in step {
            make(session, shared).await?;
        }
        if version == schema::SEALED {
            session.fill().await?;
        }
        let text = match version {
            1 => "INSERT INTO kw_journal (id, format, epoch, holder, since_ms) VALUES (1, ?, 0, '', 0)",
            _ => "UPDATE kw_journal SET format = ? WHERE id = 1",
        };
        session.fetch(text, vec![marked(version, unfinished).into()]).await?;
    }
    for shared in schema::LATER {
        make(session, shared).await?;
    }
    Ok(())
}

fn open_error(place: &str, error: JournalError) -> OpenError {
    match error {
        JournalError::Fatal(reason) => OpenError::Damaged { path: place.into(), reason },
        JournalError::Unavailable(reason) => OpenError::Away { place: place.into(), reason },
        JournalError::Invalid(reason) | JournalError::Overtaken(reason) => {
            OpenError::Unavailable { path: place.into(), reason }
        }
    }
}

/// Does not wait for an error that only a person can fix.
fn explained(error: OpenError, remedy: Option<&'static str>) -> OpenError {
    match (error, remedy) {
        (OpenError::Away { place, reason }, Some(remedy)) => {
            OpenError::Refused { place, reason, remedy: remedy.into() }
        }
        (error, _) => error,
    }
}

/// A journal of this format, and a connection that only reads.
pub(crate) async fn open_to_read(server: &ServerAddress) -> Result<OpenedJournal, OpenError> {
    let place = server.to_string();
    let mut session = dial(server, &place).await?;
    match version(&mut session, &place).await? {
        Some((schema::VERSION, unfinished)) => {
            let bytes = bytes(&mut session).await.map_err(|error| open_error(&place, error))?;
            Ok(OpenedJournal { connection: Box::new(session), bytes, wal_bytes: 0, unfinished })
        }
        Some((found, _)) if found > 0 => {
            Err(OpenError::Older { path: place.into(), found, known: schema::VERSION })
        }
        _ => Err(OpenError::Unavailable { path: place.into(), reason: "there is no journal here".into() }),
    }
}

/// Removes a journal with an unfinished import, and no other.
pub(crate) async fn discard(server: &ServerAddress) -> Result<(), OpenError> {
    let place = server.to_string();
    let fail = |error| open_error(&place, error);
    let mut session = dial(server, &place).await?;
    let nothing = || OpenError::NothingToDiscard { place: place.clone() };
    if version(&mut session, &place).await?.is_none() {
        return Err(nothing());
    }
    if let LockAttempt::Others(holder) = lock::lock(&mut session, LockRight::Whole).await.map_err(fail)? {
        return Err(held(server.dialect(), &place, holder));
    }
    let Some((_, true)) = version(&mut session, &place).await? else { return Err(nothing()) };
    // The mark is removed last, so a killed process leaves a journal that can be discarded again.
    for table in schema::tables().chain(["kw_journal"]) {
        session.script(&format!("DROP TABLE IF EXISTS {table}")).await.map_err(fail)?;
    }
    Ok(())
}

#[async_trait]
impl store::OpenStore for ServerStore {
    async fn connection(&self) -> StoreResult<Box<dyn store::StoreConnection>> {
        Ok(Box::new(self.readers.lend().await?))
    }

    async fn bytes(&self) -> StoreResult<u64> {
        bytes(self.readers.lend().await?.session()).await
    }

    async fn agree(&self, name: &str, text: &str) -> StoreResult<String> {
        let mut lent = self.readers.lend().await?;
        replicas::agree(lent.session(), name, text).await
    }

    async fn agree_anew(&self, name: &str, before: &str, text: &str) -> StoreResult<bool> {
        let mut lent = self.readers.lend().await?;
        replicas::agree_anew(lent.session(), name, before, text).await
    }

    async fn replicas(&self) -> StoreResult<Vec<JournalReplica>> {
        let seated = replicas::seated(self.readers.lend().await?.session()).await?;
        Ok(seated.into_iter().map(|seated| seated.replica).collect())
    }

    fn watches(&self, source: &str, since: Option<(u32, Version)>) {
        if let Some(watches) = &self.watches {
            watches.set(source, since);
        }
    }

    async fn watched_elsewhere(
        &self,
        source: &str,
        epoch: u32,
        before: &Version,
    ) -> StoreResult<Option<String>> {
        let Some(mine) = &self.watches else { return Ok(None) };
        mine.elsewhere(self.readers.lend().await?.session(), source, epoch, before).await
    }

    async fn close(&self) -> StoreResult<()> {
        self.readers.close();
        Ok(())
    }
}

/// The bytes of the journal on the server's disk.
async fn bytes(session: &mut ServerSession) -> StoreResult<u64> {
    let text = match session.dialect() {
        ServerDialect::Postgres => {
            "SELECT CAST(coalesce(sum(pg_total_relation_size(oid)), 0) AS bigint) FROM pg_class \
                 WHERE relkind = 'r' AND relname LIKE 'kw\\_%' AND pg_table_is_visible(oid)"
        }
        ServerDialect::Mysql => {
            "SELECT CAST(coalesce(sum(data_length + index_length), 0) AS SIGNED) FROM information_schema.tables \
                 WHERE table_schema = database() AND table_name LIKE 'kw\\_%'"
        }
    };
    Ok(session.numbers(text, Vec::new()).await?.first().copied().unwrap_or_default() as u64)
}
