//! An engine under a peer that says exact bytes and hears exact bytes.

use std::time::Duration;

use iwarp::memory::Access;
use iwarp::mpa::Framer;
use iwarp::verbs::{
    CmEvent, CmEventKind, CmId, CompletionChannel, CompletionQueue, ConnParam, EventChannel, Extensions,
    MemoryRegion, ProtectionDomain, QpInit, QueuePair, RecvRequest, StreamError, WcStatus, WorkCompletion,
};

use super::common::doorman::Doorman;
use super::common::raw::{EMPTY_WRITE, RawPair, fpdu, request};

pub(crate) const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);

/// Bytes of the engine's region.
pub(crate) const REGION: usize = 100_000;

/// A connection that the engine has accepted, in Full Operation.
pub(crate) struct Peer {
    pub(crate) pair: RawPair,
    framer: Framer,
    pub(crate) pd: ProtectionDomain,
    pub(crate) cq: CompletionQueue,
    pub(crate) completions: CompletionChannel,
    pub(crate) events: EventChannel,
    pub(crate) qp: QueuePair,
    _id: CmId,
    /// ORD and IRD, as they were told.
    pub(crate) depths: (u16, u16),
    pub(crate) region: MemoryRegion,
    _listener: CmId,
}

impl Peer {
    pub(crate) fn new() -> Self {
        Self::with(&ConnParam::default(), 0)
    }

    /// With `receives` receives of 100 bytes each at 1000, 1100 and so on, posted before the connection is
    /// made.
    pub(crate) fn with(param: &ConnParam, receives: u64) -> Self {
        let mut door = Doorman::new();
        let completions = door.pair.context.create_comp_channel().unwrap();
        let cq = door.pair.context.create_cq(1024, Some(&completions)).unwrap();
        let region = door.pd.reg_mr(REGION, ALL).unwrap();
        // The documents' own messages and no others.
        let qp = door.pd.create_qp(&QpInit { extensions: Extensions::empty(), ..QpInit::new(&cq) }).unwrap();
        for n in 0..receives {
            qp.post_recv(&RecvRequest::new(1000 + n, region.sge(1000 + 100 * n as usize, 100))).unwrap();
        }
        let id = door.asked(&request(true)).id;
        assert!(door.pair.inbox.is_empty(), "nothing is said before the user says so");
        door.accept_for(&qp, &id, param);
        let Doorman { mut pair, pd, channel: events, listener: _listener, .. } = door;
        pair.inbox.clear();
        let mut peer = Self {
            pair,
            framer: Framer::new(false, true),
            pd,
            cq,
            completions,
            events,
            qp,
            _id: id,
            depths: (0, 0),
            region,
            _listener,
        };
        // The first FPDU lets a responder speak: a Write of nothing.
        peer.say(&[EMPTY_WRITE.to_vec()]);
        let event = peer.events.poll().unwrap().kind;
        let CmEventKind::Established { ord, ird, .. } = event else { panic!("{event:?}") };
        peer.depths = (ord, ird);
        peer
    }

    /// Sends ULPDUs, in one go, and lets the engine work on them.
    pub(crate) fn say(&mut self, ulpdus: &[Vec<u8>]) {
        let bytes: Vec<u8> = ulpdus.iter().flat_map(|ulpdu| fpdu(&mut self.framer, ulpdu)).collect();
        self.pair.send(&bytes);
        self.run();
    }

    pub(crate) fn run(&mut self) {
        self.pair.until(20_000, |_| false);
    }

    /// The ULPDUs the engine has sent since the last call.
    pub(crate) fn hear(&mut self) -> Vec<Vec<u8>> {
        self.run();
        let bytes = std::mem::take(&mut self.pair.inbox);
        let mut rest = &bytes[..];
        let mut ulpdus = Vec::new();
        while let [high, low, after @ ..] = rest {
            let len = usize::from(u16::from_be_bytes([*high, *low]));
            ulpdus.push(after[..len].to_vec());
            rest = &rest[(2 + len).next_multiple_of(4) + 4..];
        }
        ulpdus
    }

