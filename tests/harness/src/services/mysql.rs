//! The programs of MySQL and MariaDB and their arguments, in one file because the two share most of them.

use std::hash::{Hash, Hasher};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};
use sqlx::mysql::MySqlDatabaseError;

use super::templates::{DATA, hash_version};
use super::{PASSWORD, SqlService, USER, folder_with, guard, output, search_path};
use crate::programs::services_folder;

#[derive(Clone)]
pub struct MysqlPrograms {
    server: PathBuf,
    client: PathBuf,
    /// The program that makes a folder of data, where that is not the server itself.
    install: Option<PathBuf>,
}

/// Looked for once: MySQL's programs are run to see what they are.
pub fn programs(service: SqlService) -> Option<&'static MysqlPrograms> {
    static MARIADB: OnceLock<Option<MysqlPrograms>> = OnceLock::new();
    static MYSQL: OnceLock<Option<MysqlPrograms>> = OnceLock::new();
    match service {
        SqlService::MySql => MYSQL.get_or_init(mysql).as_ref(),
        _ => MARIADB.get_or_init(mariadb).as_ref(),
    }
}

fn mariadb() -> Option<MysqlPrograms> {
    let find = |name: &str| Some(folder_with(search_path(), &[name])?.join(name));
    let install = Some(find("mariadb-install-db")?);
    Some(MysqlPrograms { server: find("mariadbd")?, client: find("mariadb")?, install })
}

/// Those of the machine, or those that the runner fetched.
fn mysql() -> Option<MysqlPrograms> {
    let fetched = services_folder().map(|folder| folder.join("mysql").join("bin"));
    let both = search_path()
        .into_iter()
        .chain(fetched)
        .map(|folder| ["mysqld", "mysql"].map(|name| folder.join(name)));
    let [server, client] = both.into_iter().find(|both| both.iter().all(|program| is_mysql(program)))?;
    Some(MysqlPrograms { server, client, install: None })
}

/// MariaDB's programs are called so too.
fn is_mysql(program: &Path) -> bool {
    let told = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    told.is_ok_and(|told| told.status.success() && !String::from_utf8_lossy(&told.stdout).contains("MariaDB"))
}

fn found(service: SqlService) -> Result<&'static MysqlPrograms> {
    programs(service).with_context(|| format!("{service} is not installed"))
}

/// Gives what the first start needs beside the usual arguments: it makes the user.
pub fn install(service: SqlService, folder: &Path) -> Result<Vec<String>> {
    let init = folder.join("init.sql");
    std::fs::write(&init, first_statements()).context("the first statements")?;
    let MysqlPrograms { server, install, .. } = found(service)?;
    let mut command = guard::command(folder, install.as_ref().unwrap_or(server));
    command.arg("--no-defaults").args(initialization(service));
    output(command.arg(format!("--datadir={}", folder.join(DATA).display())))?;
    Ok(vec![format!("--init-file={}", init.display())])
}

fn first_statements() -> String {
    format!(
        "CREATE USER IF NOT EXISTS {USER}@'127.0.0.1' IDENTIFIED BY '{PASSWORD}';\n\
         GRANT ALL ON *.* TO {USER}@'127.0.0.1' WITH GRANT OPTION;\n"
    )
}

fn initialization(service: SqlService) -> Vec<&'static str> {
    match service {
        SqlService::MySql => [&["--initialize-insecure"][..], &settings(service)].concat(),
        _ => vec!["--auth-root-authentication-method=normal", "--skip-test-db"],
    }
}

/// Hashes everything that the data depends on.
pub fn shape(service: SqlService, hasher: &mut impl Hasher) -> Result<()> {
    hash_version(&found(service)?.server, hasher)?;
    (first_statements(), initialization(service), settings(service)).hash(hasher);
    Ok(())
}

/// Returns the settings of the server's process, whatever it is started for. Nothing is synced: what a
/// process that is killed has written, the kernel keeps.
fn settings(service: SqlService) -> Vec<&'static str> {
    let mut settings = vec!["--innodb-buffer-pool-size=64M", "--innodb-flush-method=nosync"];
    settings.extend_from_slice(match service {
        SqlService::MySql => &[
            "--innodb-redo-log-capacity=32M",
            "--disable-log-bin",
            "--secure-file-priv=NULL",
            "--mysqlx=OFF",
        ],
        _ => &["--innodb-log-file-size=16M"],
    });
    settings
}

pub fn server(service: SqlService, folder: &Path, port: u16) -> Result<Vec<String>> {
    let path = |name: &str| folder.join(name).display().to_string();
    let mut command = vec![
        found(service)?.server.to_string_lossy().into_owned(),
        "--no-defaults".to_owned(),
        format!("--datadir={}", path(DATA)),
        format!("--tmpdir={}", folder.display()),
        format!("--socket={}", path("s")),
        format!("--pid-file={}", path("pid")),
        format!("--port={port}"),
        "--bind-address=127.0.0.1".to_owned(),
        "--skip-name-resolve".to_owned(),
        "--performance-schema=OFF".to_owned(),
        "--max-connections=100".to_owned(),
        // Written at each commit.
        "--innodb-flush-log-at-trx-commit=2".to_owned(),
    ];
    command.extend(settings(service).iter().map(ToString::to_string));
    Ok(command)
}

/// Logs in with the server's own client. MySQL asks whoever has not logged in since its start for the password itself. It
/// takes it over TLS, which tests count, or encrypted by a key that only its client asks for.
pub fn log_in(port: u16) -> Result<()> {
    // A program that is started in vain costs more than a connection.
    TcpStream::connect(("127.0.0.1", port)).context("connecting")?;
    let mut client = Command::new(&found(SqlService::MySql)?.client);
    client.args(["--no-defaults", "--protocol=tcp", "--host=127.0.0.1", "--connect-timeout=5"]);
    client.args([&format!("--port={port}"), &format!("--user={USER}")]);
    client.args(["--ssl-mode=DISABLED", "--get-server-public-key"]);
    client.env("MYSQL_PWD", PASSWORD).args(["--execute", "SELECT 1"]);
    output(&mut client).map(drop)
}

/// One session of a server, as anybody's may be.
pub struct MysqlSession {
    pub id: String,
    /// Empty where it has chosen none.
    pub database: String,
    pub state: String,
}

/// Not from the table of sessions: MySQL refuses that as a whole while one of them asks with bytes.
pub const SESSIONS: &str = "SHOW PROCESSLIST";

/// Whether a session was to be ended that is not there.
pub fn names_no_session(error: &anyhow::Error) -> bool {
    const NO_SUCH_THREAD: u16 = 1094;
    let refused = error.downcast_ref::<sqlx::Error>().and_then(sqlx::Error::as_database_error);
    refused
        .and_then(|refused| refused.try_downcast_ref::<MySqlDatabaseError>())
        .is_some_and(|refused| refused.number() == NO_SUCH_THREAD)
}

pub fn session(line: &str) -> Result<MysqlSession> {
    let columns: Vec<&str> = line.split('\t').collect();
    let [id, _, _, database, _, _, state, ..] = columns[..] else { bail!("no session: {line}") };
    Ok(MysqlSession { id: id.to_owned(), database: database.to_owned(), state: state.to_owned() })
}
