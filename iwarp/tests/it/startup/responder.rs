//! MPA startup on the wire, with the engine as the responder: the engine's reaction to Requests, the bytes
//! for which it waits, and the bytes that it sends.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::Testbed;
use crate::common::hooked::Hooks;
use crate::common::raw::{EMPTY_WRITE, fpdu, frame};
use crate::common::responder::Responder;
use dp::link::LinkConfig;
use dp::{Burst, Checksum, Mbuf, Port};
use iwarp::mpa::frame::Depths;
use iwarp::mpa::{Framer, RtrKinds, StartupFault};
use iwarp::verbs::{
    CmEventKind, ConnParam, ConnectionError, RecvRequest, SendOp, SendRequest, StreamError, VerbsError,
};
use tcp_lite::CloseReason;

fn request(flags: u8, revision: u8, private_data: &[u8]) -> Vec<u8> {
    frame("Req", flags, revision, private_data)
}

/// Returns a Request without the peer-to-peer model, with IRD 8 and ORD 8.
fn plain_request() -> Vec<u8> {
    request(0x50, 2, &[0, 8, 0, 8])
}

fn first_fpdu(ulpdu: &[u8]) -> Vec<u8> {
    fpdu(&mut Framer::new(false, true), ulpdu)
}

// Proves MPA-149, MPA-165, MPA-177, MPA-205, MPA-210, MPA-242, MPA-299, MPA2-097, MPA2-104, MPA2-125,
// MPA2-126, RDMAP-173: the engine sends no Reply and no Terminate. The connection ends at once, and only the
// listener's counters show the failure.
#[test]
fn an_invalid_request_ends_the_connection() {
    let mut wrong_key = plain_request();
    wrong_key[3] = b'x';
    let mut early = plain_request();
    early.push(0);
    for bytes in [
        wrong_key,
        frame("Rep", 0x50, 2, &[0; 4]),
        b"GET / HTTP/1.0\r\n\r\n".to_vec(),
        request(0x40, 0, &[]),
        request(0x50, 3, &[0; 4]),
        request(0x10, 2, &[]),
        request(0x10, 2, &[0; 3]),
        request(0x40, 1, &[0; 513]),
        early,
    ] {
        let mut d = Responder::new();
        d.open(&bytes);
        assert!(d.pair.until(200_000, |pair| pair.closed == Some(CloseReason::Reset)), "{bytes:02x?}");
        d.pair.poll();
        assert_eq!(d.pair.inbox.len(), 0);
        assert!(d.channel.poll().is_none());
        let stats = d.listener.listener_stats().unwrap();
        assert_eq!((stats.startup_faults, stats.connections, stats.undecided), (1, 0, 0));
    }
    let mut d = Responder::with(|options| options.responder.enhanced = false);
    d.open(&plain_request());
    assert!(d.is_over());
    assert_eq!(d.pair.inbox.len(), 0);
    // Revision 1 is still accepted.
    d.connect_request(&request(0x40, 1, &[]));
}

// Proves MPA-176, MPA-187, MPA-206, MPA2-015: the responder sends nothing until the Request is complete. Then
// the user decides, and the Reply is sent.
#[test]
fn nothing_is_said_before_the_request() {
    let mut d = Responder::with(|options| options.responder.startup_timeout = Duration::from_secs(3600));
    let whole = request(0x50, 2, &[0, 8, 0, 8, b'h', b'i']);
    d.open(&[]);
    for byte in &whole[..whole.len() - 1] {
        d.pair.send(&[*byte]);
        d.pair.until(1_000, |_| false);
        assert!(d.pair.inbox.is_empty() && d.channel.poll().is_none());
    }
    d.pair.send(&whole[whole.len() - 1..]);
    let event = d.event();
    d.pair.until(10_000, |_| false);
    assert!(d.pair.inbox.is_empty(), "the user has not decided");
    d.accept(&event.id, &ConnParam::default());
    assert_eq!(d.pair.inbox, frame("Rep", 0x50, 2, &[0, 8, 0, 8]));
    // A Request that stalls makes the connection end.
    let mut d = Responder::with(|options| options.responder.startup_timeout = Duration::from_secs(2));
    d.open(&whole[..19]);
    let start = d.pair.now_us;
    assert!(d.pair.until(10_000_000, |pair| pair.closed.is_some()));
    assert!(d.pair.now_us - start < 2_100_000);
    d.pair.poll();
    let stats = d.listener.listener_stats().unwrap();
    assert_eq!((stats.startup_timeouts, stats.connections), (1, 0));
}

