//! A component that this host has already: it need not be fetched again. It lies on disk and not in memory, and is what
//! its digest says, or it is not taken.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use kubewitness_core::files;
use ring::digest::{Context, SHA256};

use super::{COMPONENT_BYTES, digest};

/// What is read of a file at once to know its digest.
const PIECE: usize = 64 << 10;

#[derive(Clone, Debug)]
pub struct Kept {
    digest: String,
    place: Place,
}

#[derive(Clone, Debug)]
enum Place {
    /// The first of these that has these bytes.
    Files(Vec<PathBuf>),
    /// Of a version that is compared and may take over, as long as it is.
    Memory(Bytes),
}

impl Kept {
    pub fn in_files(digest: String, files: Vec<PathBuf>) -> Self {
        Self { digest, place: Place::Files(files) }
    }

    pub fn in_memory(bytes: Bytes) -> Self {
        Self { digest: digest(&bytes), place: Place::Memory(bytes) }
    }

    pub fn digest(&self) -> &str {
        &self.digest
    }

    pub async fn read(self) -> Result<Bytes, String> {
        match self.place {
            Place::Memory(bytes) => Ok(bytes),
            Place::Files(paths) => {
                let first = paths.first().cloned().unwrap_or_default();
                let reading = move || Ok(self::read(&paths, &self.digest));
                let read = files::within(&first, files::WORK, reading).await;
                read.unwrap_or_else(|error| Err(error.to_string()))
            }
        }
    }
}

fn read(paths: &[PathBuf], wanted: &str) -> Result<Bytes, String> {
    let mut told = Vec::new();
    for path in paths {
        match files::read(path, COMPONENT_BYTES) {
            Ok(bytes) if digest(&bytes) == wanted => return Ok(bytes.into()),
            Ok(_) => told.push(format!("{} has other bytes than the last good component", path.display())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => told.push(format!("{} can't be read: {error}", path.display())),
        }
    }
    if told.is_empty() {
        told.extend(paths.first().map(|path| format!("{} is not there", path.display())));
    }
    Err(format!("the last good component can't be started: {}", told.join("; ")))
}

/// Of a file, without having all of it in memory.
pub fn digest_of(path: &Path) -> io::Result<String> {
    let mut file = files::open(path, std::fs::OpenOptions::new().read(true))?.take(COMPONENT_BYTES);
    let (mut digest, mut piece) = (Context::new(&SHA256), vec![0; PIECE]);
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(hex::encode(digest.finish())),
            length => digest.update(&piece[..length]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_kept_is_the_first_file_with_its_bytes_and_an_error_says_what_lies_there() {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["damaged", "good"].map(|name| folder.path().join(name));
        std::fs::write(&paths[0], b"other").unwrap();
        std::fs::write(&paths[1], b"bytes").unwrap();
        assert_eq!(digest_of(&paths[1]).unwrap(), digest(b"bytes"));
        let kept = |paths: &[PathBuf]| Kept::in_files(digest(b"bytes"), paths.to_vec());
        assert_eq!(&kept(&paths).read().await.unwrap()[..], b"bytes");
        let told = kept(&paths[..1]).read().await.unwrap_err();
        assert!(told.contains("damaged has other bytes"), "{told}");
        let told = kept(&[folder.path().join("gone")]).read().await.unwrap_err();
        assert!(told.contains("gone is not there"), "{told}");
        assert_eq!(&Kept::in_memory(Bytes::from_static(b"x")).read().await.unwrap()[..], b"x");
    }
}
