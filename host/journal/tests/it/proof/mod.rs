//! Tests that damage is found: each kind, and in any byte.

pub mod damage;
mod flips;
