//! Tests of the controller's checks of a file before it runs.

use kubewitness_core::config::{ComponentsSpec, PluginSpec};
use kubewitness_core::ports::CallError;
use kubewitness_hostile::{changed, core_module, half, text};
use kubewitness_sandbox::{ComponentCompiler, EngineOptions, SandboxEngine, SandboxError};

use crate::fixture::{engine, probe, probe_bytes};

fn spec(value: serde_json::Value) -> PluginSpec {
    serde_json::from_value(value).unwrap()
}

async fn refused(bytes: &[u8]) -> String {
    match engine().load(&bytes.to_vec().into(), &ComponentsSpec::default()).await {
        Ok(_) => panic!("this was taken for a plugin"),
        Err(SandboxError::Unfit(text)) => text,
        Err(other) => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn what_is_not_a_plugin_is_told_what_is_wrong_with_it() {
    for (bytes, word) in [
        (text(), "not WebAssembly"),
        (core_module(), "core WebAssembly module"),
        (b"\0asm\x0d\0\x01\0".to_vec(), "exports nothing"),
        (b"\0asm\x0d\0\x01\0\xff\xff\xff".to_vec(), "can't be read"),
        (half(&probe_bytes()), "can't be read"),
    ] {
        let text = refused(&bytes).await;
        assert!(text.contains(word), "{text}");
    }
}

/// Two existing interfaces with each other's functions.
#[tokio::test]
async fn a_component_with_other_functions_of_an_interface_is_told_which_and_what_to_do() {
    let mut bytes = probe_bytes();
    let names = [b"kubewitness:plugin/log@1.2.0", b"kubewitness:plugin/sql@1.2.0"];
    let found = |name: &[u8; 28]| {
        let places = bytes.windows(name.len()).enumerate().filter(|(_, window)| window == name);
        places.map(|(at, _)| at).collect::<Vec<_>>()
    };
    let [log, sql] = names.map(found);
    assert!(!log.is_empty() && !sql.is_empty());
    for (places, name) in [(log, names[1]), (sql, names[0])] {
        places.into_iter().for_each(|at| bytes[at..at + name.len()].copy_from_slice(name));
    }
    let text = refused(&bytes).await;
    assert!(
        text.starts_with("the component was built against other interfaces than the controller's: "),
        "{text}"
    );
    assert!(text.contains("kubewitness:plugin/"), "{text}");
    assert!(text.ends_with("build it against that version, or run a controller that knows it"), "{text}");
}

#[tokio::test]
async fn a_component_says_what_it_is_and_what_it_uses() {
    let probe = probe().await;
    let said = probe.describe_itself().await.unwrap();
    assert_eq!((said.name.as_str(), said.version.as_str()), ("probe", env!("CARGO_PKG_VERSION")));
    assert_eq!(said.needs, ["kv", "sql:main"]);
    assert_eq!((probe.interface_version(), probe.exports_ticker()), ("1.2.0", true));
    assert_eq!(probe.file_digest().len(), 64);
    let all = ["clock", "config", "documents", "http", "kv", "ledger", "lister", "log", "outcomes", "sql"];
    assert_eq!(probe.imported_capabilities(), all);
}

#[tokio::test]
async fn a_manifest_that_does_not_fit_is_told_by_field() {
    let spec = spec(serde_json::json!({
        "module": {"file": "probe.wasm"},
        "subscribe": [{"source": "jobs"}],
        "grants": {"sql": [{"name": "other", "database": "platform"}], "kv": true, "lister": ["jobs"]},
        "config": {"faults": [{"path": "tables[0].name", "message": "is taken"}, {"path": "", "message": "odd"}]},
    }));
    let faults = probe().await.check(&spec).await.unwrap();
    let found: Vec<_> = faults.iter().map(|fault| (fault.field.as_str(), fault.message.as_str())).collect();
    assert_eq!(
        found.iter().map(|(field, _)| *field).collect::<Vec<_>>(),
        [
            "spec.grants.http",
            "spec.grants.ledger",
            "spec.grants.sql",
            "spec.config.tables[0].name",
            "spec.config",
        ]
    );
    assert!(found[2].1.contains("`sql:main`"));
    assert_eq!(found[3].1, "is taken");
}

#[tokio::test]
async fn a_configuration_of_another_shape_is_a_fault_of_the_manifest() {
    let spec = spec(serde_json::json!({
        "module": {"file": "probe.wasm"},
        "subscribe": [{"source": "jobs"}],
        "config": {"faults": "many"},
    }));
    let faults = probe().await.check(&spec).await.unwrap();
    let last = faults.last().unwrap();
    assert_eq!(last.field, "spec.config");
    assert!(last.message.contains("many"), "{}", last.message);
}

#[tokio::test]
async fn a_manifest_that_fits_has_no_fault() {
    let spec = spec(serde_json::json!({
        "module": {"file": "probe.wasm"},
        "subscribe": [{"source": "jobs"}],
        "grants": {
            "sql": [{"name": "main", "database": "platform"}],
            "http": [{"name": "hook", "destination": "hook"}],
            "ledger": [{"name": "audit", "ledger": "audit"}],
            "kv": true,
            "lister": ["jobs"],
        },
    }));
    assert_eq!(probe().await.check(&spec).await.unwrap(), []);
}

#[tokio::test]
async fn memory_too_small_to_begin_with_is_found_before_the_plugin_is_active() {
    let spec = spec(serde_json::json!({
        "module": {"file": "probe.wasm"},
        "subscribe": [{"source": "jobs"}],
        "limits": {"memory": "64Ki"},
    }));
    let error = probe().await.check(&spec).await.unwrap_err();
    assert!(matches!(error, SandboxError::Guest { error: CallError::Memory { .. }, .. }), "{error:?}");
}

#[tokio::test]
async fn compiled_code_is_kept_and_what_was_tampered_with_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("compiled");
    let engine = || {
        SandboxEngine::new(EngineOptions {
            cache: Some(cache.clone()),
            compiler: ComponentCompiler::InProcess,
            is_unattended: false,
        })
        .unwrap()
    };
    let (bytes, limits) = (probe_bytes().into(), ComponentsSpec::default());
    let digest = engine().load(&bytes, &limits).await.unwrap().file_digest().to_string();
    let file = cache.join(format!("{digest}.cwasm"));
    let good = std::fs::read(&file).unwrap();

    let bad = changed(&good);
    std::fs::write(&file, &bad).unwrap();
    let again = engine().load(&bytes, &limits).await.unwrap();
    assert_eq!(again.describe_itself().await.unwrap().name, "probe");
    assert_ne!(std::fs::read(&file).unwrap(), bad);

    let from_cache = engine().load(&bytes, &limits).await.unwrap();
    assert_eq!(from_cache.describe_itself().await.unwrap().name, "probe");
}
