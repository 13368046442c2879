//! Guests that mean harm. Most are the programs in `examples`, each a component of its own. Here are those that no
//! compiler makes: their bytes are put together. `docs/concepts/hostile-plugins.md` says what the operator sees of each.

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