// Proves MPA-193, MPA-194, MPA2-008, MPA2-013, MPA2-115, MPA2-137: only the Reply is sent before the first
// valid FPDU has arrived. Any valid FPDU allows posted requests to be sent.
#[test]
fn the_first_fpdu_releases_the_responder() {
    let data = [&[0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0][..], b"data"].concat();
    let read = [&[0x41, 0x41, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0][..], &[0; 28]].concat();
    for (bytes, peer_to_peer) in [
        (plain_request(), false),
        (request(0x50, 2, &[0x80, 8, 0x80, 8]), true),
        (request(0x40, 1, &[]), false),
    ] {
        for ulpdu in [&EMPTY_WRITE[..], &data, &read] {
            let mut d = Responder::with(|options| options.responder.max_ird = 8);
            let event = d.connect_request(&bytes);
            let region = d.pd.reg_mr(64, iwarp::memory::Access::LOCAL_WRITE).unwrap();
            let qp = d
                .accept(&event.id, &ConnParam { timeout: Duration::from_secs(3600), ..ConnParam::default() });
            qp.post_recv(&RecvRequest::new(1, region.sge(0, 64))).unwrap();
            qp.post_send(&SendRequest::empty(2, SendOp::Send)).unwrap();
            let reply = d.pair.inbox.len();
            d.pair.until(200_000, |_| false);
            let first = first_fpdu(ulpdu);
            // The FPDU arrives byte by byte, and only the last byte has an effect.
            for byte in &first[..first.len() - 1] {
                d.pair.send(&[*byte]);
                d.pair.until(500, |_| false);
            }
            assert_eq!(d.pair.inbox.len(), reply, "{peer_to_peer}");
            d.pair.send(&first[first.len() - 1..]);
            assert!(d.pair.until(100_000, |pair| pair.inbox.len() >= reply + 24), "not released");
            assert_eq!(qp.error(), None);
            let received = std::iter::from_fn(|| d.cq.poll_one()).any(|wc| wc.wr_id == 1 && wc.byte_len == 4);
            assert_eq!(received, ulpdu == &data[..]);
        }
    }
}

// Proves MPA-195, MPA2-116: an error of the first FPDU is reported to the local user only, since the
// responder may not send.
#[test]
fn a_bad_first_fpdu_is_answered_by_silence() {
    let mut d = Responder::new();
    let event = d.connect_request(&plain_request());
    let qp = d.accept(&event.id, &ConnParam::default());
    let reply = d.pair.inbox.len();
    let mut bad = first_fpdu(&EMPTY_WRITE);
    *bad.last_mut().unwrap() ^= 1;
    d.pair.send(&bad);
    assert!(d.pair.until(100_000, |pair| pair.closed == Some(CloseReason::Reset)));
    assert_eq!(d.pair.inbox.len(), reply);
    assert_eq!(qp.error(), Some(StreamError { layer: 2, etype: 0, code: 2, from_peer: false }));
    assert_eq!(qp.terminate().unwrap().origin, iwarp::verbs::TerminateOrigin::NotSent);
}

// Proves MPA2-114: a Write that is the RTR may have any STag and offset.
#[test]
fn the_stag_of_an_rtr_says_nothing() {
    let mut d = Responder::new();
    let event = d.connect_request(&request(0x50, 2, &[0x80, 8, 0x80, 8]));
    let qp = d.accept(&event.id, &ConnParam::default());
    let ulpdu = [&[0xc1, 0x40][..], &[0xff; 12]].concat();
    d.pair.send(&first_fpdu(&ulpdu));
    assert!(matches!(d.event().kind, CmEventKind::Established { ready: true, .. }));
    assert_eq!(qp.error(), None);
}

