//! The simulated API server answers as a real one did. Every recording in `tests/transcripts` is
//! replayed in order; status codes, content types, reasons, messages, frames and shapes are
//! compared, and uids, times, versions and continue tokens by how they relate to each other.
//! What deliberately differs stands in [`differs`], with its reason.

mod differs;
mod relation;
mod replay;
mod script;
mod transcript;

use anyhow::{Context, Result};
use kubewitness_harness::{Scratch, Simulator, SimulatorOptions};
use relation::AnswerDifference;
use transcript::Transcript;

/// Replays one recording against a fresh server and gives what differs, in words.
async fn replay(name: &str) -> Result<Vec<AnswerDifference>> {
    let transcript = Transcript::load(name)?;
    let scratch = Scratch::new("conformance")?;
    let options = SimulatorOptions { enforce_rbac: true, ..SimulatorOptions::default() };
    let simulator = Simulator::start(scratch.path(), &options).await?;
    let differences = replay::replay(&simulator, &transcript).await;
    differences.with_context(|| format!("replaying {name}"))
}

async fn conforms(name: &str) {
    let differences = replay(name).await.expect("the recording can be replayed");
    let faults = differs::judge(name, &differences);
    assert!(faults.is_empty(), "{name}: {} faults\n{}", faults.len(), faults.join("\n"));
}

macro_rules! transcripts {
    ($($test:ident: $name:literal),* $(,)?) => {
        $(#[tokio::test]
        async fn $test() {
            conforms($name).await;
        })*

        #[test]
        fn every_recording_is_replayed() {
            let replayed = [$($name),*];
            for name in transcript::names().expect("the folder of recordings") {
                assert!(replayed.contains(&name.as_str()), "{name} is not replayed");
            }
            differs::check(&replayed);
        }
    };
}

transcripts! {
    auth: "auth",
    crud: "crud",
    discovery: "discovery",
    job_lifecycle: "job-lifecycle",
    lease: "lease",
    list_expired: "list-expired",
    list_pages: "list-pages",
    walk_back: "walk-back",
    watch: "watch",
    watch_gone: "watch-gone",
}
