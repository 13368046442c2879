//! Checks a configuration for names that point nowhere, empty lists and numbers out of range. It reads no
//! component and makes no request.

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
