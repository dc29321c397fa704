//! An engine, and a peer that sends and checks exact bytes.

use iwarp::verbs::{ConnParam, Extensions, MemoryRegion, ProtectionDomain, QpInit, QueuePair, RecvRequest};

use crate::common::served::{Served, Setup};
use crate::common::ulpdu;
pub(crate) use crate::common::ulpdu::{read_header, read_request};

/// Length of the engine's region in bytes.
pub(crate) const REGION: usize = 100_000;

/// Returns a connection that the engine has accepted, in Full Operation.
pub(crate) fn served() -> Served {
    served_with(ConnParam::default(), 0)
}

/// Returns a connection with `receives` receives of 100 bytes each, at offsets 1000, 1100 and so on, which
/// are posted before the connection is established.
pub(crate) fn served_with(accept: ConnParam, receives: u64) -> Served {
    // The queue pair has no extensions, so it uses only the messages of RFC 5040.
    let make_qp = |init: QpInit<'_>, pd: &ProtectionDomain| {
        pd.create_qp(&QpInit { extensions: Extensions::empty(), ..init }).unwrap()
    };
    let prepare = |qp: &QueuePair, region: &MemoryRegion| {
        for n in 0..receives {
            qp.post_recv(&RecvRequest::new(1000 + n, region.sge(1000 + 100 * n as usize, 100))).unwrap();
        }
    };
    Setup { accept, make_qp: &make_qp, region: REGION, prepare: &prepare, ..Setup::default() }.ready()
}

/// Returns the payload of a Terminate for a failing ULPDU: layer and type, error code, length and DDP header.
pub(crate) fn of_segment(layer_type: u8, code: u8, ulpdu: &[u8]) -> Vec<u8> {
    let header = if ulpdu[0] & 0x80 == 0 { 18 } else { 14 };
    let mut payload = vec![layer_type, code, 0xc0, 0];
    payload.extend((ulpdu.len() as u16).to_be_bytes());
    payload.extend(&ulpdu[..header]);
    payload
}

pub(crate) fn tagged(ddp: u8, rdmap: u8, stag: u32, to: u64, payload: &[u8]) -> Vec<u8> {
    ulpdu::tagged([ddp, rdmap], stag, to, payload)
}

pub(crate) fn untagged(
    ddp: u8,
    rdmap: u8,
    invalidate: u32,
    qn: u32,
    msn: u32,
    mo: u32,
    payload: &[u8],
) -> Vec<u8> {
    ulpdu::untagged([ddp, rdmap], invalidate, [qn, msn, mo], payload)
}

/// Returns a Send of one segment.
pub(crate) fn send(msn: u32, payload: &[u8]) -> Vec<u8> {
    untagged(0x41, 0x43, 0, 0, msn, 0, payload)
}
