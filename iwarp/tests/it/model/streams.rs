//! The duties of streams to their users: which request completes, in which order and with which fields, and
//! what each completion says about memory.
//!
//! The model is independent of the stack: it knows requests, completions and the RFCs. A race between an
//! error and a post cannot be seen from outside. For such a race, the model has a [`PossibleEnd`], which
//! widens the set of allowed results.

mod completions;
mod ending;
mod shared;

use std::collections::VecDeque;

use iwarp::memory::Access;
use iwarp::verbs::{AtomicOp, ConnectionError, WcOpcode};
use tcp_lite::CloseReason;

use super::cause::{Cause, PossibleEnd};
use super::memory::{Effect, Flow, Memory, Region, RegionId, Span, StreamEnd, View, application, cut};
use super::names::{Binding, Name, Validity};
use ending::Asker;
use shared::SharedQueue;

pub(crate) use shared::DEPTH;

/// A part of the peer's memory that a request accesses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remote {
    /// `None` if the request's key is not the STag of any memory.
    pub(crate) name: Option<Name>,
    /// Offset into the region in bytes.
    pub(crate) at: usize,
    pub(crate) len: usize,
    /// The right that the request needs.
    pub(crate) right: Access,
}

/// The expected fields of the receive completion at the peer.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) opcode: WcOpcode,
    pub(crate) len: usize,
    pub(crate) solicited: bool,
    pub(crate) immediate: Option<[u8; 8]>,
    /// The key that the message invalidates, and the [`Name`] of that key.
    pub(crate) invalidates: Option<(u32, Option<Name>)>,
}

/// An STag that a request makes valid.
#[derive(Clone, Debug)]
pub(crate) enum NewName {
    Binding(Binding),
    /// Prepared memory, previously registered as `old`, is registered again.
    Region {
        old: RegionId,
        at: usize,
        len: usize,
        addr: u64,
        key: u32,
        access: Access,
    },
}

/// Everything that the model has to know about a request. A new kind of request needs no other description.
#[derive(Clone, Debug)]
pub(crate) struct Semantics {
    /// The direction of the payload.
    pub(crate) flow: Flow,
    /// Memory of the poster, in the order of the elements.
    pub(crate) local: Vec<Span>,
    /// Whether the payload is copied when it is posted.
    pub(crate) inline: bool,
    /// The memory of the peer that the request uses.
    pub(crate) remote: Option<Remote>,
    /// The change to the peer's memory. The old bytes are the payload of the answer.
    pub(crate) change: Option<AtomicOp>,
    /// If set, the request consumes a receive request of the peer.
    pub(crate) message: Option<Message>,
    /// An STag of the poster that the request invalidates.
    pub(crate) takes: Option<Name>,
    /// An STag that the request makes valid.
    pub(crate) gives: Option<NewName>,
    /// Whether the request is one that cannot be executed.
    pub(crate) wrong: bool,
    /// Whether the request is posted by a verb of its own. Such a request is always signaled and never
    /// fenced.
    pub(crate) plain: bool,
    pub(crate) completes: WcOpcode,
    pub(crate) byte_len: usize,
    pub(crate) signaled: bool,
    pub(crate) fenced: bool,
}

struct Sent {
    op: u64,
    meaning: Semantics,
    /// The STag that the request makes valid.
    gives: Option<Name>,
    /// Whether the request was posted in the error state. Such a request completes as flushed, whatever its
    /// flags.
    late: bool,
    /// Whether an earlier request invalidates the memory of this request. Such a request must fail.
    hopeless: bool,
}

impl Sent {
    fn unjust(&self) -> String {
        format!("request {} did not fail, behind one that invalidates its memory", self.op)
    }
}

struct Received {
    op: u64,
    spans: Vec<Span>,
    late: bool,
}

struct Arriving {
    op: u64,
    message: Message,
    /// Whether the message is behind a message that ends the stream. Such a message must not arrive.
    cut_off: bool,
}

