//! `kubewitness plugin run`: what a plugin does with the objects of a file.

use std::path::Path;

use anyhow::{Context, Result};
use kubewitness_core::files;

use super::subject::{self, Subject};
use super::trial::{self, Handed, Reply, StandIns, Trial};
use crate::cli::{RunPluginArgs, TriedPluginArgs};
use crate::commands::print;
use crate::commands::{End, Ended, object_files};

/// A list of answers is written by hand.
const REPLIES_BYTES: u64 = 1 << 20;

pub async fn run(args: RunPluginArgs) -> Ended {
    let seen = object_files::read(&args.file).with_context(|| format!("reading {}", args.file.display()))?;
    let (subject, replies) = to_try(&args.tried).await?;
    let stand_ins = StandIns::of(&subject.spec, &seen)?;
    let handed =
        trial::hand_over(&subject, Trial { stand_ins, replies, redaction: None, ticks: true }).await?.handed;
    print::value(args.output, &handed, |handed| {
        let states = handed.iter().filter(|one| !one.is_tick()).count();
        let were = if states == 1 { "state was" } else { "states were" };
        let each: Vec<_> = handed.iter().map(Handed::text).collect();
        format!("{}\n{states} {were} handed over. Nothing was sent, and nothing is kept.\n", each.join("\n"))
    })?;
    Ok(if handed.iter().all(Handed::is_done) { End::Fine } else { End::Failed })
}

/// The plugin of a command line, and what its requests are answered.
pub async fn to_try(args: &TriedPluginArgs) -> Result<(Subject, Vec<Reply>)> {
    let replies = args.answers.as_deref().map(replies).transpose()?.unwrap_or_default();
    Ok((subject::load(&args.plugin, args.config.as_deref()).await?, replies))
}

pub fn replies(path: &Path) -> Result<Vec<Reply>> {
    let text =
        files::named(path).and_then(|file| files::read_from(file, REPLIES_BYTES)).and_then(files::into_text);
    let text = text.with_context(|| format!("reading {}", path.display()))?;
    serde_saphyr::from_str(&text).with_context(|| {
        format!(
            "{} is a list of answers, such as `[{{status: 503}}, {{status: 200, body: ok}}]`",
            path.display()
        )
    })
}
