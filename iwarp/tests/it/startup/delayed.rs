//! Streaming mode before MPA, and the switch to MPA on the same connection (RFC 5044 sections 7.1, 7.1.3,
//! 7.1.5).

use crate::common::{PORT, Pair, Testbed, connect_error, pattern, read_bytes};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::hooked::Hooks;
use crate::common::initiator::Initiator;
use crate::common::raw::{fpdu, frame};
use crate::common::responder::Responder;
use dp::link::{LinkConfig, LinkPlan};
use dp::{Burst, Checksum, Mbuf, Port};
use iwarp::mpa::{Framer, StartupFault};
use iwarp::verbs::{
    CmEvent, CmEventKind, CmId, ConnParam, ConnectionError, ListenOptions, QpState, QueuePair,
    ResponderOptions, SendFlags, SendOp, SendRequest, StreamOptions, StreamRead, VerbsError,
};
use tcp_lite::CloseReason;

/// A connection in streaming mode, from A to B.
struct Streams {
    pair: Pair,
    a: CmId,
    b: CmId,
    _listener: CmId,
}

impl Streams {
    fn new(link: &LinkConfig, options: StreamOptions) -> Self {
        Self::on(Pair::new(link), options)
    }

    fn on(mut pair: Pair, options: StreamOptions) -> Self {
        let listener = pair.b.context.create_id(&pair.b.channel);
        let streaming = Some(options);
        listener.listen_with(&ListenOptions { streaming, ..ListenOptions::new(PORT) }).unwrap();
        pair.poll();
        let a = pair.a.context.create_id(&pair.a.channel);
        a.connect_stream(pair.b.address, options, &ConnParam::default()).unwrap();
        let _event = told!(pair.event_a(), StreamEstablished { .. });
        let event = told!(pair.event_b(), StreamEstablished { .. });
        assert_eq!(event.listener.as_ref(), Some(&listener));
        Self { pair, a, b: event.id, _listener: listener }
    }

    fn simple() -> Self {
        Self::new(&LinkConfig::default(), StreamOptions::default())
    }

    /// Reads `len` bytes at B or at A.
    fn read(&mut self, at_b: bool, len: usize) -> Vec<u8> {
        let id = if at_b { self.b.clone() } else { self.a.clone() };
        let mut bytes = Vec::new();
        self.pair.until(|_| {
            let mut piece = [0; 100];
            while let StreamRead::Bytes(count) = id.recv_stream(&mut piece).unwrap() {
                bytes.extend(&piece[..count]);
            }
            (bytes.len() >= len).then_some(())
        });
        bytes
    }

    /// Returns the next event. Drops events about received bytes or space to send.
    fn event(&mut self, at_b: bool) -> CmEvent {
        self.pair.until(|pair| {
            let channel = if at_b { &pair.b.channel } else { &pair.a.channel };
            channel.poll().filter(|event| {
                !matches!(event.kind, CmEventKind::StreamReadable | CmEventKind::StreamWritable)
            })
        })
    }

    /// Starts MPA. If `b_responds`, B is the responder; otherwise A is the responder.
    fn start(&mut self, b_responds: bool, param: &ConnParam) -> (QueuePair, QueuePair) {
        let (qp_a, qp_b) = (self.pair.a.qp(), self.pair.b.qp());
        let ends = [(self.a.clone(), &qp_a, false), (self.b.clone(), &qp_b, true)];
        let [(i, qp_i, i_at_b), (r, qp_r, r_at_b)] = if b_responds {
            ends
        } else {
            let [a, b] = ends;
            [b, a]
        };
        r.start_responder(b"go", &ResponderOptions::default()).unwrap();
        assert_eq!(self.read(i_at_b, 2), b"go");
        i.start_initiator(qp_i, param).unwrap();
        let event = told!(self.event(r_at_b), ConnectRequest { .. });
        assert_eq!((event.id == r, event.listener), (true, None));
        r.accept(qp_r, param).unwrap();
        for at_b in [i_at_b, r_at_b] {
            let _event = told!(self.event(at_b), Established { .. });
        }
        (qp_a, qp_b)
    }
}

