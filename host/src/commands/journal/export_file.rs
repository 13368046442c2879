//! The target of an export. A file is written beside its final name, and renamed once it is complete and on
//! disk. So a file with the final name is complete, even after a kill or a power failure. A pipe whose reader
//! stops reading ends the export, because its snapshot blocks the journal's own cleanup.

use std::fs::{self, File};
use std::io::{self, BufWriter, Stdout, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// A pager shows a page for as long as somebody reads it. Meanwhile the journal's log grows on disk.
const PATIENCE: Duration = Duration::from_secs(5 * 60);
/// A pipe that is ready accepts this many bytes without blocking.
const PIPE_BYTES: usize = 4096;

pub struct ExportFile {
    path: PathBuf,
    part: PathBuf,
    file: Option<BufWriter<File>>,
}

impl ExportFile {
    pub fn at_path(path: PathBuf) -> Self {
        let mut part = path.clone().into_os_string();
        part.push(".part");
        Self { path, part: part.into(), file: None }
    }

    fn open_part(&mut self) -> io::Result<&mut BufWriter<File>> {
        if self.file.is_none() {
            self.refuse_to_replace()?;
            let made = File::create_new(&self.part).map_err(|error| {
                let part = self.part.display();
                let text = match error.kind() {
                    io::ErrorKind::AlreadyExists => {
                        format!("{part} exists already: remove it, unless another export is writing it")
                    }
                    _ => format!("{part}: {error}"),
                };
                io::Error::new(error.kind(), text)
            })?;
            self.file = Some(BufWriter::new(made));
        }
        self.file.as_mut().ok_or_else(|| io::Error::other("it was made and is not there"))
    }

    /// The existing file may be the only copy of its content.
    fn refuse_to_replace(&self) -> io::Result<()> {
        let path = self.path.display();
        match self.path.try_exists() {
            Ok(false) => Ok(()),
            Ok(true) => {
                let text = format!("{path} exists already: name another file, or move this one away");
                Err(io::Error::new(io::ErrorKind::AlreadyExists, text))
            }
            Err(error) => Err(io::Error::new(error.kind(), format!("{path}: {error}"))),
        }
    }

    /// Gives the complete export its name.
    pub fn give_name(mut self) -> io::Result<()> {
        let Some(file) = self.file.take() else { return Ok(()) };
        file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        self.refuse_to_replace()?;
        fs::rename(&self.part, &self.path)?;
        match self.path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            Some(folder) => File::open(folder)?.sync_all(),
            None => File::open(".")?.sync_all(),
        }
    }

    /// Called after a failed export.
    pub fn remove(self) -> io::Result<()> {
        match self.file {
            Some(_) => fs::remove_file(&self.part),
            None => Ok(()),
        }
    }
}

impl Write for ExportFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.open_part()?.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), Write::flush)
    }
}

/// A pipe or a terminal that may stop accepting bytes.
pub struct PatientWriter<W: AsFd> {
    out: W,
    patience: Duration,
}

impl PatientWriter<Stdout> {
    pub fn stdout() -> Self {
        Self { out: io::stdout(), patience: PATIENCE }
    }
}

impl<W: AsFd> PatientWriter<W> {
    fn await_reader(&self) -> io::Result<()> {
        let patience =
            Timespec { tv_sec: self.patience.as_secs() as i64, tv_nsec: self.patience.subsec_nanos().into() };
        loop {
            match poll(&mut [PollFd::new(&self.out, PollFlags::OUT)], Some(&patience)) {
                Ok(0) => {
                    let text = format!(
                        "nobody has read for {} s: the export ends, since it would hold back the journal's cleaning; \
                         give --file FILE, and read the file",
                        self.patience.as_secs()
                    );
                    return Err(io::Error::new(io::ErrorKind::TimedOut, text));
                }
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl<W: AsFd + Write> Write for PatientWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.await_reader()?;
        let written = self.out.write(&bytes[..bytes.len().min(PIPE_BYTES)])?;
        // A standard output with its own buffer would write more at another time.
        self.out.flush()?;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_its_name_once_it_is_whole_and_replaces_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("all.jsonl");
        let mut file = ExportFile::at_path(path.clone());
        file.flush().unwrap();
        file.write_all(b"kept").unwrap();
        file.flush().unwrap();
        assert!(!path.exists(), "a kill leaves nothing under the name");
        file.give_name().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"kept");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);

        let mut second = ExportFile::at_path(path.clone());
        let error = second.write_all(b"other").unwrap_err().to_string();
        assert!(
            error.ends_with("all.jsonl exists already: name another file, or move this one away"),
            "{error}"
        );
        second.remove().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"kept");
    }

    #[test]
    fn an_export_that_failed_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = ExportFile::at_path(folder.path().join("all.jsonl"));
        file.write_all(b"half").unwrap();
        file.remove().unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_pipe_that_nobody_reads_ends_the_export() {
        let (reader, writer) = io::pipe().unwrap();
        let mut out = PatientWriter { out: writer, patience: Duration::from_millis(10) };
        let error = out.write_all(&[b'a'; 1 << 20]).unwrap_err();
        assert!(error.kind() == io::ErrorKind::TimedOut && error.to_string().contains("--file"), "{error}");
        drop(reader);
        assert_eq!(out.write_all(b"a").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
