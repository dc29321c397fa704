//! A connection that an engine has accepted from a bare TCP peer, and the objects of the engine's user, such
//! as a queue pair and a region. The peer sends and checks exact bytes.

use std::time::Duration;

use iwarp::memory::Access;
use iwarp::mpa::Framer;
use iwarp::verbs::{
    AsyncEvent, CmEvent, CmEventKind, CmId, CompletionChannel, CompletionQueue, ConnParam, Context,
    EventChannel, ListenOptions, MemoryRegion, MrOptions, ProtectionDomain, QpInit, QueuePair, RecvRequest,
    RemoteAddr, SendOp, SendRequest, StreamError, WcStatus, WorkCompletion,
};

use super::ALL;
use super::raw::{EMPTY_WRITE, RawPair, fpdu, request, ulpdus};
use super::responder::Responder;
use super::testbed::Testbed;
use super::ulpdu::untagged;

pub(crate) struct Served {
    pub(crate) pair: RawPair,
    /// The peer's framer.
    pub(crate) framer: Framer,
    /// The state of the engine's framing after the last FPDU that [`received`](Self::received) has read.
    theirs: Framer,
    pub(crate) pd: ProtectionDomain,
    pub(crate) cq: CompletionQueue,
    pub(crate) completions: CompletionChannel,
    pub(crate) channel: EventChannel,
    pub(crate) qp: QueuePair,
    pub(crate) id: CmId,
    /// Memory that the peer may read and write.
    pub(crate) region: MemoryRegion,
    /// The MPA Reply.
    pub(crate) reply: Vec<u8>,
    /// ORD and IRD of the established event.
    pub(crate) depths: (u16, u16),
    _listener: CmId,
}

/// How the connection is established.
pub(crate) struct Setup<'a> {
    pub(crate) pair: RawPair,
    pub(crate) listen: &'a dyn Fn(&mut ListenOptions),
    /// The peer's MPA Request, which may ask for markers.
    pub(crate) request: Vec<u8>,
    /// The parameters with which the engine's user accepts.
    pub(crate) accept: ConnParam,
    pub(crate) make_qp: &'a dyn Fn(QpInit<'_>, &ProtectionDomain) -> QueuePair,
    /// Length of the region in bytes.
    pub(crate) region: usize,
    /// Called before the connection is accepted, to post requests.
    pub(crate) prepare: &'a dyn Fn(&QueuePair, &MemoryRegion),
}

impl Default for Setup<'_> {
    fn default() -> Self {
        Self::on(Testbed::new().peer())
    }
}

impl Setup<'_> {
    /// Returns a connection on `pair` in MPA's client-server model, with CRC.
    pub(crate) fn on(pair: RawPair) -> Self {
        Self {
            pair,
            listen: &|_| {},
            request: request(true),
            accept: ConnParam::default(),
            make_qp: &|init, pd| pd.create_qp(&init).unwrap(),
            region: 4096,
            prepare: &|_, _| {},
        }
    }

    /// Connects, and waits until the Reply has arrived. The peer has not sent an FPDU yet.
    pub(crate) fn accepted(self) -> Served {
        let mut door = Responder::over(self.pair, self.listen);
        let region = door.pd.reg_mr(self.region, ALL).unwrap();
        let qp = (self.make_qp)(QpInit::new(&door.cq), &door.pd);
        (self.prepare)(&qp, &region);
        let id = door.connect_request(&self.request).id;
        assert!(door.pair.inbox.is_empty(), "nothing is said before the user says so");
        door.accept_for(&qp, &id, &self.accept);
        let Responder { mut pair, pd, cq, completions, channel, listener: _listener } = door;
        // The header of the Reply contains the length of the private data.
        let length = 20 + usize::from(u16::from_be_bytes([pair.inbox[18], pair.inbox[19]]));
        let reply = pair.inbox.drain(..length).collect();
        Served {
            pair,
            // Each side sends markers if the other side has asked for markers.
            framer: Framer::new(self.accept.markers, true),
            theirs: Framer::new(self.request[16] & 0x80 != 0, true),
            pd,
            cq,
            completions,
            channel,
            qp,
            id,
            region,
            reply,
            depths: (0, 0),
            _listener,
        }
    }

    /// Connects, and sends the peer's first FPDU, after which the engine may send.
    pub(crate) fn ready(self) -> Served {
        let mut served = self.accepted();
        served.send(&EMPTY_WRITE);
        served.established();
        served.run(10_000);
        served
    }
}

impl Served {
    pub(crate) fn new() -> Self {
        Setup::default().ready()
    }

    pub(crate) fn with(accept: ConnParam) -> Self {
        Setup { accept, ..Setup::default() }.ready()
    }

    pub(crate) fn context(&self) -> &Context {
        &self.pair.context
    }

    // ---- the peer ----

    /// Sends a ULPDU as an FPDU.
    pub(crate) fn send(&mut self, ulpdu: &[u8]) {
        self.send_all(&[ulpdu]);
    }

    /// Sends the FPDUs of `ulpdus` back to back.
    pub(crate) fn send_all<T: AsRef<[u8]>>(&mut self, ulpdus: &[T]) {
        let framer = &mut self.framer;
        let bytes: Vec<u8> = ulpdus.iter().flat_map(|ulpdu| fpdu(framer, ulpdu.as_ref())).collect();
        self.pair.send(&bytes);
    }

