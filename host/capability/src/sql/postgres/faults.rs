//! Classifies errors of PostgreSQL: the statement failed, or the transaction is lost. The texts name no machine and no
//! user.

use kubewitness_core::ports::GrantError;

use crate::sql::SqlFault;
use crate::sql::servers::pooler::{LENT, is_other_session};
use crate::sql::servers::reasons::{CANT_BE_WRITTEN, NO_COLUMN, REFUSES, ServerFailure, is_unwritable};

pub fn classify_fault(error: &sqlx::Error) -> SqlFault {
    match error {
        sqlx::Error::Database(said) => {
            let code = said.code().unwrap_or_default();
            judge_code(&code, said.message())
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

/// The server has one code for both.
const READ_ONLY: &str =
    "it is a replica, or `default_transaction_read_only` is on for the user or the database";

/// By SQLSTATE: <https://www.postgresql.org/docs/current/errcodes-appendix.html>.
fn judge_code(code: &str, said: &str) -> SqlFault {
    let invalid = |text: String| SqlFault::Own(GrantError::Invalid(text));
    let unavailable = |text: String| SqlFault::Lost(GrantError::Unavailable(text));
    match code {
        "57014" => SqlFault::Lost(GrantError::Timeout("the statement took too long".into())),
        "55P03" => unavailable("other transactions hold the rows".into()),
        "40001" | "40P01" => unavailable(format!("it is in conflict with another transaction: {said}")),
        "25006" => unavailable(format!("{CANT_BE_WRITTEN}: {READ_ONLY}")),
        "53100" => unavailable("the database's disk is full".into()),
        "53300" => unavailable("the database has too many connections".into()),
        // Of tables and functions: an operator grants them.
        "42501" => unavailable(format!("{REFUSES}: {said}")),
        "42P01" => invalid(format!("no such table: {said}")),
        "42703" => invalid(format!("{NO_COLUMN}: {said}")),
        _ => match code.get(..2) {
            // What is wrong with the data or with the statement itself.
            Some("0A" | "20" | "21" | "22" | "23" | "42" | "44" | "54" | "P0") => invalid(said.to_owned()),
            _ => unavailable(format!("the database answered: {said}")),
        },
    }
}

/// Why it could not be connected.
pub fn classify_connect_error(error: &sqlx::Error) -> ServerFailure {
    match error {
        sqlx::Error::Io(error) => error.kind().into(),
        sqlx::Error::Tls(_) => ServerFailure::BadEncryption,
        sqlx::Error::Database(said) => match said.code().unwrap_or_default().as_ref() {
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
            matches!(read_only, SqlFault::Lost(GrantError::Unavailable(told)) if told.contains(READ_ONLY))
        );
        let unknown = judge_code("42703", "column \"queue\" does not exist");
        assert!(
            matches!(unknown, SqlFault::Own(GrantError::Invalid(told)) if told.contains("has no column"))
        );
        assert!(matches!(judge_code("57014", "x"), SqlFault::Lost(GrantError::Timeout(_))));
    }
}
