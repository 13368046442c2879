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
use crate::store::format::{split_mark, with_mark};
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
        let mut session = dial_server(&server, &place).await?;
        let taken = take(&server, &place, &mut session, (sharing, unfinished), clock.now_ms()).await;
        let (share, is_unfinished) = taken.map_err(|error| add_remedy(error, session.remedy()))?;
        let watches = share.as_ref().map(ReplicaShare::replica_watches);
        let writer = ServerWriter::new(server.clone(), session, clock, share).await;
        let writer = writer.map_err(|error| open_error(&place, error))?;
        Ok((Self { readers: SessionPool::new(server, readers), watches }, writer, is_unfinished))
    }
}

async fn dial_server(server: &ServerAddress, place: &str) -> Result<ServerSession, OpenError> {
    let session = server.dial_directly().await;
    session.map_err(|refusal| add_remedy(open_error(place, refusal.error), refusal.remedy))
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
    let format = read_format(session, place).await?;
    if format.is_none()
        && let Err(error) = apply_statement(session, schema::MARK).await
    {
        let remedy = session.remedy();
        // Two processes that start at once both create the table. PostgreSQL lets one of them fail once the
        // table of the other exists.
        *session = dial_server(server, place).await?;
        if read_format(session, place).await?.is_none() {
            return Err(add_remedy(fail(error), remedy));
        }
    }
    // A suspended replica may hold the row of `kw_journal`.
    if format.is_some_and(|(format, _)| format >= schema::SHARED) {
        replicas::end_stalled(session, LockRight::Whole).await.map_err(fail)?;
    }
    let lock = match &sharing {
        Some(sharing) => replicas::join_replicas(session, sharing).await,
        None => lock::acquire_lock(session, LockRight::Whole).await,
    };
    if let LockAttempt::Others(holder) = lock.map_err(fail)? {
        return Err(held_error(server.dialect(), place, holder));
    }
    // Another process may have migrated it while this one waited.
    let (format, is_unfinished) = read_format(session, place).await?.unwrap_or_default();
    if is_unfinished && !unfinished {
        return Err(OpenError::Unfinished { place: place.into() });
    }
    let others = match format >= schema::SHARED {
        true => replicas::seated_replicas(session).await.map_err(fail)?,
        false => Vec::new(),
    };
    check_suits_replicas(place, &others, sharing.as_ref(), format)?;
    migrate_format(session, place, format, is_unfinished).await.map_err(fail)?;
    let Some(sharing) = sharing else { return Ok((None, is_unfinished)) };
    let Some(slot) = replicas::take_replica_slot(session, &sharing, None, now_ms).await.map_err(fail)? else {
        let remedy = "start fewer";
        return Err(OpenError::Shared { place: place.into(), replicas: replica_names(&others), remedy });
    };
    lock::release_lock(session, LockRight::Whole).await.map_err(fail)?;
    Ok((Some(ReplicaShare::new(sharing, slot)), is_unfinished))
}

fn held_error(dialect: ServerDialect, place: &str, LockHolder { name, session }: LockHolder) -> OpenError {
    let end =
        |number| format!(", or, if it is lost, end its session with {}", lock::how_to_end(dialect, number));
    OpenError::Held { place: place.into(), holder: name, how: session.map_or_else(String::new, end) }
}

/// Whether a process may join the replicas that share the journal.
fn check_suits_replicas(
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
    Err(OpenError::Shared { place: place.into(), replicas: replica_names(others), remedy })
}

fn replica_names(replicas: &[PresentReplica]) -> String {
    let names: Vec<_> = replicas.iter().map(|other| other.replica.name.as_str()).collect();
    names.join(", ")
}

/// The format of the journal in this database, and whether it holds an unfinished import; `None` if no
/// journal exists.
async fn read_format(session: &mut ServerSession, place: &str) -> Result<Option<(i64, bool)>, OpenError> {
    let fail = |error| open_error(place, error);
    let text = match session.dialect() {
        ServerDialect::Postgres => "SELECT 1 FROM pg_class WHERE oid = to_regclass('kw_journal')",
        ServerDialect::Mysql => {
            "SELECT 1 FROM information_schema.tables WHERE table_schema = database() AND table_name = 'kw_journal'"
        }
    };
    if session.fetch_rows(text, Vec::new()).await.map_err(fail)?.is_empty() {
        return Ok(None);
    }
    let rows =
        session.fetch_rows("SELECT format FROM kw_journal WHERE id = 1", Vec::new()).await.map_err(fail)?;
    let (found, unfinished) = split_mark(rows.first().map_or(Ok(0), |row| row.int_at(0)).map_err(fail)?);
    let known = schema::VERSION;
    match found > known {
        true => Err(OpenError::Newer { path: place.into(), found, known }),
        false => Ok(Some((found, unfinished))),
    }
}

