//! `kubewitness deadletters`: lists, shows, replays and drops the states that a plugin could not process.

use std::collections::BTreeSet;
use std::io::{self, IsTerminal};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kubewitness_core::clock::{Clock, SystemClock};
use kubewitness_core::views::{
    DeadLetterView, DropView, LetterRecordView, ReplayRequest, ReplayView, StatusView,
};
use kubewitness_core::{Seq, calendar};
use serde::de::DeserializeOwned;

use super::super::client::ApiClient;
use super::super::gaps::uids_with_labels;
use super::super::live::poll;
use super::super::object_name::object_lines;
use super::super::status::plural;
use crate::cli::{DeadLetters, GetOutput, LetterChoice, MomentArg, QueryArgs, ZoneArg};
use crate::commands::print::progress::{self, ProgressUnit};
use crate::commands::print::{self, TextTable, clean_line, note};
use crate::commands::{CommandEnd, CommandResult, UsageError};

/// Dead letters, and records of actions on them: ten answers of the API. With more, a person looks at one
/// plugin at a time.
const MOST: usize = 100_000;
/// The pause between two checks of a replay's progress.
const LOOK: Duration = Duration::from_millis(500);

pub async fn dead_letters(command: DeadLetters) -> CommandResult {
    match command {
        DeadLetters::List { plugin, namespace, all_namespaces: _, selector, dropped, watch, query } => {
            let client = ApiClient::reach_controller(&query.reach).await?;
            let chosen = LetterArgs { plugin, namespace, selector, dropped };
            poll(watch, async || list(&client, &chosen, query.output).await).await
        }
        DeadLetters::Show { seq, plugin, query } => show(seq, plugin.as_deref(), &query).await,
        DeadLetters::Replay { choice, wait, query } => replay(choice, wait, &query).await,
        DeadLetters::Drop { choice, all, query } => drop_chosen(choice, all, &query).await,
        DeadLetters::Records { plugin, query } => show_records(plugin.as_deref(), &query).await,
    }
}

async fn fetch_letters(client: &ApiClient, plugin: Option<&str>) -> Result<Vec<DeadLetterView>> {
    all_of(client, "api/v1/deadletters", plugin).await
}

/// A whole list, of one plugin if it is named.
async fn all_of<T: DeserializeOwned>(client: &ApiClient, path: &str, plugin: Option<&str>) -> Result<Vec<T>> {
    let query: Vec<_> = plugin.map(|name| ("plugin", name)).into_iter().collect();
    let found = client.fetch_list(path, &query, MOST).await?;
    if found.more {
        note!("kubewitness: there are more than {MOST}, and the others are not looked at: name one plugin");
    }
    Ok(found.rows)
}

/// Selects the listed dead letters.
struct LetterArgs {
    plugin: Option<String>,
    namespace: Option<String>,
    selector: Option<String>,
    dropped: bool,
}

async fn list(client: &ApiClient, chosen: &LetterArgs, output: GetOutput) -> Result<String> {
    let mut letters = fetch_letters(client, chosen.plugin.as_deref()).await?;
    let seen = letters.len() as u64;
    let (namespace, dropped) = (chosen.namespace.as_ref(), chosen.dropped);
    letters.retain(|view| {
        view.letter.dropped == dropped && namespace.is_none_or(|wanted| *wanted == view.object.namespace)
    });
    if let Some(selector) = &chosen.selector {
        let uids = uids_with_labels(client, selector, &[]).await?;
        letters.retain(|view| uids.contains(&view.object.uid));
    }
    let Some(output) = output.shape() else {
        return Ok(object_lines(letters.iter().map(|view| &view.object)));
    };
    let none: [(&str, &str); 0] = [];
    let sees_all = match letters.is_empty() {
        true => {
            let status = client.get::<StatusView>("api/v1/status", &none).await;
            status.is_ok_and(|status| sees_all(&status, chosen.plugin.as_deref(), seen))
        }
        false => true,
    };
    print::render_output(output, &letters, |letters, _| {
        let header = ["PLUGIN", "SEQ", "OBJECT", "PHASE", "ATTEMPTS", "LAST", "ERROR"];
        let mut table =
            TextTable::new(&header).with_spare_columns(&["ATTEMPTS", "LAST", "PHASE"]).with_below("ERROR");
        for view in letters {
            let letter = &view.letter;
            table.push_row([
                letter.plugin.clone(),
                letter.seq.to_string(),
                letter_object(view),
                view.phase.clone(),
                letter.attempts.to_string(),
                ZoneArg::local_zone().show_time(letter.last_ms),
                one_line(&letter.error),
            ]);
        }
        if table.is_empty() { no_letters_text(dropped, sees_all) } else { table.render() }
    })
}

