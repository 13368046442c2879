//! The capabilities that plugins are granted: databases, destinations, mail servers, ledgers, keys, `kv`,
//! documents, the cache, outcomes, the log and the clock.
//!
//! A plugin is untrusted code that needs access to the operator's systems. Passing it addresses and
//! credentials was rejected: it could use them for anything. So addresses, files and secrets end here, and a
//! plugin sees names. Each call is checked against the grant, and limited in size, time and rate.
//!
//! Each capability is a file or folder with its name. [`grants`] opens them from the host's settings.
//! [`session`] collects the effects of one call, and commits all of them together with the receipt of the
//! states, or none. Nothing here knows of Wasm, of the journal's store, or of when a plugin is called.

mod grants;
mod http;
mod kv;
mod ledger;
mod log;
mod mail;
mod objects;
mod receipts;
pub mod secrets;
mod session;
mod sql;

use kubewitness_core::ports::GrantError;

pub use crate::grants::{
    CapabilityError, OpenCapabilities, PluginServices, SharedServices, excess_rights, forget_receipts,
};
pub use crate::http::check as check_request;
pub use crate::http::resolver::{AddressGuard, ForbiddenName, ResolveFailure};
pub use crate::kv::{ReportRoom, SharedValue};
pub use crate::ledger::ship::{ShipPauses, ShippingStatus};
pub use crate::mail::check as check_message;
pub use crate::objects::subscribed::SubscribedKinds;
pub use crate::secrets::redaction::{AnswerPatience, RedactionError, SecretRedaction, ThreadParty};
pub use crate::session::granted::{StartPositions, SurvivingReceipts};
pub use crate::session::uses::GrantUses;
pub use crate::sql::proof::{DatabaseProof, ReceiptProof, prove_receipts};
pub use crate::sql::servers::rights::ExcessRights;

/// A refusal that names the missing grant. The name comes from the guest, so it is cut and cleaned.
fn denied_error(what: &str, name: &str, field: &str) -> GrantError {
    let name: String = name.chars().filter(|c| !c.is_control()).take(63).collect();
    GrantError::Denied(format!("the {what} `{name}` was not granted: add it to {field}"))
}
