//! Clients that hold connections open, send half of a request or do not read what they asked for. None of
//! them keeps the process from ending, and none keeps it from its work.

use std::collections::HashMap;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use kubewitness_harness::{
    ChildProcess, Kubewitness, ProcessEnd, RunOptions, Scratch, Simulator, free_port, http, in_scratch,
    kubewitness_binary, until,
};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpSocket, TcpStream};
use tokio::process::Command;

use crate::support::{AUDIT, create_job, example_copy, plugin_manifest, proofs, simulator, write};

const STARTS_WITHIN: Duration = Duration::from_secs(120);
/// Longer than the longest end that is promised (calls have 20 s, clients 3 s), as slow as a machine may be.
const ENDS_WITHIN: Duration = Duration::from_secs(45);
/// A client that does not read is closed after 30 s.
const STALLS_WITHIN: Duration = Duration::from_secs(120);

const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
const EVENTS: &str = "GET /api/v1/events?after=0 HTTP/1.1\r\nHost: localhost\r\n\r\n";
const HALF_A_HEADER: &str = "GET /healthz HTTP/1.1\r\nHost: loc";
const HALF_A_BODY: &str = "POST /api/v1/deadletters/replay HTTP/1.1\r\nHost: localhost\r\n\
    Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{\"plugin\":";

/// Versions with a long message each: together more than all buffers between two processes hold.
const VERSIONS: usize = 2000;
const MESSAGE: usize = 1000;

struct ClientLab {
    simulator: Simulator,
    options: RunOptions,
    run: Kubewitness,
    health: String,
}

impl ClientLab {
    async fn start(scratch: &Scratch, files: Option<u32>) -> Result<Self> {
        let simulator = simulator(scratch).await?;
        create_job(&simulator, "one").await?;
        let health = format!("127.0.0.1:{}", free_port()?);
        let options = RunOptions {
            args: vec!["--health-listen".to_owned(), health.clone()],
            files,
            ..simulator.run_options(scratch, example_copy(scratch)?)?
        };
        let mut run = Kubewitness::start("run", &options, scratch.path())?;
        run.caught_up(STARTS_WITHIN).await?;
        Ok(Self { simulator, options, run, health })
    }

    /// Gives the job `one` so many versions that the stream of them fits into no buffer.
    async fn tell_a_long_story(&mut self) -> Result<()> {
        let client = http();
        let path = format!("{}{JOBS}/one/status", self.simulator.url());
        let before = self.run.status().await?.journal.states;
        for version in 0..VERSIONS {
            let message = format!("{version} {}", "x".repeat(MESSAGE));
            let condition = json!({"type": "Failed", "status": "True", "reason": "Told", "message": message});
            let request = client.patch(&path).header("Content-Type", "application/merge-patch+json");
            let request = request.body(json!({"status": {"conditions": [condition]}}).to_string());
            let answer = request.bearer_auth(self.simulator.token()).send().await?;
            ensure!(answer.status().is_success(), "the simulator answered {}", answer.text().await?);
        }
        let told = before + VERSIONS as u64;
        self.run.status_when(STARTS_WITHIN, "the story", |status| status.journal.states >= told).await?;
        Ok(())
    }

    async fn check_healthy(&self) -> Result<()> {
        let answer = http().get(format!("http://{}/healthz", self.health)).send().await?;
        ensure!(answer.status() == 200, "/healthz answered {}", answer.status());
        Ok(())
    }

    async fn metric(&self, line: &str) -> Result<u64> {
        let text = http().get(format!("http://{}/metrics", self.health)).send().await?.text().await?;
        let value = text.lines().find_map(|found| found.strip_prefix(line)?.strip_prefix(' '));
        Ok(value.with_context(|| format!("no {line} in {text}"))?.parse()?)
    }
}

async fn says(address: &str, text: &str) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(address).await.with_context(|| format!("connecting to {address}"))?;
    stream.write_all(text.as_bytes()).await?;
    Ok(stream)
}

/// Asks for all that was ever witnessed, and reads none of it.
async fn unread_stream(address: &str) -> Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(4096)?;
    let mut stream = socket.connect(address.parse()?).await?;
    stream.write_all(EVENTS.as_bytes()).await?;
    await_stall(address, 1).await?;
    Ok(stream)
}

/// Waits until the kernel holds what so many clients of this address have not read, and nothing moves.
async fn await_stall(address: &str, clients: usize) -> Result<()> {
    let (_, port) = address.rsplit_once(':').context("a port")?;
    let port = format!(":{:04X}", port.parse::<u16>()?);
    until(STARTS_WITHIN, "clients that do not read", async || {
        let before = unread(&port)?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let still = unread(&port)?.into_iter().filter(|(client, bytes)| before.get(client) == Some(bytes));
        // The server gives the kernel 16 KiB at a time.
        Ok((still.filter(|(_, bytes)| *bytes > 8 * 1024).count() >= clients).then_some(()))
    })
    .await
}

