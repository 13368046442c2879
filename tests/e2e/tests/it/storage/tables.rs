//! The tables of the plugin `persistence` on SQLite, PostgreSQL, MariaDB and MySQL: columns of the configuration,
//! transitions, views, the files for a user who may not make tables, and tables of version 1.

use anyhow::{Context, Result, ensure};
use kubewitness_core::clock::{Clock, SystemClock};
use kubewitness_harness::{DatabaseServer, Simulator, SqlService, in_scratch, skip};
use reqwest::Method;
use serde_json::{Value, json};

use crate::storage::place::{DatabasePlace, WITHIN, again, says};
use crate::support::{job, proofs_with, simulator};

const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
/// Objects with documents that fill several statements.
const WIDE: usize = 12;

async fn ask(simulator: &Simulator, method: Method, path: &str, body: Option<&Value>) -> Result<Value> {
    let (code, answer) = simulator.request(method, path, body).await?;
    ensure!((200..300).contains(&code), "{path} answered {code}: {answer}");
    Ok(answer)
}

/// A Job with labels and GPUs, which a queue holds back.
async fn create(simulator: &Simulator, name: &str) -> Result<()> {
    let mut job = job(name);
    job["metadata"]["labels"] = json!({"team": "vision \u{1f680}", "weight": "seven"});
    job["spec"]["parallelism"] = json!(4);
    job["spec"]["suspend"] = json!(true);
    job["spec"]["template"]["spec"]["containers"][0]["resources"] =
        json!({"limits": {"nvidia.com/gpu": "2"}});
    ask(simulator, Method::POST, JOBS, Some(&job)).await.map(drop)
}

/// Lets the Job run, and then fail.
async fn run_and_fail(simulator: &Simulator, name: &str) -> Result<()> {
    let path = format!("{JOBS}/{name}");
    let at = "2026-01-01T00:00:00Z";
    let mut job = ask(simulator, Method::GET, &path, None).await?;
    job["spec"]["suspend"] = json!(false);
    let mut job = ask(simulator, Method::PUT, &path, Some(&job)).await?;
    job["status"] = json!({"startTime": at, "active": 4, "ready": 4});
    let mut job = ask(simulator, Method::PUT, &format!("{path}/status"), Some(&job)).await?;
    let condition = |kind: &str| {
        json!({"type": kind, "status": "True", "reason": "BackoffLimitExceeded", "message": "x",
               "lastProbeTime": at, "lastTransitionTime": at})
    };
    job["status"] = json!({"startTime": at, "failed": 4, "conditions": [condition("FailureTarget"), condition("Failed")]});
    ask(simulator, Method::PUT, &format!("{path}/status"), Some(&job)).await.map(drop)
}

