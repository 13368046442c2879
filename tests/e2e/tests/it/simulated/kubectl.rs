//! The real kubectl works against the simulated API server.

use std::time::Duration;

use anyhow::Result;
use kubewitness_harness::{Kubectl, Scratch, Simulator, SimulatorOptions, skip};
use serde_json::Value;

const WITHIN: Duration = Duration::from_secs(30);

struct KubectlLab {
    kubectl: Kubectl,
    simulator: Simulator,
    _scratch: Scratch,
}

/// `None` where there is no kubectl; the test is then counted as skipped.
async fn lab(test: &str) -> Option<KubectlLab> {
    let scratch = Scratch::new("kubectl").expect("a folder");
    let simulator =
        Simulator::start(scratch.path(), &SimulatorOptions::default()).await.expect("the simulator starts");
    match Kubectl::find(simulator.kubeconfig(), scratch.path()) {
        Some(kubectl) => Some(KubectlLab { kubectl, simulator, _scratch: scratch }),
        None => {
            skip(&format!("kubectl::{test}"), "kubectl is not on the PATH");
            None
        }
    }
}

/// `kubectl_test! { async fn name(lab) { … } }`, where the body may use `?`.
macro_rules! kubectl_test {
    ($(#[$meta:meta])* async fn $name:ident($lab:ident) $body:block) => {
        #[tokio::test]
        async fn $name() {
            let Some($lab) = lab(stringify!($name)).await else { return };
            let run = async || -> Result<()> { $body Ok(()) };
            if let Err(error) = run().await {
                panic!("{error:#}");
            }
        }
    };
}

const JOB: &str = r#"
apiVersion: batch/v1
kind: Job
metadata: {name: train, labels: {team: vision}}
spec:
  template:
    spec:
      restartPolicy: Never
      containers: [{name: trainer, image: "registry.example.com/train:1", args: [--epochs=3]}]
"#;

const DEPLOYMENT: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: portal}
spec:
  replicas: 2
  selector: {matchLabels: {app: portal}}
  template:
    metadata: {labels: {app: portal}}
    spec:
      containers:
        - {name: web, image: "web:1", env: [{name: A, value: "1"}, {name: B, value: "2"}]}
        - {name: side, image: "side:1"}
"#;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Words of the first line, and of the others.
fn table(text: &str) -> (Vec<&str>, Vec<Vec<&str>>) {
    let mut lines = text.lines().map(|line| line.split_whitespace().collect());
    (lines.next().unwrap_or_default(), lines.collect())
}

kubectl_test! {
    async fn get_prints_tables_json_yaml_and_wide(lab) {
        let created = lab.kubectl.ok_with(&["create", "-f", "-"], JOB).await?;
        assert_eq!(created.trim(), "job.batch/train created");
        let text = lab.kubectl.ok(&["get", "jobs"]).await?;
        let (header, rows) = table(&text);
        assert_eq!(header, ["NAME", "STATUS", "COMPLETIONS", "DURATION", "AGE"]);
        assert_eq!((rows.len(), &rows[0][..3]), (1, &["train", "Running", "0/1"][..]));
        let text = lab.kubectl.ok(&["get", "jobs", "-o", "wide"]).await?;
        assert!(text.contains("IMAGES") && text.contains("registry.example.com/train:1"), "{text}");
        let job = json(&lab.kubectl.ok(&["get", "job", "train", "-o", "json"]).await?);
        assert_eq!((&job["kind"], &job["spec"]["template"]["spec"]["containers"][0]["args"][0]), (&"Job".into(), &"--epochs=3".into()));
        let list = json(&lab.kubectl.ok(&["get", "jobs", "-A", "-l", "team=vision", "-o", "json"]).await?);
        assert_eq!(list["items"].as_array().map(Vec::len), Some(1));
        let yaml = lab.kubectl.ok(&["get", "job/train", "-o", "yaml"]).await?;
        assert!(yaml.contains("kind: Job") && yaml.contains("name: train"), "{yaml}");
        assert_eq!(lab.kubectl.ok(&["get", "jobs", "-o", "name"]).await?.trim(), "job.batch/train");
        let none = lab.kubectl.run(&["get", "jobs", "-l", "team=none"], "").await?;
        assert!(none.stderr.contains("No resources found in default namespace."), "{none:?}");
    }
}

kubectl_test! {
    async fn get_of_what_is_not_there_says_so(lab) {
        let said = lab.kubectl.fails(&["get", "job", "nope"], "").await?;
        assert_eq!(said.trim(), "Error from server (NotFound): jobs.batch \"nope\" not found");
        let said = lab.kubectl.fails(&["get", "nopes"], "").await?;
        assert!(said.contains("the server doesn't have a resource type \"nopes\""), "{said}");
    }
}

