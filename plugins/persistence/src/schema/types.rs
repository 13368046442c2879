//! The contents of columns, and their SQL types in each dialect.

use kubewitness_sdk::sql::Dialect;
use serde::Deserialize;

/// The type of the values in a column. A value that is not of the type is NULL. Labels are texts, so numbers
/// and truth values may also be written as text. A text over 4,096 bytes is cut and ends with `…`. A time is
/// read in RFC 3339, and kept as `observed_at` is.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Type {
    Text,
    Integer,
    Number,
    Boolean,
    Time,
}

impl Type {
    pub fn word(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Boolean => "boolean",
            Self::Time => "time",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnContent {
    Id,
    Uid,
    Version,
    /// The name of an object, a namespace or a column.
    Name,
    Word,
    MaybeWord,
    Position,
    Count,
    MaybeCount,
    MaybeNumber,
    MaybeTruth,
    MaybeDocument,
}

/// The content of a configured column. Each may be NULL.
pub fn of_type(of: Type) -> ColumnContent {
    match of {
        Type::Text | Type::Time => ColumnContent::MaybeWord,
        Type::Integer => ColumnContent::MaybeCount,
        Type::Number => ColumnContent::MaybeNumber,
        Type::Boolean => ColumnContent::MaybeTruth,
    }
}

impl ColumnContent {
    /// The SQL type. Counts have 64 bits on servers, because an object may claim any number. An index of
    /// MySQL has at most 3,072 bytes, and a character takes four. Texts are compared byte by byte, which is
    /// not MySQL's default.
    pub fn sql(self, dialect: Dialect) -> &'static str {
        match (dialect, self) {
            (_, Self::Position) => "BIGINT NOT NULL",
            (Dialect::Sqlite, Self::Count) => "INTEGER NOT NULL",
            (Dialect::Sqlite, Self::MaybeCount) => "INTEGER",
            (_, Self::Count) => "BIGINT NOT NULL",
            (_, Self::MaybeCount) => "BIGINT",
            (Dialect::Sqlite, Self::MaybeNumber) => "REAL",
            (Dialect::Postgres, Self::MaybeNumber) => "DOUBLE PRECISION",
            (Dialect::Mysql, Self::MaybeNumber) => "DOUBLE",
            (Dialect::Sqlite, Self::MaybeTruth) => "INTEGER",
            (_, Self::MaybeTruth) => "BOOLEAN",
            (Dialect::Mysql, Self::Id) => "VARCHAR(600) COLLATE utf8mb4_bin NOT NULL",
            (Dialect::Mysql, Self::Version) => "VARCHAR(160) COLLATE utf8mb4_bin NOT NULL",
            (Dialect::Mysql, Self::Uid) => "VARCHAR(700) COLLATE utf8mb4_bin NOT NULL",
            (Dialect::Mysql, Self::Name) => "VARCHAR(1024) COLLATE utf8mb4_bin NOT NULL",
            (Dialect::Mysql, Self::Word) => "TEXT COLLATE utf8mb4_bin NOT NULL",
            (Dialect::Mysql, Self::MaybeWord) => "TEXT COLLATE utf8mb4_bin",
            // MySQL's TEXT ends at 64 KiB.
            (Dialect::Mysql, Self::MaybeDocument) => "LONGTEXT COLLATE utf8mb4_bin",
            (_, Self::MaybeWord | Self::MaybeDocument) => "TEXT",
            (_, Self::Id | Self::Uid | Self::Version | Self::Name | Self::Word) => "TEXT NOT NULL",
        }
    }
}
