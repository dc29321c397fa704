//! Sends that are posted after the queue pair has stopped sending (`QueuePair::take_late_sends`). Such Sends
//! are never sent, and are flushed after all other requests when the stream ends.

use crate::common::raw::ulpdus;
use crate::common::served::{Served, Setup};
use iwarp::mpa::Framer;
use iwarp::verbs::{QpInit, QpState, SendFlags, SendOp, SendRequest, VerbsError, WcOpcode, WcStatus};

const FLUSHED: WcStatus = WcStatus::WrFlushError;

fn send(served: &Served, wr_id: u64) -> SendRequest {
    SendRequest::new(wr_id, SendOp::Send, served.region.sge(0, 3))
}

/// Returns a connection whose queue pair accepts late sends. The send queue has four entries.
fn taking() -> Served {
    let make_qp = |init: QpInit<'_>, pd: &iwarp::verbs::ProtectionDomain| {
        let qp = pd.create_qp(&QpInit { max_send_wr: 4, ..init }).unwrap();
        qp.take_late_sends();
        qp
    };
    Setup { make_qp: &make_qp, ..Setup::default() }.ready()
}

/// The user closes through the identifier or through the queue pair, and posts before the engine has
/// processed the close, while the close waits for an answer, and after the end. The connection ends in
/// different ways.
#[test]
fn late_sends_are_flushed_behind_all_others() {
    type Act = fn(&mut Served);
    let asks: [Act; 2] =
        [|served| served.id.disconnect(), |served| served.qp.modify(QpState::Closing).unwrap()];
    let ends: [(Act, QpState); 4] = [
        (|served| served.pair.close(), QpState::Error),
        (|served| served.qp.modify(QpState::Terminate).unwrap(), QpState::Terminate),
        (|served| served.qp.modify(QpState::Error).unwrap(), QpState::Error),
        (|served| served.id.abort(), QpState::Error),
    ];
    for ask in asks {
        for (end, last) in ends {
            let mut served = taking();
            // The close waits for the Read Response.
            served.post(&served.read(1));
            ask(&mut served);
            assert_eq!(served.qp.state(), QpState::Rts, "the engine has not heard of it");
            served.post(&send(&served, 2));
            served.run(10_000);
            assert_eq!(served.qp.state(), QpState::Closing);
            let immediate = SendOp::Immediate { data: [7; 8] };
            served.post(&SendRequest::empty(3, immediate).flags(SendFlags::empty()));
            served.post(&send(&served, 4));
            // Late sends use entries of the queue.
            assert!(matches!(served.qp.post_send(&send(&served, 5)), Err(VerbsError::QueueFull("send"))));
            let now = served.qp.query();
            assert_eq!((now.send_open, now.send_outstanding), (4, 4));
            served.run(10_000);
            assert_eq!(served.completions(), [], "nothing is over yet");
            let mut sent = std::mem::take(&mut served.pair.inbox);
            assert_eq!(ulpdus(&mut Framer::new(false, true), &mut sent).len(), 1, "the Read alone");

            end(&mut served);
            served.run(10_000);
            assert_eq!(served.qp.state(), last);
            let mut done = Vec::new();
            while let Some(wc) = served.cq.poll_one() {
                done.push((wc.wr_id, wc.status, wc.opcode));
            }
            let opcodes = [WcOpcode::Read, WcOpcode::Send, WcOpcode::Immediate, WcOpcode::Send];
            let expected: Vec<_> = (1..).zip(opcodes).map(|(wr_id, of)| (wr_id, FLUSHED, of)).collect();
            assert_eq!(done, expected, "{last:?}");
            // The engine also flushes each later send.
            for wr_id in 10..20 {
                served.post(&send(&served, wr_id));
                served.run(1_000);
                assert_eq!(served.completions(), [(wr_id, FLUSHED)], "{last:?}");
            }
            // No late send was sent. The engine has sent at most a Terminate.
            let mut sent = std::mem::take(&mut served.pair.inbox);
            let heard = ulpdus(&mut Framer::new(false, true), &mut sent);
            assert!(heard.iter().all(|ulpdu| ulpdu[1] & 0xf == 7), "{heard:02x?}");
        }
    }
}

/// After the peer's FIN, sends are late as well.
#[test]
fn sends_behind_the_peers_fin_are_flushed() {
    let mut served = taking();
    served.post(&send(&served, 1));
    served.pair.close();
    assert!(served.pair.until(10_000, |_| served.qp.state() == QpState::Closing));
    served.post(&send(&served, 2));
    assert_eq!(served.statuses(), [(1, WcStatus::Success), (2, FLUSHED)]);
}

/// Before the connection is established, `take_late_sends` has no effect: a post is refused.
#[test]
fn sends_before_the_connection_are_no_late_ones() {
    let served = taking();
    let idle = served.pd.create_qp(&QpInit::new(&served.cq)).unwrap();
    idle.take_late_sends();
    assert!(matches!(idle.post_send(&send(&served, 1)), Err(VerbsError::InvalidState(QpState::Idle))));
    served.qp.take_late_sends();
    served.post(&send(&served, 1));
}

/// Requests are posted before, while and after the connection ends. Each accepted request completes once, in
/// post order.
#[test]
fn each_request_completes_once() {
    for steps in 0..60 {
        let mut served = taking();
        let (mut posted, mut done) = (Vec::new(), Vec::new());
        served.id.disconnect();
        let mut closed = false;
        for step in 0..80u64 {
            if served.qp.post_send(&send(&served, step)).is_ok() {
                posted.push(step);
            }
            served.pair.poll();
            if step == steps && !closed {
                served.pair.close();
                closed = true;
            }
            done.extend(served.completions());
        }
        served.run(50_000);
        done.extend(served.completions());
        assert!(done.iter().all(|&(_, status)| status == FLUSHED));
        assert_eq!(done.iter().map(|&(wr_id, _)| wr_id).collect::<Vec<_>>(), posted, "{steps}");
    }
}