// Proves MPA2-112, MPA2-003: a Read of no bytes that is the RTR is answered by an empty response, and the
// next Read has MSN 2.
#[test]
fn a_read_as_rtr_is_answered() {
    let mut d = Responder::new();
    let event = d.connect_request(&request(0x50, 2, &[0x80, 8, 0x40, 8]));
    let _qp = d.accept(&event.id, &ConnParam::default());
    let reply = d.pair.inbox.len();
    let mut framer = Framer::new(false, true);
    for msn in 1..3 {
        let mut read = vec![0x41, 0x41, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, msn, 0, 0, 0, 0];
        read.extend([0; 28]);
        let bytes = fpdu(&mut framer, &read);
        d.pair.send(&bytes);
    }
    d.pair.until(50_000, |_| false);
    assert_eq!(d.pair.inbox.len(), reply + 40);
    assert_eq!(d.pair.inbox[reply..][..4], [0, 0x0e, 0xc1, 0x42]);
    assert_eq!(d.pair.inbox[reply + 16..][..4], [0x69, 0x75, 0xd6, 0xca]);
}

// Proves MPA2-138: if a peer promises an RTR and does not send it, the connection ends.
#[test]
fn a_missing_rtr_is_given_up() {
    let mut d = Responder::new();
    let event = d.connect_request(&request(0x50, 2, &[0x80, 8, 0x80, 8]));
    let param = ConnParam { timeout: Duration::from_secs(2), ..ConnParam::default() };
    let _qp = d.accept(&event.id, &param);
    let start = d.pair.now_us;
    told!(d.event(), ConnectError { error: ConnectionError::StartupTimeout, .. });
    assert!(d.pair.now_us - start < 2_100_000);
}

// Proves MPA2-062, MPA2-063, MPA2-116: if a peer serves too few Reads, it receives a reject of revision 2
// with the depth that is needed. Only our user receives the error code.
#[test]
fn a_peer_that_serves_too_few_reads_is_rejected() {
    let mut d = Responder::new();
    let event = d.connect_request(&request(0x50, 2, &[0, 1, 0, 4]));
    let param = ConnParam { initiator_depth: 8, min_initiator_depth: 8, ..ConnParam::default() };
    let qp = d.accept(&event.id, &param);
    assert_eq!(d.pair.inbox, frame("Rep", 0x70, 2, &[0, 4, 0, 8]));
    assert!(d.pair.until(200_000, |pair| pair.peer_closed));
    d.pair.close();
    let told = StreamError { layer: 2, etype: 0, code: 6, from_peer: false };
    told!(d.event(), ConnectError { error: ConnectionError::Stream(e), .. } if e == told);
    assert_eq!((qp.error(), d.pair.inbox.len()), (Some(told), 24));
}

// Proves MPA-166, MPA-168, MPA-171, MPA-173, MPA-175, MPA-203, MPA2-021, MPA2-046, MPA2-058, MPA2-163: the
// user receives the peer's private data, up to the largest size, and the peer's depths, unchanged.
#[test]
fn the_user_gets_what_the_peer_sent() {
    for size in [0, 1, 8, 508, 511, 512] {
        let data: Vec<u8> = (0..size).map(|at| (at * 7 + 3) as u8).collect();
        let mut d = Responder::new();
        let event = d.connect_request(&request(0x40, 1, &data));
        let CmEventKind::ConnectRequest { private_data, revision, peer_ird, .. } = &event.kind else {
            panic!()
        };
        assert_eq!((&private_data[..], *revision, *peer_ird), (&data[..], 1, None));
        if size > 508 {
            continue;
        }
        let mut d = Responder::new();
        let event = d.connect_request(&request(0x50, 2, &[&[0x12, 0x34, 0x3f, 0xff], &data[..]].concat()));
        let CmEventKind::ConnectRequest { private_data, revision, peer_ird, peer_ord, .. } = &event.kind
        else {
            panic!()
        };
        let depths = (Some(0x1234), Some(Depths::LEFT_TO_ULP));
        assert_eq!((&private_data[..], *revision, (*peer_ird, *peer_ord)), (&data[..], 2, depths));
    }
}