async fn columns_come_and_go_and_changes_of_phase_are_rows(place: DatabasePlace<'_>) -> Result<()> {
    let simulator = simulator(place.scratch).await?;
    let columns = "{name: team, pointer: /metadata/labels/team, type: text}, \
                   {name: weight, pointer: /metadata/labels/weight, type: integer}";
    let mut kubewitness = place.start(&simulator, "first", &format!("{{columns: [{columns}]}}")).await?;
    create(&simulator, "a").await?;
    place.comes("SELECT team FROM object_status WHERE weight IS NULL", &["vision \u{1f680}"]).await?;
    kubewitness.stop().await?;

    let more = format!("{columns}, {{name: pods, pointer: /spec/parallelism, type: integer}}");
    let config =
        format!("{{columns: [{more}], documents: pruned, gpus: nvidia.com/gpu, views: true, index: true}}");
    let mut kubewitness = place.start(&simulator, "second", &config).await?;
    run_and_fail(&simulator, "a").await?;
    place
        .comes("SELECT team FROM object_status WHERE pods = 4 AND phase = 'Failed'", &["vision \u{1f680}"])
        .await?;
    let documents = "SELECT name FROM object_history WHERE phase = 'Failed' AND document LIKE '%\"parallelism\":4%' \
                     AND document NOT LIKE '%managedFields%'";
    place.comes(documents, &["a"]).await?;
    let changes = "SELECT concat_ws('|', from_phase, to_phase) FROM object_transitions ORDER BY seq";
    let changes = place.texts(changes).await?;
    let chained = changes.windows(2).all(|pair| pair[0].rsplit('|').next() == pair[1].split('|').next());
    ensure!(chained && changes.first().is_some_and(|first| !first.contains('|')), "{changes:?}");
    ensure!(changes.last().is_some_and(|last| last.ends_with("|Failed")), "{changes:?}");
    let last = "SELECT concat_ws('|', gpus, reason) FROM object_transitions \
                WHERE to_phase = 'Failed' AND lasted_ms >= 0 AND changed_at > '2026'";
    place.comes(last, &["8|BackoffLimitExceeded"]).await?;
    place.comes("SELECT reason FROM object_failures WHERE failures = 1", &["BackoffLimitExceeded"]).await?;
    kubewitness.stop().await?;

    let mut kubewitness = place.start(&simulator, "third", "{}").await?;
    ask(&simulator, Method::DELETE, &format!("{JOBS}/a"), None).await?;
    let gone = "SELECT name FROM object_status WHERE phase = 'Deleted' AND team IS NULL AND pods IS NULL";
    place.comes(gone, &["a"]).await?;
    let kept = place.texts("SELECT DISTINCT team FROM object_history WHERE team IS NOT NULL").await?;
    ensure!(kept == ["vision \u{1f680}"], "{kept:?}");
    let no_letters = kubewitness.caught_up(WITHIN).await?;
    ensure!(no_letters.plugins.iter().all(|plugin| plugin.dead == 0), "states were parked");
    kubewitness.stop().await
}

async fn tables_of_version_1_keep_their_rows(place: DatabasePlace<'_>) -> Result<()> {
    place.apply("persistence-1.sql").await?;
    let row = "'id', 1, 'jobs', 'batch', 'Job', 'default', 'old', 'u', '1', 'present', 'Running', '', '', 0, 0, 1, NULL, 0, \
               NULL, NULL, '2026-01-01T00:00:00.000Z'";
    let mut administrator = place.administrator().await?;
    administrator.run(&format!("INSERT INTO object_status VALUES ({row})")).await?;
    administrator.run(&format!("INSERT INTO object_history VALUES ({row}, 'Pending')")).await?;
    let simulator = simulator(place.scratch).await?;
    let mut kubewitness = place.start(&simulator, "run", "{}").await?;
    create(&simulator, "new").await?;
    place.comes("SELECT name FROM object_status ORDER BY name", &["new", "old"]).await?;
    let old = "SELECT concat_ws('|', name, phase, previous_phase, observed_at) FROM object_history WHERE owner_uid IS NULL \
               AND seq = 1 AND id = 'id'";
    place.comes(old, &["old|Running|Pending|2026-01-01T00:00:00.000Z"]).await?;
    place.comes("SELECT concat_ws('', version) FROM object_schema ORDER BY version", &["1", "2"]).await?;
    kubewitness.stop().await
}

async fn a_table_that_is_renamed_for_its_month_is_made_anew(place: DatabasePlace<'_>) -> Result<()> {
    let simulator = simulator(place.scratch).await?;
    let mut kubewitness = place.start(&simulator, "run", "{prefix: batch_}").await?;
    create(&simulator, "a").await?;
    place.comes("SELECT name FROM batch_object_history", &["a"]).await?;
    place
        .administrator()
        .await?
        .run("ALTER TABLE batch_object_history RENAME TO batch_object_history_2026_11")
        .await?;
    create(&simulator, "b").await?;
    place.comes("SELECT name FROM batch_object_history", &["b"]).await?;
    place.comes("SELECT name FROM batch_object_history_2026_11", &["a"]).await?;
    kubewitness.stop().await
}