/// One endpoint of a stream.
#[derive(Default)]
pub(crate) struct End {
    sent: VecDeque<Sent>,
    received: VecDeque<Received>,
    /// Messages of the peer that are under way to this endpoint.
    arriving: VecDeque<Arriving>,
    blamed_send: bool,
    blamed_recv: bool,
    flushed_recv: bool,
    /// Whether this endpoint has posted a request that ends the stream when it arrives.
    poisoned: bool,
    /// Whether the user of this endpoint has received the event of the end.
    pub(crate) over: bool,
    /// Whether the user has closed gracefully. Then the send queue accepts no more requests, and accepted
    /// requests are sent.
    pub(crate) closed: bool,
    pub(crate) reads: bool,
    /// Whether this endpoint receives through the shared receive queue of its host.
    pub(crate) shared: bool,
    /// The last buffer of the shared receive queue that completed for this endpoint.
    last_shared: u64,
    /// Whether the event for the last shared receive of this endpoint has arrived.
    last_told: bool,
}

impl End {
    /// Returns the number of receive requests for which no message is under way.
    pub(crate) fn receives(&self) -> usize {
        self.received.len().saturating_sub(self.arriving.len())
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.sent.len()
    }

    /// Returns the number of requests that must still complete.
    pub(crate) fn owed(&self) -> usize {
        self.sent.iter().filter(|sent| sent.meaning.signaled || sent.late).count()
    }
}

/// One connection between the hosts.
#[derive(Default)]
pub(crate) struct Stream {
    pub(crate) ends: [End; 2],
    pub(crate) possible_ends: Vec<PossibleEnd>,
}

impl Stream {
    pub(crate) fn is_over(&self) -> bool {
        self.ends.iter().all(|end| end.over)
    }

    /// Returns the side that closed gracefully, if no other cause can end the stream.
    fn closed_by(&self) -> Option<usize> {
        let first = self.possible_ends.first()?;
        let alone = self
            .possible_ends
            .iter()
            .all(|possible| (possible.cause, possible.finder) == (Cause::Close, first.finder));
        alone.then_some(first.finder)
    }
}

/// The model: everything that a user can observe.
#[derive(Default)]
pub(crate) struct Model {
    pub(crate) memory: Memory,
    pub(crate) streams: Vec<Stream>,
    /// The shared receive queue of each host.
    pub(crate) shared: [SharedQueue; 2],
    /// Number of successful completions. The field `failed` is the number of all other completions.
    pub(crate) succeeded: u64,
    pub(crate) failed: u64,
}

/// The consequences of a completion: memory to check, and STags that are invalid now.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) spans: Vec<Span>,
    pub(crate) ended: Vec<Name>,
}

impl Model {
    /// Whether the send queue accepts a request with the local memory `local`: all of this memory has to be
    /// valid.
    pub(crate) fn takes(&self, local: &[Span]) -> bool {
        local.iter().all(|span| self.memory.regions[span.region].life != Validity::Gone)
    }

    pub(crate) fn may_end(&mut self, stream: usize, cause: Cause, finder: usize, sure: bool) {
        self.streams[stream].possible_ends.push(PossibleEnd { cause, finder, sure });
    }

    /// Records that the send queue has accepted a request. `late` means that the queue pair was in the error
    /// state.
    pub(crate) fn posted(&mut self, by: StreamEnd, op: u64, meaning: Semantics, late: bool) {
        let (stream, side) = by;
        let hopeless = !late && self.is_taken(&meaning, by);
        let gives = if late { None } else { self.start(by, op, &meaning) };
        self.streams[stream].ends[side].sent.push_back(Sent { op, meaning, gives, late, hopeless });
    }

