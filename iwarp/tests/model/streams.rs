//! What streams owe their users: who completes, in which order, with what; and what each completion says about memory.
//!
//! Independent of the stack: it knows requests, completions and the documents. What cannot be told from outside (a race
//! between an error and what was posted) is a [`Doom`], which widens what is allowed.

mod completions;

use std::collections::VecDeque;

use iwarp::memory::Access;
use iwarp::verbs::{AtomicOp, ConnectionError, WcOpcode};

use super::cause::{Cause, Doom};
use super::memory::{By, Effect, Flow, Life, Memory, RegionId, Span, View, cut};

/// A part of the peer's memory that a request names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remote {
    /// `None`: its key is nobody's.
    pub(crate) region: Option<RegionId>,
    pub(crate) at: usize,
    pub(crate) len: usize,
    /// The right it takes.
    pub(crate) right: Access,
}

/// What a message says in the receive completion of the peer.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) opcode: WcOpcode,
    pub(crate) len: usize,
    pub(crate) solicited: bool,
    pub(crate) immediate: Option<[u8; 8]>,
    /// A key that it invalidates, and whose that is.
    pub(crate) invalidates: Option<(u32, Option<RegionId>)>,
}

/// All that a request means. A new kind of request is described by this and nothing else.
#[derive(Clone, Debug)]
pub(crate) struct Meaning {
    /// Where the payload goes.
    pub(crate) flow: Flow,
    /// Memory of the poster, in order.
    pub(crate) local: Vec<Span>,
    /// The payload is copied when it is posted.
    pub(crate) inline: bool,
    /// Memory of the peer.
    pub(crate) remote: Option<Remote>,
    /// What is done to the peer's memory, whose old octets are the payload.
    pub(crate) change: Option<AtomicOp>,
    /// Consumes a receive request of the peer.
    pub(crate) message: Option<Message>,
    /// A region of the poster that is invalid afterwards.
    pub(crate) invalidates: Option<RegionId>,
    pub(crate) completes: WcOpcode,
    pub(crate) byte_len: usize,
    pub(crate) signaled: bool,
    pub(crate) fenced: bool,
}

struct Sent {
    op: u64,
    meaning: Meaning,
    /// Posted to a queue pair that was over: it completes as flushed, whatever its flags.
    late: bool,
}

struct Received {
    op: u64,
    spans: Vec<Span>,
    late: bool,
}

struct Arriving {
    op: u64,
    message: Message,
    /// Lies behind something that ends the stream: must not arrive.
    cut_off: bool,
}

/// One end of a stream.
#[derive(Default)]
pub(crate) struct End {
    sent: VecDeque<Sent>,
    received: VecDeque<Received>,
    /// Messages of the peer on their way here.
    arriving: VecDeque<Arriving>,
    blamed_send: bool,
    blamed_recv: bool,
    flushed_recv: bool,
    /// Something was posted that ends the stream when it arrives.
    poisoned: bool,
    /// Its end was told.
    pub(crate) over: bool,
    /// The last request posted before it closed gracefully.
    closed_after: Option<u64>,
    pub(crate) reads: bool,
}

impl End {
    /// Receive requests that no message has taken.
    pub(crate) fn receives(&self) -> usize {
        self.received.len().saturating_sub(self.arriving.len())
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.sent.len()
    }

    /// Requests whose completion must come.
    pub(crate) fn owed(&self) -> usize {
        self.sent.iter().filter(|sent| sent.meaning.signaled || sent.late).count()
    }
}

/// One connection.
#[derive(Default)]
pub(crate) struct Stream {
    pub(crate) ends: [End; 2],
    pub(crate) dooms: Vec<Doom>,
}

impl Stream {
    pub(crate) fn is_over(&self) -> bool {
        self.ends.iter().all(|end| end.over)
    }

    /// The side that closed, where nothing but that ends the stream.
    fn closed_by(&self) -> Option<usize> {
        let first = self.dooms.first()?;
        let alone = self.dooms.iter().all(|doom| (doom.cause, doom.finder) == (Cause::Close, first.finder));
        alone.then_some(first.finder)
    }
}