/// Rows whose views anybody can compute in their head.
async fn the_views_say_of_known_rows_what_is_true(place: DatabasePlace<'_>) -> Result<()> {
    for file in ["persistence-1.sql", "persistence-2.sql", "persistence-views.sql"] {
        place.apply(file).await?;
    }
    let hour = 3_600_000_i64;
    let change = |uid: &str, seq: i64, from: &str, to: &str, at: i64, lasted: i64, gpus: i64| {
        format!(
            "INSERT INTO object_transitions (uid, seq, id, source, kind, namespace, name, from_phase, to_phase, reason, \
             attempt, changed_at, changed_ms, lasted_ms, gpus) VALUES ('{uid}', {seq}, 'id-{seq}', 'jobs', 'Job', 'lab', \
             '{uid}', '{from}', '{to}', 'OOMKilled', 0, '1970-01-03T02:00:00.000Z', {at}, {lasted}, {gpus});"
        )
    };
    let mut rows: String =
        (1..=10).map(|n| change(&format!("w{n}"), n, "Queued", "Running", n * 1000, n * 1000, 0)).collect();
    // 8 GPUs from 22:00 of the first day to 2:00 of the third, after a wait of 5 s.
    rows += &change("big", 20, "Queued", "Running", 22 * hour, 5000, 8);
    rows += &change("big", 21, "Running", "Failed", 50 * hour, 28 * hour, 8);
    // More GPUs than times milliseconds fit into any integer, on the first day of 1980.
    rows += &change("huge", 30, "Running", "Succeeded", (3652 * 24 + 1) * hour, hour, i64::MAX);
    // 2 GPUs since two hours ago.
    let now = SystemClock::default().now_ms() as i64;
    rows += &change("now", 22, "Queued", "Running", now - 2 * hour, 5000, 2);
    for (uid, phase, terminal) in
        [("w1", "Running", 0), ("w2", "Running", 0), ("big", "Failed", 1), ("now", "Running", 0)]
    {
        rows += &format!(
            "INSERT INTO object_status VALUES ('id-{uid}', 1, 'jobs', 'batch', 'Job', 'lab', '{uid}', '{uid}', '1', \
             'present', '{phase}', '', '', 0, 0, 1, NULL, {terminal}, NULL, NULL, '1970-01-01T00:00:00.000Z', NULL);"
        );
    }
    place.administrator().await?.run(&rows).await?;
    for (query, expected) in [
        ("SELECT concat_ws('|', namespace, phase, objects) FROM object_current", &["lab|Running|3"][..]),
        (
            "SELECT concat_ws('|', objects, p50_ms, p90_ms, p99_ms, longest_ms) FROM object_queue_times",
            &["12|5000|9000|10000|10000"],
        ),
        (
            "SELECT concat_ws('|', name, queued_ms, ran_ms) FROM object_times WHERE ran_ms > 0 AND name = 'big'",
            &["big|5000|100800000"],
        ),
        ("SELECT concat_ws('|', reason, day, failures) FROM object_failures", &["OOMKilled|1970-01-03|1"]),
        (
            "SELECT concat_ws('|', day, round(gpu_hours)) FROM object_gpu_hours WHERE day < '1971' ORDER BY day",
            &["1970-01-01|16", "1970-01-02|192", "1970-01-03|16"],
        ),
        ("SELECT concat_ws('', day) FROM object_gpu_hours WHERE gpu_hours > 9e18", &["1980-01-01"]),
        ("SELECT concat_ws('', round(sum(gpu_hours))) FROM object_gpu_hours WHERE day > '2000'", &["4"]),
    ] {
        let found = place.texts(query).await?;
        let found: Vec<_> = found.iter().map(|text| text.trim_end_matches(".0")).collect();
        ensure!(found == expected, "{query}: {found:?}, and not {expected:?}");
    }
    Ok(())
}

