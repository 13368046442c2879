//! Compares the receipts in granted databases with the states of the journal, for `journal verify`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use kubewitness_capability::{DatabaseProof, ReceiptProof, prove_receipts};
use kubewitness_core::config::HostSpec;
use kubewitness_core::intents::commits::CommitNotes;
use kubewitness_core::intents::prints::IdPrint;
use kubewitness_core::{Seq, calendar};
use kubewitness_journal::{
    JournalLocation, KnownIds, PluginAccounts, VerifyReport, account_at, code, commit_notes_at, ids_at,
};

/// How many states' ids are held at once.
const STATES: usize = 64 * 1024;

/// How many examples of each misfit are listed.
const EXAMPLES: usize = 3;

/// Adds the findings to the report. Receipts are read before the states, because a state is journaled before
/// its receipt exists.
///
/// The notes of commits are read before the databases: a database must have every noted commit.
pub async fn check(report: &mut VerifyReport, place: &JournalLocation, host: &HostSpec, data: &Path) {
    let notes = commit_notes_at(place).await.unwrap_or_else(|error| {
        report.not_checked.push(format!("the newest commits in granted databases: {error}"));
        NotesByPlugin::new()
    });
    for (plugin, loss) in
        notes.iter().flat_map(|(plugin, of)| of.losses.iter().map(move |(_, loss)| (plugin, loss)))
    {
        report.losses.push(format!("{plugin}, {}: {}", calendar::format_rfc3339(loss.found_ms), loss.text()));
    }
    for proof in prove_receipts(host, data).await {
        if proof.unread.is_none() {
            check_losses(report, place, &proof, &notes).await;
        }
        let DatabaseProof { database, receipts, rows, problems, unread, .. } = proof;
        report.receipts_checked += receipts.len() as u64;
        report.rows_checked += rows;
        for problem in problems {
            report.add(code::RECEIPT, None, format!("{database}: {problem}"));
        }
        if let Some(why) = unread {
            report.not_checked.push(format!("the receipts in the database `{database}`: {why}"));
        }
        // A receipt has at most as many states as a batch.
        let (mut left, mut tally) = (&receipts[..], MisfitTally::default());
        while !left.is_empty() {
            let mut states = 0;
            let fits = |one: &&ReceiptProof| {
                states += one.marks.len();
                states <= STATES
            };
            let count = left.iter().take_while(fits).count().max(1);
            let (part, rest) = left.split_at(count);
            left = rest;
            let seqs: Vec<_> = part.iter().flat_map(|one| &one.marks).map(|(seq, _)| *seq).collect();
            let known = match ids_at(place, &seqs).await {
                Ok(known) => known,
                Err(error) => {
                    report.not_checked.push(format!("the receipts in the database `{database}`: {error}"));
                    break;
                }
            };
            for receipt in part {
                tally.add(receipt, &known);
            }
        }
        for (seq, message) in tally.summary_lines() {
            report.add(code::RECEIPT, Some(seq), format!("{database}: {message}"));
        }
    }
}

const BEHIND: &str = "has commits that the database no longer has: it failed over without them, or it or the journal was \
    restored from an older copy. Start the controller: it hands over again what the database lost";

const ABSENT: &str = "its file is not there. Mount the folder in which it lies, or restore the file";

type NotesByPlugin = BTreeMap<String, CommitNotes>;

/// Reports plugins whose noted commits the database has lost. A controller may have continued since the notes
/// were read, so a commit counts as lost only while the journal still expects it.
async fn check_losses(
    report: &mut VerifyReport,
    place: &JournalLocation,
    proof: &DatabaseProof,
    notes: &NotesByPlugin,
) {
    let database = &proof.database;
    let found = lost_commits(proof, notes);
    if found.is_empty() {
        return;
    }
    if proof.is_absent {
        report.not_checked.push(format!("the newest commits in the database `{database}`: {ABSENT}"));
        return;
    }
    let notes = match commit_notes_at(place).await {
        Ok(notes) => notes,
        Err(error) => {
            report.not_checked.push(format!("the newest commits in the database `{database}`: {error}"));
            return;
        }
    };
    let again = lost_commits(proof, &notes);
    let lost: BTreeSet<_> = found.intersection(&again).map(|(plugin, _)| plugin).collect();
    for plugin in lost {
        match why_unmended(place, plugin, &notes, database).await {
            None => report.add(code::RECEIPT, None, format!("{database}: {plugin} {BEHIND}")),
            Some(why) => {
                let what = format!("the newest commits of {plugin} in the database `{database}`");
                report.not_checked.push(format!("{what}: they are not there, and {why}"));
            }
        }
    }
}

