use kubewitness_core::config::Bytes;
use wasm_encoder::{
    BlockType, CodeSection, Component, ComponentExportKind, ComponentExportSection, ComponentTypeSection,
    ConstExpr, DataSection, Function, FunctionSection, ImportSection, Instruction, MemorySection, MemoryType,
    Module, ModuleSection, NameMap, NameSection, NestedComponentSection, PrimitiveValType, RawSection,
    TypeSection, ValType,
};

use super::*;

/// The sections of a module with a function.
struct ModuleShape {
    locals: u32,
    loops: u32,
    nesting: u32,
    functions: u32,
    types: u32,
    data: u32,
}

const PLAIN: ModuleShape = ModuleShape { locals: 1, loops: 1, nesting: 1, functions: 1, types: 1, data: 1 };

impl ModuleShape {
    fn function(&self) -> Function {
        let mut function = Function::new([(self.locals, ValType::I32)]);
        for _ in 0..self.loops {
            function.instruction(&Instruction::Loop(BlockType::Empty)).instruction(&Instruction::End);
        }
        for _ in 0..self.nesting {
            function.instruction(&Instruction::Block(BlockType::Empty));
        }
        for _ in 0..=self.nesting {
            function.instruction(&Instruction::End);
        }
        function
    }

    /// A module whose functions are called `costly`; an imported one comes first.
    fn module(&self) -> Module {
        let (mut types, mut imports, mut functions) =
            (TypeSection::new(), ImportSection::new(), FunctionSection::new());
        for _ in 0..self.types {
            types.ty().function([], []);
        }
        imports.import("a", "b", wasm_encoder::EntityType::Function(0));
        let mut memories = MemorySection::new();
        memories.memory(MemoryType {
            minimum: 1,
            maximum: None,
            memory64: false,
            shared: false,
            page_size_log2: None,
        });
        let (mut code, mut data) = (CodeSection::new(), DataSection::new());
        let (mut names, mut of_functions) = (NameSection::new(), NameMap::new());
        for number in 0..self.functions {
            functions.function(0);
            code.function(&self.function());
            of_functions.append(number + 1, "costly");
        }
        names.functions(&of_functions);
        for _ in 0..self.data {
            data.active(0, &ConstExpr::i32_const(0), *b"x");
        }
        let mut module = Module::new();
        module.section(&types).section(&imports).section(&functions).section(&memories);
        module.section(&code).section(&data).section(&names);
        module
    }

    fn component(&self) -> Vec<u8> {
        let mut component = Component::new();
        component.section(&ModuleSection(&self.module()));
        component.finish()
    }
}

fn refused(bytes: &[u8], limits: &ComponentsSpec) -> String {
    match read(bytes, limits) {
        Ok(outline) => panic!("taken: {outline:?}"),
        Err(SandboxError::Unfit(why)) => why,
        Err(other) => panic!("{other:?}"),
    }
}

#[test]
fn each_limit_of_a_function_is_named_with_what_was_found_and_whose_it_is() {
    let limits = ComponentsSpec::default();
    for (shape, found, field, most) in [
        (ModuleShape { locals: 5001, ..PLAIN }, "5001 local variables", "locals", 5000),
        (ModuleShape { loops: 1001, ..PLAIN }, "1001 loops", "loops", 1000),
        (ModuleShape { nesting: 5001, ..PLAIN }, "5001 levels of blocks", "nesting", 5000),
    ] {
        let why = refused(&shape.component(), &limits);
        let whose = "function 1 (`costly`) of part 1 has ";
        assert!(why.starts_with(&format!("{whose}{found}")), "{why}");
        assert!(
            why.ends_with(&format!(
                "the limit is {most} (`spec.limits.components.{field}` of the host's settings)"
            )),
            "{why}"
        );
    }
    let small = ComponentsSpec { function_size: Bytes(20), ..limits.clone() };
    let why = refused(&ModuleShape { nesting: 20, ..PLAIN }.component(), &small);
    assert!(why.contains(" bytes: the limit is 20 (`spec.limits.components.functionSize`"), "{why}");
    let most = ModuleShape { locals: 5000, loops: 1000, nesting: 5000, ..PLAIN };
    assert!(read(&most.component(), &limits).is_ok(), "the limit itself is allowed");
}