/// By client, what the kernel holds for it.
fn unread(port: &str) -> Result<HashMap<String, u64>> {
    let table = std::fs::read_to_string("/proc/net/tcp").context("the kernel's list of sockets")?;
    let of_line = |line: &str| {
        let mut fields = line.split_whitespace().skip(1);
        let (local, client) = (fields.next()?, fields.next()?);
        let (bytes, _) = fields.nth(1)?.split_once(':')?;
        let bytes = u64::from_str_radix(bytes, 16).ok()?;
        local.ends_with(port).then(|| (client.to_owned(), bytes))
    };
    Ok(table.lines().filter_map(of_line).collect())
}

#[tokio::test]
async fn run_ends_in_time_with_clients_that_do_not_read_or_have_sent_half() {
    in_scratch("clients", async |scratch| {
        let mut lab = ClientLab::start(scratch, None).await?;
        let address = lab.run.address().to_owned();
        let mut watch = Command::new(kubewitness_binary()?);
        watch.args(["get", "jobs", "-w", "-o", "json", "--server", &format!("http://{address}")]);
        // A pager that waits for its reader.
        let mut paused = watch.stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true).spawn()?;
        let mut first = [0; 1];
        paused.stdout.as_mut().context("its output")?.read_exact(&mut first).await?;
        lab.tell_a_long_story().await?;
        let _unread = unread_stream(&address).await?;
        await_stall(&address, 2).await?;
        let mut held = Vec::new();
        for place in [&address, &lab.health] {
            for half in ["", HALF_A_HEADER, HALF_A_BODY] {
                held.push(says(place, half).await?);
            }
        }
        let ended = lab.run.process().terminate(ENDS_WITHIN).await?;
        let said = lab.run.process().stderr();
        ensure!(ended == ProcessEnd::Code(0), "it ended with {ended:?}: {said}");
        ensure!(said.contains("connections that did not end in time are closed"), "{said}");
        drop((held, paused));
        proofs(&lab.options.data).await
    })
    .await;
}

