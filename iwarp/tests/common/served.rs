//! An accepted connection whose peer is bare TCP, with one of each object.

use iwarp::memory::Access;
use iwarp::mpa::Framer;
use iwarp::verbs::{
    AsyncEvent, CmId, CompletionQueue, ConnParam, Context, EventChannel, MemoryRegion, ProtectionDomain,
    QueuePair, RemoteAddr, SendOp, SendRequest, WcStatus,
};

use super::doorman::Doorman;
use super::raw::{EMPTY_WRITE, RawPair, fpdu, request};

/// The peer's first FPDU has been received, so everything may be posted.
pub(crate) struct Served {
    pub(crate) pair: RawPair,
    pub(crate) framer: Framer,
    pub(crate) pd: ProtectionDomain,
    pub(crate) cq: CompletionQueue,
    pub(crate) region: MemoryRegion,
    pub(crate) qp: QueuePair,
    pub(crate) id: CmId,
    pub(crate) channel: EventChannel,
    _listener: CmId,
}

impl Served {
    pub(crate) fn new() -> Self {
        Self::in_context(RawPair::seeded())
    }

    pub(crate) fn with(accept: &ConnParam) -> Self {
        Self::accepted(RawPair::seeded(), accept)
    }

    pub(crate) fn in_context(pair: RawPair) -> Self {
        Self::accepted(pair, &ConnParam::default())
    }

    fn accepted(pair: RawPair, accept: &ConnParam) -> Self {
        let mut door = Doorman::over(pair, |_| {});
        let id = door.asked(&request(true)).id;
        let qp = door.accept(&id, accept);
        let Doorman { mut pair, pd, cq, channel, listener: _listener } = door;
        pair.inbox.clear();
        let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let region = pd.reg_mr(4096, all).unwrap();
        // The peer sends what it was asked for.
        let framer = Framer::new(accept.markers, true);
        let mut served = Self { pair, framer, pd, cq, region, qp, id, channel, _listener };
        served.say(&EMPTY_WRITE);
        served.pair.until(10_000, |_| false);
        served
    }

    pub(crate) fn context(&self) -> &Context {
        &self.pair.context
    }

    /// The peer sends a ULPDU.
    pub(crate) fn say(&mut self, ulpdu: &[u8]) {
        let bytes = fpdu(&mut self.framer, ulpdu);
        self.pair.send(&bytes);
    }

    /// A Read that this peer never answers.
    pub(crate) fn read(&self, wr_id: u64) -> SendRequest {
        SendRequest::new(
            wr_id,
            SendOp::Read { remote: RemoteAddr { addr: 0, rkey: 1 } },
            self.region.sge(0, 8),
        )
    }

    pub(crate) fn completions(&self) -> Vec<(u64, WcStatus)> {
        std::iter::from_fn(|| self.cq.poll_one()).map(|wc| (wc.wr_id, wc.status)).collect()
    }

    pub(crate) fn events(&self) -> Vec<AsyncEvent> {
        let events = self.context().async_events();
        std::iter::from_fn(|| events.poll().unwrap()).collect()
    }
}