#[test]
fn a_function_without_a_name_is_told_by_its_number() {
    let mut module = Module::new();
    let (mut types, mut functions, mut code) =
        (TypeSection::new(), FunctionSection::new(), CodeSection::new());
    types.ty().function([], []);
    functions.function(0).function(0);
    code.function(&PLAIN.function()).function(&ModuleShape { loops: 2, ..PLAIN }.function());
    module.section(&types).section(&functions).section(&code);
    let mut component = Component::new();
    component.section(&ModuleSection(&module));
    let limits = ComponentsSpec { loops: 1, ..ComponentsSpec::default() };
    let why = refused(&component.finish(), &limits);
    assert!(why.starts_with("function 1 of part 1 has 2 loops"), "{why}");
}

#[test]
fn what_is_counted_is_summed_over_all_parts() {
    let limits = ComponentsSpec::default();
    let of = |shape: ModuleShape| {
        let mut component = Component::new();
        component.section(&ModuleSection(&shape.module())).section(&ModuleSection(&shape.module()));
        component.finish()
    };
    for (shape, limits, words) in [
        (
            ModuleShape { functions: 3, ..PLAIN },
            ComponentsSpec { functions: 5, ..limits.clone() },
            "6 functions: the limit is 5 ",
        ),
        (
            ModuleShape { types: 3, ..PLAIN },
            ComponentsSpec { types: 5, ..limits.clone() },
            "6 types: the limit is 5 ",
        ),
        (
            ModuleShape { data: 3, ..PLAIN },
            ComponentsSpec { data_segments: 5, ..limits.clone() },
            "6 data segments: the limit is 5 ",
        ),
        (
            PLAIN,
            ComponentsSpec { parts: 1, ..limits.clone() },
            "2 modules and components within it: the limit is 1 ",
        ),
    ] {
        let why = refused(&of(shape), &limits);
        assert!(why.starts_with(&format!("the component has {words}")), "{why}");
    }
    let mut component = Component::new();
    let mut types = ComponentTypeSection::new();
    for _ in 0..3 {
        types.defined_type().primitive(PrimitiveValType::Bool);
    }
    component.section(&types);
    let why = refused(&component.finish(), &ComponentsSpec { types: 2, ..limits });
    assert!(why.contains("3 types: the limit is 2 "), "{why}");
}

#[test]
fn components_within_each_other_are_read_to_their_limit_and_no_deeper() {
    let mut component = Component::new();
    for _ in 0..1000 {
        let mut around = Component::new();
        around.section(&NestedComponentSection(&component));
        component = around;
    }
    let why = refused(&component.finish(), &ComponentsSpec::default());
    assert!(
        why.starts_with("the component has 9 levels of components and modules: the limit is 8 "),
        "{why}"
    );
}

/// Reading such a type takes as much stack as it is nested, and an overflow would end this process.
#[test]
fn a_type_that_is_nested_without_end_is_left_to_the_process_that_compiles() {
    let mut types = vec![1];
    types.extend([0x42, 1, 1].repeat(1 << 20));
    types.push(0x7f);
    let mut component = Component::new();
    component.section(&RawSection { id: 7, data: &types });
    let outline = read(&component.finish(), &ComponentsSpec::default()).unwrap();
    assert!(outline.exports.is_empty());
}

#[test]
fn exports_are_those_of_the_component_itself_and_their_number_and_length_are_bounded() {
    let with = |names: &[&str]| {
        let mut exports = ComponentExportSection::new();
        for name in names {
            exports.export(*name, ComponentExportKind::Type, 0, None);
        }
        let mut component = Component::new();
        component.section(&exports);
        component
    };
    let mut outer = with(&["a:b/c"]);
    outer.section(&NestedComponentSection(&with(&["x:y/z"])));
    assert_eq!(read(&outer.finish(), &ComponentsSpec::default()).unwrap().exports, ["a:b/c"]);

    let two = ComponentsSpec { names: 2, ..ComponentsSpec::default() };
    let why = refused(&with(&["a", "b", "c"]).finish(), &two);
    assert!(why.contains("3 imports and exports: the limit is 2 "), "{why}");
    let why = refused(&with(&[&"a".repeat(257)]).finish(), &two);
    assert!(why.contains("a name of 257 bytes: the limit is 256"), "{why}");
}

#[test]
fn a_component_that_ends_early_or_holds_nonsense_is_told_where() {
    let whole = PLAIN.component();
    for bytes in [&whole[..whole.len() / 2], b"\0asm\x0d\0\x01\0\xff\xff\xff"] {
        let why = refused(bytes, &ComponentsSpec::default());
        assert!(why.starts_with("the component can't be read: ") && why.contains("offset"), "{why}");
    }
}
