//! Classifies errors of MySQL and MariaDB: the statement failed, or the transaction is lost. The texts name
//! no machine and no user.

use kubewitness_core::ports::GrantError;
use sqlx::mysql::MySqlDatabaseError;

use crate::sql::SqlFault;
use crate::sql::servers::pooler::{LENT, is_other_session};
use crate::sql::servers::reasons::{CANT_BE_WRITTEN, NO_COLUMN, REFUSES, ServerFailure, is_unwritable};

pub fn classify_fault(error: &sqlx::Error) -> SqlFault {
    match error {
        sqlx::Error::Database(said) => {
            let Some(mysql) = said.try_downcast_ref::<MySqlDatabaseError>() else {
                return SqlFault::Lost(GrantError::Unavailable(said.message().to_owned()));
            };
            judge_code(mysql.number(), mysql.code().unwrap_or_default(), mysql.message())
        }
        sqlx::Error::Encode(why) => SqlFault::Own(GrantError::Invalid(why.to_string())),
        error if is_unwritable(error) => judge_code(1290, "", ""),
        error if is_other_session(error) => SqlFault::Lost(GrantError::Unavailable(LENT.into())),
        error => {
            tracing::warn!(%error, "the connection to a database was lost");
            SqlFault::Lost(GrantError::Unavailable("the connection to the database was lost".into()))
        }
    }
}

/// By number, and by SQLSTATE where that says enough:
/// <https://mariadb.com/kb/en/mariadb-error-codes/>.
fn judge_code(number: u16, state: &str, said: &str) -> SqlFault {
    let invalid = |text: String| SqlFault::Own(GrantError::Invalid(text));
    let unavailable = |text: String| SqlFault::Lost(GrantError::Unavailable(text));
    match number {
        // MySQL 3024, MariaDB 1969.
        3024 | 1969 => SqlFault::Lost(GrantError::Timeout("the statement took too long".into())),
        1205 => unavailable("other transactions hold the rows".into()),
        1213 | 1020 | 1317 => unavailable(format!("it is in conflict with another transaction: {said}")),
        1290 | 1792 | 1836 => unavailable(format!("{CANT_BE_WRITTEN}: it is read-only")),
        1021 | 1114 => unavailable("the database's disk is full".into()),
        1040 | 1203 | 1226 => unavailable("the database has too many connections".into()),
        1153 => SqlFault::Lost(GrantError::TooLarge("more than the database takes in one statement".into())),
        // Rights: an operator grants them.
        1044 | 1045 | 1142 | 1143 | 1227 | 1370 => unavailable(format!("{REFUSES} to its user")),
        1146 => invalid(format!("no such table: {said}")),
        1054 => invalid(format!("{NO_COLUMN}: {said}")),
        // Values and constraints whose SQLSTATE says nothing: a value that is missing, wrong, cut,
        // or against a check; an index that would be too long or is there twice.
        1265 | 1364 | 1366 | 1367 | 1709 | 3819 => invalid(said.to_owned()),
        _ if is_fault_of_statement(number) => invalid(said.to_owned()),
        _ => match state.get(..2) {
            // What is wrong with the data or with the statement itself.
            Some("0A" | "20" | "21" | "22" | "23" | "42" | "44" | "45") => invalid(said.to_owned()),
            _ => unavailable(format!("the database answered: {said}")),
        },
    }
}

/// Faults of a statement itself whose SQLSTATE is the general one. No later try of the same statement does better: taken for
/// an outage, they would stop the plugin for as long as it sends that statement.
fn is_fault_of_statement(number: u16) -> bool {
    matches!(
        number,
        // Clauses, functions and arguments that do not go together, or stand where they may not.
        1093 | 1111 | 1210 | 1221 | 1411 | 3065 | 3579..=3598 | 4015..=4024
        // Collations that are unknown or do not fit.
        | 1267 | 1270 | 1271 | 1273
        // Views and tables that can't be written so.
        | 1288 | 1347..=1352 | 1356 | 1393..=1395 | 1423 | 1471
        // Definitions of columns and keys.
        | 1215 | 1294 | 1822..=1828 | 1906 | 3105..=3109
    )
}

/// Why it could not be connected.
pub fn classify_connect_error(error: &sqlx::Error) -> ServerFailure {
    let number = |said: &dyn sqlx::error::DatabaseError| {
        said.try_downcast_ref::<MySqlDatabaseError>().map_or(0, MySqlDatabaseError::number)
    };
    match error {
        sqlx::Error::Io(error) => error.kind().into(),
        sqlx::Error::Tls(_) => ServerFailure::BadEncryption,
        // Of a password that is told over TLS alone (`caching_sha2_password`); there is no kind for it.
        sqlx::Error::Configuration(why) if why.to_string().contains("RSA") => ServerFailure::NeedsEncryption,
        sqlx::Error::Database(said) => match number(said.as_ref()) {
            // Let in, but not to this database.
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
            matches!(unknown, SqlFault::Own(GrantError::Invalid(told)) if told.contains("has no column"))
        );
        assert!(matches!(judge_code(1969, "70100", "x"), SqlFault::Lost(GrantError::Timeout(_))));
    }
}