/// Whether the answer has all letters. A person who may not see the status may not see every object either,
/// while the figures of plugins count all letters.
fn sees_all(status: &StatusView, plugin: Option<&str>, seen: u64) -> bool {
    let asked = status.plugins.iter().filter(|view| plugin.is_none_or(|name| name == view.name));
    !status.restricted && asked.map(|view| view.dead).sum::<u64>() <= seen
}

fn no_letters_text(dropped: bool, sees_all: bool) -> String {
    let nothing = if dropped { "there are no dropped dead letters" } else { "there are no dead letters" };
    format!("{nothing}{}\n", if sees_all { "" } else { " that you may see" })
}

fn letter_object(view: &DeadLetterView) -> String {
    format!("{}/{}/{}", view.object.namespace, view.object.kind, view.object.name)
}

fn one_line(text: &str) -> String {
    text.chars().take(100).collect::<String>().replace('\n', " ")
}

async fn show(seq: u64, plugin: Option<&str>, args: &QueryArgs) -> CommandResult {
    let mut found = fetch_letters(&ApiClient::reach_controller(&args.reach).await?, plugin).await?;
    found.retain(|view| view.letter.seq == seq);
    if found.is_empty() {
        bail!("no dead letter has the position {seq}: `kubewitness deadletters list` lists them");
    }
    print::print_value(args.output, &found, |found| found.iter().map(letter_text).collect())?;
    Ok(CommandEnd::Fine)
}

fn letter_text(view: &DeadLetterView) -> String {
    let letter = &view.letter;
    let place = match (letter.dropped, letter.replaying) {
        (true, _) => "dropped",
        (false, true) => "being replayed",
        (false, false) => "parked",
    };
    let mut text = format!(
        "{} at {}, {place}\n  state     {}\n  object    {} {}\n  tries     {}, from {} to {}\n  error     {}\n",
        clean_line(&letter.plugin),
        letter.seq,
        clean_line(letter.id.as_str()),
        clean_line(&letter_object(view)),
        clean_line(&view.phase),
        letter.attempts,
        ZoneArg::local_zone().show_time(letter.first_ms),
        ZoneArg::local_zone().show_time(letter.last_ms),
        clean_line(&letter.error),
    );
    if !letter.tries.is_empty() {
        let mut table = TextTable::new(&["TRY", "AT", "TOOK", "ERROR"]).with_below("ERROR");
        for tried in &letter.tries {
            table.push_row([
                tried.attempt.to_string(),
                ZoneArg::local_zone().show_time(tried.at_ms),
                format!("{} ms", tried.took_ms),
                one_line(&tried.error),
            ]);
        }
        text.push_str(&table.render());
    }
    text
}

fn replay_request(choice: LetterChoice) -> ReplayRequest {
    let time = |moment: Option<MomentArg>| moment.map(|moment| calendar::format_rfc3339(moment.as_unix_ms()));
    ReplayRequest {
        plugin: choice.plugin,
        seqs: choice.seq,
        namespace: choice.namespace,
        error: choice.error,
        older_than_seconds: choice.older_than.map(|age| age.0.as_secs()),
        since: time(choice.since),
        until: time(choice.until),
        reason: choice.reason,
        who: choice.who.unwrap_or_else(login_name),
        dry_run: choice.dry_run,
        exactly: choice.yes.flatten(),
    }
}

