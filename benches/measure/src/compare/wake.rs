//! Measures round trips between processes that sleep until a message arrives: on a local wire, on a DPDK
//! device, or on a Unix socket. The Unix socket is the baseline.

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

use crate::compare::bare_wire::{self, Device};
use crate::compare::kernel::program::{READY, RoundTrips};

/// Number of bytes of a message.
const MESSAGE: usize = 64;

/// An EtherType for experiments (IEEE 802), and the offset of the byte that marks the last message.
const EXPERIMENT: [u8; 2] = [0x88, 0xb5];
const KIND_AT: usize = 14;
const ANOTHER: u8 = 0;
const LAST: u8 = 1;

/// The stations of both sides.
const PING: u16 = 1;
const PONG: u16 = 2;

/// Pause between messages, in which both processes go to sleep.
const PAUSE: Duration = Duration::from_millis(1);

/// Maximum wait for an answer.
const LIMIT: Duration = Duration::from_secs(10);

/// One side of a pair of processes that sleep. The measuring side prints one line of JSON.
#[derive(Debug, Subcommand)]
pub(crate) enum WakeEnd {
    /// Answers on a local wire until the peer sends the last message.
    LocalPong { folder: PathBuf },
    /// Measures round trips on a local wire.
    LocalPing { folder: PathBuf, count: u64 },
    /// Answers on a DPDK device until the peer sends the last message.
    DevicePong {
        #[command(flatten)]
        device: Device,
    },
    /// Measures round trips on a DPDK device.
    DevicePing {
        #[command(flatten)]
        device: Device,
        count: u64,
    },
    /// Answers on a Unix socket until its peer closes the connection.
    SocketPong { path: PathBuf },
    /// Measures round trips on a Unix socket.
    SocketPing { path: PathBuf, count: u64 },
}

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
        WakeEnd::LocalPong { folder } => pong(&mut open(&folder, PONG)?),
        WakeEnd::LocalPing { folder, count } => {
            let [high, low] = PONG.to_be_bytes();
            ping(&mut open(&folder, PING)?, [2, 0, 100, 64, high, low], count)
        }
        WakeEnd::DevicePong { device } => pong(&mut *bare_wire::open(&device)?),
        WakeEnd::DevicePing { device, count } => ping(&mut *bare_wire::open(&device)?, [0xff; 6], count),
        WakeEnd::SocketPong { path } => socket_pong(&path),
        WakeEnd::SocketPing { path, count } => {
            let mut stream = UnixStream::connect(path)?;
            measure(count, || socket_round_trip(&mut stream))
        }
    }
}

/// Prints the figures of `count` round trips. Before these round trips, `count / 10` further round trips run,
/// which are not counted.
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

// ---- a port ----

fn open(folder: &Path, station: u16) -> Result<LocalPort> {
    let config = LocalConfig { station: Some(station), ..LocalConfig::new(folder.to_owned()) };
    local::open(&config).map_err(|error| lab_error!("{error}"))
}

/// Returns each message to the sender, until a message is marked as the last.
fn pong(port: &mut dyn Port) -> Result<()> {
    println!("{READY}");
    let (clock, own, mut burst) = (Clock::new(), port.info().mac, Burst::new());
    loop {
        if port.rx_burst(clock.now_us(), &mut burst) == 0 {
            sleep(port)?;
            continue;
        }
        // Frames that are not messages are dropped, since Linux also sends its own frames on an interface.
        burst.retain(|frame| is_message(frame));
        if burst.iter().any(|frame| frame.head()[KIND_AT] == LAST) {
            return Ok(());
        }
        for frame in burst.iter_mut() {
            let bytes = frame.head_mut().ok_or_else(|| lab_error!("a frame that is shared"))?;
            bytes.copy_within(6..12, 0);
            bytes[6..12].copy_from_slice(&own);
        }
        while !burst.is_empty() {
            port.tx_burst(clock.now_us(), &mut burst);
        }
    }
}

/// Measures round trips to `peer`.
fn ping(port: &mut dyn Port, peer: [u8; 6], count: u64) -> Result<()> {
    let (clock, begun) = (Clock::new(), Instant::now());
    // Frames are lost until both sides have found their link.
    while !round_trip(port, &clock, peer, Duration::from_millis(20))? {
        if begun.elapsed() > LIMIT {
            return Err(lab_error!("no answer"));
        }
        port.link_state();
    }
    measure(count, || match round_trip(port, &clock, peer, LIMIT)? {
        true => Ok(()),
        false => Err(lab_error!("no answer")),
    })?;
    let last = message(port, peer, LAST)?;
    send(port, &clock, last);
    Ok(())
}

/// Sends a message and waits for the answer. Returns whether the answer arrived in time.
fn round_trip(port: &mut dyn Port, clock: &Clock, peer: [u8; 6], limit: Duration) -> Result<bool> {
    let (mut burst, frame, sent) = (Burst::new(), message(port, peer, ANOTHER)?, Instant::now());
    send(port, clock, frame);
    loop {
        if port.rx_burst(clock.now_us(), &mut burst) == 0 {
            sleep(port)?;
        }
        if burst.drain(..).any(|frame| is_message(&frame)) {
            return Ok(true);
        }
        if sent.elapsed() > limit {
            return Ok(false);
        }
    }
}

fn send(port: &mut dyn Port, clock: &Clock, frame: Mbuf) {
    let mut burst: Burst = [frame].into_iter().collect();
    while !burst.is_empty() {
        port.tx_burst(clock.now_us(), &mut burst);
    }
}

fn message(port: &dyn Port, peer: [u8; 6], kind: u8) -> Result<Mbuf> {
    let mut frame = port.mempool().alloc().ok_or_else(|| lab_error!("no buffer"))?;
    let mut bytes = [0; MESSAGE];
    bytes[..6].copy_from_slice(&peer);
    bytes[6..12].copy_from_slice(&port.info().mac);
    bytes[12..KIND_AT].copy_from_slice(&EXPERIMENT);
    bytes[KIND_AT] = kind;
    if frame.append_slice(&bytes) { Ok(frame) } else { Err(lab_error!("a short buffer")) }
}

fn is_message(frame: &Mbuf) -> bool {
    frame.head().get(12..KIND_AT) == Some(&EXPERIMENT) && frame.head().len() > KIND_AT
}

/// Sleeps until a frame waits, but at most a second.
fn sleep(port: &mut dyn Port) -> Result<()> {
    if port.arm_wakeup() {
        let fd = port.poll_fd().ok_or_else(|| lab_error!("{} has no descriptor", port.info().name))?;
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
