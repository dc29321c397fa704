//! The state machines of both roles of MPA startup, without a network.
//!
//! Rules: a machine consumes at most one frame; with the exceptions below, the result does not depend on how
//! the bytes were split; sent frames are valid; unless a configuration leaves the depths to the user, the
//! depths that the two machines agree on fit each other; both machines support the RTR.

use iwarp::mpa::frame::{Frame, FrameKind, Parsed};
use iwarp::mpa::startup::{Negotiated, ResponderError, Rtr};
use iwarp::mpa::{
    Accept, Initiator, InitiatorEvent, MpaConfig, MpaError, Responder, RtrKind, RtrKinds, StartupFault,
};
use tcp_lite::Instant;

use super::frames::{bytes, config};
use crate::input::Input;

/// Length in bytes of the longest startup frame.
const LONGEST: usize = 20 + 512;

const DEADLINE: Instant = Instant::from_micros_const(1_000_000);
const LATER: Instant = Instant::from_micros_const(2_000_000);

/// Passes the same arbitrary bytes to two machines of one role, whole and in parts, and compares the results.
pub(super) fn alone(input: &mut Input<'_>) {
    let (config, request) = (config(input), input.one_in(2));
    let bytes = bytes(input, request);
    let mut cuts: Vec<usize> =
        (0..input.below(5)).map(|_| usize::from(input.u8()) % (bytes.len() + 1)).collect();
    cuts.push(bytes.len());
    cuts.sort_unstable();
    if request {
        let one = respond(config, &bytes, &[bytes.len()], input);
        // Bytes after a whole Request are early bytes, whether they arrive with the Request or later.
        let cut = respond_again(config, &bytes, &cuts);
        assert_eq!(one.ok(), cut.ok(), "the pieces matter: {cuts:?} of {bytes:02x?}");
    } else {
        let one = initiate(config, &bytes, &[bytes.len()]);
        let cut = initiate(config, &bytes, &cuts);
        match (&one, &cut) {
            // Early FPDUs are detected only if they arrive with the Reply.
            (Err(_), Ok(_)) if !config.tolerate_early_fpdus || config.peer_to_peer => {}
            // The machine detects an error as soon as the wrong byte has arrived. With further bytes, it may
            // report another error.
            (Err(_), Err(_)) => {}
            _ => assert_eq!(one, cut, "the pieces matter: {cuts:?} of {bytes:02x?}"),
        }
    }
}

/// Returns the result of an initiator that receives a Reply in parts.
fn initiate(config: MpaConfig, bytes: &[u8], cuts: &[usize]) -> Result<Option<InitiatorEvent>, StartupFault> {
    let (mut initiator, request) =
        Initiator::start(config, b"q", DEADLINE).expect("a configuration that is valid");
    assert!(matches!(Frame::parse(&request, FrameKind::Request), Ok(Parsed::Frame(..))), "{request:02x?}");
    let (mut from, mut consumed) = (0, 0);
    for &to in cuts {
        let piece = &bytes[from..to];
        let step = initiator.receive(from as u64, piece)?;
        assert!(step.consumed <= piece.len());
        consumed += step.consumed;
        assert!(consumed <= LONGEST, "{consumed} bytes of a frame");
        if let Some(event) = step.event {
            if let InitiatorEvent::Accepted(negotiated) = &event {
                assert_eq!(negotiated.rx_start, consumed as u64);
                check(&config, negotiated);
            }
            let after = initiator.receive(to as u64, b"more").expect("nothing is judged any more");
            assert_eq!((after.consumed, after.event), (0, None));
            assert_eq!(initiator.on_timeout(LATER), Ok(()));
            return Ok(Some(event));
        }
        assert_eq!(step.consumed, piece.len(), "bytes are left, and nothing happened");
        from = to;
    }
    assert_eq!(initiator.deadline(), Some(DEADLINE));
    assert!(initiator.on_timeout(LATER).is_err());
    Ok(None)
}

fn listen(config: MpaConfig) -> Responder {
    Responder::listen(config, DEADLINE).expect("a configuration that is valid")
}

fn feed(responder: &mut Responder, bytes: &[u8], cuts: &[usize]) -> Result<bool, StartupFault> {
    let (mut from, mut consumed, mut asked) = (0, 0, false);
    for &to in cuts {
        let step = responder.receive(from as u64, &bytes[from..to])?;
        consumed += step.consumed;
        assert!(consumed <= LONGEST, "{consumed} bytes of a frame");
        asked |= step.event.is_some();
        from = to;
    }
    Ok(asked)
}

