//! The requests of the send queue: how each request is chosen at random, and what it means. To add an
//! operation to the model, only this module has to be changed.
//!
//! Requests that only bind, register and invalidate are in `operations/local.rs`. Requests that use the
//! peer's memory without the right to do so are in `operations/misuse.rs`.

mod local;
mod misuse;

use iwarp::memory::Access;
use iwarp::verbs::{AtomicOp, RemoteAddr, SendFlags, SendOp, SendRequest, Sge, WcOpcode};

use super::memory::{Flow, Span, StreamEnd};
use super::names::{Grant, Name, Validity};
use super::streams::{Message, Model, Remote, Semantics};
use testkit::dice::Dice;

/// A request as it is posted, and its meaning.
pub(crate) struct Drawn {
    pub(crate) request: SendRequest,
    pub(crate) meaning: Semantics,
}

/// Chooses a request for `by` at random. Returns `None` if there is no memory for the request.
type Draw = fn(&mut Dice, &Model, StreamEnd, u64) -> Option<Drawn>;

/// The operations, each with its relative frequency.
const OPERATIONS: &[(u64, Draw)] = &[
    (8, send),
    (3, send_invalidate),
    (8, write),
    (6, read),
    (3, immediate),
    (3, write_immediate),
    (5, atomic),
    (4, local::invalidate),
    (4, local::bind_type_1),
    (3, local::bind_type_2),
    (4, local::fast_register),
];

/// The odds of each fault are one in this number, or one in a fraction of it.
pub(crate) const FAULT_EVERY: u64 = 120;

/// Maximum number of payload bytes of an inline request.
const INLINE: usize = 128;

pub(crate) fn draw(dice: &mut Dice, model: &Model, by: StreamEnd, op: u64) -> Option<Drawn> {
    let drawn = dice.weighted(OPERATIONS)(dice, model, by, op)?;
    Some(flagged(dice, drawn))
}

/// Returns a Send of `len` bytes.
pub(crate) fn long_send(dice: &mut Dice, model: &Model, by: StreamEnd, op: u64, len: usize) -> Option<Drawn> {
    let drawn = send_of(dice, model, by, op, len)?;
    Some(flagged(dice, drawn))
}

fn flagged(dice: &mut Dice, mut drawn: Drawn) -> Drawn {
    let Drawn { request, meaning } = &mut drawn;
    let mut flag = |flag, set: bool| {
        request.flags.set(flag, set);
        set
    };
    meaning.signaled = flag(SendFlags::SIGNALED, meaning.plain || !dice.one_in(4));
    meaning.fenced = flag(SendFlags::FENCE, !meaning.plain && (meaning.fenced || dice.one_in(6)));
    let bulk = meaning.completes == WcOpcode::Send || meaning.completes == WcOpcode::Write;
    let short = meaning.local.iter().map(|span| span.len).sum::<usize>() <= INLINE;
    meaning.inline = flag(SendFlags::INLINE, bulk && short && dice.one_in(3));
    if let Some(message) = &mut meaning.message {
        message.solicited = flag(SendFlags::SOLICITED, dice.one_in(4));
    }
    drawn
}

fn send(dice: &mut Dice, model: &Model, by: StreamEnd, op: u64) -> Option<Drawn> {
    let len = length(dice);
    send_of(dice, model, by, op, len)
}

fn send_of(dice: &mut Dice, model: &Model, by: StreamEnd, op: u64, len: usize) -> Option<Drawn> {
    let local = gather(dice, model, by, len)?;
    let meaning = Semantics { message: Some(message(len)), ..meaning(Flow::Out, local, WcOpcode::Send) };
    Some(drawn(model, op, SendOp::Send, meaning))
}

