//! Reads the modules of one Rust file: those that it declares, those that it imports, and the paths in its
//! code.
//!
//! It reads tokens instead of syntax trees. That is enough for paths, covers macros, and builds in a second.
//! Items marked
//! `#[cfg(test)]` are left out. It does not know folders or other files.

use std::collections::BTreeSet;

use anyhow::{Result, anyhow};
use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// A module's own items. Items of an inner module belong to the inner one.
#[derive(Debug, Default)]
pub struct ModuleBody {
    /// Modules in files of their own.
    pub files: Vec<String>,
    pub inline: Vec<(String, ModuleBody)>,
    pub imports: Vec<ModuleImport>,
    /// Items that are defined here.
    pub items: BTreeSet<String>,
    /// Paths of two or more names, in code.
    pub paths: Vec<Vec<String>>,
    /// Every name in code.
    pub names: BTreeSet<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleImport {
    pub path: Vec<String>,
    /// The name of the import here; `None` for a glob.
    pub name: Option<String>,
    pub is_public: bool,
}

pub fn read(text: &str) -> Result<ModuleBody> {
    let tokens: TokenStream = text.parse().map_err(|error| anyhow!("it is no Rust: {error}"))?;
    let mut body = ModuleBody::default();
    items(&flat(tokens), &mut body);
    Ok(body)
}

fn flat(tokens: TokenStream) -> Vec<TokenTree> {
    let mut out = Vec::new();
    for token in tokens {
        match token {
            // Tokens that a macro put between invisible brackets belong to the surrounding code.
            TokenTree::Group(group) if group.delimiter() == Delimiter::None => {
                out.extend(flat(group.stream()));
            }
            token => out.push(token),
        }
    }
    out
}

fn items(tokens: &[TokenTree], body: &mut ModuleBody) {
    let mut rest = tokens;
    while !rest.is_empty() {
        let (end, is_test) = attributes(rest);
        let (marks, after) = rest.split_at(end);
        rest = after;
        let end = item_end(rest);
        if !is_test {
            uses_of_attributes(marks, body);
            item(&rest[..end], body);
        }
        rest = &rest[end..];
    }
}

/// The number of tokens that are attributes, and whether one marks the item as test code.
fn attributes(tokens: &[TokenTree]) -> (usize, bool) {
    let (mut at, mut is_test) = (0, false);
    while is_punct(tokens.get(at), '#') {
        let bang = usize::from(is_punct(tokens.get(at + 1), '!'));
        let Some(TokenTree::Group(group)) = tokens.get(at + 1 + bang) else { break };
        is_test |= is_cfg_test(group);
        at += 2 + bang;
    }
    (at, is_test)
}

/// Paths in attributes, without those in `cfg_attr(test, …)`, which are for tests alone.
fn uses_of_attributes(tokens: &[TokenTree], body: &mut ModuleBody) {
    for token in tokens {
        if let TokenTree::Group(group) = token
            && !group.stream().to_string().replace(' ', "").starts_with("cfg_attr(test,")
        {
            code(&flat(group.stream()), body);
        }
    }
}

fn is_cfg_test(attribute: &Group) -> bool {
    attribute.stream().to_string().replace(' ', "") == "cfg(test)"
}

/// The end of an item: its `;` or its braces. The braces of a `use` are not its end.
fn item_end(tokens: &[TokenTree]) -> usize {
    let is_use = after_visibility(tokens).first().is_some_and(|token| is_ident(token, "use"));
    let ends = |token: &TokenTree| match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace && !is_use,
        token => is_punct(Some(token), ';'),
    };
    tokens.iter().position(ends).map_or(tokens.len(), |at| at + 1)
}

fn after_visibility(tokens: &[TokenTree]) -> &[TokenTree] {
    match tokens {
        [public, TokenTree::Group(group), rest @ ..]
            if is_ident(public, "pub") && group.delimiter() == Delimiter::Parenthesis =>
        {
            rest
        }
        [public, rest @ ..] if is_ident(public, "pub") => rest,
        _ => tokens,
    }
}

