use super::*;

// Proves MPA-164, MPA-174, MPA2-016, MPA2-022, MPA2-025, MPA2-026, MPA2-028, MPA2-053, MPA2-054, MPA2-077,
// MPA2-090, MPA2-099, MPA2-122, MPA2-131: the Request has these bytes by default, without the peer-to-peer
// model, and with revision 1.
#[test]
fn the_default_request_is_enhanced_and_offers_all_it_can() {
    let (_, bytes) = Initiator::start(MpaConfig::default(), b"", DEADLINE).unwrap();
    assert_eq!(bytes[16..], [0x50, 2, 0, 4, 0x80, 0x80, 0xc0, 0x80]);
    let depths = MpaConfig { ird: 8, ord: 3, ..client_server() };
    let (_, bytes) = Initiator::start(depths, b"abc", DEADLINE).unwrap();
    assert_eq!(bytes[16..], [0x50, 2, 0, 7, 0, 8, 0, 3, b'a', b'b', b'c']);
    assert_eq!(bytes.len(), 27);
    let (_, bytes) = Initiator::start(client_server(), b"hi", DEADLINE).unwrap();
    assert_eq!(bytes[16..], [0x50, 2, 0, 6, 0, 0x80, 0, 0x80, b'h', b'i']);
    let (_, bytes) = Initiator::start(MpaConfig::revision_one(), b"", DEADLINE).unwrap();
    assert_eq!(bytes[16..], [0x40, 1, 0, 0]);
}

// Proves MPA2-070, MPA2-078, MPA2-134, MPA2-140: the Request offers every configured RTR kind, and its depths
// are limited to the size of their fields.
#[test]
fn the_offer_follows_kinds_and_depths() {
    for bits in 1..8 {
        let rtr = RtrKinds::from_bits(bits).unwrap();
        let config = MpaConfig { rtr, ..MpaConfig::default() };
        let (_, bytes) = Initiator::start(config, b"", DEADLINE).unwrap();
        assert_eq!(parse(&bytes, FrameKind::Request).enhanced.unwrap().rtr, rtr);
    }
    let (_, bytes) =
        Initiator::start(MpaConfig { ird: 0, ord: 0, ..MpaConfig::default() }, b"", DEADLINE).unwrap();
    // An RTR of kind Read needs an ORD of 1, although the ULP asks for 0.
    assert_eq!(bytes[20..], [0x80, 0, 0xc0, 1]);
    let deep = MpaConfig { ird: 20_000, ord: 20_000, max_ird: 20_000, ..client_server() };
    let (_, bytes) = Initiator::start(deep, b"", DEADLINE).unwrap();
    assert_eq!(bytes[20..], [0x3f, 0xfe, 0x3f, 0xfe]);
    let left = MpaConfig { depths_left_to_ulp: true, ..client_server() };
    let (_, bytes) = Initiator::start(left, b"", DEADLINE).unwrap();
    assert_eq!(bytes[20..], [0x3f, 0xff, 0x3f, 0xff]);
}

// Proves MPA-172, MPA2-046, MPA2-079: the initiator does not start with 513 bytes of private data, with 509
// bytes after the enhanced data, or with revision 2 and without any RTR kind.
#[test]
fn what_cannot_be_sent_is_refused() {
    let limit = |config: MpaConfig, bytes| Initiator::start(config, &vec![1; bytes], DEADLINE).map(|_| ());
    assert!(limit(MpaConfig::default(), 508).is_ok());
    assert_eq!(
        limit(MpaConfig::default(), 509),
        Err(StartError::PrivateData(PrivateDataTooLong { bytes: 509, limit: 508 }))
    );
    assert!(limit(MpaConfig::revision_one(), 512).is_ok());
    assert!(limit(MpaConfig::revision_one(), 513).is_err());
    for (config, error) in [
        (MpaConfig { rtr: RtrKinds::empty(), ..MpaConfig::default() }, ConfigError::NoRtr),
        (MpaConfig { revision: Revision::One, ..MpaConfig::default() }, ConfigError::Revision),
        (MpaConfig { max_ird: 1, ..MpaConfig::default() }, ConfigError::MaxIrd),
    ] {
        assert_eq!(limit(config, 0), Err(StartError::Config(error)));
        assert_eq!(Responder::listen(config, DEADLINE).map(|_| ()), Err(error));
    }
}

