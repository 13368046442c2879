use super::*;

#[test]
fn a_rule_beside_the_manifests_is_not_passed_over_in_silence() {
    let folder = tempfile::tempdir().unwrap();
    let rule = "group: example.com\nkind: Widget\ncases:\n  - {when: [], phase: Pending}\n";
    std::fs::write(folder.path().join("widget-rule.yaml"), rule).unwrap();
    std::fs::write(folder.path().join("other.yaml"), "apiVersion: v1\nkind: Secret\n").unwrap();
    let problems = read(folder.path()).unwrap().problems;
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].to_string().contains("spec.statusRules"), "{}", problems[0]);
}

#[test]
fn labelled_config_maps_are_found_and_others_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.yaml"), "kind: Secret\n---\nkind: ConfigMap\nmetadata:\n  name: kw\n  labels: {kubewitness.dev/host: \"true\"}\ndata:\n  host.yaml: |\n\n    apiVersion: x\n").unwrap();
    std::fs::write(folder.path().join("note.txt"), "not: yaml: at all").unwrap();
    let snapshot = read(folder.path()).unwrap();
    assert_eq!(snapshot.hosts.len(), 1);
    assert_eq!(snapshot.hosts[0].origin.first_line, 9);
    assert!(snapshot.plugins.is_empty() && snapshot.problems.is_empty());
}

fn read_one(text: &str) -> ConfigSnapshot {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.yaml"), text).unwrap();
    read(folder.path()).unwrap()
}

#[test]
fn the_items_of_a_list_are_read() {
    let snapshot = read_one(
        "kind: List\nitems:\n- kind: ConfigMap\n  metadata: {name: p, labels: {kubewitness.dev/plugin: \"true\"}}\n  data: {plugin.yaml: \"x\"}\n",
    );
    assert_eq!(snapshot.plugins.len(), 1);
}

#[test]
fn a_label_that_is_not_the_text_true_is_told_and_not_taken_for_none() {
    let snapshot = read_one("kind: ConfigMap\nmetadata: {name: p, labels: {kubewitness.dev/plugin: true}}\n");
    assert!(snapshot.problems[0].to_string().contains("in quotes"), "{:?}", snapshot.problems);
}

#[test]
fn a_config_map_whose_name_is_a_path_is_refused() {
    let snapshot = read_one(
        "kind: ConfigMap\nmetadata: {name: \"..\", labels: {kubewitness.dev/plugin: \"true\"}}\ndata: {plugin.yaml: \"x\"}\n",
    );
    assert!(snapshot.plugins.is_empty() && snapshot.problems.len() == 1);
}

fn pipe(path: &Path) {
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
}

fn problems(snapshot: &ConfigSnapshot) -> Vec<String> {
    let messages = snapshot.problems.iter().map(ToString::to_string);
    messages.map(|message| message.rsplit_once('/').unwrap().1.to_owned()).collect()
}

#[test]
fn what_never_ends_is_not_read_for_ever() {
    let zero = Path::new("/dev/zero");
    let error = text(zero).unwrap_err().to_string();
    assert!(error.contains("it is a device"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let large = folder.path().join("large");
    std::fs::File::create(&large).unwrap().set_len(FILE_BYTES + 1).unwrap();
    let error = text(&large).unwrap_err().to_string();
    assert!(error.contains("larger than 16 MiB"), "{error}");
    std::os::unix::fs::symlink(zero, folder.path().join("a.yaml")).unwrap();
    pipe(&folder.path().join("b.yaml"));
    std::fs::create_dir(folder.path().join("c")).unwrap();
    std::os::unix::fs::symlink("c", folder.path().join("c.yaml")).unwrap();
    let messages = problems(&read(folder.path()).unwrap());
    for (message, kind) in messages.iter().zip(["a device", "a pipe", "a folder"]) {
        assert!(message.contains(&format!("can't be read: it is {kind}")), "{message}");
    }
    assert_eq!(messages.len(), 3);
}

async fn looked(folder: &Path) -> FolderSnapshot {
    read_snapshot(folder).await.unwrap()
}

#[tokio::test]
async fn a_look_finds_every_change_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("a.yaml"), "kind: Secret\n").unwrap();
    let mut seen = vec![looked(folder.path()).await.fingerprint];
    assert_eq!(looked(folder.path()).await.fingerprint, seen[0]);
    std::fs::write(path("a.yaml"), "kind: Sekret\n").unwrap();
    seen.push(looked(folder.path()).await.fingerprint);
    std::fs::write(path("p.wasm"), "new").unwrap();
    seen.push(looked(folder.path()).await.fingerprint);
    pipe(&path("b.yaml"));
    seen.push(looked(folder.path()).await.fingerprint);
    std::fs::write(path("notes.txt"), "").unwrap();
    seen.push(looked(folder.path()).await.fingerprint);
    std::fs::write(path(".a.yaml.swp"), "").unwrap();
    assert_eq!(looked(folder.path()).await.fingerprint, *seen.last().unwrap(), "an editor's own");
    seen.dedup();
    assert_eq!(seen.len(), 5);
}

