//! `kubewitness plugin new`: creates a folder with a working plugin. It has everything that the plugin is
//! built from, except the packages of the language's own registry.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::cli::{Language, NewPluginArgs};
use crate::commands::{CommandEnd, CommandResult, UsageError, print};

/// The name of a file, and its text.
type TemplateFile = (&'static str, &'static str);

const FOR_ALL: &[TemplateFile] = &[
    ("plugin.yaml", include_str!("templates/plugin.yaml")),
    ("README.md", include_str!("templates/README.md")),
    (".gitignore", include_str!("templates/gitignore")),
    ("tests/failed.yaml", include_str!("templates/failed.yaml")),
    ("tests/failed.expected.json", include_str!("templates/failed.expected.json")),
];

const RUST: &[TemplateFile] = &[
    ("Cargo.toml", include_str!("templates/rust/Cargo.toml")),
    ("src/lib.rs", include_str!("templates/rust/lib.rs")),
    ("sdk/Cargo.toml", include_str!("templates/rust/sdk.toml")),
    ("sdk/src/lib.rs", include_str!("../../../../plugins/sdk/src/lib.rs")),
    ("sdk/src/capability.rs", include_str!("../../../../plugins/sdk/src/capability.rs")),
    ("sdk/src/facts.rs", include_str!("../../../../plugins/sdk/src/facts.rs")),
    ("sdk/src/plugin.rs", include_str!("../../../../plugins/sdk/src/plugin.rs")),
    ("sdk/src/testing.rs", include_str!("../../../../plugins/sdk/src/testing.rs")),
    ("sdk/src/time.rs", include_str!("../../../../plugins/sdk/src/time.rs")),
];

const PYTHON: &[TemplateFile] = &[
    ("plugin.py", include_str!("templates/python/plugin.py")),
    ("requirements.txt", include_str!("templates/python/requirements.txt")),
    ("wit/component.wit", include_str!("templates/component.wit")),
];

const JAVASCRIPT: &[TemplateFile] = &[
    ("plugin.js", include_str!("templates/javascript/plugin.js")),
    ("package.json", include_str!("templates/javascript/package.json")),
    ("wit/component.wit", include_str!("templates/component.wit")),
];

const WIT: [TemplateFile; 3] = [
    ("types.wit", include_str!("../../../../wit/types.wit")),
    ("capabilities.wit", include_str!("../../../../wit/capabilities.wit")),
    ("worlds.wit", include_str!("../../../../wit/worlds.wit")),
];

impl Language {
    fn template_files(self) -> &'static [TemplateFile] {
        match self {
            Self::Rust => RUST,
            Self::Python => PYTHON,
            Self::Javascript => JAVASCRIPT,
        }
    }

    /// The folder of the interfaces.
    fn wit_folder(self) -> &'static str {
        match self {
            Self::Rust => "sdk/wit",
            Self::Python | Self::Javascript => "wit/deps/kubewitness-plugin",
        }
    }

    fn source_file(self) -> &'static str {
        match self {
            Self::Rust => "src/lib.rs",
            Self::Python => "plugin.py",
            Self::Javascript => "plugin.js",
        }
    }

    /// The steps with which a controller gets the plugin.
    fn install_steps(self) -> &'static str {
        match self {
            Self::Rust => PACKED,
            Self::Python | Self::Javascript => PUSHED,
        }
    }

    /// The installation before the first build.
    fn first_steps(self) -> &'static str {
        match self {
            Self::Rust => "rustup target add wasm32-wasip2",
            Self::Python => "python3 -m venv venv && venv/bin/pip install -r requirements.txt",
            Self::Javascript => "npm install",
        }
    }
}

/// A ConfigMap is large enough for a component in Rust. The other languages bring an interpreter.
const PACKED: &str = "    kubewitness plugin pack | kubectl apply -f -";
const PUSHED: &str = "    wkg oci push registry.example.com/platform/{{name}}:0.1.0 {{name}}.wasm