    /// Starts the effects of a request. Returns the STag that the request makes valid.
    fn start(&mut self, by: StreamEnd, op: u64, meaning: &Semantics) -> Option<Name> {
        let (stream, side) = by;
        let here = if meaning.flow == Flow::Out { Cause::Local } else { Cause::Sink };
        if self.is_taken(meaning, by) {
            self.may_end(stream, here, side, true);
            self.streams[stream].ends[side].poisoned |= meaning.flow == Flow::Out;
        } else if !meaning.inline && self.any_unsteady(&meaning.local, by) {
            self.may_end(stream, here, side, false);
        }
        if meaning.wrong {
            self.may_end(stream, Cause::Bind, side, true);
            self.streams[stream].ends[side].poisoned = true;
        }
        let remote = meaning.remote.filter(|remote| remote.len > 0);
        let reach = remote.map(|remote| self.reach(by, &remote));
        // Inline payload is copied at the post, before any fence.
        let view = View { by, flow: meaning.flow, fenced: meaning.fenced && !meaning.inline };
        let span = |reach: Option<usize>| -> Vec<Span> {
            let target = remote.and_then(|remote| Some((remote.name?, remote.at)));
            let span = target.zip(reach).map(|((name, at), len)| Span {
                region: self.memory.grant(name).region,
                at,
                len,
            });
            span.filter(|span| span.len > 0).into_iter().collect()
        };
        let (from, to) = match meaning.flow {
            Flow::Out => (meaning.local.clone(), span(reach)),
            Flow::In if reach.is_some_and(|reach| remote.is_some_and(|remote| reach < remote.len)) => {
                (vec![], vec![])
            }
            Flow::In | Flow::Change => (span(reach), meaning.local.clone()),
        };
        let values = self.memory.fetch(&from, view);
        let immediate = meaning.message.as_ref().and_then(|message| message.immediate);
        let payload = Effect {
            flow: meaning.flow,
            message: meaning.message.is_some() && immediate.is_none(),
            fenced: meaning.fenced,
            from,
            to,
            through: remote.filter(|_| meaning.flow == Flow::Out).and_then(|remote| remote.name),
            asked: remote.filter(|_| meaning.flow == Flow::In).and_then(|remote| remote.name),
            values,
            fetching: !meaning.inline,
            ..Effect::of(op, by)
        };
        if let Some(change) = meaning.change {
            let values = changed(change, &payload.values);
            let from = payload.from.clone();
            self.memory.begin(payload);
            let (flow, to) = (Flow::Change, from.clone());
            let through = remote.and_then(|remote| remote.name);
            self.memory.begin(Effect { flow, from, to, through, values, ..Effect::of(op, by) });
        } else {
            self.memory.begin(payload);
        }
        if let Some(bytes) = immediate {
            let values = bytes.into_iter().map(Some).collect();
            self.memory.begin(Effect { message: true, values, ..Effect::of(op, by) });
        }
        if let Some(message) = &meaning.message {
            self.announce(by, op, message);
        }
        if let Some(name) = meaning.takes {
            if meaning.completes == WcOpcode::LocalInvalidate && !self.memory.grant(name).is_there_for(by) {
                self.may_end(stream, Cause::Local, side, false);
            }
            self.ending(name, Some(Asker { op, by, fenced: meaning.fenced }));
            self.memory.take(name, by);
        }
        meaning.gives.as_ref().map(|new_name| self.give(by, new_name))
    }

    /// Adds an STag that becomes valid later.
    fn give(&mut self, by: StreamEnd, new_name: &NewName) -> Name {
        match new_name {
            NewName::Binding(binding) => {
                let number = self.memory.bindings.len();
                if !self.memory.grant(Name::Region(binding.region)).is_there_for(by) {
                    self.may_end(by.0, Cause::Bind, by.1, false);
                }
                let window = &mut self.memory.windows[binding.window];
                (window.bound, window.key) = (Some(number), binding.key);
                self.memory.bindings.push(binding.clone());
                Name::Binding(number)
            }
            &NewName::Region { old, at, len, addr, key, access } => {
                // The registration gets the present bytes, unless an effect is under way on these bytes.
                let before = &self.memory.regions[old];
                let whole = Span { region: old, at: 0, len: before.base.len() };
                let view = View { by, flow: Flow::Out, fenced: false };
                let base = self.memory.fetch(&[whole], view);
                let before = &mut self.memory.regions[old];
                before.left = true;
                let (host, stream) = (before.host, before.stream);
                self.memory.regions.push(Region {
                    host,
                    at,
                    len,
                    addr,
                    key,
                    access,
                    stream,
                    life: Validity::Coming,
                    giver: Some(by),
                    taker: None,
                    prepared: true,
                    left: false,
                    base,
                });
                Name::Region(self.memory.regions.len() - 1)
            }
        }
    }