async fn apply_statement(session: &mut ServerSession, shared: &str) -> StoreResult<()> {
    if let Some((table, column)) = schema::added_column(shared)
        && session.has_column(table, column).await?
    {
        return Ok(());
    }
    if let (ServerDialect::Mysql, Some((table, index, ..))) = (session.dialect(), schema::added_index(shared))
        && session.has_index(table, index).await?
    {
        return Ok(());
    }
    match schema::statement_for(session.dialect(), shared) {
        Some(text) => session.run_script(&text).await,
        None => Ok(()),
    }
}

/// Migrates one version at a time. If a process is killed in between, the next one repeats the step.
async fn migrate_format(
    session: &mut ServerSession,
    place: &str,
    from: i64,
    unfinished: bool,
) -> StoreResult<()> {
    let steps = (1..).zip(schema::STEPS).filter(|(version, _)| *version > from);
    for (version, step) in steps {
        if version > 1 {
            tracing::info!(place, version, "migrating the journal to a newer format");
        }
        for shared in step {
            apply_statement(session, shared).await?;
        }
        if version == schema::SEALED {
            session.fill_checksums().await?;
        }
        let text = match version {
            1 => "INSERT INTO kw_journal (id, format, epoch, holder, since_ms) VALUES (1, ?, 0, '', 0)",
            _ => "UPDATE kw_journal SET format = ? WHERE id = 1",
        };
        session.fetch_rows(text, vec![with_mark(version, unfinished).into()]).await?;
    }
    for shared in schema::LATER {
        apply_statement(session, shared).await?;
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
fn add_remedy(error: OpenError, remedy: Option<&'static str>) -> OpenError {
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
    let mut session = dial_server(server, &place).await?;
    match read_format(&mut session, &place).await? {
        Some((schema::VERSION, unfinished)) => {
            let bytes = size_on_disk(&mut session).await.map_err(|error| open_error(&place, error))?;
            Ok(OpenedJournal { connection: Box::new(session), bytes, wal_bytes: 0, unfinished })
        }
        Some((found, _)) if found > 0 => {
            Err(OpenError::Older { path: place.into(), found, known: schema::VERSION })
        }
        _ => Err(OpenError::Unavailable { path: place.into(), reason: "there is no journal here".into() }),
    }
}

/// Removes a journal with an unfinished import, and no other.
pub(crate) async fn discard_unfinished_import(server: &ServerAddress) -> Result<(), OpenError> {
    let place = server.to_string();
    let fail = |error| open_error(&place, error);
    let mut session = dial_server(server, &place).await?;
    let nothing = || OpenError::NothingToDiscard { place: place.clone() };
    if read_format(&mut session, &place).await?.is_none() {
        return Err(nothing());
    }
    if let LockAttempt::Others(holder) =
        lock::acquire_lock(&mut session, LockRight::Whole).await.map_err(fail)?
    {
        return Err(held_error(server.dialect(), &place, holder));
    }
    let Some((_, true)) = read_format(&mut session, &place).await? else { return Err(nothing()) };
    // The mark is removed last, so a killed process leaves a journal that can be discarded again.
    for table in schema::created_tables().chain(["kw_journal"]) {
        session.run_script(&format!("DROP TABLE IF EXISTS {table}")).await.map_err(fail)?;
    }
    Ok(())
}

#[async_trait]
impl store::OpenStore for ServerStore {
    async fn open_connection(&self) -> StoreResult<Box<dyn store::StoreConnection>> {
        Ok(Box::new(self.readers.lend_session().await?))
    }

    async fn size_on_disk(&self) -> StoreResult<u64> {
        size_on_disk(self.readers.lend_session().await?.session_mut()).await
    }

    async fn agree_on_name(&self, name: &str, text: &str) -> StoreResult<String> {
        let mut lent = self.readers.lend_session().await?;
        replicas::agree_on_name(lent.session_mut(), name, text).await
    }

    async fn change_agreed_text(&self, name: &str, before: &str, text: &str) -> StoreResult<bool> {
        let mut lent = self.readers.lend_session().await?;
        replicas::change_agreed_text(lent.session_mut(), name, before, text).await
    }

    async fn list_replicas(&self) -> StoreResult<Vec<JournalReplica>> {
        let seated = replicas::seated_replicas(self.readers.lend_session().await?.session_mut()).await?;
        Ok(seated.into_iter().map(|seated| seated.replica).collect())
    }

    fn announce_watch(&self, source: &str, since: Option<(u32, Version)>) {
        if let Some(watches) = &self.watches {
            watches.set_watch(source, since);
        }
    }

    async fn watched_elsewhere(
        &self,
        source: &str,
        epoch: u32,
        before: &Version,
    ) -> StoreResult<Option<String>> {
        let Some(mine) = &self.watches else { return Ok(None) };
        mine.find_other_watcher(self.readers.lend_session().await?.session_mut(), source, epoch, before).await
    }

    async fn close(&self) -> StoreResult<()> {
        self.readers.close();
        Ok(())
    }
}

/// The bytes of the journal on the server's disk.
async fn size_on_disk(session: &mut ServerSession) -> StoreResult<u64> {
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
    Ok(session.fetch_numbers(text, Vec::new()).await?.first().copied().unwrap_or_default() as u64)
}
