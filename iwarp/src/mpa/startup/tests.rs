//! Tests of MPA's startup for its states and their inputs (RFC 5044 section 7.1, RFC 6581).

use tcp_lite::{Duration, Instant};

use super::*;
use crate::mpa::frame::{Frame, FrameKind, Malformed, Parsed};
use crate::mpa::{Action, MpaError, StartupFault};

mod initiator;
mod negotiation;
mod responder;

const DEADLINE: Instant = Instant::from_millis_const(1000);
const LATER: Instant = Instant::from_millis_const(2000);

/// Stream offset at which the tests begin, since startup may follow plain data.
const OFFSET: u64 = 77;

/// Returns a configuration for the client-server model with depths.
fn client_server() -> MpaConfig {
    MpaConfig { peer_to_peer: false, ..MpaConfig::default() }
}

fn start(config: MpaConfig) -> Initiator {
    Initiator::start(config, b"", DEADLINE).unwrap().0
}

fn listen(config: MpaConfig) -> Responder {
    Responder::listen(config, DEADLINE).unwrap()
}

fn frame(kind: FrameKind, flags: u8, revision: u8, private_data: &[u8]) -> Vec<u8> {
    let length = (private_data.len() as u16).to_be_bytes();
    [&kind.key()[..], &[flags, revision], &length, private_data].concat()
}

fn request(flags: u8, revision: u8, private_data: &[u8]) -> Vec<u8> {
    frame(FrameKind::Request, flags, revision, private_data)
}

fn reply(flags: u8, revision: u8, private_data: &[u8]) -> Vec<u8> {
    frame(FrameKind::Reply, flags, revision, private_data)
}

fn parse(bytes: &[u8], kind: FrameKind) -> Frame {
    match Frame::parse(bytes, kind) {
        Ok(Parsed::Frame(frame, used)) if used == bytes.len() => frame,
        other => panic!("{other:?}"),
    }
}

/// Passes a Reply to an initiator, which must accept it.
fn accepted(config: MpaConfig, bytes: &[u8]) -> Negotiated {
    match start(config).receive(OFFSET, bytes).unwrap().event {
        Some(InitiatorEvent::Accepted(negotiated)) => negotiated,
        other => panic!("{other:?}"),
    }
}

/// Passes a Request to a responder and accepts it. Returns the negotiated settings and the Reply.
fn answered(config: MpaConfig, bytes: &[u8]) -> (Negotiated, Frame) {
    let mut responder = listen(config);
    assert!(responder.receive(OFFSET, bytes).unwrap().event.is_some());
    let (negotiated, reply) = responder.accept(Accept::default(), LATER).unwrap();
    (negotiated, parse(&reply, FrameKind::Reply))
}