/// Returns a wire that loses `ppm` frames in a million, repeats `ppm / 2` frames in a million, and delays
/// other frames.
fn bad_wire(ppm: u32) -> LinkPlan {
    LinkPlan {
        drop_ppm: ppm,
        duplicate_ppm: ppm / 2,
        reorder_ppm: ppm * 3 / 2,
        reorder_us: 300,
        ..LinkPlan::default()
    }
}

/// Exchanges messages in both directions, which are large enough for markers and several segments.
fn exchange(pair: &mut Pair, a: &QueuePair, b: &QueuePair) {
    let all = iwarp::memory::Access::LOCAL_WRITE;
    let (from, to) = (pair.a.pd.reg_mr(10_000, all).unwrap(), pair.b.pd.reg_mr(10_000, all).unwrap());
    let bytes = pattern(9, 10_000);
    from.write_at(0, &bytes).unwrap();
    b.post_recv(&iwarp::verbs::RecvRequest::new(1, to.sge(0, 10_000))).unwrap();
    a.post_send(&SendRequest::new(2, SendOp::Send, from.sge(0, 10_000))).unwrap();
    assert_eq!(pair.wc_b().byte_len, 10_000);
    let got = read_bytes(&to, 0, 10_000);
    assert_eq!(got, bytes);
    a.post_recv(&iwarp::verbs::RecvRequest::new(3, from.sge(0, 10_000))).unwrap();
    let signaled =
        SendRequest { flags: SendFlags::SIGNALED, ..SendRequest::new(4, SendOp::Send, to.sge(0, 10_000)) };
    b.post_send(&signaled).unwrap();
    assert_eq!(pair.until(|pair| pair.a.cq.poll_one().filter(|wc| wc.wr_id == 3)).byte_len, 10_000);
}

// Proves MPA-005, MPA-006, MPA-013, MPA-135, MPA-137, MPA-143, MPA-145, MPA-208, MPA-215, MPA-221: plain
// bytes are sent in both directions, and then MPA starts with either side as the initiator. The test runs
// with markers and without, over a good wire, and over a wire that loses and reorders frames.
#[test]
fn mpa_starts_behind_a_stream() {
    let bad = bad_wire(50_000);
    let lossy = LinkConfig { a_to_b: bad.clone(), b_to_a: bad, seed: 5, ..LinkConfig::default() };
    for link in [LinkConfig::default(), lossy] {
        for (b_responds, markers) in [(true, false), (false, true), (true, true)] {
            let mut s = Streams::new(&link, StreamOptions::default());
            assert_eq!(s.a.send_stream(b"hello").unwrap(), 5);
            assert_eq!(s.read(true, 5), b"hello");
            assert_eq!(s.b.send_stream(b"you, too").unwrap(), 8);
            assert_eq!(s.read(false, 8), b"you, too");
            let param = ConnParam { markers, timeout: Duration::from_secs(60), ..ConnParam::default() };
            let (qp_a, qp_b) = s.start(b_responds, &param);
            // Both directions have left streaming mode.
            for id in [&s.a, &s.b] {
                assert!(matches!(id.send_stream(b"x"), Err(VerbsError::Invalid(_))));
                assert!(matches!(id.recv_stream(&mut [0; 8]), Err(VerbsError::Invalid(_))));
            }
            exchange(&mut s.pair, &qp_a, &qp_b);
            s.a.disconnect();
            told!(s.event(true), Disconnected { error: None, .. });
        }
    }
}

