//! Checks the disk of the data folder.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use kubewitness_core::files;

use super::codes;
use super::findings::{DoctorFindings, FindingOutcome};

const MIB: u64 = 1024 * 1024;
/// A busy hour of a cluster with 10,000 jobs is some 100 MiB.
const FULL: u64 = 128 * MIB;
const LITTLE: u64 = 1024 * MIB;

pub fn examine_folder(data: Option<&Path>, found: &mut DoctorFindings) {
    let Some(data) = data else {
        for code in [&codes::FOLDER, &codes::SPACE] {
            found.add(
                code,
                FindingOutcome::NotChecked,
                "name the data folder with --data, where it is mounted",
            );
        }
        return;
    };
    let shown = data.display().to_string();
    let owned = data.to_owned();
    // A disk may not answer.
    match files::within_blocking(files::ANSWER, move || check_writable(&owned)) {
        Ok(()) => found.add(&codes::FOLDER, FindingOutcome::Fine, shown.clone()),
        Err(error) => found.add(&codes::FOLDER, FindingOutcome::Failed, format!("{shown}: {error}")),
    }
    let owned = data.to_owned();
    match files::within_blocking(files::ANSWER, move || disk_space(&owned)) {
        Ok((free, all)) => {
            found.add(&codes::SPACE, judge_space(free, all), format!("{} of {} MiB", free / MIB, all / MIB));
        }
        Err(error) => found.add(&codes::SPACE, FindingOutcome::Failed, format!("{shown}: {error}")),
    }
}

fn check_writable(data: &Path) -> io::Result<()> {
    let path = data.join(format!(".kubewitness-doctor-{}", std::process::id()));
    let made = File::create_new(&path);
    let done = made.and_then(|mut file| {
        file.write_all(b"kubewitness doctor\n")?;
        file.sync_all()
    });
    match std::fs::remove_file(&path) {
        // It was never created, and the reason is the error.
        Err(_) if done.is_err() => done,
        removed => done.and(removed),
    }
}

/// The space that is free for this user, and the total.
fn disk_space(data: &Path) -> io::Result<(u64, u64)> {
    let disk = rustix::fs::statvfs(data)?;
    Ok((disk.f_bavail.saturating_mul(disk.f_frsize), disk.f_blocks.saturating_mul(disk.f_frsize)))
}

fn judge_space(free: u64, all: u64) -> FindingOutcome {
    match free {
        free if free < FULL => FindingOutcome::Failed,
        free if free < LITTLE || free < all / 10 => FindingOutcome::Warning,
        _ => FindingOutcome::Fine,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn space_is_told_of_before_it_ends() {
        for (free, all, wanted) in [
            (100 * LITTLE, 200 * LITTLE, FindingOutcome::Fine),
            (9 * LITTLE, 200 * LITTLE, FindingOutcome::Warning),
            (LITTLE / 2, LITTLE, FindingOutcome::Warning),
            (FULL - 1, LITTLE, FindingOutcome::Failed),
        ] {
            assert_eq!(judge_space(free, all), wanted, "{free} of {all}");
        }
    }

    #[test]
    fn a_folder_that_can_be_written_is_left_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let mut found = DoctorFindings::default();
        examine_folder(Some(folder.path()), &mut found);
        assert_eq!(found.0[0].outcome, FindingOutcome::Fine, "{found:?}");
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
        let mut found = DoctorFindings::default();
        examine_folder(Some(&folder.path().join("missing")), &mut found);
        assert_eq!(found.0[0].outcome, FindingOutcome::Failed, "{found:?}");
    }
}
