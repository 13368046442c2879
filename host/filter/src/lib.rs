//! Filters states for subscriptions: it checks and evaluates CEL expressions over a state and its document.
//!
//! A filter runs for every state on the hot path, so an expensive one would delay its plugin forever. The
//! interpreter can't be interrupted. So the cost is estimated before each evaluation: the nodes that are
//! visited, and the bytes that are compared and copied. An expression is checked once, when a configuration
//! is loaded: its size, its depth, that it returns true or false, and that its names exist. A state that
//! can't be judged is delivered and counted, so no filter fault loses a state.
//!
//! Only this crate knows CEL. It reads no file, no clock and no network.

mod check;
mod cost;
mod values;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use cel::common::ast::Expr;
use cel::extractors::This;
use cel::parser::{Expression, Parser};
use cel::{Context, ExecutionError, Value};
use kubewitness_core::State;
use regex::RegexBuilder;
use thiserror::Error;

pub use crate::cost::ExcessCost;
use crate::cost::{FilterInput, MatchPattern};

/// The longest expression. A filter is a sentence, not a program.
pub const TEXT_BYTES: usize = 4096;
/// The deepest nesting of brackets. Each level takes stack in the parser and in the evaluation.
const DEPTH: u16 = 32;
/// The deepest nesting of loops.
const LOOPS: u32 = 2;
/// A larger document is not parsed for a filter.
pub const DOCUMENT_BYTES: usize = 2 * 1024 * 1024;
/// The sizes of compiled patterns, and the largest that is allowed. A text costs more the larger the pattern is.
const PATTERN_BYTES: [usize; 4] = [1 << 10, 4 << 10, 16 << 10, 64 << 10];
/// How much memory a pattern may use to cache matched texts.
const DFA_BYTES: usize = 256 << 10;
/// The function that the interpreter calls for `matches`: its own would compile the pattern at each call.
const MATCHES: &str = "@matches";

/// A fault of an expression, with its place.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message} (line {line}, column {column} of the filter)")]
pub struct FilterFault {
    pub line: usize,
    /// In characters, counted from 1.
    pub column: usize,
    pub message: String,
}

/// An expression that has passed the checks.
pub struct CelFilter {
    text: String,
    expression: Expression,
    patterns: Arc<HashMap<String, MatchPattern>>,
    needs_document: bool,
}

impl std::fmt::Debug for CelFilter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Filter({:?})", self.text)
    }
}

impl FilterFault {
    fn at_start(message: impl Into<String>) -> Self {
        Self { line: 1, column: 1, message: message.into() }
    }
}