/// Why no controller will mend the loss; `None` if one will.
async fn why_unmended(
    place: &JournalLocation,
    plugin: &str,
    notes: &NotesByPlugin,
    database: &str,
) -> Option<String> {
    let note = notes.get(plugin).and_then(|notes| notes.newest.as_ref());
    if !note.is_some_and(|note| note.is_current(database)) {
        return Some("the plugin has written to another database since".into());
    }
    match account_at(place, Some(plugin), "").await {
        Ok(PluginAccounts { account: Some(account), .. }) if account.progress.retired_ms.is_some() => Some(
            format!("the plugin was removed. `kubewitness plugin forget {plugin}` removes the rest of it"),
        ),
        Ok(_) => None,
        Err(error) => Some(format!("its progress can't be read: {error}")),
    }
}

/// The noted commits that the database has lost, as plugins and tokens.
fn lost_commits(proof: &DatabaseProof, notes: &NotesByPlugin) -> BTreeSet<(String, String)> {
    let mut lost = BTreeSet::new();
    for (plugin, notes) in notes {
        let history = proof.histories.get(plugin).copied().unwrap_or_default();
        let commits = notes.newest.iter().filter_map(|note| note.commits_in(&proof.database));
        for commit in commits.flat_map(|known| &known.commits) {
            if !proof.tokens.contains(&commit.token) && !history.has_outlived(commit) {
                lost.insert((plugin.clone(), commit.token.clone()));
            }
        }
    }
    lost
}

/// How a receipt contradicts the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ReceiptMisfit {
    Another,
    Beyond,
    Missing,
    Orphaned,
}

fn find_misfit(seq: Seq, print: IdPrint, known: &KnownIds) -> Option<ReceiptMisfit> {
    match known.ids.get(&seq) {
        Some(id) if print.is_of(id.as_str()) => None,
        Some(_) => Some(ReceiptMisfit::Another),
        None if seq > known.newest => Some(ReceiptMisfit::Beyond),
        None if known.retained || known.unreadable.contains(&seq) => None,
        None => Some(ReceiptMisfit::Missing),
    }
}

/// The misfits found in one database. Receipts of another journal are many with the same finding, so findings
/// are grouped.
#[derive(Default)]
struct MisfitTally {
    found: BTreeMap<(String, ReceiptMisfit), ReceiptFindings>,
    newest: Seq,
}

#[derive(Default)]
struct ReceiptFindings {
    receipts: u64,
    first: BTreeSet<Seq>,
}

impl MisfitTally {
    fn add(&mut self, receipt: &ReceiptProof, known: &KnownIds) {
        self.newest = known.newest;
        let mut kinds = BTreeMap::new();
        for (seq, print) in &receipt.marks {
            if let Some(kind) = find_misfit(*seq, *print, known) {
                kinds.entry(kind).or_insert(*seq);
            }
        }
        // The progress is saved before the first call.
        let has_progress = known.plugins.as_ref().is_none_or(|plugins| plugins.contains(&receipt.plugin));
        if let (false, Some((seq, _))) = (has_progress, receipt.marks.first()) {
            kinds.insert(ReceiptMisfit::Orphaned, *seq);
        }
        for (kind, seq) in kinds {
            let found = self.found.entry((receipt.plugin.clone(), kind)).or_default();
            found.receipts += 1;
            found.first.insert(seq);
            if found.first.len() > EXAMPLES {
                found.first.pop_last();
            }
        }
    }

    /// One line for each finding, with its first positions.
    fn summary_lines(&self) -> Vec<(Seq, String)> {
        let line = |((plugin, kind), found): (&(String, ReceiptMisfit), &ReceiptFindings)| {
            let newest = self.newest;
            let (receipts, places) = match found.receipts {
                1 => (format!("a receipt of {plugin} is"), String::new()),
                count => {
                    (format!("{count} receipts of {plugin} are"), format!(" ({})", found.first_places()))
                }
            };
            let text = match kind {
                ReceiptMisfit::Another => format!(
                    "{receipts} of another state than the journal's{places}: was it written for another journal, or before \
                     this one lost its newest commits?"
                ),
                ReceiptMisfit::Beyond => {
                    format!(
                        "{receipts} of a state that the journal does not have{places}: it ends at {newest}"
                    )
                }
                ReceiptMisfit::Missing => format!("{receipts} of a state that is not there{places}"),
                ReceiptMisfit::Orphaned => {
                    format!(
                        "{receipts} there{places}, and the journal has no progress of it: it would begin anew"
                    )
                }
            };
            Some((*found.first.first()?, text))
        };
        self.found.iter().filter_map(line).collect()
    }
}

