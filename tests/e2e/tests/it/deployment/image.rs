//! The image of `deploy/Dockerfile`, as far as no container engine is needed: what it copies exists and is not ignored,
//! and it agrees with the build and with `deploy/kustomize`. The image itself is not built here.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use kubewitness_harness::{command, project_root};
use serde_json::Value;

const RUNNER: &str = "tests/xtask/src/main.rs";
/// Where the stage that builds has the repository.
const SOURCE: &str = "/src/";
/// Where the stage that builds puts the plugins, and the program.
const PLUGINS: &str = "target/plugins/";
const PROGRAM: &str = "target/release/kubewitness";

/// An instruction in capitals, and what stands after it.
struct Instruction {
    name: String,
    rest: String,
}

fn instructions(text: &str) -> Vec<Instruction> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let split = |line: &str| {
        let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
        Instruction { name: name.to_owned(), rest: rest.trim().to_owned() }
    };
    lines.map(split).collect()
}

struct Image(Vec<Instruction>);

impl Image {
    fn read() -> Result<Self> {
        let text = read("deploy/Dockerfile")?;
        ensure!(!text.contains("\\\n"), "an instruction over several lines is not read here");
        Ok(Self(instructions(&text)))
    }

    fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |it| it.name == name).map(|it| it.rest.as_str())
    }

    /// The last one counts.
    fn last(&self, name: &str) -> Result<&str> {
        self.all(name).last().with_context(|| format!("no {name} in deploy/Dockerfile"))
    }

    /// A list in the form that starts no shell.
    fn words(&self, name: &str) -> Result<Vec<String>> {
        serde_json::from_str(self.last(name)?).with_context(|| format!("{name} is no JSON list"))
    }

    /// Returns the paths that are copied from the stage that builds, below its root, and where each goes.
    fn taken(&self) -> Result<Vec<(String, String)>> {
        let mut taken = Vec::new();
        for copy in self.all("COPY").filter_map(|rest| rest.strip_prefix("--from=build ")) {
            if copy.starts_with("--chown=") {
                continue;
            }
            let mut words: Vec<_> = copy.split_whitespace().collect();
            let to = words.pop().context("COPY without a destination")?;
            for from in words {
                let from = from.strip_prefix(SOURCE).with_context(|| format!("{from} is not in {SOURCE}"))?;
                taken.push((from.to_owned(), to.to_owned()));
            }
        }
        Ok(taken)
    }
}

fn read(path: &str) -> Result<String> {
    std::fs::read_to_string(project_root().join(path)).with_context(|| format!("reading {path}"))
}

/// The documents of a file of `deploy/kustomize`.
fn manifests(file: &str) -> Result<Vec<Value>> {
    let text = read(&format!("deploy/kustomize/{file}"))?;
    serde_saphyr::from_multiple(&text).with_context(|| format!("reading {file}"))
}

fn pod() -> Result<Value> {
    Ok(manifests("deployment.yaml")?[0]["spec"]["template"]["spec"].clone())
}

/// Patterns of whole names, with `*` at their end alone.
fn ignored() -> Result<Vec<String>> {
    let patterns: Vec<_> = read(".dockerignore")?.lines().map(str::trim).map(str::to_owned).collect();
    let is_plain = |pattern: &String| !pattern.trim_end_matches('*').contains(['*', '!', '?', '/']);
    ensure!(patterns.iter().all(is_plain), "a pattern of .dockerignore that is not read here: {patterns:?}");
    Ok(patterns)
}

fn is_ignored(patterns: &[String], name: &str) -> bool {
    patterns.iter().any(|pattern| match pattern.strip_suffix('*') {
        Some(begin) => name.starts_with(begin),
        None => name == pattern,
    })
}

#[test]
fn nothing_that_the_build_reads_is_ignored() -> Result<()> {
    let (root, patterns) = (project_root(), ignored()?);
    let workspace = read("Cargo.toml")?;
    let members = workspace.split_once("members = [").context("no members")?.1;
    let members = members.split_once(']').context("no end of the members")?.0;
    let members = members.split('"').skip(1).step_by(2).map(|path| path.split('/').next().unwrap_or(path));
    let others = ["Cargo.toml", "Cargo.lock", ".cargo", "wit", "deploy", "docs"];
    let needed: BTreeSet<_> = members.chain(others).collect();
    for name in needed {
        ensure!(root.join(name).exists(), "{name} is missing");
        ensure!(!is_ignored(&patterns, name), "{name} is in .dockerignore");
    }
    for name in ["target", "target-2", ".git", "kubewitness-data"] {
        ensure!(is_ignored(&patterns, name), "{name} would be sent to the builder");
    }
    Ok(())
}

