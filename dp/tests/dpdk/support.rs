//! Code that the tests with DPDK share, for example to start EAL without privileges, to start a second
//! process, and to make frames.
//!
//! The second process is the test program itself, started with the name of one ignored test.
#![allow(dead_code)]

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dp::dpdk::{self, DeviceConfig, PortSpec};
use dp::eal::{Eal, EalConfig};
use dp::{Burst, Checksum, ExtBuf, LinkState, Mbuf, Mempool, Port, TxOffload};
use testkit::folder::Folder;

/// The environment variable with the argument of the second process, usually the path of the socket between
/// the two processes.
const ARGUMENT: &str = "DP_TEST_ARGUMENT";

/// Maximum time for each step, even while other programs use the processors.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Starts EAL with a configuration that needs no privileges.
pub(crate) fn eal() -> Eal {
    Eal::start(&EalConfig::ordinary(256)).expect("EAL starts without privileges")
}

/// Opens a virtual device, and returns its only port.
pub(crate) fn open(vdev: &str, config: &DeviceConfig) -> Box<dyn Port> {
    let mut ports = dpdk::open(eal(), &PortSpec::Vdev(vdev.to_owned()), config).unwrap();
    assert_eq!(ports.len(), 1);
    ports.remove(0)
}

/// The folder of the socket between two processes.
pub(crate) struct Scratch(Folder);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        Self(Folder::new(&format!("dp-{name}")))
    }

    pub(crate) fn socket(&self) -> String {
        self.0.join("wire.sock").display().to_string()
    }
}

/// The second process. The process is killed when this value is dropped.
pub(crate) struct Peer(Child);

impl Peer {
    /// Runs the ignored test `name` of this program in a second process.
    pub(crate) fn start(name: &str, argument: &str) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", name, "--nocapture"])
            .env(ARGUMENT, argument)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }

    /// Stops the process by SIGSTOP, which closes no descriptor. Returns when all its threads have stopped.
    pub(crate) fn stop(&self) {
        use rustix::process::{Pid, WaitOptions, waitpid};
        self.signal(rustix::process::Signal::STOP);
        let changed = waitpid(Some(Pid::from_child(&self.0)), WaitOptions::UNTRACED).unwrap();
        assert!(changed.is_some_and(|(_, status)| status.stopped()));
    }

    pub(crate) fn go_on(&self) {
        self.signal(rustix::process::Signal::CONT);
    }

    fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.0), signal).unwrap();
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Kills the process by SIGKILL, so that it cannot clean up.
    pub(crate) fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the argument of this process, if the first process has started it. Returns `None` if a user runs
/// the ignored tests.
pub(crate) fn argument_of_first_process() -> Option<String> {
    std::env::var(ARGUMENT).ok()
}

