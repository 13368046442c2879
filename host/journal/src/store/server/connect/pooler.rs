//! Detects a pooler that gives each transaction another session of the server, as PgBouncer does with
//! `pool_mode = transaction`. The journal's lock, a replica's seat and the settings belong to one session, so
//! such an address is refused.
//!
//! No server reports that a pooler is in between, and the number of a session proves nothing if an address
//! leads to several servers. So one session gets a mark. The address is refused if another session reads the
//! mark, or if the mark disappears. A session that belongs to one client, as with `pool_mode = session`,
//! passes. Later the writer compares the session's number in each transaction, because a busy pooler may pass
//! this test.

use super::session::ServerSession;
use crate::store::rows::StoreResult;
use crate::store::server::engine::dialect::ServerDialect;

/// Clients of a busy pooler may come in between, and take the session that would have had the mark.
const LOOKS: u32 = 3;

pub(crate) const LENT: &str = "a pooler lends this process another session of the server for each transaction, and the \
    journal's lock belongs to one session";
pub(crate) const REMEDY: &str =
    "connect to the server itself, or let the pooler pool sessions (`pool_mode = session` in PgBouncer)";

/// Statements without parameters: a statement that one client prepared would disturb another client of the
/// same session.
fn set_mark(dialect: ServerDialect) -> &'static str {
    match dialect {
        ServerDialect::Postgres => {
            "SELECT CAST(set_config('kubewitness.mark', md5(CAST(random() AS text) || clock_timestamp()), false) AS bytea)"
        }
        ServerDialect::Mysql => "SET @kubewitness_mark = uuid(); SELECT CAST(@kubewitness_mark AS BINARY)",
    }
}

fn read_mark(dialect: ServerDialect) -> &'static str {
    match dialect {
        ServerDialect::Postgres => "SELECT CAST(current_setting('kubewitness.mark', true) AS bytea)",
        ServerDialect::Mysql => "SELECT CAST(@kubewitness_mark AS BINARY)",
    }
}

async fn mark(session: &mut ServerSession, text: &str) -> StoreResult<Option<Vec<u8>>> {
    let row = session.run_script_for_rows(text).await?.pop();
    row.map_or(Ok(None), |mut row| row.optional_bytes(0))
}

/// Whether a pooler shares the sessions, so that two open connections do not each have their own.
pub(crate) async fn is_shared_by_pooler(
    first: &mut ServerSession,
    second: &mut ServerSession,
) -> StoreResult<bool> {
    let dialect = first.dialect();
    let own = mark(first, set_mark(dialect)).await?;
    for _ in 0..LOOKS {
        if mark(second, read_mark(dialect)).await? == own || mark(first, read_mark(dialect)).await? != own {
            return Ok(true);
        }
    }
    Ok(false)
}
