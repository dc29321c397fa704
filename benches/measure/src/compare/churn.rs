//! `measure churn`: sets up and ends connections at a steady rate, between two processes on a local wire.
//! Fails if a connection fails, or if the memory or the descriptors of a process grow.
//!
//! One process connects, and ends each connection when it is established. The other process accepts.

use std::collections::HashMap;
use std::io::{BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use benches::latency::Latencies;
use clap::Parser;
use iwarp::verbs::{CmEvent, CmEventKind, CmId, ConnParam, QueuePair};
use testing::lab::{Result, Scratch};
use testing::{ensure, lab_error};

use super::burst::{LocalHost, Running, STATION, acceptor, hear};
use crate::compare::kernel::program::READY;

/// Time limit for a connection to be set up or ended.
const LIMIT: Duration = Duration::from_secs(10);

/// Number of connections that a listener announces before the program has accepted them.
const BACKLOG: usize = 1024;

/// Time after which memory and descriptors are measured for the first time. TCP keeps an ended connection for
/// ten seconds (TIME-WAIT), so tables have their final size after that.
const WARM_UP: Duration = Duration::from_secs(15);

/// Time between two lines of the output.
const MINUTE: Duration = Duration::from_secs(60);

/// Growth of a process's memory that counts as none: a twentieth, and this number of bytes.
const SLACK_BYTES: u64 = 1 << 20;

/// Growth of the number of descriptors that counts as none.
const SLACK_DESCRIPTORS: u64 = 4;

/// Sets up and ends connections at a steady rate between two processes of this host, and watches their memory
#[derive(Clone, Copy, Debug, Parser)]
#[command(name = "churn", version)]
pub(crate) struct ChurnOptions {
    /// Number of connections that begin each second
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) rate: u32,
    /// Duration in seconds. Growth is measured after the first 15 seconds
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(20..=86_400))]
    pub(crate) seconds: u32,
}

/// The accepting process, which ends when its input ends.
#[derive(Clone, Debug, Parser)]
pub(crate) struct ChurnPeer {
    folder: PathBuf,
}

pub(crate) fn run(options: ChurnOptions) -> ExitCode {
    ended(churn(options))
}

pub(crate) fn run_peer(peer: &ChurnPeer) -> ExitCode {
    ended(accept(&peer.folder))
}

fn ended(result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("measure churn: {error}");
            ExitCode::FAILURE
        }
    }
}

// ---- what a process holds ----

/// The memory and the number of descriptors of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    resident_bytes: u64,
    descriptors: u64,
}

impl Held {
    /// Reads the memory and the descriptors of the process with this ID from `/proc`.
    fn by(process: u32) -> Result<Self> {
        let folder = PathBuf::from(format!("/proc/{process}"));
        let status = std::fs::read_to_string(folder.join("status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        let resident_bytes = kib.ok_or_else(|| lab_error!("no VmRSS in: {status}"))? << 10;
        let descriptors = std::fs::read_dir(folder.join("fd"))?.count() as u64;
        Ok(Self { resident_bytes, descriptors })
    }

    /// # Errors
    /// Fails if a process that held `before` and now holds this has grown.
    fn check_growth(&self, before: &Self, who: &str) -> Result<()> {
        let most = before.resident_bytes + before.resident_bytes / 20 + SLACK_BYTES;
        ensure!(
            self.resident_bytes <= most,
            "the memory of the {who} process has grown from {} to {} KiB",
            before.resident_bytes >> 10,
            self.resident_bytes >> 10
        );
        ensure!(
            self.descriptors <= before.descriptors + SLACK_DESCRIPTORS,
            "the descriptors of the {who} process have grown from {} to {}",
            before.descriptors,
            self.descriptors
        );
        Ok(())
    }
}

// ---- the connecting process ----

/// The connections of the connecting process.
struct Connector {
    host: LocalHost,
    peer: SocketAddr,
    /// The connections that have begun and not ended, and the time at which they began.
    open: HashMap<CmId, (QueuePair, Instant)>,
    established: u64,
    times: Latencies,
}

impl Connector {
    fn begin(&mut self) -> Result<()> {
        let (qp, id) = (self.host.qp()?, self.host.create_id());
        let param = ConnParam { timeout: LIMIT, ..ConnParam::default() };
        id.connect(&qp, self.peer, &param).map_err(|error| lab_error!("connect: {error}"))?;
        self.open.insert(id, (qp, Instant::now()));
        Ok(())
    }

    fn on(&mut self, event: CmEvent) -> Result<()> {
        match event.kind {
            CmEventKind::Established { .. } => {
                let (_, begun) =
                    self.open.get(&event.id).ok_or_else(|| lab_error!("an unknown connection"))?;
                self.times.record(begun.elapsed().as_nanos() as u64);
                self.established += 1;
                event.id.disconnect();
            }
            CmEventKind::Disconnected { error: None, .. } => {
                self.open.remove(&event.id);
            }
            other => return Err(lab_error!("after {} connections: {other:?}", self.established)),
        }
        Ok(())
    }

    /// Handles events until `until`.
    fn serve(&mut self, until: Instant) -> Result<()> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.host.events().wait(left)? {
                Some(event) => self.on(event)?,
                None => return Ok(()),
            }
            if left.is_zero() {
                return Ok(());
            }
        }
    }

    /// Handles events until all connections have ended.
    fn finish(&mut self) -> Result<()> {
        let until = Instant::now() + LIMIT;
        while !self.open.is_empty() {
            ensure!(Instant::now() < until, "{} connections did not end in {LIMIT:?}", self.open.len());
            self.serve(Instant::now() + Duration::from_millis(10))?;
        }
        Ok(())
    }
}

