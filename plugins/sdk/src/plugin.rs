//! The trait that a plugin implements, and the code between it and the generated exports.

use std::cell::OnceCell;

use serde::de::DeserializeOwned;

use crate::bindings::exports::kubewitness::plugin::handler::Description;
use crate::{Error, FieldError, RetryLater, State, Verdict};

/// A plugin. There is no `self`: instances come and go, so data that must outlive a call belongs in
/// [`kv`](crate::kv) or a database.
pub trait Plugin {
    const NAME: &'static str;

    /// The type of `spec.config` in the manifest. A plugin without configuration uses
    /// [`serde::de::IgnoredAny`].
    type Config: DeserializeOwned + 'static;

    /// Returns the facts that the host should know before it runs this plugin.
    fn about() -> About {
        About::default()
    }

    /// Checks a parsed configuration before it becomes active. Return no faults to accept it.
    fn check(_config: &Self::Config) -> Vec<FieldError> {
        Vec::new()
    }

    /// Returns one verdict for each state, in the same order. States of one object arrive in order.
    ///
    /// The host commits a call's writes only if all of its states are [`Verdict::Done`]. Otherwise it rolls
    /// back the rows, the records of ledgers and the writes to [`kv`](crate::kv), and delivers the states
    /// again in smaller calls. Nothing of a state that is not done is kept. So count tries by
    /// [`State::attempt`], and not in `kv`.
    fn handle(config: &Self::Config, states: &[State]) -> Vec<Verdict>;
}

/// A plugin that the host also calls on a schedule, if its manifest says `spec.tick`. `export!(Type, tick)` exports it.
pub trait Ticking: Plugin {
    /// Called when a tick is due, without a state. No `handle` of the plugin runs meanwhile. After an error
    /// all of its writes are rolled back, and the host calls again when the next tick is due.
    ///
    /// `due_ms` are milliseconds since 1970. The previous tick may have been missed: compare times, and don't
    /// count ticks.
    fn tick(config: &Self::Config, due_ms: u64) -> Result<(), String>;
}

