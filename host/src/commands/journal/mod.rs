//! `kubewitness journal`: verifies, measures and exports a journal, also beside a running controller.
//!
//! The commands open the store themselves instead of asking the controller: a journal must be readable if the
//! controller does not start. They read one snapshot, so a running writer does not disturb them. Only an
//! import, and `kubewitness plugin forget`, write. Those need the journal for themselves, and an import needs
//! an empty one.

mod counting_reader;
mod export_file;
mod forget;
mod receipts;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufReader, BufWriter};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, bail};
use kubewitness_core::clock::{Clock, SystemClock};
use kubewitness_core::config::{HostSpec, RetentionSpec};
use kubewitness_core::kinds::is_kind;
use kubewitness_core::{State, files};
use kubewitness_journal::{
    ExportError, ExportQuery, JournalLocation, JournalOptions, JournalStats, OpeningProgress, RetentionStats,
    SourceStats, read_states,
};

use self::counting_reader::CountingReader;
use self::export_file::{ExportFile, PatientWriter};
pub use self::forget::forget_plugin;
use crate::cli::{ExportArgs, ImportArgs, Journal, JournalArgs, MomentArg, Output, StatesArgs, ZoneArg};
use crate::commands::api::plural;
use crate::commands::print::progress::{self, ProgressUnit};
use crate::commands::print::{self, JsonEscaper, TextTable, clean_line, coloured_mark, note};
use crate::commands::{CommandEnd, CommandResult, UsageError};
use crate::config::last_good::LastGood;
use crate::config::manifest::parse_host;
use crate::journal_place::{EMBEDDED, journal_place};

pub async fn journal(command: Journal) -> CommandResult {
    match command {
        Journal::Verify { at, output } => {
            verify(&journal_place(&at.journal, &at.data)?, &at.data, output).await
        }
        Journal::Stats { at, output } => {
            stats(&journal_place(&at.journal, &at.data)?, &at.data, output).await
        }
        Journal::Export(args) => export_journal(args).await,
        Journal::Import(args) => import_journal(args).await,
    }
}

pub fn place_hint(what: &str, place: &JournalLocation) -> String {
    match place.kind() {
        EMBEDDED => format!("{what} {place}"),
        _ => format!("{what} the journal"),
    }
}

async fn verify(place: &JournalLocation, data: &Path, output: Output) -> CommandResult {
    let progress = OpeningProgress::default();
    let verifying = kubewitness_journal::verify_with(place, &progress);
    let report =
        progress::with_progress("verifying", ProgressUnit::States, || progress.now(), verifying).await;
    let mut report = report.with_context(|| place_hint("verifying", place))?;
    if let Some(host) = host_of(data)? {
        receipts::check(&mut report, place, &host, data).await;
    }
    let ok = report.ok;
    print::print_value(output, &report, |report| {
        let mut text = format!("{} {}: {} states checked\n", coloured_mark(ok), place, report.states_checked);
        if report.receipts_checked > 0 {
            let (receipts, rows) = (report.receipts_checked, report.rows_checked);
            text.push_str(&format!("  {receipts} receipts in granted databases, {rows} of their rows\n"));
        }
        for loss in &report.losses {
            text.push_str(&format!("  lost commits: {}\n", clean_line(loss)));
        }
        for reason in &report.not_checked {
            text.push_str(&format!("  not checked: {}\n", clean_line(reason)));
        }
        for problem in &report.problems {
            let seq = problem.seq.map(|seq| format!(" at {seq}")).unwrap_or_default();
            text.push_str(&format!("  {}{seq}: {}\n", problem.code, clean_line(&problem.message)));
        }
        if report.problems_left_out > 0 {
            text.push_str(&format!("  and {} more like these\n", report.problems_left_out));
        }
        text
    })?;
    Ok(if ok { CommandEnd::Fine } else { CommandEnd::Failed })
}

// ---- stats -------------------------------------------------------------------------------

async fn stats(place: &JournalLocation, data: &Path, output: Output) -> CommandResult {
    let retention = retention_of(data)?;
    let now_ms = SystemClock::default().now_ms();
    let stats = kubewitness_journal::journal_stats(place, &retention, now_ms).await;
    let stats = stats.with_context(|| place_hint("reading", place))?;
    print::print_value(output, &stats, stats_text)?;
    Ok(CommandEnd::Fine)
}

