use proptest::prelude::*;

use super::*;

// Proves MPA-153, MPA-156, MPA-157, MPA2-121: for all values of the bits M and C in Request and Reply, both
// endpoints agree on markers and CRCs.
#[test]
fn markers_and_crc_by_declaration() {
    for bits in 0..16_u8 {
        let [request_m, reply_m, request_c, reply_c] = [1, 2, 4, 8].map(|bit| bits & bit != 0);
        let initiator = MpaConfig { markers: request_m, crc: request_c, ..client_server() };
        let responder = MpaConfig { markers: reply_m, crc: reply_c, ..client_server() };
        let (bytes_i, i, r) = connect(initiator, responder);
        assert_eq!(bytes_i[16] & 0xc0, u8::from(request_m) << 7 | u8::from(request_c) << 6);
        assert_eq!(
            (i.tx_markers, i.rx_markers, r.tx_markers, r.rx_markers),
            (reply_m, request_m, request_m, reply_m)
        );
        assert_eq!((i.crc, r.crc), (request_c || reply_c, request_c || reply_c));
    }
}

/// Runs a whole startup in which both sides accept. Returns the bytes of the Request, and the results of
/// initiator and responder.
fn connect(initiator: MpaConfig, responder: MpaConfig) -> (Vec<u8>, Negotiated, Negotiated) {
    let (mut i, bytes) = Initiator::start(initiator, b"", DEADLINE).unwrap();
    let mut r = listen(responder);
    r.receive(0, &bytes).unwrap();
    let (at_responder, reply) = r.accept(Accept::default(), LATER).unwrap();
    match i.receive(0, &reply).unwrap().event {
        Some(InitiatorEvent::Accepted(at_initiator)) => (bytes.to_vec(), at_initiator, at_responder),
        other => panic!("{other:?}"),
    }
}

// Proves MPA2-021, MPA2-024, MPA2-027, MPA2-098, MPA2-100, MPA2-101, MPA2-103, MPA2-123, MPA2-124: the Reply
// has the revision of the Request, and is enhanced if and only if the Request is enhanced.
#[test]
fn the_reply_speaks_as_the_request_did() {
    for (bytes, revision, enhanced) in [
        (request(0x50, 2, &[0, 1, 0, 1]), 2, true),
        (request(0x40, 1, &[]), 1, false),
        (request(0x50, 1, &[1; 8]), 1, false),
        (request(0x40, 2, &[1; 6]), 2, false),
    ] {
        let (negotiated, reply) = answered(MpaConfig::default(), &bytes);
        assert_eq!((reply.revision, reply.enhanced.is_some()), (revision, enhanced));
        assert_eq!(negotiated.private_data.len(), bytes.len() - 20 - if enhanced { 4 } else { 0 });
        assert_eq!(negotiated.revision, revision);
    }
}

