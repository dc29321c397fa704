//! Tests of the port with a driver in the same process ([`driver`]).

mod driver;
mod frames;
mod hostile;
mod messages;
mod offloads;
mod sleep;

use std::time::{Duration, Instant};

use testkit::folder::Folder;

use super::{VhostConfig, VhostPort};
use crate::{Burst, Link, LinkState, Mbuf, Port, Statistics};

/// Maximum time for each step, even while other programs use the processors.
const PATIENCE: Duration = Duration::from_secs(30);

/// Calls `step` until it returns `true`.
fn until(what: &str, mut step: impl FnMut() -> bool) {
    let start = Instant::now();
    while !step() {
        assert!(start.elapsed() < PATIENCE, "waited too long: {what}");
        std::thread::yield_now();
    }
}

fn wait_for_link(port: &mut VhostPort, state: LinkState) {
    until(&format!("link {state:?}"), || port.link_state() == state);
}

/// A port and the folder of its socket.
fn open(folder: &Folder) -> VhostPort {
    super::open(&config(folder)).unwrap()
}

fn config(folder: &Folder) -> VhostConfig {
    VhostConfig { mbufs: 64, bulk_mbufs: 32, ..VhostConfig::new(folder.join("wire.sock")) }
}

/// The bytes of frame `number`.
fn pattern(number: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 + number * 7) as u8).collect()
}

fn flat(frame: &Mbuf) -> Vec<u8> {
    frame.segments().flatten().copied().collect()
}

/// Makes a frame with these bytes, `most` bytes in each buffer.
fn build(port: &VhostPort, bytes: &[u8], most: usize) -> Mbuf {
    let piece = |bytes: &[u8]| {
        let mut piece = port.bulk_mempool().unwrap().alloc().unwrap();
        assert!(piece.append_slice(bytes));
        piece
    };
    let mut pieces = bytes.chunks(most).map(piece);
    let mut frame = pieces.next().unwrap();
    pieces.for_each(|piece| frame.chain(piece).unwrap());
    frame
}

/// Sends one frame. Returns whether the port has taken it.
fn send(port: &mut VhostPort, frame: Mbuf) -> bool {
    let mut frames = Burst::new();
    frames.push(frame);
    until("the port takes a frame or has a full ring", || {
        let before = port.counters().tx_ring_full;
        // The thread may just change the device, so the call is repeated once.
        port.tx_burst(0, &mut frames) == 1 || before > 8
    });
    frames.is_empty()
}

/// Receives one burst.
fn receive(port: &mut VhostPort) -> Burst {
    let mut frames = Burst::new();
    port.rx_burst(0, &mut frames);
    frames
}