/// Everything that may be seen.
#[derive(Default)]
pub(crate) struct Model {
    pub(crate) memory: Memory,
    pub(crate) streams: Vec<Stream>,
    /// Completions taken, by success or not.
    pub(crate) succeeded: u64,
    pub(crate) failed: u64,
}

/// What was found out by a completion: memory to look at, and a region that must be invalid now.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) spans: Vec<Span>,
    pub(crate) invalid: Option<RegionId>,
}

impl Model {
    /// Whether a request may be posted: its local memory is valid.
    pub(crate) fn takes(&self, local: &[Span]) -> bool {
        local.iter().all(|span| self.memory.regions[span.region].life != Life::Gone)
    }

    pub(crate) fn doom(&mut self, stream: usize, cause: Cause, finder: usize, sure: bool) {
        self.streams[stream].dooms.push(Doom { cause, finder, sure });
    }

    /// A send request was taken. `late`: by a queue pair that was over.
    pub(crate) fn posted(&mut self, by: By, op: u64, meaning: Meaning, late: bool) {
        let (stream, side) = by;
        if !late {
            self.start(by, op, &meaning);
        }
        self.streams[stream].ends[side].sent.push_back(Sent { op, meaning, late });
    }

    fn start(&mut self, by: By, op: u64, meaning: &Meaning) {
        let (stream, side) = by;
        let here = if meaning.flow == Flow::Out { Cause::Local } else { Cause::Sink };
        if self.any_ending(&meaning.local) {
            self.doom(stream, here, side, false);
        }
        let remote = meaning.remote.filter(|remote| remote.len > 0);
        let reach = remote.map(|remote| self.reach(by, &remote));
        let view = View { by, flow: meaning.flow, fenced: meaning.fenced };
        let span = |reach: Option<usize>| -> Vec<Span> {
            let target = remote.and_then(|remote| Some((remote.region?, remote.at)));
            let span = target.zip(reach).map(|((region, at), len)| Span { region, at, len });
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
            values,
            fetching: !meaning.inline,
            ..Effect::of(op, by)
        };
        if let Some(change) = meaning.change {
            let values = changed(change, &payload.values);
            let from = payload.from.clone();
            self.memory.begin(payload);
            let (flow, to) = (Flow::Change, from.clone());
            self.memory.begin(Effect { flow, from, to, values, ..Effect::of(op, by) });
        } else {
            self.memory.begin(payload);
        }
        if let Some(octets) = immediate {
            let values = octets.into_iter().map(Some).collect();
            self.memory.begin(Effect { message: true, values, ..Effect::of(op, by) });
        }
        if let Some(message) = &meaning.message {
            self.announce(by, op, message);
        }
        if let Some(region) = meaning.invalidates {
            self.ending(region, Some(op));
        }
    }

    /// Octets of `remote` that the peer's memory grants; notes the end of the stream where that is not all.
    fn reach(&mut self, by: By, remote: &Remote) -> usize {
        let (stream, side) = by;
        let region = remote.region.map(|region| &self.memory.regions[region]);
        let granted = region.filter(|region| {
            region.life != Life::Gone
                && region.access.contains(remote.right)
                && region.stream.is_none_or(|only| only == stream)
        });
        let reach = granted.map_or(0, |region| region.base.len().saturating_sub(remote.at).min(remote.len));
        let ending = granted.is_some_and(|region| region.life == Life::Ending);
        let cause = if remote.right == Access::REMOTE_WRITE { Cause::Write } else { Cause::Read };
        if reach < remote.len || ending {
            self.doom(stream, cause, 1 - side, reach < remote.len);
        } else if remote.right == Access::REMOTE_ATOMIC && !remote.at.is_multiple_of(8) {
            self.doom(stream, Cause::Misaligned, 1 - side, true);
            self.streams[stream].ends[side].poisoned = true;
            return 0;
        }
        self.streams[stream].ends[side].poisoned |= reach < remote.len;
        reach
    }

