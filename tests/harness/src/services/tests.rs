use super::*;

/// The same for all; a service that is not there is told by `shared_server`.
fn own(service: SqlService, test: &str) -> Option<DatabaseServer> {
    let server = DatabaseServer::start(service, &[]).expect("starts");
    if server.is_none() {
        crate::skip(test, &format!("{service} is not installed"));
    }
    server
}

#[test]
fn a_session_is_ended_and_one_that_has_ended_is_no_error() {
    for service in [SqlService::Postgres, SqlService::MariaDb] {
        let Some(server) = DatabaseServer::shared(service).expect("starts") else {
            crate::skip("a_session_is_ended", &format!("{service} is not installed"));
            continue;
        };
        let url = server.create_database().expect("a database");
        let database = database_of(&url);
        server.run(Some(database), "CREATE TABLE t (n INTEGER)").expect("a table");
        let lock = match service {
            SqlService::Postgres => "BEGIN; LOCK TABLE t IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(100)",
            _ => "LOCK TABLES t WRITE; SELECT sleep(100)",
        };
        std::thread::scope(|scope| {
            let holder = scope.spawn(|| server.run(Some(database), lock));
            while !holder.is_finished() {
                server.end_sessions(database).expect("ended");
            }
            assert!(holder.join().expect("no panic").is_err(), "{service}");
        });
        if service == SqlService::MariaDb {
            server.end_session("18446744073709551").expect("nobody is there");
            server.end_session("no number").expect_err("no session");
        }
    }
}

fn rows(server: &DatabaseServer, database: &str) -> String {
    server.run(Some(database), "SELECT n FROM t ORDER BY n").expect("answers").replace('\n', " ")
}

fn what_was_committed_outlives_each_way_to_end(service: SqlService, test: &str) {
    let Some(mut server) = own(service, test) else { return };
    let url = server.create_database().expect("a database");
    assert!(url.contains(PASSWORD), "{url}");
    let database = database_of(&url);
    server.run(Some(database), "CREATE TABLE t (n INTEGER)").expect("a table");
    let ends: [fn(&mut DatabaseServer) -> Result<()>; 3] =
        [DatabaseServer::stop, DatabaseServer::stop_at_once, DatabaseServer::kill];
    for (n, end) in ends.into_iter().enumerate() {
        server.run(Some(database), &format!("INSERT INTO t VALUES ({n})")).expect("a row");
        let (pid, port) = (server.pid().expect("runs"), server.port());
        end(&mut server).expect("ends");
        assert!(!guard::is_alive(pid));
        assert!(server.run(None, "SELECT 1").is_err(), "nobody answers");
        server.start_again().expect("starts again");
        assert_eq!(server.port(), port);
    }
    assert_eq!(rows(&server, database), "0 1 2 ");
}

fn a_paused_server_answers_when_it_is_resumed(service: SqlService, test: &str) {
    let Some(server) = own(service, test) else { return };
    server.pause().expect("stops");
    let state = |pid| std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let pid = server.pid().expect("runs");
    // One that was just ending when its server stopped is waited for later, by the server.
    let moving = |pid: &u32| guard::is_alive(*pid) && !state(*pid).contains(") T ");
    let moving: Vec<_> = guard::family(pid).into_iter().filter(moving).map(state).collect();
    assert!(moving.is_empty(), "{moving:?}");
    server.resume().expect("goes on");
    assert_eq!(server.run(None, "SELECT 7").expect("answers").trim(), "7");
}

fn nothing_is_left_of_a_server_whose_test_went_away(service: SqlService, test: &str) {
    let Some(mut server) = own(service, test) else { return };
    let (folder, family) =
        (server.folder().expect("its own").to_path_buf(), guard::family(server.pid().expect("runs")));
    server.pause().expect("stops");
    // What the guard sees of a test that was killed: its end of the pipe is closed.
    server.own_mut().expect("its own").guard.take().expect("runs").clean_up();
    assert!(!folder.exists());
    let deadline = Instant::now() + WITHIN;
    while family.iter().any(|pid| guard::is_alive(*pid)) {
        assert!(Instant::now() < deadline, "{family:?} are still there");
        std::thread::sleep(PAUSE);
    }
    // Nothing to remove any more.
    std::fs::create_dir(&folder).expect("the folder's name is free");
}

macro_rules! for_each {
    ($($test:ident),*) => {
        mod postgres_server {
            $(#[test] fn $test() { super::$test(super::SqlService::Postgres, concat!("postgres_server::", stringify!($test))); })*
        }
        mod mariadb_server {
            $(#[test] fn $test() { super::$test(super::SqlService::MariaDb, concat!("mariadb_server::", stringify!($test))); })*
        }
        mod mysql_server {
            $(#[test] fn $test() { super::$test(super::SqlService::MySql, concat!("mysql_server::", stringify!($test))); })*
        }
    };
}

for_each!(
    what_was_committed_outlives_each_way_to_end,
    a_paused_server_answers_when_it_is_resumed,
    nothing_is_left_of_a_server_whose_test_went_away
);
