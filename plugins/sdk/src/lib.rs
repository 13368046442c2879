//! The SDK for Kubewitness plugins in Rust. A plugin is one type:
//!
//! ```
//! use kubewitness_sdk::{FieldError, Plugin, State, Verdict, log};
//!
//! #[derive(serde::Deserialize)]
//! struct Config {
//!     greeting: String,
//! }
//!
//! struct Hello;
//!
//! impl Plugin for Hello {
//!     const NAME: &'static str = "hello";
//!     type Config = Config;
//!
//!     fn check(config: &Config) -> Vec<FieldError> {
//!         if config.greeting.is_empty() { vec![FieldError::new("greeting", "is empty")] } else { vec![] }
//!     }
//!
//!     fn handle(config: &Config, states: &[State]) -> Vec<Verdict> {
//!         for state in states {
//!             log::info(&config.greeting, &[("object", &state.object.name), ("phase", &state.status.phase)]);
//!         }
//!         vec![Verdict::Done; states.len()]
//!     }
//! }
//!
//! kubewitness_sdk::export!(Hello);
//! # fn main() {}
//! ```
//!
//! Put it in a crate with `crate-type = ["cdylib", "rlib"]` and build it with `cargo build --target
//! wasm32-wasip2`. A component imports only the capabilities that its code reaches. So a plugin that never
//! calls [`http::send`] needs no grant for it.
//!
//! The crate also compiles natively. Then capability calls go to the host that a test provides: see
//! [`testing`].

pub mod capability;
mod facts;
mod plugin;
#[cfg(not(target_arch = "wasm32"))]
pub mod testing;
pub mod time;

/// Generated from `wit/`; plugins use the re-exports.
#[doc(hidden)]
#[allow(unsafe_code, clippy::all, missing_docs)]
pub mod bindings {
    wit_bindgen::generate!({
        path: "wit",
        world: "full",
        additional_derives: [PartialEq, Clone],
        pub_export_macro: true,
        export_macro_name: "export_handler",
        default_bindings_module: "kubewitness_sdk::bindings",
        generate_unused_types: true,
    });

    /// The export of a plugin that is called on a schedule.
    pub mod ticks {
        wit_bindgen::generate!({
            path: "wit",
            world: "ticks",
            additional_derives: [PartialEq, Clone],
            pub_export_macro: true,
            export_macro_name: "export_ticker",
            default_bindings_module: "kubewitness_sdk::bindings::ticks",
            // Only the crate that exports the interface may declare it.
            disable_custom_section_link_helpers: true,
        });
    }
}

pub use bindings::kubewitness::plugin::types::{
    Change, Error, FieldError, ObjectRef, RetryLater, State, Status, Verdict,
};
pub use capability::{clock, documents, http, kv, ledger, lister, log, mail, outcomes, persons, sql};
pub use plugin::{About, Plugin, Ticking};

#[doc(hidden)]
pub mod glue {
    pub use crate::plugin::{check, describe, handle, tick};
}

/// Makes a [`Plugin`] the component's handler. Use it once in a crate. With `tick` after the type, which must
/// then implement [`Ticking`], the host can also call it on a schedule.
#[macro_export]
macro_rules! export {
    ($plugin:ty) => {
        $crate::export_with!($plugin,);
    };
    ($plugin:ty, tick) => {
        #[cfg(not(target_arch = "wasm32"))]
        const _: fn(&<$plugin as $crate::Plugin>::Config, u64) -> Result<(), ::std::string::String> =
            <$plugin as $crate::Ticking>::tick;

        $crate::export_with!(
            $plugin,
            use $crate::bindings::ticks::exports::kubewitness::plugin::ticker;

            impl ticker::Guest for Exported {
                fn tick(occasion: ticker::Occasion) -> Result<(), ::std::string::String> {
                    CONFIG.with(|config| $crate::glue::tick::<$plugin>(config, occasion.due_ms))
                }
            }

            $crate::bindings::ticks::export_ticker!(Exported with_types_in $crate::bindings::ticks);
        );
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! export_with {
    ($plugin:ty, $($more:item)*) => {
        // A native build exports nothing, but still checks the type.
        #[cfg(not(target_arch = "wasm32"))]
        const _: fn() -> $crate::About = <$plugin as $crate::Plugin>::about;

        #[cfg(target_arch = "wasm32")]
        #[allow(unsafe_code)]
        const _: () = {
            use $crate::bindings::exports::kubewitness::plugin::handler as exported;

            ::std::thread_local! {
                /// Parsed once for each instance: a component's configuration never changes.
                static CONFIG: ::std::cell::OnceCell<<$plugin as $crate::Plugin>::Config> =
                    const { ::std::cell::OnceCell::new() };
            }

            struct Exported;

            impl exported::Guest for Exported {
                fn describe() -> exported::Description {
                    $crate::glue::describe::<$plugin>(env!("CARGO_PKG_VERSION"))
                }

                fn check(config: ::std::string::String) -> Result<(), ::std::vec::Vec<$crate::FieldError>> {
                    $crate::glue::check::<$plugin>(&config)
                }

                fn handle(states: ::std::vec::Vec<$crate::State>) -> ::std::vec::Vec<$crate::Verdict> {
                    CONFIG.with(|config| $crate::glue::handle::<$plugin>(config, &states))
                }
            }

            $crate::bindings::export_handler!(Exported with_types_in $crate::bindings);

            $($more)*
        };
    };
}
