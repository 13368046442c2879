//! Takes as much memory as its configuration says, within its own limit, and keeps it: so the others have less. The
//! operator sees "all plugins together may hold 512Mi".

use std::hint::black_box;

use kubewitness_sdk::{Plugin, State, Verdict};
use serde::Deserialize;

#[derive(Deserialize)]
struct Config {
    mebibytes: usize,
}

struct Hoards;

impl Plugin for Hoards {
    const NAME: &'static str = "hoards";
    type Config = Config;

    /// Freed memory stays the instance's: the memory of WebAssembly only grows.
    fn handle(config: &Config, states: &[State]) -> Vec<Verdict> {
        black_box(vec![1u8; config.mebibytes << 20]);
        vec![Verdict::Done; states.len()]
    }
}

kubewitness_sdk::export!(Hoards);