/// An action on dead letters.
#[derive(Clone, Copy)]
enum LetterAct {
    Replay,
    Drop,
}

impl LetterAct {
    fn path(self) -> &'static str {
        match self {
            Self::Replay => "api/v1/deadletters/replay",
            Self::Drop => "api/v1/deadletters/drop",
        }
    }

    async fn count(self, client: &ApiClient, request: &ReplayRequest) -> Result<u64> {
        let request = ReplayRequest { dry_run: true, exactly: None, ..request.clone() };
        Ok(match self {
            Self::Replay => client.post_json::<ReplayView>(self.path(), &request).await?.replayed,
            Self::Drop => client.post_json::<DropView>(self.path(), &request).await?.dropped,
        })
    }

    /// Whether `--yes` confirms so many without their number. A drop is for good, so it takes the number, as in the
    /// portal.
    fn is_confirmed_by_yes(self, count: u64) -> bool {
        matches!(self, Self::Replay) || count <= 1
    }

    fn confirmation_question(self, count: u64, plugin: &str) -> String {
        let letters = plural(count, "dead letter", "dead letters");
        let plugin = clean_line(plugin);
        match self {
            Self::Replay => format!("This replays {count} {letters} of {plugin}."),
            Self::Drop => format!("This drops {count} {letters} of {plugin}, for good."),
        }
    }
}

/// A request without positions states how many dead letters it is meant for: the number that the person
/// confirmed. The controller refuses it if the number has changed.
async fn confirm_request(
    client: &ApiClient,
    act: LetterAct,
    request: ReplayRequest,
    is_sure: bool,
) -> Result<ReplayRequest> {
    if !request.is_unconfirmed() {
        return Ok(request);
    }
    let count = act.count(client, &request).await?;
    if count > 0 && !(is_sure && act.is_confirmed_by_yes(count)) {
        let question = act.confirmation_question(count, &request.plugin);
        if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
            return Err(UsageError::error(format!(
                "{question} Nothing was changed, because nobody can be asked: say --yes={count} if you mean them all, or \
                 choose by --seq"
            )));
        }
        note!("{question} Type {count} to go on:");
        if !is_confirmed(&typed_line().await?, count) {
            bail!("nothing was changed: the number {count} was not typed");
        }
    }
    Ok(ReplayRequest { exactly: Some(count), ..request })
}

async fn typed_line() -> Result<String> {
    let read = || {
        let mut line = String::new();
        io::stdin().read_line(&mut line).map(|_| line)
    };
    Ok(tokio::task::spawn_blocking(read).await??)
}

fn is_confirmed(typed: &str, count: u64) -> bool {
    typed.trim().parse() == Ok(count)
}

/// The login name of the person who runs this command, or the numeric id if it has no name.
pub(super) fn login_name() -> String {
    let name = ["USER", "LOGNAME"].into_iter().find_map(|name| std::env::var(name).ok());
    let number = || std::fs::metadata("/proc/self").map(|process| format!("uid {}", process.uid()));
    name.filter(|name| !name.trim().is_empty()).or_else(|| number().ok()).unwrap_or_default()
}

async fn replay(choice: LetterChoice, wait: bool, args: &QueryArgs) -> CommandResult {
    let client = ApiClient::reach_controller(&args.reach).await?;
    let is_sure = choice.yes.is_some();
    let request = confirm_request(&client, LetterAct::Replay, replay_request(choice), is_sure).await?;
    let wait = wait && !request.dry_run;
    let chosen = if wait { letters_to_follow(&client, &request).await? } else { BTreeSet::new() };
    let view: ReplayView = client.post_json(LetterAct::Replay.path(), &request).await?;
    print::print_value(args.output, &view, |view| done_text(view.replayed, view.dry_run, "replayed"))?;
    if wait && view.replayed > 0 {
        return follow_replay(&client, &request.plugin, view.replayed, &chosen).await;
    }
    Ok(CommandEnd::Fine)
}

