//! Determines which database holds the journal: from the command line, the environment, or a file.

use std::fs::File;
use std::io;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use kubewitness_core::files;
use kubewitness_journal::JournalLocation;

use crate::cli::JournalArgs;

/// The embedded journal, in the data folder.
pub const EMBEDDED: &str = "sqlite";

/// Marks a folder of a playground, which the next playground may clear.
pub const PLAYGROUND_MARKER: &str = ".kubewitness-playground";

/// For a controller whose data is meant to last.
pub fn refuse_a_playgrounds(data: &Path) -> Result<()> {
    let marker = data.join(PLAYGROUND_MARKER);
    if read_in_time(data, move || marker.try_exists())? {
        bail!(
            "{0} is a playground's folder, and the next playground clears it; name another folder with \
             --data, or remove {0} if it is not needed any more",
            data.display()
        );
    }
    Ok(())
}

/// Reads the data folder before anything else, with a time limit, because its disk may not answer.
fn read_in_time<T: Send + 'static>(
    data: &Path,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T> {
    files::within_blocking(files::ANSWER, work).with_context(|| format!("looking at {}", data.display()))
}

/// An address is one line.
const ADDRESS_BYTES: u64 = 64 * 1024;

/// Reads a file, or a pipe that a shell passes instead, as with `<(…)`. The wait is limited: a service that
/// waits for its address looks like one that works.
fn read_address(file: &Path) -> io::Result<String> {
    let path = file.to_owned();
    match files::is_handed_over(&path) {
        true => files::within_blocking(files::WORK, move || {
            files::into_text(files::read_from(File::open(path)?, ADDRESS_BYTES)?)
        }),
        false => files::within_blocking(files::ANSWER, move || files::text(&path, ADDRESS_BYTES)),
    }
}

/// `data` may also be the embedded journal's file.
pub fn journal_place(args: &JournalArgs, data: &Path) -> Result<JournalLocation> {
    let address = match &args.journal_file {
        Some(file) => {
            if args.place.0 != EMBEDDED {
                bail!(
                    "the journal's place is given twice: as an address and as a file that holds one; keep one of the two"
                );
            }
            let text = read_address(file);
            text.with_context(|| format!("reading the journal's address from {}", file.display()))?
        }
        None => args.place.0.clone(),
    };
    let address = address.trim();
    if address == EMBEDDED {
        let named = data.to_path_buf();
        let is_file = read_in_time(data, move || Ok(named.is_file()))?;
        let file = if is_file { data.to_path_buf() } else { data.join("journal.db") };
        return Ok(JournalLocation::file(&file));
    }
    if has_password(address) && std::env::args_os().any(|word| word.to_string_lossy().contains(address)) {
        bail!(
            "a password on a command line is seen by everybody on this machine: put the address into the environment \
             as KUBEWITNESS_JOURNAL, or into a file for --journal-file"
        );
    }
    let place = JournalLocation::server(address)
        .map_err(|error| anyhow!("the journal's place is neither `{EMBEDDED}` nor an address: {error}"))?;
    Ok(match args.journal_file.as_deref().filter(|file| !files::is_handed_over(file)) {
        Some(file) => place.read_again_from(file),
        None => place,
    })
}

fn has_password(address: &str) -> bool {
    let authority = address.split_once("://").map_or("", |(_, rest)| rest);
    let authority = authority.split(['/', '?']).next().unwrap_or_default();
    authority.rsplit_once('@').is_some_and(|(user, _)| user.contains(':')) || address.contains("password=")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::SecretArg;

    fn of(place: &str, file: Option<&Path>) -> Result<JournalLocation> {
        let args = JournalArgs { place: SecretArg(place.into()), journal_file: file.map(Path::to_path_buf) };
        super::journal_place(&args, Path::new("data"))
    }

    #[test]
    fn the_embedded_journal_is_the_default_and_lies_in_the_data_folder() {
        assert_eq!(of("sqlite", None).unwrap().to_string(), "data/journal.db");
    }

    #[test]
    fn an_address_comes_from_a_file_as_an_editor_leaves_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("address");
        std::fs::write(&file, "postgres://ann:hush@db/journal\n").unwrap();
        assert_eq!(of("sqlite", Some(&file)).unwrap().to_string(), "PostgreSQL at db:5432/journal");
        assert!(of("mysql://ann@db/journal", Some(&file)).unwrap_err().to_string().contains("twice"));
        let missing = format!("{:#}", of("sqlite", Some(&folder.path().join("none"))).unwrap_err());
        assert!(missing.contains("none"), "{missing}");
    }

    #[test]
    fn a_pipe_is_read_where_it_was_handed_over_and_refused_where_it_merely_lies() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let error = format!("{:#}", of("sqlite", Some(&pipe)).unwrap_err());
        assert!(error.contains("pipe: it is a pipe, and a regular file is expected"), "{error}");

        let (reader, mut writer) = io::pipe().unwrap();
        io::Write::write_all(&mut writer, b"postgres://ann:hush@db/journal\n").unwrap();
        drop(writer);
        let handed = format!("/dev/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&reader));
        let place = of("sqlite", Some(Path::new(&handed))).unwrap();
        assert_eq!(place.to_string(), "PostgreSQL at db:5432/journal");
    }

    #[test]
    fn a_password_is_found_where_it_stands_and_never_told() {
        for with in ["postgres://a:b@h/d", "mysql://a:b%40@h:1/d?x=y", "postgres://h/d?user=a&password=b"] {
            assert!(has_password(with), "{with}");
        }
        for without in ["postgres://a@h/d", "postgres://h:5432/d", "mysql://h/d:e@f"] {
            assert!(!has_password(without), "{without}");
        }
        let error = of("postgre://ann:hush@db/journal", None).unwrap_err().to_string();
        assert!(!error.contains("hush"), "{error}");
    }
}
