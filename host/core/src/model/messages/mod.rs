//! Texts that leave the program: the faults of what an operator wrote, and the stable words in answers. They
//! depend on no manifest, rule or answer.

pub mod fault;
pub mod nearest;
pub mod phases;
pub mod words;