fn send_invalidate(dice: &mut Dice, model: &Model, by: StreamEnd, op: u64) -> Option<Drawn> {
    let len = length(dice);
    let local = gather(dice, model, by, len)?;
    let peers = |name: Name| {
        let grant = model.memory.grant(name);
        let alone = grant.stream == Some(by.0) && grant.revocable;
        grant.host != by.1 && alone && grant.life == Validity::Valid
    };
    let wrong = dice.one_in(FAULT_EVERY / 4);
    // A peer cannot invalidate a window of type 1, even if no other peer may use the window.
    let kept = |name: Name| {
        let grant = model.memory.grant(name);
        let alone = grant.stream == Some(by.0) && !grant.revocable;
        grant.host != by.1 && alone && grant.life == Validity::Valid
    };
    let first = pick(dice, model, kept).filter(|_| dice.one_in(6));
    let name = first.or_else(|| pick(dice, model, |name| peers(name) != wrong))?;
    let rkey = model.memory.grant(name).key;
    // At the peer, the key of the poster's own memory is not a valid STag.
    let region = Some(name).filter(|&name| model.memory.grant(name).host != by.1);
    let message = Message { invalidates: Some((rkey, region)), ..message(len) };
    let meaning = Semantics { message: Some(message), ..meaning(Flow::Out, local, WcOpcode::Send) };
    Some(drawn(model, op, SendOp::SendInvalidate { rkey }, meaning))
}

fn write(dice: &mut Dice, model: &Model, by: StreamEnd, op: u64) -> Option<Drawn> {
    // If a Read is outstanding, the Write sometimes goes to the bytes that the Read fetches. Most of these
    // Writes have the fence flag, so they wait for the Read.
    let read = model.memory.being_read(by).filter(|_| dice.one_in(3));
    let (remote, addr) = match read {
        Some(Span { region, at, len }) => {
            let space = &model.memory.regions[region];
            let (name, right) = (Name::Region(region), Access::REMOTE_WRITE);
            let addr = RemoteAddr { addr: model.memory.grant(name).offset_of(at), rkey: space.key };
            (Remote { name: Some(name), at, len, right }, addr)
        }
        None => remote(dice, model, by, Access::REMOTE_WRITE)?,
    };
    let fenced = read.is_some() && !dice.one_in(4);
    let local = gather(dice, model, by, remote.len)?;
    let meaning = Semantics { remote: Some(remote), fenced, ..meaning(Flow::Out, local, WcOpcode::Write) };
    Some(drawn(model, op, SendOp::Write { remote: addr }, meaning))
}

fn read(dice: &mut Dice, model: &Model, by: StreamEnd, op: u64) -> Option<Drawn> {
    if !model.streams[by.0].ends[by.1].reads {
        return None;
    }
    let (remote, addr) = remote(dice, model, by, Access::REMOTE_READ)?;
    let local = scatter(dice, model, by, remote.len)?;
    let byte_len = remote.len;
    let meaning = Semantics { remote: Some(remote), byte_len, ..meaning(Flow::In, local, WcOpcode::Read) };
    Some(drawn(model, op, SendOp::Read { remote: addr }, meaning))
}

fn immediate(dice: &mut Dice, model: &Model, _: StreamEnd, op: u64) -> Option<Drawn> {
    let data = std::array::from_fn(|_| dice.index(256) as u8);
    let message = Some(immediate_message(data));
    let meaning = Semantics { message, ..meaning(Flow::Out, Vec::new(), WcOpcode::Immediate) };
    Some(drawn(model, op, SendOp::Immediate { data }, meaning))
}

fn write_immediate(dice: &mut Dice, model: &Model, by: StreamEnd, op: u64) -> Option<Drawn> {
    let data = std::array::from_fn(|_| dice.index(256) as u8);
    let (remote, addr) = remote(dice, model, by, Access::REMOTE_WRITE)?;
    let local = gather(dice, model, by, remote.len)?;
    let message = Some(immediate_message(data));
    let meaning = Semantics { remote: Some(remote), message, ..meaning(Flow::Out, local, WcOpcode::Write) };
    Some(drawn(model, op, SendOp::WriteImmediate { remote: addr, data }, meaning))
}

fn immediate_message(data: [u8; 8]) -> Message {
    Message { opcode: WcOpcode::RecvImmediate, immediate: Some(data), ..message(data.len()) }
}

