use iwarp::verbs::QpState;

use super::*;

#[test]
fn a_refused_request_says_who_closed() {
    let refused =
        |phase, is_closed_here| refusal(&phase, is_closed_here, VerbsError::InvalidState(QpState::Closing));
    assert!(matches!(refused(Phase::Starting, true), Error::Closed));
    let closed = refused(Phase::Starting, false);
    assert!(matches!(closed, Error::Connection(ConnectionError::PeerClosed)), "{closed}");
    // The disconnect event has arrived, and contains the cause.
    let ended = refused(Phase::Ended(Some(ConnectionError::Rejected)), false);
    assert!(matches!(ended, Error::Connection(ConnectionError::Rejected)), "{ended}");
}