impl ReceiptFindings {
    fn first_places(&self) -> String {
        let first: Vec<_> = self.first.iter().map(ToString::to_string).collect();
        let more = if self.receipts > self.first.len() as u64 { " and more" } else { "" };
        format!("at {}{more}", first.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubewitness_core::StateId;
    use kubewitness_core::intents::commits::{CommitHistory, CommitNote, DatabaseCommits, NotedCommit};
    use kubewitness_core::ports::{Backlog, PluginProgress, ProgressSave};
    use kubewitness_journal::{Journal, JournalOptions};

    fn id(seq: Seq) -> StateId {
        StateId::parse(&format!("jobs/0/batch/Job/u/{seq}"))
    }

    fn known() -> KnownIds {
        KnownIds { newest: 3, ids: [(1, id(1)), (3, id(3))].into(), ..KnownIds::default() }
    }

    /// A receipt at one position, for the state at another.
    fn receipt(seq: Seq, of: Seq) -> ReceiptProof {
        ReceiptProof { plugin: "audit".into(), marks: vec![(seq, IdPrint::of(id(of).as_str()))] }
    }

    fn summary_of(receipts: &[ReceiptProof], known: &KnownIds) -> Vec<(Seq, String)> {
        let mut tally = MisfitTally::default();
        for receipt in receipts {
            tally.add(receipt, known);
        }
        tally.summary_lines()
    }

    #[test]
    fn a_receipt_fits_the_states_that_it_was_given_for_and_no_others() {
        let misfit = |seq, of| summary_of(&[receipt(seq, of)], &known());
        assert_eq!(misfit(1, 1), []);
        assert!(misfit(1, 2)[0].1.contains("a receipt of audit is of another state"));
        assert!(misfit(4, 4)[0].1.contains("it ends at 3"));
        assert!(misfit(2, 2)[0].1.contains("not there"));
        assert_eq!(summary_of(&[receipt(2, 2)], &KnownIds { retained: true, ..known() }), []);
        assert_eq!(summary_of(&[receipt(2, 2)], &KnownIds { unreadable: [2].into(), ..known() }), []);
        let plugins = |name: &str| KnownIds { plugins: Some([name.to_owned()].into()), ..known() };
        assert_eq!(summary_of(&[receipt(1, 1)], &plugins("audit")), []);
        assert!(summary_of(&[receipt(1, 1)], &plugins("other"))[0].1.contains("has no progress of it"));
    }

    fn note(commits: &[(&str, u64)]) -> CommitNotes {
        let commit = |(token, at_ms): &(&str, u64)| NotedCommit {
            token: (*token).into(),
            at_ms: *at_ms,
            is_tick: false,
        };
        let commits = commits.iter().map(commit).collect();
        let current =
            Some(DatabaseCommits { database: "main".into(), commits, ..DatabaseCommits::default() });
        CommitNotes { newest: Some(CommitNote { current, earlier: Vec::new() }), losses: Vec::new() }
    }

    fn proof_with(tokens: &[&str]) -> DatabaseProof {
        let tokens = tokens.iter().map(|token| (*token).to_owned()).collect();
        DatabaseProof { database: "main".into(), tokens, ..DatabaseProof::default() }
    }

    #[test]
    fn a_noted_commit_that_a_database_lacks_is_lost_unless_its_receipt_was_removed() {
        let notes = NotesByPlugin::from([
            ("audit".to_owned(), note(&[("audit.1", 1), ("audit.2", 2)])),
            ("persistence".to_owned(), note(&[("persistence.1", 5)])),
            ("reader".to_owned(), CommitNotes::default()),
        ]);
        let lost = |proof: &DatabaseProof| {
            lost_commits(proof, &notes).into_iter().map(|(_, token)| token).collect::<Vec<_>>()
        };
        assert_eq!(lost(&proof_with(&["audit.1", "persistence.1"])), ["audit.2"]);
        assert!(lost(&proof_with(&["audit.1", "audit.2", "persistence.1"])).is_empty());
        assert!(lost(&DatabaseProof { database: "other".into(), ..DatabaseProof::default() }).is_empty());
        let mut pruned = proof_with(&[]);
        assert_eq!(lost(&pruned), ["audit.1", "audit.2", "persistence.1"]);
        let history = CommitHistory { pruned_before_ms: 2, newest_tick_ms: 0 };
        pruned.histories.insert("audit".into(), history);
        assert_eq!(lost(&pruned), ["audit.2", "persistence.1"]);
    }

    /// Verifies beside a journal that has moved on since its notes were read.
    async fn losses_beside(current: &CommitNotes, proof: &DatabaseProof) -> VerifyReport {
        losses_beside_progress(current, PluginProgress::default(), proof).await
    }

    async fn losses_beside_progress(
        current: &CommitNotes,
        progress: PluginProgress,
        proof: &DatabaseProof,
    ) -> VerifyReport {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal.db");
        let journal = Journal::open(&path, JournalOptions::default()).await.unwrap();
        let kv = current.newest.iter().map(CommitNote::as_write).collect();
        journal.save("audit", ProgressSave { progress, kv, ..ProgressSave::default() }).await.unwrap();
        let read = NotesByPlugin::from([("audit".to_owned(), note(&[("audit.1", 1)]))]);
        let mut report = VerifyReport::default();
        check_losses(&mut report, &JournalLocation::file(&path), proof, &read).await;
        report
    }

    #[tokio::test]
    async fn a_commit_on_which_the_journal_no_longer_counts_is_not_lost() {
        let report = losses_beside(&note(&[("audit.2", 2)]), &proof_with(&["audit.2"])).await;
        assert!(report.problems.is_empty() && report.not_checked.is_empty(), "{report:?}");
        let report = losses_beside(&note(&[("audit.1", 1)]), &proof_with(&["audit.0"])).await;
        assert_eq!(report.problems.len(), 1, "{report:?}");
    }

    #[tokio::test]
    async fn what_an_earlier_database_or_one_of_a_removed_plugin_lacks_is_not_checked() {
        let lacking = || proof_with(&["audit.0"]);
        let mut moved = note(&[("audit.1", 1)]);
        let newest = moved.newest.take().unwrap();
        let other = DatabaseCommits { database: "other".into(), ..DatabaseCommits::default() };
        let earlier = newest.current.into_iter().collect();
        moved.newest = Some(CommitNote { current: Some(other), earlier });
        let report = losses_beside(&moved, &lacking()).await;
        assert!(report.problems.is_empty(), "{report:?}");
        assert!(report.not_checked[0].contains("written to another database since"), "{report:?}");

        let retired = PluginProgress { retired_ms: Some(1), ..PluginProgress::default() };
        let report = losses_beside_progress(&note(&[("audit.1", 1)]), retired, &lacking()).await;
        assert!(report.problems.is_empty(), "{report:?}");
        assert!(report.not_checked[0].contains("plugin forget audit"), "{report:?}");
    }

    #[tokio::test]
    async fn a_file_that_is_not_there_is_not_checked() {
        let absent = DatabaseProof { is_absent: true, ..proof_with(&[]) };
        let report = losses_beside(&note(&[("audit.1", 1)]), &absent).await;
        assert!(report.problems.is_empty(), "{report:?}");
        assert_eq!(report.not_checked.len(), 1, "{report:?}");
    }

    #[test]
    fn receipts_of_another_journal_are_told_once_with_their_number_and_the_first_positions() {
        let of_several = ReceiptProof {
            marks: vec![(9, IdPrint::from_short_print(0)), (8, IdPrint::from_short_print(0))],
            ..receipt(9, 9)
        };
        let others: Vec<_> =
            (10..10_000).rev().map(|seq| receipt(seq, seq)).chain([of_several, receipt(1, 2)]).collect();
        let summary = summary_of(&others, &known());
        let [(1, other), (9, beyond)] = &summary[..] else { panic!("{summary:?}") };
        assert!(other.contains("a receipt of audit is of another state"), "{other}");
        assert!(beyond.contains("9991 receipts of audit are") && beyond.contains("(at 9, 10, 11 and more)"));
    }
}