#[tokio::test]
async fn a_folder_is_followed_beside_what_is_no_file_and_ends_with_its_stop() {
    let folder = tempfile::tempdir().unwrap();
    pipe(&folder.path().join("a.yaml"));
    std::fs::write(folder.path().join("b.yaml"), "kind: Plugin\nmetadata: {name: p}\n").unwrap();
    let (sender, mut receiver) = watch::channel(None);
    let stop = CancellationToken::new();
    let following = follow_folder(folder.path().to_owned(), Duration::from_millis(50), sender, stop.clone());
    let told = async {
        let found = receiver.wait_for(Option::is_some).await.unwrap().clone().unwrap();
        assert!(problems(&found)[0].starts_with("a.yaml: can't be read: it is a pipe"), "{found:?}");
        assert_eq!(found.plugins.len(), 1, "others are read");
        std::fs::remove_file(folder.path().join("a.yaml")).unwrap();
        let well =
            |found: &Option<ConfigSnapshot>| found.as_ref().is_some_and(|found| found.problems.is_empty());
        receiver.wait_for(well).await.unwrap();
        std::fs::remove_file(folder.path().join("b.yaml")).unwrap();
        std::fs::remove_dir(folder.path()).unwrap();
        let gone =
            |found: &Option<ConfigSnapshot>| found.as_ref().is_some_and(|found| !found.problems.is_empty());
        let found = receiver.wait_for(gone).await.unwrap().clone().unwrap();
        assert!(found.problems[0].message.contains("is not a folder that can be read"), "{found:?}");
        stop.cancel();
    };
    let both = async { tokio::join!(following, told) };
    tokio::time::timeout(Duration::from_secs(60), both).await.unwrap().0.unwrap();
}

/// An earlier read of the file still waits in the system for its disk. A pipe without a writer stands for
/// that.
#[tokio::test]
async fn a_file_that_hangs_is_told_and_passed_over_and_the_others_are_read() {
    let (folder, aside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (hung, disk) = (folder.path().join("a.yaml"), aside.path().join("disk"));
    pipe(&disk);
    std::fs::write(&hung, "kind: Plugin\n").unwrap();
    std::fs::write(folder.path().join("b.yaml"), "kind: Plugin\n").unwrap();
    let asked = disk.clone();
    let asking = files::run_within_limit(&hung, Duration::from_millis(1), move || {
        std::fs::File::open(asked).map(drop)
    });
    asking.await.unwrap_err();
    let found = looked(folder.path()).await;
    let found = snapshot(&found.listing, found.texts);
    assert!(
        problems(&found)[0].starts_with("a.yaml: can't be read: it has not answered for 5 s"),
        "{found:?}"
    );
    assert_eq!(found.plugins.len(), 1);
    drop(std::fs::OpenOptions::new().write(true).open(&disk).unwrap());
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while looked(folder.path()).await.texts.iter().any(Result::is_err) {
        assert!(std::time::Instant::now() < deadline, "it is read once its disk is back");
    }
}

#[test]
fn what_lies_beside_the_manifests_is_named_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a.yaml~", "kustomization.yaml", "notes.txt", "p.wasm", ".hidden.yaml"] {
        std::fs::write(folder.path().join(name), "").unwrap();
    }
    std::fs::create_dir(folder.path().join("more")).unwrap();
    std::fs::create_dir(folder.path().join("..2026_data")).unwrap();
    let unused = read(folder.path()).unwrap().unused_documents();
    let unused: Vec<_> = unused.iter().map(|line| line.rsplit_once('/').unwrap().1).collect();
    for (line, wanted) in unused.iter().zip([
        "a.yaml~: is no",
        "kustomization.yaml: is for",
        "more: is a folder",
        "notes.txt: is no",
    ]) {
        assert!(line.starts_with(wanted), "{line}");
    }
    assert_eq!(unused.len(), 4, "{unused:?}");
}

#[test]
fn a_folder_of_something_else_is_refused_and_its_faults_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    for n in 0..=FILES {
        std::fs::write(folder.path().join(format!("{n:04}.yaml")), "a: [1\n").unwrap();
    }
    assert!(read(folder.path()).unwrap_err().to_string().contains("more than 1000 manifests"));
    std::fs::remove_file(folder.path().join("0000.yaml")).unwrap();
    let snapshot = read(folder.path()).unwrap();
    assert_eq!(snapshot.problems.len(), PROBLEMS + 1);
    assert_eq!(snapshot.problems[PROBLEMS].message, "has 800 more faults than these 200");
}

