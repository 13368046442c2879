//! The one that writes: it holds the lock, knows its epoch, and compares it in every transaction.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use kubewitness_core::Seq;
use kubewitness_core::clock::Clock;
use kubewitness_core::ports::{JournalError, Save};
use tokio::time::{Instant, sleep};

use super::connect::{Refusal, Server};
use super::dialect::Dialect;
use super::lookup;
use super::session::Session;
use crate::memory::{Found, Identity, Memory};
use crate::plan::{Known, Rows};
use crate::removal::{Removal, Sweep};
use crate::rows::Key;
use crate::store::{Answer, Fetch, LOST, Replay, Writes};

/// A process that was killed a moment ago has let go of the lock by then.
const LOCK: Duration = Duration::from_secs(5);
const COMMIT: &str = "COMMIT";
const LOCK_PAUSE: Duration = Duration::from_millis(50);

pub(crate) struct Writer {
    server: Server,
    session: Session,
    /// Of the session, as the server numbers it.
    number: i64,
    epoch: i64,
    /// The newest state that is known to be committed.
    committed: Seq,
    clock: Arc<dyn Clock>,
}

/// Who holds the lock, as far as the server tells.
#[derive(Debug)]
pub(super) struct Holder {
    pub name: String,
    /// The server's number of its session; `None` where it has just ended.
    pub session: Option<i64>,
}

/// What came of asking for the lock.
pub(super) enum Lock {
    Mine,
    Others(Holder),
}

/// For the row that says who writes.
fn myself() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = if host.trim().is_empty() { "a machine without a name" } else { host.trim() };
    format!("process {} on {host}", std::process::id())
}

fn lock_text(dialect: Dialect) -> &'static str {
    match dialect {
        // The second number is the schema's: each may have a journal of its own.
        Dialect::Postgres => {
            "SELECT CASE WHEN pg_try_advisory_lock(1263291953, hashtext(current_schema())) THEN 1 ELSE 0 END"
        }
        // A name has room for 64 characters. SHA-1 is no longer there in newer versions of MySQL.
        Dialect::Mysql => "SELECT get_lock(concat('kubewitness ', left(sha2(database(), 256), 40)), 0)",
    }
}

fn holder_text(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Postgres => {
            "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND classid = 1263291953 AND objsubid = 2 \
             AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
             AND CAST(objid AS bigint) = (CAST(hashtext(current_schema()) AS bigint) & 4294967295)"
        }
        Dialect::Mysql => {
            "SELECT CAST(is_used_lock(concat('kubewitness ', left(sha2(database(), 256), 40))) AS SIGNED)"
        }
    }
}

/// Asks once.
async fn try_lock(session: &mut Session) -> Answer<bool> {
    let dialect = session.dialect();
    let rows = session.fetch(lock_text(dialect), Vec::new()).await?;
    Ok(rows.first().map(|row| row.optional_int(0)).transpose()?.flatten() == Some(1))
}

async fn holding_session(session: &mut Session) -> Answer<Option<i64>> {
    let dialect = session.dialect();
    let rows = session.fetch(holder_text(dialect), Vec::new()).await?;
    Ok(rows.first().map(|row| row.optional_int(0)).transpose()?.flatten())
}

async fn own_number(session: &mut Session) -> Answer<i64> {
    let text = match session.dialect() {
        Dialect::Postgres => "SELECT pg_backend_pid()",
        Dialect::Mysql => "SELECT CAST(connection_id() AS SIGNED)",
    };
    let rows = session.fetch(text, Vec::new()).await?;
    rows.first().map_or(Ok(0), |row| row.int(0))
}

