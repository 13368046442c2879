//! Detects a pooler that gives each transaction another session of the server, as PgBouncer does with
//! `pool_mode = transaction`. Time limits, prepared statements and the setting that makes commits durable
//! belong to one session, so such an address is refused.
//!
//! One connection gets a mark. The address is refused if a second connection reads the mark, or if the mark
//! disappears. A busy pooler may pass this test, so each transaction compares the number of its session with
//! the number at the start.

use std::time::Duration;

use super::ServerLink;

/// The time limit for the second connection. A server that has no free connection delays nobody.
const SECOND: Duration = Duration::from_secs(2);
/// How often the mark is looked up. Clients of a busy pooler may come in between, and take the session with
/// the mark.
const LOOKS: u32 = 3;

pub const LENT: &str = "a pooler lends the controller another session of the server for each transaction: let `urlFrom` \
    name the server itself, or let the pooler pool sessions (`pool_mode = session` in PgBouncer)";

/// The transaction began in another session than the one that was prepared.
#[derive(Debug, thiserror::Error)]
#[error("{LENT}")]
pub struct OtherSession;

/// Compares the number of the answering session with the number at the start.
pub fn expect_session(begun: i64, answered: i64) -> Result<(), sqlx::Error> {
    match begun == answered {
        true => Ok(()),
        false => Err(sqlx::Error::Configuration(OtherSession.into())),
    }
}

pub fn is_other_session(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Configuration(why) if why.is::<OtherSession>())
}

/// Whether a pooler shares the sessions, so that two open connections do not each have their own. Without a
/// second connection this stays unknown, and the address passes.
pub async fn is_shared_by_pooler<L: ServerLink>(
    first: &mut L,
    options: &L::Options,
) -> Result<bool, sqlx::Error> {
    let mut second = match tokio::time::timeout(SECOND, L::connect_link(options)).await {
        Ok(Ok(second)) => second,
        Ok(Err(error)) => {
            tracing::debug!(%error, "no second connection to recognise a pooler by");
            return Ok(false);
        }
        Err(_) => {
            tracing::debug!("no second connection to recognise a pooler by within {SECOND:?}");
            return Ok(false);
        }
    };
    let mark = first.read_mark(L::SET_MARK).await?;
    for _ in 0..LOOKS {
        if second.read_mark(L::READ_MARK).await? == mark || first.read_mark(L::READ_MARK).await? != mark {
            return Ok(true);
        }
    }
    Ok(false)
}