/// The letters whose end the command awaits. The answer to a replay counts them but does not list them. If
/// the person may replay letters that they may not list, the command fails before anything is replayed.
async fn letters_to_follow(client: &ApiClient, request: &ReplayRequest) -> Result<BTreeSet<Seq>> {
    let listed = fetch_letters(client, Some(&request.plugin)).await;
    let listed = listed
        .context("nothing was replayed: --wait lists the dead letters, and without it none is listed")?;
    let chosen = matching_positions(request, &listed)?;
    let counted = LetterAct::Replay.count(client, request).await?;
    let seen = chosen.len() as u64;
    if counted > seen {
        let letters = plural(counted, "dead letter", "dead letters");
        bail!(
            "nothing was replayed: of {counted} {letters} you see {seen}, so --wait can't tell how the others end. Leave \
             --wait out, or let somebody do it who may list the objects"
        );
    }
    Ok(chosen)
}

/// The positions of the parked letters that a request replays.
fn matching_positions(request: &ReplayRequest, letters: &[DeadLetterView]) -> Result<BTreeSet<Seq>> {
    let holds = request
        .letter_filter(SystemClock::default().now_ms())
        .map_err(|error| UsageError::error(error.to_string()))?;
    let chosen = letters.iter().filter(|DeadLetterView { letter, object, .. }| {
        let is_named = request.seqs.is_empty() || request.seqs.contains(&letter.seq);
        is_named && !letter.dropped && !letter.replaying && holds(letter, &object.namespace)
    });
    Ok(chosen.map(|view| view.letter.seq).collect())
}

/// How many of these are still in their lanes, and how many are parked again. A letter in neither list was
/// delivered.
fn left_and_parked(chosen: &BTreeSet<Seq>, letters: &[DeadLetterView]) -> (u64, u64) {
    let of_them = letters.iter().map(|view| &view.letter).filter(|letter| chosen.contains(&letter.seq));
    of_them.fold((0, 0), |(left, parked), letter| match (letter.replaying, letter.dropped) {
        (true, _) => (left + 1, parked),
        (false, false) => (left, parked + 1),
        (false, true) => (left, parked),
    })
}