// State WaitReply: the Reply is complete and has R = 0.
// Proves MPA-139, MPA-188, MPA2-082: the Reply is complete after its last byte, even if its bytes arrive one
// by one.
#[test]
fn a_reply_is_taken_byte_by_byte() {
    let bytes = reply(0x50, 2, &[0x80, 1, 0x80, 1, b'y']);
    let mut initiator = start(MpaConfig::default());
    let (last, before) = bytes.split_last().unwrap();
    for (at, byte) in before.iter().enumerate() {
        let step = initiator.receive(OFFSET + at as u64, &[*byte]).unwrap();
        assert_eq!(step, Step { consumed: 1, event: None });
    }
    assert_eq!(initiator.deadline(), Some(DEADLINE));
    let step = initiator.receive(OFFSET + before.len() as u64, &[*last]).unwrap();
    let Some(InitiatorEvent::Accepted(negotiated)) = step.event else { panic!("{step:?}") };
    assert_eq!(negotiated.rx_start, OFFSET + bytes.len() as u64);
    assert_eq!(negotiated.private_data[..], *b"y");
    assert_eq!(
        (initiator.deadline(), initiator.on_timeout(LATER), initiator.on_closed()),
        (None, Ok(()), None)
    );
    assert_eq!(initiator.receive(0, b"FPDU").unwrap(), Step { consumed: 0, event: None });
}

// State WaitReply: the Reply has R = 1.
// Proves MPA2-068, MPA2-127, MPA2-155: the ULP receives the private data and the depths, if the Reply has
// them.
#[test]
fn a_reject_is_told_with_its_depths() {
    for (bytes, peer, data) in [
        (reply(0x70, 2, &[0, 1, 0, 8, b'n', b'o']), Some(Depths { ird: 1, ord: 8 }), &b"no"[..]),
        (reply(0x30, 2, &[]), None, b""),
        (reply(0x20, 2, b"no"), None, b"no"),
        (reply(0x60, 1, b"no"), None, b"no"),
    ] {
        let step = start(MpaConfig::default()).receive(OFFSET, &[&bytes[..], b"ULP"].concat()).unwrap();
        assert_eq!(step.consumed, bytes.len());
        let Some(InitiatorEvent::Rejected(rejected)) = step.event else { panic!("{step:?}") };
        assert_eq!((rejected.peer.map(|peer| peer.depths), &rejected.private_data[..]), (peer, data));
    }
}

// State WaitReply: the Reply has a wrong Key, Rev or PD_Length.
// Proves MPA-151, MPA-165, MPA-189, MPA-196, MPA-202, MPA-301, MPA2-126, MPA2-129: the error has code 4, and
// the connection is closed without a Terminate.
#[test]
fn an_invalid_reply_closes_the_connection() {
    let one = MpaConfig::revision_one();
    let two = client_server();
    for (config, bytes, fault) in [
        (two, request(0x50, 2, &[0; 4]), StartupFault::Malformed(Malformed::OtherKey)),
        (two, b"HTTP/1.1 400".to_vec(), StartupFault::Malformed(Malformed::Key)),
        (two, reply(0x50, 3, &[0; 4]), StartupFault::Revision(3)),
        (two, reply(0x40, 0, &[]), StartupFault::Revision(0)),
        (two, reply(0x10, 2, &[0; 3]), StartupFault::Malformed(Malformed::NoDepths)),
        (two, reply(0, 1, &[0; 513]), StartupFault::Malformed(Malformed::PrivateDataLength)),
        (one, reply(0x40, 2, &[]), StartupFault::Revision(2)),
        (one, reply(0x50, 2, &[0; 4]), StartupFault::NotEnhanced),
        (MpaConfig::default(), reply(0x40, 1, &[]), StartupFault::NoPeerToPeer),
        (MpaConfig::default(), reply(0x40, 2, &[]), StartupFault::NoPeerToPeer),
    ] {
        let mut initiator = start(config);
        let error = initiator.receive(OFFSET, &bytes).unwrap_err();
        assert_eq!(error, fault);
        let error = MpaError::from(error);
        assert_eq!((error.code(), error.action()), (4, Action::Close));
        assert_eq!((initiator.deadline(), initiator.on_closed()), (None, None));
    }
}

