//! The proof of an audit trail: it reads a file and changes nothing, also beside a running controller.

use std::fs::File;
use std::io::BufReader;

use anyhow::Context;

use super::print::{self, clean, mark};
use super::{End, Ended};
use crate::cli::Audit;

pub fn audit(command: Audit) -> Ended {
    let Audit::Verify { file, output } = command;
    let reader = File::open(&file).with_context(|| format!("opening {}", file.display()))?;
    let report = crate::audit::verify(BufReader::new(reader))
        .with_context(|| format!("reading {}", file.display()))?;
    let ok = report.ok;
    print::value(output, &report, |report| {
        format!("{} {}: {}\n", mark(ok), file.display(), clean(&report.to_string()))
    })?;
    Ok(if ok { End::Fine } else { End::Failed })
}
