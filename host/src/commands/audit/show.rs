//! `audit show`: selected records of a trail, as a table or as they are in the file.

use std::collections::{BTreeMap, VecDeque};

use kubewitness_core::calendar;
use kubewitness_core::kinds::is_kind;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::persons::PersonFiles;
use super::verify::verify_files;
use crate::cli::{MomentArg, Output, ShowTrailArgs};
use crate::commands::print::{self, TextTable, clean_line, note};
use crate::commands::{CommandEnd, CommandResult};

/// The size of records that are held until they are printed: a hundred thousand of the usual ones.
const HELD_BYTES: usize = 64 << 20;

/// The fields that are shown, and by which records are selected. Records of older versions lack some of them.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ShownRecord {
    change: String,
    api_group: String,
    kind: String,
    namespace: String,
    name: String,
    uid: String,
    phase: String,
    reason: String,
    observed_at: String,
    manager: String,
    operation: String,
    people: BTreeMap<String, String>,
    /// Digests of names, whose names are beside the ledger.
    persons: BTreeMap<String, String>,
}

impl ShowTrailArgs {
    fn wants_record(&self, record: &ShownRecord) -> bool {
        let is = |wanted: &Option<String>, value: &str| wanted.as_ref().is_none_or(|wanted| wanted == value);
        let at = calendar::parse_rfc3339_ms(&record.observed_at).unwrap_or_default();
        let Self { object, times, .. } = self;
        is(&object.namespace, &record.namespace)
            && is(&object.name, &record.name)
            && is(&object.uid, &record.uid)
            && is(&self.manager, &record.manager)
            && self.phase.as_ref().is_none_or(|phase| phase.eq_ignore_ascii_case(&record.phase))
            && object.kind.as_ref().is_none_or(|kind| is_kind(&record.api_group, &record.kind, kind))
            && self.person.as_ref().is_none_or(|person| record.people.values().any(|name| name == person))
            && times.since.is_none_or(|since| at >= MomentArg::as_unix_ms(since))
            && times.until.is_none_or(|until| at < MomentArg::as_unix_ms(until))
    }
}

/// The newest of the requested records.
struct NewestRecords {
    records: VecDeque<(ShownRecord, Vec<u8>)>,
    bytes: usize,
    most: usize,
    left_out: u64,
    /// Records with a field of another type.
    unread: u64,
}

impl NewestRecords {
    fn add(&mut self, record: ShownRecord, text: &[u8]) {
        self.bytes += text.len();
        self.records.push_back((record, text.to_vec()));
        while self.records.len() > self.most || self.bytes > HELD_BYTES {
            let Some((_, oldest)) = self.records.pop_front() else { return };
            self.bytes -= oldest.len();
            self.left_out += 1;
        }
    }
}

/// An invalid trail is shown up to its fault, and the command fails.
pub fn show_trail(args: &ShowTrailArgs) -> CommandResult {
    let demands = super::proof_demands(&args.trail)?;
    let persons = PersonFiles::open_beside(&args.trail.files)?;
    let mut found = NewestRecords {
        records: VecDeque::new(),
        bytes: 0,
        most: args.limit as usize,
        left_out: 0,
        unread: 0,
    };
    let report = verify_files(&args.trail.files, &demands, &mut |text| {
        // It is a valid record, but has nothing to show.
        let Ok(mut record) = serde_json::from_slice::<ShownRecord>(text) else {
            found.unread += 1;
            return;
        };
        let named = std::mem::take(&mut record.persons).into_iter();
        record.people.extend(named.map(|(annotation, digest)| (annotation, persons.person_name(&digest))));
        if args.wants_record(&record) {
            found.add(record, text);
        }
    })?;
    let (shown, left) = render_records(args.output, &found)?;
    print::text(&shown)?;
    let unread = found.unread + left;
    if unread > 0 {
        note!(
            "{unread} records can't be shown: a field of theirs has another type than the plugin `audit` writes, or is out of range"
        );
    }
    if found.left_out > 0 {
        let left_out = found.left_out;
        note!("{left_out} older records are left out: ask for less, or raise --limit");
    }
    if let Some(elsewhere) = report.files_not_given().filter(|_| report.ok) {
        note!("records of other files are not shown: {elsewhere}");
    }
    if report.ok {
        return Ok(CommandEnd::Fine);
    }
    let file = report.bad_file.as_deref().unwrap_or_default();
    note!(
        "the trail does not hold, and nothing after this is shown: {} {}",
        clean_line(file),
        clean_line(&report.to_string())
    );
    Ok(CommandEnd::Failed)
}

