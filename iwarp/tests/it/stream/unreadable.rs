//! A Terminate of the peer whose error cannot be parsed.

use iwarp::verbs::{CmEventKind, ConnParam, ConnectionError, StreamError};

use super::peer::{served_with, untagged};

/// The Terminate ends the stream as any other Terminate does. The reported error is always RDMAP's
/// unspecified error (0/2/ff). The engine does not report anything as received that the peer did not send.
// Proves RDMAP-259.
#[test]
fn what_the_peer_did_not_send_is_not_reported() {
    for (what, segment) in [
        ("two bytes", untagged(0x41, 0x47, 0, 2, 1, 0, &[0, 0])),
        ("cut short", untagged(0x41, 0x47, 0, 2, 1, 0, &[0x01, 0, 0xe0, 0, 0, 46])),
        ("RV 3", untagged(0x41, 0xc7, 0, 2, 1, 0, &[0x12, 2, 0, 0])),
        ("the second of its queue", untagged(0x41, 0x47, 0, 2, 2, 0, &[0x12, 2, 0, 0])),
        ("a gap in front of it", untagged(0x41, 0x47, 0, 2, 1, 4, &[0x12, 2, 0, 0])),
        ("longer than its buffer", untagged(0x41, 0x47, 0, 2, 1, 0, &[0; 53])),
    ] {
        let mut peer = served_with(ConnParam::default(), 0);
        peer.send_and_run(&[segment]);
        let told = StreamError { layer: 0, etype: 2, code: 0xff, from_peer: true };
        assert_eq!((peer.qp.error(), peer.qp.terminate()), (Some(told), None), "{what}");
        let counters = peer.pair.engine.counters();
        assert_eq!((counters.rx_terminates, counters.tx_terminates), (1, 0), "{what}");
        peer.pair.close();
        let CmEventKind::Disconnected { error, terminate } = peer.event().kind else { panic!("{what}") };
        assert_eq!((error, terminate), (Some(ConnectionError::Stream(told)), None), "{what}");
    }
}
