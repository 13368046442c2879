//! The rules for secrets: patterns for names of environment variables, and paths in documents.

use std::rc::Rc;
use std::sync::{Arc, PoisonError, RwLock};

use sha2::{Digest, Sha256};

use crate::project::JsonPointer;
use crate::state::RulesPrint;

/// The version of the search. Increase it whenever the search finds more than before: documents without
/// findings under the former version are then searched again.
const SEARCH_VERSION: u32 = 3;

/// Compiled rules, made from the host's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedactionRules {
    names: Vec<NamePattern>,
    /// Patterns of names that are not secret, even if another pattern matches.
    plain: Vec<NamePattern>,
    fields: Vec<SecretField>,
    print: RulesPrint,
}

/// The rules in force. Settings may change them while states are witnessed.
#[derive(Clone, Debug, Default)]
pub struct RulesInForce(Arc<RwLock<Option<Arc<RedactionRules>>>>);

impl RulesInForce {
    pub fn set_rules(&self, rules: Arc<RedactionRules>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(rules);
    }

    /// `None` until the settings were read.
    pub fn get(&self) -> Option<Arc<RedactionRules>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Longer than any name that people choose. A value with a longer name is treated as a secret.
const NAME_BYTES: usize = 1024;

/// A path whose value is a secret. The token `*` matches any key or index, and `**` any number of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretField {
    /// `None` for every kind.
    pub kind: Option<String>,
    pub path: JsonPointer,
}

impl RedactionRules {
    /// `names` are patterns: `*` stands for any characters. Case does not matter, and neither does the
    /// separator of words: `apiKey`, `api-key`, `api.key` and `API_KEY` are the same. A pattern after `!`
    /// names what is not secret.
    pub fn new(names: &[String], fields: Vec<SecretField>) -> Self {
        let print = print_of(names, &fields);
        let (plain, names): (Vec<_>, Vec<_>) = names.iter().partition(|pattern| pattern.starts_with('!'));
        Self {
            print,
            names: names
                .into_iter()
                .flat_map(|pattern| variable_spellings(pattern))
                .map(NamePattern::of)
                .collect(),
            plain: plain
                .into_iter()
                .flat_map(|pattern| variable_spellings(&pattern[1..]))
                .map(NamePattern::of)
                .collect(),
            fields,
        }
    }

    pub fn rules_print(&self) -> RulesPrint {
        self.print
    }

    pub(crate) fn is_secret_name(&self, name: &str) -> bool {
        if name.len() > NAME_BYTES {
            return true;
        }
        let names = variable_spellings(name);
        let is_any = |patterns: &[NamePattern]| {
            patterns.iter().any(|pattern| names.iter().any(|name| pattern.matches_name(name)))
        };
        is_any(&self.names) && !is_any(&self.plain)
    }

    /// The start of a search. A document without a kind is searched for the fields of every kind.
    pub(super) fn field_matches(&self, kind: Option<&str>) -> FieldMatches<'_> {
        let is_asked =
            |field: &SecretField| field.kind.as_deref().is_none_or(|of| kind.is_none_or(|kind| kind == of));
        let asked = (0..self.fields.len()).filter(|place| is_asked(&self.fields[*place]));
        let mut open = OpenFields { fields: &self.fields, places: Vec::new() };
        asked.for_each(|place| open.advance_field(place, 0));
        open.into_matches(false)
    }
}

fn print_of(names: &[String], fields: &[SecretField]) -> RulesPrint {
    let mut hash = Sha256::new();
    let mut add = |text: &str| {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    };
    add(&SEARCH_VERSION.to_string());
    add(&names.len().to_string());
    names.iter().for_each(|name| add(name));
    for field in fields {
        add(if field.kind.is_some() { "of" } else { "of every" });
        add(field.kind.as_deref().unwrap_or_default());
        add(&field.path.tokens().len().to_string());
        field.path.tokens().iter().for_each(|token| add(token));
    }
    let digest = hash.finalize();
    RulesPrint::of([digest[0], digest[1], digest[2], digest[3]])
}

/// A name in capitals with `_` between its words: as written, and with its camel case split.
fn variable_spellings(name: &str) -> Vec<String> {
    let bytes = name.as_bytes();
    let (mut whole, mut apart) = (String::with_capacity(bytes.len()), String::with_capacity(bytes.len()));
    for (at, letter) in name.char_indices() {
        let before = at.checked_sub(1).map(|before| bytes[before]);
        let is_before_small = bytes.get(at + 1).is_some_and(u8::is_ascii_lowercase);
        let begins = letter.is_ascii_uppercase()
            && before.is_some_and(|before| {
                before.is_ascii_lowercase()
                    || before.is_ascii_digit()
                    || (before.is_ascii_uppercase() && is_before_small)
            });
        let letter = if matches!(letter, '-' | '.' | ' ') { '_' } else { letter.to_ascii_uppercase() };
        if begins {
            apart.push('_');
        }
        whole.push(letter);
        apart.push(letter);
    }
    match whole == apart {
        true => vec![whole],
        false => vec![whole, apart],
    }
}

/// A name with `*`. Every name of a document is compared with all of them, and most have a simple form.
#[derive(Clone, Debug, PartialEq, Eq)]
enum NamePattern {
    Name(String),
    End(String),
    Part(String),
    Other(String),
}

impl NamePattern {
    fn of(written: String) -> Self {
        let inner = written.strip_prefix('*').filter(|rest| !rest.is_empty());
        match (inner, inner.and_then(|rest| rest.strip_suffix('*'))) {
            _ if !written.contains('*') => Self::Name(written),
            (_, Some(part)) if !part.contains('*') => Self::Part(part.into()),
            (Some(end), _) if !end.contains('*') => Self::End(end.into()),
            _ => Self::Other(written),
        }
    }

