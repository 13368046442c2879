//! The effects of plugins outside of the host: requests, messages, ledgers, and their way into a bucket.

pub mod bucket;
mod destinations;
mod few_messages;
mod mailing;
mod notifying;
mod persons;
mod posts;
mod seals;
mod shipping;
