//! Tests of the faults that `check` reports in folders, manifests and components.

use kubewitness_sandbox::{ComponentCompiler, EngineOptions};

use super::*;

const HOST: &str = "kind: ConfigMap\nmetadata: {name: host, labels: {kubewitness.dev/host: \"true\"}}\ndata:\n  host.yaml: |\n    apiVersion: kubewitness.dev/v1alpha1\n    kind: Host\n    metadata: {name: host}\n    spec:\n      sources: [{name: jobs, apiVersion: batch/v1, kind: Job}]\n";

/// The component is missing, so a valid manifest still has one problem.
fn plugin(config_map: &str, spec: &str) -> String {
    format!(
        "kind: ConfigMap\nmetadata: {{name: {config_map}, labels: {{kubewitness.dev/plugin: \"true\"}}}}\ndata:\n  plugin.yaml: |\n    apiVersion: kubewitness.dev/v1alpha1\n    kind: Plugin\n    metadata: {{name: notify}}\n    spec:\n      module: {{file: absent.wasm}}\n{spec}"
    )
}

const SPEC: &str = "      subscribe: [{source: pods}]\n      grants:\n        sql: [{name: a, database: b}]\n        http: [{name: a, destination: c}]\n        ledger: [{name: a, ledger: d}]\n        keys: [{name: a, key: e}]\n        lister: [nodes]\n";

async fn findings(path: &Path) -> Vec<CheckFinding> {
    let options = EngineOptions { cache: None, compiler: ComponentCompiler::InProcess, is_unattended: false };
    let engine = SandboxEngine::new(options).unwrap();
    let CheckedFiles::Manifests(snapshot) = read(path).unwrap() else { panic!("rules") };
    check_snapshot(&engine, path, &snapshot, &component::ComponentFolders::default()).await
}

fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

#[tokio::test]
async fn a_plugin_alone_is_checked_but_for_the_names_of_the_host() {
    let folder = folder(&[("p.yaml", &plugin("p", SPEC))]);
    let found = findings(&folder.path().join("p.yaml")).await;
    let [plugin] = found.as_slice() else { panic!("{} findings", found.len()) };
    assert!(
        plugin.detail.contains("not compared with the host manifest: there is no host document"),
        "{}",
        plugin.detail
    );
    let [problem] = plugin.problems.as_slice() else { panic!("{:?}", plugin.problems) };
    assert!(problem.contains("p.yaml:9: spec.module.file: `absent.wasm` is not there"), "{problem}");
}

#[tokio::test]
async fn programs_read_of_each_fault_what_it_is_about_and_its_field() {
    let spec = "      subscribe: [{source: pods, mode: odd}]\n      grants: {sql: [{name: a, database: b, access: some}]}\n";
    let folder =
        folder(&[("host.yaml", HOST), ("p.yaml", &plugin("p", SPEC)), ("q.yaml", &plugin("q", spec))]);
    let of = async |file: &str| {
        let found = serde_json::to_value(&findings(&folder.path().join(file)).await).unwrap();
        let faults = found[0]["faults"].as_array().unwrap().clone();
        faults.iter().map(|it| (it["code"].clone(), it["field"].clone())).collect::<Vec<_>>()
    };
    let expected = |code: &str, field: &str| (Value::from(code), Value::from(field));
    let found = of("p.yaml").await;
    assert!(found.contains(&expected("manifest", "spec.subscribe[0].source")), "{found:?}");
    assert!(found.contains(&expected("grants", "spec.grants.sql[0].database")), "{found:?}");
    assert!(of("q.yaml").await.iter().all(|(code, _)| code == "manifest" || code == "grants"));
    let spec = "      subscribe: [{source: jobs}]\n";
    std::fs::write(folder.path().join("r.yaml"), plugin("r", spec)).unwrap();
    assert_eq!(of("r.yaml").await, [expected("component", "spec.module.file")]);
    let odd = folder.path().join("odd.wasm");
    std::fs::write(&odd, b"\0asm\x0d\0\x01\0").unwrap();
    let engine = SandboxEngine::new(EngineOptions {
        cache: None,
        compiler: ComponentCompiler::InProcess,
        is_unattended: false,
    })
    .unwrap();
    let finding = check_component(&engine, &odd).await.unwrap();
    let [FaultOf { code: FaultCode::Component, field, message }] = finding.faults.as_slice() else {
        panic!("{:?}", finding.faults)
    };
    assert!(field.is_empty() && message.contains("exports nothing"), "{message}");
    for (field, code) in [
        ("spec.config.table", FaultCode::Config),
        ("spec.configuration", FaultCode::Manifest),
        ("spec.tick", FaultCode::Tick),
        ("spec.shadow.module.oci", FaultCode::Component),
        ("", FaultCode::Manifest),
    ] {
        assert_eq!(FaultCode::of(field), code, "{field}");
    }
}

