//! Guests that mean harm, for tests of the sandbox.
//!
//! Most are programs in `examples`, each a component of its own, compiled like any plugin. A compiler makes
//! only valid components, so the others are made here byte by byte: damaged files, files that are too costly
//! to compile, and components of another world.
//!
//! `docs/concepts/hostile-plugins.md` lists what the operator sees of each.

// A program for WebAssembly has this crate beside it, and needs nothing of it.
#![cfg(not(target_arch = "wasm32"))]

mod broken;
mod costly;
mod joined;

pub use broken::{changed, core_module, half, text};
pub use costly::{
    bomb, deep_blocks, deep_components, known_bomb, many_data_segments, many_functions, nested_types,
};
pub use joined::{of_another_world, renamed, starting_with_a_loop, with_data, with_memories, with_table};
