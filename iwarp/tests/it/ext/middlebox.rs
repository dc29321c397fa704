//! A middlebox that takes off what it does not know of TCP: the option that says which bytes are not taken.
//! Without it a Send would complete although nobody has taken its message. So the ends agree on no semantics
//! of InfiniBand, and both are told.

use dp::{Burst, Checksum, Port};
use iwarp::verbs::{
    CmEventKind, ConnParam, QpInit, QpState, RecvRequest, ResponderOptions, SendOp, SendRequest,
    StreamOptions, WcStatus,
};

use crate::common::hooked::Hooks;
use crate::common::raw::request;
use crate::common::{PORT, Pair, Testbed, agreeing, expect_terminate};

/// Takes TCP options of kind 253 off what its port receives, or only those of SYNs, or of others.
#[derive(Clone, Copy)]
struct Middlebox {
    of_syns: bool,
    of_others: bool,
}

const ALL: Middlebox = Middlebox { of_syns: true, of_others: true };
const NOTHING: Middlebox = Middlebox { of_syns: false, of_others: false };

impl Hooks for Middlebox {
    fn rx_burst(&mut self, port: &mut dyn Port, now_us: u64, frames: &mut Burst) -> usize {
        let before = frames.len();
        let count = port.rx_burst(now_us, frames);
        for frame in &mut frames[before..] {
            let mut copy = frame.deep_copy(port.mempool()).expect("a buffer");
            if copy.head_mut().is_some_and(|bytes| self.takes_off(bytes)) {
                copy.set_rx_checksum(Checksum::Good);
                *frame = copy;
            }
        }
        count
    }
}

impl Middlebox {
    /// Whether it has changed this frame, of IPv4 without options.
    fn takes_off(self, frame: &mut [u8]) -> bool {
        if frame.get(12..14) != Some(&[8, 0]) || frame[23] != 6 {
            return false;
        }
        let (is_syn, end) = (frame[47] & 2 != 0, 34 + usize::from(frame[46] >> 4) * 4);
        if !(if is_syn { self.of_syns } else { self.of_others }) {
            return false;
        }
        let (mut at, mut changed) = (54, false);
        while at < end {
            let len = if frame[at] <= 1 { 1 } else { usize::from(frame[at + 1]) };
            if frame[at] == 253 {
                frame[at..at + len].fill(1);
                changed = true;
            }
            at += len;
        }
        changed
    }
}

/// Two hosts behind middleboxes, of which both want InfiniBand's semantics. Returns whether they have them.
fn agree(box_a: Middlebox, box_b: Middlebox) -> bool {
    let mut pair = Testbed::new().hook_a(box_a).hook_b(box_b).hosts();
    let c = pair.connect(&agreeing());
    let told = [&c.established_a, &c.established_b].map(|event| match &event.kind {
        CmEventKind::Established { ib_semantics, .. } => *ib_semantics,
        _ => panic!("{event:?}"),
    });
    assert_eq!(told[0], told[1]);
    assert_eq!([&c.qp_a, &c.qp_b].map(|qp| qp.query().ib_semantics), [Some(told[0]); 2]);
    // What the one or the other means: a message without a receive waits, or ends the stream.
    let (local, remote) = pair.regions(64);
    c.qp_a.post_send(&SendRequest::new(1, SendOp::Send, local.sge(0, 8))).unwrap();
    if told[0] {
        pair.run_us(100_000);
        assert!(pair.a.cq.poll_one().is_none(), "nobody has taken it");
        c.qp_b.post_recv(&RecvRequest::new(2, remote.sge(0, 8))).unwrap();
        assert_eq!([pair.wc_a(), pair.wc_b()].map(|wc| wc.status), [WcStatus::Success; 2]);
    } else {
        expect_terminate(&mut pair, &c, 1, 2, 2);
    }
    told[0]
}

#[test]
fn ends_whose_option_does_not_come_through_do_not_agree() {
    assert!(agree(NOTHING, NOTHING));
    let (syns, others) = (Middlebox { of_syns: true, ..NOTHING }, Middlebox { of_others: true, ..NOTHING });
    for (box_a, box_b) in [(ALL, ALL), (ALL, NOTHING), (NOTHING, ALL), (syns, NOTHING), (NOTHING, syns)] {
        assert!(!agree(box_a, box_b));
    }
    // Nothing has a use for the option behind the SYNs but a message that waits.
    let mut pair = Testbed::new().hook_a(others).hosts();
    let c = pair.connect(&ConnParam::default());
    assert_eq!(c.qp_a.state(), QpState::Rts);
}

/// A connection that begins in streaming mode may be the initiator's or the responder's.
#[test]
fn an_agreement_behind_streaming_mode_needs_the_option_too() {
    for (box_a, agrees, initiates) in
        [(ALL, false, true), (NOTHING, true, true), (ALL, false, false), (NOTHING, true, false)]
    {
        let mut pair = Testbed::new().hook_a(box_a).peer();
        pair.listen();
        let channel = pair.context.create_event_channel().unwrap();
        let id = pair.context.create_id(&channel);
        let remote = format!("10.0.0.2:{PORT}").parse().unwrap();
        id.connect_stream(remote, StreamOptions::default(), &ConnParam::default()).unwrap();
        let event = pair.next_event(&channel, 1_000_000).expect("not connected");
        assert!(matches!(event.kind, CmEventKind::StreamEstablished { .. }), "{event:?}");
        let pd = pair.context.alloc_pd().unwrap();
        let cq = pair.context.create_cq(64, None).unwrap();
        let qp = pd.create_qp(&QpInit::new(&cq)).unwrap();
        if initiates {
            id.start_initiator(&qp, &agreeing()).unwrap();
        } else {
            id.start_responder(b"", &ResponderOptions::default()).unwrap();
            let mut offer = request(true);
            // The length of the private data, enhanced data included.
            offer[19] = 4 + 8;
            offer.extend(b"uwarp?3\x07");
            pair.send(&offer);
            let asked = pair.next_event(&channel, 1_000_000).expect("no Request");
            assert!(matches!(asked.kind, CmEventKind::ConnectRequest { .. }), "{asked:?}");
            id.accept(&qp, &agreeing()).unwrap();
        }
        assert!(pair.until(1_000_000, |pair| pair.inbox.len() >= 20), "no frame of MPA");
        let said = pair.inbox.windows(7).any(|bytes| [&b"uwarp?3"[..], b"uwarp!3"].contains(&bytes));
        assert_eq!(said, agrees, "initiates: {initiates}");
    }
}

/// A peer that has opened the connection knows what came through; the other end takes its word.
#[test]
fn connections_without_the_semantics_do_not_ask() {
    let (mut pair, _listener) = Pair::listening();
    let c = pair.connect_again(&ConnParam::default(), &agreeing());
    assert_eq!(c.qp_b.query().ib_semantics, Some(false));
}