// Proves MPA-172, MPA-179, MPA-184: a Reply that accepts carries private data up to the limit, and a Reply
// that rejects also carries private data.
#[test]
fn replies_carry_private_data() {
    for (bytes, most) in [(request(0x40, 1, &[]), 512), (plain_request(), 508)] {
        let mut d = Responder::new();
        let event = d.connect_request(&bytes);
        let param = |size| {
            ConnParam { mpa_revision: 1, peer_to_peer: false, ..ConnParam::default() }
                .with_private_data(&vec![5; size])
        };
        assert!(param(513).is_err());
        if most == 508 {
            let refused = event.id.accept(&d.qp(), &param(509).unwrap());
            assert!(matches!(refused, Err(VerbsError::TooLong { got: 509, max: 508 })), "{refused:?}");
        }
        let _qp = d.accept(&event.id, &param(most).unwrap());
        d.pair.until(10_000, |_| false);
        assert_eq!(d.pair.inbox.len(), 20 + 512);
        let mut d = Responder::new();
        let event = d.connect_request(&bytes);
        event.id.reject(b"because").unwrap();
        assert!(d.pair.until(200_000, |pair| pair.peer_closed));
        assert!(d.pair.inbox.ends_with(b"because") && d.pair.inbox[16] & 0x20 != 0);
    }
}

// Proves MPA-204: the user's limit of private data applies to the received frame.
#[test]
fn private_data_beyond_the_listeners_bound_is_malformed() {
    for (size, admitted) in [(100, true), (101, false)] {
        let mut d = Responder::with(|options| options.responder.max_private_data = 100);
        let bytes = request(0x40, 1, &vec![1; size]);
        if admitted {
            d.connect_request(&bytes);
        } else {
            d.open(&bytes);
            assert!(d.is_over() && d.pair.inbox.is_empty() && d.channel.poll().is_none());
            assert_eq!(d.listener.listener_stats().unwrap().startup_faults, 1);
        }
    }
}

// Proves MPA2-142, SEC-128: depths that a peer asks for are reduced to our own limits before anything is
// allocated for them.
#[test]
fn depths_are_clipped_to_our_own() {
    let mut d = Responder::with(|options| {
        options.responder.max_ird = 16;
        options.responder.max_ord = 12;
    });
    let event = d.connect_request(&request(0x50, 2, &[0x3f, 0xfe, 0x3f, 0xfe]));
    let _qp = d.accept(&event.id, &ConnParam::default());
    assert_eq!(d.pair.inbox, frame("Rep", 0x50, 2, &[0, 16, 0, 12]));
    let CmEventKind::Established { ird, ord, .. } = d.event().kind else { panic!() };
    assert_eq!((ird, ord), (16, 12));
    assert_eq!(d.pair.context.usage().read_slots.used, 2 * 16);
}

// Proves MPA2-144, MPA2-154, MPA2-159: the engine parses the Terminate that an initiator sends in place of
// its RTR, with the first bytes that Linux's siw and cxgb4 use.
#[test]
fn terminates_of_startup_are_understood() {
    for first in [0x20, 0x02, 0x23] {
        for code in 5..8 {
            let mut d = Responder::new();
            let event = d.connect_request(&request(0x50, 2, &[0x80, 8, 0x80, 8]));
            let qp = d.accept(&event.id, &ConnParam::default());
            let mut ulpdu = vec![0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0];
            ulpdu.extend([first, code, 0, 0]);
            d.pair.send(&first_fpdu(&ulpdu));
            d.pair.close();
            d.pair.until(100_000, |_| false);
            let told = StreamError { layer: 2, etype: 0, code, from_peer: true };
            assert_eq!(qp.error(), Some(told), "{first:#x} {code}");
            assert_eq!(qp.terminate().unwrap().terminate.control, Some([first, code, 0, 0]));
        }
    }
}

