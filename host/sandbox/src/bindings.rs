//! The host's side of `wit/`, generated. States are lent to the guest rather than copied first:
//! that is the hot path.

wasmtime::component::bindgen!({
    path: "../../wit",
    world: "full",
    imports: {
        "kubewitness:plugin/documents": async,
        "kubewitness:plugin/sql": async,
        "kubewitness:plugin/http": async,
        "kubewitness:plugin/ledger": async,
    },
    exports: { default: async },
    ownership: Borrowing { duplicate_if_necessary: true },
});

pub use kubewitness::plugin::{clock, config, documents, http, kv, ledger, lister, log, sql, types};
