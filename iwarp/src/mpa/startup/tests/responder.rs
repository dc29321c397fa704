use super::*;

// Proves MPA-142, MPA-187: the responder sends nothing before the whole Request has arrived. Then the ULP
// decides.
#[test]
fn a_request_is_taken_byte_by_byte_and_waits_for_a_decision() {
    let bytes = request(0xd0, 2, &[0x80, 3, 0xc0, 2, b'h', b'i']);
    let mut responder = listen(MpaConfig::default());
    assert_eq!(responder.accept(Accept::default(), LATER).map(|_| ()), Err(ResponderError::NoRequest));
    let (last, before) = bytes.split_last().unwrap();
    for (at, byte) in before.iter().enumerate() {
        assert_eq!(
            responder.receive(OFFSET + at as u64, &[*byte]).unwrap(),
            Step { consumed: 1, event: None }
        );
    }
    let step = responder.receive(OFFSET + before.len() as u64, &[*last]).unwrap();
    let event = step.event.unwrap();
    assert_eq!((event.revision, event.markers, event.crc, event.peer_to_peer), (2, true, true, true));
    assert_eq!((event.peer, &event.private_data[..]), (Some(Depths { ird: 3, ord: 2 }), &b"hi"[..]));
    assert_eq!(event.private_data_limit, 508);
    assert_eq!((responder.deadline(), responder.may_send()), (None, false));
    let (negotiated, _) = responder.accept(Accept::default(), LATER).unwrap();
    assert_eq!(negotiated.rx_start, OFFSET + bytes.len() as u64);
    assert_eq!(responder.accept(Accept::default(), LATER).map(|_| ()), Err(ResponderError::NoRequest));
}

// State WaitRequest: the Request is invalid.
// Proves MPA-299, MPA2-125: the error has code 4, and no Reply is sent.
#[test]
fn an_invalid_request_closes_the_connection() {
    let two = MpaConfig::default();
    let one = MpaConfig::revision_one();
    for (config, bytes, fault) in [
        (two, reply(0x40, 1, &[]), StartupFault::Malformed(Malformed::OtherKey)),
        (two, b"GET / HTTP/1.1".to_vec(), StartupFault::Malformed(Malformed::Key)),
        (two, request(0x40, 0, &[]), StartupFault::Revision(0)),
        (two, request(0x50, 3, &[0; 4]), StartupFault::Revision(3)),
        (two, request(0x50, 2, &[0; 2]), StartupFault::Malformed(Malformed::NoDepths)),
        (two, request(0, 1, &[0; 513]), StartupFault::Malformed(Malformed::PrivateDataLength)),
        (one, request(0x50, 2, &[0; 4]), StartupFault::NotEnhanced),
        (one, request(0x40, 2, &[]), StartupFault::Revision(2)),
    ] {
        let mut responder = listen(config);
        let error = responder.receive(OFFSET, &bytes).unwrap_err();
        assert_eq!((error, MpaError::from(error).action()), (fault, Action::Close));
        assert_eq!(responder.accept(Accept::default(), LATER).map(|_| ()), Err(ResponderError::NoRequest));
        assert_eq!((responder.deadline(), responder.on_closed()), (None, None));
    }
}

// State WaitRequest: the deadline passes.
// Proves MPA-206: the arrival of some bytes does not extend the deadline.
#[test]
fn no_request_in_time_ends_startup() {
    let mut responder = listen(MpaConfig::default());
    responder.receive(OFFSET, b"MPA").unwrap();
    assert_eq!(responder.on_timeout(DEADLINE - Duration::from_micros(1)), Ok(()));
    assert_eq!(responder.on_timeout(DEADLINE), Err(MpaError::StartupTimeout));
    assert_eq!(responder.receive(OFFSET + 3, b" ID").unwrap().consumed, 0);
}

// State Decide: bytes arrive before the Reply.
// Proves MPA-170: bytes that the peer may not send yet are treated as a wrong length.
#[test]
fn bytes_before_the_reply_close_the_connection() {
    let bytes = request(0x40, 1, &[]);
    let early = Err(StartupFault::EarlyBytes);
    assert_eq!(listen(MpaConfig::default()).receive(OFFSET, &[&bytes[..], b"F"].concat()), early);
    let mut responder = listen(MpaConfig::default());
    responder.receive(OFFSET, &bytes).unwrap();
    assert_eq!(responder.receive(OFFSET + 20, b"").unwrap().consumed, 0);
    assert_eq!(responder.receive(OFFSET + 20, b"F"), early);
    assert_eq!(responder.reject(b"", None), Err(ResponderError::NoRequest));
}

