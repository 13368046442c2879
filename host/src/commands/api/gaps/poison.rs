//! `kubewitness poison`: bytes from the API server that are no object of their source's kind.

use std::io::{self, IsTerminal, Write};

use anyhow::Result;
use kubewitness_core::views::{PoisonView, StatusView};

use super::{GapParameters, only_newest};
use crate::cli::{PoisonArgs, ZoneArg};
use crate::commands::api::client::ApiClient;
use crate::commands::api::status::plural;
use crate::commands::print::{self, TextTable, clean_line};
use crate::commands::{CommandEnd, CommandResult};

pub async fn run_poison(args: PoisonArgs) -> CommandResult {
    let client = ApiClient::reach_controller(&args.query.reach).await?;
    if let Some(number) = args.number {
        print_raw(&client.fetch_bytes(&format!("api/v1/poison/{number}/raw")).await?)?;
        return Ok(CommandEnd::Fine);
    }
    let parameters: GapParameters =
        args.source.clone().map(|source| ("source", source)).into_iter().collect();
    let found = client.fetch_list::<PoisonView>("api/v1/poison", &parameters, args.limit).await?;
    let poison = found.rows;
    let recorded =
        if poison.is_empty() { recorded_poison(&client, args.source.as_deref()).await? } else { 0 };
    print::print_wide(args.query.output, &poison, |poison, wide| {
        let text = poison_text(poison, wide, args.source.as_deref(), recorded);
        if found.more { text + &only_newest(args.limit) } else { text }
    })?;
    Ok(CommandEnd::Fine)
}

/// The count in the figures; the list has only those that the person may see.
async fn recorded_poison(client: &ApiClient, source: Option<&str>) -> Result<u64> {
    let status: StatusView = client.get("api/v1/status", &GapParameters::new()).await?;
    let asked = status.sources.iter().filter(|view| source.is_none_or(|name| name == view.name));
    Ok(asked.map(|view| view.poison).sum())
}

pub(super) fn poison_text(poison: &[PoisonView], wide: bool, source: Option<&str>, recorded: u64) -> String {
    if poison.is_empty() {
        let of = source.map(|name| format!(" of source {}", clean_line(name))).unwrap_or_default();
        if recorded > 0 {
            let are = plural(recorded, "is", "are");
            return format!("no poison{of} that you may see: {recorded} {are} recorded\n");
        }
        return format!("no poison{of}: every frame was an object of its kind\n");
    }
    let mut header = vec!["NUMBER", "OBSERVED", "SOURCE", "BYTES", "ERROR"];
    if wide {
        header.extend(["EPOCH", "BEGINS"]);
    }
    let mut table =
        TextTable::new(&header).with_spare_columns(&["BYTES", "SOURCE", "OBSERVED"]).with_below("ERROR");
    for view in poison {
        let mut row = vec![
            view.number.to_string(),
            ZoneArg::local_zone().show_time(view.observed_ms),
            view.source.clone(),
            view.bytes.to_string(),
            view.error.clone(),
        ];
        if wide {
            row.extend([view.epoch.to_string(), view.excerpt.clone()]);
        }
        table.push_row(row);
    }
    table.render() + "`kubewitness poison NUMBER` prints one as it came\n"
}

/// Unchanged for a file or a pipe; for a terminal, without anything that it would interpret.
fn print_raw(bytes: &[u8]) -> Result<()> {
    let mut out = io::stdout().lock();
    let written = match out.is_terminal() {
        true => {
            drop(out);
            let text = String::from_utf8_lossy(bytes);
            return print::text(&format!("{}\n", clean_line(&text)));
        }
        false => out.write_all(bytes).and_then(|()| out.flush()),
    };
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}
