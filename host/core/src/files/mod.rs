//! Reads files that somebody else provides. It opens them without blocking, accepts only regular files, and
//! reads up to a bound.
//!
//! Opening a pipe without a writer blocks forever, reading a device may never end, and merely opening a
//! device may have side effects. So the file is checked, opened without blocking, and checked again, because
//! the name may lead elsewhere by then. A file system that does not answer still blocks the caller. Callers
//! that must not block use [`run_within_limit`].

mod file_lock;
mod own_key;
mod sockets;
mod time_limit;
mod unnamed;

use std::fs::{File, FileType, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

pub use file_lock::FileLock;
pub use own_key::{KEY_BYTES, KeyOrigin, own_key};
pub use sockets::send_at_once;
pub use time_limit::{ANSWER, WORK, run_within_limit, within_blocking};
pub use unnamed::open_unnamed_file;

/// Opens a regular file. With `create` in the options, it creates a missing file.
pub fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    match std::fs::metadata(path) {
        Ok(found) => expect_file(&found)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let file = options.custom_flags(libc::O_NONBLOCK).open(path)?;
    expect_file(&file.metadata()?)?;
    Ok(file)
}

/// Reads a whole regular file of at most `most` bytes.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = open(path, OpenOptions::new().read(true))?;
    // Reserves the size first; growing the buffer would copy a large file several times.
    let size = file.metadata()?.len().min(most);
    read_into(Vec::with_capacity(usize::try_from(size).unwrap_or_default()), file, most)
}

pub fn text(path: &Path, most: u64) -> io::Result<String> {
    into_text(read(path, most)?)
}

/// Reads at most `most` bytes from an open input. A longer input is refused, not cut.
pub fn read_from(input: impl Read, most: u64) -> io::Result<Vec<u8>> {
    read_into(Vec::new(), input, most)
}

fn read_into(mut bytes: Vec<u8>, input: impl Read, most: u64) -> io::Result<Vec<u8>> {
    input.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    check_file_size(bytes.len() as u64, most)?;
    Ok(bytes)
}

/// Refuses a file of this many bytes if that exceeds the limit.
pub fn check_file_size(bytes: u64, most: u64) -> io::Result<()> {
    if bytes <= most {
        return Ok(());
    }
    let message = format!("it is larger than {}: name another file", byte_size_text(most));
    Err(io::Error::new(io::ErrorKind::FileTooLarge, message))
}

pub fn into_text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text"))
}

/// Replaces one of our own files atomically: after a crash it has its old or its new content. `mode` applies
/// to a new file.
pub fn replace_file_atomically(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    let mut options = OpenOptions::new();
    let mut file = open(&beside, options.write(true).create(true).truncate(true).mode(mode))?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&beside, path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// Returns the metadata of a regular file, or `None` if the path does not exist.
pub fn look(path: &Path) -> io::Result<Option<Metadata>> {
    match std::fs::metadata(path) {
        Ok(found) => expect_file(&found).map(|()| Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether the path names an open file descriptor of this process. The caller of the program passed it, for
/// example with a shell's `<(…)`, so it may be a pipe.
pub fn is_handed_over(path: &Path) -> bool {
    path == Path::new("/dev/stdin") || path.starts_with("/dev/fd") || path.starts_with("/proc/self/fd")
}

/// Opens the input of a command: a regular file, or an input that the caller passed on.
pub fn open_command_input(path: &Path) -> io::Result<File> {
    match is_handed_over(path) {
        true => File::open(path),
        false => open(path, OpenOptions::new().read(true)),
    }
}

fn expect_file(found: &Metadata) -> io::Result<()> {
    match special_file_kind(found.file_type()) {
        None => Ok(()),
        Some(kind) => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("it is {kind}, and a regular file is expected: name one, or put one in its place"),
        )),
    }
}

/// The word for this type of file; `None` for a regular file.
fn special_file_kind(found: FileType) -> Option<&'static str> {
    match () {
        () if found.is_file() => None,
        () if found.is_dir() => Some("a folder"),
        () if found.is_fifo() => Some("a pipe"),
        () if found.is_socket() => Some("a socket"),
        () => Some("a device"),
    }
}

fn byte_size_text(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} bytes"),
        1024..1_048_576 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::process::Command;

    use super::*;

    fn folder() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        (folder, path)
    }

    fn refused(path: &Path) -> [String; 3] {
        let read = read(path, 10).unwrap_err();
        let write = open(path, OpenOptions::new().append(true).create(true)).unwrap_err();
        let look = look(path).unwrap_err();
        [read, write, look].map(|error| error.to_string())
    }

    /// An ordinary open would block forever on each of these.
    #[test]
    fn a_file_is_written_anew_as_a_whole_and_a_pipe_beside_it_is_not_waited_for() {
        let (folder, path) = folder();
        for text in ["a longer text", "short"] {
            replace_file_atomically(&path, text.as_bytes(), 0o600).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
        let beside = folder.path().join("x.new");
        assert!(Command::new("mkfifo").arg(&beside).status().unwrap().success());
        assert!(replace_file_atomically(&path, b"lost", 0o600).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "short");
    }

    #[test]
    fn a_pipe_that_nobody_writes_to_is_refused_by_name_and_not_waited_for() {
        let (_folder, path) = folder();
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        for message in refused(&path) {
            assert!(message.starts_with("it is a pipe, and a regular file is expected"), "{message}");
        }
        let link = path.with_extension("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(refused(&link)[0].contains("a pipe"), "a link is what it leads to");
    }

    #[test]
    fn a_pipe_that_a_command_is_told_to_read_is_taken_where_it_was_handed_over_and_refused_where_it_lies() {
        let (_folder, path) = folder();
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        assert!(open_command_input(&path).unwrap_err().to_string().starts_with("it is a pipe"));
        let (reader, writer) = io::pipe().unwrap();
        drop(writer);
        let handed = format!("/dev/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&reader));
        assert_eq!(read_from(open_command_input(Path::new(&handed)).unwrap(), 1).unwrap(), b"");
    }

    #[test]
    fn folders_sockets_and_devices_are_refused_by_name() {
        let (folder, path) = folder();
        let _socket = UnixListener::bind(&path).unwrap();
        for (path, kind) in
            [(folder.path(), "a folder"), (&path, "a socket"), (Path::new("/dev/zero"), "a device")]
        {
            assert!(refused(path).iter().all(|message| message.contains(kind)), "{:?}", refused(path));
        }
    }

    /// The name may lead elsewhere between the first look and the opening.
    #[test]
    fn what_was_opened_is_looked_at_again() {
        let device = File::open("/dev/zero").unwrap();
        assert!(expect_file(&device.metadata().unwrap()).is_err());
        assert!(read_from(device, 10).unwrap_err().to_string().contains("larger than 10 bytes"));
    }

    #[test]
    fn a_regular_file_is_read_up_to_its_bound() {
        let (_folder, path) = folder();
        assert!(look(&path).unwrap().is_none());
        open(&path, OpenOptions::new().write(true).create(true)).unwrap();
        std::fs::write(&path, "ten bytes!").unwrap();
        assert_eq!(text(&path, 10).unwrap(), "ten bytes!");
        assert_eq!(read(&path, 9).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        std::fs::write(&path, [0xff]).unwrap();
        assert!(text(&path, 9).unwrap_err().to_string().contains("UTF-8"));
    }
}
