//! An engine in either role, which starts MPA at once or after a plain stream, and a peer whose bytes come
//! from the input.
//!
//! Rules: the plain stream arrives unchanged; events arrive in a valid order; at the end the engine holds
//! nothing.

use std::time::Duration;

use iwarp::mpa::Framer;
use iwarp::mpa::RtrKinds;
use iwarp::verbs::{
    CmEventKind, CmId, CompletionQueue, ConnParam, EventChannel, ListenOptions, ProtectionDomain, QueuePair,
    ResponderOptions, StreamOptions, StreamRead,
};

use super::super::rig::{PORT, assert_all_given_back, pass, queues, raw::RawPair, raw::fpdu, rig};
use super::frames;
use crate::input::Input;

/// Maximum number of actions of one input.
const ACTIONS: usize = 40;

/// Time, in microseconds, after which all timeouts of startup and close have passed.
const REST_US: i64 = 200_000_000;

/// An RDMA Write of no bytes. A responder may send only after the peer's first FPDU, and this Write is such
/// an FPDU.
const EMPTY_WRITE: [u8; 14] = [0xc1, 0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// The progress of an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Begun,
    Streaming,
    Asked,
    Established,
    Over,
}

/// One identifier, and what its user knows about the state of its connection.
struct End {
    id: CmId,
    stage: Stage,
    /// Number of bytes read from the plain stream.
    read: usize,
    /// Whether MPA was started; it may have ended since then.
    started: bool,
}

struct Run {
    raw: Box<RawPair>,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    channel: EventChannel,
    listener: Option<CmId>,
    ends: Vec<End>,
    qps: Vec<QueuePair>,
    framer: Framer,
    /// Whether the engine is the side that connects.
    dials: bool,
    delayed: bool,
    /// The bytes that the peer has sent on each of its connections.
    said: Vec<Vec<u8>>,
}

/// Runs one input.
pub(super) fn run(input: &mut Input<'_>) {
    let mut raw = rig(true);
    let context = raw.context.clone();
    let pd = context.alloc_pd().expect("within the limit");
    let cq = context.create_cq(64, None).expect("within the limit");
    let channel = context.create_event_channel().expect("within the limit");
    let (dials, delayed) = (input.one_in(2), input.one_in(2));
    let options =
        StreamOptions { recv_bytes: input.pick(&[64, 1, 4096]), send_bytes: input.pick(&[64, 4096]) };
    let mut ends = Vec::new();
    let mut qps = Vec::new();
    let mut listener = None;
    if dials {
        raw.listen();
        let id = context.create_id(&channel);
        let remote = ([10, 0, 0, 2], PORT).into();
        if delayed {
            id.connect_stream(remote, options, &param(input)).unwrap_or_else(|error| panic!("{error}"));
            ends.push(End { id, stage: Stage::Begun, read: 0, started: false });
        } else {
            let qp = pd.create_qp(&queues(&cq)).expect("within the limit");
            if id.connect(&qp, remote, &param(input)).is_ok() {
                ends.push(End { id, stage: Stage::Begun, read: 0, started: false });
            }
            qps.push(qp);
        }
    } else {
        let id = context.create_id(&channel);
        let streaming = delayed.then_some(options);
        let responder = ResponderOptions {
            decision_timeout: Some(Duration::from_secs(5)),
            ..ResponderOptions::default()
        };
        id.listen_with(&ListenOptions { streaming, backlog: 4, responder, ..ListenOptions::new(PORT) })
            .expect("a free port");
        listener = Some(id);
        raw.connect();
    }
    pass(&mut raw, 500);
    let framer = Framer::new(false, true);
    let mut run =
        Run { raw, pd, cq, channel, listener, ends, qps, framer, dials, delayed, said: vec![Vec::new()] };
    for _ in 0..ACTIONS {
        run.events(input);
        if input.is_empty() {
            break;
        }
        run.act(input);
    }
    run.end();
}

