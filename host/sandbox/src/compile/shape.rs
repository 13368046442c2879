//! Determines the kind of a file from its header, imports and exports, and names each mismatch. It compares
//! names and versions; the linker checks types.

use crate::error::SandboxError;

/// The package of the interfaces between controller and guest.
const PACKAGE: &str = "kubewitness:plugin/";

/// The interface that makes a component a plugin.
const HANDLER: &str = "kubewitness:plugin/handler";

/// The interface of a plugin that is called on a schedule, since 1.1.
pub const TICKER: &str = "kubewitness:plugin/ticker";

/// The version of the interfaces that this controller implements.
const INTERFACE_VERSION: (u64, u64) = (1, 2);

/// The advice if the versions don't match.
pub const OTHERWISE: &str = "build it against that version, or run a controller that knows it";

/// Interfaces that a plugin can import, in addition to the shared types.
const CAPABILITIES: [&str; 12] = [
    "clock",
    "config",
    "documents",
    "http",
    "kv",
    "ledger",
    "lister",
    "log",
    "mail",
    "outcomes",
    "persons",
    "sql",
];

/// The parts of WASI that are linked, with empty implementations.
const WASI: [&str; 6] =
    ["wasi:cli/", "wasi:clocks/", "wasi:filesystem/", "wasi:io/", "wasi:random/", "wasi:sockets/"];

fn unfit_error<T>(text: impl Into<String>) -> Result<T, SandboxError> {
    Err(SandboxError::Unfit(text.into()))
}

/// Distinguishes a component from other files that people pass by mistake.
pub fn check_header(bytes: &[u8]) -> Result<(), SandboxError> {
    match bytes {
        [b'\0', b'a', b's', b'm', _, _, 1, 0, ..] => Ok(()),
        [b'\0', b'a', b's', b'm', 1, 0, 0, 0, ..] => unfit_error(
            "this is a core WebAssembly module, not a component: build it for wasm32-wasip2, or wrap it with \
             `wasm-tools component new`",
        ),
        [b'\0', b'a', b's', b'm', ..] => unfit_error(
            "this is WebAssembly of a kind that the controller doesn't know: build it for wasm32-wasip2",
        ),
        [] => unfit_error("the file is empty"),
        [0x1f, 0x8b, ..] => unfit_error("this is gzip, not WebAssembly: unpack it first"),
        [b'(', ..] => unfit_error("this is WebAssembly text: turn it into a binary with `wasm-tools parse`"),
        _ => unfit_error("this is not WebAssembly: a plugin is a component, built for wasm32-wasip2"),
    }
}

/// Splits `kubewitness:plugin/sql@1.0.0` into the interface and its version.
fn split_version(name: &str) -> (&str, &str) {
    name.split_once('@').unwrap_or((name, ""))
}

fn is_spoken(version: &str) -> bool {
    let mut numbers = version.split('.').map(str::parse::<u64>);
    matches!((numbers.next(), numbers.next()), (Some(Ok(major)), Some(Ok(minor)))
        if major == INTERFACE_VERSION.0 && minor <= INTERFACE_VERSION.1)
}

/// The version of the interfaces that a component implements, from its exports.
pub fn interface_version<'a>(exports: impl IntoIterator<Item = &'a str>) -> Result<String, SandboxError> {
    let (major, minor) = INTERFACE_VERSION;
    let names: Vec<&str> = exports.into_iter().collect();
    let Some((_, version)) =
        names.iter().map(|name| split_version(name)).find(|(interface, _)| *interface == HANDLER)
    else {
        let exported = match names.is_empty() {
            true => "exports nothing".to_owned(),
            false => format!("exports `{}`", names.join("`, `")),
        };
        return unfit_error(format!(
            "the component {exported}, and a plugin exports `{HANDLER}@{major}.{minor}`: implement that interface"
        ));
    };
    if !is_spoken(version) {
        return unfit_error(format!(
            "the component speaks `{HANDLER}@{version}`, this controller speaks {major}.{minor}: {OTHERWISE}"
        ));
    }
    Ok(version.to_string())
}

