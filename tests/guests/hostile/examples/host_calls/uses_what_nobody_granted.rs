//! Calls what nobody granted it. The operator sees "the component imports `http` and is granted none"; or nothing, where
//! other names are granted: the host refuses each call. If it answered one, the plugin would trap.

use std::fmt::Debug;

use kubewitness_sdk::{Error, Plugin, State, Verdict, http, ledger, lister, sql};
use serde::de::IgnoredAny;

struct Uses;

impl Plugin for Uses {
    const NAME: &'static str = "uses-what-nobody-granted";
    type Config = IgnoredAny;

    fn handle(_: &IgnoredAny, states: &[State]) -> Vec<Verdict> {
        assert_denied(&http::post_json("strangers", "/", "key", &"secrets"));
        assert_denied(&ledger::append("strangers", &[b"a record".to_vec()]));
        assert_denied(&ledger::sign("strangers", b"a lie"));
        assert_denied(&lister::all("strangers", 10));
        assert_denied(&sql::query("strangers", "select 1", &[]));
        vec![Verdict::Done; states.len()]
    }
}

fn assert_denied<T: Debug>(answer: &Result<T, Error>) {
    assert!(matches!(answer, Err(Error::Denied(_))), "{answer:?}");
}

kubewitness_sdk::export!(Uses);