    fn matches_name(&self, name: &str) -> bool {
        match self {
            Self::Name(whole) => name == whole,
            Self::End(end) => name.ends_with(end),
            Self::Part(part) => name.len() >= part.len() && name.contains(part),
            Self::Other(pattern) => matches_pattern(pattern.as_bytes(), name.as_bytes()),
        }
    }
}

/// `*` matches any number of characters. Takes at most as many steps as the product of the lengths.
fn matches_pattern(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut from, mut star) = (0, 0, None);
    while from < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, from));
                at += 1;
            }
            Some(byte) if *byte == name[from] => (at, from) = (at + 1, from + 1),
            _ => {
                let Some((place, begun)) = star else { return false };
                star = Some((place, begun + 1));
                (at, from) = (place + 1, begun + 1);
            }
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

#[derive(Clone, Copy)]
pub(super) enum PathToken<'a> {
    Key(&'a str),
    Index(usize),
    /// Any element of a list.
    Element,
    AnyKey,
}

impl PathToken<'_> {
    fn matches_token(self, token: &str) -> bool {
        match (token, self) {
            ("*", _) | (_, Self::AnyKey) => true,
            (token, Self::Key(key)) => token == key,
            (token, Self::Index(index)) => token.parse() == Ok(index),
            (token, Self::Element) => token.parse::<usize>().is_ok(),
        }
    }
}

/// The fields that can still match below one place of a document.
#[derive(Clone)]
pub(super) struct FieldMatches<'r> {
    fields: &'r [SecretField],
    /// Each field, with how much of its path was matched. Most places of a document have the same ones as
    /// their parent.
    open: Rc<[(usize, usize)]>,
    keys: KeyShapes,
    /// Whether a key that matches none of them leads to the same set of fields.
    is_repeated: bool,
    is_met: bool,
}

/// A quick test whether a key can match, without comparing each token: most keys match none.
#[derive(Clone, Copy, Default)]
struct KeyShapes {
    /// A bit for each length of a token; one bit covers 63 bytes and more.
    lengths: u64,
    is_any: bool,
    has_index: bool,
}

impl KeyShapes {
    fn add(&mut self, token: &str) {
        match token {
            "**" => {}
            "*" => self.is_any = true,
            token => {
                self.lengths |= Self::length_bit(token);
                self.has_index |= token.parse::<usize>().is_ok();
            }
        }
    }

    fn length_bit(token: &str) -> u64 {
        1 << token.len().min(63)
    }

    fn may_fit(self, name: PathToken<'_>) -> bool {
        match name {
            _ if self.is_any => true,
            PathToken::AnyKey => true,
            PathToken::Key(key) => self.lengths & Self::length_bit(key) != 0,
            PathToken::Index(_) | PathToken::Element => self.has_index,
        }
    }
}

impl<'r> FieldMatches<'r> {
    pub fn step_into(&self, name: PathToken<'_>) -> FieldMatches<'r> {
        if self.is_repeated && !(self.keys.may_fit(name) && self.has_fitting(name)) {
            return FieldMatches { is_met: false, ..self.clone() };
        }
        let (mut next, mut is_met) = (OpenFields { fields: self.fields, places: Vec::new() }, false);
        for (place, met) in &*self.open {
            let path = self.fields[*place].path.tokens();
            if path[*met] == "**" {
                next.advance_field(*place, *met);
                continue;
            }
            let fits = name.matches_token(&path[*met]);
            if fits && met + 1 == path.len() {
                is_met = true;
            } else if fits {
                next.advance_field(*place, met + 1);
            }
        }
        next.into_matches(is_met)
    }

    /// Whether a token besides `**` fits. Many keys are as long as a token, and few are one.
    fn has_fitting(&self, name: PathToken<'_>) -> bool {
        let token = |(place, met): &(usize, usize)| self.fields[*place].path.tokens()[*met].as_str();
        self.open.iter().map(token).any(|token| token != "**" && name.matches_token(token))
    }

    pub fn is_met(&self) -> bool {
        self.is_met
    }
}

/// [`FieldMatches`] under construction.
struct OpenFields<'r> {
    fields: &'r [SecretField],
    places: Vec<(usize, usize)>,
}

impl<'r> OpenFields<'r> {
    /// `**` also matches no key, so the token after it may match at once.
    fn advance_field(&mut self, place: usize, met: usize) {
        let tokens = self.fields[place].path.tokens();
        let stars = tokens[met..].iter().take_while(|token| *token == "**").count();
        (met..=met + stars).filter(|next| *next < tokens.len()).for_each(|next| self.open_at(place, next));
    }

    /// Two `**` reach the same place in many ways, which would multiply with each level.
    fn open_at(&mut self, place: usize, met: usize) {
        // The places of one field are consecutive.
        let mut of_field = self.places.iter().rev().take_while(|(field, _)| *field == place);
        if !of_field.any(|(_, known)| *known == met) {
            self.places.push((place, met));
        }
    }

    fn into_matches(self, is_met: bool) -> FieldMatches<'r> {
        // The token after a `**` is opened again below each key.
        let is_again = |(place, met): &(usize, usize)| {
            let path = self.fields[*place].path.tokens();
            path[*met] == "**" || met.checked_sub(1).is_some_and(|before| path[before] == "**")
        };
        let is_repeated = self.places.iter().all(is_again);
        let mut keys = KeyShapes::default();
        self.places.iter().for_each(|(place, met)| keys.add(&self.fields[*place].path.tokens()[*met]));
        FieldMatches { fields: self.fields, open: self.places.into(), keys, is_repeated, is_met }
    }
}
