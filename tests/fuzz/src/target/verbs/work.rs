//! Requests with any operation, and with arguments that are valid, nearly valid, or of another kind.

use iwarp::memory::{Access, Base, WindowKind};
use iwarp::rdmap::AtomicOp;
use iwarp::verbs::{BindWindow, FastRegister, RecvRequest, RemoteAddr, SendFlags, SendOp, SendRequest, Sge};

use super::side::Side;
use crate::input::Input;

/// Returns access rights that the input chooses, in most cases all rights.
pub(super) fn access(input: &mut Input<'_>) -> Access {
    match input.u8() {
        0..=159 => Access::all(),
        some => Access::from_bits_truncate(some.into()),
    }
}

/// Returns local memory: in a region, in a fast region, in a window (which is an error), or not registered.
fn sge(input: &mut Input<'_>, side: &Side) -> Sge {
    let bytes = input.size() % 3000;
    let at = input.delta();
    match input.below(8) {
        0 => Sge { addr: input.u64(), length: bytes, lkey: input.u32() },
        1 => side.pick_fast(input).map_or(Sge::default(), |fast| fast.sge(at as u64, bytes)),
        2 => side.pick_window(input).map_or(Sge::default(), |window| Sge {
            addr: 0,
            length: bytes,
            lkey: window.rkey(),
        }),
        _ => side.pick_region(input).map_or(Sge::default(), |region| Sge {
            addr: region.addr().wrapping_add(at as u64),
            length: bytes,
            lkey: region.lkey(),
        }),
    }
}

/// Returns memory of the peer: in a region, in a window, in a fast region, or not registered.
fn remote(input: &mut Input<'_>, peer: &Side) -> RemoteAddr {
    let at = input.delta() as u64;
    match input.below(8) {
        0 => RemoteAddr { addr: input.u64(), rkey: input.u32() },
        1 => peer
            .pick_fast(input)
            .map_or(RemoteAddr::default(), |fast| RemoteAddr { addr: fast.addr(at), rkey: fast.rkey() }),
        2 | 3 => peer.pick_window(input).map_or(RemoteAddr::default(), |window| RemoteAddr {
            addr: peer.pick_region(input).map_or(0, |region| region.addr()).wrapping_add(at),
            rkey: window.rkey(),
        }),
        _ => peer.pick_region(input).map_or(RemoteAddr::default(), |region| RemoteAddr {
            addr: region.addr().wrapping_add(at),
            rkey: region.rkey(),
        }),
    }
}

fn op(input: &mut Input<'_>, side: &Side, peer: &Side) -> SendOp {
    match input.below(16) {
        0..=3 => SendOp::Send,
        4 => SendOp::SendInvalidate { rkey: remote(input, peer).rkey },
        5 | 6 => SendOp::Write { remote: remote(input, peer) },
        7 | 8 => SendOp::Read { remote: remote(input, peer) },
        9 => SendOp::Immediate { data: [1; 8] },
        10 => SendOp::WriteImmediate { remote: remote(input, peer), data: [2; 8] },
        11 => {
            let op = match input.below(3) {
                0 => AtomicOp::FetchAdd { add: 1, mask: input.u8().into() },
                1 => AtomicOp::Swap { swap: 7 },
                _ => AtomicOp::CmpSwap { compare: 0, compare_mask: !0, swap: 1, swap_mask: !0 },
            };
            SendOp::Atomic { remote: remote(input, peer), op }
        }
        12 => SendOp::LocalInvalidate { rkey: remote(input, side).rkey },
        13 | 14 => bind(input, side),
        _ => register(input, side),
    }
}

fn bind(input: &mut Input<'_>, side: &Side) -> SendOp {
    let region = side.pick_region(input);
    let Some(window) = side.pick_window(input) else { return SendOp::Send };
    let rkey = if input.one_in(4) { window.rkey() } else { window.next_rkey() };
    SendOp::BindWindow(BindWindow {
        rkey,
        lkey: region.map_or(input.u32(), |region| region.lkey()),
        addr: region.map_or(0, |region| region.addr()).wrapping_add(input.delta() as u64),
        length: input.size().into(),
        access: access(input) & (Access::REMOTE | Access::LOCAL_WRITE),
        zero_based: input.one_in(4),
    })
}

fn register(input: &mut Input<'_>, side: &Side) -> SendOp {
    let Some(fast) = side.pick_fast(input) else { return SendOp::Send };
    let rkey = if input.one_in(4) { fast.rkey() } else { fast.next_rkey() };
    let base = match input.below(4) {
        0 => Base::Zero,
        1 => Base::Iova(input.u64()),
        _ => Base::VirtualAddress,
    };
    let (offset, length) = (input.size().into(), input.size().into());
    SendOp::FastRegister(FastRegister { rkey, offset, length, access: access(input), base })
}

/// Returns a request for a send queue.
pub(super) fn send(input: &mut Input<'_>, wr_id: u64, side: &Side, peer: &Side) -> SendRequest {
    let op = op(input, side, peer);
    let mut request = SendRequest::empty(wr_id, op);
    for _ in 0..[1, 1, 1, 0, 2, 3, 8][input.below(7)] {
        request.sg_list.push(sge(input, side));
    }
    if matches!(op, SendOp::Atomic { .. })
        && !input.one_in(8)
        && let Some(sge) = request.sg_list.first_mut()
    {
        sge.length = 8;
    }
    let flags = if input.one_in(2) { SendFlags::from_bits_truncate(input.u8()) } else { SendFlags::SIGNALED };
    request.flags(flags)
}

/// Returns a request for a receive queue.
pub(super) fn receive(input: &mut Input<'_>, wr_id: u64, side: &Side) -> RecvRequest {
    let mut request = RecvRequest { wr_id, sg_list: Default::default() };
    for _ in 0..[1, 1, 1, 0, 2, 8][input.below(6)] {
        request.sg_list.push(sge(input, side));
    }
    request
}

/// Chooses a type of window.
pub(super) fn kind(input: &mut Input<'_>) -> WindowKind {
    if input.one_in(2) { WindowKind::Type1 } else { WindowKind::Type2 }
}
