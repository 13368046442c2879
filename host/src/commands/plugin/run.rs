//! `kubewitness plugin run`: what a plugin does with the objects of a file.

use std::path::Path;

use anyhow::{Context, Result};
use kubewitness_core::files;

use super::subject;
use super::trial::{self, Handed, Reply};
use crate::cli::RunPluginArgs;
use crate::commands::print;
use crate::commands::{End, Ended, object_files};

/// A list of answers is written by hand.
const REPLIES_BYTES: u64 = 1 << 20;

pub async fn run(args: RunPluginArgs) -> Ended {
    let seen = object_files::read(&args.file).with_context(|| format!("reading {}", args.file.display()))?;
    let replies = args.answers.as_deref().map(replies).transpose()?.unwrap_or_default();
    let subject = subject::load(&args.plugin, args.config.as_deref()).await?;
    let handed = trial::hand_over(&subject, &seen, replies).await?;
    print::value(args.output, &handed, |handed| {
        let states = handed.len();
        let were = if states == 1 { "state was" } else { "states were" };
        let each: Vec<_> = handed.iter().map(Handed::text).collect();
        format!("{}\n{states} {were} handed over. Nothing was sent, and nothing is kept.\n", each.join("\n"))
    })?;
    Ok(if handed.iter().all(Handed::is_done) { End::Fine } else { End::Failed })
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