/// Asks until it is had or the time is over.
pub(super) async fn lock(session: &mut Session) -> Answer<Lock> {
    let deadline = Instant::now() + LOCK;
    loop {
        if try_lock(session).await? {
            return Ok(Lock::Mine);
        }
        if Instant::now() >= deadline {
            let number = holding_session(session).await?;
            let rows = session.fetch("SELECT holder FROM kw_journal WHERE id = 1", Vec::new()).await;
            let name = rows?.into_iter().next().map(|mut row| row.text(0)).transpose()?;
            let name = name.unwrap_or_else(|| "a process that has just begun".into());
            return Ok(Lock::Others(Holder { name, session: number }));
        }
        sleep(LOCK_PAUSE).await;
    }
}

/// Ends a session of our own that the server still keeps: until it is over, it is not decided what
/// became of its transaction. `number` must hold the lock, so it can be nobody else's by now.
async fn end_session(session: &mut Session, number: i64) -> Answer<()> {
    if holding_session(session).await? != Some(number) {
        return Ok(());
    }
    tracing::warn!("the server still has the session that was lost; it is ended there");
    match session.dialect() {
        Dialect::Postgres => {
            let text = "SELECT CASE WHEN pg_terminate_backend(CAST(? AS int)) THEN 1 ELSE 0 END";
            session.fetch(text, vec![number.into()]).await.map(drop)
        }
        Dialect::Mysql => session.script(&format!("KILL {number}")).await,
    }
}

impl Writer {
    /// Of a session that holds the lock, on tables of this format: a new epoch begins.
    pub(super) async fn new(server: Server, mut session: Session, clock: Arc<dyn Clock>) -> Answer<Self> {
        let number = own_number(&mut session).await?;
        let rows = session.fetch("SELECT epoch FROM kw_journal WHERE id = 1", Vec::new()).await?;
        let last = rows.first().map_or(Ok(0), |row| row.int(0))?;
        let mut writer = Self { server, session, number, epoch: last, committed: 0, clock };
        writer.next_epoch().await?;
        Ok(writer)
    }

    /// Only from the epoch that is known: another process may have begun one.
    async fn next_epoch(&mut self) -> Answer<()> {
        let session = &mut self.session;
        let text = "UPDATE kw_journal SET epoch = ?, holder = ?, since_ms = ? WHERE id = 1 AND epoch = ?";
        let (next, now) = (self.epoch + 1, self.clock.now_ms() as i64);
        let params = vec![next.into(), myself().as_str().into(), now.into(), self.epoch.into()];
        session.fetch(text, params).await?;
        let rows = session.fetch("SELECT epoch, holder FROM kw_journal WHERE id = 1", Vec::new()).await?;
        let Some(mut row) = rows.into_iter().next() else {
            return Err(emptied());
        };
        let (epoch, holder) = (row.int(0)?, row.text(1)?);
        if epoch != next || holder != myself() {
            return Err(taken_over(&holder, epoch, self.epoch));
        }
        self.epoch = next;
        Ok(())
    }

    /// Begins a transaction, in which nobody else becomes the writer.
    async fn begin(&mut self) -> Answer<()> {
        let text = "START TRANSACTION; SELECT epoch, holder, (SELECT max(seq) FROM kw_states) FROM kw_journal \
                    WHERE id = 1 FOR UPDATE";
        let Some(mut fence) = self.session.answers(text).await?.into_iter().next() else {
            return Err(emptied());
        };
        let epoch = fence.int(0)?;
        if epoch != self.epoch {
            return Err(taken_over(&fence.text(1)?, epoch, self.epoch));
        }
        let newest = fence.optional_int(2)?.unwrap_or(0) as Seq;
        match newest < self.committed {
            true => Err(older_copy(newest, self.committed)),
            false => Ok(()),
        }
    }
}

const AFTER_A_COPY: &str = "What is not in it is lost there; start again, which reads back what it lacks as far as \
                            the cluster still has it";

fn emptied() -> JournalError {
    JournalError::Fatal(format!(
        "the row that says who writes was removed while the journal was in use: {LOST}"
    ))
}

/// Of the same epoch: retention never takes the newest state.
fn older_copy(newest: Seq, committed: Seq) -> JournalError {
    JournalError::Fatal(format!(
        "the journal ends at position {newest}, and {committed} was committed: an older copy was put in its place \
         while this process wrote. {AFTER_A_COPY}"
    ))
}

