//! The agreement on InfiniBand's semantics, for example between peers of different versions, through a proxy,
//! and on connections that begin in streaming mode.

use iwarp::mpa::StartupFault;
use iwarp::verbs::{CmEventKind, ConnParam, ConnectionError, QpInit, ResponderOptions, StreamOptions};

use crate::common::raw::{ib_request, request};
use crate::common::responder::Responder;
use crate::common::{PORT, Pair, Testbed, agreeing};

/// Returns a Request with the offer of the older version.
fn old_request() -> Vec<u8> {
    let mut bytes = request(true);
    // The length of the private data, which includes the enhanced data.
    bytes[19] = 4 + 8;
    bytes.extend(b"uwarp?2\x07");
    bytes
}

/// An endpoint that begins in streaming mode may become the initiator or the responder of MPA.
#[test]
fn ends_agree_behind_streaming_mode() {
    for initiates in [true, false] {
        let mut pair = Testbed::new().peer();
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
            pair.send_request(&ib_request());
            let asked = pair.next_event(&channel, 1_000_000).expect("no Request");
            assert!(matches!(asked.kind, CmEventKind::ConnectRequest { .. }), "{asked:?}");
            id.accept(&qp, &agreeing()).unwrap();
        }
        assert!(pair.until(1_000_000, |pair| pair.inbox.len() >= 20), "no frame of MPA");
        let said = pair.inbox.windows(7).any(|bytes| [&b"uwarp?3"[..], b"uwarp!3"].contains(&bytes));
        assert!(said, "initiates: {initiates}");
    }
}

/// If only one peer wants InfiniBand's semantics, the connection does not have them.
#[test]
fn connections_without_the_semantics_do_not_ask() {
    let (mut pair, _listener) = Pair::listening();
    let c = pair.connect_again(&ConnParam::default(), &agreeing());
    assert_eq!(c.qp_b.query().ib_semantics, Some(false));
}

/// A peer of an older version reports accepted messages in a different format. The Request of such a peer is
/// rejected, and the Reply contains the reason.
#[test]
fn an_older_end_is_refused() {
    let mut responder = Responder::new();
    responder.open(&old_request());
    let pair = &mut responder.pair;
    assert!(pair.until(1_000_000, |pair| pair.inbox.len() > 20 && pair.peer_closed), "no Reply");
    // Bit 0x20 is the Reject bit of the Reply.
    assert_eq!((&pair.inbox[..16], pair.inbox[16] & 0x20), (&b"MPA ID Rep Frame"[..], 0x20));
    let said = String::from_utf8_lossy(&pair.inbox[20..]).into_owned();
    assert!(said.contains("version 3 of InfiniBand's semantics, the other one 2"), "{said}");
}

/// If a connection began in streaming mode, it already has a user. So this user receives an event when the
/// Request of a peer of an older version arrives.
#[test]
fn the_user_is_told_of_an_older_end() {
    let mut pair = Testbed::new().peer();
    pair.listen();
    let channel = pair.context.create_event_channel().unwrap();
    let id = pair.context.create_id(&channel);
    let remote = format!("10.0.0.2:{PORT}").parse().unwrap();
    id.connect_stream(remote, StreamOptions::default(), &ConnParam::default()).unwrap();
    pair.next_event(&channel, 1_000_000).expect("not connected");
    id.start_responder(b"", &ResponderOptions::default()).unwrap();
    pair.send(&old_request());
    assert!(pair.until(100_000, |pair| pair.peer_closed), "no FIN");
    pair.close();
    let event = pair.next_event(&channel, 10_000_000).expect("the user is not told");
    let cause = ConnectionError::Startup(StartupFault::OldAgreement);
    assert!(matches!(event.kind, CmEventKind::ConnectError { error, .. } if error == cause), "{event:?}");
    assert!(cause.to_string().contains("older"), "{cause}");
}

/// A proxy on the path has a separate TCP connection to each peer, with different sequence numbers. The proxy
/// would acknowledge messages that the peer has not accepted, so the peers do not agree. The program still
/// receives its private data.
#[test]
fn ends_with_a_proxy_between_them_do_not_agree() {
    for is_proxy in [false, true] {
        let mut responder = Responder::new();
        responder.pair.connect();
        responder.pair.until(2_000, |_| false);
        match is_proxy {
            // This Request has the mark of another connection.
            true => responder.pair.send(&ib_request()),
            false => responder.pair.send_request(&ib_request()),
        }
        let event = responder.event();
        let CmEventKind::ConnectRequest { private_data, ib_semantics, .. } = &event.kind else {
            panic!("{event:?}")
        };
        assert_eq!((&private_data[..], *ib_semantics), (&b""[..], !is_proxy));
        let qp = responder.accept(&event.id, &agreeing());
        assert_eq!(qp.query().ib_semantics, Some(!is_proxy));
        assert!(responder.pair.until(1_000_000, |pair| pair.inbox.len() >= 20), "no Reply");
        assert_eq!(responder.pair.inbox.windows(7).any(|bytes| bytes == b"uwarp!3"), !is_proxy);
    }
}
