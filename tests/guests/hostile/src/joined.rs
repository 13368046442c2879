//! Good plugins with something beside them that means harm, or that are not what they were. The operator sees that they
//! loop in `instantiate`, or want more memory than their limit, or an interface that no host has.

use wasm_encoder::{
    BlockType, CodeSection, ComponentSection, CustomSection, DataSection, Function, FunctionSection,
    InstanceSection, Instruction, MemorySection, MemoryType, Module, ModuleArg, ModuleSection, RefType,
    StartSection, TableSection, TableType, TypeSection,
};
use wasmparser::{Parser, Payload};

/// It loops before its first call.
pub fn starting_with_a_loop(plugin: &[u8]) -> Vec<u8> {
    let (mut types, mut functions, mut code) =
        (TypeSection::new(), FunctionSection::new(), CodeSection::new());
    types.ty().function([], []);
    functions.function(0);
    let mut function = Function::new([]);
    function
        .instruction(&Instruction::Loop(BlockType::Empty))
        .instruction(&Instruction::Br(0))
        .instruction(&Instruction::End)
        .instruction(&Instruction::End);
    code.function(&function);
    let mut module = Module::new();
    module.section(&types).section(&functions).section(&StartSection { function_index: 0 }).section(&code);
    with_instances(plugin, &module, 1)
}

/// So many instances of a module that has so many memories of so many mebibytes.
pub fn with_memories(plugin: &[u8], instances: u32, memories: u32, mebibytes: u64) -> Vec<u8> {
    let mut section = MemorySection::new();
    for _ in 0..memories {
        section.memory(memory_of(mebibytes * 16));
    }
    let mut module = Module::new();
    module.section(&section);
    with_instances(plugin, &module, instances)
}

pub fn with_table(plugin: &[u8], elements: u64) -> Vec<u8> {
    let mut tables = TableSection::new();
    tables.table(TableType {
        element_type: RefType::FUNCREF,
        table64: false,
        minimum: elements,
        maximum: None,
        shared: false,
    });
    let mut module = Module::new();
    module.section(&tables);
    with_instances(plugin, &module, 1)
}

/// So many bytes, none of which is in a page of zeros, in a module that nobody makes an instance of.
pub fn with_data(plugin: &[u8], bytes: usize) -> Vec<u8> {
    let (mut memories, mut data, mut module) = (MemorySection::new(), DataSection::new(), Module::new());
    memories.memory(memory_of(1));
    data.passive((0..bytes).map(|at| (at / 64).to_le_bytes()[at % 4]));
    module.section(&memories).section(&data);
    with_instances(plugin, &module, 0)
}

/// A plugin that uses `kv` wants an interface that no host has.
pub fn of_another_world(plugin: &[u8]) -> Vec<u8> {
    let (mut bytes, wanted) = (plugin.to_vec(), b"kubewitness:plugin/kv@");
    while let Some(at) = bytes.windows(wanted.len()).position(|window| window == wanted) {
        bytes[at + wanted.len() - 2] = b'w';
    }
    bytes
}

/// It does the same, and its code is not kept as that of the plugin. So a test can put another file there.
pub fn renamed(plugin: &[u8], name: &str) -> Vec<u8> {
    let mut bytes = plugin.to_vec();
    CustomSection { name: name.into(), data: b"".into() }.append_to_component(&mut bytes);
    bytes
}

fn memory_of(pages: u64) -> MemoryType {
    MemoryType { minimum: pages, maximum: None, memory64: false, shared: false, page_size_log2: None }
}

/// The plugin with another module behind it, whose instances begin when it does.
fn with_instances(plugin: &[u8], module: &Module, instances: u32) -> Vec<u8> {
    let mut bytes = plugin.to_vec();
    ModuleSection(module).append_to_component(&mut bytes);
    if instances > 0 {
        let (index, mut section) = (modules(plugin), InstanceSection::new());
        for _ in 0..instances {
            section.instantiate(index, [] as [(&str, ModuleArg); 0]);
        }
        section.append_to_component(&mut bytes);
    }
    bytes
}

/// The core modules of a component itself, and not of those within it.
fn modules(component: &[u8]) -> u32 {
    let (mut depth, mut count) = (0, 0);
    for payload in Parser::new(0).parse_all(component) {
        match payload {
            Ok(Payload::ModuleSection { .. }) => {
                count += u32::from(depth == 0);
                depth += 1;
            }
            Ok(Payload::ComponentSection { .. }) => depth += 1,
            Ok(Payload::End(_)) => depth -= 1,
            Ok(_) => {}
            Err(error) => panic!("the plugin is no component: {error}"),
        }
    }
    count
}