    fn announce(&mut self, by: By, op: u64, message: &Message) {
        let (stream, side) = by;
        let cut_off = self.streams[stream].ends[side].poisoned;
        self.streams[stream].ends[1 - side].arriving.push_back(Arriving {
            op,
            message: message.clone(),
            cut_off,
        });
        self.pair(stream, 1 - side, self.streams[stream].ends[1 - side].arriving.len() - 1);
        if let Some((_, region)) = message.invalidates {
            let owner = region.map(|region| &self.memory.regions[region]);
            // What a peer has no right to has no name on the wire.
            let allowed = owner.is_some_and(|region| {
                region.stream == Some(stream)
                    && region.life != Life::Gone
                    && region.access.intersects(Access::REMOTE)
            });
            if !allowed {
                self.doom(stream, Cause::Invalidate, 1 - side, true);
                self.streams[stream].ends[side].poisoned = true;
            } else if let Some(region) = region {
                if self.memory.regions[region].life == Life::Ending {
                    self.doom(stream, Cause::Invalidate, 1 - side, false);
                }
                self.ending(region, Some(op));
            }
        }
    }

    /// The `n`th message on its way to `side` and the `n`th receive request there go together, once both are there.
    fn pair(&mut self, stream: usize, side: usize, n: usize) {
        let end = &self.streams[stream].ends[side];
        // Once receives are flushed nothing arrives any more.
        let Some(arriving) = end.arriving.get(n).filter(|_| !end.flushed_recv) else { return };
        let Some(received) = end.received.get(n) else {
            return self.doom(stream, Cause::NoReceive, side, false);
        };
        let (op, len, spans) = (arriving.op, arriving.message.len, received.spans.clone());
        let room: usize = spans.iter().map(|span| span.len).sum();
        if len > room {
            self.doom(stream, Cause::TooLong, side, true);
            self.streams[stream].ends[1 - side].poisoned = true;
        }
        if self.any_ending(&spans) {
            self.doom(stream, Cause::Receive, side, false);
        }
        self.memory.aim(op, &cut(&spans, 0, len.min(room)));
    }

    /// A receive request was taken.
    pub(crate) fn posted_receive(&mut self, by: By, op: u64, spans: Vec<Span>, late: bool) {
        let (stream, side) = by;
        let end = &mut self.streams[stream].ends[side];
        end.received.push_back(Received { op, spans, late });
        if !late {
            let n = end.received.len() - 1;
            self.pair(stream, side, n);
        }
    }

    fn any_ending(&self, spans: &[Span]) -> bool {
        spans.iter().any(|span| self.memory.regions[span.region].life != Life::Valid)
    }

    /// An invalidation of `region` begins; `except` is the request that asks for it. What uses it may fail.
    pub(crate) fn ending(&mut self, region: RegionId, except: Option<u64>) {
        self.memory.regions[region].life = Life::Ending;
        let uses = |spans: &[Span]| spans.iter().any(|span| span.region == region);
        for stream in &mut self.streams {
            let mut dooms = Vec::new();
            for (side, end) in stream.ends.iter().enumerate() {
                for Sent { op, meaning, late } in &end.sent {
                    if *late || Some(*op) == except {
                        continue;
                    }
                    if uses(&meaning.local) || meaning.invalidates == Some(region) {
                        let local = meaning.flow == Flow::Out;
                        dooms.push((if local { Cause::Local } else { Cause::Sink }, side));
                    }
                    if meaning.remote.is_some_and(|remote| remote.region == Some(region)) {
                        let write = meaning.flow == Flow::Out;
                        dooms.push((if write { Cause::Write } else { Cause::Read }, 1 - side));
                    }
                }
                for received in end.received.iter().filter(|received| uses(&received.spans)) {
                    dooms.extend((!received.late).then_some((Cause::Receive, side)));
                }
                let named = |arriving: &&Arriving| {
                    arriving.message.invalidates.is_some_and(|(_, named)| named == Some(region))
                };
                for arriving in end.arriving.iter().filter(named) {
                    dooms.extend((Some(arriving.op) != except).then_some((Cause::Invalidate, side)));
                }
            }
            let dooms = dooms.into_iter().map(|(cause, finder)| Doom { cause, finder, sure: false });
            stream.dooms.extend(dooms);
        }
        // Writes that TCP has taken may still be on their way.
        for effect in self.memory.effects.iter().filter(|effect| effect.settled.is_none() && uses(&effect.to))
        {
            let (stream, side) = effect.by;
            let (cause, finder) = match effect.flow {
                Flow::Out => (Cause::Write, 1 - side),
                Flow::In => (Cause::Sink, side),
                Flow::Change => (Cause::Read, 1 - side),
            };
            self.streams[stream].dooms.push(Doom { cause, finder, sure: false });
        }
    }