async fn old_rows_go_in_ticks_and_what_an_object_is_now_stays(place: DatabasePlace<'_>) -> Result<()> {
    for file in ["persistence-1.sql", "persistence-2.sql"] {
        place.apply(file).await?;
    }
    let (old, young) = ("2026-01-01T00:00:00.000Z", "2999-01-01T00:00:00.000Z");
    let state = |uid: &str, version: &str, change: &str, at: &str| {
        format!(
            "'{uid}-{version}', 1, 'jobs', 'batch', 'Job', 'lab', '{uid}', '{uid}', '{version}', '{change}', 'Running', \
             '', '', 0, 0, 1, NULL, 0, NULL, NULL, '{at}'"
        )
    };
    let mut rows = String::new();
    // More than one step takes.
    for version in 1..=600 {
        rows += &format!(
            "INSERT INTO object_history VALUES ({}, NULL, NULL, NULL);",
            state("lives", &version.to_string(), "present", old)
        );
    }
    for (uid, change, at) in [("lives", "present", old), ("ended", "gone", old), ("fresh", "gone", young)] {
        rows += &format!("INSERT INTO object_status VALUES ({}, NULL);", state(uid, "900", change, at));
        rows += &format!(
            "INSERT INTO object_history VALUES ({}, NULL, NULL, NULL);",
            state(uid, "900", change, at)
        );
        for seq in [1, 2] {
            rows += &format!(
                "INSERT INTO object_transitions (uid, seq, id, source, kind, namespace, name, to_phase, reason, attempt, \
                 changed_at, changed_ms) VALUES ('{uid}', {seq}, '{uid}-{seq}', 'jobs', 'Job', 'lab', '{uid}', 'Running', \
                 '', 0, '{at}', {});",
                if at == old { 1_767_225_600_000_i64 } else { 32_472_144_000_000 }
            );
        }
    }
    place.administrator().await?.run(&rows).await?;
    let simulator = simulator(place.scratch).await?;
    // A tick may take as long as it is to the next one, and a busy machine takes its time.
    let mut kubewitness = place.start(&simulator, "run", "{keep: 90d}\ntick: {every: 5s}").await?;
    place.comes("SELECT DISTINCT uid FROM object_history", &["fresh"]).await?;
    place.comes("SELECT uid FROM object_status ORDER BY uid", &["fresh", "lives"]).await?;
    let transitions = "SELECT concat_ws('|', uid, seq) FROM object_transitions ORDER BY uid, seq";
    place.comes(transitions, &["fresh|1", "fresh|2", "lives|2"]).await?;
    // It is counted once it has come to its end.
    let status = kubewitness.status_when(WITHIN, "a tick", |status| {
        status.plugins.iter().any(|plugin| plugin.tick.as_ref().is_some_and(|tick| tick.ticks > 0))
    });
    let tick = status.await?.plugins[0].tick.clone().context("a tick")?;
    ensure!(tick.failed == 0, "{tick:?}");
    kubewitness.stop().await
}

/// The files are all that an administrator needs, and the error names them.
async fn a_user_who_may_not_make_tables_is_helped_by_the_files(place: DatabasePlace<'_>) -> Result<()> {
    let (server, _) = place.server.as_ref().context("SQLite has no users")?;
    let is_postgres = server.service() == SqlService::Postgres;
    let (database, name) = (place.database()?, place.guest()?);
    let may = "GRANT SELECT, INSERT, UPDATE, DELETE ON";
    let (user, rights) = match is_postgres {
        true => (
            format!("CREATE ROLE {name} LOGIN PASSWORD 'plain'"),
            format!("{may} ALL TABLES IN SCHEMA public TO {name}"),
        ),
        false => (
            format!("CREATE USER {name}@'%' IDENTIFIED BY 'plain'"),
            format!("{may} {database}.* TO {name}@'%'"),
        ),
    };
    server.run(Some(database), &user)?;
    if is_postgres {
        server.run(Some(database), "REVOKE CREATE ON SCHEMA public FROM PUBLIC")?;
    } else {
        server.run(Some(database), &rights)?;
    }
    let guest = place.url_of(&name)?;
    let simulator = simulator(place.scratch).await?;
    create(&simulator, "a").await?;
    // It tries, and what the server undoes does not hide what to do.
    let mut kubewitness = place.start_as(&simulator, "run", "{}", Some(&guest)).await?;
    let folder = format!("deploy/schema/{}", server.service().scheme());
    says(&mut kubewitness, &format!("{folder}/receipts.sql")).await?;
    place.apply("receipts.sql").await?;
    server.run(Some(database), &rights)?;
    says(&mut kubewitness, &format!("run the files of {folder}")).await?;
    for file in ["persistence-1.sql", "persistence-2.sql"] {
        place.apply(file).await?;
    }
    server.run(Some(database), &rights)?;
    place.comes("SELECT name FROM object_status", &["a"]).await?;
    kubewitness.stop().await
}