/// Returns the result of a responder that receives a Request in parts. The input chooses the answer of the
/// responder.
fn respond(
    config: MpaConfig,
    bytes: &[u8],
    cuts: &[usize],
    input: &mut Input<'_>,
) -> Result<bool, StartupFault> {
    let mut responder = listen(config);
    let asked = feed(&mut responder, bytes, cuts)?;
    let accept = Accept {
        ird: input.one_in(2).then(|| input.u16()),
        ord: input.one_in(2).then(|| input.u16()),
        min_ord: input.below(4) as u16,
        markers: input.one_in(2).then(|| input.one_in(2)),
        crc: input.one_in(2).then(|| input.one_in(2)),
        private_data: input.bytes(16),
    };
    match responder.accept(accept, LATER) {
        Ok((negotiated, reply)) => {
            assert!(asked, "accepted without a Request");
            let parsed = Frame::parse(&reply, FrameKind::Reply);
            assert!(matches!(&parsed, Ok(Parsed::Frame(frame, _)) if !frame.reject), "{parsed:?}");
            assert!(negotiated.ord >= accept.min_ord, "{negotiated:?}, needs {}", accept.min_ord);
            responder.on_fpdu();
            assert_eq!(responder.on_closed(), None, "after the first FPDU");
        }
        Err(ResponderError::InsufficientIrd { needed }) => {
            assert_eq!(needed, accept.min_ord);
            let reply = responder.reject(b"no", Some(needed)).expect("the Request still waits");
            let parsed = Frame::parse(&reply, FrameKind::Reply);
            assert!(matches!(&parsed, Ok(Parsed::Frame(frame, _)) if frame.reject), "{parsed:?}");
        }
        Err(error) => assert!(!asked, "{error}"),
    }
    Ok(asked)
}

fn respond_again(config: MpaConfig, bytes: &[u8], cuts: &[usize]) -> Result<bool, StartupFault> {
    feed(&mut listen(config), bytes, cuts)
}

/// Checks that the configuration allows the negotiated parameters.
fn check(config: &MpaConfig, negotiated: &Negotiated) {
    assert!(negotiated.ird <= config.max_ird.max(config.ird), "{negotiated:?} of {config:?}");
    assert!(negotiated.ord <= config.ord.max(1) || config.depths_left_to_ulp, "{negotiated:?} of {config:?}");
    if let Rtr::Send(kind) = negotiated.rtr {
        assert!(config.rtr.contains(kind.into()) && config.peer_to_peer, "{negotiated:?} of {config:?}");
    }
}

/// Connects an initiator and a responder, each with any valid configuration. In some runs, one bit of the
/// Request flips on the way.
pub(super) fn together(input: &mut Input<'_>) {
    let (own, other) = (config(input), config(input));
    let (mut initiator, request) =
        Initiator::start(own, b"q", DEADLINE).expect("a configuration that is valid");
    let mut responder = listen(other);
    let mut request = request.to_vec();
    let honest = !input.one_in(4);
    if !honest {
        let at = input.below(request.len());
        request[at] ^= 1 << input.below(8);
    }
    let Ok(step) = responder.receive(0, &request) else { return };
    if step.event.is_none() {
        return;
    }
    let (at_responder, reply) = match responder.accept(Accept::default(), LATER) {
        Ok(accepted) => accepted,
        Err(error) => panic!("{error}"),
    };
    let Ok(step) = initiator.receive(0, &reply) else {
        assert!(!honest || own.revision != other.revision, "the Reply of {other:?} to {own:?} is none");
        return;
    };
    match step.event {
        Some(InitiatorEvent::Accepted(at_initiator)) if honest => {
            check(&own, &at_initiator);
            let left = own.depths_left_to_ulp
                || other.depths_left_to_ulp
                || [own.ird, own.ord, other.ird, other.ord].iter().any(|depth| *depth >= 0x3fff);
            let fits = at_initiator.ord <= at_responder.ird && at_responder.ord <= at_initiator.ird;
            let spoken = at_initiator.peer.is_some() && at_responder.peer.is_some();
            assert!(left || !spoken || fits, "{at_initiator:?} and {at_responder:?}");
            assert_eq!(
                (at_initiator.tx_markers, at_initiator.rx_markers, at_initiator.crc),
                (at_responder.rx_markers, at_responder.tx_markers, at_responder.crc)
            );
            match (at_initiator.rtr, at_responder.rtr) {
                (Rtr::None, Rtr::None) => assert!(!own.peer_to_peer),
                (Rtr::Send(kind), Rtr::Expect(kinds)) => {
                    assert!(kinds.contains(kind.into()));
                    assert!(kind != RtrKind::Read || at_responder.ird >= 1);
                }
                other => panic!("{other:?}"),
            }
        }
        Some(InitiatorEvent::Unmet { error: MpaError::NoMatchingRtr, .. }) if honest => {
            let common = own.rtr & other.rtr;
            assert!(common.is_empty() || common == RtrKinds::READ, "{own:?} and {other:?}");
        }
        _ => {}
    }
}
