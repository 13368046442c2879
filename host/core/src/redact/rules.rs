//! What counts as a secret: names of environment variables, and places in documents.

use crate::project::Pointer;

/// Rules that can be asked, made of the host's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redactor {
    names: Vec<Pattern>,
    /// Names that are no secret's, whatever else they look like.
    plain: Vec<Pattern>,
    fields: Vec<Field>,
}

/// Longer than any name that people give. What has a longer one is a secret.
const NAME_BYTES: usize = 1024;

/// A place whose value is a secret. The token `*` stands for every key or place, and `**` for any number of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// None: of every kind.
    pub kind: Option<String>,
    pub path: Pointer,
}

impl Redactor {
    /// `names` are patterns: `*` stands for any characters. The case of letters does not matter, and neither does how
    /// words are joined: `apiKey`, `api-key`, `api.key` and `API_KEY` are the same. A pattern after `!` is of names that
    /// are no secret's.
    pub fn new(names: &[String], fields: Vec<Field>) -> Self {
        let (plain, names): (Vec<_>, Vec<_>) = names.iter().partition(|pattern| pattern.starts_with('!'));
        Self {
            names: names.into_iter().flat_map(|pattern| spellings(pattern)).map(Pattern::of).collect(),
            plain: plain.into_iter().flat_map(|pattern| spellings(&pattern[1..])).map(Pattern::of).collect(),
            fields,
        }
    }

    pub(crate) fn is_secret_name(&self, name: &str) -> bool {
        if name.len() > NAME_BYTES {
            return true;
        }
        let names = spellings(name);
        let is_any =
            |patterns: &[Pattern]| patterns.iter().any(|pattern| names.iter().any(|name| pattern.fits(name)));
        is_any(&self.names) && !is_any(&self.plain)
    }

    /// Where a search begins. A document without a kind is searched for the fields of every kind.
    pub(super) fn matches(&self, kind: Option<&str>) -> Matches<'_> {
        let is_asked =
            |field: &Field| field.kind.as_deref().is_none_or(|of| kind.is_none_or(|kind| kind == of));
        let open = (0..self.fields.len()).filter(|place| is_asked(&self.fields[*place]));
        let mut matches = Matches { fields: &self.fields, open: Vec::new(), is_met: false };
        open.for_each(|place| matches.go_on(place, 0));
        matches
    }
}

/// A name in capitals with `_` between its words, as it is written and with the words of camel case apart.
fn spellings(name: &str) -> Vec<String> {
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
enum Pattern {
    Name(String),
    End(String),
    Part(String),
    Other(String),
}

impl Pattern {
    fn of(written: String) -> Self {
        let inner = written.strip_prefix('*').filter(|rest| !rest.is_empty());
        match (inner, inner.and_then(|rest| rest.strip_suffix('*'))) {
            _ if !written.contains('*') => Self::Name(written),
            (_, Some(part)) if !part.contains('*') => Self::Part(part.into()),
            (Some(end), _) if !end.contains('*') => Self::End(end.into()),
            _ => Self::Other(written),
        }
    }

    fn fits(&self, name: &str) -> bool {
        match self {
            Self::Name(whole) => name == whole,
            Self::End(end) => name.ends_with(end),
            Self::Part(part) => name.len() >= part.len() && name.contains(part),
            Self::Other(pattern) => fits(pattern.as_bytes(), name.as_bytes()),
        }
    }
}

/// `*` stands for any number of characters. Takes steps in the product of the lengths, at most.
fn fits(pattern: &[u8], name: &[u8]) -> bool {
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
pub(super) enum Named<'a> {
    Key(&'a str),
    Index(usize),
    /// Any element of a list.
    Element,
    AnyKey,
}

/// The fields that may still lie below one place of a document.
pub(super) struct Matches<'r> {
    fields: &'r [Field],
    /// Each with how much of its path was met.
    open: Vec<(usize, usize)>,
    is_met: bool,
}

impl<'r> Matches<'r> {
    pub fn step(&self, name: Named<'_>) -> Matches<'r> {
        let mut next =
            Matches { fields: self.fields, open: Vec::with_capacity(self.open.len()), is_met: false };
        for (place, met) in &self.open {
            let path = self.fields[*place].path.tokens();
            if path[*met] == "**" {
                next.go_on(*place, *met);
                continue;
            }
            let fits = match (path[*met].as_str(), name) {
                ("*", _) | (_, Named::AnyKey) => true,
                (token, Named::Key(key)) => token == key,
                (token, Named::Index(index)) => token.parse() == Ok(index),
                (token, Named::Element) => token.parse::<usize>().is_ok(),
            };
            if fits && met + 1 == path.len() {
                next.is_met = true;
            } else if fits {
                next.go_on(*place, met + 1);
            }
        }
        next
    }

    /// `**` stands for no key too, so what follows it may come at once.
    fn go_on(&mut self, place: usize, met: usize) {
        self.open_at(place, met);
        if self.fields[place].path.tokens()[met] == "**" {
            self.open_at(place, met + 1);
        }
    }

    /// Two `**` come to the same place in many ways: with each level there would be more of them.
    fn open_at(&mut self, place: usize, met: usize) {
        // Those of one field come one after the other.
        let mut of_field = self.open.iter().rev().take_while(|(field, _)| *field == place);
        if !of_field.any(|(_, known)| *known == met) {
            self.open.push((place, met));
        }
    }

    pub fn is_met(&self) -> bool {
        self.is_met
    }
}