/// MySQL and MariaDB take less in one statement here than a call has: see [`server_of`].
async fn texts_of_any_size_and_script_are_kept_and_what_is_cut_says_so(
    place: DatabasePlace<'_>,
) -> Result<()> {
    let simulator = simulator(place.scratch).await?;
    for number in 0..WIDE {
        let mut wide = job(&format!("wide-{number:02}"));
        wide["metadata"]["annotations"]["note"] = "\u{1f680}é'\\".repeat(22_000).into();
        ask(&simulator, Method::POST, JOBS, Some(&wide)).await?;
    }
    create(&simulator, "large").await?;
    let config =
        "{columns: [{name: note, pointer: /metadata/annotations/note, type: text}], documents: whole}";
    let mut kubewitness = place.start(&simulator, "run", config).await?;
    let wide = "SELECT DISTINCT name FROM object_history WHERE note LIKE '\u{1f680}é''%\u{1f680}…' AND document LIKE '{%\u{1f680}é''%}' \
                ORDER BY name";
    let names: Vec<_> = (0..WIDE).map(|number| format!("wide-{number:02}")).collect();
    place.comes(wide, &names.iter().map(String::as_str).collect::<Vec<_>>()).await?;
    let path = format!("{JOBS}/large/status");
    let mut large = ask(&simulator, Method::GET, &format!("{JOBS}/large"), None).await?;
    large["status"] = json!({"failed": 1, "conditions": [{
        "type": "Failed", "status": "True", "reason": "Words", "message": "ж\u{1f680}".repeat(350_000),
    }]});
    ask(&simulator, Method::PUT, &path, Some(&large)).await?;
    // The host cuts the message of a status.
    let cut = "SELECT name FROM object_history WHERE phase = 'Failed' AND message LIKE 'ж\u{1f680}%\u{1f680}…' \
               AND document LIKE '{\"cut\":{\"bytes\":21%' AND note IS NULL";
    place.comes(cut, &["large"]).await?;
    place.comes("SELECT name FROM object_status WHERE reason = 'Words'", &["large"]).await?;
    let status = kubewitness.caught_up(WITHIN).await?;
    ensure!(status.plugins.iter().all(|plugin| plugin.dead == 0), "states were parked: {:?}", status.plugins);
    kubewitness.stop().await
}

