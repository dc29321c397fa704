//! One-line descriptions of frames and messages.

use super::{Segment, Startup, Terminate, flag, opcode};

const NAMES: [&str; 12] = [
    "Write",
    "Read Request",
    "Read Response",
    "Send",
    "Send with Invalidate",
    "Send with SE",
    "Send with SE and Invalidate",
    "Terminate",
    "Immediate Data",
    "Immediate Data with SE",
    "Atomic Request",
    "Atomic Response",
];

/// Returns two hexadecimal digits for each byte.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Describes bytes of an unknown format: their first line, in quotes, if it is printable; otherwise all bytes
/// in hexadecimal.
pub fn text(bytes: &[u8]) -> String {
    let line = bytes.split(|byte| matches!(byte, b'\r' | b'\n')).next().unwrap_or(bytes);
    let printable = !line.is_empty() && line.iter().all(|byte| (b' '..=b'~').contains(byte));
    if printable { format!("\"{}\"", String::from_utf8_lossy(line)) } else { hex(bytes) }
}

/// Returns the name of an opcode.
pub fn message(opcode: u8) -> &'static str {
    NAMES.get(usize::from(opcode)).copied().unwrap_or("message of a reserved opcode")
}

/// Describes a startup frame.
pub fn startup(frame: &Startup) -> String {
    let kind = match frame.key {
        super::REQUEST_KEY => "MPA Request",
        super::REPLY_KEY => "MPA Reply",
        _ => "startup frame with a wrong key",
    };
    let names = [(flag::M, "M"), (flag::C, "C"), (flag::R, "R"), (flag::S, "S")];
    let mut text = format!("{kind}, revision {}", frame.revision);
    for (_, name) in names.iter().filter(|(mask, _)| frame.has(*mask)) {
        text += &format!(" {name}");
    }
    if frame.flags & 0x0f != 0 {
        text += &format!(" reserved {:x}", frame.flags & 0x0f);
    }
    if let Some(depths) = frame.depths() {
        text += &format!(", IRD {} ORD {}", depths.ird, depths.ord);
        let kinds = [
            (depths.peer_to_peer, "A"),
            (depths.by_send, "B"),
            (depths.by_write, "C"),
            (depths.by_read, "D"),
        ];
        for (_, name) in kinds.iter().filter(|(set, _)| *set) {
            text += &format!(" {name}");
        }
    }
    let ulp = frame.ulp_data();
    if !ulp.is_empty() {
        let printable = ulp.iter().all(|byte| (b' '..=b'~').contains(byte));
        let shown = if printable { format!("\"{}\"", String::from_utf8_lossy(ulp)) } else { String::new() };
        text += &format!(", {} bytes of private data {shown}", ulp.len());
    }
    text.trim_end().to_owned()
}

/// Describes a DDP segment.
pub fn segment(segment: &Segment) -> String {
    if !segment.is_whole() {
        return format!("{} bytes, too few for a DDP header", segment.bytes.len());
    }
    let mut text = message(segment.opcode()).to_owned();
    if segment.is_tagged() {
        text += &format!(" STag {:08x} TO {:x}", segment.stag(), segment.to());
    } else {
        text += &format!(" QN {} MSN {} MO {}", segment.qn(), segment.msn(), segment.mo());
        if segment.stag() != 0 {
            text += &format!(" Invalidate STag {:08x}", segment.stag());
        }
    }
    if !segment.is_last() {
        text += ", more follows";
    }
    match (segment.control_byte() & 0x3f, segment.rdmap_byte() & 0xf0) {
        (0x01, 0x40) => {}
        (ddp, rdmap) => text += &format!(", DV/Rsvd {ddp:02x} RV/Rsv {rdmap:02x}"),
    }
    match (segment.opcode(), segment.as_read_request(), segment.as_terminate()) {
        (opcode::READ_REQUEST, Some(read), _) => {
            text += &format!(
                ", {} bytes of {:08x} TO {:x} to {:08x} TO {:x}",
                read.size, read.source_stag, read.source_to, read.sink_stag, read.sink_to
            );
        }
        (_, _, Some(told)) => text += &format!(", {}", terminate(&told)),
        _ => text += &format!(", {} bytes", segment.payload().len()),
    }
    text
}

/// Describes a Terminate's payload.
pub fn terminate(terminate: &Terminate) -> String {
    let (m, d, r) = terminate.any_header_control();
    let mut text = format!("code {} (or {} with halves swapped)", terminate.code(), terminate.swapped_code());
    if terminate.code() == terminate.swapped_code() {
        text = format!("code {}", terminate.code());
    }
    for (_, name) in [(m, " M"), (d, " D"), (r, " R")].iter().filter(|(set, _)| *set) {
        text += name;
    }
    if let (true, Some(length)) = (m, terminate.segment_length()) {
        text += &format!(", segment length {length}");
    }
    if d {
        text += &format!(", header {}", hex(terminate.ddp_header()));
    }
    text
}