/// Reports the progress of a replay on standard error until every letter was delivered or parked again.
async fn follow_replay(
    client: &ApiClient,
    plugin: &str,
    replayed: u64,
    chosen: &BTreeSet<Seq>,
) -> CommandResult {
    let mut last_reported = u64::MAX;
    loop {
        let letters = fetch_letters(client, Some(plugin)).await?;
        let (left, parked) = left_and_parked(chosen, &letters);
        let tried = replayed.saturating_sub(left);
        match progress::is_seen() {
            true if left > 0 => {
                let width = print::width_of(&io::stderr());
                progress::draw_line(&progress::progress_line(
                    "replaying",
                    ProgressUnit::States,
                    tried,
                    replayed,
                    width,
                ));
            }
            true => progress::draw_line(""),
            false if left != last_reported => note!("{tried} of {replayed} tried again"),
            false => {}
        }
        last_reported = left;
        if left == 0 {
            note!("{parked} parked again");
            return Ok(if parked == 0 { CommandEnd::Fine } else { CommandEnd::Warned });
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn drop_chosen(choice: LetterChoice, all: bool, args: &QueryArgs) -> CommandResult {
    let is_chosen = !choice.seq.is_empty()
        || choice.namespace.is_some()
        || choice.error.is_some()
        || choice.older_than.is_some()
        || choice.since.is_some()
        || choice.until.is_some();
    if !is_chosen && !all {
        return Err(UsageError::error(
            "a drop is for good: choose by --seq, --namespace, --error, --older-than, --since or --until, or say --all",
        ));
    }
    let client = ApiClient::reach_controller(&args.reach).await?;
    let is_sure = choice.yes.is_some();
    let request = confirm_request(&client, LetterAct::Drop, replay_request(choice), is_sure).await?;
    let view: DropView = client.post_json(LetterAct::Drop.path(), &request).await?;
    print::print_value(args.output, &view, |view| done_text(view.dropped, view.dry_run, "dropped"))?;
    Ok(CommandEnd::Fine)
}

fn done_text(count: u64, dry_run: bool, done: &str) -> String {
    match (count, dry_run, done) {
        (0, _, _) => "no dead letter matches, or each one is being replayed already\n".into(),
        (count, true, _) => format!("{count} would be {done}\n"),
        (count, false, "replayed") => format!("{count} being replayed\n"),
        (count, false, _) => format!("{count} {done}\n"),
    }
}

async fn show_records(plugin: Option<&str>, args: &QueryArgs) -> CommandResult {
    let client = ApiClient::reach_controller(&args.reach).await?;
    let records: Vec<LetterRecordView> = all_of(&client, "api/v1/deadletters/records", plugin).await?;
    print::print_value(args.output, &records, |records| {
        let mut table = TextTable::new(&["AT", "WHAT", "PLUGIN", "STATES", "WHO", "WHY"])
            .with_spare_columns(&["STATES", "AT"])
            .with_below("WHY");
        for record in records {
            table.push_row([
                ZoneArg::local_zone().show_text(&record.at),
                record.what.clone(),
                record.plugin.clone(),
                // A pause and a resume concern no states.
                match record.what.as_str() {
                    "pause" | "resume" => String::new(),
                    _ => record.seqs.len().to_string(),
                },
                record.who.clone(),
                one_line(&record.why),
            ]);
        }
        if table.is_empty() {
            "nothing was replayed, dropped, paused or resumed\n".into()
        } else {
            table.render()
        }
    })?;
    Ok(CommandEnd::Fine)
}

#[cfg(test)]
mod tests {
    use kubewitness_core::views::PluginView;

    use super::*;
    use crate::commands::api::testing;

    #[test]
    fn nothing_done_does_not_read_like_a_success() {
        assert!(done_text(0, false, "replayed").starts_with("no dead letter matches"));
        assert_eq!(done_text(2, true, "dropped"), "2 would be dropped\n");
        assert_eq!(done_text(2, false, "replayed"), "2 being replayed\n");
        assert_eq!(done_text(2, false, "dropped"), "2 dropped\n");
    }

    #[test]
    fn a_change_of_many_is_confirmed_by_their_number_alone() {
        assert!(is_confirmed("243\n", 243));
        for typed in ["", "y\n", "yes\n", "24\n", "-243\n"] {
            assert!(!is_confirmed(typed, 243), "{typed}");
        }
        assert_eq!(LetterAct::Drop.confirmation_question(1, "p"), "This drops 1 dead letter of p, for good.");
    }

    #[tokio::test]
    async fn a_drop_of_many_takes_their_number_and_a_replay_does_not() {
        let confirm = async |act: LetterAct, count: u64| {
            let client = testing::client(
                move |_| serde_json::json!({"replayed": count, "dropped": count, "who": "ana", "dry_run": true}),
            );
            let request = ReplayRequest { plugin: "p".into(), ..ReplayRequest::default() };
            confirm_request(&client.await, act, request, true).await.map(|request| request.exactly)
        };
        assert_eq!(confirm(LetterAct::Replay, 243).await.unwrap(), Some(243));
        assert_eq!(confirm(LetterAct::Drop, 1).await.unwrap(), Some(1));
        // Nobody can be asked in a test, unless it runs on a terminal.
        if !io::stdin().is_terminal() {
            let refused = confirm(LetterAct::Drop, 243).await.unwrap_err();
            assert!(refused.is::<UsageError>() && refused.to_string().contains("--yes=243"), "{refused}");
        }
    }

    #[test]
    fn a_replay_counts_the_letters_that_it_took_back_and_no_others() {
        let letter = |seq: Seq, namespace: &str, replaying: bool| -> DeadLetterView {
            serde_json::from_value(serde_json::json!({
                "plugin": "p", "seq": seq, "id": "jobs/0/x", "attempts": 2, "error": "unavailable: no way",
                "first_ms": 0, "last_ms": 1000, "phase": "Failed", "replaying": replaying, "dropped": seq == 9,
                "object": {"group": "batch", "version": "v1", "kind": "Job", "namespace": namespace, "name": "x", "uid": "u"},
            }))
            .unwrap()
        };
        let parked =
            [letter(7, "a", false), letter(8, "b", false), letter(9, "a", false), letter(10, "a", true)];
        let of = |request: &ReplayRequest| matching_positions(request, &parked).unwrap();
        let by_seq = of(&ReplayRequest { seqs: vec![7, 9, 10], ..ReplayRequest::default() });
        assert_eq!(by_seq, [7].into());
        let by_place = of(&ReplayRequest {
            namespace: Some("b".into()),
            error: Some("unavailable".into()),
            ..ReplayRequest::default()
        });
        assert_eq!(by_place, [8].into());
        let wrong = ReplayRequest { since: Some("noon".into()), ..ReplayRequest::default() };
        assert!(matching_positions(&wrong, &parked).unwrap_err().is::<UsageError>());
        assert_eq!(left_and_parked(&by_seq, &[letter(7, "a", true), letter(8, "b", false)]), (1, 0));
        assert_eq!(left_and_parked(&by_seq, &[letter(8, "b", false)]), (0, 0), "another letter says nothing");
        assert_eq!(left_and_parked(&by_seq, &parked), (0, 1));
    }

    #[tokio::test]
    async fn whoever_may_replay_what_they_may_not_list_is_told_before_anything_is_replayed() {
        let client = testing::client(|asked| match asked.contains("replay") {
            true => serde_json::json!({"replayed": 2, "who": "ana", "dry_run": true}),
            false => serde_json::json!([]),
        });
        let error =
            letters_to_follow(&client.await, &ReplayRequest::default()).await.unwrap_err().to_string();
        assert!(
            error.contains("nothing was replayed") && error.contains("of 2 dead letters you see 0"),
            "{error}"
        );
        let client = testing::client(|asked| match asked.contains("replay") {
            true => serde_json::json!({"replayed": 0, "who": "ana", "dry_run": true}),
            false => serde_json::json!([]),
        });
        assert!(letters_to_follow(&client.await, &ReplayRequest::default()).await.unwrap().is_empty());
    }

    #[test]
    fn whoever_sees_not_all_letters_is_not_told_that_there_are_none() {
        let plugin = |name: &str, dead| PluginView { name: name.into(), dead, ..PluginView::default() };
        let status = StatusView { plugins: vec![plugin("a", 0), plugin("b", 3)], ..StatusView::default() };
        let text_for = |plugin, seen| no_letters_text(false, sees_all(&status, plugin, seen));
        assert_eq!(text_for(Some("a"), 0), "there are no dead letters\n");
        assert_eq!(text_for(None, 3), "there are no dead letters\n");
        assert_eq!(text_for(None, 2), "there are no dead letters that you may see\n");
        assert_eq!(text_for(Some("b"), 0), "there are no dead letters that you may see\n");
        let restricted = StatusView { restricted: true, ..StatusView::default() };
        assert!(!sees_all(&restricted, None, 0));
        assert_eq!(no_letters_text(true, true), "there are no dropped dead letters\n");
        assert_eq!(no_letters_text(true, false), "there are no dropped dead letters that you may see\n");
    }

    #[test]
    fn a_letter_tells_each_of_its_tries() {
        let letter = serde_json::json!({
            "plugin": "p", "seq": 7, "id": "jobs/0/x", "attempts": 2, "error": "no\u{1b}[2J table", "first_ms": 0,
            "last_ms": 1000, "phase": "Failed",
            "tries": [
                {"attempt": 1, "at_ms": 0, "took_ms": 12, "error": "timed out"},
                {"attempt": 2, "at_ms": 1000, "took_ms": 3, "error": "no table"},
            ],
            "object": {"group": "batch", "version": "v1", "kind": "Job", "namespace": "team", "name": "x", "uid": "u"},
        });
        let text = letter_text(&serde_json::from_value(letter).unwrap());
        assert!(text.starts_with("p at 7, parked\n"), "{text}");
        let first = format!("\n1     {}   12 ms   timed out\n", ZoneArg::local_zone().show_time(0));
        assert!(text.contains(&first), "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
    }
}
