//! Checks a configuration for names that point nowhere, empty lists and numbers out of range.
//!
//! Serde alone accepts any well-formed value, and a wrong one would fail later, in the middle of work. So
//! every rule that needs only the configuration is checked here, and all faults are returned together with
//! their fields. It reads no component and makes no request, so the same check runs in an editor, in CI and
//! in the controller.

mod host;
mod plugin;
#[cfg(test)]
mod tests;

#[cfg(test)]
pub(super) use self::host::{CONNECTIONS_MOST, SQLITE_LEAST};
#[cfg(test)]
pub(super) use self::plugin::RATE_MOST;
use crate::model::fault::{ManifestFault, fault};
use crate::model::kinds::is_name;

fn check_names<'a>(list: &str, names: impl Iterator<Item = &'a str>, faults: &mut Vec<ManifestFault>) {
    let mut seen = std::collections::HashSet::new();
    for (index, name) in names.enumerate() {
        let field = format!("spec.{list}[{index}].name");
        if !is_name(name) {
            faults.push(fault(
                field,
                format!("`{name}` is not a name: use up to 63 lower-case letters, digits and dashes"),
            ));
        } else if !seen.insert(name) {
            faults.push(fault(
                field,
                format!("`{name}` occurs twice: give each entry of the list a name of its own"),
            ));
        }
    }
}