    /// Sends the FPDUs of `ulpdus` back to back, and polls for 20 ms.
    pub(crate) fn send_and_run<T: AsRef<[u8]>>(&mut self, ulpdus: &[T]) {
        self.send_all(ulpdus);
        self.run(20_000);
    }

    pub(crate) fn run(&mut self, us: i64) {
        self.pair.until(us, |_| false);
    }

    /// Returns the ULPDUs that the engine sends within `us` microseconds. Checks every byte of their FPDUs.
    pub(crate) fn received(&mut self, us: i64) -> Vec<Vec<u8>> {
        self.run(us);
        let ulpdus = ulpdus(&mut self.theirs, &mut self.pair.inbox);
        assert!(self.pair.inbox.is_empty(), "a part of an FPDU");
        ulpdus
    }

    /// Waits for the engine's next FPDU, and returns its ULPDU. The FPDU must have no markers.
    pub(crate) fn receive(&mut self) -> Vec<u8> {
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

    /// Waits for the engine's next ULPDU, which has to be a Terminate, and returns its payload.
    pub(crate) fn receive_terminate(&mut self) -> Vec<u8> {
        let ulpdu = self.receive();
        assert_eq!(ulpdu[..18], untagged([0x41, 0x47], 0, [2, 1, 0], &[]), "no Terminate but {ulpdu:02x?}");
        ulpdu[18..].to_vec()
    }

    /// Checks that the engine ends the stream: its last message is one Terminate with `payload`, and a FIN
    /// follows. Also checks that the engine reports the error to its user.
    pub(crate) fn expect_terminate(&mut self, payload: &[u8], what: &str) {
        let heard = self.received(20_000);
        let terminates: Vec<_> = heard.iter().filter(|ulpdu| ulpdu[1] == 0x47).collect();
        let golden = untagged([0x41, 0x47], 0, [2, 1, 0], payload);
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

    // ---- the engine's user ----

    /// Waits for the next event of the connection.
    pub(crate) fn event(&mut self) -> CmEvent {
        self.pair.next_event(&self.channel, 30_000_000).expect("no event")
    }

    /// Waits for the established event.
    pub(crate) fn established(&mut self) {
        let event = self.event();
        let CmEventKind::Established { ord, ird, .. } = event.kind else { panic!("{event:?}") };
        self.depths = (ord, ird);
    }

    pub(crate) fn ended(&mut self) -> Option<CmEvent> {
        self.run(20_000);
        self.channel.poll()
    }

    pub(crate) fn post(&self, request: &SendRequest) {
        self.qp.post_send(request).unwrap();
    }

    /// Posts a receive at `offset` of the region, with `offset` as its wr_id.
    pub(crate) fn post_recv(&self, offset: usize, len: usize) {
        self.qp.post_recv(&RecvRequest::new(offset as u64, self.region.sge(offset, len))).unwrap();
    }

    /// Returns a Read that the test's peer never answers.
    pub(crate) fn read(&self, wr_id: u64) -> SendRequest {
        let remote = RemoteAddr { addr: 0, rkey: 1 };
        SendRequest::new(wr_id, SendOp::Read { remote }, self.region.sge(0, 8))
    }

    /// Waits for the next completion.
    pub(crate) fn wc(&mut self) -> WorkCompletion {
        let mut wc = None;
        assert!(self.pair.until(1_000_000, |_| {
            wc = wc.take().or_else(|| self.cq.poll_one());
            wc.is_some()
        }));
        wc.unwrap()
    }

    /// Returns the completions of the next 20 ms.
    pub(crate) fn done(&mut self) -> Vec<WorkCompletion> {
        self.run(20_000);
        std::iter::from_fn(|| self.cq.poll_one()).collect()
    }

    /// Returns `wr_id` and status of each completion of the next 20 ms.
    pub(crate) fn statuses(&mut self) -> Vec<(u64, WcStatus)> {
        self.run(20_000);
        self.completions()
    }

    /// Polls all completions from the queue. Returns `wr_id` and status of each completion.
    pub(crate) fn completions(&self) -> Vec<(u64, WcStatus)> {
        std::iter::from_fn(|| self.cq.poll_one()).map(|wc| (wc.wr_id, wc.status)).collect()
    }

    /// Returns the number of events of the completion queue since the last call of this function.
    pub(crate) fn notified(&self) -> u64 {
        self.completions.wait(Some(Duration::ZERO)).unwrap()
    }

    pub(crate) fn events(&self) -> Vec<AsyncEvent> {
        let events = self.context().async_events();
        std::iter::from_fn(|| events.poll().unwrap()).collect()
    }

    pub(crate) fn reg_mr(&self, len: usize, access: Access) -> MemoryRegion {
        self.pd.reg_mr(len, access).unwrap()
    }

    /// Returns a region that is valid on this stream only, and that the peer may invalidate.
    pub(crate) fn own_region(&self, len: usize, access: Access) -> MemoryRegion {
        let options = MrOptions { qp: Some(&self.qp), ..MrOptions::new(access) };
        self.pd.reg_mr_with(len, &options).unwrap()
    }

    pub(crate) fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.region.read_at(at, &mut bytes).unwrap();
        bytes
    }

    /// Returns the tagged offset of the region's byte `at`.
    pub(crate) fn to(&self, at: usize) -> u64 {
        self.region.addr() + at as u64
    }
}
