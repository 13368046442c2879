//! `kubewitness pause` and `kubewitness resume`.

use kubewitness_core::views::{PauseRequest, PauseView};

use super::super::client::ApiClient;
use super::dead_letters::login_name;
use crate::cli::{PauseArgs, ZoneArg};
use crate::commands::print::{self, clean_line};
use crate::commands::{CommandEnd, CommandResult, UsageError};
use kubewitness_core::config::is_name;

pub async fn pause(args: PauseArgs) -> CommandResult {
    order(args, "pause").await
}

pub async fn resume(args: PauseArgs) -> CommandResult {
    order(args, "resume").await
}

async fn order(args: PauseArgs, verb: &str) -> CommandResult {
    let PauseArgs { plugin, reason, who, query } = args;
    // The name becomes part of an address.
    if !is_name(&plugin) {
        return Err(UsageError::error(format!(
            "`{plugin}` is no name of a plugin: `kubewitness plugins` lists them"
        )));
    }
    let request = PauseRequest { reason, who: who.unwrap_or_else(login_name) };
    let client = ApiClient::reach_controller(&query.reach).await?;
    let view: PauseView = client.post_json(&format!("api/v1/plugins/{plugin}/{verb}"), &request).await?;
    print::print_value(query.output, &view, text)?;
    Ok(CommandEnd::Fine)
}

fn text(view: &PauseView) -> String {
    let name = clean_line(&view.plugin);
    match (&view.paused, view.changed) {
        (Some(_), true) => format!(
            "{name} is paused. Retention keeps the states that it has not finished. Resume it: kubewitness resume {name} --reason …\n"
        ),
        (Some(paused), false) => format!(
            "{name} was paused already, by {} at {}: {}\n",
            clean_line(&paused.who),
            clean_line(&ZoneArg::local_zone().show_text(&paused.since)),
            clean_line(&paused.why)
        ),
        (None, true) => format!("{name} is resumed, and goes on from where it was\n"),
        (None, false) => format!("{name} was not paused\n"),
    }
}

#[cfg(test)]
mod tests {
    use kubewitness_core::views::PausedView;

    use super::*;

    #[test]
    fn a_pause_that_was_there_already_names_who_ordered_it() {
        let paused = PausedView { who: "ada\u{1b}".into(), why: "a move".into(), since: "2026".into() };
        let view = |paused, changed| PauseView { plugin: "p".into(), changed, paused };
        assert!(text(&view(Some(paused.clone()), true)).contains("kubewitness resume p"));
        assert_eq!(text(&view(Some(paused), false)), "p was paused already, by ada· at 2026: a move\n");
        assert!(text(&view(None, true)).contains("is resumed"));
        assert_eq!(text(&view(None, false)), "p was not paused\n");
    }
}
