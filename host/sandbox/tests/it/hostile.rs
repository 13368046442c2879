//! Guests that mean harm: each ends with an error that names what it did, and takes nobody with it. The page
//! `docs/concepts/hostile-plugins.md` lists them.

use std::time::Duration;

use kubewitness_core::config::{self, ComponentsSpec, LimitsSpec, PluginSpec};
use kubewitness_core::ports::{CallError, Verdict};
use kubewitness_sandbox::SandboxError;
use wasm_encoder::{
    BlockType, CodeSection, ComponentSection, Function, FunctionSection, InstanceSection, Instruction,
    MemorySection, MemoryType, Module, ModuleArg, ModuleSection, RefType, StartSection, TableSection,
    TableType, TypeSection,
};
use wasmparser::{Parser, Payload};

use crate::fixture::{Bench, Fake, engine, probe_bytes};

/// What the probe holds in the place of the name of a call in which it is to hang.
const HANGS: &[u8] = b"the probe hangs in: nothing ";

/// The probe that hangs in this call.
fn hanging(call: &str) -> Vec<u8> {
    let mut bytes = probe_bytes();
    let at = bytes.windows(HANGS.len()).position(|window| window == HANGS).expect("the probe has the mark");
    let word = at + HANGS.len() - 8;
    bytes[word..word + 8].copy_from_slice(format!("{call:<8}").as_bytes());
    bytes
}

/// The core modules of a component itself, and not of those within it.
fn modules(bytes: &[u8]) -> u32 {
    let (mut depth, mut count) = (0, 0);
    for payload in Parser::new(0).parse_all(bytes) {
        match payload.unwrap() {
            Payload::ModuleSection { .. } => {
                count += u32::from(depth == 0);
                depth += 1;
            }
            Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) => depth -= 1,
            _ => {}
        }
    }
    count
}

/// The probe with so many instances of another module behind it, which begin when it does.
fn with(module: &Module, instances: u32) -> Vec<u8> {
    let mut bytes = probe_bytes();
    let index = modules(&bytes);
    let mut section = InstanceSection::new();
    for _ in 0..instances {
        section.instantiate(index, [] as [(&str, ModuleArg); 0]);
    }
    ModuleSection(module).append_to_component(&mut bytes);
    section.append_to_component(&mut bytes);
    bytes
}

fn loops_at_its_start() -> Module {
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
    module
}

fn with_memories(count: u32, mebibytes: u64) -> Module {
    let mut memories = MemorySection::new();
    for _ in 0..count {
        let minimum = mebibytes * 16;
        memories.memory(MemoryType {
            minimum,
            maximum: None,
            memory64: false,
            shared: false,
            page_size_log2: None,
        });
    }
    let mut module = Module::new();
    module.section(&memories);
    module
}

fn with_table(minimum: u64) -> Module {
    let mut tables = TableSection::new();
    let element_type = RefType::FUNCREF;
    tables.table(TableType { element_type, table64: false, minimum, maximum: None, shared: false });
    let mut module = Module::new();
    module.section(&tables);
    module
}

fn spec() -> PluginSpec {
    serde_json::from_value(serde_json::json!({
        "module": {"file": "probe.wasm"},
        "subscribe": [{"source": "jobs"}],
        "limits": {"call": "400ms", "memory": "32Mi"},
        "grants": {
            "sql": [{"name": "main", "database": "platform"}],
            "http": [{"name": "hook", "destination": "hook"}],
            "ledger": [{"name": "audit", "ledger": "audit"}],
            "kv": true,
            "lister": ["jobs"],
        },
    }))
    .unwrap()
}

/// What an operator is told of a component that is refused.
async fn refusal(bytes: Vec<u8>) -> String {
    let refused = match engine().load(&bytes.into(), &ComponentsSpec::default()).await {
        Err(error) => error,
        Ok(component) => match component.check(&spec()).await {
            Err(error) => error,
            Ok(faults) => panic!("this was taken, with {faults:?}"),
        },
    };
    refused.to_string()
}

#[tokio::test]
async fn a_component_that_hangs_while_it_is_described_checked_or_started_is_refused() {
    let told = refusal(hanging("describe")).await;
    assert!(told.contains("describe") && told.contains("longer than its limit of 2000 ms"), "{told}");
    let told = refusal(hanging("check")).await;
    assert!(told.contains("check") && told.contains("longer than its limit of 400 ms"), "{told}");
    let told = refusal(with(&loops_at_its_start(), 1)).await;
    assert!(told.contains("instantiate") && told.contains("longer than its limit of 2000 ms"), "{told}");
}

#[tokio::test]
async fn memories_and_tables_of_every_part_count_together() {
    // Each of them fits.
    let told = refusal(with(&with_memories(1, 20), 4)).await;
    assert!(told.contains("more memory than its limit of 67108864 bytes"), "{told}");
    let told = refusal(with(&with_table(5_000_000), 1)).await;
    assert!(told.contains("more memory than its limit of 67108864 bytes"), "{told}");
    let told = refusal(with(&with_memories(8, 20), 1)).await;
    assert!(told.contains("more memory than its limit") || told.contains("multi"), "{told}");
    let told = refusal(with(&with_memories(1, 0), 200)).await;
    assert!(told.contains("instantiate"), "{told}");
}

#[tokio::test]
async fn giant_texts_are_cut_or_end_the_call() {
    let limits = LimitsSpec { memory: config::Bytes(512 << 20), ..LimitsSpec::default() };
    let limits = LimitsSpec { call: config::Duration(Duration::from_secs(20)), ..limits };
    let bench = Bench::new(Fake::default(), limits).await;
    let outcome = bench.run(&["reject-giant 8"]).await.unwrap();
    let [Verdict::Reject(reason)] = outcome.verdicts.as_slice() else { panic!("{:?}", outcome.verdicts) };
    assert!(reason.len() <= 4096 + 8, "{} bytes", reason.len());
    // More than the host copies out of a guest in one call.
    let error = bench.run(&["reject-giant 100"]).await.unwrap_err();
    assert!(matches!(error, CallError::Trap(_)), "{error:?}");
    assert_eq!(bench.plugin.idle(), 0);
    let answer = bench.ask("kv.fill 20000000").await;
    assert!(answer.starts_with("too large"), "{answer}");
    // And the other way.
    let giant = format!("\"{}\"", "x".repeat(20_000_000)).leak();
    bench.record().documents.insert(1, giant);
    let answer = bench.ask("document").await;
    assert!(answer.starts_with("too large"), "{answer}");
}

#[tokio::test]
async fn a_component_for_another_world_is_told_which_interface_it_wants() {
    let mut bytes = probe_bytes();
    let wanted = b"kubewitness:plugin/kv@1.1.0";
    while let Some(at) = bytes.windows(wanted.len()).position(|window| window == wanted) {
        bytes[at..at + wanted.len()].copy_from_slice(b"kubewitness:plugin/kw@1.1.0");
    }
    let told = match engine().load(&bytes.into(), &ComponentsSpec::default()).await {
        Err(SandboxError::Unfit(told)) => told,
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("it was taken"),
    };
    assert!(told.contains("kw"), "{told}");
}
