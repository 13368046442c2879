//! Checks an expression: its size, its nesting, and that every name in it exists.

use cel::common::ast::{EntryExpr, Expr};
use cel::parser::Expression;

use crate::Fault;
use crate::values::{FIELDS, OF_DOCUMENT, OF_STATUS};

/// Names that are values of their own.
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

pub(crate) struct Found {
    /// The nodes of the whole expression.
    pub parts: u64,
    /// How deep its loops are nested.
    pub loops: u32,
    pub needs_document: bool,
}

struct Walk<'t> {
    text: &'t str,
    /// The variables of the surrounding loops.
    names: Vec<String>,
    found: Found,
    depth: u32,
}

pub(crate) fn check(text: &str, expression: &Expression) -> Result<Found, Fault> {
    let found = Found { parts: 0, loops: 0, needs_document: false };
    let mut walk = Walk { text, names: Vec::new(), found, depth: 0 };
    walk.expression(expression)?;
    Ok(walk.found)
}

impl Walk<'_> {
    /// Makes a fault for a name. The syntax tree has no positions, so the name is searched in the text as a
    /// word.
    fn fault(&self, name: &str, message: String) -> Fault {
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
        Fault { line, column, message }
    }

    fn expression(&mut self, expression: &Expression) -> Result<(), Fault> {
        self.found.parts += 1;
        match &expression.expr {
            Expr::Unspecified | Expr::Literal(_) => Ok(()),
            Expr::Ident(name) => self.name(name),
            Expr::Select(select) => {
                self.field(&select.operand, &select.field)?;
                self.expression(&select.operand)
            }
            Expr::Call(call) => {
                self.function(&call.func_name)?;
                call.target.iter().try_for_each(|target| self.expression(target))?;
                call.args.iter().try_for_each(|argument| self.expression(argument))
            }
            Expr::List(list) => list.elements.iter().try_for_each(|element| self.expression(element)),
            Expr::Map(map) => map.entries.iter().try_for_each(|entry| match &entry.expr {
                EntryExpr::MapEntry(entry) => {
                    self.expression(&entry.key)?;
                    self.expression(&entry.value)
                }
                EntryExpr::StructField(field) => self.expression(&field.value),
            }),
            Expr::Struct(made) => Err(self.fault(
                &made.type_name,
                "builds a message: a filter can use only values of `state` and `object`".into(),
            )),
            Expr::Comprehension(each) => {
                self.expression(&each.iter_range)?;
                self.depth += 1;
                self.found.loops = self.found.loops.max(self.depth);
                let names = self.names.len();
                self.names.extend([each.iter_var.clone(), each.accu_var.clone()]);
                self.names.extend(each.iter_var2.clone());
                let parts = [&each.accu_init, &each.loop_cond, &each.loop_step, &each.result];
                parts.into_iter().try_for_each(|part| self.expression(part))?;
                self.names.truncate(names);
                self.depth -= 1;
                Ok(())
            }
        }
    }

    fn name(&mut self, name: &str) -> Result<(), Fault> {
        self.found.needs_document |= name == "object";
        let is_known = ["state", "object"].contains(&name) || CONSTANTS.contains(&name);
        if is_known || self.names.iter().any(|known| known == name) {
            return Ok(());
        }
        Err(self.fault(name, format!("`{name}` is not known: use `state` or `object`")))
    }

    fn field(&mut self, operand: &Expression, field: &str) -> Result<(), Fault> {
        let known: &[&str] = match &operand.expr {
            Expr::Ident(name) if name == "state" && !self.names.contains(name) => &FIELDS,
            Expr::Select(outer) if outer.field == "previous" && is_state(&outer.operand) => &OF_STATUS,
            _ => return Ok(()),
        };
        self.found.needs_document |= is_state(operand) && OF_DOCUMENT.contains(&field);
        if known.contains(&field) {
            return Ok(());
        }
        Err(self.fault(field, format!("a state has no `{field}`; it has {}", known.join(", "))))
    }

    /// Operators have function names that nobody can write.
    fn function(&self, name: &str) -> Result<(), Fault> {
        let is_written = name.starts_with(|c: char| c.is_ascii_alphabetic());
        if !is_written || FUNCTIONS.contains(&name) {
            return Ok(());
        }
        Err(self.fault(name, format!("there is no function `{name}`; there are {}", FUNCTIONS.join(", "))))
    }
}

fn is_state(expression: &Expression) -> bool {
    matches!(&expression.expr, Expr::Ident(name) if name == "state")
}
