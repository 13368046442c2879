//! Recognises a server that takes writes beside others: a node of Galera, or of a replicated group in
//! multi-primary mode. Each node has locks of its own, so a plugin's fence keeps nobody on another node out: a
//! receipt could appear after receipts were read. A transaction that only reads has no receipt, so it is not
//! refused.

use sqlx::Row;
use sqlx::mysql::MySqlRow;
use thiserror::Error;

use crate::sql::TransactionMode;

/// The variables that say so; a server without such a feature lacks them.
pub const CLUSTER: &str = "SHOW GLOBAL STATUS LIKE 'wsrep_ready'; \
    SHOW GLOBAL VARIABLES LIKE 'group_replication_single_primary_mode'";

#[derive(Debug, Error)]
#[error(
    "the database is a node of a cluster in which several nodes take writes (Galera, or a group in multi-primary mode), \
     where receipts prove nothing: grant it with `access: read`, or grant a database on a server with one primary, or in \
     a group in single-primary mode"
)]
pub struct SeveralPrimaries;

/// Reads from the answers to [`CLUSTER`] if other nodes take writes, too.
pub fn has_several_primaries(answers: &[MySqlRow]) -> Result<bool, sqlx::Error> {
    for row in answers {
        if is_multi_primary(row.try_get_unchecked(0)?, row.try_get_unchecked(1)?) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Expects one primary, unless the transaction only reads.
pub fn expect_one_primary(mode: TransactionMode, has_several: bool) -> Result<(), sqlx::Error> {
    match has_several && mode == TransactionMode::ReadWrite {
        true => Err(sqlx::Error::Configuration(SeveralPrimaries.into())),
        false => Ok(()),
    }
}

fn is_multi_primary(name: &str, value: &str) -> bool {
    matches!((name, value), ("wsrep_ready", "ON") | ("group_replication_single_primary_mode", "OFF"))
}

pub fn is_multi_primary_error(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Configuration(why) if why.is::<SeveralPrimaries>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_of_a_cluster_with_several_primaries_is_told_from_other_servers() {
        for (name, value, expected) in [
            ("wsrep_ready", "ON", true),
            ("wsrep_ready", "OFF", false),
            ("group_replication_single_primary_mode", "OFF", true),
            ("group_replication_single_primary_mode", "ON", false),
        ] {
            assert_eq!(is_multi_primary(name, value), expected, "{name} = {value}");
            assert_eq!(expect_one_primary(TransactionMode::ReadWrite, expected).is_err(), expected);
            assert!(expect_one_primary(TransactionMode::ReadOnly, expected).is_ok());
        }
    }
}
