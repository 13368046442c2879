//! A copy of compiled code that nobody else can open. The engine maps it, so the kernel loads only the pages
//! that run, and may drop them again.
//!
//! Mapping the cache's own file was rejected: it could be changed after it was checked. The copy loses its
//! name before its first byte is written, and only its owner could have opened it before that.

use std::fs;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use kubewitness_core::files;
use wasmtime::Engine;
use wasmtime::component::Component;

pub struct PrivateCopy(fs::File);

impl PrivateCopy {
    pub fn begin_copy(folder: &Path) -> io::Result<Self> {
        files::open_unnamed_file(folder).map(Self)
    }

    /// Loads code whose author is known: this program made it for this engine.
    pub fn load(mut self, engine: &Engine) -> wasmtime::Result<Component> {
        match self.map_component(engine) {
            Ok(component) => Ok(component),
            Err(error) => {
                // For example, a file system from which nothing may be executed.
                tracing::debug!(%error, "compiled code can't be mapped: it is read into memory");
                let mut code = Vec::new();
                self.0.seek(SeekFrom::Start(0))?;
                self.0.read_to_end(&mut code)?;
                deserialize_component(engine, &code)
            }
        }
    }

    #[cfg(target_os = "linux")]
    #[allow(unsafe_code)]
    fn map_component(&self, engine: &Engine) -> wasmtime::Result<Component> {
        use std::os::fd::AsRawFd;
        let path = format!("/proc/self/fd/{}", self.0.as_raw_fd());
        // SAFETY: the bytes must come from an engine with this configuration, and must not change. The caller
        // has checked them while it wrote them, and no other process has this file or can find it.
        unsafe { Component::deserialize_file(engine, path) }
    }

    #[cfg(not(target_os = "linux"))]
    fn map_component(&self, _engine: &Engine) -> wasmtime::Result<Component> {
        wasmtime::bail!("a file without a name can't be opened again here")
    }
}

impl Write for PrivateCopy {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[allow(unsafe_code)]
pub fn deserialize_component(engine: &Engine, code: &[u8]) -> wasmtime::Result<Component> {
    // SAFETY: `code` must come from an engine with this configuration. Either it came through the pipe of a
    // child process that this one started for that. Or its authentication code was checked over these very
    // bytes (not over the file again), together with the component's digest and the engine's compatibility
    // hash, against a key that only this program's user can read.
    unsafe { Component::deserialize(engine, code) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The smallest possible component.
    const EMPTY: &[u8] = b"\0asm\x0d\0\x01\0";

    #[test]
    fn a_copy_is_mapped_has_no_name_and_holds_what_the_file_was_before_it_was_changed() {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::default();
        let code = engine.precompile_component(EMPTY).unwrap();
        let mut copy = PrivateCopy::begin_copy(folder.path()).unwrap();
        copy.write_all(&code).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nobody finds it");
        let component = copy.map_component(&engine).unwrap();
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let name = folder.path().display().to_string();
        assert!(maps.lines().any(|line| line.contains(&name) && line.ends_with("(deleted)")), "{maps}");
        drop(component);
    }

    #[test]
    fn a_copy_that_can_not_be_mapped_is_an_error_or_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::default();
        assert!(PrivateCopy::begin_copy(folder.path()).unwrap().load(&engine).is_err(), "it has no bytes");
        let mut copy = PrivateCopy::begin_copy(folder.path()).unwrap();
        copy.write_all(&engine.precompile_component(EMPTY).unwrap()).unwrap();
        copy.load(&engine).unwrap();
        assert!(PrivateCopy::begin_copy(&folder.path().join("gone")).is_err());
    }
}
