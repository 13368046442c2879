//! The controller's side of `wit/`, generated. The guest borrows states instead of copying them, because they
//! are the hot path.

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

/// The additional export that a plugin may have.
pub mod ticks {
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "ticks",
        exports: { default: async },
        ownership: Borrowing { duplicate_if_necessary: true },
    });

    pub use exports::kubewitness::plugin::ticker::Occasion;
}
