//! `kubewitness plugin forget`: removes what a removed plugin left behind. It needs exclusive access to the
//! journal, and calls no controller.

use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use kubewitness_capability::{DatabaseProof, forget_receipts, prove_receipts};
use kubewitness_core::calendar;
use kubewitness_core::config::{DatabaseKind, DatabaseSpec, HostSpec};
use kubewitness_core::ports::{Backlog, PluginProgress};
use kubewitness_journal::{Journal, JournalOptions, OpenError};
use serde::Serialize;

use super::{host_of, place_hint};
use crate::cli::ForgetPluginArgs;
use crate::commands::print::{self, clean_line, coloured_mark};
use crate::commands::{CommandEnd, CommandResult};
use crate::journal_place::journal_place;

/// The actor in the record of pauses when this command ends a pause.
const WHO: &str = "kubewitness plugin forget";
/// How many plugins a message lists.
const LISTED: usize = 20;

pub async fn forget_plugin(args: ForgetPluginArgs) -> CommandResult {
    let ForgetPluginArgs { name, at, yes, output } = args;
    let place = journal_place(&at.journal, &at.data)?;
    // Opening a missing journal would create one.
    kubewitness_journal::journal_stats(&place, &Default::default(), 0)
        .await
        .with_context(|| place_hint("reading", &place))?;
    let host = host_of(&at.data)?.with_context(|| {
        format!(
            "{} has no settings that a controller took, by which the databases with receipts are found: name the \
             controller's data folder with --data",
            at.data.display()
        )
    })?;
    let opened = Journal::open_at(&place, JournalOptions::default()).await;
    let is_used =
        matches!(opened, Err(OpenError::InUse(_) | OpenError::Held { .. } | OpenError::Shared { .. }));
    let journal = opened.with_context(|| match is_used {
        true => "the controller has to be stopped while a plugin is forgotten".to_owned(),
        false => place_hint("opening", &place),
    })?;
    let done = left_by(&journal, &name, &host, &at.data).await;
    let done = match done {
        Ok(left) if yes => take_away(&journal, &left, &host, &at.data).await.map(|()| left),
        done => done,
    };
    let closed = journal.close().await;
    let left = ForgetReport { removed: yes, left: done? };
    closed.context("closing the journal")?;
    print::print_value(output, &left, ForgetReport::text)?;
    Ok(CommandEnd::Fine)
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ForgetReport {
    removed: bool,
    #[serde(flatten)]
    left: PluginRemains,
}

/// The remains of a plugin.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct PluginRemains {
    plugin: String,
    /// When the controller found that it was removed.
    retired_at: String,
    cursor: u64,
    is_paused: bool,
    dead_letters: usize,
    keys: usize,
    key_bytes: usize,
    report_bytes: u64,
    receipts: Vec<ReceiptCounts>,
    /// Databases and ledgers of the host's settings that may still contain its data.
    remains: Vec<String>,
}

#[derive(Debug, Serialize)]
struct ReceiptCounts {
    database: String,
    /// Those of states. Others have none, such as that of a tick.
    receipts: usize,
}

async fn left_by(journal: &Journal, name: &str, host: &HostSpec, data: &Path) -> Result<PluginRemains> {
    let PluginProgress { cursor, retired_ms, .. } = plugin_progress(journal, name).await?;
    let Some(retired_ms) = retired_ms else {
        bail!(
            "`{name}` is still selected, as far as the journal knows: remove its manifest while the controller runs, and \
             stop the controller once `kubewitness plugins` shows the plugin no more"
        );
    };
    let keys = journal.plugin_kv(name).await?;
    let (receipts, unread) = count_receipts(name, host, data).await;
    if let Some(why) = unread {
        bail!("nothing is removed, because receipts would be left behind: {why}");
    }
    Ok(PluginRemains {
        plugin: name.to_owned(),
        retired_at: calendar::format_rfc3339(retired_ms),
        cursor,
        is_paused: journal.plugin_pause(name).await?.is_some(),
        dead_letters: journal.dead_letters(name).await?.len(),
        keys: keys.len(),
        key_bytes: keys.iter().map(|(key, value)| key.len() + value.len()).sum(),
        report_bytes: journal.report_bytes(name).await?,
        receipts,
        remains: remaining_places(host, data),
    })
}

async fn plugin_progress(journal: &Journal, name: &str) -> Result<PluginProgress> {
    let mut all = journal.all_progress().await?;
    if let Some((progress, _)) = all.remove(name) {
        return Ok(progress);
    }
    let known: Vec<_> = all.keys().take(LISTED).map(|name| clean_line(name).into_owned()).collect();
    let known = if known.is_empty() { "no plugin".to_owned() } else { known.join(", ") };
    Err(anyhow!("the journal has nothing of a plugin `{}`; it knows {known}", clean_line(name)))
}