/// Returns parameters of a connect or accept.
fn param(input: &mut Input<'_>) -> ConnParam {
    let (bits, depths) = (input.u8(), input.u8());
    let bit = |at: u8| bits >> at & 1 == 1;
    let depth = |at: u8| [8, 0, 1, 128][usize::from(at & 3)];
    let two = !bit(0);
    ConnParam {
        responder_resources: depth(depths),
        initiator_depth: depth(depths >> 2),
        min_initiator_depth: u16::from(bit(7)).min(depth(depths >> 2)),
        depths_left_to_ulp: bit(1) && bit(2),
        markers: bit(3),
        mpa_revision: if two { 2 } else { 1 },
        peer_to_peer: two && bit(5),
        rtr: RtrKinds::from_bits_truncate(depths >> 5) | RtrKinds::WRITE,
        fallback: bit(6),
        timeout: Duration::from_secs(10),
        ..ConnParam::default()
    }
}

impl Run {
    fn act(&mut self, input: &mut Input<'_>) {
        match input.below(16) {
            0..=3 => {
                let turned = self.delayed && input.one_in(4);
                let bytes = frames::bytes(input, self.dials == turned);
                self.say_in_pieces(input, &bytes);
            }
            4 => {
                let bytes = fpdu(&mut self.framer, &EMPTY_WRITE);
                self.say_in_pieces(input, &bytes);
            }
            5 => {
                let bytes = input.bytes(100);
                self.say_in_pieces(input, bytes);
            }
            6 => pass(&mut self.raw, i64::from(input.size() % 20_000_000)),
            7 | 8 => self.decide(input),
            9 | 10 => self.start(input),
            11 => self.read(input.below(100)),
            12 => {
                if let Some(end) = self.ends.last() {
                    let taken = end.id.send_stream(input.bytes(100));
                    assert!(taken.is_err() || end.stage != Stage::Established, "a plain stream beside FPDUs");
                }
            }
            13 => self.leave(input),
            14 => {
                if !self.dials && self.ends.len() < 6 {
                    self.raw.connect_beside();
                    self.said.push(Vec::new());
                    self.framer = Framer::new(false, true);
                }
            }
            _ => self.raw.poll(),
        }
    }

    fn say_in_pieces(&mut self, input: &mut Input<'_>, bytes: &[u8]) {
        let piece = if input.one_in(3) { 1 + input.below(40) } else { bytes.len().max(1) };
        for bytes in bytes.chunks(piece) {
            if self.raw.is_over() || self.raw.accepted == 0 && self.dials {
                return;
            }
            let taken = self.raw.offer(bytes);
            self.said.last_mut().expect("a connection").extend(&bytes[..taken]);
            if piece > 3 || input.one_in(2) {
                self.raw.poll();
            }
        }
    }

    /// Lets the user accept or reject a request.
    fn decide(&mut self, input: &mut Input<'_>) {
        let Some(end) = self.ends.iter_mut().rev().find(|end| end.stage == Stage::Asked) else { return };
        if input.one_in(4) {
            let rejected = end.id.reject(input.bytes(20));
            if rejected.is_ok() {
                end.stage = if self.delayed { Stage::Streaming } else { Stage::Over };
            }
            return;
        }
        let Ok(qp) = self.pd.create_qp(&queues(&self.cq)) else { return };
        let param = param(input);
        let _refused = end.id.accept(&qp, &param);
        self.qps.push(qp);
    }

    /// Lets the user start MPA after the plain stream.
    fn start(&mut self, input: &mut Input<'_>) {
        if !self.delayed {
            return;
        }
        let Some(end) = self.ends.last_mut() else { return };
        let started = if input.one_in(2) {
            let Ok(qp) = self.pd.create_qp(&queues(&self.cq)) else { return };
            let started = end.id.start_initiator(&qp, &param(input));
            self.qps.push(qp);
            started
        } else {
            let bits = input.u8();
            let options = ResponderOptions {
                enhanced: bits & 1 == 0,
                single_rtr: bits & 2 != 0,
                decision_timeout: Some(Duration::from_secs(5)),
                ..ResponderOptions::default()
            };
            end.id.start_responder(input.bytes(20), &options)
        };
        if started.is_ok() {
            assert_eq!(end.stage, Stage::Streaming, "started without a stream");
            (end.stage, end.started) = (Stage::Begun, true);
        }
    }