// Proves MPA2-055, MPA2-056, MPA2-059, MPA2-060, MPA2-061, MPA2-071, MPA2-073, MPA2-113, MPA2-142: the
// responder adapts its IRD and ORD to the depths of the Request.
#[test]
fn the_responder_fits_its_depths() {
    let config = |ird, ord| MpaConfig { ird, ord, max_ird: ird, ..MpaConfig::default() };
    for (own, asked, words, effective) in [
        ((128, 128), [0, 4, 0, 16], [0, 16, 0, 4], (16, 4)),
        ((8, 16), [0, 4, 0, 16], [0, 8, 0, 4], (8, 4)),
        ((8, 16), [0, 0, 0, 0], [0, 0, 0, 0], (0, 0)),
        ((0, 0), [0, 4, 0, 16], [0, 0, 0, 0], (0, 0)),
        // In the peer-to-peer model with an RTR of kind Read, one Read is needed even if the ORD is 0.
        ((8, 8), [0x80, 1, 0x40, 0], [0x80, 1, 0x40, 1], (1, 1)),
        // A depth of 0x3fff leaves the depth of one direction to the ULP, independently of the other
        // direction.
        ((8, 5), [0, 2, 0x3f, 0xff], [0x3f, 0xff, 0, 2], (8, 2)),
        ((8, 5), [0x3f, 0xff, 0, 2], [0, 2, 0x3f, 0xff], (2, 5)),
        ((8, 5), [0x3f, 0xff, 0x3f, 0xff], [0x3f, 0xff, 0x3f, 0xff], (8, 5)),
        ((128, 128), [0x3f, 0xfe, 0x3f, 0xfe], [0, 128, 0, 128], (128, 128)),
    ] {
        let (negotiated, reply) = answered(config(own.0, own.1), &request(0x50, 2, &asked));
        let asked: [u8; 4] = asked;
        let named = reply.enhanced.unwrap();
        let golden = Enhanced::decode(words);
        assert_eq!(named.depths.ird, if asked[2] == 0x40 { 1 } else { golden.depths.ird });
        assert_eq!(named.depths.ord, golden.depths.ord);
        assert_eq!((negotiated.ird, negotiated.ord), effective, "{asked:?}");
        assert_eq!(negotiated.peer, Some(Enhanced::decode(asked)));
    }
}

// Proves MPA2-062, MPA2-139: the ULP may limit the depths when it accepts, and a reject contains the ORD that
// the ULP needs.
#[test]
fn the_ulp_lowers_depths_when_it_accepts() {
    let mut responder = listen(MpaConfig::default());
    responder.receive(0, &request(0x50, 2, &[0, 16, 0, 16])).unwrap();
    let accept = Accept { ird: Some(2), ord: Some(3), ..Accept::default() };
    let (negotiated, reply) = responder.accept(accept, LATER).unwrap();
    assert_eq!((negotiated.ird, negotiated.ord), (2, 3));
    assert_eq!(reply[20..], [0, 2, 0, 3]);
    let mut responder = listen(MpaConfig { ird: 8, max_ird: 8, ..MpaConfig::default() });
    responder.receive(0, &request(0x50, 2, &[0, 1, 0, 16])).unwrap();
    let accept = Accept { ird: Some(100), ord: Some(8), min_ord: 8, ..Accept::default() };
    let refused = responder.accept(accept, LATER).map(|_| ());
    assert_eq!(refused, Err(ResponderError::InsufficientIrd { needed: 8 }));
    assert_eq!(responder.reject(b"", Some(8)).unwrap()[16..], [0x70, 2, 0, 4, 0, 8, 0, 8]);
}

// Proves MPA2-064, MPA2-065, MPA2-072, MPA2-074, MPA2-141, MPA2-153, MPA2-161: the initiator adapts its IRD
// and ORD to the depths of the Reply.
#[test]
fn the_initiator_fits_its_depths() {
    let config = |ird, ord, max_ird| MpaConfig { ird, ord, max_ird, ..client_server() };
    for (own, answer, effective) in [
        ((4, 16, 16), [0, 4, 0, 8], (8, 4)),
        ((4, 16, 16), [0, 32, 0, 0], (4, 16)),
        ((5, 5, 16), [0x3f, 0xff, 0, 2], (5, 5)),
        ((5, 5, 5), [0, 2, 0x3f, 0xff], (5, 2)),
        // irdma leaves both depths to the ULP if the Request left one of the depths to the ULP.
        ((2, 5, 16), [0x3f, 0xff, 0x3f, 0xff], (2, 5)),
        ((0, 0, 0), [0, 0, 0, 0], (0, 0)),
    ] {
        let negotiated = accepted(config(own.0, own.1, own.2), &reply(0x50, 2, &answer));
        assert_eq!((negotiated.ird, negotiated.ord), effective);
    }
    let left = MpaConfig { depths_left_to_ulp: true, ..config(4, 16, 16) };
    assert_eq!(accepted(left, &reply(0x50, 2, &[0, 4, 0, 8])).ord, 4);
    // siw interprets 0x3fff as a number, and answers with a number.
    let left = MpaConfig { depths_left_to_ulp: true, ..client_server() };
    let numbers = accepted(left, &reply(0x50, 2, &[0, 0x80, 0, 0x80]));
    assert_eq!((numbers.ird, numbers.ord), (128, 128));
    let event = start(config(1, 1, 4)).receive(0, &reply(0x50, 2, &[0, 1, 0, 8])).unwrap().event;
    let Some(InitiatorEvent::Unmet { error, negotiated }) = event else { panic!("{event:?}") };
    assert_eq!(error, MpaError::InsufficientIrd { wanted: 8, available: 4 });
    assert_eq!((error.action(), error.terminate_code().control()), (Action::Terminate, [0x20, 6, 0, 0]));
    assert_eq!(negotiated.peer, Some(Enhanced::decode([0, 1, 0, 8])));
}

