//! Lists and watches, over each protocol, and servers that misbehave.

mod lists;
mod ordinary;
mod protocols;
mod streaming;
mod trouble;
mod watches;
