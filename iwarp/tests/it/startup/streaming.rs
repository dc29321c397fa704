//! Connections in streaming mode, mostly with a bare TCP peer: for example the idle timeout, the end of a
//! connection, the end of a start of MPA, and the lack of packet buffers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::hooked::Hooks;
use crate::common::raw::{RawPair, frame, request};
use crate::common::responder::Responder;
use crate::common::{ALL, PORT, Testbed, connect_error, pattern};
use dp::link::LinkConfig;
use dp::{Burst, Mempool, Port};
use iwarp::mpa::StartupFault;
use iwarp::verbs::{
    CmEvent, CmEventKind, CmId, CompletionQueue, ConnParam, ConnectionError, EventChannel, ListenOptions,
    MemoryRegion, ProtectionDomain, QpInit, QpState, QueuePair, RecvRequest, ResponderOptions, StreamOptions,
    StreamRead, VerbsError, WcStatus,
};

/// An engine that has opened a connection in streaming mode, and its peer.
struct Dialed {
    pair: RawPair,
    id: CmId,
    channel: EventChannel,
    cq: CompletionQueue,
    pd: ProtectionDomain,
}

impl Dialed {
    fn on(mut pair: RawPair, idle_timeout: Option<Duration>) -> Self {
        pair.listen();
        let channel = pair.context.create_event_channel().unwrap();
        let id = pair.context.create_id(&channel);
        let remote = format!("10.0.0.2:{PORT}").parse().unwrap();
        let param = ConnParam { idle_timeout, ..ConnParam::default() };
        id.connect_stream(remote, StreamOptions::default(), &param).unwrap();
        let (pd, cq) = (pair.context.alloc_pd().unwrap(), pair.context.create_cq(64, None).unwrap());
        let mut dialed = Self { pair, id, channel, cq, pd };
        let _event = told!(dialed.event(), StreamEstablished { .. });
        dialed.run(1000);
        dialed
    }

    fn new(idle_timeout: Option<Duration>) -> Self {
        Self::on(Testbed::new().peer(), idle_timeout)
    }

    fn run(&mut self, us: i64) {
        self.pair.until(us, |_| false);
    }

    /// Returns the next event. Drops events about received bytes or space to send.
    fn event(&mut self) -> CmEvent {
        next_event(&mut self.pair, &self.channel)
    }

    /// Returns a queue pair with a receive request, and the memory of this request.
    fn qp(&self) -> (QueuePair, MemoryRegion) {
        let qp = self.pd.create_qp(&QpInit::new(&self.cq)).unwrap();
        let region = self.pd.reg_mr(64, ALL).unwrap();
        qp.post_recv(&RecvRequest::new(1, region.sge(0, 8))).unwrap();
        (qp, region)
    }

    /// Starts MPA as the initiator, and waits until the peer has received the Request.
    fn start(&mut self, param: &ConnParam) -> (QueuePair, MemoryRegion) {
        let (qp, region) = self.qp();
        self.id.start_initiator(&qp, param).unwrap();
        assert!(self.pair.until(100_000, |pair| pair.inbox.len() >= 24), "no Request");
        self.pair.inbox.clear();
        (qp, region)
    }

    /// Checks that the idle timeout ends the connection after about a second.
    fn is_idle_in_a_second(&mut self) {
        assert!(!self.pair.until(900_000, |pair| pair.is_over()), "too early");
        assert!(self.pair.until(200_000, |pair| pair.peer_closed), "no FIN");
        self.pair.close();
        told!(self.event(), Disconnected { error: Some(ConnectionError::IdleTimeout), .. });
    }
}

fn next_event(pair: &mut RawPair, channel: &EventChannel) -> CmEvent {
    loop {
        let event = pair.next_event(channel, 30_000_000).expect("no event");
        if !matches!(event.kind, CmEventKind::StreamReadable | CmEventKind::StreamWritable) {
            return event;
        }
    }
}

const SECOND: Option<Duration> = Some(Duration::from_secs(1));

/// Returns the parameters of an initiator without the peer-to-peer model, which may try again with revision
/// 1.
fn initiator() -> ConnParam {
    ConnParam {
        peer_to_peer: false,
        fallback: true,
        timeout: Duration::from_secs(10),
        ..ConnParam::default()
    }
}

