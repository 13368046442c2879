//! The journal of the simulation: what a transaction makes durable, on a disk that loses the rest.

pub mod disk;
pub mod store;
