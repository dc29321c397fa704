//! Processes that sleep until something arrives: on a local wire, and on a Unix socket, which is the least
//! that the kernel takes to wake another process.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use benches::latency::Latencies;
use clap::Subcommand;
use dp::local::{self, LocalConfig, LocalPort};
use dp::{Burst, Clock, Mbuf, Port};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use testing::lab::Result;
use testing::lab_error;

use crate::compare::kernel::program::{READY, RoundTrips};

/// Bytes of a message.
const MESSAGE: usize = 64;

/// The stations of both ends.
const PING: u16 = 1;
const PONG: u16 = 2;

/// Both processes have gone to sleep when the next message is sent.
const PAUSE: Duration = Duration::from_millis(1);

/// How long an answer may take.
const LIMIT: Duration = Duration::from_secs(10);

/// One end of a pair of processes that sleep. The one that measures prints one line of JSON.
#[derive(Debug, Subcommand)]
pub(crate) enum WakeEnd {
    /// Answers on a local wire until its peer has gone.
    LocalPong { folder: PathBuf },
    /// Measures round trips there.
    LocalPing { folder: PathBuf, count: u64 },
    /// Answers on a Unix socket until its peer closes.
    SocketPong { path: PathBuf },
    /// Measures round trips there.
    SocketPing { path: PathBuf, count: u64 },
}

/// Runs one end.
pub(crate) fn run(end: WakeEnd) -> ExitCode {
    match work(end) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("measure wake: {error}");
            ExitCode::FAILURE
        }
    }
}

fn work(end: WakeEnd) -> Result<()> {
    match end {
        WakeEnd::LocalPong { folder } => local_pong(&mut open(&folder, PONG)?),
        WakeEnd::LocalPing { folder, count } => {
            let (mut port, clock) = (open(&folder, PING)?, Clock::new());
            measure(count, || local_round_trip(&mut port, &clock))
        }
        WakeEnd::SocketPong { path } => socket_pong(&path),
        WakeEnd::SocketPing { path, count } => {
            let mut stream = UnixStream::connect(path)?;
            measure(count, || socket_round_trip(&mut stream))
        }
    }
}

/// Prints the figures of `count` round trips, after a few that do not count.
fn measure(count: u64, mut round_trip: impl FnMut() -> Result<()>) -> Result<()> {
    let mut latencies = Latencies::new(false);
    for number in 0..count + count / 10 {
        std::thread::sleep(PAUSE);
        let sent = Instant::now();
        round_trip()?;
        if number >= count / 10 {
            latencies.record(sent.elapsed().as_nanos() as u64);
        }
    }
    let figures = RoundTrips::of(&latencies, count);
    println!("{}", serde_json::to_string(&figures).map_err(|error| lab_error!("{error}"))?);
    Ok(())
}

// ---- a local wire ----

fn open(folder: &Path, station: u16) -> Result<LocalPort> {
    let config = LocalConfig { station: Some(station), ..LocalConfig::new(folder.to_owned()) };
    let port = local::open(&config).map_err(|error| lab_error!("{error}"))?;
    println!("{READY}");
    Ok(port)
}

fn local_pong(port: &mut LocalPort) -> Result<()> {
    let (clock, mut burst) = (Clock::new(), Burst::new());
    while port.next_departed().is_none() {
        if port.rx_burst(clock.now_us(), &mut burst) == 0 {
            sleep(port)?;
            continue;
        }
        for frame in burst.iter_mut() {
            let bytes = frame.head_mut().ok_or_else(|| lab_error!("a frame without bytes"))?;
            let (to, from) = bytes[..12].split_at_mut(6);
            to.swap_with_slice(from);
        }
        while !burst.is_empty() {
            port.tx_burst(clock.now_us(), &mut burst);
        }
    }
    Ok(())
}

fn local_round_trip(port: &mut LocalPort, clock: &Clock) -> Result<()> {
    let (mut burst, sent): (Burst, _) = ([message(port)?].into_iter().collect(), Instant::now());
    while !burst.is_empty() {
        port.tx_burst(clock.now_us(), &mut burst);
    }
    while port.rx_burst(clock.now_us(), &mut burst) == 0 {
        if sent.elapsed() > LIMIT {
            return Err(lab_error!("no answer"));
        }
        sleep(port)?;
    }
    Ok(())
}

fn message(port: &LocalPort) -> Result<Mbuf> {
    let mut frame = port.mempool().alloc().ok_or_else(|| lab_error!("no buffer"))?;
    let mut bytes = [0; MESSAGE];
    let [high, low] = PONG.to_be_bytes();
    bytes[..6].copy_from_slice(&[2, 0, 100, 64, high, low]);
    bytes[6..12].copy_from_slice(&port.info().mac);
    if frame.append_slice(&bytes) { Ok(frame) } else { Err(lab_error!("a short buffer")) }
}

/// Sleeps until a frame waits, at most a second.
fn sleep(port: &mut LocalPort) -> Result<()> {
    if port.arm_wakeup()
        && let Some(fd) = port.poll_fd()
    {
        let limit = Timespec { tv_sec: 1, tv_nsec: 0 };
        match poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(lab_error!("poll: {error}")),
        }
    }
    port.disarm_wakeup();
    Ok(())
}

// ---- a Unix socket ----

fn socket_pong(path: &Path) -> Result<()> {
    let listener = UnixListener::bind(path)?;
    println!("{READY}");
    let (mut stream, _) = listener.accept()?;
    let mut bytes = [0; MESSAGE];
    loop {
        match stream.read_exact(&mut bytes) {
            Ok(()) => stream.write_all(&bytes)?,
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

fn socket_round_trip(stream: &mut UnixStream) -> Result<()> {
    let mut bytes = [0; MESSAGE];
    stream.write_all(&bytes)?;
    Ok(stream.read_exact(&mut bytes)?)
}
