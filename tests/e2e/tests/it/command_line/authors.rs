//! The author of a plugin makes one in Rust, builds it, tries it, and drops it into a running controller. The test of the
//! guide, in `docs/guide.rs`, makes and builds one in each language.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_harness::{
    Kubewitness, RunOptions, Scratch, Simulator, command, compiled, in_scratch, kubewitness_binary,
    services_folder, skip,
};
use reqwest::Method;
use serde_json::json;
use tokio::process::Command;

use crate::support::{create_job, example_copy, simulator};

const WITHIN: Duration = Duration::from_secs(120);
/// A first build compiles the crates of the SDK on a machine that does other things, too.
const BUILD_WITHIN: Duration = Duration::from_secs(900);

pub struct Author {
    pub folder: PathBuf,
    /// Where cargo keeps what it has built.
    target: PathBuf,
}

/// The crates that every plugin is built from are compiled once for all authors.
pub fn target_of_authors() -> Result<PathBuf> {
    Ok(services_folder()?.join("authors"))
}

impl Author {
    fn new(scratch: &Scratch) -> Result<Self> {
        Self::of(scratch, "shout")
    }

    /// The author of the plugin in this folder of a scratch.
    pub fn of(scratch: &Scratch, name: &str) -> Result<Self> {
        Ok(Self { folder: scratch.path().join(name), target: target_of_authors()? })
    }

    /// The exit code, and everything that was printed.
    async fn runs(&self, folder: &Path, line: &[&str]) -> Result<(Option<i32>, String)> {
        let mut command = Command::new(kubewitness_binary()?);
        command
            .arg("plugin")
            .args(line)
            .current_dir(folder)
            .env("CARGO_TARGET_DIR", &self.target)
            .kill_on_drop(true);
        let ran = tokio::time::timeout(BUILD_WITHIN, command.output()).await;
        let ran = ran.with_context(|| format!("`kubewitness plugin {}` does not end", line.join(" ")))??;
        let text = [ran.stdout, ran.stderr].concat();
        Ok((ran.status.code(), String::from_utf8_lossy(&text).into_owned()))
    }

    pub async fn ok(&self, line: &[&str]) -> Result<String> {
        let (code, text) = self.runs(&self.folder, line).await?;
        ensure!(code == Some(0), "`plugin {}` ended with {code:?}: {text}", line.join(" "));
        Ok(text)
    }

    async fn makes(&self, scratch: &Scratch, lang: &str) -> Result<()> {
        let (code, text) = self.runs(scratch.path(), &["new", "shout", "--lang", lang]).await?;
        ensure!(code == Some(0) && text.contains("cd shout"), "{code:?}: {text}");
        compiled::seed_author(&self.folder)
    }

    /// Does what the README of its folder says.
    pub async fn builds_and_tests(&self) -> Result<()> {
        let built = self.ok(&["build"]).await?;
        ensure!(built.contains("✓") && built.contains(".wasm ("), "{built}");
        let tested = self.ok(&["test"]).await?;
        ensure!(tested.ends_with("1 of 1 tests passed\n"), "{tested}");
        compiled::harvest_author(&self.folder)
    }
}

