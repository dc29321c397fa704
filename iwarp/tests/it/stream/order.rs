//! The order of messages when a frame is lost: which messages are placed early, and which messages wait (RFC
//! 5040 section 5.5 and appendix B).

use crate::common::{ALL, Pair, Testbed, remote_addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dp::link::{LinkConfig, LinkControl};
use dp::{Burst, Mbuf, Port};
use iwarp::memory::{Access, Base};
use iwarp::mpa::Framer;
use iwarp::verbs::{
    ConnParam, MrOptions, RecvRequest, RemoteAddr, SendFlags, SendOp, SendRequest, StreamError, WcOpcode,
    WcStatus,
};

use super::peer::{send, tagged, untagged};
use crate::common::hooked::SharedHooks;
use crate::common::raw::{EMPTY_WRITE, RawPair, fpdu};
use crate::common::served::{Served, Setup};

/// Loses the next long frame, and all retransmissions of its segment until `end` is called.
#[derive(Default)]
struct Loss(AtomicU64);

impl Loss {
    const NOTHING: u64 = 0;
    const NEXT: u64 = 1;

    fn begin(&self) {
        self.0.store(Self::NEXT, Ordering::Relaxed);
    }

    /// Ends the loss. Returns whether a frame was lost.
    fn end(&self) -> bool {
        self.0.swap(Self::NOTHING, Ordering::Relaxed) > Self::NEXT
    }

    fn takes(&self, frame: &Mbuf) -> bool {
        // The ports and the sequence number, which follow the Ethernet and IPv4 headers.
        let mut bytes = [0; 8];
        if frame.len() <= 500 {
            return false;
        }
        frame.copy_to(34, &mut bytes);
        let segment = u64::from_be_bytes(bytes);
        let _ = self.0.compare_exchange(Self::NEXT, segment, Ordering::Relaxed, Ordering::Relaxed);
        self.0.load(Ordering::Relaxed) == segment
    }
}

impl SharedHooks for Loss {
    fn tx_burst(&self, port: &mut dyn Port, now_us: u64, frames: &mut Burst) -> usize {
        let before = frames.len();
        frames.retain(|frame| !self.takes(frame));
        let lost = before - frames.len();
        port.tx_burst(now_us, frames) + lost
    }
}

/// Returns two hosts, and the control of the losses of the first host's frames.
fn losing() -> (Pair, Arc<Loss>) {
    let loss = Arc::new(Loss::default());
    (Testbed::new().hook_a(Arc::clone(&loss)).hosts(), loss)
}

fn poll_six_times(pair: &mut Pair) {
    for _ in 0..6 {
        let now_us = pair.now_us;
        pair.poll();
        // The time advances so little that no timer runs.
        pair.now_us = now_us + 1;
    }
}

/// The segment of a Write is lost. The next segment, with a Send and a Read Request, arrives. With markers,
/// the Send's bytes are placed at once. But the Send is not delivered and the Read is not answered before the
/// Write is placed.
// Proves RDMAP-006, RDMAP-027, RDMAP-032, RDMAP-033, RDMAP-064, RDMAP-203, RDMAP-263, RDMAP-266, RDMAP-268,
// RDMAP-269, RDMAP-275, RDMAP-277, RDMAP-281, RDMAP-282, RDMAP-288, RDMAP-289, RDMAP-411 to RDMAP-414,
// RDMAP-416, RDMAP-420, RDMAP-421, DDP-053, DDP-131, DDP-136 to DDP-138: beyond the hole the Send is placed,
// and the Write is not (RDMAP-032, RDMAP-033, RDMAP-266, RDMAP-268, RDMAP-414). The Send is not delivered
// (RDMAP-027, RDMAP-275, RDMAP-288), and the Read is not answered (RDMAP-281, RDMAP-411). When the Send is
// delivered, the Write's bytes are placed (RDMAP-006, RDMAP-203), and the Read returns these bytes
// (RDMAP-420). The test uses all four kinds of Send (RDMAP-263).
#[test]
fn what_is_behind_a_hole_may_be_placed_and_is_not_delivered() {
    let solicited = SendFlags::SIGNALED | SendFlags::SOLICITED;
    for (invalidates, flags) in
        [(false, SendFlags::SIGNALED), (true, SendFlags::SIGNALED), (false, solicited), (true, solicited)]
    {
        for read_len in [1000, 0] {
            let (mut pair, loss) = losing();
            let c = pair.connect(&ConnParam { markers: true, ..ConnParam::default() });
            let (local, target) = pair.regions(4000);
            let lent =
                pair.b.pd.reg_mr_with(64, &MrOptions { qp: Some(&c.qp_b), ..MrOptions::new(ALL) }).unwrap();
            local.write_at(0, &[[1; 1000], [2; 1000]].concat()).unwrap();
            c.qp_b.post_recv(&RecvRequest::new(9, target.sge(2000, 1000))).unwrap();
            let remote = remote_addr(&target, 0);
            let send = if invalidates { SendOp::SendInvalidate { rkey: lent.rkey() } } else { SendOp::Send };
            let requests = [
                SendRequest::new(1, SendOp::Write { remote }, local.sge(0, 1000)),
                SendRequest::new(2, send, local.sge(1000, 1000)).flags(flags),
                SendRequest::new(3, SendOp::Read { remote }, local.sge(3000, read_len)),
            ];
            loss.begin();
            c.qp_a.post_send_list(&requests).unwrap();
            poll_six_times(&mut pair);
            let mut seen = vec![0; 3000];
            target.read_at(0, &mut seen).unwrap();
            assert_eq!(seen, [vec![0; 2000], vec![2; 1000]].concat(), "the Send alone is placed");
            assert!(pair.b.cq.poll_one().is_none(), "and not delivered");
            assert!(lent.is_valid(), "nor has it invalidated");
            let done: Vec<_> = std::iter::from_fn(|| pair.a.cq.poll_one()).map(|wc| wc.wr_id).collect();
            assert_eq!(done, [1, 2], "the Read is not answered");
            assert!(loss.end(), "a segment was lost");

            let wc = pair.wc_b();
            assert_eq!((wc.wr_id, wc.status, wc.byte_len), (9, WcStatus::Success, 1000));
            assert_eq!(lent.is_valid(), !invalidates);
            target.read_at(0, &mut seen).unwrap();
            assert_eq!(seen[..1000], [1; 1000], "at its delivery the Write is there");
            assert_eq!(pair.wc_a().wr_id, 3);
            local.read_at(3000, &mut seen[..read_len]).unwrap();
            assert_eq!(seen[..read_len], vec![1; read_len], "the Read sees the Write");
        }
    }
}

/// A loss on one connection does not delay other connections or the other direction.
// Proves DDP-003, DDP-015, RDMAP-008, RDMAP-029, RDMAP-037, RDMAP-048, RDMAP-264, RDMAP-265: both connections
// use the same queue and MSN.
#[test]
fn connections_and_directions_do_not_wait_for_each_other() {
    let (mut pair, loss) = losing();
    let _listener = pair.listen();
    let param = ConnParam::default();
    let (first, second) = (pair.connect_again(&param, &param), pair.connect_again(&param, &param));
    let (a, b) = pair.regions(4000);
    for (n, c) in [&first, &second].into_iter().enumerate() {
        c.qp_b.post_recv(&RecvRequest::new(10 + n as u64, b.sge(1000 * n, 1000))).unwrap();
        c.qp_a.post_recv(&RecvRequest::new(20 + n as u64, a.sge(1000 * n, 1000))).unwrap();
    }
    loss.begin();
    first.qp_a.post_send(&SendRequest::new(1, SendOp::Send, a.sge(2000, 1000))).unwrap();
    poll_six_times(&mut pair);
    second.qp_a.post_send(&SendRequest::new(2, SendOp::Send, a.sge(2000, 1000))).unwrap();
    first.qp_b.post_send(&SendRequest::new(3, SendOp::Send, b.sge(2000, 1000))).unwrap();
    poll_six_times(&mut pair);
    let received = |cq: &iwarp::verbs::CompletionQueue| -> Vec<u64> {
        let all = std::iter::from_fn(|| cq.poll_one());
        all.filter(|wc| wc.opcode == WcOpcode::Recv).map(|wc| wc.wr_id).collect()
    };
    assert_eq!((received(&pair.b.cq), received(&pair.a.cq)), (vec![11], vec![20]));
    assert!(loss.end(), "a segment was lost");
    pair.run_us(2_000_000);
    assert_eq!(received(&pair.b.cq), [10]);
}

/// Returns a connection with markers in the direction to the engine, and the control of its wire.
fn served_with_control() -> (Served, LinkControl) {
    let (bed, control) = Testbed::with_control(&LinkConfig::default());
    let accept = ConnParam { markers: true, ..ConnParam::default() };
    (Setup { accept, ..Setup::on(bed.peer()) }.ready(), control)
}

/// Loses an FPDU of the peer, so that the next FPDU arrives beyond a hole.
fn lose_an_fpdu(pair: &mut RawPair, control: &LinkControl, framer: &mut Framer) {
    control.set_up(false);
    pair.offer(&fpdu(framer, &EMPTY_WRITE));
    pair.poll();
    control.set_up(true);
}

/// A Read Response that arrives beyond a hole is placed only if it fits the sink of an outstanding Read. A
/// wrong response ends the stream when it is processed in order.
// Proves SEC-097: also beyond a hole, a response is placed only where a Read waits for it.
#[test]
fn an_answer_ahead_of_a_hole_goes_where_a_read_waits() {
    // The columns: the offset of the Read's sink, the offset of the answer, and the error.
    for (sink, target, error) in [
        (None, 0, Some((0, 2, 6))),
        (Some(600), 0, Some((1, 1, 1))),
        (Some(1), 0, Some((1, 1, 1))),
        (Some(0), 1, Some((1, 1, 1))),
        (Some(0), 0, None),
    ] {
        let (mut served, control) = served_with_control();
        let region = served.pd.reg_mr(2000, Access::LOCAL_WRITE).unwrap();
        let Served { pair, framer, qp, cq, .. } = &mut served;
        if let Some(at) = sink {
            let read = SendOp::Read { remote: RemoteAddr { addr: 0, rkey: 1 } };
            qp.post_send(&SendRequest::new(1, read, region.sge(at, 600))).unwrap();
            pair.until(20_000, |_| false);
        }
        lose_an_fpdu(pair, &control, framer);
        let answer = tagged(0xc1, 0x42, region.rkey(), region.addr() + target, &[7; 600]);
        pair.offer(&fpdu(framer, &answer));
        // The FPDU is sent, and arrives beyond the hole.
        pair.poll();
        pair.poll();
        let mut seen = [0; 2000];
        region.read_at(0, &mut seen).unwrap();
        let placed = seen.iter().filter(|byte| **byte == 7).count();
        assert_eq!(
            (placed, qp.error()),
            (if error.is_none() { 600 } else { 0 }, None),
            "{sink:?}: behind the hole"
        );
        pair.until(1_000_000, |pair| pair.peer_closed);
        assert_eq!(qp.error().map(|error| (error.layer, error.etype, error.code)), error, "{sink:?}");
        region.read_at(0, &mut seen).unwrap();
        assert_eq!(seen.iter().filter(|byte| **byte == 7).count(), placed, "{sink:?}");
        let done = cq.poll_one().map(|wc| (wc.wr_id, wc.status == WcStatus::Success));
        assert_eq!(done, sink.map(|_| (1, error.is_none())), "{sink:?}");
    }
}

/// An error of a Send is found when the Send is processed in order, although its bytes were placed before
/// that. The peer receives the Terminate for this error. If an earlier Send is missing, the Send has no
/// buffer. If the Send's own first bytes are missing, the Send has an invalid MO.
#[test]
fn a_wrong_send_is_found_in_its_turn_where_it_was_placed_early() {
    let late = untagged(0x41, 0x43, 0, 0, 1, 4, &[7; 600]);
    for (wrong, place, code) in [(send(2, &[7; 600]), 1000, 2), (late, 4, 4)] {
        let (mut served, control) = served_with_control();
        let region = served.pd.reg_mr(2000, ALL).unwrap();
        let Served { pair, framer, qp, cq, .. } = &mut served;
        for n in 0..2 {
            qp.post_recv(&RecvRequest::new(n, region.sge(1000 * n as usize, 1000))).unwrap();
        }
        lose_an_fpdu(pair, &control, framer);
        pair.offer(&fpdu(framer, &wrong));
        let mut placed = [0; 600];
        let is_placed = pair.until(1000, |_| {
            region.read_at(place, &mut placed).unwrap();
            placed == [7; 600]
        });
        assert!(is_placed && qp.error().is_none(), "behind the hole");
        assert!(pair.until(1_000_000, |pair| pair.peer_closed));
        assert_eq!(qp.error(), Some(StreamError { layer: 1, etype: 2, code, from_peer: false }));
        let done: Vec<_> = std::iter::from_fn(|| cq.poll_one()).map(|wc| wc.status).collect();
        assert_eq!(done, [WcStatus::WrFlushError; 2], "nothing is delivered");
    }
}

/// Two Sends are held beyond a hole, and the stream fails because of the first Send. The bytes of both Sends
/// are no longer counted as held, although the connection continues to exist until the peer closes.
#[test]
fn what_was_held_behind_a_hole_is_given_back_when_the_stream_fails() {
    let (mut served, control) = served_with_control();
    let Served { pair, framer, qp, .. } = &mut served;
    lose_an_fpdu(pair, &control, framer);
    for msn in [1, 2] {
        pair.offer(&fpdu(framer, &send(msn, &[7; 600])));
    }
    let held = |pair: &RawPair| pair.engine.counters().stack.out_of_order.held_bytes;
    assert!(pair.until(1000, |pair| held(pair) > 1200), "{} bytes are held", held(pair));
    assert!(pair.until(1_000_000, |pair| pair.peer_closed));
    // No receive was posted, so the first Send has no buffer.
    assert_eq!(qp.error(), Some(StreamError { layer: 1, etype: 2, code: 2, from_peer: false }));
    assert_eq!(held(pair), 0);
}

/// Two Reads are outstanding, whose sinks differ only in their STags. The answer to the first Read arrives
/// beyond a hole, and is placed because it names the sink of an outstanding Read. At delivery, the STag of
/// the answer decides to which Read the answer belongs.
// Proves DDP-071: only its STag makes the message the answer to the first Read.
#[test]
fn the_stag_is_known_at_delivery() {
    for named in 0..2 {
        let (mut served, control) = served_with_control();
        let options = MrOptions { base: Base::Zero, ..MrOptions::new(ALL) };
        let sinks = [0, 1].map(|_| served.pd.reg_mr_with(600, &options).unwrap());
        let Served { pair, framer, qp, cq, .. } = &mut served;
        let remote = RemoteAddr { addr: 0, rkey: 1 };
        for (wr_id, sink) in (0..).zip(&sinks) {
            qp.post_send(&SendRequest::new(wr_id, SendOp::Read { remote }, sink.sge(0, 600))).unwrap();
        }
        pair.until(20_000, |_| false);
        lose_an_fpdu(pair, &control, framer);
        // Both sinks have the same offset and length.
        let answer = tagged(0xc1, 0x42, sinks[named].rkey(), 0, &[7; 600]);
        pair.offer(&fpdu(framer, &answer));
        let mut placed = vec![0; 600];
        let is_placed = pair.until(1000, |_| {
            sinks[named].read_at(0, &mut placed).unwrap();
            placed == [7; 600]
        });
        assert!(is_placed && qp.error().is_none() && cq.poll_one().is_none(), "behind the hole");
        pair.until(1_000_000, |pair| pair.peer_closed);
        let done: Vec<_> = std::iter::from_fn(|| cq.poll_one()).map(|wc| (wc.wr_id, wc.status)).collect();
        if named == 0 {
            assert_eq!((done, qp.error()), (vec![(0, WcStatus::Success)], None));
        } else {
            let invalid_stag = StreamError { layer: 1, etype: 1, code: 0, from_peer: false };
            assert_eq!(qp.error(), Some(invalid_stag));
            assert!(done.iter().all(|(_, status)| *status != WcStatus::Success), "{done:?}");
        }
    }
}

/// The engine binds at most 32 Sends to receives beyond a hole: the first missing Send, and the 31 Sends
/// after it. All later Sends are held, and are placed in their receives in order.
#[test]
fn sends_are_bound_ahead_up_to_a_limit() {
    const SENDS: u32 = 40;
    let (bed, control) = Testbed::with_control(&LinkConfig::default());
    let accept = ConnParam { markers: true, ..ConnParam::default() };
    let prepare = |qp: &iwarp::verbs::QueuePair, region: &iwarp::verbs::MemoryRegion| {
        for n in 0..SENDS as usize {
            qp.post_recv(&RecvRequest::new(n as u64, region.sge(600 * n, 600))).unwrap();
        }
    };
    let setup = Setup { accept, prepare: &prepare, region: 64_000, ..Setup::on(bed.peer()) };
    let mut served = setup.ready();
    // The peer first sends Writes that are acknowledged, so that its congestion window then allows all Sends
    // at once.
    let (stag, to) = (served.region.rkey(), served.to(40_000));
    for _ in 0..4 {
        served.send_and_run(&[(); 20].map(|()| tagged(0xc1, 0x40, stag, to, &[9; 1000])));
    }
    let Served { pair, framer, qp, cq, region, .. } = &mut served;
    lose_an_fpdu(pair, &control, framer);
    let all: Vec<u8> = (1..=SENDS).flat_map(|msn| fpdu(framer, &send(msn, &[msn as u8; 600]))).collect();
    pair.offer(&all);
    assert!(pair.until(1_000_000, |_| cq.query().waiting == SENDS as usize), "{:?}", qp.error());
    assert_eq!(pair.engine.counters().rx_fpdus_early, 32);
    let done: Vec<u64> = std::iter::from_fn(|| cq.poll_one()).map(|wc| wc.wr_id).collect();
    assert_eq!(done, (0..u64::from(SENDS)).collect::<Vec<_>>());
    for n in 0..SENDS as usize {
        let mut bytes = [0; 600];
        region.read_at(600 * n, &mut bytes).unwrap();
        assert_eq!(bytes, [n as u8 + 1; 600]);
    }
}