// Proves MPA2-084, MPA2-130, MPA2-133, MPA2-157: the initiator sends an RTR of a common kind. If no common
// kind exists, the error has code 7.
#[test]
fn the_initiator_picks_a_common_kind() {
    let (send, write, read) = (RtrKinds::SEND, RtrKinds::WRITE, RtrKinds::READ);
    for (offered, answer, picked) in [
        (RtrKinds::all(), [0x80, 1, 0xc0, 1], Some(RtrKind::Write)),
        (RtrKinds::all(), [0xc0, 1, 0x40, 1], Some(RtrKind::Read)),
        (RtrKinds::all(), [0xc0, 0, 0x40, 1], Some(RtrKind::Send)),
        (RtrKinds::all(), [0xc0, 1, 0, 1], Some(RtrKind::Send)),
        (write, [0x80, 1, 0xc0, 1], Some(RtrKind::Write)),
        (write | read, [0x80, 1, 0x40, 1], Some(RtrKind::Read)),
        (write, [0x80, 1, 0x40, 1], None),
        (read, [0x80, 0, 0x40, 1], None),
        (send, [0x80, 1, 0xc0, 1], None),
        // The Reply has another model than the Request.
        (RtrKinds::all(), [0, 1, 0, 1], None),
    ] {
        let event = start(MpaConfig { rtr: offered, ..MpaConfig::default() });
        match { event }.receive(0, &reply(0x50, 2, &answer)).unwrap().event {
            Some(InitiatorEvent::Accepted(n)) => assert_eq!(Some(n.rtr), picked.map(Rtr::Send)),
            Some(InitiatorEvent::Unmet { error, .. }) => {
                assert_eq!((error, picked), (MpaError::NoMatchingRtr, None));
                assert_eq!(error.terminate_code().control(), [0x20, 7, 0, 0]);
            }
            other => panic!("{other:?}"),
        }
    }
    let event = start(client_server()).receive(0, &reply(0x50, 2, &[0x80, 1, 0x80, 1])).unwrap().event;
    assert!(matches!(event, Some(InitiatorEvent::Unmet { error: MpaError::NoMatchingRtr, .. })));
}