// State Decide: the ULP accepts. State RxOnly: the first FPDU arrives.
// Proves MPA-183, MPA2-009: nothing is sent before one FPDU, of any kind, was received.
#[test]
fn nothing_may_be_sent_before_the_first_fpdu() {
    for (bytes, rtr, deadline) in [
        (request(0x50, 2, &[0x80, 1, 0x80, 1]), Rtr::Expect(RtrKinds::WRITE), Some(LATER)),
        (request(0x50, 2, &[0, 1, 0, 1]), Rtr::None, None),
        (request(0x40, 1, &[]), Rtr::None, None),
    ] {
        let mut responder = listen(MpaConfig::default());
        responder.receive(OFFSET, &bytes).unwrap();
        let (negotiated, accepted) = responder.accept(Accept::default(), LATER).unwrap();
        assert_eq!((&accepted[..16], accepted[16] & 0x20), (&FrameKind::Reply.key()[..], 0), "R is not set");
        assert_eq!((negotiated.rtr, responder.deadline()), (rtr, deadline));
        assert_eq!(responder.receive(OFFSET + 24, b"FPDU").unwrap(), Step { consumed: 0, event: None });
        assert!(!responder.may_send());
        responder.on_fpdu();
        assert!(responder.may_send());
        assert_eq!(
            (responder.deadline(), responder.on_timeout(LATER), responder.on_closed()),
            (None, Ok(()), None)
        );
    }
}

// Proves MPA2-138: the responder waits for a missing RTR only until a deadline.
#[test]
fn a_missing_rtr_times_out() {
    let mut responder = listen(MpaConfig::default());
    responder.receive(OFFSET, &request(0x50, 2, &[0x80, 1, 0x80, 1])).unwrap();
    responder.accept(Accept::default(), LATER).unwrap();
    assert_eq!(responder.on_timeout(DEADLINE), Ok(()));
    assert_eq!(responder.on_timeout(LATER), Err(MpaError::StartupTimeout));
    responder.on_fpdu();
    assert!(!responder.may_send());
}

// State Decide: the ULP rejects.
// Proves MPA-162, MPA-178, MPA-179, MPA2-029, MPA2-096, MPA2-098, MPA2-102: the Reply has the revision of the
// Request.
#[test]
fn a_reject_speaks_the_revision_of_the_request() {
    for (bytes, needed, rest) in [
        (request(0x50, 2, &[0, 1, 0, 1]), None, &[0x70, 2, 0, 6, 0, 1, 0, 1, b'n', b'o'][..]),
        (request(0x50, 2, &[0, 1, 0, 1]), Some(8), &[0x70, 2, 0, 6, 0, 1, 0, 8, b'n', b'o']),
        (request(0x40, 1, &[]), Some(8), &[0x60, 1, 0, 2, b'n', b'o']),
        (request(0x40, 2, &[]), None, &[0x60, 2, 0, 2, b'n', b'o']),
    ] {
        let mut responder = listen(MpaConfig::default());
        responder.receive(OFFSET, &bytes).unwrap();
        assert_eq!(&responder.reject(b"no", needed).unwrap()[16..], rest);
        assert_eq!((responder.may_send(), responder.deadline()), (false, None));
        assert_eq!(responder.receive(OFFSET, b"ULP").unwrap().consumed, 0);
    }
}

// Proves MPA2-046: the private data of the Reply has a limit, which depends on the form of the Reply. After
// an error the ULP may try again.
#[test]
fn private_data_that_does_not_fit_leaves_the_request_waiting() {
    for (bytes, limit) in [(request(0x50, 2, &[0, 1, 0, 1]), 508), (request(0x40, 1, &[]), 512)] {
        let mut responder = listen(MpaConfig::default());
        responder.receive(OFFSET, &bytes).unwrap();
        let data = vec![7; limit + 1];
        let error = ResponderError::PrivateData(PrivateDataTooLong { bytes: limit + 1, limit });
        let accept = |bytes| Accept { private_data: bytes, ..Accept::default() };
        assert_eq!(responder.accept(accept(&data), LATER).map(|_| ()), Err(error));
        assert_eq!(responder.reject(&data, None), Err(error));
        assert!(responder.accept(accept(&data[1..]), LATER).is_ok());
    }
}
