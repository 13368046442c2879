//! Estimates the cost of an evaluation before it begins. A time limit is impossible, because the interpreter
//! can't be interrupted, and it copies whatever a filter builds.
//!
//! The estimate walks the expression once. It knows the sizes of the document and the state, and the length
//! of the longest list. A loop's variable stands for one element. All elements of a list together are as
//! large as the list, so a size records how often it contains the variable of each surrounding loop.

use std::collections::HashMap;

use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, LiteralValue, operators};
use cel::parser::Expression;
use regex::Regex;
use thiserror::Error;

use crate::values::{OF_DOCUMENT, OF_STATUS};
use crate::{MATCHES, is_state};

/// The most nodes that one evaluation may visit. They take about a tenth of a second.
const STEPS: u64 = 500_000;
/// The most that one evaluation may compare and copy, as bytes of JSON.
const BYTES: u64 = 16 << 20;
/// The largest value that a filter may build, as bytes of JSON: twice the size of a document. In memory it
/// takes up to 40 times as much.
const BUILT_BYTES: u64 = 4 << 20;
/// The size of a number, a boolean, and the overhead of a list element.
const SMALL: u64 = 8;

/// The longest number as text.
const NUMBER: u64 = 320;

/// The input of an evaluation.
#[derive(Clone, Copy, Default)]
pub(crate) struct FilterInput {
    /// The bytes of the document.
    pub document: u64,
    /// The bytes of the state without its document.
    pub state: u64,
    /// The entries of the longest list or map.
    pub longest: u64,
}

/// A pattern of `matches`, compiled once.
#[derive(Clone)]
pub(crate) struct MatchPattern {
    pub regex: Regex,
    /// The cost for each byte of a text.
    pub weight: u64,
}

/// A part of an evaluation that costs too much.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the filter {what}, up to {found}: that is too much; at most {most} are allowed")]
pub struct ExcessCost {
    what: &'static str,
    found: u64,
    most: u64,
}

/// The part of an evaluation that costs too much; `None` for an evaluation within the bounds.
pub(crate) fn find_excess(
    expression: &Expression,
    patterns: &HashMap<String, MatchPattern>,
    given: FilterInput,
) -> Option<ExcessCost> {
    let start = CostSize::default();
    let mut estimate = CostEstimate {
        given,
        patterns,
        names: Vec::new(),
        loops: Vec::new(),
        steps: 0,
        bytes: start,
        built: 0,
    };
    estimate.estimate_value(expression);
    let CostEstimate { steps, bytes, built, .. } = estimate;
    let wrong = |what, found, most| Some(ExcessCost { what, found, most });
    match () {
        () if steps > STEPS => wrong("takes many steps", steps, STEPS),
        () if built > BUILT_BYTES => wrong("builds a value of many bytes", built, BUILT_BYTES),
        () if bytes.fixed > BYTES => wrong("compares or copies many bytes", bytes.fixed, BYTES),
        () => None,
    }
}

/// A size in bytes: a fixed part, and a factor for the element of each surrounding loop.
#[derive(Clone, Default)]
struct CostSize {
    fixed: u64,
    elements: Vec<u64>,
}

impl CostSize {
    fn fixed_size(bytes: u64) -> Self {
        Self { fixed: bytes, elements: Vec::new() }
    }

    fn add(&mut self, other: &Self) {
        self.fixed = self.fixed.saturating_add(other.fixed);
        self.elements.resize(self.elements.len().max(other.elements.len()), 0);
        for (sum, more) in self.elements.iter_mut().zip(&other.elements) {
            *sum = sum.saturating_add(*more);
        }
    }

    fn multiplied_by(mut self, factor: u64) -> Self {
        self.fixed = self.fixed.saturating_mul(factor);
        self.elements.iter_mut().for_each(|count| *count = count.saturating_mul(factor));
        self
    }

    /// The size over all rounds of a loop. `depth` is the number of loops around it.
    fn over_rounds(mut self, depth: usize, rounds: u64, range: &Self) -> Self {
        let own = if self.elements.len() > depth { self.elements.remove(depth) } else { 0 };
        let mut all = self.multiplied_by(rounds);
        all.add(&range.clone().multiplied_by(own));
        all
    }
}

#[derive(Clone, Default)]
struct EstimatedValue {
    size: CostSize,
    /// The entries of the longest list in it.
    longest: u64,
}

impl EstimatedValue {
    fn small_value() -> Self {
        Self { size: CostSize::fixed_size(SMALL), longest: 0 }
    }
}

