//! A host whose address cannot be resolved.

use crate::common::{PORT, Testbed};
use iwarp::verbs::{CmEventKind, ConnParam, ConnectionError, QpInit, QpState};
use tcp_lite::{CloseReason, Instant};

/// TCP ends a connection while it sends frames. The user must get the event in the same poll, because the
/// next poll first runs commands, and a command may start a connection in the same slot.
#[test]
fn a_connection_that_ends_while_frames_are_sent_is_reported_in_the_same_poll() {
    let mut pair = Testbed::new().configure(|config| config.stack.limits.connections = 1).peer();
    let context = pair.context.clone();
    let channel = context.create_event_channel().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(64, None).unwrap();
    for _ in 0..2 {
        let qp = pd.create_qp(&QpInit::new(&cq)).unwrap();
        let id = context.create_id(&channel);
        id.connect(&qp, format!("10.0.0.9:{PORT}").parse().unwrap(), &ConnParam::default()).unwrap();
        let end_us = pair.now_us + 9_000_000;
        // In the second round, address resolution has just failed, so the connection ends in its first poll.
        loop {
            pair.now_us += 100;
            pair.engine.poll_at(Instant::from_micros(pair.now_us));
            if pair.engine.stack_usage().connections == 0 || pair.now_us > end_us {
                break;
            }
        }
        let event = channel.poll().expect("the user is not told in the poll of the end");
        let unreachable = ConnectionError::Tcp(CloseReason::NoNeighbor);
        assert!(
            event.id == id
                && matches!(event.kind, CmEventKind::ConnectError { error, .. } if error == unreachable),
            "{event:?}"
        );
        assert_eq!(qp.state(), QpState::Error);
        pair.engine.check_invariants().unwrap();
    }
}