/// The settings that were last in force; `None` if none were.
pub fn host_of(data: &Path) -> Result<Option<HostSpec>> {
    if !data.join("last-good").is_dir() {
        return Ok(None);
    }
    let kept = LastGood::open(data).and_then(|last_good| last_good.host());
    let Some(entry) = kept.context("reading the settings that were taken last")? else { return Ok(None) };
    // Settings of an older program may not parse any more; that is not the question here.
    Ok(parse_host(&entry).ok().map(|parsed| parsed.spec))
}

/// By source.
fn retention_of(data: &Path) -> Result<BTreeMap<String, RetentionSpec>> {
    let sources = host_of(data)?.map(|host| host.sources).unwrap_or_default();
    Ok(sources.into_iter().filter_map(|source| Some((source.name, source.retention?))).collect())
}

/// Shown before all figures, because they cover only a part.
const UNFINISHED: &str = "an import into this journal has not come to its end: `kubewitness journal import FILE --continue` \
                          goes on with it, `kubewitness journal import --discard` throws it away\n";

fn kib_text(bytes: u64) -> String {
    format!("{} KiB", bytes.div_ceil(1024))
}

fn stats_text(stats: &JournalStats) -> String {
    let disk = match stats.wal_bytes + stats.free_bytes {
        // A server does not report these figures.
        0 => format!("{} on disk", kib_text(stats.bytes)),
        _ => format!(
            "{} on disk, {} of them free, and {} of WAL",
            kib_text(stats.bytes),
            kib_text(stats.free_bytes),
            kib_text(stats.wal_bytes)
        ),
    };
    let JournalStats { states, oldest_seq, newest_seq, .. } = stats;
    let mut text = format!("{} at positions {oldest_seq} to {newest_seq}; {disk}\n\n", states_of(*states));
    if stats.unfinished {
        text.insert_str(0, UNFINISHED);
    }
    let mut table = TextTable::new(&[
        "SOURCE",
        "STATES",
        "OBJECTS",
        "LIVE",
        "BYTES",
        "DOCUMENTS",
        "PER STATE",
        "TAKEN",
        "OLDEST",
        "NEWEST",
    ])
    .with_spare_columns(&[
        "DOCUMENTS",
        "PER STATE",
        "TAKEN",
        "LIVE",
        "OBJECTS",
        "BYTES",
        "NEWEST",
        "OLDEST",
    ]);
    for source in &stats.sources {
        table.push_row([
            source.source.clone(),
            source.states.to_string(),
            source.objects.to_string(),
            source.live_objects.to_string(),
            kib_text(source.bytes),
            kib_text(source.document_bytes),
            format!("{:.0} B", source.bytes_per_state),
            source.taken.to_string(),
            ZoneArg::local_zone().show_text(source.oldest_at.as_deref().unwrap_or("-")),
            ZoneArg::local_zone().show_text(source.newest_at.as_deref().unwrap_or("-")),
        ]);
    }
    text.push_str(&table.render());
    text.push_str(&print::remarks_text(
        stats.sources.iter().map(|source| (&source.source, retention_text(source))),
    ));
    let lost = stats.plugins.iter().filter(|plugin| plugin.untold > 0);
    text.push_str(&print::remarks_text(lost.map(|plugin| {
        (&plugin.plugin, format!("{} states were removed before the plugin got them", plugin.untold))
    })));
    text
}

fn states_of(count: u64) -> String {
    format!("{count} {}", plural(count, "state", "states"))
}

fn retention_text(source: &SourceStats) -> String {
    let Some(RetentionStats { beyond, may_go, may_go_bytes, held, more, .. }) = &source.retention else {
        return "everything is kept".into();
    };
    let more = if *more { " at least" } else { "" };
    let mut text =
        format!("{beyond} states{more} are beyond its bounds: {may_go} may go ({})", kib_text(*may_go_bytes));
    for (holder, states) in held {
        text.push_str(&format!(", {states} held by {holder}"));
    }
    text
}

// ---- export and import -------------------------------------------------------------------