struct CostEstimate<'a> {
    given: FilterInput,
    patterns: &'a HashMap<String, MatchPattern>,
    /// The variables of the surrounding loops.
    names: Vec<(&'a str, EstimatedValue)>,
    /// The greatest possible size of an element of each surrounding loop: that of the whole list.
    loops: Vec<u64>,
    steps: u64,
    bytes: CostSize,
    /// The largest value that is built.
    built: u64,
}

impl<'a> CostEstimate<'a> {
    fn estimate_value(&mut self, expression: &'a Expression) -> EstimatedValue {
        self.steps = self.steps.saturating_add(1);
        match &expression.expr {
            Expr::Unspecified | Expr::Struct(_) => EstimatedValue::small_value(),
            Expr::Literal(LiteralValue::String(text)) => {
                EstimatedValue { size: CostSize::fixed_size(text.inner().len() as u64 + SMALL), longest: 0 }
            }
            Expr::Literal(LiteralValue::Bytes(bytes)) => {
                EstimatedValue { size: CostSize::fixed_size(bytes.inner().len() as u64 + SMALL), longest: 0 }
            }
            Expr::Literal(_) => EstimatedValue::small_value(),
            Expr::Ident(name) => self.estimate_named(name),
            Expr::Select(select)
                if is_state(&select.operand)
                    // A loop's variable may hide the input of this name.
                    && self.names.iter().all(|(name, _)| *name != "state")
                    && !OF_DOCUMENT.contains(&select.field.as_str()) =>
            {
                EstimatedValue {
                    size: CostSize::fixed_size(self.given.state),
                    longest: OF_STATUS.len() as u64,
                }
            }
            Expr::Select(select) => {
                let operand = self.estimate_value(&select.operand);
                self.part_of(&select.operand, operand)
            }
            Expr::Call(call) => self.estimate_call(call),
            Expr::List(list) => {
                let elements: Vec<_> =
                    list.elements.iter().map(|element| self.estimate_value(element)).collect();
                self.build(&elements)
            }
            Expr::Map(map) => {
                let mut parts = Vec::new();
                for entry in &map.entries {
                    match &entry.expr {
                        EntryExpr::MapEntry(entry) => {
                            parts
                                .extend([self.estimate_value(&entry.key), self.estimate_value(&entry.value)]);
                        }
                        EntryExpr::StructField(field) => parts.push(self.estimate_value(&field.value)),
                    }
                }
                self.build(&parts)
            }
            Expr::Comprehension(each) => self.estimate_loop(each),
        }
    }

    fn estimate_named(&self, name: &str) -> EstimatedValue {
        if let Some((_, found)) = self.names.iter().rev().find(|(known, _)| *known == name) {
            return found.clone();
        }
        let FilterInput { document, state, longest } = self.given;
        match name {
            "object" => EstimatedValue { size: CostSize::fixed_size(document), longest },
            "state" => EstimatedValue { size: CostSize::fixed_size(document.saturating_add(state)), longest },
            _ => EstimatedValue::small_value(),
        }
    }

    /// The estimate for a part of a value. It is copied, unless the value is an input of the evaluation.
    fn part_of(&mut self, from: &Expression, whole: EstimatedValue) -> EstimatedValue {
        if !is_given(from) {
            self.bytes.add(&whole.size);
        }
        whole
    }

    fn build(&mut self, parts: &[EstimatedValue]) -> EstimatedValue {
        let mut made = EstimatedValue {
            size: CostSize::fixed_size(SMALL * parts.len() as u64),
            longest: parts.len() as u64,
        };
        for part in parts {
            made.size.add(&part.size);
            made.longest = made.longest.max(part.longest);
        }
        self.add_copied(&made.size);
        made
    }

    fn add_copied(&mut self, size: &CostSize) {
        self.bytes.add(size);
        let elements = size.elements.iter().zip(&self.loops).map(|(count, most)| count.saturating_mul(*most));
        self.built = self.built.max(elements.fold(size.fixed, u64::saturating_add));
    }

