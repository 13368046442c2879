//! Reads the receipts of a database, and looks for the rows that were written with them. It only reads, in
//! one snapshot, and may run beside a running controller.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::path::Path;

use async_trait::async_trait;
use kubewitness_core::config::{DatabaseKind, DatabaseSpec, HostSpec, ServerSpec};
use kubewitness_core::intents::commits::CommitHistory;
use kubewitness_core::intents::prints::IdPrint;
use kubewitness_core::ports::{GrantError, SqlDialect, SqlValue};
use kubewitness_core::{Seq, address, files};
use rusqlite::{Connection, OpenFlags};
use thiserror::Error;
use tokio::task::JoinError;

use super::SqlFault;
use super::guard::{self, StatementPurpose};
use super::receipt::claims::{self, OWNER, WriteClaim};
use super::receipt::{self, FLOOR, FLOOR_TOKEN, KEPT, ReceiptColumns, ReceiptRow};
use super::servers::reasons::ServerFailure;
use super::servers::{PATIENCE, READER, ServerLink};
use super::sqlite::{bind_values, safe_message};
use super::write::quote_name;
use crate::receipts::{self, ReceiptMark};
use crate::secrets;

/// Keys of one question.
const PAGE: usize = 64;

/// One receipt: what it is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiptProof {
    pub plugin: String,
    /// Positions, and the prints of their states' ids.
    pub marks: Vec<(Seq, IdPrint)>,
}

/// The findings in one database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DatabaseProof {
    pub database: String,
    pub receipts: Vec<ReceiptProof>,
    /// The tokens of all rows, so that those can be looked for that the journal knows of.
    pub tokens: HashSet<String>,
    /// The moments before which receipts may be gone, by plugin.
    pub histories: BTreeMap<String, CommitHistory>,
    /// Whether its file is not there.
    pub is_absent: bool,
    /// Rows that were looked for.
    pub rows: u64,
    /// A receipt or row that differs from what was written.
    pub problems: Vec<String>,
    /// Why it, or some of it, could not be looked at.
    pub unread: Option<String>,
}