/// The receipts of the plugin, and why some could not be read.
async fn count_receipts(name: &str, host: &HostSpec, data: &Path) -> (Vec<ReceiptCounts>, Option<String>) {
    let (mut found, mut unread) =
        (Vec::new(), host.databases.iter().find_map(|spec| missing_database_file(spec, data)));
    for proof in prove_receipts(host, data).await {
        found.extend(receipts_in(&proof, name));
        let database = proof.database;
        unread = proof.unread.map(|why| format!("the database `{database}`: {why}")).or(unread);
    }
    (found, unread)
}

/// The receipts of the plugin in one database. Rows of ticks, and of up to where receipts were removed, count no state.
fn receipts_in(proof: &DatabaseProof, name: &str) -> Option<ReceiptCounts> {
    let receipts = proof.receipts.iter().filter(|receipt| receipt.plugin == name).count();
    let is_there = receipts > 0 || proof.histories.contains_key(name);
    is_there.then(|| ReceiptCounts { database: proof.database.clone(), receipts })
}

/// A file on a volume that is not mounted here may contain receipts.
fn missing_database_file(spec: &DatabaseSpec, data: &Path) -> Option<String> {
    let Some(DatabaseKind::Sqlite(sqlite)) = spec.only_kind() else { return None };
    let path = data.join(&sqlite.path);
    (!path.exists()).then(|| {
        format!(
            "the database `{}`: there is no {}. Put the file back, or make an empty one in its place if it is gone for \
             good or nobody has used it",
            spec.name,
            path.display()
        )
    })
}

/// Without a server's address, which may contain a password.
fn remaining_places(host: &HostSpec, data: &Path) -> Vec<String> {
    let databases = host.databases.iter().map(|spec| match spec.only_kind() {
        Some(DatabaseKind::Sqlite(sqlite)) => format!(
            "tables in the database `{}`: `sqlite3 {} .tables` lists them, and `DROP TABLE NAME` drops one",
            spec.name,
            data.join(&sqlite.path).display()
        ),
        _ => format!("tables in the database `{}`: drop them there with `DROP TABLE NAME`", spec.name),
    });
    let ledgers = host.ledgers.iter().map(|spec| {
        let (name, path) = (&spec.name, data.join(&spec.path));
        let path = path.display();
        format!("the ledger `{name}`: take it out of the host's settings, then move its file {path} away")
    });
    databases.chain(ledgers).collect()
}

/// The journal comes last: if anything before it fails, the command can be repeated.
async fn take_away(journal: &Journal, left: &PluginRemains, host: &HostSpec, data: &Path) -> Result<()> {
    for ReceiptCounts { database, .. } in &left.receipts {
        let spec =
            host.databases.iter().find(|spec| spec.name == *database).context("the database is gone")?;
        let forgotten = forget_receipts(spec, data, &left.plugin).await;
        forgotten
            .map_err(|why| anyhow!("the receipts in the database `{database}` can't be removed: {why}"))?;
    }
    if left.is_paused {
        journal.mark_paused(&left.plugin, false, WHO, "the plugin is forgotten").await?;
    }
    Ok(journal.forget_plugin(&left.plugin).await?)
}

impl ForgetReport {
    fn text(&self) -> String {
        let PluginRemains { plugin, retired_at, cursor, is_paused, dead_letters, keys, key_bytes, .. } =
            &self.left;
        let PluginRemains { report_bytes, receipts, remains, .. } = &self.left;
        let plugin = clean_line(plugin);
        let verb = if self.removed { "was removed" } else { "would be removed" };
        let mut text = format!("{} {plugin}, taken out at {retired_at}. What {verb}:\n", coloured_mark(true));
        text.push_str(&format!(
            "  its cursor at {cursor}, its counts{}\n",
            if *is_paused { ", its pause" } else { "" }
        ));
        text.push_str(&format!("  dead letters: {dead_letters}\n  keys of kv: {keys}, {key_bytes} bytes\n"));
        if *report_bytes > 0 {
            text.push_str(&format!("  reports on objects: {report_bytes} bytes\n"));
        }
        for ReceiptCounts { database, receipts } in receipts {
            let database = clean_line(database);
            text.push_str(&match receipts {
                0 => format!(
                    "  receipts in the database `{database}`: none of states, such as that of a tick\n"
                ),
                receipts => format!("  receipts in the database `{database}`: {receipts}\n"),
            });
        }
        if !remains.is_empty() {
            text.push_str(
                "What remains, where the plugin made something there and no other plugin uses it:\n",
            );
        }
        remains.iter().for_each(|line| text.push_str(&format!("  {}\n", clean_line(line))));
        if !self.removed {
            text.push_str("Nothing is removed yet: run it again with --yes\n");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_with_receipts_of_ticks_alone_is_not_passed_over() {
        let histories = [("p".to_owned(), Default::default())].into();
        let proof = DatabaseProof { database: "main".into(), histories, ..DatabaseProof::default() };
        let found = receipts_in(&proof, "p").unwrap();
        assert_eq!((&*found.database, found.receipts), ("main", 0));
        assert!(receipts_in(&proof, "q").is_none());
        let left = PluginRemains { plugin: "p".into(), receipts: vec![found], ..PluginRemains::default() };
        let text = ForgetReport { removed: true, left }.text();
        assert!(text.contains("receipts in the database `main`: none of states"), "{text}");
    }
}
