//! The words and names that a plugin's statement may not contain, by database.

use kubewitness_core::ports::SqlDialect;

pub struct GuardRules {
    /// Words that end or leave the call's transaction, or reach other files and the engine's
    /// settings. As names of columns they have to be quoted.
    pub words: &'static [&'static str],
    /// Names that begin so, of functions and of tables: what the engine keeps for itself.
    pub prefixes: &'static [&'static str],
    /// Schemas that are the server's, not the granted database's.
    pub schemas: &'static [&'static str],
    pub executed: &'static [&'static str],
    pub queried: &'static [&'static str],
    /// A string may stand for a name.
    pub strings_name: bool,
    /// The things that may be made, changed and removed. Empty: whatever the words above leave.
    pub made: &'static [&'static str],
}

const SQLITE: GuardRules = GuardRules {
    words: &[
        "ATTACH",
        "DETACH",
        "PRAGMA",
        "VACUUM",
        "BEGIN",
        "COMMIT",
        "ROLLBACK",
        "SAVEPOINT",
        "RELEASE",
        "TRIGGER",
        "VIRTUAL",
        "TEMP",
        "TEMPORARY",
    ],
    prefixes: &["pragma_"],
    schemas: &["temp"],
    executed: &["INSERT", "REPLACE", "UPDATE", "DELETE", "WITH", "CREATE", "DROP", "ALTER"],
    queried: &["SELECT", "WITH", "VALUES"],
    strings_name: true,
    made: &[],
};

const POSTGRES: GuardRules = GuardRules {
    words: &[
        "BEGIN",
        "COMMIT",
        "ROLLBACK",
        "SAVEPOINT",
        "RELEASE",
        "COPY",
        "EXECUTE",
        "TRIGGER",
        // They tell who the controller is to the database.
        "CURRENT_CATALOG",
        "CURRENT_ROLE",
        "CURRENT_SCHEMA",
        "CURRENT_USER",
        "SESSION_USER",
        "SYSTEM_USER",
        "USER",
        "TEMP",
        "TEMPORARY",
        "UNLOGGED",
        "TABLESPACE",
        // Types whose texts name tables and functions of any schema.
        "REGCLASS",
        "REGPROC",
        "REGPROCEDURE",
        "REGNAMESPACE",
        "REGROLE",
        "REGTYPE",
    ],
    prefixes: &["pg_", "lo_", "dblink", "crosstab", "inet_", "binary_upgrade_", "plpgsql_"],
    schemas: &["pg_catalog", "information_schema"],
    executed: &["INSERT", "UPDATE", "DELETE", "WITH", "CREATE", "DROP", "ALTER"],
    queried: &["SELECT", "WITH", "VALUES"],
    strings_name: false,
    made: &["TABLE", "INDEX", "UNIQUE INDEX", "VIEW", "OR REPLACE VIEW"],
};

const MYSQL: GuardRules = GuardRules {
    words: &[
        "BEGIN",
        "COMMIT",
        "ROLLBACK",
        "SAVEPOINT",
        "RELEASE",
        "LOAD",
        "OUTFILE",
        "DUMPFILE",
        "INFILE",
        // They tell who the controller is to the database.
        "CURRENT_ROLE",
        "CURRENT_USER",
        "SESSION_USER",
        "SYSTEM_USER",
        "TRIGGER",
        "TEMPORARY",
        "ENGINE",
        "CONNECTION",
        "DIRECTORY",
        "TABLESPACE",
        "DEFINER",
        "SECURITY",
        "PROCEDURE",
        "HANDLER",
        "DISCARD",
        "IMPORT",
        "EXCHANGE",
        // It turns errors into warnings, and what does not fit into something else.
        "IGNORE",
        "DELAYED",
    ],
    prefixes: &[],
    schemas: &["mysql", "performance_schema", "sys", "information_schema"],
    executed: &["INSERT", "REPLACE", "UPDATE", "DELETE", "WITH", "CREATE", "DROP", "ALTER"],
    queried: &["SELECT", "WITH", "VALUES"],
    strings_name: false,
    made: &["TABLE", "INDEX", "UNIQUE INDEX", "VIEW", "OR REPLACE VIEW"],
};

pub fn rules_of(dialect: SqlDialect) -> &'static GuardRules {
    match dialect {
        SqlDialect::Sqlite => &SQLITE,
        SqlDialect::Postgres => &POSTGRES,
        SqlDialect::Mysql => &MYSQL,
    }
}
