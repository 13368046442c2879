//! Checks an expression: its size, its nesting, and whether every name in it exists.

use cel::common::ast::{EntryExpr, Expr};
use cel::parser::Expression;
use kubewitness_core::with_nearest;

use crate::cost::literal_text;
use crate::values::{FIELDS, OF_DOCUMENT, OF_STATUS};
use crate::{FilterFault, MATCHES, is_state};

/// Names that stand for values.
const CONSTANTS: [&str; 9] = ["int", "uint", "double", "bool", "string", "bytes", "list", "map", "type"];
const FUNCTIONS: [&str; 17] = [
    "has",
    "size",
    "contains",
    "startsWith",
    "endsWith",
    "matches",
    "string",
    "int",
    "uint",
    "double",
    "bytes",
    "bool",
    "type",
    "max",
    "min",
    "dyn",
    "lowerAscii",
];

pub(crate) struct CheckedPart {
    /// The depth of its nested loops.
    pub loops: u32,
    pub needs_document: bool,
    /// The patterns of `matches`.
    pub patterns: Vec<String>,
}

struct CheckWalk<'t> {
    text: &'t str,
    /// The variables of the surrounding loops.
    names: Vec<String>,
    found: CheckedPart,
    depth: u32,
}

/// Checks an expression, and replaces `matches` by [`MATCHES`].
pub(crate) fn check(text: &str, expression: &mut Expression) -> Result<CheckedPart, FilterFault> {
    let found = CheckedPart { loops: 0, needs_document: false, patterns: Vec::new() };
    let mut walk = CheckWalk { text, names: Vec::new(), found, depth: 0 };
    walk.check_expression(expression)?;
    Ok(walk.found)
}

impl CheckWalk<'_> {
    /// A fault at a name. The syntax tree has no positions, so the name is searched in the text as a word.
    fn fault_at_name(&self, name: &str, message: String) -> FilterFault {
        let is_word = |at: usize| {
            let is_part = |c: char| c.is_alphanumeric() || c == '_';
            let before = self.text[..at].chars().next_back();
            let after = self.text[at + name.len()..].chars().next();
            !before.is_some_and(is_part) && !after.is_some_and(is_part)
        };
        let at = self.text.match_indices(name).map(|(at, _)| at).find(|at| is_word(*at)).unwrap_or(0);
        let before = &self.text[..at];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        FilterFault { line, column, message }
    }

    fn check_expression(&mut self, expression: &mut Expression) -> Result<(), FilterFault> {
        match &mut expression.expr {
            Expr::Unspecified | Expr::Literal(_) => Ok(()),
            Expr::Ident(name) => self.name(name),
            Expr::Select(select) => {
                self.check_field(&select.operand, &select.field)?;
                self.check_expression(&mut select.operand)
            }
            Expr::Call(call) => {
                self.check_function(&call.func_name)?;
                if call.func_name == "matches" {
                    let Some(pattern) = call.args.last().and_then(literal_text) else {
                        let message = "`matches` takes a pattern that is written there, in quotes";
                        return Err(self.fault_at_name("matches", message.into()));
                    };
                    self.found.patterns.push(pattern.to_owned());
                    MATCHES.clone_into(&mut call.func_name);
                }
                call.target.iter_mut().try_for_each(|target| self.check_expression(target))?;
                call.args.iter_mut().try_for_each(|argument| self.check_expression(argument))
            }
            Expr::List(list) => {
                list.elements.iter_mut().try_for_each(|element| self.check_expression(element))
            }
            Expr::Map(map) => map.entries.iter_mut().try_for_each(|entry| match &mut entry.expr {
                EntryExpr::MapEntry(entry) => {
                    self.check_expression(&mut entry.key)?;
                    self.check_expression(&mut entry.value)
                }
                EntryExpr::StructField(field) => self.check_expression(&mut field.value),
            }),
            Expr::Struct(made) => Err(self.fault_at_name(
                &made.type_name,
                "builds a message: a filter can use only values of `state` and `object`".into(),
            )),
            Expr::Comprehension(each) => {
                self.check_expression(&mut each.iter_range)?;
                self.depth += 1;
                self.found.loops = self.found.loops.max(self.depth);
                let names = self.names.len();
                self.names.extend([each.iter_var.clone(), each.accu_var.clone()]);
                self.names.extend(each.iter_var2.clone());
                let parts = [&mut each.accu_init, &mut each.loop_cond, &mut each.loop_step, &mut each.result];
                parts.into_iter().try_for_each(|part| self.check_expression(part))?;
                self.names.truncate(names);
                self.depth -= 1;
                Ok(())
            }
        }
    }

    fn name(&mut self, name: &str) -> Result<(), FilterFault> {
        self.found.needs_document |= name == "object";
        let is_known = ["state", "object"].contains(&name) || CONSTANTS.contains(&name);
        if is_known || self.names.iter().any(|known| known == name) {
            return Ok(());
        }
        Err(self.fault_at_name(name, format!("`{name}` is not known: use `state` or `object`")))
    }

    fn check_field(&mut self, operand: &Expression, field: &str) -> Result<(), FilterFault> {
        let known: &[&str] = match &operand.expr {
            Expr::Ident(name) if name == "state" && !self.names.contains(name) => &FIELDS,
            Expr::Select(outer) if outer.field == "previous" && is_state(&outer.operand) => &OF_STATUS,
            _ => return Ok(()),
        };
        self.found.needs_document |= is_state(operand) && OF_DOCUMENT.contains(&field);
        if known.contains(&field) {
            return Ok(());
        }
        Err(self.fault_at_name(
            field,
            with_nearest(&format!("a state has no `{field}`; it has {}", known.join(", "))),
        ))
    }

    /// Operators are functions whose names an expression can't contain.
    fn check_function(&self, name: &str) -> Result<(), FilterFault> {
        let is_written = name.starts_with(|c: char| c.is_ascii_alphabetic());
        if !is_written || FUNCTIONS.contains(&name) {
            return Ok(());
        }
        let message = format!("there is no function `{name}`; there are {}", FUNCTIONS.join(", "));
        Err(self.fault_at_name(name, with_nearest(&message)))
    }
}
