//! Frames that an attacker inserts between the frames of a connection: segments that look like segments of
//! the sender, and ICMP errors. They must have no effect (RFC 5961, RFC 7323 section 5, RFC 5927).

use super::coverage::Occurrence;
use testkit::dice::Dice;
use testkit::packet::{Tcp, complete, flag, too_big, unreachable};

/// Distance between the expected number and a forged number that has to be far away from the expected number.
const FAR: u32 = 1 << 30;

/// A forged frame.
#[derive(Debug)]
pub struct Forged {
    /// The kind of forgery.
    pub occurrence: Occurrence,
    /// The whole frame.
    pub bytes: Vec<u8>,
    /// Whether the frame goes to the sender of the original frame, and not to its receiver.
    pub to_sender: bool,
}

/// Makes a forged frame from a frame of an established connection, or returns `None` if this frame is not
/// suitable. The stream sent so far ends `high` bytes after the frame's sequence number, and then has a FIN
/// if `finished`.
pub fn forge(dice: &mut Dice, frame: &[u8], tcp: &Tcp, high: u32, finished: bool) -> Option<Forged> {
    if tcp.flags & (flag::SYN | flag::FIN | flag::RST) != 0 || !tcp.has(flag::ACK) {
        return None;
    }
    // `end` is the sequence number after everything that was sent, including the FIN. A number beyond `end`
    // may be in the window, but is never RCV.NXT.
    let end = tcp.seq.wrapping_add(high + u32::from(finished));
    let beyond = end.wrapping_add(1 + dice.below(500) as u32);
    let garbage = vec![0x66; 1 + dice.below(400) as usize];
    let forged = |occurrence, bytes| Some(Forged { occurrence, bytes, to_sender: false });
    match dice.below(6) {
        0 => forged(Occurrence::ForgedReset, tcp.rebuilt(frame, beyond, &[], flag::RST)),
        1 => {
            // In TIME-WAIT, a number beyond the window would begin the next connection (RFC 6191).
            let seq = if finished || dice.one_in(2) { tcp.seq.wrapping_sub(FAR) } else { beyond };
            let frame = &tcp.with_older_timestamp(frame, FAR);
            forged(Occurrence::ForgedSyn, tcp.rebuilt(frame, seq, &[], flag::SYN))
        }
        2 => {
            let mut bytes = tcp.rebuilt(frame, beyond, &garbage, flag::ACK);
            bytes[tcp.l4 + 8..tcp.l4 + 12].copy_from_slice(&tcp.ack.wrapping_add(FAR).to_be_bytes());
            complete(&mut bytes);
            forged(Occurrence::ForgedData, bytes)
        }
        3 => {
            tcp.timestamp_at(frame)?;
            let frame = &tcp.with_older_timestamp(frame, FAR);
            forged(Occurrence::ForgedOld, tcp.rebuilt(frame, tcp.seq.wrapping_add(high), &garbage, flag::ACK))
        }
        4 => {
            // The quoted sequence number is not in flight.
            let mut quoted = frame.to_vec();
            quoted[tcp.l4 + 4..tcp.l4 + 8].copy_from_slice(&tcp.seq.wrapping_sub(FAR).to_be_bytes());
            let bytes = too_big(&quoted, tcp, if tcp.ipv6 { 1280 } else { 576 });
            Some(Forged { occurrence: Occurrence::ForgedTooBig, bytes, to_sender: true })
        }
        _ => {
            let bytes = unreachable(frame, tcp);
            Some(Forged { occurrence: Occurrence::ForgedUnreachable, bytes, to_sender: true })
        }
    }
}
