//! The file that an export is written to. It is made with the first bytes, so that a journal that can't be
//! read leaves none, and removed where the export fails: what is there under its name is whole.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

pub struct ExportFile {
    path: PathBuf,
    file: Option<BufWriter<File>>,
}

impl ExportFile {
    pub fn at(path: PathBuf) -> Self {
        Self { path, file: None }
    }

    fn made(&mut self) -> io::Result<&mut BufWriter<File>> {
        if self.file.is_none() {
            // What is there may be the only copy of something.
            let made = File::create_new(&self.path).map_err(|error| {
                let path = self.path.display();
                let text = match error.kind() {
                    io::ErrorKind::AlreadyExists => {
                        format!("{path} exists already: name another file, or move this one away")
                    }
                    _ => format!("{path}: {error}"),
                };
                io::Error::new(error.kind(), text)
            })?;
            self.file = Some(BufWriter::new(made));
        }
        self.file.as_mut().ok_or_else(|| io::Error::other("it was made and is not there"))
    }

    /// After an export that failed.
    pub fn remove(self) -> io::Result<()> {
        match self.file {
            Some(_) => fs::remove_file(&self.path),
            None => Ok(()),
        }
    }
}

impl Write for ExportFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.made()?.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), Write::flush)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_made_with_its_first_bytes_and_replaces_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("all.jsonl");
        let mut file = ExportFile::at(path.clone());
        file.flush().unwrap();
        assert!(!path.exists());
        file.write_all(b"kept").unwrap();
        file.flush().unwrap();
        drop(file);

        let mut second = ExportFile::at(path.clone());
        let told = second.write_all(b"other").unwrap_err().to_string();
        assert!(
            told.ends_with("all.jsonl exists already: name another file, or move this one away"),
            "{told}"
        );
        second.remove().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"kept");
    }

    #[test]
    fn an_export_that_failed_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("all.jsonl");
        let mut file = ExportFile::at(path.clone());
        file.write_all(b"half").unwrap();
        assert!(path.exists());
        file.remove().unwrap();
        assert!(!path.exists());
    }
}
