//! Tests that a session of a server serves one plugin alone, and that a node of several primaries takes no writes.

use kubewitness_harness::free_port;

use super::*;

/// The provider of Galera, which the package of MariaDB brings along.
const PROVIDER: &str = "/usr/lib/galera/libgalera_smm.so";

fn remote<L: ServerLink>(world: &ServerWorld, connections: u32) -> RemoteDatabase<L> {
    let url = world.folder.path().join("url").to_string_lossy().into_owned();
    RemoteDatabase::impatient(&ServerSpec { url_from: SecretRef::File(url), connections }, PATIENCE)
}

/// The connection that a call of the plugin gets, after it ran these statements of the controller's own.
async fn call<L: ServerLink>(remote: &RemoteDatabase<L>, plugin: &str, texts: &[&str]) -> u64 {
    let (held, mut link) = remote.pool.begin_transaction(TransactionMode::ReadWrite, plugin).await.unwrap();
    for text in texts.iter().chain(&["COMMIT"]) {
        link.run(text).await.unwrap();
    }
    let number = link.connection_number();
    held.return_link(link);
    number
}

async fn setting<L: ServerLink>(remote: &RemoteDatabase<L>, plugin: &str, text: &'static str) -> String {
    let (held, mut link) = remote.pool.begin_transaction(TransactionMode::ReadWrite, plugin).await.unwrap();
    let found = link.read_mark(text).await.unwrap().unwrap_or_default();
    link.run("COMMIT").await.unwrap();
    held.return_link(link);
    found
}

/// `set` is a statement of a plugin that passed the guard.
async fn settings_of_one_plugin_do_not_reach_another<L: ServerLink>(
    world: &ServerWorld,
    set: &str,
    read: &'static str,
) {
    let remote = remote::<L>(world, 1);
    let before = setting(&remote, "a", read).await;
    let first = call(&remote, "a", &[set]).await;
    assert_ne!(setting(&remote, "a", read).await, before, "a plugin keeps its own session");
    assert_eq!(setting(&remote, "b", read).await, before, "{set}");
    assert_ne!(call(&remote, "b", &[]).await, first);
    // The server ends a session, and frees its locks, a moment after its connection is closed.
    until_sessions_are(world, 1).await;
    assert_eq!(setting(&remote, "a", read).await, before, "its session was closed to make room");
}

async fn idle_sessions_are_kept_by_plugin_within_the_permitted_number<L: ServerLink>(world: &ServerWorld) {
    let remote = remote::<L>(world, 2);
    let (a, b) = (call(&remote, "a", &[]).await, call(&remote, "b", &[]).await);
    for _ in 0..3 {
        assert_eq!((call(&remote, "a", &[]).await, call(&remote, "b", &[]).await), (a, b));
    }
    // The third takes the place of the one that was idle longest.
    let c = call(&remote, "c", &[]).await;
    assert_eq!((call(&remote, "b", &[]).await, call(&remote, "c", &[]).await), (b, c));
    until_sessions_are(world, 2).await;
    assert_ne!(call(&remote, "a", &[]).await, a);
}

/// Returns once the server has at most so many sessions of the database.
async fn until_sessions_are(world: &ServerWorld, most: usize) {
    let sessions = || {
        if world.server.service() == SqlService::Postgres {
            let others = "SELECT count(*) FROM pg_stat_activity \
                          WHERE datname = current_database() AND pid <> pg_backend_pid()";
            return world.run(others).trim().parse().unwrap();
        }
        let sessions = world.server.sessions().unwrap();
        sessions.iter().filter(|session| session.database == world.database()).count()
    };
    let deadline = Instant::now() + PATIENCE.wait;
    while sessions() > most {
        assert!(Instant::now() < deadline, "{} sessions are open", sessions());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_session_of_postgres_serves_one_plugin() {
    let test = "sessions::a_session_of_postgres_serves_one_plugin";
    let Some(world) = ServerWorld::on_shared(SqlService::Postgres, test) else { return };
    for (set, read) in [
        ("SET search_path = pg_catalog", "SELECT current_setting('search_path')"),
        ("CREATE TEMP TABLE t (k BIGINT)", "SELECT to_regclass('pg_temp.t')::text"),
        (
            "SELECT pg_advisory_lock(7)",
            "SELECT count(*)::text FROM pg_locks WHERE locktype = 'advisory' AND objid = 7 AND pid = pg_backend_pid()",
        ),
    ] {
        settings_of_one_plugin_do_not_reach_another::<PostgresLink>(&world, set, read).await;
    }
    idle_sessions_are_kept_by_plugin_within_the_permitted_number::<PostgresLink>(&world).await;
}

#[tokio::test]
async fn a_session_of_mysql_and_mariadb_serves_one_plugin() {
    let test = "sessions::a_session_of_mysql_and_mariadb_serves_one_plugin";
    for service in [SqlService::MariaDb, SqlService::MySql] {
        let Some(world) = ServerWorld::on_shared(service, test) else { continue };
        for (set, read) in [
            ("SET SESSION sql_mode = ''", "SELECT CAST(@@sql_mode AS CHAR)"),
            ("SET @hidden = 1", "SELECT CAST(@hidden AS CHAR)"),
            (
                "DO GET_LOCK('hidden', 0)",
                "SELECT CAST(COALESCE(IS_USED_LOCK('hidden') = connection_id(), 0) AS CHAR)",
            ),
        ] {
            settings_of_one_plugin_do_not_reach_another::<MysqlLink>(&world, set, read).await;
        }
        idle_sessions_are_kept_by_plugin_within_the_permitted_number::<MysqlLink>(&world).await;
    }
}

#[tokio::test]
async fn a_node_of_galera_serves_only_plugins_that_read() {
    let test = "sessions::a_node_of_galera_serves_only_plugins_that_read";
    if !std::path::Path::new(PROVIDER).exists() {
        return skip(test, "Galera is not installed");
    }
    let listens = format!(
        "--wsrep-provider-options=gmcast.listen_addr=tcp://127.0.0.1:{};ist.recv_addr=127.0.0.1:{}",
        free_port().unwrap(),
        free_port().unwrap()
    );
    let provider = format!("--wsrep-provider={PROVIDER}");
    let args = [
        "--wsrep-on=ON",
        &provider,
        &listens,
        "--wsrep-cluster-address=gcomm://",
        "--wsrep-node-address=127.0.0.1",
        "--binlog-format=ROW",
        "--innodb-autoinc-lock-mode=2",
    ];
    let started = DatabaseServer::start(SqlService::MariaDb, &args);
    let Some(world) = ServerWorld::new(started, test) else { return };
    let engine = world.engine(PATIENCE);
    for refused in [engine.begin("p").await.map(drop), engine.receipts_of_plugin("p").await.map(drop)] {
        let is_clear = matches!(&refused, Err(GrantError::Unavailable(why)) if why.contains("Galera") && why.contains("one primary"));
        assert!(is_clear, "{refused:?}");
    }
    engine.survey_receipts("p", TransactionMode::ReadOnly, &[]).await.unwrap();
    let mut transaction = engine.begin_in(TransactionMode::ReadOnly, "p").await.unwrap();
    let found = transaction.query("SELECT count(*) FROM t", Vec::new()).await.unwrap();
    assert_eq!(found, [[SqlValue::Integer(0)]]);
    transaction.roll_back().await;
}