    /// `side` closes gracefully.
    pub(crate) fn closes(&mut self, by: By) {
        let (stream, side) = by;
        self.doom(stream, Cause::Close, side, true);
        let end = &mut self.streams[stream].ends[side];
        let last = end.sent.back().map_or(0, |sent| sent.op);
        end.closed_after.get_or_insert(last.max(1));
    }

    /// The end of a connection was told at `side`, after all its completions.
    pub(crate) fn disconnected(&mut self, by: By, error: Option<ConnectionError>) -> Result<(), String> {
        let (stream, side) = by;
        let Stream { ends, dooms } = &mut self.streams[stream];
        let end = &mut ends[side];
        if std::mem::replace(&mut end.over, true) {
            return Err("its end was told twice".into());
        }
        if dooms.is_empty() {
            return Err(format!("side {side} of stream {stream} ended without a cause: {error:?}"));
        }
        if let Some(ConnectionError::Stream(error)) = error
            && !dooms.iter().any(|doom| doom.explains(side, error))
        {
            return Err(format!("side {side} of stream {stream} ended with {error}, not of {dooms:?}"));
        }
        if let Some(left) = end.received.front() {
            return Err(format!("receive {} was not flushed", left.op));
        }
        if let Some(left) = end.sent.iter().find(|sent| sent.meaning.signaled) {
            return Err(format!("request {} was not completed", left.op));
        }
        Ok(())
    }

    /// Why this is no quiescent point yet.
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
                return Some(format!("stream {number} is over at one end ({:?})", stream.dooms));
            }
            if stream.dooms.iter().any(|doom| doom.sure) {
                return Some(format!("stream {number} should have ended: {:?}", stream.dooms));
            }
            let arriving = a.arriving.len() + b.arriving.len();
            (owed + arriving > 0)
                .then(|| format!("stream {number} owes {owed} completions and {arriving} messages"))
        })
    }

    /// Nothing is under way any more. Returns what a graceful close has to have brought over.
    pub(crate) fn quiet(&mut self) -> Result<(), String> {
        for (number, stream) in self.streams.iter_mut().enumerate() {
            if !stream.is_over() {
                stream.dooms.retain(|doom| doom.cause == Cause::Wire);
                // The length of the last FPDU may have been turned: it waits for more.
                if stream.dooms.is_empty() {
                    self.memory.settle(|effect| effect.by.0 == number);
                }
                stream.ends.iter_mut().for_each(|end| end.sent.clear());
            } else if let Some(side) = stream.closed_by()
                && let Some(last) = stream.ends[side].closed_after
            {
                if let Some(lost) = stream.ends[1 - side].arriving.iter().find(|lost| lost.op <= last) {
                    return Err(format!("message {} was sent before a graceful close, and lost", lost.op));
                }
                let by = (number, side);
                self.memory.settle(|effect| effect.by == by && effect.op <= last);
            }
            if stream.is_over() {
                *stream = Stream { ends: Default::default(), dooms: std::mem::take(&mut stream.dooms) };
                stream.ends.iter_mut().for_each(|end| end.over = true);
            }
        }
        Ok(())
    }
}

/// What an atomic makes of eight octets, a number of this machine; `None` where they are not known.
fn changed(op: AtomicOp, before: &[Option<u8>]) -> Vec<Option<u8>> {
    let octets: Option<Vec<u8>> = before.iter().copied().collect();
    let Some(Ok(octets)) = octets.map(<[u8; 8]>::try_from) else { return vec![None; before.len()] };
    let before = u64::from_ne_bytes(octets);
    let after = match op {
        AtomicOp::FetchAdd { add, mask } => {
            // Bit by bit; behind the highest bit of a field the carry is dropped.
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