fn reply(flags: u8) -> Vec<u8> {
    frame("Rep", flags, 2, &[0, 1, 0, 1])
}

/// Only sent or received bytes count as progress.
#[test]
fn a_stream_is_idle_when_no_bytes_go_either_way() {
    for receives in [false, true] {
        let mut d = Dialed::new(SECOND);
        for _ in 0..6 {
            d.run(600_000);
            match receives {
                true => d.pair.send(b"bytes"),
                false => assert_eq!(d.id.send_stream(b"bytes").unwrap(), 5),
            }
        }
        d.run(1000);
        assert!(
            std::iter::from_fn(|| d.channel.poll())
                .all(|event| matches!(event.kind, CmEventKind::StreamReadable))
        );
        d.is_idle_in_a_second();
    }
}

/// The idle timeout applies to streaming mode. A start of MPA and the decision on a Request have their own
/// timeouts, on both sides. After a reject, the connection is in streaming mode again, and the idle timeout
/// applies again.
#[test]
fn a_start_of_mpa_is_not_idle() {
    let mut d = Dialed::new(SECOND);
    let _qp = d.start(&initiator());
    d.run(4_000_000);
    d.pair.send(&reply(0x50));
    let _event = told!(d.event(), Established { .. });

    let mut d = Dialed::new(SECOND);
    let _qp = d.start(&initiator());
    d.run(4_000_000);
    d.pair.send(&reply(0x70));
    told!(d.event(), Rejected { .. });
    d.is_idle_in_a_second();

    for accepts in [false, true] {
        let mut d = Dialed::new(SECOND);
        d.id.start_responder(b"go", &ResponderOptions::default()).unwrap();
        d.run(3_000_000);
        d.pair.send(&request(true));
        let _event = told!(d.event(), ConnectRequest { .. });
        d.run(3_000_000);
        assert!(d.channel.poll().is_none());
        if accepts {
            let (qp, _region) = d.qp();
            d.id.accept(&qp, &ConnParam::default()).unwrap();
            let _event = told!(d.event(), Established { .. });
        } else {
            d.id.reject(b"").unwrap();
            d.is_idle_in_a_second();
        }
    }
}

/// The idle timeout has closed a connection, and the peer has not yet closed its own half. MPA is started too
/// late: the start fails with the reason of the close, and an initiator's queue pair ends.
#[test]
fn a_start_behind_the_idle_timeout_fails() {
    for initiates in [true, false] {
        let mut d = Dialed::new(SECOND);
        assert!(d.pair.until(1_100_000, |pair| pair.peer_closed), "no FIN");
        d.run(100_000);
        assert!(d.channel.poll().is_none(), "the peer has not closed");
        let (qp, _region) = d.qp();
        match initiates {
            true => d.id.start_initiator(&qp, &initiator()).unwrap(),
            false => d.id.start_responder(b"go", &ResponderOptions::default()).unwrap(),
        }
        assert_eq!(connect_error(d.event()), ConnectionError::IdleTimeout);
        assert_eq!(qp.state(), if initiates { QpState::Error } else { QpState::Idle });
        assert_eq!(qp.cause(), initiates.then_some(ConnectionError::IdleTimeout));
        d.run(1000);
        assert!(d.pair.closed.is_some() && d.pair.inbox.is_empty());
    }
}

/// A connection began in streaming mode, and the peer ends it after the Request. The engine does not try
/// revision 1 on a second connection, because the bytes of streaming mode would be missing on that
/// connection.
#[test]
fn a_start_behind_a_stream_is_not_tried_again() {
    for resets in [false, true] {
        let mut d = Dialed::new(None);
        let (qp, _region) = d.start(&initiator());
        if resets {
            d.pair.abort()
        } else {
            d.pair.close()
        }
        let error = connect_error(d.event());
        assert_eq!(error.mpa_code(), Some(1), "{error}");
        d.run(3_000_000);
        assert_eq!((d.pair.accepted, qp.state()), (1, QpState::Error));
    }
}