fn atomic(dice: &mut Dice, model: &Model, by: StreamEnd, op: u64) -> Option<Drawn> {
    if !model.streams[by.0].ends[by.1].reads {
        return None;
    }
    let number = |dice: &mut Dice| {
        let whole = dice.number();
        dice.pick(&[0, 1, 0x80, u64::MAX, 0xffff_0000, whole])
    };
    let (kind, completes) = match dice.index(3) {
        0 => (AtomicOp::FetchAdd { add: number(dice), mask: number(dice) }, WcOpcode::FetchAdd),
        1 => {
            let [compare, compare_mask, swap, swap_mask] = std::array::from_fn(|_| number(dice));
            (AtomicOp::CmpSwap { compare, compare_mask, swap, swap_mask }, WcOpcode::CmpSwap)
        }
        _ => (AtomicOp::Swap { swap: number(dice) }, WcOpcode::Swap),
    };
    let (mut remote, mut addr) = part(dice, model, by, 8, Access::REMOTE_ATOMIC)?;
    if !dice.one_in(FAULT_EVERY) {
        addr.addr = addr.addr.wrapping_sub(remote.at as u64 % 8);
        remote.at -= remote.at % 8;
        remote.name.filter(|&name| model.memory.grant(name).at <= remote.at)?;
    }
    let local = vec![place(dice, model, by, 8, Access::LOCAL_WRITE)?];
    let (remote, change) = (Some(remote), Some(kind));
    let meaning = Semantics { remote, change, byte_len: 8, ..meaning(Flow::In, local, completes) };
    Some(drawn(model, op, SendOp::Atomic { remote: addr, op: kind }, meaning))
}

// ---- pieces ----

fn meaning(flow: Flow, local: Vec<Span>, completes: WcOpcode) -> Semantics {
    Semantics {
        flow,
        local,
        inline: false,
        remote: None,
        change: None,
        message: None,
        takes: None,
        gives: None,
        wrong: false,
        plain: false,
        completes,
        byte_len: 0,
        signaled: false,
        fenced: false,
    }
}

fn message(len: usize) -> Message {
    Message { opcode: WcOpcode::Recv, len, solicited: false, immediate: None, invalidates: None }
}

fn drawn(model: &Model, op: u64, what: SendOp, meaning: Semantics) -> Drawn {
    let mut request = SendRequest::empty(op, what);
    request.sg_list = meaning.local.iter().map(|span| sge(model, span)).collect();
    Drawn { request, meaning }
}

pub(crate) fn sge(model: &Model, span: &Span) -> Sge {
    let grant = model.memory.grant(Name::Region(span.region));
    Sge { addr: grant.offset_of(span.at), length: span.len as u32, lkey: grant.key }
}

/// Returns local memory of `by` for `len` bytes, in up to three pieces.
pub(crate) fn gather(dice: &mut Dice, model: &Model, by: StreamEnd, len: usize) -> Option<Vec<Span>> {
    pieces(dice, model, by, len, Access::empty())
}

/// Returns local memory of `by` that may be written, for `len` bytes, in up to three pieces.
pub(crate) fn scatter(dice: &mut Dice, model: &Model, by: StreamEnd, len: usize) -> Option<Vec<Span>> {
    pieces(dice, model, by, len, Access::LOCAL_WRITE)
}

fn pieces(dice: &mut Dice, model: &Model, by: StreamEnd, len: usize, right: Access) -> Option<Vec<Span>> {
    let mut spans: Vec<Span> = Vec::new();
    let mut left = len;
    while left > 0 {
        let take =
            if spans.len() < 2 && left > 3 && dice.one_in(4) { 1 + dice.index(left - 1) } else { left };
        let span = (0..8).find_map(|_| {
            let span = place(dice, model, by, take, right)?;
            // The pieces of one buffer must not overlap, because bytes may be placed in the pieces in any
            // order.
            let apart = |other: &Span| {
                span.region != other.region || span.at >= other.end() || other.at >= span.end()
            };
            spans.iter().all(apart).then_some(span)
        })?;
        spans.push(span);
        left -= take;
    }
    Some(spans)
}