/// Of an epoch that is not ours. Epochs only ascend: one before ours is of another time or another journal.
fn taken_over(holder: &str, epoch: i64, mine: i64) -> JournalError {
    if epoch < mine {
        return JournalError::Fatal(format!(
            "the journal's epoch is {epoch}, and it was {mine}: an older copy was put in its place, or a new journal \
             was begun there, while this process wrote. {AFTER_A_COPY}"
        ));
    }
    JournalError::Fatal(format!(
        "{holder} writes to this journal now (its epoch {epoch} came after ours, {mine}): this process has stopped \
         writing, and nothing that it acknowledged is lost; stop one of the two"
    ))
}

#[async_trait]
impl Writes for Writer {
    /// The lock is what tells: as long as the old session lives, that one has it.
    async fn reconnect(&mut self) -> Answer<()> {
        let mut session = self.server.dial().await.map_err(Refusal::told)?;
        self.server.make_durable(&mut session).await?;
        let number = own_number(&mut session).await?;
        end_session(&mut session, self.number).await?;
        match lock(&mut session).await? {
            Lock::Mine => {}
            // Who it is, and whether it is a writer, shows in the epoch.
            Lock::Others(holder) => {
                let text = "SELECT epoch FROM kw_journal WHERE id = 1";
                let rows = session.fetch(text, Vec::new()).await?;
                let epoch = rows.first().map_or(Ok(0), |row| row.int(0))?;
                if epoch != self.epoch {
                    return Err(taken_over(&holder.name, epoch, self.epoch));
                }
                let text = "another session has the journal's lock".to_owned();
                return Err(JournalError::Unavailable(text));
            }
        }
        (self.session, self.number) = (session, number);
        self.next_epoch().await
    }

    async fn memory(&mut self) -> Answer<Memory> {
        lookup::memory(&mut self.session).await
    }

    async fn tails(&mut self, memory: &Memory, strangers: Vec<Identity>) -> Answer<Vec<Found>> {
        lookup::tails(&mut self.session, memory, strangers).await
    }

    async fn keys(&mut self, questions: Vec<(i64, Key)>) -> Answer<Known> {
        lookup::keys(&mut self.session, questions).await
    }

    /// Any error leaves the session as it is: the next batch begins with another one, and with it
    /// the transaction that this one left open is undone.
    async fn commit(
        &mut self,
        rows: Option<Rows>,
        saves: &[(&str, &Save)],
        replays: &[Replay],
    ) -> Answer<()> {
        let newest = rows.as_ref().and_then(|rows| rows.states.last()).map(|state| state.envelope.seq);
        self.begin().await?;
        self.session.write(rows, saves, replays).await?;
        self.session.script(COMMIT).await?;
        self.committed = newest.unwrap_or(self.committed);
        Ok(())
    }

    async fn look(&mut self) -> Answer<()> {
        self.begin().await?;
        self.session.script("ROLLBACK").await
    }

    fn rows(&mut self) -> &mut dyn Fetch {
        &mut self.session
    }

    async fn remove(&mut self, removal: &Removal) -> Answer<()> {
        self.begin().await?;
        self.session.remove(removal).await?;
        self.session.script(COMMIT).await
    }

    async fn sweep(&mut self, sweep: &Sweep) -> Answer<()> {
        self.begin().await?;
        self.session.sweep(sweep).await?;
        self.session.script(COMMIT).await
    }

    async fn tend(&mut self) {}

    async fn close(self: Box<Self>) -> Answer<()> {
        // The lock goes with the session.
        drop(self);
        Ok(())
    }

    fn abandon(self: Box<Self>) {}

    #[cfg(test)]
    async fn limit_pages(&mut self, _: Option<i64>) -> Answer<()> {
        Err(JournalError::Invalid("only a file has pages".into()))
    }
}
