//! Replicas that share a journal. Each has a seat: an advisory lock that ends with its session, and a row
//! with its name.

use kubewitness_core::ports::JournalError;

use super::lock::{self, LockAttempt, LockRight};
use super::session::ServerSession;
use crate::report::JournalReplica;
use crate::store::rows::StoreResult;
use crate::store::server::engine::dialect::ServerDialect;

/// The most replicas of one journal.
pub(crate) const MOST: u8 = 16;

/// After this many silent seconds, a replica that holds the journal's row counts as suspended, and the others
/// no longer wait for it.
const STALLED_SECONDS: i64 = 10;

/// How a replica shares the journal with others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaSharing {
    /// The unique name by which people know the replica.
    pub name: String,
    /// The Lease with which the replicas elect the leader. A replica with another Lease belongs to another
    /// cluster.
    pub lease: String,
}

/// A replica that is present, and its election.
pub(crate) struct PresentReplica {
    pub replica: JournalReplica,
    pub lease: String,
    /// The server's number of its session.
    session: i64,
    pub seat: LockRight,
}

/// The replicas with living sessions.
pub(crate) async fn seated_replicas(session: &mut ServerSession) -> StoreResult<Vec<PresentReplica>> {
    let text = "SELECT r.slot, r.name, r.lease, r.since_ms, r.term, j.term FROM kw_replicas r \
                JOIN kw_journal j ON j.id = 1 ORDER BY r.slot";
    let rows = session.fetch_rows(text, Vec::new()).await?;
    let mut seated = Vec::new();
    for mut row in rows {
        let seat = LockRight::Replica(row.int_at(0)? as u8);
        let Some(number) = lock::holding_session(session, seat).await? else { continue };
        let term = row.int_at(4)?;
        let replica = JournalReplica {
            name: row.text(1)?,
            since_ms: row.int_at(3)? as u64,
            dispatches: term != 0 && term == row.int_at(5)?,
        };
        seated.push(PresentReplica { replica, lease: row.text(2)?, session: number, seat });
    }
    Ok(seated)
}

/// Takes a free seat. The caller holds the journal's own lock, so no other replica takes one at the same
/// time.
pub(crate) async fn take_replica_slot(
    session: &mut ServerSession,
    sharing: &ReplicaSharing,
    term: Option<i64>,
    now_ms: u64,
) -> StoreResult<Option<u8>> {
    for slot in 0..MOST {
        if !lock::try_lock(session, LockRight::Replica(slot)).await? {
            continue;
        }
        let number = i64::from(slot);
        for table in ["kw_replicas", "kw_watches"] {
            session.fetch_rows(&format!("DELETE FROM {table} WHERE slot = ?"), vec![number.into()]).await?;
        }
        let text = "INSERT INTO kw_replicas (slot, name, lease, since_ms, term) VALUES (?, ?, ?, ?, ?)";
        let (name, lease) = (sharing.name.as_str().into(), sharing.lease.as_str().into());
        let term = term.unwrap_or_default();
        session
            .fetch_rows(text, vec![number.into(), name, lease, (now_ms as i64).into(), term.into()])
            .await?;
        return Ok(Some(slot));
    }
    Ok(None)
}

/// Ends sessions of replicas that were suspended in the middle of a transaction. Nobody else could write
/// until the server ends them, which may take hours. A replica whose session is ended by mistake reconnects.
pub(crate) async fn end_stalled(session: &mut ServerSession, mine: LockRight) -> StoreResult<()> {
    for other in seated_replicas(session).await?.into_iter().filter(|other| other.seat != mine) {
        if is_stalled(session, other.session).await? {
            let replica = other.replica.name;
            tracing::warn!(replica, "a replica holds the journal and does nothing: ending its session");
            lock::end_session(session, other.session).await?;
        }
    }
    Ok(())
}

/// Whether nothing has come from it for a while. A healthy replica sends a query every second.
///
/// On PostgreSQL, a replica also counts as stalled if it takes nothing of a large answer within a transaction
/// that writes; another transaction holds nobody up. MySQL and MariaDB give only the time since the statement
/// began, so a healthy replica that reads for ten seconds looks the same there. The table that says which
/// session writes needs the privilege `PROCESS`. So there the server's own `net_write_timeout` ends such a
/// session.
pub(crate) async fn is_stalled(session: &mut ServerSession, number: i64) -> StoreResult<bool> {
    match session.dialect() {
        ServerDialect::Postgres => {
            let text = "SELECT 1 FROM pg_stat_activity WHERE pid = CAST(? AS int) AND (state LIKE 'idle%' \
                        OR (state = 'active' AND wait_event = 'ClientWrite' AND backend_xid IS NOT NULL)) \
                        AND state_change < clock_timestamp() - make_interval(secs => CAST(? AS int))";
            let params = vec![number.into(), STALLED_SECONDS.into()];
            Ok(!session.fetch_rows(text, params).await?.is_empty())
        }
        // MySQL's table of sessions has the current query of each session as text. The whole table fails
        // while one of them contains binary bytes, as other replicas' writes do.
        ServerDialect::Mysql => {
            for mut row in session.run_script_for_rows("SHOW PROCESSLIST").await? {
                if row.int_at(0)? == number {
                    return Ok(row.text(4)? == "Sleep" && row.int_at(5)? >= STALLED_SECONDS);
                }
            }
            Ok(false)
        }
    }
}

