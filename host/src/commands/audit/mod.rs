//! `kubewitness audit verify`: reads an audit trail and changes nothing, also beside a running controller. It asks no
//! controller and opens no journal.

mod trail;

use std::io::BufReader;

use anyhow::Context;
use kubewitness_core::files;

use crate::cli::Audit;
use crate::commands::print::{self, clean, mark};
use crate::commands::{End, Ended};

#[cfg(test)]
pub use trail::Broken;

pub fn audit(command: Audit) -> Ended {
    let Audit::Verify { file, output } = command;
    let reader = files::named(&file).with_context(|| format!("opening {}", file.display()))?;
    let report =
        trail::verify(BufReader::new(reader)).with_context(|| format!("reading {}", file.display()))?;
    let ok = report.ok;
    print::value(output, &report, |report| {
        format!("{} {}: {}\n", mark(ok), file.display(), clean(&report.to_string()))
    })?;
    Ok(if ok { End::Fine } else { End::Failed })
}
