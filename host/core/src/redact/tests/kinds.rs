//! Tests of the kinds with built-in status rules: where people write secrets in them.

use super::*;

/// Expects that texts beginning with `hush` are hidden, and that nothing else changes.
fn expect_hidden(document: &Value) {
    let shown = by_default(&document.to_string());
    assert!(!shown.contains("hush"), "{shown}");
    let plain = document.to_string();
    for word in plain.split(|c: char| !c.is_alphanumeric()).filter(|word| word.starts_with("plain")) {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    serde_json::from_str::<Value>(&shown).unwrap();
}

#[test]
fn a_spark_application_loses_secrets_of_its_settings_arguments_and_variables() {
    expect_hidden(&json!({"kind": "SparkApplication", "spec": {
        "sparkConf": {
            "spark.hadoop.fs.s3a.secret.key": "hush1", "spark.executor.memory": "plain1",
            "spark.driver.extraJavaOptions": "-Ddb.password=hush2 -Dplain2=plain3",
        },
        "hadoopConf": {"fs.azure.account.secret": "hush3", "fs.defaultFS": "plain4"},
        "arguments": ["--api-token", "hush4", "--epochs=plain5"],
        "driver": {"envVars": {"DB_PASSWORD": "hush5", "MODE": "plain6"}, "javaOptions": "-Dauth.token=hush6"},
    }}));
}

#[test]
fn ray_loses_secrets_of_its_start_parameters_entrypoints_and_environments() {
    expect_hidden(&json!({"kind": "RayCluster", "spec": {"headGroupSpec": {
        "rayStartParams": {"redis-password": "hush1", "num-cpus": "plain1"},
        "template": {"spec": {"containers": [{"env": [
            {"name": "KUBERAY_GEN_RAY_START_CMD", "value": "ray start --head --redis-password=hush2 --port=plain2"},
        ]}]}},
    }}}));
    expect_hidden(&json!({"kind": "RayJob", "spec": {
        "entrypoint": "HF_TOKEN=hush1 python train.py --epochs plain1",
        "runtimeEnvYAML": "env_vars:\n  WANDB_API_KEY: hush2\n  MODE: plain2\npip: [plain3]\n",
    }}));
}

#[test]
fn a_workflow_loses_secrets_of_its_parameters_scripts_and_templates() {
    let template = json!({"name": "plain1", "container": {"args": ["--password=hush1"], "env": [
        {"name": "TOKEN", "value": "hush2"},
        {"name": "API_KEY", "valueFrom": {"secretKeyRef": {"name": "plain2", "key": "plain3"}}},
    ]}});
    expect_hidden(&json!({"kind": "Workflow", "spec": {
        "entrypoint": "plain4",
        "arguments": {"parameters": [
            {"name": "db-password", "value": "hush3"}, {"name": "command", "value": "run --token hush4"},
            {"name": "epochs", "value": "plain5"},
        ]},
        "templates": [{"script": {"image": "plain6", "source": "export TOKEN=hush5\npython plain7.py\n"}}],
    }}));
    expect_hidden(&json!({"kind": "Pod", "spec": {"containers": [{"env": [
        {"name": "ARGO_TEMPLATE", "value": template.to_string()}, {"name": "ARGO_NODE_ID", "value": "plain8"},
    ]}]}}));
}

#[test]
fn values_of_variables_are_read_as_command_lines_and_as_json() {
    expect_hidden(&json!({"kind": "Pod", "spec": {"containers": [{"env": [
        {"name": "JAVA_OPTS", "value": "-Ddb.password=hush1 -Xmx=plain1"},
        {"value": "{\"password\":\"hush2\",\"mode\":\"plain2\"}", "name": "CONFIG"},
        {"name": "ARGS", "value": "--mode plain3 --token hush3"},
        {"name": "URL", "value": "http://plain4:8080/a b"},
        {"name": "PATH", "value": "/plain5/bin"},
    ]}]}}));
    // A file in a ConfigMap is not a variable.
    let map = r#"{"kind":"ConfigMap","data":{"run.sh":"TOKEN=abc run"}}"#;
    assert_eq!(by_default(map), map);
}
