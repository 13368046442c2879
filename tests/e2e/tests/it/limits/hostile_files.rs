//! Components that mean harm before their first state. Each is a file, and what the status says of it.

use anyhow::{Context, Result};
use kubewitness_harness::plugins_folder;
use wasm_encoder::{
    BlockType, CodeSection, Component, ComponentSection, DataSection, Function, FunctionSection,
    InstanceSection, Instruction, MemorySection, MemoryType, Module, ModuleArg, ModuleSection,
    NestedComponentSection, RefType, StartSection, TableSection, TableType, TypeSection,
};

use super::costly_components::{as_plugin, known_bomb, nested_types};

pub struct Hostile {
    pub name: &'static str,
    pub bytes: Vec<u8>,
    pub told: &'static str,
}

fn plugin(name: &str) -> Result<Vec<u8>> {
    std::fs::read(plugins_folder()?.join(name)).with_context(|| format!("reading {name}"))
}

/// The core modules of a component itself.
fn modules(bytes: &[u8]) -> Result<u32> {
    let (mut at, mut modules) = (8, 0);
    while let Some(section) = bytes.get(at) {
        modules += u32::from(*section == 1);
        at += 1;
        let (mut size, mut shift) = (0, 0);
        loop {
            let byte = *bytes.get(at).context("a section has no end")?;
            at += 1;
            size |= usize::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                break;
            }
        }
        at += size;
    }
    Ok(modules)
}

/// A good plugin with an instance of another module behind it, which begins when it does.
fn with(module: &Module) -> Result<Vec<u8>> {
    let mut bytes = plugin("audit.wasm")?;
    let mut instances = InstanceSection::new();
    instances.instantiate(modules(&bytes)?, [] as [(&str, ModuleArg); 0]);
    ModuleSection(module).append_to_component(&mut bytes);
    instances.append_to_component(&mut bytes);
    Ok(bytes)
}

/// So many functions, each of these instructions.
fn module_of(functions: u32, instructions: &[Instruction<'_>]) -> Module {
    let (mut types, mut of, mut code) = (TypeSection::new(), FunctionSection::new(), CodeSection::new());
    types.ty().function([], []);
    for _ in 0..functions {
        of.function(0);
        let mut function = Function::new([]);
        for instruction in instructions {
            function.instruction(instruction);
        }
        function.instruction(&Instruction::End);
        code.function(&function);
    }
    let mut module = Module::new();
    module.section(&types).section(&of).section(&code);
    module
}

/// It loops before its first call.
pub fn looping() -> Result<Vec<u8>> {
    let (mut types, mut functions, mut code) =
        (TypeSection::new(), FunctionSection::new(), CodeSection::new());
    types.ty().function([], []);
    functions.function(0);
    let mut function = Function::new([]);
    let body = [Instruction::Loop(BlockType::Empty), Instruction::Br(0), Instruction::End, Instruction::End];
    for instruction in &body {
        function.instruction(instruction);
    }
    code.function(&function);
    let mut module = Module::new();
    module.section(&types).section(&functions).section(&StartSection { function_index: 0 }).section(&code);
    with(&module)
}

fn alone(module: &Module) -> Vec<u8> {
    let mut component = Component::new();
    component.section(&ModuleSection(module));
    as_plugin(&mut component);
    component.finish()
}

fn deep(levels: usize) -> Vec<u8> {
    let mut component = Component::new();
    for _ in 0..levels {
        let mut outer = Component::new();
        outer.section(&NestedComponentSection(&component));
        component = outer;
    }
    as_plugin(&mut component);
    component.finish()
}

fn memories() -> Result<Vec<u8>> {
    let mut memories = MemorySection::new();
    let of =
        |minimum| MemoryType { minimum, maximum: None, memory64: false, shared: false, page_size_log2: None };
    for _ in 0..8 {
        memories.memory(of(20 * 16));
    }
    let mut module = Module::new();
    module.section(&memories);
    with(&module)
}

fn table() -> Result<Vec<u8>> {
    let mut tables = TableSection::new();
    let element_type = RefType::FUNCREF;
    tables.table(TableType {
        element_type,
        table64: false,
        minimum: 9_000_000,
        maximum: None,
        shared: false,
    });
    let mut module = Module::new();
    module.section(&tables);
    with(&module)
}

fn many_data_segments() -> Vec<u8> {
    let (mut data, mut module) = (DataSection::new(), Module::new());
    for _ in 0..20_001 {
        data.passive([7; 64]);
    }
    module.section(&data);
    alone(&module)
}

/// It wants an interface that no host has.
fn of_another_world() -> Result<Vec<u8>> {
    let (mut bytes, wanted) = (plugin("probe.wasm")?, b"kubewitness:plugin/kv@");
    while let Some(at) = bytes.windows(wanted.len()).position(|window| window == wanted) {
        bytes[at + wanted.len() - 2] = b'w';
    }
    Ok(bytes)
}

pub fn files() -> Result<Vec<Hostile>> {
    let memory = "more memory than its limit of 67108864 bytes";
    let cut = plugin("audit.wasm").map(|mut bytes| {
        bytes.truncate(bytes.len() / 2);
        bytes
    });
    let blocks: Vec<_> = std::iter::repeat_n(Instruction::Block(BlockType::Empty), 5001)
        .chain(std::iter::repeat_n(Instruction::End, 5001))
        .collect();
    let all = [
        ("text", b"apiVersion: v1".to_vec(), "this is not WebAssembly"),
        ("module", Module::new().finish(), "core WebAssembly module"),
        ("cut", cut?, "the component can't be read"),
        ("start", looping()?, "the component failed in `instantiate`: the plugin ran longer than its limit"),
        ("bomb", known_bomb(), "has 20000 local variables: the limit is 5000"),
        ("functions", alone(&module_of(100_001, &[])), "100001 functions: the limit is 100000"),
        ("blocks", alone(&module_of(1, &blocks)), "levels of blocks within each other: the limit is 5000"),
        ("data", many_data_segments(), "20001 data segments: the limit is 20000"),
        ("levels", deep(9), "levels of components and modules: the limit is 8"),
        ("types", nested_types(), "the component"),
        ("memories", memories()?, memory),
        ("table", table()?, memory),
        ("world", of_another_world()?, "kubewitness:plugin/kw"),
    ];
    Ok(all.into_iter().map(|(name, bytes, told)| Hostile { name, bytes, told }).collect())
}
