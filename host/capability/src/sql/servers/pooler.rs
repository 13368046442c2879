//! Detects a pooler that gives each transaction another session of the server, as PgBouncer does with
//! `pool_mode = transaction`. Time limits, prepared statements and the setting that makes commits durable
//! belong to one session, so such an address is refused.
//!
//! One connection gets a mark. The address is refused if a second connection reads the mark, or if the mark
//! disappears. A busy pooler may pass this test, so each transaction compares the number of its session with
//! the number at the start.

use std::time::Duration;

use super::ServerLink;

/// Until a second connection has to be there. A server that has none left holds nobody up.
const SECOND: Duration = Duration::from_secs(2);
/// Clients of a busy pooler may come in between, and take the session that would have shown the mark.
const LOOKS: u32 = 3;

pub const LENT: &str = "a pooler lends the controller another session of the server for each transaction: let `urlFrom` \
    name the server itself, or let the pooler pool sessions (`pool_mode = session` in PgBouncer)";

/// The transaction began in another session than the one that was set up.
#[derive(Debug, thiserror::Error)]
#[error("{LENT}")]
pub struct OtherSession;

/// Compares the number of the session that answers with the number at the start.
pub fn expect_session(begun: i64, answered: i64) -> Result<(), sqlx::Error> {
    match begun == answered {
        true => Ok(()),
        false => Err(sqlx::Error::Configuration(OtherSession.into())),
    }
}

pub fn is_other_session(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Configuration(why) if why.is::<OtherSession>())
}

/// A pooler shares the sessions out if two open connections do not each have one of their own. Without a second
/// connection nobody knows, and the address passes.
pub async fn is_lent<L: ServerLink>(one: &mut L, options: &L::Options) -> Result<bool, sqlx::Error> {
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
    let mark = one.read_mark(L::SET_MARK).await?;
    for _ in 0..LOOKS {
        if second.read_mark(L::READ_MARK).await? == mark || one.read_mark(L::READ_MARK).await? != mark {
            return Ok(true);
        }
    }
    Ok(false)
}
