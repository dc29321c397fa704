//! A stream without a connection, for tests of the inbound half and of the outbound half.

use std::sync::Arc;

use dp::Region;

use super::{RequestPool, Stream, StreamContext, StreamCounters};
use crate::memory::{Access, Accessor, Base, Participant, RegisterOptions, Registration};
use crate::mpa::Negotiated;
use crate::mpa::startup::{PrivateData, Rtr};
use crate::queues::{CompletionQueue, PdShared, QpInit, QpShared, WcStatus, WorkCompletion, test_objects};

/// A stream with all objects that it uses. Each `TestStream` registers memory under the same STags.
pub(super) struct TestStream {
    pub(super) cq: CompletionQueue,
    pub(super) pd: Arc<PdShared>,
    pub(super) qp: Arc<QpShared>,
    pub(super) counters: StreamCounters,
    participant: Participant,
    stream: Option<Stream>,
    pool: RequestPool,
}

impl TestStream {
    pub(super) fn new(ib_semantics: bool, may_send: bool, rtr: Rtr) -> Self {
        let (resources, pd, cq) = test_objects();
        let qp = QpShared::new(&pd, &QpInit::new(&cq)).unwrap();
        qp.connected((4, 4), ib_semantics, false);
        let negotiated = Negotiated {
            revision: 2,
            tx_markers: false,
            rx_markers: false,
            crc: true,
            ird: 4,
            ord: 4,
            peer: None,
            rtr,
            private_data: PrivateData::new(),
            rx_start: 0,
        };
        let mut pool = RequestPool::new(64);
        let by = Accessor { pd: pd.id(), stream: qp.config.stream };
        let stream = Stream::new(Arc::clone(&qp), by, &negotiated, (may_send, ib_semantics), &mut pool);
        let participant = resources.memory.join();
        Self { cq, pd, qp, counters: StreamCounters::default(), participant, stream: Some(stream), pool }
    }

    /// Registers memory with the bytes 0, 1, 2, ..., from tagged offset 0.
    pub(super) fn register(&self, bytes: u8, access: Access) -> Registration {
        let pd = self.pd.id();
        let options = RegisterOptions { pd, stream: None, access, base: Base::Zero, key: 0, keep: false };
        let region = Arc::new(Region::new(bytes.into()).unwrap());
        let region = self.pd.resources.memory.register(region, &options).unwrap();
        region.memory().write_at(0, &(0..bytes).collect::<Vec<u8>>()).unwrap();
        region
    }

    pub(super) fn stream(&mut self) -> &mut Stream {
        self.stream.as_mut().unwrap()
    }

    /// Calls the stream in the same way as an engine does.
    pub(super) fn call<T>(&mut self, act: impl FnOnce(&mut Stream, StreamContext<'_>) -> T) -> T {
        let guard = self.participant.enter();
        let context = StreamContext { guard: &guard, counters: &mut self.counters, pool: &mut self.pool };
        act(self.stream.as_mut().unwrap(), context)
    }

    pub(super) fn completions(&self) -> Vec<WorkCompletion> {
        std::iter::from_fn(|| self.cq.poll_one()).collect()
    }
}

impl Drop for TestStream {
    fn drop(&mut self) {
        if let Some(stream) = self.stream.take() {
            stream.end(&mut self.pool, WcStatus::WrFlushError);
        }
    }
}
