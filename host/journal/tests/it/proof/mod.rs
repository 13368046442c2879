//! Damage is found: that of each kind, and that of any byte.

pub mod damage;
mod flips;
