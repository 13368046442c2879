//! The names of people beside a trail: `show` puts them in place of their digests, and `erase` overwrites
//! one. The chain contains only digests, so it stays valid.

use std::collections::{BTreeSet, HashMap};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use kubewitness_core::clock::{Clock, SystemClock};
use kubewitness_core::ledger::{NAME_BYTES, PERSON_BYTES, PERSONS, PersonEntry, persons_file};
use kubewitness_core::{calendar, files};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::verify::verify_files;
use crate::cli::ErasePersonArgs;
use crate::commands::print::{self, clean_line};
use crate::commands::{CommandEnd, CommandResult};

/// How many characters of a digest without a known name are shown.
const SHOWN: usize = 12;

/// A line of the file, and its position.
struct PersonLine {
    offset: u64,
    bytes: usize,
    person: Option<PersonEntry>,
    /// The content of a line that is not an entry, left by a crash or an edit.
    odd: Vec<u8>,
}

/// The names beside some files.
#[derive(Default)]
pub struct PersonFiles(HashMap<String, Option<String>>);

impl PersonFiles {
    /// `None` if no file of names is beside these.
    pub fn open_beside(files: &[PathBuf]) -> Result<Self> {
        let mut all = HashMap::new();
        for path in persons_files(files) {
            if files::look(&path).with_context(|| path.display().to_string())?.is_none() {
                continue;
            }
            for person in person_lines(&path)?.1.into_iter().filter_map(|line| line.person) {
                match person {
                    PersonEntry::Named { digest, name, .. } => all.insert(digest, Some(name)),
                    PersonEntry::Erased { digest, .. } => all.insert(digest, None),
                };
            }
        }
        Ok(Self(all))
    }

    pub fn person_name(&self, digest: &str) -> String {
        match self.0.get(digest) {
            Some(Some(name)) => name.clone(),
            Some(None) => "erased".to_owned(),
            None => format!("digest {}", digest.chars().take(SHOWN).collect::<String>()),
        }
    }
}

fn persons_files(files: &[PathBuf]) -> BTreeSet<PathBuf> {
    files.iter().filter(|file| !files::is_handed_over(file)).map(|file| persons_file(file)).collect()
}

fn person_lines(path: &Path) -> Result<(File, Vec<PersonLine>)> {
    let reading = || format!("reading {}", path.display());
    let file = files::open(path, OpenOptions::new().read(true).write(true))
        .or_else(|_| files::open(path, OpenOptions::new().read(true)))
        .with_context(reading)?;
    let mut reader = BufReader::new(&file);
    let (mut found, mut offset) = (Vec::new(), 0);
    let mut line = Vec::new();
    while reader.by_ref().take(PERSON_BYTES as u64).read_until(b'\n', &mut line).with_context(reading)? > 0 {
        if found.len() >= PERSONS {
            bail!("{} has more than {PERSONS} lines: is it the file of a ledger's names?", path.display());
        }
        let (bytes, person) = (line.len(), PersonEntry::parse(&line));
        let odd = if person.is_none() { line.clone() } else { Vec::new() };
        found.push(PersonLine { offset, bytes, person, odd });
        offset += bytes as u64;
        line.clear();
    }
    drop(reader);
    Ok((file, found))
}

/// The names that are to be erased, or were.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ErasureReport {
    person: String,
    file: String,
    erased: bool,
    /// Lines of that file with the name.
    names: usize,
    /// Half-written lines with the name, left by a crash.
    torn: usize,
    /// Lines that are not entries, without the name.
    odd: usize,
    /// Records with a digest of the name.
    records: u64,
    /// Records that contain the name itself, and stay unchanged.
    in_clear: u64,
    /// Why not every record was counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    uncounted: Option<String>,
}

pub fn erase_person(args: &ErasePersonArgs) -> CommandResult {
    print::print_value(args.output, &erase_from_files(args)?, ErasureReport::text)?;
    Ok(CommandEnd::Fine)
}