// State WaitReply: bytes follow the Reply.
// Proves MPA2-146: if the option is set, the initiator accepts such bytes, unless it has to send an RTR
// first.
#[test]
fn fpdus_behind_the_reply_are_borne_by_option() {
    let bytes = [reply(0x50, 2, &[0, 1, 0, 1]), b"FPDU".to_vec()].concat();
    let step = start(client_server()).receive(OFFSET, &bytes).unwrap();
    assert_eq!(step.consumed, bytes.len() - 4);
    assert!(matches!(step.event, Some(InitiatorEvent::Accepted(_))));
    let strict = MpaConfig { tolerate_early_fpdus: false, ..client_server() };
    assert_eq!(start(strict).receive(OFFSET, &bytes), Err(StartupFault::EarlyBytes));
    let bytes = [reply(0x50, 2, &[0x80, 1, 0x80, 1]), b"FPDU".to_vec()].concat();
    let peer_to_peer = start(MpaConfig::default()).receive(OFFSET, &bytes);
    assert_eq!(peer_to_peer, Err(StartupFault::EarlyBytes));
}

// State WaitReply: the deadline passes.
// Proves MPA-311: startup ends if no byte of the Reply has arrived, or only a part of the Reply.
#[test]
fn no_reply_in_time_ends_startup() {
    for begun in [&b""[..], b"MPA ID Rep"] {
        let mut initiator = start(MpaConfig::default());
        initiator.receive(OFFSET, begun).unwrap();
        assert_eq!(initiator.on_timeout(DEADLINE - Duration::from_micros(1)), Ok(()));
        let error = initiator.on_timeout(DEADLINE).unwrap_err();
        assert_eq!((error, error.action()), (MpaError::StartupTimeout, Action::Close));
        assert_eq!(initiator.on_timeout(LATER), Ok(()));
    }
}

// State WaitReply: a FIN or RST arrives.
#[test]
fn a_close_without_reply_may_be_tried_again_unenhanced() {
    let mut initiator = start(MpaConfig { fallback: true, ..MpaConfig::default() });
    assert!(initiator.may_fall_back());
    assert_eq!(initiator.on_closed(), Some(MpaError::Closed));
    let again = MpaConfig { fallback: true, ..MpaConfig::revision_one() };
    let (again, bytes) = Initiator::start(again, b"", DEADLINE).unwrap();
    assert_eq!(bytes[16..], [0x40, 1, 0, 0]);
    assert!(!again.may_fall_back());
    assert!(!start(MpaConfig::default()).may_fall_back());
    let mut begun = start(MpaConfig { fallback: true, ..MpaConfig::default() });
    begun.receive(OFFSET, b"MPA").unwrap();
    assert!(!begun.may_fall_back());
}

// Proves MPA2-128, MPA2-158: an unenhanced Reply to a client-server Request leaves the configured depths.
#[test]
fn an_unenhanced_reply_is_good_enough_for_client_server() {
    for revision in [1, 2] {
        let negotiated = accepted(client_server(), &reply(0x40, revision, b"data"));
        assert_eq!((negotiated.ird, negotiated.ord, negotiated.peer), (128, 128, None));
        assert_eq!((negotiated.rtr, &negotiated.private_data[..]), (Rtr::None, &b"data"[..]));
    }
    // Bit S is reserved in revision 1, so all bytes belong to the ULP.
    assert_eq!(accepted(client_server(), &reply(0x50, 1, &[1; 8])).private_data.len(), 8);
}