fn item(tokens: &[TokenTree], body: &mut ModuleBody) {
    let declaration = after_visibility(tokens);
    match declaration {
        [word, tree @ ..] if is_ident(word, "use") => {
            let is_public = declaration.len() < tokens.len();
            use_tree(tree, &mut Vec::new(), &mut |path, name| {
                body.imports.push(ModuleImport { path, name, is_public });
            });
        }
        [word, TokenTree::Ident(name), end, ..] if is_ident(word, "mod") => match end {
            TokenTree::Group(group) => {
                let mut inner = ModuleBody::default();
                items(&flat(group.stream()), &mut inner);
                body.inline.push((name.to_string(), inner));
            }
            _ => body.files.push(name.to_string()),
        },
        _ => {
            body.items.extend(defined(declaration));
            code(declaration, body);
        }
    }
}

/// The name of the item. Words before the keyword (`unsafe`, `async`, `const fn`) are skipped.
fn defined(tokens: &[TokenTree]) -> Option<String> {
    const KEYWORDS: [&str; 9] =
        ["fn", "struct", "enum", "union", "trait", "type", "const", "static", "macro_rules"];
    tokens.iter().enumerate().find_map(|(at, token)| {
        if !KEYWORDS.iter().any(|word| is_ident(token, word)) {
            return None;
        }
        let bang = usize::from(is_punct(tokens.get(at + 1), '!'));
        match tokens.get(at + 1 + bang) {
            Some(TokenTree::Ident(name))
                if !["fn", "unsafe", "async", "extern", "mut"].iter().any(|w| name == w) =>
            {
                Some(name.to_string())
            }
            _ => None,
        }
    })
}

/// The tree of a `use`, up to its `;`.
fn use_tree(
    tokens: &[TokenTree],
    before: &mut Vec<String>,
    found: &mut impl FnMut(Vec<String>, Option<String>),
) {
    for branch in tokens.split(|token| is_punct(Some(token), ',') || is_punct(Some(token), ';')) {
        let depth = before.len();
        let mut renamed = None;
        let mut is_leaf = !branch.is_empty();
        for (at, token) in branch.iter().enumerate() {
            match token {
                TokenTree::Ident(word) if word == "as" => {
                    renamed = branch.get(at + 1).map(ToString::to_string);
                    break;
                }
                TokenTree::Ident(word) => before.push(word.to_string()),
                TokenTree::Group(group) => {
                    use_tree(&flat(group.stream()), before, found);
                    is_leaf = false;
                }
                TokenTree::Punct(star) if star.as_char() == '*' => {
                    found(before.clone(), None);
                    is_leaf = false;
                }
                _ => {}
            }
        }
        if is_leaf {
            leaf(before, renamed, found);
        }
        before.truncate(depth);
    }
}

fn leaf(path: &[String], renamed: Option<String>, found: &mut impl FnMut(Vec<String>, Option<String>)) {
    let mut path = path.to_vec();
    if path.len() > 1 && path.last().is_some_and(|word| word == "self") {
        path.pop();
    }
    let name = renamed.or_else(|| path.last().cloned());
    found(path, name);
}

/// Paths and names in code, including those in brackets.
fn code(tokens: &[TokenTree], body: &mut ModuleBody) {
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Punct(punct) if punct.as_char() == '#' => {
                let (attributes, is_test) = attributes(&tokens[at..]);
                if !is_test {
                    uses_of_attributes(&tokens[at..at + attributes], body);
                }
                at += attributes.max(1);
                if is_test {
                    at += item_end(&tokens[at..]);
                }
            }
            TokenTree::Group(group) => {
                code(&flat(group.stream()), body);
                at += 1;
            }
            TokenTree::Ident(word) if word == "use" => {
                let end = item_end(&tokens[at..]);
                use_tree(&tokens[at + 1..at + end], &mut Vec::new(), &mut |path, _| body.paths.push(path));
                at += end;
            }
            TokenTree::Ident(_) => at += path(tokens, at, body),
            _ => at += 1,
        }
    }
}

