//! Tests what a `CmId` keeps alive. A connection stays open as long as its queue pair exists, even if no
//! `CmId` of the connection is left. A connection attempt that needs another call of the user ends when the
//! last handle of its `CmId` is dropped.

use crate::common::{Connected, Pair, remote_addr};
use iwarp::verbs::{ConnParam, ConnectionError, QpState, SendOp, SendRequest, WcStatus};
use tcp_lite::CloseReason;

/// Returns a connected pair, of which no `CmId` is left. The events are also dropped, because each event
/// contains a `CmId`.
fn without_identifiers() -> (Pair, iwarp::verbs::QueuePair, iwarp::verbs::QueuePair) {
    let (mut pair, c) = Pair::connected();
    let Connected { qp_a, qp_b, .. } = c;
    pair.run_us(100_000);
    (pair, qp_a, qp_b)
}

/// After both sides have dropped every `CmId` of the connection, the connection continues until a queue pair
/// is dropped.
#[test]
fn a_connection_lives_as_long_as_its_queue_pair() {
    let (mut pair, qp_a, qp_b) = without_identifiers();
    let (local, remote) = pair.regions(64);
    local.write_at(0, b"still here").unwrap();
    let write = SendOp::Write { remote: remote_addr(&remote, 0) };
    qp_a.post_send(&SendRequest::new(1, write, local.sge(0, 10))).unwrap();
    assert_eq!(pair.wc_a().status, WcStatus::Success);
    pair.run_us(100_000);
    assert_eq!(crate::common::read_bytes(&remote, 0, 10), b"still here");
    assert_eq!((qp_a.state(), qp_b.state()), (QpState::Rts, QpState::Rts));
    drop(qp_a);
    pair.until(|_| (qp_b.state() == QpState::Error).then_some(()));
    assert_eq!(qp_b.cause(), Some(ConnectionError::Tcp(CloseReason::Reset)));
    // A connection still reports its end if no `CmId` of the connection is left.
    told!(pair.event_b(), Disconnected { .. });
}

/// A graceful close completes even if no handle of the `CmId` is left.
#[test]
fn a_close_goes_on_without_identifiers() {
    let (mut pair, c) = Pair::connected();
    let (local, remote) = pair.regions(1 << 20);
    let write = SendOp::Write { remote: remote_addr(&remote, 0) };
    c.qp_a.post_send(&SendRequest::new(1, write, local.sge(0, 1 << 20))).unwrap();
    c.id_a.disconnect();
    let Connected { qp_a, qp_b, .. } = c;
    assert_eq!(pair.wc_a().status, WcStatus::Success);
    pair.until(|_| (qp_a.state() == QpState::Error && qp_b.state() == QpState::Error).then_some(()));
    assert_eq!((qp_a.cause(), qp_b.cause()), (None, Some(ConnectionError::PeerClosed)));
    assert_eq!(pair.b.engine.counters().rx_placed_bytes, 1 << 20);
}

/// If the connection ended before the engine processed the accept, the queue pair has the reason of that end.
/// After an abort by the queue pair's own user, there is no reason.
#[test]
fn an_accept_behind_the_end_has_its_reason() {
    for aborts in [false, true] {
        let (mut pair, _listener) = Pair::listening();
        let (_qp, id) = pair.dial(&ConnParam::default());
        let request = pair.event_b();
        let qp = pair.b.qp();
        request.id.accept(&qp, &ConnParam::default()).unwrap();
        match aborts {
            // If the accepting user aborts, its queue pair has no cause.
            true => request.id.abort(),
            false => id.abort(),
        }
        pair.until(|_| (qp.state() == QpState::Error).then_some(()));
        let cause = (!aborts).then_some(ConnectionError::Tcp(CloseReason::Reset));
        assert_eq!(qp.cause(), cause, "{aborts}");
    }
}