/// A reject ends the queue pair, although TCP stays open. The queue pair's requests are flushed with the
/// reason.
#[test]
fn a_reject_ends_the_queue_pair_and_not_the_stream() {
    let mut d = Dialed::new(None);
    let (qp, _region) = d.start(&initiator());
    d.pair.send(&reply(0x70));
    told!(d.event(), Rejected { .. });
    let wc = d.cq.poll_one().expect("flushed");
    let cause = Some(ConnectionError::Rejected);
    assert_eq!((wc.status, wc.cause), (WcStatus::WrFlushError, cause));
    assert_eq!((qp.state(), qp.cause(), d.id.qp().is_none()), (QpState::Error, cause, true));
    assert_eq!(d.id.send_stream(b"bytes").unwrap(), 5);
    assert!(d.pair.until(100_000, |pair| pair.inbox == b"bytes"));
}

/// A function that is called once, after an engine has run its commands and before it handles the received
/// frames.
type Once = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

struct Between(Once);

impl Hooks for Between {
    fn rx_burst(&mut self, port: &mut dyn Port, now_us: u64, frames: &mut Burst) -> usize {
        let count = port.rx_burst(now_us, frames);
        if count > 0
            && let Some(act) = self.0.lock().unwrap().take()
        {
            act();
        }
        count
    }
}

/// The user closes while the engine receives the reject. The close takes effect, and the connection does not
/// return to streaming mode.
#[test]
fn a_close_at_the_time_of_a_reject_is_a_close() {
    let once = Once::default();
    let mut d = Dialed::on(Testbed::new().hook_a(Between(Arc::clone(&once))).peer(), None);
    let _qp = d.start(&initiator());
    d.run(100_000);
    let id = d.id.clone();
    *once.lock().unwrap() = Some(Box::new(move || id.disconnect()));
    d.pair.send(&reply(0x70));
    told!(d.event(), Rejected { .. });
    assert!(once.lock().unwrap().is_none(), "at the same time");
    assert!(matches!(d.id.send_stream(b"bytes"), Err(VerbsError::Invalid(_))));
    assert!(d.pair.until(100_000, |pair| pair.peer_closed), "no FIN");
    assert!(d.pair.inbox.is_empty());
}

/// The user sees the end of the stream after its last byte, even if the user's buffer has no space for all
/// bytes.
#[test]
fn the_end_comes_behind_the_last_byte() {
    for close in [false, true] {
        let options = StreamOptions { recv_bytes: 1000, send_bytes: 1000 };
        let mut d = Responder::with(|listen: &mut ListenOptions| listen.streaming = Some(options));
        let bytes = pattern(1, 3500);
        d.open(&bytes);
        d.pair.close();
        let id = d.event().id;
        d.pair.until(10_000, |_| false);
        if close {
            // The bytes that have arrived can still be read.
            id.disconnect();
        }
        let mut got: Vec<u8> = Vec::new();
        let most = if close { 1000 } else { bytes.len() };
        while got.len() < most {
            let mut piece = [0; 4000];
            let StreamRead::Bytes(count) = id.recv_stream(&mut piece).unwrap() else {
                panic!("{} bytes", got.len())
            };
            got.extend(&piece[..count]);
            if got.len() < bytes.len() {
                assert_eq!(id.recv_stream(&mut piece).unwrap(), StreamRead::Empty, "{} bytes", got.len());
                if close {
                    break;
                }
                d.pair.until(10_000, |_| false);
            }
        }
        assert_eq!(got, bytes[..got.len()]);
        if !close {
            assert_eq!(id.recv_stream(&mut [0; 8]).unwrap(), StreamRead::Ended);
        }
    }
}