    /// Returns how many bytes of `remote` the peer allows the request to access. If the peer does not allow
    /// all bytes, the stream will end.
    fn reach(&mut self, by: StreamEnd, remote: &Remote) -> usize {
        let (stream, side) = by;
        let grant = remote.name.map(|name| self.memory.grant(name));
        let granted = grant.filter(|grant| {
            grant.life != Validity::Gone
                && grant.access.contains(remote.right)
                && grant.stream.is_none_or(|only| only == stream)
                && grant.at <= remote.at
        });
        let reach = granted.map_or(0, |grant| grant.end().saturating_sub(remote.at).min(remote.len));
        let unsteady = granted.is_some_and(|grant| grant.life != Validity::Valid);
        let cause = if remote.right == Access::REMOTE_WRITE { Cause::Write } else { Cause::Read };
        if reach < remote.len || unsteady {
            self.may_end(stream, cause, 1 - side, reach < remote.len);
        }
        if reach == remote.len && remote.right == Access::REMOTE_ATOMIC && !remote.at.is_multiple_of(8) {
            self.may_end(stream, Cause::Misaligned, 1 - side, true);
            self.streams[stream].ends[side].poisoned = true;
            return 0;
        }
        self.streams[stream].ends[side].poisoned |= reach < remote.len;
        reach
    }

    fn announce(&mut self, by: StreamEnd, op: u64, message: &Message) {
        let (stream, side) = by;
        let cut_off = self.streams[stream].ends[side].poisoned;
        self.streams[stream].ends[1 - side].arriving.push_back(Arriving {
            op,
            message: message.clone(),
            cut_off,
        });
        if self.streams[stream].ends[1 - side].shared {
            self.note_shared_ends(1 - side);
        } else {
            self.pair(stream, 1 - side, self.streams[stream].ends[1 - side].arriving.len() - 1);
        }
        if let Some((_, name)) = message.invalidates {
            let grant = name.map(|name| self.memory.grant(name));
            // A peer can invalidate only STags that the peer may use.
            let allowed = grant.filter(|grant| {
                grant.stream == Some(stream)
                    && grant.life != Validity::Gone
                    && grant.revocable
                    && grant.access.intersects(Access::REMOTE)
            });
            if let Some((grant, name)) = allowed.zip(name) {
                if grant.life != Validity::Valid {
                    self.may_end(stream, Cause::Invalidate, 1 - side, false);
                }
                // The request invalidates memory of the peer. Earlier Reads place no bytes in this memory.
                self.ending(name, Some(Asker { op, by, fenced: false }));
            } else {
                self.may_end(stream, Cause::Invalidate, 1 - side, true);
                self.streams[stream].ends[side].poisoned = true;
            }
        }
    }

    /// Pairs message number `n` that is sent to `side` with receive request number `n` of `side`, as soon as
    /// both exist.
    fn pair(&mut self, stream: usize, side: usize, n: usize) {
        let end = &self.streams[stream].ends[side];
        // No message arrives after the receives were flushed.
        let Some(arriving) = end.arriving.get(n).filter(|_| !end.flushed_recv) else { return };
        let Some(received) = end.received.get(n) else {
            return self.may_end(stream, Cause::NoReceive, side, false);
        };
        let (op, len, spans) = (arriving.op, arriving.message.len, received.spans.clone());
        let room: usize = spans.iter().map(|span| span.len).sum();
        if len > room {
            self.may_end(stream, Cause::TooLong, side, true);
            self.streams[stream].ends[1 - side].poisoned = true;
        }
        if self.any_unsteady(&spans, application(side)) {
            self.may_end(stream, Cause::Receive, side, false);
        }
        self.memory.aim(op, &cut(&spans, 0, len.min(room)));
    }

