//! A component that this controller already has on disk, so that it need not be fetched again. Its digest is
//! checked before it is used.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use kubewitness_core::files;
use ring::digest::{Context, SHA256};
use thiserror::Error;

use super::memory_budget::{self, MemoryRoom};
use super::{COMPONENT_BYTES, component_digest};

/// How many bytes of a file are read at once to compute its digest.
const PIECE: usize = 64 << 10;

/// Why a component that this controller has can't be read, or kept.
#[derive(Debug, Error)]
pub enum KeptError {
    #[error("it can't be kept in {}: {source}", folder.display())]
    NoFile { folder: PathBuf, source: io::Error },
    #[error("the component that was compared can't be read again: {0}")]
    Unread(#[source] io::Error),
    #[error("the component that was compared has other bytes now")]
    Changed,
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Files(Vec<FileProblem>),
    #[error(transparent)]
    Folder(io::Error),
}

/// The fault of a file where a component should be.
#[derive(Debug, Error)]
pub enum FileProblem {
    #[error("{} has other bytes than before", .0.display())]
    Changed(PathBuf),
    #[error("{} can't be read: {source}", path.display())]
    Unread { path: PathBuf, source: io::Error },
    #[error("{} is not there", .0.display())]
    Missing(PathBuf),
}

#[derive(Clone, Debug)]
pub struct KeptComponents {
    digest: String,
    place: KeptPlace,
}

#[derive(Clone, Debug)]
enum KeptPlace {
    /// The first of these files with these bytes.
    Files(Vec<PathBuf>),
    /// The component of a compared version, which may take over, for as long as it is compared.
    Unnamed(Arc<File>),
}

impl KeptComponents {
    pub fn in_files(digest: String, files: Vec<PathBuf>) -> Self {
        Self { digest, place: KeptPlace::Files(files) }
    }

    /// Moves the bytes from memory to disk.
    pub async fn on_disk(bytes: Bytes, folder: &Path) -> Result<Self, KeptError> {
        let digest = component_digest(&bytes);
        let place = folder.to_owned();
        let writing = move || {
            let mut file = files::open_unnamed_file(&place)?;
            file.write_all(&bytes)?;
            Ok(file)
        };
        let file = files::run_within_limit(folder, files::WORK, writing).await;
        let file = file.map_err(|source| KeptError::NoFile { folder: folder.to_owned(), source })?;
        Ok(Self { digest, place: KeptPlace::Unnamed(Arc::new(file)) })
    }

    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Waits until room for it is available.
    pub async fn read(self) -> Result<Bytes, KeptError> {
        self.read_within(&memory_budget::ALL).await
    }

    async fn read_within(self, room: &MemoryRoom) -> Result<Bytes, KeptError> {
        let length = self.expected_length().await;
        let place = room.await_room(length).await;
        let wanted = self.digest;
        let bytes = match self.place {
            KeptPlace::Unnamed(file) => {
                let reading = tokio::task::spawn_blocking(move || read_again(&file, &wanted)).await;
                reading.unwrap_or_else(|error| Err(KeptError::Unread(error.into())))
            }
            KeptPlace::Files(paths) => {
                let first = paths.first().cloned().unwrap_or_default();
                let reading = move || Ok(read(&paths, &wanted, length.min(COMPONENT_BYTES)));
                let read = files::run_within_limit(&first, files::WORK, reading).await;
                read.unwrap_or_else(|error| Err(KeptError::Folder(error)))
            }
        };
        Ok(place.fill_with(bytes?))
    }

