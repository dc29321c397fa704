//! Many connections at the same moment: 10,000 connections from one process to another, or one connection
//! from each of 1,000 processes. The baseline is the kernel's TCP over loopback with the same processes. Each
//! process of the baseline connects one socket after another.
//!
//! The measured time begins when all connections may begin, and ends when all connecting processes have
//! reported that their connections are established.

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::Subcommand;
use dp::local::{self, LocalConfig};
use iwarp::engine::{Engine, EngineConfig, EngineThread, ThreadOptions};
use iwarp::verbs::{
    CmEventKind, CmId, CompletionQueue, ConnParam, Context, ContextConfig, ContextLimits, EventChannel,
    ListenOptions, ProtectionDomain, QpInit, QueuePair,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tcp_lite::AddressProbing;
use testing::lab::{Result, Scratch};
use testing::lab_error;

use crate::compare::kernel::program::READY;
use crate::compare::sample::Pair;
use crate::compare::session::{Session, Tally};

/// The station and the port of the accepting process.
pub(super) const STATION: u16 = 1;
const PORT: u16 = 7174;

/// Time limit for a process to make its connections.
const LIMIT: Duration = Duration::from_secs(120);

/// Maximum number of connections that wait to be accepted, and of events.
const MANY: usize = 16_384;

/// Maximum number of bytes of memory of one of the thousand processes. The machine must have this much memory
/// available for each process.
const PROCESS_BYTES: u64 = 12 << 20;

/// The line that a process prints when all its connections are established.
const DONE: &str = "done";

/// The rows: the name, the number of connections, and the number of processes that make the connections.
const ROWS: [(&str, usize, usize); 2] = [("connect_10k", 10_000, 1), ("processes_1k", 1000, 1000)];

/// One side of many connections that begin at once.
#[derive(Debug, Subcommand)]
pub(crate) enum BurstEnd {
    /// Accepts `count` connections until the input of the process ends. `place` is the folder of a local
    /// wire, or `kernel`.
    Accept { place: PathBuf, count: usize },
    /// Makes `count` connections when the input of the process ends.
    Connect { place: PathBuf, count: usize },
}

pub(crate) fn measure(session: &Session, tally: &mut Tally) {
    for (id, connections, processes) in ROWS {
        if !session.options.wants(id) {
            continue;
        }
        // A quick run has a tenth of the connections, and a tenth of the processes (at least one).
        let part = if session.options.quick { 10 } else { 1 };
        for _ in 0..session.pace.pairs {
            tally.add(id, "both", pair(connections / part, processes.div_ceil(part)));
        }
    }
}

fn pair(connections: usize, processes: usize) -> Result<Pair> {
    let ours = over_local(connections, processes)?;
    Ok(Pair::new(ours, seconds(Path::new("kernel"), connections, processes)?))
}

fn over_local(connections: usize, processes: usize) -> Result<f64> {
    let scratch = Scratch::new()?;
    seconds(&scratch.file("wire"), connections, processes)
}

/// Seconds from the moment when all processes may begin until all connections are established.
fn seconds(place: &Path, connections: usize, processes: usize) -> Result<f64> {
    room_for(connections, processes)?;
    let mut accept = end("accept", place, connections)?;
    let mut accept = Running(accept.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?);
    let mut said = BufReader::new(accept.0.stdout.take().ok_or_else(|| lab_error!("no output"))?);
    hear(&mut said, READY)?;
    // One pipe starts all processes, and one pipe collects the reports of all processes. Two descriptors per
    // process would be too many.
    let (input, go) = std::io::pipe()?;
    let (output, says) = std::io::pipe()?;
    let mut connect = Vec::new();
    for _ in 0..processes {
        let mut command = end("connect", place, connections / processes)?;
        command.stdin(input.try_clone()?).stdout(says.try_clone()?);
        connect.push(Running(command.spawn()?));
    }
    drop((input, says));
    let mut output = BufReader::new(output);
    (0..processes).try_for_each(|_| hear(&mut output, READY))?;
    let begun = Instant::now();
    drop(go);
    (0..processes).try_for_each(|_| hear(&mut output, DONE))?;
    let took = begun.elapsed().as_secs_f64();
    hear(&mut said, DONE)?;
    Ok(took)
}

/// A process that is killed when this value is dropped.
pub(super) struct Running(pub(super) Child);

impl Drop for Running {
    fn drop(&mut self) {
        // An error is ignored, since the process may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn end(what: &str, place: &Path, count: usize) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["burst", what]).arg(place).arg(count.to_string());
    Ok(command)
}

/// Reads a line, which must be `word`. Fails if another line is read, or if the output ends, for instance
/// because the process has failed or has reached its own time limit.
pub(super) fn hear(output: &mut impl BufRead, word: &str) -> Result<()> {
    let mut line = String::new();
    output.read_line(&mut line)?;
    if line.trim() == word { Ok(()) } else { Err(lab_error!("{:?} instead of {word}", line.trim())) }
}

/// Raises the limit of open files of this process and its children to the maximum. Fails if the maximum, or
/// the memory of the machine, is too small.
fn room_for(connections: usize, processes: usize) -> Result<()> {
    let files = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: files.maximum, maximum: files.maximum })
        .map_err(std::io::Error::from)?;
    let wanted = connections as u64 + 100;
    if files.maximum.is_some_and(|most| most < wanted) {
        return Err(lab_error!("fewer than {wanted} open files are allowed: raise the limit (ulimit -Hn)"));
    }
    let wanted = processes as u64 * PROCESS_BYTES;
    let available = available_bytes().unwrap_or(u64::MAX);
    if available < wanted {
        return Err(lab_error!(
            "{} MiB of memory are available, and {} needed",
            available >> 20,
            wanted >> 20
        ));
    }
    Ok(())
}

