//! Journal and granted database over TLS: the server is known by its authority, and one that is not
//! is told and spoken with no further.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_harness::{
    DatabaseServer, Kubewitness, PASSWORD, ProcessEnd, RunOptions, Scratch, SqlService, command_json_in,
    in_scratch, skip,
};

use crate::storage::databases::{ADDRESS, configuration};
use crate::support::{create_job, simulator, write};

const WITHIN: Duration = Duration::from_secs(120);

fn verified(service: SqlService, url: &str, authority: &std::path::Path) -> String {
    let authority = authority.display();
    match service {
        SqlService::Postgres => format!("{url}?sslmode=verify-full&sslrootcert={authority}"),
        SqlService::MariaDb | SqlService::MySql => {
            format!("{url}?ssl-mode=VERIFY_IDENTITY&ssl-ca={authority}")
        }
    }
}

/// Whether a session of ours is encrypted.
fn is_encrypted(server: &DatabaseServer) -> Result<bool> {
    let count = match server.service() {
        SqlService::Postgres => {
            "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
             WHERE ssl AND application_name LIKE 'kubewitness%'"
        }
        // It counts sessions that shook hands; our own client does not.
        SqlService::MariaDb | SqlService::MySql => "SHOW GLOBAL STATUS LIKE 'Ssl_finished_accepts'",
    };
    Ok(server.run(None, count)?.split_whitespace().last() != Some("0"))
}

async fn speaks(
    service: SqlService,
    scratch: &Scratch,
    server: &DatabaseServer,
    authority: &std::path::Path,
) -> Result<()> {
    let simulator = simulator(scratch).await?;
    let (granted, journal) = (server.create_database()?, server.create_database()?);
    let granted = verified(service, &granted, authority);
    write(scratch.path(), "journal-address", &verified(service, &journal, authority))?;
    let file = scratch.path().join("journal-address").to_string_lossy().into_owned();
    let database = format!("{}: {{urlFrom: {{env: {ADDRESS}}}}}", service.scheme());
    let options = RunOptions {
        args: vec!["--journal-file".to_owned(), file.clone()],
        env: vec![(ADDRESS.to_owned(), granted.clone())],
        ..simulator.run_options(scratch, configuration(scratch, &database)?)?
    };
    let mut run = Kubewitness::start("run", &options, scratch.path())?;
    run.answers().await?;
    create_job(&simulator, "job-0").await?;
    run.status_when(WITHIN, "the job to be delivered", |status| {
        status.plugins.iter().any(|plugin| plugin.delivered == 1)
    })
    .await?;
    ensure!(is_encrypted(server)?, "nobody speaks over TLS");
    run.stop().await?;
    let folder = options.data.to_string_lossy().into_owned();
    let verify = ["journal", "verify", "--data", &folder, "--journal-file", &file, "-o", "json"];
    let report = command_json_in(&verify, &options.env).await?;
    ensure!(report["ok"] == true, "journal verify said {report}");

    // The same server, vouched for by nobody that is known: its own certificate is no authority here.
    let other = authority.with_file_name("server.pem");
    write(scratch.path(), "journal-address", &verified(service, &journal, &other))?;
    let mut refused = Kubewitness::start("refused", &options, scratch.path())?;
    let ended = refused.process().wait(WITHIN).await;
    let said = refused.process().stderr();
    ensure!(!said.contains(PASSWORD), "it tells the password: {said}");
    ensure!(said.to_lowercase().contains("certificate"), "it ended with {ended:?} and said {said}");
    ensure!(matches!(ended, Ok(ProcessEnd::Code(1))), "it ended with {ended:?} and said {said}");
    Ok(())
}

async fn on(service: SqlService, test: &str) {
    let Some((server, authority)) = DatabaseServer::start_with_tls(service).expect("the server starts")
    else {
        return skip(test, &format!("{service} or openssl is not installed"));
    };
    in_scratch("tls", async |scratch| {
        let spoken = speaks(service, scratch, &server, &authority).await;
        spoken.with_context(|| format!("{service} said:\n{}", server.log()))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_is_spoken_with_over_tls_and_one_that_nobody_vouches_for_is_refused() {
    on(SqlService::Postgres, "tls::postgres").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb_is_spoken_with_over_tls_and_one_that_nobody_vouches_for_is_refused() {
    on(SqlService::MariaDb, "tls::mariadb").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mysql_is_spoken_with_over_tls_and_one_that_nobody_vouches_for_is_refused() {
    on(SqlService::MySql, "tls::mysql").await;
}