    fn estimate_call(&mut self, call: &'a CallExpr) -> EstimatedValue {
        let operands: Vec<&Expression> = call.target.as_deref().into_iter().chain(&call.args).collect();
        let values: Vec<_> = operands.iter().map(|operand| self.estimate_value(operand)).collect();
        let mut all = EstimatedValue::default();
        for value in &values {
            all.size.add(&value.size);
            all.longest = all.longest.saturating_add(value.longest);
        }
        match (call.func_name.as_str(), values.as_slice()) {
            (
                operators::LOGICAL_AND
                | operators::LOGICAL_OR
                | operators::LOGICAL_NOT
                | operators::NOT_STRICTLY_FALSE,
                _,
            ) => EstimatedValue::small_value(),
            (operators::CONDITIONAL, _) => all,
            (operators::INDEX, [whole, _]) => self.part_of(operands[0], whole.clone()),
            (operators::EQUALS | operators::NOT_EQUALS, [one, other]) => {
                self.bytes.add(lesser_size(&one.size, &other.size));
                EstimatedValue::small_value()
            }
            (MATCHES, [text, _]) => {
                let weight = operands.get(1).and_then(|pattern| literal_text(pattern));
                let weight =
                    weight.and_then(|pattern| self.patterns.get(pattern)).map_or(1, |known| known.weight);
                self.bytes.add(&text.size.clone().multiplied_by(weight));
                EstimatedValue::small_value()
            }
            // A number with an exponent of three digits is written in full.
            ("string", _) => {
                all.size.add(&CostSize::fixed_size(NUMBER));
                self.add_copied(&all.size);
                all
            }
            (operators::ADD | "bytes" | "dyn" | "max" | "min" | "lowerAscii", _) => {
                self.add_copied(&all.size);
                all
            }
            _ => {
                self.bytes.add(&all.size);
                EstimatedValue::small_value()
            }
        }
    }

    fn estimate_loop(&mut self, each: &'a ComprehensionExpr) -> EstimatedValue {
        let range = self.estimate_value(&each.iter_range);
        self.estimate_value(&each.accu_init);
        let rounds = range.longest;
        let depth = self.loops.len();
        let mut elements = vec![0; depth + 1];
        elements[depth] = 1;
        let element = EstimatedValue {
            size: CostSize { fixed: 0, elements },
            longest: range.longest.max(self.given.longest),
        };
        let whole =
            range.size.elements.iter().zip(&self.loops).map(|(count, most)| count.saturating_mul(*most));
        let whole = whole.fold(range.size.fixed, u64::saturating_add);

        let before = (self.steps, std::mem::take(&mut self.bytes), self.names.len());
        self.steps = 0;
        self.loops.push(whole);
        self.names.extend(each.iter_var2.as_deref().map(|name| (name, element.clone())));
        // The interpreter appends to the list that `map` and `filter` make, so its size is the size of the
        // appended elements.
        self.names
            .extend([(each.iter_var.as_str(), element), (each.accu_var.as_str(), EstimatedValue::default())]);
        self.estimate_value(&each.loop_cond);
        let step = self.estimate_value(&each.loop_step);
        self.estimate_value(&each.result);
        self.names.truncate(before.2);
        self.loops.pop();

        self.steps = before.0.saturating_add(self.steps.saturating_mul(rounds));
        let inside = std::mem::replace(&mut self.bytes, before.1);
        self.bytes.add(&inside.over_rounds(depth, rounds, &range.size));
        self.bytes.add(&range.size);
        let made = EstimatedValue {
            size: step.size.over_rounds(depth, rounds, &range.size),
            longest: step.longest.max(rounds),
        };
        self.add_copied(&made.size);
        made
    }
}

/// Two values are compared up to the end of the smaller one.
fn lesser_size<'s>(one: &'s CostSize, other: &'s CostSize) -> &'s CostSize {
    let is_element = |size: &CostSize| size.elements.iter().any(|count| *count > 0);
    match (is_element(one), is_element(other)) {
        (false, true) if one.fixed > 64 => other,
        (false, true) => one,
        (true, false) if other.fixed <= 64 => other,
        (true, _) => one,
        (false, false) if other.fixed < one.fixed => other,
        (false, false) => one,
    }
}

/// Whether an expression names an input of the evaluation, or a part of one.
fn is_given(expression: &Expression) -> bool {
    match &expression.expr {
        Expr::Ident(_) => true,
        Expr::Select(select) => is_given(&select.operand),
        Expr::Call(call) if call.func_name == operators::INDEX => call.args.first().is_some_and(is_given),
        _ => false,
    }
}

/// The text of a literal.
pub(crate) fn literal_text(expression: &Expression) -> Option<&str> {
    match &expression.expr {
        Expr::Literal(LiteralValue::String(text)) => Some(text.inner()),
        _ => None,
    }
}