async fn export_journal(args: ExportArgs) -> CommandResult {
    let place = journal_place(&args.at.journal, &args.at.data)?;
    let query = requested_states(args.states, args.documents);
    let progress = OpeningProgress::default();
    if let Some(file) = args.file {
        let mut file = ExportFile::at_path(file);
        let exporting = kubewitness_journal::export_with(&place, &query, &mut file, &progress);
        let done =
            progress::with_progress("exporting", ProgressUnit::States, || progress.now(), exporting).await;
        let done = match done.with_context(|| place_hint("exporting", &place)) {
            Ok(done) if done.states == 0 => must_be_known(&place, &args.at.data, &query).await.map(|()| done),
            done => done,
        };
        let done = match done {
            Ok(done) => done,
            Err(error) => {
                file.remove().context("removing the file of an export that failed")?;
                return Err(error);
            }
        };
        file.give_name().context("writing the end of the export")?;
        note!("{}", states_of(done.states));
        return Ok(CommandEnd::Fine);
    }
    let mut out = BufWriter::new(PatientWriter::stdout());
    let done = match print::is_on_terminal() {
        // The states themselves are on the terminal.
        true => {
            let mut out = JsonEscaper::new(out);
            kubewitness_journal::export_with(&place, &query, &mut out, &progress).await
        }
        false => {
            let exporting = kubewitness_journal::export_with(&place, &query, &mut out, &progress);
            progress::with_progress("exporting", ProgressUnit::States, || progress.now(), exporting).await
        }
    };
    match done {
        Ok(done) => {
            if done.states == 0 {
                must_be_known(&place, &args.at.data, &query).await?;
            }
            note!("{}", states_of(done.states));
            Ok(CommandEnd::Fine)
        }
        // A reader that has left (`| head`) is not an error.
        Err(ExportError::Write(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(CommandEnd::Fine),
        Err(error) => Err(error).with_context(|| place_hint("exporting", &place)),
    }
}

/// The states that a person requests.
pub fn requested_states(args: StatesArgs, documents: bool) -> ExportQuery {
    ExportQuery {
        source: args.source,
        namespace: args.object.namespace,
        kind: args.object.kind,
        name: args.object.name,
        uid: args.object.uid,
        since_ms: args.times.since.map(MomentArg::as_unix_ms),
        until_ms: args.times.until.map(MomentArg::as_unix_ms),
        after: args.after,
        through: args.through,
        documents,
    }
}

/// Refuses a source or a kind that neither the journal nor the settings know. Called if a query finds
/// nothing.
pub async fn must_be_known(place: &JournalLocation, data: &Path, query: &ExportQuery) -> Result<()> {
    let stats =
        kubewitness_journal::journal_stats(place, &BTreeMap::new(), SystemClock::default().now_ms()).await;
    let stats = stats.with_context(|| place_hint("reading", place))?;
    if stats.states == 0 {
        return Ok(());
    }
    let configured = host_of(data)?.map(|host| host.sources).unwrap_or_default();
    let mut sources: BTreeSet<&str> = stats.sources.iter().map(|source| source.source.as_str()).collect();
    sources.extend(configured.iter().map(|source| source.name.as_str()));
    let source_names = || clean_line(&sources.iter().copied().collect::<Vec<_>>().join(", ")).into_owned();
    if let Some(source) = query.source.as_deref().filter(|source| !sources.contains(source)) {
        bail!("the journal has no source `{}`. Its sources are {}", clean_line(source), source_names());
    }
    let Some(kind) = &query.kind else { return Ok(()) };
    let group = |api_version: &str| api_version.split_once('/').map_or("", |(group, _)| group).to_owned();
    let mut is_known = configured.iter().any(|it| is_kind(&group(&it.api_version), &it.kind, kind));
    if !is_known {
        let of_kind = ExportQuery { kind: Some(kind.clone()), ..ExportQuery::default() };
        let look = |_: &Arc<State>, _| {
            is_known = true;
            ControlFlow::Break(())
        };
        let read = read_states(place, &of_kind, &OpeningProgress::default(), look).await;
        read.with_context(|| place_hint("reading", place))?;
    }
    if !is_known {
        bail!(
            "the journal has no state of the kind `{}`. Its sources are {}",
            clean_line(kind),
            source_names()
        );
    }
    Ok(())
}

/// The target of an import. It has no default, because it must be empty.
fn import_destination(journal: &JournalArgs, data: Option<PathBuf>) -> Result<JournalLocation> {
    let is_embedded = journal.journal_file.is_none() && journal.place.0 == EMBEDDED;
    let Some(data) = data else {
        return match is_embedded {
            true => Err(UsageError::error(
                "no destination is given: name an empty data folder with --data, or a database with --journal",
            )),
            false => journal_place(journal, Path::new("")),
        };
    };
    if is_embedded && data.extension().is_some_and(|extension| extension == "db") {
        return Ok(JournalLocation::file(&data));
    }
    if is_embedded {
        std::fs::create_dir_all(&data).with_context(|| format!("making {}", data.display()))?;
    }
    journal_place(journal, &data)
}

async fn import_journal(args: ImportArgs) -> CommandResult {
    // Opened before a folder is created for it.
    let input = args.file.as_deref().map(open_input).transpose()?;
    let place = import_destination(&args.journal, args.data.clone())?;
    if args.discard {
        kubewitness_journal::discard_unfinished_import(&place).await?;
        note!("the unfinished import in {place} is discarded");
        return Ok(CommandEnd::Fine);
    }
    let (Some(file), Some(mut input)) = (args.file, input) else {
        return Err(UsageError::error("no file is given: name one that `journal export` wrote"));
    };
    if !args.goes_on && place.kind() == EMBEDDED {
        holds_nothing_else(&place, args.data.as_deref()).await?;
    }
    let options = JournalOptions { continues_import: args.goes_on, ..JournalOptions::default() };
    take_in(&file, &mut *input, &place, options).await
}

fn open_input(file: &Path) -> Result<Box<dyn io::BufRead + Send>> {
    if file.as_os_str() == "-" {
        return Ok(Box::new(BufReader::new(io::stdin())));
    }
    let opened = files::open_command_input(file).with_context(|| format!("opening {}", file.display()))?;
    Ok(Box::new(BufReader::new(opened)))
}

/// The files that a folder for a journal may contain: the journal, whose content is checked when it is
/// opened, and what a new file system has.
const FINE: [&str; 6] =
    ["journal.db", "journal.db-journal", "journal.db-wal", "journal.db-shm", "journal.db.lock", "lost+found"];

/// A data folder with other files is in use, or it is the wrong folder.
async fn holds_nothing_else(place: &JournalLocation, data: Option<&Path>) -> Result<()> {
    let Some(folder) = data.filter(|folder| folder.is_dir()) else { return Ok(()) };
    let entries = folder.read_dir().with_context(|| format!("reading {}", folder.display()))?;
    for entry in entries {
        let name = entry.with_context(|| format!("reading {}", folder.display()))?.file_name();
        if FINE.iter().any(|fine| name == *fine) {
            continue;
        }
        // A journal that is not empty has its own message with advice.
        let stats = kubewitness_journal::journal_stats(place, &BTreeMap::new(), 0).await;
        return match stats.is_ok_and(|stats| stats.unfinished || stats.states > 0) {
            true => Ok(()),
            false => bail!(
                "{} holds {} already: name an empty data folder with --data",
                folder.display(),
                name.to_string_lossy()
            ),
        };
    }
    Ok(())
}

async fn take_in(
    file: &Path,
    input: &mut (dyn io::BufRead + Send),
    place: &JournalLocation,
    options: JournalOptions,
) -> CommandResult {
    let journal = kubewitness_journal::Journal::open_at(place, options).await?;
    let taken = AtomicU64::new(0);
    // The size of a pipe is unknown.
    let all = std::fs::metadata(file).map_or(0, |file| file.len());
    let mut input = CountingReader { input, taken: &taken };
    let importing = journal.import_lines(&mut input);
    let now = || (taken.load(Ordering::Relaxed), all);
    let done = progress::with_progress("importing", ProgressUnit::Bytes, now, importing).await;
    let closed = journal.close().await;
    match done {
        Ok(done) => {
            closed.context("closing the journal")?;
            note!("{}, in {place}", states_of(done.states));
            Ok(CommandEnd::Fine)
        }
        Err(error) => bail!("importing {}: {error}", file.display()),
    }
}
