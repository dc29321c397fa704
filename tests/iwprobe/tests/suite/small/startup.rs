//! MPA startup in both roles.

use std::io::Write;
use std::net::TcpStream;

use iwprobe::wire::{Depths, REPLY_KEY, REQUEST_KEY, Startup, flag};

use super::{Flaw, more};

const DEPTH: u16 = 8;

/// Receives the peer's startup frame, which has to have this key. Returns the frame and the bytes after it,
/// or `None` if the frame is invalid or does not arrive.
pub(super) fn heard(stream: &TcpStream, flaw: Flaw, key: [u8; 16]) -> Option<(Startup, Vec<u8>)> {
    let mut held = Vec::new();
    let frame = loop {
        if let Some((frame, length)) = Startup::decode(&held) {
            held.drain(..length);
            break frame;
        }
        let too_long =
            held.len() >= 20 && flaw != Flaw::AnyLength && u16::from_be_bytes([held[18], held[19]]) > 512;
        if too_long || (held.len() >= 16 && held[..16] != key && flaw != Flaw::AnyKey) {
            return None;
        }
        held.extend(more(stream)?);
    };
    let fine = (frame.key == key || flaw == Flaw::AnyKey)
        && (frame.length <= 512 || flaw == Flaw::AnyLength)
        && (matches!(frame.revision, 1 | 2) || flaw == Flaw::AnyRevision)
        && (!frame.has(flag::S) || frame.length >= 4 || frame.revision == 1);
    fine.then_some((frame, held))
}

pub(super) fn say(mut stream: &TcpStream, frame: &Startup) -> Option<()> {
    stream.write_all(&frame.encode()).ok()
}

fn flags(flaw: Flaw) -> u8 {
    flag::C | if flaw == Flaw::ReservedFlag { 1 } else { 0 }
}

pub(super) fn request(flaw: Flaw, private: &[u8]) -> Startup {
    let depths = Depths { peer_to_peer: true, by_write: true, by_read: true, ..Depths::new(DEPTH, DEPTH) };
    let flags = flags(flaw) | if flaw == Flaw::RequestRejects { flag::R } else { 0 };
    Startup::enhanced(REQUEST_KEY, flags, depths, private)
}

pub(super) fn reply(request: &Startup, flaw: Flaw, ird: u16, ord: u16, private: &[u8]) -> Startup {
    let Some(asked) = request.depths() else {
        let reply = Startup::plain(REPLY_KEY, flags(flaw), private);
        return Startup { revision: request.revision, ..reply };
    };
    let common = |asked: u16, ours: u16| match asked {
        Depths::UNSAID => asked,
        _ if flaw == Flaw::GreedyDepths => DEPTH * 4,
        _ => asked.min(ours),
    };
    let swapped = |depth: u16| if flaw == Flaw::SwapsDepths { depth.swap_bytes() } else { depth };
    let named = asked.peer_to_peer && flaw != Flaw::NoRtrKind;
    let depths = Depths {
        peer_to_peer: asked.peer_to_peer,
        by_send: false,
        by_write: named && (asked.by_write || !asked.by_read),
        by_read: named && asked.by_read && asked.ord > 0,
        ird: swapped(common(asked.ord, ird.min(DEPTH))),
        ord: swapped(common(asked.ird, ord.min(DEPTH))),
    };
    let reply = Startup::enhanced(REPLY_KEY, flags(flaw), depths, private);
    if flaw == Flaw::ForgetsEnhanced { Startup { flags: flag::C, ..reply } } else { reply }
}
