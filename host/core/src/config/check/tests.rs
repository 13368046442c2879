//! Tests of the checks, of the host's settings and of plugins.

use super::plugin::wrong_tick;
use crate::config::{Duration, HostSpec, IndexSpec, PluginSpec, Start, StartTime, TickSpec};
use crate::model::fault::ManifestFault;

fn host() -> HostSpec {
    serde_json::from_value(serde_json::json!({
        "sources": [{"name": "jobs", "apiVersion": "batch/v1", "kind": "Job"}],
        "databases": [{"name": "platform", "sqlite": {"path": "platform.db"}}],
    }))
    .unwrap()
}

fn plugin(value: serde_json::Value) -> PluginSpec {
    serde_json::from_value(value).unwrap()
}

#[test]
fn a_name_that_points_nowhere_is_a_fault_of_its_field() {
    let spec = plugin(serde_json::json!({
        "module": {"file": "p.wasm"},
        "subscribe": [{"source": "pods"}],
        "grants": {"sql": [{"name": "main", "database": "other"}]},
    }));
    let fields: Vec<_> = spec.check(&host()).into_iter().map(|f| f.field).collect();
    assert_eq!(fields, ["spec.subscribe[0].source", "spec.grants.sql[0].database"]);
}

#[test]
fn a_database_is_exactly_one_and_its_address_is_a_reference() {
    let faults = |database: serde_json::Value| {
        let mut host = host();
        host.databases = vec![serde_json::from_value(database).unwrap()];
        host.check().into_iter().map(|fault| fault.field).collect::<Vec<_>>()
    };
    let env = |name: &str| serde_json::json!({"urlFrom": {"env": name}});
    let named = |engine: &str, of: serde_json::Value| serde_json::json!({"name": "a", engine: of});
    assert_eq!(faults(named("postgres", env("URL"))), [] as [String; 0]);
    assert_eq!(faults(named("mysql", serde_json::json!({"urlFrom": {"file": "/url"}}))), [] as [String; 0]);
    assert_eq!(faults(serde_json::json!({"name": "a"})), ["spec.databases[0]"]);
    let two = serde_json::json!({"name": "a", "sqlite": {"path": "a.db"}, "mysql": env("URL")});
    assert_eq!(faults(two), ["spec.databases[0]"]);
    assert_eq!(faults(named("mysql", env(""))), ["spec.databases[0].mysql.urlFrom"]);
    let address = env("postgres://user:password@host/db");
    assert_eq!(faults(named("postgres", address)), ["spec.databases[0].postgres.urlFrom"]);
    let small = serde_json::json!({"path": "a.db", "size": "1023Ki"});
    assert_eq!(faults(named("sqlite", small)), ["spec.databases[0].sqlite.size"]);
    let many = serde_json::json!({"urlFrom": {"env": "URL"}, "connections": 0});
    assert_eq!(faults(named("postgres", many)), ["spec.databases[0].postgres.connections"]);
}

#[test]
fn a_limit_under_which_nothing_runs_is_refused_and_a_pause_that_is_cut_is_told() {
    let of = |fields: serde_json::Value| {
        let mut spec = serde_json::json!({"module": {"file": "p.wasm"}, "subscribe": [{"source": "jobs"}]});
        spec.as_object_mut().unwrap().extend(fields.as_object().cloned().unwrap());
        plugin(spec)
    };
    let lines = |faults: Vec<ManifestFault>| -> Vec<_> {
        faults.into_iter().map(|fault| format!("{}: {}", fault.field, fault.message)).collect()
    };
    for (limit, value, least) in [
        ("memory", "64", "is 64: write 64Ki"),
        ("hostBytes", "0Ki", "is 0: write 1Ki"),
        ("call", "0s", "is 0ms: write 1ms"),
    ] {
        let faults = lines(of(serde_json::json!({"limits": {limit: value}})).check(&host()));
        assert_eq!(faults, [format!("spec.limits.{limit}: {least} or more")]);
    }
    let smallest = serde_json::json!({"memory": "64Ki", "hostBytes": "1Ki", "call": "1ms"});
    assert_eq!(of(serde_json::json!({"limits": smallest})).check(&host()), []);
    let warnings =
        |delivery: serde_json::Value| lines(of(serde_json::json!({"delivery": delivery})).warnings(&host()));
    assert_eq!(warnings(serde_json::json!({"maxBackoff": "1ms"})), [] as [String; 0]);
    let cut = warnings(serde_json::json!({"backoff": "1d", "maxBackoff": "1ms"}));
    assert!(
        cut.len() == 1
            && cut[0].contains("spec.delivery.backoff: is 1d")
            && cut[0].contains("longer than `maxBackoff`, 1ms")
    );
}

