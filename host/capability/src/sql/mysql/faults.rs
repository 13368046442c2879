//! Classifies errors of MySQL and MariaDB: the statement failed, or the transaction is lost. The texts name
//! no machine and no user.

use kubewitness_core::ports::GrantError;
use sqlx::mysql::MySqlDatabaseError;

use super::cluster::{self, SeveralPrimaries};
use crate::sql::SqlFault;
use crate::sql::servers::pooler::{LENT, is_other_session};
use crate::sql::servers::reasons::{CANT_BE_WRITTEN, NO_COLUMN, REFUSES, ServerFailure, is_unwritable};

pub fn classify_fault(error: &sqlx::Error) -> SqlFault {
    match error {
        sqlx::Error::Database(database_error) => {
            let Some(mysql) = database_error.try_downcast_ref::<MySqlDatabaseError>() else {
                return SqlFault::Lost(GrantError::Unavailable(database_error.message().to_owned()));
            };
            judge_code(mysql.number(), mysql.code().unwrap_or_default(), mysql.message())
        }
        sqlx::Error::Encode(why) => SqlFault::Own(GrantError::Invalid(why.to_string())),
        error if is_unwritable(error) => judge_code(1290, "", ""),
        // Another connection would lead to the same cluster, so none is tried at once.
        error if cluster::is_multi_primary_error(error) => {
            SqlFault::Own(GrantError::Unavailable(SeveralPrimaries.to_string()))
        }
        error if is_other_session(error) => SqlFault::Lost(GrantError::Unavailable(LENT.into())),
        error => {
            tracing::warn!(%error, "the connection to a database was lost");
            SqlFault::Lost(GrantError::Unavailable("the connection to the database was lost".into()))
        }
    }
}

/// Classifies an error by its number, and by SQLSTATE if that suffices:
/// <https://mariadb.com/kb/en/mariadb-error-codes/>.
fn judge_code(number: u16, state: &str, message: &str) -> SqlFault {
    let invalid = |text: String| SqlFault::Own(GrantError::Invalid(text));
    let unavailable = |text: String| SqlFault::Lost(GrantError::Unavailable(text));
    match number {
        // MySQL 3024, MariaDB 1969.
        3024 | 1969 => SqlFault::Lost(GrantError::Timeout("the statement took too long".into())),
        1205 => unavailable("other transactions hold the rows".into()),
        1213 | 1020 | 1317 => unavailable(format!("it is in conflict with another transaction: {message}")),
        1290 | 1792 | 1836 => unavailable(format!("{CANT_BE_WRITTEN}: it is read-only")),
        1021 | 1114 => unavailable("the database's disk is full".into()),
        1040 | 1203 | 1226 => unavailable("the database has too many connections".into()),
        1153 => SqlFault::Lost(GrantError::TooLarge("more than the database takes in one statement".into())),
        // Missing rights, which an operator grants.
        1044 | 1045 | 1142 | 1143 | 1227 | 1370 => unavailable(format!("{REFUSES} to its user")),
        1146 => invalid(format!("no such table: {message}")),
        1054 => invalid(format!("{NO_COLUMN}: {message}")),
        // Values and constraints with an unspecific SQLSTATE: a missing, wrong, truncated or refused value,
        // or an index that is too long or exists already.
        1265 | 1364 | 1366 | 1367 | 1709 | 3819 => invalid(message.to_owned()),
        _ if is_fault_of_statement(number) => invalid(message.to_owned()),
        _ => match state.get(..2) {
            // Faults of the data or of the statement itself.
            Some("0A" | "20" | "21" | "22" | "23" | "42" | "44" | "45") => invalid(message.to_owned()),
            _ => unavailable(format!("the database answered: {message}")),
        },
    }
}

/// Faults of the statement itself with an unspecific SQLSTATE. No retry of the same statement succeeds.
/// Classified as an outage, they would block the plugin as long as it sends that statement.
fn is_fault_of_statement(number: u16) -> bool {
    matches!(
        number,
        // Clauses, functions and arguments that don't fit together, or are in the wrong place.
        1093 | 1111 | 1210 | 1221 | 1411 | 3065 | 3579..=3598 | 4015..=4024
        // Unknown or unsuitable collations.
        | 1267 | 1270 | 1271 | 1273
        // Views and tables that can't be written in this way.
        | 1288 | 1347..=1352 | 1356 | 1393..=1395 | 1423 | 1471
        // Definitions of columns and keys.
        | 1215 | 1294 | 1822..=1828 | 1906 | 3105..=3109
    )
}

/// Classifies a failed connection.
pub fn classify_connect_error(error: &sqlx::Error) -> ServerFailure {
    let number = |error: &dyn sqlx::error::DatabaseError| {
        error.try_downcast_ref::<MySqlDatabaseError>().map_or(0, MySqlDatabaseError::number)
    };
    match error {
        sqlx::Error::Io(error) => error.kind().into(),
        sqlx::Error::Tls(_) => ServerFailure::BadEncryption,
        // The server sends `caching_sha2_password` passwords over TLS only; the error has no type of its own.
        sqlx::Error::Configuration(why) if why.to_string().contains("RSA") => ServerFailure::NeedsEncryption,
        sqlx::Error::Database(database_error) => match number(database_error.as_ref()) {
            // The user may connect, but not to this database.
            1044 => ServerFailure::NoRight,
            1045 | 1129 | 1130 | 1251 | 1524 | 1698 | 1820 | 1862 | 3118 | 3955 => {
                ServerFailure::LoginRefused
            }
            3159 => ServerFailure::NeedsEncryption,
            1049 => ServerFailure::NoSuchDatabase,
            1040 | 1203 | 1226 => ServerFailure::TooManyConnections,
            1053 => ServerFailure::Unsettled("stopping"),
            number => ServerFailure::OtherAnswer { kind: "error", code: number.to_string() },
        },
        _ => ServerFailure::OtherProtocol("MySQL"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_data_is_the_states_own_and_everything_else_is_tried_again() {
        for (number, state) in [
            (1048, "23000"),
            (1062, "23000"),
            (1264, "22003"),
            (1366, "22007"),
            (1366, "HY000"),
            (1406, "22001"),
            (1054, "42S22"),
            (1064, "42000"),
            (1146, "42S02"),
            (3819, "HY000"),
            (1093, "HY000"),
            (1111, "HY000"),
            (1221, "HY000"),
            (1267, "HY000"),
            (3593, "HY000"),
            (4015, "HY000"),
            (4025, "23000"),
            (1644, "45000"),
        ] {
            assert!(
                matches!(judge_code(number, state, "x"), SqlFault::Own(GrantError::Invalid(_))),
                "{number}"
            );
        }
        for (number, state) in [
            (1205, "HY000"),
            (1213, "40001"),
            (1290, "HY000"),
            (1792, "25006"),
            (1040, "08004"),
            (1053, "08S01"),
            (1114, "HY000"),
            (1021, "HY000"),
            (1030, "HY000"),
            (1142, "42000"),
            (1180, "HY000"),
            (1927, "70100"),
            (3100, "HY000"),
            (3101, "40000"),
            (3750, "HY000"),
            (9999, ""),
        ] {
            assert!(
                matches!(judge_code(number, state, "x"), SqlFault::Lost(GrantError::Unavailable(_))),
                "{number}"
            );
        }
        let unknown = judge_code(1054, "42S22", "Unknown column 'queue'");
        assert!(
            matches!(unknown, SqlFault::Own(GrantError::Invalid(message)) if message.contains("has no column"))
        );
        assert!(matches!(judge_code(1969, "70100", "x"), SqlFault::Lost(GrantError::Timeout(_))));
    }
}