    /// Reads at most `bytes` bytes from the latest plain stream, and checks that the peer sent them.
    fn read(&mut self, bytes: usize) {
        let Some(end) = self.ends.last_mut() else { return };
        let mut out = vec![0; bytes];
        if let Ok(StreamRead::Bytes(count)) = end.id.recv_stream(&mut out) {
            let (place, read) = (end.read..end.read + count, &out[..count]);
            let sent = self.said.iter().any(|said| match end.started {
                false => said.get(place.clone()) == Some(read),
                // The engine removes startup frames of any length from the stream, so these bytes may be at
                // any offset.
                true => count == 0 || said.windows(count).any(|run| run == read),
            });
            assert!(sent, "another stream than was sent: {read:02x?} at {}", end.read);
            end.read += count;
        }
    }

    fn leave(&mut self, input: &mut Input<'_>) {
        let last = self.ends.len().saturating_sub(1);
        match input.below(7) {
            0 if !self.raw.is_over() && (self.raw.accepted > 0 || !self.dials) => self.raw.close(),
            1 if !self.raw.is_over() && (self.raw.accepted > 0 || !self.dials) => self.raw.abort(),
            2 => self.ends.iter().for_each(|end| end.id.disconnect()),
            3 => {
                if let Some(end) = self.ends.get(last) {
                    end.id.abort();
                }
            }
            4 if !self.ends.is_empty() => drop(self.ends.remove(input.below(self.ends.len()))),
            5 if !self.qps.is_empty() => drop(self.qps.remove(input.below(self.qps.len()))),
            6 if input.one_in(4) => drop(self.listener.take()),
            _ => {}
        }
    }

    fn events(&mut self, _input: &mut Input<'_>) {
        while let Some(event) = self.channel.poll() {
            let place = self.ends.iter().position(|end| end.id == event.id);
            let Some(place) = place else {
                let stage = match event.kind {
                    CmEventKind::ConnectRequest { .. } => Stage::Asked,
                    CmEventKind::StreamEstablished { .. } => Stage::Streaming,
                    // The event belongs to an identifier that its user has dropped.
                    _ => continue,
                };
                assert!(event.listener.is_some() || self.dials || self.delayed, "{event:?} of nobody");
                self.ends.push(End { id: event.id, stage, read: 0, started: false });
                continue;
            };
            let end = &mut self.ends[place];
            assert_ne!(end.stage, Stage::Over, "{:?} after the end", event.kind);
            end.stage = match event.kind {
                CmEventKind::ConnectRequest { .. } => {
                    assert_eq!(end.stage, Stage::Begun);
                    Stage::Asked
                }
                CmEventKind::Established { .. } => {
                    assert!(matches!(end.stage, Stage::Begun | Stage::Asked), "{:?}", end.stage);
                    Stage::Established
                }
                CmEventKind::Rejected { .. } if self.delayed => Stage::Streaming,
                CmEventKind::StreamEstablished { .. } => {
                    assert_eq!(end.stage, Stage::Begun);
                    Stage::Streaming
                }
                CmEventKind::StreamReadable | CmEventKind::StreamWritable => end.stage,
                CmEventKind::ConnectError { .. } => Stage::Over,
                CmEventKind::Disconnected { .. } => Stage::Over,
                CmEventKind::Rejected { .. } => Stage::Over,
                other => panic!("an event that this test does not know: {other:?}"),
            };
        }
    }

    fn end(self) {
        let Self { mut raw, pd, cq, channel, listener, ends, qps, .. } = self;
        drop((listener, ends, qps, pd, cq, channel));
        if !raw.is_over() && raw.has_connection() {
            raw.abort();
        }
        assert_all_given_back(raw, REST_US);
    }
}
