//! Files that are no plugin: the operator sees what each is instead. In the cache of compiled code the operator sees
//! nothing: a component whose file is half of it, or changed, is compiled again.

use wasm_encoder::Module;

pub fn text() -> Vec<u8> {
    b"apiVersion: v1".to_vec()
}

pub fn core_module() -> Vec<u8> {
    Module::new().finish()
}

/// Returns the first half of a component, or of a file in the cache.
pub fn half(bytes: &[u8]) -> Vec<u8> {
    bytes[..bytes.len() / 2].to_vec()
}

/// One bit in the middle is another.
pub fn changed(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    bytes
}