#[test]
fn it_is_built_by_the_command_for_production_and_takes_what_that_makes() -> Result<()> {
    let image = Image::read()?;
    let built: Vec<_> = image.all("RUN").filter(|run| run.starts_with("cargo ")).collect();
    ensure!(built == ["cargo xtask build --image"], "it is built by {built:?}");
    ensure!(read(RUNNER)?.contains("\"--image\" => built(HostBuild::Image)"), "{RUNNER} has no such command");
    let rust = image.all("FROM").next().and_then(|from| from.strip_prefix("rust:")).context("no Rust")?;
    let rust = rust.split('-').next().unwrap_or(rust);
    let asked = format!("rust-version = \"{rust}\"");
    ensure!(read("Cargo.toml")?.contains(&asked), "the workspace wants another Rust than {rust}");

    let taken = image.taken()?;
    let program = taken.iter().find(|(from, _)| from == PROGRAM).context("it takes no program")?;
    ensure!(image.words("ENTRYPOINT")? == [program.1.as_str()], "it starts something else");
    let plugins: BTreeSet<_> = taken.iter().filter_map(|(from, _)| from.strip_prefix(PLUGINS)).collect();
    let configured = read("deploy/kustomize/plugins.yaml")?;
    let named = configured.lines().filter_map(|line| line.split_once("module: {file: "));
    let named: BTreeSet<_> = named.map(|(_, rest)| rest.trim_end_matches('}')).collect();
    ensure!(plugins == named, "it has {plugins:?}, and deploy/kustomize names {named:?}");
    for (from, to) in taken.iter().filter(|(from, _)| from != PROGRAM) {
        let is_plugin = from.starts_with(PLUGINS);
        ensure!(is_plugin || project_root().join(from).exists(), "{from} is missing");
        let folder = Path::new(to).components().collect::<std::path::PathBuf>();
        ensure!(folder.starts_with("/usr/share/kubewitness"), "{from} goes to {to}");
    }
    Ok(())
}

#[tokio::test]
async fn its_user_its_folder_and_its_command_are_those_of_the_deployment() -> Result<()> {
    let (image, pod) = (Image::read()?, pod()?);
    let security = &pod["securityContext"];
    let ids = format!("{}:{}", security["runAsUser"], security["runAsGroup"]);
    ensure!(image.last("USER")? == ids, "it runs as {}, the pod as {ids}", image.last("USER")?);
    let container = &pod["containers"][0];
    ensure!(container["command"].is_null(), "the pod starts another program than the image");
    let mounts = container["volumeMounts"].as_array().context("no mounts")?;
    let data = mounts.iter().find(|mount| mount["name"] == "data").context("no folder for data")?;
    let data = data["mountPath"].as_str().unwrap_or_default();
    ensure!(image.last("VOLUME")? == data, "its volume is not {data}");
    // Docker makes a missing folder as root, and the program could not write into it.
    let owned = format!("--from=build --chown={ids} {SOURCE}target/data {data}");
    ensure!(image.all("COPY").any(|copy| copy == owned), "no instruction `COPY {owned}`");
    ensure!(image.all("RUN").any(|run| run == "mkdir /src/target/data"), "nothing makes {SOURCE}target/data");
    ensure!(image.words("CMD")? == ["run", "--data", data], "its command is {:?}", image.words("CMD")?);
    let args = container["args"].as_array().context("no arguments")?;
    ensure!(args.iter().any(|arg| arg == &format!("--data={data}")), "the pod writes elsewhere: {args:?}");

    // A program that prints its help has read all of them.
    let mut words: Vec<_> = args.iter().filter_map(Value::as_str).collect();
    words.push("--help");
    let (code, _, told) = command(&words).await?;
    ensure!(code == Some(0), "`kubewitness {}` ended with {code:?}: {told}", words.join(" "));
    let version = format!("kubewitness:{}", env!("CARGO_PKG_VERSION"));
    ensure!(container["image"] == version.as_str(), "the pod runs {}", container["image"]);
    Ok(())
}

#[test]
fn the_ports_of_the_pod_are_those_that_the_program_listens_on() -> Result<()> {
    let pod = pod()?;
    let container = &pod["containers"][0];
    let ports = container["ports"].as_array().context("no ports")?;
    let port = |name: &Value| {
        let found = ports.iter().find(|port| &port["name"] == name);
        found.and_then(|port| port["containerPort"].as_u64()).with_context(|| format!("no port {name}"))
    };
    let args: Vec<_> = container["args"].as_array().context("no arguments")?.iter().collect();
    for (flag, name) in [("--listen=", "portal"), ("--health-listen=", "health")] {
        let listens = args.iter().filter_map(|arg| arg.as_str()?.strip_prefix(flag)).next();
        let at = format!(":{}", port(&name.into())?);
        ensure!(listens.is_some_and(|address| address.ends_with(&at)), "{flag} is not at {at}: {args:?}");
    }
    for probe in ["readinessProbe", "livenessProbe"] {
        port(&container[probe]["httpGet"]["port"])?;
    }
    for service in manifests("service.yaml")? {
        for exposed in service["spec"]["ports"].as_array().context("a service without ports")? {
            let of_the_pod = port(&exposed["targetPort"])?;
            ensure!(exposed["port"] == of_the_pod, "the service has another number than the pod: {exposed}");
        }
    }
    Ok(())
}