impl Author {
    /// The states of a controller that goes on meanwhile, to one version and to two.
    async fn replays(&self, data: &Path) -> Result<()> {
        let data = data.to_string_lossy();
        let all = ["replay", "--data", &*data];
        let told = self.ok(&all).await?;
        ensure!(told.contains("states handed over: ") && told.contains("not done: 0"), "{told}");
        let to = ["--to", "2020-01-01"];
        let against = ["--against", "shout.wasm", "--config", r#"{"phase": "Pending"}"#];
        for (more, part) in [(&[][..], "states handed over: 0"), (&against, "✗ states: 0, same: 0")] {
            let (code, told) = self.runs(&self.folder, &[&all[..], &to, more].concat()).await?;
            ensure!(
                code == Some(4) && told.contains(part) && told.contains("no state was"),
                "{code:?}: {told}"
            );
        }
        for words in [&["--kind", "Jbo"], &["--source", "jbos"]] {
            let word = words[1];
            let (code, told) = self.runs(&self.folder, &[&all[..], words].concat()).await?;
            ensure!(
                code == Some(1) && told.contains(&format!("`{word}`. Its sources are ")),
                "{code:?}: {told}"
            );
            let (code, _, told) =
                command(&[&["journal", "export", "--data", &data][..], words].concat()).await?;
            ensure!(
                code == Some(1) && told.contains(&format!("`{word}`. Its sources are ")),
                "{code:?}: {told}"
            );
        }

        std::fs::copy(self.folder.join("shout.wasm"), self.folder.join("before.wasm"))?;
        let config = ["--config", r#"{"phase": "Pending"}"#, "--against", "before.wasm"];
        let told = self.ok(&[&all[..], &config].concat()).await?;
        ensure!(told.contains("different: 0"), "{told}");
        self.changes("look", "a job needs you")?;
        self.ok(&["build"]).await?;
        let (code, told) = self.runs(&self.folder, &[&all[..], &config].concat()).await?;
        ensure!(
            code == Some(3) && told.contains("+      \"message\": \"a job needs you\""),
            "{code:?}: {told}"
        );
        ensure!(
            told.contains("--- the other version") && told.contains("this version: not done 0"),
            "{told}"
        );
        Ok(())
    }

    async fn installs(&self, simulator: &Simulator) -> Result<()> {
        let kubeconfig = simulator.kubeconfig().to_string_lossy();
        let install = ["install", "--kubeconfig", &*kubeconfig, "-n", "default"];
        let told = self.ok(&[&install[..], &["--dry-run"]].concat()).await?;
        ensure!(told.starts_with("configmap/shout created (dry run"), "{told}");
        let path = "/api/v1/namespaces/default/configmaps/shout";
        let get = || simulator.request(Method::GET, path, None);
        ensure!(get().await?.0 == 404, "a dry run writes nothing");
        for what in ["created", "unchanged"] {
            let told = self.ok(&install).await?;
            ensure!(told.starts_with(&format!("configmap/shout {what}\n")), "{what}: {told}");
        }
        let manifest = self.folder.join("plugin.yaml");
        let text = std::fs::read_to_string(&manifest)?.replace("phase: Failed", "phase: Running");
        std::fs::write(&manifest, text)?;
        let told = self.ok(&install).await?;
        ensure!(told.starts_with("configmap/shout configured\n"), "{told}");
        let (_, map) = get().await?;
        let text = map["data"]["plugin.yaml"].as_str().unwrap_or_default();
        ensure!(text.contains("phase: Running") && map["binaryData"]["shout.wasm"].is_string(), "{map}");

        simulator.request(Method::DELETE, path, None).await?;
        let foreign = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "shout"}, "data": {"a": "b"}});
        simulator.request(Method::POST, "/api/v1/namespaces/default/configmaps", Some(&foreign)).await?;
        let (code, told) = self.runs(&self.folder, &install).await?;
        ensure!(
            code == Some(1) && told.contains("it has no label `kubewitness.dev/plugin`"),
            "{code:?}: {told}"
        );
        ensure!(get().await?.1["data"] == json!({"a": "b"}), "somebody else's ConfigMap stays");
        Ok(())
    }

    /// A component with a section of a mebibyte that nobody reads.
    async fn check_pack_limit(&self) -> Result<()> {
        let file = self.folder.join("shout.wasm");
        let built = std::fs::read(&file)?;
        let section = [&[0, 0x82, 0x80, 0x40, 1, b'p'][..], &vec![0; 1 << 20]].concat();
        std::fs::write(&file, [&built[..], &section].concat())?;
        let (code, told) = self.runs(&self.folder, &["pack"]).await?;
        ensure!(code == Some(1) && told.contains("a ConfigMap holds 1 MiB"), "{code:?}: {told}");
        Ok(std::fs::write(&file, built)?)
    }

    fn changes(&self, from: &str, to: &str) -> Result<()> {
        let lib = self.folder.join("src").join("lib.rs");
        let text = std::fs::read_to_string(&lib)?.replace(from, to);
        Ok(std::fs::write(&lib, text)?)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_plugin_in_rust_is_built_tried_tested_packed_and_dropped_into_a_controller() {
    in_scratch("authors-rust", async |scratch| {
        let author = Author::new(scratch)?;
        author.makes(scratch, "rust").await?;
        author.builds_and_tests().await?;

        let told = author.ok(&["run", "-f", "tests/failed.yaml"]).await?;
        ensure!(
            told.contains("message=a job needs you") && told.contains("2 states were handed over"),
            "{told}"
        );
        let config = r#"{"phase": "Running"}"#;
        let told = author.ok(&["run", "shout.wasm", "-f", "tests/failed.yaml", "--config", config]).await?;
        ensure!(told.matches("a job needs you").count() == 1, "{told}");
        let (code, told) =
            author.runs(&author.folder, &["run", "-f", "tests/failed.yaml", "--config", "{}"]).await?;
        ensure!(code == Some(1) && told.contains("missing field `phase`"), "{code:?}: {told}");

        // Something else than what is on file.
        author.changes("a job needs you", "look")?;
        author.ok(&["build"]).await?;
        let (code, told) = author.runs(&author.folder, &["test"]).await?;
        ensure!(
            code == Some(3) && told.contains("-        \"message\": \"a job needs you\""),
            "{code:?}: {told}"
        );
        author.ok(&["test", "--update"]).await?;
        author.ok(&["test"]).await?;
        author.check_pack_limit().await?;

        let simulator = simulator(scratch).await?;
        let config = example_copy(scratch)?;
        std::fs::write(config.join("shout.yaml"), author.ok(&["pack"]).await?)?;
        let data = scratch.folder("data")?;
        let options = RunOptions {
            kubeconfig: simulator.kubeconfig().to_path_buf(),
            config: Some(config),
            data: data.clone(),
            ..RunOptions::default()
        };
        let mut kubewitness = Kubewitness::start("run", &options, scratch.path())?;
        kubewitness.answers().await?;
        create_job(&simulator, "one").await?;
        let handed = kubewitness.status_when(WITHIN, "the plugin at work", |status| {
            let shout = status.plugins.iter().find(|plugin| plugin.name == "shout");
            shout.is_some_and(|shout| shout.state == "active" && shout.delivered > 0)
        });
        handed.await?;
        author.replays(&data).await?;
        author.installs(&simulator).await?;
        kubewitness.stop().await
    })
    .await;
}

/// The virtual environment that the task runner made. Where there is none, the test is counted as skipped.
pub fn componentize_py(what: &str) -> Option<PathBuf> {
    tool("venv", "bin/componentize-py", what)
}

/// The same for JavaScript.
pub fn componentize_js(what: &str) -> Option<PathBuf> {
    tool("node_modules", ".bin/componentize-js", what)
}

fn tool(folder: &str, program: &str, what: &str) -> Option<PathBuf> {
    let folder =
        services_folder().map(|services| services.join("languages").join(folder)).unwrap_or_default();
    if folder.join(program).exists() {
        return Some(folder);
    }
    skip(what, &format!("{program} could not be installed"));
    None
}

#[tokio::test]
async fn what_is_no_plugin_or_no_test_is_named_with_what_to_do() {
    in_scratch("authors-wrong", async |scratch| {
        let author = Author::new(scratch)?;
        let refused = async |folder: &Path, line: &[&str], why: &str| {
            let (code, text) = author.runs(folder, line).await?;
            ensure!(code == Some(1) || code == Some(2), "{line:?} ended with {code:?}: {text}");
            ensure!(text.contains(why), "{line:?}: {text}");
            anyhow::Ok(())
        };
        let here = scratch.path();
        refused(here, &["build"], "`kubewitness plugin new NAME` makes a folder that has one").await?;
        refused(here, &["new", "Shout!"], "a plugin's name has lower-case letters").await?;
        author.makes(scratch, "python").await?;
        refused(here, &["new", "shout"], "exists already").await?;
        let there = &author.folder;
        refused(there, &["test"], "shout.wasm is not there: `kubewitness plugin build` builds it").await?;
        refused(here, &["new", "other", "--dir", "nowhere"], "nowhere is not a folder").await?;
        std::fs::write(there.join("shout.wasm"), "no component")?;
        refused(there, &["run", "-f", "tests/failed.yaml"], "spec.module").await?;
        refused(there, &["run", "-f", "nowhere.yaml"], "reading nowhere.yaml").await?;
        refused(there, &["run", "shout.wasm", "-f", "tests/failed.yaml", "--config", "7"], "a JSON object")
            .await?;
        std::fs::write(there.join("scalar.yaml"), "hello")?;
        refused(
            there,
            &["run", "scalar.yaml", "-f", "tests/failed.yaml"],
            "named by its folder, by its manifest",
        )
        .await?;
        refused(here, &["test"], "`kubewitness plugin new NAME` makes a folder that has one").await?;
        std::fs::remove_file(there.join("plugin.py"))?;
        refused(there, &["build"], "build the component with your language's own tool").await?;
        Ok(())
    })
    .await;
}
