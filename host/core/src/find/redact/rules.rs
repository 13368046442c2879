//! What counts as a secret: names of environment variables, and places in documents.

use crate::find::index::Pointer;

/// Rules that can be asked, made of the host's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redactor {
    variables: Vec<String>,
    fields: Vec<Field>,
}

/// A place whose value is a secret. The token `*` stands for every key or place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// None: of every kind.
    pub kind: Option<String>,
    pub path: Pointer,
}

impl Redactor {
    /// `variables` are patterns of names: `*` stands for any characters, and the case of letters does not matter.
    pub fn new(variables: &[String], fields: Vec<Field>) -> Self {
        Self { variables: variables.iter().map(|pattern| pattern.to_ascii_uppercase()).collect(), fields }
    }

    pub(super) fn is_secret_name(&self, name: &str) -> bool {
        let name = name.to_ascii_uppercase();
        self.variables.iter().any(|pattern| fits(pattern.as_bytes(), name.as_bytes()))
    }

    /// Where a search begins. A document without a kind is searched for the fields of every kind.
    pub(super) fn matches(&self, kind: Option<&str>) -> Matches<'_> {
        let is_asked =
            |field: &Field| field.kind.as_deref().is_none_or(|of| kind.is_none_or(|kind| kind == of));
        let open = (0..self.fields.len()).filter(|place| is_asked(&self.fields[*place]));
        Matches { fields: &self.fields, open: open.map(|place| (place, 0)).collect(), is_met: false }
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
        let mut next = Matches { fields: self.fields, open: Vec::new(), is_met: false };
        for (place, met) in &self.open {
            let path = self.fields[*place].path.tokens();
            let fits = match (path[*met].as_str(), name) {
                ("*", _) => true,
                (token, Named::Key(key)) => token == key,
                (token, Named::Index(index)) => token.parse() == Ok(index),
            };
            if fits && met + 1 == path.len() {
                next.is_met = true;
            } else if fits {
                next.open.push((*place, met + 1));
            }
        }
        next
    }

    pub fn is_met(&self) -> bool {
        self.is_met
    }
}