    pub(crate) fn done(&mut self) -> Vec<WorkCompletion> {
        self.run();
        std::iter::from_fn(|| self.cq.poll_one()).collect()
    }

    /// Requests completed, and how.
    pub(crate) fn statuses(&mut self) -> Vec<(u64, WcStatus)> {
        self.done().iter().map(|wc| (wc.wr_id, wc.status)).collect()
    }

    /// Events of the completion queue since the last call.
    pub(crate) fn notified(&self) -> u64 {
        self.completions.wait(Some(Duration::ZERO)).unwrap()
    }

    /// `len` bytes of the region from `at` on.
    pub(crate) fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.region.read_at(at, &mut bytes).unwrap();
        bytes
    }

    /// The tagged offset of the region's byte `at`.
    pub(crate) fn to(&self, at: usize) -> u64 {
        self.region.addr() + at as u64
    }

    pub(crate) fn ended(&mut self) -> Option<CmEvent> {
        self.run();
        self.events.poll()
    }

    /// The engine ends the stream by the one Terminate `payload`, the last it says, then FIN; its user is
    /// told.
    pub(crate) fn expect_terminate(&mut self, payload: &[u8], what: &str) {
        let heard = self.hear();
        let terminates: Vec<_> = heard.iter().filter(|ulpdu| ulpdu[1] == 0x47).collect();
        let golden = untagged(0x41, 0x47, 0, 2, 1, 0, payload);
        assert_eq!(terminates, [&golden], "{what}: one Terminate");
        assert_eq!(heard.last(), Some(&golden), "{what}: the last message");
        assert!(self.pair.peer_closed && self.pair.closed.is_none(), "{what}: FIN, no RST");
        let error = StreamError {
            layer: payload[0] >> 4,
            etype: payload[0] & 15,
            code: payload[1],
            from_peer: false,
        };
        assert_eq!(self.qp.error(), Some(error), "{what}");
    }
}

/// A Terminate payload for a failing ULPDU: layer and type, code, length and DDP header.
pub(crate) fn of_segment(layer_type: u8, code: u8, ulpdu: &[u8]) -> Vec<u8> {
    let header = if ulpdu[0] & 0x80 == 0 { 18 } else { 14 };
    let mut payload = vec![layer_type, code, 0xc0, 0];
    payload.extend((ulpdu.len() as u16).to_be_bytes());
    payload.extend(&ulpdu[..header]);
    payload
}

pub(crate) fn tagged(ddp: u8, rdmap: u8, stag: u32, to: u64, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![ddp, rdmap];
    bytes.extend(stag.to_be_bytes());
    bytes.extend(to.to_be_bytes());
    bytes.extend(payload);
    bytes
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
    let mut bytes = vec![ddp, rdmap];
    for word in [invalidate, qn, msn, mo] {
        bytes.extend(word.to_be_bytes());
    }
    bytes.extend(payload);
    bytes
}

/// A Send of one segment.
pub(crate) fn send(msn: u32, payload: &[u8]) -> Vec<u8> {
    untagged(0x41, 0x43, 0, 0, msn, 0, payload)
}

/// The 28 bytes of a Read Request.
pub(crate) fn read_header(sink: (u32, u64), size: u32, source: (u32, u64)) -> Vec<u8> {
    let mut bytes = sink.0.to_be_bytes().to_vec();
    bytes.extend(sink.1.to_be_bytes());
    bytes.extend(size.to_be_bytes());
    bytes.extend(source.0.to_be_bytes());
    bytes.extend(source.1.to_be_bytes());
    bytes
}

pub(crate) fn read_request(msn: u32, sink: (u32, u64), size: u32, source: (u32, u64)) -> Vec<u8> {
    untagged(0x41, 0x41, 0, 1, msn, 0, &read_header(sink, size, source))
}
