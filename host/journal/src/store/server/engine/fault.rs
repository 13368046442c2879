//! Classifies the errors of a server: the caller retries, a person fixes something, or the process stops.

use kubewitness_core::ports::JournalError;

use super::dialect::ServerDialect;
use crate::report::{DOUBTFUL, LOST, RESTORE};

/// Classifies an error of PostgreSQL. The first two characters of its code are a class.
fn classify_postgres(code: &str) -> Option<&'static str> {
    match code {
        // A transaction conflicted with another one, or the server stops.
        "40001" | "40P01" | "55P03" | "57014" => Some("the server gave up a transaction"),
        "25006" => Some(
            "the server is a standby, or `default_transaction_read_only` is on for the user or the database",
        ),
        // For example, a database that accepts no connections.
        "55000" => Some("the server takes no connections for now"),
        "57P01" | "57P02" | "57P03" | "57P05" => Some("the server is stopping or starting"),
        "53100" => Some("the server's disk is full"),
        "53300" => Some("the server has no connection left"),
        "42501" => Some("the user lacks a right on the journal's tables"),
        "28000" | "28P01" => Some("the server refuses the user or the password"),
        "3D000" => Some("the server has no such database"),
        _ if code.starts_with("53") => Some("the server lacks a resource"),
        _ if code.starts_with("08") => Some("the connection was lost"),
        // The system refused a read or a write; the transaction is undone.
        "58030" => Some("the server's disk failed"),
        _ => None,
    }
}

/// Classifies an error of MySQL and MariaDB.
fn classify_mysql(number: &str) -> Option<&'static str> {
    match number.parse().unwrap_or(0) {
        // The last two occur in replicated groups if another member's transaction came first.
        1205 | 1206 | 1213 | 1317 | 3024 | 1969 | 1020 | 1180 | 3100 | 3101 => {
            Some("the server gave up a transaction")
        }
        1290 | 1792 | 1836 => Some("the server is read-only"),
        1047 | 1053 | 1077 | 1079 | 3168 => Some("the server is stopping or starting"),
        1021 | 1030 | 1114 | 1041 | 1037 | 1038 => Some("the server's disk or memory is full"),
        1026 => Some("the server's disk failed"),
        1040 | 1203 | 1226 => Some("the server has no connection left"),
        1142 | 1143 | 1227 => Some("the user lacks a right on the journal's tables"),
        1044 => Some("the user has no right on the database"),
        // These include a blocked host, an unsupported authentication method, and an account that is locked
        // or whose password has expired.
        1045 | 1129 | 1130 | 1251 | 1524 | 1698 | 1820 | 1862 | 3118 | 3955 => {
            Some("the server refuses the user or the password")
        }
        3159 => Some("the server refuses connections without TLS"),
        1049 => Some("the server has no such database"),
        1153 => Some("a row is larger than the server's max_allowed_packet: raise it"),
        1158..=1161 | 1152 | 1184 | 1927 | 3169 | 4031 => Some("the connection was lost"),
        _ => None,
    }
}

pub(crate) fn passing_fault(dialect: ServerDialect, code: &str) -> Option<&'static str> {
    match dialect {
        ServerDialect::Postgres => classify_postgres(code),
        ServerDialect::Mysql => classify_mysql(code),
    }
}

/// Whether a server's code stands for damaged pages or rows.
fn is_damage(dialect: ServerDialect, code: &str) -> bool {
    match dialect {
        ServerDialect::Postgres => matches!(code, "XX001" | "XX002"),
        // For unreadable tables and indexes; MySQL's own checksum failure ends the server.
        ServerDialect::Mysql => matches!(code, "1034" | "1035" | "1194" | "1195" | "1712" | "1877"),
    }
}

/// The tables of the journal are missing, or in MySQL the selected database.
fn is_gone(dialect: ServerDialect, code: &str) -> bool {
    match dialect {
        ServerDialect::Postgres => code == "42P01",
        ServerDialect::Mysql => matches!(code, "1046" | "1146"),
    }
}

/// The code of an error as its server numbers it.
pub(crate) fn error_code(dialect: ServerDialect, error: &sqlx::Error) -> Option<String> {
    let database_error = error.as_database_error()?;
    match dialect {
        ServerDialect::Postgres => database_error.code().map(std::borrow::Cow::into_owned),
        ServerDialect::Mysql => {
            let database_error = database_error.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>()?;
            Some(database_error.number().to_string())
        }
    }
}

