//! What counts as a secret: names of environment variables, and places in documents.

use crate::config::{RULES_MOST, RedactionSpec};
use crate::find::index::Pointer;
use crate::model::fault::Fault;

/// Rules that can be asked, made of the host's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redactor {
    variables: Vec<String>,
    fields: Vec<Field>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Field {
    /// None: of every kind.
    kind: Option<String>,
    path: Pointer,
}

/// Longer than any name of a variable.
const PATTERN_BYTES: usize = 256;

impl Redactor {
    /// Every fault is told with the place of its field below `redaction`.
    pub fn new(spec: &RedactionSpec) -> Result<Self, Vec<Fault>> {
        let mut faults = Vec::new();
        let mut fault = |field: String, message: String| faults.push(Fault { field, message });
        for (list, length) in [(".variables", spec.variables.len()), (".fields", spec.fields.len())] {
            if length > RULES_MOST {
                fault(list.into(), format!("has {length} entries; the most are {RULES_MOST}"));
            }
        }
        for (place, pattern) in spec.variables.iter().enumerate() {
            if pattern.is_empty() || pattern.len() > PATTERN_BYTES {
                let message =
                    format!("is empty or longer than {PATTERN_BYTES} bytes: write a name such as `*TOKEN*`");
                fault(format!(".variables[{place}]"), message);
            }
        }
        let mut fields = Vec::new();
        for (place, field) in spec.fields.iter().enumerate() {
            match Pointer::parse(&field.pointer) {
                Ok(path) => fields.push(Field { kind: field.kind.clone(), path }),
                Err(message) => fault(format!(".fields[{place}].pointer"), message),
            }
        }
        let variables = spec.variables.iter().map(|pattern| pattern.to_ascii_uppercase()).collect();
        if faults.is_empty() { Ok(Self { variables, fields }) } else { Err(faults) }
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
