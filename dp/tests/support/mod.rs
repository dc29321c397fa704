//! What the tests with DPDK share: EAL without privileges, and a second process.
//!
//! The second process is the test program itself, run for one ignored test whose name the first one gives.
#![allow(dead_code)]

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dp::dpdk::{self, DeviceConfig, PortSpec};
use dp::eal::{Eal, EalConfig};
use dp::{Burst, LinkState, Mbuf, Mempool, Port};

/// Set for the second process: the path of the socket that joins the two.
const SOCKET: &str = "DP_TEST_SOCKET";

/// EAL as it runs anywhere.
pub fn eal() -> Eal {
    Eal::start(&EalConfig::ordinary(256)).expect("EAL starts without privileges")
}

/// The only port of a virtual device.
pub fn open(vdev: &str, config: &DeviceConfig) -> Box<dyn Port> {
    let mut ports = dpdk::open(eal(), &PortSpec::Vdev(vdev.to_owned()), config).unwrap();
    assert_eq!(ports.len(), 1);
    ports.remove(0)
}

/// A directory that goes when the test ends.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("dp-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn socket(&self) -> String {
        self.0.join("wire.sock").display().to_string()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The second process; killed when dropped.
pub struct Peer(Child);

impl Peer {
    /// Runs the ignored test `name` of this program in a process of its own.
    pub fn start(name: &str, socket: &str) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", name, "--nocapture"])
            .env(SOCKET, socket)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }

    /// SIGKILL: no clean-up runs.
    pub fn kill(mut self) {
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

/// In the second process: the socket's path. `None` when somebody runs the ignored tests by hand.
pub fn socket_of_first_process() -> Option<String> {
    std::env::var(SOCKET).ok()
}

/// Calls `step` until it says yes.
///
/// # Panics
/// After 30 seconds.
pub fn until(what: &str, mut step: impl FnMut() -> bool) {
    let start = Instant::now();
    while !step() {
        assert!(start.elapsed() < Duration::from_secs(30), "waited too long: {what}");
        std::thread::sleep(Duration::from_micros(50));
    }
}

pub fn wait_for_link(port: &mut dyn Port, state: LinkState) {
    until(&format!("link {state:?}"), || port.link_state() == state);
}

/// The octets of test frame `number`: an Ethernet header of a type for experiments, and a pattern.
pub fn pattern(number: u32, octets: usize) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
    frame.extend(number.to_be_bytes());
    frame.extend((frame.len()..octets).map(|at| (at as u32).wrapping_mul(31).wrapping_add(number * 7) as u8));
    frame
}

/// A frame of `octets` spread over `segments` buffers.
pub fn build(pool: &Mempool, octets: &[u8], segments: usize) -> Mbuf {
    let mut pieces = octets.chunks(octets.len().div_ceil(segments));
    let mut piece = || {
        pieces.next().map(|piece| {
            let mut mbuf = pool.alloc().expect("a buffer");
            assert!(mbuf.append_slice(piece));
            mbuf
        })
    };
    let mut frame = piece().expect("a frame has octets");
    while let Some(next) = piece() {
        frame.chain(next).unwrap();
    }
    frame
}

pub fn flat(mbuf: &Mbuf) -> Vec<u8> {
    mbuf.segments().flatten().copied().collect()
}

/// Sends everything back until the first process is gone; every other frame as a second view of what came.
pub fn echo(port: &mut dyn Port) {
    let first = std::os::unix::process::parent_id();
    let end = Instant::now() + Duration::from_secs(120);
    let mut frames = Burst::new();
    let mut views = false;
    while Instant::now() < end && std::os::unix::process::parent_id() == first {
        if port.rx_burst(0, &mut frames) == 0 && frames.is_empty() {
            std::thread::sleep(Duration::from_micros(20));
            continue;
        }
        for frame in &mut frames {
            views = !views;
            if views && let Some(view) = frame.share() {
                *frame = view;
            }
        }
        port.tx_burst(0, &mut frames);
    }
}