/// Calls `step` until it returns `true`.
///
/// # Panics
/// If `step` does not return `true` within [`PATIENCE`].
pub(crate) fn until(what: &str, mut step: impl FnMut() -> bool) {
    let start = Instant::now();
    while !step() {
        assert!(start.elapsed() < PATIENCE, "waited too long: {what}");
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// Whether a process listens on the Unix socket at `path`. The socket's file exists before the process
/// listens.
pub(crate) fn has_listener(path: &str) -> bool {
    // A line has the columns Num, RefCount, Protocol, Flags, Type, St, Inode and Path. The flag is that of a
    // listening socket (`__SO_ACCEPTCON`).
    std::fs::read_to_string("/proc/net/unix").unwrap().lines().any(|line| {
        let mut columns = line.split_whitespace();
        columns.nth(3) == Some("00010000") && columns.nth(3) == Some(path)
    })
}

pub(crate) fn wait_for_link(port: &mut dyn Port, state: LinkState) {
    until(&format!("link {state:?}"), || port.link_state() == state);
}

/// Sends a frame to an echoing peer and waits until the frame is returned. If a frame is lost, sends another
/// frame: a virtio-user device takes the link down again while it is configured, and a killed peer leaves
/// frames in its ring. The wait ends only when the last frame, which has its own length, is returned. So no
/// frame is in flight afterwards.
pub(crate) fn round_trip(port: &mut dyn Port, number: u32) {
    let mut frames = Burst::new();
    let mut received = Burst::new();
    let mut sent = Vec::new();
    let mut lengths = 600..1400;
    let mut again_at = Instant::now();
    let mut patience = Duration::from_millis(10);
    until("a frame comes back", || {
        if frames.is_empty() && Instant::now() >= again_at {
            sent = pattern(number, lengths.next().expect("few frames are lost"));
            frames.push(build(port.mempool(), &sent, 1));
            // A busy machine may take longer, so the next wait is twice as long.
            patience *= 2;
            again_at = Instant::now() + patience;
        }
        port.tx_burst(0, &mut frames);
        received.clear();
        port.rx_burst(0, &mut received);
        received.iter().any(|frame| flat(frame) == sent)
    });
}

/// Returns the bytes of test frame `number`: an Ethernet header with an experimental type, and a pattern.
pub(crate) fn pattern(number: u32, bytes: usize) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
    frame.extend(number.to_be_bytes());
    frame.extend((frame.len()..bytes).map(|at| (at as u32).wrapping_mul(31).wrapping_add(number) as u8));
    frame
}

/// Makes a frame with `bytes` in `segments` buffers.
pub(crate) fn build(pool: &Mempool, bytes: &[u8], segments: usize) -> Mbuf {
    let mut pieces = bytes.chunks(bytes.len().div_ceil(segments));
    let mut piece = || {
        pieces.next().map(|piece| {
            let mut mbuf = pool.alloc().expect("a buffer");
            assert!(mbuf.append_slice(piece));
            mbuf
        })
    };
    let mut frame = piece().expect("a frame has bytes");
    while let Some(next) = piece() {
        frame.chain(next).unwrap();
    }
    frame
}

pub(crate) fn flat(mbuf: &Mbuf) -> Vec<u8> {
    mbuf.segments().flatten().copied().collect()
}

/// The checksum offload for [`tcp_frame`].
pub(crate) const TCP_OFFLOAD: TxOffload = TxOffload {
    ipv4_checksum: false,
    tcp_checksum: true,
    ipv6: false,
    tso_segment_bytes: 0,
    l2_bytes: 14,
    l3_bytes: 20,
    l4_bytes: 20,
};

/// Offset of the TCP checksum in [`tcp_frame`].
pub(crate) const TCP_CHECKSUM: std::ops::Range<usize> = 50..52;

/// The length of a [`tcp_frame`] that [`echo`] sends with its headers in several buffers. The driver of
/// virtio-user refuses checksum offload for such a frame.
pub(crate) const SPLIT_BYTES: usize = 613;

/// Makes an IPv4 TCP frame whose checksum field contains only the sum of the pseudo-header.
pub(crate) fn tcp_frame(bytes: usize) -> Vec<u8> {
    let mut frame = pattern(0, bytes);
    let ip_bytes = (bytes - 14) as u16;
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14..34].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame[16..18].copy_from_slice(&ip_bytes.to_be_bytes());
    frame[46] = 0x50;
    // The sum of the addresses 10.0.0.1 and 10.0.0.2 as words, protocol 6, and the length. The sum is too
    // small for a carry.
    let pseudo = 2 * 0x0a00 + 3 + 6 + (ip_bytes - 20);
    frame[TCP_CHECKSUM].copy_from_slice(&pseudo.to_be_bytes());
    frame
}

/// Makes a frame with these bytes. All bytes except the first 20 are in memory that DPDK does not know.
pub(crate) fn with_external(pool: &Mempool, bytes: &[u8]) -> Mbuf {
    let mut frame = build(pool, &bytes[..20], 1);
    let memory = ExtBuf::new(Arc::new(bytes[20..].to_vec()));
    frame.chain(Mbuf::external(pool, memory).unwrap()).unwrap();
    frame
}

/// Echoes all frames until the first process has ended. Every second frame is a second view of the received
/// frame. Every third frame is in external memory, unless its checksum is partial. A frame with a partial
/// checksum is sent with a partial checksum.
pub(crate) fn echo(port: &mut dyn Port) {
    let first = std::os::unix::process::parent_id();
    let end = Instant::now() + Duration::from_secs(120);
    let goes_on = || Instant::now() < end && std::os::unix::process::parent_id() == first;
    let mut frames = Burst::new();
    let mut number = 0;
    while goes_on() {
        if port.rx_burst(0, &mut frames) == 0 {
            std::thread::sleep(Duration::from_micros(20));
            continue;
        }
        for frame in &mut frames {
            number += 1;
            if number % 2 == 0
                && let Some(view) = frame.share()
            {
                *frame = view;
            }
            if number % 3 == 0 && frame.rx_checksum() != Checksum::Partial {
                *frame = with_external(port.mempool(), &flat(frame));
            }
            if frame.rx_checksum() == Checksum::Partial {
                if frame.len() == SPLIT_BYTES {
                    *frame = build(port.mempool(), &flat(frame), 40);
                }
                frame.set_tx_offload(TCP_OFFLOAD);
            }
        }
        // If the ring is full, it accepts the unchanged frames later.
        while !frames.is_empty() && goes_on() {
            port.tx_burst(0, &mut frames);
        }
    }
}
