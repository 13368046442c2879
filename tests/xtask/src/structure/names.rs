//! Judges the names and the doc comments of the project's own code, by the vocabulary of `CONTRIBUTING.md`.
//!
//! A reader knows a type by its name alone, so a name has a thing and a role, and is unique in its crate. No
//! compiler or lint of the toolchain checks that. The check reads tokens, because resolving names would need
//! a build of everything. So it can't see names that a macro makes, and it assumes that two types of one name
//! in one file are the two sides of a `cfg`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// Words that name neither a thing nor a role: participles and pronouns.
const BARE: &[&str] = &[
    "began", "begun", "came", "found", "gone", "held", "it", "kept", "left", "made", "past", "said", "seen",
    "stood", "that", "them", "then", "there", "these", "they", "this", "those", "told", "untold", "went",
];

/// Words that begin a riddle, because the sentence has no subject yet.
const RIDDLES: [&str; 2] = ["What", "Of"];

/// Beginnings of functions that ask a yes-or-no question.
const QUESTIONS: [&str; 3] = ["is_", "has_", "may_"];

/// Types that still share a name within a crate. No other may be added, and a line is removed with its pair.
const TWICE: &[(&str, &str)] = &[];

/// The names and comments of all files, by crate.
#[derive(Default)]
pub struct DefinedNames {
    /// The files below `src` that define each type of a crate.
    types: BTreeMap<(PathBuf, String), BTreeSet<PathBuf>>,
    /// Types and public functions with a bare word as their name: file, kind and name.
    bare: BTreeSet<(PathBuf, &'static str, String)>,
    /// Functions whose name asks a question that their result does not answer: file and name.
    unanswered: BTreeSet<(PathBuf, String)>,
    /// The file and the line of each doc comment that opens with a riddle.
    riddles: BTreeSet<(PathBuf, usize)>,
}

impl DefinedNames {
    /// Reads one file. `package` is the folder of its crate.
    pub fn read(&mut self, package: &Path, file: &Path, text: &str) -> Result<()> {
        let tokens: TokenStream =
            text.parse().map_err(|error| anyhow!("{} is no Rust: {error}", file.display()))?;
        let mut defined = Vec::new();
        collect(&tokens.into_iter().collect::<Vec<_>>(), NamePlace::Module, &mut defined);
        let is_source = file.strip_prefix(package).is_ok_and(|inside| inside.starts_with("src"));
        for NameDefinition { kind, name, is_public, is_inner, is_unanswered } in defined {
            if is_unanswered {
                self.unanswered.insert((file.to_path_buf(), name.clone()));
            }
            if kind == "type" && is_source && !is_inner {
                let files = self.types.entry((package.to_path_buf(), name.clone())).or_default();
                files.insert(file.to_path_buf());
            }
            if (kind == "type" || is_public) && is_bare(&name) {
                self.bare.insert((file.to_path_buf(), kind, name));
            }
        }
        self.riddles.extend(riddles(text).map(|line| (file.to_path_buf(), line)));
        Ok(())
    }

    pub fn faults(&self) -> Vec<String> {
        self.faults_beside(TWICE)
    }

    fn faults_beside(&self, twice: &[(&str, &str)]) -> Vec<String> {
        let mut faults = self.faults_of_types(twice);
        for (file, kind, name) in &self.bare {
            faults.push(format!(
                "{}: the {kind} `{name}` has a bare participle or pronoun as its name: say thing and role, as \
                 CONTRIBUTING.md shows",
                file.display()
            ));
        }
        for (file, name) in &self.unanswered {
            faults.push(format!(
                "{}: the function `{name}` is named like a question and returns no `bool`: say what it does",
                file.display()
            ));
        }
        for (file, line) in &self.riddles {
            faults.push(format!(
                "{}:{line}: the doc comment opens with {}: begin with the subject",
                file.display(),
                RIDDLES.map(|word| format!("\"{word}\"")).join(" or ")
            ));
        }
        faults
    }

