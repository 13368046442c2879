//! The controller's side of `wit/`, generated. States are lent to the guest, not copied: they are the hot path.

wasmtime::component::bindgen!({
    path: "../../wit",
    world: "full",
    imports: {
        "kubewitness:plugin/documents": async,
        "kubewitness:plugin/lister": async,
        "kubewitness:plugin/sql": async,
        "kubewitness:plugin/http": async,
        "kubewitness:plugin/mail": async,
        "kubewitness:plugin/ledger": async,
        "kubewitness:plugin/outcomes": async,
        "kubewitness:plugin/persons": async,
    },
    exports: { default: async },
    ownership: Borrowing { duplicate_if_necessary: true },
});

pub use kubewitness::plugin::{
    clock, config, documents, http, kv, ledger, lister, log, mail, outcomes, persons, sql, types,
};

/// The export that a plugin may have in addition.
pub mod ticks {
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "ticks",
        exports: { default: async },
        ownership: Borrowing { duplicate_if_necessary: true },
    });

    pub use exports::kubewitness::plugin::ticker::Occasion;
}
