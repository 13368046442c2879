//! Which programs MariaDB is, and how they are called.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{PASSWORD, USER, folder_with, guard, output, search_path};

pub struct Programs {
    server: PathBuf,
    install: PathBuf,
    client: PathBuf,
}

pub fn programs() -> Option<Programs> {
    let find = |name: &str| Some(folder_with(search_path(), &[name])?.join(name));
    Some(Programs {
        server: find("mariadbd")?,
        install: find("mariadb-install-db")?,
        client: find("mariadb")?,
    })
}

fn found() -> Result<Programs> {
    programs().context("MariaDB is not installed")
}

pub fn install(folder: &Path) -> Result<()> {
    let init = format!(
        "CREATE USER IF NOT EXISTS {USER}@'127.0.0.1' IDENTIFIED BY '{PASSWORD}';\n\
         GRANT ALL ON *.* TO {USER}@'127.0.0.1' WITH GRANT OPTION;\n"
    );
    std::fs::write(folder.join("init.sql"), init).context("the first statements")?;
    let mut install = guard::command(folder, &found()?.install);
    install.args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"]);
    install.arg(format!("--datadir={}", folder.join("data").display()));
    output(&mut install).map(drop)
}

pub fn server(folder: &Path, port: u16) -> Result<Vec<String>> {
    let path = |name: &str| folder.join(name).display().to_string();
    Ok(vec![
        found()?.server.to_string_lossy().into_owned(),
        "--no-defaults".to_owned(),
        format!("--datadir={}", path("data")),
        format!("--tmpdir={}", folder.display()),
        format!("--socket={}", path("s")),
        format!("--pid-file={}", path("pid")),
        format!("--init-file={}", path("init.sql")),
        format!("--port={port}"),
        "--bind-address=127.0.0.1".to_owned(),
        "--skip-name-resolve".to_owned(),
        "--performance-schema=OFF".to_owned(),
        "--max-connections=100".to_owned(),
        "--innodb-buffer-pool-size=64M".to_owned(),
        "--innodb-log-file-size=16M".to_owned(),
        // Written at each commit and synced once a second: what a process that is killed has
        // written, the kernel keeps.
        "--innodb-flush-log-at-trx-commit=2".to_owned(),
    ])
}

pub fn client(port: u16, database: Option<&str>) -> Result<Command> {
    let mut client = Command::new(found()?.client);
    client.args(["--no-defaults", "--protocol=tcp", "--host=127.0.0.1", "--connect-timeout=5"]);
    client.args([&format!("--port={port}"), &format!("--user={USER}"), "--batch", "--skip-column-names"]);
    if let Some(database) = database {
        client.arg(format!("--database={database}"));
    }
    client.env("MYSQL_PWD", PASSWORD).arg("--execute");
    Ok(client)
}
