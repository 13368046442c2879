//! `kubewitness plugin run`: what a plugin does with the objects of a file.

use std::path::Path;

use anyhow::{Context, Result};
use kubewitness_core::clock::{Clock, SystemClock};
use kubewitness_core::files;
use serde_json::Value;

use super::subject::{self, TrialSubject};
use super::trial::{self, HandedCall, ObservedTimes, PluginTrial, StandIns, TrialReply};
use crate::cli::{RunPluginArgs, TriedPluginArgs};
use crate::commands::print;
use crate::commands::{CommandEnd, CommandResult, object_files};

/// People write a list of answers by hand.
const REPLIES_BYTES: u64 = 1 << 20;
const EXAMPLES: &str = "Links with `?state=` are examples: the objects of a file are in no journal. `kubewitness plugin replay` \
    shows the links of states that are.\n";

pub async fn run(args: RunPluginArgs) -> CommandResult {
    let seen = match &args.file {
        Some(file) => object_files::read(file).with_context(|| format!("reading {}", file.display()))?,
        None => Vec::new(),
    };
    let (subject, replies) = to_try(&args.tried).await?;
    let times = ObservedTimes::Own { now_ms: SystemClock::default().now_ms() };
    let mut stand_ins = StandIns::of(&subject.spec, &seen, times)?;
    if let Some(after) = args.tick {
        stand_ins = stand_ins.then_tick(&subject.spec, after.0)?;
    }
    let handed =
        trial::run_trial(&subject, PluginTrial { stand_ins, replies, redaction: None, is_measured: false })
            .await?
            .handed;
    print::print_value(args.output, &handed, |handed| {
        let each: Vec<_> = handed.iter().map(HandedCall::text).collect();
        let links = if handed.iter().any(links_to_a_state) { EXAMPLES } else { "" };
        format!(
            "{}\n{}. Nothing was sent, and nothing is kept.\n{links}",
            each.join("\n"),
            summary_text(handed)
        )
    })?;
    Ok(if handed.iter().all(HandedCall::is_done) { CommandEnd::Fine } else { CommandEnd::Failed })
}

/// Whether an effect contains the portal's address of a state. The objects of a file have no positions in a
/// journal.
fn links_to_a_state(handed: &HandedCall) -> bool {
    let says_it = |value: &Value| {
        let text = value.to_string();
        text.contains("/objects/") && text.contains("?state=")
    };
    handed.effects.iter().flat_map(|effect| &effect.what).any(|(_, value)| says_it(value))
}

/// `2 states were handed over`, and the ticks, if there were any.
fn summary_text(handed: &[HandedCall]) -> String {
    let ticks = handed.iter().filter(|handed| handed.is_tick()).count();
    let states = match handed.len() - ticks {
        1 => "1 state was handed over".to_owned(),
        states => format!("{states} states were handed over"),
    };
    match ticks {
        0 => states,
        1 => states + ", and 1 tick was made",
        ticks => states + &format!(", and {ticks} ticks were made"),
    }
}

/// The plugin of a command line, and the answers to its requests.
pub async fn to_try(args: &TriedPluginArgs) -> Result<(TrialSubject, Vec<TrialReply>)> {
    let replies = args.answers.as_deref().map(read_replies).transpose()?.unwrap_or_default();
    Ok((subject::load(&args.plugin, args.config.as_deref()).await?, replies))
}

pub fn read_replies(path: &Path) -> Result<Vec<TrialReply>> {
    let text = files::open_command_input(path)
        .and_then(|file| files::read_from(file, REPLIES_BYTES))
        .and_then(files::into_text);
    let text = text.with_context(|| format!("reading {}", path.display()))?;
    serde_saphyr::from_str(&text).map_err(|error| {
        // The library's message names types of this program.
        let line = error.location().map(|at| format!(" from line {} on", at.line())).unwrap_or_default();
        anyhow::anyhow!(
            "{} is no list of answers{line}: write one such as `[{{status: 503}}, {{status: 200, body: ok}}]` to requests, and \
             `[{{refused: [{{recipient: ada@example.com, permanent: true, reason: no such user}}]}}]` to messages",
            path.display()
        )
    })
}