// Proves MPA2-080, MPA2-081, MPA2-083, MPA2-085, MPA2-091, MPA2-093, MPA2-118, MPA2-132, MPA2-162: the Reply
// names the common RTR kinds. If no common kind exists, the Reply names the responder's own kinds.
#[test]
fn the_responder_names_common_kinds_or_its_own() {
    let (send, write, read) = (RtrKinds::SEND, RtrKinds::WRITE, RtrKinds::READ);
    for (supported, single, asked, named) in [
        (RtrKinds::all(), false, [0xc0, 1, 0xc0, 1], RtrKinds::all()),
        (write | read, false, [0xc0, 1, 0xc0, 1], write | read),
        (write | read, true, [0xc0, 1, 0xc0, 1], write),
        (write | read, false, [0x80, 1, 0x80, 1], write),
        (write | read, false, [0xc0, 1, 0, 1], write | read),
        (send, true, [0x80, 1, 0xc0, 1], send),
        // Without bit A, the bits B, C and D have no meaning.
        (RtrKinds::all(), false, [0x40, 1, 0xc0, 1], RtrKinds::empty()),
    ] {
        let config = MpaConfig { rtr: supported, single_rtr: single, ..MpaConfig::default() };
        let (negotiated, reply) = answered(config, &request(0x50, 2, &asked));
        let enhanced = reply.enhanced.unwrap();
        assert_eq!((enhanced.peer_to_peer, enhanced.rtr), (asked[0] & 0x80 != 0, named));
        let expected = if enhanced.peer_to_peer { Rtr::Expect(named) } else { Rtr::None };
        assert_eq!(negotiated.rtr, expected);
    }
    // Bit D without bit A does not reserve a Read for an RTR.
    let (negotiated, reply) = answered(MpaConfig::default(), &request(0x50, 2, &[0x40, 1, 0xc0, 0]));
    assert_eq!((negotiated.ird, reply.enhanced.unwrap().depths.ird), (0, 0));
    // If the IRD is 0, the Reply does not name the RTR kind Read if another kind is possible.
    let none = MpaConfig { ird: 0, ..MpaConfig::default() };
    let (_, reply) = answered(none, &request(0x50, 2, &[0x80, 1, 0xc0, 1]));
    assert_eq!(reply.enhanced.unwrap().rtr, write);
    let only_read = MpaConfig { rtr: read, ..none };
    let (_, reply) = answered(only_read, &request(0x50, 2, &[0x80, 1, 0xc0, 1]));
    assert_eq!(reply.enhanced.unwrap().rtr, read);
}

proptest! {
    // Proves MPA2-057: whatever the configurations of both endpoints are, their depths fit each other, and
    // the responder expects the RTR that the initiator sends.
    #[test]
    fn depths_and_rtr_of_both_ends_fit(
        ird_i in 0_u16..300, ord_i in 0_u16..300, ird_r in 0_u16..300, ord_r in 0_u16..300,
        rtr_i in 1_u8..8, rtr_r in 1_u8..8, peer_to_peer: bool,
    ) {
        let initiator = MpaConfig {
            ird: ird_i, ord: ord_i, max_ird: ird_i, peer_to_peer, rtr: RtrKinds::from_bits_truncate(rtr_i),
            ..MpaConfig::default()
        };
        let responder = MpaConfig {
            ird: ird_r, ord: ord_r, max_ird: ird_r, rtr: RtrKinds::from_bits_truncate(rtr_r), ..client_server()
        };
        prop_assume!(initiator.validate().is_ok());
        let (mut i, request) = Initiator::start(initiator, b"q", DEADLINE).unwrap();
        let mut r = listen(responder);
        r.receive(0, &request).unwrap();
        let (at_responder, reply) = r.accept(Accept::default(), LATER).unwrap();
        match i.receive(0, &reply).unwrap().event {
            Some(InitiatorEvent::Accepted(at_initiator)) => {
                prop_assert!(at_initiator.ord <= at_responder.ird && at_responder.ord <= at_initiator.ird);
                match (at_initiator.rtr, at_responder.rtr) {
                    (Rtr::None, Rtr::None) => prop_assert!(!peer_to_peer),
                    (Rtr::Send(kind), Rtr::Expect(kinds)) => {
                        prop_assert!(kinds.contains(kind.into()));
                        prop_assert!(kind != RtrKind::Read || at_responder.ird >= 1);
                    }
                    other => prop_assert!(false, "{other:?}"),
                }
            }
            Some(InitiatorEvent::Unmet { error, .. }) => {
                prop_assert_eq!(error, MpaError::NoMatchingRtr);
                prop_assert!((initiator.rtr & responder.rtr).is_empty()
                    || (ird_r == 0 && (initiator.rtr & responder.rtr) == RtrKinds::READ));
            }
            other => prop_assert!(false, "{other:?}"),
        }
    }
}
