//! Faults of the configuration.

use super::*;

fn faults(config: &str) -> Vec<String> {
    match serde_json::from_str::<Config>(config) {
        Ok(config) => Persistence::check(&config)
            .into_iter()
            .map(|fault| format!("{}: {}", fault.path, fault.message))
            .collect(),
        Err(error) => vec![error.to_string()],
    }
}

fn of_column(name: &str, pointer: &str) -> Vec<String> {
    faults(&format!(r#"{{"columns": [{{"name": "{name}", "pointer": "{pointer}", "type": "text"}}]}}"#))
}

#[test]
fn what_is_right_has_no_faults() {
    assert_eq!(faults("{}"), [] as [&str; 0]);
    assert_eq!(faults(r#"{"prefix": "batch_", "create": false, "index": true}"#), [] as [&str; 0]);
    assert_eq!(of_column("queue", "/metadata/labels/kueue.x-k8s.io~1queue-name"), [] as [&str; 0]);
}

#[test]
fn a_columns_name_is_its_own_and_the_error_says_how_to_write_it() {
    for (name, says) in [
        ("", "columns[0].name: write a letter"),
        ("Queue", "all in lower case"),
        ("a-b", "letters, digits and underscores"),
        ("1st", "write a letter"),
        ("pg_x", "pg_"),
        ("binary_upgrade_x", "binary_upgrade_"),
        ("my_kubewitness_x", "kubewitness_"),
        ("phase", "have a column `phase` of their own"),
        ("previous_phase", "of their own"),
        ("owner_uid", "of their own"),
        ("document", "of their own"),
        ("rowid", "databases have a column `rowid` of their own"),
        ("_rowid_", "write a letter"),
        ("tableoid", "databases have a column"),
        ("xmin", "databases have a column"),
    ] {
        let faults = of_column(name, "/a");
        assert!(faults.len() == 1 && faults[0].contains(says), "{name}: {faults:?}");
    }
    let twice = r#"{"columns": [{"name": "a", "pointer": "/a", "type": "text"}, {"name": "a", "pointer": "/b", "type": "text"}]}"#;
    assert_eq!(faults(twice), ["columns[1].name: `a` is there twice"]);
}

#[test]
fn a_pointer_and_a_type_are_checked() {
    for (pointer, says) in
        [("a", "begins with `/`"), ("", "begins with `/`"), ("/a~2", "`~0`"), ("/a~", "`~0`")]
    {
        let faults = of_column("a", pointer);
        assert!(faults.len() == 1 && faults[0].contains(says), "{pointer}: {faults:?}");
    }
    let kind = r#"{"columns": [{"name": "a", "pointer": "/a", "type": "date"}]}"#;
    assert!(faults(kind)[0].contains("unknown variant `date`, expected one of `text`"), "{:?}", faults(kind));
}

#[test]
fn columns_names_pointers_and_the_prefix_have_bounds() {
    let long = format!("/{}", "a".repeat(512));
    assert!(of_column("a", &long)[0].contains("has 513 bytes, at most 512"));
    assert!(of_column(&"a".repeat(64), "/a")[0].contains("at most 63"));
    let column = |place: usize| format!(r#"{{"name": "c{place}", "pointer": "/a", "type": "text"}}"#);
    let columns = |most: usize| (0..most).map(column).collect::<Vec<_>>().join(",");
    assert_eq!(faults(&format!(r#"{{"columns": [{}]}}"#, columns(32))), [] as [&str; 0]);
    assert_eq!(faults(&format!(r#"{{"columns": [{}]}}"#, columns(33))), ["columns: has 33, at most 32"]);
    for prefix in ["a".repeat(25), "Batch".into(), "kubewitness_".into(), "a-".into()] {
        let faults = faults(&format!(r#"{{"prefix": "{prefix}"}}"#));
        assert!(faults.len() == 1 && faults[0].starts_with("prefix: write a letter"), "{faults:?}");
    }
}