    /// Whether the request that makes `name` valid has not completed yet.
    pub(crate) fn is_to_come(&self, name: Name) -> bool {
        let ends = self.streams.iter().flat_map(|stream| &stream.ends);
        ends.flat_map(|end| &end.sent).any(|sent| sent.gives == Some(name))
    }

    /// Records that the receive queue has accepted a request.
    pub(crate) fn posted_receive(&mut self, by: StreamEnd, op: u64, spans: Vec<Span>, late: bool) {
        let (stream, side) = by;
        let end = &mut self.streams[stream].ends[side];
        end.received.push_back(Received { op, spans, late });
        if !late {
            let n = end.received.len() - 1;
            self.pair(stream, side, n);
        }
    }

    /// Whether some memory of `spans` may be invalid for a request that `by` posts now.
    pub(crate) fn any_unsteady(&self, spans: &[Span], by: StreamEnd) -> bool {
        spans.iter().any(|span| !self.memory.grant(Name::Region(span.region)).is_there_for(by))
    }

    /// Whether an earlier request of `by` invalidates local memory of the request that is posted now. Inline
    /// payload is copied at the post and is not affected.
    fn is_taken(&self, meaning: &Semantics, by: StreamEnd) -> bool {
        let taken = |span: &Span| self.memory.grant(Name::Region(span.region)).is_taken_by(by);
        !meaning.inline && meaning.local.iter().any(taken)
    }

    /// Records that the endpoint `by` closes gracefully.
    pub(crate) fn closes(&mut self, by: StreamEnd) {
        let (stream, side) = by;
        self.may_end(stream, Cause::Close, side, true);
        self.streams[stream].ends[side].closed = true;
    }

    /// Records the event of the end at `side`. The event arrives after all completions of this side.
    pub(crate) fn disconnected(
        &mut self,
        by: StreamEnd,
        error: Option<ConnectionError>,
    ) -> Result<Found, String> {
        let (stream, side) = by;
        let Stream { ends, possible_ends } = &mut self.streams[stream];
        let end = &mut ends[side];
        if std::mem::replace(&mut end.over, true) {
            return Err("its end was told twice".into());
        }
        if possible_ends.is_empty() {
            return Err(format!("side {side} of stream {stream} ended without a cause: {error:?}"));
        }
        if let Some(ConnectionError::Stream(error)) = error
            && !possible_ends.iter().any(|possible| possible.explains(side, error))
        {
            return Err(format!(
                "side {side} of stream {stream} ended with {error}, not of {possible_ends:?}"
            ));
        }
        let aborted = |possible: &PossibleEnd| possible.cause == Cause::Abort && possible.finder == side;
        if possible_ends.iter().all(aborted) && error != Some(ConnectionError::Tcp(CloseReason::Aborted)) {
            return Err(format!(
                "side {side} of stream {stream} was aborted by its user, and says {error:?}"
            ));
        }
        if end.shared != end.last_told {
            return Err(format!(
                "side {side} of stream {stream}: the end of its shared receives was not told"
            ));
        }
        if let Some(left) = end.received.front() {
            return Err(format!("receive {} was not flushed", left.op));
        }
        if let Some(left) = end.sent.iter().find(|sent| sent.meaning.signaled) {
            return Err(format!("request {} was not completed", left.op));
        }
        // An unsignaled request that fails generates a completion. The remaining unsignaled requests
        // therefore succeeded.
        let (late, done): (_, VecDeque<Sent>) =
            std::mem::take(&mut end.sent).into_iter().partition(|sent| sent.late);
        end.sent = late;
        if let Some(hopeless) = done.iter().find(|sent| sent.hopeless) {
            return Err(hopeless.unjust());
        }
        let ended = done.iter().flat_map(|sent| self.done(sent)).collect();
        Ok(Found { spans: Vec::new(), ended })
    }