/// Returns `len` bytes of a region of `by`'s host: usually bytes on which no effect is under way.
fn place(dice: &mut Dice, model: &Model, by: StreamEnd, len: usize, right: Access) -> Option<Span> {
    let fits = |name: Name| {
        let Name::Region(region) = name else { return false };
        let grant = model.memory.grant(name);
        let usable = grant.life == Validity::Ending || grant.is_there_for(by);
        grant.host == by.1 && usable && !model.memory.regions[region].left && holds(model, name, len, right)
    };
    // The new request follows the request that invalidates the STag.
    let taken = |name: Name| fits(name) && model.memory.grant(name).is_taken_by(by);
    if let Some(name) = pick(dice, model, taken).filter(|_| dice.one_in(FAULT_EVERY / 10)) {
        let Grant { region, at, .. } = model.memory.grant(name);
        return Some(Span { region, at, len });
    }
    quiet_place(dice, model, len, fits).map(|(_, span)| span)
}

fn holds(model: &Model, name: Name, len: usize, right: Access) -> bool {
    let grant = model.memory.grant(name);
    grant.access.contains(right) && grant.len >= len
}

/// Returns an STag that `fits` selects, and `len` of its bytes: usually bytes on which no effect is under
/// way.
fn quiet_place(
    dice: &mut Dice,
    model: &Model,
    len: usize,
    fits: impl Fn(Name) -> bool,
) -> Option<(Name, Span)> {
    let mut choice = None;
    for _ in 0..6 {
        let name = pick(dice, model, &fits)?;
        let grant = model.memory.grant(name);
        let span = Span { region: grant.region, at: grant.at + dice.index(grant.len - len + 1), len };
        choice = Some((name, span));
        if grant.life == Validity::Valid && model.memory.is_calm(&span) {
            break;
        }
    }
    choice
}

/// Returns a part of the peer's memory. Sometimes the peer does not allow the access to this part.
fn remote(dice: &mut Dice, model: &Model, by: StreamEnd, right: Access) -> Option<(Remote, RemoteAddr)> {
    let len = length(dice);
    part(dice, model, by, len, right)
}

/// Returns a part of the peer's memory with `len` bytes. Sometimes the peer does not allow the access to this
/// part.
fn part(
    dice: &mut Dice,
    model: &Model,
    by: StreamEnd,
    len: usize,
    right: Access,
) -> Option<(Remote, RemoteAddr)> {
    let host = 1 - by.1;
    if dice.one_in(FAULT_EVERY) {
        return misuse::trespass(dice, model, host, len, right);
    }
    let fits = |name: Name| {
        let grant = model.memory.grant(name);
        grant.host == host
            && grant.life != Validity::Gone
            && !model.memory.regions[grant.region].left
            && grant.stream.is_none_or(|stream| stream == by.0)
            && holds(model, name, len, right)
    };
    let (name, Span { mut at, len, .. }) = match misuse::name(dice, model, by, len, right) {
        Some(place) => place,
        None => quiet_place(dice, model, len, fits)?,
    };
    let grant = model.memory.grant(name);
    // Sometimes the range extends beyond the window, into bytes of the region that the window does not
    // expose.
    if matches!(name, Name::Binding(_)) && dice.one_in(FAULT_EVERY / 8) {
        at = grant.end() - len.min(grant.len) + 1 + dice.index(8);
    }
    let addr = RemoteAddr { addr: grant.offset_of(at), rkey: grant.key };
    Some((Remote { name: Some(name), at, len, right }, addr))
}

fn pick(dice: &mut Dice, model: &Model, fits: impl Fn(Name) -> bool) -> Option<Name> {
    let fitting: Vec<Name> = model.memory.names().filter(|&name| fits(name)).collect();
    (!fitting.is_empty()).then(|| dice.pick(&fitting))
}

/// Returns the length of a message: close to a limit of segments, small, or sometimes long.
pub(crate) fn length(dice: &mut Dice) -> usize {
    match dice.index(20) {
        0 => 0,
        1..=3 => dice.pick(&[1, 4, 7, 8, 9]),
        4..=6 => dice.pick(&[1400, 1424, 1428, 1430, 1440, 1446, 2856]),
        7 => 4000 + dice.index(16_000),
        8..=11 => 1500 + dice.index(4000),
        _ => 1 + dice.index(600),
    }
}
