//! The commands that read a journal or an audit trail without a controller.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use kubewitness_core::status::PHASES;

use super::reach::Output;
use super::values::{MomentArg, SecretArg, any_number, parse_moment, parse_position, whole_number_between};

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
    pub place: SecretArg,
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
    /// The output of `journal export --documents`; `-` for standard input
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

/// Which objects. Everything that is given must hold.
#[derive(Debug, Args)]
pub struct ObjectArgs {
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
}

/// When states were observed.
#[derive(Debug, Args)]
pub struct TimesArgs {
    /// Only states that were observed at this time or later, such as '2026-11-24 03:00' in your time zone,
    /// 2026-11-24T03:00:00Z, or 2h for two hours ago
    #[arg(long, visible_alias = "from", value_name = "TIME", value_parser = parse_moment)]
    pub since: Option<MomentArg>,
    /// Only states that were observed before this time
    #[arg(long, visible_alias = "to", value_name = "TIME", value_parser = parse_moment)]
    pub until: Option<MomentArg>,
}

/// Which states of a journal. Everything that is given must hold.
#[derive(Debug, Args)]
pub struct StatesArgs {
    /// Only this source
    #[arg(long)]
    pub source: Option<String>,
    #[command(flatten)]
    pub object: ObjectArgs,
    #[command(flatten)]
    pub times: TimesArgs,
    /// Only states after this position
    #[arg(long, value_name = "SEQ", value_parser = parse_position)]
    pub after: Option<u64>,
    /// Only states up to this position
    #[arg(long, value_name = "SEQ", value_parser = parse_position)]
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
    /// Proves that no line of a ledger of the plugin `audit` was changed, removed, added or moved, and who signed it
    Verify(VerifyTrailArgs),
    /// Prints the newest root of a ledger: a hash over all lines before it. Note it where the controller can't write
    Root {
        #[command(flatten)]
        trail: TrailArgs,
        /// The format of the output
        #[arg(short, long, value_enum, default_value_t = Output::Table, value_name = "FORMAT")]
        output: Output,
    },
    /// Shows what the records of a trail say, oldest first. It proves the files on the way
    Show(ShowTrailArgs),
    /// Erases a person's name beside a ledger. The records keep a digest, and the proof holds as before
    Erase(ErasePersonArgs),
    /// Prints the public part of a key that signs ledgers
    Key {
        /// A file with the private or the public key
        file: PathBuf,
        /// Makes a new private key in that file first
        #[arg(long)]
        new: bool,
        /// The format of the output
        #[arg(short, long, value_enum, default_value_t = Output::Table, value_name = "FORMAT")]
        output: Output,
    },
}

#[derive(Debug, Args)]
pub struct ErasePersonArgs {
    #[command(flatten)]
    pub trail: TrailArgs,
    /// The name, as the annotation has it
    #[arg(long, value_name = "NAME")]
    pub person: String,
    /// Erases the name. Without it, the command only says what it would erase
    #[arg(long)]
    pub yes: bool,
    /// The format of the output
    #[arg(short, long, value_enum, default_value_t = Output::Table, value_name = "FORMAT")]
    pub output: Output,
}

/// The files of one ledger.
#[derive(Debug, Args)]
pub struct TrailArgs {
    /// The files of the ledger, in any order: trail-*.jsonl and trail.jsonl
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// A file with a public key whose signatures count. Give it again for each key that has signed
    #[arg(long, value_name = "PUB")]
    pub key: Vec<PathBuf>,
    /// The setting `signing.records` of the ledger, if it is more than 1000. The proof allows this many records after the
    /// newest root. `audit verify --data` reads it from the settings
    #[arg(long, value_name = "RECORDS", value_parser = any_number::<u64>)]
    pub signed_every: Option<u64>,
}

#[derive(Debug, Args)]
pub struct VerifyTrailArgs {
    #[command(flatten)]
    pub trail: TrailArgs,
    /// A root that `audit root` printed earlier: the files must still have it
    #[arg(long, value_name = "ROOT")]
    pub anchor: Vec<String>,
    /// The oldest files of the ledger are not given: they are kept elsewhere
    #[arg(long)]
    pub from_middle: bool,
    /// The controller's data folder: each state that the plugin has finished must be in the trail, once
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    #[command(flatten)]
    pub journal: JournalArgs,
    /// The format of the output
    #[arg(short, long, value_enum, default_value_t = Output::Table, value_name = "FORMAT")]
    pub output: Output,
}

/// Which records. Everything that is given must hold.
#[derive(Debug, Args)]
pub struct ShowTrailArgs {
    #[command(flatten)]
    pub trail: TrailArgs,
    #[command(flatten)]
    pub object: ObjectArgs,
    /// Only changes by this field manager
    #[arg(long)]
    pub manager: Option<String>,
    /// Only records that name this person in an annotation
    #[arg(long)]
    pub person: Option<String>,
    /// Only this phase
    #[arg(long, value_parser = PossibleValuesParser::new(PHASES), ignore_case = true)]
    pub phase: Option<String>,
    #[command(flatten)]
    pub times: TimesArgs,
    /// At most this many records; the newest are shown
    #[arg(long, default_value_t = 1000, value_parser = whole_number_between::<u32>(1, 100_000))]
    pub limit: u32,
    /// The format of the output
    #[arg(short, long, value_enum, default_value_t = Output::Table, value_name = "FORMAT")]
    pub output: Output,
}