kubectl_test! {
    async fn get_w_shows_changes_as_they_come(lab) {
        let mut watch = lab.kubectl.start("watch", &["get", "configmaps", "-l", "w=1", "-w", "--output-watch-events"])?;
        let mut from = 0;
        // Something first, so that the stream is known to be open.
        let create = |name: &str| format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, labels: {{w: '1'}}}}\n");
        for (step, expected) in [("create", "ADDED"), ("change", "MODIFIED"), ("delete", "DELETED")] {
            match step {
                "create" => drop(lab.kubectl.ok_with(&["create", "-f", "-"], &create("one")).await?),
                "change" => drop(lab.kubectl.ok(&["patch", "cm", "one", "--type=merge", "-p", r#"{"data":{"k":"v"}}"#]).await?),
                _ => drop(lab.kubectl.ok(&["delete", "cm", "one"]).await?),
            }
            let seen = |line: &str| (line.starts_with(expected) && line.contains("one")).then_some(());
            watch.line(from, WITHIN, seen).await?;
            from = watch.stdout().len() as u64;
        }
        watch.kill().await?;
    }
}

kubectl_test! {
    async fn client_side_apply_creates_changes_merges_by_key_and_knows_when_nothing_changed(lab) {
        let apply = async |text: &str| lab.kubectl.ok_with(&["apply", "-f", "-"], text).await;
        assert_eq!(apply(DEPLOYMENT).await?.trim(), "deployment.apps/portal created");
        assert_eq!(apply(DEPLOYMENT).await?.trim(), "deployment.apps/portal unchanged");
        let changed = DEPLOYMENT.replace("web:1", "web:2").replace(r#"{name: A, value: "1"}, "#, "");
        assert_eq!(apply(&changed).await?.trim(), "deployment.apps/portal configured");
        let now = json(&lab.kubectl.ok(&["get", "deploy", "portal", "-o", "json"]).await?);
        let containers = &now["spec"]["template"]["spec"]["containers"];
        assert_eq!((&containers[0]["name"], &containers[0]["image"]), (&"web".into(), &"web:2".into()));
        assert_eq!(containers[0]["env"], serde_json::json!([{"name": "B", "value": "2"}]));
        assert_eq!(containers[1]["image"], "side:1", "the other container stays");
        assert_eq!(now["metadata"]["generation"], 2);
        let differs = lab.kubectl.run(&["diff", "-f", "-"], &changed.replace("replicas: 2", "replicas: 3")).await?;
        assert_eq!(differs.code, Some(1), "{differs:?}");
        assert!(differs.stdout.contains("+  replicas: 3"), "{differs:?}");
    }
}

kubectl_test! {
    async fn server_side_apply_creates_and_changes(lab) {
        let apply = async |text: &str| lab.kubectl.ok_with(&["apply", "--server-side", "-f", "-"], text).await;
        assert_eq!(apply(DEPLOYMENT).await?.trim(), "deployment.apps/portal serverside-applied");
        apply(&DEPLOYMENT.replace("replicas: 2", "replicas: 5")).await?;
        let now = json(&lab.kubectl.ok(&["get", "deploy", "portal", "-o", "json"]).await?);
        assert_eq!((&now["spec"]["replicas"], now["spec"]["template"]["spec"]["containers"].as_array().map(Vec::len)), (&5.into(), Some(2)));
    }
}

kubectl_test! {
    async fn patches_of_all_three_types_change_what_they_say(lab) {
        lab.kubectl.ok_with(&["create", "-f", "-"], DEPLOYMENT).await?;
        let patch = async |kind: &str, body: &str| {
            lab.kubectl.ok(&["patch", "deploy", "portal", &format!("--type={kind}"), "-p", body]).await
        };
        let strategic = r#"{"spec":{"template":{"spec":{"containers":[{"name":"side","image":"side:2"}]}}}}"#;
        assert_eq!(patch("strategic", strategic).await?.trim(), "deployment.apps/portal patched");
        patch("merge", r#"{"spec":{"replicas":7}}"#).await?;
        patch("json", r#"[{"op":"replace","path":"/spec/template/spec/containers/0/image","value":"web:9"}]"#).await?;
        let unchanged = patch("merge", r#"{"spec":{"replicas":7}}"#).await?;
        assert_eq!(unchanged.trim(), "deployment.apps/portal patched (no change)");
        let now = json(&lab.kubectl.ok(&["get", "deploy", "portal", "-o", "json"]).await?);
        let images: Vec<_> = now["spec"]["template"]["spec"]["containers"].as_array().into_iter().flatten().map(|c| &c["image"]).collect();
        assert_eq!((images, &now["spec"]["replicas"]), (vec![&"web:9".into(), &"side:2".into()], &7.into()));
        let said = lab.kubectl.fails(&["patch", "deploy", "portal", "--type=json", "-p", r#"[{"op":"test","path":"/spec/replicas","value":1}]"#], "").await?;
        assert!(said.to_lowercase().contains("test"), "{said}");
    }
}

kubectl_test! {
    async fn labels_annotations_and_scale_change_the_object(lab) {
        lab.kubectl.ok_with(&["create", "-f", "-"], JOB).await?;
        assert_eq!(lab.kubectl.ok(&["label", "job", "train", "tier=gold"]).await?.trim(), "job.batch/train labeled");
        lab.kubectl.ok(&["annotate", "job", "train", "note=hello"]).await?;
        lab.kubectl.ok(&["label", "job", "train", "tier-"]).await?;
        let now = json(&lab.kubectl.ok(&["get", "job", "train", "-o", "json"]).await?);
        assert_eq!(now["metadata"]["annotations"]["note"], "hello");
        assert!(now["metadata"]["labels"]["tier"].is_null(), "{now}");
        let said = lab.kubectl.fails(&["label", "job", "train", "team=speech"], "").await?;
        assert!(said.contains("already has a value (vision)"), "{said}");
    }
}

kubectl_test! {
    async fn delete_waits_and_a_finalizer_holds(lab) {
        lab.kubectl.ok_with(&["create", "-f", "-"], JOB).await?;
        assert_eq!(lab.kubectl.ok(&["delete", "job", "train"]).await?.trim(), "job.batch \"train\" deleted");
        let held = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: held, finalizers: [example.com/hold]}\n";
        lab.kubectl.ok_with(&["create", "-f", "-"], held).await?;
        lab.kubectl.ok(&["delete", "cm", "held", "--wait=false"]).await?;
        let now = json(&lab.kubectl.ok(&["get", "cm", "held", "-o", "json"]).await?);
        assert!(now["metadata"]["deletionTimestamp"].is_string(), "{now}");
        lab.kubectl.ok(&["patch", "cm", "held", "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#]).await?;
        lab.kubectl.fails(&["get", "cm", "held"], "").await?;
        lab.kubectl.ok_with(&["create", "-f", "-"], JOB).await?;
        lab.kubectl.ok(&["delete", "jobs", "--all"]).await?;
        assert_eq!(lab.kubectl.ok(&["get", "jobs", "-o", "name"]).await?, "");
    }
}

kubectl_test! {
    async fn wait_ends_on_a_condition_a_field_and_a_deletion(lab) {
        lab.kubectl.ok_with(&["create", "-f", "-"], JOB).await?;
        // It has to find the job before its time is up.
        let late = lab.kubectl.fails(&["wait", "job/train", "--for=condition=complete", "--timeout=3s"], "").await?;
        assert!(late.contains("timed out waiting for the condition"), "{late}");
        let args = ["wait", "job/train", "--for=condition=complete", "--timeout=30s"];
        let waiting = lab.kubectl.ok(&args);
        let status = r#"{"status":{"succeeded":1,"startTime":"2026-01-01T00:00:00Z","completionTime":"2026-01-01T00:01:00Z","conditions":[
            {"type":"SuccessCriteriaMet","status":"True","lastTransitionTime":"2026-01-01T00:01:00Z"},
            {"type":"Complete","status":"True","lastTransitionTime":"2026-01-01T00:01:00Z"}]}}"#;
        let patch = ["patch", "job", "train", "--subresource=status", "--type=merge", "-p", status];
        let completing = lab.kubectl.ok(&patch);
        let (waited, completed) = tokio::join!(waiting, completing);
        completed?;
        assert_eq!(waited?.trim(), "job.batch/train condition met");
        let text = lab.kubectl.ok(&["get", "jobs"]).await?;
        let (_, rows) = table(&text);
        assert_eq!(rows[0][..4], ["train", "Complete", "1/1", "60s"]);
        lab.kubectl.ok(&["wait", "job/train", "--for=jsonpath={.status.succeeded}=1", "--timeout=30s"]).await?;
        let args = ["wait", "job/train", "--for=delete", "--timeout=30s"];
        let (waited, deleted) = tokio::join!(lab.kubectl.ok(&args), lab.kubectl.ok(&["delete", "job", "train"]));
        deleted?;
        waited?;
    }
}

kubectl_test! {
    async fn describe_shows_the_object_and_its_events(lab) {
        lab.kubectl.ok_with(&["create", "-f", "-"], JOB).await?;
        let uid = lab.kubectl.ok(&["get", "job", "train", "-o", "jsonpath={.metadata.uid}"]).await?;
        let event = format!(
            r#"{{"apiVersion":"v1","kind":"Event","metadata":{{"name":"train.1","namespace":"default"}},
            "involvedObject":{{"apiVersion":"batch/v1","kind":"Job","name":"train","namespace":"default","uid":"{uid}"}},
            "reason":"SuccessfulCreate","message":"Created pod: train-abcde","type":"Normal","count":1,
            "firstTimestamp":"2026-01-01T00:00:00Z","lastTimestamp":"2026-01-01T00:00:00Z","source":{{"component":"job-controller"}}}}"#
        );
        lab.kubectl.ok_with(&["create", "-f", "-"], &event).await?;
        let text = lab.kubectl.ok(&["describe", "job", "train"]).await?;
        for part in ["Name:", "train", "team=vision", "registry.example.com/train:1", "Created pod: train-abcde"] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
        let events = lab.kubectl.ok(&["get", "events", "--field-selector", "involvedObject.name=train"]).await?;
        assert!(events.contains("SuccessfulCreate"), "{events}");
    }
}

kubectl_test! {
    async fn discovery_names_every_kind_that_is_used(lab) {
        let text = lab.kubectl.ok(&["api-resources"]).await?;
        for kind in ["Namespace", "Pod", "ConfigMap", "Secret", "Event", "Job", "Deployment", "Service", "ServiceAccount",
            "PersistentVolumeClaim", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "Lease", "CustomResourceDefinition"]
        {
            assert!(text.lines().any(|line| line.split_whitespace().last() == Some(kind)), "{kind} is missing in {text}");
        }
        let versions = lab.kubectl.ok(&["api-versions"]).await?;
        assert!(versions.lines().any(|line| line == "batch/v1"), "{versions}");
        let version = json(&lab.kubectl.ok(&["version", "-o", "json"]).await?);
        assert!(version["serverVersion"]["gitVersion"].is_string(), "{version}");
    }
}

const DEFINITION: &str = r#"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: trainjobs.trainer.example.com}
spec:
  group: trainer.example.com
  scope: Namespaced
  names: {plural: trainjobs, singular: trainjob, kind: TrainJob, shortNames: [tj]}
  versions:
    - name: v1
      served: true
      storage: true
      subresources: {status: {}}
      additionalPrinterColumns: [{name: Model, type: string, jsonPath: .spec.model}]
      schema:
        openAPIV3Schema:
          type: object
          properties:
            spec: {type: object, x-kubernetes-preserve-unknown-fields: true}
            status: {type: object, x-kubernetes-preserve-unknown-fields: true}
"#;

kubectl_test! {
    async fn a_definition_makes_custom_resources_until_it_is_deleted(lab) {
        lab.kubectl.ok_with(&["apply", "-f", "-"], DEFINITION).await?;
        lab.kubectl.ok(&["wait", "crd/trainjobs.trainer.example.com", "--for=condition=established", "--timeout=30s"]).await?;
        let resource = "apiVersion: trainer.example.com/v1\nkind: TrainJob\nmetadata: {name: llama}\nspec: {model: llama, nodes: 4}\n";
        assert_eq!(lab.kubectl.ok_with(&["apply", "-f", "-"], resource).await?.trim(), "trainjob.trainer.example.com/llama created");
        let configured = lab.kubectl.ok_with(&["apply", "-f", "-"], &resource.replace("nodes: 4", "nodes: 8")).await?;
        assert_eq!(configured.trim(), "trainjob.trainer.example.com/llama configured");
        lab.kubectl.ok(&["patch", "tj", "llama", "--subresource=status", "--type=merge", "-p", r#"{"status":{"phase":"Running"}}"#]).await?;
        let text = lab.kubectl.ok(&["get", "tj"]).await?;
        let (header, rows) = table(&text);
        assert_eq!(header[..2], ["NAME", "MODEL"]);
        assert_eq!(rows[0][..2], ["llama", "llama"]);
        let now = json(&lab.kubectl.ok(&["get", "trainjob", "llama", "-o", "json"]).await?);
        assert_eq!((&now["spec"]["nodes"], &now["status"]["phase"]), (&8.into(), &"Running".into()));
        lab.kubectl.ok(&["delete", "crd", "trainjobs.trainer.example.com"]).await?;
        lab.kubectl.fails(&["get", "tj"], "").await?;
    }
}

kubectl_test! {
    async fn a_stale_replace_and_a_second_create_are_conflicts(lab) {
        lab.kubectl.ok_with(&["create", "-f", "-"], JOB).await?;
        let said = lab.kubectl.fails(&["create", "-f", "-"], JOB).await?;
        assert!(said.contains("(AlreadyExists)") && said.contains("jobs.batch \"train\" already exists"), "{said}");
        let stale = lab.kubectl.ok(&["get", "job", "train", "-o", "json"]).await?;
        lab.kubectl.ok(&["label", "job", "train", "x=y"]).await?;
        let said = lab.kubectl.fails(&["replace", "-f", "-"], &stale).await?;
        assert!(said.contains("(Conflict)") && said.contains("the object has been modified"), "{said}");
    }
}

kubectl_test! {
    async fn what_is_invalid_is_refused_with_its_field(lab) {
        let said = lab.kubectl.fails(&["create", "-f", "-"], &JOB.replace("name: train,", "name: Not_Valid,")).await?;
        assert!(said.contains("metadata.name: Invalid value"), "{said}");
        let said = lab.kubectl.fails(&["create", "-n", "nowhere", "-f", "-"], JOB).await?;
        assert!(said.contains("namespaces \"nowhere\" not found"), "{said}");
    }
}

kubectl_test! {
    async fn namespaces_come_and_go_with_what_is_in_them(lab) {
        let namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: short}\n";
        lab.kubectl.ok_with(&["create", "-f", "-"], namespace).await?;
        lab.kubectl.ok_with(&["create", "-n", "short", "-f", "-"], JOB).await?;
        lab.kubectl.ok(&["delete", "namespace", "short"]).await?;
        lab.kubectl.fails(&["get", "namespace", "short"], "").await?;
        assert_eq!(lab.kubectl.ok(&["get", "jobs", "-A", "-o", "name"]).await?, "");
    }
}

kubectl_test! {
    async fn rights_are_reviewed_for_whoever_asks(lab) {
        let review = r#"{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview",
            "spec":{"resourceAttributes":{"namespace":"default","verb":"list","group":"batch","resource":"jobs"}}}"#;
        let answer = json(&lab.kubectl.ok_with(&["create", "--validate=false", "-f", "-", "-o", "json"], review).await?);
        assert_eq!(answer["status"]["allowed"], true, "{answer}");
        assert_eq!(lab.kubectl.ok(&["auth", "can-i", "list", "jobs"]).await?.trim(), "yes");
    }
}

kubectl_test! {
    async fn commands_that_speak_protobuf_alone_create_what_they_say(lab) {
        let image = "--image=registry.example.com/train:1";
        for (args, created) in [
            (&["create", "namespace", "team"][..], "namespace/team created"),
            (&["create", "job", "train", image, "-n", "team", "--", "train", "--epochs=3"], "job.batch/train created"),
            (&["create", "cronjob", "nightly", image, "--schedule=0 1 * * *"], "cronjob.batch/nightly created"),
            (&["create", "job", "now", "--from=cronjob/nightly"], "job.batch/now created"),
            (&["create", "deployment", "web", image, "--replicas=2"], "deployment.apps/web created"),
            (&["create", "configmap", "settings", "--from-literal=a=b"], "configmap/settings created"),
            (&["create", "secret", "generic", "hidden", "--from-literal=a=b"], "secret/hidden created"),
            (&["create", "serviceaccount", "bot"], "serviceaccount/bot created"),
            (&["create", "role", "reader", "--verb=get,list", "--resource=jobs"], "reader created"),
            (&["create", "rolebinding", "reader", "--role=reader", "--serviceaccount=default:bot"], "reader created"),
        ] {
            let said = lab.kubectl.ok(args).await?;
            assert!(said.contains(created), "{args:?}: {said}");
        }
        let job = json(&lab.kubectl.ok(&["get", "job", "train", "-n", "team", "-o", "json"]).await?);
        let container = &job["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container["command"], serde_json::json!(["train", "--epochs=3"]), "{job}");
        assert_eq!(container["image"], "registry.example.com/train:1");
        let secret = json(&lab.kubectl.ok(&["get", "secret", "hidden", "-o", "json"]).await?);
        assert_eq!(secret["data"]["a"], "Yg==", "{secret}");
        assert!(!lab.kubectl.ok(&["create", "token", "bot"]).await?.trim().is_empty());
    }
}

kubectl_test! {
    async fn the_server_is_the_one_that_the_kubeconfig_names(lab) {
        let text = lab.kubectl.ok(&["cluster-info"]).await?;
        assert!(text.contains(lab.simulator.url()), "{text}");
        lab.kubectl.ok(&["get", "--raw", "/readyz"]).await?;
    }
}
