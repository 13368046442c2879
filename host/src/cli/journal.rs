//! The commands that read a journal or an audit trail without a controller.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::reach::Output;
use super::values::{Moment, Secret, moment};

/// Which database has the journal. An address with a password is read from the environment or from
/// a file, since a command line is seen by everybody on the machine.
#[derive(Debug, Args)]
pub struct JournalArgs {
    /// Where the journal is: `sqlite` for journal.db in the data folder, or the address of a database
    /// (postgres://USER@HOST/DATABASE or mysql://USER@HOST/DATABASE)
    #[arg(
        long = "journal",
        env = "KUBEWITNESS_JOURNAL",
        hide_env_values = true,
        default_value = "sqlite",
        value_name = "WHERE"
    )]
    pub place: Secret,
    /// A file that holds the address of the journal, such as a file of a mounted Secret
    #[arg(long, env = "KUBEWITNESS_JOURNAL_FILE", value_name = "FILE")]
    pub journal_file: Option<PathBuf>,
}

/// A journal that is there.
#[derive(Debug, Args)]
pub struct JournalAt {
    /// The controller's data folder, or the journal's file
    #[arg(long, env = "KUBEWITNESS_DATA", default_value = "kubewitness-data", value_name = "DIR")]
    pub data: PathBuf,
    #[command(flatten)]
    pub journal: JournalArgs,
}

#[derive(Debug, Subcommand)]
pub enum Journal {
    /// Proves the journal: order, ids, deltas, checkpoints, cursors and the completeness of every plugin
    Verify {
        #[command(flatten)]
        at: JournalAt,
        /// The format of the output
        #[arg(short, long, value_enum, default_value_t = Output::Table, value_name = "FORMAT")]
        output: Output,
    },
    /// Shows the size of each source, what retention may remove, and what holds the rest
    Stats {
        #[command(flatten)]
        at: JournalAt,
        /// The format of the output
        #[arg(short, long, value_enum, default_value_t = Output::Table, value_name = "FORMAT")]
        output: Output,
    },
    /// Writes states as lines of JSON, oldest first. The controller may go on meanwhile
    Export(ExportArgs),
    /// Reads an export into an empty data folder or database
    Import(ImportArgs),
}

#[derive(Debug, Args)]
pub struct ImportArgs {
    /// What `journal export --documents` wrote; `-` for standard input
    #[arg(required_unless_present = "discard")]
    pub file: Option<PathBuf>,
    /// The data folder, or the journal's file; nothing may be in it
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    #[command(flatten)]
    pub journal: JournalArgs,
    /// Continues an import that failed or was killed, with the same file. The states that are there are compared with
    /// the file first
    #[arg(long = "continue")]
    pub goes_on: bool,
    /// Removes the states that a failed or killed import has written
    #[arg(long, conflicts_with_all = ["file", "goes_on"])]
    pub discard: bool,
}

/// Which states of a journal. Everything that is given must hold.
#[derive(Debug, Args)]
pub struct StatesArgs {
    /// Only this source
    #[arg(long)]
    pub source: Option<String>,
    /// Only objects in this namespace
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// Only this kind: Job, jobs, po
    #[arg(long)]
    pub kind: Option<String>,
    /// Only objects with this name
    #[arg(long)]
    pub name: Option<String>,
    /// Only the object with this uid
    #[arg(long)]
    pub uid: Option<String>,
    /// Only states that were observed at this time or later, such as '2026-11-24 03:00' in your time zone,
    /// 2026-11-24T03:00:00Z, or 2h for two hours ago
    #[arg(long, visible_alias = "from", value_name = "TIME", value_parser = moment)]
    pub since: Option<Moment>,
    /// Only states that were observed before this time
    #[arg(long, visible_alias = "to", value_name = "TIME", value_parser = moment)]
    pub until: Option<Moment>,
    /// Only states after this position
    #[arg(long, value_name = "SEQ")]
    pub after: Option<u64>,
    /// Only states up to this position
    #[arg(long, value_name = "SEQ")]
    pub through: Option<u64>,
}

#[derive(Debug, Args)]
pub struct ExportArgs {
    #[command(flatten)]
    pub at: JournalAt,
    #[command(flatten)]
    pub states: StatesArgs,
    /// With the documents, byte for byte: about 2 KB per Job. An import needs them
    #[arg(long)]
    pub documents: bool,
    /// The file to write. Without it: standard output
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum Audit {
    /// Proves that no line of a ledger was changed, removed or moved
    Verify {
        /// The file of the ledger
        file: PathBuf,
        /// The format of the output
        #[arg(short, long, value_enum, default_value_t = Output::Table, value_name = "FORMAT")]
        output: Output,
    },
}