fn erase_from_files(args: &ErasePersonArgs) -> Result<ErasureReport> {
    let places: Vec<_> = persons_files(&args.trail.files).into_iter().collect();
    let [path] = places.as_slice() else {
        bail!("these are files of {} ledgers: give the files of one", places.len());
    };
    if files::look(path).with_context(|| path.display().to_string())?.is_none() {
        bail!(
            "there is no {}: run the command in the folder where the controller keeps the ledger and the names beside it",
            path.display()
        );
    }
    let (file, lines) = person_lines(path)?;
    // The plugin cuts longer names.
    let person = &args.person[..args.person.floor_char_boundary(NAME_BYTES)];
    let is_it =
        |line: &&PersonLine| matches!(&line.person, Some(PersonEntry::Named { name, .. }) if *name == person);
    let found: Vec<_> = lines.iter().filter(is_it).collect();
    let (torn, odd): (Vec<_>, Vec<_>) = lines
        .iter()
        .filter(|line| !line.odd.trim_ascii().is_empty())
        .partition(|line| line_names_person(&line.odd, person));
    let digests: BTreeSet<_> =
        found.iter().filter_map(|line| line.person.as_ref()).map(PersonEntry::digest).collect();
    let mut report = ErasureReport {
        person: args.person.clone(),
        file: path.display().to_string(),
        erased: args.yes && !(found.is_empty() && torn.is_empty()),
        names: found.len(),
        torn: torn.len(),
        odd: odd.len(),
        records: 0,
        in_clear: 0,
        uncounted: None,
    };
    count(args, &digests, &mut report)?;
    if report.erased {
        overwrite_lines(&file, found.into_iter().chain(torn))
            .with_context(|| format!("erasing in {}", path.display()))?;
    }
    Ok(report)
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PersonRecord {
    people: HashMap<String, String>,
    persons: HashMap<String, String>,
    patch: Value,
}

fn count(args: &ErasePersonArgs, digests: &BTreeSet<&str>, told: &mut ErasureReport) -> Result<()> {
    let demands = super::proof_demands(&args.trail)?;
    let (mut records, mut in_clear) = (0, 0);
    let report = verify_files(&args.trail.files, &demands, &mut |text| {
        let Ok(record) = serde_json::from_slice::<PersonRecord>(text) else { return };
        records += u64::from(record.persons.values().any(|digest| digests.contains(digest.as_str())));
        let is_named = record.people.values().any(|name| *name == args.person)
            || value_has_text(&record.patch, &args.person);
        in_clear += u64::from(is_named);
    })?;
    (told.records, told.in_clear) = (records, in_clear);
    told.uncounted = match report.ok {
        true => {
            report.files_not_given().map(|files| format!("records of other files are not counted: {files}"))
        }
        false => Some(format!(
            "the trail does not hold, and nothing after this is counted: {} {report}",
            report.bad_file.as_deref().unwrap_or_default()
        )),
    };
    Ok(())
}

/// A record is no deeper than serde_json reads.
fn value_has_text(value: &Value, text: &str) -> bool {
    match value {
        Value::String(own) => own == text,
        Value::Array(items) => items.iter().any(|item| value_has_text(item, text)),
        Value::Object(fields) => fields.values().any(|field| value_has_text(field, text)),
        _ => false,
    }
}

/// Whether a line that is not an entry has the name, as JSON writes it. A last line without a newline may be
/// one that the controller is writing: there the name alone does not suffice, because a longer name may begin
/// with it.
fn line_names_person(line: &[u8], person: &str) -> bool {
    let quoted = Value::from(person).to_string();
    let name = if line.ends_with(b"\n") { quoted.trim_matches('"') } else { &quoted };
    !name.is_empty() && line.windows(name.len()).any(|found| found == name.as_bytes())
}

/// Overwrites in place, because the controller may append lines meanwhile. A crash leaves each line old or
/// erased, and a line across two pages may be torn; the next erasure finds the rest.
fn overwrite_lines<'l>(file: &File, lines: impl Iterator<Item = &'l PersonLine>) -> Result<()> {
    let at = calendar::format_rfc3339(SystemClock::default().now_ms());
    for line in lines {
        match &line.person {
            Some(person) => file.write_all_at(&person.encode_erased_line(&at, line.bytes)?, line.offset)?,
            // Its newline stays, if it has one: the controller cuts off a last line without a newline.
            None => file.write_all_at(&vec![b' '; line.odd.trim_ascii_end().len()], line.offset)?,
        }
    }
    // The controller reads the file again once its modification time has changed; some file systems update
    // that late.
    file.set_modified(SystemTime::now())?;
    Ok(file.sync_all()?)
}

