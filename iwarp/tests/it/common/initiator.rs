//! An engine that connects, as the MPA initiator, to a bare TCP peer. The test chooses the answers of the
//! peer.

use iwarp::verbs::{CmEvent, CmEventKind, CmId, CompletionQueue, ConnParam, EventChannel, QpInit, QueuePair};

use super::PORT;
use super::raw::RawPair;
use super::testbed::Testbed;

/// The engine that connects, after the peer has received the Request. `pair.inbox` begins with the Request.
pub(crate) struct Initiator {
    pub(crate) pair: RawPair,
    pub(crate) cq: CompletionQueue,
    pub(crate) qp: QueuePair,
    pub(crate) id: CmId,
    pub(crate) channel: EventChannel,
}

impl Initiator {
    pub(crate) fn new(param: &ConnParam) -> Self {
        Self::on(Testbed::new().peer(), param)
    }

    pub(crate) fn on(mut pair: RawPair, param: &ConnParam) -> Self {
        pair.listen();
        let pd = pair.context.alloc_pd().unwrap();
        let cq = pair.context.create_cq(64, None).unwrap();
        let channel = pair.context.create_event_channel().unwrap();
        let qp = pd.create_qp(&QpInit::new(&cq)).unwrap();
        let id = pair.context.create_id(&channel);
        id.connect(&qp, format!("10.0.0.2:{PORT}").parse().unwrap(), param).unwrap();
        assert!(pair.until(1_000_000, |pair| pair.inbox.len() >= 20), "no Request");
        Self { pair, cq, qp, id, channel }
    }

    /// Connects, and answers the Request with `reply`. After this call, `pair.inbox` contains only the bytes
    /// that the engine has sent after its Request.
    pub(crate) fn answered(param: &ConnParam, reply: &[u8]) -> Self {
        let mut initiator = Self::new(param);
        initiator.pair.inbox.clear();
        initiator.pair.send(reply);
        initiator.pair.until(20_000, |_| false);
        initiator
    }

    pub(crate) fn event(&mut self) -> CmEvent {
        self.pair.next_event(&self.channel, 30_000_000).expect("no event")
    }

    /// Waits until the engine closes the connection, and closes the peer's side.
    pub(crate) fn closes(&mut self) {
        assert!(self.pair.until(1_000_000, |pair| pair.is_over()), "not closed");
        if self.pair.closed.is_none() {
            self.pair.close();
        }
    }

    pub(crate) fn established(&mut self) {
        let event = self.event();
        assert!(matches!(event.kind, CmEventKind::Established { .. }), "{event:?}");
    }
}