/// A Reply that ends the connection waits behind bytes of streaming mode that TCP has not accepted. Our FIN
/// follows these bytes and the Reply, although the peer has sent its own FIN before.
#[test]
fn a_reply_that_waits_is_sent_before_the_fin() {
    const BYTES: usize = 300_000;
    let pair = Testbed::new().configure(|config| config.stack.tcp.send_buffer_bytes = 100_000).peer();
    let options = StreamOptions { recv_bytes: 1000, send_bytes: BYTES };
    let mut d = Responder::over(pair, |listen| listen.streaming = Some(options));
    d.open(b"");
    let id = d.event().id;
    d.pair.deaf = true;
    assert_eq!(id.send_stream(&pattern(1, BYTES)).unwrap(), BYTES);
    id.start_responder(b"", &ResponderOptions::default()).unwrap();
    d.pair.until(10_000, |_| false);
    d.pair.send(&request(true));
    let _event = told!(next_event(&mut d.pair, &d.channel), ConnectRequest { .. });
    // The peer serves 8 Reads at a time, and the user demands at least 100.
    let qp = d.qp();
    id.accept(&qp, &ConnParam { min_initiator_depth: 100, initiator_depth: 100, ..ConnParam::default() })
        .unwrap();
    d.pair.until(10_000, |_| false);
    assert_eq!(qp.state(), QpState::Error);
    d.pair.close();
    d.pair.until(100_000, |_| false);
    d.pair.deaf = false;
    assert!(d.pair.until(20_000_000, |pair| pair.is_over()), "no end");
    assert!(
        d.pair.peer_closed && d.pair.closed.is_none_or(|reason| reason == tcp_lite::CloseReason::Graceful)
    );
    assert_eq!(d.pair.inbox.len(), BYTES + 24);
    assert_eq!(&d.pair.inbox[BYTES..BYTES + 16], b"MPA ID Rep Frame");
}

/// Bytes of the peer arrive between the user's call and the engine's start of MPA. These bytes cannot be a
/// Reply, because the peer does not know that MPA has started. So the start fails.
#[test]
fn bytes_that_come_with_the_start_end_the_connection() {
    let once = Once::default();
    let mut d = Dialed::on(Testbed::new().hook_a(Between(Arc::clone(&once))).peer(), None);
    d.run(100_000);
    let (qp, _region) = d.qp();
    let (id, starting) = (d.id.clone(), qp.clone());
    *once.lock().unwrap() = Some(Box::new(move || id.start_initiator(&starting, &initiator()).unwrap()));
    d.pair.send(b"bytes");
    let error = connect_error(d.event());
    assert_eq!(error, ConnectionError::Startup(StartupFault::EarlyBytes));
    assert!(d.pair.inbox.is_empty() && qp.state() == QpState::Error);
}

/// Returns a testbed, and the pool of the first host's port.
fn hosts_with_pool() -> (Testbed<'static>, Mempool) {
    let (port_a, port_b) = dp::link::pair(&LinkConfig::default());
    let pool = port_a.mempool().clone();
    (Testbed::over((port_a, port_b)), pool)
}

/// No packet buffer is free when a startup frame is to be sent, in any step of startup. The frame is sent as
/// soon as a buffer is free.
#[test]
fn a_startup_frame_waits_for_a_buffer() {
    for polls in 0..12 {
        let (bed, pool) = hosts_with_pool();
        let mut pair = bed.hosts();
        let _listener = pair.listen();
        let (qp, _id) = pair.dial(&ConnParam::default());
        (0..polls).for_each(|_| pair.poll());
        let held: Vec<_> = std::iter::from_fn(|| pool.alloc()).collect();
        pair.run_us(300_000);
        drop(held);
        let start_us = pair.now_us;
        let request = pair.event_b();
        let theirs = pair.b.qp();
        request.id.accept(&theirs, &ConnParam::default()).unwrap();
        let event = pair.event_a();
        assert!(matches!(event.kind, CmEventKind::Established { .. }), "{polls} polls: {event:?}");
        assert_eq!(qp.state(), QpState::Rts);
        assert!(pair.now_us - start_us < 2_000_000, "{polls} polls: {} us", pair.now_us - start_us);
    }
}

/// Too few packet buffers are free for the user's bytes. The remaining bytes are sent when more buffers are
/// free, although TCP's send buffer was never full.
#[test]
fn bytes_of_streaming_mode_wait_for_buffers() {
    const BYTES: usize = 16_000;
    for left in [1, 2, 5] {
        let (bed, pool) = hosts_with_pool();
        let mut d = Dialed::on(bed.peer(), None);
        d.run(1_000_000);
        let mut held: Vec<_> = std::iter::from_fn(|| pool.alloc()).collect();
        held.truncate(held.len() - left);
        assert_eq!(d.id.send_stream(&pattern(1, BYTES)).unwrap(), BYTES);
        d.run(300_000);
        drop(held);
        assert!(d.pair.until(2_000_000, |pair| pair.inbox.len() == BYTES), "{}", d.pair.inbox.len());
        assert_eq!(d.pair.inbox, pattern(1, BYTES));
    }
}
