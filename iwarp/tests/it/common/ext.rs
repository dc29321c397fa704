//! Requests and segments of atomics and Immediate Data, and the words that atomics change.

use iwarp::memory::Access;
use iwarp::rdmap::AtomicRequest;
use iwarp::verbs::{AtomicOp, MemoryRegion, QueuePair, RecvRequest, RemoteAddr, SendOp, SendRequest};

use super::served::{Served, Setup};
use super::ulpdu;

/// The rights of a region whose words a peer may change by atomics.
pub(crate) const ATOMIC: Access = Access::LOCAL_WRITE.union(Access::REMOTE_ATOMIC);

/// The right to write locally, and all remote rights.
pub(crate) const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE);

pub(crate) const ADD_ONE: AtomicOp = AtomicOp::FetchAdd { add: 1, mask: 0 };

/// Returns a compare-and-swap of the complete word.
pub(crate) fn cas(compare: u64, swap: u64) -> AtomicOp {
    AtomicOp::CmpSwap { compare, compare_mask: u64::MAX, swap, swap_mask: u64::MAX }
}

/// Returns a request for an atomic operation on the word at `remote`. The word's old value is placed at
/// offset `at` of `local`.
pub(crate) fn atomic(
    wr_id: u64,
    op: AtomicOp,
    remote: RemoteAddr,
    local: &MemoryRegion,
    at: usize,
) -> SendRequest {
    SendRequest::new(wr_id, SendOp::Atomic { remote, op }, local.sge(at, 8))
}

/// Returns the eight bytes at `at` as a number in this machine's byte order.
pub(crate) fn word(region: &MemoryRegion, at: usize) -> u64 {
    let mut bytes = [0; 8];
    region.read_at(at, &mut bytes).unwrap();
    u64::from_ne_bytes(bytes)
}

pub(crate) fn set_word(region: &MemoryRegion, at: usize, value: u64) {
    region.write_at(at, &value.to_ne_bytes()).unwrap();
}

/// Returns a connection with one posted receive for each length in `lens`. The receives' `wr_id`s start at 0.
pub(crate) fn receiving<'a>(lens: &'a [usize], setup: Setup<'a>) -> Served {
    let prepare = |qp: &QueuePair, region: &MemoryRegion| {
        for (n, &len) in lens.iter().enumerate() {
            qp.post_recv(&RecvRequest::new(n as u64, region.sge(1000 * n, len))).unwrap();
        }
    };
    Setup { prepare: &prepare, ..setup }.ready()
}

/// Returns the last segment of a tagged message.
pub(crate) fn tagged(control: u8, stag: u32, to: u64, payload: &[u8]) -> Vec<u8> {
    ulpdu::tagged([0xc1, control], stag, to, payload)
}

/// Returns an untagged message in one segment.
pub(crate) fn untagged(control: u8, qn: u32, msn: u32, payload: &[u8]) -> Vec<u8> {
    piece(control, qn, msn, 0, true, payload)
}

/// Returns a segment of an untagged message.
pub(crate) fn piece(control: u8, qn: u32, msn: u32, mo: u32, last: bool, payload: &[u8]) -> Vec<u8> {
    let first = if last { 0x41 } else { 0x01 };
    ulpdu::untagged([first, control], 0, [qn, msn, mo], payload)
}

pub(crate) fn atomic_request(msn: u32, request: &AtomicRequest) -> Vec<u8> {
    untagged(0x4a, 1, msn, &request.to_bytes())
}

pub(crate) fn atomic_response(msn: u32, id: u32, original: u64) -> Vec<u8> {
    untagged(0x4b, 3, msn, &[&id.to_be_bytes()[..], &original.to_be_bytes()].concat())
}

/// Returns a Read Request for `size` bytes at `to` of `stag`. The answer is placed in STag 9.
pub(crate) fn read_request(msn: u32, size: u32, stag: u32, to: u64) -> Vec<u8> {
    ulpdu::read_request(msn, (9, 0), size, (stag, to))
}