/// Why a database, or some of it, can't be looked at.
#[derive(Debug, Error)]
enum ProofError {
    #[error(transparent)]
    File(#[from] io::Error),
    #[error(transparent)]
    Thread(#[from] JoinError),
    #[error("its connection is gone")]
    ConnectionGone,
    /// The driver's own text may have a statement or a file.
    #[error("{}", safe_message(.0))]
    Sqlite(rusqlite::Error),
    #[error(transparent)]
    Server(#[from] ServerFailure),
    #[error(transparent)]
    Statement(#[from] GrantError),
    #[error("its answer is not a number")]
    NoNumber,
}

/// A connection that only reads.
#[async_trait]
trait ReadConnection: Send {
    fn dialect(&self) -> SqlDialect;
    async fn receipt_rows(&mut self) -> Result<Option<Vec<ReceiptRow>>, ProofError>;
    async fn count(&mut self, text: &str, values: Vec<SqlValue>) -> Result<u64, ProofError>;
}

/// Away while a thread works with it.
struct FileReader(Option<Connection>);

impl FileReader {
    /// Work that waits for the disk runs on a thread that may block.
    async fn run_query<T: Send + 'static>(
        &mut self,
        question: impl FnOnce(&Connection) -> Result<T, rusqlite::Error> + Send + 'static,
    ) -> Result<T, ProofError> {
        let connection = self.0.take().ok_or(ProofError::ConnectionGone)?;
        let asked = tokio::task::spawn_blocking(move || {
            let answer = question(&connection);
            (connection, answer)
        });
        let (connection, answer) = asked.await?;
        self.0 = Some(connection);
        answer.map_err(ProofError::Sqlite)
    }
}

#[async_trait]
impl ReadConnection for FileReader {
    fn dialect(&self) -> SqlDialect {
        SqlDialect::Sqlite
    }

    async fn receipt_rows(&mut self) -> Result<Option<Vec<ReceiptRow>>, ProofError> {
        self.run_query(|connection| {
            let find_table = "SELECT 1 FROM sqlite_schema WHERE name = 'kubewitness_receipts'";
            if !connection.prepare(find_table)?.exists([])? {
                return Ok(None);
            }
            let mut kept = connection.prepare(KEPT)?;
            let rows = kept.query_map([], |row| ReceiptColumns::try_from(row).map(ReceiptRow::from))?;
            rows.collect::<Result<_, _>>().map(Some)
        })
        .await
    }

    async fn count(&mut self, text: &str, values: Vec<SqlValue>) -> Result<u64, ProofError> {
        let text = text.to_owned();
        self.run_query(move |connection| {
            let mut counted = connection.prepare_cached(&text)?;
            bind_values(&mut counted, values.iter().enumerate())?;
            let mut rows = counted.raw_query();
            let row = rows.next()?.ok_or(rusqlite::Error::QueryReturnedNoRows)?;
            row.get::<_, i64>(0).map(|count| count as u64)
        })
        .await
    }
}

struct ServerReader<L>(L);

/// Waits for a server's answer, as long as the patience allows and no longer.
async fn in_time<T>(answer: impl Future<Output = Result<T, ProofError>>) -> Result<T, ProofError> {
    let late = |_| ServerFailure::Silent(PATIENCE.answer);
    tokio::time::timeout(PATIENCE.answer, answer).await.map_err(late)?
}

#[async_trait]
impl<L: ServerLink> ReadConnection for ServerReader<L> {
    fn dialect(&self) -> SqlDialect {
        L::DIALECT
    }

    async fn receipt_rows(&mut self) -> Result<Option<Vec<ReceiptRow>>, ProofError> {
        in_time(async { Ok(self.0.receipt_rows().await.map_err(|error| L::classify_connect_error(&error))?) })
            .await
    }

    async fn count(&mut self, text: &str, values: Vec<SqlValue>) -> Result<u64, ProofError> {
        let checked = guard::check(text, StatementPurpose::Query, L::DIALECT)?;
        let asked = async { Ok(self.0.query(&checked, values).await.map_err(SqlFault::into_error)?) };
        match in_time(asked).await?.first().and_then(|row| row.first()) {
            Some(SqlValue::Integer(count)) => Ok(*count as u64),
            _ => Err(ProofError::NoNumber),
        }
    }
}

async fn open_file_reader(path: &Path) -> Result<Option<Box<dyn ReadConnection>>, ProofError> {
    let asked = path.to_owned();
    let looked = files::run_within_limit(path, files::ANSWER, move || files::look(&asked)).await;
    if looked?.is_none() {
        return Ok(None);
    }
    let path = path.to_owned();
    let opened = tokio::task::spawn_blocking(move || {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        connection.execute_batch("BEGIN")?;
        Ok::<_, rusqlite::Error>(connection)
    });
    let connection = opened.await?.map_err(ProofError::Sqlite)?;
    Ok(Some(Box::new(FileReader(Some(connection)))))
}

async fn open_server_reader<L: ServerLink>(
    spec: &ServerSpec,
) -> Result<Option<Box<dyn ReadConnection>>, ProofError> {
    let url = secrets::resolve_secret(&spec.url_from).await.map_err(ServerFailure::from)?;
    let options = L::parse_options(url.expose_secret())?;
    address::expect_files(url.expose_secret()).await.map_err(ServerFailure::from)?;
    let connected = in_time(async {
        let mut link = L::connect_link(&options).await.map_err(|error| L::classify_connect_error(&error))?;
        link.run(L::SNAPSHOT).await.map_err(|error| L::classify_connect_error(&error))?;
        Ok(link)
    });
    Ok(Some(Box::new(ServerReader(connected.await?))))
}

/// The receipts in the databases that these settings name, and whether the rows are there that were
/// written with them. Makes and writes nothing.
pub async fn prove_receipts(host: &HostSpec, data: &Path) -> Vec<DatabaseProof> {
    let mut proofs = Vec::new();
    for spec in &host.databases {
        proofs.push(prove_database(spec, data).await);
    }
    proofs
}

/// Reads the receipts of one database that the host's settings name. `data` is where relative paths lie.
pub(super) async fn prove_database(spec: &DatabaseSpec, data: &Path) -> DatabaseProof {
    let mut proof = DatabaseProof { database: spec.name.clone(), ..DatabaseProof::default() };
    let reader = match spec.only_kind() {
        Some(DatabaseKind::Sqlite(sqlite)) => open_file_reader(&data.join(&sqlite.path)).await,
        Some(DatabaseKind::Postgres(server)) => {
            open_server_reader::<super::postgres::PostgresLink>(server).await
        }
        Some(DatabaseKind::Mysql(server)) => open_server_reader::<super::mysql::MysqlLink>(server).await,
        None => Ok(None),
    };
    let read = match reader {
        // Nothing was ever written there, or the file lies elsewhere.
        Ok(None) => {
            proof.is_absent = true;
            Ok(())
        }
        Ok(Some(mut reader)) => prove_whole(&mut *reader, &mut proof).await,
        Err(error) => Err(error),
    };
    proof.unread = read.err().map(|error| error.to_string()).or(proof.unread);
    proof
}

async fn prove_whole(reader: &mut dyn ReadConnection, proof: &mut DatabaseProof) -> Result<(), ProofError> {
    let Some(rows) = reader.receipt_rows().await? else { return Ok(()) };
    proof.tokens = rows.iter().map(|row| row.token.clone()).collect();
    proof.histories = histories_in(&rows);
    // Who reads them is no receipt, nor is the position up to which they were removed.
    let rows = rows.into_iter().filter(|row| row.plugin != READER && row.plugin != FLOOR);
    let (claim_rows, receipts): (Vec<ReceiptRow>, Vec<ReceiptRow>) =
        rows.partition(|row| row.plugin == OWNER);
    let mut claim_rows: HashMap<String, ReceiptRow> =
        claim_rows.into_iter().map(|row| (row.token.clone(), row)).collect();
    for row in receipts {
        let claim_row = claim_rows.remove(&row.token);
        let ReceiptRow { plugin, first, last, states, .. } = row;
        let name = format!("the receipt of {plugin} for positions {first} to {last}");
        match marks_within(&states, first, last) {
            None => proof.problems.push(format!("{name} is not what was written")),
            // That of a tick or a resync.
            Some(marks) if marks.is_empty() => {}
            Some(marks) => proof.receipts.push(ReceiptProof { plugin, marks }),
        }
        let Some(claim_row) = claim_row else { continue };
        let is_same = (claim_row.first, claim_row.last) == (first, last);
        let Some(claims) = claims::decode(&claim_row.states, &states).filter(|_| is_same) else {
            proof.problems.push(format!("{name} does not match its list of rows"));
            continue;
        };
        for claim in claims {
            let wanted = claim.keys.len() as u64;
            proof.rows += wanted;
            match count_found_rows(reader, &claim).await {
                Ok(found) if found == wanted => {}
                Ok(found) => proof.problems.push(format!(
                    "{name} is there without its rows: {} of {wanted} are not in the table `{}`",
                    wanted - found.min(wanted),
                    claim.table
                )),
                // Its table may be gone, or its columns: the rows are.
                Err(why) => proof.problems.push(format!(
                    "{name}: its rows can't be looked for in the table `{}`: {why}",
                    claim.table
                )),
            }
        }
    }
    for row in claim_rows.into_values() {
        let ReceiptRow { first, last, .. } = row;
        proof.problems.push(format!("rows of positions {first} to {last} are there without their receipt"));
    }
    Ok(())
}

fn histories_in(rows: &[ReceiptRow]) -> BTreeMap<String, CommitHistory> {
    let mut histories: BTreeMap<String, CommitHistory> = BTreeMap::new();
    for row in rows {
        let at_ms = u64::try_from(row.at).unwrap_or_default();
        if row.plugin == FLOOR {
            let Some(plugin) = row.token.strip_suffix(FLOOR_TOKEN) else { continue };
            let pruned = &mut histories.entry(plugin.to_owned()).or_default().pruned_before_ms;
            *pruned = (*pruned).max(at_ms);
        } else if receipt::is_tick(&row.token) {
            let newest = &mut histories.entry(row.plugin.clone()).or_default().newest_tick_ms;
            *newest = (*newest).max(at_ms);
        }
    }
    histories
}

fn marks_within(states: &[u8], first: i64, last: i64) -> Option<Vec<(Seq, IdPrint)>> {
    let marks = receipts::decode(states)?;
    if marks.is_empty() {
        // A tick or a resync finishes no state.
        return (first == last).then(Vec::new);
    }
    let at = |mark: Option<&ReceiptMark>| mark.and_then(|mark| i64::try_from(mark.seq).ok());
    let is_whole = at(marks.first()) == Some(first) && at(marks.last()) == Some(last);
    let ascends = marks.windows(2).all(|pair| pair[0].seq < pair[1].seq);
    (is_whole && ascends).then(|| marks.into_iter().map(|mark| (mark.seq, mark.print)).collect())
}

/// How many of the rows are there.
async fn count_found_rows(reader: &mut dyn ReadConnection, claim: &WriteClaim) -> Result<u64, ProofError> {
    let dialect = reader.dialect();
    let names: Vec<_> =
        claim.columns.iter().map(|column| format!("{} = ?", quote_name(column, dialect))).collect();
    let key_condition = format!("({})", names.join(" AND "));
    let mut found = 0;
    for keys in claim.keys.chunks(PAGE) {
        let condition = vec![key_condition.as_str(); keys.len()].join(" OR ");
        let text = format!("SELECT count(*) FROM {} WHERE {condition}", quote_name(&claim.table, dialect));
        let values = keys.iter().flatten().map(claims::KeyPart::as_sql_value).collect();
        found += reader.count(&text, values).await?;
    }
    Ok(found)
}