    fn faults_of_types(&self, known: &[(&str, &str)]) -> Vec<String> {
        let mut faults = Vec::new();
        let is_known = |package: &Path, name: &str| {
            known.iter().any(|(of, known)| Path::new(of) == package && *known == name)
        };
        for ((package, name), files) in self.types.iter().filter(|(_, files)| files.len() > 1) {
            if !is_known(package, name) {
                let files: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
                faults.push(format!(
                    "{} has more than one type `{name}`: give each a name of its own ({})",
                    package.display(),
                    files.join(", ")
                ));
            }
        }
        for (package, name) in known {
            let key = (PathBuf::from(package), (*name).to_owned());
            if self.types.get(&key).is_none_or(|files| files.len() < 2) {
                faults.push(format!(
                    "{package} has one type `{name}` at most: take it out of TWICE in tests/xtask/src/structure/names.rs"
                ));
            }
        }
        faults
    }
}

/// Treats `Told` and `told` alike.
fn is_bare(name: &str) -> bool {
    BARE.iter().any(|word| name.eq_ignore_ascii_case(word))
}

/// The lines of doc comments whose first word opens a riddle. Only a comment's first line is checked.
fn riddles(text: &str) -> impl Iterator<Item = usize> {
    let mut before = "";
    text.lines().map(str::trim_start).zip(1..).filter_map(move |(line, number)| {
        let mark = ["///", "//!"].into_iter().find(|mark| line.starts_with(mark)).unwrap_or_default();
        let begins = !mark.is_empty() && mark != before;
        before = mark;
        let first = line[mark.len()..].split_whitespace().next().unwrap_or_default();
        (begins && RIDDLES.contains(&first)).then_some(number)
    })
}

struct NameDefinition {
    kind: &'static str,
    name: String,
    is_public: bool,
    /// Whether it is within a function, so that no other code uses its name.
    is_inner: bool,
    is_unanswered: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum NamePlace {
    Module,
    /// The body of a public trait, whose functions are as public as the trait.
    Trait,
    Impl,
    Function,
}

impl NameDefinition {
    fn of_type(name: String, is_public: bool, is_inner: bool) -> Self {
        Self { kind: "type", name, is_public, is_inner, is_unanswered: false }
    }
}

/// Whether the function at this token is a test, according to the attribute before it. A test's name is a
/// sentence.
fn is_test(tokens: &[TokenTree], at: usize) -> bool {
    let before = tokens[..at].iter().rev();
    let head = before.take_while(|token| match token {
        TokenTree::Group(group) => group.delimiter() != Delimiter::Brace,
        TokenTree::Punct(punct) => punct.as_char() != ';',
        TokenTree::Ident(_) | TokenTree::Literal(_) => true,
    });
    let mut attributes = head.filter(|token| matches!(token, TokenTree::Group(_)));
    attributes.any(|token| token.to_string().contains("test"))
}

/// Whether a function returns an answer to a question. `Result<bool, E>` and `impl Fn(&A) -> bool` count,
/// too.
fn returns_bool(function: &[TokenTree]) -> bool {
    let signature = function.iter().take_while(|token| match token {
        TokenTree::Group(group) => group.delimiter() != Delimiter::Brace,
        TokenTree::Punct(punct) => punct.as_char() != ';',
        TokenTree::Ident(_) | TokenTree::Literal(_) => true,
    });
    let after_arrow =
        signature.skip_while(|token| !matches!(token, TokenTree::Punct(punct) if punct.as_char() == '>'));
    after_arrow.skip(1).any(|token| token.to_string().contains("bool"))
}

/// The types and functions among these tokens, and those within their braces.
fn collect(tokens: &[TokenTree], place: NamePlace, defined: &mut Vec<NameDefinition>) {
    let mut inner = place;
    let mut is_public = false;
    for (at, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Group(group) => {
                let tokens: Vec<TokenTree> = group.stream().into_iter().collect();
                if group.delimiter() == Delimiter::Brace {
                    collect(&tokens, inner, defined);
                    (inner, is_public) = (place, false);
                }
            }
            TokenTree::Punct(punct) if punct.as_char() == ';' => (inner, is_public) = (place, false),
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            TokenTree::Ident(word) => {
                let name = match tokens.get(at + 1) {
                    Some(TokenTree::Ident(name)) => Some(name.to_string()),
                    _ => None,
                };
                let is_inner = place == NamePlace::Function;
                match (word.to_string().as_str(), name) {
                    ("pub", _) => is_public = true,
                    ("impl", _) if inner == place => inner = NamePlace::Impl,
                    ("struct" | "enum" | "union" | "trait", Some(name)) => {
                        if word == "trait" {
                            inner = if is_public { NamePlace::Trait } else { NamePlace::Impl };
                        }
                        defined.push(NameDefinition::of_type(name, is_public, is_inner));
                    }
                    // An associated type is named by its trait.
                    ("type", Some(name)) if matches!(place, NamePlace::Module | NamePlace::Function) => {
                        defined.push(NameDefinition::of_type(name, is_public, is_inner));
                    }
                    ("fn", Some(name)) => {
                        let is_public = !is_inner && (is_public || place == NamePlace::Trait);
                        let is_question = QUESTIONS.iter().any(|question| name.starts_with(question));
                        let is_unanswered =
                            is_question && !is_test(tokens, at) && !returns_bool(&tokens[at..]);
                        defined.push(NameDefinition {
                            kind: "function",
                            name,
                            is_public,
                            is_inner,
                            is_unanswered,
                        });
                        inner = NamePlace::Function;
                    }
                    _ => {}
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(files: &[(&str, &str)]) -> DefinedNames {
        let mut names = DefinedNames::default();
        for (file, text) in files {
            names.read(Path::new("c"), Path::new(file), text).unwrap();
        }
        names
    }

    fn faults(files: &[(&str, &str)]) -> Vec<String> {
        names(files).faults_beside(&[])
    }

    #[test]
    fn a_type_of_one_name_in_two_files_of_a_crate_is_a_fault_unless_it_is_listed() {
        let files = [("c/src/a.rs", "struct PendingBatch;"), ("c/src/b.rs", "enum PendingBatch { A }")];
        let found = faults(&files);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("more than one type `PendingBatch`"), "{found:?}");
        assert!(found[0].contains("c/src/a.rs, c/src/b.rs"), "{found:?}");
        assert_eq!(names(&files).faults_beside(&[("c", "PendingBatch")]), Vec::<String>::new());
    }

    #[test]
    fn a_listed_pair_that_is_no_more_may_not_stay_listed() {
        let found = names(&[("c/src/a.rs", "struct A;")]).faults_beside(&[("c", "A")]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("take it out of TWICE"), "{found:?}");
    }

    #[test]
    fn types_of_functions_tests_and_traits_and_the_sides_of_a_cfg_may_share_a_name() {
        let files = [
            ("c/src/a.rs", "fn f() { struct Row; } #[cfg(a)] struct Args; #[cfg(not(a))] struct Args;"),
            ("c/src/b.rs", "fn g() { struct Row; } impl T for A { type Error = B; }"),
            ("c/src/d.rs", "impl T for C { type Error = B; } fn h(iter: impl Iterator) { type Row = u8; }"),
            ("c/tests/it/a.rs", "struct World;"),
            ("c/tests/it/b.rs", "struct World;"),
        ];
        assert_eq!(faults(&files), Vec::<String>::new());
    }

    #[test]
    fn a_bare_participle_or_pronoun_is_no_name_of_a_type_or_a_public_function() {
        let text = "struct Told; enum Kept { A } pub fn then() {} pub trait A { fn gone(&self); }
            impl B { pub(crate) async fn held(&self) {} }";
        let found = faults(&[("c/src/a.rs", text)]);
        assert_eq!(found.len(), 5, "{found:?}");
        for name in ["type `Told`", "type `Kept`", "function `then`", "function `gone`", "function `held`"] {
            assert!(found.iter().any(|fault| fault.contains(name)), "{name}: {found:?}");
        }
    }

    #[test]
    fn names_of_two_words_private_functions_and_variables_are_left_alone() {
        let text = "struct ReceiptTracker; pub fn kept_rows() {} fn told() {} trait A { fn gone(&self); }
            pub fn f() { let then = 1; x.then(|| 2); fn left() {} }";
        assert_eq!(faults(&[("c/src/a.rs", text)]), Vec::<String>::new());
    }

    #[test]
    fn a_function_that_asks_a_question_answers_it() {
        let text = "fn is_open(&self) {} pub async fn has_all(&self) -> Result<(), E> {} trait A { fn may_read(&self); }";
        let found = faults(&[("c/src/a.rs", text)]);
        assert_eq!(found.len(), 3, "{found:?}");
        for name in ["is_open", "has_all", "may_read"] {
            assert!(found.iter().any(|fault| fault.contains(&format!("`{name}`"))), "{name}: {found:?}");
        }
        let answered = "fn is_open(&self) -> bool { true } fn has_all<T>(a: T) -> Result<bool, E> { f() }
            #[test] fn is_it_so() {} #[tokio::test(start_paused = true)] async fn may_it_be() {} fn island() {}
            fn is_newer(&self) -> impl Fn(&A) -> bool { |a| a.b }";
        assert_eq!(faults(&[("c/src/a.rs", answered)]), Vec::<String>::new());
    }

    #[test]
    fn a_doc_comment_that_opens_with_a_riddle_is_a_fault_with_its_file_and_line() {
        let text = "//! What this is.\n\n/// Of each plugin, its states.\nstruct A;\nmod b {\n    /// What a row has.\n    \
            struct Row;\n}\n";
        let found = faults(&[("c/src/a.rs", text)]);
        let places: Vec<_> = found.iter().filter_map(|fault| fault.split_once(": the doc comment")).collect();
        let wanted = " opens with \"What\" or \"Of\": begin with the subject";
        assert_eq!(places, [("c/src/a.rs:1", wanted), ("c/src/a.rs:3", wanted), ("c/src/a.rs:6", wanted)]);
        assert_eq!(found.len(), places.len(), "{found:?}");
    }

    #[test]
    fn only_the_first_word_of_a_doc_comment_is_judged() {
        let text = "/// The rows.\n/// What of them.\n///\n/// Of two kinds.\nstruct A;\n// What for?\nstruct B;\n\
            /// Whatever is left.\nstruct C;\n/// Often.\nstruct D;\n";
        assert_eq!(faults(&[("c/src/a.rs", text)]), Vec::<String>::new());
    }
}
