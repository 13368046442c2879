//! The words and names that are refused in a plugin's statement, by database.

use kubewitness_core::ports::SqlDialect;

use super::JOURNAL_PREFIX;

pub struct GuardRules {
    /// Words that end or leave the call's transaction, or access other files and the engine's settings. A
    /// column with such a name must be quoted.
    pub words: &'static [&'static str],
    /// Prefixes of functions and tables that the engine reserves.
    pub prefixes: &'static [&'static str],
    /// Types whose values name tables and functions of any schema, or roles, in quotes or not.
    pub types: &'static [&'static str],
    /// Schemas of the server, outside of the granted database.
    pub schemas: &'static [&'static str],
    pub executed: &'static [&'static str],
    pub queried: &'static [&'static str],
    /// Whether a string may stand for a name.
    pub strings_name: bool,
    /// The kinds of objects that may be created, changed and removed. If empty, only the words above restrict
    /// them.
    pub made: &'static [&'static str],
}

impl GuardRules {
    /// Recognises a type whose values are looked up. The second name of its arrays begins with an underscore.
    pub fn looks_up(&self, name: &str) -> bool {
        let element = name.trim_start_matches('_');
        self.types.iter().any(|of| element.eq_ignore_ascii_case(of))
    }
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
    types: &[],
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
        // They reveal the controller's identity at the database.
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
    ],
    prefixes: &[JOURNAL_PREFIX, "pg_", "lo_", "dblink", "crosstab", "inet_", "binary_upgrade_", "plpgsql_"],
    types: &[
        "aclitem",
        "regclass",
        "regcollation",
        "regconfig",
        "regdatabase",
        "regdictionary",
        "regnamespace",
        "regoper",
        "regoperator",
        "regproc",
        "regprocedure",
        "regrole",
        "regtype",
    ],
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
        // They reveal the controller's identity at the database.
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
        // It turns errors into warnings, and changes values that do not fit.
        "IGNORE",
        "DELAYED",
    ],
    prefixes: &[JOURNAL_PREFIX],
    types: &[],
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