The component is too large for a ConfigMap, so push it to a registry of yours. Then name it in `plugin.yaml`, and apply that:

    module: {oci: \"registry.example.com/platform/{{name}}:0.1.0\"}

    kubectl create configmap {{name}} --from-file=plugin.yaml
    kubectl label configmap {{name}} kubewitness.dev/plugin=true";

/// Keywords of Rust, and crates that already exist.
const NO_CRATES: [&str; 48] = [
    "alloc",
    "as",
    "async",
    "await",
    "box",
    "break",
    "const",
    "continue",
    "core",
    "crate",
    "do",
    "dyn",
    "else",
    "enum",
    "extern",
    "false",
    "final",
    "fn",
    "for",
    "if",
    "impl",
    "in",
    "let",
    "loop",
    "macro",
    "match",
    "mod",
    "move",
    "mut",
    "pub",
    "ref",
    "return",
    "self",
    "static",
    "std",
    "struct",
    "super",
    "test",
    "trait",
    "true",
    "try",
    "type",
    "unsafe",
    "use",
    "where",
    "while",
    "yield",
    "kubewitness-sdk",
];

pub fn new(args: &NewPluginArgs) -> CommandResult {
    let NewPluginArgs { name, lang, dir } = args;
    let is_fit = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if !name.starts_with(|c: char| c.is_ascii_lowercase())
        || !name.chars().all(is_fit)
        || name.ends_with('-')
        || name.len() > 63
    {
        return Err(UsageError::error(
            "a plugin's name has lower-case letters, digits and `-`, begins with a letter, and has at most 63 characters",
        ));
    }
    if *lang == Language::Rust && NO_CRATES.contains(&name.as_str()) {
        return Err(UsageError::error(format!(
            "cargo takes no crate of the name `{name}`: choose another name"
        )));
    }
    if !dir.is_dir() {
        bail!("{} is not a folder: make it first, or name another with --dir", dir.display());
    }
    let folder = if dir.as_os_str() == "." { PathBuf::from(name) } else { dir.join(name) };
    if folder.exists() {
        bail!("{} exists already: choose another name, or move it away", folder.display());
    }
    for (file, text) in FOR_ALL.iter().chain(lang.template_files()) {
        write(&folder.join(file), &fill_template(text, name, *lang))?;
    }
    for (file, text) in WIT {
        write(&folder.join(lang.wit_folder()).join(file), text)?;
    }
    print::text(&format!(
        "{} is a plugin that works. Next:\n\n  cd {}\n  {}\n  kubewitness plugin build\n  kubewitness plugin test\n",
        folder.display(),
        folder.display(),
        lang.first_steps()
    ))?;
    Ok(CommandEnd::Fine)
}

/// The SDK's own sources contain no placeholders.
fn fill_template(text: &str, name: &str, lang: Language) -> String {
    let imports = match lang {
        Language::Rust => {
            "- `sdk/` is a copy of the crate `kubewitness-sdk`, with the interfaces in `sdk/wit`."
        }
        Language::Python | Language::Javascript => {
            "- `wit/component.wit` says which interfaces it may import. They lie in `wit/deps`."
        }
    };
    let before = format!("    {}{}", lang.first_steps(), "     # once");
    let words = [
        ("{{install}}", lang.install_steps()),
        ("{{name}}", name),
        ("{{before}}", &before),
        ("{{source}}", lang.source_file()),
        ("{{imports}}", imports),
        ("{{version}}", env!("CARGO_PKG_VERSION")),
    ];
    words.iter().fold(text.to_owned(), |text, (word, value)| text.replace(word, value))
}

fn write(path: &Path, text: &str) -> Result<()> {
    let context = || format!("writing {}", path.display());
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).with_context(context)?;
    }
    std::fs::write(path, text).with_context(context)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(lang: Language) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let args = NewPluginArgs { name: "shout".into(), lang, dir: folder.path().to_path_buf() };
        assert_eq!(new(&args).unwrap(), CommandEnd::Fine);
        folder
    }

    #[test]
    fn nothing_is_left_to_fill_in_and_the_manifest_is_one() {
        for lang in [Language::Rust, Language::Python, Language::Javascript] {
            let folder = made(lang);
            let mut folders = vec![folder.path().join("shout")];
            while let Some(folder) = folders.pop() {
                for entry in std::fs::read_dir(folder).unwrap() {
                    let path = entry.unwrap().path();
                    match path.is_dir() {
                        true => folders.push(path),
                        false => {
                            let text = std::fs::read_to_string(&path).unwrap();
                            // A doc comment of the SDK may show a JSON object in an object.
                            let is_filled =
                                !["{{name", "{{before", "{{source", "{{imports", "{{version", "{{install"]
                                    .iter()
                                    .any(|word| text.contains(word));
                            assert!(is_filled, "{}: {text}", path.display());
                        }
                    }
                }
            }
            let manifest = super::super::subject::read_manifest(&folder.path().join("shout")).unwrap();
            assert_eq!(
                (manifest.name.as_str(), manifest.spec.module.file.as_deref()),
                ("shout", Some("shout.wasm"))
            );
        }
    }

    #[test]
    fn the_readme_names_the_way_into_a_cluster_that_the_component_s_size_allows() {
        for (lang, is_packed) in
            [(Language::Rust, true), (Language::Python, false), (Language::Javascript, false)]
        {
            let folder = made(lang);
            let text = std::fs::read_to_string(folder.path().join("shout/README.md")).unwrap();
            assert_eq!(text.contains("plugin pack | kubectl apply"), is_packed, "{text}");
            assert_eq!(
                text.contains("module: {oci: \"registry.example.com/platform/shout:0.1.0\"}"),
                !is_packed
            );
        }
    }

    #[test]
    fn a_folder_that_is_there_and_a_name_that_is_none_are_refused() {
        let folder = made(Language::Python);
        let args = |name: &str| NewPluginArgs {
            name: name.into(),
            lang: Language::Rust,
            dir: folder.path().to_path_buf(),
        };
        let error = new(&args("shout")).unwrap_err().to_string();
        assert!(error.contains("exists already"), "{error}");
        for name in
            ["self", "std", "kubewitness-sdk", "", "../x", "Shout", "7up", "a b", "a-", &"a".repeat(64)]
        {
            assert!(new(&args(name)).unwrap_err().is::<UsageError>(), "{name}");
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn the_copy_of_the_sdk_has_the_dependencies_of_the_sdk() {
        let workspace = include_str!("../../../../Cargo.toml");
        let own = include_str!("../../../../plugins/sdk/Cargo.toml");
        let copy = include_str!("templates/rust/sdk.toml").split_once("[dependencies]").unwrap().1;
        let lines: Vec<_> = copy.lines().filter(|line| !line.is_empty()).collect();
        for line in &lines {
            assert!(workspace.lines().any(|other| other == *line), "{line}");
        }
        let dependencies = own.split_once("[dependencies]").unwrap().1;
        assert_eq!(dependencies.lines().filter(|line| !line.is_empty()).count(), lines.len());
    }
}