/// Why a filter can't judge a state.
#[derive(Debug, Error)]
pub enum FilterEvaluationError {
    #[error("the document has {bytes} bytes; filters read up to {DOCUMENT_BYTES}")]
    LargeDocument { bytes: usize },
    #[error("the document does not decode: {0}")]
    UndecodableDocument(#[from] serde_json::Error),
    #[error(transparent)]
    TooCostly(#[from] ExcessCost),
    #[error("the filter returns {0}, neither true nor false")]
    NoBoolean(String),
    /// The interpreter's own text may quote a whole document.
    #[error("{}", cut_error(&.0.to_string()))]
    Interpreter(ExecutionError),
    #[error("the filter can't be evaluated for this state")]
    Panic,
}

impl CelFilter {
    pub fn compile_filter(text: &str) -> Result<Self, FilterFault> {
        if text.trim().is_empty() {
            return Err(FilterFault::at_start("is empty: leave it out for every state"));
        }
        if text.len() > TEXT_BYTES {
            let message = format!("has {} bytes; at most {TEXT_BYTES} are allowed", text.len());
            return Err(FilterFault::at_start(message));
        }
        let parser = || Parser::new().max_recursion_depth(DEPTH).error_recovery_limit(1);
        let parsed = catch_unwind(AssertUnwindSafe(|| parser().parse(text)));
        let mut expression = parsed
            .map_err(|_| FilterFault::at_start("can't be parsed: write it in another way"))?
            .map_err(|errors| first_of(&errors))?;
        let found = check::check(text, &mut expression)?;
        if found.loops > LOOPS {
            let message = format!("nests {} loops; at most {LOOPS} are allowed", found.loops);
            return Err(FilterFault::at_start(message));
        }
        let patterns = compile_patterns(found.patterns)?;
        if let Some(excess) = cost::find_excess(&expression, &patterns, FilterInput::default()) {
            return Err(FilterFault::at_start(excess.to_string()));
        }
        let needs_document = found.needs_document;
        Ok(Self { text: text.to_owned(), expression, patterns: Arc::new(patterns), needs_document })
    }

    /// Whether the filter reads `object`, or a field of `state` that only the document contains.
    pub fn needs_document(&self) -> bool {
        self.needs_document
    }

    /// Whether the filter selects this state.
    pub fn wants_state(&self, state: &State, document: Option<&[u8]>) -> Result<bool, FilterEvaluationError> {
        let bytes = document.filter(|bytes| self.needs_document && !bytes.is_empty()).unwrap_or_default();
        if bytes.len() > DOCUMENT_BYTES {
            return Err(FilterEvaluationError::LargeDocument { bytes: bytes.len() });
        }
        let document = match bytes {
            [] => serde_json::Value::Null,
            bytes => serde_json::from_slice(bytes)?,
        };
        let given = FilterInput {
            document: bytes.len() as u64,
            state: values::approximate_bytes(state),
            longest: values::longest_part(&document).max(values::FIELDS.len() as u64),
        };
        if let Some(excess) = cost::find_excess(&self.expression, &self.patterns, given) {
            return Err(excess.into());
        }
        let evaluate = || {
            let mut context = Context::default();
            let patterns = Arc::clone(&self.patterns);
            let matches = move |This(text): This<Arc<String>>, pattern: Arc<String>| {
                let known = patterns.get(pattern.as_str()).map(|known| known.regex.is_match(&text));
                known.ok_or_else(|| ExecutionError::function_error("matches", "the pattern is no text"))
            };
            // It refuses only names that the interpreter knows, and no expression can contain this one.
            context
                .add_function(MATCHES, matches)
                .map_err(|error| ExecutionError::function_error("matches", error))?;
            context.add_variable_from_value("state", values::state_value(state, &document));
            context.add_variable_from_value("object", values::json_value(&document));
            context.resolve(&self.expression)
        };
        match catch_unwind(AssertUnwindSafe(evaluate)) {
            Ok(Ok(Value::Bool(wants))) => Ok(wants),
            Ok(Ok(other)) => Err(FilterEvaluationError::NoBoolean(cut_error(&format!("{other:?}")))),
            Ok(Err(error)) => Err(FilterEvaluationError::Interpreter(error)),
            Err(_) => Err(FilterEvaluationError::Panic),
        }
    }
}

/// Compiles the patterns once, so that neither their size nor the number of calls costs anything later.
fn compile_patterns(patterns: Vec<String>) -> Result<HashMap<String, MatchPattern>, FilterFault> {
    let compile = |pattern: String| {
        let mut last = None;
        for size in PATTERN_BYTES {
            match RegexBuilder::new(&pattern).size_limit(size).dfa_size_limit(DFA_BYTES).build() {
                Ok(regex) => {
                    return Ok((pattern, MatchPattern { regex, weight: (size / PATTERN_BYTES[0]) as u64 }));
                }
                Err(error) => last = Some(error),
            }
        }
        let why = last.map(|error| error.to_string()).unwrap_or_default();
        Err(FilterFault::at_start(cut_error(&format!("`matches` can't use this pattern: {why}"))))
    };
    patterns.into_iter().map(compile).collect()
}

fn is_state(expression: &Expression) -> bool {
    matches!(&expression.expr, Expr::Ident(name) if name == "state")
}

/// Cuts the interpreter's errors, which quote values, up to a whole document.
fn cut_error(text: &str) -> String {
    text[..text.floor_char_boundary(300)].to_owned()
}

fn first_of(errors: &cel::ParseErrors) -> FilterFault {
    let Some(error) = errors.errors.first() else {
        return FilterFault { line: 1, column: 1, message: "can't be read".into() };
    };
    let at = |position: isize| usize::try_from(position).unwrap_or(1).max(1);
    FilterFault { line: at(error.pos.0), column: at(error.pos.1), message: cut_error(&error.msg) }
}

#[cfg(test)]
mod tests;
