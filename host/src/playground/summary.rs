//! Shows progress: a live summary on a terminal, plain lines elsewhere.

use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Result;
use kubewitness_core::views::{StatusView, Views};
use tracing::warn;

use super::PlaygroundWorld;
use super::completeness::CompletenessCheck;
use super::folder::PUBLIC_KEY;
use super::people::PlaygroundPerson;
use crate::cli::PlaygroundArgs;
use crate::commands::{plugins_table, plural, print};

const LIVE: Duration = Duration::from_millis(500);
const PLAIN: Duration = Duration::from_secs(5);

pub fn print_greeting(args: &PlaygroundArgs, address: SocketAddr, people: &[PlaygroundPerson]) {
    let (data, program) = (args.data.display(), program_words());
    let server = if address.port() == 8787 { String::new() } else { format!(" --server http://{address}") };
    print_line(&format!(
        "\
Kubewitness playground: a simulated cluster, training jobs, three plugins. Nothing leaves this machine.

  open   http://{address}                         the portal: jobs, timelines, plugins
  try    {program} jobs{server}
         {program} get pods -n team-vision -w{server}
         {program} jobs --cause out-of-memory{server}
         {program} why job/NAME -n NAMESPACE{server}
         {program} timeline job/NAME -n NAMESPACE{server}
         {program} gaps{server}
         {program} status{server}
         kubectl --kubeconfig {data}/kubeconfig get jobs -A -w
         sqlite3 {data}/platform.db 'select phase, count(*) from object_status group by phase'
         tail -f {data}/notifications.jsonl
  edit   {data}/config/*.yaml                     plugins come, change and go while it runs
  log    {data}/kubewitness.log

{}Ctrl-C ends it and proves that nothing was lost.
",
        signing_in(people, address)
    ));
}

/// A command takes a token from the variable KUBEWITNESS_TOKEN, and sends it to a server that is named; the page asks for
/// a token.
fn signing_in(people: &[PlaygroundPerson], address: SocketAddr) -> String {
    let mut text = format!("  export KUBEWITNESS_SERVER=http://{address}\n");
    for PlaygroundPerson { name, sees, token } in people {
        text.push_str(&format!("  {name:<6} export KUBEWITNESS_TOKEN={token}   sees {sees}\n"));
    }
    if people.is_empty() { String::new() } else { format!("Sign in as one of these:\n\n{text}\n") }
}

/// One message with its newline. The playground continues when its reader has left.
fn print_line(message: &str) {
    if let Err(error) = print::text(&format!("{message}\n")) {
        warn!("standard output can't be written: {error:#}");
    }
}

/// Returns the words that a person types to start this program again from their working directory.
fn program_words() -> String {
    let named = std::env::args().next().unwrap_or_default();
    if !named.contains('/') {
        return "kubewitness".into();
    }
    let here = std::env::current_dir().unwrap_or_default();
    Path::new(&named).strip_prefix(here).map_or(named.clone(), |short| short.display().to_string())
}

/// Shows figures until it is dropped.
pub async fn show_figures(world: &PlaygroundWorld, views: &dyn Views) -> Result<()> {
    let live = io::stdout().is_terminal();
    let started = Instant::now();
    let mut drawn = 0;
    let mut interval = tokio::time::interval(if live { LIVE } else { PLAIN });
    loop {
        interval.tick().await;
        let status = views.status_view().await?;
        if live {
            let text = panel(world, &status, started.elapsed());
            redraw_text(drawn, &text)?;
            drawn = text.lines().count();
        } else {
            print_line(&line(world, &status, started.elapsed()));
        }
    }
}

/// Overwrites the previous text line by line, so that nothing flickers.
fn redraw_text(drawn: usize, text: &str) -> Result<()> {
    let mut frame = String::new();
    if drawn > 0 {
        frame.push_str(&format!("\x1b[{drawn}A"));
    }
    for line in text.lines() {
        frame.push_str(&format!("{line}\x1b[K\n"));
    }
    frame.push_str("\x1b[J");
    print::print_unfiltered(&frame)
}

fn cluster(world: &PlaygroundWorld) -> String {
    let load = |figure: &std::sync::atomic::AtomicU64| figure.load(Ordering::Relaxed);
    let work = &world.workload;
    format!(
        "{} {} submitted, {} running, {} finished, {} deleted; {} writes",
        load(&work.submitted),
        plural(load(&work.submitted), "job", "jobs"),
        load(&work.running),
        load(&work.finished),
        load(&work.deleted),
        load(&work.writes)
    )
}

fn panel(world: &PlaygroundWorld, status: &StatusView, elapsed: Duration) -> String {
    format!(
        "{:>4} s  cluster  {}\n        journal  {} states, {} KiB; {} notifications received\n\n{}",
        elapsed.as_secs(),
        cluster(world),
        status.journal.states,
        status.journal.bytes / 1024,
        world.receiver.received.load(Ordering::Relaxed),
        plugins_table(&status.plugins)
    )
}

fn line(world: &PlaygroundWorld, status: &StatusView, elapsed: Duration) -> String {
    let plugins: Vec<_> = status
        .plugins
        .iter()
        .map(|plugin| format!("{} {}/{}", plugin.name, plugin.delivered + plugin.filtered, plugin.observed))
        .collect();
    format!(
        "{} s: {}; journal {} states; {}",
        elapsed.as_secs(),
        cluster(world),
        status.journal.states,
        plugins.join(", ")
    )
}

pub fn print_farewell(completeness: &CompletenessCheck, data: &Path) {
    print_line(&format!(
        "\nThe cluster had {} versions of Jobs, Pods and Events (deletions counted); the journal has {} of them.\n\n{}\n\
         {} notifications were received.",
        completeness.existed,
        completeness.witnessed,
        plugins_table(&completeness.plugins),
        completeness.notifications
    ));
    if completeness.is_complete() {
        print_line("Complete: every version was witnessed, and every plugin was handed each of its states.");
    } else if let Some(plugin) = completeness.stopped_plugins().next() {
        let name = &plugin.name;
        print_line(&match plugin.paused {
            Some(_) => format!("NOT complete: {name} is paused, so it was not handed what came since."),
            None => {
                format!("NOT complete: {name} does not run. {}/kubewitness.log says why.", data.display())
            }
        });
    } else if let Some(plugin) = completeness.plugins.iter().find(|plugin| plugin.dead > 0) {
        let (name, dead) = (&plugin.name, plugin.dead);
        print_line(&format!("NOT complete: {name} has dead letters that were not delivered: {dead}."));
    } else {
        print_line(&format!(
            "NOT complete: the figures above show what is missing; {}/kubewitness.log says why.",
            data.display()
        ));
    }
    print_line(&format!(
        "\nProve it again: {program} journal verify --data {data}\n                {program} audit verify {data}/audit/trail.jsonl --key {data}/{PUBLIC_KEY}",
        program = program_words(),
        data = data.display()
    ));
}