/// The role may do nothing outside of its schema.
async fn a_schema_of_the_users_own_holds_everything(place: DatabasePlace<'_>) -> Result<()> {
    let (server, _) = place.server.as_ref().context("SQLite has no schemas")?;
    let name = place.guest()?;
    let setup = format!(
        "CREATE SCHEMA batch; CREATE ROLE {name} LOGIN PASSWORD 'plain'; \
         GRANT USAGE, CREATE ON SCHEMA batch TO {name}; ALTER ROLE {name} SET search_path = batch; \
         REVOKE ALL ON SCHEMA public FROM PUBLIC"
    );
    server.run(Some(place.database()?), &setup)?;
    let guest = place.url_of(&name)?;
    let simulator = simulator(place.scratch).await?;
    let config = "{columns: [{name: team, pointer: /metadata/labels/team, type: text}], views: true, index: true, \
                  keep: 90d}\ntick: {every: 1s}";
    let mut kubewitness = place.start_as(&simulator, "run", config, Some(&guest)).await?;
    create(&simulator, "a").await?;
    run_and_fail(&simulator, "a").await?;
    let rows = "SELECT team FROM batch.object_status WHERE phase = 'Failed'";
    place.comes(rows, &["vision \u{1f680}"]).await?;
    place.comes("SELECT reason FROM batch.object_failures", &["BackoffLimitExceeded"]).await?;
    let status = kubewitness.status_when(WITHIN, "a tick", |status| {
        status.plugins.iter().any(|plugin| plugin.tick.as_ref().is_some_and(|tick| tick.ticks > 0))
    });
    let tick = status.await?.plugins[0].tick.clone().context("a tick")?;
    ensure!(tick.failed == 0, "{tick:?}");
    kubewitness.caught_up(WITHIN).await?;
    kubewitness.stop().await?;
    let elsewhere =
        "SELECT CAST(table_name AS text) FROM information_schema.tables WHERE table_schema = 'public'";
    ensure!(place.texts(elsewhere).await?.is_empty(), "a table lies outside of the schema");
    proofs_with(&place.data()?, &place.address(Some(&guest))).await
}

/// The one of the run, or one of a test's own that takes less in a statement than a call has.
fn server_of(service: SqlService, test: &str) -> Result<Option<DatabaseServer>> {
    match service {
        SqlService::MariaDb | SqlService::MySql if test == SIZES => {
            DatabaseServer::start(service, &["--max-allowed-packet=2M"])
        }
        _ => DatabaseServer::shared(service),
    }
}

const SIZES: &str = "texts_of_any_size_and_script_are_kept_and_what_is_cut_says_so";

macro_rules! tests_on {
    (sqlite None: $($test:ident),*) => {
        $(#[tokio::test]
        async fn $test() {
            in_scratch("sqlite", async |scratch| {
                super::$test(DatabasePlace::new(scratch, None)?).await.with_context(|| again("tables::sqlite"))
            })
            .await;
        })*
    };
    ($name:ident $service:ident: $($test:ident),*) => {
        $(#[tokio::test]
        async fn $test() {
            let service = SqlService::$service;
            let Some(server) = server_of(service, stringify!($test)).expect("the server starts") else {
                let test = concat!("tables::", stringify!($name), "::", stringify!($test));
                return skip(test, &format!("{service} is not installed"));
            };
            in_scratch(stringify!($name), async |scratch| {
                super::$test(DatabasePlace::new(scratch, Some(server))?).await.with_context(|| again(concat!("tables::", stringify!($name))))
            })
            .await;
        })*
    };
}

macro_rules! on_every_database {
    ($($name:ident $service:ident $([$($more:ident),*])?),*) => {
        $(mod $name {
            use super::*;

            tests_on!($name $service:
                columns_come_and_go_and_changes_of_phase_are_rows,
                tables_of_version_1_keep_their_rows,
                a_table_that_is_renamed_for_its_month_is_made_anew,
                the_views_say_of_known_rows_what_is_true,
                old_rows_go_in_ticks_and_what_an_object_is_now_stays,
                texts_of_any_size_and_script_are_kept_and_what_is_cut_says_so
                $($(, $more)*)?
            );
        })*
    };
}

on_every_database!(
    sqlite None,
    postgres Postgres [
        a_user_who_may_not_make_tables_is_helped_by_the_files,
        a_schema_of_the_users_own_holds_everything
    ],
    mariadb MariaDb [a_user_who_may_not_make_tables_is_helped_by_the_files],
    mysql MySql [a_user_who_may_not_make_tables_is_helped_by_the_files]
);