#[test]
fn all_manifests_together_are_bounded() {
    let listing =
        FolderListing { manifests: ["a", "b", "c"].map(PathBuf::from).to_vec(), ..FolderListing::default() };
    let comment = "#".repeat(FOLDER_BYTES - 20);
    let texts = vec![Ok(comment), Ok("kind: Plugin\nkind2: a".into()), Ok("kind: Plugin\n".into())];
    let snapshot = snapshot(&listing, texts);
    assert!(
        snapshot.problems[0].to_string().starts_with("b: can't be read: all manifests have more than 64")
    );
    assert_eq!(snapshot.plugins.len(), 1, "others are read");
}

#[test]
fn a_broken_file_hides_no_other() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.yaml"), "a: [1\n").unwrap();
    std::fs::write(folder.path().join("b.yaml"), "kind: ConfigMap\nmetadata: {name: p, labels: {kubewitness.dev/plugin: \"true\"}}\ndata: {plugin.yaml: \"x\"}\nbinaryData: {p.wasm: AGFzbQ==}\n").unwrap();
    let snapshot = read(folder.path()).unwrap();
    assert_eq!(snapshot.problems.len(), 1);
    assert!(snapshot.problems[0].to_string().contains("a.yaml:1"), "{}", snapshot.problems[0]);
    assert_eq!(snapshot.plugins[0].binary["p.wasm"][..], *b"\0asm");
}

#[test]
fn a_kind_that_is_nearly_ours_is_told_with_the_right_one_and_one_that_is_no_text_as_what_it_is() {
    let message_of_kind = |kind: &str| {
        let text = format!("apiVersion: kubewitness.dev/v1alpha1\nkind: {kind}\nmetadata: {{name: p}}\n");
        let snapshot = of_text(Path::new("p.yaml"), &text);
        let slips = snapshot.slips.iter().map(ToString::to_string);
        slips.chain(snapshot.unused_documents()).collect::<Vec<_>>().join("; ")
    };
    assert_eq!(
        message_of_kind("plugin"),
        "p.yaml:2: kind: is `plugin`, which is nothing here: write `Plugin`"
    );
    assert_eq!(message_of_kind("HOST"), "p.yaml:2: kind: is `HOST`, which is nothing here: write `Host`");
    assert_eq!(
        message_of_kind("Plugni"),
        "p.yaml:2: kind: is `Plugni`, which is nothing here: write `Plugin`"
    );
    assert!(
        message_of_kind("5").starts_with("p.yaml:1: kind: YAML reads `5` as a number"),
        "{}",
        message_of_kind("5")
    );
    assert!(
        message_of_kind("[a]").starts_with("p.yaml:1: kind: is a list: Kubewitness reads"),
        "{}",
        message_of_kind("[a]")
    );
    assert!(
        message_of_kind("Secret").starts_with("p.yaml:1: is a Secret: Kubewitness reads"),
        "{}",
        message_of_kind("Secret")
    );
}

#[test]
fn a_version_that_is_nearly_ours_is_told_with_the_right_one_and_one_of_another_program_as_such() {
    let message_of_version = |version: &str, kind: &str| {
        let text = format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: p}}\n");
        let snapshot = of_text(Path::new("p.yaml"), &text);
        (snapshot.slips.iter().map(ToString::to_string).collect::<Vec<_>>(), snapshot.unused_documents())
    };
    for (version, kind) in
        [("v1", "Plugin"), ("v1alpha1", "Host"), ("kubewitnes.dev/v1alpha1", "JobTemplate")]
    {
        let expected = format!(
            "p.yaml:1: apiVersion: is `{version}`: a {kind} of Kubewitness has `kubewitness.dev/v1alpha1`"
        );
        assert_eq!(message_of_version(version, kind), (vec![expected], vec![]));
    }
    let (slips, untaken) = message_of_version("argoproj.io/v1", "Plugin");
    assert!(
        slips.is_empty() && untaken[0].contains("a Plugin of Kubewitness has `kubewitness.dev/v1alpha1`"),
        "{untaken:?}"
    );
    assert_eq!(
        message_of_version("v1", "ConfigMpa").0,
        ["p.yaml:2: kind: is `ConfigMpa`, which is nothing here: write `ConfigMap`"]
    );
    for kind in ["Secret", "ConfigMapList", "Pod", "Node"] {
        assert!(message_of_version("v1", kind).0.is_empty(), "{kind}");
    }
}