/// A plugin's description of itself, beside its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// The JSON Schema of the configuration.
    pub config_schema: &'static str,
    /// The grants that it needs to work: `sql:main`, `http:hook`, `kv`, …; and `tick` if it does not work
    /// without a schedule.
    pub needs: Vec<String>,
    /// Additional needs if its configuration has a field, such as `("channels", ["kv", "tick"])`.
    pub needs_with: Vec<(&'static str, Vec<String>)>,
    /// Additional needs if its configuration lacks a field.
    pub needs_without: Vec<(&'static str, Vec<String>)>,
    /// Capabilities that it uses if they are granted. Its code reports what is missing if they are not.
    pub may_need: Vec<String>,
}

impl About {
    /// The facts for which `description` has no field, in the form that the host reads.
    fn extra(&self) -> Vec<(String, String)> {
        let of = |word: &str, needs: &[(&str, Vec<String>)]| -> Vec<_> {
            needs.iter().map(|(field, needs)| (format!("{word}:{field}"), needs.join(","))).collect()
        };
        let mut extra = of("needs-with", &self.needs_with);
        extra.extend(of("needs-without", &self.needs_without));
        if !self.may_need.is_empty() {
            extra.push(("may-need".to_string(), self.may_need.join(",")));
        }
        extra
    }
}

pub fn describe<P: Plugin>(version: &str) -> Description {
    let about = P::about();
    Description {
        name: P::NAME.to_string(),
        version: version.to_string(),
        config_schema: about.config_schema.to_string(),
        extra: about.extra(),
        needs: about.needs,
    }
}

pub fn check<P: Plugin>(config: &str) -> Result<(), Vec<FieldError>> {
    let faults = match serde_json::from_str::<P::Config>(config) {
        Ok(config) => P::check(&config),
        Err(error) => vec![FieldError::new("", error.to_string())],
    };
    if faults.is_empty() { Ok(()) } else { Err(faults) }
}

pub fn handle<P: Plugin>(config: &OnceCell<P::Config>, states: &[State]) -> Vec<Verdict> {
    match parsed::<P>(config) {
        Ok(config) => P::handle(config, states),
        Err(reason) => vec![Verdict::retry(reason); states.len()],
    }
}

pub fn tick<P: Ticking>(config: &OnceCell<P::Config>, due_ms: u64) -> Result<(), String> {
    P::tick(parsed::<P>(config)?, due_ms)
}

/// Parses the configuration. `check` has refused an unreadable one. If one comes all the same, an operator
/// can still correct it.
fn parsed<P: Plugin>(config: &OnceCell<P::Config>) -> Result<&P::Config, String> {
    if config.get().is_none() {
        let parsed = serde_json::from_str(&crate::capability::config_text());
        let parsed = parsed.map_err(|error| format!("the configuration can't be read: {error}"))?;
        // It can't be set already: it is set nowhere else, and this function is not re-entered.
        drop(config.set(parsed));
    }
    config.get().ok_or_else(|| "the configuration is missing".into())
}

impl State {
    /// The SHA-256 of the document as the API server wrote it, for a plugin with the grant `documents: digest`.
    pub fn document_digest(&self) -> Option<&str> {
        self.extra.iter().find(|(key, _)| key == "documentDigest").map(|(_, value)| value.as_str())
    }

    /// Whether the plugin has a subscription to the owner's kind, so that it also receives the owner's
    /// states. True if the host does not say otherwise.
    pub fn has_subscribed_owner(&self) -> bool {
        !self.extra.iter().any(|(key, value)| key == "ownerSubscribed" && value == "false")
    }

    /// Whether a resync of the source delivers this state again, although nothing happened. Only
    /// subscriptions with `resync: true` get such states.
    pub fn is_resync(&self) -> bool {
        self.extra.iter().any(|(key, value)| key == "resync" && value == "true")
    }
}

impl Verdict {
    /// Retry after the host's back-off.
    pub fn retry(reason: impl Into<String>) -> Self {
        Self::Retry(RetryLater { after_ms: None, reason: reason.into() })
    }

    /// Retry, but not before this many milliseconds.
    pub fn retry_after(after_ms: u64, reason: impl Into<String>) -> Self {
        Self::Retry(RetryLater { after_ms: Some(after_ms), reason: reason.into() })
    }

    /// Never retry.
    pub fn reject(reason: impl Into<String>) -> Self {
        Self::Reject(reason.into())
    }
}

/// The usual verdict for an error: retry if time or an operator can help, reject if the state itself is
/// wrong.
impl From<Error> for Verdict {
    fn from(error: Error) -> Self {
        match error {
            Error::RateLimited(after_ms) => Self::retry_after(after_ms, "rate limited"),
            Error::Invalid(_) | Error::TooLarge(_) => Self::reject(error.text()),
            Error::Denied(_) | Error::Unavailable(_) | Error::Timeout(_) | Error::Other(_) => {
                Self::retry(error.text())
            }
        }
    }
}

impl Error {
    /// The error as a sentence.
    pub fn text(&self) -> String {
        match self {
            Self::Denied(text) => format!("denied: {text}"),
            Self::Invalid(text) => format!("invalid: {text}"),
            Self::Unavailable(text) => format!("unavailable: {text}"),
            Self::TooLarge(text) => format!("too large: {text}"),
            Self::Timeout(text) => format!("timed out: {text}"),
            Self::RateLimited(after_ms) => format!("rate limited, {after_ms} ms"),
            Self::Other(text) => text.clone(),
        }
    }
}

/// So that `?` ends a tick.
impl From<Error> for String {
    fn from(error: Error) -> Self {
        error.text()
    }
}

impl FieldError {
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[derive(serde::Deserialize)]
    struct Config {
        limit: u64,
    }

    struct Picky;

    impl Plugin for Picky {
        const NAME: &'static str = "picky";
        type Config = Config;

        fn check(config: &Config) -> Vec<FieldError> {
            if config.limit == 0 { vec![FieldError::new("limit", "is 0")] } else { vec![] }
        }

        fn handle(config: &Config, states: &[State]) -> Vec<Verdict> {
            let fits = |state: &State| {
                if state.seq <= config.limit { Verdict::Done } else { Verdict::reject("over") }
            };
            states.iter().map(fits).collect()
        }
    }

    crate::export!(Picky);

    #[test]
    fn a_configuration_of_another_shape_is_a_fault_and_not_a_trap() {
        let faults = check::<Picky>(r#"{"limit": "many"}"#).unwrap_err();
        assert!(faults[0].message.contains("many"), "{faults:?}");
        assert_eq!(check::<Picky>(r#"{"limit": 0}"#).unwrap_err()[0].path, "limit");
        assert_eq!(check::<Picky>(r#"{"limit": 1}"#), Ok(()));
    }

    #[test]
    fn the_configuration_is_read_once_and_states_get_one_verdict_each() {
        struct Once(std::cell::Cell<u32>);
        impl testing::Host for Once {
            fn config(&self) -> String {
                self.0.set(self.0.get() + 1);
                r#"{"limit": 5}"#.to_string()
            }
        }
        let host = std::rc::Rc::new(Once(std::cell::Cell::new(0)));
        let config = OnceCell::new();
        let states = [testing::state(5, "a", "Running"), testing::state(6, "b", "Failed")];
        testing::with_host(host.clone(), || {
            for _ in 0..3 {
                assert_eq!(handle::<Picky>(&config, &states), [Verdict::Done, Verdict::reject("over")]);
            }
        });
        assert_eq!(host.0.get(), 1);
    }

    struct Timed;

    impl Plugin for Timed {
        const NAME: &'static str = "timed";
        type Config = Config;

        fn handle(_: &Config, states: &[State]) -> Vec<Verdict> {
            vec![Verdict::Done; states.len()]
        }
    }

    impl Ticking for Timed {
        fn tick(config: &Config, due_ms: u64) -> Result<(), String> {
            if due_ms > config.limit {
                crate::kv::set("over", b"1")?;
            }
            Ok(())
        }
    }

    crate::export!(Timed, tick);

    #[test]
    fn a_tick_has_the_configuration_and_ends_with_the_error_of_a_capability() {
        struct Five;
        impl testing::Host for Five {
            fn config(&self) -> String {
                r#"{"limit": 5}"#.to_string()
            }
        }
        let config = OnceCell::new();
        testing::with_host(std::rc::Rc::new(Five), || {
            assert_eq!(tick::<Timed>(&config, 5), Ok(()));
            assert!(tick::<Timed>(&config, 6).unwrap_err().starts_with("denied: "));
        });
        testing::with_host(std::rc::Rc::new(testing::Nothing), || {
            assert!(tick::<Timed>(&OnceCell::new(), 5).unwrap_err().contains("can't be read"));
        });
    }

    #[test]
    fn what_is_needed_at_times_is_said_beside_what_is_always_needed() {
        let about = About {
            needs_with: vec![("channels", vec!["kv".into(), "tick".into()])],
            needs_without: vec![("channels", vec!["http:people".into()])],
            may_need: vec!["mail".into()],
            ..About::default()
        };
        let extra = [
            ("needs-with:channels", "kv,tick"),
            ("needs-without:channels", "http:people"),
            ("may-need", "mail"),
        ];
        assert_eq!(about.extra(), extra.map(|(key, value)| (key.to_string(), value.to_string())));
        assert_eq!(About::default().extra(), []);
    }

    #[test]
    fn what_time_can_mend_is_tried_again_and_what_is_wrong_is_not() {
        assert!(matches!(Verdict::from(Error::Unavailable("down".into())), Verdict::Retry(_)));
        assert!(matches!(Verdict::from(Error::Invalid("no such column".into())), Verdict::Reject(_)));
        assert_eq!(Verdict::from(Error::RateLimited(70)), Verdict::retry_after(70, "rate limited"));
    }
}