// Proves MPA-209, MPA-219, MPA-185: the Request begins directly behind the peer's last plain byte. Bytes of
// the Request that arrive before the responder has switched are not lost.
#[test]
fn the_switch_is_exact() {
    let request = frame("Req", 0xd0, 2, &[0, 8, 0, 8]);
    for split in [0, 1, 7, request.len()] {
        let mut d = Responder::with(|options| options.streaming = Some(StreamOptions::default()));
        d.open(b"hello");
        let id = d.event().id;
        d.pair.until(10_000, |_| false);
        let mut hello = [0; 5];
        assert_eq!(id.recv_stream(&mut hello).unwrap(), StreamRead::Bytes(5));
        id.send_stream(b"begin").unwrap();
        // A part of the Request arrives before the user starts MPA.
        d.pair.send(&request[..split]);
        d.pair.until(10_000, |_| false);
        id.start_responder(b" now", &ResponderOptions::default()).unwrap();
        d.pair.send(&request[split..]);
        let event = d.event_of_mpa();
        assert!(matches!(event.kind, CmEventKind::ConnectRequest { .. }), "{split}: {event:?}");
        assert_eq!(d.pair.inbox, b"begin now");
        let qp = d.accept(&id, &ConnParam { markers: true, ..ConnParam::default() });
        assert_eq!(d.pair.inbox, frame("Rep", 0xd0, 2, &[0, 8, 0, 8]));
        // The positions of markers start after the startup frames.
        let mut framer = Framer::new(true, true);
        let first = fpdu(&mut framer, &[0xc1, 0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(first[..4], [0; 4]);
        d.pair.send(&first);
        d.pair.inbox.clear();
        qp.post_send(&SendRequest::empty(1, SendOp::Send)).unwrap();
        d.pair.until(50_000, |_| false);
        assert_eq!((d.pair.inbox[..6].to_vec(), qp.error()), (vec![0, 0, 0, 0, 0, 0x12], None));
    }
}

impl Responder {
    fn event_of_mpa(&mut self) -> CmEvent {
        loop {
            let event = self.event();
            if !matches!(event.kind, CmEventKind::StreamReadable | CmEventKind::StreamWritable) {
                return event;
            }
        }
    }
}

// Proves MPA-134, MPA-210, MPA-220: an extra byte, a missing byte or another protocol causes code 4: startup
// frames are not read at a wrong offset.
#[test]
fn stray_bytes_at_the_switch_end_the_connection() {
    let request = frame("Req", 0x50, 2, &[0, 8, 0, 8]);
    for bytes in [[b"x", &request[..]].concat(), request[1..].to_vec(), b"GET / HTTP/1.0\r\n\r\n".to_vec()] {
        let mut d = Responder::with(|options| options.streaming = Some(StreamOptions::default()));
        d.open(&[]);
        let id = d.event().id;
        id.start_responder(b"", &ResponderOptions::default()).unwrap();
        d.pair.until(10_000, |_| false);
        d.pair.send(&bytes);
        let error = connect_error(d.event_of_mpa());
        assert_eq!(error.mpa_code(), Some(4));
        assert!(d.is_over() && d.pair.inbox.is_empty());
    }
    // An initiator does not start before the user has read all received bytes. Then any bytes except a Reply
    // are an error.
    let mut s = Streams::simple();
    s.b.send_stream(b"stray").unwrap();
    s.pair.run_us(10_000);
    let qp = s.pair.a.qp();
    assert!(matches!(s.a.start_initiator(&qp, &ConnParam::default()), Err(VerbsError::Invalid(_))));
    assert_eq!(s.read(false, 5), b"stray");
    s.a.start_initiator(&qp, &ConnParam::default()).unwrap();
    s.b.send_stream(b"stray").unwrap();
    let error = connect_error(s.event(false));
    assert!(matches!(error, ConnectionError::Startup(StartupFault::Malformed(_) | StartupFault::EarlyBytes)));
}

/// If a queue pair is dropped before the engine has processed the start of MPA, the connection ends at once.
#[test]
fn a_start_whose_queue_pair_is_gone_ends_at_once() {
    let mut s = Streams::simple();
    let qp = s.pair.a.qp();
    s.a.start_initiator(&qp, &ConnParam::default()).unwrap();
    drop(qp);
    let start = s.pair.now_us;
    told!(s.event(false), ConnectError { .. });
    assert!(s.pair.now_us - start < 1_000_000, "after {} us", s.pair.now_us - start);
}

// Proves MPA-144, MPA-200: if both sides are initiators, the side that first receives a Request in place of a
// Reply reports code 4.
#[test]
fn two_initiators_find_out() {
    let mut s = Streams::simple();
    let (qp_a, qp_b) = (s.pair.a.qp(), s.pair.b.qp());
    s.a.start_initiator(&qp_a, &ConnParam::default()).unwrap();
    s.b.start_initiator(&qp_b, &ConnParam::default()).unwrap();
    let mut codes: Vec<_> = [false, true]
        .map(|at_b| match s.event(at_b).kind {
            CmEventKind::ConnectError { error, .. } => error.mpa_code(),
            other => panic!("{other:?}"),
        })
        .into();
    codes.sort_unstable();
    // This side resets the connection. The other side may see the reset before it reads a Request.
    assert_eq!(codes.last(), Some(&Some(4)));
    assert!(codes[0] == Some(4) || codes[0] == Some(1), "{codes:?}");
}

// Proves MPA-201: two responders wait for each other until the startup timeout ends the connection.
#[test]
fn two_responders_find_out() {
    let mut s = Streams::simple();
    let options = ResponderOptions { startup_timeout: Duration::from_secs(2), ..ResponderOptions::default() };
    s.a.start_responder(b"", &options).unwrap();
    s.b.start_responder(b"", &options).unwrap();
    let start = s.pair.now_us;
    for at_b in [false, true] {
        let error = connect_error(s.event(at_b));
        assert!(matches!(error, ConnectionError::StartupTimeout | ConnectionError::Tcp(_)), "{error}");
    }
    assert!((1_900_000..2_200_000).contains(&(s.pair.now_us - start)));
}

// Proves MPA-180, MPA-181, MPA-182, MPA-190, MPA-191, MPA-218, MPA2-120: after a reject, MPA ends and TCP
// stays open. Plain bytes are sent in both directions, whatever the startup frames said about markers and
// CRCs, and MPA may be tried again.
#[test]
fn a_reject_leaves_tcp_open() {
    let mut s = Streams::simple();
    let qp = s.pair.a.qp();
    s.b.start_responder(b"", &ResponderOptions::default()).unwrap();
    s.a.start_initiator(&qp, &ConnParam { markers: true, ..ConnParam::default() }).unwrap();
    let event = s.event(true);
    event.id.reject(b"not now").unwrap();
    // The plain bytes follow the Reply, possibly in the same segment.
    s.b.send_stream(b"plain again").unwrap();
    let event = s.event(false);
    assert!(
        matches!(&event.kind, CmEventKind::Rejected { private_data, .. } if **private_data == *b"not now"),
        "{event:?}"
    );
    assert!(s.a.qp().is_none(), "the stream has no queue pair any more");
    assert_eq!(s.read(false, 11), b"plain again");
    s.a.send_stream(b"yes").unwrap();
    assert_eq!(s.read(true, 3), b"yes");
    let (qp_a, qp_b) = s.start(true, &ConnParam::default());
    exchange(&mut s.pair, &qp_a, &qp_b);
}

// Proves MPA-140, MPA-141, MPA-212, MPA-214: the user chooses the queue pair after receiving the Request.
// Without a queue pair, Full Operation does not begin.
#[test]
fn full_operation_needs_a_queue_pair() {
    let mut s = Streams::simple();
    let (qp, other) = (s.pair.b.qp(), s.pair.a.qp());
    s.b.start_responder(b"", &ResponderOptions::default()).unwrap();
    s.a.start_initiator(&other, &ConnParam::default().with_private_data(b"number 7").unwrap()).unwrap();
    let request = s.event(true);
    let CmEventKind::ConnectRequest { private_data, .. } = &request.kind else { panic!("{request:?}") };
    assert_eq!(&private_data[..], b"number 7");
    s.pair.run_us(100_000);
    assert!(s.pair.a.channel.poll().is_none(), "no Reply before the user has one");
    // A queue pair in the error state is refused, and the Request continues to wait.
    let over = s.pair.b.qp();
    over.modify(QpState::Error).unwrap();
    let refused = request.id.accept(&over, &ConnParam::default());
    assert!(matches!(refused, Err(VerbsError::InvalidState(_))), "{refused:?}");
    request.id.accept(&qp, &ConnParam::default()).unwrap();
    assert!(matches!(s.event(true).kind, CmEventKind::Established { .. }));
}

/// The buffers of both sides are limited. If the reader is slow, TCP's window closes, and the sender can send
/// no more.
#[test]
fn a_slow_reader_stops_its_peer() {
    let limits = StreamOptions { recv_bytes: 1000, send_bytes: 4000 };
    let mut s = Streams::new(&LinkConfig::default(), limits);
    let window = tcp_lite::TcpConfig::default().recv_window_bytes as usize;
    let bytes = pattern(3, 3 * window);
    let (mut sent, mut stalled) = (0, 0);
    while stalled < 200 {
        let taken = s.a.send_stream(&bytes[sent..]).unwrap();
        assert!(taken <= 4000);
        sent += taken;
        stalled = if taken == 0 { stalled + 1 } else { 0 };
        s.pair.run_us(1000);
    }
    // The limit is the sum of the reader's window, the same amount in the sender's TCP, and the bytes that
    // both sides buffer.
    assert!(sent < 2 * window + 100_000, "{sent}");
    let mut got: Vec<u8> = Vec::new();
    let (a, b) = (s.a.clone(), s.b.clone());
    s.pair.until(|_| {
        sent += a.send_stream(&bytes[sent..]).unwrap();
        let mut piece = [0; 4000];
        while let StreamRead::Bytes(count) = b.recv_stream(&mut piece).unwrap() {
            got.extend(&piece[..count]);
        }
        (got.len() == bytes.len()).then_some(())
    });
    assert!(got == bytes);
    let kinds: Vec<_> = std::iter::from_fn(|| s.pair.a.channel.poll()).map(|event| event.kind).collect();
    assert!(kinds.iter().any(|kind| matches!(kind, CmEventKind::StreamWritable)));
    // The user sees the end of the stream after the last byte.
    s.a.disconnect();
    s.pair.until(|_| (b.recv_stream(&mut [0; 8]).unwrap() == StreamRead::Ended).then_some(()));
    b.disconnect();
    assert!(matches!(s.event(false).kind, CmEventKind::Disconnected { error: None, .. }));
}

/// Each run loses one of the frames 2 to 11 in one direction, which include frames of the handshake. Startup
/// completes each time.
#[test]
fn startup_survives_the_loss_of_any_frame() {
    // The frames of address resolution are sent first, so the losses begin with frame 2.
    for lost in 2..12 {
        for a_to_b in [false, true] {
            let plan = LinkPlan { drop_exactly: vec![lost], ..LinkPlan::default() };
            let (good, bad) = (LinkPlan::default(), plan);
            let (a_to_b, b_to_a) = if a_to_b { (bad, good) } else { (good, bad) };
            let mut pair = Pair::new(&LinkConfig { a_to_b, b_to_a, ..LinkConfig::default() });
            let param = ConnParam::default().with_private_data(&pattern(lost, 508)).unwrap();
            let c = pair.connect(&param);
            exchange(&mut pair, &c.qp_a, &c.qp_b);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Loss,
    /// The frame arrives at least 300 us late.
    Lateness,
    /// The segment arrives in two parts, and the second part arrives first.
    Resegmentation,
}

/// Applies the fault to frame number `number` of the frames that have a payload.
struct FaultInjector {
    fault: Fault,
    number: usize,
    seen: Arc<AtomicUsize>,
    late: Option<(u64, Mbuf)>,
}

/// Returns the number of bytes before TCP's payload, or `None` if the frame has no TCP payload.
fn payload_at(frame: &Mbuf) -> Option<usize> {
    let head = frame.head();
    if head.get(12..14)? != [8, 0] || *head.get(23)? != 6 {
        return None;
    }
    let tcp = 14 + 4 * usize::from(head[14] & 15);
    let at = tcp + 4 * usize::from(head.get(tcp + 12)? >> 4);
    let end = 14 + usize::from(u16::from_be_bytes([head[16], head[17]]));
    (at < end).then_some(at)
}

/// Returns a frame with only the bytes `range` of the TCP payload, as a middlebox would make it. The frame's
/// checksum is marked as already verified.
fn part(port: &dyn Port, frame: &Mbuf, range: std::ops::Range<usize>) -> Mbuf {
    let at = payload_at(frame).unwrap();
    let mut bytes = vec![0; frame.len()];
    frame.copy_to(0, &mut bytes);
    let tcp = 14 + 4 * usize::from(bytes[14] & 15);
    let sequence = u32::from_be_bytes(bytes[tcp + 4..tcp + 8].try_into().unwrap());
    bytes[tcp + 4..tcp + 8].copy_from_slice(&sequence.wrapping_add(range.start as u32).to_be_bytes());
    let total = (at - 14 + range.len()) as u16;
    bytes[16..18].copy_from_slice(&total.to_be_bytes());
    let bytes = [&bytes[..at], &bytes[at..][range]].concat();
    let mut part = port.mempool().alloc().unwrap();
    assert!(part.append_slice(&bytes));
    part.set_rx_checksum(Checksum::Good);
    part
}

impl Hooks for FaultInjector {
    fn rx_burst(&mut self, port: &mut dyn Port, now_us: u64, frames: &mut Burst) -> usize {
        let mut came = Burst::new();
        port.rx_burst(now_us, &mut came);
        let before = frames.len();
        for frame in came.drain(..) {
            let Some(at) = payload_at(&frame) else {
                frames.push(frame);
                continue;
            };
            let number = self.seen.fetch_add(1, Ordering::Relaxed);
            if number != self.number {
                frames.push(frame);
                continue;
            }
            match self.fault {
                Fault::Loss => {}
                Fault::Lateness => self.late = Some((now_us + 300, frame)),
                Fault::Resegmentation => {
                    let end = 14 + usize::from(u16::from_be_bytes([frame.head()[16], frame.head()[17]]));
                    let bytes = end - at;
                    frames.push(part(port, &frame, bytes / 2..bytes));
                    if bytes > 1 {
                        frames.push(part(port, &frame, 0..bytes / 2));
                    }
                }
            }
        }
        if self.late.as_ref().is_some_and(|(due, _)| *due <= now_us) {
            frames.extend(self.late.take().map(|(_, frame)| frame));
        }
        frames.len() - before
    }

    fn next_due_us(&self, port: &dyn Port) -> Option<u64> {
        let late = self.late.as_ref().map(|(due, _)| *due);
        [port.next_due_us(), late].into_iter().flatten().min()
    }
}

// Proves MPA-222: a segment of the last plain bytes, of the Request, of the Reply or of the first FPDUs is
// lost, arrives late, or arrives cut in two in the wrong order, in either direction. TCP recovers, and MPA
// begins at the right byte, with markers and without.
#[test]
fn tcp_recovers_while_stacks_are_switched() {
    for fault in [Fault::Loss, Fault::Lateness, Fault::Resegmentation] {
        for markers in [false, true] {
            for at_b in [false, true] {
                for number in 0.. {
                    let seen = Arc::new(AtomicUsize::new(0));
                    let injector = FaultInjector { fault, number, seen: Arc::clone(&seen), late: None };
                    let bed = Testbed::new();
                    let bed = if at_b { bed.hook_b(injector) } else { bed.hook_a(injector) };
                    let mut s = Streams::on(bed.hosts(), StreamOptions::default());
                    s.a.send_stream(b"last words").unwrap();
                    s.b.send_stream(b"of both").unwrap();
                    let param =
                        ConnParam { markers, timeout: Duration::from_secs(60), ..ConnParam::default() };
                    assert_eq!(s.read(true, 10), b"last words", "{fault:?} of {number}");
                    assert_eq!(s.read(false, 7), b"of both", "{fault:?} of {number}");
                    let (qp_a, qp_b) = s.start(true, &param);
                    exchange(&mut s.pair, &qp_a, &qp_b);
                    // The connection has no segment with this number.
                    if seen.load(Ordering::Relaxed) <= number {
                        assert!(number > 8, "{number} segments");
                        break;
                    }
                }
            }
        }
    }
}

// Proves DDP-142, DDP-143, RDMAP-297: bytes that arrive before the application has started MPA belong to the
// application, even if they are a Request and a whole Write to an exposed buffer. None of these bytes is
// placed, DDP sends no segment, and no request can be posted before the start.
#[test]
fn before_the_switch_there_is_no_ddp() {
    let mut d = Responder::with(|options| options.streaming = Some(StreamOptions::default()));
    let all = iwarp::memory::Access::LOCAL_WRITE | iwarp::memory::Access::REMOTE_WRITE;
    let lent = d.pd.reg_mr(64, all).unwrap();
    let request = frame("Req", 0x50, 2, &[0, 8, 0, 8]);
    let mut write = vec![0xc1, 0x40];
    write.extend(lent.rkey().to_be_bytes());
    write.extend(lent.addr().to_be_bytes());
    write.extend([7; 8]);
    let write = |framer: &mut Framer| fpdu(framer, &write);
    let bytes = [request.clone(), write(&mut Framer::new(false, true))].concat();
    d.open(&bytes);
    let id = d.event().id;
    d.pair.until(100_000, |_| false);
    let mut got = vec![0; bytes.len()];
    assert_eq!(id.recv_stream(&mut got).unwrap(), StreamRead::Bytes(bytes.len()));
    assert_eq!(got, bytes);
    let placed = |lent: &iwarp::verbs::MemoryRegion| {
        let bytes = read_bytes(lent, 0, 8);
        bytes == [7; 8]
    };
    assert!(!placed(&lent) && d.pair.inbox.is_empty());
    let qp = d.qp();
    assert!(qp.post_send(&SendRequest::empty(1, SendOp::Send)).is_err());
    // The peer sends the same bytes again after the switch.
    id.start_responder(b"", &ResponderOptions::default()).unwrap();
    d.pair.until(10_000, |_| false);
    d.pair.send(&request);
    let _event = told!(d.event_of_mpa(), ConnectRequest { .. });
    assert!(!placed(&lent));
    d.accept_for(&qp, &id, &ConnParam::default());
    d.pair.send(&write(&mut Framer::new(false, true)));
    d.pair.until(50_000, |_| false);
    assert!(placed(&lent));
    qp.post_send(&SendRequest::empty(1, SendOp::Send)).unwrap();
}

// Proves MPA-235, MPA-236: an invalid Request and an invalid Reply are both reported with MPA error code 4
// (RFC 5044 section 8). TCP is reset at once, in less than a round trip, and the initiator's queue pair is in
// the same state as after a lost connection.
#[test]
fn an_invalid_frame_is_code_4_and_ends_tcp_at_once() {
    let wrong = |key: &str| frame(key, 0x50, 3, &[0, 8, 0, 8]);
    let mut lost = Initiator::new(&ConnParam::default());
    lost.pair.abort();
    let event = lost.event();
    assert!(
        matches!(&event.kind, CmEventKind::ConnectError { error, .. } if error.mpa_code() == Some(1)),
        "{event:?}"
    );

    let mut d = Initiator::new(&ConnParam::default());
    d.pair.inbox.clear();
    d.pair.send(&wrong("Rep"));
    assert!(d.pair.until(100, |pair| pair.closed == Some(CloseReason::Reset)), "{:?}", d.pair.closed);
    assert!(d.pair.inbox.is_empty());
    let error = connect_error(d.event());
    assert_eq!(error.mpa_code(), Some(4));
    assert_eq!(d.qp.state(), lost.qp.state());
    for qp in [&d.qp, &lost.qp] {
        assert!(qp.post_send(&SendRequest::empty(1, SendOp::Send)).is_err() || qp.state() == QpState::Error);
    }

    let mut d = Responder::with(|options| options.streaming = Some(StreamOptions::default()));
    d.open(&[]);
    let id = d.event().id;
    id.start_responder(b"", &ResponderOptions::default()).unwrap();
    d.pair.until(10_000, |_| false);
    d.pair.send(&wrong("Req"));
    assert!(d.pair.until(100, |pair| pair.closed == Some(CloseReason::Reset)), "{:?}", d.pair.closed);
    assert!(d.pair.inbox.is_empty());
    let error = connect_error(d.event_of_mpa());
    assert_eq!(error.mpa_code(), Some(4));
}