impl ErasureReport {
    fn text(&self) -> String {
        let Self { names, records, in_clear, .. } = self;
        let (person, file) = (clean_line(&self.person), clean_line(&self.file));
        let mut text = match *names {
            0 if self.torn == 0 => {
                format!("{person}: {file} does not have the name, so there is nothing to erase\n")
            }
            0 => format!("{person}: no whole line of {file} has the name\n"),
            1 => format!("{person}: {file} has the name once, and {records} records have a digest of it\n"),
            _ => format!(
                "{person}: {file} has the name {names} times, and {records} records have a digest of it\n"
            ),
        };
        if self.torn > 0 {
            text.push_str(&format!("{} more lines are half written, and have the name\n", self.torn));
        }
        if self.erased {
            text.push_str("erased: these records show `erased` from now on, and the chain holds as before\n");
        } else if names + self.torn > 0 {
            text.push_str("nothing was erased: repeat the command with --yes to erase the name\n");
        }
        if self.odd > 0 {
            text.push_str(&format!(
                "{} lines of {file} say nothing and may have a part of a name: look at them, and put blanks in their place\n",
                self.odd
            ));
        }
        if *in_clear > 0 {
            text.push_str(&format!(
                "{in_clear} records name the person in clear and stay as they are: they are part of the chain\n"
            ));
        }
        if let Some(uncounted) = &self.uncounted {
            text.push_str(&format!("{}\n", clean_line(uncounted)));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use proptest::prelude::*;
    use serde_json::json;

    use super::super::verify::ProofDemands;
    use super::super::verify_tests::{chain_of, ledger};
    use super::*;
    use crate::cli::{Audit, Cli, Command};

    fn args(file: &Path, person: &str, more: &[&str]) -> ErasePersonArgs {
        let file = file.display().to_string();
        let line = [&["kubewitness", "audit", "erase", &file, "--person", person], more].concat();
        match Cli::parse_from(line).command {
            Command::Audit(Audit::Erase(args)) => args,
            other => panic!("{other:?}"),
        }
    }

    fn folder(names: &[&str]) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let trail = folder.path().join("trail.jsonl");
        std::fs::write(&trail, "").unwrap();
        let lines = names
            .iter()
            .zip(1..)
            .map(|(name, salt)| PersonEntry::of_name(name, [salt; 16]).encode_line().unwrap());
        std::fs::write(persons_file(&trail), lines.collect::<Vec<_>>().concat()).unwrap();
        (folder, trail)
    }

    #[test]
    fn a_name_is_erased_in_its_place_and_all_others_stay() {
        let (_folder, trail) = folder(&["ada", "bob", "ada l", "ada"]);
        let digest = |name, salt| PersonEntry::of_name(name, [salt; 16]).digest().to_owned();
        let bytes = std::fs::metadata(persons_file(&trail)).unwrap().len();
        erase_person(&args(&trail, "ada", &[])).unwrap();
        assert_eq!(
            PersonFiles::open_beside(std::slice::from_ref(&trail)).unwrap().person_name(&digest("ada", 1)),
            "ada"
        );
        erase_person(&args(&trail, "ada", &["--yes"])).unwrap();
        let persons = PersonFiles::open_beside(std::slice::from_ref(&trail)).unwrap();
        let shown = [("ada", 1), ("bob", 2), ("ada l", 3), ("ada", 4)];
        let shown = shown.map(|(name, salt)| persons.person_name(&digest(name, salt)));
        assert_eq!(shown, ["erased", "bob", "ada l", "erased"]);
        assert_eq!(std::fs::metadata(persons_file(&trail)).unwrap().len(), bytes);
        assert_eq!(persons.person_name(&"ab".repeat(32)), "digest abababababab");
    }

    #[test]
    fn an_erasure_that_a_crash_broke_off_is_finished_by_the_next_one() {
        let (_folder, trail) = folder(&["ada", "bob", "ada", "a \"da\""]);
        let path = persons_file(&trail);
        let before = std::fs::read(&path).unwrap();
        let whole = |name: &str, salt| PersonEntry::of_name(name, [salt; 16]).encode_line().unwrap();
        let ends: Vec<_> =
            before.iter().zip(1..).filter(|(byte, _)| **byte == b'\n').map(|(_, end)| end).collect();
        // The first line is erased, and the third one up to the end of a page, at any position.
        for torn in 0..=whole("ada", 3).len() {
            let mut left = before.clone();
            let erased = |name: &str, salt| {
                PersonEntry::of_name(name, [salt; 16])
                    .encode_erased_line("2026-11-26T10:00:00.000Z", whole(name, salt).len())
                    .unwrap()
            };
            left[..ends[0]].copy_from_slice(&erased("ada", 1));
            left[ends[1]..ends[1] + torn].copy_from_slice(&erased("ada", 3)[..torn]);
            // The controller was adding a name when the machine failed.
            left.extend_from_slice(&whole("ada", 5)[..whole("ada", 5).len() - 2]);
            std::fs::write(&path, &left).unwrap();
            let report = erase_from_files(&args(&trail, "ada", &["--yes"])).unwrap();
            assert!(report.erased && report.names + report.torn + report.odd <= 2, "{torn}: {report:?}");
            let after = std::fs::read(&path).unwrap();
            assert_eq!(after.len(), left.len(), "{torn}");
            assert!(
                !String::from_utf8_lossy(&after).contains("\"ada"),
                "{torn}: {}",
                String::from_utf8_lossy(&after)
            );
            assert_eq!(after[ends[0]..ends[1]], whole("bob", 2)[..], "{torn}");
            // The rest of the line is reported.
            let third = &after[ends[1]..ends[2]];
            let is_erased = matches!(PersonEntry::parse(third), Some(PersonEntry::Erased { .. }));
            assert!(is_erased || third.trim_ascii().is_empty() || report.odd == 1, "{torn}: {report:?}");
            assert_eq!(erase_from_files(&args(&trail, "ada", &["--yes"])).unwrap().names, 0, "{torn}");
        }
        let report = erase_from_files(&args(&trail, "a \"da\"", &[])).unwrap();
        assert_eq!((report.names, report.torn, report.erased), (1, 0, false));
        // The controller may be writing this one.
        std::fs::write(&path, br#"{"digest":"ab","salt":"07","name":"adam"#).unwrap();
        let report = erase_from_files(&args(&trail, "ada", &["--yes"])).unwrap();
        assert_eq!((report.erased, report.odd), (false, 1));
    }

    #[test]
    fn an_erasure_with_the_open_file_alone_says_that_closed_ones_are_not_counted() {
        let (_folder, trail) = folder(&["ada"]);
        let digest = PersonEntry::of_name("ada", [1; 16]).digest().to_owned();
        let record = |n| format!(r#""id":"{n}","persons":{{"submitter":"{digest}"}}"#);
        let records = chain_of((0..5).map(record), false);
        let files = ledger("0f", &records, 9, 2, None);
        std::fs::write(&trail, files[2].concat()).unwrap();
        let report = erase_from_files(&args(&trail, "ada", &["--yes"])).unwrap();
        assert_eq!((report.erased, report.records), (true, 1));
        let text = report.text();
        assert!(
            text.contains(
                "records of other files are not counted: files 1 to 2 of the ledger were not given"
            ),
            "{text}"
        );
    }

    #[test]
    fn a_long_name_is_found_as_the_plugin_has_cut_it() {
        let name = "é".repeat(200);
        let (_folder, trail) = folder(&[&name[..256]]);
        assert_eq!(erase_from_files(&args(&trail, &name, &[])).unwrap().names, 1);
    }

    const NAMES: [&str; 4] = ["ada", "bob@example.com", "\"quoted\"", "李"];

    fn digest(name: usize) -> String {
        PersonEntry::of_name(NAMES[name], [name as u8 + 1; 16]).digest().to_owned()
    }

    proptest! {
        #[test]
        fn a_trail_holds_as_before_whoever_is_erased(
            records in proptest::collection::vec((0..NAMES.len(), any::<bool>()), 1..40),
            erased in proptest::collection::btree_set(0..NAMES.len(), 0..=NAMES.len()),
        ) {
            let (_folder, trail) = folder(&NAMES);
            let fields = records.iter().enumerate().map(|(index, (name, is_old))| {
                let named = match is_old {
                    true => json!({"people": {"submitter": NAMES[*name]}}),
                    false => json!({"persons": {"submitter": digest(*name)}}),
                };
                let named = named.to_string();
                format!("\"id\":\"state {index}\",{}", &named[1..named.len() - 1])
            });
            std::fs::write(&trail, chain_of(fields, false).concat()).unwrap();
            let files = [trail.clone()];
            let before = verify_files(&files, &ProofDemands::default(), &mut |_| {}).unwrap();
            prop_assert!(before.ok);
            for name in &erased {
                let mut report = erase_from_files(&args(&trail, NAMES[*name], &["--yes"])).unwrap();
                let of_name = |is_old| records.iter().filter(|record| **record == (*name, is_old)).count() as u64;
                prop_assert_eq!((report.records, report.in_clear), (of_name(false), of_name(true)));
                prop_assert!(report.erased && report.uncounted.take().is_none());
            }
            prop_assert_eq!(verify_files(&files, &ProofDemands::default(), &mut |_| {}).unwrap(), before);
            let persons = PersonFiles::open_beside(&files).unwrap();
            for (name, text) in NAMES.iter().enumerate() {
                let expected = if erased.contains(&name) { "erased" } else { text };
                prop_assert_eq!(persons.person_name(&digest(name)), expected);
            }
        }
    }

    #[test]
    fn a_name_in_a_patch_of_an_old_record_is_counted() {
        let (_folder, trail) = folder(&["ada"]);
        let fields =
            r#""id":"a","patch":{"metadata":{"annotations":{"x":["ada"],"y":"adapter"}}}"#.to_owned();
        std::fs::write(&trail, chain_of([fields].into_iter(), false).concat()).unwrap();
        let report = erase_from_files(&args(&trail, "ada", &[])).unwrap();
        assert_eq!((report.erased, report.names, report.in_clear), (false, 1, 1));
        assert!(
            report.text().contains("1 records name the person in clear") && report.text().contains("--yes")
        );
        assert!(report.text().contains("has the name once"), "{}", report.text());
        let nobody = erase_from_files(&args(&trail, "nobody", &[])).unwrap().text();
        assert!(nobody.contains("there is nothing to erase") && !nobody.contains("--yes"), "{nobody}");
    }

    #[test]
    fn a_folder_without_names_is_told_and_the_files_of_two_ledgers_are_refused() {
        let (folder, trail) = folder(&[]);
        let mut two = args(&trail, "ada", &[]);
        two.trail.files.push(folder.path().join("other-000001.jsonl"));
        assert!(erase_person(&two).unwrap_err().to_string().contains("give the files of one"));
        std::fs::remove_file(persons_file(&trail)).unwrap();
        assert!(erase_person(&args(&trail, "ada", &[])).unwrap_err().to_string().contains("there is no"));
    }
}
