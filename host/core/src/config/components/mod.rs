//! The limits on components and on compiling them.
//!
//! A component is a stranger's program, and compiling it is the most expensive thing that a manifest can
//! cause. So its size, its parts, its compiled code, and the memory and time of its compilation are limited.
//! Each default is measured on a large real component, with a margin. This module neither reads nor compiles
//! components.

mod ceiling;
mod conform;
mod fields;
mod module;

use serde::{Deserialize, Serialize};

use super::{Bytes, Duration};
use crate::model::fault::{ManifestFault, fault};

pub use ceiling::{CeilingSpec, GrantKind, ModuleKind};
pub use conform::config_faults;
pub use fields::{ConfigField, config_fields};
pub use module::{OciReference, is_local};
pub(super) use module::{check_module, check_modules};

/// The compiler's program and tables need about this much before it reads anything.
pub(super) const MEMORY_LEAST: u64 = 128 << 20;
/// The time of a process is counted in whole seconds.
pub(super) const TIME_LEAST: std::time::Duration = std::time::Duration::from_secs(1);

/// The limits of plugins. No manifest can exceed them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct HostLimitsSpec {
    /// The limits of a component, and those of compiling it.
    pub components: ComponentsSpec,
    /// The most that a plugin manifest may ask for, and the memory of all plugins together.
    pub plugins: CeilingSpec,
}

/// The limits of a component. The controller reads it before it is compiled, and compiles it in a process of its
/// own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ComponentsSpec {
    /// Imports and exports of the component.
    #[cfg_attr(test, schemars(range(min = 1)))]
    pub names: u32,
    /// Modules and components within the component.
    #[cfg_attr(test, schemars(range(min = 1)))]
    pub parts: u32,
    /// Levels of components and modules within each other.
    #[cfg_attr(test, schemars(range(min = 1)))]
    pub levels: u32,
    /// Types, summed over all parts.
    #[cfg_attr(test, schemars(range(min = 1)))]
    pub types: u32,
    /// Data segments, summed over all parts.
    #[cfg_attr(test, schemars(range(min = 1)))]
    pub data_segments: u32,
    /// Functions, summed over all parts.
    #[cfg_attr(test, schemars(range(min = 1)))]
    pub functions: u32,
    /// Bytes of one function.
    #[cfg_attr(test, schemars(extend("x-bounds" = super::reference::at_least_bytes(1))))]
    pub function_size: Bytes,
    /// Local variables of one function.
    #[cfg_attr(test, schemars(range(min = 1)))]
    pub locals: u32,
    /// Loops of one function.
    #[cfg_attr(test, schemars(range(min = 1)))]
    pub loops: u32,
    /// Levels of blocks within each other in one function.
    #[cfg_attr(test, schemars(range(min = 1)))]
    pub nesting: u32,
    /// Bytes of the compiled code. The code of every plugin stays in memory.
    #[cfg_attr(test, schemars(extend("x-bounds" = super::reference::at_least_bytes(1))))]
    pub code: Bytes,
    /// Memory of the process that compiles: its address space.
    #[cfg_attr(test, schemars(extend("x-bounds" = super::reference::at_least_bytes(MEMORY_LEAST))))]
    pub compile_memory: Bytes,
    /// Processor time of the process that compiles, in whole seconds.
    #[cfg_attr(test, schemars(extend("x-bounds" = super::reference::at_least(TIME_LEAST))))]
    pub compile_cpu: Duration,
    /// Time until the process that compiles is ended.
    #[cfg_attr(test, schemars(extend("x-bounds" = super::reference::at_least(TIME_LEAST))))]
    pub compile_time: Duration,
}

/// A Python component of 18 MB has 13,000 functions, the largest of 417 KiB with 271 locals, 81 loops and 781
/// levels. It compiles to 33 MiB within 600 MiB of address space and 17 s, by a compiler that is itself built
/// for debugging. Each default is several times that. Memory is the exception, because the container has to
/// have it. Components are compiled one after the other.
impl Default for ComponentsSpec {
    fn default() -> Self {
        Self {
            names: 1000,
            parts: 100,
            levels: 8,
            types: 20_000,
            data_segments: 20_000,
            functions: 100_000,
            function_size: Bytes(2 << 20),
            locals: 5000,
            loops: 1000,
            nesting: 5000,
            code: Bytes(128 << 20),
            compile_memory: Bytes(1 << 30),
            compile_cpu: Duration(std::time::Duration::from_secs(60)),
            compile_time: Duration(std::time::Duration::from_secs(180)),
        }
    }
}

pub(super) fn check(limits: &HostLimitsSpec, faults: &mut Vec<ManifestFault>) {
    ceiling::check(&limits.plugins, faults);
    let spec = &limits.components;
    let field = |name: &str| format!("spec.limits.components.{name}");
    for (name, value) in [
        ("names", u64::from(spec.names)),
        ("parts", u64::from(spec.parts)),
        ("levels", u64::from(spec.levels)),
        ("types", u64::from(spec.types)),
        ("dataSegments", u64::from(spec.data_segments)),
        ("functions", u64::from(spec.functions)),
        ("functionSize", spec.function_size.0),
        ("locals", u64::from(spec.locals)),
        ("loops", u64::from(spec.loops)),
        ("nesting", u64::from(spec.nesting)),
        ("code", spec.code.0),
    ] {
        if value == 0 {
            faults.push(fault(field(name), "is 0: the least is 1"));
        }
    }
    if spec.compile_memory.0 < MEMORY_LEAST {
        let least = MEMORY_LEAST >> 20;
        faults.push(fault(field("compileMemory"), format!("is less than {least}Mi, the least")));
    }
    for (name, time) in [("compileCpu", spec.compile_cpu), ("compileTime", spec.compile_time)] {
        if time.0 < TIME_LEAST {
            faults.push(fault(field(name), format!("is shorter than {}s, the least", TIME_LEAST.as_secs())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_nothing_could_keep_is_refused_by_its_field() {
        let of = |text: &str| {
            let (limits, mut faults) = (serde_saphyr::from_str(text).unwrap(), Vec::new());
            check(&limits, &mut faults);
            faults.into_iter().map(|fault| fault.field).collect::<Vec<_>>()
        };
        assert_eq!(of("{}"), [""; 0]);
        assert_eq!(
            of("components: {locals: 0, compileMemory: 64Mi, compileCpu: 10ms, compileTime: 0s}"),
            ["locals", "compileMemory", "compileCpu", "compileTime"]
                .map(|name| format!("spec.limits.components.{name}"))
        );
    }
}
