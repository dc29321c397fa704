//! An accepted connection whose other end is bytes of the test's own, from its Request on: what `peer`
//! settles, this leaves open.

use iwarp::engine::EngineConfig;
use iwarp::memory::Access;
use iwarp::mpa::Framer;
use iwarp::verbs::{
    CmEvent, CmEventKind, CmId, CompletionQueue, ConnParam, EventChannel, MemoryRegion, ProtectionDomain,
    QueuePair, RecvRequest, WorkCompletion,
};

use super::doorman::Doorman;
use super::raw::{EMPTY_WRITE, RawPair, fpdu, ulpdus};

/// Bytes of the region that is lent to the peer.
pub(crate) const REGION: usize = 1 << 16;

pub(crate) struct Accepted {
    pub(crate) raw: RawPair,
    /// What the test frames with.
    pub(crate) framer: Framer,
    /// What the engine frames with, as far as [`heard`](Self::heard) has read.
    theirs: Framer,
    pub(crate) id: CmId,
    pub(crate) qp: QueuePair,
    pub(crate) cq: CompletionQueue,
    pub(crate) pd: ProtectionDomain,
    pub(crate) channel: EventChannel,
    /// Everything allowed, filled with 0xEE.
    pub(crate) region: MemoryRegion,
    /// The Reply.
    pub(crate) reply: Vec<u8>,
    _listener: CmId,
}

impl Accepted {
    /// `request` is what the peer opens with; `accept` what the engine's user accepts with.
    pub(crate) fn new(request: &[u8], accept: &ConnParam) -> Self {
        Self::over(Doorman::new(), request, accept)
    }

    /// The same with an engine that its administrator has configured.
    pub(crate) fn configured(
        configure: impl FnOnce(&mut EngineConfig),
        request: &[u8],
        accept: &ConnParam,
    ) -> Self {
        let raw = RawPair::configured(configure);
        Self::over(Doorman::over(raw, |_| {}), request, accept)
    }

    fn over(mut door: Doorman, request: &[u8], accept: &ConnParam) -> Self {
        let id = door.asked(request).id;
        let qp = door.accept(&id, accept);
        let Doorman { pair: mut raw, pd, cq, channel, listener: _listener } = door;
        // As long as the Request, and in one segment as that was.
        let reply = raw.inbox.drain(..request.len()).collect();
        let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let region = pd.reg_mr(REGION, all).unwrap();
        region.write_at(0, &vec![0xEE; REGION]).unwrap();
        let framer = Framer::new(false, true);
        let theirs = Framer::new(request[16] & 0x80 != 0, true);
        Self { raw, framer, theirs, id, qp, cq, pd, channel, region, reply, _listener }
    }

    /// The client-server model with CRC; the engine has heard the peer's first FPDU and may speak.
    pub(crate) fn ready() -> Self {
        Self::ready_for(&super::raw::request(true))
    }

    /// The same behind this Request, in which the peer may ask for markers.
    pub(crate) fn ready_for(request: &[u8]) -> Self {
        let mut peer = Self::new(request, &ConnParam::default());
        peer.say(&EMPTY_WRITE);
        peer.established();
        peer
    }

    /// Waits until the engine may speak.
    pub(crate) fn established(&mut self) {
        let event = self.event();
        assert!(matches!(event.kind, CmEventKind::Established { .. }), "{event:?}");
    }

    /// Sends a ULPDU.
    pub(crate) fn say(&mut self, ulpdu: &[u8]) {
        let bytes = fpdu(&mut self.framer, ulpdu);
        self.raw.send(&bytes);
    }

    /// Sends several in one go.
    pub(crate) fn say_all(&mut self, ulpdus: &[&[u8]]) {
        let framer = &mut self.framer;
        let bytes: Vec<u8> = ulpdus.iter().flat_map(|ulpdu| fpdu(framer, ulpdu)).collect();
        self.raw.send(&bytes);
    }

    /// Everything the engine says within `us`, as ULPDUs out of FPDUs whose every byte is checked.
    pub(crate) fn heard(&mut self, us: i64) -> Vec<Vec<u8>> {
        self.raw.until(us, |_| false);
        let ulpdus = ulpdus(&mut self.theirs, &mut self.raw.inbox);
        assert!(self.raw.inbox.is_empty(), "a part of an FPDU");
        ulpdus
    }

    /// Posts a receive at this place of the region; its number is the place.
    pub(crate) fn post_recv(&self, offset: usize, len: usize) {
        self.qp.post_recv(&RecvRequest::new(offset as u64, self.region.sge(offset, len))).unwrap();
    }

    /// What completes within 10 ms.
    pub(crate) fn completions(&mut self) -> Vec<WorkCompletion> {
        self.raw.until(10_000, |_| false);
        std::iter::from_fn(|| self.cq.poll_one()).collect()
    }

    /// The next event.
    pub(crate) fn event(&mut self) -> CmEvent {
        self.raw.next_event(&self.channel, 30_000_000).expect("no event")
    }

    /// Bytes of the region.
    pub(crate) fn memory(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.region.read_at(offset, &mut bytes).unwrap();
        bytes
    }
}

/// A tagged segment: a piece of a Write.
pub(crate) fn tagged(control: u8, stag: u32, to: u64, payload: &[u8]) -> Vec<u8> {
    let mut ulpdu = vec![control, 0x40];
    ulpdu.extend(stag.to_be_bytes());
    ulpdu.extend(to.to_be_bytes());
    ulpdu.extend(payload);
    ulpdu
}

/// An untagged segment with this RDMAP opcode.
pub(crate) fn untagged(control: u8, opcode: u8, [qn, msn, mo]: [u32; 3], payload: &[u8]) -> Vec<u8> {
    let mut ulpdu = vec![control, 0x40 | opcode, 0, 0, 0, 0];
    for word in [qn, msn, mo] {
        ulpdu.extend(word.to_be_bytes());
    }
    ulpdu.extend(payload);
    ulpdu
}