/// The records in this format, and how many it can't show.
fn render_records(output: Output, found: &NewestRecords) -> anyhow::Result<(String, u64)> {
    let texts = found.records.iter().map(|(_, text)| text.as_slice());
    Ok(match output {
        Output::Table | Output::Wide => (records_table(found.records.iter().map(|(record, _)| record)), 0),
        // As in the files: no number and no order of fields is changed.
        Output::Json => {
            let records: Vec<&RawValue> = texts.map(serde_json::from_slice).collect::<Result<_, _>>()?;
            (print::render_output(output, &records, |_, _| String::new())?, 0)
        }
        Output::Yaml => {
            // A number can be out of range.
            let records: Vec<Value> = texts.filter_map(|text| serde_json::from_slice(text).ok()).collect();
            let left = found.records.len() - records.len();
            (print::render_output(output, &records, |_, _| String::new())?, left as u64)
        }
    })
}

fn records_table<'r>(records: impl Iterator<Item = &'r ShownRecord>) -> String {
    let header =
        ["OBSERVED", "NAMESPACE", "OBJECT", "CHANGE", "PHASE", "REASON", "MANAGER", "OPERATION", "PEOPLE"];
    let mut table = TextTable::new(&header);
    for record in records {
        let people: Vec<_> = record.people.values().map(String::as_str).collect();
        table.push_row([
            record.observed_at.clone(),
            record.namespace.clone(),
            format!("{}/{}", record.kind.to_lowercase(), record.name),
            record.change.clone(),
            record.phase.clone(),
            record.reason.clone(),
            record.manager.clone(),
            record.operation.clone(),
            people.join(", "),
        ]);
    }
    match table.is_empty() {
        true => "no record matches\n".to_owned(),
        false => table.render(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Audit, Cli, Command};

    fn asked(flags: &[&str]) -> ShowTrailArgs {
        let line = [&["kubewitness", "audit", "show", "trail.jsonl"], flags].concat();
        match Cli::parse_from(line).command {
            Command::Audit(Audit::Show(args)) => args,
            other => panic!("{other:?}"),
        }
    }

    fn record() -> ShownRecord {
        let text = r#"{"kind":"Job","api_group":"batch","namespace":"vision","name":"train","uid":"u-1","phase":"Failed",
            "change":"present","observed_at":"2026-11-20T10:00:00.000Z","manager":"kubectl","operation":"Apply",
            "people":{"kubewitness.dev/submitter":"ada"}}"#;
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn records_are_chosen_by_object_manager_person_phase_and_time() {
        for fitting in [
            &[][..],
            &["-n", "vision", "--kind", "jobs", "--name", "train"],
            &["--uid", "u-1"],
            &["--manager", "kubectl"],
            &["--person", "ada"],
            &["--phase", "failed"],
            &["--since", "2026-11-20T10:00:00Z", "--until", "2026-11-20T10:00:01Z"],
        ] {
            assert!(asked(fitting).wants_record(&record()), "{fitting:?}");
        }
        for other in [
            &["-n", "speech"][..],
            &["--kind", "pods"],
            &["--name", "train-2"],
            &["--uid", "u-2"],
            &["--manager", "argo"],
            &["--person", "linus"],
            &["--phase", "Running"],
            &["--since", "2026-11-20T10:00:01Z"],
            &["--until", "2026-11-20T10:00:00Z"],
            &["--manager", "kubectl", "--phase", "Running"],
        ] {
            assert!(!asked(other).wants_record(&record()), "{other:?}");
        }
    }

    #[test]
    fn a_record_of_an_older_version_lacks_a_manager_and_is_shown() {
        let old: ShownRecord =
            serde_json::from_str(r#"{"kind":"Job","name":"a","phase":"Running"}"#).unwrap();
        assert!(asked(&[]).wants_record(&old) && !asked(&["--manager", "x"]).wants_record(&old));
        assert!(records_table([&old].into_iter()).contains("job/a"));
    }

    #[test]
    fn json_is_what_stands_in_the_files_and_yaml_leaves_out_what_it_cannot_hold() {
        let text = br#"{"z":12345678901234567890123,"a":1e400}"#;
        let mut found = NewestRecords { records: VecDeque::new(), bytes: 0, most: 9, left_out: 0, unread: 0 };
        found.add(record(), text);
        found.add(record(), br#"{"z":1}"#);
        let (json, none) = render_records(Output::Json, &found).unwrap();
        assert!(json.contains(std::str::from_utf8(text).unwrap()) && none == 0, "{json}");
        let (yaml, out_of_range) = render_records(Output::Yaml, &found).unwrap();
        assert!(yaml.contains("z: 1") && out_of_range == 1, "{yaml}");
    }

    #[test]
    fn the_newest_records_are_held_up_to_their_number_and_their_bytes() {
        let newest =
            |most| NewestRecords { records: VecDeque::new(), bytes: 0, most, left_out: 0, unread: 0 };
        let mut few = newest(2);
        (0..5).for_each(|_| few.add(record(), b"x"));
        assert_eq!((few.records.len(), few.left_out), (2, 3));
        let mut large = newest(100);
        (0..3).for_each(|_| large.add(record(), &vec![b'x'; HELD_BYTES / 2]));
        assert_eq!((large.records.len(), large.left_out), (2, 1));
    }
}
