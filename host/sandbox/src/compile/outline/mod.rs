//! Reads a component without compiling it: its imports and exports, and whether it is within its limits. It
//! compiles and runs nothing.
//!
//! It reads sections and the instructions of functions, but not the inside of types: types can be nested
//! endlessly, and reading them takes many times their size in memory. The process that compiles reads those,
//! within its limits.

use std::fmt::Display;

use kubewitness_core::config::ComponentsSpec;
use wasmparser::{BinaryReaderError, FunctionBody, KnownCustom, Name, Operator, Parser, Payload};

use super::shape;
use crate::error::SandboxError;

/// Names of interfaces have some dozen bytes, and each may occur in an error.
const NAME_BYTES: usize = 256;

/// The names of a component's own imports and exports.
#[derive(Debug, Default)]
pub struct ComponentOutline {
    pub imports: Vec<String>,
    pub exports: Vec<String>,
}

/// Reads the outline in time proportional to the bytes, with memory only for the names.
pub fn read(bytes: &[u8], limits: &ComponentsSpec) -> Result<ComponentOutline, SandboxError> {
    shape::check_header(bytes)?;
    let mut reader = OutlineReader {
        bytes,
        limits,
        outline: ComponentOutline::default(),
        sums: OutlineSums::default(),
        open: Vec::new(),
    };
    for payload in Parser::new(0).parse_all(bytes) {
        reader.take(payload.map_err(|error| malformed_component(&error))?)?;
    }
    Ok(reader.outline)
}

/// The sums over all parts of the component.
#[derive(Default)]
struct OutlineSums {
    parts: u64,
    types: u64,
    data_segments: u64,
    functions: u64,
}

/// A part whose end was not read yet.
struct OpenPart {
    /// Its number among all parts. The component itself has 0.
    number: u64,
    imported: u64,
    functions: u64,
}

struct OutlineReader<'a> {
    bytes: &'a [u8],
    limits: &'a ComponentsSpec,
    outline: ComponentOutline,
    sums: OutlineSums,
    open: Vec<OpenPart>,
}

impl<'a> OutlineReader<'a> {
    fn take(&mut self, payload: Payload<'a>) -> Result<(), SandboxError> {
        let limits = self.limits;
        match payload {
            Payload::Version { .. } => self.begin_module()?,
            Payload::End(_) => drop(self.open.pop()),
            Payload::ComponentImportSection(section) if self.open.len() == 1 => {
                self.check_names(section.count())?;
                for import in section {
                    let name = import.map_err(|error| malformed_component(&error))?.name.name;
                    self.outline.imports.push(shortened_name(name)?);
                }
            }
            Payload::ComponentExportSection(section) if self.open.len() == 1 => {
                self.check_names(section.count())?;
                for export in section {
                    let name = export.map_err(|error| malformed_component(&error))?.name.name;
                    self.outline.exports.push(shortened_name(name)?);
                }
            }
            Payload::TypeSection(section) => self.check_types(section.count())?,
            Payload::CoreTypeSection(section) => self.check_types(section.count())?,
            Payload::ComponentTypeSection(section) => self.check_types(section.count())?,
            Payload::DataSection(section) => {
                self.sums.data_segments += u64::from(section.count());
                check_limit("data segments", self.sums.data_segments, limits.data_segments, "dataSegments")?;
            }
            Payload::ImportSection(section) => {
                let imports = section.into_imports();
                let functions = imports.filter(|import| {
                    import.as_ref().is_ok_and(|import| matches!(import.ty, wasmparser::TypeRef::Func(_)))
                });
                let functions = functions.count() as u64;
                self.open.last_mut().into_iter().for_each(|part| part.imported += functions);
            }
            Payload::CodeSectionStart { count, .. } => {
                self.sums.functions += u64::from(count);
                check_limit("functions", self.sums.functions, limits.functions, "functions")?;
            }
            Payload::CodeSectionEntry(body) => self.read_function(&body)?,
            _ => {}
        }
        Ok(())
    }

    fn begin_module(&mut self) -> Result<(), SandboxError> {
        let number = self.sums.parts;
        self.sums.parts += 1;
        self.open.push(OpenPart { number, imported: 0, functions: 0 });
        check_limit("modules and components within it", number, self.limits.parts, "parts")?;
        let levels = self.open.len() as u64;
        check_limit("levels of components and modules", levels, self.limits.levels, "levels")
    }

    fn check_names(&self, more: u32) -> Result<(), SandboxError> {
        let names = self.outline.imports.len() + self.outline.exports.len();
        check_limit("imports and exports", names as u64 + u64::from(more), self.limits.names, "names")
    }

