//! Tests of the trail against a ledger in memory.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

use kubewitness_sdk::testing;
use schemars::generate::SchemaSettings;
use serde_json::Value;

use super::*;

/// A ledger in memory, with documents that a test can make unreadable.
#[derive(Default)]
struct Host {
    records: RefCell<Vec<Vec<u8>>>,
    unreadable: Option<(u64, Error)>,
    concealed: RefCell<Vec<String>>,
}

/// Managers of an object that a change touches.
const MANAGED: &str = r#"[
    {"manager":"kubectl","operation":"Apply","time":"2026-11-20T10:00:00Z"},
    {"manager":"kube-controller-manager","operation":"Update","time":"2026-11-20T10:00:05Z","subresource":"status"},
    {"manager":"argo","operation":"Update","time":"2026-11-20T09:00:00Z"}]"#;

impl testing::Host for Host {
    fn document_value(&self, seq: u64, pointer: &str) -> Result<Option<String>, Error> {
        self.document(seq)?;
        Ok(match pointer {
            "/metadata/annotations/kubewitness.dev~1submitter" => Some("\"ada\"".to_owned()),
            "/metadata/annotations/long" => Some(format!("\"{}\"", "é".repeat(300))),
            "/metadata/annotations/number" => Some("7".to_owned()),
            _ => None,
        })
    }

    fn document_patch(&self, seq: u64) -> Result<Option<String>, Error> {
        Ok(Some(match seq {
            1 => "{ \"spec\": {\"suspend\": false, \"hash\": \"x\"} }".to_owned(),
            3 => r#"{"metadata":{"annotations":{"kubewitness.dev/submitter":"ada","other":"ada","long":null}},
                "spec":{"jobs":[{"template":{"metadata":{"annotations":{"kubewitness.dev/submitter":"grace"}}}}],
                "kubewitness.dev/submitter":"no annotation"}}"#
                .to_owned(),
            // A change by a manager, the beginning of a deletion, and a change that takes the last manager away.
            5 => format!(r#"{{"metadata":{{"managedFields":{MANAGED}}}}}"#),
            6 => format!(r#"{{"metadata":{{"deletionTimestamp":"2026-11-20T10:00:07Z","managedFields":{MANAGED}}}}}"#),
            7 => r#"{"metadata":{"managedFields":null}}"#.to_owned(),
            4 => {
                let name = |n| format!(r#"{{"annotations":{{"kubewitness.dev/submitter":"{}"}}}}"#, "a".repeat(n));
                format!("[{}]", (1..=20).chain([1]).map(name).collect::<Vec<_>>().join(","))
            }
            _ => format!("{{\"metadata\":\"{}\"}}", "x".repeat(70_000)),
        }))
    }

    fn document(&self, seq: u64) -> Result<Option<String>, Error> {
        match &self.unreadable {
            Some((unreadable, error)) if *unreadable == seq => Err(error.clone()),
            _ => Ok(Some(format!("{{\"seq\":{seq}}}"))),
        }
    }

    fn ledger_append(&self, ledger: &str, records: &[Vec<u8>]) -> Result<u64, Error> {
        assert_eq!(ledger, "trail");
        self.records.borrow_mut().extend_from_slice(records);
        Ok(self.records.borrow().len() as u64)
    }

    fn ledger_last(&self, _: &str) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.records.borrow().last().cloned())
    }

    fn conceal(&self, ledger: &str, name: &str) -> Result<String, Error> {
        assert_eq!(ledger, "trail");
        self.concealed.borrow_mut().push(name.to_owned());
        Ok(format!("digest of {}", name.len()))
    }

    fn ledger_sign(&self, key: &str, message: &[u8]) -> Result<Vec<u8>, Error> {
        assert_eq!((key, message.len()), ("trail", 64));
        Ok(vec![0xab; 2])
    }
}

fn handle(host: &Rc<Host>, config: &Config, seqs: &[u64]) -> Vec<Verdict> {
    let states: Vec<_> = seqs.iter().map(|seq| testing::state(*seq, "a", "Running")).collect();
    testing::with_host(host.clone(), || Audit::handle(config, &states))
}

fn lines(host: &Rc<Host>) -> Vec<(String, Value)> {
    let records = host.records.borrow();
    let line = |record: &Vec<u8>| {
        (String::from_utf8(record.clone()).unwrap(), serde_json::from_slice(record).unwrap())
    };
    records.iter().map(line).collect()
}

#[test]
fn lines_are_chained_over_batches() {
    let host = Rc::new(Host::default());
    assert_eq!(handle(&host, &Config::default(), &[1, 2]), [Verdict::Done, Verdict::Done]);
    handle(&host, &Config::default(), &[3]);
    let mut prev = "0".repeat(64);
    for (index, (text, line)) in lines(&host).into_iter().enumerate() {
        assert_eq!(
            (line["n"].as_u64(), line["prev"].as_str()),
            (Some(index as u64 + 1), Some(prev.as_str()))
        );
        // As `line` describes it: over the hash before, and the text without the hash.
        let (body, _) = text.rsplit_once(",\"hash\":").unwrap();
        prev = hex::encode(Sha256::digest(format!("{prev}{body}}}")));
        assert_eq!(line["hash"], prev.as_str());
    }
    assert_eq!(lines(&host).len(), 3);
}

