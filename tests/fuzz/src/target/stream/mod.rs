//! A live RDMA stream. The peer sends FPDUs, most of them with valid CRC, markers and length. Their DDP and
//! RDMAP fields are close to the state of the connection and its memory. The segments may arrive out of
//! order. The user has receives, outstanding Reads and atomics, and bound windows. The engine is the
//! responder, or the initiator with any RTR.
//!
//! Rules: only lent memory changes; the engine sends valid FPDUs, byte by byte, and nothing after its
//! Terminate; an error that the engine detects causes a Terminate with codes from the RFCs' tables, and the
//! user gets the same codes; every request that is not silent (`ledger.rs`) completes exactly once; at the
//! end the engine holds nothing.

mod memory;
mod peer;

use std::time::Duration;

use iwarp::memory::WindowKind;
use iwarp::mpa::{Framer, RtrKinds};
use iwarp::rdmap::{AtomicOp, AtomicRequest, ReadRequest, Terminate};
use iwarp::verbs::{
    CmEventKind, CmId, CompletionQueue, ConnParam, EventChannel, ProtectionDomain, QpGrants, QpInit, QpState,
    QueuePair, RecvRequest, RemoteAddr, SendOp, SendRequest, SharedReceiveQueue, SrqInit,
};
use tcp_lite::CloseReason;

use self::memory::Memory;
use self::peer::Peer;
use super::gate::GateControl;
use super::ledger::Ledger;
use super::rig::raw::{RawPair, fpdu, frame, ulpdus};
use super::rig::{PORT, assert_all_given_back, gated_rig, pass, queues};
use super::trace::trace;
use crate::input::Input;

/// Maximum number of actions of one input.
const ACTIONS: usize = 64;

/// Time, in microseconds, after which all timeouts of a close have passed.
const REST_US: i64 = 120_000_000;

/// An RDMA Write of no bytes. A responder may send only after the peer's first FPDU, and this Write is such
/// an FPDU.
const EMPTY_WRITE: [u8; 14] = [0xc1, 0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// The private data of the peer's Reply: it requests a Write, a Read or a Send as RTR, with depths of 4 (RFC
/// 6581 section 9).
const RTR: [[u8; 4]; 3] = [[0x80, 4, 0xc0, 4], [0x80, 4, 0x40, 4], [0xc0, 4, 0, 4]];

struct Run {
    raw: Box<RawPair>,
    /// Holds, releases and drops the peer's frames.
    hand: GateControl,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    channel: EventChannel,
    listener: CmId,
    id: CmId,
    qp: QueuePair,
    /// A queue pair that is never connected. Some memory is bound to it.
    other_qp: QueuePair,
    srq: Option<SharedReceiveQueue>,
    memory: Memory,
    ledger: Ledger,
    peer: Peer,
    /// The settings of the engine's framer.
    theirs: Framer,
    /// FPDUs that the peer has not sent yet.
    pending: Vec<u8>,
    /// The engine's Terminate.
    terminate: Option<Terminate>,
    /// Whether the peer has closed or reset the connection.
    peer_left: bool,
    disconnected: bool,
}

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut run = Run::open(&mut input);
    for _ in 0..ACTIONS {
        if input.is_empty() || run.disconnected {
            break;
        }
        run.act(&mut input);
    }
    run.end();
}

