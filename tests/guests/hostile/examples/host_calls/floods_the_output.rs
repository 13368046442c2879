//! Writes megabytes to its output, then traps. The operator sees "the plugin trapped" with the end of what it wrote.

use kubewitness_sdk::{Plugin, State, Verdict};
use serde::de::IgnoredAny;

struct Floods;

impl Plugin for Floods {
    const NAME: &'static str = "floods-the-output";
    type Config = IgnoredAny;

    fn handle(_: &IgnoredAny, _: &[State]) -> Vec<Verdict> {
        let flood = "x".repeat(5_000_000);
        println!("{flood}");
        eprintln!("{flood}");
        panic!("all of it is written")
    }
}

kubewitness_sdk::export!(Floods);
