//! Texts that leave the program: the faults of what an operator wrote, and the words that programs read in answers.
//! They know no manifest, no rule and no answer.

pub mod fault;
pub mod nearest;
pub mod phases;
pub mod words;
