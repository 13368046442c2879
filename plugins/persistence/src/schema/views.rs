//! Views for dashboards. They are created if the configuration requests them; everybody else can create them
//! from a file.

use kubewitness_sdk::sql::Dialect;

use super::{OUTCOMES, PrefixedNames, STATUS, TRANSITIONS};

/// Phases in which an object waits for its turn, and those in which it works.
const WAITS: &str = "'Queued', 'Admitted', 'Pending'";
const RUNS: &str = "'Running', 'Restarting'";
const DAY_MS: u64 = 86_400_000;
/// A longer run comes from a wrong clock. MySQL ends a recursion after 1,000 steps, and each day is one.
const LONGEST_DAYS: u64 = 900;

/// Names and texts of all views. A view follows those that it reads.
pub fn views(names: PrefixedNames<'_>, dialect: Dialect) -> Vec<String> {
    let create = create(dialect);
    let view = |name: &str, text: String| format!("{create} {} AS {text}", names.of(name));
    let gpu_hours_name = "object_gpu_hours";
    let mut views = vec![
        view("object_current", current(names)),
        view("object_times", times(names, dialect)),
        view("object_queue_times", queue_times(names)),
        view("object_failures", failures(names)),
    ];
    // SQLite can't replace a view, and an earlier version of this one counted less.
    if dialect == Dialect::Sqlite {
        views.push(format!("DROP VIEW IF EXISTS {}", names.of(gpu_hours_name)));
    }
    views.push(view(gpu_hours_name, gpu_hours(names, dialect)));
    views
}

fn create(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Sqlite => "CREATE VIEW IF NOT EXISTS",
        Dialect::Postgres | Dialect::Mysql => "CREATE OR REPLACE VIEW",
    }
}

/// The number of objects that ended badly, by cause and day. It reads the table of `causes`.
pub fn causes_view(names: PrefixedNames<'_>, dialect: Dialect) -> String {
    let day = "substr(ended_at, 1, 10)";
    format!(
        "{} {} AS SELECT namespace, kind, cause, {day} AS day, count(*) AS outcomes FROM {} \
         GROUP BY namespace, kind, cause, {day}",
        create(dialect),
        names.of("object_causes"),
        names.of(OUTCOMES)
    )
}

/// The number of present objects that have not ended, by phase.
fn current(names: PrefixedNames<'_>) -> String {
    let status = names.of(STATUS);
    format!(
        "SELECT namespace, source, kind, phase, count(*) AS objects FROM {status} \
         WHERE terminal = 0 AND \"change\" <> 'left' GROUP BY namespace, source, kind, phase"
    )
}

/// How long each object waited and ran, as far as those phases have ended.
fn times(names: PrefixedNames<'_>, dialect: Dialect) -> String {
    let sum = |phases: &str| {
        let sum = format!("sum(CASE WHEN from_phase IN ({phases}) THEN lasted_ms END)");
        match dialect {
            Dialect::Sqlite => sum,
            Dialect::Postgres => format!("CAST({sum} AS BIGINT)"),
            Dialect::Mysql => format!("CAST({sum} AS SIGNED)"),
        }
    };
    format!(
        "SELECT uid, source, kind, namespace, name, max(owner_uid) AS owner_uid, {} AS queued_ms, {} AS ran_ms, \
         min(changed_at) AS first_at, max(changed_at) AS last_at FROM {} GROUP BY uid, source, kind, namespace, name",
        sum(WAITS),
        sum(RUNS),
        names.of(TRANSITIONS)
    )
}