    fn check_types(&mut self, more: u32) -> Result<(), SandboxError> {
        self.sums.types += u64::from(more);
        check_limit("types", self.sums.types, self.limits.types, "types")
    }

    fn read_function(&mut self, body: &FunctionBody<'_>) -> Result<(), SandboxError> {
        let Some(part) = self.open.last_mut() else { return Ok(()) };
        let (number, index) = (part.number, part.imported + part.functions);
        part.functions += 1;
        let Some((what, found, most, field)) =
            exceeded_limit(body, self.limits).map_err(|error| malformed_component(&error))?
        else {
            return Ok(());
        };
        let name = name_of(self.bytes, number, index).map(|name| format!(" (`{name}`)")).unwrap_or_default();
        let whose = format!("function {index}{name} of part {number}");
        Err(SandboxError::Unfit(format!("{whose} has {found} {what}: {}", limit_advice(most, field))))
    }
}

type OverLimit = (&'static str, u64, u64, &'static str);

/// The first limit that a function exceeds.
fn exceeded_limit(
    body: &FunctionBody<'_>,
    limits: &ComponentsSpec,
) -> Result<Option<OverLimit>, BinaryReaderError> {
    let size = body.range().len() as u64;
    if size > limits.function_size.0 {
        return Ok(Some(("bytes", size, limits.function_size.0, "functionSize")));
    }
    let mut locals = 0_u64;
    for group in body.get_locals_reader()? {
        locals += u64::from(group?.0);
    }
    if locals > u64::from(limits.locals) {
        return Ok(Some(("local variables", locals, limits.locals.into(), "locals")));
    }
    let (mut loops, mut level, mut deepest) = (0_u64, 0_u64, 0_u64);
    let mut instructions = body.get_operators_reader()?;
    while !instructions.eof() {
        match instructions.read()? {
            Operator::Loop { .. } => {
                loops += 1;
                level += 1;
            }
            Operator::Block { .. } | Operator::If { .. } | Operator::TryTable { .. } => level += 1,
            Operator::End => level = level.saturating_sub(1),
            _ => continue,
        }
        deepest = deepest.max(level);
    }
    Ok(if loops > u64::from(limits.loops) {
        Some(("loops", loops, limits.loops.into(), "loops"))
    } else if deepest > u64::from(limits.nesting) {
        Some(("levels of blocks within each other", deepest, limits.nesting.into(), "nesting"))
    } else {
        None
    })
}

/// The name of a function in the part's own name section. Only looked up for an error, because the section
/// comes last.
fn name_of(bytes: &[u8], part: u64, function: u64) -> Option<String> {
    let (mut parts, mut open) = (0_u64, Vec::new());
    for payload in Parser::new(0).parse_all(bytes) {
        match payload.ok()? {
            Payload::Version { .. } => {
                open.push(parts);
                parts += 1;
            }
            Payload::End(_) => drop(open.pop()),
            Payload::CustomSection(section) if open.last() == Some(&part) => {
                let KnownCustom::Name(names) = section.as_known() else { continue };
                let functions = names.filter_map(|name| match name {
                    Ok(Name::Function(functions)) => Some(functions),
                    _ => None,
                });
                let mut named = functions.flatten().filter_map(Result::ok);
                let found = named.find(|naming| u64::from(naming.index) == function)?;
                return shortened_name(found.name).ok();
            }
            _ => {}
        }
    }
    None
}

fn check_limit(what: &str, found: u64, most: u32, field: &str) -> Result<(), SandboxError> {
    match found <= u64::from(most) {
        true => Ok(()),
        false => Err(SandboxError::Unfit(format!(
            "the component has {found} {what}: {}",
            limit_advice(most, field)
        ))),
    }
}

/// The end of every error about a limit.
pub fn limit_advice(most: impl Display, field: &str) -> String {
    format!("the limit is {most} (`spec.limits.components.{field}` of the host's settings)")
}

fn shortened_name(name: &str) -> Result<String, SandboxError> {
    match name.len() <= NAME_BYTES {
        true => Ok(name.to_owned()),
        false => Err(SandboxError::Unfit(format!(
            "the component has a name of {} bytes: the limit is {NAME_BYTES}",
            name.len()
        ))),
    }
}

fn malformed_component(error: &BinaryReaderError) -> SandboxError {
    SandboxError::Unfit(format!("the component can't be read: {error}"))
}

#[cfg(test)]
mod tests;
