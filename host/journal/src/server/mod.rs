//! The journal in PostgreSQL, MySQL or MariaDB. The format is described in [`schema`].

mod answers;
mod connect;
mod dialect;
mod fault;
mod fetch;
mod link;
mod lookup;
mod mysql;
mod past;
mod pool;
mod postgres;
mod read;
mod retain;
mod save;
mod schema;
mod seals;
mod session;
mod table;
mod write;
mod writer;

use std::sync::Arc;

use async_trait::async_trait;
use kubewitness_core::clock::Clock;
use kubewitness_core::ports::JournalError;

pub(crate) use connect::Server;
use dialect::Dialect;
use pool::Pool;
use session::Session;
pub(crate) use writer::Writer;
use writer::{Holder, Lock};

use crate::report::OpenError;
use crate::store::{self, Answer};

pub(crate) struct Store {
    readers: Arc<Pool>,
}

impl Store {
    pub async fn open(
        server: Server,
        readers: u32,
        clock: Arc<dyn Clock>,
    ) -> Result<(Self, Writer), OpenError> {
        let place = server.to_string();
        let mut session = dial(&server, &place).await?;
        let is_ours = take(&server, &place, &mut session).await;
        is_ours.map_err(|error| explained(error, session.remedy()))?;
        let writer = Writer::new(server.clone(), session, clock).await;
        let writer = writer.map_err(|error| open_error(&place, error))?;
        Ok((Self { readers: Pool::new(server, readers) }, writer))
    }
}

async fn dial(server: &Server, place: &str) -> Result<Session, OpenError> {
    let session = server.dial().await;
    session.map_err(|refusal| explained(open_error(place, refusal.error), refusal.remedy))
}

/// Makes the journal this session's own, in today's format.
async fn take(server: &Server, place: &str, session: &mut Session) -> Result<(), OpenError> {
    let fail = |error| open_error(place, error);
    server.make_durable(session).await.map_err(fail)?;
    // Before any write: a journal of a newer program must stay as it is.
    let mut format = version(session, place).await?;
    if format.is_none() {
        if let Err(error) = make(session, schema::MARK).await {
            let remedy = session.remedy();
            // Two that begin at once make the same table, and PostgreSQL lets one of them fail once the
            // other's is there.
            *session = dial(server, place).await?;
            if version(session, place).await?.is_none() {
                return Err(explained(fail(error), remedy));
            }
        }
        format = version(session, place).await?;
    }
    if let Lock::Others(Holder { name, session: number }) = writer::lock(session).await.map_err(fail)? {
        let how = number.map_or_else(String::new, |number| match server.dialect() {
            Dialect::Postgres => {
                format!(", or, if it is lost, end its session with SELECT pg_terminate_backend({number})")
            }
            Dialect::Mysql => format!(", or, if it is lost, end its session with KILL {number}"),
        });
        return Err(OpenError::Held { place: place.into(), holder: name, how });
    }
    migrate(session, place, format.unwrap_or_default()).await.map_err(fail)
}

/// Of the journal in this database; `None` where there is none.
async fn version(session: &mut Session, place: &str) -> Result<Option<i64>, OpenError> {
    let fail = |error| open_error(place, error);
    let text = match session.dialect() {
        Dialect::Postgres => "SELECT 1 FROM pg_class WHERE oid = to_regclass('kw_journal')",
        Dialect::Mysql => {
            "SELECT 1 FROM information_schema.tables WHERE table_schema = database() AND table_name = 'kw_journal'"
        }
    };
    if session.fetch(text, Vec::new()).await.map_err(fail)?.is_empty() {
        return Ok(None);
    }
    let rows = session.fetch("SELECT format FROM kw_journal WHERE id = 1", Vec::new()).await.map_err(fail)?;
    let found = rows.first().map_or(Ok(0), |row| row.int(0)).map_err(fail)?;
    let known = schema::VERSION;
    match found > known {
        true => Err(OpenError::Newer { path: place.into(), found, known }),
        false => Ok(Some(found)),
    }
}

async fn make(session: &mut Session, shared: &str) -> Answer<()> {
    if let Some((table, column)) = schema::added(shared)
        && session.has_column(table, column).await?
    {
        return Ok(());
    }
    match schema::statement(session.dialect(), shared) {
        Some(text) => session.script(&text).await,
        None => Ok(()),
    }
}

/// A version at a time. Where a process is killed in between, the next does the step again.
async fn migrate(session: &mut Session, place: &str, from: i64) -> Answer<()> {
    let steps = (1..).zip(schema::STEPS).filter(|(version, _)| *version > from);
    for (version, step) in steps {
        if version > 1 {
            tracing::info!(place, version, "the journal gets a newer format");
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
        session.fetch(text, vec![version.into()]).await?;
    }
    Ok(())
}

fn open_error(place: &str, error: JournalError) -> OpenError {
    match error {
        JournalError::Fatal(reason) => OpenError::Damaged { path: place.into(), reason },
        JournalError::Unavailable(reason) => OpenError::Away { place: place.into(), reason },
        JournalError::Invalid(reason) => OpenError::Unavailable { path: place.into(), reason },
    }
}

/// What a person has to mend is no reason to wait.
fn explained(error: OpenError, remedy: Option<&'static str>) -> OpenError {
    match (error, remedy) {
        (OpenError::Away { place, reason }, Some(remedy)) => {
            OpenError::Refused { place, reason, remedy: remedy.into() }
        }
        (error, _) => error,
    }
}

/// A connection that only reads a journal of this format, and what that takes on disk.
pub(crate) async fn open_to_read(server: &Server) -> Result<(Box<dyn store::Connection>, u64), OpenError> {
    let place = server.to_string();
    let mut session = dial(server, &place).await?;
    match version(&mut session, &place).await? {
        Some(schema::VERSION) => {
            let bytes = bytes(&mut session).await.map_err(|error| open_error(&place, error))?;
            Ok((Box::new(session), bytes))
        }
        Some(found) if found > 0 => {
            Err(OpenError::Older { path: place.into(), found, known: schema::VERSION })
        }
        _ => Err(OpenError::Unavailable { path: place.into(), reason: "there is no journal here".into() }),
    }
}

#[async_trait]
impl store::Store for Store {
    async fn connection(&self) -> Answer<Box<dyn store::Connection>> {
        Ok(Box::new(self.readers.lend().await?))
    }

    async fn bytes(&self) -> Answer<u64> {
        bytes(self.readers.lend().await?.session()).await
    }

    async fn close(&self) -> Answer<()> {
        self.readers.close();
        Ok(())
    }
}

/// What the journal takes on the server's disk.
async fn bytes(session: &mut Session) -> Answer<u64> {
    let text = match session.dialect() {
        Dialect::Postgres => {
            "SELECT CAST(coalesce(sum(pg_total_relation_size(oid)), 0) AS bigint) FROM pg_class \
                 WHERE relkind = 'r' AND relname LIKE 'kw\\_%' AND pg_table_is_visible(oid)"
        }
        Dialect::Mysql => {
            "SELECT CAST(coalesce(sum(data_length + index_length), 0) AS SIGNED) FROM information_schema.tables \
                 WHERE table_schema = database() AND table_name LIKE 'kw\\_%'"
        }
    };
    Ok(session.numbers(text, Vec::new()).await?.first().copied().unwrap_or_default() as u64)
}
