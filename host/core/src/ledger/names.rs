//! The names of a ledger's files.

use std::path::{Path, PathBuf};

/// The digits of a number in a name, so that names sort in the order of the files.
const DIGITS: usize = 6;

/// The name of a file after it is closed: `trail.jsonl` becomes `trail-000001.jsonl`.
pub fn closed_file(open: &Path, file: u64) -> PathBuf {
    let stem = open.file_stem().unwrap_or_default().to_string_lossy();
    let ending = open.extension().map(|ending| format!(".{}", ending.to_string_lossy())).unwrap_or_default();
    open.with_file_name(format!("{stem}-{file:0DIGITS$}{ending}"))
}

/// The open file of the ledger to which this closed file belongs, by its name.
pub fn open_file(closed: &Path) -> Option<PathBuf> {
    let stem = closed.file_stem()?.to_str()?;
    let (stem, number) = stem.rsplit_once('-')?;
    let open = match closed.extension() {
        Some(ending) => closed.with_file_name(format!("{stem}.{}", ending.to_str()?)),
        None => closed.with_file_name(stem),
    };
    (closed_file(&open, number.parse().ok()?) == closed).then_some(open)
}

/// The number in the name of a closed file of a ledger with this open file.
pub fn closed_number(open: &Path, name: &Path) -> Option<u64> {
    let number = name.file_stem()?.to_str()?.rsplit_once('-')?.1.parse().ok()?;
    (closed_file(open, number) == name).then_some(number)
}

/// Whether this names a closed file of the ledger with this open file.
pub fn is_closed_file(open: &Path, name: &Path) -> bool {
    closed_number(open, name).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_files_have_a_number_before_the_ending_and_are_recognised() {
        for (open, closed) in [
            ("audit/trail.jsonl", "audit/trail-000007.jsonl"),
            ("trail", "trail-000007"),
            ("/a/trail.db.jsonl", "/a/trail.db-000007.jsonl"),
        ] {
            let (open, closed) = (Path::new(open), Path::new(closed));
            assert_eq!(closed_file(open, 7), closed);
            assert_eq!((open_file(closed).as_deref(), open_file(open)), (Some(open), None));
            assert_eq!((closed_number(open, closed), closed_number(open, open)), (Some(7), None));
        }
        let open = Path::new("trail.jsonl");
        assert!(is_closed_file(open, &closed_file(open, 12_345_678)));
        for other in ["trail-7.jsonl", "trail-00000x.jsonl", "other-000007.jsonl", "a/trail-000007.jsonl"] {
            assert!(!is_closed_file(open, Path::new(other)), "{other}");
        }
    }
}