fn churn(options: ChurnOptions) -> Result<()> {
    let scratch = Scratch::new()?;
    let folder = scratch.file("wire");
    let mut command = std::process::Command::new(std::env::current_exe()?);
    command.arg("churn-peer").arg(&folder).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut peer = Running(command.spawn()?);
    let mut said = BufReader::new(peer.0.stdout.take().ok_or_else(|| lab_error!("no output"))?);
    hear(&mut said, READY)?;

    let mut connector = Connector {
        host: LocalHost::new(&folder, None, BACKLOG)?,
        peer: acceptor(),
        open: HashMap::new(),
        established: 0,
        times: Latencies::new(false),
    };
    let begun = Instant::now();
    let mut report_at = begun + WARM_UP;
    let mut first = None;
    let held =
        |peer: &Running| -> Result<[Held; 2]> { Ok([Held::by(std::process::id())?, Held::by(peer.0.id())?]) };
    println!("     s  connections   p50 us   p99 us     KiB of both   descriptors");
    for number in 0..u64::from(options.rate) * u64::from(options.seconds) {
        connector.begin()?;
        connector
            .serve(begun + Duration::from_nanos((number + 1) * 1_000_000_000 / u64::from(options.rate)))?;
        if Instant::now() >= report_at {
            report_at += MINUTE;
            let now = held(&peer)?;
            report(begun, &connector, &now);
            first.get_or_insert(now);
        }
    }
    let took = begun.elapsed();
    connector.finish()?;
    let now = held(&peer)?;
    report(begun, &connector, &now);
    let first = first.unwrap_or(now);
    for (who, before, now) in [("connecting", first[0], now[0]), ("accepting", first[1], now[1])] {
        now.check_growth(&before, who)?;
    }
    drop(peer.0.stdin.take());
    let accepted: u64 = last_number(&mut said)?;
    ensure!(accepted == connector.established, "{accepted} accepted, {} established", connector.established);
    println!(
        "{accepted} connections in {:.1} s: {:.0} a second",
        took.as_secs_f64(),
        accepted as f64 / took.as_secs_f64()
    );
    Ok(())
}

/// Prints the state of a run that began at `begun`.
fn report(begun: Instant, connector: &Connector, held: &[Held; 2]) {
    let [median, p99] = connector.times.median_and_p99_us();
    let [ours, theirs] = held;
    println!(
        "{:>6} {:>12} {median:>8.0} {p99:>8.0} {:>7} {:>7} {:>7} {:>5}",
        begun.elapsed().as_secs(),
        connector.established,
        ours.resident_bytes >> 10,
        theirs.resident_bytes >> 10,
        ours.descriptors,
        theirs.descriptors
    );
}

// ---- the accepting process ----

fn accept(folder: &Path) -> Result<()> {
    let host = LocalHost::new(folder, Some(STATION), BACKLOG)?;
    let _listener = host.listen(BACKLOG)?;
    println!("{READY}");
    let is_over = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&is_over);
    std::thread::spawn(move || {
        // An error also means that the other process is gone.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        ends.store(true, Ordering::Release);
    });
    let (mut open, mut accepted) = (HashMap::new(), 0_u64);
    let mut over_at: Option<Instant> = None;
    loop {
        if is_over.load(Ordering::Acquire) {
            let since = over_at.get_or_insert_with(Instant::now);
            if open.is_empty() {
                println!("{accepted}");
                return Ok(());
            }
            ensure!(since.elapsed() < LIMIT, "{} connections did not end in {LIMIT:?}", open.len());
        }
        let Some(event) = host.events().wait(Duration::from_millis(100))? else { continue };
        match event.kind {
            CmEventKind::ConnectRequest { .. } => {
                let qp = host.qp()?;
                let accepted = event.id.accept(&qp, &ConnParam::default());
                accepted.map_err(|error| lab_error!("accept: {error}"))?;
                open.insert(event.id, qp);
            }
            CmEventKind::Established { .. } => accepted += 1,
            CmEventKind::Disconnected { error: None, .. } => {
                open.remove(&event.id);
            }
            other => return Err(lab_error!("after {accepted} connections: {other:?}")),
        }
    }
}

/// Reads a line with a number.
fn last_number(output: &mut impl std::io::BufRead) -> Result<u64> {
    let mut line = String::new();
    output.read_line(&mut line)?;
    line.trim().parse().map_err(|_| lab_error!("{:?} instead of a number", line.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(kib: u64, descriptors: u64) -> Held {
        Held { resident_bytes: kib << 10, descriptors }
    }

    #[test]
    fn a_process_that_grows_is_reported() {
        let before = held(20_000, 30);
        // A twentieth and a mebibyte are allowed.
        for (now, grows) in [
            (held(20_000, 30), false),
            (held(22_024, 34), false),
            (held(22_025, 30), true),
            (held(1000, 35), true),
        ] {
            assert_eq!(now.check_growth(&before, "accepting").is_err(), grows, "{now:?}");
        }
        let said = held(40_000, 30).check_growth(&before, "accepting").unwrap_err().to_string();
        assert!(said.contains("the accepting process has grown from 20000 to 40000 KiB"), "{said}");
    }

    #[test]
    fn this_process_holds_memory_and_descriptors() {
        let before = Held::by(std::process::id()).unwrap();
        assert!(before.resident_bytes > 100 << 10 && before.descriptors >= 3, "{before:?}");
        let _file = std::fs::File::open("/proc/self/status").unwrap();
        assert!(Held::by(std::process::id()).unwrap().descriptors > before.descriptors);
        assert!(Held::by(u32::MAX).is_err());
    }
}
