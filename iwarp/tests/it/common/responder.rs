//! An engine that listens, as the MPA responder, for a bare TCP peer. The test chooses the peer's Request.
//!
//! `Setup::accepted` uses a [`Responder`] to accept a connection, and moves its parts into a
//! [`Served`](super::served::Served).

use iwarp::verbs::{
    CmEvent, CmEventKind, CmId, CompletionChannel, CompletionQueue, ConnParam, EventChannel, ListenOptions,
    ProtectionDomain, QpInit, QueuePair,
};

use super::PORT;
use super::raw::RawPair;
use super::testbed::Testbed;

pub(crate) struct Responder {
    pub(crate) pair: RawPair,
    pub(crate) pd: ProtectionDomain,
    pub(crate) cq: CompletionQueue,
    pub(crate) completions: CompletionChannel,
    pub(crate) channel: EventChannel,
    pub(crate) listener: CmId,
}

impl Responder {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(configure: impl FnOnce(&mut ListenOptions)) -> Self {
        Self::over(Testbed::new().peer(), configure)
    }

    /// Makes the engine of `pair` listen.
    pub(crate) fn over(pair: RawPair, configure: impl FnOnce(&mut ListenOptions)) -> Self {
        let channel = pair.context.create_event_channel().unwrap();
        let mut options = ListenOptions::new(PORT);
        configure(&mut options);
        let listener = pair.context.create_id(&channel);
        listener.listen_with(&options).unwrap();
        let pd = pair.context.alloc_pd().unwrap();
        let completions = pair.context.create_comp_channel().unwrap();
        let cq = pair.context.create_cq(256, Some(&completions)).unwrap();
        Self { pair, pd, cq, completions, channel, listener }
    }

    /// Opens a connection and sends `bytes` on it.
    pub(crate) fn open(&mut self, bytes: &[u8]) {
        self.pair.connect();
        self.pair.until(2_000, |_| false);
        self.pair.send_request(bytes);
    }

    /// Opens a connection, sends `bytes`, and returns the connect request that the user receives.
    pub(crate) fn connect_request(&mut self, bytes: &[u8]) -> CmEvent {
        self.open(bytes);
        let event = self.event();
        assert!(matches!(event.kind, CmEventKind::ConnectRequest { .. }), "{event:?}");
        event
    }

    /// Accepts `id`, and waits for the Reply.
    pub(crate) fn accept(&mut self, id: &CmId, param: &ConnParam) -> QueuePair {
        let qp = self.qp();
        self.accept_for(&qp, id, param);
        qp
    }

    /// Accepts `id` with a queue pair that the test has created.
    pub(crate) fn accept_for(&mut self, qp: &QueuePair, id: &CmId, param: &ConnParam) {
        self.pair.inbox.clear();
        id.accept(qp, param).unwrap();
        assert!(self.pair.until(1_000_000, |pair| pair.inbox.len() >= 20), "no Reply");
    }

    pub(crate) fn qp(&self) -> QueuePair {
        self.pd.create_qp(&QpInit::new(&self.cq)).unwrap()
    }

    pub(crate) fn event(&mut self) -> CmEvent {
        self.pair.next_event(&self.channel, 30_000_000).expect("no event")
    }

    pub(crate) fn is_over(&mut self) -> bool {
        self.pair.until(200_000, |pair| pair.is_over())
    }
}