/// The longest time that a given percentage of objects waited. Every dialect can number rows; some have no
/// percentiles.
fn queue_times(names: PrefixedNames<'_>) -> String {
    let percentile =
        |of: u32| format!("min(CASE WHEN place * 100 >= objects * {of} THEN queued_ms END) AS p{of}_ms");
    format!(
        "SELECT namespace, kind, max(objects) AS objects, {}, max(queued_ms) AS longest_ms FROM \
         (SELECT namespace, kind, queued_ms, \
         row_number() OVER (PARTITION BY namespace, kind ORDER BY queued_ms) AS place, \
         count(*) OVER (PARTITION BY namespace, kind) AS objects \
         FROM {} WHERE queued_ms IS NOT NULL) ranked GROUP BY namespace, kind",
        [50, 90, 99].map(percentile).join(", "),
        names.of("object_times")
    )
}

/// Why objects failed, by day.
fn failures(names: PrefixedNames<'_>) -> String {
    let day = "substr(changed_at, 1, 10)";
    format!(
        "SELECT namespace, kind, reason, exit_code, {day} AS day, count(*) AS failures FROM {} \
         WHERE to_phase = 'Failed' GROUP BY namespace, kind, reason, exit_code, {day}",
        names.of(TRANSITIONS)
    )
}

/// GPUs times hours, by the days in UTC on which they were used. A run of several days has a part in each. A
/// run that has not ended is counted up to now, from the newest transition of an existing object. Products
/// are floating-point numbers: one row with too many GPUs must not make the view fail for everybody.
fn gpu_hours(names: PrefixedNames<'_>, dialect: Dialect) -> String {
    let (day_of, day, hours, now) = match dialect {
        Dialect::Sqlite => (
            "/",
            "strftime('%Y-%m-%d', part.day * 86400, 'unixepoch')",
            "1.0",
            "CAST(strftime('%s', 'now') AS INTEGER) * 1000",
        ),
        Dialect::Postgres => (
            "/",
            "to_char(DATE '1970-01-01' + CAST(part.day AS INTEGER), 'YYYY-MM-DD')",
            "CAST(1 AS DOUBLE PRECISION)",
            "CAST(extract(epoch FROM now()) * 1000 AS BIGINT)",
        ),
        Dialect::Mysql => (
            "DIV",
            "CAST(DATE_ADD(DATE '1970-01-01', INTERVAL part.day DAY) AS CHAR)",
            "1e0",
            "CAST(UNIX_TIMESTAMP() AS SIGNED) * 1000",
        ),
    };
    let (status, transitions, longest) = (names.of(STATUS), names.of(TRANSITIONS), LONGEST_DAYS * DAY_MS);
    let ran = format!(
        "SELECT namespace, kind, gpus, changed_ms - lasted_ms AS start_ms, changed_ms AS end_ms FROM {transitions} \
         WHERE from_phase IN ({RUNS}) AND gpus > 0 AND lasted_ms > 0"
    );
    let runs = format!(
        "SELECT t.namespace, t.kind, t.gpus, t.changed_ms, {now} FROM {status} s JOIN {transitions} t ON t.uid = s.uid \
         AND t.seq = (SELECT max(m.seq) FROM {transitions} m WHERE m.uid = s.uid) \
         WHERE s.terminal = 0 AND s.\"change\" = 'present' AND t.to_phase IN ({RUNS}) AND t.gpus > 0"
    );
    let next = format!("(day + 1) * {DAY_MS}");
    format!(
        "WITH RECURSIVE part (namespace, kind, gpus, day, start_ms, end_ms) AS (\
         SELECT namespace, kind, gpus, start_ms {day_of} {DAY_MS}, start_ms, end_ms FROM ({ran} UNION ALL {runs}) ran \
         WHERE start_ms < end_ms AND end_ms - start_ms < {longest} \
         UNION ALL SELECT namespace, kind, gpus, day + 1, {next}, end_ms FROM part WHERE {next} < end_ms) \
         SELECT namespace, kind, {day} AS day, \
         sum({hours} * gpus * (CASE WHEN end_ms < {next} THEN end_ms ELSE {next} END - start_ms)) / 3600000 AS gpu_hours \
         FROM part GROUP BY namespace, kind, part.day"
    )
}
