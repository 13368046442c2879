//! Filters states for subscriptions: it checks and evaluates CEL expressions over a state and its document.
//!
//! Only this crate knows CEL. It reads no file, no clock and no network. An expression is checked once, when
//! a configuration is loaded: its size, its depth, that it returns true or false, and that its names exist.
//! The interpreter can't be interrupted, so the cost is bounded before each evaluation: by the number of
//! nodes, the nesting of loops, and the longest list of the document.

mod check;
mod values;

use std::panic::{AssertUnwindSafe, catch_unwind};

use cel::parser::{Expression, Parser};
use cel::{Context, Value};
use kubewitness_core::State;
use thiserror::Error;

/// The longest expression. A filter is a sentence, not a program.
pub const TEXT_BYTES: usize = 4096;
/// The deepest nesting of brackets. Each level takes stack in the parser and in the evaluation.
const DEPTH: u16 = 32;
/// The deepest nesting of loops.
const LOOPS: u32 = 2;
/// A larger document is not parsed for a filter.
pub const DOCUMENT_BYTES: usize = 2 * 1024 * 1024;
/// The most nodes that one evaluation may visit, as estimated before. They take about a tenth of a second.
const STEPS: u64 = 500_000;

/// What is wrong with an expression, and at which place.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message} (line {line}, column {column} of the filter)")]
pub struct Fault {
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
    pub message: String,
}

/// An expression that has passed the checks.
pub struct Filter {
    text: String,
    expression: Expression,
    parts: u64,
    loops: u32,
    needs_document: bool,
}

impl std::fmt::Debug for Filter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Filter({:?})", self.text)
    }
}

impl Filter {
    pub fn compile(text: &str) -> Result<Self, Fault> {
        let at_start = |message: String| Fault { line: 1, column: 1, message };
        if text.trim().is_empty() {
            return Err(at_start("is empty: leave it out for every state".into()));
        }
        if text.len() > TEXT_BYTES {
            let message = format!("has {} bytes; at most {TEXT_BYTES} are allowed", text.len());
            return Err(at_start(message));
        }
        let parser = || Parser::new().max_recursion_depth(DEPTH).error_recovery_limit(1);
        let parsed = catch_unwind(AssertUnwindSafe(|| parser().parse(text)));
        let expression = parsed
            .map_err(|_| at_start("can't be parsed: write it in another way".into()))?
            .map_err(|errors| first_of(&errors))?;
        let found = check::check(text, &expression)?;
        if found.loops > LOOPS {
            return Err(at_start(format!("nests {} loops; at most {LOOPS} are allowed", found.loops)));
        }
        let check::Found { parts, loops, needs_document } = found;
        Ok(Self { text: text.to_owned(), expression, parts, loops, needs_document })
    }

    /// Whether it reads `object`, or a field of `state` that only the document has.
    pub fn needs_document(&self) -> bool {
        self.needs_document
    }

    /// Whether it wants this state. The error says why it can't tell.
    pub fn wants(&self, state: &State, document: Option<&[u8]>) -> Result<bool, String> {
        let document = match document.filter(|bytes| self.needs_document && !bytes.is_empty()) {
            Some(bytes) if bytes.len() > DOCUMENT_BYTES => {
                return Err(format!(
                    "the document has {} bytes; filters read up to {DOCUMENT_BYTES}",
                    bytes.len()
                ));
            }
            Some(bytes) => serde_json::from_slice(bytes)
                .map_err(|error| format!("the document does not decode: {error}"))?,
            None => serde_json::Value::Null,
        };
        self.affordable(&document)?;
        let evaluate = || {
            let mut context = Context::default();
            context.add_variable_from_value("state", values::state(state, &document));
            context.add_variable_from_value("object", values::json(&document));
            context.resolve(&self.expression)
        };
        match catch_unwind(AssertUnwindSafe(evaluate)) {
            Ok(Ok(Value::Bool(wants))) => Ok(wants),
            Ok(Ok(other)) => {
                Err(format!("the filter returns {}, neither true nor false", cut(&format!("{other:?}"))))
            }
            Ok(Err(error)) => Err(cut(&error.to_string())),
            Err(_) => Err("the filter can't be evaluated for this state".into()),
        }
    }

    fn affordable(&self, document: &serde_json::Value) -> Result<(), String> {
        // A list in the expression itself has no more elements than the expression has nodes.
        let longest = values::longest(document).max(self.parts);
        let steps = longest.checked_pow(self.loops).and_then(|rounds| rounds.checked_mul(self.parts));
        let longest = if self.loops == 0 { 1 } else { longest };
        match steps {
            Some(steps) if steps <= STEPS || self.loops == 0 => Ok(()),
            _ => Err(format!(
                "the filter nests {} loops over a list or map of up to {longest} entries: that is too much",
                self.loops
            )),
        }
    }
}

/// Cuts the interpreter's errors, which quote values, even a whole document.
fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(300)].to_owned()
}

fn first_of(errors: &cel::ParseErrors) -> Fault {
    let Some(error) = errors.errors.first() else {
        return Fault { line: 1, column: 1, message: "can't be read".into() };
    };
    let at = |position: isize| usize::try_from(position).unwrap_or(1).max(1);
    Fault { line: at(error.pos.0), column: at(error.pos.1), message: cut(&error.msg) }
}

#[cfg(test)]
mod tests;
