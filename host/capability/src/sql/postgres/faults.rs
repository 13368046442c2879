//! Classifies errors of PostgreSQL: the statement failed, or the transaction is lost. The texts name no machine and no
//! user.

use kubewitness_core::ports::GrantError;

use crate::sql::SqlFault;
use crate::sql::servers::pooler::{LENT, is_other_session};
use crate::sql::servers::reasons::{CANT_BE_WRITTEN, NO_COLUMN, REFUSES, ServerFailure, is_unwritable};

pub fn classify_fault(error: &sqlx::Error) -> SqlFault {
    match error {
        sqlx::Error::Database(database_error) => {
            let code = database_error.code().unwrap_or_default();
            judge_code(&code, database_error.message())
        }
        sqlx::Error::Encode(why) => SqlFault::Own(GrantError::Invalid(why.to_string())),
        error if is_unwritable(error) => judge_code("25006", ""),
        error if is_other_session(error) => SqlFault::Lost(GrantError::Unavailable(LENT.into())),
        error => {
            tracing::warn!(%error, "the connection to a database was lost");
            SqlFault::Lost(GrantError::Unavailable("the connection to the database was lost".into()))
        }
    }
}

/// The server has one code for both cases.
const READ_ONLY: &str =
    "it is a replica, or `default_transaction_read_only` is on for the user or the database";

/// Classifies an error by SQLSTATE: <https://www.postgresql.org/docs/current/errcodes-appendix.html>.
fn judge_code(code: &str, message: &str) -> SqlFault {
    let invalid = |text: String| SqlFault::Own(GrantError::Invalid(text));
    let unavailable = |text: String| SqlFault::Lost(GrantError::Unavailable(text));
    match code {
        "57014" => SqlFault::Lost(GrantError::Timeout("the statement took too long".into())),
        "55P03" => unavailable("other transactions hold the rows".into()),
        "40001" | "40P01" => unavailable(format!("it is in conflict with another transaction: {message}")),
        "25006" => unavailable(format!("{CANT_BE_WRITTEN}: {READ_ONLY}")),
        "53100" => unavailable("the database's disk is full".into()),
        "53300" => unavailable("the database has too many connections".into()),
        // Missing rights to tables and functions, which an operator grants.
        "42501" => unavailable(format!("{REFUSES}: {message}")),
        "42P01" => invalid(format!("no such table: {message}")),
        "42703" => invalid(format!("{NO_COLUMN}: {message}")),
        _ => match code.get(..2) {
            // Faults of the data or of the statement itself.
            Some("0A" | "20" | "21" | "22" | "23" | "42" | "44" | "54" | "P0") => invalid(message.to_owned()),
            _ => unavailable(format!("the database answered: {message}")),
        },
    }
}

/// Classifies a failed connection.
pub fn classify_connect_error(error: &sqlx::Error) -> ServerFailure {
    match error {
        sqlx::Error::Io(error) => error.kind().into(),
        sqlx::Error::Tls(_) => ServerFailure::BadEncryption,
        sqlx::Error::Database(database_error) => match database_error.code().unwrap_or_default().as_ref() {
            "28P01" | "28000" => ServerFailure::LoginRefused,
            "3D000" => ServerFailure::NoSuchDatabase,
            "53300" => ServerFailure::TooManyConnections,
            "57P03" => ServerFailure::Unsettled("starting or stopping"),
            code => ServerFailure::OtherAnswer { kind: "SQLSTATE", code: code.to_owned() },
        },
        _ => ServerFailure::OtherProtocol("PostgreSQL"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_data_is_the_states_own_and_everything_else_is_tried_again() {
        for own in ["22003", "22P02", "23502", "23505", "42703", "42804", "54000", "P0001"] {
            assert!(matches!(judge_code(own, "x"), SqlFault::Own(GrantError::Invalid(_))), "{own}");
        }
        for lost in [
            "08006", "25006", "25P02", "25P03", "40001", "40P01", "42501", "53100", "53200", "53300",
            "55P03", "57P01", "57P02", "57P03", "58030", "XX000", "99999", "",
        ] {
            assert!(matches!(judge_code(lost, "x"), SqlFault::Lost(GrantError::Unavailable(_))), "{lost}");
        }
        let read_only = judge_code("25006", "cannot execute INSERT in a read-only transaction");
        assert!(
            matches!(read_only, SqlFault::Lost(GrantError::Unavailable(message)) if message.contains(READ_ONLY))
        );
        let unknown = judge_code("42703", "column \"queue\" does not exist");
        assert!(
            matches!(unknown, SqlFault::Own(GrantError::Invalid(message)) if message.contains("has no column"))
        );
        assert!(matches!(judge_code("57014", "x"), SqlFault::Lost(GrantError::Timeout(_))));
    }
}
