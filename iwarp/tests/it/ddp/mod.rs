//! DDP (RFC 5041): headers on the wire, data source, data sink.

mod delivery;
mod sink;
mod source;
mod wire;

use iwarp::verbs::{MemoryRegion, QueuePair};

use crate::common::served::{Served, Setup};
use crate::common::ulpdu;

/// Length in bytes of the region that is exposed to the peer.
const REGION: usize = 1 << 16;

fn fill(_: &QueuePair, region: &MemoryRegion) {
    region.write_at(0, &[0xEE; REGION]).unwrap();
}

/// Returns how to establish a connection whose region is full of 0xEE.
fn setup() -> Setup<'static> {
    Setup { region: REGION, prepare: &fill, ..Setup::default() }
}

/// Returns a connection that begins with `request`, which may ask for markers.
fn ready_for(request: Vec<u8>) -> Served {
    Setup { request, ..setup() }.ready()
}

/// Returns a tagged segment: a piece of a Write.
fn tagged(control: u8, stag: u32, to: u64, payload: &[u8]) -> Vec<u8> {
    ulpdu::tagged([control, 0x40], stag, to, payload)
}

/// Returns an untagged segment with the RDMAP opcode `opcode`.
fn untagged(control: u8, opcode: u8, queue: [u32; 3], payload: &[u8]) -> Vec<u8> {
    ulpdu::untagged([control, 0x40 | opcode], 0, queue, payload)
}