#[test]
fn a_line_says_what_was_witnessed() {
    let host = Rc::new(Host::default());
    let mut state = testing::state(7, "train", "Running");
    state.change = Change::Gone;
    testing::with_host(host.clone(), || Audit::handle(&Config::default(), &[state]));
    let (text, line) = lines(&host).remove(0);
    assert!(text.starts_with("{\"n\":1,\"prev\":\"000"), "{text}");
    assert_eq!(
        (&line["change"], &line["phase"], &line["seq"]),
        (&"gone".into(), &"Deleted".into(), &7.into())
    );
    assert_eq!(line["document_sha256"], hex::encode(Sha256::digest("{\"seq\":7}")));
    assert_eq!(line["observed_at"], "1970-01-01T00:00:00.000Z");
}

#[test]
fn a_batch_is_signed_on_its_last_line() {
    let host = Rc::new(Host::default());
    let config = Config { sign: true, documents: false, ..Config::default() };
    handle(&host, &config, &[1, 2]);
    let lines = lines(&host);
    assert_eq!((&lines[0].1["signature"], &lines[1].1["signature"]), (&Value::Null, &"abab".into()));
    assert!(lines[1].0.ends_with(",\"signature\":\"abab\"}"));
    assert_eq!(lines[1].1["document_sha256"], Value::Null);
    handle(&host, &config, &[3]);
}

#[test]
fn a_state_whose_document_cannot_be_read_now_waits_and_the_chain_goes_on() {
    let host = Rc::new(Host { unreadable: Some((2, Error::Unavailable("slow".into()))), ..Host::default() });
    let verdicts = handle(&host, &Config::default(), &[1, 2, 3]);
    assert!(matches!(verdicts.as_slice(), [Verdict::Done, Verdict::Retry(_), Verdict::Done]), "{verdicts:?}");
    let numbers: Vec<_> =
        lines(&host).iter().map(|(_, line)| (line["n"].as_u64(), line["seq"].as_u64())).collect();
    assert_eq!(numbers, [(Some(1), Some(1)), (Some(2), Some(3))]);
}

#[test]
fn a_document_that_is_no_text_leaves_its_hash_out() {
    let host = Rc::new(Host { unreadable: Some((1, Error::Invalid("not UTF-8".into()))), ..Host::default() });
    assert_eq!(handle(&host, &Config::default(), &[1]), [Verdict::Done]);
    assert_eq!(lines(&host)[0].1["document_sha256"], Value::Null);
}

#[test]
fn a_ledger_of_something_else_is_not_continued() {
    let host = Rc::new(Host::default());
    host.records.borrow_mut().push(b"hello".to_vec());
    let verdicts = handle(&host, &Config::default(), &[1]);
    assert!(
        matches!(&verdicts[0], Verdict::Retry(retry) if retry.reason.contains("last line")),
        "{verdicts:?}"
    );
    assert_eq!(host.records.borrow().len(), 1);
}

#[test]
fn the_digest_of_the_host_is_what_the_line_holds_and_no_document_is_read() {
    let host = Rc::new(Host { unreadable: Some((1, Error::Unavailable("slow".into()))), ..Host::default() });
    let mut state = testing::state(1, "a", "Running");
    state.extra.push(("documentDigest".into(), "ab".repeat(32)));
    let config = Config { managers: false, people: vec![], ..Config::default() };
    let verdicts = testing::with_host(host.clone(), || Audit::handle(&config, &[state]));
    assert_eq!(verdicts, [Verdict::Done]);
    let (text, line) = lines(&host).remove(0);
    assert_eq!(line["document_sha256"], "ab".repeat(32));
    // As lines were before there was more to ask for.
    assert!(text.contains(&format!("\"document_sha256\":\"{}\",\"hash\":", "ab".repeat(32))), "{text}");
}

#[test]
fn a_line_names_the_person_and_the_newest_field_manager_that_the_change_touches() {
    let host = Rc::new(Host::default());
    handle(&host, &Config::default(), &[5]);
    let line = &lines(&host)[0].1;
    assert_eq!((&line["manager"], &line["operation"]), (&"kube-controller-manager".into(), &"Update".into()));
    assert_eq!(line["persons"]["kubewitness.dev/submitter"], "digest of 3");
    assert_eq!(
        (&line["people"], host.concealed.borrow().as_slice()),
        (&Value::Null, &["ada".to_owned()][..])
    );
    assert_eq!((&line["patch"], &line["patch_sha256"]), (&Value::Null, &Value::Null));
}

#[test]
fn a_change_that_touches_no_manager_or_begins_a_deletion_names_none() {
    let host = Rc::new(Host::default());
    handle(&host, &Config::default(), &[1, 6, 7]);
    let lines = lines(&host);
    assert_eq!(lines.len(), 3);
    for (text, line) in lines {
        assert!(line.get("manager").is_none() && line.get("operation").is_none(), "{text}");
    }
    let host = Rc::new(Host::default());
    handle(&host, &Config { managers: false, ..Config::default() }, &[5]);
    assert!(self::lines(&host)[0].1.get("manager").is_none());
}