/// If bytes follow a Request before the Reply is sent, startup ends, even if these bytes arrived before the
/// Request.
#[test]
fn what_came_ahead_of_a_request_and_follows_it_ends_startup() {
    let (bed, control) = Testbed::with_control(&LinkConfig::default());
    let mut d = Responder::over(bed.peer(), |_| {});
    d.open(&[]);
    control.set_up(false);
    d.pair.offer(&plain_request());
    d.pair.poll();
    control.set_up(true);
    d.pair.offer(&[0; 4]);
    assert!(matches!(d.event().kind, CmEventKind::ConnectRequest { .. }));
    let CmEventKind::ConnectError { error, .. } = d.event().kind else { panic!("no error") };
    assert_eq!(error, ConnectionError::Startup(StartupFault::EarlyBytes));
    assert!(d.is_over());
}

// Proves MPA-198, MPA-211, MPA-216, MPA-217: the user can accept the request, reject it with private data, or
// drop it. A drop ends TCP.
#[test]
fn the_user_has_three_choices() {
    let mut d = Responder::new();
    let accepted = d.connect_request(&plain_request()).id;
    let _qp = d.accept(&accepted, &ConnParam::default());
    assert!(matches!(d.event().kind, CmEventKind::Established { .. }));
    let mut d = Responder::new();
    let rejected = d.connect_request(&plain_request()).id;
    d.pair.inbox.clear();
    rejected.reject(b"why").unwrap();
    assert!(d.pair.until(100_000, |pair| pair.inbox.len() == 27));
    assert_eq!(d.pair.inbox, frame("Rep", 0x70, 2, &[&d.pair.inbox[20..24], b"why"].concat()));
    let stats = d.listener.listener_stats().unwrap();
    assert_eq!((stats.requests, stats.rejected, stats.undecided), (1, 1, 0));
    let mut d = Responder::new();
    drop(d.connect_request(&plain_request()));
    assert!(d.is_over());
}

// Proves SEC-057, MPA2-109: if any byte of a Request is changed, the connection stays within our own limits,
// or ends.
#[test]
fn a_request_that_was_altered_is_harmless() {
    let whole = request(0x50, 2, &[0x80, 4, 0xc0, 4, b'h', b'i']);
    let mut d = Responder::with(|options| {
        options.responder.max_ird = 8;
        options.responder.startup_timeout = Duration::from_millis(500);
    });
    let (mut asked, mut ended) = (0, 0);
    for at in 0..whole.len() {
        for change in [0x01, 0x10, 0x80, 0xff] {
            let mut altered = whole.clone();
            altered[at] ^= change;
            d.open(&altered);
            d.pair.until(600_000, |pair| pair.is_over());
            let event = d.channel.poll();
            let Some(id) = event.map(|event| event.id) else {
                assert!(d.pair.is_over() && d.pair.inbox.is_empty(), "{at}: {change:#x}");
                ended += 1;
                continue;
            };
            let qp = d.accept(&id, &ConnParam { initiator_depth: 8, ..ConnParam::default() });
            d.pair.until(10_000, |_| false);
            let granted = d.pair.context.usage().read_slots.used;
            assert!(granted <= 2 * 8, "{at}: {change:#x}: {granted}");
            asked += 1;
            id.abort();
            drop(qp);
            d.pair.until(50_000, |_| false);
            while d.channel.poll().is_some() {}
        }
    }
    assert!(asked > 20 && ended > 60, "{asked} {ended}");
    assert_eq!(d.listener.listener_stats().unwrap().connections, 0);
}

// Proves MPA2-026, MPA2-079, MPA2-131: a listener with the enhanced mode that accepts no kind of RTR is
// refused.
#[test]
fn a_listener_needs_an_rtr_kind() {
    let d = Responder::new();
    let id = d.pair.context.create_id(&d.channel);
    let mut options = iwarp::verbs::ListenOptions::new(4000);
    options.responder.rtr = RtrKinds::empty();
    assert!(matches!(id.listen_with(&options), Err(VerbsError::Invalid(_))));
    options.responder.enhanced = false;
    id.listen_with(&options).unwrap();
}

/// Loses the segment with the peer's first bytes as often as it is sent. Copies a later segment to
/// consecutive sequence numbers, until it has made [`Headless::MOST`] bytes, and counts these bytes. TCP's
/// congestion control would not send this number of bytes.
#[derive(Default)]
struct Headless {
    first: Option<u32>,
    /// The next copy to deliver, and its sequence number.
    next: Option<(u32, Mbuf)>,
    passed: Arc<AtomicUsize>,
}

