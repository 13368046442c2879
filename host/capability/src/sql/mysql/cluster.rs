//! Recognises a server that takes writes beside others: a node of Galera, or of a replicated group in
//! multi-primary mode. Each node has locks of its own, so a plugin's fence keeps nobody on another node out: a
//! receipt could appear after receipts were read.

use sqlx::Row;
use sqlx::mysql::MySqlRow;
use thiserror::Error;

use crate::sql::servers::reasons::ServerFailure;

/// The variables that say so; a server without such a feature lacks them.
pub const CLUSTER: &str = "SHOW GLOBAL STATUS LIKE 'wsrep_ready'; \
    SHOW GLOBAL VARIABLES LIKE 'group_replication_single_primary_mode'";

#[derive(Debug, Error)]
#[error("{}", ServerFailure::SeveralPrimaries)]
struct SeveralPrimaries;

/// Expects one primary, from the answers to [`CLUSTER`].
pub fn expect_one_primary(answers: &[MySqlRow]) -> Result<(), sqlx::Error> {
    for row in answers {
        if is_multi_primary(row.try_get_unchecked(0)?, row.try_get_unchecked(1)?) {
            return Err(sqlx::Error::Configuration(SeveralPrimaries.into()));
        }
    }
    Ok(())
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
        }
    }
}
