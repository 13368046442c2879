//! What somebody does who writes a plugin: makes one in each language, builds it, tries it, and drops it into a running
//! controller.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_harness::{
    Kubewitness, RunOptions, Scratch, in_scratch, kubewitness_binary, services_folder,
    skip_where_there_is_no_tool,
};
use tokio::process::Command;

use crate::support::{create_job, example_copy, simulator};

const WITHIN: Duration = Duration::from_secs(120);
/// A first build compiles the crates of the SDK on a machine that does other things, too.
const BUILD_WITHIN: Duration = Duration::from_secs(900);

struct Author {
    folder: PathBuf,
    /// Where cargo keeps what it has built.
    target: PathBuf,
}

impl Author {
    fn new(scratch: &Scratch) -> Result<Self> {
        Ok(Self { folder: scratch.path().join("shout"), target: scratch.folder("target")? })
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

    async fn ok(&self, line: &[&str]) -> Result<String> {
        let (code, text) = self.runs(&self.folder, line).await?;
        ensure!(code == Some(0), "`plugin {}` ended with {code:?}: {text}", line.join(" "));
        Ok(text)
    }

    async fn makes(&self, scratch: &Scratch, lang: &str) -> Result<()> {
        let (code, text) = self.runs(scratch.path(), &["new", "shout", "--lang", lang]).await?;
        ensure!(code == Some(0) && text.contains("cd shout"), "{code:?}: {text}");
        Ok(())
    }

    /// What the README of its folder says.
    async fn builds_and_tests(&self) -> Result<()> {
        let built = self.ok(&["build"]).await?;
        ensure!(built.contains("✓") && built.contains("shout.wasm"), "{built}");
        let tested = self.ok(&["test"]).await?;
        ensure!(tested.ends_with("1 of 1 tests passed\n"), "{tested}");
        Ok(())
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
        let lib = author.folder.join("src").join("lib.rs");
        let text = std::fs::read_to_string(&lib)?.replace("a job needs you", "look");
        std::fs::write(&lib, text)?;
        author.ok(&["build"]).await?;
        let (code, told) = author.runs(&author.folder, &["test"]).await?;
        ensure!(
            code == Some(3) && told.contains("-        \"message\": \"a job needs you\""),
            "{code:?}: {told}"
        );
        author.ok(&["test", "--update"]).await?;
        author.ok(&["test"]).await?;

        let simulator = simulator(scratch).await?;
        let config = example_copy(scratch)?;
        std::fs::write(config.join("shout.yaml"), author.ok(&["pack"]).await?)?;
        let options = RunOptions {
            kubeconfig: simulator.kubeconfig().to_path_buf(),
            config: Some(config),
            data: scratch.folder("data")?,
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
        kubewitness.stop().await
    })
    .await;
}

#[tokio::test]
async fn a_new_plugin_in_python_is_built_and_tested() {
    let tool = languages().join("venv");
    if !tool.join("bin").join("componentize-py").is_file() {
        return skip_where_there_is_no_tool("a plugin in Python", "componentize-py could not be installed");
    }
    in_scratch("authors-python", async |scratch| {
        let author = Author::new(scratch)?;
        author.makes(scratch, "python").await?;
        std::os::unix::fs::symlink(tool, author.folder.join("venv"))?;
        author.builds_and_tests().await?;
        let (code, told) = author.runs(&author.folder, &["pack"]).await?;
        ensure!(code == Some(1) && told.contains("a ConfigMap holds 1 MiB"), "{code:?}: {told}");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_new_plugin_in_javascript_is_built_and_tested() {
    let tool = languages().join("node_modules");
    if !tool.join(".bin").join("componentize-js").exists() {
        return skip_where_there_is_no_tool(
            "a plugin in JavaScript",
            "componentize-js could not be installed",
        );
    }
    in_scratch("authors-javascript", async |scratch| {
        let author = Author::new(scratch)?;
        author.makes(scratch, "javascript").await?;
        std::os::unix::fs::symlink(tool, author.folder.join("node_modules"))?;
        author.builds_and_tests().await
    })
    .await;
}

/// Where the task runner installs the tools of other languages.
fn languages() -> PathBuf {
    services_folder().map(|folder| folder.join("languages")).unwrap_or_default()
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
        std::fs::remove_file(there.join("plugin.py"))?;
        refused(there, &["build"], "build the component with your language's own tool").await?;
        Ok(())
    })
    .await;
}