#[test]
fn a_schedule_has_bounds_and_a_tick_ends_before_the_next() {
    for (tick, message) in [
        (r#"{"every": "999ms"}"#, "spec.tick.every: is 999ms: write 1s to 1d"),
        (r#"{"every": "25h"}"#, "spec.tick.every: is 25h: write 1s to 1d"),
        (
            r#"{"every": "2s", "timeout": "3s"}"#,
            "spec.tick.timeout: is 3s: write more than 0s and at most 2s",
        ),
        (
            r#"{"every": "1h", "timeout": "61s"}"#,
            "spec.tick.timeout: is 61s: write more than 0s and at most 1m",
        ),
        (r#"{"every": "1h", "timeout": "0s"}"#, "spec.tick.timeout: is 0ms: write more"),
    ] {
        let fault = wrong_tick(serde_json::from_str(tick).unwrap()).unwrap();
        let text = format!("{}: {}", fault.field, fault.message);
        assert!(text.starts_with(message), "{text}");
    }
    for (fine, timeout) in
        [(r#"{"every": "1s"}"#, 1), (r#"{"every": "1d"}"#, 10), (r#"{"every": "1m", "timeout": "1m"}"#, 60)]
    {
        let tick: TickSpec = serde_json::from_str(fine).unwrap();
        assert_eq!((wrong_tick(tick), tick.timeout_or_default().as_secs()), (None, timeout), "{fine}");
    }
    let spec = plugin(serde_json::json!({
        "module": {"file": "p.wasm"},
        "subscribe": [{"source": "jobs"}],
        "tick": {"every": "1ms"},
    }));
    assert_eq!(spec.check(&host())[0].field, "spec.tick.every");
}

#[test]
fn a_resync_has_a_least_pause() {
    let mut host = host();
    for (seconds, faults) in [(10, 0), (9, 1), (0, 1)] {
        host.sources[0].resync = Some(Duration(std::time::Duration::from_secs(seconds)));
        assert_eq!(host.check().len(), faults, "{seconds} s");
    }
    assert_eq!(host.check()[0].field, "spec.sources[0].resync");
}

#[test]
fn audits_have_a_least_pause_or_never_come() {
    let mut host = host();
    for (millis, faults) in [(0, 0), (1, 1), (9_999, 1), (10_000, 0)] {
        host.sources[0].audit = Duration(std::time::Duration::from_millis(millis));
        assert_eq!(host.check().len(), faults, "{millis} ms");
    }
}

#[test]
fn a_namespace_is_a_name_and_no_part_of_an_address() {
    let mut host = host();
    for (namespace, faults) in [("team-vision", 0), ("", 1), ("a/../b", 1), ("a?watch=true", 1)] {
        host.sources[0].namespace = Some(namespace.to_string());
        assert_eq!(host.check().len(), faults, "{namespace}");
    }
    assert_eq!(host.check()[0].field, "spec.sources[0].namespace");
}

#[test]
fn labels_that_no_object_can_have_are_a_fault() {
    let mut host = host();
    for (key, value, faults) in [
        ("team", "vision", 0),
        ("example.com/team", "", 0),
        ("team", "a b", 1),
        ("", "a", 1),
        ("-team", "a", 1),
        ("Example.com/team", "a", 1),
        ("a/b/c", "a", 1),
        ("team", &"a".repeat(64), 1),
    ] {
        host.sources[0].match_labels = [(key.to_string(), value.to_string())].into();
        assert_eq!(host.check().len(), faults, "{key}={value}");
    }
    assert_eq!(host.check()[0].field, "spec.sources[0].matchLabels");
}

#[test]
fn a_subscription_to_resyncs_that_never_come_is_a_warning_and_no_fault() {
    let mut host = host();
    let spec = plugin(serde_json::json!({
        "module": {"file": "p.wasm"}, "subscribe": [{"source": "jobs", "resync": true}],
    }));
    assert!(spec.check(&host).is_empty(), "taking it from the source must not take the plugin out");
    assert_eq!(spec.warnings(&host)[0].field, "spec.subscribe[0].resync");
    host.sources[0].resync = Some(Duration(std::time::Duration::from_secs(60)));
    assert!(spec.warnings(&host).is_empty());
}

#[test]
fn a_start_is_a_word_a_time_or_a_position() {
    let start = |value: serde_json::Value| serde_json::from_value::<Start>(value);
    assert_eq!(start("now".into()).unwrap(), Start::Now);
    assert_eq!(start(serde_json::json!({"position": 7})).unwrap(), Start::Position(7));
    let since = |text: &str| match start(serde_json::json!({"since": text})) {
        Ok(Start::Since(since)) => since.as_unix_ms(10_000_000_000),
        other => panic!("{other:?}"),
    };
    assert_eq!(since("1970-01-02T00:00:00Z"), 86_400_000);
    assert_eq!((since("2h"), since("30d"), since("400d")), (9_992_800_000, 7_408_000_000, 0));
    let error = start(serde_json::json!({"since": "last month"})).unwrap_err().to_string();
    assert!(error.contains("`last month` is no time"), "{error}");
    let text = serde_json::to_string(&Start::Since(StartTime::At(86_400_000))).unwrap();
    assert_eq!(text, r#"{"since":"1970-01-02T00:00:00.000Z"}"#);
}

#[test]
fn a_rate_of_nothing_is_a_fault_of_its_field() {
    let spec = plugin(serde_json::json!({
        "module": {"file": "p.wasm"}, "subscribe": [{"source": "jobs"}],
        "delivery": {
            "rate": {"perSecond": 0}, "callRate": {"perSecond": 5, "burst": 0}, "retryRate": {"perSecond": 9},
        },
    }));
    let fields: Vec<_> = spec.check(&host()).into_iter().map(|fault| fault.field).collect();
    assert_eq!(fields, ["spec.delivery.rate.perSecond", "spec.delivery.callRate.burst"]);
}

#[test]
fn a_component_is_named_exactly_once() {
    let both = plugin(serde_json::json!({
        "module": {"file": "p.wasm", "configMapKey": "p.wasm"}, "subscribe": [{"source": "jobs"}],
    }));
    assert_eq!(both.check(&host())[0].field, "spec.module");
    let neither = plugin(serde_json::json!({"module": {}, "subscribe": [{"source": "jobs"}]}));
    assert_eq!(neither.check(&host())[0].field, "spec.module");
}

#[test]
fn an_index_has_a_name_of_its_own_and_a_pointer() {
    let mut host = host();
    let indexes = [("queue", "/spec/q"), ("node", "/a"), ("9x", "/a"), ("queue", "/b"), ("byZone", "spec")];
    host.sources[0].indexes =
        indexes.map(|(name, pointer)| IndexSpec { name: name.into(), pointer: pointer.into() }).into();
    let fields: Vec<_> = host.check().into_iter().map(|fault| fault.field).collect();
    let expected = ["[1].name", "[2].name", "[3].name", "[4].pointer"];
    assert_eq!(fields, expected.map(|end| format!("spec.sources[0].indexes{end}")));
}
