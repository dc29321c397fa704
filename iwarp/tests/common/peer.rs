//! An engine's stream, established, with a peer that says what a test wants it to say, message by message.

use iwarp::memory::Access;
use iwarp::mpa::Framer;
use iwarp::rdmap::AtomicRequest;
use iwarp::verbs::{
    CmEventKind, CmId, CompletionQueue, ConnParam, EventChannel, MemoryRegion, MrOptions, ProtectionDomain,
    QpInit, QueuePair, RecvRequest, SendRequest, WorkCompletion,
};

use super::doorman::Doorman;
use super::raw::{EMPTY_WRITE, RawPair, fpdu, request};

/// The established stream, and what the engine's user holds.
pub(crate) struct Peer {
    pub(crate) pair: RawPair,
    pub(crate) pd: ProtectionDomain,
    pub(crate) cq: CompletionQueue,
    pub(crate) qp: QueuePair,
    pub(crate) channel: EventChannel,
    /// The MPA Reply.
    pub(crate) reply: Vec<u8>,
    framer: Framer,
    _ids: [CmId; 2],
}

/// How the engine's user makes its end.
pub(crate) struct Setup<'a> {
    pub(crate) init: &'a dyn Fn(QpInit<'_>, &ProtectionDomain) -> QueuePair,
    pub(crate) param: ConnParam,
    /// Lengths of the receives that are posted, numbered from 0.
    pub(crate) receives: &'a [usize],
}

impl Default for Setup<'_> {
    fn default() -> Self {
        Self { init: &|init, pd| pd.create_qp(&init).unwrap(), param: ConnParam::default(), receives: &[] }
    }
}

impl Peer {
    pub(crate) fn new() -> Self {
        Self::with(Setup::default())
    }

    /// The peer has asked for depths of 8 and 8, and has sent an empty Write, so that the engine may send.
    pub(crate) fn with(setup: Setup<'_>) -> Self {
        let mut door = Doorman::new();
        let id = door.asked(&request(true)).id;
        let cq = door.pair.context.create_cq(4096, None).unwrap();
        let qp = (setup.init)(QpInit::new(&cq), &door.pd);
        for (n, &len) in setup.receives.iter().enumerate() {
            let region = door.pd.reg_mr(len.max(8), Access::LOCAL_WRITE).unwrap();
            qp.post_recv(&RecvRequest::new(n as u64, region.sge(0, len))).unwrap();
            // Lives as long as the connection, which the test outlives.
            std::mem::forget(region);
        }
        door.accept_for(&qp, &id, &setup.param);
        let Doorman { mut pair, pd, channel, listener, .. } = door;
        let reply = pair.inbox.drain(..24).collect();
        let framer = Framer::new(false, true);
        let mut peer = Self { pair, pd, cq, qp, channel, reply, framer, _ids: [listener, id] };
        peer.say(&[&EMPTY_WRITE]);
        peer.expect_established();
        peer
    }

    fn expect_established(&mut self) {
        let event = self.pair.next_event(&self.channel, 1_000_000).expect("no event");
        assert!(matches!(event.kind, CmEventKind::Established { .. }), "{event:?}");
    }

    /// Sends segments, in as few TCP segments as they fit.
    pub(crate) fn say(&mut self, ulpdus: &[&[u8]]) {
        let bytes: Vec<u8> = ulpdus.iter().flat_map(|ulpdu| fpdu(&mut self.framer, ulpdu)).collect();
        self.pair.send(&bytes);
    }

    pub(crate) fn run(&mut self, us: i64) {
        self.pair.until(us, |_| false);
    }

    /// The engine's next segment.
    pub(crate) fn hear(&mut self) -> Vec<u8> {
        let whole = |pair: &RawPair| {
            let length = pair.inbox.first_chunk::<2>().map(|bytes| u16::from_be_bytes(*bytes) as usize)?;
            let wire = (2 + length).next_multiple_of(4) + 4;
            (pair.inbox.len() >= wire).then_some((length, wire))
        };
        assert!(self.pair.until(1_000_000, |pair| whole(pair).is_some()), "nothing was said");
        let (length, wire) = whole(&self.pair).unwrap();
        let ulpdu = self.pair.inbox[2..2 + length].to_vec();
        self.pair.inbox.drain(..wire);
        ulpdu
    }

    /// The engine's next segment is a Terminate; its payload.
    pub(crate) fn hear_terminate(&mut self) -> Vec<u8> {
        let ulpdu = self.hear();
        assert_eq!(ulpdu[..18], untagged(0x47, 2, 1, &[]), "no Terminate but {ulpdu:02x?}");
        ulpdu[18..].to_vec()
    }

    pub(crate) fn region(&self, len: usize, access: Access) -> MemoryRegion {
        self.pd.reg_mr(len, access).unwrap()
    }

    /// A region of this stream alone: the peer may invalidate it.
    pub(crate) fn own_region(&self, len: usize, access: Access) -> MemoryRegion {
        let options = MrOptions { qp: Some(&self.qp), ..MrOptions::new(access) };
        self.pd.reg_mr_with(len, &options).unwrap()
    }

    pub(crate) fn post(&self, request: &SendRequest) {
        self.qp.post_send(request).unwrap();
    }

    pub(crate) fn wc(&mut self) -> WorkCompletion {
        let cq = self.cq.clone();
        let mut wc = None;
        assert!(self.pair.until(1_000_000, |_| {
            wc = wc.take().or_else(|| cq.poll_one());
            wc.is_some()
        }));
        wc.unwrap()
    }
}

/// The last segment of a tagged message.
pub(crate) fn tagged(control: u8, stag: u32, to: u64, payload: &[u8]) -> Vec<u8> {
    [&[0xc1, control][..], &stag.to_be_bytes(), &to.to_be_bytes(), payload].concat()
}

/// An untagged message in one segment.
pub(crate) fn untagged(control: u8, qn: u32, msn: u32, payload: &[u8]) -> Vec<u8> {
    piece(control, qn, msn, 0, true, payload)
}

/// A segment of an untagged message.
pub(crate) fn piece(control: u8, qn: u32, msn: u32, mo: u32, last: bool, payload: &[u8]) -> Vec<u8> {
    let first = if last { 0x41 } else { 0x01 };
    let numbers = [qn, msn, mo].map(u32::to_be_bytes).concat();
    [&[first, control, 0, 0, 0, 0][..], &numbers, payload].concat()
}

pub(crate) fn atomic_request(msn: u32, request: &AtomicRequest) -> Vec<u8> {
    untagged(0x4a, 1, msn, &request.to_bytes())
}

pub(crate) fn atomic_response(msn: u32, id: u32, original: u64) -> Vec<u8> {
    untagged(0x4b, 3, msn, &[&id.to_be_bytes()[..], &original.to_be_bytes()].concat())
}

/// A Read Request of `size` bytes from `to` of `stag`; the answer goes to STag 9.
pub(crate) fn read_request(msn: u32, size: u32, stag: u32, to: u64) -> Vec<u8> {
    let mut payload = [0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0].to_vec();
    payload.extend(size.to_be_bytes());
    payload.extend(stag.to_be_bytes());
    payload.extend(to.to_be_bytes());
    untagged(0x41, 1, msn, &payload)
}
