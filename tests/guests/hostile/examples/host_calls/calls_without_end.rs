//! Calls the host without end, then logs. The operator sees nothing: the host refuses each call past `limits.hostCalls`,
//! and drops the line. If it refused none, the plugin would trap.

use kubewitness_sdk::{Plugin, State, Verdict, kv, log};
use serde::de::IgnoredAny;

const CALLS: usize = 20_000;

struct Calls;

impl Plugin for Calls {
    const NAME: &'static str = "calls-without-end";
    type Config = IgnoredAny;

    fn handle(_: &IgnoredAny, states: &[State]) -> Vec<Verdict> {
        let answered = (0..CALLS).filter(|_| kv::get("key").is_ok()).count();
        assert!(answered < CALLS, "nobody refused a call");
        log::info("a line past the limit", &[]);
        vec![Verdict::Done; states.len()]
    }
}

kubewitness_sdk::export!(Calls);