/// Returns the number of bytes of memory that are available to programs, or `None` if the system does not
/// report the number.
fn available_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}

pub(crate) fn run(end: BurstEnd) -> ExitCode {
    let kernel = Path::new("kernel");
    let done = match end {
        BurstEnd::Accept { place, count } if place == kernel => kernel_accept(count),
        BurstEnd::Connect { place, count } if place == kernel => kernel_connect(count),
        BurstEnd::Accept { place, count } => accept(&place, count),
        BurstEnd::Connect { place, count } => connect(&place, count),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("measure burst: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints `word`, and waits until the input ends.
fn await_go(word: &str) -> Result<()> {
    println!("{word}");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

// ---- a local wire ----

/// The address at which the accepting process listens.
pub(super) fn acceptor() -> SocketAddr {
    let [high, low] = STATION.to_be_bytes();
    SocketAddr::from(([100, 64, high, low], PORT))
}

/// The engine of a process, which runs in a thread, and the objects of the engine.
pub(super) struct LocalHost {
    context: Context,
    _engine: EngineThread,
    events: EventChannel,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    qps: Vec<(QueuePair, CmId)>,
}

impl LocalHost {
    pub(super) fn new(folder: &Path, station: Option<u16>, count: usize) -> Result<Self> {
        let failed = |error: &dyn std::fmt::Display| lab_error!("{error}");
        // Processes with one connection have small pools of buffers, so that a thousand processes fit into
        // memory.
        let buffers = if count > 1 { (4096, 256) } else { (256, 8) };
        let usual = LocalConfig::new(folder.to_owned());
        let config = LocalConfig { station, mbufs: buffers.0, bulk_mbufs: buffers.1, ..usual };
        let port = Box::new(local::open(&config).map_err(|error| failed(&error))?);
        let limits = ContextLimits { max_cm_events: MANY, ..ContextLimits::default() };
        let context = Context::new(ContextConfig { limits, ..ContextConfig::default() })
            .map_err(|error| failed(&error))?;
        let [high, low] = port.station().to_be_bytes();
        let mut config = EngineConfig::new(&*port, &[&format!("100.64.{high}.{low}/10")])
            .map_err(|error| failed(&error))?;
        config.stack.derived_neighbors = Some([2, 0]);
        config.stack.address_probing = AddressProbing::Off;
        // The kernel's listener in the baseline has the same backlog.
        config.stack.limits.backlog = MANY;
        let engine = Engine::new(&context, port, config).map_err(|error| failed(&error))?;
        Ok(Self {
            _engine: engine.spawn(ThreadOptions::default())?,
            events: context.create_event_channel().map_err(|error| failed(&error))?,
            pd: context.alloc_pd().map_err(|error| failed(&error))?,
            cq: context.create_cq(64, None).map_err(|error| failed(&error))?,
            qps: Vec::new(),
            context,
        })
    }

    pub(super) fn create_id(&self) -> CmId {
        self.context.create_id(&self.events)
    }

    /// Listens at the port of the accepting process. `backlog` requests may wait to be accepted.
    pub(super) fn listen(&self, backlog: usize) -> Result<CmId> {
        let listener = self.create_id();
        let options = ListenOptions { backlog, failures_per_address: None, ..ListenOptions::new(PORT) };
        listener.listen_with(&options).map_err(|error| lab_error!("listen: {error}"))?;
        Ok(listener)
    }

    pub(super) fn events(&self) -> &EventChannel {
        &self.events
    }

    pub(super) fn qp(&self) -> Result<QueuePair> {
        let qp = QpInit { max_send_wr: 1, max_recv_wr: 1, ..QpInit::new(&self.cq) };
        self.pd.create_qp(&qp).map_err(|error| lab_error!("{error}"))
    }

    /// Accepts requests, and waits until `count` connections are established.
    fn await_established(&mut self, count: usize) -> Result<()> {
        let mut established = 0;
        while established < count {
            let event =
                self.events.wait(LIMIT)?.ok_or_else(|| lab_error!("{established} of {count} in time"))?;
            match event.kind {
                CmEventKind::ConnectRequest { .. } => {
                    let qp = self.qp()?;
                    let accepted = event.id.accept(&qp, &ConnParam::default());
                    accepted.map_err(|error| lab_error!("accept: {error}"))?;
                    self.qps.push((qp, event.id));
                }
                CmEventKind::Established { .. } => established += 1,
                other => return Err(lab_error!("{established} of {count}, then {other:?}")),
            }
        }
        Ok(())
    }
}

fn accept(folder: &Path, count: usize) -> Result<()> {
    let mut host = LocalHost::new(folder, Some(STATION), MANY)?;
    let _listener = host.listen(MANY)?;
    println!("{READY}");
    host.await_established(count)?;
    await_go(DONE)
}

fn connect(folder: &Path, count: usize) -> Result<()> {
    let mut host = LocalHost::new(folder, None, count)?;
    for _ in 0..count {
        let (qp, id) = (host.qp()?, host.create_id());
        host.qps.push((qp, id));
    }
    await_go(READY)?;
    let peer = acceptor();
    let param = ConnParam { timeout: LIMIT, ..ConnParam::default() };
    for (qp, id) in &host.qps {
        id.connect(qp, peer, &param).map_err(|error| lab_error!("connect: {error}"))?;
    }
    host.await_established(count)?;
    println!("{DONE}");
    // This process keeps its connections open, since the accepting process waits for all connections. The
    // measuring process kills this process afterwards.
    std::thread::sleep(LIMIT);
    Ok(())
}

// ---- the kernel's TCP ----

fn kernel_accept(count: usize) -> Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", PORT))?;
    // The standard library listens with a short queue, so the queue is made longer here.
    rustix::net::listen(&listener, MANY as i32).map_err(std::io::Error::from)?;
    println!("{READY}");
    let sockets = (0..count).map(|_| listener.accept()).collect::<std::io::Result<Vec<_>>>()?;
    await_go(DONE)?;
    drop(sockets);
    Ok(())
}

fn kernel_connect(count: usize) -> Result<()> {
    await_go(READY)?;
    let connect = |_| TcpStream::connect(("127.0.0.1", PORT));
    let sockets = (0..count).map(connect).collect::<std::io::Result<Vec<_>>>()?;
    println!("{DONE}");
    drop(sockets);
    Ok(())
}