#[tokio::test]
async fn a_fault_of_a_plugin_alone_is_told_as_what_it_is() {
    let folder = folder(&[("p.yaml", &plugin("p", "      subscribe: []\n      colour: red\n"))]);
    let found = findings(&folder.path().join("p.yaml")).await;
    assert!(found[0].problems[0].contains("unknown field `colour`"), "{:?}", found[0].problems);
}

#[tokio::test]
async fn a_plugin_is_checked_against_the_host_beside_it() {
    let folder = folder(&[("host.yaml", HOST), ("p.yaml", &plugin("p", SPEC))]);
    let found = findings(&folder.path().join("p.yaml")).await;
    assert_eq!(found.len(), 1, "the host itself was not asked for");
    assert!(
        found[0].detail.contains("against the host manifest in") && found[0].detail.contains("host.yaml")
    );
    assert!(found[0].problems[0].contains("the controller has no source `pods`"), "{:?}", found[0].problems);
}

#[tokio::test]
async fn a_host_with_faults_hides_none_of_the_plugins() {
    let folder =
        folder(&[("host.yaml", &HOST.replace("kind: Job", "kind: \"\"")), ("p.yaml", &plugin("p", SPEC))]);
    let found = findings(folder.path()).await;
    assert_eq!((found.len(), found[0].ok), (2, false));
    assert!(found[1].problems[0].contains("absent.wasm"), "{:?}", found[1].problems);
    let alone = findings(&folder.path().join("p.yaml")).await;
    assert!(alone[0].detail.contains("the host document has faults"), "{}", alone[0].detail);
}

#[tokio::test]
async fn the_second_manifest_of_a_plugin_is_at_fault() {
    let spec = "      subscribe: [{source: jobs}]\n";
    let folder =
        folder(&[("host.yaml", HOST), ("a.yaml", &plugin("a", spec)), ("b.yaml", &plugin("b", spec))]);
    let found = findings(folder.path()).await;
    let twice =
        |finding: &CheckFinding| finding.problems.iter().any(|p| p.contains("metadata.name: `notify`"));
    assert_eq!(found.iter().map(twice).collect::<Vec<_>>(), [false, false, true]);
    assert!(found[2].problems[0].contains("a.yaml:5 already"), "{:?}", found[2].problems);
}

#[tokio::test]
async fn what_is_probably_not_meant_is_a_warning_at_its_line() {
    let spec = "      subscribe: [{source: jobs, resync: true}]\n";
    let folder = folder(&[("host.yaml", HOST), ("p.yaml", &plugin("p", spec))]);
    let found = findings(folder.path()).await;
    let [warning] = found[1].warnings.as_slice() else { panic!("{:?}", found[1].warnings) };
    assert!(warning.contains("p.yaml:10: spec.subscribe[0].resync: is true, but"), "{warning}");
    assert!(found[1].text().contains("    ! "), "{}", found[1].text());
}

#[tokio::test]
async fn a_ledger_of_two_plugins_is_a_warning_to_the_second() {
    let host = format!("{HOST}      ledgers: [{{name: trail, path: trail.jsonl}}]\n");
    let spec = "      subscribe: [{source: jobs}]\n      grants: {ledger: [{name: main, ledger: trail}]}\n";
    let other = plugin("b", spec).replace("name: notify", "name: other");
    let folder = folder(&[("host.yaml", &host), ("a.yaml", &plugin("a", spec)), ("b.yaml", &other)]);
    let found = findings(folder.path()).await;
    assert_eq!(found[1].warnings, [""; 0]);
    let [warning] = found[2].warnings.as_slice() else { panic!("{:?}", found[2].problems) };
    assert!(warning.contains("which `notify` writes as well"), "{warning}");
}

#[tokio::test]
async fn a_ledger_without_a_signature_beside_a_key_that_nobody_uses_is_a_warning() {
    let host = format!(
        "{HOST}      ledgers: [{{name: trail, path: trail.jsonl}}]\n      keys: [{{name: seal, valueFrom: {{env: SEAL}}}}]\n"
    );
    let spec = "      subscribe: [{source: jobs}]\n";
    let warnings_of = async |spec: &str| {
        let folder = folder(&[("host.yaml", &host), ("p.yaml", &plugin("p", spec))]);
        findings(folder.path()).await.remove(0).warnings
    };
    let [warning] = warnings_of(spec).await.try_into().unwrap();
    assert!(
        warning.contains("spec.ledgers[0].signing: is left out") && warning.contains("`seal`"),
        "{warning}"
    );
    assert_eq!(
        warnings_of(&format!("{spec}      grants: {{keys: [{{name: own, key: seal}}]}}\n")).await,
        [""; 0]
    );
    // A refused plugin may still use it.
    assert_eq!(warnings_of("      subscribe: [{source: other}]\n").await, [""; 0]);
}

#[test]
fn a_finding_cannot_forge_another() {
    let hostile = CheckFinding::new("plugin p".into(), "d\x1b[1A".into(), vec!["no\n✓ plugin q".into()]);
    assert!(hostile.text().ends_with("plugin p (d·[1A)\n    no·✓ plugin q\n"), "{}", hostile.text());
}
