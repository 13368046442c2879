//! One statement for many rows. Statements, not rows, are dear, and a statement that is
//! prepared already is cheapest: so batches are cut into powers of two, and nine texts serve
//! every length.

use std::sync::{Arc, OnceLock};

use sqlx::sqlite::SqliteArguments;
use sqlx::{Arguments, AssertSqlSafe, SqliteConnection};

use crate::rows::Key;

/// Rows of one statement at most; with the widest table's 13 columns it has 3,328 binds of
/// 32,766.
const LARGEST: usize = 256;
const SIZES: usize = LARGEST.ilog2() as usize + 1;

/// The values of a statement. Ints, texts and blobs can't fail to be encoded, yet the driver
/// answers with a result: the first error is kept and told when the statement runs.
#[derive(Default)]
pub(super) struct Binds {
    arguments: SqliteArguments,
    error: Option<sqlx::error::BoxDynError>,
}

impl Binds {
    pub fn add<'v, T: sqlx::Encode<'v, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>>(
        &mut self,
        value: T,
    ) -> &mut Self {
        if let Err(error) = self.arguments.add(value) {
            self.error.get_or_insert(error);
        }
        self
    }

    pub fn key(&mut self, key: Key) -> &mut Self {
        match key {
            Key::Number(number) => self.add(number),
            Key::Text(text) => self.add(String::from(text)),
        }
    }

    pub fn optional_key(&mut self, key: Option<Key>) -> &mut Self {
        match key {
            Some(key) => self.key(key),
            None => self.add(None::<i64>),
        }
    }
}

pub(super) struct Multi {
    head: &'static str,
    row: &'static str,
    tail: &'static str,
    texts: [OnceLock<Arc<str>>; SIZES],
}

impl Multi {
    /// `head` ends before the rows, `row` is one of them, `tail` follows the last.
    pub const fn new(head: &'static str, row: &'static str, tail: &'static str) -> Self {
        Self { head, row, tail, texts: [const { OnceLock::new() }; SIZES] }
    }

    fn text(&self, size_log: usize) -> Arc<str> {
        let text = self.texts[size_log].get_or_init(|| {
            let rows = vec![self.row; 1 << size_log].join(",");
            format!("{} {rows} {}", self.head, self.tail).into()
        });
        text.clone()
    }

    pub async fn run<T>(
        &self,
        connection: &mut SqliteConnection,
        rows: Vec<T>,
        bind: fn(&mut Binds, T),
    ) -> Result<(), sqlx::Error> {
        let mut left = rows.len();
        let mut rows = rows.into_iter();
        while left > 0 {
            let size_log = left.min(LARGEST).ilog2() as usize;
            let mut binds = Binds::default();
            for row in rows.by_ref().take(1 << size_log) {
                bind(&mut binds, row);
            }
            if let Some(error) = binds.error {
                return Err(sqlx::Error::Encode(error));
            }
            let text = AssertSqlSafe(self.text(size_log));
            sqlx::query_with(text, binds.arguments).execute(&mut *connection).await?;
            left -= 1 << size_log;
        }
        Ok(())
    }
}
