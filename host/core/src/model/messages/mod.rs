//! Texts that leave the program: the faults of what an operator wrote, and the words that programs read in answers.

pub mod fault;
pub mod words;