/// Whether a component can be called on a schedule.
pub fn exports_ticker<'a>(exports: impl IntoIterator<Item = &'a str>) -> Result<bool, SandboxError> {
    let mut exports = exports.into_iter();
    let Some(name) = exports.find(|name| split_version(name).0 == TICKER) else { return Ok(false) };
    if !is_spoken(split_version(name).1) {
        let (major, minor) = INTERFACE_VERSION;
        return unfit_error(format!(
            "the component exports `{name}`, this controller speaks {major}.{minor}: {OTHERWISE}"
        ));
    }
    Ok(true)
}

/// The capabilities among a component's imports, in alphabetical order.
pub fn imported_capabilities<'a>(
    imports: impl IntoIterator<Item = &'a str>,
) -> Result<Vec<String>, SandboxError> {
    let mut found = Vec::new();
    for name in imports {
        let (interface, version) = split_version(name);
        if let Some(short) = interface.strip_prefix(PACKAGE) {
            if short != "types" && !CAPABILITIES.contains(&short) {
                return unfit_error(format!(
                    "the component imports `{name}`, which the controller doesn't have; it has {}",
                    CAPABILITIES.join(", ")
                ));
            }
            if !is_spoken(version) {
                let (major, minor) = INTERFACE_VERSION;
                return unfit_error(format!(
                    "the component imports `{name}`, this controller speaks {major}.{minor}: {OTHERWISE}"
                ));
            }
            if short != "types" {
                found.push(short.to_string());
            }
        } else if !WASI.iter().any(|package| interface.starts_with(package)) {
            return unfit_error(format!(
                "the component imports `{name}`, which the controller doesn't give: a plugin reaches the world \
                 through the capabilities of `{PACKAGE}…` alone"
            ));
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_a_component_is_told_what_it_is() {
        for (bytes, word) in [
            (&b"\0asm\x01\0\0\0"[..], "core WebAssembly module"),
            (b"\0asm\x07\0\x02\0", "of a kind"),
            (b"", "empty"),
            (b"\x1f\x8b\x08", "gzip"),
            (b"(component)", "text"),
            (b"apiVersion: v1", "not WebAssembly"),
        ] {
            let error = check_header(bytes).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        assert!(check_header(b"\0asm\x0d\0\x01\0").is_ok());
    }

    #[test]
    fn the_version_is_read_from_the_exports() {
        assert_eq!(
            interface_version(["wasi:cli/run@0.2.0", "kubewitness:plugin/handler@1.0.7"]).unwrap(),
            "1.0.7"
        );
        for (exports, word) in [
            (&[][..], "exports nothing"),
            (&["wasi:cli/run@0.2.0"], "`wasi:cli/run@0.2.0`"),
            (&["kubewitness:plugin/handler@2.0.0"], "speaks 1.2"),
            (&["kubewitness:plugin/handler@1.3.0"], "@1.3.0"),
            (&["kubewitness:plugin/handler"], "speaks 1.2"),
        ] {
            let error = interface_version(exports.iter().copied()).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn a_ticker_is_an_export_beside_the_handler_and_of_a_version_that_is_spoken() {
        let both = ["kubewitness:plugin/handler@1.1.0", "kubewitness:plugin/ticker@1.1.0"];
        assert!(exports_ticker(both).unwrap() && !exports_ticker([both[0]]).unwrap());
        let error = exports_ticker(["kubewitness:plugin/ticker@1.3.0"]).unwrap_err().to_string();
        assert!(error.contains("ticker@1.3.0") && error.contains("speaks 1.2"), "{error}");
    }

    #[test]
    fn imports_that_the_host_does_not_give_are_named() {
        let fine = ["kubewitness:plugin/sql@1.0.0", "kubewitness:plugin/types@1.0.0", "wasi:io/poll@0.2.6"];
        assert_eq!(imported_capabilities(fine).unwrap(), ["sql"]);
        for name in [
            "wasi:http/outgoing-handler@0.2.0",
            "kubewitness:plugin/gpu@1.0.0",
            "kubewitness:plugin/sql@2.0.0",
        ] {
            let error = imported_capabilities([name]).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
    }
}