impl Run {
    fn open(input: &mut Input<'_>) -> Self {
        let setup = input.u8();
        let bit = |at: u8| setup >> at & 1 == 1;
        let (their_markers, own_markers, crc) = (bit(0), bit(1), !bit(2));
        let (mut raw, hand) = gated_rig(crc);
        let context = raw.context.clone();
        let room = "within the limit";
        let pd = context.alloc_pd().expect(room);
        let cq = context.create_cq(128, None).expect(room);
        let channel = context.create_event_channel().expect(room);
        let listener = context.create_id(&channel);
        listener.listen(PORT, 4, Duration::from_secs(5)).expect("a free port");
        let srq = bit(3).then(|| pd.create_srq(&SrqInit { max_wr: 16, ..SrqInit::default() }).expect(room));
        let init = QpInit { srq: srq.as_ref(), sq_sig_all: true, grants: QpGrants::all(), ..queues(&cq) };
        let qp = pd.create_qp(&init).expect(room);
        let kind = if bit(4) { WindowKind::Type1 } else { WindowKind::Type2 };
        let other_qp = pd.create_qp(&queues(&cq)).expect(room);
        let stranger = context.alloc_pd().expect(room);
        let memory = Memory::new(&pd, kind, setup, [&qp, &other_qp], &stranger);
        let depth = if bit(5) { 1 } else { 4 };
        let (dials, ready_to_receive) = (bit(6), bit(6) && bit(7));
        let param = ConnParam {
            markers: own_markers,
            responder_resources: depth,
            initiator_depth: depth,
            peer_to_peer: !dials || ready_to_receive,
            rtr: RtrKinds::all(),
            ..ConnParam::default()
        };
        let flags = 0x10 | u8::from(their_markers) << 7 | u8::from(crc) << 6;
        let mut framer = Framer::new(own_markers, crc);
        let id;
        if dials {
            raw.listen();
            id = context.create_id(&channel);
            id.connect(&qp, ([10, 0, 0, 2], PORT).into(), &param).expect("it may connect");
            assert!(raw.until(1_000_000, |raw| raw.inbox.len() >= 24), "no Request");
            raw.inbox.drain(..24);
            let depths = if ready_to_receive { RTR[usize::from(setup >> 3) % 3] } else { [0, 4, 0, 4] };
            raw.send(&frame("Rep", flags, 2, &depths));
        } else {
            raw.connect();
            raw.send(&frame("Req", flags, 2, &[0, 4, 0, 4]));
            id = raw.next_event(&channel, 1_000_000).expect("a connect request").id;
            id.accept(&qp, &param).expect("it waits");
            assert!(raw.until(1_000_000, |raw| raw.inbox.len() >= 24), "no Reply");
            raw.inbox.drain(..24);
            let ready = fpdu(&mut framer, &EMPTY_WRITE);
            raw.send(&ready);
        }
        let event = raw.next_event(&channel, 1_000_000).expect("an event");
        assert!(matches!(event.kind, CmEventKind::Established { .. }), "{event:?}");
        let theirs = Framer::new(their_markers, crc);
        let mut run = Self {
            raw,
            hand,
            pd,
            cq,
            channel,
            listener,
            id,
            qp,
            other_qp,
            srq,
            memory,
            ledger: Ledger::default(),
            peer: Peer::new(framer),
            theirs,
            pending: Vec::new(),
            terminate: None,
            peer_left: false,
            disconnected: false,
        };
        run.register_memory();
        run
    }

    /// Binds the window, registers the fast regions, and posts some receives.
    fn register_memory(&mut self) {
        self.post(SendOp::FastRegister(self.memory.opening()), None);
        if self.memory.window.kind() == WindowKind::Type2 {
            self.post(SendOp::BindWindow(self.memory.binding()), None);
        } else {
            let binding = self.memory.binding();
            let wr_id = self.ledger.next();
            let place = (&self.memory.closed, 128, binding.length);
            if self.qp.bind_mw(wr_id, &self.memory.window, place, binding.access).is_ok() {
                self.ledger.post(wr_id, Some(self.qp.qp_num()), false);
            }
        }
        self.post(SendOp::FastRegister(self.memory.registration()), None);
        (0..3).for_each(|at| self.receive(at * 40, 40));
        pass(&mut self.raw, 100);
        self.handle_engine();
    }

    fn act(&mut self, input: &mut Input<'_>) {
        match input.below(16) {
            0..=8 => {
                let bytes = self.peer.fpdu(input, &self.memory);
                trace(format_args!("{} the peer frames {:02x?}", self.raw.now_us, self.peer.last_ulpdu()));
                self.pending.extend(bytes);
                if !input.one_in(3) {
                    self.flush(input);
                }
            }
            9 | 10 => self.user_call(input),
            11 => self.receive(input.below(128), input.below(129)),
            12 => {
                self.flush(input);
                pass(&mut self.raw, i64::from(input.size() % 10_000_000));
            }
            13 => {
                if self.raw.has_connection() && !self.raw.is_over() && input.one_in(3) {
                    self.flush(input);
                    self.peer_left = true;
                    if input.one_in(2) { self.raw.close() } else { self.raw.abort() }
                }
            }
            14 => match input.below(12) {
                0 => self.id.disconnect(),
                1 => drop(self.qp.modify(QpState::Terminate)),
                2 => drop(self.qp.modify(QpState::Closing)),
                3 => self.memory.fast.invalidate(),
                4 => self.memory.closed.invalidate(),
                5 => self.post(SendOp::LocalInvalidate { rkey: self.memory.window.rkey() }, None),
                6 => self.post(SendOp::FastRegister(self.memory.registration()), None),
                7 => self.post(SendOp::BindWindow(self.memory.binding()), None),
                8 => self.hand.hold(1 + input.below(3)),
                9 => self.hand.release(false),
                10 => self.hand.release(true),
                _ => self.hand.lose(),
            },
            _ => self.raw.poll(),
        }
        self.handle_engine();
    }