    /// Returns why something is still under way, or `None` if nothing is.
    pub(crate) fn unrest(&self) -> Option<String> {
        self.streams.iter().enumerate().find_map(|(number, stream)| {
            let [a, b] = &stream.ends;
            let owed = stream.ends.iter().map(End::owed).sum::<usize>();
            let late =
                stream.ends.iter().map(|end| end.received.iter().filter(|r| r.late).count()).sum::<usize>();
            if stream.is_over() {
                return (owed + late > 0)
                    .then(|| format!("stream {number} is over and owes {owed} + {late} completions"));
            }
            if a.over || b.over {
                return Some(format!("stream {number} is over at one end ({:?})", stream.possible_ends));
            }
            if stream.possible_ends.iter().any(|possible| possible.sure) {
                return Some(format!("stream {number} should have ended: {:?}", stream.possible_ends));
            }
            let arriving = a.arriving.len() + b.arriving.len();
            (owed + arriving > 0)
                .then(|| format!("stream {number} owes {owed} completions and {arriving} messages"))
        })
    }

    /// Records that nothing is under way any more: unsignaled requests are complete, and a graceful close has
    /// delivered all messages. Returns an error if a message that was sent before a graceful close was not
    /// delivered.
    pub(crate) fn quiet(&mut self) -> Result<Found, String> {
        self.shut_shared();
        let mut done = Vec::new();
        for (number, stream) in self.streams.iter_mut().enumerate() {
            if !stream.is_over() {
                stream.possible_ends.retain(|possible| possible.cause == Cause::Wire);
                // If the wire corrupts bytes, the length of the last FPDU may be wrong, and the receiver
                // waits for more bytes.
                if stream.possible_ends.is_empty() {
                    self.memory.settle(|effect| effect.by.0 == number);
                }
                stream.ends.iter_mut().for_each(|end| done.extend(end.sent.drain(..)));
            } else if let Some(side) = stream.closed_by() {
                if let Some(lost) = stream.ends[1 - side].arriving.front() {
                    return Err(format!("message {} was sent before a graceful close, and lost", lost.op));
                }
                self.memory.settle(|effect| effect.by == (number, side));
            }
            if stream.is_over() {
                for end in &mut stream.ends {
                    *end = End { over: true, shared: end.shared, closed: end.closed, ..End::default() };
                }
            }
        }
        let ended = done.iter().flat_map(|sent| self.done(sent)).collect();
        Ok(Found { spans: Vec::new(), ended })
    }
}

/// Returns the eight bytes after an atomic, in the machine's byte order. Each byte is `None` if the old bytes
/// are unknown.
fn changed(op: AtomicOp, before: &[Option<u8>]) -> Vec<Option<u8>> {
    let bytes: Option<Vec<u8>> = before.iter().copied().collect();
    let Some(Ok(bytes)) = bytes.map(<[u8; 8]>::try_from) else { return vec![None; before.len()] };
    let before = u64::from_ne_bytes(bytes);
    let after = match op {
        AtomicOp::FetchAdd { add, mask } => {
            // Adds the fields bit by bit. The carry out of the highest bit of a field is dropped.
            let mut carry = 0;
            (0..64).fold(0, |sum, bit| {
                let digits = (before >> bit & 1) + (add >> bit & 1) + carry;
                carry = if mask >> bit & 1 == 1 { 0 } else { digits >> 1 };
                sum | (digits & 1) << bit
            })
        }
        AtomicOp::CmpSwap { compare, compare_mask, swap, swap_mask } => {
            let equal = before & compare_mask == compare & compare_mask;
            if equal { before & !swap_mask | swap & swap_mask } else { before }
        }
        AtomicOp::Swap { swap } => swap,
    };
    after.to_ne_bytes().map(Some).to_vec()
}