/// One path, and the number of its tokens.
fn path(tokens: &[TokenTree], start: usize, body: &mut ModuleBody) -> usize {
    let is_beginning = start == 0 || !is_punct(tokens.get(start - 1), '.');
    let mut words = Vec::new();
    let mut at = start;
    while let Some(TokenTree::Ident(word)) = tokens.get(at) {
        words.push(word.to_string());
        at += 1;
        if !(is_punct(tokens.get(at), ':') && is_punct(tokens.get(at + 1), ':')) {
            break;
        }
        at += 2;
    }
    body.names.extend(words.iter().cloned());
    if words.len() > 1 && is_beginning {
        body.paths.push(words);
    }
    at - start
}

fn is_ident(token: &TokenTree, word: &str) -> bool {
    matches!(token, TokenTree::Ident(ident) if ident == word)
}

fn is_punct(token: Option<&TokenTree>, char: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == char)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(text: &str) -> Vec<String> {
        read(text).unwrap().paths.iter().map(|path| path.join("::")).collect()
    }

    fn imports(text: &str) -> Vec<(String, Option<String>)> {
        let imports = read(text).unwrap().imports;
        imports.into_iter().map(|import| (import.path.join("::"), import.name)).collect()
    }

    #[test]
    fn every_branch_of_a_use_is_an_import() {
        let name = |name: &str| Some(name.to_string());
        assert_eq!(
            imports("use crate::{a::{self, B as C}, d::*}; pub(crate) use super::e;"),
            [
                ("crate::a".into(), name("a")),
                ("crate::a::B".into(), name("C")),
                ("crate::d".into(), None),
                ("super::e".into(), name("e")),
            ]
        );
    }

    #[test]
    fn paths_in_code_and_in_macros_are_seen_and_those_in_text_are_not() {
        let text = r#"fn f() { // crate::not::this
            let x = crate::a::b(&[super::c::D]); println!("crate::no::such {}", self::e::F);
            x.g::<crate::h::I>(); use crate::j::K; }"#;
        assert_eq!(paths(text), ["crate::a::b", "super::c::D", "self::e::F", "crate::h::I", "crate::j::K"]);
    }

    #[test]
    fn paths_in_attributes_are_seen_unless_they_are_for_tests_alone() {
        let text = r#"#[derive(Debug, a::B)] #[cfg_attr(feature = "x", schemars(extend("enum" = crate::c::D)))]
            struct E { #[doc = "crate::not::this"] #[check(super::f::G)] h: u8,
            #[cfg_attr(test, schemars(extend("enum" = crate::i::J)))] k: u8 }"#;
        assert_eq!(paths(text), ["a::B", "crate::c::D", "super::f::G"]);
    }

    #[test]
    fn what_is_for_tests_alone_is_left_out() {
        let text = "#[cfg(test)] use crate::a::A; #[cfg(test)] mod tests; mod real;
            #[cfg(test)] mod inline { use crate::b::B; }
            impl X { #[cfg(test)] fn only() { crate::c::c() } fn both() { crate::d::d() } }";
        let body = read(text).unwrap();
        assert_eq!((body.files, body.inline.len(), body.imports.len()), (vec!["real".to_string()], 0, 0));
        assert_eq!(paths(text), ["crate::d::d"]);
    }

    #[test]
    fn items_are_known_by_their_names() {
        let text = "pub const fn a() {} pub(crate) struct B(u8); const C: D = D { e: 1 }; static F: u8 = 0;
            macro_rules! g { () => {} } unsafe trait H {} impl I {}";
        let items: Vec<String> = read(text).unwrap().items.into_iter().collect();
        assert_eq!(items, ["B", "C", "F", "H", "a", "g"]);
    }
}
