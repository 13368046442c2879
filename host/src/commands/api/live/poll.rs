//! `-w` for commands that show figures: asks again at intervals, and prints the answer when it has changed.

use std::time::Duration;

use anyhow::Result;

use crate::commands::api::client;
use crate::commands::print::{self, note};
use crate::commands::{CommandEnd, CommandResult};

/// The pause between two looks. A person waits no longer than this for a change.
const PAUSE: Duration = Duration::from_secs(2);

/// Prints the result of `look`; with `watch`, repeats until Ctrl-C or until its reader leaves. A controller
/// that becomes unreachable is reported once and retried.
pub async fn poll(watch: bool, look: impl AsyncFn() -> Result<String>) -> CommandResult {
    print::until_reader_leaves(go_on(watch, look)).await
}

async fn go_on(watch: bool, look: impl AsyncFn() -> Result<String>) -> CommandResult {
    let mut shown = None;
    let mut is_away = false;
    loop {
        match look().await {
            Ok(found) => {
                is_away = false;
                if shown.as_ref() != Some(&found) {
                    let apart = if shown.is_some() { "\n" } else { "" };
                    print::text(&format!("{apart}{found}"))?;
                    shown = Some(found);
                }
            }
            Err(error) if shown.is_some() && client::is_away(&error) => {
                if !std::mem::replace(&mut is_away, true) {
                    note!("kubewitness: {error:#}; it is asked again until Ctrl-C");
                }
            }
            Err(error) => return Err(error),
        }
        if !watch {
            return Ok(CommandEnd::Fine);
        }
        tokio::time::sleep(PAUSE).await;
    }
}