/// Marks the holder of the lock as a replica that joins, and not as a process that has the journal for
/// itself.
const COMES_IN: &str = "a replica that comes in, ";

/// Holds the journal's own lock while it joins.
pub(crate) async fn join_replicas(
    session: &mut ServerSession,
    sharing: &ReplicaSharing,
) -> StoreResult<LockAttempt> {
    let lock = lock::acquire_lock(session, LockRight::Whole).await?;
    match &lock {
        LockAttempt::Mine => {
            let name = format!("{COMES_IN}{}", sharing.name);
            let text = "UPDATE kw_journal SET holder = ? WHERE id = 1";
            session.fetch_rows(text, vec![name.as_str().into()]).await?;
        }
        LockAttempt::Others(holder) if holder.name.starts_with(COMES_IN) => {
            // This process was suspended while it joined.
            if let Some(number) = holder.session
                && is_stalled(session, number).await?
            {
                tracing::warn!("{} does nothing: ending its session", holder.name);
                lock::end_session(session, number).await?;
            }
            return Err(cannot_join_error(&holder.name));
        }
        LockAttempt::Others(_) => {}
    }
    Ok(lock)
}

/// The first text is stored, and every caller gets it.
pub(crate) async fn agree_on_name(
    session: &mut ServerSession,
    name: &str,
    text: &str,
) -> StoreResult<String> {
    let insert = match session.dialect() {
        ServerDialect::Postgres => "INSERT INTO kw_agreed (name, text) VALUES (?, ?) ON CONFLICT DO NOTHING",
        ServerDialect::Mysql => {
            "INSERT INTO kw_agreed (name, text) VALUES (?, ?) ON DUPLICATE KEY UPDATE name = name"
        }
    };
    let select = "SELECT text FROM kw_agreed WHERE name = ?";
    for _ in 0..2 {
        if let Some(mut row) = session.fetch_rows(select, vec![name.into()]).await?.into_iter().next() {
            return row.text(0);
        }
        session.fetch_rows(insert, vec![name.into(), text.into()]).await?;
    }
    Ok(text.to_owned())
}

/// Changes the text only if the caller knows the newest one.
pub(crate) async fn change_agreed_text(
    session: &mut ServerSession,
    name: &str,
    before: &str,
    text: &str,
) -> StoreResult<bool> {
    let update = "UPDATE kw_agreed SET text = ? WHERE name = ? AND text = ?";
    session.fetch_rows(update, vec![text.into(), name.into(), before.into()]).await?;
    // Not every server reports how many rows an update has changed. The present text may also come from
    // another replica that wrote the same.
    Ok(agree_on_name(session, name, text).await? == text)
}

/// Makes the replica of this slot the leader: only the replica of the present term writes what plugins save.
pub(crate) async fn begin_term(session: &mut ServerSession, slot: u8, term: i64) -> StoreResult<()> {
    session.fetch_rows("UPDATE kw_journal SET term = ? WHERE id = 1", vec![term.into()]).await?;
    let text = "UPDATE kw_replicas SET term = ? WHERE slot = ?";
    session.fetch_rows(text, vec![term.into(), i64::from(slot).into()]).await.map(drop)
}

/// A replica that joins must use the same Lease.
pub(crate) async fn elect_by(session: &mut ServerSession, slot: u8, lease: &str) -> StoreResult<()> {
    let text = "UPDATE kw_replicas SET lease = ? WHERE slot = ?";
    session.fetch_rows(text, vec![lease.into(), i64::from(slot).into()]).await.map(drop)
}

/// There is no leader until the next term begins.
pub(crate) async fn end_term(session: &mut ServerSession) -> StoreResult<()> {
    session.run_script("UPDATE kw_journal SET term = term + 1 WHERE id = 1").await
}

/// The error if another process holds the journal's lock, so that no replica can join.
pub(crate) fn cannot_join_error(holder: &str) -> JournalError {
    JournalError::Unavailable(format!("{holder} has the journal's lock"))
}
