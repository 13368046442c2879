//! `kubewitness-real --servers FOLDER --minor 1.36`: runs the promises against a real API server, and prints a line of JSON.
//! `cargo xtask real` calls it.
//!
//! | flag | |
//! |---|---|
//! | `--faults 12` | so many faults, in an order of the seed; without it: each possible fault once |
//! | `--fault NAME,NAME` | these faults in this order |
//! | `--seeds 3` | so many runs, from the seed on |
//! | `--page FILE` | runs the peers beside the controller, and writes what they missed into the file |
//! | `--command TEXT` | how the caller was called, for the page |
//! | `--postgres` | the journal is in PostgreSQL, whose server can fail over |
//! | `--access` | proves what the shipped account needs, and what people see |
//! | `--play FOLDER` | is a playground with its data in the folder, until it is stopped |
//! | `--listen ADDRESS`, `--for SECONDS` | where its portal is, and how long it plays |
//! | `--record FOLDER`, `--case NAME` | records labelled histories into the folder instead |
//! | `--needs`, `--case NAME` | names the controllers of other projects that these cases need, a line each |
//! | `--peer NAME --kubeconfig FILE --file FILE` | is a peer until it is killed |

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use kubewitness_harness::{Scratch, seed};
use kubewitness_real::{
    DATA, LeftoverGuard, NO_FAULT, PEERS, PeerRuns, PlayOptions, PromiseReport, ServerPrograms, TrialOptions,
    access_holds, known_failures, named, needed_operators, play, record_histories, run_peer, survives_faults,
    write_page,
};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// As `kubewitness playground` has it.
const LISTEN: &str = "127.0.0.1:8787";
/// A process that was killed is gone within milliseconds.
const KILLED_WITHIN: Duration = Duration::from_millis(500);

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("real: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[derive(Default)]
struct SuiteFlags {
    servers: Option<PathBuf>,
    minors: Vec<String>,
    faults: Option<u64>,
    fault: Vec<String>,
    seeds: Option<u64>,
    page: Option<PathBuf>,
    record: Option<PathBuf>,
    play: Option<PathBuf>,
    has_access: bool,
    asks_needs: bool,
    has_journal_server: bool,
    listen: Option<String>,
    seconds: Option<u64>,
    cases: Vec<String>,
    peer: Option<String>,
    kubeconfig: Option<PathBuf>,
    file: Option<PathBuf>,
    command: Option<String>,
}

fn flags() -> Result<SuiteFlags> {
    let mut flags = SuiteFlags::default();
    let mut args = std::env::args().skip(1);
    while let Some(flag) = args.next() {
        let switch = match flag.as_str() {
            "--access" => Some(&mut flags.has_access),
            "--needs" => Some(&mut flags.asks_needs),
            "--postgres" => Some(&mut flags.has_journal_server),
            _ => None,
        };
        if let Some(switch) = switch {
            *switch = true;
            continue;
        }
        let value = args.next().with_context(|| format!("{flag} needs a value"))?;
        let number = || value.parse().with_context(|| format!("{flag} takes a number"));
        match flag.as_str() {
            "--servers" => flags.servers = Some(value.into()),
            "--minor" => flags.minors.push(value),
            "--faults" => flags.faults = Some(number()?),
            "--fault" => flags.fault.extend(value.split(',').map(str::to_owned)),
            "--seeds" => flags.seeds = Some(number()?),
            "--page" => flags.page = Some(value.into()),
            "--record" => flags.record = Some(value.into()),
            "--play" => flags.play = Some(value.into()),
            "--listen" => flags.listen = Some(value),
            "--for" => flags.seconds = Some(number()?),
            "--case" => flags.cases.push(value),
            "--peer" => flags.peer = Some(value),
            "--kubeconfig" => flags.kubeconfig = Some(value.into()),
            "--command" => flags.command = Some(value),
            "--file" => flags.file = Some(value.into()),
            _ => bail!("there is no flag {flag}"),
        }
    }
    Ok(flags)
}

async fn run() -> Result<()> {
    let flags = flags()?;
    if let Some(peer) = &flags.peer {
        let kubeconfig = flags.kubeconfig.as_deref().context("a peer needs --kubeconfig")?;
        return run_peer(peer, kubeconfig, flags.file.as_deref().context("a peer needs --file")?).await;
    }
    if flags.asks_needs {
        needed_operators(&flags.cases)?.iter().for_each(|name| println!("{name}"));
        return Ok(());
    }
    ensure!(
        flags.page.is_none() || flags.minors.len() == 1,
        "--page takes one --minor: the page is about one"
    );
    let mut stop = StopSignals::listen()?;
    let folder = flags.servers.clone().context("--servers names the folder of the servers")?;
    for minor in &flags.minors {
        let programs = ServerPrograms { folder: folder.clone(), minor: minor.clone() };
        if let Some(data) = &flags.play {
            play_in(data, &flags, programs, &mut stop).await?;
        } else if flags.has_access {
            let prove = async |scratch: &Scratch| access_holds(&programs, scratch).await;
            let report = in_folder(minor, &mut stop, prove).await?;
            println!("{}", serde_json::to_string(&report)?);
        } else if let Some(histories) = &flags.record {
            let record =
                async |scratch: &Scratch| record_histories(&programs, scratch, histories, &flags.cases).await;
            in_folder(minor, &mut stop, record).await?;
        } else if let Some(page) = &flags.page {
            measure_peers(&flags, &programs, page, &mut stop).await?;
        } else {
            for options in trials(&flags, &programs)? {
                promise(&options, &mut stop).await?;
            }
        }
    }
    Ok(())
}

/// The first signal ends the playing and begins the proof. A second one ends everything.
async fn play_in(
    data: &Path,
    flags: &SuiteFlags,
    programs: ServerPrograms,
    stop: &mut StopSignals,
) -> Result<()> {
    let ending = CancellationToken::new();
    let options = PlayOptions {
        programs,
        data: std::path::absolute(data).with_context(|| format!("finding {}", data.display()))?,
        listen: flags.listen.clone().unwrap_or_else(|| LISTEN.to_owned()),
        lasts: flags.seconds.map(Duration::from_secs),
        seed: seed(),
    };
    let scratch = Scratch::new("real-playground")?;
    let _guard = LeftoverGuard::of(&scratch, DATA)?;
    let playing = play(&options, &scratch, &ending);
    tokio::pin!(playing);
    tokio::select! {
        result = &mut playing => return result,
        () = stop.next() => ending.cancel(),
    }
    tokio::select! {
        result = playing => result,
        () = stop.next() => bail!("ended before the journal was compared"),
    }
}

fn options(flags: &SuiteFlags, programs: &ServerPrograms, seed: u64) -> Result<TrialOptions> {
    let others = flags.minors.iter().filter(|minor| **minor != programs.minor);
    Ok(TrialOptions {
        programs: programs.clone(),
        other_minors: others.cloned().collect(),
        seed,
        faults: flags.faults,
        plans: named(&flags.fault)?,
        has_journal_server: flags.has_journal_server,
        ..TrialOptions::default()
    })
}

/// From the seed of this process on.
fn seeds(flags: &SuiteFlags) -> impl Iterator<Item = u64> {
    (0..flags.seeds.unwrap_or(1)).map(|more| seed().wrapping_add(more))
}

/// The runs of a minor: those that once failed, unless certain faults were asked for, and then the new ones.
fn trials(flags: &SuiteFlags, programs: &ServerPrograms) -> Result<Vec<TrialOptions>> {
    let mut trials = Vec::new();
    if flags.fault.is_empty() {
        for known in known_failures()?.into_iter().filter(|known| known.minor == programs.minor) {
            let options = options(flags, programs, known.seed)?;
            let (plans, has_journal_server) = (known.plans, known.has_journal_server);
            trials.push(TrialOptions { plans, has_journal_server, is_known: true, ..options });
        }
    }
    for seed in seeds(flags) {
        trials.push(options(flags, programs, seed)?);
    }
    Ok(trials)
}

/// A run without faults, and then those with them.
async fn measure_peers(
    flags: &SuiteFlags,
    programs: &ServerPrograms,
    page: &Path,
    stop: &mut StopSignals,
) -> Result<()> {
    let command = flags.command.as_deref().context("--page needs --command, which the page shows")?;
    let with_peers = |seed| -> Result<TrialOptions> {
        Ok(TrialOptions { peers: PEERS.iter().collect(), ..options(flags, programs, seed)? })
    };
    let undisturbed = TrialOptions { plans: vec![&NO_FAULT], ..with_peers(seed())? };
    let undisturbed = promise(&undisturbed, stop).await?.context("a run without faults")?;
    let mut disturbed = Vec::new();
    for seed in seeds(flags) {
        disturbed.extend(promise(&with_peers(seed)?, stop).await?);
    }
    let command = format!("KUBEWITNESS_SEED={} {command}", seed());
    write_page(page, &PeerRuns { command, undisturbed, disturbed })
}

/// `None`: it was skipped.
async fn promise(options: &TrialOptions, stop: &mut StopSignals) -> Result<Option<PromiseReport>> {
    let run = async |scratch: &Scratch| survives_faults(options, scratch).await;
    let report = in_folder(&options.programs.minor, stop, run).await?;
    if let Some(report) = &report {
        println!("{}", serde_json::to_string(report)?);
    }
    Ok(report)
}

/// SIGINT and SIGTERM. What comes while nobody waits is not lost.
struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignals {
    fn listen() -> Result<Self> {
        let listen = |kind| signal(kind).context("listening to signals");
        Ok(Self { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Runs in a folder of its own. A signal ends the run as an error does: its processes are killed, its disk is unmounted, and
/// its folder is removed.
async fn in_folder<T>(
    minor: &str,
    stop: &mut StopSignals,
    run: impl AsyncFnOnce(&Scratch) -> Result<T>,
) -> Result<T> {
    let scratch = Scratch::new(&format!("real-{minor}"))?;
    let _guard = LeftoverGuard::of(&scratch, DATA)?;
    tokio::select! {
        result = run(&scratch) => return result,
        () = stop.next() => {}
    }
    // The run is dropped by now. Its processes were killed, and may still write for a moment.
    tokio::time::sleep(KILLED_WITHIN).await;
    bail!("ended by a signal; nothing of the run is left")
}