impl Headless {
    const MOST: usize = 256 << 10;
}

impl Hooks for Headless {
    fn rx_burst(&mut self, port: &mut dyn Port, now_us: u64, frames: &mut Burst) -> usize {
        let mut arrived = Burst::new();
        port.rx_burst(now_us, &mut arrived);
        let before = frames.len();
        for frame in arrived {
            // The head contains the sequence number, the header length and the flags, behind the Ethernet and
            // IPv4 headers.
            let mut head = [0; 48];
            frame.copy_to(0, &mut head);
            let seq = u32::from_be_bytes(head[38..42].try_into().unwrap());
            if head[12..14] == [8, 0] && head[23] == 6 && head[47] & 2 != 0 {
                self.first = Some(seq.wrapping_add(1));
            }
            if frame.len() <= 500 {
                // The burst has space for the few acknowledgements.
                let _ = frames.try_push(frame);
            } else if self.first != Some(seq) && self.passed.load(Ordering::Relaxed) == 0 {
                self.next.get_or_insert((seq, frame));
            }
        }
        // Only a few segments are delivered per burst. The window of a SYN-ACK is at most 64 KiB, and the
        // next acknowledgement has a larger window.
        for _ in 0..frames.remaining_capacity().min(4) {
            let Some((seq, frame)) = &mut self.next else { break };
            let mut copy = frame.deep_copy(port.mempool()).expect("a buffer");
            let head = copy.head_mut().unwrap();
            head[38..42].copy_from_slice(&seq.to_be_bytes());
            let headers = 34 + usize::from(head[46] >> 4) * 4;
            copy.set_rx_checksum(Checksum::Good);
            *seq = seq.wrapping_add((copy.len() - headers) as u32);
            if self.passed.fetch_add(copy.len(), Ordering::Relaxed) >= Self::MOST {
                self.next = None;
            }
            frames.push(copy);
        }
        frames.len() - before
    }
}

/// If a peer's Request is lost, the engine keeps at most 128 KiB of the bytes behind it. Startup cannot need
/// more bytes, so the connection ends.
#[test]
fn what_is_kept_ahead_of_a_request_is_bounded() {
    let headless = Headless::default();
    let passed = Arc::clone(&headless.passed);
    let mut d = Responder::over(Testbed::new().hook_a(headless).peer(), |_| {});
    d.open(&[0; 1 << 19]);
    assert!(d.pair.until(2_000_000, |pair| pair.closed == Some(CloseReason::Reset)));
    d.pair.poll();
    let passed = passed.load(Ordering::Relaxed);
    assert!((112 << 10..160 << 10).contains(&passed), "{passed} bytes ahead");
    let stats = d.listener.listener_stats().unwrap();
    assert_eq!((stats.startup_faults, stats.connections, stats.undecided), (1, 0, 0));
    d.pair.until(1_000_000, |_| false);
    assert_eq!(d.pair.pool.available(), d.pair.pool.capacity(), "nothing is kept");
}

// Proves MPA2-144, MPA2-154: an initiator that sends a Terminate in place of its RTR has not connected. The
// user receives the error, and never receives the `Established` event.
#[test]
fn a_terminate_in_place_of_the_rtr_is_a_connect_error() {
    let mut d = Responder::new();
    let event = d.connect_request(&request(0x50, 2, &[0x80, 8, 0x80, 8]));
    let qp = d.accept(&event.id, &ConnParam::default());
    let mut ulpdu = vec![0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0];
    ulpdu.extend([0x20, 7, 0, 0]);
    d.pair.send(&first_fpdu(&ulpdu));
    d.pair.close();
    let told = StreamError { layer: 2, etype: 0, code: 7, from_peer: true };
    told!(d.event(), ConnectError { error: ConnectionError::Stream(e), .. } if e == told);
    assert_eq!((qp.error(), d.pair.engine.counters().connections), (Some(told), 0));
    assert!(d.channel.poll().is_none());
}