#[test]
fn a_deletion_names_nobody_because_the_object_does_not_say_who_deleted_it() {
    let host = Rc::new(Host::default());
    let mut state = testing::state(1, "a", "Running");
    state.change = Change::Gone;
    testing::with_host(host.clone(), || Audit::handle(&Config::default(), &[state]));
    let line = &lines(&host)[0].1;
    assert!(line.get("manager").is_none() && line.get("persons").is_none(), "{line}");
}

#[test]
fn the_change_is_kept_as_its_digest_or_as_a_patch_up_to_its_bound() {
    let host = Rc::new(Host::default());
    let with = |change| Config { change, ..Config::default() };
    handle(&host, &with(ChangeKept::Digest), &[1]);
    handle(&host, &with(ChangeKept::Patch), &[1, 2]);
    let lines: Vec<_> = lines(&host).into_iter().map(|(_, line)| line).collect();
    let digest = hex::encode(Sha256::digest("{ \"spec\": {\"suspend\": false, \"hash\": \"x\"} }"));
    assert_eq!((&lines[0]["patch_sha256"], &lines[0]["patch"]), (&digest.clone().into(), &Value::Null));
    assert_eq!(
        (&lines[1]["patch_sha256"], &lines[1]["patch"]["spec"]["suspend"]),
        (&digest.into(), &false.into())
    );
    assert!(lines[2]["patch_sha256"].is_string() && lines[2].get("patch").is_none());
}

#[test]
fn of_one_patch_only_some_names_are_concealed_and_each_of_them_once() {
    let host = Rc::new(Host::default());
    let config = Config { change: ChangeKept::Patch, ..Config::default() };
    assert_eq!(handle(&host, &config, &[4]), [Verdict::Done]);
    let patch = lines(&host)[0].1["patch"].clone();
    let name = |at: usize| patch[at]["annotations"]["kubewitness.dev/submitter"].clone();
    assert_eq!(
        (name(0), name(7), name(20)),
        ("digest of 1".into(), "digest of 8".into(), "digest of 1".into())
    );
    assert_eq!(name(8), "a name (not recorded: the patch has more than 8)");
    // The person of the object itself is one more.
    assert_eq!(host.concealed.borrow().len(), 9);
}

#[test]
fn a_patch_and_its_digest_have_no_name_in_them() {
    let host = Rc::new(Host::default());
    handle(&host, &Config { change: ChangeKept::Patch, ..Config::default() }, &[3]);
    let line = &lines(&host)[0].1;
    let annotations = &line["patch"]["metadata"]["annotations"];
    assert_eq!(annotations["kubewitness.dev/submitter"], "digest of 3");
    assert_eq!(annotations["other"], "ada", "nobody said that it names a person");
    let spec = &line["patch"]["spec"];
    let annotations = &spec["jobs"][0]["template"]["metadata"]["annotations"];
    assert_eq!(annotations["kubewitness.dev/submitter"], "digest of 5", "a template has annotations too");
    assert_eq!(spec["kubewitness.dev/submitter"], "no annotation");
    assert_eq!(line["patch_sha256"], hex::encode(Sha256::digest(line["patch"].to_string())));
}

#[test]
fn names_have_a_bound_and_what_is_no_text_names_nobody() {
    let host = Rc::new(Host::default());
    let people = ["long", "number", "missing"].map(String::from).to_vec();
    handle(&host, &Config { people, ..Config::default() }, &[1]);
    let line = &lines(&host)[0].1;
    assert_eq!(line["persons"]["long"], "digest of 256");
    assert_eq!(line["persons"].as_object().map(serde_json::Map::len), Some(1));
}

#[test]
fn wrong_settings_of_people_are_refused_by_their_field() {
    let told = |people: Vec<String>| {
        Audit::check(&Config { people, ..Config::default() })
            .into_iter()
            .map(|wrong| wrong.path)
            .collect::<Vec<_>>()
    };
    assert_eq!(told(vec!["a".into(); PEOPLE]), [] as [&str; 0]);
    assert_eq!(told(vec!["a".into(); PEOPLE + 1]), ["people"]);
    assert_eq!(told(vec![String::new()]), ["people"]);
}

/// `cargo xtask docs` writes the file, and this test compares it.
#[test]
fn the_reference_of_the_configuration_is_what_the_types_say() {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let schema = settings.into_generator().into_root_schema_for::<Config>();
    let made = serde_json::to_string_pretty(&schema).unwrap() + "\n";
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/config.schema.json");
    if std::env::var_os("KUBEWITNESS_WRITE_DOCS").is_some() {
        return std::fs::write(file, made).unwrap();
    }
    let committed = std::fs::read_to_string(&file).unwrap();
    assert!(committed == made, "{} is not what the code says: run `cargo xtask docs`", file.display());
}