/// The next step for a person after an error that does not pass by itself; `None` if it may pass.
pub(crate) fn remedy_for(dialect: ServerDialect, error: &sqlx::Error) -> Option<&'static str> {
    const CERTIFICATE: &str = "name the authority that vouches for the server in the address (`sslrootcert=` for \
        PostgreSQL, `ssl-ca=` for MySQL and MariaDB), and the name that its certificate has";
    const LOGIN: &str = "correct the user or the password in the journal's address, or the rules by which the \
        server lets users in";
    const DATABASE: &str =
        "make the database or put a copy of it back, or name another one in the journal's address";
    const RIGHTS: &str = "grant that user the right to make, read and write tables there";
    const PROTOCOL: &str = "correct scheme, host and port of the journal's address";
    const ENCRYPT: &str =
        "take `ssl-mode=DISABLED` out of the journal's address, or give the server a certificate";
    match error {
        error if lacks_tls(error) => return Some(ENCRYPT),
        sqlx::Error::Tls(_) => {
            return Some("correct the address's settings of TLS, or the server's certificate");
        }
        sqlx::Error::Protocol(_) | sqlx::Error::Configuration(_) => return Some(PROTOCOL),
        // The client's TLS library reports this in its own words.
        sqlx::Error::Io(_) if error.to_string().contains("peer certificate") => {
            return Some(CERTIFICATE);
        }
        _ => {}
    }
    let code = error_code(dialect, error)?;
    match (dialect, code.as_str()) {
        (ServerDialect::Postgres, "28000" | "28P01") => Some(LOGIN),
        (ServerDialect::Mysql, "3159") => Some(ENCRYPT),
        (ServerDialect::Mysql, "1045" | "1129" | "1130" | "1251" | "1524" | "1698") => Some(LOGIN),
        (ServerDialect::Mysql, "1820" | "1862" | "3118" | "3955") => Some(LOGIN),
        (ServerDialect::Postgres, "3D000") | (ServerDialect::Mysql, "1049") => Some(DATABASE),
        (ServerDialect::Postgres, "3F000" | "42501") => Some(RIGHTS),
        (ServerDialect::Mysql, "1044" | "1142" | "1143" | "1227") => Some(RIGHTS),
        _ => None,
    }
}

/// The client does not send MySQL's kind of password to a server that it can't identify. Its error has no
/// type of its own, only this text.
fn lacks_tls(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Configuration(why) if why.to_string().contains("RSA"))
}

pub(crate) fn classify_error(dialect: ServerDialect, error: sqlx::Error) -> JournalError {
    if let Some(code) = error_code(dialect, &error) {
        return match passing_fault(dialect, &code) {
            Some(what) => JournalError::Unavailable(format!("{what}: {error}")),
            None if is_damage(dialect, &code) => JournalError::Fatal(format!(
                "{error}: what is on the server's disk is not what was written: {RESTORE}"
            )),
            None if is_gone(dialect, &code) => {
                JournalError::Fatal(format!("{error}: tables of the journal are missing: {LOST}"))
            }
            None => JournalError::Fatal(format!("{error}: {DOUBTFUL}")),
        };
    }
    match error {
        error if lacks_tls(&error) => JournalError::Unavailable(
            "the server wants the password as `caching_sha2_password` has it, which is told over TLS alone"
                .into(),
        ),
        // The content of a row has another format.
        sqlx::Error::ColumnDecode { .. }
        | sqlx::Error::Decode(_)
        | sqlx::Error::Encode(_)
        | sqlx::Error::ColumnNotFound(_)
        | sqlx::Error::ColumnIndexOutOfBounds { .. }
        | sqlx::Error::TypeNotFound { .. } => JournalError::Fatal(format!("{error}: {DOUBTFUL}")),
        // Every other error concerns the connection to the server.
        error => JournalError::Unavailable(format!("the server can't be reached: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_is_tried_again_and_damage_is_not() {
        for code in ["40001", "40P01", "55000", "53100", "53300", "57P01", "57P03", "25006", "08006", "53200"]
        {
            assert!(passing_fault(ServerDialect::Postgres, code).is_some(), "{code}");
        }
        for code in ["23505", "42P01", "XX001", "XX002", "22021"] {
            assert!(passing_fault(ServerDialect::Postgres, code).is_none(), "{code}");
        }
        for code in ["1205", "1213", "1040", "1114", "1290", "1053", "3101", "3159", "3168", "4031"] {
            assert!(passing_fault(ServerDialect::Mysql, code).is_some(), "{code}");
        }
        for code in ["1062", "1146", "1034", "1366"] {
            assert!(passing_fault(ServerDialect::Mysql, code).is_none(), "{code}");
        }
        assert!(is_gone(ServerDialect::Postgres, "42P01") && is_gone(ServerDialect::Mysql, "1146"));
        assert!(is_damage(ServerDialect::Postgres, "XX001") && is_damage(ServerDialect::Mysql, "1034"));
    }

    #[test]
    fn what_only_a_person_can_mend_is_told_from_what_passes() {
        let lost = sqlx::Error::Io(std::io::ErrorKind::ConnectionRefused.into());
        assert_eq!(remedy_for(ServerDialect::Postgres, &lost), None);
        let other = sqlx::Error::Protocol("unknown message type: '4'".into());
        assert!(remedy_for(ServerDialect::Mysql, &other).is_some_and(|remedy| remedy.contains("port")));
        let untrusted = sqlx::Error::Tls("unknown issuer".into());
        assert!(
            remedy_for(ServerDialect::Postgres, &untrusted)
                .is_some_and(|remedy| remedy.contains("certificate"))
        );
    }

    #[test]
    fn a_lost_connection_is_tried_again() {
        let lost = sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into());
        assert!(matches!(classify_error(ServerDialect::Postgres, lost), JournalError::Unavailable(_)));
        let closed = sqlx::Error::PoolTimedOut;
        assert!(matches!(classify_error(ServerDialect::Mysql, closed), JournalError::Unavailable(_)));
        let row = sqlx::Error::ColumnNotFound("x".into());
        assert!(matches!(classify_error(ServerDialect::Postgres, row), JournalError::Fatal(_)));
    }
}