#[tokio::test]
async fn a_removed_journal_ends_run_though_a_client_does_not_read() {
    in_scratch("clients", async |scratch| {
        let mut lab = ClientLab::start(scratch, None).await?;
        lab.tell_a_long_story().await?;
        lab.run.caught_up(STARTS_WITHIN).await?;
        let address = lab.run.address().to_owned();
        let _unread = unread_stream(&address).await?;
        let _half = says(&address, HALF_A_HEADER).await?;
        let journal = lab.options.data.join("journal.db");
        for name in [journal.clone(), journal.with_extension("db-wal"), journal.with_extension("db-shm")] {
            std::fs::remove_file(name)?;
        }
        let gone = until(ENDS_WITHIN, "the end", async || {
            let is_silent = lab.check_healthy().await.is_err();
            Ok((is_silent || lab.run.process().ended()?.is_some()).then_some(()))
        });
        gone.await?;
        // Silent means that it is about to be gone, whatever clients do.
        let ended = lab.run.process().wait(Duration::from_secs(15)).await?;
        let said = lab.run.process().stderr();
        ensure!(ended == ProcessEnd::Code(1), "it ended with {ended:?}: {said}");
        ensure!(said.contains("removed or replaced"), "{said}");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn more_half_open_connections_than_file_handles_leave_everything_working() {
    in_scratch("clients", async |scratch| {
        const FILES: u32 = 400;
        let mut lab = ClientLab::start(scratch, Some(FILES)).await?;
        let address = lab.run.address().to_owned();
        let said = lab.run.process().stderr();
        ensure!(said.contains("the limit of open files is 400"), "the lower cap is told: {said}");
        let mut held = Vec::new();
        for round in 0..3 {
            for count in 0..FILES {
                let half = if count % 2 == 0 { HALF_A_HEADER } else { "" };
                held.push(says(&address, half).await?);
                held.push(says(&lab.health, half).await?);
            }
            lab.check_healthy().await?;
            lab.run.status().await.context("the portal")?;
            create_job(&lab.simulator, &format!("round-{round}")).await?;
        }
        let open = std::fs::read_dir(format!("/proc/{}/fd", lab.run.process().pid()?))?.count();
        ensure!(open < FILES as usize - 64, "{open} files are open: nothing is left for the journal");
        let config = lab.options.config.clone().context("a folder")?;
        write(&config, "trail.yaml", &plugin_manifest("trail", AUDIT))?;
        lab.run
            .status_when(STARTS_WITHIN, "the configuration to be read", |status| {
                status.plugins.iter().any(|plugin| plugin.name == "trail" && plugin.state == "active")
            })
            .await?;
        lab.run.caught_up(STARTS_WITHIN).await?;
        let crowded = r#"kubewitness_http_connections_closed_total{listener="health",reason="crowded"}"#;
        ensure!(lab.metric(crowded).await? > u64::from(FILES), "the health port made room");
        lab.run.stop().await?;
        drop(held);
        proofs(&lab.options.data).await
    })
    .await;
}

#[tokio::test]
async fn a_watch_that_was_paused_until_it_was_closed_goes_on_where_it_was() {
    in_scratch("clients", async |scratch| {
        let mut lab = ClientLab::start(scratch, None).await?;
        let url = format!("http://{}", lab.run.address());
        let mut command = Command::new(kubewitness_binary()?);
        command.args(["get", "jobs", "-w", "-o", "json", "--server", &url]);
        let mut watch = ChildProcess::start("watch", &mut command, scratch.path())?;
        watch.line(0, STARTS_WITHIN, |line| line.contains("one").then_some(())).await?;
        watch.signal("STOP").await?;
        lab.tell_a_long_story().await?;
        let stalled = r#"kubewitness_http_connections_closed_total{listener="portal",reason="stalled"}"#;
        until(STALLS_WITHIN, "it to be closed", async || Ok((lab.metric(stalled).await? > 0).then_some(())))
            .await?;
        create_job(&lab.simulator, "last").await?;
        watch.signal("CONT").await?;
        watch.line(0, STARTS_WITHIN, |line| line.contains("\"last\"").then_some(())).await?;
        let mut told = HashMap::new();
        for text in watch.stdout().split('"') {
            if let Some((version, _)) = text.split_once(" xxx") {
                *told.entry(version.to_owned()).or_insert(0) += 1;
            }
        }
        for version in 0..VERSIONS {
            let times = told.get(&version.to_string());
            ensure!(times == Some(&1), "version {version} is shown {times:?} times");
        }
        lab.run.stop().await
    })
    .await;
}

/// `kubewitness get jobs -w | head -1`: nothing is written after the reader has left.
#[tokio::test]
async fn a_watch_ends_with_its_reader_though_nothing_changes() {
    in_scratch("clients", async |scratch| {
        let mut lab = ClientLab::start(scratch, None).await?;
        let url = format!("http://{}", lab.run.address());
        for output in ["table", "wide", "json"] {
            let mut watch = Command::new(kubewitness_binary()?);
            watch.args(["get", "jobs", "-w", "-o", output, "--server", &url]);
            let mut watch = watch.stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true).spawn()?;
            let mut lines = BufReader::new(watch.stdout.take().context("its output")?).lines();
            lines.next_line().await?.context("a line")?;
            drop(lines);
            let ended = tokio::time::timeout(ENDS_WITHIN, watch.wait()).await;
            let ended = ended.with_context(|| format!("the watch as {output} goes on for nobody"))??;
            ensure!(ended.success(), "it ended with {ended}");
        }
        lab.run.stop().await
    })
    .await;
}

#[tokio::test]
async fn a_second_signal_ends_run_though_nobody_reads_its_log() {
    in_scratch("clients", async |scratch| {
        let simulator = simulator(scratch).await?;
        let options = RunOptions {
            args: vec!["--log".to_owned(), "trace".to_owned()],
            ..simulator.run_options(scratch, example_copy(scratch)?)?
        };
        let address = format!("127.0.0.1:{}", free_port()?);
        let mut command = options.command(&address)?;
        command.env("HOME", scratch.path()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut run = command.spawn()?;
        let mut log = BufReader::new(run.stderr.take().context("its log")?).lines();
        let starts = async {
            while let Some(line) = log.next_line().await? {
                if line.contains("portal and API on") {
                    return Ok(());
                }
            }
            bail!("it ended before it had started")
        };
        tokio::time::timeout(STARTS_WITHIN, starts).await.context("its start")??;
        // From here on nobody reads. What is no request is in this log; soon the pipe is full, and every worker
        // that has something to tell waits.
        until(STARTS_WITHIN, "it to wait for its log's reader", async || {
            if let Some(ended) = run.try_wait()? {
                bail!("it ended with {ended}");
            }
            for _ in 0..200 {
                says(&address, "nonsense\r\n\r\n").await?;
            }
            let mut stream = says(&address, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").await?;
            let mut byte = [0; 1];
            let answered = tokio::time::timeout(Duration::from_secs(5), stream.read(&mut byte)).await;
            Ok(answered.is_err().then_some(()))
        })
        .await?;
        let kill = format!("kill -TERM {}", run.id().context("it runs")?);
        let ended = until(ENDS_WITHIN, "its end", async || {
            if let Some(ended) = run.try_wait()? {
                return Ok(Some(ended));
            }
            // Two that nobody has fetched yet are one: so there are as many as it takes.
            Command::new("sh").args(["-c", &kill]).status().await?;
            Ok(None)
        });
        let ended = ended.await?;
        ensure!(ended.code() == Some(1), "it ended with {ended}");
        Ok(())
    })
    .await;
}