    /// The room that reading it may need. If a file grows meanwhile, its digest is wrong.
    async fn expected_length(&self) -> u64 {
        let paths = match &self.place {
            KeptPlace::Unnamed(file) => return file.metadata().map_or(COMPONENT_BYTES, |found| found.len()),
            KeptPlace::Files(paths) => paths.clone(),
        };
        let first = paths.first().cloned().unwrap_or_default();
        let looking = move || {
            let lengths = paths.iter().filter_map(|path| Some(path.metadata().ok()?.len()));
            Ok(lengths.max().unwrap_or_default())
        };
        files::run_within_limit(&first, files::ANSWER, looking).await.unwrap_or(COMPONENT_BYTES)
    }
}

fn read_again(file: &File, wanted: &str) -> Result<Vec<u8>, KeptError> {
    let length = file.metadata().map_err(KeptError::Unread)?.len().min(COMPONENT_BYTES);
    let mut bytes = vec![0; usize::try_from(length).unwrap_or_default()];
    file.read_exact_at(&mut bytes, 0).map_err(KeptError::Unread)?;
    match component_digest(&bytes) == wanted {
        true => Ok(bytes),
        false => Err(KeptError::Changed),
    }
}

fn read(paths: &[PathBuf], wanted: &str, most: u64) -> Result<Vec<u8>, KeptError> {
    let mut problems = Vec::new();
    for path in paths {
        match files::read(path, most) {
            Ok(bytes) if component_digest(&bytes) == wanted => return Ok(bytes),
            Ok(_) => problems.push(FileProblem::Changed(path.clone())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => problems.push(FileProblem::Unread { path: path.clone(), source }),
        }
    }
    if problems.is_empty() {
        problems.extend(paths.first().cloned().map(FileProblem::Missing));
    }
    Err(KeptError::Files(problems))
}

/// The digest of a file, computed without loading all of it.
pub fn digest_of(path: &Path) -> io::Result<String> {
    let file = files::open(path, std::fs::OpenOptions::new().read(true))?;
    files::check_file_size(file.metadata()?.len(), COMPONENT_BYTES)?;
    let mut file = file.take(COMPONENT_BYTES);
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
    use std::pin::pin;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_file_stays_on_disk_until_there_is_room_for_what_it_has() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.wasm");
        std::fs::write(&path, b"there").unwrap();
        let room = MemoryRoom::of(COMPONENT_BYTES);
        let all = room.await_room(u64::MAX).await;
        let kept = KeptComponents::in_files(digest_of(&path).unwrap(), vec![path.clone()]);
        let mut reading = pin!(kept.read_within(&room));
        assert!(tokio::time::timeout(Duration::from_millis(200), &mut reading).await.is_err());
        drop(all);
        assert_eq!(&reading.await.unwrap()[..], b"there");
        std::fs::File::create(&path).unwrap().set_len(COMPONENT_BYTES + 1).unwrap();
        let error = digest_of(&path).unwrap_err().to_string();
        assert!(error.contains("it is larger than 64 MiB"), "{error}");
    }

    #[tokio::test]
    async fn what_is_kept_is_the_first_file_with_its_bytes_and_an_error_says_what_lies_there() {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["damaged", "good"].map(|name| folder.path().join(name));
        std::fs::write(&paths[0], b"other").unwrap();
        std::fs::write(&paths[1], b"bytes").unwrap();
        assert_eq!(digest_of(&paths[1]).unwrap(), component_digest(b"bytes"));
        let kept = |paths: &[PathBuf]| KeptComponents::in_files(component_digest(b"bytes"), paths.to_vec());
        assert_eq!(&kept(&paths).read().await.unwrap()[..], b"bytes");
        let error = kept(&paths[..1]).read().await.unwrap_err().to_string();
        assert!(error.contains("damaged has other bytes"), "{error}");
        let error = kept(&[folder.path().join("gone")]).read().await.unwrap_err().to_string();
        assert!(error.contains("gone is not there"), "{error}");
        let aside = KeptComponents::on_disk(Bytes::from_static(b"x"), folder.path()).await.unwrap();
        for again in [aside.clone(), aside] {
            assert_eq!(&again.read().await.unwrap()[..], b"x");
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "it has no name");
        let error =
            KeptComponents::on_disk(Bytes::new(), &folder.path().join("gone")).await.unwrap_err().to_string();
        assert!(error.contains("gone"), "{error}");
    }
}
