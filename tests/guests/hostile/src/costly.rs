//! Components that are costly to read or to compile. The operator sees what was found, and the limit; or which bound the
//! process that compiles came to.

use wasm_encoder::{
    BlockType, CodeSection, Component, ComponentExportKind, ComponentExportSection, ComponentInstanceSection,
    DataSection, Function, FunctionSection, Instruction, Module, ModuleSection, NestedComponentSection,
    RawSection, TypeSection, ValType,
};

/// Each local variable lives through each loop, so that what the compiler keeps is their product.
pub fn bomb(functions: u32, locals: u32, loops: u32) -> Vec<u8> {
    let mut function = Function::new([(locals, ValType::I32)]);
    for turn in 0..loops {
        let local = 1 + turn % locals;
        function
            .instruction(&Instruction::Loop(BlockType::Empty))
            .instruction(&Instruction::LocalGet(local))
            .instruction(&Instruction::I32Const(1))
            .instruction(&Instruction::I32Add)
            .instruction(&Instruction::LocalTee(local))
            .instruction(&Instruction::BrIf(0))
            .instruction(&Instruction::End);
    }
    function.instruction(&Instruction::End);
    alone(&module_of(functions, &[ValType::I32], &function))
}

/// The one that drove a controller without bounds beyond 8 GB within a minute.
pub fn known_bomb() -> Vec<u8> {
    bomb(4, 20_000, 3000)
}

pub fn many_functions(functions: u32) -> Vec<u8> {
    let mut function = Function::new([]);
    function.instruction(&Instruction::End);
    alone(&module_of(functions, &[], &function))
}

/// One function, with blocks within each other.
pub fn deep_blocks(levels: usize) -> Vec<u8> {
    let mut function = Function::new([]);
    for _ in 0..levels {
        function.instruction(&Instruction::Block(BlockType::Empty));
    }
    for _ in 0..=levels {
        function.instruction(&Instruction::End);
    }
    alone(&module_of(1, &[], &function))
}

pub fn many_data_segments(segments: usize) -> Vec<u8> {
    let (mut data, mut module) = (DataSection::new(), Module::new());
    for _ in 0..segments {
        data.passive([7; 64]);
    }
    module.section(&data);
    alone(&module)
}

/// Components within each other.
pub fn deep_components(levels: usize) -> Vec<u8> {
    let mut component = Component::new();
    for _ in 0..levels {
        let mut outer = Component::new();
        outer.section(&NestedComponentSection(&component));
        component = outer;
    }
    as_plugin(component)
}

/// A type within a type, and so on: to read it takes a stack as deep.
pub fn nested_types() -> Vec<u8> {
    let mut types = vec![1];
    types.extend([0x42, 1, 1].repeat(1 << 20));
    types.push(0x7f);
    let mut component = Component::new();
    component.section(&RawSection { id: 7, data: &types });
    as_plugin(component)
}

/// So many functions that are the same.
fn module_of(functions: u32, parameters: &[ValType], function: &Function) -> Module {
    let (mut types, mut of, mut code) = (TypeSection::new(), FunctionSection::new(), CodeSection::new());
    types.ty().function(parameters.iter().copied(), []);
    for _ in 0..functions {
        of.function(0);
        code.function(function);
    }
    let mut module = Module::new();
    module.section(&types).section(&of).section(&code);
    module
}

fn alone(module: &Module) -> Vec<u8> {
    let mut component = Component::new();
    component.section(&ModuleSection(module));
    as_plugin(component)
}

/// Looks like a plugin to whoever reads no further than the names.
fn as_plugin(mut component: Component) -> Vec<u8> {
    let (mut instances, mut exports) = (ComponentInstanceSection::new(), ComponentExportSection::new());
    instances.export_items([] as [(&str, ComponentExportKind, u32); 0]);
    exports.export("kubewitness:plugin/handler@1.0.0", ComponentExportKind::Instance, 0, None);
    component.section(&instances).section(&exports);
    component.finish()
}