    /// Makes a call of the user. The input chooses the call.
    fn user_call(&mut self, input: &mut Input<'_>) {
        let sge = self.memory.local(input.one_in(2), input.below(512), input.below(512));
        let remote = RemoteAddr { addr: 0x1000, rkey: 0x100 };
        match input.below(6) {
            0 => self.post(SendOp::Send, Some(sge)),
            1 => self.post(SendOp::Write { remote }, Some(sge)),
            2 | 3 => self.post(SendOp::Read { remote }, Some(sge)),
            4 => {
                let op = AtomicOp::FetchAdd { add: 1, mask: 0 };
                self.post(
                    SendOp::Atomic { remote, op },
                    Some(self.memory.local(false, 8 * input.below(60), 8)),
                );
            }
            _ => self.post(SendOp::Immediate { data: [7; 8] }, None),
        }
    }

    fn post(&mut self, op: SendOp, sge: Option<iwarp::verbs::Sge>) {
        let wr_id = self.ledger.next();
        let request = match sge {
            Some(sge) => SendRequest::new(wr_id, op, sge),
            None => SendRequest::empty(wr_id, op),
        };
        if self.qp.post_send(&request).is_ok() {
            self.ledger.post(wr_id, Some(self.qp.qp_num()), false);
        }
    }

    fn receive(&mut self, at: usize, bytes: usize) {
        let wr_id = self.ledger.next();
        let request = RecvRequest::new(wr_id, self.memory.local(true, at, bytes));
        let (posted, qp_num) = match &self.srq {
            Some(srq) => (srq.post_recv(&request), None),
            None => (self.qp.post_recv(&request), Some(self.qp.qp_num())),
        };
        if posted.is_ok() {
            self.ledger.post(wr_id, qp_num, false);
        }
    }

    /// Sends pending bytes, in segments whose boundaries need not be FPDU boundaries.
    fn flush(&mut self, input: &mut Input<'_>) {
        let pending = std::mem::take(&mut self.pending);
        let piece = if input.one_in(3) { 1 + input.below(500) } else { pending.len().max(1) };
        for bytes in pending.chunks(piece.max(16)) {
            if self.peer_left || self.raw.is_over() {
                return;
            }
            self.raw.send(bytes);
        }
    }

    /// Handles the engine's FPDUs and the user's events.
    fn handle_engine(&mut self) {
        for ulpdu in ulpdus(&mut self.theirs, &mut self.raw.inbox) {
            trace(format_args!("{} the engine says {ulpdu:02x?}", self.raw.now_us));
            assert!(self.terminate.is_none(), "behind the Terminate: {ulpdu:02x?}");
            match ulpdu[1] & 0x0f {
                1 => {
                    let request = ReadRequest::parse(&ulpdu[18..]).expect("a Read Request");
                    self.peer.reads.push((request.sink_stag.0, request.sink_to, request.size));
                }
                7 => {
                    let terminate = Terminate::parse(&ulpdu[18..]).expect("a Terminate");
                    assert!(terminate.error().is_some(), "codes that no table has: {terminate:?}");
                    self.terminate = Some(terminate);
                }
                10 => {
                    let request = AtomicRequest::parse(&ulpdu[18..]).expect("an Atomic Request");
                    self.peer.atomics.push(request.id);
                }
                _ => {}
            }
        }
        while let Some(event) = self.channel.poll() {
            assert!(!self.disconnected, "{event:?} after the end");
            assert!(matches!(event.kind, CmEventKind::Disconnected { .. }), "{event:?}");
            self.disconnected = true;
        }
        self.ledger.reap(&self.cq, |_| {});
    }

    fn end(mut self) {
        self.hand.release(false);
        pass(&mut self.raw, 20_000);
        self.handle_engine();
        if let (Some(terminate), Some(error)) = (&self.terminate, self.qp.error()) {
            let said = (terminate.layer, terminate.etype, terminate.code);
            assert!(
                error.from_peer || said == (error.layer, error.etype, error.code),
                "the Terminate has {said:?}, but the user got {error:?}"
            );
        }
        // If all segments of the peer were held, the peer has timed out and receives no Terminate.
        let gone = self.peer_left || self.raw.closed == Some(CloseReason::TimedOut);
        if let Some(error) = self.qp.error().filter(|error| !error.from_peer && !gone) {
            // The engine does not report a lost connection to the peer.
            let lost = (error.layer, error.etype, error.code) == (2, 0, 1);
            assert!(
                lost || self.terminate.is_some() || !self.raw.is_over(),
                "{error:?} was not told to the peer"
            );
        }
        // Ends the queue pair, and flushes all requests.
        let _over = self.qp.modify(QpState::Error);
        pass(&mut self.raw, 1_000_000);
        self.handle_engine();
        self.ledger.assert_settled();
        self.memory.assert_guards();
        let Self { mut raw, pd, cq, channel, listener, id, qp, other_qp, srq, memory, .. } = self;
        drop((id, qp, other_qp, srq, memory, listener, pd, cq, channel));
        if !raw.is_over() {
            raw.abort();
        }
        assert_all_given_back(raw, REST_US);
    }
}
